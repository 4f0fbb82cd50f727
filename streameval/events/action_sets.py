"""Hold the actions that each event could choose from, as ragged columns and as Python values for policies in code."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, floats, probabilities_within
from streameval.events.schema import Event

Index = NDArray[np.int64]

LARGEST_FEATURE = 1e30
"""Larger features may give sums of squares beyond the floating-point range: their action counts as one without."""

BY_POLICY = frozenset({"probabilities", "outcomes", "support", "list_length", "ranks"})
"""Names of columns with one entry per policy. They are contiguous over events or rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Cut, join and save dataclasses of columns: arrays, other `Columns`, or None.

    Attributes:
        EVENTS: fields with one entry per event, and the entry of an event without the column, for `joined`. `...` = the
            class of the column defines it, None = no column if an event is without it
        ROWS: by field of offsets, the fields with one entry per row. Event i owns the rows `offsets[i]:offsets[i + 1]`
        PARTS: the fields that are `Columns`, and their classes
        PROBABILITIES: the fields that are probabilities, with one entry per event or row, or also one per policy
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {}
    PROBABILITIES: ClassVar[Sequence[str]] = ()

    @property
    def nbytes(self) -> int:
        """Return the size of the columns in bytes."""
        return sum(int(getattr(getattr(self, field.name), "nbytes", 0)) for field in fields(self))

    def take(self, events: slice | Index) -> Self:
        """Return these events, in this order. A slice gives views."""
        columns = {name: _entries(name, getattr(self, name), events) for name in self.EVENTS}
        for offsets, names in self.ROWS.items():
            rows, columns[offsets] = owned_rows(getattr(self, offsets), events)
            columns |= {name: _entries(name, getattr(self, name), rows) for name in names}
        return replace(self, **columns)

    def select_policies(self, present: tuple[str, ...], wanted: tuple[str, ...]) -> Self:
        """Return the columns of the wanted policies, NaN for policies that are not present."""
        parts = {name: getattr(self, name) for name in self.PARTS}
        columns = {name: part and part.select_policies(present, wanted) for name, part in parts.items()}
        for name in self._by_policy():
            values: Array = getattr(self, name)
            missing = np.full(len(values), np.nan)
            chosen = [values[:, present.index(policy)] if policy in present else missing for policy in wanted]
            columns[name] = np.array(chosen).reshape(len(wanted), len(values)).T
        return replace(self, **columns)

    @classmethod
    def joined(cls, parts: Sequence[Self | None], events: Sequence[int]) -> Self:
        """Concatenate batches with the same policies.

        Args:
            parts: the columns of each batch, None = it lacks them
            events: number of events of each batch
        """
        present = [part for part in parts if part is not None]
        columns = {
            name: _concatenated(name, [None if part is None else getattr(part, name) for part in parts], events, absent)
            for name, absent in cls.EVENTS.items()
        }
        for offsets, names in cls.ROWS.items():
            sizes = [
                np.zeros(number, dtype=np.int64) if part is None else np.diff(getattr(part, offsets))
                for part, number in zip(parts, events, strict=True)
            ]
            columns[offsets] = cumulative_offsets(np.concatenate(sizes))
            rows = [getattr(part, offsets)[-1] for part in present]
            columns |= {name: _concatenated(name, [getattr(part, name) for part in present], rows) for name in names}
        return replace(present[0], **columns)

    def clip_probabilities(self, events: int) -> tuple[Self, Mask]:
        """Set probabilities that exceed [0, 1] by rounding alone to its ends, see `within`.

        Args:
            events: number of events

        Returns:
            The columns, and whether a probability of each event was set [events].
        """
        clipped, changed = dict[str, Any](), np.zeros(events, dtype=bool)
        for name in (*self.PROBABILITIES, *self.PARTS):
            column = getattr(self, name)
            offsets = next((key for key, names in self.ROWS.items() if name in names), None)
            if column is None:
                continue
            if isinstance(column, Columns):
                rows = events if offsets is None else int(getattr(self, offsets)[-1])
                clipped[name], which = column.clip_probabilities(rows)
            else:
                clipped[name], entries = probabilities_within(column)
                which = entries if entries.ndim == 1 else np.logical_or.reduce(entries, axis=1)
            if which.any():
                if offsets is None:
                    changed |= which
                else:
                    changed[np.repeat(np.arange(events), np.diff(getattr(self, offsets)))[which]] = True
        return replace(self, **clipped) if changed.any() else self, changed

    def to_state(self) -> Any:
        """Return the columns by name. Columns by policy have the order of their memory, [P, ...]."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        state |= {name: state[name] and state[name].to_state() for name in self.PARTS}
        return state | {name: state[name].T for name in self._by_policy()}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore from `to_state`."""
        parts = {name: state.get(name) and kind.from_state(state[name]) for name, kind in cls.PARTS.items()}
        return cls(**state | parts | {name: state[name].T for name in cls._by_policy()})

    @classmethod
    def _by_policy(cls) -> frozenset[str]:
        """Return the names of columns with one entry per policy."""
        return BY_POLICY & cls.__dataclass_fields__.keys()


