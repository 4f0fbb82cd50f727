"""Define the array types of the package, and convert arrays to values that msgpack, JSON or a file can hold."""

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
ROUNDING_UNITS = 8  # of the last place: rounding may move a sum of a few numbers beyond its range by them
PROBABILITY_EXCESS = 1e-9  # counts as rounding: each step of a calculation adds an error of 1e-16


def split_blocks(columns: Array, blocks: int) -> Array:
    """View columns that are contiguous over events as blocks.

    Args:
        columns: [n, P]
        blocks: the number of blocks B

    Returns:
        A view [B, P, n / B].

    >>> split_blocks(np.array([[1.0], [2.0], [3.0], [4.0]]), blocks=2).tolist()
    [[[1.0, 2.0]], [[3.0, 4.0]]]
    """
    return columns.T.reshape(columns.shape[1], blocks, -1).transpose(1, 0, 2)


def decayed_path(state: Array, steps: Array, factor: Array | float) -> Array:
    """Return the state after each step of `state = factor state + step`, stacked on the first axis.

    Args:
        state: before the first step [...]
        steps: [steps, ...]
        factor: one number, or one for each step [steps]

    >>> decayed_path(np.array([8.0]), np.array([[1.0], [1.0]]), 0.5).ravel()
    array([5. , 3.5])
    """
    path = np.empty((len(steps) + 1, *steps.shape[1:]))
    path[0], path[1:] = state, steps
    factors = np.ascontiguousarray(np.broadcast_to(factor, len(steps)), dtype=np.float64)
    fade(path.reshape(len(path), -1), factors)
    return path[1:]


def running_sum(state: Array, steps: Array) -> Array:
    """Return the sum of `state` and the steps so far, after each step.

    The result does not depend on how the steps are cut.

    >>> running_sum(np.array([10.0]), np.array([[1.0], [2.0]])).ravel()
    array([11., 13.])
    """
    return np.asarray(np.cumsum(np.concatenate([state[None], steps]), axis=0)[1:])


def running_max(state: Array, steps: Array) -> Array:
    """Return the maximum of `state` and the steps so far, after each step."""
    return np.asarray(np.maximum.accumulate(np.concatenate([state[None], steps]))[1:])


def floats(numbers: Sequence[Any]) -> Array:
    """Return an array of Python numbers, three times as fast as numpy.

    Raises:
        struct.error: An item is not a number.
    """
    return np.frombuffer(bytearray(struct.pack(f"{len(numbers)}d", *numbers)))


def ratio(numerator: Array, denominator: Array) -> Array:
    """Return the quotient. It is NaN if the denominator is 0, and infinite if the denominator is too near to 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(numerator / np.where(denominator != 0, denominator, np.nan))


def within(values: Array, low: float, high: float, tolerance: float = 0.0) -> tuple[Array, Mask]:
    """Set values that exceed a range by rounding alone to its ends.

    They exceed it by a few units in the last place of the larger end. A unit is one of float32 if a float32 can hold
    the value, which then has most likely been one, else one of float64.

    Args:
        values: any shape
        low: the lower end of the range
        high: the upper end of the range
        tolerance: the excess over `high` that counts as rounding in any case

    Returns:
        The values, copied if one is set, and a mask of those that are.

    >>> within(np.array([1.0, 0.05 + 0.55 + 0.3 + 0.1, -1e-17, 1 + 1e-9, np.float32(1.0000001)]), 0, 1)[1]
    array([False,  True,  True, False,  True])
    """
    outside = (values < low) | (values > high)
    if not outside.any():
        return values, outside
    exceeding = values[outside]
    ends = np.clip(exceeding, low, high)
    scale = max((abs(end) for end in (low, high) if np.isfinite(end)), default=0.0)
    allowed = np.maximum(ROUNDING_UNITS * scale * _unit(exceeding), np.where(exceeding > high, tolerance, 0.0))
    outside[outside] = np.abs(exceeding - ends) <= allowed
    if not outside.any():
        return values, outside
    copy = values.copy(order="K")
    copy[outside] = np.clip(values[outside], low, high)
    return copy, outside


def _unit(values: Array) -> Array:
    """Return the relative distance between numbers of the type that the values seem to have had [n]."""
    with np.errstate(over="ignore", under="ignore"):
        is_single = values.astype(np.float32) == values
    return np.where(is_single, np.finfo(np.float32).eps, np.finfo(np.float64).eps)


def probabilities_within(values: Array) -> tuple[Array, Mask]:
    """Set probabilities that exceed [0, 1] by rounding alone to its ends, see `within`."""
    return within(values, 0.0, 1.0, PROBABILITY_EXCESS)


def is_positive_probability(value: float) -> bool:
    """Tell whether a number is in (0, 1], up to rounding above 1."""
    return 0 < value <= 1 or (value > 1 and bool(probabilities_within(np.array([value]))[0][0] <= 1))


def clear_rounding(square: Array, size: Array) -> Array:
    """Set squares to 0 if they are mere rounding.

    Args:
        square: a square or a difference
        size: the size of the numbers that it was computed from

    >>> clear_rounding(np.array([2.0, 1e-15, -1e-15, np.nan]), np.ones(4))
    array([ 2.,  0.,  0., nan])
    """
    return np.where(square > ROUNDING * size, square, np.where(np.isnan(square), np.nan, 0.0))


def side_by_side(parts: Sequence[Array], policies: int) -> Array:
    """Join columns so that all columns of a policy are adjacent.

    Args:
        parts: arrays of columns, each ordered by policy [policies * k, ...]
        policies: the number of policies

    >>> side_by_side([np.array([1.0, 2.0]), np.array([3.0, 4.0])], policies=2)
    array([1., 3., 2., 4.])
    """
    by_policy = [part.reshape(policies, len(part) // max(policies, 1), *part.shape[1:]) for part in parts]
    joined = np.concatenate(by_policy, axis=1)
    return joined.reshape(joined.shape[0] * joined.shape[1], *joined.shape[2:])


def select_part(joined: Array, policies: int, parts: int, index: int) -> Array:
    """Select one of several parts of equal size, joined by `side_by_side`.

    >>> select_part(np.array([1.0, 3.0, 2.0, 4.0]), policies=2, parts=2, index=1)
    array([3., 4.])
    """
    chosen = joined.reshape(policies, parts, -1, *joined.shape[1:])[:, index]
    return np.asarray(chosen.reshape(-1, *joined.shape[1:]))


def to_plain(value: Any, *, lasting: bool = False) -> Any:
    """Replace every array inside `value` by its type, shape and bytes.

    Args:
        value: nested mappings, lists and structs
        lasting: whether no code writes to the arrays again, so that their bytes need not be copied

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
    """Return the bytes of an array. Large arrays are copied by numpy, which takes a third of the time of `tobytes`."""
    if lasting and array.size and array.flags.c_contiguous:
        return array.data.cast("B")
    return array.tobytes() if array.nbytes < LARGE else array.copy(order="C").data.cast("B")


