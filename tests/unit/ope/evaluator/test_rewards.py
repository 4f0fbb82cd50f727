"""Test several rewards: each has the numbers of an evaluator of its own, and guardrails limit promotion."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.events import JsonDecoder
from streameval.events.further_rewards import RewardField
from support.rewards import assert_equal

EVENTS = 1_250


def rewards(seed: int = 1, events: int = EVENTS) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    clicks = (rng.random(events) < 0.3).astype(float)
    return {"click": clicks, "revenue": 200 * rng.random(events) * clicks, "hide": -1.0 * (rng.random(events) < 0.1)}


def batch(columns: Mapping[str, Array], kept: Array | slice = slice(None), seed: int = 2) -> EventBatch:
    """Return a log with its first column as the goal."""
    first, *others = columns
    count = len(columns[first])
    rng = np.random.default_rng(seed)
    policies = {name: rng.choice([0.05, 0.2, 0.5], count)[kept] for name in ("one", "other")}
    return EventBatch.from_arrays(
        reward=columns[first][kept],
        propensity=rng.choice([0.1, 0.2, 0.4], count)[kept],
        policies=policies,
        timestamp=np.arange(count, dtype=float)[kept],
        rewards={name: columns[name][kept] for name in others} if others else None,
    )


LIMITS: dict[str, dict[str, Any]] = {"click": {}, "revenue": {"max": 200.0}, "hide": {"min": -1.0, "max": 0.0}}


def test_each_reward_has_the_numbers_of_its_own_evaluator() -> None:
    columns = rewards()
    together = Evaluator(["one", "other"], rewards=LIMITS, intervals={"cumulative": "confidence_sequence"})
    together.update(batch(columns))
    report = together.report()
    assert report.rewards == ["click", "revenue", "hide"]
    for name, limits in LIMITS.items():
        alone = Evaluator(
            ["one", "other"],
            reward_range=(limits.get("min", 0.0), limits.get("max", 1.0)),
            intervals={"cumulative": "confidence_sequence"},
        )
        alone.update(batch({name: columns[name]}))
        own = alone.report().estimates
        assert len(own) == len(report.of_reward(name).estimates)
        for row in own:
            assert_equal(report.get(row.policy, row.estimator, row.average, name), row)


def test_a_reward_that_events_lack_is_missing_for_this_reward_alone() -> None:
    columns = rewards()
    lacking = np.random.default_rng(3).random(EVENTS) < 0.3
    columns["revenue"] = np.where(lacking, np.nan, columns["revenue"])
    together = Evaluator(["one", "other"], rewards=LIMITS)
    together.update(batch(columns))
    report = together.report()
    goal = Evaluator(["one", "other"])
    goal.update(batch({"click": columns["click"]}))
    for row in goal.report().estimates:
        assert_equal(report.get(row.policy, row.estimator, row.average, "click"), row)
    alone = Evaluator(["one", "other"], reward_range=(0.0, 200.0))
    alone.update(batch({"revenue": columns["revenue"]}, ~lacking))
    for name in ("ips", "snips"):
        own = alone.report().get("one", name, "cumulative")
        estimate = report.get("one", name, "cumulative", "revenue")
        for number in ("value", "lift", "effective_sample_size", "importance_weight_mean"):
            assert getattr(estimate, number) == pytest.approx(getattr(own, number), rel=1e-12), number


def test_the_goal_may_be_missing() -> None:
    columns = rewards()
    whole, lacking = Evaluator(["one", "other"], rewards=LIMITS), np.arange(EVENTS) % 3 == 0
    whole.update(batch({**columns, "click": np.where(lacking, np.nan, columns["click"])}))
    alone = Evaluator(["one", "other"])
    alone.update(batch({"click": columns["click"]}, ~lacking))
    report = whole.report()
    own = alone.report().get("one", "ips", "cumulative")
    assert report.get("one", "ips", "cumulative").value == pytest.approx(own.value, rel=1e-12)
    assert report.policies[1].events == EVENTS


def test_one_reward_is_labelled_with_its_name() -> None:
    evaluator = Evaluator(["one", "other"], rewards={"click": {}})
    evaluator.update(batch({"click": rewards()["click"]}))
    assert {row.reward for row in evaluator.report().estimates} == {"click"}
    assert {row.reward for row in evaluator.report().promotion} == {"click"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"click": {"guardrail": {"max_loss": 0.1}}}, "the first of the rewards is the goal"),
        (
            {"click": {}, "hide": {"guardrail": {"max_loss": -1}}},
            "rewards.hide.guardrail.max_loss: expected a number greater than or equal to 0, found -1",
        ),
        ({"click": {"least": 0}}, "rewards.click.least: expected one of min, max, .* found the unknown key"),
        ({"click": {"min": 2}}, r"rewards.click.max: expected a number greater than min \(2\), found 1"),
    ],
)
def test_wrong_rewards_are_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluator(["one"], rewards=settings)


def slates(columns: Mapping[str, Array]) -> EventBatch:
    """Draw slates of two slots with two actions each. The first column is the goal."""
    first, *others = columns
    rng = np.random.default_rng(4)
    return EventBatch.from_arrays(
        reward=columns[first],
        propensity=rng.choice([0.25, 0.75], (EVENTS, 2)),
        policies={name: rng.choice([0.1, 0.5, 0.9], (EVENTS, 2)) for name in ("one", "other")},
        timestamp=np.arange(EVENTS, dtype=float),
        rewards={name: columns[name] for name in others} if others else None,
    )


@pytest.mark.parametrize("estimator", ["pseudo_inverse", "weighted_pseudo_inverse", "ips"])
def test_each_reward_of_slates_has_the_numbers_of_its_own_evaluator(estimator: str) -> None:
    columns, parts = rewards(), {"estimators": [estimator], "averages": ["cumulative", "mixture"]}
    together = Evaluator(["one", "other"], rewards=LIMITS, **parts)
    together.update(slates(columns))
    report = together.report()
    for name, limits in LIMITS.items():
        span = (limits.get("min", 0.0), limits.get("max", 1.0))
        alone = Evaluator(["one", "other"], reward_range=span, **parts)
        alone.update(slates({name: columns[name]}))
        for row in alone.report().estimates:
            assert row.value is not None
            assert_equal(report.get(row.policy, row.estimator, row.average, name), row)


def split_over_slots(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Split the rewards over two slots, [n, 2]."""
    share = np.random.default_rng(5).choice([0.0, 0.5, 1.0], EVENTS)
    return {name: np.stack([share * column, (1 - share) * column], axis=1) for name, column in columns.items()}


