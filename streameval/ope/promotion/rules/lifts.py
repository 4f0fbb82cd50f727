"""Provide the rules `paired` and `anytime`: a lower bound of the current lift, alone or with a proof."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.common.text import significant
from streameval.ope.core import Lift
from streameval.ope.intervals.sequences.tracker import LiftTest, LiftTestState, Restarted, SinceStart
from streameval.ope.promotion.lift import HORIZON
from streameval.ope.promotion.rules.base import (
    EARLY,
    UNREACHABLE,
    Judgement,
    PromotionRule,
    RuleContext,
    bound_reason,
    more_reason,
    staying_reason,
)
from streameval.ope.promotion.sums import RewardSums

ENTERING, STAYING = 1.75 / 1.96, 0.9 / 1.96
"""Multiples of the normal quantile, for the bound that a candidate must pass and for the one that it must keep."""
CHANCE = 1.3
"""Part of the lifts that chance explains, relative to a single look, because the rule looks after every block."""
MAX_SQUARE = 1e9
"""Largest square of a lift in units of its error that counts."""
NO_EVIDENCE = -1e300
"""Log wealth if nothing can be proven."""


@dataclass(frozen=True, kw_only=True, config=strict)
class Paired(PromotionRule):
    """Require `D - q e > margin` for the current lift, on the mixture.

    `D` averages the difference of both policies' terms on shared events. Its squared error is `e^2 = se^2 + (2
    spread)^2 + (moved / 3)^2 + .6 (1 - 1 / K) together^2`. These are the sampling variance, and means over the last
    30,000 events of three distances: how far the decays of the mixture disagree, how far this lift was from its own
    mean, and how far the lifts of the K candidates that started with it were from their means on average.

    Among many candidates, the best one looks good by chance. With `x = (D - margin)^2 / e^2` of each candidate, Stein's
    estimator shrinks all lifts by `B = 1 - 1.3 (K + 1) / (1 + sum of x)`: to nothing if chance explains them, and
    hardly if most candidates differ from production. A candidate needs `B x > (1.75 z / 1.96)^2`, with the two-sided
    normal quantile `z` of the confidence. `q^2` is the least such x. At 95 %, `q` is 2.3 for one candidate, about 4 for
    each of twenty that equal production, and near 1.75 if most differ. A promotable candidate stays so while this bound
    with .9 in place of 1.75 is above the margin. Otherwise a bound that wavers about the margin would alert at every
    crossing.

    The factors were found by simulation (examples/promotion). The rule is calibrated and not proven.

    >>> lift = Lift(*(np.array([[value]]) for value in (0.05, 6e-5, 4e-5, 20_000.0)))
    >>> [float(lower_bound(lift, 0.0, 0.95, factor)[0, 0].round(4)) for factor in (ENTERING, STAYING)]
    [0.0271, 0.0335]

    Source: James & Stein, Estimation with quadratic loss, 1961; Efron & Morris, JASA 1973, on many estimates at once.
    """

    needs_lift: ClassVar[bool] = True
    judges_by_lift: ClassVar[bool] = True
    kind: Literal["paired"] = field(default="paired", repr=False)

    def judge(self, memory: Any, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, Any]:
        lower, staying = _bounds(lift, context)
        more = events_missing(lift, context.margin, context.confidence)
        stay, also = staying > context.margin, {"staying": staying[-1]}
        return Judgement(lift.value, lower, lower > context.margin, stay, lift.events, more, also), memory

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        return self.reason(last, margin) if last["lower"] > margin else staying_reason(last["staying"], margin)


def _bounds(lift: Lift, context: RuleContext) -> tuple[Array, Array]:
    """Return the lower bounds that a candidate must pass and keep."""
    entering, staying = (
        lower_bound(lift, context.margin, context.confidence, factor) for factor in (ENTERING, STAYING)
    )
    return entering, staying


def lower_bound(lift: Lift, margin: float, confidence: float, factor: float) -> Array:
    """Return the lower bound of the current lift after each block [blocks, candidates]."""
    needed = square_needed(lift, margin, factor * _quantile(confidence))
    return np.asarray(lift.value - np.sqrt(needed * (lift.sampling_variance + lift.drift_square)))


def square_needed(lift: Lift, margin: float, multiple: float) -> Array:
    """Return the least `x` with `B x = multiple^2`, given the other candidates' squares, after each block."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (lift.value - margin) ** 2 / (lift.sampling_variance + lift.drift_square)
    is_known = ~np.isnan(squares)
    capped = np.where(is_known, np.minimum(squares, MAX_SQUARE), 0.0)
    others = capped.sum(axis=1, keepdims=True) - capped
    explained = CHANCE * (is_known.sum(axis=1, keepdims=True) + 1)
    excess, constant = multiple**2 + explained - 1.0 - others, multiple**2 * (1.0 + others)
    return np.asarray(2.0 * constant / (np.sqrt(excess**2 + 4.0 * constant) - excess))


def events_missing(lift: Lift, margin: float, confidence: float, factor: float = ENTERING) -> Array:
    """Return after the last block how many more events that bound needs to reach the margin [candidates].

    The sampling variance falls with the number of events. The part that comes from a moving world stays, once it is
    known. An early estimate moves because it rests on few events.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        lead = (lift.value[-1] - margin) / np.sqrt(square_needed(lift, margin, factor * _quantile(confidence))[-1])
        room = lead**2 - lift.drift_square[-1]
        more = lift.events[-1] * np.maximum(lift.sampling_variance[-1] / room - 1.0, 0.0)
    is_late = (lift.events[-1] >= HORIZON) | ~(lead > 0)
    return np.where(np.isnan(lead) | ((lead > 0) & (room > 0)), more, np.where(is_late, UNREACHABLE, EARLY))


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@dataclass(frozen=True, kw_only=True, config=strict)
class Anytime(PromotionRule):
    """Require a proof that the average lift exceeds the margin, and a bound of the current lift as in `paired`.

    The proof is a confidence sequence, which holds at all times at once. For a candidate with an average lift that
    never exceeds the margin, the probability that it is ever promotable is at most its error, however often anyone
    looks, whatever the tails of the weights, and while the world moves. It needs correct propensities. It is about the
    *average* lift since the start, so a candidate that has become worse stays proven for long. Hence the second
    condition, the lower bound of the current lift at the confidence of `paired`, which is calibrated and not proven.

    With `tau` the average is over some stretch of the last 2 tau events. The proof then speaks of the recent past, and
    the second condition is the one that a promotable candidate must keep: 1.6 errors for one candidate, not 2.3. So a
    candidate may be promotable before `paired` says so.

    The proof assumes events that are independent given the past, unlike events of one user or session. The reason given
    for a promotable candidate reports it if the log shows dependence, and if no event names its unit.

    Args:
        tau: covers at most the last 2 tau events, None for all events

    Source: Mineiro 2022; Howard et al., Annals of Statistics 2021, for the kind of guarantee.
    """

    needs_lift: ClassVar[bool] = True
    assumes_independence: ClassVar[bool] = True
    kind: Literal["anytime"] = field(default="anytime", repr=False)
    tau: int | None = Field(default=None, ge=1, description="covers at most the last 2 tau events; null: all events")

    def start(self, candidates: int) -> LiftTestState:
        return LiftTest((0.0, 1.0), 0.0, self._schedule(1)).start(candidates + 1)

    def memory_key(self, context: RuleContext) -> list[Any]:
        return [self.tau, context.margin]

    def check(self, block: int) -> None:
        if self.tau is not None and self.tau < block:
            raise ValueError(f"tau must be a block of {block} events or more, found {self.tau}")

    def judge(
        self, memory: LiftTestState, sums: RewardSums, lift: Lift, context: RuleContext
    ) -> tuple[Judgement, LiftTestState]:
        assert sums.lifts is not None
        wealth, after = self.lift_test(context).fold(memory, sums.lifts)
        wealth, needed = np.maximum(wealth[:, 1:], NO_EVIDENCE), np.log(1.0 / context.errors)
        entering, staying = _bounds(lift, context)
        present, factor = (entering, ENTERING) if self.tau is None else (staying, STAYING)
        proven = wealth >= needed
        enter, stay = proven & (present > context.margin), proven & (staying > context.margin)
        more = np.where(
            proven[-1],
            events_missing(lift, context.margin, context.confidence, factor),
            _events_to_prove(wealth[-1], needed, lift.events[-1]),
        )
        also = {"wealth": wealth[-1], "needed": needed, "present": present[-1], "staying": staying[-1]}
        return Judgement(lift.value, present, enter, stay, lift.events, more, also), after

    def lower(self, memory: LiftTestState, last: Mapping[str, Array], context: RuleContext) -> Array:
        """Return the lower bound of the average lift's confidence sequence."""
        return self.lift_test(context).lower(memory, np.concatenate([[1.0], context.errors]))[1:]

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        average = f"decision bound of average lift {significant(last['lower'])}"
        if math.isnan(last["lift"]):
            return "the lift is not known yet"
        if last["wealth"] == NO_EVIDENCE:
            return "nothing can be proven: events are sampled unevenly, a weight was negative, or terms have no limit"
        if last["wealth"] < last["needed"]:
            missing = "" if math.isnan(last["more"]) else f"; {more_reason(last['more'])}"
            return f"{average} not above margin {significant(margin)}{missing}"
        present = bound_reason(last["lift"], last["present"], margin, last["more"], what="present lift")
        return f"{average} over margin {significant(margin)}, {present}"

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        if last["wealth"] < last["needed"] or last["present"] > margin:
            return self.reason(last, margin)
        average = f"decision bound of average lift {significant(last['lower'])} over margin {significant(margin)}"
        return f"{average}, present {staying_reason(last['staying'], margin)}"

    def lift_test(self, context: RuleContext) -> LiftTest:
        return LiftTest(context.reward_range, context.margin, self._schedule(context.block), context.largest_loss)

    def _schedule(self, block: int) -> SinceStart | Restarted:
        return SinceStart() if self.tau is None else Restarted(self.tau, block)


def _events_to_prove(wealth: Array, needed: Array, events: Array) -> Array:
    """Return how many more events the proof needs at the growth rate of the evidence, NaN while there is hardly any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wealth > 1.0, events * (needed / wealth - 1.0), np.nan)
