"""Messages to events: one by one, or many of them to columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from streameval.events.batch import EventBatch
from streameval.events.columns import compact_columns, ragged_columns
from streameval.events.rejections import Rejected
from streameval.events.rules import Fault, faults
from streameval.events.second_look import UNREADABLE, second_look
from streameval.events.shapes import misfit
from streameval.events.wire import Event, event_type, policy_cells, policy_names

Messages: TypeAlias = Sequence[bytes | None]


class EventFormat:
    """How the messages of one stream are read: which policies, which reward, and the range that it must keep.

    `policies`: these become the columns of every batch, in this order; None = all that the events of a batch name.
    `reward_field`: the field that is the reward. `reward_range`: rewards outside of it are rejected; None = any.

    >>> events = EventFormat(["bts"], reward_range=(0, 1))
    >>> message = b'{"event_id":1, "timestamp":0, "action":7, "propensity":0.5, "reward":1, "policies":{"bts":0.75}}'
    >>> events.decode_batch([message, b"null", message]).probabilities
    array([[0.75],
           [0.75]])
    >>> events.decode(b"{}")
    Rejected(reason='missing_field', detail='event_id: missing', value=b'{}')
    """

    def __init__(
        self,
        policies: Sequence[str] | None = None,
        reward_field: str = "reward",
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        self.policies = None if policies is None else tuple(policies)
        self.reward_field = reward_field
        self.reward_range = reward_range
        self._type = event_type(self.policies, reward_field)
        self._decode = msgspec.json.Decoder(self._type).decode
        self._fields = self._type.__struct_encode_fields__

    def decode(self, value: bytes | None) -> Event | Rejected:
        """One message: the event, its `policies` a dict of those that it has, or why it is none."""
        events, rejected, _ = self._decode_all([value])
        if rejected:
            return rejected[0]
        policies = events[0].policies
        cells = zip(policy_names(policies), policy_cells(policies), strict=True)
        return replace(events[0], policies={name: cell for name, cell in cells if cell is not None and cell == cell})

    def decode_batch(self, values: Iterable[bytes | None]) -> EventBatch:
        """Many messages as columns; those that are no events are in `rejected`, in their order."""
        _, rejected, batch = self._decode_all(list(values))
        return dataclasses.replace(batch, rejected=tuple(rejected[place] for place in sorted(rejected)))

    def _decode_all(self, messages: Messages) -> tuple[list[Event], dict[int, Rejected], EventBatch]:
        """The events among the messages, the others by their place, and the columns of the events."""
        rejected: dict[int, Rejected] = {}
        events = self._read(messages, rejected)
        batch = compact_columns(events, self.policies)
        if batch is None:
            misfits = {row: Fault("malformed", detail) for row, event in enumerate(events) if (detail := misfit(event))}
            events = _without(events, misfits, messages, rejected)
            batch = ragged_columns(events, self.policies)
        broken = faults(batch, self.reward_range)
        if broken:
            events = _without(events, broken, messages, rejected)
            if self.policies is not None and batch.action_sets is None:
                batch = batch.take(np.delete(np.arange(len(batch)), list(broken)))
            else:  # anew, because the bad ones may be the only events with actions, or with some policy
                batch = ragged_columns(events, self.policies)
        return events, rejected, batch

    def _read(self, messages: Messages, rejected: dict[int, Rejected]) -> list[Event]:
        """What the decoder takes for events: their lists may not fit, nor their numbers make sense."""
        decode: Any = self._decode
        events: list[Event] = []
        for message in cast(Sequence[bytes], messages):  # None is one of the things that fail
            try:
                event = decode(message)
                if not message.isascii():  # the decoder does not look into what it skips, but all of it has to be text
                    message.decode()
            except UNREADABLE:
                event = second_look(message, decode, self._fields, self.policies, self.reward_field)
                if isinstance(event, Rejected):
                    rejected[len(events) + len(rejected)] = event
                    continue
            events.append(event)
        return events


def _without(
    events: list[Event], bad: Mapping[int, Fault], messages: Messages, rejected: dict[int, Rejected]
) -> list[Event]:
    """The events without the bad rows, which are added to `rejected` by the place of their message."""
    places = [place for place in range(len(messages)) if place not in rejected]
    for row, fault in bad.items():
        rejected[places[row]] = Rejected(fault.reason, fault.detail, messages[places[row]] or b"")
    return [event for row, event in enumerate(events) if row not in bad]
