"""Files through the evaluator: what `streameval replay` does, and what it has to complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from streameval.config import Config
from streameval.errors import InputError
from streameval.events import EventBatch, EventFormat, Rejected
from streameval.plots import Picture, read_truth
from streameval.problems import closest, expecting, one_of
from streameval.report import Report
from streameval.sources.file import FileSource
from streameval.trace import Trace

Advance = Callable[[int, int | None], None]
"""Is told the bytes read so far, of the files as they are stored, and how many there are (None: a pipe)."""

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

    def read(self, files: Sequence[str], advance: Advance) -> Report:
        """The Report after all files."""
        events = self.config.event_format()
        for lines in read_lines(files, advance):
            self._first_lines = self._first_lines or lines
            self._take(events.decode_batch(lines))
        return self.trace.finish(self.evaluator) if self.traced else self.evaluator.report()

    def complaints(self, report: Report) -> Iterator[str]:
        """What a person should know about the events, line by line."""
        rejected = report.events.rejected
        if rejected:
            total = sum(rejected.values())
            yield f"warning: {total:,} of {total + report.events.accepted:,} events were rejected"
        for reason, count in sorted(rejected.items(), key=lambda item: -item[1]):
            example = f"  e.g. {self.examples[reason].detail[:LONGEST_EXAMPLE]}" if reason in self.examples else ""
            yield f"  {count:>9,}  {reason}{example}"
        for policy in report.policies:
            if report.events.accepted and not policy.events:
                yield f"warning: no event has a probability of the policy '{policy.policy}'"
                yield f"hint: the events name {self._named() or 'no policies'}"

    def require_events(self, report: Report) -> None:
        """InputError when no event was accepted."""
        if report.events.accepted:
            return
        found = "all were rejected" if report.events.rejected else "the files are empty"
        raise InputError(f"no event was accepted: {found}", hint="`streameval schema` prints what an event looks like")

    def _take(self, batch: EventBatch) -> None:
        for rejected in batch.rejected:
            self.examples.setdefault(rejected.reason, rejected)
        if self.traced:
            self.trace.update(self.evaluator, batch)
        else:
            self.evaluator.update(batch)

    def _named(self) -> str:
        return ", ".join(EventFormat().decode_batch(self._first_lines).policies)


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


def choose_picture(
    config: Config, path: Path, estimator: str | None, average: str | None, title: str, truth: Path | None
) -> Picture:
    """The picture to draw after a replay, checked before it.

    Without a choice: snips, or else the first estimator; the first average that adapts, or else the last one.
    """
    (first, on), *_ = config.plan().products(described=False)
    estimators, averages = [choice.label for choice in first], [choice.label for choice in on]
    adaptive = [choice.label for choice in on if choice.kind.startswith("adaptive")]
    picture = Picture(
        path,
        _chosen("--plot-estimator", estimator, estimators) or ("snips" if "snips" in estimators else estimators[0]),
        _chosen("--plot-average", average, averages) or [*adaptive, averages[-1]][0],
        title,
        read_truth(truth) if truth else {},
    )
    picture.check()
    return picture


def _chosen(option: str, label: str | None, labels: Sequence[str]) -> str | None:
    if label is not None and label not in labels:
        meant = closest(label, labels)
        hint = f"did you mean '{meant}'?" if meant else "it must be configured to be drawn"
        raise InputError(f"{option}: {expecting(one_of(labels), repr(label))}", hint=hint)
    return label
