"""Test recent means of evidence against arithmetic on its events."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.ope.evidence import Evidence
from streameval.ope.evidence.evidence import start_recent


@pytest.mark.parametrize(("production", "distance"), [([1.0, 1.0], 2.0), ([0.0, 1.0], 4.0), ([0.0, 0.0], 2.5)])
def test_weights_are_compared_with_production_on_events_that_have_both(
    production: list[float], distance: float
) -> None:
    weights = np.array([[2.0, 2.0], [1.0, -1.0]])
    present = np.array([production, [1.0, 1.0]]).T
    evidence = Evidence.from_numbers(weights, np.zeros(2), block=2, sample_weight=present)
    actual, _ = evidence.with_recent_means(start_recent(2))
    assert actual.recent.distance_square[0, 1] == pytest.approx(distance)
