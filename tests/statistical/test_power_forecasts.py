"""Check that a lift is shown as often as the forecast of its power promises."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import IPS, SNIPS
from streameval.ope.estimators import AnyEstimator
from support.power_worlds import HEAVY, MILD, World, estimate_of, events_for


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [IPS(), SNIPS()], ids=["ips", "snips"])
@pytest.mark.parametrize("world", [MILD, HEAVY], ids=["mild weights", "heavy weights"])
def test_the_events_it_takes_show_the_lift_as_often_as_promised(world: World, estimator: AnyEstimator) -> None:
    runs = 300
    events = round(events_for(world.log(200_000, seed=1), world.lift, estimator).events)
    assert 300 < events < 10_000
    shown = [estimate_of(world.log(events, seed), estimator).lift_lower for seed in range(100, 100 + runs)]
    power = np.mean([lower is not None and lower > 0 for lower in shown])
    assert power == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / runs) + 0.03)


@pytest.mark.slow
def test_where_no_lift_is_hardly_any_is_shown() -> None:
    nothing = MILD._replace(reward=np.full(3, 0.3))
    events = round(events_for(nothing.log(100_000, seed=1), 0.03, SNIPS()).events)
    shown = [estimate_of(nothing.log(events, seed), SNIPS()).lift_lower for seed in range(200)]
    assert np.mean([lower is not None and lower > 0 for lower in shown]) < 0.07
