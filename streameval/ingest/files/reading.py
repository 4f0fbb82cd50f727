"""`read_events`: logs in any format, from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from streameval.errors import InputError
from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder, RankingDecoder
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames
from streameval.ingest.files.lines import check, table_format
from streameval.ingest.files.source import AnyPath, read_lines
from streameval.ingest.files.tables import read_table

EventsFormat: TypeAlias = Literal["json", "dsjson", "parquet", "csv"]


def read_events(
    paths: AnyPath | Iterable[AnyPath],
    *,
    policies: Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    reward_field: str = "reward",
    reward_range: tuple[float, float] | None = None,
    batch_size: int = 2000,
    format: EventsFormat | Literal["rankings"] | None = None,
    scores: Sequence[str] | None = None,
    segments: Mapping[str, str] | None = None,
    estimated: bool = False,
) -> Iterator[EventBatch]:
    """The events of files (NDJSON or CSV: plain, gzip or zstd; `-` is standard input; or Parquet), in batches.

    Lines and rows that are not events are in the `rejected` of their batch.

    Args:
        paths: One path or several, read one after another.
        policies: The columns of every batch; None = in each batch, all that its events name. A table needs the names.
        columns: Which column of a table holds which field, as in the configuration: `{"timestamp": "ts"}`.
        reward_field: The field of the reward.
        reward_range: Least and largest reward; events outside it are rejected.
        batch_size: Most events in a batch.
        format: `json`, `csv`, `parquet`, `rankings` with clicks in JSON, or `dsjson` for the decision logs of Vowpal
            Wabbit; None = by the suffix.
        scores: Fields that policies in Python read; if not None, these also see contexts and the names of actions.
        segments: By name, the field of each segment, e.g. `{"country": "context.country"}`.
        estimated: Propensities are estimated: events need none, and those that they have are ignored.

    Raises:
        InputError: A file is missing or damaged; raised after all lines before the damage. Or a table lacks a column.
    """
    names = ColumnNames.of(columns, policies or ())
    fields = [SegmentField(*each) for each in (segments or {}).items()]
    read = () if estimated and scores is None else scores
    options: dict[str, Any] = {"segments": fields, "named": estimated, "estimated": estimated}
    files = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    for file in files:
        check(file)
    for file in files:
        written = format or table_format(file) or "json"
        if written not in ("csv", "parquet"):
            events: JsonDecoder
            if written == "rankings":
                events = RankingDecoder(policies, named=scores is not None)
            else:
                form = DsjsonDecoder if written == "dsjson" else JsonDecoder
                events = form(policies, reward_field, reward_range, read, **options)
            yield from map(events.decode_batch, read_lines(file, batch=batch_size))
            continue
        if policies is None and not names.policies:
            hint = 'name them, e.g. read_events(..., policies=["challenger"]); policies=[] reads none'
            raise InputError(f"{file} is a table, and no column of a policy is named", hint=hint)
        rows = JsonDecoder(list(names.policies), reward_field, reward_range, read, **options)
        for batch in read_table(
            file, written, names, rows, lambda read, total: None, timed=False, batch_rows=batch_size
        ):
            yield replace(batch, origin=None)
