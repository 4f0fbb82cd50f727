"""From decoded events to columns, at C speed where every cell is a number."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import astuple

from streameval.arrays import Array
from streameval.events.action_sets import ActionSets, Index, offsets_of, reconcile
from streameval.events.batch import EventBatch
from streameval.events.wire import NAN, Event, PolicyCell

Names: TypeAlias = tuple[str, ...]
Cells: TypeAlias = Sequence[Sequence[PolicyCell]]
"""What n events say of P policies: P columns of n cells."""


def compact_columns(events: Sequence[Event], policies: Names | None) -> EventBatch | None:
    """The columns of events in the compact form; None when one has a list or a null, which takes `ragged_columns`.

    `policies`: the names in the events' type; None = all that occur. Values out of their range are still among these.
    """
    if any([event.actions is not None or event.propensities is not None or event.features is not None for event in events]):
        return None
    given = [event.policies for event in events]
    try:
        if policies is None:
            policies = _names(given)
            probabilities = _floats(chain.from_iterable(_open_cells(given, policies)), len(policies), len(events))
        else:
            by_event = _floats(chain.from_iterable(map(astuple, given)), len(events), len(policies))
            probabilities = by_event.T.copy()
    except struct.error:
        return None
    return _batch(events, policies, probabilities)


def ragged_columns(events: Sequence[Event], policies: Names | None) -> EventBatch:
    """The columns of events in any form, once it is known that the lists of each of them fit together."""
    given = [event.policies for event in events]
    names = _names(given) if policies is None else policies
    cells = _open_cells(given, names) if policies is None else list(zip(*map(astuple, given), strict=True))
    probabilities = np.array([[_number(cell) for cell in column] for column in cells]).reshape(len(names), len(events))
    if all(event.actions is None for event in events):
        return _batch(events, names, probabilities)
    return _batch(events, names, probabilities, _action_sets(events, cells))


def _batch(
    events: Sequence[Event], names: Names, probabilities: Array, sets: ActionSets | None = None
) -> EventBatch:
    propensity = np.array(_optional([event.propensity for event in events]))
    sampling = _optional([event.sampling_probability for event in events])
    if sets is not None:
        reconcile(sets, probabilities.T, sets.probabilities)
        reconcile(sets, propensity, sets.propensities)
    return EventBatch(
        policies=names,
        probabilities=probabilities.T,
        propensity=propensity,
        reward=_floats([event.reward for event in events], len(events)),
        timestamp=_seconds([event.timestamp for event in events]),
        sampling_probability=np.where(np.isnan(sampling), 1.0, sampling),
        action_sets=sets,
    )


def _floats(numbers: Iterable[Any], *shape: int) -> Array:
    """An array of Python numbers, filled three times as fast as numpy does it; struct.error where one is none."""
    packed = struct.pack(f"{int(np.prod(shape))}d", *numbers)
    return np.frombuffer(packed).reshape(shape)


def _optional(numbers: Sequence[float | None]) -> Array:
    try:
        return _floats(numbers, len(numbers))
    except struct.error:
        return np.array([NAN if number is None else number for number in numbers])


def _seconds(moments: Sequence[Any]) -> Array:
    try:
        return _floats(moments, len(moments))
    except struct.error:
        return np.array([moment if isinstance(moment, float) else moment.timestamp() for moment in moments])


def _names(given: Sequence[Any]) -> Names:
    return tuple(dict.fromkeys(chain.from_iterable(filter(None, given))))


def _open_cells(given: Sequence[Any], names: Names) -> Cells:
    dicts = [policies or {} for policies in given]
    return [[policies.get(name, NAN) for policies in dicts] for name in names]


def _number(cell: PolicyCell) -> float:
    return cell if isinstance(cell, float) else NAN


def _action_sets(events: Sequence[Event], cells: Cells) -> ActionSets:
    sizes = np.array([0 if event.actions is None else len(event.actions) for event in events])
    return ActionSets(
        index=np.array([_position(event) for event in events]),
        offsets=offsets_of(sizes),
        propensities=_end_to_end([event.propensities for event in events], sizes),
        features=_features([event.features for event in events], sizes),
        probabilities=np.array([_end_to_end(column, sizes) for column in cells]).reshape(len(cells), -1).T,
    )


def _position(event: Event) -> int:
    actions = event.actions or []
    return actions.index(event.action) if event.action in actions else -1


def _end_to_end(lists: Sequence[PolicyCell], sizes: Index) -> Array:
    """All lists in one column; NaN for each action of an event that has none."""
    spread = [cell if isinstance(cell, list) else [NAN] * size for cell, size in zip(lists, sizes.tolist(), strict=True)]
    return np.array(list(chain.from_iterable(spread)))


def _features(tables: Sequence[list[list[float]] | None], sizes: Index) -> Array | None:
    """[total, d], d that of the event with the most; shorter rows, and those of events without, end in NaN."""
    width = max((len(table[0]) for table in tables if table), default=0)
    if width == 0:
        return None
    rows = chain.from_iterable(table or [[]] * size for table, size in zip(tables, sizes.tolist(), strict=True))
    return np.array([row + [NAN] * (width - len(row)) for row in rows])