def _entries(name: str, column: Any, rows: slice | Index) -> Any:
    if column is None:
        return None
    if isinstance(column, Columns):
        return column.take(rows)
    if name not in BY_POLICY or isinstance(rows, slice):
        return column[rows]
    return column.T.take(rows, axis=1).T  # an index in brackets would put the policies of an event side by side


def _concatenated(name: str, columns: Sequence[Any], sizes: Sequence[int], absent: Any = None) -> Any:
    present = [column for column in columns if column is not None]
    is_complete = all(column is not None or not size for column, size in zip(columns, sizes, strict=True))
    if not present or (absent is None and not is_complete):
        return None
    if isinstance(present[0], Columns):
        return type(present[0]).joined(columns, sizes)
    if name in BY_POLICY:
        return np.concatenate([column.T for column in present], axis=1).T
    if absent is None:
        return np.concatenate(present)
    pairs = zip(columns, sizes, strict=True)
    return np.concatenate([np.full(size, absent) if column is None else column for column, size in pairs])


@dataclass(frozen=True, slots=True, eq=False)
class Ragged(Columns):
    """Hold rows of events end to end.

    Attributes:
        offsets: [n + 1] event i owns the rows `offsets[i]:offsets[i + 1]`
    """

    offsets: Index

    @property
    def sizes(self) -> Index:
        """Return the number of rows of each event, [n]."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Index:
        """Return the event that owns each row, [rows]."""
        sizes = self.sizes
        return np.repeat(np.arange(len(sizes)), sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Features(Ragged):
    """Hold the features of the actions of n events: one table per event, with one row per action.

    Attributes:
        values: the numbers of all tables, row by row. An event without features owns none.
    """

    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {"offsets": ("values",)}

    values: Array

    @classmethod
    def from_tables(cls, tables: Sequence[list[list[float]] | None]) -> Features | None:
        """Build from the table of each event. Return None if no event has features."""
        if tables.count(None) == len(tables):
            return None
        numbers = [list(chain.from_iterable(table or ())) for table in tables]
        sizes = np.array(list(map(len, numbers)), dtype=np.int64)
        if not sizes.any():
            return None
        return cls(cumulative_offsets(sizes), floats(list(chain.from_iterable(numbers))))


class Listed(Ragged):
    """Hold rows of events, one for each action or item, which may have features."""

    __slots__ = ()

    features: Features | None

    @property
    def widths(self) -> Index:
        """Return the number of features per row of each event, [n], 0 without features."""
        if self.features is None:
            return np.zeros(len(self.offsets) - 1, dtype=np.int64)
        return self.features.sizes // np.maximum(self.sizes, 1)

    @property
    def first_width(self) -> int:
        """Return the number of features per row of the first event that has any, else 0."""
        widths = self.widths
        return int(widths[np.flatnonzero(widths)[0]]) if widths.any() else 0

    def of_width(self, width: int) -> Mask:
        """Return which events have this number of features per row, all small enough to learn from, [n]."""
        chosen: Mask = (self.widths == width) & (width > 0)
        if self.features is not None:
            values = self.features.values
            if not np.vdot(values, values) <= LARGEST_FEATURE:  # otherwise no feature is too large
                too_large = ~(np.abs(values) <= LARGEST_FEATURE)
                chosen &= np.bincount(self.features.owner, too_large, len(chosen)) == 0
        return chosen

    def features_of(self, chosen: Mask, width: int) -> Array:
        """Return the features of these events, which all have this number per row, [rows, width]."""
        if self.features is None or not chosen.any():
            return np.empty((0, width))
        values = self.features.values
        return (values if chosen.all() else values[np.repeat(chosen, self.features.sizes)]).reshape(-1, width)


@dataclass(frozen=True, slots=True, eq=False)
class ActionSets(Listed):
    """Hold the action sets of n events: `total` rows, one per action of each event.

    Attributes:
        index: [n] index of the logged action in its event's set, -1 = the event has no set
        propensities: [total] the logging policy's distribution, NaN = not logged
        features: features of the actions, None = no event has features
        probabilities: [total, P] the policies' distributions, contiguous over rows, NaN = missing. A policy that logs
            only the probability of the logged action has NaN in the other rows.
        items: [total] number of the action in its slate, equal for equal actions, None outside slates
        scores: [total] score of the action if its ranking was drawn by scores, else NaN, None outside slates
        duals: [total] `Gamma^+ 1_s` of the slate, None until a policy has needed it
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"index": -1, "features": ...}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "offsets": ("propensities", "probabilities", "items", "scores", "duals")
    }
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {"features": Features}
    PROBABILITIES: ClassVar[Sequence[str]] = ("propensities", "probabilities")

    index: Index
    propensities: Array
    features: Features | None
    probabilities: Array
    items: Index | None = None
    scores: Array | None = None
    duals: Array | None = None

    def to_state(self) -> Any:
        """Return the columns by name, without `duals`, which follow from the others."""
        state = super(ActionSets, self).to_state()
        del state["duals"]
        return state

    @property
    def logged(self) -> tuple[Index, Index]:
        """Return the events with a logged action in their set, and the rows of these actions."""
        events = np.flatnonzero(self.index >= 0)
        return events, self.offsets[events] + self.index[events]

    def features_of_width(self, width: int) -> tuple[Mask, Array]:
        """Return a mask of the rows with this number of features, [total], and their features, [rows, width]."""
        chosen = (self.widths == width) & (width > 0)
        return np.repeat(chosen, self.sizes), self.features_of(chosen, width)

    def by_position(self, size: int) -> Iterator[tuple[Index, ActionSets]]:
        """Select one action after another from each event that lists `size` actions.

        Yields:
            For each position, the rows of its actions, and sets that hold nothing else. Events that logged another
            action have the index -1.
        """
        selected = self.sizes == size
        first = self.offsets[:-1][selected]
        rows_of_values = self.features and Features(
            cumulative_offsets(np.repeat(self.widths, self.sizes)), self.features.values
        )
        for position in range(size):
            rows = first + position
            features = rows_of_values and rows_of_values.take(rows)
            own = np.zeros(len(selected), dtype=np.int64)
            own[selected] = 0 if features is None else features.sizes
            yield (
                rows,
                ActionSets(
                    offsets=cumulative_offsets(selected.astype(np.int64)),
                    index=np.where(selected & (self.index == position), 0, -1),
                    propensities=self.propensities[rows],
                    features=features and Features(cumulative_offsets(own), features.values),
                    probabilities=self.probabilities.T[:, rows].T,
                ),
            )

    def trimmed(self) -> ActionSets:
        """Drop `features` if no event has them."""
        has_features = self.features is not None and len(self.features.values)
        return self if has_features else replace(self, features=None)

    @classmethod
    def none(cls, events: int, policies: int) -> ActionSets:
        """Return empty sets for this number of events."""
        nothing = np.empty((policies, 0)).T
        return cls(np.zeros(events + 1, dtype=np.int64), np.full(events, -1), np.empty(0), None, nothing)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredOutcomes(Ragged):
    """Hold the outcomes of n events: one row per scored event, none for other events.

    Attributes:
        propensity: [rows] probability that the outcome was revealed
        outcomes: [rows, P] value of the outcome under each policy, contiguous over rows, NaN = missing
        revealed: [rows] whether it was revealed
    """

    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {"offsets": ("propensity", "outcomes", "revealed")}
    PROBABILITIES: ClassVar[Sequence[str]] = ("propensity",)

    propensity: Array
    outcomes: Array
    revealed: Mask


