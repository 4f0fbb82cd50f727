"""Frames of pandas, polars and Arrow give the events that the same rows give as arrays or JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streameval import read_events
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder, fingerprints

FRAMES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "chunks": lambda columns: pa.concat_tables([pa.table(columns).slice(0, 1), pa.table(columns).slice(1)]),
    "categories": lambda columns: pd.DataFrame(columns).astype(
        {name: "category" for name, cells in columns.items() if isinstance(cells[0], str)}
    ),
    "dictionary": dict,
}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS: dict[str, list[Any]] = {
    "ts": [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)],
    "action": ["a", "b", "a"],
    "p": [0.5, 0.25, 0.1],
    "click": [True, False, True],
    "p_new": [0.1, None, 0.3],
    "user": ["u", None, "u"],
}
COLUMNS = {"timestamp": "ts", "propensity": "p", "reward": "click", "unit": "user", "policies": {"challenger": "p_new"}}

frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


@frames
def test_a_frame_gives_the_events_of_the_same_arrays(frame: Callable[[Any], Any]) -> None:
    batch = EventBatch.from_frame(frame(ROWS), COLUMNS)
    expected = EventBatch.from_arrays(
        reward=[1, 0, 1],
        propensity=[0.5, 0.25, 0.1],
        policies={"challenger": [0.1, np.nan, 0.3]},
        timestamp=[moment.timestamp() for moment in ROWS["ts"]],
        unit=["u", None, "u"],
    )
    assert (batch.policies, batch.rejected) == (("challenger",), ())
    for name in ("reward", "propensity", "probabilities", "timestamp", "sampling_probability", "unit"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))


@frames
def test_an_invalid_row_is_rejected_at_its_place(frame: Callable[[Any], Any]) -> None:
    batch = EventBatch.from_frame(frame(ROWS | {"p": [0.5, 25.0, 0.1]}), COLUMNS)
    assert batch.reward.tolist() == [1.0, 1.0]
    (rejected,) = batch.rejected
    assert (rejected.reason, rejected.place) == ("propensity_range", 1)


@frames
def test_lists_and_constant_actions_and_several_context_columns(frame: Callable[[Any], Any]) -> None:
    rows = {
        "action": ["a", "b"],
        "propensities": [[0.5, 0.5], [0.2, 0.8]],
        "reward": [1, 0],
        "even": [[0.5, 0.5], [0.5, 0.5]],
        "country": ["de", "fr"],
        "age": [31, 42],
    }
    columns = {"actions": ["a", "b"], "context": ["country", "age"]}
    batch = EventBatch.from_frame(frame(rows), columns, policies=["even"], scores=[])
    assert batch.propensity.tolist() == [0.5, 0.8]
    assert batch.probabilities.tolist() == [[0.5], [0.5]]
    assert batch.raw_fields is not None
    assert [fields["context"] for fields in batch.raw_fields.values] == [
        {"country": "de", "age": 31},
        {"country": "fr", "age": 42},
    ]
    assert [fields["actions"] for fields in batch.raw_fields.values] == [["a", "b"]] * 2


@frames
def test_lists_of_names_differ_from_row_to_row(frame: Callable[[Any], Any]) -> None:
    rows = {
        "action": ["a", "c"],
        "actions": [["a", "b"], ["c"]],
        "propensities": [[0.5, 0.5], [1.0]],
        "reward": [1, 0],
        "new": [[0.25, 0.75], [1.0]],
    }
    batch = EventBatch.from_frame(frame(rows), policies=["new"])
    assert batch.probabilities.tolist() == [[0.25], [1.0]]
    assert batch.action_sets is not None
    assert batch.action_sets.sizes.tolist() == [2, 1]


@pytest.mark.parametrize(
    "times",
    [
        pd.Series(pd.to_datetime(["2026-01-31T12:00:00"])).astype("datetime64[s]"),
        pd.Series(pd.to_datetime(["2026-01-31T12:00:00"])).astype("datetime64[ns]"),
        pd.Series(pd.to_datetime(["2026-01-31T13:00:00+01:00"])),
        pd.Series([NOON], dtype=object),
        pd.Series(["2026-01-31T12:00:00"]),
        pd.Series([1769860800]),
        pl.Series([NOON.replace(tzinfo=None)], dtype=pl.Datetime("ms")),
        pl.Series([NOON], dtype=pl.Datetime("ns", "UTC")),
    ],
)
def test_times_are_read_by_the_type_of_their_column(times: Any) -> None:
    rows = {"timestamp": times, "action": ["a"], "propensity": [0.5], "reward": [1]}
    frame = pd.DataFrame(rows) if isinstance(times, pd.Series) else pl.DataFrame(rows)
    assert EventBatch.from_frame(frame).timestamp.tolist() == [1769860800.0]


def test_dates_count_from_midnight() -> None:
    rows = {"timestamp": [date(2026, 1, 31)], "action": ["a"], "propensity": [0.5], "reward": [1]}
    assert EventBatch.from_frame(pl.DataFrame(rows)).timestamp.tolist() == [1769817600.0]


def test_without_a_timestamp_rows_have_no_time() -> None:
    rows = {"action": ["a", "b"], "propensity": [0.5, 2.0], "reward": [1, 0]}
    batch = EventBatch.from_frame(pd.DataFrame(rows))
    assert np.isnan(batch.timestamp).tolist() == [True]
    assert [rejection.reason for rejection in batch.rejected] == ["propensity_range"]


def test_the_index_of_pandas_can_hold_a_field() -> None:
    frame = pd.DataFrame(ROWS).set_index("ts")
    assert EventBatch.from_frame(frame, COLUMNS).timestamp[0] == datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def test_the_frame_is_left_as_it_was_and_may_be_empty() -> None:
    frame = pd.DataFrame(ROWS)
    before = frame.copy()
    EventBatch.from_frame(frame, COLUMNS)
    pd.testing.assert_frame_equal(frame, before)
    assert len(EventBatch.from_frame(frame[:0], COLUMNS)) == 0
    assert len(EventBatch.from_frame(pl.DataFrame(ROWS)[:0], COLUMNS)) == 0


@pytest.mark.parametrize(
    ("frame", "columns", "message"),
    [
        (pd.DataFrame(ROWS), {"action": "act"}, r"the frame has no column 'act' for action; it has ts, action, p, "),
        (pd.DataFrame(ROWS), {"policy": "p_new"}, "columns: policy: events have no such field"),
        (pd.DataFrame(ROWS), {"action": 3}, "columns: action: expected the name of a column"),
        (
            pd.DataFrame(ROWS),
            {"policies": ["newer"], "reward": "click", "propensity": "p"},
            "no column 'newer' for newer",
        ),
        (pd.DataFrame({"action": ["a", 1]}), None, "the frame cannot become an Arrow table: "),
        (pd.DataFrame(ROWS), "p", "columns: expected a mapping by field, found 'p'"),
        (pd.DataFrame(ROWS), ["p"], "columns: expected a mapping by field, found "),
        (pd.DataFrame(ROWS), {"reward": "click"}, "the frame has no column with the propensity"),
    ],
)
def test_a_frame_that_lacks_a_column_is_refused(frame: Any, columns: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EventBatch.from_frame(frame, columns)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ([1, 2], "list: give the path"),
        ("log.csv", "str: read_events and"),
        (np.zeros(3), r"pandas.DataFrame\(array, columns="),
        ([pd.DataFrame(ROWS)] * 2, r"join the frames into one, e.g. pandas.concat\(frames\)"),
        ([pl.DataFrame(ROWS)] * 2, r"polars.concat\(frames\)"),
        ([{"action": "a"}], r"pandas.DataFrame\(rows\)"),
        (pd.DataFrame(ROWS)["action"], "Series: give the whole frame"),
        (pl.DataFrame(ROWS)["action"], "Series: give the whole frame"),
    ],
)
def test_another_type_is_refused_with_a_remedy(value: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=f"expected a frame of pandas or polars, or an Arrow table, found .*{remedy}"):
        EventBatch.from_frame(value)


def test_a_number_as_text_among_numbers_is_named() -> None:
    with pytest.raises(InputError, match="cannot become an Arrow table") as caught:
        EventBatch.from_frame(pd.DataFrame({"reward": [1, "0,6"]}))
    assert caught.value.hint.startswith("write a decimal point for the comma")


def test_single_values_are_no_columns() -> None:
    with pytest.raises(InputError, match="cannot become an Arrow table") as caught:
        EventBatch.from_frame({"action": ["a"], "p": 0.5})
    assert "'p' is one value, not a list" in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"policies": "new"}, "policies: expected a list of names, found 'new'", 'policies=["NAME"]'),
        ({"reward_range": 1}, "reward_range: expected the smallest and a larger reward, found 1", "(0, 1)"),
        ({"reward_range": (1, 0)}, "reward_range: expected the smallest and a larger reward, found (1, 0)", "(0, 1)"),
        ({"reward_range": {"max": 1}}, "reward_range: expected the smallest and a larger reward, found a", "(0, 1)"),
        ({"scores": "softmax"}, "scores: expected a list of names, found 'softmax'", 'scores=["NAME"]'),
        ({"reward_field": None}, "reward_field: expected the name of a field, found nothing", "rewards="),
        ({"estimated": "no"}, "estimated: expected True or False, found 'no'", "estimated=True is for logs without"),
        ({"segments": ["day"]}, "segments: expected a mapping by name, found ['day']", 'segments={"country"'),
        ({"segments": "day"}, "segments: expected a mapping by name, found 'day'", 'segments={"country"'),
        ({"segments": {"day": 5}}, "segments.day: expected the name of a field, found 5", 'segments={"country"'),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, arguments: dict[str, Any], message: str, hint: str) -> None:
    (tmp_path / "log.ndjson").touch()
    for read in (partial(EventBatch.from_frame, ROWS, COLUMNS), partial(read_events, tmp_path / "log.ndjson")):
        with pytest.raises(InputError) as caught:
            next(iter(read(**arguments)))
        assert caught.value.message.startswith(message)
        assert hint in caught.value.hint


def test_the_reward_is_named_once() -> None:
    with pytest.raises(InputError, match=r"next to columns\['reward'\] \('click'\)"):
        EventBatch.from_frame(pd.DataFrame(ROWS), {"reward": "click"}, reward_field="other")


SETS: dict[str, list[Any]] = {
    "action": ["a", "b", "", "z", None],
    "propensity": [None, 0.25, 0.5, 2.0],
    "actions": [["a", "b"], ["b", "c", "a"], ["a"], None, [], ["a", None], ["b", "b"]],
    "propensities": [[0.5, 0.5], [0.25, 0.25, 0.5], [1.0], None, [], [0.5, 0.6], [0.5, None], [2.0, -1.0], [math.inf]],
    "features": [
        [[1.0], [2.0]],
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        [[1.0]],
        None,
        [],
        [[], []],
        [[1.0], [2.0, 3.0]],
        [[1.0], None],
        [[1.0], [None]],
        [[math.inf], [1.0]],
    ],
    "listed": [[0.25, 0.75], [0.2, 0.3, 0.5], [1.0], None, [0.9, 0.3], [math.nan, 1.0]],
    "single": [0.25, None, 3.0],
    "reward": [1.0, 0.0, None, 7.0],
}


def drawn_sets(number: int, good: float, present: Sequence[str], seed: int) -> dict[str, list[Any]]:
    """Draw rows with fitting lists of two or three actions. A cell is any of `SETS` with probability `1 - good`."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(2, size=number)
    return {
        name: [
            SETS[name][kind if isinstance(SETS[name][0], list) else 0]
            if rng.random() < good
            else SETS[name][rng.integers(len(SETS[name]))]
            for kind in kinds
        ]
        for name in present
    }


