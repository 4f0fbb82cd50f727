"""From decoded events to columns, at C speed where every cell is a number.

From decoded slates to columns, and what does not fit together in a slate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, starmap
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import astuple

from streameval.common.arrays import Array
from streameval.common.text import counted
from streameval.events.action_sets import ActionSets, Index, offsets_of, reconcile
from streameval.events.batch import EventBatch
from streameval.events.origin import units_of
from streameval.events.schema import NAN, Event, PolicyCell, Slate, Slot
from streameval.events.shapes import misfit
from streameval.events.slates import (
    FACTORED,
    LISTED,
    UNIFORM_RANKING,
    ListedSlates,
    SlateColumns,
    as_one_action,
    complete,
)
from streameval.events.tolerances import at_most_one

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


class ChoiceColumns(NamedTuple):
    """What n events or slots say of the choice they made, as columns: see `EventBatch`."""

    names: Names
    probabilities: Array
    propensity: Array
    sets: ActionSets | None


def ragged(choices: Sequence[Event] | Sequence[Slot], policies: Names | None) -> ChoiceColumns:
    """The columns of events or of slots, which say it in the same fields."""
    given: list[Any] = [choice.policies for choice in choices]
    names = _names(given) if policies is None else policies
    cells = _open_cells(given, names) if policies is None else _known_cells(given, len(names))
    by_policy = np.array([[cell if isinstance(cell, float) else NAN for cell in column] for column in cells])
    by_policy = by_policy.reshape(len(names), len(choices))
    propensity = at_most_one(_or([choice.propensity for choice in choices], NAN))
    if all(choice.actions is None for choice in choices):
        return ChoiceColumns(names, by_policy.T, propensity, None)
    sets = _action_sets(choices, cells)
    reconcile(sets, by_policy.T, sets.probabilities)
    reconcile(sets, propensity, sets.propensities)
    return ChoiceColumns(names, by_policy.T, propensity, sets)


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


MOST_ROWS = 500
"""Actions in all slots of an event with listed slates, whose estimate takes a matrix of this size squared."""


def with_slates(batch: EventBatch, events: Sequence[Any], policies: Names | None) -> EventBatch:
    """The batch of these events with the columns of their slots, and of each slate as one action."""
    slots: list[Slot] = list(chain.from_iterable(event.slots or () for event in events))
    if not slots:
        return batch
    told = ragged(slots, policies)
    slates = SlateColumns(
        offsets=offsets_of(np.array([len(event.slots or ()) for event in events])),
        propensity=told.propensity,
        probabilities=told.probabilities,
        actions=ActionSets.none(len(slots), len(told.names)) if told.sets is None else told.sets,
        items=np.array(list(chain.from_iterable(map(_items, events))), dtype=np.int64),
        logging=np.array([_logging(event) for event in events], dtype=np.int8),
        listed=_listed(events),
    )
    names = tuple(dict.fromkeys([*batch.policies, *told.names]))
    return assembled(batch.with_policies(names), slates.with_policies(told.names, names))


def assembled(batch: EventBatch, slates: SlateColumns) -> EventBatch:
    """The batch with these slates, of the same policies, each as one action in the batch's own columns."""
    complete(slates)
    propensity, probabilities = as_one_action(slates)
    is_slate = slates.sizes > 0
    return replace(
        batch,
        slates=slates,
        propensity=np.where(is_slate, propensity, batch.propensity),
        probabilities=np.where(is_slate, probabilities.T, batch.probabilities.T).T,
    )


def _logging(event: Any) -> int:
    if event.slots is None:
        return FACTORED
    if event.slates is not None:
        return LISTED
    return UNIFORM_RANKING if event.slate_logging == "uniform_ranking" else FACTORED


def _items(event: Any) -> Iterator[int]:
    """For each action of each slot its number in the event; equal actions of a ranking have equal numbers."""
    slots: Sequence[Any] = event.slots or ()
    if _logging(event) != UNIFORM_RANKING:
        return chain.from_iterable(range(len(slot.actions or ())) for slot in slots)
    number = {action: place for place, action in enumerate(slots[0].actions)}
    return (number[action] for slot in slots for action in slot.actions)


