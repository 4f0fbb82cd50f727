"""Columns from the arrays of a caller. Shapes are checked here, values by the validation rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array
from streameval.events.action_sets import ActionNames, ActionSets, Features, Index, cumulative_offsets, reconcile
from streameval.events.further_rewards import FurtherRewards
from streameval.events.origin import Identity, name_fingerprints
from streameval.events.schema import Identifier
from streameval.events.slates import FACTORED, UNIFORM_RANKING, ListedSlates, SlateColumns, as_one_action
from streameval.events.validation import at_most_one


def column(name: str, values: ArrayLike, *shape: int | None) -> Array:
    """Return a copy of `values` as floats; dates and times of numpy as seconds since 1970, whatever their unit.

    None in `shape` = any length.

    Raises:
        ValueError: The values have another shape.
    """
    try:
        if getattr(values, "dtype", np.dtype(float)).kind == "M":
            values = (np.asarray(values) - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        copy = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: not an array of numbers: {error}") from None
    wanted = tuple(have if want is None else want for have, want in zip(copy.shape, shape, strict=False))
    if copy.shape != wanted or len(wanted) != len(shape):
        raise ValueError(f"{name}: expected the shape {_shape(shape)}, found {_shape(copy.shape)}")
    return copy


def reward_columns(
    reward: ArrayLike, propensity: ArrayLike | None, propensities: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return the rewards [n] of events, and those of their slots [n, l] where slates have these.

    Raises:
        ValueError: The rewards have another shape.
    """
    slots = () if propensity is None else np.shape(propensity)
    slots = slots if propensities is None else np.shape(propensities)[:-1]
    if len(slots) != 2 or len(np.shape(reward)) != 2:
        return column("reward", reward, None), None
    of_slots = column("reward", reward, *slots)
    return of_slots.sum(axis=1), of_slots


