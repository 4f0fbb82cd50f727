"""Messages to events: one by one, or many of them to columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from streameval.events.batch import EventBatch
from streameval.events.columns import compact_columns, ragged_columns, slate_misfit, with_slates
from streameval.events.diagnosis import LONGEST_MESSAGE, UNREADABLE, Form, second_look
from streameval.events.origin import Origin, fingerprints
from streameval.events.raw_fields import RawFields
from streameval.events.rejection import Rejected, rejection
from streameval.events.schema import Event, PolicyCell, event_types, policy_cells, policy_names
from streameval.events.shapes import misfit
from streameval.events.validation import Fault, faults

MOST_POLICIES = 10_000
"""Names in one event, where all that events name become columns."""

Messages: TypeAlias = Sequence[bytes | None]


class JsonDecoder:
    """How the messages of one stream are read: which policies, which reward, and the range that it must keep.

    `policies`: these become the columns of every batch, in this order; None = all that the events of a batch name.
    `reward_field`: the field that is the reward. `reward_range`: rewards outside of it are rejected; None = any.
    `scores`: fields that policies in code look at; with any, even none, batches carry the `choices` of their events.
    `rewarded`: rewards stand in the events; else they come apart from the decisions, and are NaN until they are joined.
    `identified`: events that come with their origin are given the fingerprint of their `event_id`, too.

    >>> events = JsonDecoder(["bts"], reward_range=(0, 1))
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
        scores: Sequence[str] | None = None,
        rewarded: bool = True,
        identified: bool = False,
    ) -> None:
        self.policies = None if policies is None else tuple(policies)
        self.reward_field = reward_field
        self.reward_range = reward_range
        self.scores = None if scores is None else tuple(scores)
        self.rewarded, self.identified = rewarded, identified
        event, slate = event_types(self.policies, reward_field, self.scores, rewarded)
        attributes = dict(zip(event.__struct_encode_fields__, event.__struct_fields__, strict=True))
        self._score_fields = {field: attributes[field] for field in self.scores or ()}
        self._decode = msgspec.json.Decoder(event).decode
        self._decode_slate = msgspec.json.Decoder(slate).decode
        earned = (reward_field,) if rewarded else ()
        self._event = Form(self._decode, event.__struct_encode_fields__, ("event_id", "timestamp", "action", *earned))
        self._slate = Form(
            self._decode_slate, slate.__struct_encode_fields__, ("event_id", "timestamp", "slots", *earned)
        )

    def decode(self, value: bytes | None) -> Event | Rejected:
        """One message: the event, its `policies` a dict of those that it has, or why it is none."""
        events, rejected, _ = self._decode_all([value])
        if rejected:
            return rejected[0]
        event: Any = events[0]
        decoded: Event
        if event.slots is None:
            decoded = replace(event, policies=_given(event.policies))
        else:
            decoded = replace(event, slots=[replace(slot, policies=_given(slot.policies)) for slot in event.slots])
        return decoded

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Many messages as columns; those that are no events are in `rejected`, in their order.

        `origin`: of the messages, which the batch then carries for its events.
        """
        events, rejected, batch = self._decode_all(list(values))
        in_order = tuple(_placed(rejected[place], place, origin) for place in sorted(rejected))
        if origin is not None:
            kept = origin.take(np.delete(np.arange(len(origin)), list(rejected))) if rejected else origin
            identity = fingerprints([event.event_id for event in events]) if self.identified else None
            batch = dataclasses.replace(batch, origin=dataclasses.replace(kept, identity=identity))
        return dataclasses.replace(batch, rejected=in_order)

    def _decode_all(self, messages: Messages) -> tuple[list[Any], dict[int, Rejected], EventBatch]:
        """The events among the messages, the others by their place, and the columns of the events."""
        rejected: dict[int, Rejected] = {}
        events = self._read(messages, rejected)
        if self.policies is None:
            events = _without(events, _crowded(events), messages, rejected)
        batch = compact_columns(events, self.policies)
        if batch is None:
            misfits = {
                row: Fault("malformed", detail) for row, event in enumerate(events) if (detail := _misfit(event))
            }
            events = _without(events, misfits, messages, rejected)
            batch = with_slates(ragged_columns(events, self.policies), events, self.policies)
        broken = faults(batch, self.reward_range, rewarded=self.rewarded)
        if broken:
            events = _without(events, broken, messages, rejected)
            if self.policies is not None and batch.action_sets is None and batch.slates is None:
                batch = batch.take(np.delete(np.arange(len(batch)), list(broken)))
            else:  # anew, because the bad ones may be the only events with actions, or with some policy
                batch = with_slates(ragged_columns(events, self.policies), events, self.policies)
        if self.scores is not None:
            batch = dataclasses.replace(batch, choices=RawFields.of(events, self._score_fields))
        return events, rejected, batch

    def _read(self, messages: Messages, rejected: dict[int, Rejected]) -> list[Event]:
        """What the decoder takes for events: their lists may not fit, nor their numbers make sense."""
        decode: Any = self._decode if _are_plain(messages) else self._decode_text
        events: list[Event] = []
        unread = iter(messages)
        while len(events) + len(rejected) < len(messages):
            try:
                events.extend(map(decode, unread))  # as far as the first that fails
            except UNREADABLE:
                place = len(events) + len(rejected)
                event = self._read_slate(messages[place])
                if isinstance(event, Rejected):
                    rejected[place] = event
                else:
                    events.append(event)
        return events

    def _decode_text(self, message: bytes) -> Event:
        """The decoder does not look into what it skips, but all of a message has to be text, and of bounded length."""
        if len(message) > LONGEST_MESSAGE:
            raise ValueError
        event: Event = self._decode(message)
        message.decode()
        return event

    def _read_slate(self, message: bytes | None) -> Any:
        """What a message is that did not decode as a plain event: a slate, or what a second look makes of it."""
        try:
            if len(cast(bytes, message)) > LONGEST_MESSAGE:
                raise ValueError
            slate = self._decode_slate(cast(bytes, message))
            cast(bytes, message).decode()
        except UNREADABLE:
            return second_look(message, self._event, self._slate, self.policies)
        return slate


def _placed(rejected: Rejected, place: int, origin: Origin | None) -> Rejected:
    return replace(rejected, place=place, origin=None if origin is None else origin.place(place))


def _crowded(events: Sequence[Any]) -> dict[int, Fault]:
    """The events that name more policies than can be columns of a batch."""
    counts = [len(event.policies or ()) for event in events]
    return {
        row: Fault("malformed", f"policies: {count} names, more than the {MOST_POLICIES} that are read")
        for row, count in enumerate(counts)
        if count > MOST_POLICIES
    }


def _misfit(event: Any) -> str | None:
    return misfit(event) if event.slots is None else slate_misfit(event)


def _given(policies: Any) -> dict[str, PolicyCell]:
    """The policies that an event has, by name."""
    cells = zip(policy_names(policies), policy_cells(policies), strict=True)
    return {name: cell for name, cell in cells if cell is not None and cell == cell}


def _are_plain(messages: Messages) -> bool:
    """Whether all are ASCII, and none is very long: then the decoder alone sees to it that they are text."""
    given = cast(Sequence[bytes], messages)
    try:
        return all(map(bytes.isascii, given)) and max(map(len, given), default=0) <= LONGEST_MESSAGE
    except TypeError:  # a message without a value
        return False


def _without(
    events: list[Event], bad: Mapping[int, Fault], messages: Messages, rejected: dict[int, Rejected]
) -> list[Event]:
    """The events without the bad rows, which are added to `rejected` by the place of their message."""
    places = [place for place in range(len(messages)) if place not in rejected]
    for row, fault in bad.items():
        rejected[places[row]] = rejection(fault.reason, fault.detail, messages[places[row]] or b"")
    return [event for row, event in enumerate(events) if row not in bad]
