"""Rewards, and those that a candidate must not lose: guardrails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, structs
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Integers, Mask
from streameval.common.component import strict
from streameval.ope.core import Lift
from streameval.ope.core.state import of_policies
from streameval.ope.promotion.lift import LiftState
from streameval.ope.promotion.rules import PromotionRule, RuleContext
from streameval.ope.promotion.sums import RewardSums
from streameval.ope.report import GuardrailCheck


@dataclass(frozen=True, config=strict)
class Reward:
    """Represent a reward of decisions.

    Args:
        name: its name in labels
        low: the smallest value
        high: the largest value
        max_loss: by how much a promotable candidate may be worse than production; None unless it is a guardrail
    """

    name: str = "reward"
    low: float = 0.0
    high: float = 1.0
    max_loss: float | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return self.low, self.high


R = TypeVar("R", bound="RuleState")


class RuleState(Struct, frozen=True, eq=False, kw_only=True):
    """Hold what a rule knows about a reward.

    Attributes:
        memory: see `PromotionRule.start`
        memory_key: the settings on which the memory depends
        last: numbers of the last judgement by name, [candidates] each
    """

    memory: Any
    memory_key: list[Any]
    last: dict[str, Array]


class GuardrailState(Struct, frozen=True, eq=False):
    """Hold what is known about the lifts of one reward.

    Attributes:
        lifts: the state of each lift by name
        by: the lift that decides, -1 for none [candidates]
        rules: the state of each rule by label
    """

    lifts: dict[str, LiftState]
    by: Integers
    rules: dict[str, RuleState]


@dataclasses.dataclass(frozen=True)
class Guardrail:
    """A reward whose lift must be above `context.margin`, minus the largest loss, by the rule that judges the goal.

    `place`: that of the reward among all rewards.
    """

    name: str
    place: int
    context: RuleContext

    @property
    def max_loss(self) -> float:
        """By how much a promotable candidate may be worse than production."""
        return 0.0 - self.context.margin

    def start(self, rule: PromotionRule) -> RuleState:
        """Start a rule about this reward before the first event."""
        state = start_rule(rule, self.context)
        return structs.replace(state, last={**state.last, "passes": np.zeros(len(self.context.errors))})

    def judge(
        self, rule: PromotionRule, state: RuleState, sums: RewardSums, lift: Lift, min_events: int
    ) -> tuple[Mask, Mask, RuleState]:
        """Whether a candidate passes after each block, whether it may stay promotable, and the next state."""
        judgement, memory = rule.judge(state.memory, sums, lift, self.context)
        known: Mask = judgement.events >= min_events
        enter, stay = judgement.enter & known, judgement.stay & known
        last = {**judgement.last, "passes": enter[-1].astype(float)}
        return enter, stay, structs.replace(state, memory=memory, last=last)

    def check(
        self, rule: PromotionRule, state: RuleState, place: int, min_events: int, is_promotable: bool
    ) -> GuardrailCheck:
        """Whether the candidate at this place passes after the last block, and why (not).

        `is_promotable`: by the rule. A candidate stays promotable only while it passes all guardrails.
        """
        lower = rule.lower(state.memory, state.last, self.context)
        last = {name: float(column[place]) for name, column in {**state.last, "lower": lower}.items()}
        reason = (rule.reason_to_stay if is_promotable else rule.reason)(last, self.context.margin)
        if last["events"] < min_events:
            reason = f"only {last['events']:,.0f} of {min_events:,} events"
        numbers = (None if math.isnan(last[name]) else last[name] for name in ("lift", "lower"))
        return GuardrailCheck(self.name, self.max_loss, is_promotable or bool(last["passes"]), reason, *numbers)


def start_rule(rule: PromotionRule, context: RuleContext) -> RuleState:
    """Start a rule about the goal or another reward before the first event."""
    candidates = len(context.errors)
    last = {name: np.full(candidates, np.nan) for name in ("lift", "lower", "more")}
    return RuleState(
        memory=rule.start(candidates),
        memory_key=rule.memory_key(context),
        last={**last, "events": np.zeros(candidates)},
    )


def with_same_numbers(one: R, other: R) -> tuple[R, R]:
    """Return two states of a rule with the same numbers of the last judgement, NaN in the one that has none."""
    found = []
    for state, names in ((one, other.last), (other, one.last)):
        unknown = np.full(len(state.last["events"]), np.nan)
        found.append(structs.replace(state, last={**dict.fromkeys(names, unknown), **state.last}))
    return found[0], found[1]


def of_candidates(rules: Mapping[str, R], policies: Sequence[int]) -> dict[str, R]:
    """Return the state of rules for some policies, production first."""
    candidates = [place - 1 for place in policies[1:]]
    found = {}
    for label, state in rules.items():
        by_candidate = of_policies(structs.replace(state, memory=None), candidates)
        found[label] = structs.replace(by_candidate, memory=of_policies(state.memory, policies))
    return found