def further_reward_columns(
    rewards: Mapping[str, ArrayLike], n: int, slates: SlateColumns | None
) -> tuple[FurtherRewards, SlateColumns | None]:
    """Return the further rewards of n events, and their slates with those of the slots, [n, l], where slots have them.

    Raises:
        ValueError: A reward has another shape.
    """
    columns, of_slots = [], []
    slots = 0 if slates is None else len(slates.reward)
    for name, values in rewards.items():
        if slates is not None and np.ndim(values) == 2:
            given = column(name, values, n, slots // max(n, 1))
            columns.append(given.sum(axis=1))
            of_slots.append(given.ravel())
        else:
            columns.append(column(name, values, n))
            of_slots.append(np.full(slots, np.nan))
    further = FurtherRewards(tuple(rewards), np.array(columns).reshape(len(columns), n).T)
    return further, slates and replace(slates, further=np.array(of_slots).reshape(len(columns), slots).T)


def identifier_column(field: str, names: Sequence[Identifier | None] | ArrayLike, n: int) -> Identity | None:
    """Return the fingerprints of units or of logging policies, None if no event has one.

    Raises:
        ValueError: There are not `n` of them, or one is neither a string nor an integer.
    """
    given = np.array(names, dtype=object)
    if given.shape != (n,):
        raise ValueError(f"{field}: expected the shape {_shape((n,))}, found {_shape(given.shape)}")
    others = {kind for kind in set(map(type, given)) if not issubclass(kind, str | int | np.integer | None)}
    for row, name in enumerate(given if others else ()):
        if type(name) in others:
            raise ValueError(f"row {row}: {field}: expected a string or an integer, found {name!r}")
    return name_fingerprints(given.tolist())


def choice_columns(
    n: int,
    propensity: ArrayLike | None,
    policies: Mapping[str, ArrayLike],
    action: ArrayLike | None,
    propensities: ArrayLike | None,
    features: ArrayLike | None,
    is_ranking: bool,
    rewards: Array | None = None,
) -> tuple[Array, Array, ActionSets | None, SlateColumns | None]:
    """Return propensity [n], probabilities [n, P], action sets and slates of n events, from any form of arrays.

    `rewards`: those of the slots of slates, [n, l], where these have rewards.

    Raises:
        ValueError: The arrays do not fit together.
    """
    if propensity is None and propensities is None:
        actions = None if action is None else _listed_actions(features, policies)
        if actions is None:  # any actions are names
            propensity, action = np.full(n, np.nan), None
        else:
            propensities = np.full((n, actions), np.nan)
    if propensity is not None and propensities is None and action is None and features is None:
        slots = (None,) if np.ndim(propensity) == 2 else ()
        logged = column("propensity", propensity, n, *slots)
        shape, sets = logged.shape, None
    elif propensity is None and propensities is not None and action is not None:
        slots = (None,) if np.ndim(propensities) == 3 else ()
        logged = column("propensities", propensities, n, *slots, None)
        shape = logged.shape[:-1]
        sets = _action_sets(shape, action, logged, features, len(policies))
    else:
        raise ValueError("give `propensity`, or else `propensities`, `action` and perhaps `features`")
    per_choice = np.full((len(policies), math.prod(shape)), np.nan)
    for row, (name, values) in enumerate(policies.items()):
        if sets is None or np.ndim(values) == len(shape):
            per_choice[row] = column(f"policies[{name!r}]", values, *shape).ravel()
        else:
            sets.probabilities[:, row] = column(f"policies[{name!r}]", values, *logged.shape).ravel()
    propensity_of_logged = at_most_one(logged).ravel()
    if sets is not None:
        reconcile(sets, per_choice.T, sets.probabilities)
        propensity_of_logged = sets.propensities[sets.logged[1]]
    if not slots:
        return propensity_of_logged, per_choice.T, sets, None
    slates = _slates(shape, propensity_of_logged, per_choice.T, sets, is_ranking, rewards)
    return *as_one_action(slates), None, slates


def _listed_actions(features: ArrayLike | None, policies: Mapping[str, ArrayLike]) -> int | None:
    """The number of actions that each event lists; None without lists."""
    given = [] if features is None else [features]
    shapes = [np.shape(each) for each in (*given, *policies.values())]
    return next((shape[1] for shape in shapes if len(shape) > 1), None)


def named_actions(action: ArrayLike, n: int) -> ActionNames:
    """The names of logged actions, which are strings or integers.

    Raises:
        ValueError: There are not `n` of them, or one is neither.
    """
    identifier_column("action", action, n)
    return ActionNames.of(np.array(action, dtype=object).tolist())


def _action_sets(
    shape: tuple[int, ...], action: ArrayLike, propensities: Array, features: ArrayLike | None, policies: int
) -> ActionSets:
    """The sets of choices of this shape, [n] or [n, slots], which have the same number of actions."""
    choices, actions = math.prod(shape), propensities.shape[-1]
    given = None
    if features is not None:
        table = column("features", features, *shape, actions, None)
        table = table.reshape(choices, actions, table.shape[-1])
        unknown = np.isnan(table)
        partly = np.flatnonzero(unknown.any(axis=(1, 2)) & ~unknown.all(axis=(1, 2)))
        if len(partly):
            row, found = partly[0] * shape[0] // choices, unknown[partly[0]].any(axis=1).argmax()
            raise ValueError(f"row {row}: not_finite: features[{found}]: nan is not a finite number")
        sizes = np.where(unknown.any(axis=(1, 2)), 0, actions * table.shape[-1])
        given = Features(cumulative_offsets(sizes), table[sizes > 0].ravel())
    return ActionSets(
        offsets=np.arange(choices + 1) * actions,
        index=_positions(action, shape, actions),
        propensities=at_most_one(propensities).ravel(),
        features=given,
        probabilities=np.full((policies, choices * actions), np.nan).T,
    )


def _positions(action: ArrayLike, shape: tuple[int, ...], actions: int) -> Index:
    index = np.array(action)
    if index.shape != shape or (index.size and index.dtype.kind not in "iu"):
        found = f"{index.dtype} of the shape {_shape(index.shape)}"
        raise ValueError(f"action: expected integers of the shape {_shape(shape)}, found {found}")
    outside = np.argwhere((index < 0) | (index >= actions))
    if len(outside):
        place = tuple(outside[0])
        raise ValueError(
            f"row {place[0]}: action: {index[place]} is not a position among {actions} actions, counted from 0"
        )
    return index.ravel().astype(np.int64)


def _slates(
    shape: tuple[int, ...],
    propensity: Array,
    probabilities: Array,
    sets: ActionSets | None,
    is_ranking: bool,
    rewards: Array | None,
) -> SlateColumns:
    (n, slots), items = shape, np.empty(0, dtype=np.int64)
    logging = FACTORED
    if sets is not None:
        items = np.arange(len(sets.propensities)) - np.repeat(sets.offsets[:-1], sets.sizes)
        shown = np.sort(sets.index.reshape(shape), axis=1)
        logging = UNIFORM_RANKING if is_ranking else FACTORED
        if is_ranking and ((sets.sizes < slots).any() or (shown[:, 1:] == shown[:, :-1]).any()):
            raise ValueError("action: a ranking shows no action twice")
    return SlateColumns(
        offsets=np.arange(n + 1) * slots,
        propensity=propensity,
        reward=np.full(n * slots, np.nan) if rewards is None else rewards.ravel(),
        probabilities=probabilities,
        actions=replace(
            sets or ActionSets.none(n * slots, probabilities.shape[1]), items=items, scores=np.full(len(items), np.nan)
        ),
        logging=np.full(n, logging, dtype=np.int8),
        listed=ListedSlates.none(n),
    )


def _shape(lengths: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if length is None else str(length) for length in lengths) + "]"
