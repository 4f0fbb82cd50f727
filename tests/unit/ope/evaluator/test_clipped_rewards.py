"""Test rewards that are clipped to their range: the numbers, what is counted, and all ways that rewards come."""

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.ope.report import ClippedReward, Report
from support.rewards import assert_equal

EVENTS, MAX = 1_250, 3.0
CLIP: dict[str, Any] = {"max": MAX, "above": "clip"}
AUTO: dict[str, Any] = {"max": "auto", "quantile": 0.9}


def revenue(seed: int = 1, events: int = EVENTS) -> Array:
    return np.random.default_rng(seed).pareto(1.5, events)


def batch(reward: Array, rewards: dict[str, Array] | None = None, **columns: Any) -> EventBatch:
    rng, count = np.random.default_rng(2), len(reward)
    policies = {name: rng.choice([0.05, 0.2, 0.5], count) for name in ("one", "other")}
    logged = {"propensity": rng.choice([0.1, 0.2, 0.4], count), "timestamp": np.arange(count, dtype=float)}
    return EventBatch.from_arrays(reward=reward, policies=policies, rewards=rewards, **{**logged, **columns})


def evaluated(log: EventBatch, **options: Any) -> Report:
    evaluator = Evaluator(["one", "other"], **options)
    evaluator.update(log)
    return evaluator.report()


def test_estimates_are_about_the_clipped_reward() -> None:
    reward = revenue()
    clipped = evaluated(batch(reward), reward_range=CLIP)
    expected = evaluated(batch(np.minimum(reward, MAX)), reward_range=(0.0, MAX))
    assert len(clipped.estimates) == len(expected.estimates)
    for row in expected.estimates:
        assert_equal(clipped.get(row.policy, row.estimator, row.average), row)
    assert clipped.events == expected.events


def test_the_report_has_how_much_is_clipped() -> None:
    reward = revenue()
    (row,) = evaluated(batch(reward), reward_range=CLIP).clipped
    assert (row.reward, row.below, row.above) == ("reward", 0, np.count_nonzero(reward > MAX))
    assert row.share == pytest.approx(np.mean(reward > MAX), rel=1e-12)
    assert row.worth == pytest.approx(np.mean(reward - np.minimum(reward, MAX)), rel=1e-12)


def test_both_ends_are_clipped_if_both_are_told_to() -> None:
    reward = revenue() - 1.0
    report = evaluated(batch(reward), reward_range={"max": MAX, "below": "clip", "above": "clip"})
    (row,) = report.clipped
    assert (row.below, row.above) == (np.count_nonzero(reward < 0), np.count_nonzero(reward > MAX))
    assert row.worth == pytest.approx(np.mean(reward - np.clip(reward, 0.0, MAX)), rel=1e-12)
    assert report.events.accepted == EVENTS


def test_the_other_end_still_rejects() -> None:
    reward = revenue() - 0.5
    report = evaluated(batch(reward), reward_range=CLIP)
    assert report.events.rejected == {"reward_range": np.count_nonzero(reward < 0)}
    assert report.clipped[0].above == np.count_nonzero(reward > MAX)


def test_rounding_beyond_the_range_does_not_count_as_clipped() -> None:
    assert evaluated(batch(np.full(EVENTS, np.nextafter(1.0, 2.0))), reward_range={"above": "clip"}).clipped == (
        ClippedReward("reward", 0, 0, 0.0, 0.0, 0.0),
    )


def test_no_reward_is_clipped_by_default() -> None:
    report = evaluated(batch(revenue()), reward_range=(0.0, MAX))
    assert report.clipped == ()
    assert all(check.check != "clipped_share" for check in report.trust)


def test_an_event_stands_for_the_events_that_were_sampled_away() -> None:
    reward = revenue()
    kept = np.where(reward > MAX, 1.0, 0.25)
    (row,) = evaluated(batch(reward, sampling_probability=kept), reward_range=CLIP).clipped
    weight = 1.0 / kept
    assert row.share == pytest.approx(np.average(reward > MAX, weights=weight), rel=1e-12)
    assert row.worth == pytest.approx(np.average(reward - np.minimum(reward, MAX), weights=weight), rel=1e-12)


