"""The base of averages: a frozen value that folds blocks of terms into a state, and reads moments from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State, take_columns
from streameval.common.component import Component, strict
from streameval.ope.averages import variance
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRateEstimator
from streameval.ope.averages.moments import Moments
from streameval.ope.averages.variance import LONGER, VarianceMoments

DEPENDS_ON_ORDER = "the average depends on the order of events: two of its states cannot be merged"


class Lift(NamedTuple):
    """The paired difference to production on a mixture after each block, [blocks, candidates].

    An average gives it for every estimator, [blocks, columns] without columns of production.

    `sampling_variance`: with the design effect; it falls with more events. `drift_square`: the squared error from
    drift, which does not: as an average reports it, the squared disagreement of its decays; as rules read it, see
    `promotion.lift.known`. `events`: those that both policies have, in the block, or for rules until then. All are NaN
    in blocks that were left out because no event had the fields that the estimator needs.
    """

    value: Array
    sampling_variance: Array
    drift_square: Array
    events: Array


FoldedState: TypeAlias = tuple[State, Lift | None]
"""The state of an average, and the lifts where the average mixes components."""


class Reading:
    """The moments of an average at one time, one entry per column; NaN where unknown.

    `moments` make the estimate. `spread` gives its variance, over a past ten times longer, with the unfinished block;
    `design_effect`: the factor by which dependent events inflate it (finished blocks only), which includes the
    dependence within units where `knows_units`. `nonzero`: the number of terms that were not 0, of a lift the lesser
    one of both policies. `rewarded`: whether there was one, of a lift one of either policy. `bias`: bound on the bias
    from drift. `details`: diagnostics of the average. `parts`: the standard deviations `se`, `spread` and `drift` that
    make up the error of the present value, where the average knows them.
    """

    def __init__(
        self,
        moments: Moments,
        spread: VarianceMoments,
        tail: Blocks | None,
        bias: Array | None = None,
        details: Mapping[str, Array] = MappingProxyType({}),
        parts: Mapping[str, Array] = MappingProxyType({}),
        lift: Reading | None = None,
    ) -> None:
        self.moments, self.details, self.parts = moments, details, parts
        self.bias = np.full(moments.array.shape[:-1], np.nan) if bias is None else bias
        self.design_effect, self.knows_units = spread.design_effect, spread.knows_units
        self.spread = spread.with_tail(tail)
        self.nonzero, self.rewarded = self.spread.nonzero, np.asarray(self.spread.nonzero > 0)
        self._finished, self._lift = spread, lift

    def lift(self, estimators: int) -> Reading:
        """The reading of the differences to production, whose columns are the first `estimators` of this one.

        It has no columns of production. The bias of a paired difference is bounded by the sum of both biases.
        """
        others, lift = slice(estimators, None), copy(self._lift or self)
        own, production = self.nonzero[others], np.resize(self.nonzero[:estimators], self.nonzero[others].shape)
        lift.rewarded, lift.nonzero = (own > 0) | (production > 0), np.minimum(own, production)
        if self._lift is not None:
            lift.nonzero = np.minimum(lift.nonzero, self._lift.nonzero)
            return lift
        lift.moments = Moments(self.moments.array[others]).lift
        lift.spread = self.spread.lift(others)
        lift.design_effect = self._finished.lift(others).design_effect
        lift.bias = self.bias[others] + np.resize(self.bias[:estimators], self.bias[others].shape)
        lift.details, lift.parts = {}, {}
        return lift


@dataclass(frozen=True, kw_only=True, config=strict)
class Average(Component):
    """How terms are averaged over time. An average does not know what its columns stand for.

    `fold` takes whole blocks and owns the state it is given (large arrays are changed in place); `read` changes
    nothing and may be given the unfinished block. Axis 0 of every array of a state counts columns, policy by policy;
    numbers that policies share are not arrays.

    `default_interval`: the kind of interval that the coverage study recommends. `mixes_components`: the average keeps
    the components of a term apart, starts from recent evidence, and reports lifts that promotion can use.
    `drift_on_request`: the drift rate is measured only where an interval includes it.
    `preference`: plots show the average with the lowest number. `weighting`: how events are weighted where
    `last_events` is unknown, as the predicate of a sentence about the average.
    """

    default_interval: ClassVar[str] = "empirical_likelihood"
    mixes_components: ClassVar[bool] = False
    drift_on_request: ClassVar[bool] = False
    preference: ClassVar[int] = 3
    weighting: ClassVar[str] = "forgets gradually"

    @property
    def drift(self) -> DriftRateEstimator | None:
        """The estimator of the drift rate that the average needs, if any."""
        return None

    @property
    def last_events(self) -> float | None:
        """The number of newest events that count alike, if it is fixed; infinite where all of them do."""
        return None

    @property
    def effective_events(self) -> float | None:
        """The number of equally weighted events with the same variance, if it is fixed and finite."""
        return None

    def check(self, block: int) -> None:
        """Check that the average can work with blocks of this many events.

        Raises:
            ValueError: The average cannot work with such blocks.
        """

    def start(self, components: Sequence[int], candidates: Sequence[bool], block: int) -> State:
        """The state before the first event; `block` is the number of events in a block.

        Columns are policy by policy, and within a policy estimator by estimator. `components` [estimators]: the number
        of components of each estimator's term. `candidates` [policies]: the policies whose losses a mixture pools.
        """
        raise NotImplementedError

    def fold(self, state: State, blocks: Blocks, rate: Array) -> FoldedState:
        """The state after whole blocks; `rate`: that of `drift` at the end of each block, NaN while unknown."""
        raise NotImplementedError

    def read(self, state: State, tail: Blocks | None, rate: Array) -> Reading:
        """The moments now, the unfinished block included; `rate`: at the end of the last block."""
        raise NotImplementedError

    def merge(self, earlier: State, later: State) -> State:
        """The state of two consecutive parts of a stream that were folded apart.

        Raises:
            TypeError: The weights are not fixed beforehand.
            ValueError: The earlier part ends within a bucket.
        """
        raise TypeError(DEPENDS_ON_ORDER)

    def select(self, state: State, count: int, policies: Sequence[int], estimators: Sequence[int]) -> State:
        """The state for some of `count` policies, and some of the estimators; production stays the first policy."""
        selected: State = take_columns(state, count, policies, estimators)
        return selected


KernelReading: TypeAlias = tuple[Array, Array | None, dict[str, Array]]
"""Moments, bound on the bias from drift (None: unknown), and details."""


class Kernel:
    """The weights that an average gives to events by their age, and the moments under them."""

    def start_kernel(self, columns: int, block: int) -> State:
        """The state before the first event."""
        raise NotImplementedError

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        """The state after whole blocks, and the horizon in events: a number, [blocks] or [blocks, columns]."""
        raise NotImplementedError

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        """The moments of the kernel now, including the unfinished block."""
        raise NotImplementedError

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        """The state of two parts of a stream, and the length of the later one and the horizon in the same unit.

        Raises:
            TypeError: The weights are not fixed beforehand.
        """
        raise TypeError(DEPENDS_ON_ORDER)


@dataclass(frozen=True, kw_only=True, config=strict)
class KernelAverage(Average, Kernel):
    """An average of whole terms under one kernel; their variance comes from a horizon ten times longer."""

    @property
    def kernel(self) -> Kernel:
        """The average that stores the moments: itself, unless it chooses between kernels."""
        return self

    def start(self, components: Sequence[int], candidates: Sequence[bool], block: int) -> State:
        columns = len(components) * len(candidates)
        return {"kernel": self.kernel.start_kernel(columns, block), "spread": variance.start(columns)}

    def fold(self, state: State, blocks: Blocks, rate: Array) -> FoldedState:
        kernel, horizon = self.kernel.fold_kernel(state["kernel"], blocks, rate)
        return {"kernel": kernel, "spread": variance.fold(state["spread"], blocks, LONGER * horizon)}, None

    def read(self, state: State, tail: Blocks | None, rate: Array) -> Reading:
        found, bias, details = self.kernel.read_kernel(state["kernel"], tail, rate)
        return Reading(Moments(found), VarianceMoments(state["spread"]), tail, bias, details)

    def merge(self, earlier: State, later: State) -> State:
        kernel, since, horizon = self.kernel.merge_kernels(earlier["kernel"], later["kernel"])
        spread = variance.merge(earlier["spread"], later["spread"], since, LONGER * horizon)
        return {"kernel": kernel, "spread": spread}
