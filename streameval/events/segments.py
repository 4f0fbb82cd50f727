"""Segments: closed lists of the values of a field, by which estimates are split, and the columns of these fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.events.action_sets import Columns
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints, name_fingerprints
from streameval.events.schema import Event

MOST_VALUES = 100
"""The number of values that a segment may have, without `other`: each is a series for every policy."""
OTHER = "other"
KNOWN_BEFORE = ("context", "unit", "logging_policy")
"""Fields of events that may define a segment; other fields of `Event` hold the choice, its probabilities or rewards."""


class SegmentField(NamedTuple):
    """The name of a segment, and the field of events that holds its value: keys of objects are separated by dots."""

    name: str
    field: str

    @property
    def root(self) -> str:
        """The key in the event itself."""
        return self.field.partition(".")[0]

    @property
    def keys(self) -> list[str]:
        """The keys inside of that."""
        return self.field.split(".")[1:]


def _labels(values: object) -> object:
    """The values as text; those of another type unchanged."""
    if not isinstance(values, list | tuple):
        return values
    return tuple(label_of(each) or each for each in values)


@dataclass(frozen=True, config=strict)
class Segment:
    """A segment of the events, by the values of one field. The list is closed: no event can add a value.

    `field`: the key in an event, e.g. `country` or `context.country`; by default the name of the segment. `values`:
    text, whole numbers, or true and false; 3, 3.0 and "3" are the same value. `most`: in place of a list, the whole
    numbers from `least` to this one. `other`: whether all other events, and those without the field, are one more
    value, so that the shares of all values sum to 1; otherwise these events are in no value of this segment.

    >>> Segment(values=["de", "fr"], other=True).labels, Segment(most=3).labels
    (('de', 'fr', 'other'), ('1', '2', '3'))
    """

    field: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the key in an event, e.g. context.country; by default the name of the segment"
    )
    values: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_labels), Field(max_length=MOST_VALUES)
    ] = Field(default=(), description="the values that have their estimates, e.g. [de, fr, jp]")
    least: int = Field(default=1, description="the smallest whole number, with most")
    most: int | None = Field(default=None, description="in place of values: the largest whole number, e.g. 10")
    other: bool = Field(default=False, description="true adds the value `other` for all other events")

    def __post_init__(self) -> None:
        if bool(self.values) == (self.most is not None):
            raise ValueError("give either values, e.g. [de, fr], or most, e.g. 10")
        if self.most is not None and not self.least <= self.most < self.least + MOST_VALUES:
            raise ValueError(f"most must be {self.least} to {self.least + MOST_VALUES - 1}, found {self.most}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a value is configured twice; with other: true, other is one of them")

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as text, `other` last."""
        numbers = () if self.most is None else range(self.least, self.most + 1)
        return (*self.values, *map(str, numbers), *((OTHER,) if self.other else ()))

    @cached_property
    def _identities(self) -> Identity:
        listed = self.labels[: len(self.labels) - self.other]
        return fingerprints(listed)

    def members(self, values: Identity) -> Array:
        """Whether each value has each event, [values, events]; `values` [events]: fingerprints."""
        listed = (self._identities[:, None] == values).astype(float)
        return np.concatenate([listed, 1.0 - listed.sum(axis=0, keepdims=True)]) if self.other else listed


def fields_of_segments(segments: Mapping[str, Segment]) -> list[SegmentField]:
    """The fields of all segments.

    Raises:
        ValueError: A field holds the choice or its outcome.
    """
    found = [SegmentField(name, each.field or name) for name, each in segments.items()]
    for each in found:
        require_known_before(each)
    return found


def require_known_before(field: SegmentField) -> None:
    """Require a field that is known before the decision.

    Raises:
        ValueError: It holds the choice or its outcome.
    """
    if field.root in Event.__struct_fields__ and field.root not in KNOWN_BEFORE:
        raise ValueError(f"{field.field} is part of the decision: name a field that is known before it")


def label_of(value: object) -> str:
    """The value of a segment as text, "" for none: whole numbers by their digits, and `true` or `false`.

    >>> label_of("de"), label_of(3.0), label_of(True), label_of(None), label_of([1])
    ('de', '3', 'true', '', '')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else ""
    return str(value) if isinstance(value, str | int) else ""


@plain_dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns(Columns):
    """The values of segments of n events.

    names: of the columns
    values: [n, segments] fingerprints, 0 where an event lacks the field
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"values": None}

    names: Sequence[str]
    values: NDArray[np.uint64]

    @classmethod
    def none(cls, names: Sequence[str], events: int) -> SegmentColumns:
        """The columns of events without any of these fields."""
        return cls(tuple(names), np.full((events, len(names)), NO_IDENTITY))

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[Any]], events: int) -> SegmentColumns:
        """From the values of each segment, in the order of events."""
        found = [_identities(list(values)) for values in columns.values()]
        return cls(tuple(columns), np.array(found, dtype=np.uint64).reshape(len(found), events).T)

    def of_name(self, name: str) -> Identity:
        """The column of this name, [n]; 0 without such a column."""
        if name not in self.names:
            return np.full(len(self.values), NO_IDENTITY)
        return np.asarray(self.values[:, list(self.names).index(name)])

    def named(self, names: Sequence[str]) -> SegmentColumns:
        """The columns of these names."""
        if list(names) == list(self.names):
            return self
        return SegmentColumns(tuple(names), np.stack([self.of_name(name) for name in names], axis=-1))


def read_segments(
    fields: Sequence[SegmentField], attributes: Mapping[str, str], events: Sequence[Any]
) -> SegmentColumns:
    """The segments of decoded events; `attributes`: by key, that of an event."""
    columns = {}
    for each in fields:
        attribute = attributes[each.root]
        values = [getattr(event, attribute) for event in events]
        for key in each.keys:
            values = [value.get(key) if type(value) is dict else None for value in values]
        columns[each.name] = values
    return SegmentColumns.of(columns, len(events))


def _identities(values: list[Any]) -> Identity:
    """The fingerprints of values."""
    kinds = set(map(type, values)) - {type(None)}
    texts = values if kinds in (set(), {str}, {int}) else [label_of(value) for value in values]
    found = name_fingerprints(texts)
    return np.full(len(values), NO_IDENTITY) if found is None else found