def bytes_in(value: Any) -> int:
    """Return the size of all arrays and binary data inside a plain value, in bytes.

    >>> bytes_in(to_plain({"sums": np.array([1.0, 2.0]), "events": 2}))
    16
    """
    if isinstance(value, Mapping | list | tuple):
        return sum(map(bytes_in, value.values() if isinstance(value, Mapping) else value))
    return len(value) if isinstance(value, bytes | memoryview) else 0


def from_plain(value: Any) -> Any:
    """Invert `to_plain`. Arrays come back writable and identical to the last bit."""
    if isinstance(value, Mapping):
        if _MARK in value:
            return np.frombuffer(value["data"], dtype=value[_MARK]).reshape(value["shape"]).copy()
        return {key: from_plain(item) for key, item in value.items()}
    return [from_plain(item) for item in value] if isinstance(value, list | tuple) else value


def require_fit(value: Any, template: Any, path: str = "") -> None:
    """Check that a plain value has all keys, types and array shapes of a template.

    None in the template matches anything. Empty lists and axes of length 0 in the template match any length.

    Args:
        value: the plain value
        template: a plain value of a fresh state
        path: the path of the value, for the message

    Raises:
        DamagedError: The value does not fit. The message names the first path that differs.

    >>> require_fit({"sums": to_plain(np.zeros(3)), "events": 1}, {"sums": to_plain(np.zeros(2)), "events": 0})
    Traceback (most recent call last):
    streameval.errors.DamagedError: wrong content: sums is an array <f8 [3], expected an array <f8 [2]
    hint: use an older state
    >>> require_fit({"sums": [1]}, {"sums": [], "events": 0})
    Traceback (most recent call last):
    streameval.errors.DamagedError: wrong content: events is missing
    hint: use an older state
    """
    if template is None:
        return
    is_open = isinstance(template, list | tuple) and not template
    if not _has_grown(value, template) and not (is_open and isinstance(value, list | tuple)):
        _require(_kind(value) == _kind(template), f"{path} is {_kind(value)}, expected {_kind(template)}")
    if isinstance(template, list | tuple):
        value, template = dict(enumerate(value)), dict(enumerate(template))
    if isinstance(template, Mapping) and _MARK in template:
        size = math.prod(value["shape"]) * np.dtype(template[_MARK]).itemsize
        _require(len(value["data"]) == size, f"{path} has {len(value['data'])} bytes, expected {size}")
    elif isinstance(template, Mapping):
        for key, expected in template.items():
            entry = f"{path}.{key}" if path else str(key)
            _require(key in value, f"{entry} is missing")
            require_fit(value[key], expected, entry)


def _require(fits: bool, problem: str) -> None:
    if not fits:
        raise DamagedError(f"wrong content: {problem}", hint="use an older state")


def _has_grown(value: Any, template: Any) -> bool:
    """Tell whether both are arrays of one type that differ only in axes of length 0 in the template."""
    if not (
        isinstance(value, Mapping) and isinstance(template, Mapping) and value.get(_MARK) == template.get(_MARK, "")
    ):
        return False
    shapes = value["shape"], template["shape"]
    same = len(shapes[0]) == len(shapes[1])
    return same and all(expected in (0, length) for length, expected in zip(*shapes, strict=True))


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an array {value[_MARK]} {value['shape']}" if value.keys() == {_MARK, "shape", "data"} else "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "a number" if isinstance(value, int | float) else type(value).__name__
