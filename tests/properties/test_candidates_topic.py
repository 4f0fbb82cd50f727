"""Test that probabilities of candidates in a topic of their own count as if the log carried them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from streameval.config.model import Config
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Report
from support.polling import polls, read_through
from support.rewards import assert_equal

START, EVENTS, LATE = 1_700_000_000.0, 1_500, 0.05
CANDIDATES = ["logged", "shadow", "nightly"]
Message = tuple[float, bytes]
Logs = dict[tuple[str, int], list[Message]]
"""The time of writing of each message and its content, by partition."""


def config(*topics: str) -> Config:
    windows = {"rewards": {"topic": "rewards", "window": "30s"}, "candidates": {"topic": "scores", "window": "60s"}}
    source = {"topic": "decisions", "duplicates": 5_000, "max_lateness": "4s", "idle_timeout": "5s"}
    return Config.model_validate(
        {
            "source": source | {"order": "event_time"} | {topic: windows[topic] for topic in topics},
            "policies": {"candidates": CANDIDATES},
            "estimators": ["ips", "snips", "dr"],
            "averages": ["cumulative", {"kind": "window", "tau": 300}, {"kind": "decay", "half_life": 200}, "mixture"],
        }
    )


def scored(rng: np.random.Generator, number: int, time: float) -> tuple[list[Message], dict[str, float], float]:
    """Return the messages with scores of a decision, the scores that come in time, and a delay."""
    scores = dict(zip(("shadow", "nightly"), rng.uniform(0.05, 1.0, 2).round(4).tolist(), strict=True))
    delays = dict.fromkeys(scores, float(rng.uniform(0, 59)))
    if number % 3 == 0:
        delays["nightly"] = float(rng.uniform(0, 59))  # in a message of its own
    in_time = {name: scores[name] for name in scores if rng.random() > LATE}
    for name in scores.keys() - in_time.keys():
        delays[name] += 60.5 if rng.random() < 0.5 else math.inf
    messages = []
    for delay in set(delays.values()) - {math.inf}:
        some = {name: scores[name] for name in delays if delays[name] == delay} | {"stranger": 0.5}
        message = msgspec.json.encode({"event_id": f"e-{number}", "timestamp": START + time + delay, "policies": some})
        copies = 1 + (rng.random() < 0.1)
        messages += [(time + delay + float(rng.uniform(0, 3)), message) for _ in range(copies)]
    if number % 50 == 0:
        message = msgspec.json.encode({"event_id": f"x-{number}", "timestamp": START + time, "policies": scores})
        messages.append((time, message))
    return messages, in_time, float(rng.uniform(0, 20))


def logs(seed: int, rewarded: bool) -> tuple[Logs, Logs]:
    """Return decisions with scores in a topic of their own, and decisions that carry these scores.

    Scores come out of order, up to a minute after their decision, some twice, some for no decision, some never and some
    after the window. Half of the decisions list their actions.
    """
    rng = np.random.default_rng(seed)
    topics = {"decisions": 2, "rewards": int(rewarded), "scores": 2}
    apart: Logs = {(topic, number): [] for topic, count in topics.items() for number in range(count)}
    carried: Logs = {partition: [] for partition in apart if partition[0] != "scores"}
    for number, time in enumerate(np.sort(rng.uniform(0, 300.0, EVENTS)).tolist()):
        logged, propensity = rng.uniform(0.05, 1.0, 2).round(4).tolist()
        event = {"event_id": f"e-{number}", "timestamp": START + time, "action": "a", "propensity": propensity}
        if number % 2:
            event |= {"actions": ["a", "b"], "features": [[propensity], [logged]]}
        scores, in_time, delay = scored(rng, number, time)
        for message in scores:
            apart["scores", int(rng.integers(2))].append(message)
        reward = {"reward": int(rng.random() < 0.3)}
        late = {"event_id": f"e-{number}", "timestamp": START + time + delay} | reward
        partition, written = ("decisions", int(rng.integers(2))), time + float(rng.uniform(0, 3))
        for log, policies in ((apart, {}), (carried, in_time)):
            decision = event | {"policies": {"logged": logged} | policies} | ({} if rewarded else reward)
            log[partition] += (1 + (number % 40 == 0)) * [(written, msgspec.json.encode(decision))]
            if rewarded:
                log["rewards", 0].append((time + delay + 1, msgspec.json.encode(late)))
    return {key: sorted(log) for key, log in apart.items()}, {key: sorted(log) for key, log in carried.items()}


def read(config: Config, written: Logs, seed: int, every: float, restarts: bool = False) -> tuple[Report, Any]:
    """Return the Report of a reader that polls now and then, and what its buffers counted."""
    form, moments = config.event_format(), np.arange(0.0, 900.0, every).tolist()
    polled = polls(written, seed, moments, START, 400)
    evaluator, often = Evaluator.from_config(config.evaluator_config()), (3, 1) if restarts else ()
    intake, evaluator = read_through(lambda: EventPipeline(form, config.required_source()), evaluator, polled, often)
    evaluator.update(intake.flush())
    evaluator.fold_pending()
    return evaluator.report(), intake.buffered()


@pytest.mark.parametrize("rewarded", [False, True], ids=["scores", "scores-and-rewards"])
@pytest.mark.parametrize("seed", range(4))
def test_scores_count_as_if_the_log_carried_them(seed: int, rewarded: bool) -> None:
    apart, carried = logs(seed, rewarded)
    topics = ["rewards"] if rewarded else []
    expected, _ = read(config(*topics), carried, 0, 5.0)
    for every, restarts in ((3.0, False), (11.0, True), (40.0, True)):
        actual, buffered = read(config(*topics, "candidates"), apart, seed, every, restarts)
        assert actual.events.accepted == expected.events.accepted == EVENTS
        assert [(row.policy, row.missing) for row in actual.policies] == [
            (row.policy, row.missing) for row in expected.policies
        ]
        assert max(row.missing for row in actual.policies) > 0.02 * EVENTS
        for one, other in zip(actual.estimates, expected.estimates, strict=True):
            assert_equal(one, other)
        assert 0.01 < buffered.scores.late_share < 0.05
        assert buffered.scores.unmatched == 2 * EVENTS / 50