def test_each_reward_of_slots_has_the_numbers_of_its_own_evaluator() -> None:
    columns, parts = (
        split_over_slots(rewards()),
        {"estimators": ["iips", "rips"], "averages": ["cumulative", "mixture"]},
    )
    first, log = Evaluator(["one", "other"], rewards=LIMITS, drift=None, **parts), slates(columns)
    first.update(log[:730])
    together = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(first.state())))
    together.update(EventBatch.concat([log[730:1_000], log[1_000:]]))
    report = together.report()
    for name, limits in LIMITS.items():
        span = (limits.get("min", 0.0), limits.get("max", 1.0))
        alone = Evaluator(["one", "other"], reward_range=span, drift=None, **parts)
        alone.update(slates({name: columns[name]}))
        for row in alone.report().estimates:
            assert row.value is not None
            assert_equal(report.get(row.policy, row.estimator, row.average, name), row)


def test_a_reward_that_slots_lack_is_missing_for_this_reward_alone() -> None:
    whole, lacking = rewards(), np.arange(EVENTS) % 7 == 0
    columns, parts = split_over_slots(whole), {"estimators": ["iips"], "averages": ["cumulative"], "drift": None}
    columns["revenue"][lacking] = np.nan
    together = Evaluator(["one", "other"], rewards=LIMITS, **parts)
    together.update(slates(columns))
    for name, kept in {"click": lacking | True, "revenue": ~lacking}.items():
        alone = Evaluator(["one", "other"], reward_range=(0.0, 200.0), **parts)
        alone.update(slates({name: np.nan_to_num(columns[name])}).take(np.flatnonzero(kept)))
        actual, own = (
            evaluator.report().get("one", "iips", "cumulative", reward)
            for evaluator, reward in ((together, name), (alone, None))
        )
        for number in ("value", "lift"):
            assert getattr(actual, number) == pytest.approx(getattr(own, number), rel=1e-12), number


def test_rewards_of_slots_add_up_to_the_reward_of_their_name() -> None:
    limits = RewardField("revenue", "revenue", 0.0, 9.0)
    decoder = JsonDecoder(["one"], reward_range=(0, 1), further=[limits])
    slot = {"action": 1, "propensity": 0.5, "policies": {"one": 0.25}}
    event = {"event_id": 1, "timestamp": 0}
    messages = [
        {
            "reward": 1,
            "revenue": 3,
            "slots": [{**slot, "reward": 1, "revenue": 1}, {**slot, "reward": 0, "revenue": 2}],
        },
        {"reward": 1, "revenue": 4, "slots": [{**slot, "revenue": 1}, {**slot, "revenue": 2}]},
        {"revenue": 3, "slots": [{**slot, "revenue": 3}, slot]},
        {"revenue": 9, "slots": [{**slot, "revenue": 10}, {**slot, "revenue": -1}]},
    ]
    batch = decoder.decode_batch([msgspec.json.encode(event | message) for message in messages])
    assert batch.slates is not None
    assert batch.slates.further is not None
    assert batch.slates.further.tolist() == [[1.0], [2.0]]
    assert [rejected.detail for rejected in batch.rejected] == [
        "revenue: 4, but the rewards of its slots sum to 3",
        "slots.1.revenue: missing, and another slot has one",
        "slots: rewards of one sign sum to 10, which is not in [0, 9]",
    ]