@dataclass(frozen=True, slots=True, eq=False)
class ActionNames(Columns):
    """Hold the names of the logged actions of n events.

    Attributes:
        names: all names, without repeats. The name of a number is its digits.
        chosen: [n] index of each event's action in `names`, -1 if it is not known
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"chosen": np.int32(-1)}

    names: tuple[str, ...]
    chosen: NDArray[np.int32]

    @classmethod
    def from_actions(cls, actions: Sequence[Any]) -> ActionNames:
        """Build from the logged action of each event. Anything but a string or a number is unknown."""
        indices = defaultdict[Any, int](count().__next__)
        chosen = np.array([indices[action] for action in actions], dtype=np.int32)
        names = [name if isinstance(name, str | int) else None for name in indices]
        codes = np.array([-1 if name is None else index for index, name in enumerate(names)], dtype=np.int32)
        return cls(tuple("" if name is None else str(name) for name in names), codes[chosen] if len(codes) else chosen)

    @classmethod
    def joined(cls, parts: Sequence[Self | None], events: Sequence[int]) -> Self:
        """Concatenate. Equal names get one index."""
        indices: dict[str, int] = {}
        aligned = [None if part is None else part._aligned(indices) for part in parts]
        return replace(super(ActionNames, cls).joined(aligned, events), names=tuple(indices))

    def _aligned(self, indices: dict[str, int]) -> Self:
        """Translate the actions to other indices of names. Adds new names to `indices`."""
        own = [*(indices.setdefault(name, len(indices)) for name in self.names), -1]
        return replace(self, chosen=np.array(own, dtype=np.int32)[self.chosen])

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore from `to_state`."""
        return cls(tuple(state["names"]), state["chosen"])


