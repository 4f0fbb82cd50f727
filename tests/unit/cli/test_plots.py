"""Test the figure of `replay`, and the trace that it is drawn from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from msgspec.structs import replace

from streameval import Evaluator
from streameval.cli.plots import ReplayPlot, check_path, save
from streameval.cli.replay import choices
from streameval.cli.trace import Trace, read_truth
from streameval.config.loading import parse_yaml
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.core import Cumulative, Window
from streameval.ope.estimators import IPS
from streameval.ope.report import DAY, WEEK, Profile
from support.commands import Run
from support.ramps import three_actions

POLICIES = {"better": 0.9, "worse": 0.2}
PAIRS = [("ips", "window"), ("ips", "cumulative")]


def batch(events: int, timestamp: bool = True, seed: int = 0) -> EventBatch:
    random = np.random.default_rng(seed)
    return EventBatch.from_arrays(
        reward=random.integers(0, 2, events),
        propensity=np.full(events, 0.5),
        policies={name: np.full(events, probability) for name, probability in POLICIES.items()},
        timestamp=1.7e9 + 60.0 * np.arange(events) if timestamp else None,
    )


def evaluator() -> Evaluator:
    intervals = {"cumulative": "normal", "window": "normal"}
    return Evaluator(list(POLICIES), estimators=[IPS()], averages=[Cumulative(), Window(tau=500)], intervals=intervals)


def traced(events: int, trace: Trace | None = None, *, timestamp: bool = True) -> Trace:
    trace, evaluated = trace or Trace(PAIRS), evaluator()
    trace.update(evaluated, batch(events, timestamp))
    trace.finish(evaluated.report())
    return trace


def accepted(trace: Trace) -> list[int]:
    return [point.events for point in trace.kept]


def test_points_lie_evenly_and_end_with_the_stream() -> None:
    assert accepted(traced(330, Trace(PAIRS, points=10, every=100))) == [100, 200, 300, 330]


def test_a_long_stream_is_thinned_out() -> None:
    trace = traced(1_300, Trace(PAIRS, points=3, every=100))
    assert accepted(trace) == [400, 800, 1_200, 1_300]
    assert trace.every == 400


def test_a_log_of_known_length_has_its_points_at_once() -> None:
    trace, evaluated = Trace(PAIRS, points=20), evaluator()
    for read in range(1, 11):
        trace.update(evaluated, batch(2_000, seed=read), read / 10)
    assert trace.every == 600
    assert [point.events for point in trace.kept] == list(range(600, 20_001, 600))


def test_a_point_holds_the_rows_of_a_report() -> None:
    trace, evaluated = Trace(PAIRS[:1]), evaluator()
    trace.update(evaluated, batch(950))
    evaluated.fold_pending()
    rows = evaluated.report().estimates
    assert trace.kept[-1].estimates == tuple(row for row in rows if row.average == "window")
    assert (trace.kept[-1].events, trace.kept[-1].newest) == (950, evaluated.report().events.last_timestamp)


def test_a_traced_evaluator_ends_in_the_state_of_an_untraced_one() -> None:
    plain, watched, trace = evaluator(), evaluator(), Trace(PAIRS)
    for seed in range(2):
        plain.update(batch(777, seed=seed))
        trace.update(watched, batch(777, seed=seed))
    report = watched.report()
    trace.finish(report)
    assert trace.last == report
    assert report.events == plain.report().events
    for policy in ("logging", *POLICIES):
        for average in ("cumulative", "window"):
            expected = plain.report().get(policy, "ips", average).value
            assert report.get(policy, "ips", average).value == pytest.approx(expected, rel=1e-12)


def test_rejected_events_are_counted_once_although_their_batch_is_cut() -> None:
    from streameval.events import JsonDecoder

    good = (
        b'{"event_id": "e", "timestamp": 1, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"better": 1}}'
    )
    mixed = JsonDecoder(list(POLICIES)).decode_batch([good] * 120 + [b"oops"] * 3)
    trace, evaluated = Trace(PAIRS), evaluator()
    trace.update(evaluated, mixed)
    assert evaluated.report().events.rejected == {"malformed": 3}


def test_curves_hold_the_values_of_one_estimator_and_average() -> None:
    trace = traced(1_000, Trace(PAIRS, every=100))
    curves = trace.curves("ips", "window")
    assert list(curves) == ["logging", "better", "worse"]
    value, lower, upper = curves["better"]
    assert value[-1] == trace.last.get("better", "ips", "window").value
    assert np.all((lower[1:] < value[1:]) & (value[1:] < upper[1:]))
    np.testing.assert_allclose(value, 1.8 * curves["logging"][0])


def picture(**options: Any) -> ReplayPlot:
    return ReplayPlot([("ips", "window")], "Two candidates", **options)


def texts(drawing: ReplayPlot, trace: Trace) -> tuple[Figure, list[str]]:
    """Return the figure and the words in it."""
    figure = drawing.figure(trace)
    figure.set_dpi(40)
    figure.canvas.draw()
    axes, labels = figure.axes[0], [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return figure, [
        *(text.get_text() for text in figure.texts),
        *labels,
        figure.axes[-1].get_xlabel(),
        axes.get_title(loc="left"),
    ]


def test_a_png_is_written_and_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    save(picture().figure(traced(1_000)), path)
    pixels = imread(path)
    assert pixels.shape[:2] == (1184, 1536)
    assert 0.02 < np.mean(pixels[..., :3].min(axis=2) < 0.9) < 0.5


@pytest.mark.parametrize("events", [100, 300, 3_000, 40_000])
def test_any_length_of_time_has_an_axis(events: int) -> None:
    figure, _ = texts(picture(), traced(events, Trace(PAIRS, every=events // 10)))
    assert 2 <= len(figure.axes[-1].get_xticklabels()) <= 12


def test_a_week_is_drawn_by_day_beside_the_hours() -> None:
    trace = traced(2 * 1_440)
    assert trace.last is not None
    day = Profile(DAY, 8.0, 2, (0.1,) * 24, (0.01,) * 24, (1 / 24,) * 24, (None,) * 24)
    week = Profile(WEEK, 1.1, 2, (0.1,) * 6 + (None,), (0.01,) * 6 + (None,), (1 / 6,) * 6 + (0.0,), (0.1,) * 7)
    decision = replace(trace.last.promotion[0], profiles=(day, week))
    trace.last = replace(trace.last, promotion=(decision,))
    figure, _ = texts(picture(), trace)
    titles = [axes.get_title(loc="left") for axes in figure.axes[2:]]
    assert titles == ["lift by hour of the day (UTC)", "lift by day of the week (UTC)"]
    assert figure.axes[3].get_xticklabels()[0].get_text() == "Mon"


def test_the_file_ending_selects_the_format(tmp_path: Path) -> None:
    save(picture().figure(traced(300)), tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_bytes().startswith(b"<?xml")


def test_the_legend_lists_lines_by_falling_value_and_axes_are_labelled() -> None:
    trace = traced(1_000)
    figure, words = texts(picture(), trace)
    last = {policy: float(value[-1]) for policy, (value, _, _) in trace.curves("ips", "window").items()}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{policy}  {last[policy]:.4f}" for policy in ("better", "logging", "worse")]
    assert {"Two candidates", "reward per event", "event time (UTC)"} <= set(words)
    marks = "▲ promotable, ▽ no longer (rule periodic)"
    assert f"ips on window  ·  shaded: 95% intervals  ·  {marks}  ·  1,000 events, production: logging" in words
    better, production, worse = figure.axes[0].lines
    assert production.get_linewidth() > max(better.get_linewidth(), worse.get_linewidth())
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3


def test_without_times_the_axis_counts_events() -> None:
    figure, words = texts(picture(), traced(2_000, Trace(PAIRS, every=200), timestamp=False))
    assert "events" in words
    assert "2,000" in [label.get_text() for label in figure.axes[-1].get_xticklabels()]


def test_the_truth_is_dashed_in_the_colour_of_its_policy() -> None:
    true_values = np.array([[0.0, 1_000.0], [0.8, 1.0]])
    drawing = picture(truth={"better": true_values, "not drawn": true_values})
    figure, words = texts(drawing, traced(1_000))
    *solid, dashed = figure.axes[0].lines
    assert len(solid) == 3
    assert dashed.get_color() == solid[0].get_color()
    assert np.asarray(dashed.get_ydata())[-1] == 1.0
    assert any("dashed: true values" in word for word in words)


def test_curves_of_several_rewards_show_the_primary_one_to_the_end() -> None:
    columns = three_actions(seed=1, events=2_020)
    rewards = {"click": {}, "other": {"max": 9.0}}
    evaluated = Evaluator(["challenger"], ["ips"], ["cumulative"], production="production", drift=None, rewards=rewards)
    trace = Trace([("ips", "cumulative")], points=10, every=500)
    trace.update(evaluated, EventBatch.from_arrays(**columns | {"rewards": {"other": 7.0 + columns["reward"]}}))
    trace.finish(evaluated.report())
    curves = trace.curves("ips", "cumulative")
    assert np.abs(np.diff(curves["challenger"][0])).max() < 0.2


def test_wide_intervals_at_the_start_do_not_set_the_scale() -> None:
    trace = traced(20_000, Trace(PAIRS, every=500))
    figure, _ = texts(ReplayPlot([("ips", "cumulative")], ""), trace)
    low, high = figure.axes[0].get_ylim()
    assert low >= 0
    assert high < 1.0


def test_too_few_events_are_bad_input() -> None:
    with pytest.raises(InputError, match="nothing to plot: 30 events, but a plot has one point per 50"):
        picture().figure(traced(30))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError) as caught:
        check_path(tmp_path / "p.png")
    assert caught.value.report() == (
        "a plot needs matplotlib, which is not installed\nhint: pip install 'streameval[plot]'"
    )


def test_the_truth_is_read_by_policy(tmp_path: Path) -> None:
    path = tmp_path / "truth.ndjson"
    path.write_text('{"events": 100, "truth": {"a": 0.25}}\n{"events": 200, "truth": {"a": 0.5}}\n')
    truth = read_truth(path)
    assert truth["a"].tolist() == [[100.0, 200.0], [0.25, 0.5]]
    path.write_text('{"events": "x"}')
    with pytest.raises(InputError, match="cannot be read"):
        read_truth(path)


def test_replay_draws_a_figure(run: Run) -> None:
    Path("c.yaml").write_text("policies: {candidates: [candidate-1]}")
    assert run("simulate", "events.ndjson", "--events", "1000").code == 0
    assert run("replay", "c.yaml", "events.ndjson", "--plot", "plot.png").code == 0
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")


def chosen(config: str, estimator: str | None = None, average: str | None = None) -> list[tuple[str, str]]:
    settings = Config.model_validate(parse_yaml(config, "c.yaml").values)
    return choices(settings.evaluator_config(), estimator, average)


def test_the_best_estimator_on_mixture_is_drawn_unless_another_is_chosen() -> None:
    default = "policies: {candidates: [a]}"
    assert chosen(default)[:2] == [("stratified_dr", "mixture"), ("stratified_ips", "mixture")]
    assert chosen(default, "snips")[0] == ("snips", "adaptive_window")
    assert chosen(default, None, "window") == [("snips", "window"), ("ips", "window")]
    lists = default + "\nestimators: [ips, control_variate]\naverages: [cumulative, {kind: window, tau: 5000}]"
    assert chosen(lists)[0] == ("control_variate", "window")


def test_estimates_outside_the_plan_are_refused_before_a_long_replay() -> None:
    with pytest.raises(InputError, match="snips is not estimated on mixture"):
        chosen("policies: {candidates: [a]}", "snips", "mixture")


def test_the_first_choice_that_the_reports_contain_is_drawn() -> None:
    drawing = ReplayPlot([("stratified_dr", "mixture"), ("ips", "window")], "")
    _, words = texts(drawing, traced(1_000))
    assert any("ips on window" in word for word in words)
    with pytest.raises(InputError, match="there are no estimates by snips on window") as caught:
        ReplayPlot([("snips", "window")], "").figure(traced(1_000))
    assert caught.value.hint == "choose one of ips on cumulative, ips on window"
