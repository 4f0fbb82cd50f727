"""Confidence sequences: intervals that hold at all times at once, valid under continuous monitoring."""

from streameval.ope.intervals.sequences.lift_test import LiftTest
from streameval.ope.intervals.sequences.restarts import Restarted, RestartSchedule, SinceStart, error_shares
from streameval.ope.intervals.sequences.tracker import SequenceTracker, TrackedBounds, TrackedGroup

__all__ = [
    "LiftTest",
    "RestartSchedule",
    "Restarted",
    "SequenceTracker",
    "SinceStart",
    "TrackedBounds",
    "TrackedGroup",
    "error_shares",
]
