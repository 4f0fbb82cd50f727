"""Keep the estimates of the last hours for the lines of the status page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from streameval.ope.report import Decision, Report
from streameval.service.status import HISTORY_SECONDS, MAX_POINTS, MAX_STORED_NUMBERS, History
from support.factories import NOW, make_estimate, make_report, make_unknown

LABEL = ("challenger-a", "ips", "window")


def report(value: float | None = 0.05, policy: str = "challenger-a") -> Report:
    made = make_unknown(policy, "ips", "window") if value is None else make_estimate(policy, "ips", "window", value)
    return replace(make_report(0), estimates=(made,))


def grown(seconds: float, step: float = 1.0) -> History:
    history = History()
    for at in np.arange(0.0, seconds + step / 2, step):
        history = history.after(at, report(at))
    return history


@pytest.mark.parametrize("hours", [0.01, 3, 13, 36])
def test_hours_fit_into_some_hundred_points(hours: float) -> None:
    step = max(1.0, hours * 3600 / 2_000)
    history = grown(hours * 3600, step)
    at = [point.at for point in history.points]
    span = min(hours * 3600, HISTORY_SECONDS)
    assert min(hours * 3600, MAX_POINTS / 3) <= len(at) <= MAX_POINTS
    assert at[-1] - at[0] >= span - 2 * history.spacing
    assert np.diff(at).min() >= history.spacing, "no part of it is crowded"
    assert np.diff(at).max() <= 2 * history.spacing + step, "there are no holes"


def test_points_are_the_values_reported_at_their_time() -> None:
    history = grown(4 * 3600, 15.0)
    at = np.array([point.at for point in history.points])
    assert history.series(LABEL) == pytest.approx(np.column_stack([at, at - 0.002, at + 0.002]))


def test_unknown_values_and_missing_policies_are_gaps() -> None:
    history = History().after(0.0, report(None)).after(1.0, report(0.5, "another")).after(2.0, report(0.7))
    assert history.series(LABEL)[:, 0].tolist() == pytest.approx([math.nan, math.nan, 0.7], nan_ok=True)
    assert np.isnan(history.series(("nobody", "ips", "window"))).all()


def test_there_are_no_points_before_the_first_report() -> None:
    history = History().after(NOW, None)
    assert history == History()
    assert len(history.series(LABEL)) == 0


def test_a_clock_that_is_set_back_leaves_no_points_in_the_future() -> None:
    history = grown(100.0).after(50.2, report())
    assert max(point.at for point in history.points) <= 50.2
    assert [point.at for point in grown(100.0).after(-9e9, report()).points] == [-9e9]


def test_a_history_does_not_change_while_it_is_read() -> None:
    before = grown(10.0)
    points = before.points
    before.after(11.0, report())
    assert before.points is points
    assert len({id(point.rows) for point in points}) == 1, "the names are kept once"


def test_lifts_are_kept_with_values() -> None:
    made = make_estimate(*LABEL, 0.05, lift=0.01, lift_lower=-0.01, lift_upper=0.03)
    history = History().after(0.0, replace(make_report(0), estimates=(made,))).after(1.0, report(0.05))
    assert history.series(LABEL, is_lift=True)[0].tolist() == [0.01, -0.01, 0.03]
    assert np.isnan(history.series(LABEL, is_lift=True)[1]).all()
    assert history.series(LABEL)[:, 0].tolist() == [0.05, 0.05]


def test_a_history_continues_after_a_restart() -> None:
    history = grown(4 * 3600, 15.0).after(4 * 3600 + 600.0, report(0.7, "another"))
    restored = History.from_state(history.state())
    assert [point.at for point in restored.points] == [point.at for point in history.points]
    for label in (LABEL, ("another", "ips", "window")):
        assert restored.series(label) == pytest.approx(history.series(label), rel=1e-6, nan_ok=True)
    at = 4 * 3600 + 1200.0
    assert [point.at for point in restored.after(at, report()).points] == [
        point.at for point in history.after(at, report()).points
    ]
    assert History.from_state(History().state()) == History.from_state({}) == History()


def test_decisions_are_kept_with_their_time_also_in_snapshots() -> None:
    decided = replace(make_report(), promotion=(Decision("challenger-a", "lower_bound", True, "", state="promotable"),))
    history = History().after(0.0, make_report(0)).after(1.0, decided).after(2.0, decided)
    assert [point.decisions for point in history.points] == [
        (),
        *2 * [(("challenger-a", "lower_bound", "promotable"),)],
    ]
    state = history.state()
    assert [point.decisions for point in History.from_state(state).points] == [p.decisions for p in history.points]
    del state["decisions"], state["decided"]
    assert [point.decisions for point in History.from_state(state).points] == [(), (), ()], "of an earlier version"


def test_the_history_of_many_estimates_is_small_in_a_snapshot() -> None:
    many = make_report(20)
    history = History()
    for at in range(100):
        history = history.after(at, many)
    state = history.state()
    assert len(state["numbers"]["data"]) <= 4 * MAX_STORED_NUMBERS
    restored = History.from_state(state)
    assert restored.points[-1].at == history.points[-1].at
    assert 2 <= len(restored.points) < len(history.points)
