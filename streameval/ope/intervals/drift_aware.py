"""The interval of a mixture: for the value now, while values drift."""

from __future__ import annotations

from dataclasses import field
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.averages import AnyAverage
from streameval.ope.averages.base import Reading
from streameval.ope.averages.moments import MomentRow
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import IntervalMethod, is_degenerate

WIDENING = 2.5 / 1.96


@dataclass(frozen=True, config=strict)
class DriftAware(IntervalMethod):
    """`(2.5 z / 1.96) sqrt(se^2 + spread^2 + drift^2)`: covers the value now while values drift. For `mixture`.

    `se`: sampling error of the mixed kernel, in which the pseudo-events of the start count as events; with the design
    effect. `spread`: the disagreement among the decays of the mixture. `drift`: the distance that the value has moved,
    at its speed over the last 50,000 events, since the mean age of the averaged events (left out before that is known).
    The factor 2.5 was found by simulation. Coverage is an average over time: right after a jump no interval from past
    events covers. Withheld while no event has an action that the policy takes, when the initial value is all there is,
    and before the first reward, when no variance is known. A ratio whose terms never varied, ten of them not 0, is that
    ratio.
    """

    description: ClassVar[str] = (
        "They allow for chance, for short and long memories that disagree, and for drift; they lag right "
        "after an abrupt change."
    )
    kind: Literal["drift_aware"] = field(default="drift_aware", kw_only=True, repr=False)

    @property
    def covers(self) -> str:
        return "current"

    def check(self, average: AnyAverage, block: int) -> None:
        if not average.mixes_components:
            raise ValueError(f"drift_aware is the interval of a mixture; {average.label!r} is of another kind")
        super().check(average, block)

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        sampling = reading.parts["se"] ** 2 * np.fmax(1.0, reading.design_effect)
        moved = np.nan_to_num(reading.parts["drift"]) ** 2
        width = WIDENING * z * np.sqrt(sampling + reading.parts["spread"] ** 2 + moved)
        width = np.where(is_degenerate(reading, terms.ratio), 0.0, width)
        return np.where((reading.moments[MomentRow.IMPORTANCE] > 0) & reading.rewarded, width, np.nan)
