"""Test that the check of the mean weight uses units of events, if weights are alike within a unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval.ope.core.past import signs_of
from streameval.ope.evidence import Evidence
from streameval.ope.promotion import kernel as imported
from streameval.ope.promotion import mean_weight
from streameval.ope.promotion.block_sums import BlockSums
from support.kernels import uncompiled

EVENTS = 6_000


def sessions(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the session of each event. Fifty are open at a time, with about twenty events each."""
    return np.arange(EVENTS) // 1_000 * 50 + rng.integers(0, 50, EVENTS)


def test_the_design_effect_of_weights_is_the_sum_over_sessions_of_squared_sums() -> None:
    rng = np.random.default_rng(4)
    session = sessions(rng)
    surprise = rng.choice([-0.5, 0.5], (40, 300))[:, session] + rng.normal(0, 0.5, (40, EVENTS))
    surprises = surprise.reshape(40, EVENTS // 100, 100).swapaxes(0, 1)
    marks = signs_of(rng.integers(0, 2**63, 300).astype(np.uint64)[session])

    def bets(blocks: slice) -> mean_weight.Bets:
        events = slice(100 * blocks.start, 100 * blocks.stop)
        weight = 1.0 + surprises[blocks].swapaxes(1, 2).reshape(-1, 40)
        seen = replace(Evidence.from_numbers(weight, np.ones(len(weight))), signs=marks[events])
        return mean_weight.Bets.from_evidence(seen, np.ones(len(weight)))

    start, last = mean_weight.start(40).units, EVENTS // 100
    path, memory = mean_weight.design_effects(start, bets(slice(0, last)), fading=1.0)
    sums = np.stack([np.bincount(session, row) for row in surprise])
    expected = (sums**2).sum(axis=1) / (surprise**2).sum(axis=1)
    assert np.mean(path[-1] / expected) == pytest.approx(1.0, abs=0.1)
    assert mean_weight.design_effect(memory) == pytest.approx(path[-1], rel=1e-12)
    half, before = mean_weight.design_effects(start, bets(slice(0, 23)), fading=1.0)
    rest, after = mean_weight.design_effects(before, bets(slice(23, last)), fading=1.0)
    assert np.concatenate([half, rest]) == pytest.approx(path, rel=1e-9)
    assert after.signed == pytest.approx(memory.signed, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mean", [0.6, 1.4])
def test_bets_do_not_depend_on_how_many_events_each_event_stands_for(mean: float) -> None:
    rng = np.random.default_rng(5)
    weight, reward = mean * rng.choice([0.8, 1.2], (1_000, 1)), np.ones(1_000)
    gains = []
    for q in (1.0, 4.0):
        evidence = Evidence.from_numbers(weight, reward, 100, sample_weight=np.full((1_000, 1), q))
        bets = mean_weight.Bets.from_evidence(evidence, np.full(1_000, 0.5))
        gain, _, _ = mean_weight.fold(mean_weight.start(1), bets, BlockSums.from_evidence(evidence), 100)
        gains.append(gain)
    assert gains[1] == pytest.approx(gains[0], rel=1e-9)
    assert gains[0].sum() > 10.0


@pytest.mark.parametrize("kernel", [imported, uncompiled(imported)], ids=["as imported", "uncompiled"])
def test_the_wealth_of_bets_is_a_product_that_neither_overflows_nor_vanishes(kernel: Any) -> None:
    observed = np.random.default_rng(4).exponential(size=(3, 2, 50)) - 1.0
    observed[1, 0] = 1e50
    observed[2, 1] = -1e50
    stake, gained = np.full((3, 2), 0.5), np.empty((3, 2))
    kernel.log_wealth(observed, stake, gained)
    factors = np.maximum(1.0 + stake[:, :, None] * observed, 1e-12)
    assert gained == pytest.approx(np.log(factors).sum(axis=-1))
