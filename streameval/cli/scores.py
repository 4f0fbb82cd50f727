"""Join a file with probabilities of candidates to a log that lacks them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from streameval.cli.terminal import warning
from streameval.common.text import counted
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, Origin, Rejected
from streameval.events.fields import reward_decoder
from streameval.ingest.base import ScoreColumns
from streameval.ingest.files.lines import table_format
from streameval.ingest.files.source import read_lines
from streameval.ingest.files.tables import column_values
from streameval.ingest.stages import RewardStore

ROWS = 10_000  # of a table that are decoded together


class ScoreFile:
    """Hold the messages of a file, as in `source.candidates`, and fill the probabilities that events lack.

    A message counts for the decision with its id, however late it is dated. Of several, the first one counts.

    Args:
        file: NDJSON, or CSV, Parquet or Arrow with a column `event_id` and a column for each candidate
        config: names the candidates, and the fields of messages

    Attributes:
        policies: the candidates that have probabilities in the file

    Raises:
        InputError: The file cannot be read, or has no probability of a candidate.
    """

    def __init__(self, file: str, config: Config) -> None:
        self._file, names = file, config.evaluator_config().logged_policies
        if not names:
            raise InputError("--scores: no candidate reads probabilities", hint="leave it out: all are computed here")
        topic = config.candidates_topic
        columns = ScoreColumns() if topic is None else topic.columns
        is_table = table_format(file) is not None
        decoder = reward_decoder(columns={} if is_table else dict(columns), policies=names)
        forever: dict[str, Any] = {"window": math.inf, "max_lateness": math.inf, "max_bytes": math.inf}
        self._store = RewardStore(file, default=math.nan, combine="first", by_name=True, **forever)
        self._read = self._rows = 0
        self._rejected: list[Rejected] = []
        has_any = np.zeros(len(names), dtype=bool)
        lines = _rows_of_table(file, columns.event_id or "event_id", names) if is_table else read_lines(file)
        for values in lines:
            batch = decoder.decode_batch(
                values, Origin.from_parts(file, [(0, range(self._read, self._read + len(values)))])
            )
            assert batch.further is not None
            self._read += len(values)
            self._rejected += batch.rejected
            known = np.isfinite(batch.further.values)
            self._rows += int(np.count_nonzero(known))
            has_any |= known.any(axis=0)
            self._store.add(batch)
        self.policies = [name for name, has_some in zip(names, has_any, strict=True) if has_some]
        if not self.policies:
            cause = f", e.g. {self._rejected[0].reason}: {self._rejected[0].detail}" if self._rejected else ""
            hint = "`streameval schema candidates` shows a message; tables have a column for each candidate"
            raise InputError(f"{file} has no probability of {', '.join(names)}{cause}", hint=hint)

    def without_columns(self, config: Config) -> Config:
        """Return the configuration for a log that needs no columns of these candidates."""
        own = {name: path for name, path in config.columns.policies.items() if name not in self.policies}
        return config.model_copy(update={"columns": config.columns.model_copy(update={"policies": own})})

    def join(self, batch: EventBatch) -> EventBatch:
        """Fill the probabilities that events lack."""
        batch = batch.with_policies(dict.fromkeys((*batch.policies, *self.policies)))
        if len(batch) and batch.origin is not None and batch.origin.identity is not None:
            scores = self._store.join(batch.origin.identity, np.zeros(len(batch)), batch.policies)
            batch = batch.with_scores(scores[1:].T)
        return batch

    def warnings(self) -> Iterator[str]:
        """Yield warnings about messages that cannot be used, and scores without an event."""
        if self._rejected:
            first = self._rejected[0]
            found = f"{len(self._rejected):,} of {counted(self._read, 'message')} cannot be used"
            yield warning(
                f"{self._file}: {found}, e.g. {first.reason}: {first.detail}", "see `streameval schema candidates`"
            )
        unmatched = self._rows - self._store.counts.joined
        if unmatched:
            found = f"{unmatched / self._rows:.2%} of {counted(self._rows, 'score')} have no event with their event_id"
            yield warning(f"{self._file}: {found}", "log decisions and scores with the same event_id")


def _rows_of_table(file: str, event_id: str, policies: Sequence[str]) -> Iterator[Sequence[bytes]]:
    """Yield the rows of a table as messages."""
    kind = table_format(file) or ""
    ids = list(column_values(file, kind, event_id))
    if not ids or set(ids) == {None}:
        raise InputError(f"{file} has no column '{event_id}'", hint="name it in source.candidates.columns.event_id")
    columns = {name: list(column_values(file, kind, name)) or [None] * len(ids) for name in policies}
    for first in range(0, len(ids), ROWS):
        rows = slice(first, first + ROWS)
        cells = zip(*(columns[name][rows] for name in policies), strict=True)
        yield [
            msgspec.json.encode(
                {"event_id": key, "timestamp": 0, "policies": dict(zip(policies, map(_number, row), strict=True))}
            )
            for key, row in zip(ids[rows], cells, strict=True)
        ]


def _number(cell: Any) -> Any:
    """Return the number in a cell of CSV, and other values as they are. An empty cell counts as missing."""
    with suppress(ValueError):
        return float(cell) if isinstance(cell, str) else cell
    return cell
