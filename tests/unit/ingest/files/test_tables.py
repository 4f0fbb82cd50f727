"""Parquet and CSV give the same numbers and rejections as JSON."""

from __future__ import annotations

import builtins
import bz2
import csv
import decimal
import gzip
import io
import json
import lzma
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.cli.replay import Replay
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, Fault, JsonDecoder, Origin, fingerprints
from streameval.events.arrow_messages import NAMES_KEY, arrow_message
from streameval.events.further_rewards import RewardField
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames
from streameval.ingest.files.reading import read_events
from streameval.ingest.files.source import read_lines
from streameval.ingest.files.tables import read_rows, read_table
from streameval.ope.report import Report
from support.commands import command
from support.fuzz_messages import corpus
from support.strategies import examples

CONFIGURED = """
policies: {candidates: [challenger, even]}
columns: {timestamp: ts, action: a, propensity: p, reward: click, policies: {challenger: p_new}}
estimators: [ips, snips]
averages: [cumulative]
"""
PLAIN = "policies: {candidates: [challenger]}\nestimators: [ips]\naverages: [cumulative]\n"


def columns(n: int = 500, seed: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    propensity = rng.uniform(0.1, 0.9, n)
    return {
        "ts": 1.6e9 + np.arange(n),
        "a": rng.integers(0, 9, n),
        "p": propensity,
        "click": (rng.random(n) < 0.3).astype(float),
        "p_new": rng.uniform(0, 1, n),
        "even": np.where(rng.random(n) < 0.1, np.nan, 1 / 9),
    }


def configured(tmp_path: Path, text: str = CONFIGURED) -> Config:
    path = tmp_path / "streameval.yaml"
    path.write_text(text)
    return Config.load(path, {})


def replayed(tmp_path: Path, *files: Path, text: str = CONFIGURED, written: str | None = None) -> Report:
    return Replay(configured(tmp_path, text)).read([str(file) for file in files], written)


def parquet_file(path: Path, table: Any, **options: Any) -> Path:
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return path


def arrow_file(path: Path, table: Any, rows: int = 64, *, of_stream: bool = False, **options: Any) -> Path:
    """Write Arrow IPC in batches of some rows, with options such as `compression`."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    write = pa.ipc.new_stream if of_stream else pa.ipc.new_file
    with path.open("ab") as file, write(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows)
    return path


def csv_file(path: Path, table: Any) -> Path:
    pa.csv.write_csv(pa.table(table), path)
    return path


def json_file(path: Path, table: dict[str, Any]) -> Path:
    rows = zip(*(np.asarray(column).tolist() for column in table.values()), strict=True)
    lines = []
    for number, (ts, action, propensity, click, challenger, even) in enumerate(rows):
        event = {"event_id": number, "ts": ts, "a": action, "p": propensity, "click": click, "p_new": challenger}
        lines.append(json.dumps(event | {"policies": {"even": None if np.isnan(even) else even}}))
    path.write_text("\n".join(lines))
    return path


def csv_of(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_parquet_arrow_csv_and_json_of_the_same_events_give_the_same_report(tmp_path: Path) -> None:
    table = columns()
    expected = replayed(tmp_path, json_file(tmp_path / "log.ndjson", table))
    assert expected.events.accepted == 500
    assert 0 < expected.policies[2].missing < 500
    files = [parquet_file(tmp_path / "log.parquet", table), csv_file(tmp_path / "log.csv", table)]
    files += [
        arrow_file(tmp_path / "log.arrow", table, 500),
        arrow_file(tmp_path / "log.feather", table, compression="lz4"),
        arrow_file(tmp_path / "log.arrows", table, 7, of_stream=True, compression="zstd"),
        arrow_file(tmp_path / "unnamed", table),
        arrow_file(tmp_path / "unnamed_stream", table, of_stream=True),
    ]
    for file in files:
        assert replayed(tmp_path, file) == expected


PAGE = {"shown": ["a", "b", "c"], "clicked": ["b"]}


@pytest.mark.parametrize("kind", ["slate", "outcome", "page"])
def test_tables_of_slates_scores_and_pages_give_the_report_of_json(tmp_path: Path, kind: str) -> None:
    events = [json.loads(text) for text in corpus("slate" if kind == "page" else kind, random.Random(5), 80)]
    if kind == "page":
        fields = {"ranking": PAGE, "policies": {"a": ["c", "b", "a"]}}
        events = [{"timestamp": number, "unit": "u", **fields} for number in range(80)]
    events = [event | {"event_id": f"e-{number}" if number != 7 else None} for number, event in enumerate(events)]
    candidates = "production: a, candidates: [b]" if kind == "outcome" else "candidates: [a]"
    config = configured(tmp_path, f"policies: {{{candidates}}}\n" + "ranking: {}\n" * (kind == "page"))
    lines, cells = tmp_path / "log.ndjson", tmp_path / "log.csv"
    lines.write_text("".join(json.dumps(event) + "\n" for event in events))
    table = pa.ipc.open_stream(arrow_message(events)).read_all()
    with cells.open("w", newline="") as file:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(cell) if isinstance(cell, dict | list) else cell for name, cell in event.items()}
            for event in events
        )
    expected = Replay(config).read([str(lines)])
    assert (expected.events.accepted, expected.events.rejected) == (79, {"missing_field": 1})
    for path in (parquet_file(tmp_path / "log.parquet", table), arrow_file(tmp_path / "log.arrow", table, 80), cells):
        assert Replay(config).read([str(path)]) == expected


def test_a_column_may_name_the_unit_of_each_row(tmp_path: Path) -> None:
    units = np.arange(2_000) // 20
    table = {**columns(2_000), "session": units}
    text = CONFIGURED.replace("columns: {", "columns: {unit: session, ")
    text_table = {**table, "session": [str(unit) for unit in units]}
    files = [parquet_file(tmp_path / "log.parquet", table), csv_file(tmp_path / "log.csv", table)]
    files += [parquet_file(tmp_path / "text.parquet", text_table), csv_file(tmp_path / "text.csv", text_table)]
    first, *others = (replayed(tmp_path, file, text=text) for file in files)
    assert first.events.accepted == 2_000
    assert first.get("challenger", "ips", "cumulative").details["design_effect_of"] == "units"
    assert all(other == first for other in others)


def test_files_of_all_kinds_may_be_mixed(tmp_path: Path) -> None:
    parts = [{name: column[start : start + 100] for name, column in columns().items()} for start in range(0, 500, 100)]
    compressed = tmp_path / "2.csv.gz"
    compressed.write_bytes(gzip.compress(csv_file(tmp_path / "2.csv", parts[1]).read_bytes()))
    files = [
        parquet_file(tmp_path / "1.parquet", parts[0]),
        compressed,
        json_file(tmp_path / "3.ndjson", parts[2]),
        csv_file(tmp_path / "4.csv", parts[3]),
        parquet_file(tmp_path / "5.parquet", parts[4]),
    ]
    assert replayed(tmp_path, *files) == replayed(tmp_path, json_file(tmp_path / "log.ndjson", columns()))


def test_a_format_that_is_asked_for_beats_the_ending(tmp_path: Path) -> None:
    file = parquet_file(tmp_path / "log.data", columns())
    assert replayed(tmp_path, file, written="parquet").events.accepted == 500
    named = csv_file(tmp_path / "table.parquet", columns())
    assert replayed(tmp_path, named, written="csv").events.accepted == 500


@examples(20)
@given(group=st.integers(1, 700), n=st.integers(1, 600))
def test_row_groups_change_nothing(tmp_path_factory: pytest.TempPathFactory, group: int, n: int) -> None:
    directory = tmp_path_factory.mktemp("groups")
    whole = replayed(directory, parquet_file(directory / "whole.parquet", columns(n)))
    parts = replayed(directory, parquet_file(directory / "parts.parquet", columns(n), row_group_size=group))
    assert parts == whole
    assert whole.events.accepted == n


NUMBERS = [0.5, 0.25, 1.0, 1, 0, -0.5, 2.0, 1e300, math.inf, -math.inf, None]
FIELDS = {
    "event_id": ["e-1", "e-2", "", None],
    "timestamp": [1.6e9, 1.6e9 + 0.5, 7e9, 1e14, math.inf, None],
    "action": ["x", "y", "", None],
    "propensity": NUMBERS,
    "reward": [*NUMBERS, 3.0],
    "sampling_probability": NUMBERS,
    "unit": ["u-1", "u-2", "", None],
    "a": NUMBERS,
    "b": NUMBERS,
    "revenue": NUMBERS,
    "country": ["de", "fr", "7", "true", "", None],
}


def decoded(path: Path, decoder: JsonDecoder, names: ColumnNames) -> EventBatch:
    kind = path.suffix.removeprefix(".")
    return EventBatch.concat(read_table(str(path), kind, names, decoder, lambda read, total: None))


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize(("good", "seed"), [(0.98, 1), (0.6, 2), (0.9, 3)])
def test_rows_of_a_table_are_accepted_and_rejected_as_json(tmp_path: Path, ending: str, good: float, seed: int) -> None:
    """Leave out some columns, and draw cells of others, good with the probability `good`. CSV has no empty text."""
    rng, n = np.random.default_rng(seed), 2100
    optional, more = ("unit", "sampling_probability", "a"), ("revenue", "country") if seed > 2 else ()
    always = [name for name in FIELDS if name not in (*optional, "revenue", "country")]
    present = [*always, *(name for name in optional if rng.random() < 0.5), *more]
    cells_of = {name: [cell for cell in FIELDS[name] if cell != "" or ending != "csv"] for name in present}
    chosen = {
        name: [cells[0 if rng.random() < good else rng.integers(len(cells))] for _ in range(n)]
        for name, cells in cells_of.items()
    }
    rows = [dict(zip(chosen, cells, strict=True)) for cells in zip(*chosen.values(), strict=True)]
    events = []
    for row in rows:  # in the order in which infinite numbers are looked for
        last = ("sampling_probability", "unit", "revenue")
        event = {name: cell for name, cell in row.items() if name not in ("a", "b", *last)}
        policies = {name: row[name] for name in ("a", "b") if name in row}
        events.append(event | {"policies": policies} | {name: row[name] for name in last if name in row})
    options: dict[str, Any] = {}
    if more:
        options["further"] = [RewardField("revenue", "revenue", 0.0, 1.0)]
        options["segments"] = [SegmentField("country", "country")]
    decoder = JsonDecoder(["a", "b"], reward_range=(0.0, 1.0), identified=True, **options)
    path = tmp_path / f"log.{ending}"
    origin = Origin.from_parts(str(path), [(0, range(1, n + 1))])
    expected = decoder.decode_batch([json.dumps(event).encode() for event in events], origin)
    assert 0 < len(expected) < n
    texts = ("event_id", "action", "unit", "country")
    types = {name: pa.string() if name in texts else pa.float64() for name in chosen}
    table = pa.table({name: pa.array(cells, types[name]) for name, cells in chosen.items()})
    {"parquet": parquet_file, "arrow": arrow_file, "csv": csv_file}[ending](path, table)
    batch = decoded(path, decoder, ColumnNames(event_id="event_id"))
    assert batch.origin is not None
    assert expected.origin is not None
    for name in ("reward", "timestamp", "propensity", "probabilities", "sampling_probability", "unit"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)
    for found, wanted in ((batch.further, expected.further), (batch.segments, expected.segments)):
        np.testing.assert_equal(found and found.values, wanted and wanted.values)
    for name in ("offset", "identity"):
        np.testing.assert_array_equal(getattr(batch.origin, name), getattr(expected.origin, name), err_msg=name)
    assert [(rejection.reason, rejection.detail, rejection.origin) for rejection in batch.rejected] == [
        (rejection.reason, rejection.detail, rejection.origin) for rejection in expected.rejected
    ]


ROW = {"timestamp": 1.0, "action": "x", "propensity": 0.5, "reward": 1.0, "challenger": 0.25}


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"propensity": float("nan")}, "missing_field", "propensity: missing"),
        ({"reward": 2.0}, "reward_range", "reward: 2 is not in [0, 1]"),
    ],
)
def test_a_bad_row_has_the_reason_that_it_would_have_as_json(
    tmp_path: Path, changes: dict[str, Any], reason: str, detail: str
) -> None:
    rows = [ROW, ROW | changes, ROW]
    table = pa.Table.from_pylist(rows, schema=pa.Table.from_pylist([ROW]).schema)
    for file in (parquet_file(tmp_path / "x.parquet", table), csv_file(tmp_path / "x.csv", table)):
        replay = Replay(configured(tmp_path, PLAIN))
        report = replay.read([str(file)])
        assert (report.events.accepted, report.events.rejected) == (2, {reason: 1})
        assert any(reason in line and detail in line for line in replay.warnings(report))


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("1,x,half,1,0.5", "malformed", "propensity: expected float, got str"),
        ("1,x,0.5,1", "malformed", "4 cells for 5 columns"),
        ("1,x,0.5,1,0.5,9", "malformed", "6 cells for 5 columns"),
        ("yesterday,x,0.5,1,0.5", "malformed", "timestamp: invalid RFC3339"),
        ("1,x,1_0,1,0.5", "malformed", "propensity: expected float, got str"),
        ('1,"x,0.5,1,0.5', "malformed", "2 cells for 5 columns"),
        ("1,x,[0.5,1,0.5", "malformed", "not JSON"),
    ],
)
def test_a_broken_csv_row_is_counted_and_costs_no_other(tmp_path: Path, line: str, reason: str, detail: str) -> None:
    good = "1,x,0.5,1,0.5"
    file = csv_of(tmp_path / "x.csv", "timestamp,action,propensity,reward,challenger", good, good, line)
    replay = Replay(configured(tmp_path, PLAIN))
    report = replay.read([str(file)])
    assert (report.events.accepted, report.events.rejected) == (2, {reason: 1})
    assert any(reason in line and detail in line for line in replay.warnings(report))


def test_text_that_is_not_utf_8_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"timestamp,action,propensity,reward\n1,x,.5,1\n1,\xff,.5,1\n")
    report = replayed(tmp_path, file, text=PLAIN)
    assert (report.events.accepted, report.events.rejected) == (1, {"malformed": 1})


def test_quotes_commas_newlines_and_a_byte_order_mark_in_csv(tmp_path: Path) -> None:
    lines = '\ufefftimestamp,action,propensity,reward\r\n1,"a, ""b""\nc",0.5,true\r\n2,d,.25,false\r\n'
    file = tmp_path / "x.csv"
    file.write_bytes(lines.encode())
    report = replayed(tmp_path, file, text=PLAIN)
    assert report.events.accepted == 2
    assert report.get("logging", "ips", "cumulative").value == 0.5


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NOON.timestamp()]),
        pa.array([int(NOON.timestamp())]),
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns")),
        pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")),
        pa.array(["2026-01-31T12:00:00Z"]),
        pa.array(["2026-01-31 13:00:00+01:00"]),
        pa.array(["2026-01-31 12:00:00"]),
        pa.array(["2026-01-31T12:00:00Z"]).dictionary_encode(),
    ],
)
def test_timestamps_of_any_type_are_read(tmp_path: Path, times: Any) -> None:
    table = {"timestamp": times, "action": ["x"], "propensity": [0.5], "reward": [1]}
    report = replayed(tmp_path, parquet_file(tmp_path / "x.parquet", table), text=PLAIN)
    assert report.events.last_timestamp == NOON.timestamp()


def test_a_row_with_an_unreadable_time_is_rejected_alone(tmp_path: Path) -> None:
    times = pa.array(["2026-01-31T12:00:00Z", "yesterday"])
    table = {"timestamp": times, "action": ["x", "x"], "propensity": [0.5, 0.5], "reward": [1, 1]}
    report = replayed(tmp_path, parquet_file(tmp_path / "x.parquet", table), text=PLAIN)
    assert (report.events.accepted, report.events.rejected) == (1, {"malformed": 1})
    assert report.events.last_timestamp == NOON.timestamp()


def test_decimals_booleans_small_floats_categories_and_bytes_are_read_as_values(tmp_path: Path) -> None:
    table = {
        "timestamp": pa.array([1, 2], pa.int32()),
        "action": pa.array([b"x", b"y"], pa.binary()),
        "propensity": pa.array([0.5, 0.25], pa.float32()),
        "reward": pa.array([True, False]),
        "challenger": pa.array([decimal.Decimal("0.25"), decimal.Decimal("0.5")]),
        "unit": pa.array(["u", "v"]).dictionary_encode(),
    }
    report = replayed(tmp_path, parquet_file(tmp_path / "x.parquet", table), text=PLAIN)
    assert report.get("challenger", "ips", "cumulative").importance_weight_mean == (0.5 + 2) / 2


def test_lists_in_columns_are_action_sets(tmp_path: Path) -> None:
    text = (
        "policies: {candidates: {challenger: logged, even: uniform}}\nestimators: [ips, dm]\naverages: [cumulative]\n"
    )
    row = {
        "timestamp": 1.0,
        "action": "b",
        "reward": 1,
        "actions": ["a", "b"],
        "propensities": [0.5, 0.5],
        "features": [[1.0], [2.0]],
        "challenger": [0.25, 0.75],
        "context": {"hour": 9},
    }
    table = pa.Table.from_pylist([row] * 3)
    bad = pa.Table.from_pylist(
        [row, row | {"propensities": [0.5, 0.6]}, row | {"features": [[1.0], [2.0, 3.0]]}, row | {"action": "z"}]
    )
    parquet = parquet_file(tmp_path / "x.parquet", table)
    report = replayed(tmp_path, parquet, text=text)
    assert report.get("challenger", "ips", "cumulative").importance_weight_mean == 1.5
    assert report.get("even", "ips", "cumulative").importance_weight_mean == 1.0
    assert report.get("even", "dm", "cumulative").value is not None
    refused = replayed(tmp_path, parquet_file(tmp_path / "bad.parquet", bad), text=text)
    assert refused.events.rejected == {"distribution_sum": 1, "malformed": 1, "unknown_action": 1}


ODD = ["", "[", "[]", "{}", "0.5", "[null]", "[0.5, 1e400]", "[NaN, 1]", "[1, 2", "[0.5],[0.5]", "[1e22, 0]"]
LISTS: dict[str, list[str]] = {
    "action": ["a", "b", "", "z", "1", "é"],
    "propensity": ["0.5", "0.25", "", "2"],
    "actions": ['["a", "b"]', ' ["b", "c", "a"] ', '["b", "b"]', '["a", "\udcff"]', '["a", 1]', '["\\u00e9", "a"]'],
    "propensities": ["[0.5, 0.5]", "[0.25, 0.25, 0.5]", "[1, 0]", "[0.5, 0.6]", "[true, 0]"],
    "features": ["[[1], [2]]", "[[1, 2], [3, 4], [5, 6]]", "[[], []]", "[[1], [2, 3]]", "[[1], 2]", '[{"x": 1}, {}]'],
    "listed": ["[0.25, 0.75]", "[0.2, 0.3, 0.5]", "0.25", "[0.9, 0.3]", "[0.5, null]"],
    "single": ["0.25", "0.5", "", "3"],
    "reward": ["1", "0", "", "7"],
}


@pytest.mark.parametrize("absent", ["", "actions", "propensities", "features", "listed", "single"])
@pytest.mark.parametrize("good", [0.98, 0.7])
def test_lists_in_csv_give_the_events_of_rows_read_one_by_one(tmp_path: Path, absent: str, good: float) -> None:
    """Draw rows with fitting lists of two or three actions. A cell is any of `LISTS` with probability `1 - good`."""
    rng, number, path = np.random.default_rng(7), 200, tmp_path / "log.csv"
    possible = {name: [*cells, *(ODD if "[" in cells[0] else ())] for name, cells in LISTS.items()}
    with path.open("w", newline="", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, ["timestamp", *(name for name in LISTS if name != absent)], extrasaction="ignore")
        writer.writeheader()
        for row, kind in enumerate(rng.integers(2, size=number).tolist()):
            fitting = {name: cells[kind if "[" in cells[0] else 0] for name, cells in LISTS.items()}
            odd = {name: cells[rng.integers(len(cells))] for name, cells in possible.items() if rng.random() > good}
            writer.writerow({"timestamp": row, **fitting, **odd})
    names = ColumnNames(actions=["a", "b"] if absent == "actions" else "actions")
    decoder = JsonDecoder(["listed", "single"], reward_range=(0.0, 1.0))
    batch = decoded(path, decoder, names)
    rows = [
        row if isinstance(row, Fault) else {"event_id": "", **row}
        for row in chain.from_iterable(read_rows(str(path), "csv", names, decoder, lambda read, total: None))
    ]
    expected = decoder.decode_rows(rows, Origin.from_parts(str(path), [(0, range(1, number + 1))]))
    assert batch.rejected == expected.rejected
    np.testing.assert_equal(batch.to_state(), expected.to_state())
    assert 0 < len(batch) < number


CELLS = ["", "1", "0.5", " 0.25 ", "+1", "007", "1e-3", "1e400", "nan", "inf", "true", "False", "1_0", "1,000", "x"]
CELLS += [
    "2026-01-31T12:00:00Z",
    "20260131",
    "é",
    "\udcff",
    'a"b',
    "\ufeff1",
    "two\nlines",
    "c\rr",
    '"',
    "[1]",
    "٣",
    "\0",
]
BROKEN = ["", '"', '1,"open', "1,2", "1,2,3,4,5,6,7", '"a"b,c', "\ufeff"]


@examples(60)
@given(data=st.data(), size=st.integers(1, 9))
def test_pyarrow_and_the_standard_library_read_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    good = ["1", "007", "0.5", "1", "0.25", "de"]
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from(CELLS)) | st.sampled_from(BROKEN), max_size=30)
    )
    with path.open("w", newline="", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "action", "propensity", "reward", "challenger", "page"])
        for row in rows:
            if isinstance(row, str):
                file.write(row + "\n")
            else:
                writer.writerow([*good[: row[0]], row[1], *good[row[0] + 1 :]])
    options: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"segments": [SegmentField("page", "page")]}, {"scores": ["page", "context"]}])
    )
    decoder = JsonDecoder(["challenger"], reward_range=(0.0, 1.0), identified=True, named=True, **options)

    def read() -> list[EventBatch]:
        return list(read_table(str(path), "csv", ColumnNames(), decoder, lambda read, total: None, batch_rows=size))

    batch = EventBatch.concat(read())
    with patch("streameval.ingest.files.tables._arrow_parser", lambda: None):
        expected = EventBatch.concat(read())
    assert [(rejection.reason, rejection.detail, rejection.origin) for rejection in batch.rejected] == [
        (rejection.reason, rejection.detail, rejection.origin) for rejection in expected.rejected
    ]
    np.testing.assert_equal(batch.to_state(), expected.to_state())


def stray_quotes(*rows: int) -> list[str]:
    """Return lines of a table with a last cell of text, and a stray quote at its start in some rows."""
    cells = ['"Deal of the day' if row in rows else "plain" for row in range(5_000)]
    return ["timestamp,action,propensity,reward,challenger,title", *(f"1,x,0.5,1,0.5,{cell}" for cell in cells)]


@pytest.mark.parametrize("rows", [(2_500,), (1_000, 2_500), (1_000, 1_001, 4_999)])
def test_stray_quotes_cost_their_own_rows_only(
    tmp_path: Path, rows: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    report = replayed(tmp_path, csv_of(tmp_path / "x.csv", *stray_quotes(*rows)), text=PLAIN)
    assert report.events.rejected == {"malformed": len(rows)}
    assert report.events.accepted == 5_000 - len(rows)
    assert f"a quote is not closed ({tmp_path / 'x.csv'}:{rows[0] + 1})" in capsys.readouterr().err


def test_rows_over_several_lines_are_counted_and_shown_unless_they_are_expected(tmp_path: Path) -> None:
    lines = ["timestamp,action,propensity,reward,challenger,title", *['1,x,0.5,1,0.5,"two', 'lines"'] * 3]
    file = csv_of(tmp_path / "x.csv", *lines)
    for multiline, shown in ((False, True), (True, False)):
        replay = Replay(configured(tmp_path, PLAIN), multiline=multiline)
        report = replay.read([str(file)])
        assert report.events.accepted == 3
        assert any("3 rows of CSV take several lines" in line for line in replay.warnings(report)) == shown


def utf_16(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, utf_16])
def test_any_line_end_is_read(tmp_path: Path, end: str, compress: Callable[[bytes], bytes]) -> None:
    lines = ["timestamp,action,propensity,reward,challenger", *["1,x,0.5,1,0.5"] * 3, ""]
    file = tmp_path / "x.csv"
    file.write_bytes(compress(end.join(lines).encode()))
    assert replayed(tmp_path, file, text=PLAIN).events.accepted == 3
    log = tmp_path / "x.ndjson"
    log.write_bytes(compress(end.join(['{"a": 1}'] * 4).encode()))
    assert [list(lines) for lines in read_lines(log)] == [
        [b'{"a": 1}' + (b"\r" if end == "\r\n" else b"")] * 3 + [b'{"a": 1}']
    ]


@pytest.mark.parametrize("name", ["x.CSV", "x.CSV.GZ", "x.txt", "x.tsv", "x.TXT.bz2", "x.parquet", "x.pq", "x.PQ", "x"])
def test_formats_are_found_by_name_or_content(tmp_path: Path, name: str) -> None:
    table = {"timestamp": [1, 2, 3], "action": ["a,b", "c", "d"], "propensity": [0.5] * 3, "reward": [1, 0, 1]}
    table["challenger"] = [0.5] * 3
    file, separator = tmp_path / name, "\t" if "t" in name else ","
    if "p" in name.lower() or name == "x":
        parquet_file(file, table)
    else:
        out = pa.BufferOutputStream()
        pa.csv.write_csv(pa.table(table), out, pa.csv.WriteOptions(delimiter=separator))
        compress = {".GZ": gzip.compress, ".bz2": bz2.compress}.get(file.suffix, bytes)
        file.write_bytes(compress(out.getvalue().to_pybytes()))
    (batch,) = read_events(file, policies=["challenger"], scores=["action"])
    assert batch.raw_fields is not None
    assert [values["action"] for values in batch.raw_fields.values] == ["a,b", "c", "d"]
    assert replayed(tmp_path, file, text=PLAIN).events.accepted == 3


def test_a_frame_is_not_a_path() -> None:
    for frame in (pa.table({"action": ["a"]}), {"action": ["a"]}):
        with pytest.raises(InputError) as caught:
            next(read_events(frame))  # type: ignore[arg-type]
        assert "found a frame" in caught.value.message
        assert "EventBatch.from_frame" in caught.value.hint


@pytest.mark.parametrize(
    ("paths", "found", "hint"),
    [
        (5, "expected a path or several, found 5", "give the path of a file"),
        (None, "expected a path or several, found nothing", "give the path of a file"),
        (b"log.csv", "expected a path or several, found b'log.csv'", "os.fsdecode(path)"),
        ([b"log.csv"], "expected paths, found list of bytes", "os.fsdecode(path)"),
        ([{"action": "a"}], "expected paths, found list of dict", "pandas.DataFrame(rows)"),
        (io.BytesIO(b"{}"), "expected a path or several, found BytesIO", "give its path"),
    ],
)
def test_other_values_are_not_paths(paths: Any, found: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        next(read_events(paths))
    assert caught.value.message == f"paths: {found}"
    assert hint in caught.value.hint


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"format: expected one of json, csv, .* found 'xlsx'") as caught:
        next(read_events(user_log(tmp_path, ".csv"), format="xlsx"))  # type: ignore[arg-type]
    assert "read_excel" in caught.value.hint


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_identifiers_keep_their_zeros_and_all_their_digits(tmp_path: Path, suffix: str) -> None:
    ids = ["007", "7", str(2**63 + 1), "1e3"]
    table = {"event_id": ids, "action": ids, "propensity": [0.5] * 4, "reward": [1] * 4}
    file = (csv_file if suffix == ".csv" else parquet_file)(tmp_path / f"x{suffix}", table)
    decoder = JsonDecoder([], identified=True, named=True)
    names = ColumnNames(event_id="event_id")
    (batch,) = read_table(str(file), suffix[1:], names, decoder, lambda read, total: None, timed=False)
    assert batch.actions is not None
    assert batch.actions.names == tuple(ids)
    assert batch.origin is not None
    assert batch.origin.identity is not None
    assert batch.origin.identity.tolist() == fingerprints(ids).tolist()


def test_lists_in_csv_are_read_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '1,b,1,"[""a"", ""b""]","[0.5, 0.5]","[[1], [2]]","[0.25, 0.75]"'
    file = csv_of(tmp_path / "x.csv", "timestamp,action,reward,actions,propensities,features,challenger", *[line] * 3)
    monkeypatch.setattr(JsonDecoder, "decode_rows", None)
    batch = decoded(file, JsonDecoder(["challenger"]), ColumnNames())
    assert batch.action_sets is not None
    assert batch.action_sets.index.tolist() == [1, 1, 1]
    assert batch.probabilities.tolist() == [[0.75]] * 3


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("propensity: prop", "has no column 'prop' for propensity; it has ts, a, p, click, p_new, even"),
        ("reward: clicks", "has no column 'clicks' for reward"),
        ("policies: {challenger: p_nwe}", "has no column 'p_nwe' for challenger"),
        ("timestamp: timestamp", "has no column 'timestamp' for timestamp"),
        ("propensity: propensity", "has no column with the propensity"),
    ],
)
def test_a_column_that_is_not_there_stops_the_replay(tmp_path: Path, ending: str, change: str, complaint: str) -> None:
    write = parquet_file if ending == "parquet" else csv_file
    file = write(tmp_path / f"x.{ending}", columns(5))
    mapped = {"timestamp": "ts", "action": "a", "propensity": "p", "reward": "click"}
    unchanged = ", ".join(
        f"{field}: {column}" for field, column in mapped.items() if not change.startswith(f"{field}:")
    )
    with pytest.raises(InputError, match="has no column") as caught:
        replayed(tmp_path, file, text=f"policies: {{candidates: [challenger]}}\ncolumns: {{{unchanged}, {change}}}")
    assert complaint in caught.value.message
    assert "columns" in caught.value.hint


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "x.csv", "timestamp,action,propensity,reward,reward", "1,x,1,1,0")
    with pytest.raises(InputError, match="has two columns 'reward'"):
        replayed(tmp_path, file, text=PLAIN)


def test_a_policy_without_a_column_is_missing_and_named(tmp_path: Path) -> None:
    file = csv_of(tmp_path / "x.csv", "timestamp,action,propensity,reward", "1,x,1,1")
    replay = Replay(configured(tmp_path, PLAIN))
    report = replay.read([str(file)])
    assert report.policies[1].missing == 1
    assert "warning: no event has a probability of the policy 'challenger'" in "\n".join(replay.warnings(report))


def test_a_file_that_is_not_parquet_is_an_input_error(tmp_path: Path) -> None:
    whole = parquet_file(tmp_path / "whole.parquet", columns()).read_bytes()
    for number, content in enumerate((b"", b"not parquet at all", whole[: len(whole) // 2])):
        file = tmp_path / f"{number}.parquet"
        file.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            replayed(tmp_path, file)
    with pytest.raises(InputError, match="does not exist"):
        replayed(tmp_path, tmp_path / "absent.parquet")
    with pytest.raises(InputError, match="is a pipe"):
        Replay(configured(tmp_path)).read(["-"], "parquet")


def test_a_list_that_does_not_fit_in_memory_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a row group have the mean length of its lists, and one long list hides among many short ones."""

    def full(*_: object, **__: object) -> Iterator[object]:
        raise pa.ArrowMemoryError("realloc of size 67108864 failed")

    file = parquet_file(tmp_path / "x.parquet", columns())
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", full)
    with pytest.raises(InputError, match=r"x\.parquet does not fit in memory after row 0: realloc of size") as error:
        replayed(tmp_path, file)
    assert "shorten lists of more than 2,097,152 values" in str(error.value.hint)


def test_a_damaged_page_is_an_input_error(tmp_path: Path) -> None:
    file = parquet_file(tmp_path / "x.parquet", columns(20_000), row_group_size=1_000, compression="snappy")
    content = bytearray(file.read_bytes())
    for index in range(4, len(content) - 20_000, 97):
        content[index] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        replayed(tmp_path, file)


@pytest.mark.parametrize("content", ["", "timestamp,action,propensity,reward\n"])
def test_a_table_without_rows_has_no_events(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text(content)
    replay = Replay(configured(tmp_path, PLAIN))
    with pytest.raises(InputError, match="no event was accepted: there is none"):
        replay.read([str(file)])


def test_without_pyarrow_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    file = parquet_file(tmp_path / "x.parquet", columns(3))
    table = csv_file(tmp_path / "x.csv", columns(3))
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="Parquet needs pyarrow, which is not installed") as caught:
        replayed(tmp_path, file)
    assert caught.value.hint == "pip install 'streameval[columnar]'"
    assert replayed(tmp_path, table).events.accepted == 3


def test_progress_goes_from_nothing_to_all_bytes_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [parquet_file(tmp_path / "1.parquet", columns(9_000)), csv_file(tmp_path / "2.csv", columns(9_000))]
    progress: list[tuple[int, int | None]] = []
    advance = nullcontext(lambda read, total: progress.append((read, total)))
    monkeypatch.setattr("streameval.cli.replay.progress_of_bytes", lambda: advance)
    Replay(configured(tmp_path)).read(list(map(str, files)))
    total = sum(file.stat().st_size for file in files)
    assert {total_bytes for _, total_bytes in progress} == {total}
    assert [read for read, _ in progress] == sorted(read for read, _ in progress)
    assert progress[-1][0] == total
    assert len(progress) > 6


def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    file = parquet_file(tmp_path / "x.parquet", columns(400_000), row_group_size=400_000)
    names = ColumnNames(timestamp="ts", action="a", propensity="p", reward="click")
    batches = read_table(str(file), "parquet", names, JsonDecoder(["even"]), lambda read, total: None)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in batches]
    assert file.stat().st_size > 8e6
    assert max(held) < 6e6