@pytest.mark.parametrize("absent", ["propensity", "propensities", "features", "listed", "single"])
@pytest.mark.parametrize(("good", "chunked"), [(0.97, True), (0.7, False)])
def test_action_sets_in_columns_equal_rows_read_one_by_one(absent: str, good: float, chunked: bool) -> None:
    number, present = 300, [name for name in SETS if name != absent]
    rows = drawn_sets(number, good, present, seed=len(absent))
    table = pa.table(rows)
    table = pa.concat_tables([table.slice(0, 70), table.slice(70)]) if chunked else table
    policies = [name for name in ("listed", "single") if name != absent]
    batch = EventBatch.from_frame(table, policies=policies, reward_range=(0.0, 1.0))
    one_by_one = [
        {"event_id": "", "timestamp": 0.0}
        | {name: cell for name, cell in zip(present, cells, strict=True) if name not in policies}
        | {"policies": {name: _plain_cell(rows[name][index]) for name in policies}}
        for index, cells in enumerate(zip(*rows.values(), strict=True))
    ]
    expected = JsonDecoder(policies, reward_range=(0.0, 1.0), scores=()).decode_rows(one_by_one)
    assert [(rejection.place, rejection.reason, rejection.detail) for rejection in batch.rejected] == [
        (rejection.place, rejection.reason, rejection.detail) for rejection in expected.rejected
    ]
    np.testing.assert_equal(
        {**batch.to_state(), "timestamp": None, "origin": None},
        {**expected.to_state(), "timestamp": None, "origin": None},
    )
    assert 0 < len(batch) < number


