"""Test that states of this and of earlier versions continue, and that changed states are found."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.common.arrays import to_plain
from streameval.errors import DamagedError
from streameval.ope.core import state as states
from streameval.ope.evaluator import evaluator
from support.golden_states import CASES, STATES, continued, read, written

FILES = sorted(STATES.iterdir())


def test_every_schema_has_a_state_of_every_case() -> None:
    schemas = range(states.FIRST_SCHEMA, states.STATE_SCHEMA + 1)
    wanted = {f"{schema}-{case}.msgpack.gz" for schema in schemas for case in CASES}
    assert {path.name for path in FILES} == wanted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_a_kept_state_continues_with_the_recorded_numbers(path: Path) -> None:
    content = read(path)
    actual = continued(path.name.partition(".")[0].partition("-")[2], content["state"])
    assert actual == pytest.approx(content["numbers"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_reading_a_state_does_not_change_it(case: str) -> None:
    state = written(case)
    again = se.Evaluator.from_state(deepcopy(state))
    assert msgspec.msgpack.encode(again.state()) == msgspec.msgpack.encode(state)


def test_a_state_of_an_earlier_schema_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    state = written("default")
    early = {**state, "schema": states.FIRST_SCHEMA}
    early["occurrences"] = early.pop("events")

    def renamed(plain: Any) -> Any:
        return {
            **{name: value for name, value in plain.items() if name != "occurrences"},
            "events": plain["occurrences"],
        }

    monkeypatch.setattr(evaluator, "migrated", lambda plain: states.migrated(plain, [renamed]))
    report = se.Evaluator.from_state(early).report()
    monkeypatch.undo()
    assert report == se.Evaluator.from_state(state).report()


def entries_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each entry that is a number, an array or a table, as its container and its key."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, dict) and "__array__" in entry:
            yield value, key
        elif isinstance(entry, dict | list):
            if isinstance(value, dict):
                yield value, key
            yield from entries_in(entry)
        elif isinstance(entry, bool | int | float) and isinstance(value, dict):
            yield value, key


@pytest.mark.parametrize("case", ["everything", "rewards_and_segments"])
@pytest.mark.parametrize("other", [to_plain(np.zeros((7, 7), dtype=bool)), "text"], ids=["array", "text"])
def test_an_entry_of_another_type_is_found_by_its_path(case: str, other: Any) -> None:
    state = written(case)
    tables = {name: table for name, table in state.items() if name not in {"schema", "settings", "pending"}}
    accepted, entries = [], list(entries_in(tables))
    assert len(entries) > 200
    for container, key in entries[:: len(entries) // 25]:
        before, container[key] = container[key], other
        try:
            se.Evaluator.from_state({**state, **tables})
            accepted.append((key, before))
        except DamagedError as error:
            assert str(key) in str(error) or isinstance(key, int)  # noqa: PT017
        container[key] = before
    assert not accepted


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("promotion", "trust", "weights", "bets"), "promotion.trust.weights.bets"),
        (("grids", 0, "rewards", 0, "averages", "mixture", "values", "overlap"), "mixture.values.overlap"),
        (("events", "arrivals", "accepted"), "events.arrivals.accepted"),
    ],
)
def test_a_missing_key_is_named(path: tuple[Any, ...], message: str) -> None:
    state = written("everything")
    node: Any = state
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    with pytest.raises(DamagedError, match=f"{message} is missing"):
        se.Evaluator.from_state(state)
