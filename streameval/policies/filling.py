"""Asking policies that are code, and putting their answers where logged probabilities would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streameval.arrays import Array, Mask
from streameval.events import ActionSets, EventBatch
from streameval.events.action_sets import Index
from streameval.events.choices import Choices
from streameval.events.rules import NOISE, Fault
from streameval.policies.coded import AnyPolicy, Ask, Logged

FAILURES = ("missing_field", "raised", "malformed", "not_finite", "probability_range", "distribution_sum")
"""Why a policy in code has no distribution for an event: a closed list."""

Faults = Mapping[str, Mapping[int, Fault]]
"""By policy, the events for which it has no distribution."""


class CodedPolicies:
    """Those among named policies that are code, ready to be asked; ConfigError when one of them cannot be made."""

    def __init__(self, policies: Mapping[str, AnyPolicy]) -> None:
        self._asks = {name: policy.prepare() for name, policy in policies.items() if not isinstance(policy, Logged)}

    def fill(self, batch: EventBatch) -> tuple[EventBatch, Faults]:
        """The batch with the columns of these policies filled in; it has a column for each of them already.

        An event for which a policy has no distribution lacks that policy, and only that.
        """
        if not self._asks:
            return batch, {}
        sets = batch.action_sets or ActionSets.none(len(batch), len(batch.policies))
        choices = batch.choices or Choices.none(len(batch))
        per_event, per_action = batch.probabilities.T.copy(), sets.probabilities.T.copy()
        events, logged = sets.logged
        faults: dict[str, dict[int, Fault]] = {}
        for name, ask in self._asks.items():
            column = batch.policies.index(name)
            per_action[column], faults[name] = _checked(ask, sets, choices)
            per_event[column] = np.nan
            per_event[column, events] = per_action[column, logged]
        filled = replace(sets, probabilities=per_action.T)
        return replace(batch, probabilities=per_event.T, action_sets=batch.action_sets and filled), faults


def _checked(ask: Ask, sets: ActionSets, choices: Choices) -> tuple[Array, dict[int, Fault]]:
    """What a policy answers, NaN for events without a distribution that is one."""
    without = np.flatnonzero(sets.index < 0).tolist()
    faults = dict.fromkeys(without, Fault("missing_field", "actions: missing"))
    rows, raised = ask(sets, choices)
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
            ("distribution_sum", "the probabilities do not sum to 1", np.abs(sums - 1) > NOISE),
        )
    for reason, detail, where in broken:
        for event in np.flatnonzero(where).tolist():
            faults.setdefault(event, Fault(reason, detail))
    lost = np.zeros(events, dtype=bool)
    lost[list(faults)] = True
    return np.where(lost[owner], np.nan, rows), faults


def _any(owner: Index, broken: Mask, events: int) -> Mask:
    return np.asarray(np.bincount(owner[broken], minlength=events) > 0)