def test_replay_on_the_command_line_takes_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    configured(tmp_path)
    file = parquet_file(tmp_path / "log.parquet", columns())
    done = command(capfd, "replay", str(tmp_path / "streameval.yaml"), str(file), "--json")
    assert json.loads(done.out)["events"]["accepted"] == 500
    refused = command(capfd, "replay", str(tmp_path / "streameval.yaml"), str(file), "--format", "csv")
    assert refused.code == 2
    assert "cannot be read as CSV" in refused.err


def user_log(tmp_path: Path, suffix: str) -> Path:
    table = {
        "ts": [1.0, 2.0],
        "a": ["x", "y"],
        "p": [0.5, 0.5],
        "reward": [1, 0],
        "p_new": [0.25, 0.75],
        "user": [7, 8],
        "country": ["de", "fr"],
    }
    return (
        csv_file(tmp_path / f"x{suffix}", table) if suffix == ".csv" else parquet_file(tmp_path / f"x{suffix}", table)
    )


NAMED = {"timestamp": "ts", "action": "a", "propensity": "p", "policies": {"challenger": "p_new"}}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_read_events_reads_tables_by_their_suffix(tmp_path: Path, suffix: str) -> None:
    batches = list(read_events(user_log(tmp_path, suffix), columns=NAMED, batch_size=1))
    assert [len(batch) for batch in batches] == [1, 1]
    batch = EventBatch.concat(batches)
    assert (batch.policies, batch.origin) == (("challenger",), None)
    assert batch.probabilities.tolist() == [[0.25], [0.75]]
    assert batch.timestamp.tolist() == [1.0, 2.0]


