"""Lifts that begin anew while values go on: production has changed, and what was said of the pairs is of no use."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval.averages.moments import ALL_ROWS, PAIRS
from streameval.averages.spread import ALL_SPREAD_ROWS, SPREAD_ROWS


def without_pairs(state: Any) -> Any:
    """The state of an average without its pair sums. Moments and spreads are told by how many rows they have."""
    if isinstance(state, dict):
        return {key: without_pairs(value) for key, value in state.items()}
    if not isinstance(state, np.ndarray) or not state.ndim or state.shape[-1] not in (ALL_ROWS, ALL_SPREAD_ROWS):
        return state
    kept = state.copy()
    kept[..., PAIRS if state.shape[-1] == ALL_ROWS else slice(SPREAD_ROWS, None)] = 0.0
    return kept
