"""Test that the check of the mean weight finds wrong propensities, and no sound log."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Cumulative, Evaluator, EventBatch, StratifiedIPS

Array = NDArray[np.float64]


NAMES = [f"c{number}" for number in range(20)]
EVENTS = 6_000


def sessions(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the session of each event. Fifty are open at a time, with about twenty events each."""
    return np.arange(EVENTS) // 1_000 * 50 + rng.integers(0, 50, EVENTS)


def blamed(weights: dict[str, Array], units: list[str] | None) -> set[str]:
    """Return the candidates that are ever blamed for their mean weight."""
    rng, results = np.random.default_rng(3), set()
    reward = (rng.random(EVENTS) < 0.3).astype(float)
    evaluator = Evaluator(list(weights), [StratifiedIPS()], [Cumulative()], drift=None, promotion="bsea")
    for first in range(0, EVENTS, 500):
        rows = slice(first, first + 500)
        policies = {name: 0.4 * weight[rows] for name, weight in weights.items()}
        reported = None if units is None else units[rows]
        evaluator.update(
            EventBatch.from_arrays(reward=reward[rows], propensity=np.full(500, 0.4), policies=policies, unit=reported)
        )
        evaluator.fold_pending()
        results |= {check.policy for check in evaluator.report().trust if check.check == "mean_weight" and not check.ok}
    return results


def test_a_log_that_draws_once_for_a_whole_session_is_sound_if_it_names_its_sessions() -> None:
    rng = np.random.default_rng(1)
    session = sessions(rng)
    weights = {name: rng.choice([0.5, 1.5], 300)[session] for name in NAMES}
    assert len(blamed(weights, [str(number) for number in session])) <= 1
    assert len(blamed(weights, None)) >= 5


@pytest.mark.parametrize("wrong", [0.85, 1.15])
def test_wrong_propensities_are_found_in_a_log_that_names_its_sessions(wrong: float) -> None:
    rng = np.random.default_rng(2)
    weights = {name: rng.choice([0.5, 1.5], EVENTS) * wrong for name in NAMES}
    assert blamed(weights, [str(session) for session in sessions(rng)]) == set(NAMES)