def test_read_events_needs_the_policies_of_a_table(tmp_path: Path) -> None:
    log = user_log(tmp_path, ".csv")
    with pytest.raises(InputError, match=r"x\.csv is a table, and no column of a policy is named"):
        next(read_events(log, columns={"timestamp": "ts"}))
    columns = {field: column for field, column in NAMED.items() if field != "policies"}
    assert next(read_events(log, columns=columns, policies=[])).policies == ()
    assert next(read_events(log, columns=columns, policies=["p_new"])).policies == ("p_new",)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_one_column_serves_two_fields(tmp_path: Path, suffix: str) -> None:
    columns = NAMED | {"unit": "user", "context": "user"}
    (batch,) = read_events(user_log(tmp_path, suffix), columns=columns, scores=[])
    assert batch.rejected == ()
    assert batch.unit is not None
    assert batch.unit.all()
    assert batch.raw_fields is not None
    assert [fields["context"] for fields in batch.raw_fields.values] == [7, 8]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_several_columns_are_the_context_and_actions_may_be_constant(tmp_path: Path, suffix: str) -> None:
    text = (
        "policies: {candidates: {even: uniform}}\nestimators: [ips]\naverages: [cumulative]\n"
        "columns: {timestamp: ts, action: a, propensity: p, actions: [x, y], context: [user, country]}\n"
    )
    report = replayed(tmp_path, user_log(tmp_path, suffix), text=text)
    assert report.get("even", "ips", "cumulative").value == 0.5
    (batch,) = read_events(user_log(tmp_path, suffix), columns=NAMED | {"context": ["user", "country"]}, scores=[])
    assert batch.raw_fields is not None
    assert batch.raw_fields.values[1]["context"] == {"user": 8, "country": "fr"}


