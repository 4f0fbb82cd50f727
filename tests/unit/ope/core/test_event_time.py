"""Test windows and decays in time against their definition, at every prefix of a stream."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import AnyAverage, Cumulative, Decay, Window
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.report import Estimate
from support.reference import brute_force
from support.streams import CANDIDATE, Array, Stream, close, random_stream

BLOCK = 20
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS()]
AVERAGES: list[AnyAverage] = [
    Window(span="50s", name="minute"),
    Window(span="4s", name="seconds"),
    Decay(half_life="15s", name="slow"),
    Decay(half_life="800ms", name="fast"),
]
SPANS = {"minute": 50.0, "seconds": 4.0}
HALF_LIVES = {"slow": 15.0, "fast": 0.8}


def times(n: int, seed: int = 1) -> Array:
    """Draw bursts and pauses, disorder, some clocks that run far ahead, and some events without a time."""
    rng = np.random.default_rng(seed)
    gaps = rng.choice([0.0, 0.01, 0.3, 20.0], n, p=[0.2, 0.5, 0.28, 0.02])
    time = 1e9 + np.cumsum(gaps) - rng.choice([0.0, 1.0, 10.0], n, p=[0.8, 0.15, 0.05])
    time[rng.random(n) < 0.02] = 4e9
    time[rng.random(n) < 0.02] = np.nan
    return time


def dated(stream: Stream, time: Array) -> EventBatch:
    return replace(stream.batch(), timestamp=time)


def clocks(time: Array, block: int = BLOCK) -> Array:
    """Return the clock at the end of the block of each event, if the stream ends with the last one."""
    enough, clock, path = math.ceil(block / 10), -math.inf, []
    for first in range(0, len(time), block):
        stamps = time[first : first + block]
        if len(stamps) >= enough or clock == -math.inf:
            clock = max(clock, sorted(np.nan_to_num(stamps, nan=-math.inf))[-min(enough, len(stamps))])
        path += [clock] * len(stamps)
    return np.array(path)


def kernel_of(label: str, time: Array, block: int = BLOCK) -> Array:
    """Return the weight that each event has at the end, by definition."""
    path = clocks(time, block)
    shown = np.minimum(time, path)
    if label in SPANS:
        width = SPANS[label] / 100
        return np.where(np.floor(shown / width) > np.floor(path[-1] / width) - 100, 1.0, 0.0) * ~np.isnan(time)
    return np.nan_to_num(0.5 ** ((path[-1] - shown) / HALF_LIVES[label]))


def candidates(evaluator: Evaluator) -> list[Estimate]:
    return [estimate for estimate in evaluator.report().estimates if estimate.policy == CANDIDATE]


def evaluator_of(averages: list[AnyAverage] = AVERAGES, **more: Any) -> Evaluator:
    return Evaluator([CANDIDATE], estimators=ESTIMATORS, averages=averages, **{"block": BLOCK} | more)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_windows_and_decays_in_time_equal_their_definition_at_every_prefix(missing: float) -> None:
    stream, time = random_stream(4, 330, missing=missing, downsampled=bool(missing), rewards="real"), times(330)
    evaluator = evaluator_of()
    terms_by_estimator = {
        estimator.label: brute_force.terms(
            estimator.label, stream.present, stream.weight, stream.reward, cap=1.0, block=BLOCK
        )
        for estimator in ESTIMATORS
    }
    done = 0
    for n in range(1, len(stream) + 1):
        if n > BLOCK + 1 and n % 17:
            continue
        evaluator.update(dated(stream[done:n], time[done:n]))
        done = n
        kernels = {average.label: kernel_of(average.label, time[:n]) for average in AVERAGES}
        for row in candidates(evaluator):
            kernel = kernels[row.average]
            expected = brute_force.moments(kernel, terms_by_estimator[row.estimator][:n])
            if math.isnan(expected.value):
                assert row.value is None
                continue
            assert row.value == close(expected.value)
            assert row.effective_sample_size == close(expected.effective_sample_size)
            assert row.details["largest_term_share"] == close(
                None if math.isnan(expected.largest_share) else expected.largest_share
            )
            if row.average in SPANS:
                assert row.details["window_events"] == kernel.sum()
            else:
                assert row.details["horizon_events"] == pytest.approx(kernel.sum())


def test_a_few_clocks_that_run_ahead_do_not_empty_a_window() -> None:
    stream, time = random_stream(3, 3000), np.arange(3000) / 10
    ahead = np.where(np.arange(3000) % 37 == 5, 4e9, time)
    evaluator = evaluator_of([Window(span="1m")], block=100)
    evaluator.update(dated(stream, ahead))
    (actual, _) = candidates(evaluator)
    assert 580 < actual.details["window_events"] <= 600


def test_the_window_does_not_grow_with_the_rate_of_events() -> None:
    stream = random_stream(3, 6000)
    sizes = []
    for rate in (1.0, 1000.0):
        evaluator = evaluator_of([Window(span="1h")], block=100)
        evaluator.update(dated(stream, np.arange(6000) / rate))
        evaluator.fold_pending()
        sizes.append(len(msgspec.msgpack.encode(evaluator.state())))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.001)


def test_time_and_number_agree_if_an_event_comes_every_second() -> None:
    stream = random_stream(3, 5000)
    averages = [
        Window(tau=1000, name="events"),
        Window(span="1000s", name="seconds"),
        Decay(half_life=300, name="after events"),
        Decay(half_life="5m", name="after minutes"),
    ]
    evaluator = evaluator_of(averages, block=100)
    evaluator.update(dated(stream, np.arange(5000.0)))
    actual = {(candidate.estimator, candidate.average): candidate for candidate in candidates(evaluator)}
    for one, other in (("events", "seconds"), ("after events", "after minutes")):
        counted, timed = actual["ips", one], actual["ips", other]
        assert timed.value == pytest.approx(counted.value, rel=0.01)
        assert timed.upper - timed.lower == pytest.approx(counted.upper - counted.lower, rel=0.02)
    assert actual["ips", "seconds"].details["window_events"] == 1000


def test_the_variance_is_remembered_equally_long_by_time_and_by_number() -> None:
    stream = random_stream(3, 4000)
    stream = stream.with_(reward=np.where(np.arange(4000) < 2500, stream.reward, 0.1 * stream.reward))
    averages = [
        Window(tau=100, name="events"),
        Window(span="100s", name="seconds"),
        Decay(half_life=60, name="after events"),
        Decay(half_life="1m", name="after a minute"),
    ]
    evaluator = evaluator_of(averages, intervals={average.label: "normal" for average in averages})
    evaluator.update(dated(stream, np.arange(4000.0)))
    width = {
        candidate.average: candidate.upper - candidate.lower
        for candidate in candidates(evaluator)
        if candidate.estimator == "ips"
    }
    assert width["seconds"] == pytest.approx(width["events"], rel=0.05)
    assert width["after a minute"] == pytest.approx(width["after events"], rel=0.05)


def test_events_without_a_time_count_in_other_averages_only() -> None:
    evaluator = evaluator_of([Cumulative(), *AVERAGES])
    evaluator.update(random_stream(3, 50).batch())
    values = {candidate.average: candidate.value for candidate in candidates(evaluator) if candidate.estimator == "ips"}
    assert values.pop("cumulative") is not None
    assert values == dict.fromkeys([*SPANS, *HALF_LIVES])


@pytest.mark.parametrize(
    ("written", "average"),
    [
        ({"kind": "window", "span": "1h"}, Window(span="1h")),
        ({"kind": "decay", "half_life": "30m"}, Decay(half_life="30m")),
        ({"kind": "decay", "half_life": 30}, Decay(half_life=30)),
    ],
)
def test_a_duration_means_time_and_a_number_means_events(written: dict[str, Any], average: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(AnyAverage)
    assert adapter.validate_python(written) == average
    assert (average.drift is None) == any(isinstance(value, str) and value[0].isdigit() for value in written.values())
    config = Evaluator(["a"], averages=[average]).config
    assert EvaluatorConfig.from_settings(config.settings()) == config


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"kind": "window", "span": "1h", "tau": 500}, "give either span, a time, or tau and resolution in events"),
        ({"kind": "window", "span": "0s"}, "expected a duration longer than 0"),
        ({"kind": "window", "span": "soon"}, "expected a duration such as 30s, 5m or 1h30m"),
        ({"kind": "window", "span": 3600}, "valid string"),
        ({"kind": "decay", "half_life": "1h", "alpha": 0.9}, "give either alpha or half_life, not both"),
        ({"kind": "decay", "half_life": "soon"}, "expected a duration such as 30s, 5m or 1h30m"),
        ({"kind": "decay", "half_life": 0}, "expected a number of events greater than 0, or a duration such as 30m"),
        ({"kind": "decay", "half_life": True}, "expected a number of events greater than 0"),
    ],
)
def test_a_wrong_time_is_refused_with_what_was_expected(written: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(AnyAverage).validate_python(written)


def test_a_confidence_sequence_needs_a_window_in_events() -> None:
    with pytest.raises(ValueError, match="measured by the clock"):
        Evaluator(["a"], averages=[Window(span="1h")], intervals={"window": "confidence_sequence"})
