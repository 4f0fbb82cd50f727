"""The verb `replay`: files through the evaluator, with warnings about their events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from streameval.cli.plots.values import Picture, Trace, read_truth
from streameval.common.text import counted
from streameval.config.errors import did_you_mean, expecting, one_of
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder, Rejected
from streameval.ingest.files.lines import check
from streameval.ingest.files.source import Advance, read_lines
from streameval.ingest.files.tables import read_table
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.evaluator.plan import Plan
from streameval.ope.policies import LOGGING
from streameval.ope.report import Report

TABLES = {".parquet": "parquet", ".csv": "csv"}
"""Suffixes of tables; .gz or .zst may follow if they are text."""

ENOUGH = 100
"""Events that show what the rest will lack."""

LONGEST_EXAMPLE = 120
"""Characters of the detail of a rejected event."""


class Replay:
    """Reads files of events into the evaluator of a configuration, and keeps one rejected event per reason.

    With `traced`, `trace` holds Reports along the way.
    """

    def __init__(self, config: Config, *, traced: bool = False) -> None:
        self.config = config
        self.evaluator = config.evaluator()
        self.trace = Trace()
        self.traced = traced
        self.examples: dict[str, Rejected] = {}
        self._first_lines: Sequence[bytes | None] = ()
        self._shortfalls: list[MissingField] | None = None

    def read(self, files: Sequence[str], advance: Advance, written: str | None = None) -> Report:
        """The Report after all files. `written`: their format; by default from their suffix, else from the source."""
        sizes = [check(file) for file in files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        for place, file in enumerate(files):
            before = sum(size or 0 for size in sizes[:place])
            for batch in self._batches(file, written or _ending(file), partial(_advance_all, advance, before, total)):
                self._update(batch)
        return self.trace.finish(self.evaluator) if self.traced else self.evaluator.report()

    def _batches(self, file: str, written: str | None, advance: Advance) -> Iterator[EventBatch]:
        if written == "parquet" or written == "csv":
            yield from read_table(file, written, self.config.columns, self.config.event_format("json"), advance)
            return
        events = self.config.event_format(written or self.config.written)
        for lines in read_lines([file], advance=advance):
            self._first_lines = self._first_lines or lines
            yield events.decode_batch(lines)

    def warnings(self, report: Report) -> Iterator[str]:
        """Lines about rejected events, failing policies, and policies and fields that the events lack."""
        rejected = report.events.rejected
        if rejected:
            total = sum(rejected.values())
            all_events = counted(total + report.events.accepted, "event")
            yield f"warning: {total:,} of {all_events} {'was' if total == 1 else 'were'} rejected"
        for reason, count in sorted(rejected.items(), key=lambda item: -item[1]):
            example = f"  e.g. {self.examples[reason].detail[:LONGEST_EXAMPLE]}" if reason in self.examples else ""
            yield f"  {count:>9,}  {reason}{example}"
        for policy in report.policies:
            for failure in policy.failures:
                yield f"warning: the policy '{policy.policy}' has no distribution for {counted(failure.count, 'event')}"
                yield f"  {failure.reason}  e.g. {failure.example[:LONGEST_EXAMPLE]}"
            if report.events.accepted and not policy.events and not policy.failures:
                yield f"warning: no event has a probability of the policy '{policy.policy}'"
                yield f"hint: the events name {self._named(report) or 'no policies'}"
        for shortfall in self._shortfalls or ():
            yield f"warning: {shortfall}"
            yield f"hint: {shortfall.hint}"

    def require_events(self, report: Report) -> None:
        """InputError if no event was accepted."""
        if report.events.accepted:
            return
        found = "all were rejected" if report.events.rejected else "the files are empty"
        raise InputError(f"no event was accepted: {found}", hint="`streameval schema` prints what an event looks like")

    def _update(self, batch: EventBatch) -> None:
        for rejected in batch.rejected:
            self.examples.setdefault(rejected.reason, rejected)
        if len(batch) and self._shortfalls is None:
            self._shortfalls = self.evaluator.missing_fields(batch[:ENOUGH])
        if self.traced:
            self.trace.update(self.evaluator, batch)
        else:
            self.evaluator.update(batch)

    def _named(self, report: Report) -> str:
        if self._first_lines:
            return ", ".join(JsonDecoder().decode_batch(self._first_lines).policies)
        return ", ".join(policy.policy for policy in report.policies if policy.events and policy.policy != LOGGING)


def _advance_all(advance: Advance, before: int, total: int | None, read: int, _: int | None) -> None:
    advance(before + read, total)


def _ending(file: str) -> str | None:
    """The format that the suffixes of a file name, if any."""
    return next((written for ending, written in TABLES.items() if ending in Path(file).suffixes), None)


def choose_picture(
    config: Config, path: Path, estimator: str | None, average: str | None, title: str, truth: Path | None
) -> Picture:
    """The plot to draw after a replay, checked before it.

    By default the average with the lowest `preference`, and on it the estimator with the lowest one.
    """
    pairs = _by_preference(config.plan())
    _require_label("--plot-estimator", estimator, [label for label, _ in pairs])
    _require_label("--plot-average", average, [label for _, label in pairs])
    choices = [pair for pair in pairs if estimator in (None, pair[0]) and average in (None, pair[1])]
    if not choices:
        raise InputError(
            f"{estimator} is not estimated on {average}", hint=f"choose e.g. {pairs[0][0]} on {pairs[0][1]}"
        )
    picture = Picture(path, choices, title, read_truth(truth) if truth else {})
    picture.check()
    return picture


def _by_preference(plan: Plan) -> list[tuple[str, str]]:
    """The labels of every estimator on every average, sorted by their `preference`."""
    pairs = [
        (estimator, average)
        for estimators, averages in plan.products
        for average in reversed(averages)
        for estimator in estimators
    ]
    pairs.sort(key=lambda pair: (pair[1].preference, pair[0].preference))
    return list(dict.fromkeys((estimator.label, average.label) for estimator, average in pairs))


def _require_label(option: str, label: str | None, labels: Sequence[str]) -> None:
    if label is None or label in labels:
        return
    labels = list(dict.fromkeys(labels))
    hint = did_you_mean(label, labels) or "it must be configured to be drawn"
    raise InputError(f"{option}: {expecting(one_of(labels), repr(label))}", hint=hint)
