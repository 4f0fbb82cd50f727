"""Test the search for a cycle in hourly means."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.cycle import TOO_SHORT, HourlyMeans, find_cycle

START = datetime(2026, 11, 2, 15, 20, tzinfo=UTC).timestamp()


def hours(days: float) -> Array:
    return np.arange(round(24 * days), dtype=float)


def noise(size: int) -> Array:
    return np.random.default_rng(3).normal(0, 0.1, size)


def profile(time: Array) -> Array:
    return np.asarray(np.sin(2 * np.pi * time / 24))


def log(days: float, per_hour: int = 50, amplitude: float = 0.15, step: float = 1.0) -> EventBatch:
    """Return events of which a tenth is shown by chance, with a candidate that earns more at noon than at midnight."""
    rng = np.random.default_rng(4)
    time = START + np.arange(round(days * 24 * per_hour)) * 3600 / per_hour * step
    first = rng.random(len(time)) < 0.5
    mean = np.where(first, 0.4, 0.4 + amplitude * profile(time / 3600))
    reward = (rng.random(len(time)) < mean) * 1.0
    policies = {"new": np.where(first, 0.0, 1.0), "same": np.full(len(time), 0.5)}
    return EventBatch.from_arrays(reward=reward, propensity=np.full(len(time), 0.5), policies=policies, timestamp=time)


def findings(*batches: EventBatch) -> list[str]:
    means = HourlyMeans(("logging", "new", "same"), {}, (0.0, 1.0))
    for batch in batches:
        means.update(batch)
    return list(means.findings())


def test_a_cycle_is_found_with_its_amplitude() -> None:
    time = hours(7)
    found = find_cycle(0.3 * profile(time) + noise(len(time)) / 10, 24)
    assert found is not None
    assert found.amplitude == pytest.approx(0.3, abs=0.01)
    assert found.probability < 1e-6


@pytest.mark.parametrize("drift", [0.0, 0.01, 1.0])
def test_a_steady_drift_is_no_cycle(drift: float) -> None:
    time = hours(14)
    found = find_cycle(drift * time + noise(len(time)), 24)
    assert found is not None
    assert found.probability > 0.01


@pytest.mark.parametrize("level", [0.0, 0.3, 1e9])
def test_a_constant_is_no_cycle_and_rounding_is_none(level: float) -> None:
    found = find_cycle(np.full(24 * 9, level) * (1 + 1e-16 * profile(hours(9))), 24)
    assert found is not None
    assert found.probability == 1.0


def test_a_cycle_is_found_although_hours_lack_events() -> None:
    time = hours(10)
    means = profile(time) + noise(len(time))
    means[(time % 24 < 5) | ((time > 80) & (time < 95))] = np.nan
    found = find_cycle(means, 24)
    assert found is not None
    assert found.probability < 1e-6


def test_means_that_are_too_few_or_too_sparse_have_no_answer() -> None:
    assert find_cycle(profile(hours(4))[1:], 24) is None
    assert find_cycle(profile(hours(28))[1:], 168) is None
    assert find_cycle(np.where(hours(9) % 24 < 14, np.nan, 1.0), 24) is None


def test_the_cycles_of_production_and_of_lifts_are_named_with_their_strength() -> None:
    assert findings(log(8)) == [
        "a daily cycle of production's value of +-0.075: the rule needs whole days",
        "a daily cycle of the lift of 'new' of +-0.065: the rule needs whole days",
    ]


def test_findings_do_not_depend_on_how_the_log_is_cut_or_ordered() -> None:
    events = log(8)
    order = np.random.default_rng(5).permutation(len(events))
    assert findings(events[:777], events[777:]) == findings(events) == findings(events.take(order))


def test_a_log_without_a_cycle_has_no_findings() -> None:
    assert findings(log(8, amplitude=0.0)) == []


def test_a_short_log_is_too_short_to_tell() -> None:
    assert findings(log(3)) == findings(log(0.01)) == [TOO_SHORT]
    assert "4 days needed" in TOO_SHORT


def test_nothing_is_said_about_events_without_timestamps() -> None:
    events = log(8)
    untimed = EventBatch.from_arrays(
        reward=events.reward, propensity=events.propensity, policies={"new": [0.5] * len(events)}
    )
    assert findings(untimed) == findings() == []


def test_a_time_far_from_the_others_is_left_out() -> None:
    events = log(8)
    stray = log(0.01)[:1].take(np.array([0, 0]))
    stray.timestamp[:] = 1e14, 3.0
    assert findings(events, stray) == findings(events)


def test_a_weekly_cycle_needs_four_weeks() -> None:
    time = hours(28)
    weekend = np.where(time % 168 >= 120, 0.2, 0.0)
    found = find_cycle(weekend + noise(len(time)) / 10, 168)
    assert found is not None
    assert found.probability < 1e-3
