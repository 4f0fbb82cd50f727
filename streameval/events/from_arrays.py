"""Build columns from the arrays of a caller. Shapes are checked here, values by the validation rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array
from streameval.common.text import counted
from streameval.events.action_sets import ActionNames, ActionSets, Features, Index, cumulative_offsets, reconcile
from streameval.events.arguments import number_hint
from streameval.events.further_rewards import FurtherRewards
from streameval.events.origin import Identity, name_fingerprints
from streameval.events.schema import Identifier
from streameval.events.slates import (
    FACTORED,
    NAMED_LOGGING,
    RANKINGS,
    ListedSlates,
    SlateColumns,
    as_one_action,
    fill_marginals,
)
from streameval.events.validation import score_mismatches


def column(name: str, values: ArrayLike, *shape: int | None) -> Array:
    """Return a copy of values as floats. Dates and times of numpy become seconds since 1970.

    Args:
        name: name of the values, for errors
        values: an array
        shape: expected length of each axis, None = any length

    Raises:
        ValueError: The values are not numbers, or have another shape.
    """
    try:
        if hasattr(values, "dtype") and np.asarray(values).dtype.kind == "M":
            values = (np.asarray(values) - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        copy = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        quoted = re.search(r": '(.*)'$", str(error))
        hint = number_hint(quoted[1]) if quoted else None
        raise ValueError(f"{name}: not an array of numbers: {error}{f'; {hint}' if hint else ''}") from None
    wanted = tuple(have if want is None else want for have, want in zip(copy.shape, shape, strict=False))
    if copy.shape != wanted or len(wanted) != len(shape):
        raise ValueError(f"{name}: expected the shape {_shape(shape)}, found {_shape(copy.shape)}")
    return copy


def require_one_index(arrays: Mapping[str, Any], **groups: Mapping[str, Any] | None) -> None:
    """Check that series and frames of pandas have the same index, since rows are taken by position.

    Args:
        arrays: by name, arrays of any kind, None for none
        groups: more of them, by the argument that holds them

    Raises:
        ValueError: Two indices differ.
    """
    further = {f"{group}[{name!r}]": one for group, by in groups.items() for name, one in (by or {}).items()}
    series = {name: values.index for name, values in {**arrays, **further}.items() if hasattr(values, "iloc")}
    first = next(iter(series), "")
    for name, index in series.items():
        if not index.equals(series[first]):
            raise ValueError(f"{name}: its index differs from the index of {first}: align them, or give .to_numpy()")


def reward_columns(
    reward: ArrayLike, propensity: ArrayLike | None, propensities: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return the rewards of events, [n], and the rewards of their slots, [n, l], if slots have rewards.

    Raises:
        ValueError: The rewards have another shape.
    """
    slots = () if propensity is None else np.shape(propensity)
    slots = slots if propensities is None else np.shape(propensities)[:-1]
    if len(slots) != 2 or len(np.shape(reward)) != 2:
        return column("reward", reward, None), None
    slot_rewards = column("reward", reward, *slots)
    return slot_rewards.sum(axis=1), slot_rewards


def scores_of_rankings(
    action: ArrayLike | None, scores: ArrayLike | None, others: Sequence[Any]
) -> tuple[Array, Array]:
    """Return the scores that rankings were drawn by [n, A], and propensities that are still unknown [n, l, A].

    Args:
        action: [n, l] see `EventBatch.from_arrays`
        scores: see `EventBatch.from_arrays`
        others: the propensities, which must be None

    Raises:
        ValueError: The arrays do not fit together, or scores break a rule. Names the first such row.
    """
    shape = np.array(action).shape
    if scores is None or len(shape) != 2 or any(other is not None for other in others):
        raise ValueError(
            "plackett_luce: give `action` [n, l] and `scores` [n, A] alone, as propensities follow from them"
        )
    table = column("scores", scores, shape[0], None)
    if not 0 < shape[1] <= table.shape[1]:
        raise ValueError(f"action: {counted(shape[1], 'slot')} for a ranking of {counted(table.shape[1], 'action')}")
    highest = -np.sort(-table, axis=1)[:, : shape[1]]
    with np.errstate(invalid="ignore"):
        lowest = (table.min(axis=1), highest[:, -1]) if highest.size else ()
        widest = {np.argmax(highest[:, 0] - low) for low in lowest}
    for row in sorted(map(int, widest)):  # NaN counts as widest
        for detail in score_mismatches(table[row].tolist(), shape[1], table.shape[1]):
            raise ValueError(f"row {row}: malformed: {detail}")
    return table, np.full((*shape, table.shape[1]), np.nan)


