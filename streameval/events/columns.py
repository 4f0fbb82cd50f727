"""Turn decoded events into columns, at C speed if all cells are numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, TypeAlias

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
    NAMED_LOGGING,
    PLACKETT_LUCE,
    RANKINGS,
    ListedSlates,
    SlateColumns,
    as_one_action,
    fill_marginals,
)

PolicyNames: TypeAlias = tuple[str, ...]
Choices: TypeAlias = Sequence[Event] | Sequence[Slot]
Cells: TypeAlias = Sequence[Sequence[PolicyCell]]
Rows: TypeAlias = Callable[[], Iterable[Sequence[PolicyCell]]]


def compact_columns(events: Sequence[Event], policies: PolicyNames | None) -> EventBatch | None:
    """Return the columns of events without lists. Values are not validated.

    Args:
        events: decoded events
        policies: the policies in the type of the events, None = all policies that events name

    Returns:
        A batch, or None if an event has a list, a scored outcome or no action: see `ragged_columns`.
    """
    if [  # a list is faster than `any` over a generator
        event
        for event in events
        if event.actions is not None
        or event.propensities is not None
        or event.features is not None
        or event.slots is not None
        or event.scored is not None
        or event.action is UNSET
    ]:
        return None
    choices: list[Any] = [event.policies for event in events]
    if policies is not None and choices and isinstance(choices[0], bytes):  # see `HeaderNames`, then all are
        numbers = np.frombuffer(b"".join(choices)).reshape(len(choices), len(policies))
        return _batch(events, policies, numbers.T.copy(), _propensity(events), None)
    names, rows = _cells(choices, policies)
    cells = _table(rows, len(events), len(names))
    return None if cells is None else _batch(events, names, cells.T.copy(), _propensity(events), None)


def ragged_columns(events: Sequence[Event], policies: PolicyNames | None) -> EventBatch:
    """Return the columns of events with lists that fit together. Values are not validated."""
    batch = _batch(events, *_choice_columns(events, policies))
    slots: list[Slot] = list(chain.from_iterable(event.slots or () for event in events))
    batch = _with_slates(batch, events, slots, policies) if slots else batch
    is_scored = np.array([event.scored is not None for event in events])
    return _with_outcomes(batch, events, is_scored, policies) if is_scored.any() else batch


def named_policies(events: Sequence[Any]) -> PolicyNames:
    """Return all policies that events or their slots name, in the order of their first use."""
    slots = chain.from_iterable(event.slots or () for event in events)
    by_name = [choice.policies for choice in chain(events, slots)]
    by_name += [event.scored.values for event in events if event.scored is not None]
    return tuple(dict.fromkeys(chain.from_iterable(cells or () for cells in by_name)))


def _choice_columns(
    choices: Choices, policies: PolicyNames | None
) -> tuple[PolicyNames, Array, Array, ActionSets | None]:
    """Return policies, probabilities [P, n], propensity [n] and action sets of n events or slots."""
    names, cells = _cells([choice.policies for choice in choices], policies)
    rows = list(cells())
    numbers = floats([cell if isinstance(cell, float) else NAN for row in rows for cell in row])
    by_policy = numbers.reshape(len(choices), len(names)).T.copy()
    propensity = _propensity(choices)
    if all(choice.actions is None for choice in choices):
        return names, by_policy, propensity, None
    sets = _action_sets(choices, list(zip(*rows, strict=True)))
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
        sampling_probability=floats_or([event.sampling_probability for event in events], 1.0),
        action_sets=sets,
        unit=name_fingerprints([event.unit for event in events]),
        logging_policy=name_fingerprints([event.logging_policy for event in events]),
    )


# --- Cells to arrays ---


def seconds(moments: Sequence[Any]) -> Array:
    """Convert floats and datetimes to seconds since 1970."""
    try:
        return floats(moments)
    except struct.error:
        return np.array([moment if isinstance(moment, float) else moment.timestamp() for moment in moments])


def floats_or(numbers: Sequence[Any], absent: float) -> Array:
    """Convert Python numbers to an array, with `absent` in place of other values."""
    try:
        return floats(numbers)
    except struct.error:
        return np.array([number if isinstance(number, float | int) else absent for number in numbers], dtype=float)


def further_rewards(fields: Sequence[RewardField], messages: Sequence[Any]) -> FurtherRewards:
    """Return the further rewards of decoded messages or slots. Slots of ds-json have none."""
    columns = [
        floats_or([getattr(message, f"reward{index}", None) for message in messages], NAN)
        for index in range(1, len(fields) + 1)
    ]
    return FurtherRewards(
        tuple(field.name for field in fields), np.array(columns).reshape(len(fields), len(messages)).T
    )


def with_further_rewards(batch: EventBatch, fields: Sequence[RewardField], events: Sequence[Any]) -> EventBatch:
    """Add the further rewards of events and of their slots."""
    slots = [slot for event in events for slot in event.slots or ()]
    slates = batch.slates and replace(batch.slates, further=further_rewards(fields, slots).values)
    return replace(batch, further=further_rewards(fields, events), slates=slates)


def _propensity(choices: Choices) -> Array:
    return floats_or([choice.propensity for choice in choices], NAN)


def _cells(choices: Sequence[Any], policies: PolicyNames | None) -> tuple[PolicyNames, Rows]:
    """Return policies, and a function that yields their cells, choice by choice.

    Args:
        choices: the policies of each choice: structs, or dictionaries without `policies`
        policies: the policies in the type of the structs, None = all policies that choices name
    """
    if policies is not None:
        return policies, lambda: map(astuple, choices)
    by_name = [cells or {} for cells in choices]
    names = tuple(dict.fromkeys(chain.from_iterable(by_name)))
    if all(tuple(cells) == names for cells in by_name):
        return names, lambda: (tuple(cells.values()) for cells in by_name)
    return names, lambda: ([cells.get(name, NAN) for name in names] for cells in by_name)


def _table(rows: Rows, *shape: int) -> Array | None:
    """Convert rows of numbers to an array, with NaN for null. Return None if a cell is a list.

    Rows are packed one at a time, as thousands of tuples would not fit into the cache of a processor.
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
        index=np.array([_index_of(choice.action, choice.actions or []) for choice in choices]),
        propensities=_end_to_end([choice.propensities for choice in choices], sizes),
        features=Features.from_tables([choice.features for choice in choices]),
        probabilities=np.array([_end_to_end(column, sizes) for column in columns]).reshape(len(columns), sizes.sum()).T,
    )


