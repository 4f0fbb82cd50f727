"""Evaluate every estimator on every average, over a stream of events."""
