"""The verb `show`: prints a snapshot, as tables or as JSON, without running the code of its policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import events_line, facts, guardrails_table, new_table, report_table
from streameval.common.arrays import State
from streameval.common.text import UNKNOWN, counted, format_duration, utc_time
from streameval.errors import DamagedError, InputError
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.summaries import PartitionedEvaluator
from streameval.service.snapshots import WRONG_CONTENT, Snapshot, read_newest, read_snapshot

T = TypeVar("T")

__all__ = ["contents", "contents_table", "shown"]


def shown(path: Path, render: Callable[[dict[str, Any]], T]) -> T:
    """`render` of the contents of a snapshot file, or of the newest snapshot of a directory for which it succeeds.

    Raises:
        InputError: There is none.
        StateError: Another version wrote it, or no snapshot of the directory has the right content.
    """

    def read(file: Path, snapshot: Snapshot) -> T:
        return render(contents(file, snapshot))

    if path.is_dir():
        found = read_newest(path, read)
        if found is None:
            raise InputError(f"{path} holds no snapshot", hint="name a snapshot file, or the state.dir of a daemon")
        return found
    try:
        return read(path, read_snapshot(path))
    except DamagedError as damage:
        raise InputError(f"{path} is damaged: {damage}", hint="name an older snapshot") from None
    except WRONG_CONTENT as error:
        hint = "name an older snapshot; if this version wrote it, please report it"
        raise InputError(f"{path} has wrong content, {type(error).__name__}: {error}", hint=hint) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its name and permissions") from error


def contents(path: Path, snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as values that JSON has, and its Report.

    Raises:
        StateError: Another version wrote it.
        DamagedError: A part is missing, or has another type.
    """
    positions = {}
    for topic, offsets in snapshot.source_offsets.items():
        following = {str(partition): offset for partition, offset in offsets.positions.items()}
        positions[topic] = {"identity": offsets.identity, "next": following}
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "schema": snapshot.schema,
        "version": snapshot.version,
        "written": snapshot.written,
        "fingerprint": snapshot.fingerprint,
        "positions": positions,
        **EventPipeline.describe(snapshot.pipeline),
        **_evaluated(snapshot.evaluator),
    }


def _evaluated(state: State) -> dict[str, Any]:
    """What a state evaluates, and its Report."""
    evaluator = PartitionedEvaluator if "partitions" in state else Evaluator
    return {**Evaluator.describe(state), "report": evaluator.from_state(state, without_code=True).report()}


def contents_table(values: dict[str, Any]) -> Group:
    """The contents of a snapshot as tables."""
    report = values["report"]
    waiting = _waiting_table(values["waiting"]) if values["waiting"] else Text()
    estimates = report_table(report, title=events_line(report))
    guarded = any(each.guardrails for each in report.promotion)
    guardrails = guardrails_table(report) if guarded else Text()
    return Group(facts(_facts(values)), waiting, estimates, guardrails)


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
    yield "evaluates", f"{', '.join(values['policies'])}: {counted(values['events']['accepted'], 'event')}"
    yield "configuration", ", ".join(f"{key} {value}" for key, value in values["fingerprint"].items())


def _waiting_table(waiting: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table("Buffers", "what", ">count", "oldest", "newest", ">bytes")
    for row in waiting:
        times = (UNKNOWN if row[end] is None else utc_time(row[end]) for end in ("oldest", "newest"))
        table.add_row(row["what"], f"{row['count']:,}", *times, f"{row['bytes']:,}")
    return table
