"""The base of all estimators: a frozen value that turns events into terms, independent of time."""

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
    """A part of a term that may be averaged on its own, [events, policies]; the parts add up to the term.

    `prior` [blocks, policies]: the initial value, as known after each block; None: no initial value.
    """

    numerator: Array
    denominator: Array | None = None
    prior: Array | None = None


class Terms(NamedTuple):
    """The columns to average, [events, policies]: the value is `mean(numerator)`, or the ratio of both means.

    `components`: parts that add up to the term, where it has any.
    """

    numerator: Array
    denominator: Array | None = None
    components: tuple[TermPart, ...] = ()

    def parts(self, mean_reward: Array) -> tuple[TermPart, ...]:
        """The components, or the whole term, whose initial value is the logging policy's mean reward [blocks]."""
        prior = np.repeat(mean_reward[:, None], self.numerator.shape[1], axis=1)
        return self.components or (TermPart(self.numerator, self.denominator, prior),)


@dataclass(frozen=True, kw_only=True, config=strict)
class Estimator(Component):
    """Turns the evidence of whole blocks into terms.

    `is_biased_by_design`: its interval is about its own expectation, not about the value of the policy. `ratio`: its
    terms have a denominator. `needs`: what events must have beyond the logged action. `parts`: the number of components
    of its term. `preference`: where several estimators have the evidence, promotion decides by the one with the lowest
    number, and so do pictures and plans.
    """

    is_biased_by_design: ClassVar[bool] = False
    needs: ClassVar[Requirements] = NOTHING
    ratio: ClassVar[bool] = False
    parts: ClassVar[int] = 1
    preference: ClassVar[int] = 6

    def start(self, policies: int) -> State:
        """The state before the first event; most estimators have none."""
        return {}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        """The terms of these events, and the state after their last complete block."""
        raise NotImplementedError

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> TermRange:
        """The range of a term; here that of `w r`, which no weight is too heavy for.

        Args:
            reward_range: lowest and highest reward
            max_weight: [policies] the weight that none exceeds as far as is known; the heaviest one of terms without
                a limit of their own
        """
        low, high = reward_range
        width = max_weight * (max(high, 0.0) - min(low, 0.0))
        return TermRange.between((0.0, 0.0), reward_range, np.full_like(max_weight, np.inf), width)
