"""Provide the command line, one function per command."""
