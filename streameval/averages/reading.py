"""A reading: what an average knows at one moment, which is all that bounds and reports see of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from types import MappingProxyType

import numpy as np

from streameval.arrays import Array
from streameval.averages.blocks import Blocks
from streameval.averages.moments import Moments
from streameval.averages.spread import Spread


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
        spread: Spread,
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
        lift.spread = Spread(self.spread.array[others]).lift
        lift.design_effect = Spread(self._finished.array[others]).lift.design_effect
        lift.bias = self.bias[others] + np.resize(self.bias[:estimators], self.bias[others].shape)
        lift.details, lift.parts = {}, {}
        return lift