def _index_of(item: Any, items: Sequence[Any]) -> int:
    return items.index(item) if item in items else -1


def _end_to_end(lists: Sequence[PolicyCell], sizes: Index) -> Array:
    """Join lists to one column, with NaN for the actions of an event without a list."""
    pairs = zip(lists, sizes.tolist(), strict=True)
    return floats(list(chain.from_iterable([cell if isinstance(cell, list) else [NAN] * size for cell, size in pairs])))


# --- Slates ---


def _with_slates(
    batch: EventBatch, events: Sequence[Any], slots: Sequence[Slot], policies: PolicyNames | None
) -> EventBatch:
    """Add the columns of slots."""
    slot_policies, by_policy, propensity, sets = _choice_columns(slots, policies)
    items = np.array(list(chain.from_iterable(map(_items, events))), dtype=np.int64)
    columns = SlateColumns(
        offsets=cumulative_offsets(np.array([len(event.slots or ()) for event in events])),
        propensity=propensity,
        reward=floats_or([slot.reward for slot in slots], NAN),
        probabilities=by_policy.T,
        actions=replace(
            sets or ActionSets.none(len(slots), len(slot_policies)),
            items=items,
            scores=floats(list(chain.from_iterable(map(_scores, events)))),
        ),
        logging=np.array([_logging(event) for event in events], dtype=np.int8),
        listed=_listed(events),
    )
    names = tuple(dict.fromkeys([*batch.policies, *slot_policies]))
    return with_slates(batch.with_policies(names), columns.select_policies(slot_policies, names))


