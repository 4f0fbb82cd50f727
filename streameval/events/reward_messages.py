"""Rewards that come as messages of their own: `{"event_id": "e-81", "timestamp": 1574553700.1, "reward": 1}`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events.action_sets import Index
from streameval.events.columns import floats, seconds
from streameval.events.diagnosis import LONGEST_MESSAGE, UNREADABLE, Form, second_look
from streameval.events.origin import Origin, fingerprints
from streameval.events.rejection import Rejected, rejection
from streameval.events.schema import Identifier, Moment, Reward
from streameval.events.validation import LATEST

_REQUIRED = ("event_id", "timestamp")


@dataclass(frozen=True, slots=True, eq=False)
class RewardBatch:
    """n rewards as columns, and what was rejected while they were read.

    reward: [n] what the decision earned, or a part of that
    timestamp: [n] when it did, in seconds since 1970
    origin: where the messages come from, with the fingerprints of the decisions' ids
    """

    reward: Array
    timestamp: Array
    origin: Origin
    rejected: tuple[Rejected, ...] = ()

    def __len__(self) -> int:
        return len(self.reward)

    def take(self, rows: Index | Mask) -> RewardBatch:
        """Those of these rows, in this order; what was rejected stays."""
        return RewardBatch(self.reward[rows], self.timestamp[rows], self.origin.take(rows), self.rejected)

    def reject(self, rows: Mask, reason: str, detail: Callable[[int], str]) -> RewardBatch:
        """The batch without these rewards, rejected for this reason; `detail` says what is wrong with a row."""
        numbers = np.flatnonzero(rows).tolist()
        rejected = [Rejected(reason, detail(row), b"", origin=self.origin.place(row)) for row in numbers]
        return replace(self.take(~rows), rejected=(*self.rejected, *rejected))


class RewardDecoder:
    """How the messages of a topic of rewards are read; `reward_field` is the field that is the reward.

    >>> message = b'{"event_id": "e-81", "timestamp": 1574553700.1, "revenue": 2.5}'
    >>> rewards = RewardDecoder("revenue").decode_batch([message, b"{}"], Origin.of("orders", [(0, [10, 11])]))
    >>> rewards.reward, rewards.rejected[0].reason, rewards.rejected[0].origin
    (array([2.5]), 'missing_field', ('orders', 0, 11))
    """

    def __init__(self, reward_field: str = "reward") -> None:
        fields: list[Any] = [("event_id", Identifier), ("timestamp", Moment)]
        earned = ("reward", Reward, msgspec.field(name=reward_field))
        form = msgspec.defstruct("LateReward", [*fields, earned], frozen=True, gc=False, module=__name__)
        self._decode = msgspec.json.Decoder(form).decode
        self._form = Form(self._decode, form.__struct_encode_fields__, (*_REQUIRED, reward_field))

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin) -> RewardBatch:
        """Many messages as columns; `origin`: of the messages."""
        rewards: list[Any] = []
        rejected: list[Rejected] = []
        for place, value in enumerate(values):
            read = self._read(value)
            if isinstance(read, Rejected):
                rejected.append(msgspec.structs.replace(read, place=place, origin=origin.place(place)))
            else:
                rewards.append(read)
        kept = origin.take(np.delete(np.arange(len(origin)), [each.place for each in rejected]))
        return RewardBatch(
            floats([reward.reward for reward in rewards]),
            seconds([reward.timestamp for reward in rewards]),
            Origin(kept.topic, kept.partition, kept.offset, fingerprints([reward.event_id for reward in rewards])),
            tuple(rejected),
        )

    def _read(self, value: bytes | None) -> Any:
        if value is None or len(value) > LONGEST_MESSAGE:
            return second_look(value, self._form, self._form, None)
        try:
            reward: Any = self._decode(value)
            if not value.isascii():
                value.decode()
        except UNREADABLE:
            reward = second_look(value, self._form, self._form, None)
        if isinstance(reward, Rejected):
            return reward
        if not math.isfinite(reward.reward):
            return rejection("not_finite", f"reward: {reward.reward} is not a finite number", value)
        if isinstance(reward.timestamp, float) and not abs(reward.timestamp) <= LATEST:
            return rejection("malformed", f"timestamp: {reward.timestamp:.10g} is no time in seconds since 1970", value)
        return reward
