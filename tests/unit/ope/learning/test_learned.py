"""Test policies that learn: gradients of objectives, predictions before learning, cuts of the stream, resumption."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from streameval import CAB, CABDR, DR, IPS, ClippedIPS, Evaluator
from streameval.common.problems import ProblemsError
from streameval.errors import ConfigError
from streameval.ope.estimators import Estimator
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.learning.adam import drawn
from streameval.ope.learning.learned import Learned, ScoredEvents
from streameval.ope.power import LogSummary
from support.learned_policies import EVERY, evaluated, value
from support.learning import ACTIONS, WIDTH, log


def scored(events: int, actions: int = ACTIONS, seed: int = 3) -> ScoredEvents:
    rng = np.random.default_rng(seed)
    starts = np.arange(events) * actions
    start = np.log(rng.uniform(0.1, 1, events * actions))
    features, logged = rng.normal(size=(events * actions, WIDTH)), starts + rng.integers(actions, size=events)
    propensity, reward = rng.uniform(0.1, 0.9, events), (rng.random(events) < 0.6).astype(float)
    prediction, propensities = rng.uniform(0, 1, (2, events * actions))
    propensities /= np.repeat(propensities.reshape(events, actions).sum(axis=1), actions)
    propensities[logged] = propensity
    sizes = np.full(events, actions)
    columns = (propensity, reward, np.ones(events), prediction, propensities)
    return ScoredEvents(features, start, starts, sizes, logged, *columns)


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_equals_finite_differences(name: str) -> None:
    policy, events = EVERY[name], scored(12)
    events.reward[2] = np.nan
    events.weight[:] = np.random.default_rng(4).uniform(0.5, 1.5, 12)
    weights = np.random.default_rng(5).normal(size=(ACTIONS if policy.per_action else 1, WIDTH))
    baseline = 0.4 if policy.objective == "snips" else 0.0

    def objective(at: np.ndarray) -> float:
        return policy.objective_of(events, events.probabilities(at), baseline)[0]

    _, score_gradient = policy.objective_of(events, events.probabilities(weights), baseline)
    actual = events.gradient(weights, score_gradient)
    for index in np.ndindex(*weights.shape):
        step = np.zeros_like(weights)
        step[index] = 1e-5
        assert actual[index] == pytest.approx((objective(weights + step) - objective(weights - step)) / 2e-5, abs=1e-8)


ESTIMATORS = {
    IPS(): Learned(),
    ClippedIPS(cap=1.5): Learned(clip=1.5),
    DR(): Learned(objective="dr"),
    CABDR(cap=1.5): Learned(objective="dr", clip=1.5),
    CAB(cap=1.5): Learned(objective="cab", clip=1.5),
}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.kind)
def test_an_objective_equals_the_estimate_of_its_name(estimator: Estimator) -> None:
    rng, shape = np.random.default_rng(2), (30, ACTIONS)
    target, propensities, prediction = (
        weights / weights.sum(axis=1, keepdims=True) for weights in rng.random((3, *shape))
    )
    action, reward, starts = rng.integers(ACTIONS, size=30), rng.random(30), np.arange(30) * ACTIONS
    evidence = Evidence.from_actions(reward, action, propensities, target, prediction, block=30)
    logged, nothing = starts + action, np.zeros((30 * ACTIONS, WIDTH))
    rows = propensities.ravel()
    columns = (rows[logged], reward, np.ones(30), prediction.ravel(), rows)
    events = ScoredEvents(nothing, rows, starts, np.full(30, ACTIONS), logged, *columns)
    value, _ = ESTIMATORS[estimator].objective_of(events, target.ravel(), 0.0)
    assert value == pytest.approx(estimator.terms(evidence, estimator.start(1))[0].numerator.mean(), rel=1e-12)


def test_the_penalty_follows_the_variance_of_the_terms_and_is_zero_without_lambda() -> None:
    events, weights = scored(25), np.full((1, WIDTH), 0.3)
    importance = events.probabilities(weights)[events.logged] / events.propensity
    terms = importance * events.reward
    for strength in (0.0, 0.4):
        value, _ = Learned(variance=strength).objective_of(events, events.probabilities(weights), 0.0)
        assert value == pytest.approx(terms.mean() - strength * np.sqrt(terms.var() / 25), rel=1e-12)
        value, _ = Learned(variance=strength, variance_events=20_000).objective_of(
            events, events.probabilities(weights), 0.0
        )
        assert value == pytest.approx(terms.mean() - strength * np.sqrt(terms.var() / 20_000), rel=1e-12)
    batch = log(1_000)
    assert evaluated(Learned(variance=0), batch).report() == evaluated(Learned(), batch).report()


def test_counter_samples_draw_events_as_often_as_their_weights_say() -> None:
    size = np.array([1.0, 4.0, 10.0, 85.0])
    draws = np.array([drawn(step, size) for step in range(4_000)])
    counts = draws * len(size) * size / size.sum()
    assert counts == pytest.approx(counts.round(), abs=1e-9)
    assert counts.sum(axis=1) == pytest.approx(np.full(4_000, 4.0))
    assert draws.mean(axis=0) == pytest.approx(np.ones(4), abs=0.25)
    assert drawn(7, size).tolist() == draws[7].tolist()


def test_the_penalty_on_squares_moves_each_weight_towards_0() -> None:
    """Use a penalty that outweighs all rewards: the first step of Adam is then `step` times the sign."""
    start = np.array([[0.4, -0.2, 0.3]])[:, :WIDTH]
    policy = Learned(l2=1e6, step=0.1, weights=tuple(map(tuple, start.tolist())))
    moved = evaluated(policy, log(100)).learned("apprentice")["weights"]
    assert moved == pytest.approx(start - 0.1 * np.sign(start), abs=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_best_baseline_gives_the_policy_of_the_best_self_normalised_value(penalty: float) -> None:
    events, policy = scored(40, seed=8), Learned(objective="snips", variance=penalty)

    def self_normalised(at: np.ndarray) -> float:
        """Return the objective of Norm-POEM: SNIPS less its standard error times the penalty."""
        importance = events.probabilities(at.reshape(1, -1))[events.logged] / events.propensity
        value = importance @ events.reward / importance.sum()
        error = np.sqrt(importance**2 @ (events.reward - value) ** 2) / importance.sum()
        return float(value - penalty * error)

    def best_at(baseline: float) -> np.ndarray:
        def loss(at: np.ndarray) -> float:
            return -policy.objective_of(events, events.probabilities(at.reshape(1, -1)), baseline)[0]

        return np.asarray(minimize(loss, np.zeros(WIDTH), method="BFGS").x)

    directly = -minimize(lambda at: -self_normalised(at), np.zeros(WIDTH), method="BFGS").fun
    swept = max(self_normalised(best_at(baseline)) for baseline in np.linspace(0.5, 1, 26))
    assert swept == pytest.approx(directly, abs=1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_a_reward_does_not_touch_predictions_of_its_own_block(name: str) -> None:
    batch = log(300)
    other = log(300, reward=np.where(np.arange(300) < 200, batch.reward, 1 - batch.reward))
    policy = EVERY[name]
    weights = [evaluated(policy, events[:200], events[200:]).report().policies[1] for events in (batch, other)]
    assert weights[0] == weights[1]
    reports = [evaluated(policy, events).report() for events in (batch, other)]
    means = [report.get("apprentice", "ips", "cumulative").importance_weight_mean for report in reports]
    assert means[0] == means[1]
    assert value(reports[0]) != value(reports[1])


def test_weights_fade_with_the_horizon_and_stay_bounded() -> None:
    batch, step, horizon = log(5_000), 0.05, 1_000.0
    norms = []
    for policy in (Learned(step=step), Learned(step=step, horizon=horizon)):
        evaluator = evaluated(policy, batch)
        norms.append(np.abs(evaluator.learned("apprentice")["weights"]).max())
    assert norms[1] < norms[0]
    assert norms[1] <= step / (1 - np.exp(-100 / horizon)) * 1.5  # a step of Adam is hardly ever longer than `step`


@pytest.mark.parametrize("horizon", [None, 500.0])
def test_averaged_weights_at_a_temperature_equal_a_loop_over_blocks(horizon: float | None) -> None:
    batch, terms = log(1_000), list[float]()
    sets, fading = batch.action_sets, 1.0 if horizon is None else np.exp(-100 / horizon)
    assert sets is not None
    assert sets.features is not None
    features, action = sets.features.values.reshape(10, 100, ACTIONS, WIDTH), sets.index.reshape(10, 100)
    propensity, reward = batch.propensity.reshape(10, 100), batch.reward.reshape(10, 100)
    weights, average, mean, square = np.zeros((4, WIDTH))
    for block, x in enumerate(features):
        logged = np.arange(100), action[block]
        evaluated_shares, shares = (
            (powers := np.exp(x @ vector)) / powers.sum(axis=1, keepdims=True) for vector in (average / 0.5, weights)
        )
        terms += (evaluated_shares[logged] / propensity[block] * reward[block]).tolist()
        slope = x[logged] - (shares[..., None] * x).sum(axis=1)
        gradient = (shares[logged] / propensity[block] * reward[block]) @ slope / 100
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        root = np.sqrt(square / (1 - 0.999 ** (block + 1))) + 1e-8
        weights = weights * fading + 0.1 * mean / (1 - 0.9 ** (block + 1)) / root
        average = average + (weights - average) * max(1 / (block + 1), 1 - fading)
    made = evaluated(Learned(step=0.1, horizon=horizon, average=True, temperature=0.5), batch)
    assert made.learned("apprentice")["average"][0] == pytest.approx(average, rel=1e-9)
    assert value(made.report()) == pytest.approx(np.mean(terms), rel=1e-9)


def test_the_first_block_is_uniform() -> None:
    batch = log(100)
    actual, uniform = (evaluated(policy, batch).report() for policy in (Learned(), "uniform"))
    assert value(actual) == pytest.approx(value(uniform), rel=1e-12)


def test_a_policy_that_starts_from_the_logging_policy_has_its_value_at_first() -> None:
    report = evaluated(Learned(start_from="logging"), log(100)).report()
    assert value(report) == pytest.approx(report.get("logging", "ips", "cumulative").value, rel=1e-12)


def test_events_without_usable_features_are_missing_for_this_policy_alone() -> None:
    batch = log(500)
    features = np.array(batch.action_sets.features.values).reshape(500, ACTIONS, WIDTH)  # type: ignore[union-attr]
    features[::5] = np.nan
    report = evaluated(Learned(), log(500, features=features)).report()
    logging, apprentice = report.policies
    assert (logging.missing, apprentice.missing) == (0, 100)
    assert [(failure.reason, failure.count) for failure in apprentice.failures] == [("missing_field", 100)]


def test_events_without_features_give_no_value() -> None:
    report = evaluated(Learned(), log(300, features=None)).report()
    assert report.policies[1].missing == 300
    assert report.get("apprentice", "ips", "cumulative").value is None


def test_a_downsampled_event_counts_as_the_events_that_it_stands_for() -> None:
    events = scored(6)
    events.weight[0] = 2
    twice = np.array([0, 0, 1, 2, 3, 4, 5])
    starts = np.arange(7) * ACTIONS
    doubled = ScoredEvents(
        events.features.reshape(6, -1)[twice].reshape(-1, WIDTH),
        events.start.reshape(6, -1)[twice].ravel(),
        starts,
        np.full(len(twice), ACTIONS),
        starts + (events.logged % ACTIONS)[twice],
        events.propensity[twice],
        events.reward[twice],
        np.ones(7),
        events.prediction.reshape(6, -1)[twice].ravel(),
        events.propensities.reshape(6, -1)[twice].ravel(),
    )
    for policy in EVERY.values():
        weights = np.ones((ACTIONS if policy.per_action else 1, WIDTH))
        (one, one_gradient), (other, other_gradient) = (
            policy.objective_of(log, log.probabilities(weights), 0.2) for log in (events, doubled)
        )
        assert one == pytest.approx(other, rel=1e-12)
        expected = doubled.gradient(weights, other_gradient)
        assert events.gradient(weights, one_gradient) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_events_that_lack_the_reward_are_predicted_and_not_learned_from() -> None:
    batch = log(400)
    lacking = replace(batch, reward=np.where(np.arange(400) % 2, np.nan, batch.reward))
    policy = Learned()
    several = {"click": {"max": 1}, "buy": {"max": 1}}
    evaluator = Evaluator({"apprentice": policy}, estimators=["ips"], averages=["cumulative"], rewards=several)
    evaluator.update(log(400, reward=lacking.reward, rewards={"buy": batch.reward}))
    estimates = [row for row in evaluator.report().estimates if row.policy == "apprentice"]
    assert all(row.value is not None and np.isfinite(row.value) for row in estimates)


def test_a_candidate_that_learns_survives_the_removal_of_another() -> None:
    batch = log(1_000)
    one = evaluated(Learned(), batch)
    two = Evaluator(
        {"other": Learned(step=0.1), "apprentice": Learned()},
        estimators=["ips", "snips"],
        averages=["cumulative"],
        drift=None,
    )
    two.update(batch[:600])
    assert two.apply_config(one.config) is None
    two.update(batch[600:])
    assert value(two.report()) == pytest.approx(value(one.report()), rel=1e-12)


def test_a_configuration_of_an_experiment_refuses_a_candidate_that_learns() -> None:
    with pytest.raises(ConfigError, match="apprentice learns from the stream"):
        LogSummary(("logging", "apprentice"), {"apprentice": Learned()}, (0.0, 1.0))


def test_events_in_json_are_learned_from() -> None:
    batch = log(250)
    sets, expected = batch.action_sets, evaluated(Learned(), batch).report()
    assert sets is not None
    assert sets.features is not None
    features = sets.features.values.reshape(250, ACTIONS, WIDTH).tolist()
    evaluator = evaluated(Learned())
    for index, table in enumerate(features):
        event = {"action": int(sets.index[index]), "actions": list(range(ACTIONS)), "features": table}
        propensities = sets.propensities[index * ACTIONS : (index + 1) * ACTIONS].tolist()
        evaluator.update_one({**event, "propensities": propensities, "reward": float(batch.reward[index])})
    assert value(evaluator.report()) == pytest.approx(value(expected), rel=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_extreme_propensities_and_features_leave_finite_weights(name: str) -> None:
    batch, rng = log(600), np.random.default_rng(6)
    features = np.exp(rng.normal(0, 30, (600, ACTIONS, WIDTH))) * rng.choice([-1, 1], (600, ACTIONS, WIDTH))
    propensities = 10 ** rng.uniform(-320, 0, (600, ACTIONS))
    action = np.array(batch.action_sets.index)  # type: ignore[union-attr]
    propensities[np.arange(600), action] = np.maximum(propensities[np.arange(600), action], 1e-300)
    propensities[np.arange(600), (action + 1) % ACTIONS] = 0
    propensities[np.arange(600), (action + 1) % ACTIONS] = np.maximum(1 - propensities.sum(axis=1), 0)
    propensities /= propensities.sum(axis=1, keepdims=True)
    sampling = 10 ** rng.uniform(-300, 0, 600)
    extreme = log(
        600,
        action=action,
        propensities=propensities,
        features=features,
        reward=batch.reward,
        sampling_probability=sampling,
    )
    report = evaluated(EVERY[name], extreme, log(300)).report()
    apprentice = report.policies[1]
    assert apprentice.missing < 900
    assert b"NaN" not in report.to_json()


def test_settings_are_checked() -> None:
    for wrong in (
        {"step": -0.1},
        {"objective": "dm"},
        {"clip": -1},
        {"variance": -0.1},
        {"variance_events": 0},
        {"temperature": 0},
        {"l2": -1},
        {"start_from": "zero"},
        {"objective": "cab"},
    ):
        with pytest.raises(ProblemsError):
            Learned(**wrong)
