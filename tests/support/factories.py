"""Hand-made Reports and the simplest sources, decoders and learners: what the serving side is tested with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from streameval.events import EventBatch, Rejected
from streameval.events.origin import Origin
from streameval.ingest.base import Offsets, PartitionStatus, Records, SourceOffsets, SourceStatus, TopicPartition
from streameval.ope.report import (
    Calibration,
    Decision,
    Estimate,
    EventCounts,
    GuardrailCheck,
    Learner,
    PolicyCounts,
    Report,
    SegmentEstimate,
    TrustCheck,
)
from streameval.service.daemon import Daemon
from streameval.service.status import NO_DELAYS, NO_SNAPSHOTS, DaemonStatus, SnapshotStatus

NOW = 1_700_000_000.0
ESTIMATORS = ("ips", "snips", "clipped_ips", "control_variate")
AVERAGES = ("cumulative", "window", "decay", "adaptive_window", "adaptive_decay", "mixture")
DETAILS = {
    "cumulative": {},
    "window": {"window_events": 10_000},
    "decay": {"alpha": 0.9999, "horizon_events": 10_000.0},
    "adaptive_window": {"window_events": 4_200, "lipschitz_per_event": 2.5e-6},
    "adaptive_decay": {"alpha": 0.9998, "horizon_events": 5_000.0, "lipschitz_per_event": 2.5e-6, "cap": 30.0},
    "mixture": {"horizon_events": 31_000.0, "se": 0.0004, "spread": 0.0003, "drift": None},
}


def make_estimate(policy: str, estimator: str, average: str, value: float = 0.05, **fields: Any) -> Estimate:
    """An Estimate with everything known, around `value`; `fields` replace what they name."""
    known: dict[str, Any] = {
        "value": value,
        "lower": value - 0.002,
        "upper": value + 0.002,
        "kind": "normal",
        "anytime": False,
        "covers": "average",
        "effective_sample_size": 1639.5,
        "importance_weight_mean": 0.998,
        "importance_weight_max": 19.6,
        "details": {
            "design_effect": 1.04,
            "unsupported_probability": 0.0,
            "reward_effective_sample_size": 82.0,
            "bias_bound": 0.0002,
        }
        | DETAILS.get(average, {}),
    }
    return Estimate(policy=policy, estimator=estimator, average=average, **(known | fields))


def make_unknown(policy: str, estimator: str, average: str, **fields: Any) -> Estimate:
    """An Estimate before there is any evidence."""
    names = ("lower", "upper", "effective_sample_size", "importance_weight_mean", "importance_weight_max")
    estimate = make_estimate(policy, estimator, average, **dict.fromkeys(names), details={})
    return msgspec.structs.replace(estimate, value=None, **fields)


@cache
def make_report(
    candidates: int = 3,
    estimators: tuple[str, ...] = ESTIMATORS,
    averages: tuple[str, ...] = AVERAGES,
    seed: int = 7,
) -> Report:
    """A full Report of production `logging` and this many candidates: better ones, worse ones and undecided ones."""
    rng = np.random.default_rng(seed)
    names = ["logging", *(f"challenger-{suffix}" for suffix in "abcdefghijklmnopqrstuvwxyz"[:candidates])]
    truth = {name: 0.050 + 0.004 * ((index + 1) % 3 - 1) * (index > 0) for index, name in enumerate(names)}
    estimates = []
    for name in names:
        for estimator in estimators:
            for average in averages:
                value = truth[name] + 0.0006 * rng.standard_normal()
                lift = {} if name == "logging" else _lift(value - truth["logging"])
                estimates.append(make_estimate(name, estimator, average, value, **lift))
    return Report(
        confidence=0.95,
        production="logging",
        events=EventCounts(accepted=120_000, rejected={"malformed": 3}, last_timestamp=NOW - 2.0),
        policies=tuple(PolicyCounts(name, name == "logging", 119_000, 1_000, drift_detections=2) for name in names),
        estimates=tuple(estimates),
        promotion=tuple(
            Decision(name, "paired", truth[name] > 0.052, "lift above 0", estimator=estimators[0], average=averages[-1])
            for name in names[1:]
        ),
        calibration=tuple(
            Calibration(name, "decay", 0.051, 0.049, 0.053, 0.052, 0.001, -0.002, 0.004, 0.012, 0.01, 0.006, 0.014)
            for name in names[1:2]
        ),
        learners=tuple(Learner(name, 12, 3, 0.001, 0.02, 0.01) for name in names[1:2]),
        trust=tuple(TrustCheck(name, "mean_weight", True, "mean weight 0.998 over 119,000 events") for name in names),
    )


def with_segments(report: Report) -> Report:
    """The Report with the lifts by country: candidate `a` is better in `de`, and worse in `fr`."""
    lifts = {"de": 0.02, "fr": -0.02}
    rows = [
        SegmentEstimate(
            policy=policy.policy,
            segment="country",
            segment_value=country,
            estimator="ips",
            average="cumulative",
            share={"de": 0.8, "fr": 0.2}[country],
            events=1_000.0,
            value=0.05,
            lower=0.04,
            upper=0.06,
            lift=None if policy.production else lift,
            lift_lower=None if policy.production else lift - 0.01,
            lift_upper=None if policy.production else lift + 0.01,
            kind="empirical_likelihood",
        )
        for policy in report.policies[:2]
        for country, lift in lifts.items()
    ]
    return structs.replace(report, segments=tuple(rows))


def with_a_guardrail(report: Report, *verdicts: bool, lower: float = -0.002) -> Report:
    """The Report with a second reward, which every candidate must not lose; `verdicts`: whether each one keeps it."""
    further = tuple(structs.replace(estimate, reward="stay", value=0.9) for estimate in report.estimates)
    checks = [GuardrailCheck("stay", 0.001, ok, f"decision bound {lower:g}", lower + 0.002, lower) for ok in verdicts]
    decisions = zip(report.promotion, checks, strict=True)
    kept = tuple(structs.replace(decision, guardrails=(check,)) for decision, check in decisions)
    return structs.replace(report, estimates=report.estimates + further, promotion=kept)


def _lift(lift: float) -> dict[str, float]:
    bounds = {"": lift, "_lower": lift - 0.0025, "_upper": lift + 0.0025}
    return {f"lift{end}": bound for end, bound in bounds.items()} | {
        f"lift_ratio{end}": bound / 0.05 for end, bound in bounds.items()
    }


def make_published(report: Report | None = None, **fields: Any) -> DaemonStatus:
    """The status of a healthy daemon with `report`; `fields` replace those that they name."""
    partitions = (PartitionStatus("interactions", 0, 60_001, 12), PartitionStatus("interactions", 1, 60_002, None))
    good = DaemonStatus(
        source=SourceStatus(reached=True, partitions=partitions, detail="2 partitions"),
        at=NOW,
        report=report,
        ready=report is not None,
        detail="" if report else "no report has been made yet",
        accepted=2_000,
        event_delay=NO_DELAYS.add(np.array([0.2, 3.0])),
        snapshots=SnapshotStatus(NOW - 10.0, NO_SNAPSHOTS.add(np.array([0.02]))),
    )
    return replace(good, rejected=good.rejected | {"malformed": 3}, **fields)


class View:
    """The part of a daemon that the HTTP server uses, to be set by hand."""

    def __init__(self, published: DaemonStatus, healthy: bool = True) -> None:
        self.published, self.healthy, self.stalled_for = published, healthy, 0.0 if healthy else 90.0


class ListSource:
    """Hands out one entry of `polls` per poll; an exception among them is raised, a callable is called.

    `lag`: the number of unread messages that it reports, None for unknown.
    """

    lag: int | None = None

    def __init__(self, polls: Iterable[Any], *, exhausted: bool = True, reached: bool = True) -> None:
        self._polls = iter(polls)
        self._exhausted, self.reached, self.detail = exhausted, reached, ""
        self.ended = self.closed = False
        self.handed_out = 0
        self.paused: set[TopicPartition] = set()

    def poll(self, timeout: float) -> list[Records]:
        """The next entry, `[]` after the last."""
        entry = next(self._polls, None)
        self.handed_out += entry is not None
        if entry is None:
            self.ended = self._exhausted
            return []
        if isinstance(entry, Exception):
            raise entry
        return entry() if callable(entry) else entry

    def status(self) -> SourceStatus:
        """As reachable as it was set to be."""
        known = PartitionStatus("interactions", 0, self.handed_out, self.lag)
        partitions = () if self.lag is None else (known,)
        return SourceStatus(self.reached, self.ended, partitions, self.detail)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Remember which partitions are paused."""
        self.paused = set(partitions)

    def offsets(self) -> SourceOffsets:
        """How many polls have been handed out."""
        return {"interactions": Offsets({0: self.handed_out} if self.handed_out else {})}

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


