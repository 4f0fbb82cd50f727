"""Provide policies that are code: they compute distributions over the actions of events, which need not log them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, probabilities_within
from streameval.common.component import Configurable, strict
from streameval.common.text import counted
from streameval.events import ActionSets, EventBatch, Fault, RawFields
from streameval.events.action_sets import UNREADABLE
from streameval.events.schema import NOISE
from streameval.events.slates import SlateColumns, as_one_action
from streameval.events.validation import tolerance
from streameval.ope.policies.base import Answer, Ask, ComputedPolicy, LearningPolicy, learns
from streameval.ope.policies.external import PythonPolicy


@dataclass(frozen=True, config=strict)
class Logged(metaclass=Configurable):
    """Use the probabilities that events carry under the policy's name."""

    kind: Literal["logged"] = field(default="logged", kw_only=True, repr=False)


ScoresField = Annotated[
    str, Field(min_length=1, description="the field of an event with a list of one score per action")
]


@dataclass(frozen=True, config=strict)
class Uniform(ComputedPolicy):
    """Take all actions with equal probability, `1 / K` for each of K.

    >>> sets = ActionSets(np.array([0, 4]), np.array([0]), np.full(4, 0.25), None, np.empty((4, 0)))
    >>> Uniform().ask(sets, RawFields.none(1))[0]
    array([0.25, 0.25, 0.25, 0.25])
    """

    kind: Literal["uniform"] = field(default="uniform", kw_only=True, repr=False)

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        return np.repeat(1.0 / np.maximum(sets.sizes, 1), sets.sizes), {}


@dataclass(frozen=True, config=strict)
class First(ComputedPolicy):
    """Take always the first action listed."""

    kind: Literal["first"] = field(default="first", kw_only=True, repr=False)

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        return _one_hot(sets, sets.offsets[:-1][sets.sizes > 0]), {}


@dataclass(frozen=True, config=strict)
class EpsilonGreedy(ComputedPolicy):
    """Take the action with the highest score, the first of equals, or at times a uniformly random action.

    Args:
        epsilon: the probability of a random action
        scores: the field of the events that lists a number for each action
    """

    epsilon: Annotated[float, Field(ge=0, le=1, description="the probability of a random action")]
    scores: ScoresField = "scores"
    kind: Literal["epsilon_greedy"] = field(default="epsilon_greedy", kw_only=True, repr=False)

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        scores, faults = _scores(sets, raw_fields, self.scores)
        best = np.flatnonzero(scores == _highest(sets, scores))
        _, first = np.unique(sets.owner[best], return_index=True)
        uniform, _ = Uniform().ask(sets, raw_fields)
        return self.epsilon * uniform + (1 - self.epsilon) * _one_hot(sets, best[first]), faults


@dataclass(frozen=True, config=strict)
class Softmax(ComputedPolicy):
    """Take actions with probabilities in proportion to `exp(score / temperature)`.

    Args:
        temperature: low values prefer the best action, high values treat all actions alike
        scores: the field of the events that lists a number for each action
    """

    temperature: Annotated[PositiveFloat, Field(description="low: the best action; high: all alike")] = 1.0
    scores: ScoresField = "scores"
    kind: Literal["softmax"] = field(default="softmax", kw_only=True, repr=False)

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        scores, faults = _scores(sets, raw_fields, self.scores)
        with np.errstate(over="ignore", invalid="ignore"):
            powers = np.exp((scores - _highest(sets, scores)) / self.temperature)
        sums = np.bincount(sets.owner, weights=powers, minlength=len(sets.index))
        return powers / sums[sets.owner], faults


def fields_read(policies: Collection[Any]) -> tuple[str, ...] | None:
    """Return the fields with scores that these policies read, or None if none of them reads more than action sets."""
    scores = dict.fromkeys(policy.scores for policy in policies if hasattr(policy, "scores"))
    return tuple(scores) if scores or any(_needs_raw_fields(policy) for policy in policies) else None


def _needs_raw_fields(policy: Any) -> bool:
    return isinstance(policy, LearningPolicy) and policy.needs_raw_fields


def _one_hot(sets: ActionSets, rows: Any) -> Array:
    chosen = np.zeros(len(sets.propensities))
    chosen[rows] = 1.0
    return chosen


def _highest(sets: ActionSets, scores: Array) -> Array:
    """Return the highest score of its event, for each row."""
    filled = np.flatnonzero(sets.sizes)
    highest = np.maximum.reduceat(scores, sets.offsets[filled]) if len(filled) else np.empty(0)
    return np.repeat(highest, sets.sizes[filled])


def _scores(sets: ActionSets, raw_fields: RawFields, name: str) -> Answer:
    """Return the scores as rows, 0 for an event without usable scores."""
    scores, faults = np.zeros(len(sets.propensities)), {}
    for event in np.flatnonzero(sets.sizes).tolist():
        values, rows = raw_fields.values[event].get(name), slice(sets.offsets[event], sets.offsets[event + 1])
        fault = _scores_fault(name, values, rows.stop - rows.start)
        if fault is None:
            scores[rows] = values
        else:
            faults[event] = fault
    return scores, faults


