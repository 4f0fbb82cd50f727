"""Test terms of strata against a plain reimplementation, unbiasedness by enumeration, and edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Cumulative, Mixture, Window
from streameval.ope.estimators import IPS, StratifiedDR, StratifiedIPS, Terms
from streameval.ope.evidence import Evidence
from streameval.ope.reward_models import Ridge
from support.reference.slow_mixture import Part, SlowMixture, decayed_mean, slope_before
from support.reference.slow_ridge import slow_ridge
from support.strategies import examples
from support.streams import evaluated

Array = NDArray[np.float64]
THRESHOLD = 3.0
HORIZON = 10_000.0
ACTIONS, FEATURES = 4, 2


class Offers:
    """Draw events with full distributions and features. The logging policy explores a little."""

    def __init__(self, seed: int, n: int) -> None:
        random = np.random.default_rng(seed)
        favourite = np.eye(ACTIONS)[random.integers(ACTIONS, size=n)]
        self.propensities = 0.1 / ACTIONS + 0.9 * favourite
        self.action = (random.random((n, 1)) > self.propensities.cumsum(axis=1)[:, :-1]).sum(axis=1)
        self.target = random.dirichlet(np.full(ACTIONS, 0.7), n)
        self.features = random.normal(size=(n, ACTIONS, FEATURES))
        chance = np.clip(0.3 + 0.2 * self.features[..., 0], 0, 1)
        self.chance = chance
        self.reward = (random.random(n) < chance[np.arange(n), self.action]).astype(float)

    def batch(self, rows: slice = slice(None), **other: Any) -> EventBatch:
        columns: dict[str, Any] = {
            "reward": self.reward[rows],
            "action": self.action[rows],
            "propensities": self.propensities[rows],
            "features": self.features[rows],
            "policies": {"a": self.target[rows]},
        }
        return EventBatch.from_arrays(**columns | other)

    @property
    def weights(self) -> Array:
        return self.target / self.propensities

    @property
    def logged(self) -> tuple[Array, Array]:
        return np.arange(len(self.action)), self.action


def slow_dr(offers: Offers, block: int) -> list[Part]:
    """Return the three components of stratified_dr."""
    w, ones, large = offers.weights[offers.logged], np.ones(len(offers.reward)), offers.weights > THRESHOLD
    q = slow_ridge(offers.features, offers.action, offers.reward, ones, block, HORIZON).clip(0.0, 1.0)
    small = w <= THRESHOLD
    low = w * offers.reward * small
    modelled = (offers.target * q * large).sum(axis=1)
    correction = ~small * w * (offers.reward - q[offers.logged])
    reward = decayed_mean(offers.reward, ones, block)
    square = decayed_mean(w**2, ones, block) * decayed_mean(offers.reward**2, ones, block)
    share = np.clip(decayed_mean(w * small, ones, block), 0, 1)
    rest = (1 - share) * reward - decayed_mean(modelled, ones, block)
    nothing = np.full_like(reward, np.nan)
    return [
        Part(low, ones, share * reward, square),
        Part(modelled, ones, nothing, square),
        Part(correction, ones, rest, square),
    ]


def estimate_of(offers: Offers, estimator: Any, average: Any, block: int = 100) -> Any:
    settings: dict[str, Any] = {"candidates": ["a"], "estimators": [estimator], "averages": [average]}
    settings |= {"block": block, "drift": None, "reward_model": Ridge(horizon=HORIZON)}
    return evaluated(offers.batch(), **settings).report().get("a", estimator.label, average.label)


@pytest.mark.parametrize(("block", "blocks"), [(100, 1), (100, 5), (40, 30)])
def test_stratified_dr_equals_a_plain_reimplementation(block: int, blocks: int) -> None:
    offers = Offers(blocks, block * blocks)
    parts = slow_dr(offers, block)
    term = sum(block_terms.u for block_terms in parts)
    cumulative = estimate_of(offers, StratifiedDR(threshold=THRESHOLD), Cumulative(), block)
    assert cumulative.value == pytest.approx(np.mean(term), rel=1e-9)
    window = estimate_of(offers, StratifiedDR(threshold=THRESHOLD), Window(tau=20, resolution=1), block)
    assert window.value == pytest.approx(np.mean(term[-20:]), rel=1e-9)
    mixture = estimate_of(offers, StratifiedDR(threshold=THRESHOLD), Mixture(), block)
    (expected,) = SlowMixture([parts], [True], block).answers()
    assert mixture.value == pytest.approx(expected.value, rel=1e-7)
    assert mixture.details["se"] == pytest.approx(expected.se, rel=1e-6)
    assert mixture.details["spread"] == pytest.approx(expected.spread, rel=1e-5, abs=1e-9)
    assert mixture.details["horizon_events"] == pytest.approx(expected.horizon, rel=1e-6)


def test_stratified_ips_equals_a_plain_reimplementation() -> None:
    offers = Offers(9, 1_000)
    w = offers.weights[offers.logged]
    small = w <= THRESHOLD
    rare = w * offers.reward * ~small
    beta = slope_before(rare, w, np.ones(1_000), 100)
    assert (beta != 0).any()
    expected = np.mean(w * offers.reward * small + rare - beta * (w - 1))
    assert estimate_of(offers, StratifiedIPS(threshold=THRESHOLD), Cumulative()).value == pytest.approx(
        expected, rel=1e-9
    )


def every_choice(offers: Offers, estimator: Any, prediction: Array | None = None) -> Array:
    """Return the expected term of each event over all actions that the logging policy may choose, [n]."""
    n, expected, value = len(offers.reward), np.zeros(len(offers.reward)), estimator.start(1)
    warm = evidence(offers, offers.action, offers.reward, prediction)
    _, value = estimator.terms(warm, value)
    for action in range(ACTIONS):
        taken = np.full(n, action)
        terms: Terms = estimator.terms(evidence(offers, taken, offers.chance[:, action], prediction), value)[0]
        expected += offers.propensities[:, action] * terms.numerator[:, 0]
    return expected


def evidence(offers: Offers, action: Array, reward: Array, prediction: Array | None) -> Evidence:
    n = len(reward)
    made = Evidence.from_batch(offers.batch(action=action.astype(int), reward=reward), ["a"], block=n)
    return made if prediction is None else made.with_predictions(np.ravel(prediction))


@given(seed=st.integers(0, 10_000), threshold=st.floats(0.1, 50.0), wild=st.floats(-1e3, 1e3))
@examples(40)
def test_stratified_ips_and_dr_are_unbiased_for_any_model_and_threshold(
    seed: int, threshold: float, wild: float
) -> None:
    offers = Offers(seed, 50)
    truth = (offers.target * offers.chance).sum(axis=1)
    random = np.random.default_rng(seed)
    prediction = wild * random.normal(size=(50, ACTIONS))
    scale = 1e-9 * max(1.0, abs(wild))
    doubly = every_choice(offers, StratifiedDR(threshold=threshold), prediction)
    np.testing.assert_allclose(doubly, truth, atol=scale)
    plain = every_choice(offers, StratifiedIPS(threshold=threshold))
    np.testing.assert_allclose(plain, truth, atol=1e-9)


def test_components_add_up_to_the_term() -> None:
    offers = Offers(3, 200)
    made = evidence(offers, offers.action, offers.reward, np.full((200, ACTIONS), 0.3))
    for estimator in (StratifiedIPS(), StratifiedDR()):
        terms, _ = estimator.terms(made, estimator.start(1))
        assert len(terms.components) == estimator.parts
        np.testing.assert_allclose(
            sum(component.numerator for component in terms.components), terms.numerator, atol=1e-12
        )


def test_without_predictions_stratified_dr_is_ips() -> None:
    offers = Offers(3, 200)
    made = evidence(offers, offers.action, offers.reward, np.zeros((200, ACTIONS)))
    terms, _ = StratifiedDR().terms(made, StratifiedDR().start(1))
    np.testing.assert_allclose(terms.numerator, made.weighted_reward, rtol=1e-12)


def test_a_threshold_above_the_largest_weight_uses_no_model() -> None:
    offers = Offers(4, 500)
    plain = estimate_of(offers, IPS(), Cumulative()).value
    assert estimate_of(offers, StratifiedDR(threshold=1e6), Cumulative()).value == pytest.approx(plain, rel=1e-12)


def test_a_perfect_model_leaves_no_noise_if_weights_are_large() -> None:
    offers = Offers(5, 400)
    perfect = evidence(offers, offers.action, offers.chance[offers.logged], offers.chance)
    (_, modelled, correction), _ = _components(StratifiedDR(threshold=1e-9), perfect)
    np.testing.assert_allclose(correction, 0.0, atol=1e-12)
    np.testing.assert_allclose(modelled[:, 0], (offers.target * offers.chance).sum(axis=1), rtol=1e-12)


def _components(estimator: Any, made: Evidence) -> tuple[list[Array], Any]:
    terms, state = estimator.terms(made, estimator.start(1))
    return [component.numerator for component in terms.components], state


def test_an_action_that_is_never_logged_is_left_to_the_model() -> None:
    made = Evidence.from_actions(
        reward=[1.0], action=[0], propensities=[[1.0, 0.0]], target=[[0.5, 0.5]], prediction=[[0.9, 0.7]]
    )
    (low, modelled, correction), _ = _components(StratifiedDR(), made)
    assert (low.item(), modelled.item(), correction.item()) == (0.5, pytest.approx(0.35), 0.0)


def test_events_without_full_distributions_are_missing_for_stratified_dr_alone() -> None:
    offers = Offers(6, 300)
    compact = EventBatch.from_arrays(reward=np.ones(300), propensity=np.full(300, 0.5), policies={"a": np.ones(300)})
    alone = Evaluator(["a"], estimators=[StratifiedDR(), IPS()], averages=[Cumulative()])
    mixed = Evaluator(["a"], estimators=[StratifiedDR(), IPS()], averages=[Cumulative()])
    alone.update(offers.batch())
    for start in range(0, 300, 50):  # blocks of 50 and 50
        rows = slice(start, start + 50)
        mixed.update(offers.batch(rows))
        mixed.update(compact[rows])
    values = [evaluator.report().get("a", "ips", "cumulative").value for evaluator in (alone, mixed)]
    assert values[0] != values[1]
    doubly = mixed.report().get("a", "stratified_dr", "cumulative")
    assert doubly.value is not None
    assert doubly.effective_sample_size == pytest.approx(
        alone.report().get("a", "stratified_dr", "cumulative").effective_sample_size
    )


@pytest.mark.parametrize(
    ("features", "rows"), [(True, {"stratified_ips", "stratified_dr"}), (False, {"stratified_ips"})]
)
def test_by_default_an_estimator_without_evidence_has_no_rows(features: bool, rows: set[str]) -> None:
    offers = Offers(7, 300)
    evaluator = Evaluator(["a"])
    evaluator.update(offers.batch() if features else offers.batch(features=None))
    report = evaluator.report()
    assert {estimate.estimator for estimate in report.estimates if estimate.average == "mixture"} == rows
    assert (report.reward_model is not None) == features
    resumed = Evaluator.from_state(evaluator.state())
    assert resumed.report().to_json() == report.to_json()


def test_arrays_with_features_that_are_not_numbers_are_refused() -> None:
    offers = Offers(1, 5)
    for wrong in (np.nan, np.inf):
        offers.features[3, 2, 1] = wrong
        with pytest.raises(ValueError, match=r"row 3: not_finite: features\[2\]: (nan|inf) is not a finite number"):
            offers.batch()


def test_an_event_without_any_feature_is_missing_for_a_model_that_needs_them() -> None:
    offers = Offers(1, 200)
    offers.features[50:100] = np.nan
    estimate = estimate_of(offers, StratifiedDR(), Cumulative())
    offers.features[50:100] = 0.0
    assert estimate_of(offers, StratifiedDR(), Cumulative()).effective_sample_size > estimate.effective_sample_size
    assert estimate.value is not None
