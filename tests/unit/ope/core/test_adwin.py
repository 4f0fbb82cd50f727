"""Test ADWIN for several policies, compiled or not: its windows and changes equal those in river, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river.drift import ADWIN

from streameval.common.arrays import Array
from streameval.ope.core import adwin
from support.kernels import uncompiled

OPTIONS = {"delta": 0.002, "clock": 32, "max_buckets": 5, "min_window_length": 5, "grace_period": 10}
OFTEN = {"delta": 0.5, "clock": 1, "min_window_length": 2, "grace_period": 2}


FORMS = [uncompiled(adwin)] if str(adwin.__file__).endswith(".py") else [uncompiled(adwin), adwin]


def windows(form: Any, policies: int, longest: int, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    count, rows = 2 * policies, longest.bit_length()
    buckets = (count, rows, options["max_buckets"] + 1)
    state = {
        "seen": np.zeros(policies, dtype=np.int64),
        "ticks": np.zeros(count, dtype=np.int64),
        "totals": np.zeros((count, 3)),
        "sizes": np.zeros((count, rows), dtype=np.int64),
        "sums": np.zeros(buckets),
        "deviations": np.zeros(buckets),
    }
    return form.Windows(**options, **state), state


def require_equal(values: Array, **changes: Any) -> int:
    """Compare every value's outcome with river, and return the number of changes."""
    options, detections = OPTIONS | changes, np.zeros(1, dtype=np.int64)
    river, expected = ADWIN(**options), []
    for value in values.tolist():
        river.update(value)
        expected.append((river.n_detections, river.drift_detected, river.width, river.total, river.variance))
    for form in FORMS:
        (detector, state), before = windows(form, 1, len(values), options), 0
        for index, value in enumerate(values):
            detector.update(np.array([[value]]), detections, len(values), 0, 0)
            changed, before = int(detections[0]) - before, int(detections[0])
            actual = (changed, bool(changed), *state["totals"][0].tolist())
            assert repr(actual) == repr(expected[index])
        assert before == sum(outcome[1] for outcome in expected)
        detections[:] = 0
    return sum(outcome[1] for outcome in expected)


def streams(count: int) -> dict[str, Array]:
    random = np.random.default_rng(7)
    levels = random.integers(0, 4, count // 200 + 1).repeat(200)[:count]
    return {
        "stationary": random.normal(0, 1, count),
        "jumps": random.normal(0, 1, count) + levels,
        "binary": (random.random(count) < 0.2 + 0.2 * levels).astype(float),
        "drift": random.normal(0, 1, count) + np.linspace(0, 10, count),
        "walk": random.normal(0, 0.1, count).cumsum(),
        "heavy tails": random.standard_cauchy(count),
        "weights": random.pareto(1.1, count),
        "constant": np.full(count, 0.1),
        "all magnitudes": random.normal(0, 1, count) * 10.0 ** random.integers(-300, 300, count),
    }


@pytest.mark.parametrize("changes", [{}, OFTEN, {"max_buckets": 2}, {"delta": 1.0, "min_window_length": 1}], ids=str)
@pytest.mark.parametrize(("name", "values"), streams(1_000).items())
def test_windows_equal_those_in_river(name: str, values: Array, changes: dict[str, Any]) -> None:
    actual = require_equal(values, **changes)
    assert actual > 0 or name not in ("jumps", "drift", "walk")


LEVELS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 80)), min_size=1, max_size=8)


@given(
    levels=LEVELS,
    noise=st.sampled_from([0.0, 1e-9, 1.0, 1e6]),
    delta=st.floats(1e-6, 1.0),
    clock=st.integers(1, 40),
    max_buckets=st.integers(2, 8),
    min_window_length=st.integers(1, 12),
    grace_period=st.integers(0, 40),
)
def test_windows_of_any_stream_equal_those_in_river(
    levels: list[tuple[float, int]], noise: float, **options: Any
) -> None:
    values = np.concatenate([np.full(count, level) for level, count in levels])
    require_equal(values + noise * np.random.default_rng(len(values)).normal(size=len(values)), **options)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: Path(form.__file__).suffix)
def test_policies_depend_neither_on_each_other_nor_on_how_values_are_cut(form: Any) -> None:
    random = np.random.default_rng(1)
    values = random.normal(0, 0.1, (900, 4)) + random.integers(0, 3, (9, 4)).repeat(100, axis=0)
    values[random.random(values.shape) < 0.3] = np.nan
    detections, alone = np.zeros((2, 4), dtype=np.int64)
    together, state = windows(form, 4, 200, OPTIONS)
    for first in range(0, 900, 70):
        together.update(values[first : first + 70], detections, 200, 50, 10)
    for policy in range(4):
        single, own = windows(form, 1, 200, OPTIONS)
        single.update(values[:, policy : policy + 1].copy(), alone[policy : policy + 1], 200, 50, 10)
        for name, array in own.items():
            assert np.array_equal(array, state[name].reshape(4, -1, *array.shape[1:])[policy])
    assert detections.tolist() == alone.tolist()
    assert detections.min() > 0
