"""Drop events that a producer sent more than once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from streameval.common.arrays import State, from_plain, to_plain
from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY, Identity
from streameval.ingest.stages.buffer import described


class Deduplication:
    """Reject events with the id of a recent event.

    Ids are compared by their 64-bit fingerprints. An event without an id is never a duplicate. An id takes 8 bytes in
    a ring and about 90 in a set: 100 MB for a million.

    Args:
        window: how many ids of events that were passed on are remembered
    """

    needs_origin: ClassVar[bool] = True

    def __init__(self, window: int) -> None:
        self._ring: Identity = np.full(window, NO_IDENTITY)
        self._passed = 0
        self._seen: set[int] = set()

    def pass_on(self, batch: EventBatch) -> EventBatch:
        """Return the new events of a poll, which may be none: see `take`."""
        return self.take(batch) if len(batch) else batch

    def take(self, batch: EventBatch) -> EventBatch:
        """Return the new events, and reject the others as `duplicate`."""
        assert batch.origin is not None, "events must be decoded with their origin"
        assert batch.origin.identity is not None, "events must be decoded as `identified`"
        identity = batch.origin.identity
        named = identity[identity != NO_IDENTITY]
        new = set(named.tolist())
        if len(new) == len(named) and self._seen.isdisjoint(new):
            self._remember(named)
            return batch
        repeated = [number != NO_IDENTITY and not self._is_new(number) for number in identity.tolist()]
        return batch.reject(np.array(repeated), "duplicate", lambda _: "event_id: repeats the id of a recent event")

    def _is_new(self, identity: int) -> bool:
        if identity in self._seen:
            return False
        self._remember(np.array([identity], dtype=np.uint64))
        return True

    def _remember(self, new: Identity) -> None:
        """Put new ids into the ring in place of the oldest. Ids in the ring are distinct."""
        for first in range(0, len(new), len(self._ring)):
            ids = new[first : first + len(self._ring)]
            indices = np.arange(self._passed, self._passed + len(ids)) % len(self._ring)
            self._seen.difference_update(self._ring[indices].tolist())
            self._seen.update(ids.tolist())
            self._ring[indices] = ids
            self._passed += len(ids)

    def state(self) -> State:
        """Return the remembered ids, oldest first."""
        start = self._passed % len(self._ring)
        ring = np.concatenate([self._ring[start:], self._ring[:start]])
        state: State = to_plain({"remembered": ring[ring != NO_IDENTITY]})
        return state

    @staticmethod
    def describe(state: State, what: str) -> State:
        """Describe the ids in a state: see `described`."""
        return described(what, state, count=len(from_plain(state)["remembered"]))

    def restore(self, state: State) -> None:
        """Continue from a state; a shorter ring keeps the newest ids."""
        remembered: Identity = from_plain(state)["remembered"]
        self._ring[:], self._passed, self._seen = NO_IDENTITY, 0, set()
        self._remember(remembered[-len(self._ring) :])
