"""Make logs of three actions with propensities that may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streameval import EventBatch
from streameval.events.action_sets import ActionNames
from streameval.ope.evidence import frequencies

NAMES = ("news", "sport", "music")


def three_actions(seed: int, events: int, wrong: float = 1.0, *, listed: bool = False) -> EventBatch:
    """Draw events with the propensity of the chosen action or of all actions.

    Args:
        seed: Seed of the random numbers.
        events: Number of events.
        wrong: Factor of error in the propensity of `sport`.
        listed: Whether events list all actions.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet([2.0, 2.0, 2.0], events)
    action = (rng.uniform(size=(events, 1)) > drawn.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    logged, reward = drawn * np.array([1.0, wrong, 1.0]), np.zeros(events)
    if listed:
        logged /= logged.sum(axis=1, keepdims=True)
        batch = EventBatch.from_arrays(reward=reward, action=action, propensities=logged)
    else:
        chosen = np.minimum(logged[np.arange(events), action], 1.0)
        batch = EventBatch.from_arrays(reward=reward, propensity=chosen)
    return named(batch, [NAMES[code] for code in action.tolist()])


def named(batch: EventBatch, names: Sequence[str | int]) -> EventBatch:
    """Return the batch with the names of the actions."""
    return replace(batch, actions=ActionNames.from_actions(names))


def finding_of(batch: EventBatch, look: int, error: float = 0.01) -> str:
    """Return the finding of the first look at which the check of a stream fails, or an empty text."""
    state = frequencies.start()
    for first in range(0, len(batch), look):
        state = frequencies.fold(state, batch[first : first + look], error)
        verdict = frequencies.judge(state, error)
        if verdict is not None and not verdict[0]:
            return verdict[1]
    return ""


def findings_about(batch: EventBatch) -> list[str]:
    """Return the findings of `check --propensities` about events that list their actions."""
    assert batch.actions is not None
    observed = frequencies.Frequencies()
    chosen = [batch.actions.names[code] for code in batch.actions.chosen.tolist()]
    observed.add(batch, chosen, [list(NAMES)] * len(batch))
    return observed.findings()[0]
