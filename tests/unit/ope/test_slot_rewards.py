"""Test rewards of single slots: from the message to `iips` and `rips`, against enumeration and published values."""

from __future__ import annotations

import json
import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import (
    IIPS,
    IPS,
    RIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    Cumulative,
    Decay,
    Evaluator,
    EventBatch,
    Mixture,
    PseudoInverse,
    Window,
)
from streameval.events import JsonDecoder
from streameval.ope.evidence import Evidence
from streameval.ope.evidence.actions import REWARDED
from support.messages import message
from support.paths import DATA
from support.strategies import examples, factored_slates
from support.streams import close

Array = NDArray[np.float64]
POLICY = "candidate"
BOTH = [IIPS(), RIPS()]
AVERAGES = [Cumulative(), Window(tau=500), Decay(alpha=0.99), AdaptiveWindow(), AdaptiveDecay(), Mixture()]
quickly = examples(40)


def slate_message(*slots: dict[str, Any], **fields: Any) -> bytes:
    return message(1, **({"action": ..., "propensity": ..., "slots": list(slots)} | fields))


def slot(reward: float | None, target: float = 0.8, propensity: float = 0.5, **fields: Any) -> dict[str, Any]:
    return {"action": 0, "propensity": propensity, "policies": {POLICY: target}, "reward": reward} | fields


def batch_of(*messages: bytes, **options: Any) -> EventBatch:
    batch = JsonDecoder([POLICY], **options).decode_batch(messages)
    assert not batch.rejected, batch.rejected
    return batch


def rejection(*slots: dict[str, Any], **fields: Any) -> tuple[str, str]:
    decoder = JsonDecoder([POLICY], reward_range=(-1.0, 2.0))
    (rejected,) = decoder.decode_batch([slate_message(*slots, **fields)]).rejected
    return rejected.reason, rejected.detail


def values(batch: EventBatch, policy: str = POLICY, **options: Any) -> dict[str, float | None]:
    """Return the cumulative values of a policy by `iips` and `rips`."""
    settings: dict[str, Any] = {"reward_range": (-10.0, 10.0), "estimators": BOTH, "averages": [Cumulative()]}
    evaluator = Evaluator([POLICY], **(settings | options))
    evaluator.update(batch)
    return {e.estimator: e.value for e in evaluator.report().estimates if e.policy == policy}


def terms(batch: EventBatch) -> Array:
    """Return the terms of the candidate by `iips` and `rips`, [2, n]."""
    seen = [
        (estimator, Evidence.from_slots(batch, [POLICY], form)) for estimator, form in zip(BOTH, REWARDED, strict=True)
    ]
    return np.array([estimator.terms(evidence, {})[0].numerator[:, 0] for estimator, evidence in seen])


def test_the_values_of_six_slates_equal_the_published_ones() -> None:
    cases = json.loads((DATA / "estimators.json").read_text())["cases"]
    case = next(case for case in cases if case["id"] == "obp_slate")
    inputs, expected = case["inputs"], case["expected"]
    policies = {POLICY: inputs["p_target"]}
    batch = EventBatch.from_arrays(reward=inputs["reward"], propensity=inputs["p_log"], policies=policies)
    actual = values(batch, estimators=[*BOTH, IPS()])
    assert actual == {"iips": close(expected["iips"]), "rips": close(expected["rips"]), "ips": close(expected["sips"])}


# -- without bias, by enumeration --------------------------------------------------------------------------------------


def slate_of(slate: tuple[int, ...], target: Array, rewards: Array, **fields: Any) -> bytes:
    """Return a slate of these actions with full distributions of the target."""
    slots = [
        {"action": a, "actions": list(range(target.shape[1])), "policies": {POLICY: target[j].tolist()}, "reward": r}
        for j, (a, r) in enumerate(zip(slate, rewards.tolist(), strict=True))
    ]
    for name, rows in fields.pop("of_slots", {}).items():
        slots = [{**slot, name: row} for slot, row in zip(slots, rows, strict=True)]
    return slate_message(*slots, reward=float(rewards.sum()), **fields)


@quickly
@given(factored_slates(), st.integers(0, 100))
def test_iips_and_rips_are_unbiased_if_rewards_depend_on_their_slot_alone(case: tuple[Array, Array], seed: int) -> None:
    logging, target = case
    worth = np.random.default_rng(seed).uniform(-1, 1, target.shape)
    slates = list(product(range(target.shape[1]), repeat=len(target)))
    indices = [(np.arange(len(slate)), np.array(slate)) for slate in slates]
    fields = {"of_slots": {"propensities": logging.tolist()}}
    batch = batch_of(*[slate_of(slate, target, worth[at], **fields) for slate, at in zip(slates, indices, strict=True)])
    expected = terms(batch) @ [math.prod(logging[at]) for at in indices]
    assert expected == pytest.approx((worth * target).sum(), rel=1e-12, abs=1e-12)


