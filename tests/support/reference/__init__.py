"""Slow and plain implementations, to compare with."""
