"""Files as a source of events."""
