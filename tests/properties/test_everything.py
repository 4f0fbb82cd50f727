"""Test all at once: averages, intervals and rules, units, downsampling, gaps, and a named production."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se

EVENTS = 2_450
AVERAGES = [
    *(se.Cumulative(name=kind) for kind in ("normal", "empirical_bernstein", "empirical_likelihood")),
    *(
        se.Cumulative(name="since"),
        se.Window(tau=600, name="watched"),
        se.Window(span="20m"),
        se.Decay(half_life="10m"),
    ),
    *(se.Window(tau=600, name="recent"), se.Decay(half_life=500, name="faded"), se.AdaptiveWindow()),
    *(se.AdaptiveDecay(), se.Mixture(), se.Mixture(name="likely")),
]
INTERVALS = {
    **{kind: kind for kind in ("normal", "empirical_bernstein", "empirical_likelihood")},
    **dict.fromkeys(("since", "watched"), "confidence_sequence"),
    **dict.fromkeys(("faded", "likely"), "empirical_likelihood"),
}


def log(seed: int, low: float, high: float) -> dict[str, Any]:
    """Draw columns of a log with rewards between `low` and `high`, and every field that an event may have."""
    rng = np.random.default_rng(seed)
    propensity = rng.uniform(0.03, 0.6, EVENTS)
    policies = {name: np.minimum(rng.random(EVENTS) * 2 * propensity, 1.0) for name in ("now", "new", "other")}
    for column in policies.values():
        column[rng.random(EVENTS) < 0.05] = np.nan
    return {
        "reward": np.where(rng.random(EVENTS) < 0.3, high, low),
        "propensity": propensity,
        "policies": policies,
        "sampling_probability": rng.choice([0.25, 1.0], EVENTS),
        "timestamp": 1.7e9 + np.cumsum(rng.exponential(2.0, EVENTS)),
        "unit": [f"session-{event // 20}" for event in range(EVENTS)],
    }


def event_batch(columns: dict[str, Any], first: int, last: int) -> se.EventBatch:
    taken = {name: column[first:last] for name, column in columns.items() if name != "policies"}
    policies = {name: column[first:last] for name, column in columns["policies"].items()}
    return se.EventBatch.from_arrays(**taken, policies=policies)


def evaluator(production: str, low: float = 0.0, high: float = 1.0, **options: Any) -> se.Evaluator:
    return se.Evaluator(
        [name for name in ("now", "new", "other") if name != production],
        [se.IPS(), se.SNIPS(), se.ClippedIPS(cap=3), se.ControlVariate(), se.StratifiedIPS()],
        AVERAGES,
        (low, high),
        production,
        INTERVALS,
        promotion=se.Promotion(rule=("paired", "anytime", "sea", "bsea"), min_events=500, hold=2),
        **options,
    )


def pieces(columns: dict[str, Any], cuts: Sequence[int]) -> Iterator[se.EventBatch]:
    for first, last in zip([0, *cuts], [*cuts, EVENTS], strict=True):
        yield event_batch(columns, first, last)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all numbers, words and Nones of a Report as JSON, with their paths."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{path}/{key}")
    else:
        yield path, value


def reported(report: se.Report) -> dict[str, Any]:
    return dict(leaves(msgspec.json.decode(report.to_json())))


@pytest.mark.parametrize("production", ["logging", "now"])
def test_finished_blocks_may_be_folded_early(production: str) -> None:
    columns, whole, early = log(1, 0.0, 1.0), evaluator(production), evaluator(production)
    whole.update(event_batch(columns, 0, EVENTS))
    for piece in pieces(columns, (3, 90, 733, 1_600)):
        early.update(piece)
        early.fold_pending()
    expected, actual = reported(whole.report()), reported(early.report())
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        assert actual[path] == (pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value), path


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (2.0, 5.0), (-3.0, -1.0)])
@pytest.mark.parametrize("options", [{"confidence": 0.8}, {"confidence": 0.999999, "block": 250}])
def test_every_interval_has_ordered_ends_for_any_range_of_rewards(
    low: float, high: float, options: dict[str, Any]
) -> None:
    columns, asked = log(3, low, high), evaluator("now", low, high, **options)
    for piece in pieces(columns, (3, 90, 650)):
        asked.update(piece)
        for estimate in asked.report().estimates:
            where = (estimate.policy, estimate.estimator, estimate.average)
            for lower, upper in ((estimate.lower, estimate.upper), (estimate.lift_lower, estimate.lift_upper)):
                assert (lower is None) == (upper is None), where
                assert lower is None or upper is None or lower <= upper, where
            if estimate.kind in ("normal", "empirical_bernstein", "drift_aware") and estimate.lower is not None:
                assert estimate.lower <= np.clip(estimate.value, low, high) <= estimate.upper, where  # type: ignore[arg-type, operator]