def test_csv_is_read_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with user_log(tmp_path, ".csv").open() as log:
        monkeypatch.setattr("sys.stdin", log)
        (batch,) = read_events("-", format="csv", columns=NAMED)
    assert batch.reward.tolist() == [1.0, 0.0]
    config = tmp_path / "c.yaml"
    config.write_text(CONFIGURED.replace("click", "reward").replace(", even]", "]"))
    with user_log(tmp_path, ".csv").open() as log:
        monkeypatch.setattr("sys.stdin", log)
        outcome = command(capfd, "replay", str(config), "-", "--format", "csv")
    assert outcome.code == 0
    assert "\n2 events until " in outcome.out


@pytest.mark.parametrize("cell", [b"x" * 200_000, b"caf\xe9"], ids=["too_long", "not_utf_8"])
def test_a_cell_that_cannot_be_read_rejects_its_row_alone(tmp_path: Path, cell: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"action,propensity,reward,p,note\na,0.5,,0.5," + cell + b"\nb,0.5,1,0.5,x\n")
    (batch,) = read_events(path, policies=["p"])
    assert len(batch) == 1
    assert len(batch.rejected) == 1


def test_rows_with_lists_of_millions_of_values_in_a_small_parquet_file_are_rejected_unread(tmp_path: Path) -> None:
    """Equal values take no bytes of the file, and each takes eight bytes of memory."""
    offsets, repeated = [0, 2, 3, 3 + 30_000_000], np.full(30_000_003, 0.5)
    repeated[2] = 1
    names = pa.ListArray.from_arrays(pa.array(offsets[:3], pa.int32()), pa.array(["a", "b", "a"]))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(repeated))
    table = pa.table(
        {
            "timestamp": [1.0, 2.0, 3.0],
            "action": ["a", "a", "a"],
            "reward": [1.0, 0.0, 1.0],
            "actions": pa.concat_arrays([names, pa.array([["a"]])]),
            "propensities": lists,
        }
    )
    file = parquet_file(tmp_path / "x.parquet", table, row_group_size=2)
    assert file.stat().st_size < 100_000
    del table, lists, repeated
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory() or 0
    (batch,) = [EventBatch.concat(list(read_events(file, policies=[])))]
    assert len(batch) == 2
    (rejected,) = batch.rejected
    assert (rejected.reason, rejected.detail[:8]) == ("malformed", "30000000")
    assert pa.total_allocated_bytes() <= before + 2**20
    assert (pa.default_memory_pool().max_memory() or 0) == peak


