"""Define segments, closed lists of the values of a field, and read their columns. Estimates are split by segment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import ROUNDING_UNITS, Array
from streameval.common.component import strict
from streameval.events.action_sets import Columns
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints, name_fingerprints
from streameval.events.schema import Event

MAX_VALUES = 100
"""Limit of the values of a segment, without `other`. There is one time series per value and policy."""
OTHER = "other"
KNOWN_BEFORE = ("context", "unit", "logging_policy")
"""Fields of `Event` that may define a segment. The others hold the choice, its probabilities or rewards."""


class SegmentField(NamedTuple):
    """Name a segment and the field of events with its value. Dots separate keys of nested objects."""

    name: str
    field: str

    @property
    def root(self) -> str:
        """Return the first key, which is in the event itself."""
        return self.field.partition(".")[0]

    @property
    def keys(self) -> list[str]:
        """Return the keys after the first one."""
        return self.field.split(".")[1:]


def _labels(values: object) -> object:
    """Return a list of values as text, and other values unchanged."""
    if not isinstance(values, list | tuple):
        return values
    return tuple(label_of(value) or value for value in values)


@dataclass(frozen=True, config=strict)
class Segment:
    """Split events by the values of one field. The list is closed: no event can add a value.

    Args:
        field: the key in an event, e.g. `country` or `context.country`, by default the name of the segment
        values: text, whole numbers, or true and false, 3, 3.0 and "3" are equal
        least: smallest whole number, with `most`
        most: in place of `values`, the largest of a range of whole numbers
        other: whether all other events, including events without the field, are one more value. The shares of all
            values then sum to 1

    >>> Segment(values=["de", "fr"], other=True).labels, Segment(most=3).labels
    (('de', 'fr', 'other'), ('1', '2', '3'))
    """

    field: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the key in an event, e.g. context.country; by default the name of the segment"
    )
    values: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_labels), Field(max_length=MAX_VALUES)
    ] = Field(default=(), description="the values that have their estimates, e.g. [de, fr, jp]")
    least: int = Field(default=1, description="the smallest whole number, with most")
    most: int | None = Field(default=None, description="in place of values: the largest whole number, e.g. 10")
    other: bool = Field(default=False, description="true adds the value `other` for all other events")

    def __post_init__(self) -> None:
        if bool(self.values) == (self.most is not None):
            raise ValueError("give either values, e.g. [de, fr], or most, e.g. 10")
        if self.most is not None and not self.least <= self.most < self.least + MAX_VALUES:
            raise ValueError(f"most must be {self.least} to {self.least + MAX_VALUES - 1}, found {self.most}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a value is configured twice; with other: true, other is one of them")

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the values as text, `other` last."""
        numbers = () if self.most is None else range(self.least, self.most + 1)
        return (*self.values, *map(str, numbers), *((OTHER,) if self.other else ()))

    @cached_property
    def _identities(self) -> Identity:
        listed = self.labels[: len(self.labels) - self.other]
        return fingerprints(listed)

    def members(self, values: Identity) -> Array:
        """Return 1 if an event has a value, else 0, [values, events].

        Args:
            values: [events] fingerprints of the values of the events
        """
        listed = (self._identities[:, None] == values).astype(float)
        return np.concatenate([listed, 1.0 - listed.sum(axis=0, keepdims=True)]) if self.other else listed


def fields_of_segments(segments: Mapping[str, Segment]) -> list[SegmentField]:
    """Return the fields of all segments.

    Raises:
        ValueError: A field holds the choice or its outcome.
    """
    fields = [SegmentField(name, segment.field or name) for name, segment in segments.items()]
    for field in fields:
        require_known_before(field)
    return fields


def require_known_before(field: SegmentField) -> None:
    """Refuse a field that is not known before the decision.

    Raises:
        ValueError: It holds the choice or its outcome.
    """
    if field.root in Event.__struct_fields__ and field.root not in KNOWN_BEFORE:
        raise ValueError(f"{field.field} is part of the decision: name a field that is known before it")


def label_of(value: object) -> str:
    """Return the value of a segment as text, "" for a value of another type.

    >>> label_of("de"), label_of(3.0), label_of(3 * 1.1 - 0.3), label_of(True), label_of(None), label_of([1])
    ('de', '3', '3', 'true', '', '')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        whole = round(value) if math.isfinite(value) else 0
        return str(whole) if abs(value - whole) <= ROUNDING_UNITS * math.ulp(max(1.0, abs(whole))) else ""
    return str(value) if isinstance(value, str | int) else ""


@plain_dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns(Columns):
    """Hold the values of segments of n events.

    Attributes:
        names: one per column
        values: [n, segments] fingerprints, 0 if an event lacks the field
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"values": None}

    names: Sequence[str]
    values: NDArray[np.uint64]

    @classmethod
    def none(cls, names: Sequence[str], events: int) -> SegmentColumns:
        """Return the columns of events that lack these fields."""
        return cls(tuple(names), np.full((events, len(names)), NO_IDENTITY))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Iterable[Any]], events: int) -> SegmentColumns:
        """Build from the values of each segment, in the order of events.

        Raises:
            ValueError: A segment has another number of values.
        """
        rows = []
        for name, values in columns.items():
            is_list = isinstance(values, Iterable) and not isinstance(values, str)
            row = list(values) if is_list else []
            if len(row) != events or not is_list:
                actual = len(row) if is_list else repr(values)
                raise ValueError(f"segments[{name!r}]: expected {events} values, one per event, found {actual}")
            rows.append(_identities(row))
        return cls(tuple(columns), np.array(rows, dtype=np.uint64).reshape(len(rows), events).T)

    def column(self, name: str) -> Identity:
        """Return the column of this name, [n], 0 without such a column."""
        if name not in self.names:
            return np.full(len(self.values), NO_IDENTITY)
        return np.asarray(self.values[:, list(self.names).index(name)])

    def named(self, names: Sequence[str]) -> SegmentColumns:
        """Return the columns of these names."""
        if list(names) == list(self.names):
            return self
        return SegmentColumns(tuple(names), np.stack([self.column(name) for name in names], axis=-1))


def read_segments(
    fields: Sequence[SegmentField], attributes: Mapping[str, str], events: Sequence[Any]
) -> SegmentColumns:
    """Read the segments of decoded events.

    Args:
        fields: the field of each segment
        attributes: the attribute of events by key
        events: decoded events
    """
    columns = {}
    for field in fields:
        attribute = attributes[field.root]
        columns[field.name] = values_at([getattr(event, attribute) for event in events], field.keys)
    return SegmentColumns.from_columns(columns, len(events))


def values_at(values: Iterable[Any], keys: Sequence[str]) -> list[Any]:
    """Return what values have at these keys, each in the object of the one before, None if there is none."""
    found = list(values)
    for key in keys:
        found = [value.get(key) if type(value) is dict else None for value in found]
    return found


def _identities(values: list[Any]) -> Identity:
    """Return the fingerprints of values."""
    kinds = set(map(type, values)) - {type(None)}
    texts = values if kinds in (set(), {str}, {int}) else [label_of(value) for value in values]
    identities = name_fingerprints(texts)
    return np.full(len(values), NO_IDENTITY) if identities is None else identities
