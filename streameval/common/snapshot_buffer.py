"""Copies of large arrays, into memory that is at hand: new memory costs several times what copying into it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

APART = 64
"""Copies begin at multiples of so many bytes."""

_room: ContextVar[Room | None] = ContextVar("room", default=None)


class Room:
    """Memory for copies that is used again and again.

    A page of memory that a process has not used before is found and zeroed by the kernel when it is first written to:
    that, on a busy machine, is most of the time that a copy of 100 MB takes.

    >>> room = Room()
    >>> room.reserve(1000)
    >>> with room.used():
    ...     copy = copied(np.arange(3.0))
    >>> np.frombuffer(copy)
    array([0., 1., 2.])
    """

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def reserve(self, size: int) -> None:
        """Have at least so many bytes, all of them touched: this takes as long as the copies would."""
        if size > len(self._memory):
            memory = np.empty(size, np.uint8)
            memory.fill(1)
            self._memory = memory

    @contextmanager
    def used(self) -> Iterator[None]:
        """Meanwhile copies are put here. They must be done with by the next time."""
        self._used = 0
        before = _room.set(self)
        try:
            yield
        finally:
            _room.reset(before)

    def copy(self, array: NDArray[Any]) -> memoryview | None:
        """The bytes of a copy; None where there is no room left."""
        first, stop = self._used, self._used + array.nbytes
        if stop > len(self._memory):
            return None
        self._used = -(-stop // APART) * APART
        place = self._memory[first:stop]
        np.copyto(place.view(array.dtype).reshape(array.shape), array)
        return place.data


def copied(array: NDArray[Any]) -> memoryview:
    """The bytes of a copy of an array: in the room that is used, if there is one with room left."""
    room = _room.get()
    copy = None if room is None else room.copy(array)
    return array.copy(order="C").data.cast("B") if copy is None else copy
