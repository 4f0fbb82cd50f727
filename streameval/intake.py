"""From messages to the events that count: what lies between a source and the evaluators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

from streameval.arrays import State
from streameval.events import EventBatch
from streameval.sources import Records


class Decoder(Protocol):
    """What turns message values into columns; `streameval.events.EventFormat` is one."""

    def decode_batch(self, values: Iterable[bytes | None]) -> EventBatch: ...


class Intake:
    """Turns the records of a poll into the events that are to be counted now."""

    def __init__(self, events: Decoder) -> None:
        self.events = events

    def decode_with(self, events: Decoder) -> None:
        """From now on, read messages so."""
        self.events = events

    def take(self, records: Sequence[Records]) -> EventBatch:
        """The events that are counted now, and what was rejected on the way."""
        return self.events.decode_batch(chain.from_iterable(part.values for part in records))

    def state(self) -> State:
        """What is held back, as a plain value."""
        return {}

    @classmethod
    def from_state(cls, state: State, events: Decoder) -> Intake:
        """Go on from a state."""
        return cls(events)