def _scores_fault(name: str, values: Any, actions: int) -> Fault | None:
    if values is None:
        return Fault("missing_field", f"{name}: missing")
    if not isinstance(values, list) or not all(type(number) in (int, float) for number in values):
        return Fault("malformed", f"{name}: not a list of numbers")
    if len(values) != actions:
        return Fault("malformed", f"{name}: {counted(len(values), 'entry')} for {counted(actions, 'action')}")
    if not all(-1e300 < number < 1e300 for number in values):
        return Fault("not_finite", f"{name}: a number is too large")
    return None


Faults: TypeAlias = dict[str, dict[int, Fault]]
"""By policy, the events for which it has no distribution."""


def prepared(policies: Mapping[str, ComputedPolicy | LearningPolicy]) -> dict[str, Ask]:
    """Return the functions that compute the distributions of the policies in code that do not learn, by name.

    Raises:
        ConfigError: A policy cannot be made.
    """
    return {
        name: policy.prepare()
        for name, policy in policies.items()
        if isinstance(policy, ComputedPolicy | PythonPolicy) and not learns(policy)
    }


def fill(batch: EventBatch, asks: Mapping[str, Ask]) -> tuple[EventBatch, Faults]:
    """Fill in the columns of these policies, which the batch already has.

    An event without a distribution for a policy lacks only that policy.
    """
    if not asks:
        return batch, {}
    sets = batch.action_sets or ActionSets.none(len(batch), len(batch.policies))
    raw_fields = batch.raw_fields or RawFields.none(len(batch))
    per_event, filled, faults = _ask_all(asks, batch.policies, batch.probabilities, sets, raw_fields)
    batch = replace(batch, probabilities=per_event, action_sets=batch.action_sets and filled)
    return (batch, faults) if batch.slates is None else _fill_slates(batch, batch.slates, asks, raw_fields, faults)


def _ask_all(
    asks: Mapping[str, Ask], policies: tuple[str, ...], probabilities: Array, sets: ActionSets, raw_fields: RawFields
) -> tuple[Array, ActionSets, Faults]:
    """Ask the policies for distributions.

    Returns:
        The columns [n, P], the sets with the distributions in them, and the events without one by policy.
    """
    per_event, per_action = probabilities.T.copy(), sets.probabilities.T.copy()
    events, logged = sets.logged
    faults = {}
    for name, ask in asks.items():
        column = policies.index(name)
        per_action[column], faults[name] = _checked(ask, sets, raw_fields)
        per_event[column] = np.nan
        per_event[column, events] = per_action[column, logged]
    return per_event.T, replace(sets, probabilities=per_action.T), faults


def _fill_slates(
    batch: EventBatch, slates: SlateColumns, asks: Mapping[str, Ask], raw_fields: RawFields, faults: Faults
) -> tuple[EventBatch, Faults]:
    """Fill in the answers for each slot by itself."""
    owner = slates.owner
    slots = zip(owner.tolist(), (np.arange(len(owner)) - slates.offsets[owner]).tolist(), strict=True)
    slot_fields = RawFields([_fields_of_slot(raw_fields.values[event], slot) for event, slot in slots])
    per_slot, actions, slot_faults = _ask_all(asks, batch.policies, slates.probabilities, slates.actions, slot_fields)
    slates = replace(slates, probabilities=per_slot, actions=actions)
    is_slate = slates.sizes > 0
    for name, by_event in faults.items():
        by_slate = {int(owner[slot]): fault for slot, fault in sorted(slot_faults[name].items(), reverse=True)}
        plain = {event: fault for event, fault in by_event.items() if not is_slate[event]}
        faults[name] = plain | by_slate
    _, whole = as_one_action(slates)
    probabilities = np.where(is_slate, whole.T, batch.probabilities.T).T
    return replace(batch, slates=slates, probabilities=probabilities), faults


def _fields_of_slot(fields: Mapping[str, Any], slot: int) -> Mapping[str, Any]:
    shared = {name: fields[name] for name in ("context", UNREADABLE) if name in fields}
    return shared | {"actions": fields["slots"][slot]} if "slots" in fields else shared


def _checked(ask: Ask, sets: ActionSets, raw_fields: RawFields) -> tuple[Array, dict[int, Fault]]:
    """Return the distributions of a policy, NaN for events without a valid one."""
    without = np.flatnonzero(sets.index < 0).tolist()
    faults = dict.fromkeys(without, Fault("missing_field", "actions: missing"))
    rows, raised = ask(sets, raw_fields)
    rows, _ = probabilities_within(rows)
    faults |= raised
    owner, events = sets.owner, len(sets.index)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.bincount(owner, weights=rows, minlength=events)
        off = np.flatnonzero(np.abs(sums - 1) > tolerance(sets.sizes))
        outside = (rows < 0) | (rows > 1 + NOISE)
    for event in owner[~np.isfinite(rows)].tolist():
        faults.setdefault(event, Fault("not_finite", "a probability is not a finite number"))
    for event, value in zip(owner[outside].tolist(), rows[outside].tolist(), strict=True):
        faults.setdefault(event, Fault("probability_range", f"a probability is not in [0, 1]: {value:.10g}"))
    for event in off.tolist():
        faults.setdefault(event, Fault("distribution_sum", "the probabilities do not sum to 1"))
    lost = np.zeros(events, dtype=bool)
    lost[list(faults)] = True
    return np.where(lost[owner], np.nan, rows), faults
