"""What every estimator is: a frozen value that turns events into terms, and knows nothing of time."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import Component, strict
from streameval.ope.estimators.term_range import TermRange
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import NOTHING, Requirements


class TermPart(NamedTuple):
    """A part of a term that may be averaged on its own; the parts add up to the term.

    `prior` [blocks, policies]: the value to begin with, as known after each block; None: nothing to begin with.
    """

    u: Array
    v: Array | None = None
    prior: Array | None = None


class Terms(NamedTuple):
    """What is averaged, both [events, policies]: the value is `mean(u)`, or `mean(u) / mean(v)` with a `v`."""

    u: Array
    v: Array | None = None
    components: tuple[TermPart, ...] = ()

    def parts(self, mean_reward: Array) -> tuple[TermPart, ...]:
        """The components; a term without any is one, which begins at the logging policy's mean reward [blocks]."""
        return self.components or (TermPart(self.u, self.v, np.repeat(mean_reward[:, None], self.u.shape[1], axis=1)),)


@dataclass(frozen=True, kw_only=True, config=strict)
class Estimator(Component):
    """Turns the evidence of whole blocks into terms.

    `covers_estimand`: the estimator is biased by intent, so its interval is about its own expectation. `ratio`: its
    terms have a denominator. `needs`: what events must tell beyond the logged action. `parts`: into how many components
    its term falls. `preference`: promotion decides by the estimator with the lowest number that has the evidence.
    """

    covers_estimand: ClassVar[bool] = False
    needs: ClassVar[Requirements] = NOTHING
    ratio: ClassVar[bool] = False
    parts: ClassVar[int] = 1
    preference: ClassVar[int] = 6

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

    def extremes(self, reward_range: tuple[float, float], seen: Array) -> TermRange:
        """Between which lines a term lies, given its importance weight: `w` times the reward, however heavy `w` is.

        `seen` [policies], the largest weight so far, is for terms of which that cannot be said: it is their heaviest.
        """
        return TermRange.between((0.0, 0.0), reward_range, np.full_like(seen, np.inf))
