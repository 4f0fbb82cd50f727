"""Test ridge models: closed form, predictions before learning, and estimates that survive nonsense."""

from __future__ import annotations

import tracemalloc
from copy import copy
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval import Evaluator
from streameval.events import EventBatch, JsonDecoder
from streameval.ope.core import Cumulative, Mixture
from streameval.ope.estimators import DM, StratifiedDR, StratifiedIPS
from streameval.ope.reward_models import Ridge
from streameval.ope.reward_models.base import LoggedActions
from support.offers import ACTIONS, BLOCK, NONSENSE, Array, Offers, folded
from support.reference.slow_ridge import slow_ridge
from support.strategies import examples


def predictions(batch: EventBatch, model: Ridge, **options: Any) -> Array:
    """Return predictions for every action, [n, actions], from differences of `dm` of policies that always choose it."""
    policies = [str(action) for action in range(ACTIONS)]
    options = {"promotion": None, "drift": None, **options}
    evaluator = Evaluator(
        policies, estimators=[DM()], averages=[Cumulative()], block=BLOCK, reward_model=model, **options
    )
    sets = batch.action_sets
    assert sets is not None
    assert sets.features is not None
    n = len(batch)
    totals = [np.zeros(ACTIONS)]
    for event in range(n):
        row = slice(event, event + 1)
        one = EventBatch.from_arrays(
            reward=batch.reward[row],
            action=sets.index[row],
            propensities=sets.propensities.reshape(n, -1)[row],
            features=sets.features.values.reshape(n, ACTIONS, -1)[row],
            policies={policy: np.eye(ACTIONS)[int(policy)][None] for policy in policies},
            sampling_probability=batch.sampling_probability[row],
        )
        evaluator.update(one)
        evaluator.fold_pending()
        weight = (1 / batch.sampling_probability[: event + 1]).sum()
        report = evaluator.report()
        values = [report.get(policy, "dm", "cumulative").value for policy in policies]
        totals.append(np.array(values, dtype=float) * weight)
    return np.diff(totals, axis=0) * batch.sampling_probability[:, None]


def closed_form(offers: Offers, horizon: float, penalty: float) -> Array:
    return slow_ridge(offers.features, offers.action, offers.reward, 1 / offers.sampling, BLOCK, horizon, penalty)


@pytest.mark.parametrize(("horizon", "penalty"), [(10_000.0, 1.0), (100.0, 0.1), (500.0, 30.0)])
def test_ridge_equals_weighted_ridge_regression_in_closed_form(horizon: float, penalty: float) -> None:
    offers = Offers(1, 5 * BLOCK)
    regression = folded(offers, Ridge(horizon=horizon, penalty=penalty))
    np.testing.assert_allclose(regression, closed_form(offers, horizon, penalty).clip(0, 1), atol=1e-9)


def test_an_evaluator_predicts_with_the_regression_of_the_blocks_before() -> None:
    offers = Offers(1, 3 * BLOCK + 7)
    regression = predictions(offers.batch(), Ridge(horizon=100.0, penalty=0.1))
    np.testing.assert_allclose(regression, closed_form(offers, 100.0, 0.1).clip(0, 1), atol=1e-9)


def test_without_a_horizon_six_regressions_count_by_their_recent_errors() -> None:
    offers = Offers(1, 10 * BLOCK)
    n, logged = len(offers.reward), (np.arange(len(offers.reward)), offers.action)
    horizons = (1_250.0, 2_500.0, 5_000.0, 10_000.0, 40_000.0, np.inf)
    regressions = np.array([closed_form(offers, horizon, 1.0) for horizon in horizons])
    errors = np.array([(offers.reward - regression.clip(0, 1)[logged]) ** 2 for regression in regressions])
    expected = np.empty((n, ACTIONS))
    for start in range(0, n, BLOCK):
        ages = BLOCK * (start // BLOCK - 1 - np.arange(start) // BLOCK)
        weight = np.exp(-ages / 10_000) / offers.sampling[:start]
        losses = errors[:, :start] @ weight
        noise = losses.min() / weight.sum() if start else 1.0
        share = np.exp(-(losses - losses.min()) / (2 * noise))
        rows = slice(start, start + BLOCK)
        expected[rows] = np.tensordot(share / share.sum(), regressions[:, rows], axes=1).clip(0, 1)
    np.testing.assert_allclose(folded(offers, Ridge()), expected, atol=1e-9)


def test_ridge_predicts_before_it_learns() -> None:
    offers = Offers(2, 4 * BLOCK)
    before = folded(offers, Ridge())
    for event in (BLOCK - 1, BLOCK, 4 * BLOCK - 1):
        changed = copy(offers)
        changed.reward = np.where(np.arange(4 * BLOCK) == event, 1 - offers.reward, offers.reward)
        after = folded(changed, Ridge())
        own_block_ends = (event // BLOCK + 1) * BLOCK
        np.testing.assert_array_equal(after[:own_block_ends], before[:own_block_ends])
        assert own_block_ends >= len(before) or (after[own_block_ends:] != before[own_block_ends:]).any()


def test_predictions_stay_inside_the_reward_range() -> None:
    offers = Offers(3, 2 * BLOCK + 1)
    offers.features *= 50
    actual = predictions(offers.batch(reward=3 * offers.reward - 1), Ridge(), reward_range=(-1.0, 2.0))
    assert actual.min() >= -1.0 - 1e-9
    assert actual.max() <= 2.0 + 1e-9
    assert (actual > 1.0).any()


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_features_leave_every_number_finite(nonsense: str) -> None:
    offers = Offers(5, 1_000)
    evaluator = Evaluator(["a"], estimators=[StratifiedDR(threshold=2.0), DM()], averages=[Cumulative(), Mixture()])
    evaluator.update(offers.batch(features=NONSENSE[nonsense](offers.features)))
    for estimate in evaluator.report().estimates:
        numbers = [estimate.value, estimate.lower, estimate.upper, *estimate.details.values()]
        assert all(number is None or np.isfinite(number) for number in numbers)
        assert estimate.value is None or abs(estimate.value) < 2
    resumed = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(evaluator.state())))
    assert resumed.report().to_json() == evaluator.report().to_json()