def with_slates(batch: EventBatch, slates: SlateColumns) -> EventBatch:
    """Add the columns of slots, filled in place. In all other columns a slate is one action.

    Args:
        batch: the events
        slates: their slots, with the policies of the batch
    """
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
    """Add the outcomes of scored events."""
    scored = [event.scored for event in events if event.scored is not None]
    names, rows = _cells([outcome.values for outcome in scored], policies)
    outcomes = np.array(list(rows()), dtype=np.float64).reshape(len(scored), len(names))
    columns = ScoredOutcomes(
        offsets=cumulative_offsets(is_scored.astype(np.int64)),
        propensity=floats_or([outcome.propensity for outcome in scored], NAN),
        outcomes=np.asfortranarray(outcomes),
        revealed=np.array([outcome.revealed for outcome in scored]),
    )
    both = tuple(dict.fromkeys([*batch.policies, *names]))
    return with_outcomes(batch.with_policies(both), columns.select_policies(names, both))


def with_outcomes(batch: EventBatch, scored: ScoredOutcomes) -> EventBatch:
    """Add outcomes with the policies of the batch. Their events have the propensity NaN and the reward 0."""
    return replace(batch, reward=np.where(scored.sizes > 0, 0.0, batch.reward), scored=scored)


def _logging(event: Any) -> int:
    if event.slots is None:
        return FACTORED
    if event.slates is not None:
        return LISTED
    return NAMED_LOGGING[event.slate_logging or "factored"]


def _items(event: Any) -> Iterable[int]:
    """Return the number of each action of each slot. Equal actions of a ranking have equal numbers."""
    slots: Sequence[Any] = event.slots or ()
    if _logging(event) not in RANKINGS:
        return chain.from_iterable(range(len(slot.actions or ())) for slot in slots)
    number = {action: index for index, action in enumerate(slots[0].actions)}
    return (number[action] for slot in slots for action in slot.actions)


def _scores(event: Any) -> Iterable[float]:
    """Return the score of each action of each slot, NaN if the slots were not filled by scores."""
    slots: Sequence[Any] = event.slots or ()
    if _logging(event) != PLACKETT_LUCE:
        return repeat(NAN, sum(len(slot.actions or ()) for slot in slots))
    score = dict(zip(slots[0].actions, event.scores, strict=True))
    return (score[action] for slot in slots for action in slot.actions)


def _listed(events: Sequence[Any]) -> ListedSlates:
    lists = [(event.slates or ()) if event.slots else () for event in events]
    if not any(lists):
        return ListedSlates.none(len(events))
    with_lists = [event for event, slates in zip(events, lists, strict=True) if slates]
    shown = [[slot.action for slot in event.slots or ()] for event in events]
    sizes = np.array(list(map(len, lists)))
    return ListedSlates(
        offsets=cumulative_offsets(sizes),
        logged=np.array(list(map(_index_of, shown, lists)), dtype=np.int64),
        probability=np.array(list(chain.from_iterable(event.slate_propensities for event in with_lists))),
        place_offsets=cumulative_offsets(sizes * np.array(list(map(len, shown)))),
        place=np.array(list(chain.from_iterable(map(_slot_indices, with_lists))), dtype=np.int64),
    )


def _slot_indices(event: Any) -> Iterator[int]:
    """Yield the index of each action of each listed slate in the set of its slot."""
    indices = [{action: index for index, action in enumerate(slot.actions)} for slot in event.slots]
    for slate in event.slates:
        yield from (index[action] for index, action in zip(indices, slate, strict=True))
