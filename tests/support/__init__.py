"""Hold helpers that several tests share."""
