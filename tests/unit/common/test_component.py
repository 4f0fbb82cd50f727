"""Test the rules that all configured components share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import streameval as se
from streameval.common.problems import ProblemsError


@pytest.mark.parametrize(
    ("part", "option"),
    [
        (se.StratifiedIPS, "threshold"),
        (se.Mixture, "rate"),
        (se.Ridge, "penalty"),
        (se.Promotion, "margin"),
        (se.Softmax, "temperature"),
    ],
)
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_parameter_that_is_not_finite_is_refused(part: Any, option: str, number: float) -> None:
    with pytest.raises(ProblemsError, match=f"(?s){option}.*finite number"):
        part(**{option: number})


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: se.Window(-5), "Window.tau: expected a number greater than 0, found -5", "window: Count"),
        (
            lambda: se.ClippedIPS(cap=-1),
            "ClippedIPS.cap: expected a number greater than 0 or auto, found -1",
            "clipped",
        ),
        (
            lambda: se.IPS(cap=3),
            "IPS.cap: expected one of name or kind, found the unknown key 'cap'",
            "remove it; help(IPS)",
        ),
        (lambda: se.CAB(), "CAB.cap: missing", "cab: Cap"),
        (
            lambda: se.Promotion(rule="pared"),
            "Promotion.rule: expected one of periodic, paired, anytime",
            "did you mean",
        ),
        (lambda: se.Trust(error=2), "Trust.error: expected a number less than", ""),
        (lambda: se.PythonPolicy(target=3), "PythonPolicy.target: expected text, found 3", "put it in quotes"),
        (lambda: se.Evaluator(["a"], [se.IPS]), "estimators.0: expected a value, found the class IPS: write IPS()", ""),
    ],
)
def test_a_wrong_argument_is_named_with_a_note_on_what_to_do(
    make: Callable[[], object], message: str, hint: str
) -> None:
    with pytest.raises(ProblemsError) as refused:
        make()
    assert str(refused.value).startswith(message)
    assert refused.value.__notes__ == [f"hint: {refused.value.hint}"]
    assert refused.value.hint.startswith(hint)


def test_a_cap_may_be_infinite() -> None:
    assert se.ClippedIPS(cap=math.inf).cap == math.inf
