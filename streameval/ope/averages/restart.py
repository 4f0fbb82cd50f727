"""Lifts that begin anew while values go on: production has changed, and what was said of the pairs is of no use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streameval.common.arrays import Array
from streameval.ope.averages import moments, variance

KEPT: dict[str, Callable[[Array], Array]] = {
    **dict.fromkeys(("all", "buckets", "kernel", "open"), moments.without_pairs),
    "spread": variance.without_pairs,
}
"""The names under which averages keep moments and spreads, and what takes their pair sums out."""


def without_pairs(state: Any, name: str = "") -> Any:
    """The state of an average without its pair sums."""
    if isinstance(state, dict):
        return {key: without_pairs(value, key) for key, value in state.items()}
    return KEPT[name](state) if name in KEPT else state
