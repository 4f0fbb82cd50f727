"""Compare the error of `cap: auto` with every fixed cap, in worlds with mild and with heavy-tailed weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.core import Cumulative
from streameval.ope.estimators import CAB, CABDR, AnyEstimator, ClippedIPS, Switch
from streameval.ope.intervals import EmpiricalLikelihood, Normal
from streameval.ope.reward_models import Tabular
from support.bandits import CANDIDATE, Bandit, random_bandit, values_of

CAPS = (math.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
KINDS: dict[str, type[Any]] = {"clipped_ips": ClippedIPS, "switch": Switch, "cab": CAB, "cab_dr": CABDR}
SMALLEST = (0.2, 0.02, 0.0005)
"""The smallest propensities of the worlds: weights up to 5, to 50, and to 2,000."""
LOGS = {(1_000, tuple(KINDS)): 40, (5_000, tuple(KINDS)): 20, (50_000, ("clipped_ips",)): 20}
"""The number of logs for each number of events and these kinds."""


def errors(bandit: Bandit, events: int, kinds: tuple[str, ...]) -> Iterator[list[float]]:
    """Return the root mean squared errors of `auto` and of all caps for each kind."""
    estimators: list[AnyEstimator] = [KINDS[kind](cap="auto") for kind in kinds]
    estimators += [KINDS[kind](cap=cap, name=f"{kind} {cap:g}") for kind in kinds for cap in CAPS]
    settings: dict[str, Any] = {"reward_model": Tabular(), "drift": None, "promotion": None}
    logs = (bandit.log(events, seed) for seed in range(500, 500 + LOGS[events, kinds]))
    if kinds == ("clipped_ips",):  # quicker without the actions, which it does not need
        logs = (replace(log, action_sets=None) for log in logs)
    runs = [values_of(log, estimators, **settings) for log in logs]
    for kind in kinds:
        labels = [kind, *(f"{kind} {cap:g}" for cap in CAPS)]
        yield [math.sqrt(np.mean([(values[label] - bandit.value) ** 2 for values in runs])) for label in labels]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_chosen_cap_is_near_the_best_one_and_far_from_the_worst() -> None:
    ratios_to_best, ratios_to_worst = [], []
    for index, smallest in enumerate(SMALLEST):
        for events, kinds in LOGS:
            for chosen, *fixed in errors(random_bandit(seed=80 + index, smallest=smallest), events, kinds):
                ratios_to_best.append(chosen / min(fixed))
                ratios_to_worst.append(max(fixed) / chosen)
    assert np.median(ratios_to_best) < 1.25
    assert np.exp(np.mean(np.log(ratios_to_best))) < 1.3
    assert max(ratios_to_best) < 2.5
    assert np.exp(np.mean(np.log(ratios_to_worst))) > 2.5


@pytest.mark.slow
@pytest.mark.parametrize("interval", [EmpiricalLikelihood(), Normal()], ids=lambda interval: interval.kind)
@pytest.mark.parametrize("smallest", SMALLEST)
def test_the_interval_covers_the_expectation_at_the_chosen_cap(
    smallest: float, interval: EmpiricalLikelihood | Normal
) -> None:
    bandit, logs = random_bandit(seed=83, smallest=smallest), 200
    weight = bandit.target / bandit.logging
    covered = 0
    for seed in range(900, 900 + logs):
        evaluator = Evaluator(
            [CANDIDATE], [ClippedIPS(cap="auto")], [Cumulative()], intervals={"cumulative": interval}, drift=None
        )
        evaluator.update(bandit.log(1_000, seed))
        estimate = evaluator.report().get(CANDIDATE, "clipped_ips", "cumulative")
        limited = bandit.logging * np.minimum(weight, estimate.details["cap"]) * bandit.mean
        covered += estimate.lower <= limited.sum(axis=1).mean() <= estimate.upper
    assert covered / logs >= 0.95
