"""Columns from a caller's arrays, whose shapes are checked here; their values are checked by the rules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from streameval.arrays import Array
from streameval.events.action_sets import ActionSets, Index, reconcile


def column(name: str, values: ArrayLike, *shape: int | None) -> Array:
    """A copy of `values` as floats; ValueError if it is not of this shape (None = any length)."""
    try:
        taken = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: not an array of numbers: {error}") from None
    wanted = tuple(have if want is None else want for have, want in zip(taken.shape, shape, strict=False))
    if taken.shape != wanted or len(wanted) != len(shape):
        raise ValueError(f"{name}: expected the shape {_shape(shape)}, found {_shape(taken.shape)}")
    return taken


def _shape(lengths: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if length is None else str(length) for length in lengths) + "]"


def compact(n: int, propensity: ArrayLike, policies: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
    """Propensity [n] and probabilities [n, P] of events that say nothing of the actions not taken."""
    probabilities = np.empty((len(policies), n))
    for row, (name, values) in enumerate(policies.items()):
        probabilities[row] = column(f"policies[{name!r}]", values, n)
    return column("propensity", propensity, n), probabilities.T


def with_action_sets(
    n: int,
    action: ArrayLike,
    propensities: ArrayLike,
    features: ArrayLike | None,
    policies: Mapping[str, ArrayLike],
) -> tuple[Array, Array, ActionSets]:
    """Propensity, probabilities and action sets of events that all choose from the same number of actions."""
    logged = column("propensities", propensities, n, None)
    actions = logged.shape[1]
    index = _positions(action, n, actions)
    per_event, per_action = np.full((len(policies), n), np.nan), np.full((len(policies), n * actions), np.nan)
    for row, (name, values) in enumerate(policies.items()):
        if np.ndim(values) == 1:
            per_event[row] = column(f"policies[{name!r}]", values, n)
        else:
            per_action[row] = column(f"policies[{name!r}]", values, n, actions).ravel()
    described = None if features is None else column("features", features, n, actions, None)
    if described is not None:
        described = described.reshape(n * actions, described.shape[2])
    sets = ActionSets(index, np.arange(n + 1) * actions, logged.ravel(), described, per_action.T)
    reconcile(sets, per_event.T, sets.probabilities)
    return sets.propensities[sets.logged[1]], per_event.T, sets


def _positions(action: ArrayLike, n: int, actions: int) -> Index:
    index = np.array(action)
    if index.shape != (n,) or (n and index.dtype.kind not in "iu"):
        raise ValueError(f"action: expected {n} integers, found {index.dtype} of the shape {_shape(index.shape)}")
    outside = np.flatnonzero((index < 0) | (index >= actions))
    if len(outside):
        row = outside[0]
        raise ValueError(f"row {row}: action: {index[row]} is not a position among {actions} actions, counted from 0")
    return index.astype(np.int64)
