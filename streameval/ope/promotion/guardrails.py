"""Define rewards, and guardrails: rewards that a candidate must not lose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct, structs
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Integers
from streameval.common.component import strict
from streameval.ope.core import Lift
from streameval.ope.core.state import select_policies
from streameval.ope.promotion.lift import LiftState
from streameval.ope.promotion.rules import Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.sums import RewardSums
from streameval.ope.report import GuardrailCheck

Beyond: TypeAlias = Literal["reject", "clip"] | float
"""What becomes of events with rewards beyond one end of the range; or a threshold, if the reward is a share."""


@dataclass(frozen=True, config=strict)
class Reward:
    """Describe a reward of decisions.

    Attributes:
        name: its name in labels
        low: the smallest value
        high: the largest value
        max_loss: for a guardrail, by how much a promotable candidate may be worse than production, otherwise None
        below: whether events with a smaller reward are rejected, or count with the smallest one; or a threshold, so
            that the reward is 1 for events below it and 0 for others
        above: likewise for larger rewards
        of: weights of other rewards by name, with this reward as their sum
        quantile: quantile of earlier rewards that rewards are clipped at, None for a fixed range
        is_ratio: whether the reward is the ratio of the two rewards in `of`. The core then estimates their sum.
        quantiles: quantiles that are estimated for each policy
        per_unit: length of the windows in which the reward per unit is estimated, such as 24h, None for none
    """

    name: str = "reward"
    low: float = 0.0
    high: float = 1.0
    max_loss: float | None = None
    below: Beyond = "reject"
    above: Beyond = "reject"
    of: Mapping[str, float] = dataclasses.field(default_factory=dict)
    quantile: float | None = None
    is_ratio: bool = False
    quantiles: tuple[float, ...] = ()
    per_unit: str | None = None

    @property
    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        return self.low, self.high

    @property
    def accepted(self) -> tuple[float, float]:
        """Return the range of rewards in the log. Events with other rewards are rejected."""
        if self.of or self.is_share:
            return -math.inf, math.inf
        return -math.inf if self.below == "clip" else self.low, math.inf if self.above == "clip" else self.high

    @property
    def clips(self) -> bool:
        """Tell whether rewards beyond a fixed range count as its ends."""
        return self.quantile is None and "clip" in (self.below, self.above)

    @property
    def has_fixed_range(self) -> bool:
        """Tell whether the values of events have a range that is known beforehand."""
        return self.quantile is None and not self.is_ratio

    @property
    def is_share(self) -> bool:
        """Tell whether the reward is 1 for values beyond a threshold, and 0 for others."""
        return isinstance(self.below, float) or isinstance(self.above, float)

    @property
    def is_derived(self) -> bool:
        """Tell whether the reward differs from what the log has."""
        return self.clips or self.is_share or bool(self.of)


R = TypeVar("R", bound="RuleState")


class RuleState(Struct, frozen=True, eq=False, kw_only=True):
    """Hold what a rule knows about a reward.

    Attributes:
        memory: see `PromotionRule.start`
        memory_key: the settings that the memory depends on
        last: numbers of the last judgement by name [candidates]
    """

    memory: Any
    memory_key: list[Any]
    last: dict[str, Array]


class GuardrailState(Struct, frozen=True, eq=False):
    """Hold what is known about the lifts of one reward.

    Attributes:
        lifts: the state of each lift by name
        by: the deciding lift, -1 for none [candidates]
        rules: the state of each rule by label
    """

    lifts: dict[str, LiftState]
    by: Integers
    rules: dict[str, RuleState]


@dataclasses.dataclass(frozen=True)
class Guardrail:
    """Require that the lift of a reward is above `context.margin`, minus the largest loss.

    The rule for the primary reward judges it.

    Attributes:
        name: the name of the reward
        index: the index of the reward among all rewards
        context: the settings of rules for this reward
    """

    name: str
    index: int
    context: RuleContext

    @property
    def max_loss(self) -> float:
        """Return by how much a promotable candidate may be worse than production."""
        return 0.0 - self.context.margin

    def start(self, rule: PromotionRule) -> RuleState:
        """Start a rule about this reward before the first event."""
        state = start_rule(rule, self.context)
        return structs.replace(state, last={**state.last, "passes": np.zeros(len(self.context.errors))})

    def judge(
        self, rule: PromotionRule, state: RuleState, sums: RewardSums, lift: Lift, min_events: int
    ) -> tuple[Judgement, RuleState]:
        """Return the judgement after each block, with nothing proven by too few events, and the next state."""
        judgement, memory = rule.judge(state.memory, sums, lift, self.context)
        is_sufficient = judgement.events >= min_events
        enter, stay = judgement.enter & is_sufficient, judgement.stay & is_sufficient
        last = {**state.last, **judgement.last, "passes": enter[-1].astype(float)}
        return judgement._replace(enter=enter, stay=stay), structs.replace(state, memory=memory, last=last)

    def check(
        self, rule: PromotionRule, state: RuleState, index: int, min_events: int, is_promotable: bool, hold: int
    ) -> GuardrailCheck:
        """Check whether the candidate with this index passes after the last block, and why (not).

        A candidate stays promotable only while it passes all guardrails. `is_promotable` is the verdict of the rule,
        and `hold` the number of block ends in a row at which a candidate must be worse.
        """
        last = {name: float(column[index]) for name, column in rule_numbers(rule, state, self.context).items()}
        worse = is_worse(last, hold)
        reason = (rule.reason_to_stay if is_promotable else rule.reason)(last, self.context.margin)
        if last["events"] < min_events:
            reason = f"only {last['events']:,.0f} of {min_events:,} events"
        elif worse:
            reason = rule.reason_of_loss(last, self.context.floor)
        lift, lower = (None if math.isnan(last[name]) else last[name] for name in ("lift", "lower"))
        ok = is_promotable or bool(last["passes"])
        return GuardrailCheck(self.name, self.max_loss, ok, reason, lift, lower, worse)


def rule_numbers(rule: PromotionRule, state: RuleState, context: RuleContext) -> dict[str, Array]:
    """Return the numbers of a rule after the last block, by name [candidates]."""
    lower, upper = (bound(state.memory, state.last, context) for bound in (rule.lower, rule.upper))
    return {**state.last, "lower": lower, "upper": upper}


def is_worse(last: Mapping[str, float], hold: int) -> bool | None:
    """Return whether a candidate has been worse for so many block ends in a row, None for rules that cannot tell."""
    return last.get("losing", 0.0) >= hold if "worse" in last else None


def start_rule(rule: PromotionRule, context: RuleContext) -> RuleState:
    """Start a rule about the primary or another reward before the first event."""
    candidates = len(context.errors)
    last = {name: np.full(candidates, np.nan) for name in ("lift", "lower", "more")}
    return RuleState(
        memory=rule.start(candidates),
        memory_key=rule.memory_key(context),
        last={**last, "events": np.zeros(candidates)},
    )


def align_numbers(one: R, other: R) -> tuple[R, R]:
    """Give two states of a rule equally named numbers of the last judgement, NaN if one of them has none."""
    states = []
    for state, names in ((one, other.last), (other, one.last)):
        unknown = np.full(len(state.last["events"]), np.nan)
        states.append(structs.replace(state, last={**dict.fromkeys(names, unknown), **state.last}))
    return states[0], states[1]


def resume_rules(before: Mapping[str, R], fresh: Mapping[str, R]) -> dict[str, R]:
    """Return the states of the rules in `fresh`, from before if their memory depends on the same settings."""
    pairs = ((label, before.get(label, new), new) for label, new in fresh.items())
    return {label: old if old.memory_key == new.memory_key else new for label, old, new in pairs}


def select_rules(rules: Mapping[str, R], policies: Sequence[int]) -> dict[str, R]:
    """Return the state of rules for some policies, production first."""
    candidates = [policy - 1 for policy in policies[1:]]
    selected = {}
    for label, state in rules.items():
        by_candidate = select_policies(structs.replace(state, memory=None), candidates)
        selected[label] = structs.replace(by_candidate, memory=select_policies(state.memory, policies))
    return selected
