"""Test the lift of the mixture that rules read after each block."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.ope.core import Lift
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.promotion.lift import follow, start

BLOCK = 100


def path(blocks: int, seed: int = 1, candidates: int = 2) -> Lift:
    rng = np.random.default_rng(seed)
    columns = rng.uniform(0.01, 0.1, (3, blocks, candidates))
    return Lift(*columns, np.full((blocks, candidates), 60.0))


def test_a_block_without_evidence_leaves_the_lift_as_it_was() -> None:
    left_out, kept = np.array([1, 4]), np.array([0, 2, 3])
    whole = path(5)
    for column in whole[:4]:
        column[left_out] = np.nan
    actual, _, state = follow(whole, start(2), BLOCK)
    expected, _, alone = follow(Lift(*(column[kept] for column in whole[:4])), start(2), BLOCK)
    assert actual[:, kept] == pytest.approx(expected)
    assert actual[:, left_out] == pytest.approx(expected[:, [0, 2]])
    assert state.sums == pytest.approx(alone.sums)
    assert (state.recent < alone.recent).all()


def test_candidates_that_start_later_do_not_change_the_error_of_a_lift() -> None:
    early, late = path(9), Lift(*(column[:, :1] for column in path(5, seed=2)[:4]))
    expected, _, _ = follow(early, start(2), BLOCK)
    alone, _, _ = follow(late, start(1), BLOCK)
    *_, before = follow(Lift(*(column[:4] for column in early[:4])), start(2), BLOCK)
    three = joined(before, start(1), Company(before=3, late=2, new=1))
    columns = (np.concatenate([first[4:], second], axis=1) for first, second in zip(early[:4], late[:4], strict=True))
    actual, _, _ = follow(Lift(*columns), three, BLOCK)
    assert actual[:, :, :2] == pytest.approx(expected[:, 4:])
    assert actual[:, :, 2:] == pytest.approx(alone)


def test_a_candidate_that_leaves_does_not_move_the_others() -> None:
    three = path(50, candidates=3)
    three.value[:, 2] += 100.0
    before, _, state = follow(Lift(*(column[:49] for column in three[:4])), start(3), BLOCK)
    two = Lift(*(column[49:, :2] for column in three[:4]))
    after, _, _ = follow(two, select_policies(state, [0, 1]), BLOCK)
    assert after[2, -1] == pytest.approx(before[2, -1, :2], rel=0.1)