@given(
    scale=st.floats(-1e300, 1e300, allow_nan=False),
    other=st.floats(-1e300, 1e300, allow_nan=False),
    seed=st.integers(0, 100),
)
@examples(30)
def test_no_feature_can_bring_anything_that_is_not_finite(scale: float, other: float, seed: int) -> None:
    offers = Offers(seed, 100)
    with np.errstate(over="ignore"):
        features = np.clip(offers.features * scale, -1e300, 1e300)
    features[::7] = other
    evaluator = Evaluator(["a"], estimators=[StratifiedDR(), DM()], averages=[Mixture(), Cumulative()], block=BLOCK)
    evaluator.update(offers.batch(features=features))
    for estimate in evaluator.report().estimates:
        assert estimate.value is None or np.isfinite(estimate.value)


def test_events_with_another_number_of_features_are_missing_not_fatal() -> None:
    offers = Offers(7, 400)
    evaluator = Evaluator(["a"], estimators=[StratifiedDR(), StratifiedIPS()], averages=[Cumulative()])
    evaluator.update(offers.batch(slice(0, 200)))
    evaluator.update(offers.batch(slice(200, 300), features=offers.features[200:300, :, :1]))
    wider = np.concatenate([offers.features[300:], offers.features[300:]], axis=2)
    evaluator.update(offers.batch(slice(300, 400), features=wider))
    for estimator in ("stratified_dr", "stratified_ips"):
        value = evaluator.report().get("a", estimator, "cumulative").value
        assert value is not None
        assert 0 < value < 1.5


def test_an_event_with_another_number_of_features_changes_no_prediction_of_others() -> None:
    offers, results = Offers(8, 300), []
    wider = np.concatenate([offers.features[150:151]] * 2, axis=2)
    parts = [offers.batch(slice(150)), offers.batch(slice(150, 151), features=wider), offers.batch(slice(151, 300))]
    for batches in ([EventBatch.concat(parts)], parts):
        evaluator = Evaluator(["a"], estimators=[DM(), StratifiedDR()], averages=[Cumulative()], block=BLOCK)
        for batch in batches:
            evaluator.update(batch)
            evaluator.fold_pending()
        results.append([evaluator.report().get("a", name, "cumulative").value for name in ("dm", "stratified_dr")])
    assert results[0] == pytest.approx(results[1], rel=1e-9)


@pytest.mark.slow
def test_many_features_take_the_memory_of_few_blocks() -> None:
    blocks, width, random = 30, 512, np.random.default_rng(9)
    batch = EventBatch.from_arrays(
        reward=random.integers(0, 2, 2 * blocks),
        action=np.zeros(2 * blocks, dtype=int),
        propensities=np.ones((2 * blocks, 1)),
        features=random.normal(size=(2 * blocks, 1, width)),
    )
    assert batch.action_sets is not None
    log = LoggedActions(batch.action_sets, batch.reward, np.ones(2 * blocks), 2, (0.0, 1.0))
    tracemalloc.start()
    try:
        Ridge().fold(Ridge().start(), log)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * blocks * width**2 * 8


@pytest.mark.parametrize("wrong", [{"horizon": 10.0}, {"penalty": 0.0}, {"horizn": 1e4}])
def test_parameters_out_of_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"horiz|penalty"):
        Ridge(**wrong)


def lists(*shapes: tuple[int, int]) -> LoggedActions:
    """Return events with these numbers of actions and features, and rewards of 1."""
    rows = [ragged_event(actions, features) for actions, features in shapes]
    sets = JsonDecoder([]).decode_rows(rows).action_sets
    assert sets is not None
    return LoggedActions(sets, np.ones(len(rows)), np.ones(len(rows)), len(rows), (0.0, 1.0))


def ragged_event(actions: int, features: int) -> dict[str, Any]:
    names = list(range(actions))
    event = {"event_id": "", "timestamp": 0.0, "action": 0, "reward": 1}
    lists = {"actions": names, "features": [[0.5] * features] * actions, "propensities": [1 / actions] * actions}
    return event | lists


@pytest.mark.parametrize(
    ("model", "odd", "usual"),
    [
        (Ridge(), (1, 4096), (2, 3)),
        (Ridge(per_action=True), (60, 300), (2, 3)),
        (Ridge(per_action=True), (1001, 1), (2, 3)),
    ],
)
def test_a_first_event_does_not_fill_the_memory_with_regressions(
    model: Ridge, odd: tuple[int, int], usual: tuple[int, int]
) -> None:
    """A few kilobytes of features would become matrices of a gigabyte, for good."""
    _, state = model.fold(model.start(), lists(odd))
    assert model.coefficients(state) is None
    for log in (lists(odd, usual), lists(usual, odd)):  # however the events were cut
        coefficients = model.coefficients(model.fold(state, log)[1])
        assert coefficients is not None
        assert coefficients.shape == (2 if model.per_action else 1, 4)
