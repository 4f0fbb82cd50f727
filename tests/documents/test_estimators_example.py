"""Run the experiment with handwritten digits on fewer logs: what its pictures show must be so."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "estimators"
CAPS = (0.1, 0.5, 1.0, 3.0, 10.0, 20.0, 40.0, 500.0)
"""The last one cuts nothing off."""


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("blending")


@pytest.fixture(scope="module")
def errors(example: ModuleType) -> dict[str, float]:
    """Mean squared errors over twenty logs."""
    digits = example.Digits.prepared()
    errors_by_label: dict[str, float] = example.mean_squared_errors(
        example.estimates(digits, logs=20, events=3_000, caps=CAPS, taus=(0.0, 1.0)), digits.value
    )
    return errors_by_label


def errors_by_cap(errors: dict[str, float], label: str) -> list[float]:
    return [errors[f"{label} {cap:g}"] for cap in CAPS]


@pytest.mark.slow
def test_cab_has_its_least_error_between_the_model_and_the_weights(errors: dict[str, float]) -> None:
    cab = errors_by_cap(errors, "cab")
    assert 0 < int(np.argmin(cab)) < len(CAPS) - 1
    assert min(cab) < 0.8 * min(errors["dm"], errors["ips"])


@pytest.mark.slow
def test_cab_lies_below_clipped_ips_for_every_cap_that_cuts(errors: dict[str, float]) -> None:
    *cutting, (cab_at_last, clipped_at_last) = zip(
        errors_by_cap(errors, "cab"), errors_by_cap(errors, "clipped_ips"), strict=True
    )
    assert all(cab < clipped for cab, clipped in cutting), cutting
    assert cab_at_last == pytest.approx(clipped_at_last, rel=1e-2)


@pytest.mark.slow
def test_the_ends_of_the_static_blend_are_the_model_and_the_weights(errors: dict[str, float]) -> None:
    assert errors["static_blend 0"] == pytest.approx(errors["dm"], rel=1e-9)
    assert errors["static_blend 1"] == pytest.approx(errors["ips"], rel=1e-9)


@pytest.mark.slow
def test_where_a_third_of_the_actions_is_logged_those_that_ask_the_model_come_nearer(example: ModuleType) -> None:
    digits, estimates = example.estimates_with_support(3, logs=4, events=5_000, cap=20.0)
    error = {label: abs(float(np.mean(values)) - digits.value) for label, values in estimates.items()}
    assert digits.unsupported == pytest.approx(0.19, abs=0.01)
    for label in ("cab 20", "switch 20", "dr"):
        assert error[label] < 0.6 * error["ips"], label


@pytest.mark.slow
def test_revealed_ratings_mislead_and_their_propensities_correct_them(example: ModuleType) -> None:
    revealed = import_module("revealed")
    table = {name: {key: mean for key, (mean, _) in row.items()} for name, row in revealed.table(4, 40_000).items()}
    shown = revealed.PROPENSITY * revealed.MARGINALS
    off_by, coarse = np.array([4, 1, 1, 1, 1]), np.array([2, 1, 0, 0, 1])
    for name, errors in (("rotate", off_by), ("coarsened", coarse)):
        assert table[name]["true"] == pytest.approx(revealed.MARGINALS @ errors, abs=0.02)
        assert table[name]["naive"] == pytest.approx(shown @ errors / shown.sum(), abs=0.05)
    for column in ("ips", "snips", "bayes"):
        assert table["fours"][column] < table["ones"][column] < table["skewed"][column]
        assert table["rotate"][column] == pytest.approx(table["rotate"]["true"], abs=0.3)
    assert table["ones"]["naive"] < 0.2 * table["fours"]["naive"], "the wrong order"
    ratio = revealed.PROPENSITY / revealed.propensities(revealed.GUESSED)
    for name, errors in (("rotate", off_by), ("coarsened", coarse)):
        assert table[name]["lemma"] == pytest.approx(revealed.MARGINALS @ (errors * (ratio - 1)), abs=0.02)
        assert table[name]["bias"] == pytest.approx(table[name]["lemma"], abs=0.12)
