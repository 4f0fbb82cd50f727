"""Read logs in any format from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from streameval.common.problems import did_you_mean, expecting, one_of
from streameval.errors import InputError
from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder, RankingDecoder
from streameval.events.arguments import require_fields, require_names, require_one_reward, require_range
from streameval.events.fields import json_decoder
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames
from streameval.ingest.files.lines import check, table_format
from streameval.ingest.files.source import AnyPath, read_lines
from streameval.ingest.files.tables import read_table

EventsFormat: TypeAlias = Literal["json", "dsjson", "parquet", "csv"]
FORMATS = (*get_args(EventsFormat), "rankings")


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
    """Read the events of files in batches.

    Files are NDJSON, CSV (plain, or compressed by gzip, zstd, bzip2 or xz) or Parquet. Lines and rows that are not
    events are in the `rejected` of their batch.

    Args:
        paths: one path or several, read one after another, `-` is standard input
        policies: the columns of every batch, None = all policies that the events of a batch name. Tables need the names
        columns: the name of each field in a table or in JSON, as in the configuration: `{"timestamp": "ts"}`
        reward_field: the field of the reward
        reward_range: smallest and largest reward. Other events are rejected
        batch_size: maximum number of events in a batch
        format: `json`, `csv`, `parquet`, `rankings` with clicks in JSON, or `dsjson` for the decision logs of Vowpal
            Wabbit, None = by the suffix, else by the content
        scores: fields with scores that policies read, such as `softmax`
        segments: by name, the field of each segment, e.g. `{"country": "context.country"}`
        estimated: whether propensities are estimated. Events then need none, and logged ones are ignored

    Raises:
        InputError: A table lacks a column, or a file is missing or damaged. Raised after all lines before the damage.
        ValueError: `batch_size` is not a whole number of at least 1.
    """
    _require_arguments(paths, policies, reward_range, format, segments, batch_size)
    names = ColumnNames.from_mapping(columns, policies or ())
    require_one_reward(reward_field, names.reward)
    fields = [SegmentField(name, field) for name, field in (segments or {}).items()]
    raw_fields = () if estimated and scores is None else scores
    options: dict[str, Any] = {"segments": fields, "named": estimated, "estimated": estimated}

    def decoder(form: Callable[..., JsonDecoder], policies: Sequence[str] | None) -> JsonDecoder:
        own = {"reward_field": reward_field, "reward_range": reward_range, "scores": raw_fields, **options}
        deferred = form(policies=[], reward_field=reward_field, scores=()) if raw_fields is None else None
        return form(policies=policies, deferred=deferred, **own)

    files = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    for file in files:
        check(file)
    for file in files:
        written = format or table_format(file) or "json"
        if written not in ("csv", "parquet"):
            events: JsonDecoder
            if written == "rankings":
                events = RankingDecoder(policies, deferred=RankingDecoder([], named=True))
            else:
                events = decoder(DsjsonDecoder if written == "dsjson" else partial(json_decoder, columns), policies)
            yield from map(events.decode_batch, read_lines(file, batch=batch_size))
            continue
        if policies is None and not names.policies:
            hint = 'name them, e.g. read_events(..., policies=["challenger"]); policies=[] reads none'
            raise InputError(f"{file} is a table, and no column of a policy is named", hint=hint)
        rows = decoder(JsonDecoder, list(names.policies))
        for batch in read_table(
            file, written, names, rows, lambda read, total: None, timed=False, batch_rows=batch_size
        ):
            yield replace(batch, origin=None)


def _require_arguments(
    paths: object, policies: object, reward_range: object, format: str | None, segments: object, batch_size: object
) -> None:
    if hasattr(paths, "__arrow_c_stream__") or isinstance(paths, Mapping):
        hint = "streameval.compare takes it as it is, and EventBatch.from_frame makes a batch of it"
        raise InputError(f"expected paths of files, found a frame ({type(paths).__name__})", hint=hint)
    if isinstance(paths, bytes):
        raise InputError(f"expected a path, found bytes ({paths!r:.60})", hint="write it as text, or use os.fsdecode")
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise InputError(
            f"expected paths of files, found {paths!r:.60}", hint='write e.g. read_events("log.ndjson.gz")'
        )
    if policies is not None:
        require_names("policies", policies)
    require_range(reward_range)
    if format is not None and format not in FORMATS:
        hint = did_you_mean(format, FORMATS) or "CSV and Parquet are the tables that are read"
        raise InputError(f"format: {expecting(one_of(FORMATS), repr(format))}", hint=hint)
    require_fields(segments)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected a whole number of at least 1, found {batch_size!r}")
