"""Read CSV files as a source: rows in place of lines, with their numbers, through restarts and rotations."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streameval.errors import InputError
from streameval.events.records import RowDecoder
from streameval.ingest.base import Source, SourceOffsets
from streameval.ingest.files.source import FileSettings

HEADER = "action,reward\n"


def rows(source: Source) -> list[tuple[int, Any]]:
    """Return all rows until the source is exhausted, or waits, with their numbers."""
    numbered_rows: list[tuple[int, Any]] = []
    while True:
        records = source.poll(0.0)
        for chunk in records:
            numbered_rows += zip(chunk.offsets, (json.loads(value or b"") for value in chunk.values), strict=True)
        if source.status().exhausted or not records:
            return numbered_rows


def numbered(source: Source) -> list[tuple[int, Any]]:
    return [(number, row["action"] if isinstance(row, dict) else row) for number, row in rows(source)]


Opened = Callable[..., Source]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a file as a source, which is closed after the test."""
    with ExitStack() as stack:

        def source(path: Path, offsets: SourceOffsets | None = None, **options: Any) -> Source:
            return stack.enter_context(closing(FileSettings(path=[str(path)], **options).open(offsets)))

        yield source


def test_a_row_is_an_object_with_its_place_and_in_a_followed_file_the_time_of_reading(
    opened: Opened, tmp_path: Path
) -> None:
    (tmp_path / "log.csv").write_text(HEADER + "a,1\nb,0\n")
    (_, first), (_, second) = rows(opened(tmp_path / "log.csv"))
    assert first == {"action": "a", "reward": "1", "event_id": "log.csv:2"}
    moments = [float(row["timestamp"]) for _, row in rows(opened(tmp_path / "log.csv", follow=True))]
    assert len(moments) == 2
    assert moments == sorted(moments)
    messages = [json.dumps(row | {"propensity": "1"}).encode() for row in (first, second)]
    assert np.isnan(RowDecoder(policies=[]).decode_batch(messages).timestamp).tolist() == [True, True]


def test_columns_of_ids_and_times_are_kept(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("event_id,timestamp\nx,2026-01-01\n")
    assert rows(opened(tmp_path / "log.csv")) == [(2, {"event_id": "x", "timestamp": "2026-01-01"})]


def test_rows_have_the_number_of_their_first_line(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress((HEADER + 'a,1\n"b\nb",0\n\nc,1\nd\n').encode()))
    assert numbered(opened(tmp_path / "log.csv.gz")) == [(2, "a"), (3, "b\nb"), (6, "c"), (7, ["d"])]


def test_a_stray_quote_costs_its_own_row_only_and_rows_over_several_lines_are_counted(
    opened: Opened, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEADER + 'a,"1\nb,1\n"c,1\nd,1\n"e\ne",0\nf,1\n"g')
    source = opened(path)
    odd = "a quote is not closed"
    assert numbered(source) == [(2, odd), (3, "b"), (4, odd), (5, "d"), (6, "e\ne"), (8, "f"), (9, odd)]
    assert source.status().spanning_rows == 1
    expected = opened(path, multiline=True)
    assert len(numbered(expected)) == 7
    assert expected.status().spanning_rows == 0


@pytest.mark.parametrize(
    ("name", "text", "rows", "more", "last"),
    [
        ("log.csv", b"action,reward\ra,1\rb,0\r", [(2, "a"), (3, "b")], b"c,1\rd", (4, "c")),
        ("log.tsv", b"action\treward\na,b\t1\n", [(2, "a,b")], b"c,d\t1\n", (3, "c,d")),
    ],
    ids=["carriage returns alone end lines", "tabs separate cells if no commas do"],
)
def test_the_form_of_rows_is_known_also_after_a_restart(
    opened: Opened, tmp_path: Path, name: str, text: bytes, rows: list[Any], more: bytes, last: tuple[int, str]
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    source = opened(path, follow=True)
    assert numbered(source) == rows
    with path.open("ab") as file:
        file.write(more)
    assert numbered(opened(path, source.offsets(), follow=True)) == [last]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_a_restart_continues_with_the_next_row_and_the_same_header(opened: Opened, tmp_path: Path, name: str) -> None:
    text, path = (HEADER + "a,1\n" * 3000 + "z,1\n").encode(), tmp_path / name
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    before = opened(path)
    (records,) = before.poll(1.0)
    after = opened(path, before.offsets())
    assert numbered(after)[-1] == (3002, "z")
    assert len(records) == 1999


def test_a_followed_log_may_be_replaced_by_one_with_other_columns(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "a,1\n")
    source = opened(path, follow=True)
    assert numbered(source) == [(2, "a")]
    with path.open("a") as file:
        file.write("b,1\n")
    (tmp_path / "next.csv").write_text("reward,action\n1,c\n")
    os.replace(tmp_path / "next.csv", path)
    actions: list[Any] = []
    while len(actions) < 2:
        actions += [action for _, action in numbered(source)]
    assert actions == ["b", "c"]


def test_two_columns_of_one_name_are_refused(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("action,action\na,b\n")
    with pytest.raises(InputError, match="two columns 'action'"):
        opened(tmp_path / "log.csv").poll(1.0)


def test_bytes_that_are_not_utf_8_spoil_their_row_only(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(HEADER.encode() + b"\xff,1\nb,1\n")
    assert [action for _, action in numbered(opened(tmp_path / "log.csv"))][1] == "b"


def test_standard_input_may_be_csv() -> None:
    assert FileSettings(path=["-"], format="csv").wire_format == "csv"
