"""The actions that each event could choose from: as ragged columns, and as Python values for policies in code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.events.schema import Event, Identifier

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Base of dataclasses whose fields are arrays, other `Columns` (named in `PARTS`), or None."""

    PARTS: ClassVar[Mapping[str, type[Columns]]] = {}

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(int(getattr(getattr(self, field.name), "nbytes", 0)) for field in fields(self))

    def to_state(self) -> Any:
        """Return the columns by name, with `probabilities` in the order of their memory."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        state |= {name: state[name] and state[name].to_state() for name in self.PARTS}
        return state | {name: state[name].T for name in state.keys() & {"probabilities"}}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore from `to_state`."""
        parts = {name: state[name] and kind.from_state(state[name]) for name, kind in cls.PARTS.items()}
        return cls(**state | parts | {name: state[name].T for name in state.keys() & {"probabilities"}})


@dataclass(frozen=True, slots=True, eq=False)
class ActionSets(Columns):
    """The action sets of n events, laid end to end: `total` rows, one per action of an event.

    index: [n] position of the logged action in its event's set; -1 = the event has no set
    offsets: [n + 1] event i owns the rows `offsets[i]:offsets[i + 1]`
    propensities: [total] the logging policy's distribution; NaN = not logged
    features: [total, d]; NaN = the event has no features, or fewer than d; None = no event has features
    probabilities: [total, P] the policies' distributions, contiguous over rows; NaN = missing. A policy that logs only
        the probability of the logged action has NaN in the other rows.
    """

    index: Index
    offsets: Index
    propensities: Array
    features: Array | None
    probabilities: Array

    @property
    def sizes(self) -> Index:
        """[n] number of actions of each event, 0 without a set."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Index:
        """[total] the event that owns each row."""
        return np.repeat(np.arange(len(self.index)), self.sizes)

    @property
    def logged(self) -> tuple[Index, Index]:
        """The events whose logged action is in their set, and its row for each of them."""
        events = np.flatnonzero(self.index >= 0)
        return events, self.offsets[events] + self.index[events]

    def part(self, start: int, stop: int) -> ActionSets:
        """Return the sets of the events `start:stop` as views."""
        offsets = self.offsets[start : stop + 1]
        return self._rows(slice(offsets[0], offsets[-1]), self.index[start:stop], offsets - offsets[0])

    def take(self, events: Index) -> ActionSets:
        """Return the sets of these events, in this order."""
        rows, offsets = owned_rows(self.offsets, events)
        return self._rows(rows, self.index[events], offsets)

    def _rows(self, rows: slice | Index, index: Index, offsets: Index) -> ActionSets:
        features = None if self.features is None else self.features[rows]
        return ActionSets(index, offsets, self.propensities[rows], features, self.probabilities.T[:, rows].T)

    def trimmed(self) -> ActionSets:
        """Return the sets without the last columns of `features` if no event has them."""
        if self.features is None:
            return self
        used = np.flatnonzero(~np.isnan(self.features).all(axis=0))
        return replace(self, features=self.features[:, : used[-1] + 1] if len(used) else None)

    def with_policies(self, present: tuple[str, ...], wanted: tuple[str, ...]) -> ActionSets:
        """Return the sets with the columns of the wanted policies; NaN for those that are not present."""
        return replace(self, probabilities=select_policies(self.probabilities, present, wanted))

    @classmethod
    def none(cls, events: int, policies: int) -> ActionSets:
        """Return `events` empty sets."""
        nothing = np.empty((policies, 0)).T
        return cls(np.full(events, -1), np.zeros(events + 1, dtype=np.int64), np.empty(0), None, nothing)

    @classmethod
    def concat(cls, parts: Sequence[ActionSets]) -> ActionSets:
        """Concatenate parts that have the same policies."""
        return cls(
            index=np.concatenate([part.index for part in parts]),
            offsets=cumulative_offsets(np.concatenate([part.sizes for part in parts])),
            propensities=np.concatenate([part.propensities for part in parts]),
            features=_stacked([part.features for part in parts], [len(part.propensities) for part in parts]),
            probabilities=np.concatenate([part.probabilities.T for part in parts], axis=1).T,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RawFields(Columns):
    """Fields of n events as Python values, for policies and reward models in code.

    contexts: [n] the context; None = not logged
    actions: [n] the names of the actions, in the order of the event's set; empty without a set
    scores: by field, [n] its values, of any type; None = not logged
    """

    contexts: Sequence[Any]
    actions: Sequence[Sequence[Identifier]]
    scores: Mapping[str, Sequence[Any]]

    @classmethod
    def from_events(cls, events: Sequence[Event], attributes: Mapping[str, str]) -> RawFields:
        """Read decoded events; `attributes`: the attribute of each field in `scores`."""
        return cls(
            contexts=[event.context for event in events],
            actions=[event.actions or [] for event in events],
            scores={field: [getattr(event, name) for event in events] for field, name in attributes.items()},
        )

    def take(self, events: Sequence[int]) -> RawFields:
        """Return the fields of these events, in this order."""
        return RawFields(
            contexts=[self.contexts[event] for event in events],
            actions=[self.actions[event] for event in events],
            scores={field: [values[event] for event in events] for field, values in self.scores.items()},
        )

    @classmethod
    def none(cls, events: int) -> RawFields:
        """Return the fields of `events` events that log none."""
        return cls([None] * events, [[]] * events, {})

    @classmethod
    def concat(cls, parts: Sequence[RawFields]) -> RawFields:
        """Concatenate; a score that a part does not have is None there."""
        names = dict.fromkeys(field for part in parts for field in part.scores)
        return cls(
            contexts=[context for part in parts for context in part.contexts],
            actions=[actions for part in parts for actions in part.actions],
            scores={
                field: [value for part in parts for value in part.scores.get(field, [None] * len(part.actions))]
                for field in names
            },
        )

    def to_state(self) -> str:
        """Return the fields as JSON, which has integers of any size."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def nbytes(self) -> int:
        """Assumed size in bytes: 1000 an event."""
        return 1000 * len(self.contexts)

    @classmethod
    def from_state(cls, state: str) -> RawFields:
        """Restore from `to_state`."""
        return cls(**json.loads(state))


