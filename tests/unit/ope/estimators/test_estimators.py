"""Test the terms of each estimator against its definition, and properties that hold on any data."""

from __future__ import annotations

import math
from copy import deepcopy
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from streameval import Evaluator
from streameval.common.arrays import to_plain
from streameval.common.problems import ProblemsError
from streameval.events import EventBatch
from streameval.ope.core import Cumulative, Decay, Window
from streameval.ope.estimators import (
    CAB,
    CABDR,
    DM,
    DR,
    IIPS,
    IPS,
    SNIPS,
    AnyEstimator,
    ClippedIPS,
    ControlVariate,
    Estimator,
    ScoredSNIPS,
    StaticBlend,
    StratifiedDR,
    StratifiedIPS,
    Switch,
    TermRange,
)
from streameval.ope.evidence import Evidence
from streameval.ope.policies.logged import LOGGING
from support import parts
from support.reference import brute_force
from support.strategies import examples
from support.streams import CANDIDATE, Stream, close, evaluated, from_weights, random_stream, streams

BLOCK = 20
ESTIMATORS = parts.estimators_of_weights()
AVERAGES = [Cumulative(), Window(tau=60, resolution=1), Decay(alpha=0.98)]
quickly = examples(40)


def values(
    stream: Stream, estimators: list[AnyEstimator], policy: str = CANDIDATE, **options: object
) -> dict[str, float]:
    """Return the values of `policy` by the label estimator/average."""
    report = evaluated(stream, estimators=estimators, averages=AVERAGES, block=BLOCK, **options).report()
    actual = {f"{e.estimator}/{e.average}": e.value for e in report.estimates if e.policy == policy}
    return {label: math.nan if value is None else value for label, value in actual.items()}


@pytest.mark.parametrize(
    "estimator", [estimator for estimator in ESTIMATORS if estimator.kind in brute_force.DEFINED], ids=str
)
@quickly
@given(stream=streams(most=200))
def test_the_value_is_the_mean_of_the_terms_of_the_definition(estimator: Estimator, stream: Stream) -> None:
    terms = brute_force.terms(estimator.label, stream.present, stream.weight, stream.reward, cap=parts.CAP, block=BLOCK)
    expected = brute_force.moments(brute_force.cumulative(len(stream)), terms)
    report = evaluated(stream, estimators=[estimator], averages=[Cumulative()], block=BLOCK).report()
    estimate = report.get(CANDIDATE, estimator.label, "cumulative")
    if math.isnan(expected.value):
        assert estimate.value is None
    else:
        assert estimate.value == pytest.approx(expected.value, rel=1e-9, abs=1e-12)
        assert estimate.effective_sample_size == pytest.approx(expected.effective_sample_size, rel=1e-9)
        assert estimate.importance_weight_mean == pytest.approx(expected.mean_weight, rel=1e-9)


