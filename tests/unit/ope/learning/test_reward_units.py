"""Test that a learned policy depends on neither the zero nor the unit of the rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch, Learned

EVENTS = 1_000


def weights(shift: float, scale: float = 1.0, **options: Any) -> np.ndarray[Any, Any]:
    """Return the weights of a policy that learns from rewards from `shift` to `shift + scale`."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(EVENTS, 3, 2))
    action = rng.integers(0, 3, EVENTS)
    reward = (rng.random(EVENTS) < 1 / (1 + np.exp(-features[np.arange(EVENTS), action, 0]))) * scale + shift
    learner = Learned(**options)
    evaluator = Evaluator(
        {"learner": learner}, estimators=["ips"], averages=["cumulative"], reward_range=(shift, shift + scale)
    )
    evaluator.update(
        EventBatch.from_arrays(
            reward=reward, propensities=np.full((EVENTS, 3), 1 / 3), action=action, features=features, policies={}
        )
    )
    return np.asarray(evaluator.learned("learner")["weights"])


@pytest.mark.parametrize("objective", ["ips", "snips", "cab"])
@pytest.mark.parametrize(("shift", "scale"), [(-1.0, 1.0), (4.0, 1.0), (0.0, 1e-5), (-10.0, 1e3)])
def test_weights_are_equal_for_rewards_with_another_zero_or_unit(objective: str, shift: float, scale: float) -> None:
    options = {"objective": objective, "variance": 0.5} | ({"clip": 5.0} if objective == "cab" else {})
    np.testing.assert_allclose(weights(shift, scale, **options), weights(0.0, **options), rtol=1e-6, atol=1e-9)