def _plain_cell(cell: Any) -> Any:
    """Return a list with null in place of NaN, as rows have it."""
    return [None if number != number else number for number in cell] if isinstance(cell, list) else cell


def test_integers_name_actions_in_columns_too() -> None:
    frame = {"action": [7, 8, 9], "reward": [1, 0, 1], "actions": [[7, 8], [7, 8], [7, 8]]}
    batch = EventBatch.from_frame(pa.table(frame | {"propensities": [[0.5, 0.5]] * 3}))
    assert batch.action_sets is not None
    assert batch.action_sets.index.tolist() == [0, 1]
    assert [(rejection.place, rejection.reason) for rejection in batch.rejected] == [(2, "unknown_action")]


def test_a_column_without_values_costs_no_time_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonDecoder, "decode_rows", None)
    nothing = pa.array([None, None])
    frame = {"action": ["a", "b"], "propensity": [0.5, 0.5], "reward": [1, 0], "unit": nothing, "new": nothing}
    frame |= {"actions": pa.array([None, None], pa.list_(pa.string())), "features": nothing}
    batch = EventBatch.from_frame(pa.table(frame), policies=["new"])
    assert batch.reward.tolist() == [1.0, 0.0]
    assert np.isnan(batch.probabilities).all()
    assert (batch.action_sets, batch.unit) == (None, None)


