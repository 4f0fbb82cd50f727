"""Fields that estimators need and the first events lack, to warn at once instead of leaving values out in silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streameval.common.text import counted
from streameval.events import EventBatch
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.actions import Actions, Requirement, Requirements, field_of
from streameval.ope.policies import LOGGING, target_probabilities


@dataclass(frozen=True)
class MissingField:
    """A field that `lacking` of `events` events do not have; such events are missing for these `estimators`.

    `wanted_by`: the reward model, where that needs the field.
    """

    field: str
    lacking: int
    events: int
    estimators: tuple[str, ...]
    wanted_by: str | None = None

    @property
    def of_all(self) -> bool:
        """Whether no event has the field, so that there is nothing to estimate from."""
        return self.lacking == self.events

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.wanted_by:
            return f"the reward model {self.wanted_by} needs it: log it, or choose another reward_model"
        return "log it, or leave these estimators out; `streameval schema` prints what an event looks like"

    def __str__(self) -> str:
        estimators, events = ", ".join(self.estimators), counted(self.events, "event")
        if self.of_all:
            return f"none of the first {events} has {self.field}: no value for {estimators}"
        have = "has" if self.lacking == 1 else "have"
        return f"{self.lacking} of the first {events} {have} no {self.field}: missing for {estimators}"


def missing_fields(plan: Plan, batch: EventBatch) -> Iterator[MissingField]:
    """The fields that events of `batch` lack; the batch has the columns of all policies of the plan."""
    actions = Actions.from_batch(batch, plan.policies)
    present = ~np.isnan(target_probabilities(batch, plan.policies))
    estimators = list(plan.estimators.values())
    if plan.default_estimators:  # no user asked for one whose fields no event has
        estimators = [each for each in estimators if _usable(actions, plan.needs_of(each))]
    found: dict[str, MissingField] = {}
    for need in (Requirement.TARGET, Requirement.LOGGING, Requirement.FEATURES):
        wanting = tuple(estimator.label for estimator in estimators if need in plan.needs_of(estimator))
        without = present if actions is None else present & ~actions.known({need})
        for policy, events, lacking in zip(plan.policies, present.sum(axis=0), without.sum(axis=0), strict=True):
            field = field_of(Requirement.LOGGING if need is Requirement.TARGET and policy == LOGGING else need, policy)
            if wanting and lacking and field not in found:
                model = plan.reward_model.label if need in plan.reward_model.needs else None
                found[field] = MissingField(field, int(lacking), int(events), wanting, model)
    yield from found.values()


def _usable(actions: Actions | None, needs: Requirements) -> bool:
    return not needs or (actions is not None and bool(actions.known(needs).any()))
