"""The kernels, compiled and uncompiled: equal to direct sums, and to each other to the bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import streameval
from streameval.ope.core import kernel as imported

SOURCE = Path(*streameval.__path__, "ope", "core", "kernel.py")


def uncompiled() -> ModuleType:
    """The module from its source, whether or not it is compiled."""
    spec = importlib.util.spec_from_file_location("uncompiled_kernel", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.compiled()
    return module


@pytest.fixture(params=["as imported", "uncompiled"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return imported if request.param == "as imported" else uncompiled()


class Case(NamedTuple):
    """Arguments of `products`, and its result."""

    series: np.ndarray
    weight: np.ndarray
    first: np.ndarray
    second: np.ndarray
    size: int

    def products(self, kernel: Any) -> np.ndarray:
        _, policies, events = self.series.shape
        out = np.full((policies, -(-events // self.size), len(self.first)), np.nan)
        kernel.products(*self, out)
        return out


def case(events: int, size: int, weights: int = 3) -> Case:
    rng = np.random.default_rng(events)
    series = np.exp(rng.normal(0, 3, (4, 3, events)))
    first, second = rng.integers(0, 4, (2, 6))
    return Case(series, rng.exponential(size=(weights, events)), first, second, size)


CASES = [case(1, 1), case(20, 5), case(23, 5), case(4, 10), case(250, 100), case(30, 7, weights=1)]


@pytest.mark.parametrize("given", CASES)
def test_products_are_the_sums_over_each_block(kernel: Any, given: Case) -> None:
    terms = given.weight * given.series[given.first] * given.series[given.second]
    starts = range(0, terms.shape[-1], given.size)
    direct = np.stack([terms[..., start : start + given.size].sum(-1) for start in starts], axis=-1)
    np.testing.assert_allclose(given.products(kernel), np.moveaxis(direct, 0, -1), rtol=1e-13)


@pytest.mark.parametrize("given", CASES)
def test_products_are_summed_in_the_order_of_the_events_to_the_bit(kernel: Any, given: Case) -> None:
    found = given.products(kernel)
    terms = given.weight * given.series[given.first] * given.series[given.second]
    for (policy, block, pair), value in np.ndenumerate(found):
        total = 0.0
        for term in terms[pair, policy, block * given.size :][: given.size].tolist():
            total += term
        assert value == total


def test_products_accept_arrays_that_are_read_only_or_not_contiguous(kernel: Any) -> None:
    given = case(23, 5)
    other = given._replace(series=np.asfortranarray(given.series), weight=given.weight[:, ::-1][:, ::-1])
    other.series.flags.writeable = False
    np.testing.assert_array_equal(other.products(kernel), given.products(kernel))


def test_without_events_there_is_nothing_to_sum(kernel: Any) -> None:
    assert case(0, 5).products(kernel).shape == (3, 0, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 4},
        {"weight": np.ones((2, 20))},
        {"weight": np.ones((3, 19))},
        {"first": np.zeros(5, int)},
        {"second": np.zeros(7, int)},
        {"first": np.full(6, 4)},
        {"second": np.full(6, -1)},
    ],
)
def test_arguments_that_do_not_fit_are_refused(kernel: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        kernel.products(*case(20, 5)._replace(**wrong), np.empty((3, 4, 6)))
