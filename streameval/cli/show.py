"""Show a snapshot without running the code of its policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from streameval.cli.tables import Column, facts, new_table, result_tables
from streameval.cli.terminal import console, silence_logs
from streameval.common.arrays import State
from streameval.common.text import UNKNOWN, counted, format_duration, utc_time
from streameval.errors import DamagedError, InputError
from streameval.ingest.pipeline import describe_state
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.summaries import PartitionedEvaluator
from streameval.service.snapshots import WRONG_CONTENT, Snapshot, read_newest, read_snapshot

T = TypeVar("T")

__all__ = ["contents", "contents_table", "run_show", "shown"]


def run_show(path: Path, *, as_json: bool) -> None:
    """Print a snapshot as tables or as JSON.

    Raises:
        InputError: It cannot be read.
        StateError: Another version wrote it.
    """
    silence_logs()
    if as_json:
        print(msgspec.json.format(shown(path, msgspec.json.encode), indent=2).decode())
    else:
        console().print(shown(path, contents_table))


def shown(path: Path, render: Callable[[dict[str, Any]], T]) -> T:
    """Read a snapshot file, or the newest snapshot of a directory that can be read and rendered.

    Args:
        path: a snapshot or a directory of snapshots
        render: converts the contents to a table or JSON

    Returns:
        What `render` returned.

    Raises:
        InputError: There is no snapshot, or it cannot be read.
        StateError: Another version wrote it, or no snapshot of the directory has the right content.
    """

    def read(file: Path, snapshot: Snapshot) -> T:
        return render(contents(file, snapshot))

    if path.is_dir():
        rendered, _ = read_newest(path, read)
        if rendered is None:
            raise InputError(f"{path} holds no snapshot", hint="name a snapshot file, or the state.dir of a daemon")
        return rendered
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
    """Convert a snapshot to values for JSON, and its Report.

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
        **describe_state(snapshot.pipeline),
        **_evaluated(snapshot.evaluator),
    }


def _evaluated(state: State) -> dict[str, Any]:
    """Describe what a state evaluates, with its Report."""
    evaluator = PartitionedEvaluator if "partitions" in state else Evaluator
    return {**Evaluator.describe(state), "report": evaluator.from_state(state, without_code=True).report()}


def contents_table(values: dict[str, Any]) -> Group:
    """Show the contents of a snapshot as tables."""
    tables: list[RenderableType] = [facts(_facts(values))]
    if values["waiting"]:
        tables.append(_waiting_table(values["waiting"]))
    return Group(*tables, *result_tables(values["report"], everything=True))


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
    for part in ("rewards", "scores"):
        if values[part] is not None:
            yield part, ", ".join(f"{count:,} {fate}" for fate, count in values[part].items())
    yield "evaluates", f"{', '.join(values['policies'])}: {counted(values['events']['accepted'], 'event')}"
    yield "configuration", ", ".join(f"{key} {value}" for key, value in values["fingerprint"].items())


def _waiting_table(waiting: Sequence[Mapping[str, Any]]) -> Table:
    def time(name: str) -> Column:
        return name, lambda row: UNKNOWN if row[name] is None else utc_time(row[name])

    columns: list[Column] = [
        ("what", lambda row: str(row["what"])),
        (">count", lambda row: f"{row['count']:,}"),
        time("oldest"),
        time("newest"),
        (">bytes", lambda row: f"{row['bytes']:,}"),
    ]
    return new_table("Buffers", columns, waiting)
