"""Keep which event has the largest importance weight of each candidate. It is no part of the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streameval.ope.evaluator.weighing import Weighed


class HeaviestEvent(NamedTuple):
    """Hold the position of an event and its weight for one candidate.

    Args:
        weight: importance weight
        position: topic, partition and offset
        timestamp: time in epoch seconds, NaN if unknown
    """

    weight: float
    position: tuple[str, int, int]
    timestamp: float


def heaviest(before: dict[str, HeaviestEvent], candidates: Sequence[str], weighed: Weighed) -> dict[str, HeaviestEvent]:
    """Return the heaviest event of each candidate after these events, the first one if several are equal.

    Events without an origin are left out.

    Args:
        before: the heaviest events before
        candidates: all policies but production, in the order of the weights
        weighed: the events
    """
    events, evidence, after = weighed.events, weighed.whole, dict(before)
    if events.origin is None:
        return before
    weights = evidence.importance_weight if evidence.heaviest is None else evidence.heaviest
    for column, (name, weight) in enumerate(zip(candidates, weights.max(axis=0)[1:].tolist(), strict=True), start=1):
        if weight > (after[name].weight if name in after else 0.0):
            row = int(weights[:, column].argmax())
            after[name] = HeaviestEvent(weight, events.origin.position(row), float(events.timestamp[row]))
    return after
