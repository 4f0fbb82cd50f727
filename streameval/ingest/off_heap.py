"""Copies of arrays outside the heap, whose memory returns to the system when they are no longer referenced.

Buffered events live longer than the arrays that decoding needs for a moment. On the heap they fragment the space
between these: in a soak of a daemon that reads two topics, resident memory grew by 58 MiB an hour without this module.
"""

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

BLOCK = 16384
"""Bytes: memory is mapped in multiples of it, and smaller values stay on the heap."""
ALIGNMENT = 64
"""Bytes: arrays start at multiples of it."""
POOL_SIZE, LARGEST_POOLED = 16, 1 << 19
"""How many mappings are kept for reuse, and the largest of them in bytes: page faults of new ones are expensive."""

T = TypeVar("T")

_pool: deque[mmap.mmap] = deque(maxlen=POOL_SIZE)  # any thread appends, at any moment


def off_heap(value: T) -> T:
    """A dataclass like `value` with copies of all its arrays, also of nested dataclasses, in one mapping."""
    size = sum(map(_aligned, _arrays(value)))
    if size < BLOCK:
        return value
    memory, used = _memory(size), 0

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        nonlocal used
        place = memory[used : used + array.nbytes].view(array.dtype)
        used += _aligned(array)
        by_column = array.ndim > 1 and array.strides[0] < array.strides[-1]
        copy = place.reshape(array.T.shape).T if by_column else place.reshape(array.shape)
        np.copyto(copy, array)
        return copy

    copied: T = _changed(value, moved)
    return copied


def _memory(size: int) -> NDArray[np.uint8]:
    """At least so many bytes, the caller's for as long as any view of them exists."""
    wanted = -(-size // BLOCK) * BLOCK
    mapping = _pooled(wanted) or mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapping, np.uint8)
    if len(mapping) <= LARGEST_POOLED:
        finalize(memory, _pool.append, mapping).atexit = False
    return memory


def _pooled(wanted: int) -> mmap.mmap | None:
    """An unused mapping of about this size."""
    with suppress(IndexError):  # the pool is empty
        for _ in range(len(_pool)):
            mapping = _pool.popleft()
            if wanted <= len(mapping) <= 1.5 * wanted:
                return mapping
            _pool.append(mapping)
    return None


def _aligned(array: NDArray[Any]) -> int:
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


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
