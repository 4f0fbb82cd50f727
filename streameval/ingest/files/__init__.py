"""Read files of events."""