def test_each_of_several_rewards_is_clipped_to_its_own_range() -> None:
    click, reward = (np.random.default_rng(5).random(EVENTS) < 0.3).astype(float), revenue()
    reward[::7] = np.nan
    both = batch(click, {"revenue": reward})
    report = evaluated(both, rewards={"click": {}, "revenue": CLIP})
    limited = batch(click, {"revenue": np.minimum(reward, MAX)})
    expected = evaluated(limited, rewards={"click": {}, "revenue": {"max": MAX}})
    for row in expected.estimates:
        assert_equal(report.get(row.policy, row.estimator, row.average, row.reward), row)
    (row,) = report.clipped
    known = reward[~np.isnan(reward)]
    assert (row.reward, row.above) == ("revenue", np.count_nonzero(known > MAX))
    assert row.share == pytest.approx(np.mean(known > MAX), rel=1e-12)


def test_rewards_of_slots_shrink_with_the_reward_of_their_slate() -> None:
    slots = np.random.default_rng(3).pareto(1.5, (EVENTS, 2))
    total = slots.sum(axis=1)
    shrunk = slots * (np.minimum(total, MAX) / total)[:, None]

    def slates(rewards: Array) -> EventBatch:
        probability = np.random.default_rng(4).choice([0.2, 0.6], (EVENTS, 2))
        half = np.full((EVENTS, 2), 0.5)
        return EventBatch.from_arrays(reward=rewards, propensity=half, policies={"one": probability})

    options: dict[str, Any] = {"estimators": ["iips", "ips"], "averages": ["cumulative"]}
    evaluators = [Evaluator(["one"], reward_range=limits, **options) for limits in (CLIP, (0.0, MAX))]
    for evaluator, rewards in zip(evaluators, (slots, shrunk), strict=True):
        evaluator.update(slates(rewards))
    clipped, expected = (evaluator.report() for evaluator in evaluators)
    for row in expected.estimates:
        assert_equal(clipped.get(row.policy, row.estimator, row.average), row)
    assert clipped.events.accepted == EVENTS


def test_outcomes_of_scored_events_are_clipped_and_counted() -> None:
    config = Evaluator(["one"], ["scored_snips"], ["cumulative"], production="now", reward_range=CLIP).config
    lines = [
        f'{{"event_id": {event}, "timestamp": {event}, "scored": {{"propensity": 0.5, '
        f'"values": {{"now": 1, "one": {value}}}}}}}'.encode()
        for event, value in enumerate((2, 7, 3, 9))
    ]
    evaluator = Evaluator.from_config(config)
    evaluator.update(config.decoder().decode_batch(lines))
    report = evaluator.report()
    assert report.get("one", "scored_snips", "cumulative").value == pytest.approx((2 + 3 + 3 + 3) / 4)
    assert (report.clipped[0].above, report.clipped[0].share) == (2, 0.5)


def test_a_trust_check_fails_if_much_is_clipped_and_forgets_what_was_long_ago() -> None:
    evaluator = Evaluator(["one", "other"], ["ips"], ["mixture"], reward_range=CLIP)
    evaluator.update(batch(np.full(1_000, 2 * MAX)))
    (finding,) = {(check.ok, check.reason) for check in evaluator.report().trust if check.check == "clipped_share"}
    assert finding == (False, "100 % of the latest rewards (reward) were clipped, over 5%")
    assert not any(decision.promotable for decision in evaluator.report().promotion)
    for _ in range(4):
        evaluator.update(batch(np.full(100_000, 1.0)))
    assert all(check.ok for check in evaluator.report().trust if check.check == "clipped_share")


