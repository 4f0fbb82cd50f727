"""The base of promotion rules, the judgement they return, and the sentences that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask
from streameval.common.component import Component, strict
from streameval.common.text import rounded_up, significant
from streameval.ope.core import Lift
from streameval.ope.intervals.sequences.tracker import LiftTest
from streameval.ope.promotion.sums import RewardSums

UNREACHABLE = -1.0
"""Replaces a number of events where no number would do. A state holds no infinities."""
EARLY = -2.0
"""Replaces a number of events where it is too early to estimate one."""


class RuleContext(NamedTuple):
    """The settings that hold for every rule and every block.

    `errors` [candidates]: the error probability of each candidate. `logged`: production is the logging policy,
    whose importance weights are 1. `weights_average_1`: so importance weights do if the propensities are right; False
    where an estimator needs the revealed outcomes alone, and for rankings. `largest_loss`: of rankings, by how much a
    page's term of production may exceed that of a candidate; infinite without a limit, None for other events.
    """

    margin: float
    confidence: float
    errors: Array
    reward_range: tuple[float, float]
    block: int
    logged: bool
    weights_average_1: bool = True
    largest_loss: float | None = None


class Judgement(NamedTuple):
    """The verdict of a rule after each block, [blocks, candidates]; NaN is unknown.

    `lift`: the estimated lift; `lower`: the bound that the rule compares with the margin; `enter`: whether a candidate
    passes; `stay`: whether a promotable candidate may stay so; `events` that the candidate had. `more` [candidates]:
    after the last block, how many more events `lower` needs to reach the margin at the present rate, `UNREACHABLE` or
    `EARLY`. `also` [candidates]: further numbers for the reason, by name.
    """

    lift: Array
    lower: Array
    enter: Mask
    stay: Mask
    events: Array
    more: Array
    also: Mapping[str, Array] = MappingProxyType({})

    @property
    def last(self) -> dict[str, Array]:
        """The numbers of each candidate after the last block, [candidates] by name."""
        known = {"lift": self.lift[-1], "lower": self.lower[-1], "events": self.events[-1], "more": self.more}
        return {**known, **self.also}


@dataclass(frozen=True, kw_only=True, config=strict)
class PromotionRule(Component):
    """A test of every candidate against production, which is column 0 of the evidence, at the end of every block.

    `needs_lift`: the rule reads the lift on a mixture. `judges_by_lift`: it reads nothing else.
    `assumes_independence`: its guarantee holds for events that are independent given the past.
    """

    needs_lift: ClassVar[bool] = False
    judges_by_lift: ClassVar[bool] = False
    assumes_independence: ClassVar[bool] = False

    def start(self, candidates: int) -> Any:
        """Start the memory of the rule: a struct whose arrays have policies as axis 0, None without a memory."""
        return None

    def memory_key(self, context: RuleContext) -> list[Any]:
        """The settings on which the memory depends; when they change, the memory restarts."""
        return []

    def check(self, block: int) -> None:
        """Check the parameters for blocks of this many events.

        Raises:
            ValueError: A parameter does not fit such blocks.
        """

    def lift_test(self, context: RuleContext) -> LiftTest | None:
        """The test that bets on single events in order, None if the rule reads sums over blocks alone."""
        return None

    def judge(self, memory: Any, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, Any]:
        """The judgement after each of these whole blocks, and the memory after them.

        `sums`: of no blocks if the rule `judges_by_lift` and nothing else is known. `lift`: NaN, and of no events,
        where no lift is averaged on a mixture.
        """
        raise NotImplementedError

    def lower(self, memory: Any, last: Mapping[str, Array], context: RuleContext) -> Array:
        """The lower bound of the lift to report, [candidates]."""
        return last["lower"]

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        """Why a candidate passes or fails, from the numbers after the last block."""
        return bound_reason(last["lift"], last["lower"], margin, last["more"])

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        """Why a promotable candidate still is."""
        return self.reason(last, margin)


def bound_reason(lift: float, lower: float, margin: float, more: float, what: str = "lift") -> str:
    """How the lower bound of a lift compares with the margin.

    >>> bound_reason(lift=0.01, lower=-0.002, margin=0.0, more=41_234.0)
    'decision bound of lift -0.002 under margin 0; needs about 42,000 more events at the present rate'
    """
    if math.isnan(lift):
        return f"the {what} is not known yet"
    if math.isnan(lower):
        return f"the decision bound of {what} {significant(lift)} is not known yet"
    if lower > margin:
        return f"decision bound of {what} {significant(lower)} over margin {significant(margin)}"
    place = "at" if lower == margin else "under"
    compared = f"decision bound of {what} {significant(lower)} {place} margin {significant(margin)}"
    if lift <= margin:
        return f"{compared}; the {what}, {significant(lift)}, is not above it either"
    if more == UNREACHABLE:
        return f"{compared}; more events alone will not help: the {what}, {significant(lift)}, varies too much"
    if more == EARLY:
        return f"{compared}; too early to know how much the {what}, {significant(lift)}, varies over time"
    return compared if math.isnan(more) else f"{compared}; {more_reason(more)}"


def staying_reason(lower: float, margin: float) -> str:
    """Why a candidate stays promotable although its bound is below the margin again."""
    compared = f"decision bound of lift {significant(lower)} over margin {significant(margin)}"
    return f"{compared} in the narrower interval for promotable candidates"


def more_reason(more: float) -> str:
    """How many more events are needed.

    >>> more_reason(0.3), more_reason(3_141.0)
    ('needs about 1 more event at the present rate', 'needs about 3,200 more events at the present rate')
    """
    events = rounded_up(max(more, 1.0))
    return f"needs about {events} more event{'' if events == '1' else 's'} at the present rate"
