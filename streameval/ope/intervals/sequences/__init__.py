"""Confidence sequences: intervals that hold at all times at once, valid under continuous monitoring."""