@quickly
@given(factored_slates(), st.integers(0, 100))
def test_rips_is_unbiased_if_rewards_depend_on_the_slots_before(case: tuple[Array, Array], seed: int) -> None:
    logging, target = case
    rng, slates = np.random.default_rng(seed), list(product(range(target.shape[1]), repeat=len(target)))
    worth = {slate[: j + 1]: rng.uniform(-1, 1) for slate in slates for j in range(len(slate))}
    rewards = [np.array([worth[slate[: j + 1]] for j in range(len(slate))]) for slate in slates]
    indices = [(np.arange(len(slate)), np.array(slate)) for slate in slates]
    fields = {"of_slots": {"propensities": logging.tolist()}}
    batch = batch_of(*[slate_of(slate, target, own, **fields) for slate, own in zip(slates, rewards, strict=True)])
    expected = terms(batch)[1] @ [math.prod(logging[at]) for at in indices]
    truth = sum(math.prod(target[at]) * own.sum() for at, own in zip(indices, rewards, strict=True))
    assert expected == pytest.approx(truth, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("way", ["uniform_ranking", "listed"])
def test_rankings_are_weighted_by_the_probability_of_their_actions_up_to_each_slot(way: str) -> None:
    """Let the candidate always show one ranking. Its rewards depend on the slots before."""
    rankings = list(permutations(range(4), 3))
    rng = np.random.default_rng(5)
    shares = np.full(len(rankings), 1 / len(rankings)) if way == "uniform_ranking" else rng.dirichlet(np.ones(24))
    worth = {ranking[: j + 1]: rng.random() for ranking in rankings for j in range(3)}
    shown = rankings[7]
    target = np.eye(4)[list(shown)]
    fields: dict[str, Any] = {"slate_logging": way}
    if way == "listed":
        fields = {"slates": [list(ranking) for ranking in rankings], "slate_propensities": shares.tolist()}
    rewards = [np.array([worth[ranking[: j + 1]] for j in range(3)]) for ranking in rankings]
    batch = batch_of(
        *[
            slate_of(ranking, target, slot_rewards, **fields)
            for ranking, slot_rewards in zip(rankings, rewards, strict=True)
        ]
    )
    assert terms(batch)[1] @ shares == pytest.approx(sum(worth[shown[: j + 1]] for j in range(3)), rel=1e-12)


@examples(10)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_iips_and_rips_equal_ips_for_one_slot_and_for_plain_events(rows: list[tuple[float, float, float]]) -> None:
    reward, propensity, target = np.array(rows).T
    policies = {POLICY: target[:, None]}
    slates = EventBatch.from_arrays(reward=reward[:, None], propensity=propensity[:, None], policies=policies)
    plain = EventBatch.from_arrays(reward=reward, propensity=propensity, policies={POLICY: target})
    for batch in (slates, plain, EventBatch.concat([slates, plain])):
        actual = values(batch, estimators=[*BOTH, IPS()], block=7)
        assert actual["iips"] == actual["rips"] == close(actual["ips"], rel=1e-12)


def test_the_value_of_the_logging_policy_is_the_mean_reward() -> None:
    batch = batch_of(slate_message(slot(1), slot(0.5), reward=1.5), slate_message(slot(0), slot(0), reward=0))
    assert values(batch, "logging") == {"iips": close(0.75), "rips": close(0.75)}


# -- from the message --------------------------------------------------------------------------------------------------


def test_a_slate_without_rewards_of_slots_is_missing_for_iips_and_rips_alone() -> None:
    batch = batch_of(slate_message(slot(None), slot(None), reward=1), slate_message(slot(0), slot(1), reward=1))
    actual = values(batch, estimators=[*BOTH, PseudoInverse()])
    assert actual == {"iips": close(1.6), "rips": close(1.6**2), "pseudo_inverse": close(2.2)}
    evaluator = Evaluator([POLICY], BOTH, [Cumulative()], reward_range=(-1.0, 1.0))
    (missing,) = evaluator.missing_fields(batch)
    assert str(missing) == "1 of the first 2 events has no `slots[].reward`: missing for iips"


@pytest.mark.parametrize("field", ["reward", "clicks"])
def test_the_reward_of_a_slot_has_the_name_of_the_reward(field: str) -> None:
    slots = [{"action": 0, "propensity": 0.5, "policies": {POLICY: 0.8}, field: reward} for reward in (True, 0, 0.5)]
    batch = batch_of(slate_message(*slots, **({"reward": ...} | {field: 1.5})), reward_field=field)
    assert batch.slates is not None
    assert batch.slates.reward.tolist() == [1.0, 0.0, 0.5]


def test_rows_of_tables_may_have_rewards_of_slots() -> None:
    row = json.loads(slate_message(slot(1), slot(0.5), reward=1.5))
    batch = JsonDecoder([POLICY]).decode_rows([row])
    assert batch.slates is not None
    assert batch.slates.reward.tolist() == [1.0, 0.5]


def test_separate_rewards_are_not_rewards_of_slots() -> None:
    batch = batch_of(slate_message(slot(1), slot(0), reward=...), rewarded=False)
    assert batch.slates is not None
    assert np.isnan(batch.slates.reward).all()
    for cell in ("n/a", 0.8):  # which the fast decoder refuses, or not
        (values,) = (
            JsonDecoder([POLICY], rewarded=False)
            .decode_batch([slate_message(slot(1.0, policies={POLICY: cell}))])
            .slates.reward
        )
        assert math.isnan(values)


def test_faulty_rewards_of_slots_are_rejected_with_the_reason() -> None:
    actual = [
        rejection(slot(1), slot(None), reward=1),
        rejection(slot(1), slot(1), reward=1),
        rejection(slot(2), slot(1), slot(-1), reward=2),
        rejection(slot(-1), slot(-1), slot(1), reward=-1),
        rejection(slot("1"), reward=1),  # type: ignore[arg-type]
    ]
    assert actual == [
        ("missing_field", "slots.1.reward: missing, and another slot has one"),
        ("malformed", "reward: 1, but the rewards of its slots sum to 2"),
        ("reward_range", "slots: rewards of one sign sum to 3, which is not in [-1, 2]"),
        ("reward_range", "slots: rewards of one sign sum to -2, which is not in [-1, 2]"),
        ("malformed", "slots.0.reward: expected bool | float, got str"),
    ]
    (infinite,) = (
        JsonDecoder([POLICY])
        .decode_batch([slate_message(slot(0), reward=0).replace(b'"reward": 0', b'"reward": 1e999')])
        .rejected
    )
    assert infinite.reason == "not_finite"
    arrays: dict[str, Any] = {"propensity": [[0.5, 0.5]], "policies": {}}
    with pytest.raises(ValueError, match=r"reward: expected the shape \[1, 2\], found \[1, 3\]"):
        EventBatch.from_arrays(reward=[[0.0, 1.0, 2.0]], **arrays)


def test_an_evaluator_rejects_rewards_of_slots_outside_its_range() -> None:
    evaluator = Evaluator([POLICY], BOTH, [Cumulative()])
    evaluator.update(batch_of(slate_message(slot(2), slot(-1), reward=1), slate_message(slot(1), slot(0), reward=1)))
    assert dict(evaluator.report().events.rejected) == {"reward_range": 1}


# -- in evaluators -----------------------------------------------------------------------------------------------------


def coins(n: int, seed: int = 1, slots: int = 3) -> EventBatch:
    """Draw slates of coins that the candidate throws with a bias. A slot earns its share of 1 if it shows heads."""
    heads = np.random.default_rng(seed).integers(0, 2, (n, slots))
    policies = {POLICY: np.where(heads == 1, 0.7, 0.3)}
    return EventBatch.from_arrays(reward=heads / slots, propensity=np.full((n, slots), 0.5), policies=policies)


def every_value(evaluator: Evaluator) -> dict[str, Any]:
    return {f"{e.estimator}/{e.average}": e.value for e in evaluator.report().estimates if e.policy == POLICY}


def test_every_average_finds_the_value() -> None:
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=AVERAGES)
    evaluator.update(coins(20_000))
    for label, value in every_value(evaluator).items():
        assert value == pytest.approx(0.7, abs=0.06 if "window" in label or "/decay" in label else 0.02), label


