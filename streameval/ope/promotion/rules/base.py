"""Define the base of promotion rules, the judgement they return, and the sentences that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask
from streameval.common.component import Component, strict
from streameval.common.text import rounded_up, significant
from streameval.ope.core import Lift
from streameval.ope.intervals.sequences.tracker import LiftTest
from streameval.ope.promotion.sums import RewardSums
from streameval.ope.report import Profile

UNREACHABLE = -1.0
"""Replaces a number of events if no number would do. A state holds no infinities."""
EARLY = -2.0
"""Replaces a number of events if it is too early to estimate one."""


class RuleContext(NamedTuple):
    """Hold the settings for every rule and every block.

    Attributes:
        margin: the lift that a candidate must exceed
        confidence: of a two-sided interval
        errors: the error probability of each candidate [candidates]
        reward_range: the lowest and the highest reward
        block: the number of events in a block
        logged: whether production is the logging policy, with importance weights of 1
        weights_average_1: whether importance weights have mean 1 if the propensities are right. This is False if an
            estimator needs the revealed outcomes alone, and for rankings.
        largest_loss: for rankings, by how much a page's term of production may exceed a candidate's, infinite without a
            limit, None for other events
        candidates: the number of candidates ever added, or the size of the family
        rewards: the number of rewards by which a candidate may be worse, which share the error
        is_ratio: whether the reward is a ratio, so that events have no lift
    """

    margin: float
    confidence: float
    errors: Array
    reward_range: tuple[float, float]
    block: int
    logged: bool
    weights_average_1: bool = True
    largest_loss: float | None = None
    candidates: int = 1
    rewards: int = 1
    is_ratio: bool = False

    @property
    def floor(self) -> float:
        """Return the lift below which a candidate is worse than production."""
        return min(self.margin, 0.0)


class Judgement(NamedTuple):
    """Hold the verdict of a rule after each block [blocks, candidates]. NaN is unknown.

    Attributes:
        lift: the estimated lift
        lower: the bound that the rule compares with the margin
        enter: whether a candidate passes
        stay: whether a promotable candidate may stay so
        events: the number of events of the candidate
        more: after the last block, how many more events `lower` needs to reach the margin at the current rate, or
            `UNREACHABLE` or `EARLY` [candidates]
        also: further numbers for the reason, by name [candidates]
        paths: further numbers for the reason after each block, by name. `worse` is above 0 if a candidate is worse
            than production, and `stays_worse` if one that is may stay so. Rules without them cannot tell.
    """

    lift: Array
    lower: Array
    enter: Mask
    stay: Mask
    events: Array
    more: Array
    also: Mapping[str, Array] = MappingProxyType({})
    paths: Mapping[str, Array] = MappingProxyType({})

    @property
    def last(self) -> dict[str, Array]:
        """Return the numbers of each candidate after the last block, by name [candidates]."""
        numbers = {"lift": self.lift[-1], "lower": self.lower[-1], "events": self.events[-1], "more": self.more}
        return {**numbers, **self.also, **{name: path[-1] for name, path in self.paths.items()}}

    def after(self, block: int, candidate: int) -> dict[str, float]:
        """Return the numbers of one candidate after one block, by name."""
        paths = {"lift": self.lift, "lower": self.lower, **self.paths}
        return {name: float(path[block, candidate]) for name, path in paths.items()}

    def losing(self) -> tuple[Mask, Mask]:
        """Return whether a candidate is worse after each block, and whether one that is may stay so."""
        worse = self.paths.get("worse", np.zeros(self.lift.shape))
        return worse > 0, self.paths.get("stays_worse", worse) > 0


@dataclass(frozen=True, kw_only=True, config=strict)
class PromotionRule(Component):
    """Test every candidate against production, column 0 of the evidence, at the end of every block.

    Attributes:
        needs_lift: whether the rule reads the lift on a mixture
        judges_by_lift: whether it reads nothing else, except for the times of blocks
        assumes_independence: whether its guarantee needs events that are independent given the past
        needs_time: whether it cannot decide about events without timestamps
        needs_hold: whether it must pass at some block ends in a row. A rule that looks seldom need not.
        remembers_lift: whether its memory is about the lift that decides, so that it restarts with another lift
        covers: what its lift is about, see `Decision`
    """

    needs_lift: ClassVar[bool] = False
    judges_by_lift: ClassVar[bool] = False
    assumes_independence: ClassVar[bool] = False
    needs_time: ClassVar[bool] = False
    needs_hold: ClassVar[bool] = True
    remembers_lift: ClassVar[bool] = False
    covers: ClassVar[Literal["period", "present", "average"]] = "present"

    def start(self, candidates: int) -> Any:
        """Start the memory of the rule: a struct of arrays with policies on axis 0, or None without a memory."""
        return None

    def memory_key(self, context: RuleContext) -> list[Any]:
        """Return the settings that the memory depends on. When they change, the memory restarts."""
        return []

    def check(self, block: int) -> None:
        """Check the parameters for blocks of this many events.

        Raises:
            ValueError: A parameter does not fit such blocks.
        """

    def lift_test(self, context: RuleContext) -> LiftTest | None:
        """Return the test that bets on single events in order, or None if the rule reads sums over blocks alone."""
        return None

    def judge(self, memory: Any, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, Any]:
        """Return the judgement after each of these whole blocks, and the memory after them.

        Args:
            memory: the memory before
            sums: the sums of the blocks, of no blocks if the rule `judges_by_lift` and nothing else is known
            lift: the lift, NaN and of no events if no lift is averaged on a mixture
            context: the settings
        """
        raise NotImplementedError

    def lower(self, memory: Any, last: Mapping[str, Array], context: RuleContext) -> Array:
        """Return the lower bound of the lift to report [candidates]."""
        return last["lower"]

    def upper(self, memory: Any, last: Mapping[str, Array], context: RuleContext) -> Array:
        """Return the upper bound of the lift to report [candidates], NaN for rules without one."""
        return last.get("upper", np.full(len(context.errors), np.nan))

    def standard_errors(self, last: Mapping[str, float], context: RuleContext) -> float:
        """Return the lift in standard errors, NaN if it is unknown. `error` is the one of the deciding lift."""
        return last["lift"] / last.get("error", math.nan) if last.get("error") else math.nan

    def profiles(self, memory: Any) -> Sequence[tuple[Profile, ...]]:
        """Return the lift of each candidate by the phases of its periods, empty if the rule does not know it."""
        return ()

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        """Explain why a candidate passes or fails, from the numbers after the last block."""
        return bound_reason(last["lift"], last["lower"], margin, last["more"])

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        """Explain why a promotable candidate still is promotable."""
        return self.reason(last, margin)

    def reason_of_loss(self, numbers: Mapping[str, float], floor: float) -> str:
        """Explain why a candidate is worse than production, from the numbers after a block."""
        return loss_reason(f"lift {significant(numbers['lift'])}", numbers["upper"], floor)

    def reason_of_change(self, numbers: Mapping[str, float], margin: float) -> str:
        """Explain why a candidate became promotable or ceased to be, from the numbers after that block."""
        return bound_reason(numbers["lift"], numbers["lower"], margin, math.nan)


def bound_reason(lift: float, lower: float, margin: float, more: float, what: str = "lift") -> str:
    """Compare the lower bound of a lift with the margin, in words.

    >>> bound_reason(lift=0.01, lower=-0.002, margin=0.0, more=41_234.0)
    'decision bound of lift -0.002 under margin 0; needs about 42,000 more events at the present rate'
    """
    if math.isnan(lift):
        return f"the {what} is not known yet"
    if math.isnan(lower):
        return f"the decision bound of {what} {significant(lift)} is not known yet"
    if lower > margin:
        return f"decision bound of {what} {significant(lower)} over margin {significant(margin)}"
    relation = "at" if lower == margin else "under"
    compared = f"decision bound of {what} {significant(lower)} {relation} margin {significant(margin)}"
    if lift <= margin:
        return f"{compared}; the {what}, {significant(lift)}, is not above it either"
    if more == UNREACHABLE:
        return f"{compared}; more events alone will not help: the {what}, {significant(lift)}, varies too much"
    if more == EARLY:
        return f"{compared}; too early to know how much the {what}, {significant(lift)}, varies over time"
    return compared if math.isnan(more) else f"{compared}; {more_reason(more)}"


def loss_reason(lift: str, upper: float, floor: float) -> str:
    """Explain why a candidate is worse than production.

    >>> loss_reason("lift -0.02", -0.004, 0.0)
    'worse than production: lift -0.02, upper bound -0.004, below 0'
    """
    return f"worse than production: {lift}, upper bound {significant(upper)}, below {significant(floor)}"


def staying_reason(lower: float, margin: float) -> str:
    """Explain why a candidate stays promotable although its bound is below the margin again."""
    compared = f"decision bound of lift {significant(lower)} over margin {significant(margin)}"
    return f"{compared} in the narrower interval for promotable candidates"


def more_reason(more: float) -> str:
    """Say how many more events are needed.

    >>> more_reason(0.3), more_reason(3_141.0)
    ('needs about 1 more event at the present rate', 'needs about 3,200 more events at the present rate')
    """
    events = rounded_up(max(more, 1.0))
    return f"needs about {events} more event{'' if events == '1' else 's'} at the present rate"
