"""What watches look at: events as the observations of each group of estimators, gone through once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streameval.arrays import Array, Mask
from streameval.estimators import Terms
from streameval.evidence import Evidence
from streameval.sequences import powers
from streameval.sequences.bernstein import ROUNDING
from streameval.sequences.engine import Engine
from streameval.sequences.heavy import LARGEST_OBSERVATION
from streameval.sequences.observations import LIFT_LOWER, SIDES, Scale, of_terms, of_weights, presence
from streameval.sequences.powers import Powers, Present


@dataclass(frozen=True)
class Group:
    """Estimators that share their sequences. `of`: the estimator whose terms are observed; None: the weights are."""

    engine: Engine
    scale: Scale
    estimators: tuple[int, ...]
    of: int | None = None

    def observed(self, evidence: Evidence, terms: Sequence[Terms], side: int) -> Array:
        """The observations of a side, [policies, events]."""
        if self.of is None:
            observed = of_weights(evidence, side, self.scale)
            return np.minimum(observed, LARGEST_OBSERVATION, out=observed)
        return of_terms(terms[self.of].u, side, self.scale)

    def powers(self, evidence: Evidence, terms: Sequence[Terms], present: Present) -> Powers:
        """What the observations of each block add up to."""
        if self.of is None:
            return powers.of_weights(evidence, self.scale, self.engine.order, self.engine.limit, present)
        return powers.of_terms(terms[self.of].u, self.scale, evidence.blocks, ROUNDING, present)


class Look:
    """Some blocks of events, or the one that is not finished, as watches see them: each group is looked at once,
    however many averages are watched."""

    def __init__(self, evidence: Evidence, terms: Sequence[Terms]) -> None:
        self.evidence, self.terms = evidence, terms
        self._powers: dict[Group, Powers] = {}

    @cached_property
    def present(self) -> Present:
        """Which events count for values and for lifts."""
        return presence(self.evidence)

    def powers(self, group: Group) -> Powers:
        """What the observations of a group add up to."""
        if group not in self._powers:
            self._powers[group] = group.powers(self.evidence, self.terms, self.present)
        return self._powers[group]

    def one_by_one(self, group: Group, block: int) -> Iterator[tuple[Array, Mask | None]]:
        """The observations of one block, side by side, [policies, events], and which are present; others are 0."""
        events = len(self.evidence.reward) // self.evidence.blocks
        part = slice(block * events, (block + 1) * events)
        weights = self.evidence.importance_weight[part], self.evidence.averaging_weight[part]
        evidence = replace(
            self.evidence, importance_weight=weights[0], averaging_weight=weights[1], reward=self.evidence.reward[part]
        )
        terms = [Terms(each.u[part]) for each in self.terms]
        for side in range(SIDES):
            mask = self.present[side >= LIFT_LOWER]
            mask = None if mask is None else mask[:, part]
            observed = group.observed(evidence, terms, side)
            yield (observed, None) if mask is None else (np.where(mask, observed, 0.0), mask)