def further_reward_columns(
    rewards: Mapping[str, ArrayLike], n: int, slates: SlateColumns | None
) -> tuple[FurtherRewards, SlateColumns | None]:
    """Return the further rewards of n events, and the slates with further rewards of their slots.

    Raises:
        ValueError: A reward has another shape.
    """
    columns, slot_columns = [], []
    slots = 0 if slates is None else len(slates.reward)
    for name, values in rewards.items():
        if slates is not None and np.ndim(values) == 2:
            by_slot = column(name, values, n, slots // max(n, 1))
            columns.append(by_slot.sum(axis=1))
            slot_columns.append(by_slot.ravel())
        else:
            columns.append(column(name, values, n))
            slot_columns.append(np.full(slots, np.nan))
    further = FurtherRewards(tuple(rewards), np.array(columns).reshape(len(columns), n).T)
    return further, slates and replace(slates, further=np.array(slot_columns).reshape(len(columns), slots).T)


def identifier_column(field: str, names: Sequence[Identifier | None] | ArrayLike, n: int) -> Identity | None:
    """Return the fingerprints of units or of logging policies. Return None if no event has one.

    Raises:
        ValueError: There are not `n` of them, or one is neither a string nor an integer.
    """
    objects = np.array(names, dtype=object)
    if objects.shape != (n,):
        raise ValueError(f"{field}: expected the shape {_shape((n,))}, found {_shape(objects.shape)}")
    others = {kind for kind in set(map(type, objects)) if not issubclass(kind, str | int | np.integer | None)}
    for row, name in enumerate(objects if others else ()):
        if type(name) in others:
            raise ValueError(f"row {row}: {field}: expected a string or an integer, found {name!r}")
    return name_fingerprints(objects.tolist())


def contexts_of(context: Iterable[Any], n: int) -> list[Any]:
    """Return the context of each event.

    Raises:
        ValueError: There are not `n` of them.
    """
    frame: Any = context
    if hasattr(frame, "columns"):  # it would give its names
        rows = next((name for name in ("to_dicts", "to_pylist") if hasattr(frame, name)), None)
        context = getattr(frame, rows)() if rows else frame.to_dict("records")
    values: list[Any] = context.tolist() if hasattr(context, "tolist") else list(context)
    if len(values) != n or isinstance(context, Mapping):
        found = f"a {type(context).__name__} of {len(values)}"
        raise ValueError(f"context: expected {n} values, one mapping or other value per event, found {found}")
    return values


def choice_columns(
    n: int,
    propensity: ArrayLike | None,
    policies: Mapping[str, ArrayLike],
    action: ArrayLike | None,
    propensities: ArrayLike | None,
    features: ArrayLike | None,
    slate_logging: str,
    rewards: Array | None = None,
    scores: Array | None = None,
) -> tuple[Array, Array, ActionSets | None, SlateColumns | None]:
    """Build the columns of the choices of n events.

    Args:
        n: number of events
        propensity: see `EventBatch.from_arrays`
        policies: see `EventBatch.from_arrays`
        action: see `EventBatch.from_arrays`
        propensities: see `EventBatch.from_arrays`
        features: see `EventBatch.from_arrays`
        slate_logging: see `EventBatch.from_arrays`
        rewards: [n, l] rewards of the slots of slates, if they have any
        scores: [n, A] the scores of the actions of rankings that were drawn by them

    Returns:
        Propensity [n], probabilities [n, P], action sets and slates.

    Raises:
        ValueError: The arrays do not fit together.
    """
    if propensity is None and propensities is None:
        actions = None if action is None else _set_size(features, policies)
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
        wanted = "give `propensity`, or else `propensities`, `action` and perhaps `features`"
        raise ValueError(wanted if propensity is None else f"{wanted}: next to `propensity`, leave out the others")
    per_choice = np.full((len(policies), math.prod(shape)), np.nan)
    for row, (name, values) in enumerate(policies.items()):
        if sets is None or np.ndim(values) == len(shape):
            per_choice[row] = column(f"policies[{name!r}]", values, *shape).ravel()
        else:
            sets.probabilities[:, row] = column(f"policies[{name!r}]", values, *logged.shape).ravel()
    propensity_of_logged = logged.ravel()
    if sets is not None:
        reconcile(sets, per_choice.T, sets.probabilities)
        propensity_of_logged = sets.propensities[sets.logged[1]]
    if not slots:
        return propensity_of_logged, per_choice.T, sets, None
    slates = _slates(shape, propensity_of_logged, per_choice.T, sets, slate_logging, rewards, scores)
    if scores is not None:
        fill_marginals(slates)
    return *as_one_action(slates), None, slates


def _set_size(features: ArrayLike | None, policies: Mapping[str, ArrayLike]) -> int | None:
    """Return the number of actions that each event lists, None without lists."""
    arrays = [*policies.values()] if features is None else [features, *policies.values()]
    shapes = [np.shape(values) for values in arrays]
    return next((shape[1] for shape in shapes if len(shape) > 1), None)


def named_actions(action: ArrayLike, n: int) -> ActionNames:
    """Return the names of logged actions.

    Raises:
        ValueError: There are not `n` of them, or one is neither a string nor an integer.
    """
    identifier_column("action", action, n)
    return ActionNames.from_actions(np.array(action, dtype=object).tolist())


def _action_sets(
    shape: tuple[int, ...], action: ArrayLike, propensities: Array, features: ArrayLike | None, policies: int
) -> ActionSets:
    """Build the action sets of choices of the shape [n] or [n, slots]. All sets have one size."""
    choices, actions = math.prod(shape), propensities.shape[-1]
    rows = None
    if features is not None:
        table = column("features", features, *shape, actions, None)
        table = table.reshape(choices, actions, table.shape[-1])
        unknown = np.isnan(table)
        partly = np.flatnonzero(unknown.any(axis=(1, 2)) & ~unknown.all(axis=(1, 2)))
        if len(partly):
            row, index = partly[0] * shape[0] // choices, unknown[partly[0]].any(axis=1).argmax()
            raise ValueError(f"row {row}: not_finite: features[{index}]: nan is not a finite number")
        sizes = np.where(unknown.any(axis=(1, 2)), 0, actions * table.shape[-1])
        rows = Features(cumulative_offsets(sizes), table[sizes > 0].ravel())
    return ActionSets(
        offsets=np.arange(choices + 1) * actions,
        index=_logged_index(action, shape, actions),
        propensities=propensities.ravel(),
        features=rows,
        probabilities=np.full((policies, choices * actions), np.nan).T,
    )


def _logged_index(action: ArrayLike, shape: tuple[int, ...], actions: int) -> Index:
    index = np.array(action)
    if index.shape != shape or (index.size and index.dtype.kind not in "iu"):
        description = f"{index.dtype} of the shape {_shape(index.shape)}"
        raise ValueError(f"action: expected integers of the shape {_shape(shape)}, found {description}")
    outside = np.argwhere((index < 0) | (index >= actions))
    if len(outside):
        first = tuple(outside[0])
        raise ValueError(
            f"row {first[0]}: action: {index[first]} is not a position among {actions} actions, counted from 0"
        )
    return index.ravel().astype(np.int64)


def _slates(
    shape: tuple[int, ...],
    propensity: Array,
    probabilities: Array,
    sets: ActionSets | None,
    slate_logging: str,
    rewards: Array | None,
    scores: Array | None,
) -> SlateColumns:
    (n, slots), items = shape, np.empty(0, dtype=np.int64)
    logging = FACTORED
    if sets is not None:
        items = np.arange(len(sets.propensities)) - np.repeat(sets.offsets[:-1], sets.sizes)
        shown = np.sort(sets.index.reshape(shape), axis=1)
        logging = NAMED_LOGGING[slate_logging]
        if logging in RANKINGS and ((sets.sizes < slots).any() or (shown[:, 1:] == shown[:, :-1]).any()):
            raise ValueError("action: a ranking shows no action twice")
    return SlateColumns(
        offsets=np.arange(n + 1) * slots,
        propensity=propensity,
        reward=np.full(n * slots, np.nan) if rewards is None else rewards.ravel(),
        probabilities=probabilities,
        actions=replace(
            sets or ActionSets.none(n * slots, probabilities.shape[1]),
            items=items,
            scores=np.full(len(items), np.nan) if scores is None else np.repeat(scores, slots, axis=0).ravel(),
        ),
        logging=np.full(n, logging, dtype=np.int8),
        listed=ListedSlates.none(n),
    )


def _shape(lengths: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if length is None else str(length) for length in lengths) + "]"
