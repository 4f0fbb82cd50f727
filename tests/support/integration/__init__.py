"""Brokers, browsers, monitoring and the running program."""
