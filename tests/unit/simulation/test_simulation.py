"""Worlds with known truth: the truth is true, the log is fair, and the protocol of the published experiment is kept."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from streameval.events import EventBatch
from streameval.simulation import (
    Drift,
    Moment,
    World,
    draw_block,
    simulate,
    truth_after,
)

CANDIDATES = 4


@pytest.fixture(scope="module")
def world() -> World:
    return World.synthetic(3, clusters=CANDIDATES, users=80, items=300, likes=12)


@pytest.fixture(scope="module")
def softmax_world() -> World:
    return World.synthetic(3, clusters=CANDIDATES, users=80, items=300, likes=12, temperature=0.5)


def arrays_of(world: World) -> dict[str, np.ndarray]:
    return {
        "item_features": world.item_features,
        "user_indptr": world.liked_start,
        "user_items": world.liked_items,
        "user_cluster": world.user_cluster,
        "theta": world.theta,
    }


def test_equal_scores_share_the_chance_to_be_best() -> None:
    level = World(
        item_features=np.ones((30, 1)),
        liked_start=np.array([0, 2, 3]),
        liked_items=np.array([4, 9, 17]),
        user_cluster=np.array([0, 1]),
        theta=np.array([[1.0], [2.0]]),
        candidates=("indifferent",),
    )
    assert level.value[:, 1] == pytest.approx([1 / 25, 1 / 25], rel=1e-9)
    assert level.value[:, 0] == pytest.approx([1 / 25, 1 / 25], rel=1e-9)


def test_the_deployed_logging_policy_explores_a_fifth_of_the_time(world: World) -> None:
    arrays = arrays_of(world)
    arrays["theta"] = np.vstack([world.theta[0], world.theta[0]])
    twins = World.from_arrays(arrays)
    assert twins.value[:, 0] == pytest.approx(0.8 * twins.value[:, 1] + 0.2 / 25)


def test_every_candidate_is_best_for_the_cluster_it_was_trained_on() -> None:
    value = World.synthetic(1).value[:, 1:]
    assert (value.argmax(axis=1) == np.arange(10)).all()
    assert (value.argmax(axis=0) == np.arange(10)).all()


def test_a_set_holds_one_liked_item_and_no_item_twice(world: World) -> None:
    block = draw_block(world, Drift("stationary", CANDIDATES), 0, seed=1)
    assert block.items.shape == (2_000, 25)
    assert all(len(set(row)) == 25 for row in block.items.tolist())
    items, index = world.offer(np.arange(2_000) % CANDIDATES, np.random.default_rng(5))
    liked_by = [np.isin(items, world.liked_items[world.user_cluster[_owners(world)] == c]) for c in range(CANDIDATES)]
    rows = np.arange(len(items))
    assert all(liked_by[c][r, index[r]] for r, c in zip(rows, rows % CANDIDATES, strict=True))
    assert np.bincount(index, minlength=25).min() > 40


def _owners(world: World) -> np.ndarray:
    return np.repeat(np.arange(len(world.user_cluster)), np.diff(world.liked_start))


def test_distributions_sum_to_one_and_agree_with_the_probability_of_the_action(
    world: World, softmax_world: World
) -> None:
    for played in (world, softmax_world):
        block = draw_block(played, Drift("smooth", CANDIDATES), 0, seed=2)
        row = np.arange(len(block))
        assert block.propensities().sum(axis=1) == pytest.approx(1.0)
        assert block.propensities()[row, block.action] == pytest.approx(block.propensity(), rel=1e-12)
        for candidate in range(CANDIDATES):
            distribution = block.distribution(candidate)
            assert distribution.sum(axis=1) == pytest.approx(1.0)
            assert distribution[row, block.action] == pytest.approx(block.probability(candidate), rel=1e-12)


def test_drift_keeps_to_the_protocol() -> None:
    smooth, abrupt = Drift("smooth"), Drift("abrupt")
    one = np.eye(10)
    assert smooth.mixture(0).tolist() == one[0].tolist()
    assert smooth.mixture(25_000) == pytest.approx(0.75 * one[0] + 0.25 * one[1])
    assert smooth.mixture(899_900) == pytest.approx(0.001 * one[8] + 0.999 * one[9])
    assert smooth.mixture([900_000, 950_000, 999_900]) == pytest.approx(np.stack([one[9]] * 3))
    assert abrupt.mixture([0, 99_999, 100_000, 999_999]).argmax(axis=1).tolist() == [0, 0, 1, 9]
    assert Drift("stationary").mixture(500_000) == pytest.approx(np.full(10, 0.1))
    for drift in (smooth, abrupt):
        assert drift.mixture(-100) == pytest.approx(np.full(10, 0.1))


def test_a_cycle_restarts_at_the_first_cluster() -> None:
    for kind in ("smooth", "abrupt"):
        drift = Drift(kind, clusters=3, span=10, cycle=True)
        assert drift.mixture([0, 25, 30, 35, 300]) == pytest.approx(drift.mixture([0, 55, 0, 5, 0]))
    assert Drift("smooth", clusters=3, span=10, cycle=True).mixture(25) == pytest.approx([0.5, 0, 0.5])


def test_batch_b_is_drawn_one_batch_late_and_compared_with_the_present(world: World) -> None:
    drift = Drift("abrupt", CANDIDATES, span=500)
    moments = list(simulate(world, drift, 1_500, seed=1))
    drawn = [_cluster_of(world, moment.drawn) for moment in moments]
    present = [_cluster_of(world, moment.truth) for moment in moments]
    assert drawn == ["all", *[0] * 5, *[1] * 5, *[2] * 4]
    assert present == [*[0] * 5, *[1] * 5, *[2] * 5]


def _cluster_of(world: World, values: np.ndarray) -> int | str:
    truths = [*world.value, world.value.mean(axis=0)]
    return [*range(CANDIDATES), "all"][int(np.argmin([np.abs(values - value).sum() for value in truths]))]


def test_the_truth_after_n_events_is_the_truth_of_their_last_batch(world: World) -> None:
    drift = Drift("smooth", CANDIDATES, span=1_000)
    for moment, n in zip(simulate(world, drift, 3_000, seed=1), range(100, 3_001, 100), strict=True):
        truth = truth_after(world, drift, n)
        assert list(truth) == ["logging", "candidate-1", "candidate-2", "candidate-3", "candidate-4"]
        assert list(truth.values()) == pytest.approx(moment.truth.tolist())


def test_equal_seeds_make_equal_events_and_other_seeds_make_others(world: World) -> None:
    drift = Drift("smooth", CANDIDATES)
    first, again, other = (_concat(simulate(world, drift, 4_100, seed=seed)) for seed in (1, 1, 2))
    assert _columns(first) == _columns(again)
    assert _columns(first) != _columns(other)
    same = World.synthetic(3, clusters=CANDIDATES, users=80, items=300, likes=12)
    assert _columns(_concat(simulate(same, drift, 4_100, seed=1))) == _columns(first)


def test_a_longer_run_starts_with_the_events_of_a_shorter_one(world: World) -> None:
    drift = Drift("smooth", CANDIDATES)
    short = _concat(simulate(world, drift, 2_150, seed=1))
    long = _concat(simulate(world, drift, 5_000, seed=1))
    assert len(short) == 2_150
    assert _columns(short) == _columns(long[:2_150])


def test_full_action_sets_equal_compact_columns(world: World) -> None:
    drift = Drift("smooth", CANDIDATES)
    compact = _concat(simulate(world, drift, 300, seed=1))
    whole = _concat(simulate(world, drift, 300, seed=1, action_sets=True))
    assert compact.action_sets is None
    assert whole.action_sets is not None
    assert whole.probabilities == pytest.approx(compact.probabilities)
    assert whole.propensity == pytest.approx(compact.propensity)
    assert whole.reward.tolist() == compact.reward.tolist()
    chosen = whole.action_sets.offsets[:-1] + whole.action_sets.index
    assert whole.action_sets.propensities[chosen] == pytest.approx(compact.propensity)
    assert whole.action_sets.probabilities[chosen] == pytest.approx(compact.probabilities)
    assert whole.action_sets.sizes.tolist() == [25] * 300
    assert whole.action_sets.widths.tolist() == [25] * 300


def test_a_prepared_world_is_the_same_world_and_may_lack_some_candidates(world: World) -> None:
    arrays = arrays_of(world)
    assert World.from_arrays(arrays).value == pytest.approx(world.value, rel=1e-12)
    two = World.from_arrays(arrays, candidates=["jazz", "rock"])
    assert two.candidates == ("jazz", "rock")
    assert two.value == pytest.approx(world.value[:, :3], rel=1e-12)


@pytest.mark.parametrize("broken", ["item_features", "user_indptr", "user_cluster", "theta"])
def test_arrays_that_do_not_fit_together_are_not_a_world(world: World, broken: str) -> None:
    arrays = arrays_of(world)
    arrays[broken] = arrays[broken][..., :-1]
    with pytest.raises(ValueError, match=r"fit|same users"):
        World.from_arrays(arrays)


def test_more_candidates_than_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="3 candidates need as many clusters, but there are 2"):
        World.synthetic(1, clusters=2, candidates=["a", "b", "c"])


def test_a_world_does_not_depend_on_how_a_processor_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, world = np.argpartition, World.synthetic(3, clusters=2, users=20, items=60, features=4, likes=5)

    def reversed_partition(values: np.ndarray, index: int, axis: int) -> np.ndarray:
        partitioned = partition(values, index, axis=axis)
        partitioned[:, index:] = partitioned[:, index:][:, ::-1].copy()
        return partitioned

    monkeypatch.setattr(np, "argpartition", reversed_partition)
    other = World.synthetic(3, clusters=2, users=20, items=60, features=4, likes=5)
    np.testing.assert_array_equal(other.liked_items, world.liked_items)
    np.testing.assert_array_equal(other.theta, world.theta)


@pytest.mark.parametrize("kind", ["greedy", "softmax"])
def test_the_value_of_every_policy_is_its_mean_reward(kind: str, world: World, softmax_world: World) -> None:
    played = world if kind == "greedy" else softmax_world
    random = np.random.default_rng(7)
    for cluster in range(played.clusters):
        items, index = played.offer(np.full(6_000, cluster), random)
        row = np.arange(len(items))
        for policy in range(1 + CANDIDATES):
            utility = played.scores[policy][items] / (0.5 if kind == "softmax" and policy else 1e-9)
            taken = (utility + random.gumbel(size=utility.shape)).argmax(axis=1)
            if policy == 0:
                taken = np.where(random.random(len(row)) < 0.2, random.integers(25, size=len(row)), taken)
            earned = taken == index
            assert abs(earned.mean() - played.value[cluster, policy]) < 3 * earned.std() / np.sqrt(len(row)) + 1e-9


def test_actions_are_taken_as_often_as_their_propensity(world: World) -> None:
    events = _concat(simulate(world, Drift("stationary", CANDIDATES), 20_000, seed=4))
    favourite = np.isclose(events.propensity, 0.808)
    assert np.isclose(events.propensity[~favourite], 0.008).all()
    assert favourite.mean() == pytest.approx(0.808, abs=4 * np.sqrt(0.808 * 0.192 / 20_000))


@pytest.mark.parametrize("kind", ["greedy", "softmax"])
def test_importance_weights_have_mean_one_and_weighted_rewards_the_value(
    kind: str, world: World, softmax_world: World
) -> None:
    played = world if kind == "greedy" else softmax_world
    drift = Drift("stationary", CANDIDATES)
    events = _concat(simulate(played, drift, 40_000, seed=5))
    weight = events.probabilities / events.propensity[:, None]
    if kind == "greedy":
        assert np.unique(weight.round(4)).tolist() == [0.0, 1.2376, 125.0]
    else:
        assert len(np.unique(weight.round(4))) > 5_000
    term = weight * events.reward[:, None]
    truth = played.value.mean(axis=0)[1:]
    assert (np.abs(weight.mean(axis=0) - 1) < 4 * weight.std(axis=0) / np.sqrt(len(events))).all()
    assert (np.abs(term.mean(axis=0) - truth) < 4 * term.std(axis=0) / np.sqrt(len(events))).all()


def test_simulating_is_lazy_however_long_the_run(world: World) -> None:
    first = list(islice(simulate(world, Drift("smooth", CANDIDATES), 10**12, seed=1), 30))
    assert sum(len(moment.events) for moment in first) == 3_000


def _concat(moments: object) -> EventBatch:
    return EventBatch.concat([moment.events for moment in moments if isinstance(moment, Moment)])  # type: ignore[attr-defined]


def _columns(events: EventBatch) -> tuple[bytes, ...]:
    return tuple(column.tobytes() for column in (events.probabilities, events.propensity, events.reward))
