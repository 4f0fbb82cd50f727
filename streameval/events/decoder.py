"""Decoders: messages, or rows of tables, into columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from streameval.events.action_sets import RawFields
from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.columns import compact_columns, floats, named_policies, ragged_columns, seconds
from streameval.events.diagnosis import DECODE_ERRORS, MAX_MESSAGE_BYTES, Diagnosis
from streameval.events.origin import Origin, fingerprints
from streameval.events.schema import Event, event_types, reward_type
from streameval.events.validation import Fault, Rejected, length_mismatch, rejection, reward_message_faults

MAX_POLICIES = 10_000
"""Names in one event, if all names become columns."""

Messages: TypeAlias = Sequence[bytes | None]


class JsonDecoder:
    """Decodes the JSON messages of one stream.

    Args:
        policies: the columns of every batch, in this order; None = the policies named in the batch
        reward_field: the field with the reward
        reward_range: smallest and largest reward; others are rejected. None = any
        scores: fields that policies in code read; with any, even none, batches have `raw_fields`
        rewarded: False if rewards arrive separately from the decisions. They are NaN until they are joined
        identified: add the fingerprint of the `event_id` to events decoded with their origin

    >>> decoder = JsonDecoder(["bts"], reward_range=(0, 1))
    >>> message = b'{"event_id":1, "timestamp":0, "action":7, "propensity":0.5, "reward":1, "policies":{"bts":0.75}}'
    >>> decoder.decode_batch([message, b"null", message]).probabilities
    array([[0.75],
           [0.75]])
    >>> decoder.decode_batch([b"{}"]).rejected
    (Rejected(reason='missing_field', detail='event_id: missing', value=b'{}'),)
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
        self._score_attributes = {field: attributes[field] for field in self.scores or ()}
        self._event_type = event
        self._decode = msgspec.json.Decoder(event).decode
        self._decode_slate = msgspec.json.Decoder(slate).decode
        self._diagnosis = Diagnosis(event, slate, self.policies)

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages into columns; the batch has those that are not events in `rejected`, in their order.

        `origin`: the places of the messages, for `batch.origin`.
        """
        messages, rejected = list(values), dict[int, Rejected]()
        events, batch = self._columns(self._read(messages, rejected), messages, rejected)
        if origin is not None:
            kept = origin.take(np.delete(np.arange(len(origin)), list(rejected))) if rejected else origin
            identity = fingerprints([event.event_id for event in events]) if self.identified else None
            batch = replace(batch, origin=replace(kept, identity=identity))
        return replace(batch, rejected=_in_order(rejected, origin))

    def decode_rows(self, rows: Sequence[Mapping[str, Any] | Fault]) -> EventBatch:
        """Turn rows of a table, as Python values by field, into columns by the same rules. Faults are rejected.

        >>> row = {"event_id": 1, "timestamp": 0.0, "action": "a", "propensity": 0.5, "reward": True}
        >>> JsonDecoder().decode_rows([row, row | {"propensity": 0.0}]).rejected[0].detail
        'propensity: 0 is not in (0, 1]'
        """
        decoded, rejected = [self._read_row(row) for row in rows], dict[int, Rejected]()
        unnamed = [b""] * len(rows)
        _, batch = self._columns(_without_faults(decoded, unnamed, rejected), unnamed, rejected)
        for place, event in enumerate(decoded):
            if place in rejected and not isinstance(event, Fault):  # infinite numbers have a reason of their own
                found = self._diagnosis.of_tree(rows[place])
                rejected[place] = rejection(*found, b"") if isinstance(found, Fault) else rejected[place]
        return replace(batch, rejected=_in_order(rejected, None))

    def _read_row(self, row: Mapping[str, Any] | Fault) -> Any:
        if isinstance(row, Fault):
            return row
        try:
            return msgspec.convert(row, self._event_type)
        except DECODE_ERRORS:
            return self._diagnosis.of_tree(row)

    def _read(self, messages: Messages, rejected: dict[int, Rejected]) -> list[Any]:
        """Decode into structs, whose lists and numbers are not validated yet."""
        decode: Any = self._decode if _are_short_ascii(messages) else self._decode_text
        events: list[Any] = []
        unread = iter(messages)
        while len(events) + len(rejected) < len(messages):
            try:
                events.extend(map(decode, unread))  # up to the first that fails
            except DECODE_ERRORS:
                place = len(events) + len(rejected)
                message = messages[place]
                event = self._read_refused(message)
                if isinstance(event, Fault):
                    rejected[place] = rejection(*event, message or b"")
                else:
                    events.append(event)
        return events

    def _decode_text(self, message: bytes) -> Event:
        """Check the length and the encoding, too: the decoder does not look into fields that it skips."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError
        event: Event = self._decode(message)
        message.decode()
        return event

    def _read_refused(self, message: bytes | None) -> Any:
        """Return the slate or the salvaged event in a message that is not a plain event, or a `Fault`."""
        try:
            if message is None or len(message) > MAX_MESSAGE_BYTES:
                raise ValueError
            slate = self._decode_slate(message)
            message.decode()
        except DECODE_ERRORS:
            return self._diagnosis.of_message(message)
        return slate

    def _columns(
        self, events: list[Any], messages: Messages, rejected: dict[int, Rejected]
    ) -> tuple[list[Any], EventBatch]:
        """Build the columns once, then drop the rows that break a rule. Adds to `rejected` by place."""
        if self.policies is None:
            events = _without_faults([_crowded(event) or event for event in events], messages, rejected)
        batch = compact_columns(events, self.policies)
        if batch is None:
            checked = [_mismatch(event) or event for event in events]
            events = _without_faults(checked, messages, rejected)
            batch = ragged_columns(events, self.policies)
        broken = batch.faults(self.reward_range, rewarded=self.rewarded)
        if broken:
            batch = batch.take(np.delete(np.arange(len(batch)), list(broken))).trimmed()
            events = _without(events, broken, messages, rejected)
            if self.policies is None:
                batch = batch.with_policies(named_policies(events))
        if self.scores is not None:
            batch = replace(batch, raw_fields=RawFields.from_events(events, self._score_attributes))
        return events, batch


