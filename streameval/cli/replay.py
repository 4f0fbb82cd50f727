"""The verb `replay`: files through the evaluator, with warnings about their events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from pydantic import ValidationError

from streameval.cli.log_warnings import SHOWN_CHARACTERS, LogCounts, Rejections, missing_complaints, trust_complaints
from streameval.cli.terminal import CONFIG_SUFFIXES, progress_of_bytes, say
from streameval.common.problems import did_you_mean, expecting, one_of, problems_of
from streameval.common.text import counted
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder
from streameval.events.origin import Origin
from streameval.events.segments import OTHER
from streameval.ingest.files.lines import check, table_format
from streameval.ingest.files.source import Advance, read_records
from streameval.ingest.files.tables import read_table
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.report import Report

__all__ = ["Replay", "choices", "settings_for"]

Update: TypeAlias = Callable[[Any, EventBatch, float | None], None]
SAMPLED_EVENTS = 100  # events that show what the rest will lack


def settings_for(candidates: str, file: str) -> Config:
    """The defaults for these candidates, separated by commas; each has a column of its own name in tables.

    Raises:
        InputError: No candidate is named, or `file` is a configuration.
    """
    names = [name.strip() for name in candidates.split(",") if name.strip()]
    if not names:
        raise InputError("--candidates names no candidate", hint="e.g. --candidates challenger,even")
    if file.endswith(CONFIG_SUFFIXES):
        hint = f"leave --candidates out, or {file}"
        raise InputError(f"--candidates is for logs without a configuration, and {file} is one", hint=hint)
    try:
        return Config.model_validate(
            {"policies": {"candidates": names}, "columns": {"event_id": "event_id", "policies": names}}
        )
    except ValidationError as error:
        problem = next(problems_of(error, Config))
        raise InputError(f"--candidates: {problem.message}", hint=problem.hint) from None


def take(evaluator: Evaluator, batch: EventBatch, _: float | None) -> None:
    """Give a batch to the evaluator."""
    evaluator.update(batch)


class Replay:
    """Reads files of events; `update` gives each batch to the evaluator.

    `timed`: rows of tables must have a timestamp. `update` also gets the share of the files read by now, None if their
    sizes are unknown.
    """

    def __init__(
        self,
        config: Config,
        evaluator: Evaluator | None = None,
        update: Update = take,
        timed: bool = True,
    ) -> None:
        self.config, self._timed = config, timed
        plan = config.evaluator_config()
        self.evaluator: Evaluator = evaluator or Evaluator.from_config(plan)
        self._update = update
        self._share: float | None = None
        goal, *self._further = config.reward_fields
        self._counts = LogCounts((goal.low, goal.high) if config.ranking is None else (-math.inf, math.inf))
        self._rejections = Rejections()
        self._first_lines: Sequence[bytes | None] = ()
        self._missing: list[MissingField] | None = None

    def read(self, files: Sequence[str], written: str | None = None) -> Report:
        """The Report after all files; prints warnings about the events.

        `written`: the format of the files; by default from their suffix, else from the source.

        Raises:
            InputError: No event was accepted.
        """
        sizes = [check(file) for file in files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with progress_of_bytes() as advance:
            for place, file in enumerate(files):
                before = sum(size or 0 for size in sizes[:place])
                for batch in self._batches(
                    file,
                    written or table_format(file) or self.config.written_to_files,
                    partial(self._advance, advance, before, total),
                ):
                    self._counts.add(batch)
                    batch = replace(batch.with_rewards_in(*self._counts.reward_range, self._further), origin=None)
                    self._rejections.add(batch.rejected)
                    if len(batch) and self._missing is None:
                        self._missing = self.evaluator.missing_fields(batch[:SAMPLED_EVENTS])
                    self._update(self.evaluator, batch, self._share)
        self.evaluator.fold_pending()
        report = self.evaluator.report()
        for line in self.warnings(report):
            say(line)
        if not report.events.accepted:
            found = "all were rejected" if report.events.rejected else "the files are empty"
            hint = "correct the fields above" if report.events.rejected else "check the names of the files"
            raise InputError(f"no event was accepted: {found}", hint=hint)
        return report

    def _batches(self, file: str, written: str, advance: Advance) -> Iterator[EventBatch]:
        if written == "parquet" or written == "csv":
            events = self.config.event_format("json", of_log=True)
            yield from read_table(file, written, self.config.columns, events, advance, timed=self._timed)
            return
        events = self.config.event_format(written, of_log=True)
        for lines in read_records([file], advance=advance):
            self._first_lines = self._first_lines or lines.values
            yield events.decode_batch(lines.values, Origin.of(file, [(0, lines.offsets)]))

    def _advance(self, advance: Advance, before: int, total: int | None, read: int, _: int | None) -> None:
        self._share = (before + read) / total if total else None
        advance(before + read, total)

    def notes(self) -> Iterator[str]:
        """A line about fields that no event has, if any."""
        absent = self._counts.absent_fields()
        if absent:
            yield f"the log has no {' and no '.join(absent)}: its rows count in their order, each once"

    def warnings(self, report: Report) -> Iterator[str]:
        """Lines about rejected events, failing policies, what the events lack, and trust checks that fail."""
        yield from self._rejections.lines(report.events.accepted)
        for policy in report.policies:
            for failure in policy.failures:
                yield f"warning: the policy '{policy.policy}' has no distribution for {counted(failure.count, 'event')}"
                yield f"  {failure.reason}  e.g. {failure.example[:SHOWN_CHARACTERS]}"
            if report.events.accepted and not policy.events and not policy.failures:
                yield f"warning: no event has a probability of the policy '{policy.policy}'"
                yield f"hint: {self._where(policy.policy, report)}"
        for missing in self._missing or ():
            yield f"warning: {missing}"
            yield f"hint: {missing.hint}"
        for name in self._empty_segments(report):
            yield f"warning: no event has one of the values of the segment '{name}'"
            yield f"hint: the segment has the values of the field {self.config.segments[name].field or name}"
        for complaint in (*self._counts.complaints(), *missing_complaints(report), *trust_complaints(report)):
            yield str(complaint)

    def _empty_segments(self, report: Report) -> Iterator[str]:
        """The segments of which no event has a listed value."""
        used = {each.segment for each in report.segments if each.events and each.segment_value != OTHER}
        yield from (name for name in self.config.segments if report.events.accepted and name not in used)

    def _where(self, policy: str, report: Report) -> str:
        """Where the probability of a policy should be, by the names that the events have."""
        if not self._first_lines:
            return f"name its column in the configuration: `columns: {{policies: {{{policy}: COLUMN}}}}`"
        named = JsonDecoder().decode_batch(self._first_lines).policies
        if policy in named:
            return 'its values must be numbers, or lists of numbers: write 0.25, not "0.25"'
        return f"the events name {', '.join(named) or 'no policies'}"


def choices(plan: EvaluatorConfig, estimator: str | None, average: str | None) -> list[tuple[str, str]]:
    """The labels of the estimators to plot, on the average to plot, by `preference`.

    Raises:
        InputError: The plan has none of them.
    """
    products = [
        (estimator, average)
        for estimators, averages in plan.products
        for average in reversed(averages)
        for estimator in estimators
    ]
    products.sort(key=lambda pair: (pair[1].preference, pair[0].preference))
    pairs = list(dict.fromkeys((estimator.label, average.label) for estimator, average in products))
    for option, label, labels in (
        ("--plot-estimator", estimator, dict.fromkeys(label for label, _ in pairs)),
        ("--plot-average", average, dict.fromkeys(label for _, label in pairs)),
    ):
        if label is not None and label not in labels:
            hint = did_you_mean(label, labels) or "it must be configured to be drawn"
            raise InputError(f"{option}: {expecting(one_of(labels), repr(label))}", hint=hint)
    found = [pair for pair in pairs if estimator in (None, pair[0]) and average in (None, pair[1])]
    if not found:
        raise InputError(
            f"{estimator} is not estimated on {average}", hint=f"choose e.g. {pairs[0][0]} on {pairs[0][1]}"
        )
    return [pair for pair in found if pair[1] == found[0][1]]
