"""Test structs as plain values, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from streameval.common.arrays import Array, Integers, Mask
from streameval.errors import DamagedError, StateError
from streameval.ope.core.state import FIRST_SCHEMA, decode, encode, migrated, select_policies


class Leaf(msgspec.Struct, frozen=True, eq=False):
    sums: Array
    seen: Mask
    positions: Integers
    name: str = "leaf"


class Tree(msgspec.Struct, eq=False):
    leaves: dict[str, Leaf]
    later: Leaf | None
    path: list[Leaf]
    numbers: list[float]
    signed: Array | None = None
    other: Any = None
    count: int = 0


def leaf(policies: int = 2) -> Leaf:
    return Leaf(np.arange(6.0 * policies).reshape(policies, 6)[:, ::2], np.ones(policies, bool), np.arange(policies))


def tree() -> Tree:
    extremes = np.array([-0.0, np.nan, np.inf, 5e-324])
    return Tree({"a": leaf()}, leaf(), [leaf(), leaf()], [0.1, np.inf], extremes, {"free": [1, None, "x"]}, 3)


def fresh() -> Tree:
    return Tree({"a": Leaf(np.zeros((2, 3)), np.zeros(2, bool), np.zeros(2, np.int64))}, None, [], [])


def sent(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def test_a_state_comes_back_bit_for_bit_writable_and_contiguous() -> None:
    actual = decode(sent(encode(tree())), fresh())
    assert msgspec.msgpack.encode(encode(actual)) == msgspec.msgpack.encode(encode(tree()))
    assert isinstance(actual.later, Leaf)
    assert actual.signed is not None
    assert actual.signed.tobytes() == tree().signed.tobytes()  # type: ignore[union-attr]
    for member in (actual.leaves["a"], actual.later, *actual.path):
        for array in (member.sums, member.seen, member.positions):
            assert array.flags.writeable
            assert array.flags.c_contiguous
    assert (actual.other, actual.count, actual.numbers) == ({"free": [1, None, "x"]}, 3, [0.1, np.inf])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("leaves", "a", "sums", "shape"), [3, 2], r"leaves\.a\.sums is an array <f8 \[3, 2\], expected"),
        (("leaves", "a", "seen", "__array__"), "<i8", r"leaves\.a\.seen is an array <i8 \[2\], expected an array \|b1"),
        (("leaves", "a", "sums", "data"), b"1", r"leaves\.a\.sums has 1 bytes, expected 48"),
        (("leaves", "a", "name"), 7, r"leaves\.a\.name is a number, expected str"),
        (("leaves", "a"), [], r"leaves\.a is a list of 0, expected a table"),
        (("leaves",), {}, r"leaves\.a is missing"),
        (("count",), "many", "count is str, expected a number"),
        (("numbers",), ["many"], "numbers: Expected `float`"),
        (("later", "name"), 7, "later: Expected `str`"),
        (("path",), 7, "path: Expected `array`"),
    ],
)
def test_a_field_that_does_not_fit_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    plain = sent(encode(tree()))
    node = plain
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(DamagedError, match=message):
        decode(plain, fresh())


def test_migrations_are_applied_in_turn() -> None:
    def doubled(plain: Any) -> Any:
        return {**plain, "count": 2 * plain["count"]}

    def renamed(plain: Any) -> Any:
        return {"number": plain["count"]}

    migrations, first = [doubled, renamed, doubled_number], FIRST_SCHEMA
    assert migrated({"schema": first, "count": 3}, migrations) == {"number": 12, "schema": first + 3}
    assert migrated({"schema": first + 1, "count": 3}, migrations) == {"number": 6, "schema": first + 3}
    assert migrated({"schema": first + 3, "number": 3}, migrations) == {"number": 3, "schema": first + 3}
    for schema in (first - 1, first + 4, None, "30"):
        with pytest.raises(StateError, match=f"schema {schema}"):
            migrated({"schema": schema, "count": 3}, migrations)
    with pytest.raises(DamagedError):
        migrated([], migrations)


def doubled_number(plain: Any) -> Any:
    return {**plain, "number": 2 * plain["number"]}


def test_some_policies_are_taken_from_every_array() -> None:
    actual = select_policies(Tree({"a": leaf(3)}, None, [leaf(3)], [1.0], count=3), [2, 0])
    for member in (actual.leaves["a"], actual.path[0]):
        np.testing.assert_array_equal(member.sums, leaf(3).sums[[2, 0]])
        assert member.positions.tolist() == [2, 0]
    assert (actual.count, actual.numbers) == (3, [1.0])