def events_of(*files: Path, **options: Any) -> EventBatch:
    return EventBatch.concat(list(read_events(files, **{"policies": ["old", "new"]} | options)))


def test_the_messages_of_a_topic_in_one_file_are_read_with_their_policies_and_contexts(tmp_path: Path) -> None:
    events = [
        {"event_id": f"e-{number}", "timestamp": 1.5 + number, "action": "a", "actions": ["a", "b"]}
        | {"propensities": [0.25, 0.75], "reward": number % 2, "context": {"user": {"age": number}}}
        | {"policies": {"old": [0.5, 0.5]} | ({"new": [0.125, 0.875]} if number > 50 else {})}
        for number in range(120)
    ]
    lines, file = tmp_path / "log.ndjson", tmp_path / "log.arrows"
    lines.write_text("".join(json.dumps(event) + "\n" for event in events))
    file.write_bytes(b"".join(arrow_message(events[start : start + 40]) for start in range(0, 120, 40)))
    expected, found = (events_of(path, scores=["context"]) for path in (lines, file))
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    np.testing.assert_array_equal(found.timestamp, expected.timestamp)
    assert found.raw_fields is not None
    assert expected.raw_fields is not None
    assert [row["context"] for row in found.raw_fields.values] == [row["context"] for row in expected.raw_fields.values]


