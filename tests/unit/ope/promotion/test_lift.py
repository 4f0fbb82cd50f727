"""The lift of the mixture that rules read after each block."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.ope.core import Lift
from streameval.ope.promotion.lift import follow, start

BLOCK = 100


def path(blocks: int, seed: int = 1) -> Lift:
    rng = np.random.default_rng(seed)
    columns = rng.uniform(0.01, 0.1, (3, blocks, 2))
    return Lift(*columns, np.full((blocks, 2), 60.0))


def test_a_block_without_evidence_leaves_the_lift_as_it_was() -> None:
    left_out, kept = np.array([1, 4]), np.array([0, 2, 3])
    whole = path(5)
    for column in whole:
        column[left_out] = np.nan
    found, _, state = follow(whole, start(2), BLOCK)
    expected, _, alone = follow(Lift(*(column[kept] for column in whole)), start(2), BLOCK)
    assert found[:, kept] == pytest.approx(expected)
    assert found[:, left_out] == pytest.approx(expected[:, [0, 2]])
    assert state.sums == pytest.approx(alone.sums)
    assert (state.recent < alone.recent).all()
