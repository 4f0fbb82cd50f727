"""Typed state: structs of arrays and numbers, the same as plain values that msgpack can hold, and some of the policies.

A plain value has a schema number. One of an older schema is brought up to date by `MIGRATIONS` before it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from streameval.common.arrays import from_plain, require_fit, to_plain
from streameval.errors import DamagedError, StateError
from streameval.ope.core.drift_rate import ShortSpans

T = TypeVar("T")

FIRST_SCHEMA = 30
"""The oldest schema that can be read."""


def _with_rejections_by_reward(plain: Any) -> Any:
    """Add the decayed number of events that were rejected for their reward, 0 because it was not counted."""
    events = plain["events"]
    return {**plain, "events": {**events, "arrivals": {**events["arrivals"], "by_reward": 0.0}}}


def _with_short_spans(plain: Any) -> Any:
    """Let the drift rates over short spans start from zero, beside each drift rate."""
    block = plain["settings"]["block"]

    def added(value: Any) -> Any:
        if isinstance(value, list):
            return [added(entry) for entry in value]
        if not isinstance(value, Mapping):
            return value
        value = {key: added(entry) for key, entry in value.items()}
        if {"estimators", "drift", "averages", "watched", "history"} <= value.keys():  # the state of a reward
            spans = {}
            for name, rate in value["drift"].items():
                estimator = ShortSpans(int(name.split()[1]))
                policies, columns = from_plain(rate["mean"]).shape
                spans[estimator.name] = encode(estimator.start(policies, columns, block))
            value["spans"] = spans
        return value

    return added(plain)


def _sampling_of_frequencies(plain: Any) -> Any:
    """Add the smallest sampling probability to the comparison of propensities, which knew events of 1 alone."""
    rooms, frequencies = plain["rooms"], plain["rooms"].get("frequencies")
    if frequencies is None:
        return plain
    return {**plain, "rooms": {**rooms, "frequencies": {**frequencies, "sampling": 1.0, "seen": 0}}}


def _support_of_harvested_curves(plain: Any) -> Any:
    """Add how often each rank was shown, and the sum of its ratios, to the sums of a harvested examination curve."""
    ranking = plain["settings"].get("ranking") or {}
    if plain["examination"] is None or ranking["examination"]["kind"] != "harvested":
        return plain
    curve = {}
    for horizon, page_sums in plain["examination"].items():
        sums, squares = from_plain(page_sums["sums"]), from_plain(page_sums["squares"])
        curve[horizon] = to_plain(
            {"sums": np.pad(sums, (0, len(sums))), "squares": np.pad(squares, ((0, len(sums)), (0, len(sums))))}
        )
    return {**plain, "examination": curve}


def _from_30(plain: Any) -> Any:
    """Add what is counted beside the numbers of schema 30."""
    return _support_of_harvested_curves(_sampling_of_frequencies(_with_short_spans(_with_rejections_by_reward(plain))))


def _from_31(plain: Any) -> Any:
    """Add what clipping did to rewards (nothing, as all beyond their ranges were rejected), and tests of losses."""
    return _tests_of_losses({**plain, "events": {**plain["events"], "clipped": {}}})


def _tests_of_losses(plain: Any) -> Any:
    """Let the evidence of `anytime` that a candidate is worse start from zero, beside the one that it is better."""

    def none(value: Any) -> Any:
        if isinstance(value, Mapping) and "__array__" not in value:
            return {key: none(entry) for key, entry in value.items()}
        return to_plain(np.zeros_like(from_plain(value))) if isinstance(value, Mapping) else value

    def added(value: Any) -> Any:
        if isinstance(value, list):
            return [added(entry) for entry in value]
        if not isinstance(value, Mapping):
            return value
        if value.keys() == {"sampling", "centre", "span"}:  # what a sequential test of a lift knows
            return {"better": value, "worse": {**none(value), "sampling": value["sampling"]}}
        return {key: added(entry) for key, entry in value.items()}

    return added(plain)


MIGRATIONS: list[Callable[[Any], Any]] = [_from_30, _from_31]
"""Number n takes the plain state of an evaluator from schema `FIRST_SCHEMA + n` to the next. None is ever removed."""
STATE_SCHEMA = FIRST_SCHEMA + len(MIGRATIONS)


def require_schema(plain: Any, newest: int = STATE_SCHEMA) -> None:
    """Require a schema that can be read.

    Raises:
        DamagedError: The state is not a table.
        StateError: The schema is later than `newest`, or older than `FIRST_SCHEMA`.
    """
    if not isinstance(plain, Mapping):
        raise DamagedError(f"wrong content: the state is {type(plain).__name__}", hint="use an older state")
    schema = plain.get("schema")
    if not isinstance(schema, int) or schema < FIRST_SCHEMA:
        raise StateError(
            f"the state of the evaluator has schema {schema}; the oldest one that can be read is {FIRST_SCHEMA}",
            hint="use the version that wrote it, or start from zero",
        )
    if schema > newest:
        raise StateError(
            f"the state of the evaluator has schema {schema}, of a later version; this one reads up to {newest}",
            hint="use the version that wrote it, or a later one",
        )


def migrated(plain: Any, migrations: Sequence[Callable[[Any], Any]] = MIGRATIONS) -> Any:
    """Return the plain state of an evaluator in the schema of this version.

    Raises:
        DamagedError: The state is not a table.
        StateError: The schema cannot be read.

    >>> migrated({"schema": 30, "seen": 7}, [lambda plain: {"events": plain["seen"]}])
    {'events': 7, 'schema': 31}
    """
    require_schema(plain, FIRST_SCHEMA + len(migrations))
    for entry in range(plain["schema"] - FIRST_SCHEMA, len(migrations)):
        plain = {**migrations[entry](plain), "schema": FIRST_SCHEMA + entry + 1}
    return plain


def encode(state: msgspec.Struct) -> dict[str, Any]:
    """Return a state as a plain value: structs become tables, and arrays their type, shape and bytes."""
    plain: dict[str, Any] = to_plain(state)
    return plain


def decode(plain: Any, fresh: T, path: str = "", kind: Any = Any) -> T:
    """Invert `encode` to the last bit, with the structs of a fresh state and writable arrays.

    What is None or empty in the fresh state has the type of its annotation. The length of an axis that is 0 there may
    be any. A fresh table may have more keys in the plain value, and a plain array there stays plain. A field that is
    None by default may be missing: it was added later, and starts as in the fresh state.

    Args:
        plain: the plain value
        fresh: a state with the right types and shapes
        path: the path of the value, for messages
        kind: the annotation of the value

    Raises:
        DamagedError: A key is missing, or a type or shape is another one.
    """
    decoded: Any
    if isinstance(fresh, np.ndarray):
        require_fit(plain, to_plain(fresh), path)
        decoded = from_plain(plain)
    elif isinstance(fresh, msgspec.Struct):
        fields = _fields(type(fresh))
        if isinstance(plain, Mapping):
            plain = {**{name: to_plain(getattr(fresh, name)) for name in _optional(type(fresh))}, **plain}
        require_fit(plain, dict.fromkeys(fields), path)
        values = {
            name: decode(plain[name], getattr(fresh, name), below(path, name), annotation)
            for name, annotation in fields.items()
        }
        decoded = type(fresh)(**values)
    elif isinstance(fresh, Mapping) and "__array__" not in fresh:
        require_fit(plain, dict.fromkeys(fresh), path)
        value_kind = get_args(kind)[1] if get_origin(kind) is dict else Any
        decoded = {key: decode(value, fresh.get(key), below(path, key), value_kind) for key, value in plain.items()}
    elif isinstance(fresh, list) and fresh:
        require_fit(plain, [None] * len(fresh), path)
        (item_kind,) = get_args(kind) if get_origin(kind) is list else (Any,)
        pairs = enumerate(zip(plain, fresh, strict=True))
        decoded = [decode(value, new, below(path, index), item_kind) for index, (value, new) in pairs]
    elif fresh is None and plain is None:
        decoded = None
    elif fresh is None or isinstance(fresh, list):
        decoded = _converted(plain, path, kind)
    else:
        require_fit(plain, fresh, path)
        decoded = plain
    result: T = decoded
    return result


@cache
def _optional(kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields that are None by default."""
    return [field.name for field in msgspec.structs.fields(kind) if field.default is None]


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the annotation of each field. It is kept, because msgspec evaluates all annotations for every call."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def below(path: str, key: object) -> str:
    """Return the path of an entry."""
    return f"{path}.{key}" if path else str(key)


