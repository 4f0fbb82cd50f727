"""Test how accurate estimates with a ridge regression are."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.core import Cumulative
from streameval.ope.estimators import StratifiedDR, StratifiedIPS
from streameval.ope.reward_models import Ridge
from support.offers import NONSENSE, Array, Offers, error_of, folded


def test_without_a_horizon_a_ridge_forgets_as_fast_as_the_world_turns() -> None:
    """Let features predict the opposite after 6,000 events."""
    still = Offers(11, 12_000)
    turned = replace_features(still, np.where(np.arange(12_000) < 6_000, 1.0, -1.0))
    for offers, rival in ((still, 1_250.0), (turned, 80_000.0)):
        learned, fixed = late_error(offers, Ridge()), late_error(offers, Ridge(horizon=rival))
        best = min(late_error(offers, Ridge(horizon=horizon)) for horizon in (1_250.0, 10_000.0, 80_000.0))
        assert learned < 0.97 * fixed
        assert learned < 1.03 * best


def replace_features(offers: Offers, sign: Array) -> Offers:
    """Return the events with the features of each times its sign."""
    turned = copy(offers)
    turned.features = offers.features * sign[:, None, None]
    return turned


def late_error(offers: Offers, model: Ridge) -> float:
    """Return the mean squared error of predictions over the last quarter of the events."""
    late = len(offers.reward) * 3 // 4
    return float(np.square(folded(offers, model) - offers.chance)[late:].mean())


def root_mean_square(errors: Iterable[float]) -> float:
    return float(np.sqrt(np.mean(np.square(list(errors)))))


@pytest.fixture(scope="module")
def offers() -> list[Offers]:
    return [Offers(seed, 2_500, exploration=0.1) for seed in range(10)]


@pytest.fixture(scope="module")
def error_of_ips(offers: list[Offers]) -> float:
    return root_mean_square(error_of(StratifiedIPS(), log) for log in offers)


def test_with_features_stratified_dr_is_more_accurate_than_stratified_ips(
    offers: list[Offers], error_of_ips: float
) -> None:
    assert root_mean_square(error_of(StratifiedDR(), log) for log in offers) < error_of_ips


@pytest.mark.parametrize("nonsense", ["noise", "huge", "one outlier"])
def test_with_nonsense_stratified_dr_falls_back_to_the_accuracy_of_stratified_ips(
    offers: list[Offers], error_of_ips: float, nonsense: str
) -> None:
    features = NONSENSE[nonsense]
    error = root_mean_square(error_of(StratifiedDR(), log, features=features(log.features)) for log in offers)
    assert error < 1.5 * error_of_ips


def test_a_wildly_wrong_model_is_corrected() -> None:
    """Learn that features predict rewards, then turn the world around."""
    errors = []
    for seed in range(8):
        offers = Offers(seed, 6_000)
        turned = Offers(100 + seed, 6_000)
        evaluator = Evaluator(["a"], estimators=[StratifiedDR()], averages=[Cumulative()])
        evaluator.update(offers.batch())
        evaluator.update(turned.batch(features=-turned.features))
        value = evaluator.report().get("a", "stratified_dr", "cumulative").value
        weights = [(1 / log.sampling).sum() for log in (offers, turned)]
        truth = np.average([offers.truth, turned.truth], weights=weights)
        assert value is not None
        errors.append(value - truth)
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(len(errors)) + 0.01


def test_a_model_with_features_is_nearer_to_the_truth_than_one_without() -> None:
    offers = Offers(4, 4_000)
    actual = error_of(StratifiedDR(), offers)
    assert actual < 0.02
