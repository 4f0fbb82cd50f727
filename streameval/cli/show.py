"""What is in a snapshot, for people and for programs; nothing of it is run.

What the stages of a stream hold back, by their state: how much, from when to when, in how many bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import UNKNOWN, events_line, moment, report_table
from streameval.common.arrays import Array, State, from_plain
from streameval.common.text import counted, format_duration
from streameval.errors import InputError
from streameval.ingest.base import Offsets
from streameval.ope.report import Report
from streameval.service.snapshots import DamagedError, evaluator_from, found_in, read_document


def held_back(intake: State) -> dict[str, Any]:
    """Of the state of an intake: what is waiting, the time that is over, and what has become of rewards.

    `waiting`: rows with `what`, `count`, `oldest` and `newest` (epoch seconds; None where times are not kept) and
    `bytes`; none of what there is nothing of. `watermark`: what is older has been counted, with `hurried` events that
    were not waited for as long as they should have been; None where events count as they come.
    """
    merging, rows = intake["merging"] or {}, []
    rewards = merging.get("rewards")
    rows.append(_row("events that wait for their turn", merging.get("held", ())))
    if rewards is not None:
        rows.append(_row("rewards that wait for their events", rewards["waiting"]["runs"]))
        rows.append(_row("ids of counted events, for rewards that are late", rewards["decided"]["runs"]))
    for stage, of in (("duplicates", "ids of events, to know copies by"), ("copies", "the same, in the order of time")):
        if intake.get(stage) is not None:
            rows.append(_ids(of, intake[stage]["remembered"]))
    passed = merging.get("passed", -math.inf)
    return {
        "waiting": [row for row in rows if row["count"]],
        "watermark": passed if math.isfinite(passed) else None,
        "hurried": merging.get("hurried", 0),
        "rewards": None if rewards is None else rewards["counts"],
    }


def _row(what: str, parts: Sequence[State]) -> dict[str, Any]:
    """Of parts that have a column of times."""
    times: Array = np.concatenate([np.empty(0), *(from_plain(part["timestamp"]) for part in parts)])
    known = len(times) > 0
    return {
        "what": what,
        "count": len(times),
        "oldest": float(times.min()) if known else None,
        "newest": float(times.max()) if known else None,
        "bytes": sum(_bytes(parts)),
    }


def _ids(what: str, remembered: State) -> dict[str, Any]:
    return {
        "what": what,
        "count": len(from_plain(remembered)),
        "oldest": None,
        "newest": None,
        "bytes": sum(_bytes([remembered])),
    }


def _bytes(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, dict | list | tuple):
            yield from _bytes(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, bytes | memoryview):
            yield len(value)


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
    report, roster = _report(document), document["roster"]
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
    bookmark = Offsets.from_state(mark)
    return {"identity": bookmark.identity, "next": {str(part): at for part, at in bookmark.positions.items()}}


def _member(member: State) -> dict[str, Any]:
    evaluator = member["evaluator"]
    names = ("production", "estimators", "averages", "left", "reward_range", "confidence")
    settings = {name: evaluator["settings"].get(name) for name in names}
    return {"policies": list(member["policies"]), **settings, "events": evaluator["events"]}


def _report(document: State) -> Report:
    return evaluator_from(document["roster"]).report()


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