def test_update_one_takes_a_reward_beyond_the_range() -> None:
    evaluator = Evaluator(["one"], ["ips"], ["cumulative"], reward_range=CLIP)
    evaluator.update_one({"action": "a", "propensity": 0.5, "reward": 250, "policies": {"one": 0.5}})
    assert evaluator.report().get("one", "ips", "cumulative").value == MAX


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"above": "cut"}, "reward_range.above: expected"),
        ({"max": 0.0, "above": "clip"}, "reward_range.max: expected a number greater than min"),
    ],
)
def test_wrong_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluator(["one"], reward_range=limits)


def clipped_at_past_quantiles(reward: Array, weight: Array | None = None) -> Array:
    """Clip the events of each block of 100 at the 0.9 quantile of the blocks before."""
    weights, after = np.ones(len(reward)) if weight is None else weight, reward.copy()
    for first in range(100, len(reward), 100):
        known = ~np.isnan(reward[:first])
        past, past_weights = reward[:first][known], weights[:first][known]
        order = np.argsort(past)
        shares = np.cumsum(past_weights[order]) / past_weights.sum()
        part = slice(first, first + 100)
        after[part] = np.minimum(reward[part], past[order][np.searchsorted(shares, 0.9)])
    return after


def test_rewards_are_clipped_at_the_quantile_of_the_blocks_before() -> None:
    reward = revenue() + 0.1
    report = evaluated(batch(reward), reward_range=AUTO)
    after = clipped_at_past_quantiles(reward)
    expected = evaluated(batch(after), reward_range=(0.0, reward.max()))
    for row in report.estimates:
        if row.average == "cumulative" and row.estimator in ("ips", "snips"):
            exact = expected.get(row.policy, row.estimator, row.average)
            assert row.value == pytest.approx(exact.value, rel=0.01)
    (limit,), (row,) = report.limits, report.clipped
    assert (limit.reward, limit.quantile) == ("reward", 0.9)
    assert limit.limit == pytest.approx(np.quantile(reward[:1_200], 0.9), rel=0.03)
    assert row.above == pytest.approx(np.count_nonzero(after < reward), abs=5)
    assert row.worth == pytest.approx(np.mean(reward - after), rel=0.05)


def test_no_event_sets_the_limit_of_its_block() -> None:
    reports = []
    for largest in (1e3, 1e9):
        reward = revenue()
        reward[EVENTS - 60 :: 7] = largest
        reports.append(evaluated(batch(reward), reward_range=AUTO))
    for row in reports[0].estimates:
        assert_equal(reports[1].get(row.policy, row.estimator, row.average), row)
    assert reports[0].limits == reports[1].limits


def test_missing_and_sampled_rewards_count_in_the_quantile_as_they_should() -> None:
    reward, kept = revenue() + 0.1, np.random.default_rng(6).choice([0.1, 1.0], EVENTS)
    reward[::7] = np.nan
    click = np.ones(EVENTS)
    log = batch(click, {"revenue": reward}, sampling_probability=kept)
    (limit,) = evaluated(log, rewards={"click": {}, "revenue": AUTO}).limits
    known, weight = reward[:1_200], 1.0 / kept[:1_200]
    above = weight[known > (limit.limit or np.nan)].sum() / weight[~np.isnan(known)].sum()
    assert above == pytest.approx(0.1, abs=0.01)


def test_the_quantile_is_forgotten_as_rewards_change() -> None:
    evaluator = Evaluator(["one", "other"], ["ips"], ["cumulative"], reward_range=AUTO)
    evaluator.update(batch(revenue(events=20_000) + 0.1))
    (before,) = evaluator.report().limits
    evaluator.update(batch(3 * (revenue(events=60_000) + 0.1)))
    (after,) = evaluator.report().limits
    assert (after.limit or 0) / (before.limit or 1) == pytest.approx(3, rel=0.1)


