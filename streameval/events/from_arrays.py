"""Columns from the arrays of a caller. Shapes are checked here, values by the validation rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array
from streameval.events.action_sets import ActionSets, Index, reconcile
from streameval.events.origin import Identity, unit_fingerprints
from streameval.events.schema import Identifier
from streameval.events.slates import FACTORED, UNIFORM_RANKING, ListedSlates, SlateColumns, as_one_action
from streameval.events.validation import at_most_one


def column(name: str, values: ArrayLike, *shape: int | None) -> Array:
    """Return a copy of `values` as floats. Raises ValueError for another shape; None in `shape` = any length."""
    try:
        copy = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: not an array of numbers: {error}") from None
    wanted = tuple(have if want is None else want for have, want in zip(copy.shape, shape, strict=False))
    if copy.shape != wanted or len(wanted) != len(shape):
        raise ValueError(f"{name}: expected the shape {_shape(shape)}, found {_shape(copy.shape)}")
    return copy


def unit_column(units: Sequence[Identifier | None] | ArrayLike, n: int) -> Identity | None:
    """Return the fingerprints of units, None if no event has one. Raises ValueError for other types.

    >>> one, other, nothing = unit_column(["user-7", 12, None], 3)
    >>> bool(one != other), int(nothing)
    (True, 0)
    """
    given = np.array(units, dtype=object)
    if given.shape != (n,):
        raise ValueError(f"unit: expected the shape {_shape((n,))}, found {_shape(given.shape)}")
    for row, unit in enumerate(given):
        if not isinstance(unit, str | int | np.integer | None):
            raise ValueError(f"row {row}: unit: expected a string or an integer, found {unit!r}")
    return unit_fingerprints(given.tolist())


def choice_columns(
    n: int,
    propensity: ArrayLike | None,
    policies: Mapping[str, ArrayLike],
    action: ArrayLike | None,
    propensities: ArrayLike | None,
    features: ArrayLike | None,
    ranking: bool,
) -> tuple[Array, Array, ActionSets | None, SlateColumns | None]:
    """Return propensity [n], probabilities [n, P], action sets and slates of n events, from any form of arrays."""
    if propensity is not None and propensities is None and action is None and features is None:
        if np.ndim(propensity) != 2:
            return *_compact(n, propensity, policies), None, None
        slates = _compact_slates(n, propensity, policies)
    elif propensity is None and propensities is not None and action is not None:
        if np.ndim(propensities) != 3:
            return *_with_action_sets(n, action, propensities, features, policies), None
        slates = _slates_with_action_sets(n, action, propensities, policies, ranking)
    else:
        raise ValueError("give `propensity`, or else `propensities`, `action` and perhaps `features`")
    return *as_one_action(slates), None, slates


def _compact(n: int, propensity: ArrayLike, policies: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
    probabilities = np.empty((len(policies), n))
    for row, (name, values) in enumerate(policies.items()):
        probabilities[row] = column(f"policies[{name!r}]", values, n)
    return at_most_one(column("propensity", propensity, n)), probabilities.T


def _with_action_sets(
    n: int,
    action: ArrayLike,
    propensities: ArrayLike,
    features: ArrayLike | None,
    policies: Mapping[str, ArrayLike],
) -> tuple[Array, Array, ActionSets]:
    """Columns of events whose sets have the same number of actions."""
    logged = at_most_one(column("propensities", propensities, n, None))
    actions = logged.shape[1]
    index = _positions(action, n, actions)
    per_event, per_action = np.full((len(policies), n), np.nan), np.full((len(policies), n * actions), np.nan)
    for row, (name, values) in enumerate(policies.items()):
        if np.ndim(values) == 1:
            per_event[row] = column(f"policies[{name!r}]", values, n)
        else:
            per_action[row] = column(f"policies[{name!r}]", values, n, actions).ravel()
    table = None if features is None else column("features", features, n, actions, None)
    if table is not None:
        _check_whole_or_absent(table)
        table = table.reshape(n * actions, table.shape[2])
    sets = ActionSets(np.arange(n + 1) * actions, index, logged.ravel(), table, per_action.T)
    reconcile(sets, per_event.T, sets.probabilities)
    return sets.propensities[sets.logged[1]], per_event.T, sets


def _compact_slates(n: int, propensity: ArrayLike, policies: Mapping[str, ArrayLike]) -> SlateColumns:
    slots = column("propensity", propensity, n, None).shape[1]
    flat = {name: column(f"policies[{name!r}]", values, n, slots).ravel() for name, values in policies.items()}
    logged, probabilities = _compact(n * slots, np.ravel(propensity), flat)
    return _slates(n, logged, probabilities, ActionSets.none(n * slots, len(policies)), FACTORED)


def _slates_with_action_sets(
    n: int, action: ArrayLike, propensities: ArrayLike, policies: Mapping[str, ArrayLike], ranking: bool
) -> SlateColumns:
    given = column("propensities", propensities, n, None, None)
    slots, actions = given.shape[1:]
    flat = {
        name: column(f"policies[{name!r}]", values, n, slots, actions).reshape(-1, actions)
        for name, values in policies.items()
    }
    shown = np.array(action)
    if shown.shape != (n, slots):
        raise ValueError(f"action: expected the shape {_shape((n, slots))}, found {_shape(shown.shape)}")
    in_order = np.sort(shown, axis=1)
    if ranking and (slots > actions or (in_order[:, 1:] == in_order[:, :-1]).any()):
        raise ValueError("action: a ranking shows no action twice")
    logged, probabilities, sets = _with_action_sets(n * slots, shown.ravel(), given.reshape(-1, actions), None, flat)
    return _slates(n, logged, probabilities, sets, UNIFORM_RANKING if ranking else FACTORED)


def _slates(n: int, propensity: Array, probabilities: Array, sets: ActionSets, logging: int) -> SlateColumns:
    slots = len(propensity) // max(n, 1)
    return SlateColumns(
        offsets=np.arange(n + 1) * slots,
        propensity=propensity,
        probabilities=probabilities,
        actions=replace(sets, items=np.arange(len(sets.propensities)) - np.repeat(sets.offsets[:-1], sets.sizes)),
        logging=np.full(n, logging, dtype=np.int8),
        listed=ListedSlates.none(n),
    )


def _check_whole_or_absent(features: Array) -> None:
    """Raise ValueError for an event whose features [actions, d] are NaN in part."""
    unknown = np.isnan(features)
    partly = np.flatnonzero(unknown.any(axis=(1, 2)) & ~unknown.all(axis=(1, 2)))
    if len(partly):
        row = partly[0]
        action = np.flatnonzero(unknown[row].any(axis=1))[0]
        raise ValueError(f"row {row}: not_finite: features[{action}]: nan is not a finite number")


def _positions(action: ArrayLike, n: int, actions: int) -> Index:
    index = np.array(action)
    if index.shape != (n,) or (n and index.dtype.kind not in "iu"):
        raise ValueError(f"action: expected {n} integers, found {index.dtype} of the shape {_shape(index.shape)}")
    outside = np.flatnonzero((index < 0) | (index >= actions))
    if len(outside):
        row = outside[0]
        raise ValueError(f"row {row}: action: {index[row]} is not a position among {actions} actions, counted from 0")
    return index.astype(np.int64)


def _shape(lengths: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if length is None else str(length) for length in lengths) + "]"
