"""The probabilities that events carry, of policies and of the one that took the logged actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.arrays import Array
from streameval.events import EventBatch

LOGGING = "logging"
"""The reserved name of the policy that took the logged actions: its probability is the propensity, its weight 1."""


def target_probabilities(batch: EventBatch, policies: Sequence[str]) -> Array:
    """`pi(logged action | x)` for each policy, [n, P] contiguous over events; NaN where the event lacks the policy."""
    columns = np.empty((len(policies), len(batch)))
    for row, policy in enumerate(policies):
        columns[row] = batch.propensity if policy == LOGGING else batch.probabilities[:, batch.policies.index(policy)]
    return columns.T


def unsupported_probability(batch: EventBatch, policies: Sequence[str]) -> Array | None:
    """Probability of each policy for actions the logging policy never takes, [n, P]; None when no event tells it."""
    if batch.action_sets is None:
        return None
    columns = np.zeros((len(policies), len(batch)))
    never = np.flatnonzero(batch.action_sets.propensities == 0.0)
    owner = batch.action_sets.owner[never]
    for row, policy in enumerate(policies):
        if policy != LOGGING:
            mass = batch.action_sets.probabilities[never, batch.policies.index(policy)]
            columns[row] = np.bincount(owner, weights=np.nan_to_num(mass), minlength=len(batch))
    return columns.T


def knows_support(batch: EventBatch) -> Array:
    """1 for each event that carries the whole logging distribution, else 0, [n]."""
    known = np.zeros(len(batch))
    if batch.action_sets is not None:
        known[batch.action_sets.owner[~np.isnan(batch.action_sets.propensities)]] = 1.0
    return known
