"""What every estimator is: a frozen value that turns events into terms, and knows nothing of time."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from pydantic.dataclasses import dataclass

from streameval.arrays import Array, State
from streameval.evidence import Evidence
from streameval.labels import Labelled, strict


class Terms(NamedTuple):
    """What is averaged, both [events, policies]: the value is `mean(u)`, or `mean(u) / mean(v)` with a `v`."""

    u: Array
    v: Array | None = None


@dataclass(frozen=True, kw_only=True, config=strict)
class Estimator(Labelled):
    """Turns the evidence of whole blocks into terms.

    `covers_estimand`: the estimator is biased by intent, so its interval is about its own expectation.
    """

    covers_estimand: ClassVar[bool] = False
    ratio: ClassVar[bool] = False

    def start(self, policies: int) -> State:
        """What the estimator must remember between blocks; most remember nothing."""
        return {}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        """The terms of these events, and the state after their last complete block."""
        raise NotImplementedError

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> Array:
        """Largest minus smallest possible term when no importance weight exceeds `max_weight` [policies]."""
        low, high = reward_range
        return max_weight * (max(high, 0.0) - min(low, 0.0))