def cumulative_offsets(sizes: Index) -> Index:
    """Return the start of each of consecutive runs of these sizes, and the end of the last one.

    >>> cumulative_offsets(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def owned_rows(offsets: Index, owners: Index) -> tuple[Index, Index]:
    """Return the rows of these owners, in their order, and the offsets of each owner among them.

    >>> owned_rows(np.array([0, 2, 2, 5]), np.array([2, 0]))
    (array([2, 3, 4, 0, 1]), array([0, 3, 5]))
    """
    sizes = np.diff(offsets)[owners]
    starts = cumulative_offsets(sizes)
    return np.arange(starts[-1]) + np.repeat(offsets[owners] - starts[:-1], sizes), starts


def select_policies(values: Array, present: tuple[str, ...], wanted: tuple[str, ...]) -> Array:
    """Return the columns of the wanted policies; NaN for those that are not present."""
    columns = np.full((len(wanted), len(values)), np.nan)
    for row, policy in enumerate(wanted):
        if policy in present:
            columns[row] = values[:, present.index(policy)]
    return columns.T


def reconcile(sets: ActionSets, per_event: Array, per_action: Array) -> None:
    """Fill NaN in `per_event` [n, ...] from the logged action's row of `per_action` [total, ...] and vice versa."""
    events, rows = sets.logged
    logged, listed = per_event[events], per_action[rows]
    per_event[events] = np.where(np.isnan(logged), listed, logged)
    per_action[rows] = np.where(np.isnan(listed), logged, listed)


def _stacked(features: Sequence[Array | None], rows: Sequence[int]) -> Array | None:
    widths = [0 if part is None else part.shape[1] for part in features]
    if not any(widths):
        return None
    stacked = np.full((sum(rows), max(widths)), np.nan)
    ends = cumulative_offsets(np.array(rows))
    for part, width, start, stop in zip(features, widths, ends, ends[1:], strict=False):
        if part is not None:
            stacked[start:stop, :width] = part
    return stacked
