"""Rewards in the configuration: one, or several of which the first is the goal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

from pydantic import Field

from streameval.config.errors import Problem, expecting, refusal
from streameval.config.loading import Place
from streameval.events.further_rewards import RewardField
from streameval.events.schema import event_type
from streameval.ingest.base import StrictModel
from streameval.ope.promotion.guardrails import Reward

Smallest = Annotated[float, Field(description="the smallest possible reward; smaller ones are rejected")]
Largest = Annotated[float, Field(description="the largest possible reward; larger ones are rejected")]


class RewardSettings(StrictModel):
    """The field of an event that holds the reward, and its range."""

    field: Annotated[str, Field(min_length=1)] = Field("reward", description="the key of the reward in an event")
    min: Smallest = 0.0
    max: Largest = 1.0


class GuardrailSettings(StrictModel):
    """The largest loss of a reward with which a candidate may be promotable."""

    max_loss: float = Field(ge=0, description="by how much a candidate may be worse than production, e.g. 0.001")


class NamedReward(StrictModel):
    """One of several rewards: its field, its range, and whether it guards promotion."""

    field: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="the key of the reward in an event; by default the name of the reward"
    )
    min: Smallest = 0.0
    max: Largest = 1.0
    guardrail: GuardrailSettings | None = Field(
        None, description="what a promotable candidate may lose of this reward, e.g. {max_loss: 0.001}"
    )


def fields_of(reward: RewardSettings, rewards: Mapping[str, NamedReward]) -> list[RewardField]:
    """The fields and ranges of all rewards, the goal first."""
    if not rewards:
        return [RewardField("reward", reward.field, reward.min, reward.max)]
    return [RewardField(name, each.field or name, each.min, each.max) for name, each in rewards.items()]


def planned_rewards(reward: RewardSettings, rewards: Mapping[str, NamedReward]) -> tuple[Reward, ...]:
    """All rewards, the goal first."""
    guards = {name: each.guardrail.max_loss for name, each in rewards.items() if each.guardrail is not None}
    return tuple(Reward(name, low, high, guards.get(name)) for name, _, low, high in fields_of(reward, rewards))


def reward_problems(reward: RewardSettings, rewards: Mapping[str, NamedReward]) -> Iterator[Problem]:
    """The problems of the rewards alone."""
    goal, *further = fields_of(reward, rewards)
    for name, _, low, high in (goal, *further):
        if not low < high:
            hint = "give the range in which every reward lies, e.g. {min: 0, max: 1}"
            place: Place = ("rewards", name) if rewards else ("reward",)
            expected = f"a number greater than {'.'.join(map(str, place))}.min ({low:g})"
            yield Problem((*place, "max"), expecting(expected, f"{high:g}"), hint)
    if not rewards:
        return
    if rewards[goal.name].guardrail is not None:
        found = expecting("no guardrail, as the first reward is the goal", "a guardrail")
        yield Problem(("rewards", goal.name, "guardrail"), found, "write the reward that decides first")
    fields = tuple(each.field for each in further)
    yield from refusal(("rewards",), partial(event_type, None, goal.field, further_fields=fields))
