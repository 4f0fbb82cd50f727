"""Compute the distributions of policies that are code, in place of logged probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events import ActionSets, EventBatch, Fault, RawFields
from streameval.events.action_sets import Index
from streameval.events.slates import SlateColumns, as_one_action
from streameval.events.validation import NOISE, tolerance
from streameval.ope.policies.builtin import AnyPolicy, Ask, Logged

FAILURES = ("missing_field", "raised", "malformed", "not_finite", "probability_range", "distribution_sum")
"""Why a policy in code has no distribution for an event: a closed list."""

Faults = Mapping[str, Mapping[int, Fault]]
"""By policy, the events for which it has no distribution."""


class CodedPolicies:
    """The policies that are code, ready to be evaluated; ConfigError when one of them cannot be made."""

    def __init__(self, policies: Mapping[str, AnyPolicy]) -> None:
        self._asks = {name: policy.prepare() for name, policy in policies.items() if not isinstance(policy, Logged)}

    def fill(self, batch: EventBatch) -> tuple[EventBatch, Faults]:
        """The batch with the columns of these policies filled in; it has a column for each of them already.

        An event for which a policy has no distribution lacks that policy, and only that.
        """
        if not self._asks:
            return batch, {}
        sets = batch.action_sets or ActionSets.none(len(batch), len(batch.policies))
        raw_fields = batch.raw_fields or RawFields.none(len(batch))
        per_event, filled, faults = self._asked(batch.policies, batch.probabilities, sets, raw_fields)
        batch = replace(batch, probabilities=per_event, action_sets=batch.action_sets and filled)
        return (batch, faults) if batch.slates is None else self._with_slates(batch, batch.slates, raw_fields, faults)

    def _asked(
        self, policies: tuple[str, ...], probabilities: Array, sets: ActionSets, raw_fields: RawFields
    ) -> tuple[Array, ActionSets, dict[str, dict[int, Fault]]]:
        """The columns [n, P] and the sets with the distributions in them, and by policy the events without one."""
        per_event, per_action = probabilities.T.copy(), sets.probabilities.T.copy()
        events, logged = sets.logged
        faults = {}
        for name, ask in self._asks.items():
            column = policies.index(name)
            per_action[column], faults[name] = _checked(ask, sets, raw_fields)
            per_event[column] = np.nan
            per_event[column, events] = per_action[column, logged]
        return per_event.T, replace(sets, probabilities=per_action.T), faults

    def _with_slates(
        self, batch: EventBatch, slates: SlateColumns, raw_fields: RawFields, faults: dict[str, dict[int, Fault]]
    ) -> tuple[EventBatch, Faults]:
        """The batch with the answers for each slot on its own."""
        owner = slates.owner
        of_slots = RawFields([raw_fields.contexts[event] for event in owner.tolist()], [[]] * len(owner), {})
        per_slot, actions, slot_faults = self._asked(batch.policies, slates.probabilities, slates.actions, of_slots)
        slates = replace(slates, probabilities=per_slot, actions=actions)
        is_slate = slates.sizes > 0
        for name, by_event in faults.items():
            by_slate = {int(owner[slot]): fault for slot, fault in sorted(slot_faults[name].items(), reverse=True)}
            plain = {event: fault for event, fault in by_event.items() if not is_slate[event]}
            faults[name] = plain | by_slate
        _, whole = as_one_action(slates)
        probabilities = np.where(is_slate, whole.T, batch.probabilities.T).T
        return replace(batch, slates=slates, probabilities=probabilities), faults


def _checked(ask: Ask, sets: ActionSets, raw_fields: RawFields) -> tuple[Array, dict[int, Fault]]:
    """The distributions of a policy, NaN for events without a valid one."""
    without = np.flatnonzero(sets.index < 0).tolist()
    faults = dict.fromkeys(without, Fault("missing_field", "actions: missing"))
    rows, raised = ask(sets, raw_fields)
    faults |= raised
    owner, events = sets.owner, len(sets.index)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.bincount(owner, weights=rows, minlength=events)
        broken = (
            ("not_finite", "a probability is not a finite number", _any(owner, ~np.isfinite(rows), events)),
            (
                "probability_range",
                "a probability is not in [0, 1]",
                _any(owner, (rows < 0) | (rows > 1 + NOISE), events),
            ),
            ("distribution_sum", "the probabilities do not sum to 1", np.abs(sums - 1) > tolerance(sets.sizes)),
        )
    for reason, detail, where in broken:
        for event in np.flatnonzero(where).tolist():
            faults.setdefault(event, Fault(reason, detail))
    lost = np.zeros(events, dtype=bool)
    lost[list(faults)] = True
    return np.where(lost[owner], np.nan, rows), faults


def _any(owner: Index, broken: Mask, events: int) -> Mask:
    return np.asarray(np.bincount(owner[broken], minlength=events) > 0)