def test_the_mean_weight_of_slots_is_1_and_the_largest_weight_is_the_largest_of_a_slot() -> None:
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=[Cumulative()], intervals={"cumulative": "normal"})
    evaluator.update(coins(5_000))
    for estimator, heaviest in (("iips", 1.4), ("rips", (1.4 + 1.4**2 + 1.4**3) / 3)):
        estimate = evaluator.report().get(POLICY, estimator, "cumulative")
        assert estimate.importance_weight_mean == pytest.approx(1, abs=0.03)
        assert estimate.importance_weight_max == close(heaviest)
        assert estimate.lower is not None
        assert estimate.upper is not None
        assert estimate.lower < 0.7 < estimate.upper


def test_a_better_candidate_is_promoted_by_rewards_of_slots_alone() -> None:
    rules: Any = {"rule": ["paired", "sea", "anytime"], "min_events": 1_000}
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=[Mixture()], promotion=rules)
    evaluator.update(coins(20_000))
    actual = {decision.rule: decision.promotable for decision in evaluator.report().promotion}
    assert actual == {"paired": True, "sea": True, "anytime": False}  # no confidence sequence holds for these weights


def test_a_confidence_sequence_of_rewards_of_slots_is_withheld() -> None:
    evaluator = Evaluator([POLICY], BOTH, [Cumulative()], intervals={"cumulative": "confidence_sequence"})
    evaluator.update(coins(2_000))
    assert all(estimate.lower is None for estimate in evaluator.report().estimates)


