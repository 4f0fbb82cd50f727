"""Choose what tables and figures show of a Report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streameval.common.text import counted, utc_time
from streameval.ope.answer import answers, by_policy, calibrated, recommended, seen_lifts
from streameval.ope.report import Calibration, Decision, Estimate, GuardrailCheck, Report, SegmentEstimate

MAX_ANSWERS, MAX_SEGMENTS = 5, 10
"""Candidates with an answer, and rows of segments, unless everything is shown."""


@dataclass(frozen=True)
class Results:
    """Hold the rows of a Report that are shown.

    Args:
        report: the whole Report
        estimates: the rows that decide about candidates and production's rows by the same estimators, or all rows
        segments: rows of candidates, the lowest lift over its error first
        calibration: rows of policies that chose events themselves
    """

    report: Report
    estimates: list[Estimate]
    segments: list[SegmentEstimate]
    calibration: list[Calibration]

    @property
    def guardrails(self) -> list[tuple[Decision, GuardrailCheck]]:
        """List every guardrail with the decision that it belongs to."""
        return [(decision, check) for decision in self.report.promotion for check in decision.guardrails]


def results(report: Report, everything: bool = False) -> Results:
    """Choose the rows of a Report to show: those that decide, or all of them."""
    segments = report.segments_by_lift()
    return Results(
        report,
        list(report.estimates) if everything else _deciding(report) or list(report.estimates),
        segments if everything else segments[:MAX_SEGMENTS],
        list(report.calibration) if everything else calibrated(report),
    )


def summary(report: Report) -> str:
    """Return the number of events, the time of the newest one, rejections, and what no number includes."""
    events = report.events
    until = "" if events.last_timestamp is None else f" until {utc_time(events.last_timestamp)}"
    line = f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"
    return "\n".join(filter(None, (line, report.caution, report.caution_about_learners)))


def answer_lines(report: Report, everything: bool) -> Iterator[str]:
    """Yield a sentence for each candidate, the best one first."""
    candidates = answers(report)
    promotable = sum(answer.verdict == "promotable" for answer in candidates)
    if promotable > 1:
        yield f"{promotable} candidates are promotable; the first one has the highest lower bound of its lift:"
    shown = candidates if everything else candidates[:MAX_ANSWERS]
    yield from (answer.sentence for answer in shown)
    if len(shown) < len(candidates):
        yield f"(--all prints the answers for {len(candidates) - len(shown)} more candidates)"
    for policy, estimated, seen, _ in seen_lifts(report):
        yield f"the lift of {policy}: estimated {estimated} from events that others chose, seen {seen} on its own"


def _deciding(report: Report) -> list[Estimate]:
    """Return the rows that decide about candidates, after production's rows by the same estimators."""
    reports = by_policy(report).items()
    rows = [recommended(part, policy) for policy, part in reports if policy != report.production]
    chosen = {(row.policy, row.estimator, row.average) for row in rows if row}
    pairs = {(estimator, average) for _, estimator, average in chosen}
    production = [row for row in report.estimates if row.policy == report.production]
    return [
        *(row for row in production if (row.estimator, row.average) in pairs),
        *(row for row in report.estimates if (row.policy, row.estimator, row.average) in chosen),
    ]
