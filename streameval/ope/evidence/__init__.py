"""Compute importance weights and the other quantities that estimators read from a batch of events."""

from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.clicks import Clicks, Ranking
from streameval.ope.evidence.evidence import Evidence, start_recent
from streameval.ope.evidence.slate_weights import ranking_weights

__all__ = ["Clicks", "Evidence", "Ranking", "largest_weights", "ranking_weights", "start_recent"]
