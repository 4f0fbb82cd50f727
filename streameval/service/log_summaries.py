"""What is logged of events that are no use and of policies that fail: now and then, and never a line for each."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

import structlog

from streameval.events import Rejected
from streameval.ope.report import Report

log = structlog.get_logger("streameval")

REJECTIONS_LOGGED_EVERY = 10.0  # seconds
LONGEST_EXAMPLE = 200  # characters of a rejection's detail in the log


class RejectionLog:
    """Rejected events in the log: a summary per reason, with one example, at most every ten seconds."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._due = -math.inf

    def add(self, rejected: Sequence[Rejected]) -> Counter[str]:
        """Remember `rejected` for the next summary; return their number by reason."""
        counts = Counter(event.reason for event in rejected)
        self._counts += counts
        self._examples.update((event.reason, event.detail) for event in rejected)
        return counts

    def write_when_due(self) -> None:
        """Write the summary if there is one and the last one is long enough ago."""
        if self._counts and time.monotonic() >= self._due:
            self.write()
            self._due = time.monotonic() + REJECTIONS_LOGGED_EVERY

    def write(self) -> None:
        """Write what has come since the last summary."""
        for reason, count in self._counts.items():
            log.warning("events_rejected", reason=reason, count=count, example=self._examples[reason][:LONGEST_EXAMPLE])
        self._counts.clear()
        self._examples.clear()


class FailureLog:
    """Policies in code that have no distribution for events, in the log: what is new, at most every ten seconds."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], int] = {}
        self._due = -math.inf

    def write_when_due(self, report: Report | None) -> None:
        """Write for each policy and reason what has come since the last time, if that is long enough ago."""
        if report is None or time.monotonic() < self._due:
            return
        for policy in report.policies:
            for failure in policy.failures:
                known = self._written.get((policy.policy, failure.reason), 0)
                if failure.count > known:
                    new = {"count": failure.count - known, "example": failure.example}
                    log.warning("policy_failed", policy=policy.policy, reason=failure.reason, **new)
                    self._written[policy.policy, failure.reason] = failure.count
                    self._due = time.monotonic() + REJECTIONS_LOGGED_EVERY
