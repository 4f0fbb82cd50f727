"""Test the loops of estimators, compiled and uncompiled, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval.ope.estimators import kernel as imported
from support.kernels import uncompiled


@pytest.mark.parametrize("threshold", [-np.inf, 0.8], ids=["control variate", "stratified"])
@pytest.mark.parametrize("kernel", [imported, uncompiled(imported)], ids=["as imported", "uncompiled"])
def test_controlled_terms_take_their_coefficient_from_the_blocks_before(kernel: Any, threshold: float) -> None:
    rng, blocks, size, policies, fading = np.random.default_rng(3), 4, 7, 2, 0.9
    weight = rng.exponential(size=(policies, blocks * size))
    reward, averaging = weight * rng.random(weight.shape), rng.random(weight.shape)
    recent, terms, sums = np.zeros((policies, 5)), np.empty((3, *weight.shape)), np.empty((blocks, policies, 6))
    edges = np.arange(blocks + 1, dtype=np.int64) * size
    kernel.controlled_terms(weight, reward, averaging, edges, threshold, fading, recent, terms, sums)
    low = np.where(weight <= threshold, reward, 0.0)
    faded = np.zeros((policies, 5))
    for number in range(blocks):
        events = slice(number * size, (number + 1) * size)
        q, w, u = averaging[:, events], weight[:, events], (reward - low)[:, events]
        count, total, reward_sum, square, product = faded.T
        beta = np.zeros(policies)
        if number:
            beta = (product * count - reward_sum * total) / (square * count - total**2)
        high = u - beta[:, None] * (w - 1)
        assert terms[:, :, events] == pytest.approx(np.stack([low[:, events] + high, low[:, events], high]))
        wanted = [q, q * w, q * u, q * w**2, q * u * w, np.where(w <= threshold, q * w, 0.0)]
        assert sums[number] == pytest.approx(np.stack([terms.sum(axis=1) for terms in wanted], axis=-1))
        faded = fading * faded + sums[number, :, :5]
    assert recent == pytest.approx(faded)
