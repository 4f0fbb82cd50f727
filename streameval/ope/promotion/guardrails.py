"""Rewards, and those that a candidate must not lose: guardrails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Mask, State, take_columns
from streameval.common.component import strict
from streameval.ope.core import Lift
from streameval.ope.promotion.rules import PromotionRule, RuleContext
from streameval.ope.promotion.sums import RewardSums
from streameval.ope.report import GuardrailCheck


@dataclass(frozen=True, config=strict)
class Reward:
    """A reward of decisions: its name in labels, and its smallest and largest value.

    `max_loss`: of a guardrail, by how much a promotable candidate may be worse than production; None for others.
    """

    name: str = "reward"
    low: float = 0.0
    high: float = 1.0
    max_loss: float | None = None

    @classmethod
    def several(cls, rewards: Mapping[str, Mapping[str, Any]]) -> tuple[Reward, ...]:
        """The rewards of a mapping as in the configuration.

        Raises:
            ValueError: A reward has an unknown option.

        >>> Reward.several({"click": {}, "hide": {"guardrail": {"max_loss": 0.001}}})[1].max_loss
        0.001
        """
        found = []
        for name, options in rewards.items():
            unknown = sorted(set(options) - {"field", "min", "max", "guardrail"})
            if unknown:
                raise ValueError(f"rewards.{name} has no option {', '.join(unknown)}; it has min, max and guardrail")
            guardrail = options.get("guardrail")
            max_loss = None if guardrail is None else float(guardrail["max_loss"])
            found.append(cls(name, float(options.get("min", 0.0)), float(options.get("max", 1.0)), max_loss))
        return tuple(found)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return self.low, self.high


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

    def start(self, rule: PromotionRule) -> State:
        """The state of a rule about this reward before the first event."""
        state = start_rule(rule, self.context)
        return {**state, "last": {**state["last"], "passes": np.zeros(len(self.context.errors))}}

    def judge(
        self, rule: PromotionRule, state: State, sums: RewardSums, lift: Lift, min_events: int
    ) -> tuple[Mask, Mask, State]:
        """Whether a candidate passes after each block, whether it may stay promotable, and the next state."""
        judgement, memory = rule.judge(state["memory"], sums, lift, self.context)
        known: Mask = judgement.events >= min_events
        enter, stay = judgement.enter & known, judgement.stay & known
        last = {**judgement.last, "passes": enter[-1].astype(float)}
        return enter, stay, {**state, "memory": memory, "last": last}

    def check(
        self, rule: PromotionRule, state: State, place: int, min_events: int, is_promotable: bool
    ) -> GuardrailCheck:
        """Whether the candidate at this place passes after the last block, and why (not).

        `is_promotable`: by the rule. A candidate stays promotable only while it passes all guardrails.
        """
        lower = rule.lower(state["memory"], state["last"], self.context)
        last = {name: float(column[place]) for name, column in {**state["last"], "lower": lower}.items()}
        reason = (rule.reason_to_stay if is_promotable else rule.reason)(last, self.context.margin)
        if last["events"] < min_events:
            reason = f"only {last['events']:,.0f} of {min_events:,} events"
        numbers = (None if math.isnan(last[name]) else last[name] for name in ("lift", "lower"))
        return GuardrailCheck(self.name, self.max_loss, is_promotable or bool(last["passes"]), reason, *numbers)


def start_rule(rule: PromotionRule, context: RuleContext) -> State:
    """The state before the first event of a rule about the goal or another reward, and its last judgement."""
    candidates = len(context.errors)
    last = {name: np.full(candidates, np.nan) for name in ("lift", "lower", "more")}
    return {
        "memory": rule.start(candidates),
        "memory_key": rule.memory_key(context),
        "last": {**last, "events": np.zeros(candidates)},
    }


def of_candidates(state: State, policies: int, candidates: Sequence[int]) -> State:
    """The lifts, the choice between them and the rules, of the goal or of a guardrail, for these candidates only.

    `candidates`: their places among the candidates of a state of this number of policies.
    """
    index = [0, *(1 + candidate for candidate in candidates)]
    rules = {
        label: {
            **kept,
            "memory": take_columns(kept["memory"], policies, index),
            **take_columns({name: kept[name] for name in ("hold", "last") if name in kept}, policies - 1, candidates),
        }
        for label, kept in state["rules"].items()
    }
    return {**take_columns({name: state[name] for name in ("lifts", "by")}, policies - 1, candidates), "rules": rules}