def test_nothing_is_clipped_if_most_rewards_are_the_smallest_one() -> None:
    reward = np.where(np.arange(EVENTS) % 20 == 0, revenue(), 0.0)
    report = evaluated(batch(reward), reward_range=AUTO)
    assert (report.limits[0].limit, report.clipped[0].above) == (None, 0)
    assert report.get("one", "ips", "cumulative").value == pytest.approx(
        evaluated(batch(reward), reward_range=(0, 1_000)).get("one", "ips", "cumulative").value, rel=1e-12
    )


def test_intervals_read_the_largest_limit_until_now_as_the_range() -> None:
    reward, rare = np.minimum(revenue(events=300), 2.0), np.random.default_rng(7).random(300) < 0.05
    log = EventBatch.from_arrays(
        reward=reward, propensity=np.where(rare, 0.05, 0.95), policies={"one": np.where(rare, 0.9, 0.1)}
    )
    upper = []
    for limits in (AUTO, {"max": 2.0}, {"max": 300.0}):
        evaluator = Evaluator(["one"], ["ips"], ["cumulative"], reward_range=limits)
        evaluator.update(log)
        upper.append(evaluator.report().get("one", "ips", "cumulative").upper)
    assert upper[0] == pytest.approx(upper[1], rel=0.02)
    assert (upper[2] or 0) > 2 * (upper[0] or np.inf)


def test_rewards_of_slots_shrink_with_a_learned_limit() -> None:
    slots = np.random.default_rng(3).pareto(1.5, (EVENTS, 2))
    half = np.full((EVENTS, 2), 0.5)
    evaluator = Evaluator(["one"], ["iips"], ["cumulative"], reward_range=AUTO)
    evaluator.update(EventBatch.from_arrays(reward=slots, propensity=half, policies={"one": half}))
    after = clipped_at_past_quantiles(slots.sum(axis=1))
    assert evaluator.report().get("one", "iips", "cumulative").value == pytest.approx(after.mean(), rel=0.01)


def test_late_candidates_get_a_learned_limit() -> None:
    log = batch(revenue())
    evaluator = Evaluator(["one"], ["ips"], ["cumulative"], reward_range=AUTO)
    evaluator.update(log)
    late = evaluator.change_candidates(Evaluator(["one", "other"], ["ips"], ["cumulative"], reward_range=AUTO).config)
    assert late is not None
    late.update(log)
    evaluator.activate(late)
    evaluator.update(log)
    rows = {name: evaluator.report().get(name, "ips", "cumulative") for name in ("one", "other")}
    assert all(row.lower and row.upper for row in rows.values())
    assert evaluator.report().limits[0].limit == pytest.approx(np.quantile(revenue(), 0.9), rel=0.05)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"averages": ["cumulative"], "intervals": {"cumulative": "confidence_sequence"}}, "intervals.cumulative"),
        ({"promotion": "anytime"}, "promotion.rule"),
        ({"candidates": {"one": "logged", "apprentice": "learned"}}, "candidates.apprentice"),
        ({"estimators": ["scored_snips"], "production": "now"}, "estimators"),
    ],
)
def test_what_needs_the_range_beforehand_is_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=f"{path}: expected nothing that needs a fixed range of reward"):
        Evaluator(**{"candidates": ["one"], "reward_range": AUTO, **options})


def test_a_part_of_a_weighted_goal_needs_a_fixed_range() -> None:
    rewards: dict[str, Any] = {"score": {"of": {"click": 1, "revenue": 0.1}}, "click": {}, "revenue": AUTO}
    with pytest.raises(ValueError, match=r"rewards.score.of.revenue: expected a reward with a fixed range"):
        Evaluator(["one"], rewards=rewards)


@pytest.mark.parametrize("limits", [{"max": "auto"}, {"max": 3.0, "quantile": 0.9}, {"quantile": 0.9}])
def test_a_quantile_stands_next_to_auto(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"reward_range.quantile: expected a quantile next to max: auto, and only"):
        Evaluator(["one"], reward_range=limits)
