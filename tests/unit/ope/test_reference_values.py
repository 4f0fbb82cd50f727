"""Test values that other people's code gives for equal inputs. `data/estimators.json` names their sources."""

from __future__ import annotations

import json
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streameval import Evaluator
from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core import Average, Cumulative, Decay, Window
from streameval.ope.core import drift_rate as choice
from streameval.ope.estimators import (
    CAB,
    CABDR,
    DM,
    DR,
    IPS,
    SNIPS,
    AnyEstimator,
    ClippedIPS,
    StaticBlend,
    Switch,
)
from streameval.ope.evidence import Evidence
from streameval.ope.intervals import empirical_likelihood as likelihood
from streameval.ope.intervals.empirical_likelihood import Extra, Means
from streameval.ope.report import Estimate
from support.likelihood_worlds import any_of
from support.paths import DATA
from support.streams import CANDIDATE, Stream, from_weights

CASES = {case["id"]: case for case in json.loads((DATA / "estimators.json").read_text())["cases"]}
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS()]


def inputs(case: str) -> dict[str, Any]:
    return CASES[case]["inputs"]


def expected(case: str) -> dict[str, Any]:
    return CASES[case]["expected"]


def close(case: str, name: str) -> Any:
    return pytest.approx(expected(case)[name], rel=CASES[case]["tolerance"], abs=CASES[case]["tolerance"])


def logged(case: str) -> EventBatch:
    """Return the inputs of a case that lists both probabilities."""
    columns = inputs(case)
    target = columns.get("p_target") or [
        row[int(a)] for row, a in zip(columns["target_dist"], columns["action"], strict=True)
    ]
    return EventBatch.from_arrays(reward=columns["reward"], propensity=columns["p_log"], policies={CANDIDATE: target})


def alternating() -> EventBatch:
    """Make the events of `vw_alternating_1000`."""
    return EventBatch.from_arrays(
        reward=[1.0, 0.0] * 500, propensity=[0.5] * 1000, policies={CANDIDATE: [0.2, 0.8] * 500}
    )


NORMAL = {"cumulative": "normal"}


def estimates(batch: EventBatch, estimators: list[AnyEstimator]) -> dict[str, Estimate]:
    """Return the candidate's cumulative estimates, with normal intervals, by the label of the estimator."""
    evaluator = Evaluator([CANDIDATE], estimators=estimators, averages=[Cumulative()], intervals=NORMAL)
    evaluator.update(batch)
    return {e.estimator: e for e in evaluator.report().estimates if e.policy == CANDIDATE}


def unlimited(monkeypatch: pytest.MonkeyPatch, batch: EventBatch, estimator: AnyEstimator) -> Estimate:
    """Return the cumulative estimate with its normal interval, for any number of events and any range of rewards."""
    monkeypatch.setattr("streameval.ope.intervals.base.MIN_NONZERO", 0)
    evaluator = Evaluator(
        [CANDIDATE],
        estimators=[estimator],
        averages=[Cumulative()],
        intervals=NORMAL,
        reward_range=(-10.0, 10.0),
    )
    evaluator.update(batch)
    return evaluator.report().get(CANDIDATE, estimator.label, "cumulative")


@pytest.mark.parametrize("case", ["vw_single", "vw_four", "obp_five_rounds", "snips_delta_method"])
def test_ips_and_snips_equal_the_published_ones(case: str) -> None:
    actual = estimates(logged(case), ESTIMATORS)
    compared = [label for label in ("ips", "snips") if label in expected(case)]
    assert compared
    for label in compared:
        assert actual[label].value == close(case, label)


def test_ips_and_snips_of_a_thousand_alternating_events_equal_the_published_ones() -> None:
    actual = estimates(alternating(), ESTIMATORS)
    assert actual["ips"].value == close("vw_alternating_1000", "ips")
    assert actual["snips"].value == close("vw_alternating_1000", "snips")


def test_a_one_slot_slate_is_ips() -> None:
    assert estimates(logged("vw_four"), [IPS()])["ips"].value == close("vw_four", "slate_pi_one_slot")


@pytest.mark.parametrize("cap", [1, 2, 3, 5])
def test_clipped_ips_equals_the_published_one(cap: int) -> None:
    estimate = estimates(logged("obp_five_rounds"), [ClippedIPS(cap=cap)])["clipped_ips"]
    assert estimate.value == close("obp_five_rounds", f"clipped_ips_{cap}")


