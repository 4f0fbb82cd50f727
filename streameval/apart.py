"""Arrays in memory of their own, which goes back to the system as soon as nobody looks at them any more."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

LEAST = 16384
"""Bytes in all: what is smaller stays where it is, for memory of one's own comes in whole pages."""
BESIDE = 64
"""Arrays begin at multiples of so many bytes."""

T = TypeVar("T")


def apart(value: T) -> T:
    """A dataclass like this one, with copies of all its arrays and of those of its parts, side by side off the heap.

    For what waits while other things come and go. On the heap it would lie between arrays that are needed for a moment
    only, and take the room that the next ones of these would have fitted in: the heap grows for minutes, and by all
    that ever waited at one moment; and for good, since only its very end can be given back.
    """
    size = sum(map(_room, _arrays(value)))
    if size < LEAST:
        return value
    memory = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    used = 0

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


def _room(array: NDArray[Any]) -> int:
    return -(-array.nbytes // BESIDE) * BESIDE


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _arrays(getattr(value, field.name))


def _changed(value: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        return change(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{field.name: _changed(getattr(value, field.name), change) for field in fields(value)})
