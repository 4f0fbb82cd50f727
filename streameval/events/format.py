"""Messages to events: one by one, or many of them to columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import msgspec
import numpy as np
from msgspec.structs import replace

from streameval.events.batch import EventBatch
from streameval.events.columns import compact_columns, ragged_columns
from streameval.events.rejections import Rejected
from streameval.events.rules import Fault, faults
from streameval.events.second_look import UNREADABLE, second_look
from streameval.events.shapes import misfit
from streameval.events.wire import Event, event_type, policy_items


class EventFormat:
    """How the messages of one stream are read: which policies, which reward, and the range that it must keep.

    `policies`: these names become the columns of every batch, in this order; None = every name that a batch's events use.
    `reward_field`: the field that is the reward. `reward_range`: rewards outside of it are rejected; None = any.

    >>> events = EventFormat(["bts"], reward_range=(0, 1))
    >>> message = b'{"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"bts": 0.75}}'
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
        """One message: the event, its `policies` a dict of those it has, or why it is none."""
        (outcome,), _ = self._decode_all([value])
        if isinstance(outcome, Rejected):
            return outcome
        return replace(outcome, policies={name: cell for name, cell in policy_items(outcome.policies) if cell == cell})

    def decode_batch(self, values: Iterable[bytes | None]) -> EventBatch:
        """Many messages as columns; those that are no events are in `rejected`, in their order."""
        _, batch = self._decode_all(list(values))
        return batch

    def _decode_all(self, messages: Sequence[bytes | None]) -> tuple[list[Event | Rejected], EventBatch]:
        """What becomes of each message, and the columns of the events among them."""
        outcomes = self._read(messages)
        batch = compact_columns(_events(outcomes), self.policies)
        if batch is None:
            _reject_misfits(outcomes, messages)
            batch = ragged_columns(_events(outcomes), self.policies)
        broken = faults(batch, self.reward_range)
        if broken:
            batch = batch.take(np.delete(np.arange(len(batch)), list(broken)))
            _reject_broken(outcomes, messages, broken)
        rejected = tuple([outcome for outcome in outcomes if isinstance(outcome, Rejected)])
        return outcomes, dataclasses.replace(batch, rejected=rejected)

    def _read(self, messages: Sequence[bytes | None]) -> list[Event | Rejected]:
        """What the decoder makes of each message; the lists of these events may not fit, nor their numbers make sense."""
        decode = cast(Callable[[bytes | None], Event], self._decode)
        outcomes: list[Event | Rejected] = []
        for message in messages:
            try:
                outcome: Event | Rejected = decode(message)
                if not message.isascii():  # type: ignore[union-attr]
                    message.decode()  # the decoder does not look into what it skips, but all of it has to be text
            except UNREADABLE:
                outcome = second_look(message, self._decode, self._fields, self.policies, self.reward_field)
            outcomes.append(outcome)
        return outcomes


def _events(outcomes: Iterable[Event | Rejected]) -> list[Event]:
    return [outcome for outcome in outcomes if not isinstance(outcome, Rejected)]


def _reject_misfits(outcomes: list[Event | Rejected], messages: Sequence[bytes | None]) -> None:
    for place, outcome in enumerate(outcomes):
        detail = None if isinstance(outcome, Rejected) else misfit(outcome)
        if detail is not None:
            outcomes[place] = Rejected("malformed", detail, messages[place] or b"")


def _reject_broken(
    outcomes: list[Event | Rejected], messages: Sequence[bytes | None], broken: Mapping[int, Fault]
) -> None:
    places = [place for place, outcome in enumerate(outcomes) if not isinstance(outcome, Rejected)]
    for row, fault in broken.items():
        outcomes[places[row]] = Rejected(*fault, messages[places[row]] or b"")
