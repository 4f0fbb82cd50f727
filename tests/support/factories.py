"""Make Reports by hand, and the simplest sources, decoders and learners for tests of the serving side."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from streameval.events import EventBatch, Rejected
from streameval.events.origin import Origin
from streameval.ingest.base import Offsets, PartitionStatus, Records, SourceOffsets, SourceStatus, TopicPartition
from streameval.ope.report import (
    DAY,
    WEEK,
    Calibration,
    ClippedReward,
    Contender,
    Decision,
    Estimate,
    EventCounts,
    GuardrailCheck,
    Learner,
    PolicyCounts,
    Profile,
    QuantileEstimate,
    Report,
    RewardLimit,
    SegmentEstimate,
    TrustCheck,
    UnitEstimate,
)
from streameval.service.daemon import Daemon
from streameval.service.status import NO_DELAYS, NO_SNAPSHOTS, DaemonStatus, ReloadStatus, SnapshotStatus

NOW = 1_700_000_000.0
ESTIMATORS = ("ips", "snips", "clipped_ips", "control_variate")
AVERAGES = ("cumulative", "window", "decay", "adaptive_window", "adaptive_decay", "mixture")
DETAILS = {
    "cumulative": {},
    "window": {"window_events": 10_000},
    "decay": {"alpha": 0.9999, "horizon_events": 10_000.0},
    "adaptive_window": {"window_events": 4_200, "lipschitz_per_event": 2.5e-6},
    "adaptive_decay": {"alpha": 0.9998, "horizon_events": 5_000.0, "lipschitz_per_event": 2.5e-6, "cap": 30.0},
    "mixture": {"horizon_events": 31_000.0, "se": 0.0004, "spread": 0.0003, "drift": None, "click_window": 2.0},
}


def make_estimate(policy: str, estimator: str, average: str, value: float = 0.05, **fields: Any) -> Estimate:
    """Make an Estimate with all numbers, around `value`.

    Args:
        policy: Name of the policy.
        estimator: Label of the estimator.
        average: Label of the average.
        value: The estimate.
        fields: Fields that differ.
    """
    estimated: dict[str, Any] = {
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
    return Estimate(policy=policy, estimator=estimator, average=average, **(estimated | fields))


def make_unknown(policy: str, estimator: str, average: str, **fields: Any) -> Estimate:
    """Make an Estimate without any evidence."""
    names = ("lower", "upper", "effective_sample_size", "importance_weight_mean", "importance_weight_max")
    estimate = make_estimate(policy, estimator, average, **dict.fromkeys(names), details={})
    return msgspec.structs.replace(estimate, value=None, **fields)


UNIT_NUMBERS = (0.15, 0.13, 0.17, 0.02, 0.01, 0.03, 0.15, 0.08, 0.23)
"""A reward per unit, its lift and its relative lift, each with its interval."""


@cache
def make_report(
    candidates: int = 3,
    estimators: tuple[str, ...] = ESTIMATORS,
    averages: tuple[str, ...] = AVERAGES,
    seed: int = 7,
) -> Report:
    """Make a full Report of production `logging` and this many candidates, better, worse and undecided ones."""
    rng = np.random.default_rng(seed)
    suffixes = [*ascii_lowercase, *range(len(ascii_lowercase), candidates)][:candidates]
    names = ["logging", *(f"challenger-{suffix}" for suffix in suffixes)]
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
            Decision(
                name,
                "paired",
                truth[name] > 0.052,
                "lift above 0",
                estimator=estimators[0],
                average=averages[-1],
                worse=truth[name] < 0.048 or None,
            )
            for name in names[1:]
        ),
        calibration=tuple(
            Calibration(name, "decay", 0.051, 0.049, 0.053, 0.052, 0.001, -0.002, 0.004, 0.012, 0.01, 0.006, 0.014)
            for name in names[1:2]
        ),
        learners=tuple(Learner(name, 12, 3, 0.001, 0.02, 0.01) for name in names[1:2]),
        trust=tuple(TrustCheck(name, "mean_weight", True, "mean weight 0.998 over 119,000 events") for name in names),
        contenders=tuple(Contender(name, names[1], False) for name in names[1:]) if candidates > 1 else (),
        clipped=(ClippedReward("reward", 0, 1_200, 0.01, 0.012, 0.003),),
        limits=(RewardLimit("reward", 0.999, 120.0),),
        per_unit=tuple(
            UnitEstimate(name, "reward", 1.7e9, 1.7e9 + 86_400, 1_200, 3_000, *numbers)
            for name, numbers in zip(names, [(0.13, 0.12, 0.14), *[UNIT_NUMBERS] * candidates], strict=True)
        ),
        quantiles=tuple(QuantileEstimate(name, "reward", 0.95, 0.7, 0.6, 0.8) for name in names),
    )


def with_profiles(report: Report) -> Report:
    """Add lifts by hour of the day and day of the week to the decisions of a Report."""
    profiles = tuple(
        Profile(
            period,
            9.0,
            2,
            tuple(0.02 * math.sin(2 * math.pi * phase / count) for phase in range(count)),
            (0.004,) * count,
            (1 / count,) * count,
            (None, *(0.01,) * (count - 1)),
        )
        for period, count in ((DAY, 24), (WEEK, 7))
    )
    rows = tuple(structs.replace(decision, profiles=profiles) for decision in report.promotion)
    return structs.replace(report, promotion=rows)


def with_segments(report: Report) -> Report:
    """Add lifts by country to a Report. The first candidate is better in `de`, and worse in `fr`."""
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
    """Add a second reward to a Report, with a guardrail for every candidate.

    Args:
        report: The Report.
        verdicts: Whether each candidate keeps the guardrail.
        lower: Lower bound for decisions.
    """
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
    """Make the status of a healthy daemon.

    Args:
        report: The last Report.
        fields: Fields that differ.
    """
    partitions = (
        PartitionStatus("interactions", 0, 60_001, 12, None, NOW - 8.0),
        PartitionStatus("interactions", 1, 60_002, None),
    )
    good = DaemonStatus(
        source=SourceStatus(reached=True, partitions=partitions, detail="2 partitions"),
        at=NOW,
        report=report,
        ready=report is not None,
        detail="" if report else "no report has been made yet",
        accepted=2_000,
        event_delay=NO_DELAYS.add(np.array([0.2, 3.0])),
        snapshots=SnapshotStatus(NOW - 10.0, NO_SNAPSHOTS.add(np.array([0.02]))),
        reload=ReloadStatus(succeeded_at=NOW - 100.0),
    )
    return replace(good, rejected=good.rejected | {"malformed": 3}, **fields)


class View:
    """Stand in for the part of a daemon that the HTTP server uses."""

    def __init__(self, published: DaemonStatus, healthy: bool = True) -> None:
        self.published, self.healthy, self.stalled_for = published, healthy, 0.0 if healthy else 90.0
        self.source_stalled = ""
        self.pushes: Any = None


class ListSource:
    """Return one entry of `polls` per poll. An exception among them is raised, a callable is called.

    Attributes:
        lag: Number of unread messages to report, None for unknown.
        reached: Whether it reports that the source is reached.
        detail: Text of its status.
        ended: Whether it has returned the last entry, unless it is never exhausted.
        closed: Whether it was closed.
        handed_out: Number of entries returned so far.
        paused: Partitions that are paused.
    """

    lag: int | None = None

    def __init__(self, polls: Iterable[Any], *, exhausted: bool = True, reached: bool = True) -> None:
        self._polls = iter(polls)
        self._exhausted, self.reached, self.detail = exhausted, reached, ""
        self.ended = self.closed = False
        self.handed_out = 0
        self.paused: set[TopicPartition] = set()

    def poll(self, timeout: float) -> list[Records]:
        """Return the next entry, `[]` after the last."""
        entry = next(self._polls, None)
        self.handed_out += entry is not None
        if entry is None:
            self.ended = self._exhausted
            return []
        if isinstance(entry, Exception):
            raise entry
        return entry() if callable(entry) else entry

    def status(self) -> SourceStatus:
        """Return the status that was set."""
        partition = PartitionStatus("interactions", 0, self.handed_out, self.lag)
        partitions = () if self.lag is None else (partition,)
        return SourceStatus(self.reached, self.ended, partitions, self.detail)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Remember which partitions are paused."""
        self.paused = set(partitions)

    def offsets(self) -> SourceOffsets:
        """Return the number of polls so far as an offset."""
        return {"interactions": Offsets({0: self.handed_out} if self.handed_out else {})}

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


