"""Test slates, from the message to the estimate, against enumeration and published values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import (
    DM,
    DRPI,
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    Cumulative,
    Decay,
    EmpiricalBernstein,
    Evaluator,
    EventBatch,
    Mixture,
    PseudoInverse,
    WeightedPseudoInverse,
    Window,
)
from streameval.events import JsonDecoder
from streameval.events.slates import SlateColumns
from streameval.ope.evidence import Evidence
from streameval.ope.evidence.evidence import SlateSums, fading_of, start_slates
from streameval.ope.evidence.slate_weights import SLOTS_SHOWN, ratio_sums, with_duals
from support.messages import message
from support.paths import DATA
from support.slates import slate_weights
from support.strategies import distributions, examples, factored_slates
from support.streams import close

Array = NDArray[np.float64]
POLICY = "candidate"
CASES = json.loads((DATA / "estimators.json").read_text())["cases"]
AVERAGES = [Cumulative(), Window(tau=500), Decay(alpha=0.99), AdaptiveWindow(), AdaptiveDecay(), Mixture()]
BOTH = [PseudoInverse(), WeightedPseudoInverse()]
quickly = examples(40)


def slate_message(**fields: Any) -> bytes:
    return message(1, **({"action": ..., "propensity": ...} | fields))


def coin(action: int, target: float = 0.8, **fields: Any) -> dict[str, Any]:
    """Return a slot filled by a coin."""
    return {"action": action, "propensity": 0.5, "policies": {POLICY: target}} | fields


def batch_of(messages: Iterable[bytes]) -> EventBatch:
    batch = JsonDecoder([POLICY]).decode_batch(messages)
    assert not batch.rejected
    return batch


def weight(**fields: Any) -> float:
    """Return `G` of the candidate on one event."""
    return float(slate_weights(batch_of([slate_message(**fields)]), [POLICY])[0, 0])


def rejection(**fields: Any) -> tuple[str, str]:
    (rejected,) = JsonDecoder([POLICY]).decode_batch([slate_message(**fields)]).rejected
    return rejected.reason, rejected.detail


def log_of_coins(n: int, seed: int = 1, slots: int = 3) -> EventBatch:
    """Draw slates of coins that the candidate throws with a bias. The reward is the share of heads."""
    heads = np.random.default_rng(seed).integers(0, 2, (n, slots))
    target = np.where(heads == 1, 0.7, 0.3)
    return EventBatch.from_arrays(
        reward=heads.mean(axis=1), propensity=np.full((n, slots), 0.5), policies={POLICY: target}
    )


def values(evaluator: Evaluator, policy: str = POLICY) -> dict[str, float | None]:
    return {f"{e.estimator}/{e.average}": e.value for e in evaluator.report().estimates if e.policy == policy}


# -- published values --------------------------------------------------------------------------------------------------


def reference() -> tuple[dict[str, Any], EventBatch]:
    case = next(case for case in CASES if case["id"] == "slate_pi_two_slots")
    inputs, target = case["inputs"], case["inputs"]["p_target_by_action"]
    slates = zip(inputs["slates"], inputs["reward"], strict=True)
    once = [slate_message(reward=reward, slots=[coin(a, target[a]) for a in slate]) for slate, reward in slates]
    return case["expected"], batch_of(once * inputs["repeat"])


def test_two_slots_have_the_published_weights_and_values_which_are_not_clipped() -> None:
    expected, batch = reference()
    assert slate_weights(batch, [POLICY])[:4, 0].tolist() == close(expected["weights"])
    averages = [Cumulative(), Window(tau=500)]
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=averages, intervals={"cumulative": "normal"})
    evaluator.update(batch)
    report = evaluator.report()
    for average in ("cumulative", "window"):
        assert report.get(POLICY, "pseudo_inverse", average).value == close(expected["pi"])
        assert report.get(POLICY, "weighted_pseudo_inverse", average).value == close(expected["wpi"])
    pseudo_inverse = report.get(POLICY, "pseudo_inverse", "cumulative")
    assert [pseudo_inverse.lower, pseudo_inverse.upper] == close(expected["gaussian"], rel=1e-6)


def test_a_slate_as_one_action_has_the_value_of_rewards_that_are_not_additive() -> None:
    _, batch = reference()
    evaluator = Evaluator([POLICY], estimators=[IPS(), SNIPS()], averages=[Cumulative()])
    evaluator.update(batch)
    assert values(evaluator) == {"ips/cumulative": close(0.04), "snips/cumulative": close(0.04)}


# -- weights against the definition ------------------------------------------------------------------------------------


def defined(slates: list[tuple[int, ...]], probability: Array, target: Array) -> Array:
    """Compute `q' Gamma^+ 1_s` for every slate of action indices, straight from its definition."""
    slots, actions = target.shape
    indicators = np.zeros((len(slates), slots, actions))
    for row, slate in enumerate(slates):
        indicators[row, np.arange(slots), slate] = 1
    flat = indicators.reshape(len(slates), -1)
    gamma = np.einsum("s,si,sj->ij", probability, flat, flat)
    return np.asarray(flat @ np.linalg.pinv(gamma, rcond=1e-10) @ target.ravel())


def make_slots(slate: Iterable[int], target: Array, logging: Array | None = None) -> list[dict[str, Any]]:
    """Return slots with full distributions."""
    return [
        {"action": action, "actions": list(range(target.shape[1])), "policies": {POLICY: target[slot].tolist()}}
        | ({} if logging is None else {"propensities": logging[slot].tolist()})
        for slot, action in enumerate(slate)
    ]


@quickly
@given(factored_slates())
def test_independent_slots_have_the_weights_of_the_definition(case: tuple[Array, Array]) -> None:
    logging, target = case
    slates = list(product(range(target.shape[1]), repeat=len(target)))
    probability = np.array([math.prod(logging[j, a] for j, a in enumerate(slate)) for slate in slates])
    actual = slate_weights(batch_of(slate_message(slots=make_slots(s, target, logging)) for s in slates), [POLICY])[
        :, 0
    ]
    assert actual == pytest.approx(defined(slates, probability, target), rel=1e-8, abs=1e-8)
    assert probability @ actual == pytest.approx(1, rel=1e-12)


@st.composite
def ranked(draw: st.DrawFn) -> Array:
    """Draw the marginals of a mixture of rankings of l of m actions, [l, m]."""
    actions = draw(st.integers(2, 4))
    rankings = list(permutations(range(actions), draw(st.integers(1, actions))))
    shares = draw(distributions(len(rankings), most=20))
    marginals = np.zeros((len(rankings[0]), actions))
    for share, ranking in zip(shares, rankings, strict=True):
        marginals[np.arange(len(ranking)), ranking] += share
    return marginals


@quickly
@given(ranked())
def test_uniform_rankings_have_the_weights_of_the_definition(target: Array) -> None:
    slots, actions = target.shape
    rankings = list(permutations(range(actions), slots))
    batch = batch_of(slate_message(slots=make_slots(s, target), slate_logging="uniform_ranking") for s in rankings)
    actual = slate_weights(batch, [POLICY, "logging"])
    uniform = np.full(len(rankings), 1 / len(rankings))
    assert actual[:, 0] == pytest.approx(defined(rankings, uniform, target), rel=1e-8, abs=1e-8)
    assert actual[:, 0].mean() == pytest.approx(1)
    assert batch.propensity == pytest.approx(uniform)
    assert batch.slates is not None
    assert batch.slates.propensity == pytest.approx(np.full(slots * len(rankings), 1 / actions))


@quickly
@given(ranked(), st.data())
def test_listed_slates_have_the_weights_of_the_definition(target: Array, data: st.DataObject) -> None:
    slots, actions = target.shape
    rankings = list(permutations(range(actions), slots))
    shares = np.array(data.draw(distributions(len(rankings), least=1, most=20)))
    listed = {"slates": list(map(list, rankings)), "slate_propensities": shares.tolist()}
    batch = batch_of(slate_message(slots=make_slots(s, target), **listed) for s in rankings)
    actual = slate_weights(batch, [POLICY])[:, 0]
    assert actual == pytest.approx(defined(rankings, shares, target), rel=1e-6, abs=1e-6)
    assert batch.propensity == pytest.approx(shares)


@pytest.mark.parametrize("way", ["factored", "uniform_ranking", "plackett_luce", "listed"])
def test_with_any_model_the_doubly_robust_pseudo_inverse_has_the_value_as_expectation(way: str) -> None:
    rng, names = np.random.default_rng(7), range(4)
    slates = list(product(names, repeat=2) if way == "factored" else permutations(names, 2))
    logging, target, worth = rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(4), 2), rng.random((2, 4)) / 2
    fields: dict[str, Any] = {} if way == "listed" else {"slate_logging": way}
    share = np.full(len(slates), 1 / len(slates))
    if way == "factored":
        share = np.array([math.prod(logging[j, a] for j, a in enumerate(slate)) for slate in slates])
    elif way == "plackett_luce":
        fields["scores"] = np.log(logging[0]).tolist()
        share = np.array([logging[0, i] * logging[0, k] / (1 - logging[0, i]) for i, k in slates])
    elif way == "listed":
        share = rng.dirichlet(np.ones(len(slates)))
        fields = {"slates": list(map(list, slates)), "slate_propensities": share.tolist()}
    if way != "factored":  # marginals of distributions over rankings, which a product of marginals is not
        mixture = rng.dirichlet(np.ones(12))
        target = np.array([np.bincount(np.array(slates)[:, j], mixture, 4) for j in (0, 1)])
    batch = batch_of(
        slate_message(
            slots=make_slots(slate, target, logging if way == "factored" else None),
            reward=worth[[0, 1], list(slate)].sum(),
            **fields,
        )
        for slate in slates
    )
    whole, model = Evidence.from_batch(batch, [POLICY], len(batch)), rng.normal(size=8)
    seen, _ = whole.with_forms(batch, [POLICY], ["slots"], np.tile(model, len(slates)))
    terms = DRPI().terms(seen.restricted_to(DRPI().needs), None)[0].numerator[:, 0]
    assert share @ terms == pytest.approx((worth * target).sum(), rel=1e-6)
    plain = PseudoInverse().terms(seen.restricted_to(PseudoInverse().needs), None)[0].numerator[:, 0]
    exact, _ = whole.with_forms(batch, [POLICY], ["slots"], np.tile(worth.ravel(), len(slates)))
    best = DRPI().terms(exact.restricted_to(DRPI().needs), None)[0].numerator[:, 0]
    assert best == pytest.approx((worth * target).sum(), rel=1e-6)  # a true model leaves no noise
    assert np.ptp(plain) > 0.1
    assert batch.slates is not None
    solved = replace(batch, slates=with_duals(batch.slates))
    assert solved.slates.actions.duals.reshape(len(slates), -1) @ target.ravel() == pytest.approx(
        slate_weights(batch, [POLICY])[:, 0]
    )
    assert slate_weights(solved, [POLICY]).tolist() == slate_weights(batch, [POLICY]).tolist()


def test_the_model_of_slates_takes_out_noise_and_the_interval_covers() -> None:
    rng, shape = np.random.default_rng(6), (3_000, 4, 5)
    features = rng.normal(size=(*shape, 3))
    worth = np.tanh(features @ np.array([1.0, -0.5, 0.3])) * 0.12
    action, target = rng.integers(0, 5, shape[:2]), np.exp(15 * worth)
    target /= target.sum(axis=2, keepdims=True)
    earned = np.take_along_axis(worth, action[..., None], axis=2).sum(axis=(1, 2))
    batch = EventBatch.from_arrays(
        reward=0.5 + earned + rng.uniform(-0.02, 0.02, len(earned)),
        action=action,
        propensities=np.full(shape, 0.2),
        features=features,
        policies={POLICY: target},
    )
    evaluator = Evaluator([POLICY], [*BOTH, DRPI()], [Cumulative()], intervals={"cumulative": "normal"})
    evaluator.update(batch)
    report = evaluator.report()
    plain, weighted, corrected = (
        report.get(POLICY, name, "cumulative") for name in ("pseudo_inverse", "weighted_pseudo_inverse", "dr_pi")
    )
    truth = 0.5 + (worth * target).sum() / len(earned)
    assert corrected.lower < truth < corrected.upper
    assert corrected.upper - corrected.lower < 0.5 * (plain.upper - plain.lower)
    assert abs(corrected.value - truth) < abs(weighted.value - truth) + 0.005
    production = report.get("logging", "dr_pi", "cumulative").value
    assert production == close(report.get("logging", "pseudo_inverse", "cumulative").value)


def test_a_slate_without_full_distributions_is_missing_for_the_model_of_slates_alone() -> None:
    whole = {"actions": [0, 1], "propensities": [0.5, 0.5], "policies": {POLICY: [0.8, 0.2]}}
    messages = [
        slate_message(slots=[coin(0), coin(0) | whole]),
        slate_message(slots=[coin(0) | whole] * 2),
        message(1, propensity=0.5, policies={POLICY: 0.8}),
    ]
    evaluator = Evaluator([POLICY], [PseudoInverse(), DRPI()], [Cumulative()], drift=None, promotion=None)
    evaluator.update(batch_of(messages))
    assert values(evaluator) == {
        "pseudo_inverse/cumulative": close((2.2 + 2.2 + 1.6) / 3),
        "dr_pi/cumulative": close(2.2),
    }


def test_listed_slates_of_different_shapes_have_the_weight_of_each_alone() -> None:
    messages = []
    for slots, actions in ((2, 2), (2, 3), (1, 4), (3, 3), (2, 2)):
        rankings = list(permutations(range(actions), slots))
        shares = np.arange(1.0, len(rankings) + 1) / np.arange(1.0, len(rankings) + 1).sum()
        target = np.full((slots, actions), 1 / actions)
        listed = {"slates": list(map(list, rankings)), "slate_propensities": shares.tolist()}
        messages.append(slate_message(slots=make_slots(rankings[-1], target), **listed))
    alone = [float(slate_weights(batch_of([text]), [POLICY])[0, 0]) for text in messages]
    assert slate_weights(batch_of(messages), [POLICY])[:, 0] == pytest.approx(alone, rel=1e-9)


@quickly
@given(ranked(), st.integers(0, 100))
def test_additive_rewards_are_estimated_without_bias_under_any_logging(target: Array, seed: int) -> None:
    slots, actions = target.shape
    rng = np.random.default_rng(seed)
    worth, rankings = rng.random((slots, actions)), list(permutations(range(actions), slots))
    shares = rng.dirichlet(np.ones(len(rankings))) * 0.5 + 0.5 / len(rankings)
    listed = {"slates": list(map(list, rankings)), "slate_propensities": shares.tolist()}
    weights = slate_weights(batch_of(slate_message(slots=make_slots(s, target), **listed) for s in rankings), [POLICY])[
        :, 0
    ]
    rewards = np.array([worth[np.arange(slots), ranking].sum() for ranking in rankings])
    assert shares @ (weights * rewards) == pytest.approx((worth * target).sum(), rel=1e-6)


@quickly
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_one_slot_pseudo_inverse_equals_ips(rows: list[tuple[float, float, float]]) -> None:
    reward, propensity, target = np.array(rows).T
    slates = EventBatch.from_arrays(reward=reward, propensity=propensity[:, None], policies={POLICY: target[:, None]})
    plain = EventBatch.from_arrays(reward=reward, propensity=propensity, policies={POLICY: target})
    for batch in (slates, plain):
        evaluator = Evaluator([POLICY], estimators=[*BOTH, IPS(), SNIPS()], averages=[Cumulative()], block=7)
        evaluator.update(batch)
        actual = values(evaluator)
        assert actual["pseudo_inverse/cumulative"] == close(actual["ips/cumulative"], rel=1e-12)
        assert actual["weighted_pseudo_inverse/cumulative"] == close(actual["snips/cumulative"], rel=1e-12)


@pytest.mark.parametrize("average", AVERAGES, ids=lambda average: average.label)
def test_the_weighted_estimate_of_a_constant_is_that_constant(average: Any) -> None:
    evaluator = Evaluator([POLICY], estimators=[WeightedPseudoInverse()], averages=[average])
    constant = EventBatch.from_arrays(
        reward=np.full(1_000, 0.25), propensity=np.full((1_000, 3), 0.5), policies={POLICY: np.full((1_000, 3), 0.5)}
    )
    evaluator.update(constant)
    assert values(evaluator) == {f"weighted_pseudo_inverse/{average.label}": close(0.25)}


def test_the_value_of_the_logging_policy_is_the_mean_reward() -> None:
    batch = log_of_coins(1_000)
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=[Cumulative()])
    evaluator.update(batch)
    assert list(values(evaluator, "logging").values()) == close([float(batch.reward.mean())] * 2)


# -- in evaluators -----------------------------------------------------------------------------------------------------


def test_every_average_finds_the_value_of_an_additive_reward() -> None:
    evaluator = Evaluator([POLICY], estimators=BOTH, averages=AVERAGES)
    evaluator.update(log_of_coins(20_000))
    for label, value in values(evaluator).items():
        assert value == pytest.approx(0.7, abs=0.06 if "window" in label or "/decay" in label else 0.02), label


def test_slates_of_any_number_of_slots_and_plain_events_are_one_stream() -> None:
    messages = [
        slate_message(reward=0.5, slots=[coin(0), coin(1, 0.2)]),
        slate_message(reward=1, action="x", propensity=0.25, policies={POLICY: 0.5}),
        slate_message(reward=1, slots=[coin(0)]),
        slate_message(reward=0, slots=[coin(0), coin(0), coin(0)]),
    ]
    evaluator = Evaluator([POLICY], estimators=[*BOTH, IPS()], averages=[Cumulative()])
    for one in messages:
        evaluator.update(batch_of([one]))
    weights = [1.6 + 0.4 - 1, 2.0, 1.6, 3 * 1.6 - 2]
    earned = 0.5 * weights[0] + weights[1] + weights[2]
    assert values(evaluator) == {
        "pseudo_inverse/cumulative": close(earned / 4),
        "weighted_pseudo_inverse/cumulative": close(earned / sum(weights)),
        "ips/cumulative": close((0.5 * 1.6 * 0.4 + 2 + 1.6) / 4),
    }


def test_a_slate_without_a_policy_in_one_slot_is_missing_for_it_alone() -> None:
    slots = [coin(0), coin(1) | {"policies": {"other": 0.5}}]
    slots[0]["policies"] = {POLICY: 0.8, "other": 0.5}
    batch = JsonDecoder([POLICY, "other"]).decode_batch([slate_message(slots=slots)])
    assert np.isnan(slate_weights(batch, [POLICY])[0, 0])
    evaluator = Evaluator([POLICY, "other"], estimators=[PseudoInverse(), IPS()], averages=[Cumulative()])
    evaluator.update(batch)
    assert set(values(evaluator).values()) == {None}
    assert set(values(evaluator, "other").values()) == {1.0}


def test_ips_is_unknown_for_many_slots_and_the_pseudo_inverse_is_not() -> None:
    slots = [coin(0, 1.0, propensity=1e-4) for _ in range(100)]
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse(), IPS()], averages=[Cumulative()])
    evaluator.update(batch_of([slate_message(slots=slots)]))
    actual = values(evaluator)
    assert actual == {"pseudo_inverse/cumulative": close(100 * 1e4 - 99), "ips/cumulative": None}


def test_slates_are_missing_for_estimators_that_look_at_the_other_actions_of_an_event() -> None:
    target = np.array([[0.5, 0.5], [0.5, 0.5]])
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse(), DM()], averages=[Cumulative()])
    evaluator.update(batch_of([slate_message(slots=make_slots([0, 1], target, target))]))
    assert values(evaluator) == {"pseudo_inverse/cumulative": close(1.0), "dm/cumulative": None}


def test_the_mean_ratio_of_a_slot_shows_which_propensities_are_wrong() -> None:
    shown = np.random.default_rng(1).integers(0, 2, (5_000, 3))
    policies = {POLICY: np.where(shown == 1, 0.7, 0.3)}
    propensity = np.full(shown.shape, 0.5)
    propensity[:, 1] = 0.25
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse()], averages=[Cumulative()])
    evaluator.update(EventBatch.from_arrays(reward=shown.mean(axis=1), propensity=propensity, policies=policies))
    estimate = evaluator.report().get(POLICY, "pseudo_inverse", "cumulative")
    assert estimate.details["slot_ratio_means"] == pytest.approx([1, 2, 1], abs=0.03)
    assert json.loads(evaluator.report().to_json())["estimates"][1]["details"]["slot_ratio_means"][2] < 1.03


def test_sigma_squared_is_the_mean_square_of_the_weight_of_all_slates() -> None:
    shown = np.array(list(product((0, 1), repeat=3)))
    policies = {POLICY: np.where(shown == 1, 0.7, 0.3)}
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse(), IPS()], averages=[Cumulative()])
    evaluator.update(EventBatch.from_arrays(reward=np.ones(8), propensity=np.full((8, 3), 0.5), policies=policies))
    report = evaluator.report()
    gamma_inverse_form = 1 + 3 * 2 * (0.2 * 0.2 / 0.5)  # q' Gamma^+ q
    assert report.get(POLICY, "pseudo_inverse", "cumulative").details["sigma_squared"] == close(gamma_inverse_form)
    assert "sigma_squared" not in report.get(POLICY, "ips", "cumulative").details


def test_the_largest_weight_is_rho_when_every_slate_has_been_shown() -> None:
    logging, target = np.tile([0.1, 0.9], (3, 1)), np.tile([0.0, 1.0], (3, 1))
    slates = list(product(range(2), repeat=3))
    weights = defined(slates, np.array([math.prod(logging[0, list(slate)]) for slate in slates]), target)
    assert weights.max() < -weights.min()  # so that the sign matters
    batch = batch_of(slate_message(slots=make_slots(slate, target, logging)) for slate in slates)
    for estimator in BOTH:
        evaluator = Evaluator([POLICY], estimators=[estimator], averages=[Cumulative()])
        evaluator.update(batch)
        estimate = evaluator.report().get(POLICY, estimator.kind, "cumulative")
        assert estimate.importance_weight_max == close(np.abs(weights).max())


def test_ratios_of_slots_fade_by_the_blocks_that_follow_them() -> None:
    batch = log_of_coins(300)
    sums = ratio_sums(batch, [POLICY], np.ones(len(batch)), 100)
    assert sums[:, 0, :3, 0].tolist() == [[100.0] * 3] * 3
    for block in range(3):
        alone = ratio_sums(batch[100 * block : 100 * block + 100], [POLICY], np.ones(100), 100)
        assert sums[block] == pytest.approx(alone[0], rel=1e-12)
    slates = SlateSums({}, sums, None)
    _, state = slates.fold(start_slates(1), 100)
    fading = fading_of(100)
    assert state.ratios[0, :3, 0] == pytest.approx([100.0 * (1 + fading + fading**2)] * 3)


def test_the_ratios_of_no_more_than_some_slots_are_kept() -> None:
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse()], averages=[Cumulative()])
    evaluator.update(log_of_coins(10, slots=SLOTS_SHOWN + 5))
    report = evaluator.report().get(POLICY, "pseudo_inverse", "cumulative")
    assert len(report.details["slot_ratio_means"]) == SLOTS_SHOWN


def test_the_probability_of_actions_never_shown_in_their_slot_is_reported() -> None:
    target, logging = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    evaluator = Evaluator([POLICY], estimators=[PseudoInverse(), IPS()], averages=[Cumulative()])
    evaluator.update(batch_of([slate_message(slots=make_slots([0, 1], target, logging))] * 3))
    report = evaluator.report()
    for estimator in ("ips", "pseudo_inverse"):
        details = report.get(POLICY, estimator, "cumulative").details
        assert details["unsupported_probability"] == close(1 - 0.5 * 0.8)


def test_intervals_by_empirical_bernstein_are_finite_and_around_the_value() -> None:
    evaluator = Evaluator(
        [POLICY], estimators=BOTH, averages=[Cumulative()], intervals={"cumulative": EmpiricalBernstein()}
    )
    evaluator.update(log_of_coins(20_000))
    for estimate in evaluator.report().estimates:
        assert estimate.lower is not None
        assert estimate.value is not None
        assert estimate.upper is not None
        assert estimate.lower < estimate.value < estimate.upper


# -- columns -----------------------------------------------------------------------------------------------------------


def mixed_batch() -> EventBatch:
    target = np.array([[0.5, 0.25, 0.25], [0.2, 0.8, 0.0]])
    listed = {"slates": [[0, 1], [1, 2], [2, 0]], "slate_propensities": [0.5, 0.25, 0.25]}
    return batch_of(
        [
            slate_message(slots=[coin(0), coin(1)]),
            slate_message(slots=make_slots([1, 2], target), **listed),
            slate_message(action=1, propensity=0.5, policies={POLICY: 0.25}),
            slate_message(slots=make_slots([1, 0], target), slate_logging="uniform_ranking"),
            slate_message(slots=make_slots([0, 1], target), **listed),
        ]
    )


def columns(slates: SlateColumns | None) -> dict[str, Any]:
    assert slates is not None
    state = slates.to_state()
    flat = state | {"actions": None, "listed": None} | state["actions"] | (state["listed"] or {})
    return {name: str(np.asarray(value).tolist()) for name, value in flat.items()}  # NaN equals NaN


def test_batches_can_be_cut_taken_joined_and_stored_with_their_slates() -> None:
    batch = mixed_batch()
    assert columns(EventBatch.concat([batch[:1], batch[1:3], batch[3:]]).slates) == columns(batch.slates)
    assert columns(EventBatch.from_state(batch.to_state()).slates) == columns(batch.slates)
    turned = batch.take(np.arange(len(batch))[::-1])
    assert slate_weights(turned, [POLICY])[::-1] == pytest.approx(slate_weights(batch, [POLICY]), nan_ok=True)
    plain = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"other": [0.5]})
    joined = EventBatch.concat([plain, batch])
    assert slate_weights(joined, [POLICY])[1:] == pytest.approx(slate_weights(batch, [POLICY]), nan_ok=True)


def test_a_product_over_the_slots_of_no_slate_is_empty() -> None:
    plain = mixed_batch()[2:3].slates
    assert plain is not None
    assert plain.running_product(np.ones((0, 1))).shape == (0, 1)


def test_policies_found_in_slots_alone_become_columns_when_none_are_configured() -> None:
    events = [slate_message(action=1, propensity=0.5, policies={"b": 0.5}), slate_message(slots=[coin(0), coin(1)])]
    batch = JsonDecoder().decode_batch(events)
    assert batch.policies == ("b", POLICY)
    assert batch.probabilities[1, 1] == close(0.64)


def test_arrays_and_messages_make_the_same_slates() -> None:
    target, logging = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.3, 0.7], [0.6, 0.4]])
    message_batch = batch_of([slate_message(slots=make_slots([0, 1], target, logging))])
    array_batch = EventBatch.from_arrays(
        reward=[1], propensities=[logging], action=[[0, 1]], policies={POLICY: [target]}, timestamp=[0]
    )
    assert columns(array_batch.slates) == columns(message_batch.slates)
    assert array_batch.propensity == close(0.12)


def test_arrays_that_are_not_slates_are_refused_with_the_slot() -> None:
    with pytest.raises(ValueError, match=r"row 1: propensity_range: slots\.2\.propensity: 0 is not in"):
        EventBatch.from_arrays(reward=[1, 1], propensity=[[0.5, 0.5, 0.5], [0.5, 0.5, 0]])
    with pytest.raises(ValueError, match="no action twice"):
        EventBatch.from_arrays(
            reward=[1], propensities=np.full((1, 2, 2), 0.5), action=[[0, 0]], slate_logging="uniform_ranking"
        )
    with pytest.raises(ValueError, match=r"action: expected integers of the shape \[1, 2\]"):
        EventBatch.from_arrays(reward=[1], propensities=np.full((1, 2, 2), 0.5), action=[0])


# -- rejections --------------------------------------------------------------------------------------------------------

TWO: dict[str, Any] = {"actions": ["a", "b"], "propensities": [0.5, 0.5], "action": "a"}
RANKED: dict[str, Any] = {"actions": ["a", "b"], "action": "a"}
LISTED: dict[str, Any] = {"slates": [["a", "b"], ["b", "a"]], "slate_propensities": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("slots", "reason", "detail"),
    [
        ([], "malformed", "slots: empty"),
        (3, "malformed", "slots: expected array, got int"),
        ([3], "malformed", "slots.0: expected object, got int"),
        ([coin(0), {"propensity": 0.5}], "missing_field", "slots.1.action: missing"),
        ([coin(0), {"action": 1}], "missing_field", "slots.1.propensity: missing, as is `propensities`"),
        ([coin(0), coin(0, propensity=0)], "propensity_range", "slots.1.propensity: 0 is not in (0, 1]"),
        ([coin(0, propensity="x")], "malformed", "slots.0.propensity: expected float, got str"),
        ([coin(0), coin(0, 1.5)], "probability_range", f"slots.1.policies.{POLICY}: 1.5 is not in [0, 1]"),
        ([coin(0), TWO | {"action": "c"}], "unknown_action", "slots.1.action: not one of the 2 `actions`"),
        (
            [TWO | {"propensities": [0.5, 0.6]}],
            "distribution_sum",
            "slots.0.propensities: sums to 1.1, not to 1",
        ),
        (
            [TWO | {"policies": {POLICY: [0.5, 0.6]}}],
            "distribution_sum",
            f"slots.0.policies.{POLICY}: sums to 1.1, not to 1",
        ),
        (
            [coin(0), TWO | {"propensities": [1.0]}],
            "malformed",
            "slots.1.propensities: 1 entry for 2 actions",
        ),
        (
            [TWO, TWO | {"propensity": 0.25}],
            "inconsistent_propensity",
            "slots.1.propensity: 0.25, but `propensities` has 0.5 for the action",
        ),
        ([coin(0, actions=[])], "malformed", "slots.0.actions: empty"),
    ],
)
def test_an_invalid_slot_has_its_reason_and_its_number(slots: Any, reason: str, detail: str) -> None:
    assert rejection(slots=slots) == (reason, detail)


def test_numbers_that_are_not_finite_are_named_by_their_slot() -> None:
    text = slate_message(slots=[coin(0), coin(1, propensity="@")]).replace(b'"@"', b"1e999")
    (rejected,) = JsonDecoder([POLICY]).decode_batch([text]).rejected
    assert (rejected.reason, rejected.detail) == ("not_finite", "slots.1.propensity: inf is not a finite number")


@pytest.mark.parametrize("field", ["action", "propensity", "policies", "actions", "propensities", "features"])
def test_fields_of_slots_are_refused_next_to_them(field: str) -> None:
    value = {"action": 1, "propensity": 0.5, "policies": {POLICY: 0.5}}.get(field, [[0.5]] if "f" in field else [1])
    assert rejection(slots=[coin(0)], **{field: value}) == (
        "malformed",
        f"{field}: not allowed together with `slots`",
    )


@pytest.mark.parametrize(
    ("slots", "detail"),
    [
        ([RANKED, coin(0)], "slots.1.actions: missing, but a ranking is drawn from them"),
        ([RANKED, RANKED], "slots.1.action: 'a' is shown twice in a ranking"),
        (
            [RANKED, {"actions": ["b", "c"], "action": "b"}],
            "slots.1.actions: differ from slots.0; all slots of a ranking must list the same actions",
        ),
        ([RANKED, RANKED | {"action": "b"}, RANKED | {"action": "c"}], "slots: 3 for a ranking of 2 actions"),
    ],
)
def test_slates_that_are_not_a_ranking_are_malformed(slots: Any, detail: str) -> None:
    assert rejection(slots=slots, slate_logging="uniform_ranking") == ("malformed", detail)


def test_a_ranking_has_no_propensities_but_those_that_follow_from_it() -> None:
    slots = [RANKED, RANKED | {"action": "b", "propensity": 0.25}]
    assert rejection(slots=slots, slate_logging="uniform_ranking")[:1] == ("distribution_sum",)
    reported = [RANKED | {"propensities": [0.25, 0.75]}, RANKED | {"action": "b"}]
    reason, detail = rejection(slots=reported, slate_logging="uniform_ranking")
    assert (reason, detail) == (
        "inconsistent_propensity",
        "slots.0.propensity: 0.25, but the way the slate was logged gives 0.5",
    )


@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"slates": [["a", "b"]]}, "malformed", "slate_propensities: 0 entries for 1 slate"),
        ({"slate_propensities": [1.0]}, "malformed", "slate_propensities: 1 entry for 0 slates"),
        (LISTED | {"slates": [["a", "b"], ["a"]]}, "malformed", "slates[1]: 1 action for 2 slots"),
        (
            LISTED | {"slates": [["a", "b"], ["a", "c"]]},
            "malformed",
            "slates[1][1]: 'c' is not one of slots.1.actions",
        ),
        (LISTED | {"slates": [["a", "b"], ["a", "b"]]}, "malformed", "slates: a slate is listed twice"),
        (
            LISTED | {"slate_propensities": [0.5, 0.6]},
            "distribution_sum",
            "slate_propensities: sums to 1.1, not to 1",
        ),
        (
            LISTED | {"slate_propensities": [1.5, -0.5]},
            "propensity_range",
            "slate_propensities[0]: 1.5 is not in [0, 1]",
        ),
        (LISTED | {"slates": [["b", "b"], ["b", "a"]]}, "unknown_action", "slots: not one of the 2 `slates`"),
        (
            LISTED | {"slates": [["b", "b"]], "slate_propensities": [1.0]},
            "unknown_action",
            "slots: not one of the 1 `slates`",
        ),
        (
            LISTED | {"slate_logging": "uniform_ranking"},
            "malformed",
            "slate_logging: cannot be combined with `slates`",
        ),
    ],
)
def test_a_list_of_slates_that_does_not_fit_has_its_reason(fields: dict[str, Any], reason: str, detail: str) -> None:
    assert rejection(slots=[RANKED, RANKED | {"action": "b"}], **fields) == (reason, detail)


def test_too_many_actions_to_solve_for_are_refused_with_a_list_of_slates() -> None:
    many = {"actions": list(range(251)), "action": 0}
    assert rejection(slots=[many, many], slates=[[0, 0]], slate_propensities=[1.0]) == (
        "malformed",
        "slots: 502 actions with `slates`, more than the limit of 500",
    )


def test_a_slate_that_is_never_shown_cannot_have_been_shown() -> None:
    fields = LISTED | {"slate_propensities": [0.0, 1.0]}
    reason, detail = rejection(slots=[RANKED, RANKED | {"action": "b"}], **fields)
    assert (reason, detail) == ("propensity_range", "slots.0.propensity: 0 is not in (0, 1]")


def test_a_bad_slate_does_not_affect_its_neighbours() -> None:
    good = slate_message(slots=[coin(0), coin(1, 0.2)])
    bad = [
        slate_message(slots=[]),
        slate_message(slots=[coin(0, propensity=2)]),
        b"{}",
        slate_message(slots=[coin(0)], action=1),
    ]
    batch = JsonDecoder([POLICY]).decode_batch([good, *bad, good])
    assert [rejected.reason for rejected in batch.rejected] == [
        "malformed",
        "propensity_range",
        "missing_field",
        "malformed",
    ]
    assert slate_weights(batch, [POLICY]).ravel().tolist() == close([1.0, 1.0])


def test_a_policy_with_an_unusable_probability_is_missing_in_the_slot() -> None:
    batch = batch_of([slate_message(slots=[coin(0, "huh"), coin(1, None)])])  # type: ignore[arg-type]
    assert batch.slates is not None
    assert np.isnan(batch.slates.probabilities).all()


# -- lifts of slots ----------------------------------------------------------------------------------------------------


def lifts_of(evaluator: Evaluator, policy: str = POLICY) -> tuple[list[float], float | None]:
    """Return the lifts of the slots, and the lift of the slate."""
    estimate = evaluator.report().get(policy, "pseudo_inverse", "cumulative")
    return estimate.details["slot_lifts"], estimate.lift


def test_the_lift_of_a_slot_is_the_lift_of_changing_this_slot_alone() -> None:
    heads = np.random.default_rng(3).integers(0, 2, (1_000, 3))
    chances = np.array([0.8, 0.5, 0.1])
    target = np.where(heads == 1, chances, 1 - chances)
    batch = EventBatch.from_arrays(
        reward=heads @ [0.5, 0.3, 0.2], propensity=np.full(heads.shape, 0.5), policies={POLICY: target}
    )
    evaluator = Evaluator([POLICY], [PseudoInverse()], [Cumulative()])
    evaluator.update(batch)
    slots, lift = lifts_of(evaluator)
    assert slots == close((batch.reward[:, None] * (target / 0.5 - 1)).mean(axis=0).tolist())
    assert sum(slots) == close(lift, rel=1e-12)
    assert slots == pytest.approx([0.5 * 0.3, 0, -0.2 * 0.4], abs=0.05)


@pytest.mark.parametrize("production", ["logging", "other"])
@pytest.mark.parametrize("cut", [1, 130, 999])
def test_lifts_of_slots_sum_to_the_lift_on_slates_of_every_kind(production: str, cut: int) -> None:
    rng = np.random.default_rng(9)
    rankings = [list(ranking) for ranking in permutations(range(4), 3)]
    shares = rng.dirichlet(np.ones(24)).tolist()
    ways: list[dict[str, Any]] = [
        {"slate_logging": "uniform_ranking"},
        {"slates": rankings, "slate_propensities": shares},
        {"action": 1, "propensity": 0.5, "policies": {POLICY: 0.25, "other": 0.3}},
    ]
    messages = []
    for number in range(300):
        way, ranking = ways[number % 3], rankings[int(rng.integers(24))]
        slots = [
            {"action": action, "actions": [0, 1, 2, 3]}
            | {"policies": {name: rng.dirichlet(np.ones(4)).tolist() for name in (POLICY, "other")}}
            for action in ranking[: 3 if number % 2 else 2] or ranking
        ]
        if "slates" in way:
            slots = [*slots, {**slots[0], "action": ranking[2]}][:3]
        fields = way if "action" in way else {**way, "slots": slots}
        messages.append(slate_message(reward=float(rng.random()), **fields))
    batch = JsonDecoder([POLICY, "other"]).decode_batch(messages)
    assert not batch.rejected
    candidates = [POLICY] if production == "other" else [POLICY, "other"]
    evaluator = Evaluator(candidates, [PseudoInverse(), WeightedPseudoInverse()], [Cumulative()], production=production)
    evaluator.update(batch[:cut])
    evaluator = Evaluator.from_state(evaluator.state())
    evaluator.update(batch[cut:])
    for policy in candidates:
        slots_, lift = lifts_of(evaluator, policy)
        assert len(slots_) == 3
        assert sum(slots_) == close(lift, rel=1e-9)
    details = evaluator.report().get(POLICY, "weighted_pseudo_inverse", "cumulative").details
    assert "slot_lifts" not in details


def test_later_slots_count_as_the_last_one_shown() -> None:
    evaluator = Evaluator([POLICY], [PseudoInverse()], [Cumulative()])
    evaluator.update(log_of_coins(10, slots=SLOTS_SHOWN + 5))
    slots, lift = lifts_of(evaluator)
    assert len(slots) == SLOTS_SHOWN
    assert sum(slots) == close(lift)