def _converted(plain: Any, path: str, kind: Any) -> Any:
    """Return a plain value as an annotated type."""
    if kind is Any:
        return from_plain(plain)
    try:
        return msgspec.convert(plain, kind, dec_hook=_array)
    except (msgspec.ValidationError, TypeError, ValueError, KeyError) as error:
        raise DamagedError(f"wrong content: {path}: {error}", hint="use an older state") from error


def _array(kind: Any, plain: Any) -> Any:
    """Return an array of the annotated type."""
    array, wanted = from_plain(plain), np.dtype(get_args(get_args(kind)[1])[0])
    if not isinstance(array, np.ndarray) or array.dtype != wanted:
        raise ValueError(f"expected an array {wanted.str}")
    return array


class Company(NamedTuple):
    """Hold the numbers of policies when the state of late ones joins another state.

    Attributes:
        before: policies of the state that they join
        late: policies of their own state, production first and the new ones last
        new: the policies that are new
    """

    before: int
    late: int
    new: int


def joined(state: Any, late: Any, company: Company) -> Any:
    """Return a state with the new policies of a late one behind its own. What policies share stays as it is.

    An array of candidates alone is one shorter than `company` says. Entries that only one of both has are kept.

    >>> company = Company(before=2, late=2, new=1)
    >>> joined({"events": 7, "sums": np.array([1.0, 2.0])}, {"events": 3, "sums": np.array([0.5, 3.0])}, company)
    {'events': 7, 'sums': array([1., 2., 3.])}
    """
    if isinstance(state, np.ndarray) or isinstance(late, np.ndarray):
        if state is None:
            state = np.zeros((len(late) - company.late + company.before, *late.shape[1:]), late.dtype)
        if late is None:
            late = np.zeros((len(state) - company.before + company.late, *state.shape[1:]), state.dtype)
        return np.concatenate([state, late[len(late) - company.new :]])
    if isinstance(state, msgspec.Struct):
        names = state.__struct_fields__
        return type(state)(**{name: joined(getattr(state, name), getattr(late, name), company) for name in names})
    if isinstance(state, dict):
        both = {name: joined(value, late[name], company) if name in late else value for name, value in state.items()}
        return {**late, **both}
    if isinstance(state, list):
        return [joined(*pair, company) for pair in zip(state, late, strict=True)]
    return state


def select_policies(state: Any, index: Sequence[int]) -> Any:
    """Return a state for some of its policies, which are axis 0 of every array. All else is shared by policies.

    >>> select_policies({"events": 7, "sums": np.array([1.0, 2.0, 3.0])}, [0, 2])
    {'events': 7, 'sums': array([1., 3.])}
    """
    if isinstance(state, np.ndarray):
        return state.take(np.asarray(index, dtype=np.int64), axis=0)
    if isinstance(state, msgspec.Struct):
        return type(state)(**{name: select_policies(getattr(state, name), index) for name in state.__struct_fields__})
    if isinstance(state, dict):
        return {name: select_policies(value, index) for name, value in state.items()}
    return [select_policies(entry, index) for entry in state] if isinstance(state, list) else state
