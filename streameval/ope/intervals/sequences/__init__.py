"""Inference that may be watched: confidence sequences, whose intervals hold at every time at once."""

from streameval.ope.intervals.sequences.error_budget import error_shares
from streameval.ope.intervals.sequences.factory import span, watch
from streameval.ope.intervals.sequences.lift_test import LiftTest
from streameval.ope.intervals.sequences.restarts import Restarted, SinceStart
from streameval.ope.intervals.sequences.tracker import BlockView, SequenceTracker, TrackedBounds

__all__ = [
    "LiftTest",
    "BlockView",
    "Restarted",
    "SinceStart",
    "SequenceTracker",
    "TrackedBounds",
    "error_shares",
    "span",
    "watch",
]