class RewardDecoder:
    """Decodes rewards that arrive as separate messages.

    `{"event_id": "e-81", "timestamp": 1574553700.1, "reward": 1}`; `reward_field` is the field with the reward.

    >>> message = b'{"event_id": "e-81", "timestamp": 1574553700.1, "revenue": 2.5}'
    >>> rewards = RewardDecoder("revenue").decode_batch([message, b"{}"], Origin.of("orders", [(0, [10, 11])]))
    >>> rewards.reward, rewards.rejected[0].reason, rewards.rejected[0].origin
    (array([2.5]), 'missing_field', ('orders', 0, 11))
    """

    def __init__(self, reward_field: str = "reward") -> None:
        form = reward_type(reward_field)
        self._decode = msgspec.json.Decoder(form).decode
        self._diagnosis = Diagnosis(form)

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin) -> RewardBatch:
        """Decode messages into columns; `origin`: their places."""
        messages = list(values)
        rejected: dict[int, Rejected] = {}
        rewards = _without_faults([self._read(message) for message in messages], messages, rejected)
        amounts, times = floats([each.reward for each in rewards]), seconds([each.timestamp for each in rewards])
        identity = fingerprints([each.event_id for each in rewards])
        broken = reward_message_faults(amounts, times)
        _without(rewards, broken, messages, rejected)
        rows = np.delete(np.arange(len(rewards)), list(broken))
        kept = origin.take(np.delete(np.arange(len(origin)), list(rejected)))
        origins = replace(kept, identity=identity[rows])
        return RewardBatch(amounts[rows], times[rows], origins, _in_order(rejected, origin))

    def _read(self, message: bytes | None) -> Any:
        try:
            if message is None or len(message) > MAX_MESSAGE_BYTES:
                raise ValueError
            reward: Any = self._decode(message)
            message.decode()
        except DECODE_ERRORS:
            return self._diagnosis.of_message(message)
        return reward


def _without_faults(checked: list[Any], messages: Messages, rejected: dict[int, Rejected]) -> list[Any]:
    """Return what is not a `Fault`; add each fault to `rejected` at the place of its message."""
    broken = {row: item for row, item in enumerate(checked) if item.__class__ is Fault}
    return _without(checked, broken, messages, rejected)


def _without(
    events: list[Any], broken: Mapping[int, Fault], messages: Messages, rejected: dict[int, Rejected]
) -> list[Any]:
    """Return the events without broken rows, which are added to `rejected` at the place of their message."""
    if not broken:
        return events
    places = np.delete(np.arange(len(messages)), list(rejected)).tolist()
    for row, fault in broken.items():
        rejected[places[row]] = rejection(fault.reason, fault.detail, messages[places[row]] or b"")
    return [event for row, event in enumerate(events) if row not in broken]


def _in_order(rejected: Mapping[int, Rejected], origin: Origin | None) -> tuple[Rejected, ...]:
    return tuple(
        msgspec.structs.replace(rejected[place], place=place, origin=None if origin is None else origin.place(place))
        for place in sorted(rejected)
    )


def _crowded(event: Any) -> Fault | None:
    count = len(event.policies or ())
    if count <= MAX_POLICIES:
        return None
    return Fault("malformed", f"policies: {count} names, more than the limit of {MAX_POLICIES}")


def _mismatch(event: Any) -> Fault | None:
    detail = length_mismatch(event)
    return None if detail is None else Fault("malformed", detail)


def _are_short_ascii(messages: Messages) -> bool:
    """Whether the decoder alone can check that these are texts of limited length."""
    given = cast(Sequence[bytes], messages)
    try:
        return all(map(bytes.isascii, given)) and max(map(len, given), default=0) <= MAX_MESSAGE_BYTES
    except TypeError:  # a message without a value
        return False