@pytest.mark.parametrize("of_stream", [False, True])
def test_policies_in_arrow_files_are_columns_lists_or_structs(tmp_path: Path, of_stream: bool) -> None:
    plain = {"timestamp": [1.0, 2.0], "action": ["a", "b"], "propensity": [0.5, 0.25], "reward": [0, 1]}
    metadata = {NAMES_KEY: b'["new", "old"]'}
    lists = pa.FixedSizeListArray.from_arrays(pa.array([0.1, 0.2, 0.3, 0.4]), 2)
    forms = {
        "columns": pa.table({**plain, "new": [0.1, 0.3], "old": [0.2, 0.4]}),
        "struct": pa.table({**plain, "policies": [{"new": 0.1, "old": 0.2}, {"new": 0.3, "old": 0.4}]}),
        "lists": pa.table({**plain, "policies": lists}).replace_schema_metadata(metadata),
    }
    for name, table in forms.items():
        batch = events_of(arrow_file(tmp_path / f"{name}.arrow", table, of_stream=of_stream))
        np.testing.assert_array_equal(batch.probabilities, [[0.2, 0.1], [0.4, 0.3]])
    nested = pa.table({**plain, "choice": [{"p": {"n": 0.1}}, {"p": {"n": 0.3}}]})
    file = arrow_file(tmp_path / "nested.arrow", nested, of_stream=of_stream)
    batch = events_of(file, policies=["new"], columns={"policies": {"new": "choice.p.n"}})
    np.testing.assert_array_equal(batch.probabilities, [[0.1], [0.3]])