def guarded_log(events: int, harm: float, seed: int) -> EventBatch:
    """Draw a log with a candidate that prefers an action with more clicks.

    Args:
        harm: How much less often users of that action stay, as a probability.
    """
    rng = np.random.default_rng(seed)
    better = rng.random(events) < 0.5
    click = rng.random(events) < np.where(better, 0.24, 0.2)
    stay = rng.random(events) < 0.9 - harm * better
    return EventBatch.from_arrays(
        reward=click.astype(float),
        propensity=np.full(events, 0.5),
        policies={"new": np.where(better, 0.9, 0.1)},
        timestamp=np.arange(events, dtype=float),
        rewards={"stay": stay.astype(float)},
    )


STAYS = {"click": {}, "stay": {"guardrail": {"max_loss": 0.03}}}


def promotable_at_any_time(
    log: EventBatch, settings: Mapping[str, Any] | None, every: int = 10_000
) -> tuple[bool, str]:
    """Return whether the candidate is ever promotable, and the last reason. Stop reading the log once it is.

    Args:
        every: Events between two Reports. Decisions are made at the end of each block.
    """
    kept = {"estimators": ["stratified_ips"], "averages": ["mixture"], "drift": None, "promotion": "paired"}
    evaluator = Evaluator(["new"], rewards=settings, **kept)
    for start in range(0, len(log), every):
        evaluator.update(log[start : start + every])
        evaluator.fold_pending()
        (decision,) = evaluator.report().promotion
        if decision.times > 0:
            break
    return decision.times > 0, decision.reason


def test_a_failing_guardrail_is_named_and_blocks_promotion() -> None:
    log = guarded_log(30_000, harm=0.2, seed=11)
    promotable, reason = promotable_at_any_time(log, STAYS)
    assert not promotable
    assert "guardrail stay: worse than production: lift -0." in reason
    assert promotable_at_any_time(log, {"click": {}, "stay": {}})[0]


@pytest.mark.parametrize(("harm", "kept"), [(0.2, False), (0.0, True)])
def test_a_decision_says_for_each_guardrail_whether_it_is_kept_and_its_bound(harm: float, kept: bool) -> None:
    evaluator = Evaluator(["new"], ["stratified_ips"], ["mixture"], rewards=STAYS, drift=None, promotion="paired")
    evaluator.update(guarded_log(30_000, harm, seed=11))
    (decision,) = evaluator.report().promotion
    (actual,) = decision.guardrails
    assert (actual.reward, actual.max_loss, actual.ok, decision.promotable) == ("stay", 0.03, kept, kept)
    assert actual.lower is not None
    assert actual.lift is not None
    assert (actual.lower > -0.03) is kept
    assert actual.lower < actual.lift == evaluator.report().get("new", "stratified_ips", "mixture", "stay").lift
    bound = f"decision bound of lift {actual.lower:.2g}"[:24]
    assert actual.reason.startswith(bound if kept else f"worse than production: lift {actual.lift:.1g}")
    assert actual.worse is not kept
    assert ("guardrail stay" in decision.reason) is not kept


def test_a_goal_has_no_guardrails() -> None:
    evaluator = Evaluator(["new"], ["stratified_ips"], ["mixture"], drift=None, promotion="paired")
    evaluator.update(guarded_log(1_000, 0.0, seed=11))
    assert [decision.guardrails for decision in evaluator.report().promotion] == [()]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_harmful_candidate_is_never_promotable_and_a_harmless_one_as_often_as_without_a_guardrail() -> None:
    harmful, guarded, free = 0, 0, 0
    for seed in range(100):
        harmful += promotable_at_any_time(guarded_log(100_000, harm=0.2, seed=seed), STAYS, every=100_000)[0]
        harmless = guarded_log(100_000, harm=0.0, seed=1_000 + seed)
        guarded += promotable_at_any_time(harmless, STAYS)[0]
        free += promotable_at_any_time(harmless, {"click": {}, "stay": {}})[0]
    assert harmful == 0
    assert guarded >= free - 0.05 * 100
    assert free >= 50
