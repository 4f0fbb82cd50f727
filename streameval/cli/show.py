"""The verb `show`: prints a snapshot, as tables or as JSON, without running the code of its policies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import events_line, facts, new_table, report_table
from streameval.common.arrays import State, from_plain
from streameval.common.text import UNKNOWN, counted, format_duration, utc_time
from streameval.errors import DamagedError, InputError
from streameval.ingest.base import Offsets
from streameval.service.snapshots import evaluator_from, found_in, read_document


def buffered(pipeline: State) -> dict[str, Any]:
    """The buffers, the watermark and the reward counts in the state of a pipeline.

    `waiting`: a row per buffer that is not empty, with `what`, `count`, `oldest` and `newest` (epoch seconds; None
    without times) and `bytes`. `watermark`: older events have been counted, and `released_early` of them before
    their turn; None if events count as they arrive.
    """
    order = pipeline["order"] or {"held": pipeline["released"]}
    rewards, passed = order.get("rewards"), order.get("released_until", -math.inf)
    timed = {"buffered events": order["held"]}
    if rewards is not None:
        timed["rewards without an event yet"] = rewards["waiting"]["runs"]
        timed["ids of counted events, to recognise late rewards"] = rewards["released"]["runs"]
    rows = []
    for what, parts in timed.items():
        times = [time for part in parts for time in from_plain(part["timestamp"]).tolist()]
        rows.append(_row(what, len(times), parts, min(times, default=None), max(times, default=None)))
    for stage, what in (
        ("duplicates", "ids of events, to recognise duplicates"),
        ("later_duplicates", "the same, in event-time order"),
    ):
        if pipeline.get(stage) is not None:
            ids = pipeline[stage]["remembered"]
            rows.append(_row(what, len(from_plain(ids)), ids))
    return {
        "waiting": [row for row in rows if row["count"]],
        "watermark": passed if math.isfinite(passed) else None,
        "released_early": order.get("released_early", 0),
        "rewards": None if rewards is None else rewards["counts"],
    }


def _row(what: str, count: int, state: Any, oldest: float | None = None, newest: float | None = None) -> dict[str, Any]:
    return {"what": what, "count": count, "oldest": oldest, "newest": newest, "bytes": _bytes(state)}


def _bytes(value: Any) -> int:
    if isinstance(value, dict | list | tuple):
        return sum(map(_bytes, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, bytes | memoryview) else 0


def load(path: Path) -> tuple[Path, State]:
    """The snapshot in a file, or the newest undamaged one of a directory; InputError if there is none."""
    if path.is_dir():
        for candidate in reversed(found_in(path)):
            with suppress(DamagedError):
                return candidate, read_document(candidate)
        raise InputError(f"{path} holds no snapshot", hint="name a snapshot file, or the state.dir of a daemon")
    try:
        return path, read_document(path)
    except DamagedError as damage:
        raise InputError(f"{path} is damaged: {damage}", hint="name an older snapshot") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its name and permissions") from error


def contents(path: Path, document: State) -> dict[str, Any]:
    """A snapshot as values that JSON has, and its Report."""
    cohorts = []
    for cohort in document["evaluator"]["cohorts"]:
        evaluator, settings = cohort["evaluator"], cohort["evaluator"]["settings"]
        shown = {"policies": list(cohort["policies"]), "production": settings["policies"][0]}
        shown |= {name: settings[name] for name in ("products", "reward_range", "confidence")}
        cohorts.append({**shown, "events": evaluator["events"]})
    positions = {}
    for topic, mark in document["offsets"].items():
        offsets = Offsets.from_state(mark)
        following = {str(partition): offset for partition, offset in offsets.positions.items()}
        positions[topic] = {"identity": offsets.identity, "next": following}
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "schema": document["schema"],
        "version": document["version"],
        "written": document["written"],
        "fingerprint": document["fingerprint"],
        "positions": positions,
        **buffered(document["pipeline"]),
        "cohorts": cohorts,
        "report": evaluator_from(document["evaluator"]).report(),
    }


def contents_table(values: dict[str, Any]) -> Group:
    """The contents of a snapshot as tables."""
    report = values["report"]
    waiting = _waiting_table(values["waiting"]) if values["waiting"] else Text()
    return Group(facts(_facts(values)), waiting, report_table(report, title=events_line(report)))


def _facts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    age = datetime.now(UTC).timestamp() - values["written"]
    yield "snapshot", values["path"]
    yield "written", f"{utc_time(values['written'])}, {format_duration(max(0, round(age)))} ago"
    yield "written by", f"streameval {values['version']}, schema {values['schema']}, {values['bytes']:,} bytes"
    for topic, mark in values["positions"].items():
        offsets = ", ".join(f"{partition}: {offset:,}" for partition, offset in mark["next"].items())
        yield "resumes at", f"{topic} {offsets or UNKNOWN}" + (f" (id {mark['identity']})" if mark["identity"] else "")
    if values["watermark"] is not None:
        watermark = utc_time(values["watermark"])
        yield "watermark", f"{watermark}, {values['released_early']:,} events released before their turn"
    if values["rewards"] is not None:
        yield "rewards", ", ".join(f"{count:,} {fate}" for fate, count in values["rewards"].items())
    for cohort in values["cohorts"]:
        yield (
            "evaluates",
            f"{', '.join(cohort['policies']) or 'events only'}: {counted(cohort['events']['accepted'], 'event')}",
        )
    yield "configuration", ", ".join(f"{key} {value}" for key, value in values["fingerprint"].items())


def _waiting_table(waiting: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table("Buffers", "what", ">count", "oldest", "newest", ">bytes")
    for row in waiting:
        times = (UNKNOWN if row[end] is None else utc_time(row[end]) for end in ("oldest", "newest"))
        table.add_row(row["what"], f"{row['count']:,}", *times, f"{row['bytes']:,}")
    return table