def test_importance_weights_equal_the_published_ones() -> None:
    case = "obp_five_rounds"
    estimate = estimates(logged(case), [IPS()])["ips"]
    assert estimate.importance_weight_mean == pytest.approx(np.mean(expected(case)["weights"]), rel=1e-12)
    assert estimate.importance_weight_max == pytest.approx(max(expected(case)["weights"]), rel=1e-12)


def test_the_normal_interval_of_four_events_equals_the_published_gaussian_one(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = unlimited(monkeypatch, logged("vw_four"), IPS())
    assert [estimate.lower, estimate.upper] == close("vw_four", "gaussian")
    assert [estimate.lower, estimate.upper] == close("vw_four", "slate_pi_gaussian")


def test_the_normal_interval_of_four_events_is_withheld_in_the_report() -> None:
    estimate = estimates(logged("vw_four"), [IPS()])["ips"]
    assert (estimate.lower, estimate.upper) == (None, None)


def test_the_normal_interval_of_a_thousand_alternating_events_equals_the_published_gaussian_one() -> None:
    evaluator = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Cumulative()], intervals=NORMAL, block=10_000)
    evaluator.update(alternating())
    estimate = evaluator.report().get(CANDIDATE, "ips", "cumulative")
    assert [estimate.lower, estimate.upper] == close("vw_alternating_1000", "gaussian")


def test_alternating_events_leave_no_design_effect_to_widen_the_interval() -> None:
    estimate = estimates(alternating(), [IPS()])["ips"]
    assert estimate.details["design_effect"] == pytest.approx(0.0, abs=1e-12)
    assert [estimate.lower, estimate.upper] == close("vw_alternating_1000", "gaussian")


def test_the_delta_method_of_snips_gives_the_published_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = unlimited(monkeypatch, logged("snips_delta_method"), SNIPS())
    assert estimate.upper is not None
    assert estimate.lower is not None
    z = NormalDist().inv_cdf(0.975)
    assert (estimate.upper - estimate.lower) / (2 * z) == close("snips_delta_method", "se")


def test_the_diagnostics_of_snips_equal_the_published_ones() -> None:
    case = "snips_delta_method"
    estimate = estimates(logged(case), [SNIPS()])["snips"]
    assert estimate.effective_sample_size == close(case, "ess")
    assert estimate.importance_weight_mean == close(case, "mean_w")
    assert estimate.importance_weight_max == close(case, "max_w")
    assert expected(case)["max_share"] == pytest.approx(4.5 / (6 * 1.825), rel=1e-12)


def values_after_events(stream: Stream, average: Average, estimator: AnyEstimator, block: int) -> list[float | None]:
    """Return the candidate's value after each event. These inputs have rewards up to 4."""
    evaluator = Evaluator([CANDIDATE], estimators=[estimator], averages=[average], reward_range=(0.0, 4.0), block=block)
    values = []
    for index in range(len(stream)):
        evaluator.update(stream[index : index + 1].batch())
        values.append(evaluator.report().get(CANDIDATE, estimator.label, average.label).value)
    return values


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_window_and_decay_equal_the_published_ones_after_each_event(block: int) -> None:
    case = "wsdm19_windows"
    columns = inputs(case)
    stream = from_weights(np.ones(len(columns["wr"])), columns["wr"])
    windowed = values_after_events(stream, Window(tau=columns["tau"], resolution=1), IPS(), block)
    decayed = values_after_events(stream, Decay(alpha=columns["alpha"]), IPS(), block)
    assert windowed == close(case, "window_mean")
    assert decayed == close(case, "exp_mean")


@pytest.mark.parametrize("block", [1, 4, 100])
def test_decayed_snips_equals_the_published_one_after_each_event(block: int) -> None:
    case = "vw_discounted_snips"
    columns = inputs(case)
    stream = from_weights(columns["w"], columns["r"])
    assert values_after_events(stream, Decay(alpha=columns["tau"]), SNIPS(), block) == close(case, "value")


def test_the_published_rule_chooses_the_published_alpha_and_tau() -> None:
    case = "wsdm19_adaptive_rule"
    scaled = inputs(case)["factor"] * np.array(inputs(case)["k"])
    assert choice.published_decay(scaled).tolist() == close(case, "alpha")
    assert choice.published_window(scaled).tolist() == close(case, "tau_raw")
    limited = np.clip(choice.published_window(scaled), choice.SHORTEST, choice.LONGEST)
    assert limited.tolist() == close(case, "tau_clipped")