class Deferred(Sequence[Mapping[str, Any]]):
    """Read the fields of n events at their first use. Afterwards what they were read from is free.

    Args:
        events: the number of events
        read: return the fields of each event
    """

    def __init__(self, events: int, read: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._events, self._read = events, read

    @cached_property
    def _values(self) -> list[Mapping[str, Any]]:
        values = list(self._read())
        del self._read
        return values

    def __len__(self) -> int:
        return self._events

    def __getitem__(self, event: Any) -> Any:
        return self._values[event]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._values,)


UNREADABLE = "unreadable"
"""The field with the `Fault` of an event with other fields that cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class RawFields(Columns):
    """Hold fields of n events as Python values, for policies and reward models in code.

    Attributes:
        values: [n] by field: the `context` of the event, the names of its `actions`, and scores, None = not logged.
            Slates have the names of actions by slot, as `slots`. Arrays have no names
    """

    values: Sequence[Mapping[str, Any]]

    @classmethod
    def from_events(cls, events: Sequence[Event], scores: Mapping[str, str]) -> RawFields:
        """Read decoded events.

        Args:
            events: the events
            scores: the attribute of each field with scores
        """
        fields = {"context": "context", "actions": "actions", **scores}
        values = [{field: getattr(event, name) for field, name in fields.items()} for event in events]
        for logged, event in zip(values, events, strict=True):
            if slots := getattr(event, "slots", None):
                logged["slots"] = [slot.actions for slot in slots]
        return cls(values)

    @classmethod
    def none(cls, events: int) -> RawFields:
        """Return the fields of events that log none."""
        return cls([{}] * events)

    @property
    def nbytes(self) -> int:
        """Return an assumed size in bytes: 1000 per event."""
        return 1000 * len(self.values)

    def read(self) -> RawFields:
        """Return the fields, read now if they are deferred."""
        return RawFields(list(self.values))

    def take(self, events: slice | Index) -> RawFields:
        """Return the fields of these events, in this order."""
        values, rows = self.values, np.arange(len(self.values))[events]
        return RawFields._of([self], len(rows), lambda: [values[row] for row in rows.tolist()])

    @classmethod
    def joined(cls, parts: Sequence[RawFields | None], events: Sequence[int]) -> RawFields:
        """Concatenate. Events of batches without fields have none."""
        complete = [cls.none(number) if part is None else part for part, number in zip(parts, events, strict=True)]
        return cls._of(complete, sum(events), lambda: [fields for part in complete for fields in part.values])

    @classmethod
    def _of(cls, parts: Sequence[RawFields], events: int, read: Callable[[], list[Mapping[str, Any]]]) -> RawFields:
        """Return the fields that `read` takes from the parts, at their first use if a part is deferred."""
        return cls(Deferred(events, read) if any(isinstance(part.values, Deferred) for part in parts) else read())

    def to_state(self) -> str:
        """Return the fields as JSON, as msgpack has no integers of more than 64 bits."""
        return json.dumps(list(self.values), default=_to_json)

    @classmethod
    def from_state(cls, state: str) -> RawFields:
        """Restore from `to_state`."""
        return cls(json.loads(state))


def _to_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else msgspec.to_builtins(value, enc_hook=str)


def cumulative_offsets(sizes: Index) -> Index:
    """Return the starts of consecutive runs of these sizes, and the end of the last run.

    >>> cumulative_offsets(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def owned_rows(offsets: Index, owners: slice | Index) -> tuple[slice | Index, Index]:
    """Return the rows of some owners in their order, and the offsets of the owners among these rows.

    >>> owned_rows(np.array([0, 2, 2, 5]), np.array([2, 0]))
    (array([2, 3, 4, 0, 1]), array([0, 3, 5]))
    """
    if isinstance(owners, slice):
        own = offsets[owners.start : owners.stop + 1]
        return slice(own[0], own[-1]), own - own[0]
    sizes = np.diff(offsets)[owners]
    starts = cumulative_offsets(sizes)
    return np.arange(starts[-1]) + np.repeat(offsets[owners] - starts[:-1], sizes), starts


def reconcile(sets: ActionSets, per_event: Array, per_action: Array) -> None:
    """Fill NaN of logged actions in `per_event` [n, ...] from `per_action` [total, ...] and vice versa, in place."""
    events, rows = sets.logged
    logged, listed = per_event[events], per_action[rows]
    per_event[events] = np.where(np.isnan(logged), listed, logged)
    per_action[rows] = np.where(np.isnan(listed), logged, listed)
