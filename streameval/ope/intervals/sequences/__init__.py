"""Compute confidence sequences: intervals that hold at all times at once, under continuous monitoring."""

from streameval.ope.intervals.sequences.observations import LIFT_LOWER, SIDES, VALUE_LOWER
from streameval.ope.intervals.sequences.tracker import LiftTest, TrackedBounds, error_shares
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, measure

__all__ = [
    "COUNT",
    "LIFT_LOWER",
    "SIDES",
    "TOTAL",
    "VALUE_LOWER",
    "LiftTest",
    "TrackedBounds",
    "error_shares",
    "measure",
]
