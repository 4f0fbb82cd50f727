"""Evaluate files of events, and warn about what is wrong with them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from msgspec import structs
from pydantic import ValidationError

from streameval.cli.accuracy import error_rows, error_table, score
from streameval.cli.arguments import candidate_names, split_config_and_files
from streameval.cli.copies import Copies
from streameval.cli.known_late import LateSegments
from streameval.cli.log_warnings import FUNCTION_HINTS, MIN_SHARE, LogCounts, missing_warnings, trust_warnings
from streameval.cli.plots import ReplayPlot, check_path, save
from streameval.cli.scores import ScoreFile
from streameval.cli.tables import answer_lines, decisions_table, result_tables
from streameval.cli.terminal import console, progress_of_bytes, say, silence_logs, warn, warning
from streameval.cli.trace import Trace, read_truth, require_truth_of
from streameval.common.arrays import Array
from streameval.common.problems import did_you_mean, problems_of
from streameval.common.text import counted, significant
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder
from streameval.events.batch import decode_frame
from streameval.events.defects import MAX_DETAIL, Rejections, absent_policy
from streameval.events.origin import Origin
from streameval.events.segments import OTHER
from streameval.ingest.files.lines import TABLES, check, table_format
from streameval.ingest.files.remote import expand
from streameval.ingest.files.source import Advance, FileSettings, read_records
from streameval.ingest.files.tables import local_time, read_table
from streameval.ingest.stages import Deduplication
from streameval.ope.basis import with_basis
from streameval.ope.cycle import HourlyMeans
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.promotion import add_checks
from streameval.ope.report import OTHER_FAILURES, Report, TrustCheck

__all__ = [
    "PlotOptions",
    "Replay",
    "choices",
    "config_and_files",
    "config_for",
    "hourly_means",
    "require_configured",
    "run_replay",
]

MOST_COPIES = 0.01
"""Share of copies among the events above which no estimate can be trusted: they count as evidence more than once."""
SAMPLED_EVENTS = 100
"""Events at both ends of a log that show which fields it lacks."""


@dataclass(frozen=True)
class PlotOptions:
    """Hold the options of `replay` for its figure."""

    path: Path
    estimator: str | None
    average: str | None
    title: str | None


def run_replay(
    arguments: Sequence[str],
    candidates: str | None,
    events_format: str | None,
    plot: PlotOptions | None,
    truth: Path | None,
    *,
    multiline: bool,
    as_json: bool,
    everything: bool,
    decisions: bool,
    strict: bool,
    scores: str | None = None,
) -> None:
    """Estimate from files of events, and print the results.

    Raises:
        InputError: An option or a file cannot be used.
        typer.Exit: `strict` is set and a trust check fails.
    """
    config, files = config_and_files(arguments, candidates, events_format)
    if config.promotion is None and (decisions or strict):
        lost = "no rule can fire" if decisions else "its trust checks are off too"
        hint = "remove `promotion: off` from the configuration"
        raise InputError(f"promotion is off: {lost}", hint=hint)
    true_values = read_truth(truth) if truth else {}
    figure = None if plot is None else _figure(config, files, plot, true_values, decisions)
    trace = Trace(list(config.evaluator_config().pairs) if true_values else figure.choices if figure else ())
    replay = Replay(config, timed=candidates is None, multiline=multiline, scores=scores)
    means = None if as_json else hourly_means(replay.evaluator.config)
    replay.update = _updates(replay, trace if trace.pairs else None, means)
    report = replay.read(files, events_format)
    trace.finish(report)
    if truth:
        require_truth_of(report.events.accepted + sum(report.events.rejected.values()), true_values, truth)
    if plot and figure:
        save(figure.figure(trace), plot.path)
    if as_json:
        sys.stdout.write(report.to_json(indent=2).decode() + "\n")
    else:
        for line in replay.notes(report):
            print(line)
        print_results(report, everything)
        if decisions:
            console().print(decisions_table(report))
        for line in () if means is None else means.findings():
            print(line)
        _print_errors(trace, true_values, files)
    if strict and not all(check.ok for check in report.trust):
        raise typer.Exit(1)


def _updates(replay: Replay, trace: Trace | None, means: HourlyMeans | None) -> Callable[[EventBatch], None]:
    """Return what takes each batch of a replay."""

    def update(batch: EventBatch) -> None:
        if trace is None:
            replay.evaluator.update(batch)
        else:
            trace.update(replay.evaluator, batch, replay.share)
        if means is not None:
            means.update(replay.evaluator.config.resolved(batch)[0])

    return update


def table_columns(candidates: Sequence[str]) -> dict[str, Any]:
    """Return `columns` of a table with the names of fields, and a column of its own name for each candidate."""
    return {"event_id": "event_id", "policies": list(candidates)}


def hourly_means(config: EvaluatorConfig) -> HourlyMeans | None:
    """Return what looks for a cycle in a log, None for rankings with clicks."""
    if config.ranking is not None:
        return None
    return HourlyMeans(config.policies, config.computed_policies, config.reward_range)


def print_results(report: Report, everything: bool) -> None:
    """Print the answer in sentences and the estimates behind it, or everything."""
    for line in answer_lines(report, everything):
        print(line)
    for table in result_tables(report, everything):
        console().print(table)


def _print_errors(trace: Trace, truth: Mapping[str, Array], files: Sequence[str]) -> None:
    if truth:
        pairs = list(trace.pairs)
        rows = list(error_rows(pairs, [[score(trace, truth, pair) for pair in pairs]]))
        console().print(error_table(rows, ", ".join(Path(file).name for file in files)))


def config_and_files(
    arguments: Sequence[str], candidates: str | None = None, written: str | None = None
) -> tuple[Config, list[str]]:
    """Load the configuration, and return it with the files of events.

    All arguments are files if candidates are named.

    Raises:
        InputError: The configuration is wrong, or no file is named.
    """
    silence_logs()
    if candidates is not None:
        files = expand(arguments)
        return config_for(candidates, files[0], written), files
    path, files = split_config_and_files(list(arguments))
    if files == list(arguments) and not path.exists():
        hint = "`streameval init` writes one; `streameval replay FILE --candidates NAMES` needs none"
        raise InputError(f"the configuration {path} does not exist", hint=hint)
    config = Config.load(path)
    warn(config)
    return config, expand(files)


def _figure(
    config: Config, files: Sequence[str], options: PlotOptions, truth: Mapping[str, Array], by_rule: bool
) -> ReplayPlot:
    """Prepare the figure, before files are read."""
    pairs = choices(config.evaluator_config(), options.estimator, options.average)
    check_path(options.path)
    return ReplayPlot(
        pairs,
        options.title or ", ".join(Path(file).name for file in files),
        truth,
        config.promotion.margin if config.promotion else None,
        by_rule=by_rule,
    )


def config_for(candidates: str, file: str, written: str | None = None) -> Config:
    """Return the default configuration for candidates, each with a column of its own name in tables.

    Args:
        candidates: names, separated by commas
        file: the first file
        written: format of the files, by default from the name of the first one

    Raises:
        InputError: No candidate is named, or `file` is a configuration.
    """
    names = candidate_names(candidates, file)
    is_table = (written or table_format(file)) in TABLES
    columns = table_columns(names) if is_table else {}
    try:
        return Config.model_validate({"policies": {"candidates": names}, "columns": columns})
    except ValidationError as error:
        problem = next(problems_of(error, Config))
        raise InputError(f"--candidates: {problem.message}", hint=problem.hint) from None


class Replay:
    """Read files of events into an evaluator.

    Args:
        config: the configuration
        evaluator: the evaluator, by default a new one
        timed: rows of tables must have a timestamp
        multiline: rows of CSV may take several lines, also if the source does not say so
        scores: a file with probabilities that the events lack

    Attributes:
        update: takes each batch. By default it updates the evaluator
        share: share of the files read by now, None if unknown
    """

    def __init__(
        self,
        config: Config,
        evaluator: Evaluator | None = None,
        timed: bool = True,
        multiline: bool = False,
        scores: str | None = None,
    ) -> None:
        self._scores = None if scores is None else ScoreFile(scores, config)
        self.config, self._timed = config if self._scores is None else self._scores.without_columns(config), timed
        self.evaluator = evaluator or Evaluator.from_config(config.evaluator_config())
        self.update: Callable[[EventBatch], object] = self.evaluator.update
        self.share: float | None = None
        primary, *self._further = config.reward_fields
        window = 0 if config.source is None else config.source.dedupe_window
        self._duplicates = Deduplication(window) if window else None
        reward_range = (primary.low, primary.high) if config.ranking is None else (-math.inf, math.inf)
        self._counts = LogCounts(reward_range, drops_copies=window > 0)
        self._multiline = multiline or (isinstance(config.source, FileSettings) and config.source.multiline)
        self._rejections, self._copies = Rejections(), Copies()
        self._late_segments = LateSegments()
        self._first_lines: Sequence[bytes | None] = ()
        self._missing: list[MissingField] | None = None
        self._last: EventBatch | None = None
        self._local_time: str | None = None

    def read(self, files: Sequence[str], written: str | None = None) -> Report:
        """Read files, print warnings about their events, and return the Report.

        Args:
            files: paths
            written: format of the files, by default from their extension, else from the source

        Raises:
            InputError: No event was accepted.
        """
        self.take_files(files, written)
        report = self.report()
        for line in self.warnings(report):
            say(line)
        require_events(report)
        return report

    def take_files(self, files: Sequence[str], written: str | None = None) -> None:
        """Take the events of files, with a progress bar."""
        sizes = [check(file) for file in files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with progress_of_bytes() as advance:
            for index, file in enumerate(files):
                before = sum(size or 0 for size in sizes[:index])
                for batch in self._batches(
                    file,
                    written or table_format(file) or self.config.written_to_files,
                    partial(self._advance, advance, before, total),
                ):
                    self._take(batch)

    def take_frame(self, frame: Any) -> None:
        """Take the rows of a frame, as `EventBatch.from_frame` does.

        Raises:
            InputError: pyarrow is not installed, or a column is missing or mixes types.
        """
        events = self.config.event_format("json", is_log=True)
        self.share = 1.0
        self._take(decode_frame(frame, self.config.columns, events))
        self._counts.clipped += events.clipped_events

    def take(self, batches: Iterable[EventBatch]) -> None:
        """Take batches."""
        for batch in batches:
            self._take(batch)

    def report(self) -> Report:
        """Return the Report of all events so far. Copies among them fail a trust check."""
        self.evaluator.fold_pending()
        report = self.evaluator.report()
        share = max(self._copies.share, self._counts.repeated_share)
        if share <= MOST_COPIES:
            return report
        reason = f"about {100 * share:.0f} % of the events are copies of earlier ones"
        failed = [TrustCheck(policy.policy, "repeated_events", False, reason) for policy in report.policies]
        checks, decisions = add_checks(report.trust, report.promotion, failed, report.production)
        return with_basis(structs.replace(report, trust=checks, promotion=decisions))

    def _take(self, batch: EventBatch) -> None:
        batch = batch if self._scores is None else self._scores.join(batch)
        batch, are_clipped = batch.clipped(self._counts.reward_range, self._further)
        self._counts.clipped += int(np.count_nonzero(are_clipped))
        self._counts.add(batch)
        batch = self._without_copies(batch.with_rewards_in(*self._counts.reward_range, self._further))
        self._copies.add(batch)
        self._late_segments.add(batch)
        batch = replace(batch, origin=None)
        self._rejections.add(batch.rejected)
        if len(batch) and self._missing is None:
            self._missing = self.evaluator.missing_fields(batch[:SAMPLED_EVENTS])
        self._last = batch[-SAMPLED_EVENTS:] if len(batch) else self._last
        self.update(batch)

    def _without_copies(self, batch: EventBatch) -> EventBatch:
        """Reject copies as `run` does, if `source.duplicates` says so."""
        is_identified = batch.origin is not None and batch.origin.identity is not None
        return self._duplicates.take(batch) if self._duplicates and is_identified else batch

    def _batches(self, file: str, written: str, advance: Advance) -> Iterator[EventBatch]:
        if written in TABLES:
            events = self.config.event_format("json", is_log=True)
            spans = (lambda rows: None) if self._multiline else self._counts.add_spanning
            yield from read_table(file, written, self.config.columns, events, advance, timed=self._timed, spans=spans)
            self._local_time = self._local_time or local_time(file, written, self.config.columns.timestamp)
        else:
            events = self.config.event_format(written, is_log=True)
            for lines in read_records([file], advance=advance):
                self._first_lines = self._first_lines or lines.values
                yield events.decode_batch(lines.values, Origin.from_parts(file, [(0, lines.offsets)]))
        self._counts.clipped += events.clipped_events

    def _advance(self, advance: Advance, before: int, total: int | None, read: int, _: int | None) -> None:
        self.share = (before + read) / total if total else None
        advance(before + read, total)

    def notes(self, report: Report) -> Iterator[str]:
        """Yield lines about fields that no event has (unless a configuration names them), local times and clipping."""
        absent = [] if self._timed else self._counts.absent_fields()
        if absent:
            yield f"the log has no {' and no '.join(absent)}: its rows count in their order, each once"
        if self._local_time is not None:
            yield f"times without a zone, such as {self._local_time}, are taken as UTC"
        for row in report.clipped:
            if row.share and row.worth is not None:
                taken = f"which takes {significant(row.worth)} from its mean"
                yield f"{row.reward}: clipped in {significant(100 * row.share, 2)} % of the events, {taken}"

    def warnings(self, report: Report) -> Iterator[str]:
        """Yield lines about rejections, failing policies, missing fields, other defects and failed trust checks."""
        yield from self._rejections.lines(report.events.accepted)
        yield from () if self._scores is None else self._scores.warnings()
        for policy in report.policies:
            for failure in policy.failures:
                what = f"has no distribution for {counted(failure.count, 'event')}"
                if failure.reason in OTHER_FAILURES:
                    what = f"has failed {counted(failure.count, 'time')} ({failure.reason})"
                yield f"warning: the policy '{policy.policy}' {what}"
                yield f"  {failure.reason}  e.g. {failure.example[:MAX_DETAIL]}"
                if failure.reason in FUNCTION_HINTS:
                    yield f"hint: {FUNCTION_HINTS[failure.reason]}"
            if report.events.accepted and not policy.events and not policy.failures:
                yield warning(*self._absent(policy.policy))
        yield from (warning(str(missing), missing.hint) for missing in self._missing_fields())
        for name in self._empty_segments(report):
            hint = f"the segment has the values of the field {self.config.segments[name].field or name}"
            yield warning(f"no event has one of the values of the segment '{name}'", hint)
        for name, outcome in self._late_segments.found():
            hint = "split by what is known before the decision: lifts within actions or outcomes say nothing"
            if outcome == "action":
                hint += ". Or the action is drawn once for each value: log it as `unit`"
            yield warning(f"the segment '{name}' decides the {outcome}, so it is known after the decision only", hint)
        yield from self._warnings_of_ids()
        yield from (*self._counts.warnings(), *missing_warnings(report), *trust_warnings(report))

    def _missing_fields(self) -> Iterator[MissingField]:
        """Yield the fields that the first events lack, and those that the last ones lack alone."""
        first = {missing.field: missing for missing in self._missing or ()}
        last = () if self._last is None else self.evaluator.missing_fields(self._last)
        yield from first.values()
        yield from (replace(missing, part="last") for missing in last if missing.field not in first)

    def _warnings_of_ids(self) -> Iterator[str]:
        """Yield a warning if events lack the id that the configuration, or another file, has a column for."""
        name, lacking, events = self.config.columns.event_id, self._counts.unidentified, self._counts.events
        if name and lacking > MIN_SHARE * events and (self._timed or lacking < events):
            hint = f"name the column with ids in columns.event_id, which is '{name}'"
            finding = f"missing in {lacking:,} of {counted(events, 'event')}, so their copies are not found"
            yield warning(f"event_id: {finding}", hint)

    def _empty_segments(self, report: Report) -> Iterator[str]:
        """Yield segments without an event that has a listed value."""
        used = {row.segment for row in report.segments if row.events and row.segment_value != OTHER}
        yield from (name for name in self.config.segments if report.events.accepted and name not in used)

    def _absent(self, policy: str) -> tuple[str, str]:
        """Say that no event has a probability of a policy, and what to do about it."""
        if self._first_lines:
            return absent_policy(policy, JsonDecoder().decode_batch(self._first_lines).policies)
        message, hint = absent_policy(policy, column=self.config.columns.policies.get(policy))
        if policy not in self.config.columns.policies:
            hint = f"name its column in the configuration: `columns: {{policies: {{{policy}: COLUMN}}}}`"
        return message, hint


def require_events(report: Report) -> None:
    """Check that a Report has events.

    Raises:
        InputError: No event was accepted.
    """
    if not report.events.accepted:
        cause = "all were rejected" if report.events.rejected else "there is none"
        hint = "correct the fields above" if report.events.rejected else "check the names of files, or the query"
        raise InputError(f"no event was accepted: {cause}", hint=hint)


def require_configured(option: str, label: str | None, labels: Collection[str]) -> None:
    """Check that the label in an option of the command line is configured.

    Raises:
        InputError: It is not among the labels.
    """
    if label is not None and label not in labels:
        hint = did_you_mean(label, labels) or f"choose one of {', '.join(labels)}"
        raise InputError(f"{option}: '{label}' is not configured", hint=hint)


def choices(config: EvaluatorConfig, estimator: str | None, average: str | None) -> list[tuple[str, str]]:
    """Return the pairs of an estimator and an average that may be drawn, the preferred one first.

    Args:
        config: what is estimated
        estimator: label of the estimator to draw, or None for any
        average: label of the average to draw, or None for the preferred one

    Raises:
        InputError: No such pair is estimated.
    """
    products = [
        (estimator, average)
        for estimators, averages in config.products
        for average in reversed(averages)
        for estimator in estimators
    ]
    products.sort(key=lambda pair: (pair[1].preference, pair[0].preference))
    pairs = list(dict.fromkeys((estimator.label, average.label) for estimator, average in products))
    require_configured("--plot-estimator", estimator, dict.fromkeys(label for label, _ in pairs))
    require_configured("--plot-average", average, dict.fromkeys(label for _, label in pairs))
    matching = [pair for pair in pairs if estimator in (None, pair[0]) and average in (None, pair[1])]
    if not matching:
        raise InputError(
            f"{estimator} is not estimated on {average}", hint=f"choose e.g. {pairs[0][0]} on {pairs[0][1]}"
        )
    return [pair for pair in matching if pair[1] == matching[0][1]]
