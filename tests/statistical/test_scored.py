"""Test that estimates from revealed outcomes find the truth, and that their intervals cover it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streameval import (
    AdaptiveDecay,
    Cumulative,
    Evaluator,
    Mixture,
    Window,
)
from support.scored_events import BOTH, batch_of, evaluator, log

AVERAGES = [Cumulative(), Window(tau=500), AdaptiveDecay(), Mixture()]


def every_value(evaluated: Evaluator) -> dict[str, Any]:
    return {f"{e.estimator}/{e.average}": e.value for e in evaluated.report().estimates if e.policy == "challenger"}


def test_every_average_finds_the_value() -> None:
    whole = evaluator(averages=AVERAGES, reward_range=(-1.0, 0.0))
    whole.update(batch_of(*log(3_000)))
    for label, value in every_value(whole).items():
        assert value == pytest.approx(-0.4, abs=0.15 if "/decay" in label or "window" in label else 0.06), label


@pytest.mark.slow
def test_a_logistic_regression_of_the_context_finds_the_propensities_of_outcomes() -> None:
    pytest.importorskip("river")
    rng, messages, shown = np.random.default_rng(3), list[bytes](), list[float]()
    for number, liking in enumerate(rng.normal(size=6_000).tolist()):
        worth, is_shown = -1 / (1 + np.exp(liking)), rng.random() < 1 / (1 + np.exp(1 - 1.5 * liking))
        shown += [worth] if is_shown else []
        outcome = {"values": {"production": worth, "challenger": worth / 2}} if is_shown else {"revealed": False}
        event = {"event_id": number, "timestamp": 0, "scored": outcome, "context": {"liking": liking}}
        messages.append(json.dumps(event).encode())
    model = {"kind": "river", "model": "linear_model.SoftmaxRegression"}
    made = evaluator(estimators=BOTH[1:], reward_range=(-1.0, 0.0), propensity={"kind": "estimated", "model": model})
    made.update(made.config.decoder().decode_batch(messages))
    value = made.report().get("production", "scored_snips", "cumulative").value
    assert value == pytest.approx(-0.5, abs=0.03)
    assert np.mean(shown) > -0.4, "the mean of the revealed ones"


@pytest.mark.parametrize("kind", ["empirical_likelihood", "normal", "empirical_bernstein"])
@pytest.mark.parametrize("complete", [True, False])
def test_intervals_cover_the_value_and_the_lift_in_most_streams(kind: str, complete: bool) -> None:
    covered = total = 0
    for seed in range(20):
        estimators = BOTH if complete else BOTH[1:]
        evaluated = evaluator(
            estimators=estimators, intervals={"cumulative": kind}, reward_range=(-1.0, 0.0), promotion=None, drift=None
        )
        evaluated.update(batch_of(*log(400, seed, complete)))
        for estimate in evaluated.report().estimates:
            if estimate.policy == "challenger":
                assert estimate.lower is not None
                assert estimate.upper is not None
                assert estimate.lift_lower is not None
                assert estimate.lift_upper is not None
                covered += estimate.lower <= -0.4 <= estimate.upper
                covered += estimate.lift_lower <= 0.2 <= estimate.lift_upper
                total += 2
    assert covered >= 0.9 * total
