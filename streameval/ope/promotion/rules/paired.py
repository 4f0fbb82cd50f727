"""The rule `paired`: the lower bound of the present lift against the margin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion.lift import HORIZON, Lift
from streameval.ope.promotion.rules.base import (
    EARLY,
    NEVER,
    Judgement,
    PromotionRule,
    RuleContext,
    staying_reason,
)

ENTERING, STAYING = 2.05 / 1.96, 1.7 / 1.96
"""Multiples of the normal quantile: of the bound that a candidate must pass, and of the one that it must keep."""


@dataclass(frozen=True, kw_only=True, config=strict)
class Paired(PromotionRule):
    """`D - (2.05 z / 1.96) sqrt(se^2 + (2 spread)^2 + (moved / 3)^2) > margin`: the present lift, on the mixture.

    `D` averages the difference of both policies' terms on the same events. `z` is the two-sided normal quantile of the
    confidence and `se^2` the sampling variance. `spread^2` and `moved^2` are means over the last 30,000 events: how far
    the decays of the mixture disagree, and how far this lift was from its mean. A promotable candidate stays so while
    the same bound with the factor 1.7 is above the margin; otherwise a bound that wavers about the margin would alert
    three times as often.

    All factors were found by simulation (examples/promotion), for at most one false start in ten million
    candidate-events. The rule is calibrated and not proven, so its error is not spread over the candidates.

    >>> lift = Lift(*(np.array([[value]]) for value in (0.05, 6e-5, 4e-5, 20_000.0)))
    >>> [float(lower_bound(lift, 0.95, factor)[0, 0].round(4)) for factor in (ENTERING, STAYING)]
    [0.0295, 0.033]
    """

    needs_lift: ClassVar[bool] = True
    kind: Literal["paired"] = field(default="paired", repr=False)

    def judge(
        self, memory: State, evidence: Evidence, sums: State, lift: Lift, context: RuleContext
    ) -> tuple[Judgement, State]:
        lower, staying = (lower_bound(lift, context.confidence, factor) for factor in (ENTERING, STAYING))
        more = events_missing(lift, context.margin, context.confidence)
        stay, also = staying > context.margin, {"staying": staying[-1]}
        return Judgement(lift.value, lower, lower > context.margin, stay, lift.events, more, also), memory

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        return self.reason(last, margin) if last["lower"] > margin else staying_reason(last["staying"], margin)


def lower_bound(lift: Lift, confidence: float, factor: float) -> Array:
    """The lower bound of the present lift after each block, [blocks, candidates]."""
    return np.asarray(lift.value - factor * _quantile(confidence) * np.sqrt(lift.error2 + lift.moving2))


def events_missing(lift: Lift, margin: float, confidence: float) -> Array:
    """After the last block, how many more events that bound needs to reach the margin, [candidates].

    The sampling variance falls with the number of events. The part that comes from a moving world stays, once it is
    known: an early estimate moves because it rests on few events.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        lead = (lift.value[-1] - margin) / (ENTERING * _quantile(confidence))
        room = lead**2 - lift.moving2[-1]
        more = lift.events[-1] * np.maximum(lift.error2[-1] / room - 1.0, 0.0)
    known = (lift.events[-1] >= HORIZON) | ~(lead > 0)
    return np.where(np.isnan(lead) | ((lead > 0) & (room > 0)), more, np.where(known, NEVER, EARLY))


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
