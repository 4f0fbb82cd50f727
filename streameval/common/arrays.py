"""The array type of the package, and arrays as plain values (what msgpack, JSON or a file can hold)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streameval.common.fading import fade
from streameval.errors import DamagedError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
State = dict[str, Any]

_MARK = "__array__"
LARGE = 65536  # bytes
ROUNDING = 1e-12  # a variance or a difference below this share of its terms is rounding


def per_block(columns: Array, blocks: int) -> Array:
    """Columns [n, P] that are contiguous over events, seen as [blocks, P, n / blocks].

    >>> per_block(np.array([[1.0], [2.0], [3.0], [4.0]]), blocks=2).tolist()
    [[[1.0, 2.0]], [[3.0, 4.0]]]
    """
    return columns.T.reshape(columns.shape[1], blocks, -1).transpose(1, 0, 2)


def decayed_path(state: Array, steps: Array, factor: Array | float) -> Array:
    """The states after each step of `state = factor state + step`, stacked on the first axis.

    `factor`: one for all steps, or [steps].

    >>> decayed_path(np.array([8.0]), np.array([[1.0], [1.0]]), 0.5).ravel()
    array([5. , 3.5])
    """
    path = np.empty((len(steps) + 1, *steps.shape[1:]))
    path[0], path[1:] = state, steps
    factors = np.ascontiguousarray(np.broadcast_to(factor, len(steps)), dtype=np.float64)
    fade(path.reshape(len(path), -1), factors)
    return path[1:]


def running_sum(state: Array, steps: Array) -> Array:
    """`state` plus the steps so far, after each step; the result does not depend on how the steps are cut.

    >>> running_sum(np.array([10.0]), np.array([[1.0], [2.0]])).ravel()
    array([11., 13.])
    """
    return np.asarray(np.cumsum(np.concatenate([state[None], steps]), axis=0)[1:])


def running_max(state: Array, steps: Array) -> Array:
    """The largest of `state` and the steps so far, after each step."""
    return np.asarray(np.maximum.accumulate(np.concatenate([state[None], steps]))[1:])


def floats(numbers: Sequence[Any]) -> Array:
    """Return an array of Python numbers, three times as fast as numpy. Raises struct.error for anything else."""
    return np.frombuffer(bytearray(struct.pack(f"{len(numbers)}d", *numbers)))


def ratio(numerator: Array, denominator: Array) -> Array:
    """The quotient, NaN where the denominator is 0; infinite where it is too near to 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(numerator / np.where(denominator != 0, denominator, np.nan))


def beyond_rounding(square: Array, size: Array) -> Array:
    """A square that was made of numbers of this size, 0 where it is mere rounding.

    >>> beyond_rounding(np.array([2.0, 1e-15, -1e-15, np.nan]), np.ones(4))
    array([ 2.,  0.,  0., nan])
    """
    return np.where(square > ROUNDING * size, square, np.where(np.isnan(square), np.nan, 0.0))