def _listed(events: Sequence[Any]) -> ListedSlates | None:
    slates = [event.slates or () if event.slots else () for event in events]
    if not any(slates):
        return None
    places: list[list[int]] = []
    logged = []
    for event, shown in zip(events, slates, strict=True):
        numbers = (
            [{action: place for place, action in enumerate(slot.actions)} for slot in event.slots] if shown else []
        )
        places += [[number[action] for number, action in zip(numbers, slate, strict=True)] for slate in shown]
        own = [slot.action for slot in event.slots] if shown else None
        logged.append(shown.index(own) if own in shown else -1)
    return ListedSlates(
        offsets=offsets_of(np.array(list(map(len, slates)))),
        probability=at_most_one(
            np.array(list(chain.from_iterable(event.slate_propensities for event in events if _is_listed(event))))
        ),
        place=np.array(list(chain.from_iterable(places)), dtype=np.int64),
        logged=np.array(logged, dtype=np.int64),
    )


def _is_listed(event: Any) -> bool:
    return _logging(event) == LISTED


def slate_misfit(slate: Slate) -> str | None:
    """The first thing in a slate that does not fit, as `field: problem`; None when all of it does."""
    return next(_misfits(slate), None)


def _misfits(slate: Slate) -> Iterator[str]:
    if not slate.slots:
        yield "slots: empty"
    for place, slot in enumerate(slate.slots):
        if detail := misfit(slot):
            yield f"slots.{place}.{detail}"
    if slate.slates is not None or slate.slate_propensities is not None:
        yield from _list_misfits(slate)
    elif slate.slate_logging == "uniform_ranking":
        yield from _ranking_misfits(slate.slots)


def _ranking_misfits(slots: Sequence[Slot]) -> Iterator[str]:
    shown: set[str | int] = set()
    for place, slot in enumerate(slots):
        if slot.actions is None:
            yield f"slots.{place}.actions: missing, but a ranking is drawn from them"
        elif set(slot.actions) != set(slots[0].actions or ()):
            yield f"slots.{place}.actions: not those of slots.0, but a ranking is of one set of actions"
        elif len(slots) > len(slot.actions):
            yield f"slots: {len(slots)} for a ranking of {counted(len(slot.actions), 'action')}"
        if slot.action in shown:
            yield f"slots.{place}.action: {slot.action!r} is shown twice in a ranking"
        shown.add(slot.action)


def _list_misfits(slate: Slate) -> Iterator[str]:
    slates, propensities = slate.slates or [], slate.slate_propensities or []
    if slate.slate_logging is not None:
        yield "slate_logging: beside `slates`, which say it all"
    if not slates or len(slates) != len(propensities):
        yield f"slate_propensities: {counted(len(propensities), 'entry')} for {counted(len(slates), 'slate')}"
    for place, slot in enumerate(slate.slots):
        if slot.actions is None:
            yield f"slots.{place}.actions: missing, but `slates` show them"
    choices = [set(slot.actions or ()) for slot in slate.slots]
    rows = sum(map(len, choices))
    if rows > MOST_ROWS:
        yield f"slots: {rows} actions beside `slates`, more than the {MOST_ROWS} that are solved for"
    if len(set(map(tuple, slates))) < len(slates):
        yield "slates: one is listed twice"
    for place, listed in enumerate(slates):
        yield from _listed_misfits(f"slates[{place}]", listed, choices)


def _listed_misfits(name: str, listed: Sequence[str | int], choices: Sequence[set[str | int]]) -> Iterator[str]:
    if len(listed) != len(choices):
        yield f"{name}: {counted(len(listed), 'action')} for {counted(len(choices), 'slot')}"
    for column, (action, known) in enumerate(zip(listed, choices, strict=False)):
        if action not in known:
            yield f"{name}[{column}]: {action!r} is not one of slots.{column}.actions"
