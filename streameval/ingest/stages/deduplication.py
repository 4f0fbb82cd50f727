"""Drop events that a producer sent more than once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from streameval.common.arrays import State, from_plain, to_plain
from streameval.events import EventBatch

PIECE = 500
"""Rows that are compared at once. Rows of a piece with a repeated id are compared one by one, which takes longer."""


class Deduplication:
    """Reject events with the id of a recent event.

    Ids are compared by their 64-bit fingerprints. An event without an id is never a duplicate. An id takes about 90
    bytes in a set, and 8 in a queue that has the order: 100 MB for a million.

    Args:
        window: how many ids of events that were passed on are remembered
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._recent: deque[int] = deque()  # oldest first
        self._seen: set[int] = set()

    def take(self, batch: EventBatch) -> EventBatch:
        """Return the new events, and reject the others as `duplicate`."""
        if not len(batch):
            return batch
        assert batch.origin is not None, "events must be decoded with their origin"
        assert batch.origin.identity is not None, "events must be decoded as `identified`"
        ids = batch.origin.identity.tolist()
        repeated: list[int] = []
        for first in range(0, len(ids), PIECE):
            repeated += self._repeated(ids, range(first, min(first + PIECE, len(ids))))
        if not repeated:
            return batch
        mask = np.zeros(len(batch), dtype=bool)
        mask[repeated] = True
        return batch.reject(mask, "duplicate", lambda _: "event_id: repeats the id of a recent event")

    def _repeated(self, ids: Sequence[int], rows: range) -> list[int]:
        """Remember the ids of these rows, and return the rows with an id that is remembered already."""
        named = [number for number in ids[rows.start : rows.stop] if number]  # 0 is none: see `NO_IDENTITY`
        if len(set(named)) == len(named) and self._seen.isdisjoint(named):
            self._remember(named)
            return []
        repeated = []
        for row in rows:
            if ids[row] in self._seen:
                repeated.append(row)
            elif ids[row]:
                self._remember([ids[row]])
        return repeated

    def _remember(self, new: Sequence[int]) -> None:
        """Remember distinct new ids, and forget the oldest ones."""
        self._recent.extend(new)
        self._seen.update(new)
        excess = len(self._recent) - self._window
        self._seen.difference_update([self._recent.popleft() for _ in range(excess)])

    def state(self) -> State:
        """Return the remembered ids, oldest first."""
        state: State = to_plain({"remembered": np.fromiter(self._recent, np.uint64, len(self._recent))})
        return state

    def restore(self, state: State) -> None:
        """Continue from a state. A shorter window keeps the newest ids."""
        self._recent, self._seen = deque(), set()
        self._remember(from_plain(state)["remembered"].tolist())
