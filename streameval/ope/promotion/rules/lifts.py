"""Provide the rules `paired` and `anytime`: a lower bound of the current lift, alone or with a proof."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
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
    loss_reason,
    more_reason,
    staying_reason,
)
from streameval.ope.promotion.sums import RewardSums

LOOKS = 3.0
"""Multiple of the sampling error of a single look, which the rule repeats after every block."""
FAMILY = 2.5
"""Multiple of `ln K` for K candidates. It would be 2 if lifts had the tails of a normal distribution."""
DRIFT = 2.3
"""Multiple of the error from a moving world. It is the same for all candidates."""
STAYING = 0.9
"""Multiple of both errors for the bound that a promotable candidate must keep."""
NO_EVIDENCE = -1e300
"""Log wealth if nothing can be proven."""


@dataclass(frozen=True, kw_only=True, config=strict)
class Paired(PromotionRule):
    """Require `D - (z / 1.96) sqrt((9 + 2.5 ln K) se^2 + 2.3^2 drift^2) > margin` for the current lift, on the mixture.

    `D` averages the difference of both policies' terms on shared events, and `se^2` is its sampling variance.
    `drift^2 = (2 spread)^2 + (moved / 3)^2 + .6 (1 - 1 / K) together^2` adds means over the last 30,000 events of three
    distances: how far the decays of the mixture disagree, how far this lift was from its own mean, and how far the
    lifts of the candidates that started with it were from their means on average. `z` is the two-sided normal quantile
    of the confidence.

    Among K candidates, the best one looks good by chance. `2 ln K` would cover the largest of K normal errors whatever
    their correlation, which is large: all candidates share the rewards and the logged actions. Large weights make the
    tails heavier than normal, hence 2.5. The error from a moving world needs no such term because a world that moves,
    moves for all candidates. K counts all candidates ever added.

    A promotable candidate stays so while `D - .9 (z / 1.96) sqrt(se^2 + drift^2)` is above the margin. Otherwise a
    bound that wavers about the margin would alert at every crossing.

    A candidate is worse if `D` plus the half-width of the first bound is below the margin, or below 0 if that is less.
    It stays so while `D` plus the half-width of the second one is. Of candidates that equal production, .6 % were ever
    worse in 600,000 events with weights up to 2.2, and 3.8 % with weights up to 125.

    The factors were found by simulation (examples/promotion). The rule is calibrated and not proven.

    >>> lift = Lift(*(np.array([[value]]) for value in (0.05, 6e-5, 4e-5, 20_000.0)))
    >>> [float(bound[0, 0].round(4)) for bound in (entering_bound(lift, 0.95, 1), staying_bound(lift, 0.95))]
    [0.0226, 0.041]
    """

    needs_lift: ClassVar[bool] = True
    judges_by_lift: ClassVar[bool] = True
    kind: Literal["paired"] = field(default="paired", repr=False)

    def judge(self, memory: Any, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, Any]:
        lower = entering_bound(lift, context.confidence, context.candidates)
        staying = staying_bound(lift, context.confidence)
        more = events_missing(lift, context.margin, *_entering(context.confidence, context.candidates))
        stay, also = staying > context.margin, {"staying": staying[-1]}
        paths = _losing(lift, context)
        return Judgement(lift.value, lower, lower > context.margin, stay, lift.events, more, also, paths), memory

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        return self.reason(last, margin) if last["lower"] > margin else staying_reason(last["staying"], margin)


def _losing(lift: Lift, context: RuleContext) -> dict[str, Array]:
    """Return the upper bound that must be below the floor, and whether a candidate is worse and stays so, by name.

    All rewards by which a candidate may be worse count as further candidates.
    """
    mirrored = lift._replace(value=-lift.value)
    upper = -_bound(mirrored, *_entering(context.confidence, context.candidates * context.rewards))
    staying = -staying_bound(mirrored, context.confidence)
    worse, stays = ((bound < context.floor).astype(float) for bound in (upper, staying))
    return {"upper": upper, "worse": worse, "stays_worse": stays}


def entering_bound(lift: Lift, confidence: float, candidates: int) -> Array:
    """Return the bound that one of so many candidates must pass, after each block [blocks, candidates]."""
    return _bound(lift, *_entering(confidence, candidates))


def staying_bound(lift: Lift, confidence: float) -> Array:
    """Return the bound that a promotable candidate must keep, after each block [blocks, candidates]."""
    return _bound(lift, *_staying(confidence))


def _bound(lift: Lift, sampling: float, drift: float) -> Array:
    return np.asarray(lift.value - np.sqrt(sampling**2 * lift.sampling_variance + drift**2 * lift.drift_square))


def events_missing(lift: Lift, margin: float, sampling: float, drift: float) -> Array:
    """Return after the last block how many more events a bound needs to reach the margin [candidates].

    The sampling variance falls with the number of events. The part that comes from a moving world stays, once it is
    known. An early estimate moves because it rests on few events.

    Args:
        lift: The lift after each block.
        margin: The margin.
        sampling: Multiple of the sampling error in the bound.
        drift: Multiple of the error from a moving world in the bound.
    """
    lead = lift.value[-1] - margin
    room = lead * np.abs(lead) - drift**2 * lift.drift_square[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        more = lift.events[-1] * np.maximum(sampling**2 * lift.sampling_variance[-1] / room - 1.0, 0.0)
    is_late = (lift.events[-1] >= HORIZON) | ~(lead > 0)
    return np.where(np.isnan(lead) | (room > 0), more, np.where(is_late, UNREACHABLE, EARLY))


def _entering(confidence: float, candidates: int) -> tuple[float, float]:
    """Return the multiples of the sampling error and of the error from a moving world."""
    scale = _scale(confidence)
    return scale * math.sqrt(LOOKS**2 + FAMILY * math.log(max(candidates, 1))), scale * DRIFT


def _staying(confidence: float) -> tuple[float, float]:
    return (STAYING * _scale(confidence),) * 2


def _scale(confidence: float) -> float:
    """Return the two-sided normal quantile in units of its value at 95 %."""
    return NormalDist().inv_cdf(0.5 + confidence / 2) / 1.96


class AnytimeState(Struct, frozen=True, eq=False):
    """Hold the evidence that candidates are better than the margin, and that they are worse than the floor."""

    better: LiftTestState
    worse: LiftTestState


@dataclass(frozen=True, kw_only=True, config=strict)
class Anytime(PromotionRule):
    """Require a proof that the average lift exceeds the margin, and a bound of the current lift as in `paired`.

    The proof is a confidence sequence, which holds at all times at once. For a candidate with an average lift that
    never exceeds the margin, the probability that it is ever promotable is at most its error, however often anyone
    looks, whatever the tails of the weights, and while the world moves. It needs correct propensities. It is about the
    *average* lift since the start, so a candidate that has become worse stays proven for long. Hence the second
    condition, the lower bound of the current lift at the confidence of `paired`, which is calibrated and not proven.

    With `tau` the average is over some stretch of the last 2 tau events. The proof then speaks of the recent past, and
    the second condition is the one that a promotable candidate must keep: .9 errors. So a candidate may be promotable
    before `paired` says so.

    A candidate is worse if both the confidence sequence and the current lift are below the margin, or below 0 if the
    margin is above. With probability 1 minus its error, a candidate with an average lift that is never below is never
    worse, by this reward or any guardrail. Rankings are never worse, because nothing limits their terms from above.

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

    def start(self, candidates: int) -> AnytimeState:
        test = LiftTest((0.0, 1.0), 0.0, self._schedule(1))
        return AnytimeState(test.start(candidates + 1), test.start(candidates + 1))

    def memory_key(self, context: RuleContext) -> list[Any]:
        return [self.tau, context.margin]

    def check(self, block: int) -> None:
        if self.tau is not None and self.tau < block:
            raise ValueError(f"tau must be a block of {block} events or more, found {self.tau}")

    def judge(
        self, memory: AnytimeState, sums: RewardSums, lift: Lift, context: RuleContext
    ) -> tuple[Judgement, AnytimeState]:
        assert sums.lifts is not None
        wealth, better = self.lift_test(context).fold(memory.better, sums.lifts)
        losses, worse = self._loss_test(context).fold(memory.worse, sums.lifts)
        losing, is_lost = _losing(lift, context), losses[:, 1:] >= np.log(context.rewards / context.errors)
        paths = {name: path if name == "upper" else path * is_lost for name, path in losing.items()}
        wealth, needed = np.maximum(wealth[:, 1:], NO_EVIDENCE), np.log(1.0 / context.errors)
        staying = staying_bound(lift, context.confidence)
        multiples = (
            _entering(context.confidence, context.candidates) if self.tau is None else _staying(context.confidence)
        )
        present = _bound(lift, *multiples)
        proven = wealth >= needed
        enter, stay = proven & (present > context.margin), proven & (staying > context.margin)
        more = np.where(
            proven[-1],
            events_missing(lift, context.margin, *multiples),
            _events_to_prove(wealth[-1], needed, lift.events[-1]),
        )
        also = {"wealth": wealth[-1], "needed": needed, "present": present[-1], "staying": staying[-1]}
        after = AnytimeState(better, worse)
        return Judgement(lift.value, present, enter, stay, lift.events, more, also, paths), after

    def lower(self, memory: AnytimeState, last: Mapping[str, Array], context: RuleContext) -> Array:
        """Return the lower bound of the average lift's confidence sequence."""
        return self.lift_test(context).bound(memory.better, np.concatenate([[1.0], context.errors]))[1:]

    def upper(self, memory: AnytimeState, last: Mapping[str, Array], context: RuleContext) -> Array:
        """Return the upper bound of the average lift's confidence sequence."""
        errors = np.concatenate([[1.0], context.errors / context.rewards])
        return self._loss_test(context).bound(memory.worse, errors)[1:]

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

    def reason_of_loss(self, numbers: Mapping[str, float], floor: float) -> str:
        return loss_reason(f"proven on average, lift {significant(numbers['lift'])}", numbers["upper"], floor)

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        if last["wealth"] < last["needed"] or last["present"] > margin:
            return self.reason(last, margin)
        average = f"decision bound of average lift {significant(last['lower'])} over margin {significant(margin)}"
        return f"{average}, present {staying_reason(last['staying'], margin)}"

    def lift_test(self, context: RuleContext) -> LiftTest:
        return LiftTest(context.reward_range, context.margin, self._schedule(context.block), context.largest_loss)

    def _loss_test(self, context: RuleContext) -> LiftTest:
        return replace(self.lift_test(context), margin=context.floor, below=True)

    def _schedule(self, block: int) -> SinceStart | Restarted:
        return SinceStart() if self.tau is None else Restarted(self.tau, block)


def _events_to_prove(wealth: Array, needed: Array, events: Array) -> Array:
    """Return how many more events the proof needs at the growth rate of the evidence, NaN while there is hardly any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wealth > 1.0, events * (needed / wealth - 1.0), np.nan)
