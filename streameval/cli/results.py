"""Choose the sentences of a Report that are printed."""

from __future__ import annotations

from collections.abc import Iterator

from streameval.ope.answer import answers, headline, seen_lifts
from streameval.ope.report import Report

MAX_ANSWERS = 5
"""Candidates with an answer, unless everything is shown."""


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
