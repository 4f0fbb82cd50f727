"""From decoded slates to columns, and what does not fit together in a slate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from streameval.events.action_sets import ActionSets, offsets_of
from streameval.events.batch import EventBatch
from streameval.events.columns import Names, ragged
from streameval.events.rounding import at_most_one
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
from streameval.events.wire import Slate, Slot
from streameval.plurals import counted

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
