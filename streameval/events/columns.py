"""From decoded events to columns, at C speed where every cell is a number."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, TypeAlias, cast

import numpy as np
from msgspec import UNSET
from msgspec.structs import astuple

from streameval.common.arrays import Array, Mask, floats
from streameval.events.action_sets import (
    ActionSets,
    Features,
    Index,
    ScoredOutcomes,
    cumulative_offsets,
    reconcile,
)
from streameval.events.batch import EventBatch
from streameval.events.further_rewards import FurtherRewards, RewardField
from streameval.events.origin import name_fingerprints
from streameval.events.schema import NAN, Event, PolicyCell, Slot
from streameval.events.slates import (
    FACTORED,
    LISTED,
    PLACKETT_LUCE,
    RANKINGS,
    UNIFORM_RANKING,
    ListedSlates,
    SlateColumns,
    as_one_action,
    fill_marginals,
)
from streameval.events.validation import at_most_one

PolicyNames: TypeAlias = tuple[str, ...]
Choices: TypeAlias = Sequence[Event] | Sequence[Slot]
Cells: TypeAlias = Sequence[Sequence[PolicyCell]]


def compact_columns(events: Sequence[Event], policies: PolicyNames | None) -> EventBatch | None:
    """Return the columns of events without lists; None if one has a list, a score or no action: see `ragged_columns`.

    Values are not validated. `policies`: the names in the type of the events; None = all that occur.
    """
    if [
        e
        for e in events
        if e.actions is not None
        or e.propensities is not None
        or e.features is not None
        or e.slots is not None
        or e.scored is not None
        or e.action is UNSET
    ]:
        return None
    if policies is None:
        names, cells = _open_cells(events)
        by_policy = _table(lambda: cells, len(names), len(events))
    else:  # packed event by event: a transpose of the array is faster than one of the cells
        names = policies
        numbers = _table(lambda: _known_cells(events), len(events), len(names))
        by_policy = None if numbers is None else numbers.T.copy()
    return None if by_policy is None else _batch(events, names, by_policy, _propensity(events), None)


def ragged_columns(events: Sequence[Event], policies: PolicyNames | None) -> EventBatch:
    """Return the columns of events whose lists fit together. Values are not validated."""
    batch = _batch(events, *_choice_columns(events, policies))
    slots: list[Slot] = list(chain.from_iterable(event.slots or () for event in events))
    batch = _with_slates(batch, events, slots, policies) if slots else batch
    is_scored = np.array([event.scored is not None for event in events])
    return _with_outcomes(batch, events, is_scored, policies) if is_scored.any() else batch


def named_policies(events: Sequence[Any]) -> PolicyNames:
    """Return all policies that events or their slots name, in order of appearance."""
    slots = chain.from_iterable(event.slots or () for event in events)
    named = [choice.policies for choice in chain(events, slots)]
    named += [event.scored.values for event in events if event.scored is not None]
    return tuple(dict.fromkeys(chain.from_iterable(names or () for names in named)))


def _choice_columns(
    choices: Choices, policies: PolicyNames | None
) -> tuple[PolicyNames, Array, Array, ActionSets | None]:
    """The policies, their probabilities [P, n], the propensity [n] and the action sets of n events or slots."""
    if policies is None:
        names, columns = _open_cells(choices)
    else:
        names, columns = policies, list(zip(*_known_cells(choices), strict=True))
    by_policy = np.array([[cell if isinstance(cell, float) else NAN for cell in column] for column in columns])
    by_policy = by_policy.reshape(len(names), len(choices))
    propensity = _propensity(choices)
    if all(choice.actions is None for choice in choices):
        return names, by_policy, propensity, None
    sets = _action_sets(choices, columns)
    reconcile(sets, by_policy.T, sets.probabilities)
    reconcile(sets, propensity, sets.propensities)
    return names, by_policy, propensity, sets


def _batch(
    events: Sequence[Event], names: PolicyNames, by_policy: Array, propensity: Array, sets: ActionSets | None
) -> EventBatch:
    return EventBatch(
        policies=names,
        probabilities=by_policy.T,
        propensity=propensity,
        reward=floats_or([event.reward for event in events], NAN),  # rewards may arrive separately
        timestamp=seconds([event.timestamp for event in events]),
        sampling_probability=at_most_one(floats_or([event.sampling_probability for event in events], 1.0)),
        action_sets=sets,
        unit=name_fingerprints([event.unit for event in events]),
        logging_policy=name_fingerprints([event.logging_policy for event in events]),
    )


# --- Cells to arrays ---


def seconds(moments: Sequence[Any]) -> Array:
    """Return floats and datetimes as seconds since 1970."""
    try:
        return floats(moments)
    except struct.error:
        return np.array([moment if isinstance(moment, float) else moment.timestamp() for moment in moments])


def floats_or(numbers: Sequence[Any], absent: float) -> Array:
    """Return an array of Python numbers, with `absent` in place of everything else."""
    try:
        return floats(numbers)
    except struct.error:
        return np.array([number if isinstance(number, float | int) else absent for number in numbers], dtype=float)


def further_rewards(fields: Sequence[RewardField], messages: Sequence[Any]) -> FurtherRewards:
    """Return the further rewards of decoded messages, or of slots, which have none in ds-json."""
    columns = [
        floats_or([getattr(each, f"reward{place}", None) for each in messages], NAN)
        for place in range(1, len(fields) + 1)
    ]
    return FurtherRewards(tuple(each.name for each in fields), np.array(columns).reshape(len(fields), len(messages)).T)


def with_further_rewards(batch: EventBatch, fields: Sequence[RewardField], events: Sequence[Any]) -> EventBatch:
    """Return the batch with the further rewards of its events and of their slots."""
    slots = [slot for event in events for slot in event.slots or ()]
    slates = batch.slates and replace(batch.slates, further=further_rewards(fields, slots).values)
    return replace(batch, further=further_rewards(fields, events), slates=slates)


def _propensity(choices: Choices) -> Array:
    return at_most_one(floats_or([choice.propensity for choice in choices], NAN))


def _open_cells(choices: Choices) -> tuple[PolicyNames, Cells]:
    """All policies that are named, and for each the cells of all choices."""
    given: list[Any] = [choice.policies or {} for choice in choices]
    names = tuple(dict.fromkeys(chain.from_iterable(given)))
    return names, [[cells.get(name, NAN) for cells in given] for name in names]


def _known_cells(choices: Choices) -> Iterator[Sequence[PolicyCell]]:
    """For each choice the cells of all policies."""
    return (astuple(choice.policies) for choice in cast(Sequence[Any], choices))


def _table(rows: Callable[[], Iterable[Sequence[PolicyCell]]], *shape: int) -> Array | None:
    """Rows of numbers as an array, NaN for null; None if a cell is a list.

    One row at a time is a tuple: thousands of them would not fit into the cache of a processor.
    """
    pack = struct.Struct(f"{shape[1]}d").pack
    try:
        return np.frombuffer(b"".join([pack(*row) for row in rows()])).reshape(shape)
    except struct.error:
        pass
    try:
        numbers = np.array(list(rows()), dtype=np.float64)
    except ValueError:
        return None
    return numbers if numbers.shape == shape else None


# --- Action sets ---


def _action_sets(choices: Choices, columns: Cells) -> ActionSets:
    sizes = np.array([len(choice.actions or ()) for choice in choices])
    return ActionSets(
        offsets=cumulative_offsets(sizes),
        index=np.array([_position(choice.action, choice.actions or []) for choice in choices]),
        propensities=at_most_one(_end_to_end([choice.propensities for choice in choices], sizes)),
        features=Features.of([choice.features for choice in choices]),
        probabilities=np.array([_end_to_end(column, sizes) for column in columns]).reshape(len(columns), sizes.sum()).T,
    )


def _position(item: Any, items: Sequence[Any]) -> int:
    return items.index(item) if item in items else -1


def _end_to_end(lists: Sequence[PolicyCell], sizes: Index) -> Array:
    """All lists in one column; NaN for the actions of an event without a list."""
    pairs = zip(lists, sizes.tolist(), strict=True)
    return floats(list(chain.from_iterable([cell if isinstance(cell, list) else [NAN] * size for cell, size in pairs])))


# --- Slates ---


def _with_slates(
    batch: EventBatch, events: Sequence[Any], slots: Sequence[Slot], policies: PolicyNames | None
) -> EventBatch:
    """Add the columns of the slots, and treat each slate as one action in the columns of the batch."""
    of_slots, by_policy, propensity, sets = _choice_columns(slots, policies)
    items = np.array(list(chain.from_iterable(map(_items, events))), dtype=np.int64)
    columns = SlateColumns(
        offsets=cumulative_offsets(np.array([len(event.slots or ()) for event in events])),
        propensity=propensity,
        reward=floats_or([slot.reward for slot in slots], NAN),
        probabilities=by_policy.T,
        actions=replace(
            sets or ActionSets.none(len(slots), len(of_slots)),
            items=items,
            scores=floats(list(chain.from_iterable(map(_scores, events)))),
        ),
        logging=np.array([_logging(event) for event in events], dtype=np.int8),
        listed=_listed(events),
    )
    names = tuple(dict.fromkeys([*batch.policies, *of_slots]))
    batch, slates = batch.with_policies(names), columns.select_policies(of_slots, names)
    fill_marginals(slates)
    propensity, probabilities = as_one_action(slates)
    is_slate = slates.sizes > 0
    return replace(
        batch,
        slates=slates,
        propensity=np.where(is_slate, propensity, batch.propensity),
        probabilities=np.where(is_slate, probabilities.T, batch.probabilities.T).T,
    )


def _with_outcomes(
    batch: EventBatch, events: Sequence[Any], is_scored: Mask, policies: PolicyNames | None
) -> EventBatch:
    """Add the outcomes of scored events, which have neither a propensity nor a reward in the columns of the batch."""
    scored = [event.scored for event in events if event.scored is not None]
    if policies is None:
        names = tuple(dict.fromkeys(chain.from_iterable(each.values or () for each in scored)))
        rows: list[Any] = [[(each.values or {}).get(name, NAN) for name in names] for each in scored]
    else:
        names, rows = policies, [astuple(each.values) for each in scored]
    outcomes = np.array(rows, dtype=np.float64).reshape(len(scored), len(names))
    found = ScoredOutcomes(
        offsets=cumulative_offsets(is_scored.astype(np.int64)),
        propensity=at_most_one(floats_or([each.propensity for each in scored], NAN)),
        outcomes=np.asfortranarray(outcomes),
        revealed=np.array([each.revealed for each in scored]),
    )
    both = tuple(dict.fromkeys([*batch.policies, *names]))
    return replace(
        batch.with_policies(both),
        reward=np.where(is_scored, 0.0, batch.reward),
        scored=found.select_policies(names, both),
    )


def _logging(event: Any) -> int:
    if event.slots is None:
        return FACTORED
    if event.slates is not None:
        return LISTED
    ways = {"uniform_ranking": UNIFORM_RANKING, "plackett_luce": PLACKETT_LUCE}
    return ways.get(event.slate_logging, FACTORED)


def _items(event: Any) -> Iterable[int]:
    """The number of each action of each slot within the event; equal actions of a ranking have equal numbers."""
    slots: Sequence[Any] = event.slots or ()
    if _logging(event) not in RANKINGS:
        return chain.from_iterable(range(len(slot.actions or ())) for slot in slots)
    number = {action: place for place, action in enumerate(slots[0].actions)}
    return (number[action] for slot in slots for action in slot.actions)


def _scores(event: Any) -> Iterable[float]:
    """The score of each action of each slot, NaN where the slots were not filled by scores."""
    slots: Sequence[Any] = event.slots or ()
    if _logging(event) != PLACKETT_LUCE:
        return repeat(NAN, sum(len(slot.actions or ()) for slot in slots))
    score = dict(zip(slots[0].actions, event.scores, strict=True))
    return (score[action] for slot in slots for action in slot.actions)


def _listed(events: Sequence[Any]) -> ListedSlates:
    lists = [(event.slates or ()) if event.slots else () for event in events]
    if not any(lists):
        return ListedSlates.none(len(events))
    given = [event for event, slates in zip(events, lists, strict=True) if slates]
    shown = [[slot.action for slot in event.slots or ()] for event in events]
    sizes = np.array(list(map(len, lists)))
    return ListedSlates(
        offsets=cumulative_offsets(sizes),
        logged=np.array(list(map(_position, shown, lists)), dtype=np.int64),
        probability=at_most_one(np.array(list(chain.from_iterable(event.slate_propensities for event in given)))),
        place_offsets=cumulative_offsets(sizes * np.array(list(map(len, shown)))),
        place=np.array(list(chain.from_iterable(map(_places, given))), dtype=np.int64),
    )


def _places(event: Any) -> Iterator[int]:
    """For each slot of each listed slate, the position of its action in the slot's set."""
    numbers = [{action: place for place, action in enumerate(slot.actions)} for slot in event.slots]
    for slate in event.slates:
        yield from (number[action] for number, action in zip(numbers, slate, strict=True))
