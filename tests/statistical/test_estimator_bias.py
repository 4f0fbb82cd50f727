"""Measure bias and noise of estimators over many simulated logs with a known true value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.core import Cumulative
from streameval.ope.estimators import (
    CAB,
    CABDR,
    DM,
    DR,
    IPS,
    AnyEstimator,
    ClippedIPS,
    StratifiedDR,
    Switch,
)
from streameval.ope.reward_models import Ridge, Tabular
from support.bandits import CANDIDATE, Bandit, logging_with, random_bandit, values_of

UNBIASED: list[AnyEstimator] = [IPS(), DR(), StratifiedDR(), CABDR(cap=math.inf, name="uncapped cab_dr")]


LOGS, EVENTS = 200, 1_000


@pytest.mark.slow
@pytest.mark.parametrize("model", [Ridge(), Tabular()], ids=lambda model: model.kind)
@pytest.mark.parametrize("smallest", [0.2, 0.01, 0.001])
def test_the_unbiased_ones_meet_the_truth_whatever_is_logged_rarely(smallest: float, model: Ridge | Tabular) -> None:
    bandit = random_bandit(seed=17, smallest=smallest)
    runs = [
        values_of(bandit.log(EVENTS, seed), UNBIASED, reward_model=model, block=50)
        for seed in range(1_000, 1_000 + LOGS)
    ]
    for estimator in UNBIASED:
        estimates = np.array([run[estimator.label] for run in runs], dtype=float)
        error = estimates.std(ddof=1) / math.sqrt(LOGS)
        assert abs(estimates.mean() - bandit.value) < 3 * error, estimator.label


@pytest.mark.slow
def test_a_model_lessens_the_noise_and_a_cap_lessens_it_further() -> None:
    bandit = random_bandit(seed=17, smallest=0.001)
    estimators: list[AnyEstimator] = [IPS(), DR(), CABDR(cap=10), CAB(cap=10)]
    runs = [values_of(bandit.log(2_000, seed), estimators) for seed in range(60)]
    spread = {label: np.std([run[label] for run in runs]) for label in runs[0]}
    assert spread["cab_dr"] < spread["dr"] < spread["ips"]
    assert spread["cab"] < spread["ips"] / 2


def third_supported(seed: int) -> Bandit:
    """Make a world of nine actions: the logging policy takes three, and the target prefers others too."""
    rng = np.random.default_rng(seed)
    contexts, actions = 3, 9
    logging = np.zeros((contexts, actions))
    logging[:, ::3] = logging_with(0.2, 3, contexts)
    target = rng.dirichlet(np.ones(actions), contexts)
    return Bandit(logging, target, rng.uniform(0.4, 0.6, (contexts, actions)))


@pytest.mark.slow
def test_where_a_third_of_the_actions_is_supported_only_those_that_ask_the_model_come_near() -> None:
    bandit = third_supported(seed=5)
    unsupported = (bandit.target * (bandit.logging == 0)).sum(axis=1).mean()
    estimators: list[AnyEstimator] = [IPS(), ClippedIPS(cap=5), DR(), Switch(cap=5), CAB(cap=5), CABDR(cap=5), DM()]
    evaluator = Evaluator([CANDIDATE], estimators=estimators, averages=[Cumulative()])
    evaluator.update(bandit.log(20_000, seed=1))
    report = evaluator.report()
    error = {e.estimator: abs((e.value or 0) - bandit.value) for e in report.estimates if e.policy == CANDIDATE}
    assert error["ips"] > 0.9 * unsupported * 0.4
    assert error["clipped_ips"] > 0.9 * unsupported * 0.4
    for label in ("switch", "cab", "dr", "cab_dr", "dm"):
        assert error[label] < error["ips"] / 3, label
    share = report.get(CANDIDATE, "cab", "cumulative").details["unsupported_probability"]
    assert share == pytest.approx(unsupported, abs=0.02)
