"""Check the axes and verdicts of the charts."""

from __future__ import annotations

import pytest

from streameval.service.status_page.charts import ChartScale, verdict
from support.factories import make_estimate


def test_a_position_on_the_axis_is_clipped_to_it() -> None:
    scale = ChartScale.over([0.0, 1.0])
    assert (scale.at(-5.0), scale.at(0.5), scale.at(5.0)) == (0.0, 50.0, 100.0)


@pytest.mark.parametrize("values", [[0.0], [1e-9, 2e-9], [-3.0, 4e6], [5.0, 5.0], [1e300, -1e300]])
def test_every_axis_has_ticks_inside_it(values: list[float]) -> None:
    scale = ChartScale.over(values)
    assert 1 <= len(scale.ticks) <= 8
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)


def test_one_very_wide_interval_does_not_squash_the_others() -> None:
    narrow = [make_estimate(name, "ips", "window", 0.05 + 0.001 * index) for index, name in enumerate("abc")]
    scale = ChartScale.from_estimates([*narrow, make_estimate("d", "ips", "window", 0.05, lower=-100.0, upper=100.0)])
    assert scale is not None
    assert scale.high - scale.low < 0.1


def test_the_verdict_follows_the_lift_and_otherwise_the_intervals() -> None:
    base = make_estimate("logging", "ips", "window", 0.050)
    assert verdict(make_estimate("a", "ips", "window", 0.060), base) == "better"
    assert verdict(make_estimate("a", "ips", "window", 0.040), base) == "worse"
    assert verdict(make_estimate("a", "ips", "window", 0.051), base) == "open"
    assert verdict(make_estimate("a", "ips", "window", 0.051, lift_lower=0.0005, lift_upper=0.0015), base) == "better"
    assert verdict(make_estimate("a", "ips", "window", lower=None, upper=None), base) == ""
    assert verdict(base, base) == ""
