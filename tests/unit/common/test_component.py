"""Test the rules that all configured components share."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

import streameval as se


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
    with pytest.raises(ValidationError, match=f"(?s){option}.*finite number"):
        part(**{option: number})


def test_a_cap_may_be_infinite() -> None:
    assert se.ClippedIPS(cap=math.inf).cap == math.inf
