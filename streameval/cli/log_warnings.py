"""Find defects of a log, each with its cause and a remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np

from streameval.cli.terminal import warning
from streameval.common.text import counted, duration_text, utc_time
from streameval.events import EventBatch
from streameval.events.defects import REJECTION_HINTS
from streameval.events.origin import NO_IDENTITY
from streameval.ingest.stages import Deduplication
from streameval.ope.remedies import causes_first, remedy_of
from streameval.ope.report import Report

MIN_SHARE = 0.001
"""Share of the events above which a defect is worth a warning."""
ORDER_TOLERANCE_SECONDS = 5.0
"""Difference between the clocks and buffers of several writers, as in `source.max_lateness`."""
MAX_IDS = 100_000
"""Latest events among which a repeated id is recognised."""
MIN_EVENTS = 100
"""Sample size for detecting constant rewards."""
MIN_NEWEST_SECONDS = 315_532_800.0
"""1980: if the newest event is older, its time is in minutes, hours or days."""
MULTILINE_HINT = "look for stray quotes, which hide rows; if cells hold line breaks, {} says so"
FUNCTION_HINTS = {
    "missing_field": "log what the policy needs: the `actions` on offer with their `propensities`, perhaps `features`",
    "raised": "correct the function, or its module",
    "malformed": "return a list with one entry for each event: a list with one probability for each of its actions",
    "not_finite": "correct the function: it may not return NaN or infinity",
    "probability_range": REJECTION_HINTS["probability_range"],
    "distribution_sum": "correct the function: the probabilities of an event's actions sum to 1",
}
"""Remedies by the reason for which a policy in code has no distribution."""
RUNBOOK_HINT = "{}/public/runbooks/StreamevalTrustCheckFailed.md explains each check"
"""The runbook in Grafana. The variable STREAMEVAL_GRAFANA has its address, as for the links of alerts."""


@dataclass
class LogCounts:
    """Count defects of a log, in the order in which it is read.

    Args:
        reward_range: smallest and largest reward that is configured
        events: events so far
        newest: newest timestamp so far, in epoch seconds
        backward: events dated more than `ORDER_TOLERANCE_SECONDS` before an earlier one
        furthest: the most seconds by which an event is dated before an earlier one
        repeated: events with the id of a recent one
        outside: rewards below and above `reward_range`
        spanning: rows of CSV that take several lines
        clipped: events with a number beyond its range by rounding alone
        rewards: smallest and largest reward
        unidentified: events without an id
        drops_copies: whether events with the id of a recent one are rejected, so that no warning is needed
    """

    reward_range: tuple[float, float]
    events: int = 0
    newest: float = -math.inf
    backward: int = 0
    furthest: float = 0.0
    repeated: int = 0
    outside: tuple[int, int] = (0, 0)
    spanning: int = 0
    clipped: int = 0
    rewards: tuple[float, float] = (math.inf, -math.inf)
    unidentified: int = 0
    drops_copies: bool = False
    _ids: Deduplication = field(default_factory=lambda: Deduplication(MAX_IDS))

    def add(self, batch: EventBatch) -> None:
        """Count the next events, before any is rejected for its reward or its id."""
        if not len(batch):
            return
        self.events += len(batch)
        latest = np.fmax.accumulate(np.append(self.newest, batch.timestamp))
        behind = np.nan_to_num(latest[1:] - batch.timestamp, nan=0.0, posinf=0.0)
        self.backward += int(np.count_nonzero(behind > ORDER_TOLERANCE_SECONDS))
        self.furthest = max(self.furthest, float(behind.max()))
        self.newest = float(latest[-1])
        identity = None if batch.origin is None else batch.origin.identity
        if identity is not None:
            self.repeated += len(batch) - len(self._ids.take(batch))
        self.unidentified += len(batch) if identity is None else int(np.count_nonzero(identity == NO_IDENTITY))
        low, high = self.reward_range
        rewards = batch.reward if batch.scored is None else batch.reward[batch.scored.sizes == 0]
        rewards = rewards[~np.isnan(rewards)]  # with several rewards an event may lack the primary one
        below, above = np.count_nonzero(rewards < low), np.count_nonzero(rewards > high)
        self.outside = self.outside[0] + int(below), self.outside[1] + int(above)
        self.rewards = rewards.min(initial=self.rewards[0]).item(), rewards.max(initial=self.rewards[1]).item()

    @property
    def repeated_share(self) -> float:
        """Return the share of events with the id of a recent one, 0 if those are rejected."""
        return 0.0 if self.drops_copies or not self.events else self.repeated / self.events

    def add_spanning(self, rows: int) -> None:
        """Count rows that take several lines."""
        self.spanning += rows

    def absent_fields(self) -> list[str]:
        """List `event_id` and `timestamp` if no event has them."""
        present = {"event_id": self.unidentified < self.events, "timestamp": self.newest > -math.inf}
        return [name for name, is_present in present.items() if not is_present]

    def warnings(self) -> Iterator[str]:
        """Yield warnings about defects of the log itself."""
        number, least = counted(self.events, "event"), MIN_SHARE * self.events
        if self.backward > least:
            finding = (
                f"{self.backward:,} of {number} are dated up to {duration_text(self.furthest)} before an earlier one"
            )
            hint = "sort the log and its files by timestamp: events count as they are read"
            yield warning(f"timestamp: {finding}", hint)
        if -math.inf < self.newest < MIN_NEWEST_SECONDS:
            finding = f"timestamp: the newest event is of {utc_time(self.newest)}"
            yield warning(finding, "write seconds since 1970, not minutes, hours or days")
        if self.repeated > least and not self.drops_copies:
            hint = f"give each decision its own event_id; source.duplicates: {MAX_IDS} drops copies"
            yield warning(f"event_id: {self.repeated:,} of {number} repeat the id of an earlier one", hint)
        if self.spanning:
            yield warning(spanning_rows(self.spanning), MULTILINE_HINT.format("--multiline"))
        if self.clipped:
            finding = f"{self.clipped:,} of {number} have a reward or probability beyond its range by rounding alone"
            yield warning(f"{finding}; it counts as the end of the range", "clip what is logged, e.g. min(score, 1.0)")
        yield from self._reward_warnings(number)

    def _reward_warnings(self, number: str) -> Iterator[str]:
        if self.events >= MIN_EVENTS and self.rewards[0] == self.rewards[1]:
            finding = f"it is {self.rewards[0]:g} in all of {number}, so a lift is chance or wrong propensities"
            yield warning(f"reward: {finding}", "check reward.field, and that rewards were joined to their decisions")
        names, extremes = ("below reward.min", "above reward.max"), ("smallest", "largest")
        for index, count in enumerate(self.outside):
            if count:
                finding = f"{count:,} of {number} have a reward {names[index]} ({self.reward_range[index]:g})"
                finding += f"; the {extremes[index]} is {self.rewards[index]:g}"
                side, _, end = names[index].partition(" ")
                hint = f"set {end} to the {extremes[index]} possible reward, or write {side}: clip"
                yield warning(f"reward: {finding}", hint)


def spanning_rows(rows: int) -> str:
    """Say that rows of CSV take several lines."""
    return f"{counted(rows, 'row')} of CSV {'takes' if rows == 1 else 'take'} several lines, which count as one event"


def missing_warnings(report: Report) -> Iterator[str]:
    """Yield warnings about policies that many events have no probability of."""
    unknown = 0 if report.propensity_model is None else report.propensity_model.unknown
    number = counted(report.events.accepted, "event")
    if unknown > MIN_SHARE * report.events.accepted:
        yield warning(
            f"propensity: {unknown:,} of {number} have no estimate, and do not count for candidates",
            "they are the first ones, rare actions, and estimates below 0.001; log propensities",
        )
    for policy in report.policies:
        missing = policy.missing - unknown
        if policy.events and not policy.failures and missing > MIN_SHARE * report.events.accepted:
            yield warning(
                f"policies.{policy.policy}: {missing:,} of {number} have no probability of it, and do not count",
                "log the probability of every candidate with every event, 0 for an action that it never takes",
            )


def trust_warnings(report: Report) -> Iterator[str]:
    """Yield warnings about failed trust checks, with the policies that fail them for the same reason."""
    check_and_reason = attrgetter("check", "reason")
    failed = causes_first(sorted((check for check in report.trust if not check.ok), key=check_and_reason))
    for (check, reason), group in groupby(failed, key=check_and_reason):
        names = [row.policy for row in group]
        finding = f"{' and '.join(names)} {'fail' if names[1:] else 'fails'} the trust check {check}: {reason}"
        yield warning(finding, _check_remedy(report, check, names[0]))


def _check_remedy(report: Report, check: str, policy: str) -> str:
    grafana = os.environ.get("STREAMEVAL_GRAFANA", "http://localhost:3000")
    return remedy_of(report, check, policy) or RUNBOOK_HINT.format(grafana.rstrip("/"))
