"""What is in a snapshot, for people and for programs; nothing of it is run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from streameval.arrays import State
from streameval.durations import format_duration
from streameval.errors import InputError
from streameval.migrations import migrated, roster_from
from streameval.plurals import counted
from streameval.report import Report
from streameval.sinks.snapshot_file import DamagedError, read_document
from streameval.sinks.snapshots import found_in
from streameval.sources import Bookmark
from streameval.tables import UNKNOWN, events_line, moment, report_table
from streameval.waiting import held_back


def load(path: Path) -> tuple[Path, State]:
    """The snapshot in a file, or the newest whole one of a directory; InputError when there is none."""
    if not path.is_dir():
        return path, _read(path)
    for candidate in reversed(found_in(path)):
        try:
            return candidate, read_document(candidate)
        except DamagedError:
            continue
    raise InputError(f"{path} holds no snapshot", hint="name a file, or the state.dir of a daemon that has run")


def _read(path: Path) -> State:
    try:
        return read_document(path)
    except DamagedError as damage:
        raise InputError(f"{path} is no whole snapshot: {damage}", hint="the one before it may be: name that") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its name and permissions") from error


def contents(path: Path, document: State) -> dict[str, Any]:
    """What is in a snapshot, as plain values."""
    report, roster = _report(document), migrated(document["roster"])
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "schema": document["schema"],
        "version": document["version"],
        "written": document["written"],
        "fingerprint": document["fingerprint"],
        "positions": {topic: _positions(mark) for topic, mark in document["bookmarks"].items()},
        **held_back(document["intake"]),
        "members": [_member(member) for member in roster["members"]],
        "report": json.loads(report.to_json()),
    }


def _positions(mark: State) -> dict[str, Any]:
    bookmark = Bookmark.from_state(mark)
    return {"identity": bookmark.identity, "next": {str(part): at for part, at in bookmark.positions.items()}}


def _member(member: State) -> dict[str, Any]:
    evaluator = member["evaluator"]
    names = ("production", "estimators", "averages", "left", "reward_range", "confidence")
    settings = {name: evaluator["settings"].get(name) for name in names}
    return {"policies": list(member["policies"]), **settings, "events": evaluator["events"]}


def _report(document: State) -> Report:
    return roster_from(document["roster"]).report()


def contents_table(path: Path, document: State) -> Group:
    """What is in a snapshot, for a terminal."""
    told, report = contents(path, document), _report(document)
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(told):
        facts.add_row(name, Text(value))
    waiting = _waiting_table(told["waiting"]) if told["waiting"] else Text()
    return Group(facts, waiting, report_table(report, title=events_line(report)))


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    age = datetime.now(UTC).timestamp() - told["written"]
    yield "snapshot", told["path"]
    yield "written", f"{moment(told['written'])}, {format_duration(max(0, round(age)))} ago"
    yield "by", f"streameval {told['version']}, schema {told['schema']}, {told['bytes']:,} bytes"
    for topic, mark in told["positions"].items():
        offsets = ", ".join(f"{partition}: {offset:,}" for partition, offset in mark["next"].items())
        yield "goes on at", f"{topic} {offsets or UNKNOWN}" + (f" (id {mark['identity']})" if mark["identity"] else "")
    if told["watermark"] is not None:
        yield "has counted", f"events until {moment(told['watermark'])}, {told['hurried']:,} of them before their turn"
    if told["rewards"] is not None:
        yield "rewards", ", ".join(f"{count:,} {fate}" for fate, count in told["rewards"].items())
    for member in told["members"]:
        yield (
            "evaluates",
            f"{', '.join(member['policies']) or 'events only'}: {counted(member['events']['accepted'], 'event')}",
        )
    yield "of", ", ".join(f"{key} {value}" for key, value in told["fingerprint"].items())


def _waiting_table(waiting: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Held back", title_justify="left", title_style="bold", pad_edge=False)
    for heading in ("what", "how many", "oldest", "newest", "bytes"):
        table.add_column(heading, justify="right" if heading in ("how many", "bytes") else "left")
    for row in waiting:
        times = (UNKNOWN if row[end] is None else moment(row[end]) for end in ("oldest", "newest"))
        table.add_row(row["what"], f"{row['count']:,}", *times, f"{row['bytes']:,}")
    return table
