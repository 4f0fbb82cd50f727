"""Test training on the same events several times: early stopping, the split by time, and propensity overfitting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streameval.events import EventBatch
from streameval.ope.estimators import SNIPS
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.training import Trained, Training, frozen_at, split_by_time
from streameval.ope.learning.learned import Learned
from streameval.ope.learning.of_reward_model import OfRewardModel

ACTIONS = 4


def log(events: int, width: int = 3, seed: int = 1) -> EventBatch:
    """Draw a reward that is most likely for the action with the largest first feature. Others mean nothing."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(events, ACTIONS, width))
    action = rng.integers(ACTIONS, size=events)
    chance = 1 / (1 + np.exp(-2 * features[np.arange(events), action, 0]))
    return EventBatch.from_arrays(
        reward=rng.random(events) < chance,
        action=action,
        propensities=np.full((events, ACTIONS), 1 / ACTIONS),
        features=features,
        timestamp=np.arange(events, dtype=float),
    )


def training(policy: Learned, passes: int = 20, patience: int = 3) -> Training:
    return Training(Evaluator({"apprentice": policy}).config, SNIPS(), passes, patience)


def trained(training: Training, batch: EventBatch, cut: int = 97) -> Trained:
    learn_from, later = split_by_time([batch[first : first + cut] for first in range(0, len(batch), cut)], 0.25)
    return training.train("apprentice", learn_from, later)


def test_early_stopping_keeps_the_weights_with_the_highest_lower_bound() -> None:
    actual = trained(training(Learned(step=0.1), patience=2), log(2_000))
    lower = [one_pass.lower for one_pass in actual.passes]
    assert actual.best.lower == max(lower)
    assert len(actual.passes) < 20
    assert len(actual.passes) == actual.best.number + 2
    assert (actual.later.get("apprentice", "snips", "cumulative").lower or 0.0) == pytest.approx(max(lower))
    assert (actual.best.validation.lift_lower or 0.0) > 0


def test_without_patience_the_last_pass_is_taken() -> None:
    actual = trained(training(Learned(step=0.1), passes=6, patience=0), log(2_000))
    assert [one_pass.number for one_pass in actual.passes] == [1, 2, 3, 4, 5, 6]
    assert actual.best is actual.passes[-1]


def test_passes_do_not_depend_on_how_the_events_are_cut() -> None:
    one, other = (trained(training(Learned(step=0.1), 3, 0), log(2_000), cut) for cut in (97, 2_000))
    assert one.best.weights == pytest.approx(other.best.weights, rel=1e-9)


def test_the_first_pass_equals_the_stream_and_the_second_one_continues() -> None:
    batch, policy = log(1_500), Learned(objective="snips", step=0.1)
    actual = Training(Evaluator({"apprentice": policy}).config, SNIPS(), 2, 0).train("apprentice", [batch], [batch])
    stream = Evaluator({"apprentice": policy}, estimators=["snips"], averages=["cumulative"])
    stream.update(batch)
    assert actual.passes[0].weights == pytest.approx(stream.learned("apprentice")["weights"], rel=1e-12)
    assert actual.passes[0].training.value == stream.report().get("apprentice", "snips", "cumulative").value
    stream.update(batch)
    assert actual.passes[1].weights == pytest.approx(stream.learned("apprentice")["weights"], rel=1e-9)


def test_the_bounds_of_all_passes_hold_together() -> None:
    config = Evaluator({"one": Learned(), "other": Learned(), "even": "uniform"}).config
    assert Training(config, SNIPS(), passes=10).confidence == pytest.approx(1 - 0.05 / 20)
    assert list(Training(config, SNIPS()).online().policies) == ["logging", "one", "other"]


def test_many_passes_over_few_events_overfit_the_propensities_and_move_the_mean_weight() -> None:
    actual = trained(training(Learned(step=0.2), passes=12, patience=0), log(400, width=40))
    later = actual.best.validation
    assert (actual.own.value or 0.0) > (later.value or 0.0)
    assert (actual.own.importance_weight_mean or 1.0) > 1.5
    assert actual.overfits
    assert not trained(training(Learned(), passes=3), log(2_000)).overfits


def test_a_split_puts_the_latest_events_last_even_if_the_log_is_not_in_order() -> None:
    batch = log(1_000)
    turned = batch.take(np.random.default_rng(5).permutation(1_000))
    early, late = split_by_time([turned[:300], turned[300:]], 0.2)
    early_times, late_times = (np.concatenate([piece.timestamp for piece in batches]) for batches in (early, late))
    assert (len(early_times), len(late_times)) == (800, 200)
    assert early_times.max() < late_times.min()
    assert early_times.tolist() == [time for time in turned.timestamp if time < 800]


def test_events_without_times_are_split_by_their_order() -> None:
    batch = log(1_000)
    early, late = split_by_time([replace(batch, timestamp=np.full(1_000, np.nan))], 0.3)
    assert [len(events) for events in (*early, *late)] == [700, 300]
    assert late[0].reward.tolist() == batch.reward[700:].tolist()


def test_a_frozen_policy_keeps_its_kind_of_scores_alone() -> None:
    policy = Learned(objective="snips", variance=1.0, clip=5.0, start_from="logging", per_action=True)
    expected = Learned(start_from="logging", per_action=True, weights=((1.0,), (2.0,)), step=0)
    assert frozen_at(policy, np.array([[1.0], [2.0]])) == expected


@pytest.mark.parametrize("policy", [Learned(objective="dr"), Learned(objective="cab", clip=4.0)])
def test_an_objective_with_a_reward_model_learns_in_several_passes(policy: Learned) -> None:
    actual = trained(training(policy, passes=3, patience=0), log(2_000))
    assert (actual.best.validation.lift_lower or 0.0) > 0


def test_a_candidate_without_weights_is_left_out() -> None:
    config = Evaluator({"greedy": OfRewardModel(), "apprentice": Learned()}).config
    both = Training(config, SNIPS(), 3, 0)
    assert list(both.policies) == ["apprentice"]
    assert both.online().policies == ("logging", "apprentice")
    assert len(trained(both, log(1_000)).passes) == 3
