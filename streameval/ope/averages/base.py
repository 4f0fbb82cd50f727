"""What every average is: a frozen value that folds blocks of terms into a state, and reads moments from it.

A reading: what an average knows at one moment, which is all that bounds and reports see of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import Component, strict
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRate, DriftRateEstimator
from streameval.ope.averages.moments import Moments
from streameval.ope.averages.variance import VarianceMoments


class Reading:
    """What an average knows at one moment, one entry a column; what is not known is NaN.

    `moments` make the estimate. `spread` gives its variance, over a past ten times longer, with the unfinished block;
    `design_effect`: by how much dependent events inflate it (finished blocks only), where `knows_units` those of one
    unit, too. `bias`: bound on the bias from drift. `details`: what the average has to say of itself. `parts`: the
    standard deviations `se`, `spread` and `drift` that make up the error of the present value, where the average knows
    them.
    """

    def __init__(
        self,
        moments: Moments,
        spread: VarianceMoments,
        tail: Blocks | None,
        bias: Array,
        details: Mapping[str, Array] = MappingProxyType({}),
        parts: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self.moments, self.bias, self.details, self.parts = moments, bias, details, parts
        self.design_effect, self.knows_units = spread.design_effect, spread.knows_units
        self.spread = spread.with_tail(tail)
        self._finished = spread

    def lift(self, estimators: int) -> Reading:
        """The reading of the paired differences to production, whose columns are the first `estimators` of this one.

        It has no columns of production. The bias of a difference is bounded by the sum of both.
        """
        others, lift = slice(estimators, None), copy(self)
        lift.moments = Moments(self.moments.array[others]).lift
        lift.spread = VarianceMoments(self.spread.array[others]).lift
        lift.design_effect = VarianceMoments(self._finished.array[others]).lift.design_effect
        lift.bias = self.bias[others] + np.resize(self.bias[:estimators], self.bias[others].shape)
        lift.details, lift.parts = {}, {}
        return lift


@dataclass(frozen=True, kw_only=True, config=strict)
class AverageMemory(Component):
    """What every way to remember over time can do, the mixture's too.

    `preference`: plots show the average with the lowest number.
    """

    preference: ClassVar[int] = 3

    def check(self, block: int) -> None:
        """ValueError when it cannot work with blocks of so many events."""

    def to_state(self, state: State) -> State:
        """The state as it is kept in a file."""
        return state

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        return saved


@dataclass(frozen=True, kw_only=True, config=strict)
class Average(AverageMemory):
    """How terms are averaged over time. It knows nothing of policies: a column is a column.

    `fold` takes whole blocks and owns the state it is given (large arrays are changed in place); `read` changes
    nothing and may be given the block that is not finished yet.
    """

    @property
    def drift(self) -> DriftRateEstimator | None:
        """The measure of drift that `fold` and `read` are given; None: none is asked for."""
        return None

    @property
    def measures_drift(self) -> bool:
        """Whether its readings bound the bias from drift."""
        return self.drift is not None

    def start(self, columns: int, block: int) -> State:
        """The state before the first event; `block` is the number of events in a block."""
        raise NotImplementedError

    def fold(self, state: State, blocks: Blocks, pace: DriftRate) -> State:
        """The state after these whole blocks; `pace` is that of `drift` at the end of each."""
        raise NotImplementedError

    def read(self, state: State, tail: Blocks | None, rate: Array) -> Reading:
        """The moments now, the unfinished block included; `rate` is that of `drift` at the last block end."""
        raise NotImplementedError

    def merge(self, earlier: State, later: State) -> State:
        """The state of two parts of one stream that were folded apart; the earlier one must end where a bucket does.

        Only averages whose weights are fixed beforehand can do this; an adaptive one depends on the order of events.
        """
        raise TypeError(f"{self.kind} depends on the order of events: two of its states cannot be merged")
