"""Read logs in any format from Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from streameval.common.problems import Problem, ProblemsError, did_you_mean, expecting, one_of
from streameval.errors import InputError
from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder, RankingDecoder
from streameval.events.arguments import (
    check_options,
    is_series,
    list_of_names,
    range_of_reward,
    refuse_argument,
    remedy_of,
    require_one_reward,
    segment_fields,
)
from streameval.events.defects import UnusableLog
from streameval.events.fields import json_decoder
from streameval.events.tables import ColumnNames
from streameval.ingest.files.lines import TABLES, check, table_format
from streameval.ingest.files.remote import expand
from streameval.ingest.files.source import AnyPath, read_lines
from streameval.ingest.files.tables import read_table

EventsFormat: TypeAlias = Literal["json", "dsjson", "parquet", "csv", "arrow"]
FORMATS = ("json", "csv", "parquet", "arrow", "rankings", "dsjson")


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

    Files are NDJSON, CSV (plain, or compressed by gzip, zstd, bzip2 or xz), Parquet or Arrow. Lines and rows that are
    not events are in the `rejected` of their batch. A warning after the last batch tells if all were, or if no event
    has a probability of one of `policies`.

    Args:
        paths: one path or several, read one after another, `-` is standard input. Also addresses, patterns and folders
            of Parquet files, such as `s3://bucket/log/*.parquet`, with the extra `streameval[cloud]`
        policies: the columns of every batch, None = all policies that the events of a batch name. Tables need the names
        columns: the name of each field in a table or in JSON, as in the configuration: `{"timestamp": "ts"}`
        reward_field: the field of the reward
        reward_range: smallest and largest reward. Other events are rejected
        batch_size: maximum number of events in a batch
        format: `json`, `csv`, `parquet`, `arrow`, `rankings` with clicks in JSON, or `dsjson` for the decision logs of
            Vowpal Wabbit, None = by the suffix, else by the content
        scores: fields with scores that policies read, such as `softmax`
        segments: by name, the field of each segment, e.g. `{"country": "context.country"}`
        estimated: whether propensities are estimated. Events then need none, and logged ones are ignored

    Raises:
        InputError: A table lacks a column, or a file is missing or damaged. Raised after all lines before the damage.
        ProblemsError: An argument is wrong.
        ValueError: `batch_size` is not a whole number of at least 1.
    """
    files = _paths_of(paths)
    _check_format(format)
    check_options(reward_field, estimated)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size: expected a whole number of at least 1, found {batch_size!r}")
    listed, scores = list_of_names("policies", policies), list_of_names("scores", scores)
    raw_fields = () if estimated and scores is None else scores
    options = {
        "reward_field": reward_field,
        "reward_range": range_of_reward(reward_range),
        "scores": raw_fields,
        "segments": segment_fields(segments),
        "named": estimated,
        "estimated": estimated,
    }
    names = ColumnNames.from_mapping(columns, listed or ())
    require_one_reward(reward_field, names.reward)
    reader = _Reader(listed, names, columns, batch_size, options, [])
    for file in files:
        check(file)
    log = UnusableLog()
    for file in files:
        for batch in reader.batches(file, format or table_format(file) or "json"):
            log.add(batch)
            yield batch
    absent = [name for name in listed or () if name not in log.names]
    for message in log.warnings(absent, JsonDecoder().decode_batch(reader.first_lines).policies):
        warnings.warn(message, stacklevel=2)


@dataclass(frozen=True)
class _Reader:
    """Read files of any format.

    Args:
        policies: names of policies, None = all that the events name
        names: the columns of tables
        columns: the argument of `read_events`
        batch_size: maximum number of events in a batch
        options: options of decoders
        first_lines: the first lines that are no rows of tables
    """

    policies: list[str] | None
    names: ColumnNames
    columns: Mapping[str, Any] | None
    batch_size: int
    options: Mapping[str, Any]
    first_lines: list[bytes | None]

    def batches(self, file: str, written: str) -> Iterator[EventBatch]:
        """Yield the events of a file."""
        if written in TABLES:
            yield from self._rows(file, written)
            return
        events = self._lines_decoder(written)
        for lines in read_lines(file, batch=self.batch_size):
            self.first_lines.extend(() if self.first_lines else lines)
            yield events.decode_batch(lines)

    def _rows(self, file: str, written: str) -> Iterator[EventBatch]:
        if self.policies is None and not self.names.policies:
            hint = 'name them, e.g. read_events(..., policies=["challenger"]); policies=[] reads none'
            raise InputError(f"{file} is a table, and no column of a policy is named", hint=hint)
        rows = self._decoder(JsonDecoder, list(self.names.policies))
        for batch in read_table(
            file, written, self.names, rows, lambda read, total: None, timed=False, batch_rows=self.batch_size
        ):
            yield replace(batch, origin=None)

    def _lines_decoder(self, written: str) -> JsonDecoder:
        if written == "rankings":
            return RankingDecoder(self.policies, deferred=RankingDecoder([], named=True))
        return self._decoder(
            DsjsonDecoder if written == "dsjson" else partial(json_decoder, self.columns), self.policies
        )

    def _decoder(self, form: Callable[..., JsonDecoder], policies: Sequence[str] | None) -> JsonDecoder:
        deferred = None
        if self.options["scores"] is None:
            deferred = form(policies=[], reward_field=self.options["reward_field"], scores=())
        return form(policies=policies, deferred=deferred, **self.options)


def _check_format(format: str | None) -> None:
    if format is not None and format not in FORMATS:
        hint = 'write format="csv", or store the events as CSV or Parquet, e.g. pandas.read_excel(path).to_parquet(new)'
        refuse_argument("format", one_of(FORMATS), format, did_you_mean(format, FORMATS) or hint)


def _require_no_frame(paths: object) -> None:
    if (hasattr(paths, "__arrow_c_stream__") and not is_series(paths)) or isinstance(paths, Mapping):
        hint = "streameval.compare takes it as it is, and EventBatch.from_frame makes a batch of it"
        raise InputError(f"expected paths of files, found a frame ({type(paths).__name__})", hint=hint)


def _paths_of(paths: Any) -> list[str]:
    """Return the paths of files.

    Raises:
        ProblemsError: There is something else than paths.
    """
    _require_no_frame(paths)
    listed = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(listed, Iterable) or hasattr(listed, "read") or isinstance(listed, bytes):
        refuse_argument("paths", "a path or several", paths, remedy_of(paths))
    files = list(listed)
    for path in files:
        if not isinstance(path, str | os.PathLike):
            kinds = f"{type(paths).__name__} of {type(path).__name__}"
            raise ProblemsError([Problem(("paths",), expecting("paths", kinds), remedy_of(paths, path))])
    return expand(map(os.fspath, files))