def side_by_side(parts: Sequence[Array], policies: int) -> Array:
    """The columns of some parts, each policy by policy, with those of a policy side by side.

    >>> side_by_side([np.array([1.0, 2.0]), np.array([3.0, 4.0])], policies=2)
    array([1., 3., 2., 4.])
    """
    by_policy = [part.reshape(policies, len(part) // max(policies, 1), *part.shape[1:]) for part in parts]
    joined = np.concatenate(by_policy, axis=1)
    return joined.reshape(joined.shape[0] * joined.shape[1], *joined.shape[2:])


def part_of(joined: Array, policies: int, parts: int, place: int) -> Array:
    """One of `parts` parts of equal size that are side by side.

    >>> part_of(np.array([1.0, 3.0, 2.0, 4.0]), policies=2, parts=2, place=1)
    array([3., 4.])
    """
    return np.asarray(joined.reshape(policies, parts, -1)[:, place].ravel())


def to_plain(value: Any, *, lasting: bool = False) -> Any:
    """Replace every array inside `value` by its type, shape and bytes; all else stays as it is.

    The bytes are copied, unless the arrays are `lasting`: no code will write to them again.

    >>> to_plain({"sums": np.array([1.0])})
    {'sums': {'__array__': '<f8', 'shape': [1], 'data': b'\\x00\\x00\\x00\\x00\\x00\\x00\\xf0?'}}
    """
    if isinstance(value, np.ndarray):
        return {_MARK: value.dtype.str, "shape": list(value.shape), "data": _bytes_of(value, lasting)}
    if isinstance(value, Mapping):
        return {key: to_plain(item, lasting=lasting) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name), lasting=lasting) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [to_plain(item, lasting=lasting) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _bytes_of(array: NDArray[Any], lasting: bool) -> bytes | memoryview:
    """The bytes of an array; those of a large one as numpy copies them, which takes a third of the time."""
    if lasting and array.size and array.flags.c_contiguous:
        return array.data.cast("B")
    return array.tobytes() if array.nbytes < LARGE else array.copy(order="C").data.cast("B")


def bytes_in(value: Any) -> int:
    """The size of all arrays and binary data inside a plain value.

    >>> bytes_in(to_plain({"sums": np.array([1.0, 2.0]), "events": 2}))
    16
    """
    if isinstance(value, Mapping | list | tuple):
        return sum(map(bytes_in, value.values() if isinstance(value, Mapping) else value))
    return len(value) if isinstance(value, bytes | memoryview) else 0


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`: arrays come back writable and bit for bit the same."""
    if isinstance(value, Mapping):
        if _MARK in value:
            return np.frombuffer(value["data"], dtype=value[_MARK]).reshape(value["shape"]).copy()
        return {key: from_plain(item) for key, item in value.items()}
    return [from_plain(item) for item in value] if isinstance(value, list | tuple) else value


def require_fit(found: Any, fresh: Any, path: str = "") -> None:
    """Raise DamagedError at the first place at which a plain value lacks a key, type or array shape of a fresh one.

    An entry that is None in the fresh value may be anything. A list that is empty there may have any entries; so may
    the length of an axis that is 0 there.

    >>> require_fit({"sums": to_plain(np.zeros(3)), "events": 1}, {"sums": to_plain(np.zeros(2)), "events": 0})
    Traceback (most recent call last):
    streameval.errors.DamagedError: wrong content: sums is an array <f8 [3], expected an array <f8 [2]
    >>> require_fit({"sums": [1]}, {"sums": [], "events": 0})
    Traceback (most recent call last):
    streameval.errors.DamagedError: wrong content: events is missing
    """
    if fresh is None:
        return
    is_open = isinstance(fresh, list | tuple) and not fresh
    if not _has_grown(found, fresh) and not (is_open and isinstance(found, list | tuple)):
        _require(_kind(found) == _kind(fresh), f"{path} is {_kind(found)}, expected {_kind(fresh)}")
    if isinstance(fresh, list | tuple):
        found, fresh = dict(enumerate(found)), dict(enumerate(fresh))
    if isinstance(fresh, Mapping) and _MARK in fresh:
        size = math.prod(found["shape"]) * np.dtype(fresh[_MARK]).itemsize
        _require(len(found["data"]) == size, f"{path} has {len(found['data'])} bytes, expected {size}")
    elif isinstance(fresh, Mapping):
        for key, expected in fresh.items():
            place = f"{path}.{key}" if path else str(key)
            _require(key in found, f"{place} is missing")
            require_fit(found[key], expected, place)


def _require(fits: bool, problem: str) -> None:
    if not fits:
        raise DamagedError(f"wrong content: {problem}", hint="use an older state")


def _has_grown(found: Any, fresh: Any) -> bool:
    """Whether both are arrays of one type, which differ in axes of length 0 in the fresh one only."""
    if not (isinstance(found, Mapping) and isinstance(fresh, Mapping) and found.get(_MARK) == fresh.get(_MARK, "")):
        return False
    shapes = found["shape"], fresh["shape"]
    same = len(shapes[0]) == len(shapes[1])
    return same and all(expected in (0, length) for length, expected in zip(*shapes, strict=True))


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an array {value[_MARK]} {value['shape']}" if value.keys() == {_MARK, "shape", "data"} else "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "a number" if isinstance(value, int | float) else type(value).__name__