def records(*values: bytes | None, partition: int = 0) -> Records:
    """Make consecutive messages of one partition from offset 0."""
    return Records("interactions", partition, range(len(values)), values)


class NumberFormat:
    """Decode `b"5"` into an event of reward 5 at time 5, and reject everything else as malformed."""

    clipped_events, identified = 0, False

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Return numbers as events, and the rest as rejections."""
        taken = [value or b"" for value in values]
        numbers = np.array([float(value) for value in taken if value.isdigit()])
        rejected = tuple(Rejected("malformed", f"not a number: {v!r}", v) for v in taken if not v.isdigit())
        ones = np.ones_like(numbers)
        batch = EventBatch.from_arrays(reward=numbers, propensity=ones, policies={"a": ones}, timestamp=numbers)
        return replace(batch, rejected=rejected)


class Recorder:
    """Record the rewards in order, in place of a learner, and count its Reports."""

    config = SimpleNamespace(margin=None, columns_of=lambda batch: None)

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.reports = 0
        self.heaviest: dict[str, Any] = {}

    def update(self, batch: EventBatch) -> None:
        """Remember the rewards."""
        self.rewards += batch.reward.tolist()

    def fold_pending(self, least: int = 1) -> bool:
        """Report that nothing is pending."""
        return False

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """Make a Report with the number of events received."""
        self.reports += 1
        events = EventCounts(len(self.rewards), {}, None)
        return Report(confidence=0.95, production="logging", events=events, policies=(), estimates=())

    def missing_fields(self, batch: EventBatch) -> list[Any]:
        """Report that nothing is missing."""
        return []

    def take_versions(self) -> list[Any]:
        """Report that nothing was copied."""
        return []

    def state(self) -> Any:
        """Return the rewards."""
        return {"rewards": list(self.rewards)}


@contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """Run the daemon in its own thread, and stop it at the end."""
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
        waited, pause = waited + pause, min(1.3 * pause, 0.1)  # each call may cost a server time


TURN, USUAL_TURNS = 10_000, 500
"""Numbers of a turn, and turns in a tenth of a second on machines of some years ago."""


def quickest(call: Callable[[], object], times: int = 5) -> float:
    """Return the seconds of the fastest of several calls. A busy machine only adds time."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def crowding() -> float:
    """Return how many times longer everything takes now than on an idle usual machine, at least 1.

    Multiply limits in seconds by it, so that they hold on busy and slow machines.
    """
    start_time, worked, turns = time.perf_counter(), time.thread_time(), 0
    while time.thread_time() - worked < 0.1:
        turns += sum(range(TURN)) > 0
    waited = (time.perf_counter() - start_time) / (time.thread_time() - worked)
    return max(1.0, waited) * max(1.0, USUAL_TURNS / turns)


def slowness() -> float:
    """Return how many times more processor time work takes here than on a usual machine, at least 1."""
    worked = time.thread_time()
    for _ in range(USUAL_TURNS):
        sum(range(TURN))
    return max(1.0, (time.thread_time() - worked) / 0.1)
