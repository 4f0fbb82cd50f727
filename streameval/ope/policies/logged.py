"""Read the probabilities that events carry: of policies, and of the policy that took the logged actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.common.arrays import Array
from streameval.events import ActionSets, EventBatch
from streameval.events.slates import SlateColumns

LOGGING = "logging"
"""Reserved name of the policy that took the logged actions. Its probability is the propensity, and its weight is 1."""


def target_probabilities(batch: EventBatch, policies: Sequence[str]) -> Array:
    """Return `pi(logged action | x)` for each policy [n, P], contiguous over events. It is NaN for missing policies."""
    columns = np.empty((len(policies), len(batch)))
    place_of = {name: place for place, name in enumerate(batch.policies)}  # a search for each name would be quadratic
    for row, policy in enumerate(policies):
        columns[row] = batch.propensity if policy == LOGGING else batch.probabilities[:, place_of[policy]]
    return columns.T


def unsupported_probability(batch: EventBatch, policies: Sequence[str]) -> Array | None:
    """Return the probability of each policy for actions that the logging policy never takes [n, P].

    The result is None if no event tells.
    """
    if batch.action_sets is None and batch.slates is None:
        return None
    columns = np.zeros((len(policies), len(batch)))
    place_of = {name: place for place, name in enumerate(batch.policies)}
    for row, policy in enumerate(policies):
        if policy == LOGGING:
            continue
        column = place_of[policy]
        if batch.action_sets is not None:
            columns[row] = _never_taken(batch.action_sets, column)
        if batch.slates is not None:
            columns[row] += _never_shown(batch.slates, column)
    return columns.T


def _never_taken(sets: ActionSets, policy: int) -> Array:
    """Return the policy's probability of actions that the logging policy never takes, for each event or slot."""
    never = np.flatnonzero(sets.propensities == 0.0)
    mass = np.nan_to_num(sets.probabilities[never, policy])
    return np.asarray(np.bincount(sets.owner[never], weights=mass, minlength=len(sets.index)), dtype=np.float64)


def _never_shown(slates: SlateColumns, policy: int) -> Array:
    """Return the policy's probability of slates with an action never shown in its slot, for independent slots."""
    supported = np.maximum(1.0 - _never_taken(slates.actions, policy), 0.0)
    share = np.ones(len(slates.logging))
    np.multiply.at(share, slates.owner, supported)
    return 1.0 - share


def has_support_information(batch: EventBatch) -> Array:
    """Return 1 for each event that carries the whole logging distribution, otherwise 0 [n]."""
    is_complete = np.zeros(len(batch))
    if batch.action_sets is not None:
        is_complete[batch.action_sets.owner[~np.isnan(batch.action_sets.propensities)]] = 1.0
    if batch.slates is not None:
        slots = batch.slates.actions
        unknown = slots.sizes == 0
        unknown[slots.owner[np.isnan(slots.propensities)]] = True
        blind = np.bincount(batch.slates.owner, weights=unknown, minlength=len(batch)) > 0
        is_complete[(batch.slates.sizes > 0) & ~blind] = 1.0
    return is_complete