# -- self-normalised slot by slot ------------------------------------------------------------------------------------


def logged_slates(
    events: int, seed: int = 3, slots: int = 3, actions: int = 4
) -> tuple[EventBatch, Array, Array, float]:
    """Draw slates, and return them with the ratios and rewards of their slots and the value of the candidate."""
    world, rng = np.random.default_rng(99), np.random.default_rng([seed, 5])
    logging, target = (world.dirichlet(np.full(actions, 2.0), slots) for _ in range(2))
    worth = world.uniform(0.2, 0.9, (slots, actions)) / slots
    action = np.stack([rng.choice(actions, events, p=row) for row in logging], axis=1)
    at = (np.arange(slots), action)
    reward = (rng.random(action.shape) < worth[at] * slots) / slots
    batch = EventBatch.from_arrays(reward=reward, propensity=logging[at], policies={POLICY: target[at]})
    return batch, (target / logging)[at], reward, float((worth * target).sum())


WEIGHTED: list[Any] = ["iips", "weighted_iips", "rips", "weighted_rips"]


def weighted_values(batch: EventBatch, *cuts: int) -> list[float | None]:
    options = {"estimators": WEIGHTED, "averages": ["cumulative"], "drift": None, "promotion": None}
    evaluator = Evaluator([POLICY], **options)
    for first, last in zip((0, *cuts), (*cuts, len(batch)), strict=True):
        evaluator.update(batch[first:last])
    return [evaluator.report().get(POLICY, name, "cumulative").value for name in WEIGHTED]


@pytest.mark.parametrize("cuts", [(), (130, 777)])
def test_self_normalised_slots_equal_a_loop_over_the_blocks(cuts: tuple[int, ...]) -> None:
    batch, ratio, reward, _ = logged_slates(1_000)
    actual = weighted_values(batch, *cuts)
    for name, weights in (("weighted_iips", ratio), ("weighted_rips", ratio.cumprod(axis=1))):
        total, sums, fading = 0.0, np.zeros((2, 3)), (1 - 1 / 100_000) ** 100
        for first in range(0, 1_000, 100):
            expected = sums[1] / np.maximum(sums[0], 1e-300)
            w, r = weights[first : first + 100], reward[first : first + 100]
            total += (expected + w * (r - expected)).sum()
            sums = fading * sums + np.array([w.sum(axis=0), (w * r).sum(axis=0)])
        assert actual[WEIGHTED.index(name)] == close(total / 1_000)


def test_events_that_are_no_slates_count_as_their_first_slot() -> None:
    rng = np.random.default_rng(1)
    propensity = rng.uniform(0.2, 0.8, 600)
    target = rng.uniform(0, 1, 600) * propensity
    reward = rng.random(600)
    plain = EventBatch.from_arrays(reward=reward, propensity=propensity, policies={POLICY: target})
    slates = EventBatch.from_arrays(
        reward=reward[:, None], propensity=propensity[:, None], policies={POLICY: target[:, None]}
    )
    assert weighted_values(plain) == [close(value or 0.0) for value in weighted_values(slates)]


@pytest.mark.slow
def test_self_normalised_slots_have_less_error_and_their_intervals_cover() -> None:
    errors, covered = [], np.zeros(len(WEIGHTED))
    for seed in range(100):
        batch, _, _, truth = logged_slates(2_000, seed)
        evaluator = Evaluator([POLICY], estimators=WEIGHTED, averages=["cumulative"], drift=None, promotion=None)
        evaluator.update(batch)
        rows = [evaluator.report().get(POLICY, name, "cumulative") for name in WEIGHTED]
        errors.append([(row.value or 0.0) - truth for row in rows])
        covered += [(row.lower or 0.0) <= truth <= (row.upper or 0.0) for row in rows]
    iips, weighted_iips, rips, weighted_rips = np.sqrt(np.square(errors).mean(axis=0))
    assert weighted_iips < 0.85 * iips
    assert weighted_rips < 0.65 * rips
    assert covered.min() >= 90
