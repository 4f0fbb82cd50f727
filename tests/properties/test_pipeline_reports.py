"""Test that live and late readers of several partitions and two topics report the same, over restarts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streameval import Evaluator
from streameval.events import JsonDecoder
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.core import Cumulative, Decay, Window
from streameval.ope.estimators import IPS, SNIPS
from streameval.ope.report import Report
from streameval.service.metrics import metrics_text
from support.factories import make_published
from support.polling import polls, read_through

DECISIONS, REWARDS, PARTITIONS = "decisions", "clicks", 3
START, SECONDS, EVENTS = 1_700_000_000.0, 200.0, 2_000
Logs = dict[tuple[str, int], list[tuple[float, float, bytes]]]
"""Messages by partition: the time of writing, the time of the event, and the content."""


def logs(seed: int, count: int = EVENTS) -> Logs:
    """Write decisions to three partitions, and clicks on a fifth of them up to a minute later.

    One partition is silent for a while, and some decisions are repeated.
    """
    rng = np.random.default_rng(seed)
    written: Logs = {(DECISIONS, partition): [] for partition in range(PARTITIONS)}
    written[REWARDS, 0] = []
    for number, time in enumerate(np.sort(rng.uniform(0, SECONDS, count)).tolist()):
        partition = int(rng.integers(PARTITIONS))
        if partition == 2 and 50 < time < 125:
            partition = 0
        propensity, target = rng.uniform(0.2, 1.0, 2).round(3).tolist()
        output = {"event_id": f"e-{number}", "timestamp": START + time, "action": 1, "propensity": propensity}
        message = json.dumps(output | {"policies": {"challenger": target}}).encode()
        for _ in range(2 if rng.random() < 0.02 else 1):
            written[DECISIONS, partition].append((time + rng.uniform(0, 3), time, message))
        if rng.random() < 0.2:
            clicked = time + float(rng.exponential(20.0))
            click = {"event_id": f"e-{number}", "timestamp": START + clicked, "reward": 1}
            written[REWARDS, 0].append((clicked + rng.uniform(0, 3), clicked, json.dumps(click).encode()))
    return {topic_partition: sorted(messages) for topic_partition, messages in written.items()}


def stages(rewards: bool) -> KafkaSettings:
    late = {"rewards": {"topic": REWARDS, "window": "45s"}} if rewards else {}
    return KafkaSettings(topic=DECISIONS, duplicates=1000, max_lateness="4s", idle_timeout="5s", **late)


def report(written: Logs, seed: int, start: float, every: float, *, rewards: bool, restarts: bool = False) -> Report:
    """Return the Report of a reader.

    Args:
        start: When the reader starts, in seconds.
        every: Seconds between two polls.
    """
    form = JsonDecoder(["challenger"], rewarded=not rewards, identified=True)
    evaluator = Evaluator(
        ["challenger"],
        estimators=[IPS(), SNIPS()],
        averages=[Cumulative(), Window(tau=350), Decay(half_life=90), Window(span="80s", name="time")],
    )
    moments = np.arange(start, SECONDS + 200.0, every).tolist()
    polled = polls(written, seed, moments, START, 500)
    often = (7, 3) if restarts else ()
    intake, evaluator = read_through(lambda: EventPipeline(form, stages(rewards)), evaluator, polled, often)
    buffered = intake.buffered()
    assert buffered is not None
    assert buffered.events == 0
    assert buffered.released_early == 0
    return evaluator.report()


def assert_alike(one: Report, other: Report) -> None:
    assert one.events.accepted == other.events.accepted
    assert one.events.rejected == other.events.rejected
    for first, second in zip(one.estimates, other.estimates, strict=True):
        for name in ("value", "lower", "upper", "lift", "lift_lower", "lift_upper", "effective_sample_size"):
            expected = getattr(second, name)
            actual = getattr(first, name)
            assert actual == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12))


@pytest.mark.parametrize("rewards", [True, False], ids=["joined", "ordered"])
def test_live_and_later_readers_report_the_same(rewards: bool) -> None:
    written = logs(seed=11)
    if not rewards:
        del written[REWARDS, 0]
        written = {
            topic_partition: [(moment, time, message[:-1] + b', "reward": 1}') for moment, time, message in messages]
            for topic_partition, messages in written.items()
        }
    live = report(written, 1, start=0.0, every=2.0, rewards=rewards)
    assert live.events.accepted == EVENTS
    assert live.events.rejected.keys() <= {"duplicate", "too_late"}
    for seed, start, every in ((2, 75.0, 3.0), (3, SECONDS + 20, 2.0), (4, 0.0, 40.0)):
        assert_alike(report(written, seed, start, every, rewards=rewards), live)
    assert_alike(report(written, 5, 0.0, 3.0, rewards=rewards, restarts=True), live)


def test_late_clicks_are_rejected_and_all_others_count() -> None:
    written = logs(seed=11)
    read = report(written, 1, start=0.0, every=5.0, rewards=True)
    clicks = len(written[REWARDS, 0])
    late = read.events.rejected["too_late"]
    assert 0.03 * clicks < late < 0.2 * clicks
    (value,) = [
        row.value
        for row in read.estimates
        if (row.policy, row.estimator, row.average) == ("logging", "ips", "cumulative")
    ]
    assert value is not None
    assert value * read.events.accepted == pytest.approx(clicks - late, abs=0.05 * clicks)


def test_buffered_and_late_events_are_exported() -> None:
    written, intake = (
        logs(seed=11),
        EventPipeline(JsonDecoder(["challenger"], rewarded=False, identified=True), stages(True)),
    )
    for records, partitions in polls(
        written, np.random.default_rng(1), np.arange(SECONDS + 200.0).tolist(), START, 500
    ):
        if any(chunk.topic == REWARDS and chunk.offsets[-1] >= 300 for chunk in records):
            break
        intake.take(records, partitions)
    buffered = intake.buffered()
    assert buffered is not None
    assert buffered.rewards is not None
    text = metrics_text(make_published(buffered=buffered)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    exported = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert exported["streameval_events_held",] == buffered.events > 100
    assert exported["streameval_watermark_timestamp_seconds",] == buffered.watermark > START
    assert exported["streameval_events_hurried_total",] == 0
    assert exported["streameval_rewards_total", "joined"] == buffered.rewards.joined > 50
    assert exported["streameval_rewards_total", "late"] == buffered.rewards.late > 0
    assert exported["streameval_rewards_total", "unmatched"] == buffered.rewards.unmatched == 0
    assert exported["streameval_rewards_late_share",] == buffered.rewards.late_share
