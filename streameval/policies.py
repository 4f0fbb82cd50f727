"""Where `pi(a|x)` comes from: the probabilities that an event carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streameval.arrays import Array
from streameval.events import ActionSets, EventBatch

LOGGING = "logging"
"""The reserved name of the policy that took the logged actions: its probability is the propensity, its weight 1."""


def select(batch: EventBatch, policies: Sequence[str]) -> EventBatch:
    """The batch with just these policies as columns, in this order; one that the batch does not know is missing (NaN).

    Nothing is copied when the batch has these columns already. `logging` needs no column.
    """
    wanted = tuple(policy for policy in policies if policy != LOGGING)
    if batch.policies == wanted:
        return batch
    sets = batch.action_sets
    return replace(
        batch,
        policies=wanted,
        probabilities=_columns(batch.probabilities, batch.policies, wanted),
        action_sets=sets and replace(sets, probabilities=_columns(sets.probabilities, batch.policies, wanted)),
    )


def _columns(values: Array, present: Sequence[str], wanted: Sequence[str]) -> Array:
    columns = np.full((len(wanted), len(values)), np.nan)
    for row, policy in enumerate(wanted):
        if policy in present:
            columns[row] = values[:, present.index(policy)]
    return columns.T


def target_probabilities(batch: EventBatch, policies: Sequence[str]) -> Array:
    """`pi(logged action | x)` for each policy, [n, P] contiguous over events; NaN where the event lacks the policy."""
    columns = np.empty((len(policies), len(batch)))
    for row, policy in enumerate(policies):
        columns[row] = batch.propensity if policy == LOGGING else batch.probabilities[:, batch.policies.index(policy)]
    return columns.T


def unsupported_probability(batch: EventBatch, policies: Sequence[str]) -> Array:
    """Probability of each policy for actions the logging policy never takes, [n, P]; 0 where that is not known."""
    columns = np.zeros((len(policies), len(batch)))
    if batch.action_sets is not None:
        never, owner = _never_logged(batch.action_sets)
        for row, policy in enumerate(policies):
            if policy != LOGGING:
                mass = batch.action_sets.probabilities[never, batch.policies.index(policy)]
                columns[row] = np.bincount(owner, weights=np.nan_to_num(mass), minlength=len(batch))
    return columns.T


def knows_support(batch: EventBatch) -> Array:
    """1 for each event that carries the whole logging distribution, else 0, [n]."""
    sets = batch.action_sets
    if sets is None:
        return np.zeros(len(batch))
    known = np.zeros(len(batch))
    owner = np.repeat(np.arange(len(batch)), np.diff(sets.offsets))
    known[owner[~np.isnan(sets.propensities)]] = 1.0
    return known


def _never_logged(sets: ActionSets) -> tuple[Array, Array]:
    """Rows of actions with logging probability 0, and the event that owns each."""
    owner = np.repeat(np.arange(len(sets.index)), np.diff(sets.offsets))
    never = np.flatnonzero(sets.propensities == 0.0)
    return never, owner[never]
