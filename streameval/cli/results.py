"""Choose the sentences and estimates of a Report that are shown."""

from __future__ import annotations

from collections.abc import Iterator

from streameval.common.text import counted, utc_time
from streameval.ope.answer import answers, by_policy, headline, recommended, seen_lifts
from streameval.ope.report import Estimate, Report

MAX_ANSWERS = 5
"""Candidates with an answer, unless everything is shown."""


def summary(report: Report) -> str:
    """Return the number of events, the time of the newest one, rejections, and what no number includes."""
    events = report.events
    until = "" if events.last_timestamp is None else f" until {utc_time(events.last_timestamp)}"
    line = f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"
    return "\n".join(filter(None, (line, report.caution, report.caution_about_learners)))


def answer_lines(report: Report, everything: bool) -> Iterator[str]:
    """Yield a sentence and remedies for each candidate, the best one first, and details if everything is shown."""
    candidates = answers(report)
    if title := headline(candidates):
        yield title
    shown = candidates if everything else candidates[:MAX_ANSWERS]
    for answer in shown:
        yield answer.sentence
        if answer.remedy:
            yield f"  {answer.remedy}"
        yield from (f"  {detail}" for detail in answer.details if everything)
    if len(shown) < len(candidates):
        yield f"(--all prints the answers for {len(candidates) - len(shown)} more candidates)"
    for policy, estimated, seen, _ in seen_lifts(report):
        yield f"the lift of {policy}: estimated {estimated} from events that others chose, seen {seen} on its own"


def chosen_estimates(report: Report, everything: bool) -> list[Estimate]:
    """Return the rows that decide about candidates, after production's rows by the same estimators, or all rows."""
    reports = by_policy(report).items()
    rows = [recommended(own, policy) for policy, own in reports if policy != report.production]
    chosen = {(row.policy, row.estimator, row.average) for row in rows if row}
    if everything or not chosen:
        return list(report.estimates)
    pairs = {(estimator, average) for _, estimator, average in chosen}
    production = [row for row in report.estimates if row.policy == report.production]
    return [
        *(row for row in production if (row.estimator, row.average) in pairs),
        *(row for row in report.estimates if (row.policy, row.estimator, row.average) in chosen),
    ]
