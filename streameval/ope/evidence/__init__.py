"""Importance weights and the other quantities that estimators read, computed from a batch of events."""
