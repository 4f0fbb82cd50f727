"""Files through the evaluator: what `streameval replay` does, and what it has to complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from streameval.cli.plots.decisions import DecisionTimeline
from streameval.cli.plots.trace import Trace
from streameval.cli.plots.values import Picture, read_truth
from streameval.common.text import counted
from streameval.config.errors import closest, expecting, one_of
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder, Rejected
from streameval.ingest.files.source import FileSource
from streameval.ingest.files.tables import Table, mapping, read_csv, read_parquet
from streameval.ingest.files.tail import check
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.evaluator.plan import Plan
from streameval.ope.report import Report

Advance = Callable[[int, int | None], None]
"""Is told the bytes read so far, of the files as they are stored, and how many there are (None: a pipe)."""

TABLES = {".parquet": "parquet", ".csv": "csv"}
"""Endings of files that are tables, which may be followed by .gz or .zst where they are text."""

ENOUGH = 100
"""Events that tell what the rest will lack."""

LONGEST_EXAMPLE = 120
"""Characters of a rejected event's detail."""


class Replay:
    """Reads files of events into the evaluator of a configuration, and keeps one rejected event of each reason.

    With `traced`, `trace` has Reports from all along the way.
    """

    def __init__(self, config: Config, *, traced: bool = False) -> None:
        self.config = config
        self.evaluator = config.evaluator()
        self.trace = Trace()
        self.traced = traced
        self.examples: dict[str, Rejected] = {}
        self._first_lines: Sequence[bytes] = ()
        self._shortfalls: list[MissingField] | None = None

    def read(self, files: Sequence[str], advance: Advance, written: str | None = None) -> Report:
        """The Report after all files; `written`: how, if not as their endings say, or else as the source does."""
        sizes = [check(file) for file in files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        for place, file in enumerate(files):
            before = sum(size or 0 for size in sizes[:place])
            for batch in self._batches(file, written or _ending(file), _after(before, total, advance)):
                self._take(batch)
        return self.trace.finish(self.evaluator) if self.traced else self.evaluator.report()

    def _batches(self, file: str, written: str | None, advance: Advance) -> Iterator[EventBatch]:
        tabular = written in TABLES.values()
        events = self.config.event_format("json" if tabular else written or self.config.written)
        parts = self._tables(file, written, events, advance) if tabular else _lines(file, advance)
        for messages, rejected in parts:
            self._first_lines = self._first_lines or messages
            batch = events.decode_batch(messages)
            yield replace(batch, rejected=(*rejected, *batch.rejected))

    def _tables(self, file: str, written: str | None, events: JsonDecoder, advance: Advance) -> Iterator[Table]:
        wanted = mapping(self.config.columns, events.reward_field, events.policies or (), events.scores or ())
        return read_parquet(file, wanted, advance) if written == "parquet" else read_csv(file, wanted, advance)

    def complaints(self, report: Report) -> Iterator[str]:
        """What a person should know about the events, line by line."""
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
                yield f"hint: the events name {self._named() or 'no policies'}"
        for shortfall in self._shortfalls or ():
            yield f"warning: {shortfall}"
            yield f"hint: {shortfall.hint}"

    def require_events(self, report: Report) -> None:
        """InputError when no event was accepted."""
        if report.events.accepted:
            return
        found = "all were rejected" if report.events.rejected else "the files are empty"
        raise InputError(f"no event was accepted: {found}", hint="`streameval schema` prints what an event looks like")

    def _take(self, batch: EventBatch) -> None:
        for rejected in batch.rejected:
            self.examples.setdefault(rejected.reason, rejected)
        if len(batch) and self._shortfalls is None:
            self._shortfalls = self.evaluator.shortfalls(batch[:ENOUGH])
        if self.traced:
            self.trace.update(self.evaluator, batch)
        else:
            self.evaluator.update(batch)

    def _named(self) -> str:
        return ", ".join(JsonDecoder().decode_batch(self._first_lines).policies)


def read_lines(files: Sequence[str], advance: Advance) -> Iterator[list[bytes]]:
    """The lines of files, many at a time."""
    source = FileSource(files)
    try:
        while not source.status().exhausted:
            records = source.poll(1.0)
            advance(source.bytes_read, source.bytes_total)
            yield [value for part in records for value in part.values if value is not None]
    finally:
        source.close()


def _lines(file: str, advance: Advance) -> Iterator[Table]:
    return (Table(lines, ()) for lines in read_lines([file], advance))


def _ending(file: str) -> str | None:
    """How a file is written by its name, if that says it."""
    return next((written for ending, written in TABLES.items() if ending in Path(file).suffixes), None)


def _after(before: int, total: int | None, advance: Advance) -> Advance:
    """Tells of the bytes of all files, `before` of which were read before this one."""
    return lambda read, _: advance(before + read, total)


def choose_picture(
    config: Config, path: Path, estimator: str | None, average: str | None, title: str, truth: Path | None
) -> Picture:
    """The picture to draw after a replay, checked before it.

    Without a choice: the best there is, on `mixture`; else snips or the first estimator, on an average that adapts or
    the last one.
    """
    pairs = _by_preference(config.plan())
    wanted = (
        _chosen("--plot-estimator", estimator, [one for one, _ in pairs]),
        _chosen("--plot-average", average, [other for _, other in pairs]),
    )
    choices = [pair for pair in pairs if all(wish in (None, label) for wish, label in zip(wanted, pair, strict=True))]
    if not choices:
        raise InputError(
            f"{estimator} is not estimated on {average}", hint=f"choose e.g. {pairs[0][0]} on {pairs[0][1]}"
        )
    picture = Picture(path, choices, title, read_truth(truth) if truth else {})
    picture.check()
    return picture


def require_rules(config: Config) -> None:
    """InputError when nothing is to be decided, so that nothing could be said of when."""
    if config.promotion is None:
        raise InputError("promotion is off: no rule could fire", hint="remove `promotion: off` from the configuration")


def timeline_of(config: Config, picture: Picture) -> DecisionTimeline:
    """The picture of when rules would have fired, in the place of one of values."""
    return DecisionTimeline(picture, 0.0 if config.promotion is None else config.promotion.margin)


PREFERRED = (("stratified_dr", "stratified_ips", "snips"), ("mixture", "adaptive_window", "adaptive_decay"))
"""Kinds of estimators, and of averages, best to look at first."""


def _by_preference(plan: Plan) -> list[tuple[str, str]]:
    """The labels of every estimator on every average that there may be, best to look at first."""
    pairs = [
        (estimator, average)
        for estimators, averages in plan.products()
        for average in reversed(averages)
        for estimator in estimators
    ]
    pairs.sort(key=lambda pair: (_rank(pair[1].kind, PREFERRED[1]), _rank(pair[0].kind, PREFERRED[0])))
    return list(dict.fromkeys((estimator.label, average.label) for estimator, average in pairs))


def _rank(kind: str, preferred: Sequence[str]) -> int:
    return preferred.index(kind) if kind in preferred else len(preferred)


def _chosen(option: str, label: str | None, labels: Sequence[str]) -> str | None:
    if label is not None and label not in labels:
        labels = list(dict.fromkeys(labels))
        meant = closest(label, labels)
        hint = f"did you mean '{meant}'?" if meant else "it must be configured to be drawn"
        raise InputError(f"{option}: {expecting(one_of(labels), repr(label))}", hint=hint)
    return label