@quickly
@given(constant=st.floats(-5, 5), stream=streams(most=200))
def test_snips_of_a_constant_reward_is_that_constant(constant: float, stream: Stream) -> None:
    stream = stream.with_(reward=np.full(len(stream), constant))
    for value in values(stream, [SNIPS()], reward_range=(-5.0, 5.0)).values():
        assert math.isnan(value) or value == pytest.approx(constant, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("constant", [1.0, 0.3, -4.7, 1e-5])
def test_the_interval_of_snips_of_a_constant_reward_is_that_constant(constant: float) -> None:
    stream = random_stream(11, 3_000, missing=0.1)
    stream = stream.with_(reward=np.full(len(stream), constant))
    evaluator = evaluated(stream, estimators=[SNIPS()], averages=AVERAGES, reward_range=(-5.0, 5.0))
    for estimate in evaluator.report().estimates:
        assert (estimate.lower, estimate.upper) == (
            pytest.approx(constant, rel=1e-12),
            pytest.approx(constant, rel=1e-12),
        )


@quickly
@given(shift=st.floats(-3, 3), stream=streams(most=200))
def test_snips_moves_with_a_constant_that_is_added_to_all_rewards(shift: float, stream: Stream) -> None:
    moved = stream.with_(reward=stream.reward + shift)
    before, after = (values(s, [SNIPS()], reward_range=(-5.0, 5.0)) for s in (stream, moved))
    for label, value in before.items():
        assert math.isnan(value) or after[label] == pytest.approx(value + shift, rel=1e-9, abs=1e-9)


@quickly
@given(stream=streams(most=200, missing=st.just(0.0)), cap=st.floats(1, 10))
def test_with_the_logging_policy_as_candidate_every_estimator_is_the_mean_reward(stream: Stream, cap: float) -> None:
    same = stream.with_(target=stream.propensity)
    estimators: list[AnyEstimator] = [IPS(), SNIPS(), ClippedIPS(cap=cap), ControlVariate(), StratifiedIPS()]
    candidate, logging = values(same, estimators), values(same, estimators, LOGGING)
    for label in candidate:
        assert math.isnan(candidate[label]) or candidate[label] == pytest.approx(logging[label], rel=1e-12, abs=1e-12)
    if len(same):
        mean = np.average(same.reward, weights=1 / same.sampling)
        for estimator in estimators:
            assert candidate[f"{estimator.label}/cumulative"] == pytest.approx(mean, rel=1e-12, abs=1e-12)


@quickly
@given(stream=streams(most=200))
def test_clipped_ips_without_a_limit_is_ips(stream: Stream) -> None:
    unlimited = values(stream, [ClippedIPS(cap=math.inf)])
    plain = values(stream, [IPS()])
    for average in AVERAGES:
        clipped, unclipped = unlimited[f"clipped_ips/{average.label}"], plain[f"ips/{average.label}"]
        assert clipped == unclipped or (math.isnan(clipped) and math.isnan(unclipped))


@quickly
@given(stream=streams(most=200), cap=st.floats(0.01, 30), larger=st.floats(1, 10))
def test_a_larger_cap_never_lowers_clipped_ips_of_rewards_above_zero(stream: Stream, cap: float, larger: float) -> None:
    low, high = (values(stream, [ClippedIPS(cap=limit)]) for limit in (cap, cap * larger))
    for label, value in low.items():
        assert math.isnan(value) or value <= high[label] * (1 + 1e-12)


@quickly
@given(seed=st.integers(0, 1000), order=st.randoms(use_true_random=False))
def test_the_order_of_events_within_a_block_does_not_matter_to_sums_over_blocks(seed: int, order: Random) -> None:
    stream = random_stream(seed, 5 * BLOCK, missing=0.2)
    shuffle = np.concatenate([first + np.array(order.sample(range(BLOCK), BLOCK)) for first in range(0, 100, BLOCK)])
    before, after = (
        evaluated(
            s, estimators=ESTIMATORS, averages=[Cumulative(), Window(tau=60, resolution=20)], block=BLOCK
        ).report()
        for s in (stream, stream[shuffle])
    )
    for one, other in zip(before.estimates, after.estimates, strict=True):
        assert other.value == close(one.value, rel=1e-12)
        assert other.lower == close(one.lower)


def test_the_control_variate_never_uses_the_block_that_it_corrects() -> None:
    stream = random_stream(3, 3 * BLOCK)
    other = stream.reward.copy()
    other[2 * BLOCK :] = 1 - other[2 * BLOCK :]
    slopes = []
    for reward in (stream.reward, other):
        evidence = Evidence.from_numbers(stream.weight[:, None], reward, block=BLOCK)
        terms, _ = ControlVariate().terms(evidence, ControlVariate().start(1))
        weight = evidence.importance_weight
        slopes.append((weight * reward[:, None] - terms.numerator) / (weight - 1))
    np.testing.assert_allclose(slopes[0][:BLOCK], 0.0, atol=1e-12)
    np.testing.assert_allclose(slopes[0][-BLOCK:], slopes[1][-BLOCK:], rtol=1e-9)
    assert np.all(np.abs(slopes[0][-BLOCK:]) > 1e-3)


def test_the_control_variate_removes_the_variance_that_the_weight_explains() -> None:
    rng = np.random.default_rng(20240501)
    weight = rng.exponential(1.0, 20_000)
    stream = from_weights(weight, (rng.uniform(size=20_000) < 0.9) * 1.0)
    estimators, averages = [IPS(), ControlVariate()], [Cumulative()]
    report = evaluated(stream, estimators=estimators, averages=averages, intervals={"cumulative": "normal"}).report()
    plain, corrected = (report.get(CANDIDATE, label, "cumulative") for label in ("ips", "control_variate"))
    assert plain.upper is not None
    assert corrected.upper is not None
    assert corrected.value == pytest.approx(0.9, abs=0.02)
    assert corrected.upper - corrected.value < (plain.upper - plain.value) / 2


def test_the_control_variate_remembers_sums_that_fade_over_a_hundred_thousand_events() -> None:
    block = 1_000
    evidence = Evidence.from_numbers(np.ones((block, 1)), np.ones(block), block=block)
    memory = ControlVariate().start(1)
    for _ in range(500):
        _, memory = ControlVariate().terms(evidence, memory)
    assert memory.slope.max() == pytest.approx(100_000 * (1 - math.exp(-5)), rel=0.01)


def described(n: int, seed: int) -> EventBatch:
    """Draw events with full distributions of the logging policy and the candidate, and features of four actions."""
    rng = np.random.default_rng(seed)
    logging, target = rng.dirichlet(np.ones(4), n), rng.dirichlet(np.ones(4), n)
    action, features = rng.integers(4, size=n), rng.normal(size=(n, 4, 2))
    chance = 1 / (1 + np.exp(-features[np.arange(n), action, 0]))
    return EventBatch.from_arrays(
        reward=(rng.uniform(size=n) < chance) * 1.0,
        action=action,
        propensities=logging,
        features=features,
        policies={CANDIDATE: target},
    )


def test_stratified_dr_with_a_threshold_that_no_weight_reaches_is_ips() -> None:
    evaluator = Evaluator([CANDIDATE], estimators=[IPS(), StratifiedDR(threshold=1e30)], averages=AVERAGES, block=BLOCK)
    evaluator.update(described(207, seed=5))
    report = evaluator.report()
    for average in AVERAGES:
        one, other = (report.get(CANDIDATE, label, average.label) for label in ("ips", "stratified_dr"))
        assert one.value is not None
        assert other.value == pytest.approx(one.value, rel=1e-12)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (StaticBlend(tau=1), IPS()),
        (Switch(cap=math.inf), IPS()),
        (CAB(cap=math.inf), IPS()),
        (StaticBlend(tau=0), DM()),
        (Switch(cap=0), DM()),
        (CAB(cap=0), DM()),
        (CABDR(cap=0), DM()),
        (CABDR(cap=math.inf), DR()),
    ],
    ids=lambda estimator: repr(estimator),
)
def test_at_the_ends_of_its_parameter_an_estimator_equals_another_one(one: AnyEstimator, other: AnyEstimator) -> None:
    evaluator = Evaluator([CANDIDATE], estimators=[one, other], averages=AVERAGES, block=BLOCK)
    evaluator.update(described(10 * BLOCK + 7, seed=7))
    report = evaluator.report()
    for average in AVERAGES:
        actual, expected = (report.get(CANDIDATE, e.label, average.label).value for e in (one, other))
        assert expected is not None
        assert actual == pytest.approx(expected, rel=1e-12)


