"""Arrays in memory of their own, which goes back to the system when nobody looks at them any more."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

LEAST = 16384
"""Bytes in all: what is smaller stays where it is, for memory of one's own comes in whole pages."""
BESIDE = 64
"""Arrays begin at multiples of so many bytes."""
AT_HAND, LARGEST_AT_HAND = 16, 1 << 19
"""So many pieces of memory are used again instead of going back, none of more bytes than that: new pages are dear."""

T = TypeVar("T")

_at_hand: deque[mmap.mmap] = deque(maxlen=AT_HAND)  # any thread gives back, at any moment


def apart(value: T) -> T:
    """A dataclass like this one, with copies of all its arrays and of those of its parts, side by side off the heap.

    For what waits while other things come and go. On the heap it would lie between arrays that are needed for a moment
    only, and take the room that the next ones of these would have fitted in: the heap grows for minutes, and by all
    that ever waited at one moment; and for good, since only its very end can be given back.
    """
    size = sum(map(_room, _arrays(value)))
    if size < LEAST:
        return value
    memory, used = _memory(size), 0

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        nonlocal used
        place = memory[used : used + array.nbytes].view(array.dtype)
        used += _room(array)
        by_column = array.ndim > 1 and array.strides[0] < array.strides[-1]
        copy = place.reshape(array.T.shape).T if by_column else place.reshape(array.shape)
        np.copyto(copy, array)
        return copy

    copied: T = _changed(value, moved)
    return copied


def _memory(size: int) -> NDArray[np.uint8]:
    """At least so many bytes, which are the caller's for as long as there is any view of them."""
    wanted = -(-size // LEAST) * LEAST
    piece = _used_before(wanted) or mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(piece, np.uint8)
    if len(piece) <= LARGEST_AT_HAND:
        finalize(memory, _at_hand.append, piece).atexit = False
    return memory


def _used_before(wanted: int) -> mmap.mmap | None:
    """A piece of about this size that nobody looks at any more."""
    with suppress(IndexError):  # none is left
        for _ in range(len(_at_hand)):
            piece = _at_hand.popleft()
            if wanted <= len(piece) <= 1.5 * wanted:
                return piece
            _at_hand.append(piece)
    return None


def _room(array: NDArray[Any]) -> int:
    return -(-array.nbytes // BESIDE) * BESIDE


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    if isinstance(value, np.ndarray):
        yield value
    for name in _parts(value.__class__):
        yield from _arrays(getattr(value, name))


def _changed(value: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        return change(value)
    names = _parts(value.__class__)
    return replace(value, **{name: _changed(getattr(value, name), change) for name in names}) if names else value


@cache
def _parts(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