def records(*values: bytes | None, partition: int = 0) -> Records:
    """Consecutive messages of one partition from offset 0."""
    return Records("interactions", partition, range(len(values)), values)


class NumberFormat:
    """Decodes `b"5"` into an event of reward 5 at time 5; everything else is malformed."""

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """The numbers as events, the rest as rejections."""
        taken = [value or b"" for value in values]
        numbers = np.array([float(value) for value in taken if value.isdigit()])
        rejected = tuple(Rejected("malformed", f"not a number: {v!r}", v) for v in taken if not v.isdigit())
        ones = np.ones_like(numbers)
        batch = EventBatch.from_arrays(reward=numbers, propensity=ones, policies={"a": ones}, timestamp=numbers)
        return replace(batch, rejected=rejected)


class Recorder:
    """A learner that remembers the rewards in order, and how many Reports it was asked for."""

    config = SimpleNamespace(margin=None)

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.reports = 0

    def update(self, batch: EventBatch) -> None:
        """Remember the rewards."""
        self.rewards += batch.reward.tolist()

    def fold_pending(self, least: int = 1) -> bool:
        """Nothing is pending."""
        return False

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """A Report whose number of events is the number received."""
        self.reports += 1
        events = EventCounts(len(self.rewards), {}, None)
        return Report(confidence=0.95, production="logging", events=events, policies=(), estimates=())

    def missing_fields(self, batch: EventBatch) -> list[Any]:
        """Nothing is missing."""
        return []

    def take_versions(self) -> list[Any]:
        """Nothing is copied."""
        return []

    def state(self) -> Any:
        """The rewards."""
        return {"rewards": list(self.rewards)}


@contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """The daemon at work in its own thread, stopped at the end."""
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        thread.join(120.0)
        assert not thread.is_alive(), "the daemon did not stop"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return as soon as `condition()` holds.

    Raises:
        AssertionError: If the condition does not hold after pauses of this many seconds in all.
    """
    waiting, waited, pause = threading.Event(), 0.0, 0.01
    while not condition():
        if waited >= seconds:
            raise AssertionError(f"not within {seconds} s")
        waiting.wait(pause)
        waited, pause = waited + pause, min(1.3 * pause, 0.1)  # a question costs a server time


TURN, USUAL_TURNS = 10_000, 500
"""This many numbers are added up in a tenth of a second, on machines of some years ago."""


def quickest(call: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of several calls: what a busy machine adds to the others is not the program's."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def crowding() -> float:
    """How many times longer everything takes at the moment than it does on a usual machine of one's own; at least 1.

    A limit in seconds is meant for that: where others are at work, too, or the machine is a slow one, it is longer.
    """
    start_time, worked, turns = time.perf_counter(), time.thread_time(), 0
    while time.thread_time() - worked < 0.1:
        turns += sum(range(TURN)) > 0
    waited = (time.perf_counter() - start_time) / (time.thread_time() - worked)
    return max(1.0, waited) * max(1.0, USUAL_TURNS / turns)


def slowness() -> float:
    """How many times more work things are here than on a usual machine; at least 1. For limits in seconds of work."""
    worked = time.thread_time()
    for _ in range(USUAL_TURNS):
        sum(range(TURN))
    return max(1.0, (time.thread_time() - worked) / 0.1)