@pytest.mark.parametrize(
    "unit",
    [
        pa.array([b"\xff" * 16, b"\x00" * 16], pa.binary(16)),
        pa.array([b"\xff", b"\xfe"], pa.binary()),
        pa.array([1, 2], pa.time32("s")),
        pa.array([1, 2], pa.duration("s")),
    ],
)
def test_identifiers_of_any_type_are_accepted(unit: Any) -> None:
    table = pa.table(
        {"action": ["a", "a"], "propensity": [0.5, 0.5], "reward": [1.0, 0.0], "p": [0.5, 0.5], "unit": unit}
    )
    batch = EventBatch.from_frame(table, policies=["p"])
    assert not batch.rejected
    assert batch.unit is not None
    assert len(set(batch.unit.tolist())) == 2


def test_dates_inside_of_columns_are_text() -> None:
    context = [{"day": date(2026, 1, 1)}, {"day": date(2026, 1, 2)}, {"day": date(2026, 1, 1)}]
    table = pa.table(
        {"action": ["a"] * 3, "propensity": [0.5] * 3, "reward": [1.0] * 3, "p": [0.5] * 3, "context": context}
    )
    batch = EventBatch.from_frame(table, policies=["p"], segments={"day": "context.day"})
    assert batch.segments is not None
    assert len(set(batch.segments.values[:, 0].tolist())) == 2


def test_a_table_with_an_empty_chunk_is_read() -> None:
    numbers = pa.array([0.5, 0.5])
    chunks = pa.chunked_array([numbers.slice(1, 0), numbers])
    batch = EventBatch.from_frame(
        pa.table({"action": ["a", "a"], "propensity": chunks, "reward": chunks, "p": chunks}), policies=["p"]
    )
    assert len(batch) == 2


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "de"]), pl.String])
def test_categories_of_polars_are_text(kind: Any) -> None:
    frame = pl.DataFrame(
        {
            "action": pl.Series(["a", None, "b"], dtype=kind),
            "unit": pl.Series(["a", "b", "b"], dtype=kind),
            "actions": pl.Series([["a", "b"]] * 3, dtype=pl.List(kind)),
            "propensities": [[0.5, 0.5]] * 3,
            "context": pl.Series([{"country": "de"}] * 3, dtype=pl.Struct({"country": kind})),
            "reward": [1, 0, 0],
        }
    )
    batch = EventBatch.from_frame(frame, policies=[], segments={"country": "context.country"})
    assert [(rejected.place, rejected.detail) for rejected in batch.rejected] == [(1, "action: missing")]
    assert batch.unit is not None
    assert batch.segments is not None
    assert batch.action_sets is not None
    assert batch.unit.tolist() == fingerprints(["a", "b"]).tolist()
    assert batch.segments.values[:, 0].tolist() == fingerprints(["de", "de"]).tolist()
    assert batch.action_sets.index.tolist() == [0, 1]


def test_decimals_are_numbers_and_maps_are_objects() -> None:
    half = Decimal("0.5")
    frame = pa.table(
        {
            "action": ["a", "b"],
            "actions": [["a", "b"]] * 2,
            "propensities": [[half, half]] * 2,
            "challenger": [[half / 2, half + half / 2]] * 2,
            "reward": [half, 2 * half],
            "context": pa.array([[("level", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    batch = EventBatch.from_frame(frame, policies=["challenger"], segments={"level": "context.level"})
    assert batch.rejected == ()
    assert batch.probabilities.tolist() == [[0.25], [0.75]]
    assert batch.reward.tolist() == [0.5, 1.0]
    assert batch.segments is not None
    assert batch.segments.values[:, 0].tolist() == [*fingerprints([1]).tolist(), 0]
