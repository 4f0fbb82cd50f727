"""Weigh slates as the evaluator does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streameval import EventBatch
from streameval.ope.evidence import Evidence


def slate_weights(batch: EventBatch, policies: Sequence[str]) -> NDArray[np.float64]:
    """Return `G` of each event for each policy [n, P], NaN if the event lacks the policy."""
    evidence = Evidence.from_slots(batch, policies, "slots")
    return np.where(evidence.sample_weight > 0, evidence.importance_weight, np.nan)
