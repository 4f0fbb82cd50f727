"""Drop events that a producer sent more than once."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import State, from_plain, to_plain
from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY, Identity


class Deduplication:
    """Reject events with the id of a recent event.

    Ids are compared by their 64-bit fingerprints. An event without an id is never a duplicate. An id takes 8 bytes in
    a ring and about 90 in a set: 100 MB for a million.

    Args:
        window: how many ids of events that were passed on are remembered
    """

    def __init__(self, window: int) -> None:
        self._ring: Identity = np.full(window, NO_IDENTITY)
        self._passed = 0
        self._seen: set[int] = set()

    def take(self, batch: EventBatch) -> EventBatch:
        """Return the new events, and reject the others as `duplicate`."""
        if not len(batch):
            return batch
        assert batch.origin is not None, "events must be decoded with their origin"
        assert batch.origin.identity is not None, "events must be decoded as `identified`"
        identity = batch.origin.identity
        named = identity[identity != NO_IDENTITY]
        new = set(named.tolist())
        if len(new) == len(named) and self._seen.isdisjoint(new):
            self._remember(named)
            return batch
        repeated = np.zeros(len(batch), dtype=bool)
        for row in np.flatnonzero(identity != NO_IDENTITY).tolist():
            repeated[row] = int(identity[row]) in self._seen
            if not repeated[row]:
                self._remember(identity[row : row + 1])
        return batch.reject(repeated, "duplicate", lambda _: "event_id: repeats the id of a recent event")

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

    def restore(self, state: State) -> None:
        """Continue from a state; a shorter ring keeps the newest ids."""
        remembered: Identity = from_plain(state)["remembered"]
        self._ring[:], self._passed, self._seen = NO_IDENTITY, 0, set()
        self._remember(remembered[-len(self._ring) :])