MODELLED: list[tuple[str, str, AnyEstimator]] = [
    ("obp_five_rounds", "dm", DM()),
    ("obp_five_rounds", "dr", DR()),
    *[("obp_five_rounds", f"clipped_dr_{cap}", CABDR(cap=cap)) for cap in (1, 2.5, 3, 10)],
    *[("cab_switch_sb_definition", f"cab_{cap}", CAB(cap=cap)) for cap in (1, 2, 3)],
    *[("cab_switch_sb_definition", f"switch_{cap}", Switch(cap=cap)) for cap in (1, 2, 3)],
    *[("cab_switch_sb_definition", f"sb_{tau}", StaticBlend(tau=tau)) for tau in (0.3, 0.7)],
]


@pytest.mark.parametrize(("case", "name", "estimator"), MODELLED, ids=lambda value: str(value))
def test_estimators_with_a_reward_model_equal_the_published_ones(case: str, name: str, estimator: AnyEstimator) -> None:
    columns = inputs(case)
    evidence = Evidence.from_actions(
        reward=columns["reward"],
        action=[int(action) for action in columns["action"]],
        propensities=inputs("cab_switch_sb_definition")["logging_dist"],
        target=columns["target_dist"],
        prediction=np.ravel(columns["q_hat"]),
    )
    terms, _ = estimator.terms(evidence, estimator.start(policies=1))
    assert terms.numerator.mean() == close(case, name)


def means_of(weight: Array, reward: Array, q: Array, events: float) -> Means:
    term = weight * reward
    columns = (weight, weight**2, term, term * weight, term**2)
    return Means(np.array([events]), *(np.array([column @ q / q.sum()]) for column in columns))


def published_likelihood_interval(means: Means, quantile: float) -> list[float]:
    """Return the interval as published, cut to the range of rewards.

    The extra event weighs nothing or infinitely much. Allowed distances count from the extra event that can bring the
    mean weight to 1.
    """
    one = np.ones(1)
    light, heavy = Extra(0 * one, 0 * one, 0 * one), Extra(np.inf * one, 0 * one, one)
    nearest = np.where(means.weight < 1 - 1e-12, likelihood.distance(means, heavy), likelihood.distance(means, light))
    ends = likelihood.reach(means, any_of([light, heavy]), nearest + quantile)
    return [float(np.clip(end[0], 0, 1)) for end in ends]


def test_the_likelihood_interval_of_decayed_sums_equals_the_published_one_after_each_event() -> None:
    case = "vw_decayed_chi2"
    weight, reward = np.array(inputs(case)["w"]), np.array(inputs(case)["r"])
    quantile, results = stats.chi2.isf(inputs(case)["alpha"], 1), []
    for seen in range(1, len(weight) + 1):
        q = inputs(case)["tau"] ** np.arange(seen)[::-1]
        assert q.sum() == pytest.approx(expected(case)["n_eff"][seen - 1], rel=1e-12)
        results.append(published_likelihood_interval(means_of(weight[:seen], reward[:seen], q, q.sum()), quantile))
    assert np.isnan(results[0]).all(), "of one event nothing is said; published is the range of rewards"
    assert [lower for lower, _ in results[1:]] == pytest.approx(expected(case)["lower"][1:], rel=1e-12)
    assert [upper for _, upper in results[1:]] == pytest.approx(expected(case)["upper"][1:], rel=1e-12)


def weighted(case: str) -> tuple[Array, Array]:
    batch = alternating() if case == "vw_alternating_1000" else logged(case)
    return batch.probabilities[:, 0] / batch.propensity, batch.reward


@pytest.mark.parametrize("case", ["vw_four", "vw_alternating_1000"])
def test_the_likelihood_interval_equals_the_published_one(case: str) -> None:
    weight, reward = weighted(case)
    means = means_of(weight, reward, np.ones(len(weight)), float(len(weight)))
    quantile = stats.f.isf(inputs(case)["alpha"], 1, len(weight))
    assert published_likelihood_interval(means, quantile) == close(case, "cressie_read_interval")


@pytest.mark.parametrize("case", ["vw_single", "vw_four", "vw_alternating_1000"])
def test_the_centre_of_the_likelihood_interval_is_the_published_estimate(case: str) -> None:
    weight, reward = weighted(case)
    means = means_of(weight, reward, np.ones(len(weight)), float(len(weight)))
    centre, _ = likelihood.regression(means.and_one_more(np.zeros(1), np.zeros(1)))
    assert centre[0] == close(case, "cressie_read")
