"""Find the fields that estimators need and that events lack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streameval.common.text import counted
from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evidence.actions import FORMS, REWARDED, Actions, Requirement, Requirements, field_of
from streameval.ope.policies.logged import LOGGING, target_probabilities

PER_UNIT = ("per_unit",)


@dataclass(frozen=True)
class MissingField:
    """Name a field that `lacking` of `events` events do not have, so that they are missing for some estimators.

    Args:
        estimators: their labels, or `per_unit`
        wanted_by: the reward model, if it needs the field
        part: the part of the log that the events are, `first` or `last`
    """

    field: str
    lacking: int
    events: int
    estimators: tuple[str, ...]
    wanted_by: str | None = None
    part: str = "first"

    @property
    def is_lost(self) -> bool:
        """Return whether no event has the field, so that there is nothing to estimate from."""
        return self.lacking == self.events

    @property
    def hint(self) -> str:
        """Return the remedy."""
        if self.estimators == PER_UNIT:
            return "log units and times of all events, or leave per_unit out: units are counted in whole logs"
        if self.wanted_by:
            return f"the reward model {self.wanted_by} needs it: log it, or choose another reward_model"
        return "log it, or leave these estimators out; `streameval schema` prints what an event looks like"

    def __str__(self) -> str:
        estimators, events = ", ".join(self.estimators), f"{self.part} {counted(self.events, 'event')}"
        if self.is_lost:
            lost = "no value" if self.part == "first" else "missing"
            return f"none of the {events} has {self.field}: {lost} for {estimators}"
        have = "has" if self.lacking == 1 else "have"
        return f"{self.lacking} of the {events} {have} no {self.field}: missing for {estimators}"


def missing_fields(config: EvaluatorConfig, batch: EventBatch) -> list[MissingField]:
    """Return the fields that estimators need and that events of `batch` lack. The batch has columns of all policies."""
    if config.ranking is not None:
        return []
    sets = batch.action_sets
    actions = None if sets is None else Actions.from_sets(sets, batch.policies, config.policies)
    present = ~np.isnan(target_probabilities(batch, config.policies))
    estimators = list(config.estimators.values())
    if config.default_estimators:  # default estimators may lack their fields
        estimators = [label for label in estimators if _usable(actions, config.needs_of(label))]
    missing: dict[str, MissingField] = {}
    unrewarded = np.zeros(len(batch), dtype=bool)
    if batch.slates is not None:
        unrewarded = (batch.slates.sizes > 0) & ~batch.slates.has_rewards
    outcomes = np.full(present.shape, False)
    if batch.scored is not None:
        outcomes[batch.scored.owner] = True
    fields: tuple[Requirement, ...] = ("target", "logging", "features", *REWARDED, "scored")
    for need in fields:
        wanting = tuple(
            estimator.label
            for estimator in estimators
            if need in (estimator.needs if estimator.needs & {*FORMS} else config.needs_of(estimator))
        )
        without = present if actions is None else present & ~actions.completeness({need})
        if need in REWARDED:
            without = present & unrewarded[:, None]
        if need == "scored":
            without = present & ~outcomes
        for policy, events, lacking in zip(config.policies, present.sum(axis=0), without.sum(axis=0), strict=True):
            logged = need == "target" and policy == LOGGING
            field = field_of("logging" if logged else need, policy)
            if wanting and lacking and field not in missing:
                model = config.reward_model.label if need in config.reward_model.needs else None
                missing[field] = MissingField(field, int(lacking), int(events), wanting, model)
    return [*missing.values(), *_missing_for_units(config, batch)]


def _missing_for_units(config: EvaluatorConfig, batch: EventBatch) -> Iterator[MissingField]:
    """Yield the fields that rewards per unit need."""
    if any(reward.per_unit for reward in config.rewards):
        fields = {
            "unit": np.ones(len(batch), dtype=bool) if batch.unit is None else batch.unit == NO_IDENTITY,
            "timestamp": ~np.isfinite(batch.timestamp),
            "sampling_probability of 1": batch.sampling_probability != 1.0,
        }
        for field, lacks in fields.items():
            if lacks.any():
                yield MissingField(field, int(lacks.sum()), len(batch), PER_UNIT)


def _usable(actions: Actions | None, needs: Requirements) -> bool:
    return not needs or (actions is not None and bool(actions.completeness(needs).any()))
