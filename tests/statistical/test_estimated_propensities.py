"""Test that estimates with estimated propensities are near the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streameval import EventBatch
from streameval.common.arrays import Array
from streameval.ope.report import Estimate
from support.logged_choices import (
    BY_COUNTRY,
    BY_RIVER,
    Log,
    challenger_estimate,
    decoded,
    evaluated,
    world,
)


def error(estimate: Estimate) -> float:
    """Return the standard error of an estimate, from its interval."""
    assert estimate.upper is not None
    assert estimate.lower is not None
    return (estimate.upper - estimate.lower) / 2 / 1.96


def deviations(
    batch_of: Callable[[Log], EventBatch], propensity: Any, estimator: str = "snips", **options: Any
) -> Array:
    """Return by how many standard errors the estimate misses the truth, and the squared error, of ten logs."""
    missed = []
    for seed in range(10):
        log = world(seed)
        estimate = challenger_estimate(evaluated(batch_of(log), propensity, **options).report(), estimator)
        assert estimate.value is not None
        missed.append([(estimate.value - log.truth) / error(estimate), (estimate.value - log.truth) ** 2])
    return np.array(missed).T


def test_estimates_are_within_three_standard_errors_and_no_less_precise_than_with_true_propensities() -> None:
    deviation, squares = deviations(Log.batch, BY_COUNTRY)
    _, true_squares = deviations(Log.batch_with_propensities, None)
    assert (np.abs(deviation) <= 3).all()
    assert np.sqrt(squares.mean()) <= 1.25 * np.sqrt(true_squares.mean())


def test_dr_with_a_table_is_within_three_standard_errors() -> None:
    options = {"estimators": ["dr"], "reward_model": "tabular"}
    deviation, _ = deviations(Log.listed, BY_COUNTRY, "dr", **options)
    assert (np.abs(deviation) <= 3).all()


def test_a_model_that_lacks_the_context_is_biased_and_the_mean_weight_shows_it() -> None:
    deviation, _ = deviations(Log.batch, {"kind": "estimated"})
    right, _ = deviations(Log.batch, BY_COUNTRY)
    assert deviation.mean() > 1.5 > 1.0 > abs(right.mean())
    report = evaluated(world(0).batch(), {"kind": "estimated"}).report()
    assert {check.check for check in report.trust if not check.ok and check.policy == "challenger"} >= {"mean_weight"}
    passing = evaluated(world(0).batch()).report().trust
    assert all(check.ok for check in passing if check.check == "mean_weight")


def test_sampling_probabilities_weigh_the_choices() -> None:
    """Keep half of the events of one action. The propensities are those from before downsampling."""
    log = world(10, 20_000)
    rng = np.random.default_rng(3)
    sampling = np.where(log.action == 0, 0.5, 1.0)
    kept = rng.random(20_000) < sampling
    sample = log._replace(context=log.context[kept], action=log.action[kept], reward=log.reward[kept])
    estimate = challenger_estimate(evaluated(sample.batch(sampling_probability=sampling[kept])).report())
    assert estimate.value is not None
    assert abs(estimate.value - log.truth) < 3 * error(estimate)


def test_a_classifier_of_river_predicts_the_action_from_the_context() -> None:
    missed = []
    for seed in range(3):
        log = world(seed, 3_000)
        report = evaluated(decoded(log, BY_RIVER), BY_RIVER).report()
        estimate, model = challenger_estimate(report), report.propensity_model
        assert estimate.value is not None
        missed.append(abs(estimate.value - log.truth) / error(estimate))
        assert model is not None
        assert (model.model, model.failures) == ("river", 0)
        assert model.log_loss is not None
        assert model.baseline_log_loss is not None
        assert model.log_loss < model.baseline_log_loss - 0.05
    assert max(missed) < 3