def test_views_and_runs_in_arrow_files_are_values(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([1.0, 0.0]))
    columns = {"timestamp": [1.0, 2.0], "action": pa.array(["a", "b"], pa.string_view()), "propensity": [0.5, 0.25]}
    other = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    table = pa.table({**columns, "reward": runs, "new": pa.array([0.5, 0.25], pa.float32()), "other": other})
    batch = events_of(arrow_file(tmp_path / "log.arrow", table), policies=["new"])
    assert batch.rejected == ()
    assert batch.reward.tolist() == [1.0, 0.0]
    assert batch.probabilities[:, 0].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("of_stream", [False, True])
def test_a_damaged_arrow_file_is_an_input_error(tmp_path: Path, of_stream: bool) -> None:
    whole = arrow_file(tmp_path / "whole.arrow", columns(), of_stream=of_stream).read_bytes()
    contents = [b"", b"not arrow at all", whole[: len(whole) // 2], whole[:20]]
    for number, content in enumerate(contents):
        file = tmp_path / f"{number}.arrow"
        file.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as Arrow after row"):
            replayed(tmp_path, file)
    wrong = pa.table(columns()).append_column("name", pa.array(["abc"] * 500))
    content = bytearray(arrow_file(tmp_path / "offsets.arrow", wrong, 500, of_stream=of_stream).read_bytes())
    offsets = np.arange(0, 9, 3, dtype=np.int32).tobytes()
    place = content.index(offsets) + 4
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    (tmp_path / "offsets.arrow").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as Arrow after row 0"):
        replayed(tmp_path, tmp_path / "offsets.arrow")


def test_an_arrow_stream_is_read_from_a_pipe_and_a_file_is_not(tmp_path: Path) -> None:
    for name, of_stream in (("stream", True), ("file", False)):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        content = arrow_file(tmp_path / f"{name}.arrow", columns(), of_stream=of_stream).read_bytes()
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        with nullcontext() if of_stream else pytest.raises(InputError, match="is read from its end"):
            assert replayed(tmp_path, pipe, written="arrow").events.accepted == 500
        writer.join()
