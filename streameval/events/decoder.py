"""Decode messages, or rows of tables, into columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events.action_sets import UNREADABLE, ActionNames, RawFields
from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.columns import (
    compact_columns,
    floats_or,
    further_rewards,
    named_policies,
    ragged_columns,
    seconds,
    with_further_rewards,
)
from streameval.events.diagnosis import (
    DECODE_ERRORS,
    MAX_MESSAGE_BYTES,
    Diagnosis,
    cut_fault,
    require_shallow,
)
from streameval.events.frames import frame_fault, unframed
from streameval.events.further_rewards import FurtherRewards, RewardField
from streameval.events.headers import HeaderNames
from streameval.events.origin import Origin, fingerprints, name_fingerprints
from streameval.events.rankings import MAX_ITEMS, page_fault, propensities_fault, ranking_columns, ranking_type
from streameval.events.schema import Event, attributes, event_type, policy_cells, reward_type, score_type
from streameval.events.segments import SegmentField, read_segments
from streameval.events.validation import (
    BrokenRule,
    Fault,
    Rejected,
    finite,
    first_faults,
    list_fault,
    probabilities_rule,
    rejection,
    seconds_rule,
)

MAX_POLICIES = 10_000  # names in one event, if all names become columns

OTHER_FORMS = (
    ("action: missing", b'"ranking"', "this is a page with clicks, which the option `ranking` reads"),
    ("ranking: missing", b'"action"', "this is a choice of one action, which is read without the option ranking"),
    ("event_id: missing", b'"_label_probability"', "this is a line of Vowpal Wabbit, which the format `dsjson` reads"),
    ("policies: expected object, got array", b'"policies_of"', "the option `source.policies_of` names its header"),
)
"""What else a message may be: the detail of its fault, what shows the form, and the option that reads it."""

Messages: TypeAlias = Sequence[bytes | None]


class JsonDecoder:
    """Decode the JSON messages of one stream.

    Args:
        policies: the columns of every batch, in this order, None = the policies that the messages name
        reward_field: the field with the reward
        reward_range: smallest and largest reward. Other events are rejected. None = any
        scores: fields that policies in code read. Unless None, batches have `raw_fields`
        rewarded: False if rewards arrive separately from the decisions. They are NaN until they are joined
        identified: whether to add the fingerprint of the `event_id` to events with an origin
        further: the further rewards. An event then needs at least one of all rewards
        segments: the fields that split estimates
        named: whether to add the names of the logged actions
        estimated: whether propensities are estimated. Logged ones are then ignored
        deferred: the decoder of `raw_fields` that are decoded at their first use, without `scores` only
        unlogged: the fields of rewards that a table may lack, as they are sums of others
        headers: the names of policies that events list, by the value of their `policies_of`

    Attributes:
        clipped_events: events so far with a number beyond its range by rounding alone
        form: the struct type with the fields that are read

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
        further: Sequence[RewardField] = (),
        segments: Sequence[SegmentField] = (),
        named: bool = False,
        estimated: bool = False,
        deferred: JsonDecoder | None = None,
        unlogged: Collection[str] = (),
        headers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.policies = None if policies is None else tuple(policies)
        self.reward_field = reward_field
        self.reward_range = reward_range
        self.scores = None if scores is None else tuple(scores)
        self.rewarded, self.identified, self.named, self.estimated = rewarded, identified, named, estimated
        self.further, self.segments = tuple(further), tuple(segments)
        self.deferred, self.unlogged = deferred, frozenset(unlogged)
        self.clipped_events = 0
        fields = tuple(reward.field for reward in self.further)
        roots = tuple(segment.root for segment in self.segments)
        self._any_fields = tuple(dict.fromkeys((*(self.scores or ()), *roots))) if roots else self.scores
        self._event_type = event_type(
            self.policies, reward_field, self._any_fields, rewarded, fields, listed=bool(headers)
        )
        self._headers = HeaderNames(headers, self.policies) if headers else None
        self._attributes = attributes(self._event_type)
        self._score_attributes = {field: self._attributes[field] for field in self.scores or ()}
        self.form: type[msgspec.Struct] = self._event_type
        self._decode = self._decoder_of(self._event_type)
        self._diagnosis = Diagnosis(self._event_type, self.policies)

    def _decoder_of(self, form: type[msgspec.Struct]) -> Callable[[bytes], Any]:
        """Return the function that decodes one message. Values of any type may be nested to `MAX_DEPTH`."""
        decode: Callable[[bytes], Any] = msgspec.json.Decoder(form).decode
        if self._headers is not None:
            decode = self._headers.packing(decode)
        if self._any_fields is None:
            return decode

        def decode_shallow(message: bytes) -> Any:
            require_shallow(message)
            return decode(message)

        return decode_shallow

    def clipped(self, batch: EventBatch) -> tuple[EventBatch, Mask]:
        """Set numbers that exceed their range by rounding alone to its ends, and return the events with one [n]."""
        further = () if self.reward_range is None else self.further
        return batch.clipped(self.reward_range if self.rewarded else None, further)

    def faults(self, batch: EventBatch) -> dict[int, Fault]:
        """Return the rows that are not events, with the first rule that each of them breaks."""
        return batch.faults(
            self.reward_range,
            rewarded=self.rewarded,
            field=self.reward_field,
            further=() if self.reward_range is None else self.further,
            estimated=self.estimated,
        )

    @property
    def reads_columns(self) -> bool:
        """Return whether tables are decoded by columns, as the policies are known."""
        return self.policies is not None and issubclass(self.form, Event)

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages into columns, and reject messages that are not events.

        Args:
            values: the messages, None for a tombstone
            origin: partition and offset of each message
        """
        messages, faults = list(values), dict[int, Fault]()
        events, batch = self._columns(_read(messages, self._decode, self._refused, faults), faults)
        batch = self._with_origin(batch, events, messages, faults, origin)
        if self.deferred is None:
            return batch
        kept = [message for index, message in enumerate(messages) if index not in faults] if faults else messages
        return batch.with_deferred_fields(partial(self.deferred.raw_values, kept))

    def raw_values(self, messages: Messages) -> list[Mapping[str, Any]]:
        """Return the raw fields of each message, or its fault."""
        faults = dict[int, Fault]()
        events = _read(messages, self._decode, self._refused, faults)
        values = list(RawFields.from_events(events, self._score_attributes).values)
        for index, fault in sorted(faults.items()):
            values.insert(index, {UNREADABLE: fault})
        return values

    def decode_rows(
        self,
        rows: Sequence[Mapping[str, Any] | Fault],
        origin: Origin | None = None,
        messages: Messages | None = None,
    ) -> EventBatch:
        """Decode events given as Python values by field, and reject those that break a rule.

        Args:
            rows: one mapping per event. A `Fault` is rejected with its reason
            origin: topic, partition and offset of each row
            messages: the bytes of each row, for the dead letters. None by default
        """
        decoded = [self._read_row(row) for row in rows]
        faults = {index: row for index, row in enumerate(decoded) if isinstance(row, Fault)}
        events, batch = self._columns([event for event in decoded if not isinstance(event, Fault)], faults)
        for index in faults:
            if not isinstance(decoded[index], Fault):  # infinite numbers have another reason
                fault = self._diagnosis.decode_tree(rows[index])
                faults[index] = fault if isinstance(fault, Fault) else faults[index]
        return self._with_origin(batch, events, messages or [b""] * len(rows), faults, origin)

    def _with_origin(
        self, batch: EventBatch, events: list[Any], messages: Messages, faults: dict[int, Fault], origin: Origin | None
    ) -> EventBatch:
        """Add the origin of the events, and the rejected messages."""
        if origin is not None:
            kept = origin.take(np.delete(np.arange(len(messages)), list(faults))) if faults else origin
            identity = fingerprints([event.event_id for event in events]) if self.identified else None
            batch = replace(batch, origin=replace(kept, identity=identity))
        return replace(batch, rejected=_rejected(faults, messages, origin))

    def _read_row(self, row: Mapping[str, Any] | Fault) -> Any:
        if isinstance(row, Fault):
            return row
        try:
            return msgspec.convert(row, self.form)
        except DECODE_ERRORS:
            return self._diagnosis.decode_tree(row)

    def _refused(self, message: bytes, error: Exception) -> Any:
        """Return the event salvaged from a message that cannot be decoded, or its `Fault`."""
        return self._diagnosis.decode_message(message, error)

    def _columns(self, events: list[Any], faults: dict[int, Fault]) -> tuple[list[Any], EventBatch]:
        """Build columns, then drop the rows that break a rule. Adds to `faults`, by index of the message."""
        if self._headers is not None and not all(isinstance(event.policies, bytes) for event in events):
            events = self._named(events, faults)
        if self.policies is None:
            events = _passing(events, _policies_fault, faults)
        events, batch = self._unchecked_columns(events, faults)
        if self.estimated:
            batch = batch.without_propensities()
        if self.further:
            batch = with_further_rewards(batch, self.further, events)
        if self.segments:
            batch = replace(batch, segments=read_segments(self.segments, self._attributes, events))
        batch, are_clipped = self.clipped(batch)
        self.clipped_events += int(np.count_nonzero(are_clipped))
        broken = self.faults(batch)
        if broken:
            batch = batch.take(np.delete(np.arange(len(batch)), list(broken))).trimmed()
            events = _without(events, broken, faults)
            if self.policies is None:
                batch = batch.with_policies(named_policies(events))
        if self.named:
            batch = replace(batch, actions=ActionNames.from_actions([event.action for event in events]))
        if self.scores is not None:
            batch = replace(batch, raw_fields=RawFields.from_events(events, self._score_attributes))
        return events, batch

    def _named(self, events: list[Any], faults: dict[int, Fault]) -> list[Any]:
        """Name the policies that events list by a header. Adds to `faults`."""
        if self._headers is None:
            return events
        named = list(map(self._headers.named, events))
        return _without(named, {row: one for row, one in enumerate(named) if isinstance(one, Fault)}, faults)

    def _unchecked_columns(self, events: list[Any], faults: dict[int, Fault]) -> tuple[list[Any], EventBatch]:
        """Build the columns of events with fields that fit together. Adds the others to `faults`."""
        batch = compact_columns(events, self.policies)
        if batch is not None:
            return events, batch
        events = _passing(self._named(events, faults), list_fault, faults)
        return events, ragged_columns(events, self.policies)


class RankingDecoder(JsonDecoder):
    """Decode rankings with clicks.

    Args:
        policies: the columns of every batch, in this order, None = the policies that the messages name
        with_propensities: whether pages with clicks must have their `propensities`
        named: whether batches have `raw_fields`, for reward models that need the names of items
        identified: whether to add the fingerprint of the `event_id` to events with an origin
        max_items: the number of items that a page may show. Pages with more are rejected
        deferred: as of `JsonDecoder`

    >>> page = b'"ranking": {"shown": ["a", "b", "c"], "clicked": ["b"]}, "policies": {"new": {"ranks": {"b": 1}}}'
    >>> batch = RankingDecoder(["new"]).decode_batch([b'{"event_id": 1, "timestamp": 0, ' + page + b"}", b"{}"])
    >>> batch.rankings.rank, batch.rankings.ranks, batch.rejected[0].detail
    (array([2.]), array([[1.]]), 'event_id: missing')
    """

    def __init__(
        self,
        policies: Sequence[str] | None = None,
        with_propensities: bool = False,
        named: bool = False,
        identified: bool = False,
        max_items: int = MAX_ITEMS,
        deferred: JsonDecoder | None = None,
    ) -> None:
        scores = () if named else None
        super().__init__(policies, scores=scores, rewarded=False, identified=identified, deferred=deferred)
        self.with_propensities, self.max_items = with_propensities, max_items
        self.form = ranking_type(self.policies, named)
        self._decode = self._decoder_of(self.form)
        self._diagnosis = Diagnosis(self.form, self.policies, is_cell=lambda cell: isinstance(cell, dict))

    def _unchecked_columns(self, events: list[Any], faults: dict[int, Fault]) -> tuple[list[Any], EventBatch]:
        events = _passing(events, partial(page_fault, max_items=self.max_items), faults)
        if self.with_propensities:
            events = _passing(events, propensities_fault, faults)
        names, placed, rankings = ranking_columns(events, self.policies)
        batch = EventBatch(
            policies=names,
            probabilities=placed,
            propensity=np.ones(len(events)),
            reward=rankings.clicks,
            timestamp=seconds([event.timestamp for event in events]),
            sampling_probability=floats_or([event.sampling_probability for event in events], 1.0),
            unit=name_fingerprints([event.unit for event in events]),
            rankings=rankings,
        )
        return events, batch


class RewardDecoder:
    """Decode rewards that arrive as separate messages: `{"event_id": "e-81", "timestamp": 1574553700.1, "reward": 1}`.

    Args:
        reward_field: the field with the reward
        further: the further rewards. A message then has at least one of all rewards
        policies: read probabilities of these policies in place of rewards. They are the further rewards of the batch

    >>> message = b'{"event_id": "e-81", "timestamp": 1574553700.1, "revenue": 2.5}'
    >>> rewards = RewardDecoder("revenue").decode_batch([message, b"{}"], Origin.from_parts("orders", [(0, [10, 11])]))
    >>> rewards.reward, rewards.rejected[0].reason, rewards.rejected[0].origin
    (array([2.5]), 'missing_field', ('orders', 0, 11))
    """

    def __init__(
        self,
        reward_field: str = "reward",
        further: Sequence[RewardField] = (),
        policies: Sequence[str] | None = None,
    ) -> None:
        self._field, self._further, self.policies = reward_field, tuple(further), policies
        self.form = reward_type(reward_field, tuple(reward.field for reward in further))
        if policies is not None:
            self.form = score_type(tuple(policies))
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self.form).decode
        self._refused = Diagnosis(self.form, policies).decode_message

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin) -> RewardBatch:
        """Decode messages with their partitions and offsets into columns."""
        messages, faults = list(values), dict[int, Fault]()
        rewards = _read(messages, self._decode, self._refused, faults)
        times = seconds([message.timestamp for message in rewards])
        amounts, further = self._columns(rewards)
        broken = self.faults(amounts, times, further)
        rows = np.delete(np.arange(len(rewards)), list(broken))
        kept_rewards = _without(rewards, broken, faults)
        identity = fingerprints([message.event_id for message in kept_rewards])
        kept = origin.take(np.delete(np.arange(len(messages)), list(faults)))
        return RewardBatch(
            amounts[rows],
            times[rows],
            replace(kept, identity=identity),
            _rejected(faults, messages, origin),
            further and further.take(rows),
            name_fingerprints([getattr(message, "reward_id", None) for message in kept_rewards]),
        )

    @property
    def fields(self) -> list[str]:
        """Return the fields with rewards, the primary one first, none if probabilities are read in their place."""
        return [] if self.policies is not None else [self._field, *(reward.field for reward in self._further)]

    def named(self, values: Array) -> tuple[Array, FurtherRewards | None]:
        """Return the primary reward and the further ones of n messages.

        Args:
            values: [n, columns] `fields`, or the probabilities of `policies`
        """
        if self.policies is not None:
            return np.full(len(values), np.nan), FurtherRewards(tuple(self.policies), values)
        names = tuple(reward.name for reward in self._further)
        return values[:, 0], FurtherRewards(names, values[:, 1:]) if names else None

    def faults(self, rewards: Array, times: Array, further: FurtherRewards | None) -> dict[int, Fault]:
        """Return the rows that are not rewards, with the first rule that each of them breaks."""
        return first_faults((*self._rules(rewards, further), seconds_rule(times)))

    def _columns(self, messages: Sequence[Any]) -> tuple[Array, FurtherRewards | None]:
        if self.policies is None:
            amounts = floats_or([message.reward for message in messages], np.nan)
            return amounts, further_rewards(self._further, messages) if self._further else None
        cells = chain.from_iterable(policy_cells(message.policies) for message in messages)
        values = floats_or(list(cells), np.nan).reshape(len(messages), len(self.policies))
        return self.named(values)

    def _rules(self, rewards: Array, further: FurtherRewards | None) -> Iterator[BrokenRule]:
        if self.policies is not None and further is not None:
            yield from further.infinite()
            yield probabilities_rule(self.policies, further.values)
            return
        if further is None:
            yield finite("reward", rewards, ~np.isfinite(rewards))
            return
        missing = np.isnan(rewards) & np.isnan(further.values).all(axis=1)
        fields = ", ".join(self.fields)
        yield missing, "missing_field", lambda _: f"{self._field}: missing, and so are all others of {fields}"
        yield finite("reward", rewards, np.isinf(rewards))
        yield from further.infinite()


def _read(
    messages: Messages,
    decode: Callable[[bytes], Any],
    refused: Callable[[bytes, Exception], Any],
    faults: dict[int, Fault],
) -> list[Any]:
    """Decode messages into structs that are not validated.

    Args:
        messages: the messages
        decode: the fast decoder of one message
        refused: return the struct of a message that `decode` refused, or its fault
        faults: gets the faults, by index of the message
    """

    def decode_text(message: bytes) -> Any:  # the decoder does not look into fields that it skips
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError
        decoded = decode(message)
        message.decode()
        return decoded

    decode_message: Any = decode if _are_short_ascii(messages) else decode_text
    decoded: list[Any] = []
    unread: Iterator[bytes | None] = iter(messages)
    are_framed = False
    while len(decoded) + len(faults) < len(messages):
        try:
            decoded.extend(map(decode_message, unread))  # up to the first that fails
        except DECODE_ERRORS as error:
            index = len(decoded) + len(faults)
            message = cast(bytes, messages[index])
            content = message and unframed(message)
            if content is not message and not are_framed:
                are_framed, decode_message = True, decode_text
                unread = (value and unframed(value) for value in messages[index:])  # one at a time: it may be unpacked
                continue
            event = fault_of_length(message) or cut_fault(message) or frame_fault(message) or refused(content, error)
            if isinstance(event, Fault):
                faults[index] = event
            else:
                decoded.append(event)
    return decoded


def fault_of_length(message: bytes | None) -> Fault | None:
    """Return the fault of a message that is missing or too long, or None."""
    if message is None:
        return Fault("malformed", "a tombstone: the message has no value")
    if len(message) > MAX_MESSAGE_BYTES:
        return Fault("malformed", f"{len(message)} bytes, more than the limit of {MAX_MESSAGE_BYTES}")
    return None


def _passing(events: list[Any], check: Callable[[Any], Fault | None], faults: dict[int, Fault]) -> list[Any]:
    return _without(events, {row: fault for row, event in enumerate(events) if (fault := check(event))}, faults)


def _without(structs: list[Any], broken: Mapping[int, Fault], faults: dict[int, Fault]) -> list[Any]:
    """Return the structs without broken rows. Adds these to `faults`, by index of the message."""
    if not broken:
        return structs
    indices = np.delete(np.arange(len(structs) + len(faults)), list(faults)).tolist()
    faults.update({indices[row]: fault for row, fault in broken.items()})
    return [struct for row, struct in enumerate(structs) if row not in broken]


def _rejected(faults: Mapping[int, Fault], messages: Messages, origin: Origin | None) -> tuple[Rejected, ...]:
    return tuple(
        rejection(
            *_named_form(faults[index], messages[index] or b""),
            messages[index] or b"",
            index,
            None if origin is None else origin.position(index),
        )
        for index in sorted(faults)
    )


def _named_form(fault: Fault, message: bytes) -> Fault:
    """Add the option that reads an event of another form to the detail of its fault."""
    for detail, mark, remark in OTHER_FORMS:
        if fault.detail == detail and mark in message:
            return Fault(fault.reason, f"{fault.detail}: {remark}")
    return fault


def _policies_fault(event: Any) -> Fault | None:
    count = len(event.policies or ())
    if count <= MAX_POLICIES:
        return None
    return Fault("malformed", f"policies: {count} names, more than the limit of {MAX_POLICIES}")


def _are_short_ascii(messages: Messages) -> bool:
    """Return whether messages are ASCII of limited length, so that the decoder alone checks them."""
    values = cast(Sequence[bytes], messages)
    try:
        return all(map(bytes.isascii, values)) and max(map(len, values), default=0) <= MAX_MESSAGE_BYTES
    except TypeError:  # a message without a value
        return False
