"""Test plain functions as estimators against the built-in ones that they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.common.problems import ProblemsError
from streameval.errors import InputError

AVERAGES = ["cumulative", {"kind": "window", "tau": 1000}, "mixture"]


def own_ips(weight: Any, reward: Any) -> Any:
    return weight * reward


def own_snips(weight: Any, reward: Any) -> Any:
    return weight * reward, weight


def own_clipped(weight: Any, reward: Any) -> Any:
    return np.minimum(weight, 3.0) * reward


def report(*estimators: Any) -> se.Report:
    random = np.random.default_rng(8)
    propensity = random.choice([0.1, 0.3, 0.6], 3_250)
    evaluator = se.Evaluator(["b"], list(estimators), AVERAGES, production="a")
    evaluator.update(
        se.EventBatch.from_arrays(
            reward=random.random(3_250) < 0.3,
            propensity=propensity,
            policies={"a": propensity[::-1], "b": random.random(3_250)},
        )
    )
    return evaluator.report()


@pytest.mark.parametrize(
    ("function", "builtin"), [(own_ips, "ips"), (own_snips, "snips"), (own_clipped, se.ClippedIPS(cap=3.0))]
)
def test_a_function_estimates_what_the_same_estimator_does(function: Any, builtin: Any) -> None:
    found = report(function, builtin)
    label = builtin if isinstance(builtin, str) else builtin.label
    for row in found.estimates:
        if row.estimator == label:
            own = found.get(row.policy, function.__name__, row.average)
            assert (own.value, own.lift) == (
                pytest.approx(row.value, rel=1e-12),
                None if row.lift is None else pytest.approx(row.lift, rel=1e-9),
            )
            assert own.lower < own.value < own.upper
            assert own.covers == "estimand"


def test_the_interval_of_a_clipped_function_is_hardly_wider_than_the_one_of_the_class() -> None:
    found = report(own_clipped, se.ClippedIPS(cap=3.0))
    own, builtin = (found.get("b", name, "cumulative") for name in ("own_clipped", "clipped_ips"))
    assert builtin.upper - builtin.lower <= own.upper - own.lower <= 1.05 * (builtin.upper - builtin.lower)


@pytest.mark.parametrize(
    "function", [lambda weight, reward: weight.sum(), lambda weight, reward: (weight, weight, weight)]
)
def test_a_function_of_another_shape_is_refused(function: Any) -> None:
    with pytest.raises(ProblemsError, match="expected numerators, or numerators and denominators, of the shape"):
        se.Evaluator(["a"], [function])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda weight, reward: weight / weight * reward, "finite numbers for weights from 0, found nan"),
        (lambda weight, reward: np.full(weight.shape, "a"), "an array of numbers, found <U1 values"),
        (lambda weight, reward: weight * reward * 1j, "an array of numbers, found complex128 values"),
        (lambda weight: weight, "takes 1 positional argument but 2 were given"),
        (lambda weight, reward: {}[1], "KeyError: 1"),
        (lambda weight, reward: (weight * reward, -weight), "denominators that are not negative"),
        (lambda weight, reward: (weight * reward, 0 * weight), "and not all 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_function_that_fails_or_returns_no_usable_numbers_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ProblemsError) as refused:
        se.Evaluator(["a"], [function])
    assert message in str(refused.value)


def test_a_function_may_return_lists() -> None:
    as_lists = report(lambda weight, reward: (weight * reward).tolist(), se.IPS())
    assert as_lists.get("b", "<lambda>", "cumulative").value == as_lists.get("b", "ips", "cumulative").value


def test_a_function_cannot_change_what_other_estimators_see() -> None:
    def in_place(weight: Any, reward: Any) -> Any:
        weight[weight > 2] = 0
        return weight * reward

    with pytest.raises(ProblemsError, match="copy weights and rewards before you change them"):
        report(own_ips, in_place)


SEEN = (0.0, 0.5, 1.0, 2.0, 10.0, 1000.0)
"""Weights with which a function is tried out."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda weight, reward: np.where(np.isin(weight, SEEN), weight * reward, np.nan),
            "returned nan for the weight .* expected a finite numerator",
        ),
        (
            lambda weight, reward: (weight * reward, np.where(np.isin(weight, SEEN), weight, -weight)),
            "returned -.* for the weight .* expected a finite denominator that is not negative",
        ),
        (
            lambda weight, reward: (weight * reward, np.where(np.isin(weight, SEEN), weight, np.inf)),
            "returned inf for the weight .* expected a finite denominator",
        ),
    ],
)
def test_a_function_must_return_numbers_for_weights_that_no_check_has_seen(function: Any, message: str) -> None:
    with np.errstate(divide="ignore"), pytest.raises(InputError, match=f"the estimator '<lambda>' {message}"):
        report(function)


def test_denominators_may_be_0_for_small_weights() -> None:
    assert report(lambda weight, reward: (weight * reward * (weight > 1), weight * (weight > 1))).estimates
