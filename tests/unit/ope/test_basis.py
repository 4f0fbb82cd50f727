"""Test what decisions say they rest on."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streameval as se
from streameval.common.arrays import Array
from streameval.ope.answer import answers
from streameval.ope.evidence import Evidence
from streameval.ope.promotion.propensity_factor import clicks_factor, propensity_factor
from streameval.ope.promotion.rules import RuleContext
from streameval.ope.report import Basis, Decision
from support.scored_events import POLICIES, batch_of, scored
from support.strategies import examples

EVENTS = 20_000


def log(**changes: Any) -> se.EventBatch:
    random = np.random.default_rng(3)
    first = random.random(EVENTS) < 0.7
    reward = random.random(EVENTS) < np.where(first, 0.1, 0.3)
    new = np.where(random.random(EVENTS) < 0.05, np.nan, np.where(first, 0.3, 0.7))
    columns = {"reward": reward, "propensity": np.where(first, 0.7, 0.3), "policies": {"new": new}}
    return se.EventBatch.from_arrays(**columns | {"timestamp": 10.0 * np.arange(EVENTS)} | changes)


def decision(batch: se.EventBatch, rule: str, **trust: Any) -> tuple[Decision, se.Report]:
    promotion = se.Promotion(rule=rule, min_events=1_000, trust=se.Trust(**trust))
    evaluator = se.Evaluator(["new"], ["ips", "snips"], [se.Mixture()], promotion=promotion, drift=None)
    evaluator.update(batch)
    report = evaluator.report()
    return next(row for row in report.promotion if row.rule == rule), report


def test_a_decision_carries_the_numbers_of_its_estimate() -> None:
    found, report = decision(log(), "paired")
    row = report.get("new", found.estimator, found.average)
    assert found.basis.effective_events == row.effective_sample_size
    errors = 2 * 1.959964 * row.lift / (row.lift_upper - row.lift_lower)
    assert 0.6 * errors < (found.basis.standard_errors or 0) < 1.1 * errors  # rules allow for more
    assert found.basis.missing_share == pytest.approx(0.05, abs=0.005)
    assert found.basis.clipped_share is None
    batch = log()
    weight = np.nan_to_num(batch.probabilities[:, 0] / batch.propensity)
    shares = [part.max() / part.sum() for part in (weight, weight * batch.reward)]
    assert found.basis.largest_share == pytest.approx(max(shares), rel=1e-9)
    assert found.basis.failed == ()


def test_start_up_values_of_a_mixture_are_no_effective_events() -> None:
    near = log(policies={"new": np.where(log().propensity > 0.5, 0.69, 0.31)})[:1_000]
    found, report = decision(near, "paired")
    assert 900 < (found.basis.effective_events or 0) <= 1_000
    assert all((row.effective_sample_size or 0) <= 1_000 for row in report.estimates)


def test_a_rule_of_whole_periods_tells_its_own_standard_errors() -> None:
    found, _ = decision(log(), "periodic")
    assert found.lift is not None
    assert found.lower is not None
    assert found.basis.standard_errors == pytest.approx(3.0 * found.lift / (found.lift - found.lower), rel=1e-3)


def test_failed_checks_of_the_candidate_and_of_production_are_named() -> None:
    found, report = decision(log(), "paired", effective_sample_size=1e6, missing_share=0.01)
    assert found.basis.failed == ("effective_sample_size", "missing_share")
    assert "failed trust checks (effective_sample_size, missing_share)" in " ".join(answers(report)[0].details)


def test_a_transition_has_the_evidence_of_its_moment() -> None:
    _, report = decision(log(), "paired")
    first, basis = report.transitions[0], report.transitions[0].basis
    assert basis is not None
    assert first.promotable
    assert 1_000 <= (basis.effective_events or 0) <= first.event
    assert 0 < (basis.largest_share or 0) < 0.1
    assert (basis.standard_errors or 0) > 2.5
    _, report = decision(log(), "periodic")
    for change in report.transitions:
        assert change.basis is not None
        assert change.lift is not None
        assert change.lift_lower is not None
        errors = 3.0 * change.lift / (change.lift - change.lift_lower)
        assert change.basis.standard_errors == pytest.approx(errors, rel=1e-4)  # the rule rounds 1.95996 to 1.96


def test_the_words_behind_an_answer_say_what_it_rests_on() -> None:
    _, report = decision(log(), "paired")
    (line,) = [text for text in answers(report)[0].details if text.startswith("paired rests on ")]
    basis = report.promotion[0].basis
    assert f"{round(basis.effective_events or 0):,} effective events" in line
    assert f"a lift of {basis.standard_errors:.1f} standard errors" in line
    assert line.endswith("% events that it lacks")


def test_nothing_is_known_before_the_first_event() -> None:
    report = se.Evaluator(["new"]).report()
    assert {row.basis.standard_errors for row in report.promotion} == {None}
    assert {row.basis.effective_events for row in report.promotion} <= {None, 0.0}
    assert Basis().failed == ()


def wrong_propensities(seed: int, factor: float, share: float) -> se.EventBatch:
    """Draw a log whose weights of candidate `a` are wrong by up to a factor, in the least favourable way.

    A share of the users likes everything, and the others nothing, so all policies are equally good. The log shows `a`
    more often to those who like it, and its propensity of .5 hides this.
    """
    random = np.random.default_rng(seed)
    likes = random.random(4_000) < share
    shown = random.random(4_000) < np.where(likes, 0.5 * factor, 0.5 / factor)
    return se.EventBatch.from_arrays(
        reward=likes * 1.0, propensity=np.full(4_000, 0.5), policies={"a": np.where(shown, 1.0, 0.0)}
    )


def pages(seed: int, looks: Any = (0.8, 0.5, 0.3)) -> se.EventBatch:
    """Draw pages of three equally attractive items. Candidate `a` swaps the first two, which gains nothing."""
    clicks = np.random.default_rng(seed).random((4_000, 3)) < 0.3 * np.array(looks)
    return se.EventBatch.from_rankings(clicks=clicks, ranks={"a": np.tile([2.0, 1.0, 3.0], (4_000, 1))}, list_length=3)


def curve(factor: float) -> dict[str, Any]:
    """Return a ranking whose looks are wrong by a factor, in the least favourable way for `pages`."""
    values = [0.8 * factor, 0.5 / factor, 0.3]
    return {"ranking": {"metric": {"kind": "dcg", "at": 3}, "examination": {"kind": "table", "values": values}}}


def factor_of(batch: se.EventBatch, estimator: str, **options: Any) -> float:
    promotion = se.Promotion(rule="paired", min_events=100)
    evaluator = se.Evaluator(["a"], [estimator], [se.Mixture()], promotion=promotion, drift=None, **options)
    evaluator.update(batch)
    (row,) = evaluator.report().promotion
    return row.basis.propensity_factor or 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "factor", "share", "usual"),
    [
        ("snips", 1.1, 0.5, 1.01),
        ("snips", 1.3, 0.2, 1.1),
        ("click_ips", 1.2, None, 1.05),
        ("click_snips", 1.2, None, 1.05),
    ],
)
def test_the_factor_exceeds_the_true_one_in_at_most_5_percent_of_logs(
    estimator: str, factor: float, share: float | None, usual: float
) -> None:
    found = [
        factor_of(pages(seed), estimator, **curve(factor))
        if share is None
        else factor_of(wrong_propensities(seed, factor, share), estimator)
        for seed in range(200)
    ]
    assert np.mean(np.array(found) > factor) <= 0.05
    assert np.median(found) > usual


@pytest.mark.parametrize("is_ratio", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.02, -0.02])
def test_no_wrong_looks_within_the_factor_contradict_a_better_ranking(margin: float, is_ratio: bool) -> None:
    random = np.random.default_rng(5)
    looks, clicks = random.uniform(0.2, 1.0, (4, 3)), random.uniform(0.1, 0.5, (4, 3))
    gain = np.array([[0.3, -0.1, 0.0], [0.0, 0.3, -0.3], [-0.1, 0.2, 0.1], [0.0, 0.2, -0.1]])
    scale = (clicks / looks).sum() if is_ratio else 4.0

    def worst(wrong: Array) -> float:
        """Return the least lift if the probabilities of looks are wrong by each of these factors."""
        weight = clicks * wrong.reshape(-1, 4, 3) / looks
        return float(((gain * weight).sum((1, 2)) / (weight.sum((1, 2)) if is_ratio else 4.0)).min())

    lift, moved = ((size * clicks / looks).sum() / scale for size in (gain, np.abs(gain)))
    found = clicks_factor(lift, moved, margin, is_ratio) or 0.0
    every = np.array(list(product([-1.0, 1.0], repeat=12)))
    by_rank = np.repeat(np.array(list(product([-1.0, 1.0], repeat=3)))[:, None], 4, axis=1)
    assert 1.2 < found < 10
    assert worst(found**every) >= margin - 1e-9
    assert worst(found**by_rank) > margin  # looks that depend on the rank alone cannot be as unfavourable
    if not (is_ratio and margin):
        assert worst((1.001 * found) ** every) < margin
    assert clicks_factor(lift, moved, lift, is_ratio) is None


def test_a_factor_of_looks_is_in_the_basis_of_a_ranking() -> None:
    clicks = np.tile(np.random.default_rng(1).random((100, 3)) < [0.1, 0.2, 0.2], (40, 1))
    ranks = np.tile([2.0, 1.0, 3.0], (4_000, 1))
    batch = se.EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, list_length=3)
    metric = {"kind": "average_relevance_position", "at": 3}
    promotion = se.Promotion(rule="paired", min_events=100)

    def of(estimators: list[Any], **examination: Any) -> tuple[Decision, se.Report]:
        ranking = {"metric": metric, "examination": {"kind": "table", "values": [1, 0.5, 0.25], **examination}}
        options = {"promotion": promotion, "ranking": ranking, "drift": None}
        evaluator = se.Evaluator(["new"], estimators, [se.Mixture()], **options)
        evaluator.update(batch)
        return evaluator.report().promotion[0], evaluator.report()

    found, report = of(["click_ips"])
    row, lower = report.get("new", "click_ips", found.average), found.lower or 0.0
    weight = clicks.sum(axis=0) * [1, 2, 4]
    share = weight[:2].sum() / (weight @ [3, 3, 6])
    moved = share * (row.details["lift_value"] + row.details["lift_production_value"])
    factor = np.sqrt((moved + lower) / (moved - lower))
    assert factor > 1.1
    assert found.basis.propensity_factor == pytest.approx(factor, rel=1e-6)
    assert f"probabilities of looks are right within {np.floor(100 * factor) / 100:.2f} times" in " ".join(
        answers(report)[0].details
    )
    assert of(["click_ips"], noise=[0.1])[0].basis.propensity_factor is None
    assert of([{"kind": "clipped_click_ips", "cap": 1}])[0].basis.propensity_factor is None


@examples(20)
@given(st.lists(st.tuples(*[st.floats(0.05, 1)] * 4, st.floats(-1, 1)), min_size=1, max_size=6))
def test_wrong_propensities_bias_estimates_as_lemma_2_says(rows: list[tuple[float, ...]]) -> None:
    logging, target, true, wrong, reward = np.array(rows).T
    logging, target = logging / logging.sum(), target / target.sum()
    batch = se.EventBatch.from_arrays(reward=reward, propensity=wrong, policies={"new": target})
    estimates = se.IPS().terms(Evidence.from_batch(batch, ["new"], len(rows)), None)[0].numerator[:, 0]
    error = target * reward * (logging / wrong - 1)
    assert logging @ estimates - target @ reward == pytest.approx(error.sum(), rel=1e-12, abs=1e-12)
    assert abs(error.sum()) <= np.abs(reward).max() * (target @ np.abs(1 - logging / wrong)) + 1e-12
    batch = batch_of(*[scored(p, worth, worth) for p, worth in zip(wrong.tolist(), reward.tolist(), strict=True)])
    evidence = Evidence.from_slots(batch, POLICIES, "scored")
    estimates = se.ScoredIPS().terms(evidence, None)[0].numerator[:, 0]
    error = reward * (true / wrong - 1)
    assert true @ estimates - reward.sum() == pytest.approx(error.sum(), rel=1e-12, abs=1e-12)
    assert abs(error.sum()) <= np.abs(reward).max() * np.abs(1 - true / wrong).sum() + 1e-12


@pytest.mark.parametrize("logged", [True, False])
def test_the_factor_is_the_largest_that_no_wrong_weights_contradict(logged: bool) -> None:
    context = RuleContext(0.02, 0.95, np.array([0.05]), (-1.0, 3.0), 100, logged)
    found = propensity_factor(0.4, 0.2, context) or 0.0

    def worst(factor: float) -> float:
        """Search for the worst lift of self-normalised estimates .6 and .2 of rewards -1 and 3, by all weights."""
        scales = np.linspace(1 / factor, factor, 41)
        value, production = 1.6 / 4, 1.2 / 4
        rewarded, others = np.meshgrid(scales, scales)
        least = (value * rewarded / (value * rewarded + (1 - value) * others)).min()
        most = (production * rewarded / (production * rewarded + (1 - production) * others)).max()
        return float(4 * (least - (production if logged else most)))

    assert worst(found) == pytest.approx(0.02, abs=1e-6)


def test_a_factor_is_named_behind_an_answer_only_if_the_candidate_is_better() -> None:
    found, report = decision(log(), "paired")
    factor = found.basis.propensity_factor or 0.0
    production = report.get("new", found.estimator, found.average).details["lift_production_value"]
    value = production + (found.lower or 0.0)
    odds = np.sqrt(value / (1 - value) / production * (1 - production))
    assert factor == pytest.approx(min(odds, value / production), rel=1e-6)
    assert f"paired holds while propensities are right within {np.floor(100 * factor) / 100:.2f} times" in " ".join(
        answers(report)[0].details
    )
    worse, _ = decision(log(reward=1.0 - log().reward), "paired")
    assert worse.basis.propensity_factor is None
