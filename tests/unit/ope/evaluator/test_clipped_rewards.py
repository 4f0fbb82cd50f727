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


def test_however_the_stream_is_cut_and_resumed_as_much_is_clipped() -> None:
    log = batch(revenue())
    whole = evaluated(log, reward_range=CLIP)
    evaluator = Evaluator(["one", "other"], reward_range=CLIP)
    for first in range(0, EVENTS, 333):
        evaluator.update(log[first : first + 333])
        evaluator = Evaluator.from_state(evaluator.state())
    (row,), (expected,) = evaluator.report().clipped, whole.clipped
    assert (row.below, row.above) == (expected.below, expected.above)
    assert (row.share, row.recent_share, row.worth) == pytest.approx(
        (expected.share, expected.recent_share, expected.worth), rel=1e-12
    )


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
