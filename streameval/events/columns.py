"""From decoded events to columns, at C speed where every cell is a number."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, starmap
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import astuple

from streameval.arrays import Array
from streameval.events.action_sets import ActionSets, Index, offsets_of, reconcile
from streameval.events.batch import EventBatch
from streameval.events.origins import units_of
from streameval.events.rounding import at_most_one
from streameval.events.wire import NAN, Event, PolicyCell, Slot

Names: TypeAlias = tuple[str, ...]
Cells: TypeAlias = Sequence[Sequence[PolicyCell]]
"""What n events say of P policies: P columns of n cells."""


def compact_columns(events: Sequence[Event], policies: Names | None) -> EventBatch | None:
    """The columns of events in the compact form; None when one of them has a list, which takes `ragged_columns`.

    `policies`: the names in the events' type; None = all that occur. Values out of their range are still among these.
    """
    if [
        e
        for e in events
        if e.actions is not None or e.propensities is not None or e.features is not None or e.slots is not None
    ]:
        return None
    given: list[Any] = [event.policies for event in events]
    names = _names(given) if policies is None else policies
    if policies is None:
        numbers = _table(_open_cells(given, names), len(names), len(events))
        return None if numbers is None else _batch(events, names, numbers)
    numbers = _table(list(map(astuple, given)), len(events), len(names))
    return None if numbers is None else _batch(events, names, numbers.T.copy())


def ragged_columns(events: Sequence[Event], policies: Names | None) -> EventBatch:
    """The columns of events in any form, once it is known that the lists of each of them fit together.

    Of slates only what is not in their slots; the rest is missing.
    """
    told = ragged(events, policies)
    return _batch(events, told.names, told.probabilities.T, told.sets, told.propensity)


class Told(NamedTuple):
    """What n events or slots say of the choice they made, as columns: see `EventBatch`."""

    names: Names
    probabilities: Array
    propensity: Array
    sets: ActionSets | None


def ragged(choices: Sequence[Event] | Sequence[Slot], policies: Names | None) -> Told:
    """The columns of events or of slots, which say it in the same fields."""
    given: list[Any] = [choice.policies for choice in choices]
    names = _names(given) if policies is None else policies
    cells = _open_cells(given, names) if policies is None else _known_cells(given, len(names))
    by_policy = np.array([[cell if isinstance(cell, float) else NAN for cell in column] for column in cells])
    by_policy = by_policy.reshape(len(names), len(choices))
    propensity = at_most_one(_or([choice.propensity for choice in choices], NAN))
    if all(choice.actions is None for choice in choices):
        return Told(names, by_policy.T, propensity, None)
    sets = _action_sets(choices, cells)
    reconcile(sets, by_policy.T, sets.probabilities)
    reconcile(sets, propensity, sets.propensities)
    return Told(names, by_policy.T, propensity, sets)


def _batch(
    events: Sequence[Event],
    names: Names,
    by_policy: Array,
    sets: ActionSets | None = None,
    propensity: Array | None = None,
) -> EventBatch:
    return EventBatch(
        policies=names,
        probabilities=by_policy.T,
        propensity=at_most_one(_or([event.propensity for event in events], NAN)) if propensity is None else propensity,
        reward=_rewards([event.reward for event in events]),
        timestamp=seconds([event.timestamp for event in events]),
        sampling_probability=at_most_one(_or([event.sampling_probability for event in events], 1.0)),
        action_sets=sets,
        unit=units_of([event.unit for event in events]),
    )


def floats(numbers: Sequence[Any]) -> Array:
    """An array of Python numbers, filled three times as fast as by numpy; struct.error when one is none."""
    return np.frombuffer(bytearray(struct.pack(f"{len(numbers)}d", *numbers)))


def _or(numbers: Sequence[float | None], absent: float) -> Array:
    try:
        return floats(numbers)
    except struct.error:
        return np.array([absent if number is None else number for number in numbers])


def _rewards(numbers: Sequence[Any]) -> Array:
    try:
        return floats(numbers)
    except struct.error:  # they come apart from their decisions
        return np.full(len(numbers), NAN)


def seconds(moments: Sequence[Any]) -> Array:
    try:
        return floats(moments)
    except struct.error:
        return np.array([moment if isinstance(moment, float) else moment.timestamp() for moment in moments])


def _table(rows: Sequence[Sequence[PolicyCell]], *shape: int) -> Array | None:
    """Rows of numbers as an array, NaN for null; None when there is a list among them."""
    pack = struct.Struct(f"{shape[1]}d").pack
    try:
        return np.frombuffer(b"".join(starmap(pack, rows))).reshape(shape)
    except struct.error:
        return _table_with_nulls(rows, shape)


def _table_with_nulls(rows: Sequence[Sequence[PolicyCell]], shape: tuple[int, ...]) -> Array | None:
    try:
        numbers = np.array(rows, dtype=np.float64)
    except ValueError:
        return None
    return numbers if numbers.shape == shape else None


def _open_cells(given: Sequence[Any], names: Names) -> Cells:
    dicts = [policies or {} for policies in given]
    return [[policies.get(name, NAN) for policies in dicts] for name in names]


def _known_cells(given: Sequence[Any], policies: int) -> Cells:
    nothing = (NAN,) * policies
    return list(zip(*[nothing if cells is None else astuple(cells) for cells in given], strict=True))


def _names(given: Sequence[Any]) -> Names:
    return tuple(dict.fromkeys(chain.from_iterable(filter(None, given))))


def _action_sets(events: Sequence[Event] | Sequence[Slot], cells: Cells) -> ActionSets:
    sizes = np.array([len(event.actions or ()) for event in events])
    return ActionSets(
        index=np.array([_position(event) for event in events]),
        offsets=offsets_of(sizes),
        propensities=at_most_one(_end_to_end([event.propensities for event in events], sizes)),
        features=_features([event.features for event in events], sizes),
        probabilities=np.array([_end_to_end(column, sizes) for column in cells]).reshape(len(cells), sizes.sum()).T,
    )


def _position(event: Event | Slot) -> int:
    actions = event.actions or []
    return actions.index(event.action) if event.action in actions else -1


def _end_to_end(lists: Sequence[PolicyCell], sizes: Index) -> Array:
    """All lists in one column; where an event has none, NaN for each of its actions."""
    pairs = zip(lists, sizes.tolist(), strict=True)
    return floats(list(chain.from_iterable([cell if isinstance(cell, list) else [NAN] * size for cell, size in pairs])))


def _features(tables: Sequence[list[list[float]] | None], sizes: Index) -> Array | None:
    """[total, d], d that of the event with most; the rows of others, and of events without, end in NaN."""
    pairs = zip(tables, sizes.tolist(), strict=True)
    rows = list(chain.from_iterable([table or [[]] * size for table, size in pairs]))
    widths = set(map(len, rows))
    width = max(widths, default=0)
    if len(widths) > 1:
        rows = [row + [NAN] * (width - len(row)) for row in rows]
    return floats(list(chain.from_iterable(rows))).reshape(len(rows), width) if width else None
