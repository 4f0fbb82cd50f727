"""Inference that may be watched: confidence sequences, whose intervals hold at every time at once."""

from streameval.ope.intervals.sequences.error_budget import error_shares
from streameval.ope.intervals.sequences.factory import span, watch
from streameval.ope.intervals.sequences.lift_test import LiftProof
from streameval.ope.intervals.sequences.restarts import Restarted, SinceStart
from streameval.ope.intervals.sequences.tracker import Look, Watch, Watched

__all__ = ["LiftProof", "Look", "Restarted", "SinceStart", "Watch", "Watched", "error_shares", "span", "watch"]