def test_stratified_dr_is_ips_while_its_model_knows_nothing() -> None:
    evaluator = Evaluator([CANDIDATE], estimators=[IPS(), StratifiedDR(threshold=0.5)], averages=AVERAGES, block=BLOCK)
    events = described(2 * BLOCK, seed=6)
    evaluator.update(events[:BLOCK])
    before = evaluator.report()
    evaluator.update(events[BLOCK:])
    after = evaluator.report()
    first, second = (
        [report.get(CANDIDATE, label, "cumulative").value for label in ("ips", "stratified_dr")]
        for report in (before, after)
    )
    assert first[1] == pytest.approx(first[0], rel=1e-12)
    assert second[1] != pytest.approx(second[0], rel=1e-3)


def test_terms_are_a_pure_function_of_evidence_and_memory() -> None:
    stream = random_stream(8, 3 * BLOCK, missing=0.3)
    evidence = Evidence.from_numbers(stream.weight[:, None], stream.reward, BLOCK, stream.present[:, None])
    for estimator in ESTIMATORS:
        memory = estimator.start(1)
        before = deepcopy(memory)
        first, _ = estimator.terms(evidence, memory)
        second, _ = estimator.terms(evidence, memory)
        np.testing.assert_array_equal(first.numerator, second.numerator)
        assert to_plain(memory) == to_plain(before)


@pytest.mark.parametrize("cap", [0, -1, math.nan])
def test_a_cap_that_is_not_above_zero_is_refused(cap: float) -> None:
    with pytest.raises(ProblemsError, match="cap"):
        ClippedIPS(cap=cap)


def test_a_label_is_the_name_or_else_the_kind() -> None:
    adapter: TypeAdapter[AnyEstimator] = TypeAdapter(AnyEstimator)
    named = adapter.validate_python({"kind": "clipped_ips", "cap": 5, "name": "gentle"})
    assert (named.label, IPS().label) == ("gentle", "ips")
    assert named == ClippedIPS(cap=5, name="gentle")
    with pytest.raises(ValueError, match="cap"):
        adapter.validate_python({"kind": "ips", "cap": 5})


@pytest.mark.parametrize(
    ("rewards", "width"), [((0.0, 1.0), 4.0), ((-2.0, 3.0), 20.0), ((1.0, 3.0), 12.0), ((-3.0, -1.0), 12.0)]
)
@pytest.mark.parametrize("estimator", [IPS(), IIPS(), Estimator()], ids=["ips", "iips", "any that states no limits"])
def test_weighted_rewards_lie_between_no_weight_and_the_largest(
    rewards: tuple[float, float], width: float, estimator: Estimator
) -> None:
    assert estimator.term_range(rewards, np.array([4.0])).width.tolist() == [width]


@pytest.mark.parametrize(("rewards", "width"), [((0.0, 1.0), 9.0), ((-2.0, 3.0), 45.0)])
def test_a_correction_by_the_largest_weight_goes_to_either_side(rewards: tuple[float, float], width: float) -> None:
    assert StratifiedDR().term_range(rewards, np.array([4.0])).width.tolist() == [width]


@pytest.mark.parametrize(("mean", "scale"), [(0.5, 2.0), (4.0, 0.25), (0.0, 1.0), (-1.0, 1.0)])
def test_the_deviation_of_a_ratio_is_in_units_of_its_mean_denominator(mean: float, scale: float) -> None:
    terms = TermRange.by_column([ScoredSNIPS()], (0.0, 1.0), np.array([4.0]))
    lines = terms.linearised(np.array([mean]))
    assert (lines.low_slope.tolist(), lines.high_slope.tolist()) == ([-scale], [scale])
