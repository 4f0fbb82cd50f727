"""Inference that may be watched: confidence sequences, whose intervals hold at every time at once."""

from streameval.sequences.base import Watch, Watched
from streameval.sequences.choice import span, watch
from streameval.sequences.family import error_shares
from streameval.sequences.looking import Look
from streameval.sequences.proof import LiftProof
from streameval.sequences.spans import Restarted, SinceStart

__all__ = ["LiftProof", "Look", "Restarted", "SinceStart", "Watch", "Watched", "error_shares", "span", "watch"]
