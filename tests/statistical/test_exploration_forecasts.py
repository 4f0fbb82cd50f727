"""Test that predicted numbers of events are those that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import SNIPS
from streameval.ope.power import (
    TargetLift,
)
from support.power_worlds import RARE, events_for, forecast_of


def test_the_exploration_predicted_to_halve_the_events_halves_them() -> None:
    log = RARE.log(200_000, seed=6)
    (candidate,) = forecast_of(log, [TargetLift(0.01)]).candidates
    relief = candidate.relief
    assert relief is not None
    assert relief.over == 32.0
    assert relief.events_share == pytest.approx(0.01, rel=0.1)
    assert relief.noise_share > 0.9
    more = RARE.logging * np.array([1.0, 1.0, relief.times])
    more[:2] *= (1 - more[2]) / more[:2].sum()
    better = RARE._replace(logging=more)
    before, after = (events_for(world.log(200_000, seed=7), 0.01, SNIPS()).events for world in (RARE, better))
    assert after / before == pytest.approx(0.5, rel=0.1)
