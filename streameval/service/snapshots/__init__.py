"""Snapshots: state and offsets in one file."""
