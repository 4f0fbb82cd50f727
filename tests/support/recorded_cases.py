"""Define cases for recorded Reports: fixed configurations on fixed logs that together use everything that counts.

Cases use public names only: `streameval.__all__`, the command `streameval replay`, and `Changing` for candidates that
come and go. Each case takes a `Feed`, which decides how events reach an evaluator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from pydantic import TypeAdapter

import streameval as se
from streameval.config.model import Config
from streameval.events import RawFields
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.reward_models import AnyRewardModel
from support import ranking_worlds
from support import recorded_logs as logs

STREAMEVAL = Path(sys.executable).parent / "streameval"

V = TypeVar("V")
Reports = dict[str, Any]
"""Reports as JSON, by the moment when they were made."""


class Changing:
    """Wrap an evaluator with candidates that come and go.

    Args:
        settings: Settings as in the configuration.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.evaluator = Evaluator.from_config(Config.model_validate(settings).evaluator_config())

    def change(self, settings: dict[str, Any]) -> None:
        """Continue with other candidates. New ones start from zero."""
        self.settings = settings
        late = self.evaluator.apply_config(Config.model_validate(settings).evaluator_config())
        if late is not None:
            self.evaluator.activate(late)

    def update(self, events: se.EventBatch) -> None:
        """Take the next events."""
        self.evaluator.update(events)

    def report(self, now: float | None = None) -> se.Report:
        """Return everything known now."""
        return self.evaluator.report(now)

    def restarted(self) -> Changing:
        """Continue from the state, as after a restart."""
        again = Changing(self.settings)
        again.evaluator = Evaluator.from_state(written_and_read(self.evaluator.state()))
        again.evaluator.apply_config(Config.model_validate(self.settings).evaluator_config())
        return again


class Coded:
    """Wrap an evaluator with code in its state, which continues only if the caller names that code again."""

    def __init__(self, evaluator: se.Evaluator, **code: Any) -> None:
        self.evaluator, self.code = evaluator, code

    def update(self, events: se.EventBatch) -> None:
        """Take the next events."""
        self.evaluator.update(events)

    def report(self, now: float | None = None) -> se.Report:
        """Return everything known now."""
        return self.evaluator.report(now)

    def restarted(self) -> Coded:
        """Continue from the state, as after a restart."""
        return Coded(se.Evaluator.from_state(written_and_read(self.evaluator.state()), **self.code), **self.code)


def written_and_read(state: Any) -> Any:
    """Pass the state through bytes, as a snapshot does."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state))


class Feed:
    """Give events to evaluators, all at once or in random pieces, with Reports and restarts in between.

    Args:
        seed: Seed of the random cuts, None for no cuts.
        restarts: Whether to replace the evaluator at one of the cuts by one from its state, and to make a Report.
        most: Largest number of events to give at a time. Later ones are left out.
        variants: Largest number of variants of a configuration to cover, None for all.
    """

    PIECES = 8

    def __init__(
        self, seed: int | None = None, restarts: bool = False, most: int | None = None, variants: int | None = None
    ) -> None:
        self.seed, self.restarts, self.most, self.variants = seed, restarts, most, variants
        self.updates = 0

    def chosen(self, variants: dict[str, V]) -> dict[str, V]:
        """Return the first variants of a configuration, as many as this feed covers."""
        return dict(list(variants.items())[: self.variants])

    def update(self, evaluator: Any, events: se.EventBatch) -> Any:
        """Give the events, and return the evaluator that continues."""
        events = events[: self.most]
        if self.seed is None or len(events) < 2:
            evaluator.update(events)
            return evaluator
        self.updates += 1
        rng = np.random.default_rng([self.seed, self.updates])
        cuts = np.sort(rng.choice(np.arange(1, len(events)), min(self.PIECES, len(events) - 1), replace=False)).tolist()
        restart = rng.choice(cuts) if self.restarts else None
        for first, last in pairwise((0, *cuts, len(events))):
            evaluator.update(events[first:last])
            if last == restart:
                evaluator = restarted(evaluator)
                evaluator.report()
        return evaluator

    def reports(self, evaluator: Any, events: se.EventBatch, *moments: int, now: float | None = None) -> Reports:
        """Return the Reports after these numbers of events, and after all."""
        reports: Reports = {}
        for first, last in pairwise((0, *moments, len(events))):
            evaluator = self.update(evaluator, events[first:last])
            reports[f"{last} events"] = reported(evaluator, now)
        return reports

    def end(self, evaluator: Any, events: se.EventBatch | logs.Columns) -> Any:
        """Return the Report after all events."""
        return reported(self.update(evaluator, events if isinstance(events, se.EventBatch) else batch(events)))


def restarted(evaluator: Any) -> Any:
    """Return an evaluator that continues from the state of this one."""
    if isinstance(evaluator, Changing | Coded):
        return evaluator.restarted()
    return se.Evaluator.from_state(written_and_read(evaluator.state()))


def batch(columns: logs.Columns) -> se.EventBatch:
    """Return all events of a log."""
    return se.EventBatch.from_arrays(**columns)


def reported(evaluator: Any, now: float | None = None) -> Any:
    """Return the Report as plain JSON."""
    return json.loads(evaluator.report(now).to_json())


@contextmanager
def written(messages: list[Any]) -> Iterator[Path]:
    """Write these messages to a file that exists in this context."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.ndjson"
        logs.write_lines(path, messages)
        yield path


# -- configurations ----------------------------------------------------------------------------------------------------

PLAIN: list[Any] = [
    se.IPS(),
    se.SNIPS(),
    se.ClippedIPS(cap=1.5),
    se.ClippedIPS(cap=4, name="capped_at_4"),
    se.ControlVariate(),
    se.StratifiedIPS(),
    se.StratifiedIPS(threshold=1.5, name="early"),
]
FAMILY: list[Any] = [
    se.DM(),
    se.DR(),
    se.StaticBlend(tau=0.25),
    se.Switch(cap=1.5),
    se.CAB(cap=1.5),
    se.CABDR(cap=2),
    se.StratifiedDR(),
    se.StratifiedDR(threshold=1.5, name="early_dr"),
]
AVERAGES: list[Any] = [
    se.Cumulative(),
    se.Window(tau=1_000),
    se.Window(tau=250, resolution=1, name="every_event"),
    se.Window(tau=640, resolution=20, name="coarse"),
    se.Window(tau=1_200, resolution=300, name="of_blocks"),
    se.Decay(alpha=0.998),
    se.Decay(half_life=500, name="faded"),
    se.AdaptiveWindow(drift_span=600),
    se.AdaptiveDecay(drift_span=600),
    se.Mixture(),
]
TIMED: list[Any] = [
    se.Window(span="20m"),
    se.Window(span="3h", name="hours"),
    se.Decay(half_life="10m"),
    se.Decay(half_life="90s", name="brief"),
    se.Mixture(rate=0.5),
]
EVERY_AVERAGE = [*AVERAGES, se.Window(span="20m", name="minutes"), se.Decay(half_life="10m", name="faded_minutes")]
NO_LIMIT = se.Trust(stale_after=None)
EAGER = se.Promotion(rule=("paired", "anytime", "sea", "bsea"), min_events=500, hold=2, trust=NO_LIMIT)


def estimators_and_averages(feed: Feed) -> Reports:
    """Cover every estimator for plain events on every average, production being the logging policy."""
    evaluator = se.Evaluator(["now", "new", "other"], PLAIN, EVERY_AVERAGE, (-0.125, 1.125), promotion=EAGER)
    return {"end": feed.end(evaluator, logs.plain(1, 4_040))}


def named_production(feed: Feed) -> Reports:
    """Cover a named production policy, long gaps, large weights, rewards of both signs and another block."""
    evaluator = se.Evaluator(
        ["new", "other"],
        PLAIN,
        [average for average in EVERY_AVERAGE if average.name != "of_blocks"],
        (-2.0, 3.0),
        "now",
        {"cumulative": "normal", "window": "empirical_bernstein", "adaptive_decay": "normal"},
        confidence=0.9,
        block=60,
        promotion=EAGER,
    )
    gaps = {"new": (700, 1_930), "now": (1_800, 2_350), "other": (0, 410)}
    return feed.reports(evaluator, batch(logs.with_gaps(logs.plain(2, 4_040, -1.5, 2.5, rare=True), gaps)), 2_100)


def units_that_start_late(feed: Feed) -> Reports:
    """Cover a log without units at first, then sessions, against a production that events may lack."""
    columns = logs.with_units(logs.with_gaps(logs.plain(21, 4_040), {"now": (1_400, 1_900)}), 22, first=1_730)
    reports: Reports = {}
    for name, kept in (("thinned", columns), ("complete", logs.without(columns, "sampling_probability"))):
        evaluator = se.Evaluator(["new", "other"], PLAIN, EVERY_AVERAGE, (-0.125, 1.125), "now", promotion=EAGER)
        reports[name] = feed.end(evaluator, kept)
    return reports


def event_time(feed: Feed) -> Reports:
    """Cover windows and decays measured by the clock of the events, over a pause, and with events that have no time."""
    reports: Reports = {}
    for name, intervals in (("withheld", {}), ("given", {"hours": "normal", "brief": "empirical_bernstein"})):
        columns = logs.plain(3, 4_040)
        if name == "withheld":
            columns["timestamp"] = np.where(np.arange(4_040) % 9 == 4, np.nan, columns["timestamp"])
        evaluator = se.Evaluator(["now", "new"], PLAIN, TIMED, (-0.125, 1.125), intervals=intervals, promotion="off")
        by_moment = feed.reports(evaluator, batch(columns), 2_025)
        reports |= {f"{name} {moment}": report for moment, report in by_moment.items()}
    return reports


def adaptive_options(feed: Feed) -> Reports:
    """Cover every objective, growth and form of the bias."""
    averages: list[Any] = [
        *(
            se.AdaptiveWindow(drift_span=600, objective=objective, growth=growth, name=f"{objective}_{growth}")
            for objective in ("mse", "published")
            for growth in ("by_event", "immediate")
        ),
        *(
            se.AdaptiveDecay(drift_span=600, objective=objective, bias=bias, name=f"{objective}_{bias}")
            for objective in ("mse", "published")
            for bias in ("published", "exact")
        ),
        se.AdaptiveWindow(drift_span=600, bias_weight=400.0, growth="immediate", name="immediate"),
        se.AdaptiveDecay(drift_span=600, objective="published", bias_weight=0.01, name="published_decay"),
        se.AdaptiveDecay(drift_span=600, bias_weight=40.0, bias="exact", name="exact"),
    ]
    intervals: dict[str, Any] = {
        "published_by_event": se.Normal(drift="include"),
        "exact": se.Normal(drift="include"),
        "immediate": se.EmpiricalLikelihood(drift="include"),
        "mse_exact": se.EmpiricalLikelihood(drift="include"),
    }
    reports: Reports = {}
    percents = {"moving": (20, 70), "steady": (30, 30)}
    for name, percent in feed.chosen(percents).items():
        evaluator = se.Evaluator(["now", "new"], PLAIN, averages, (-0.125, 1.125), intervals=intervals, promotion=None)
        reports[name] = feed.end(evaluator, logs.plain(4, 6_040, percent=percent))
    return reports


def blocks_of_other_lengths(feed: Feed) -> Reports:
    """Cover short and long blocks, with an unfinished one at the end."""
    columns, reports = logs.plain(23, 3_040), {}
    averages = [average for average in EVERY_AVERAGE if average.name not in ("coarse", "of_blocks")]
    for block in (7, 250, 1_000):
        evaluator = se.Evaluator(["now", "new"], PLAIN, averages, (-0.125, 1.125), block=block, promotion=EAGER)
        reports[f"blocks of {block}"] = feed.end(evaluator, columns)
    return reports


def extremes(feed: Feed) -> Reports:
    """Cover rewards and weights that never vary or hardly ever, and weights and sampling probabilities far from 1."""
    columns = logs.with_units(logs.plain(24, 2_030), 24)
    few = np.arange(2_030) % 700 == 699
    alike = dict.fromkeys(columns["policies"], columns["propensity"])
    changes: dict[str, dict[str, Any]] = {
        "no reward": {"reward": np.zeros(2_030)},
        "one reward": {"reward": np.full(2_030, 0.3)},
        "few rewards": {"reward": few * 1.0},
        "all alike": {"policies": alike},
        "all alike, one reward": {"policies": alike, "reward": np.full(2_030, 0.7)},
        "few weights": {"policies": {name: np.where(few, 1.0, 0.0) for name in alike}},
        "huge weights": {"propensity": np.where(few, 1e-7, columns["propensity"])},
        "hardly sampled": {"sampling_probability": np.where(few, 1e-4, 1.0)},
    }
    reports: Reports = {}
    for name, change in feed.chosen(changes).items():
        evaluator = se.Evaluator(["new", "other"], PLAIN, EVERY_AVERAGE, (0.0, 1.0), "now", promotion=EAGER)
        kept = columns | {"reward": np.clip(columns["reward"], 0.0, 1.0)} | change
        reports[name] = feed.end(evaluator, kept)
    return reports


INTERVALS: dict[str, Any] = {
    "normal": se.Normal(),
    "bernstein": se.EmpiricalBernstein(),
    "bernstein_limited": se.EmpiricalBernstein(max_weight=8),
    "likelihood": se.EmpiricalLikelihood(),
    "likelihood_limited": se.EmpiricalLikelihood(max_weight=8),
    "sequence": se.ConfidenceSequence(),
    "sequence_limited": se.ConfidenceSequence(method="empirical_bernstein", max_weight=8),
    "sequence_passed": se.ConfidenceSequence(method="empirical_bernstein", max_weight=1.25),
    "window_sequence": se.ConfidenceSequence(),
    "window_sequence_limited": se.ConfidenceSequence(method="empirical_bernstein", max_weight=8),
    "window_drift": se.Normal(drift="include"),
    "decay_drift": se.EmpiricalLikelihood(drift="include"),
    "window_drift_bernstein": se.EmpiricalBernstein(max_weight=8, drift="include"),
    "mixture_likelihood": se.EmpiricalLikelihood(),
    "mixture_normal": se.Normal(),
    "mixture_drift": se.DriftAware(),
}


def interval_average(label: str) -> Any:
    """Return the average of the kind that this label starts with, else `cumulative`."""
    if label.startswith("window_drift"):
        return se.AdaptiveWindow(drift_span=600, name=label)
    if label.startswith("decay"):
        return se.AdaptiveDecay(drift_span=600, name=label)
    if label.startswith("window"):
        return se.Window(tau=600, name=label)
    return se.Mixture(name=label) if label.startswith("mixture") else se.Cumulative(name=label)


def intervals_with(
    feed: Feed, columns: logs.Columns, production: str, confidence: float, rules: se.Promotion | None
) -> Reports:
    """Cover every kind of interval with its options."""
    evaluator = se.Evaluator(
        [name for name in ("now", "new", "other") if name != production],
        [se.IPS(), se.SNIPS(), se.ClippedIPS(cap=1.5), se.ControlVariate(), se.StratifiedIPS()],
        [interval_average(label) for label in INTERVALS],
        (-0.125, 1.125),
        production,
        INTERVALS,
        confidence=confidence,
        promotion=rules,
    )
    return {"end": feed.end(evaluator, columns)}


def intervals_of_a_complete_log(feed: Feed) -> Reports:
    """Cover a log without downsampling and units, as confidence sequences need it."""
    columns = logs.without(logs.plain(5, 3_050), "sampling_probability", "unit")
    return intervals_with(feed, columns, "logging", 0.95, se.Promotion("anytime", min_events=500, family_size=4))


def intervals_of_units(feed: Feed) -> Reports:
    """Cover units, which widen the intervals, large weights, and a named production."""
    columns = logs.without(logs.plain(6, 3_050, rare=True), "sampling_probability")
    return intervals_with(feed, columns, "now", 0.8, None)


def rules(feed: Feed) -> Reports:
    """Cover all rules with parameters, early, in the middle, at the end and while events are stale."""
    events, reports = batch(logs.without(logs.plain(7, 5_000), "unit")), Reports()
    settings = {
        "eager": se.Promotion(("paired", "anytime", "sea", "bsea"), 300, margin=-0.02, hold=1, family_size=2, tau=500),
        "strict": se.Promotion(
            ("paired", "anytime", "sea", "bsea"),
            1_000,
            margin=0.03,
            hold=5,
            max_weight=2.0,
            trust=se.Trust(error=0.2, effective_sample_size=2_400, largest_share=0.02, rejected_share=0.01),
        ),
        "sea": se.Promotion("sea", 0, family_size=1),
        "bsea": se.Promotion("bsea", 0, margin=0.1),
        "rejecting": se.Promotion("bsea", 0),
    }
    for name, promotion in feed.chosen(settings).items():
        for production in ("logging", "now"):
            evaluator = se.Evaluator(
                [policy for policy in ("now", "new", "other") if policy != production],
                [se.StratifiedIPS()],
                [se.Mixture()],
                (-0.0625, 0.99 if name == "rejecting" else 1.0625),  # 0.99: the largest rewards are rejected
                production,
                promotion=promotion,
            )
            by_moment = feed.reports(evaluator, events, 450, 2_500, now=logs.START + 60.0)
            reports |= {f"{name} {production} {moment}": report for moment, report in by_moment.items()}
    stale = feed.update(se.Evaluator(["new"], [se.StratifiedIPS()], [se.Mixture()], (-0.0625, 1.0625)), events)
    reports["stale"] = reported(stale, now=logs.START + 1e6)
    return reports


def drift_settings(feed: Feed) -> Reports:
    """Cover each detector with parameters, on a world that changes in the middle."""
    columns, reports = logs.plain(8, 4_000, percent=(20, 70)), {}
    detectors: dict[str, Any] = {
        "default": "ADWIN",
        "ADWIN": {"detector": "ADWIN", "delta": 0.2},
        "PageHinkley": {"detector": "PageHinkley", "threshold": 0.5, "min_instances": 40},
        "KSWIN": {"detector": "KSWIN", "alpha": 0.01, "window_size": 60},
        "off": "off",
    }
    for name, detector in detectors.items():
        evaluator = se.Evaluator(
            ["new", "other"], [se.SNIPS()], [se.Cumulative()], (-0.125, 1.125), block=25, drift=detector, promotion=None
        )
        reports[name] = feed.end(evaluator, columns)
    return reports


def family_with(
    feed: Feed, columns: logs.Columns, model: Any, averages: list[Any], intervals: dict[str, Any]
) -> Reports:
    """Cover every estimator on events with full distributions."""
    evaluator = se.Evaluator(
        ["good", "partial"],
        [*PLAIN, *FAMILY],
        averages,
        intervals=intervals,
        reward_model=model,
        promotion=se.Promotion(("paired", "anytime"), min_events=500, hold=2, trust=NO_LIMIT),
    )
    return {"end": feed.end(evaluator, columns)}


def family_of_a_ridge(feed: Feed) -> Reports:
    """Cover a reward model of the features, on every average."""
    return family_with(
        feed, logs.described(9, 3_330), se.Ridge(horizon=2_000, penalty=4), EVERY_AVERAGE, {"cumulative": "normal"}
    )


def family_of_a_table(feed: Feed) -> Reports:
    """Cover a reward model of the actions, by the clock and with confidence sequences."""
    averages = [se.Cumulative(), se.Window(tau=500, name="recent"), *TIMED]
    intervals: dict[str, Any] = dict.fromkeys(("cumulative", "recent"), "confidence_sequence")
    intervals |= {"hours": "empirical_bernstein", "mixture": "empirical_likelihood"}
    columns = logs.without(logs.described(10, 3_330), "features", "sampling_probability")
    return family_with(feed, columns, se.Tabular(shrinkage=5, horizon=1_000), averages, intervals)


def long_stream(feed: Feed) -> Reports:
    """Cover defaults of averages, drift and rules on a stream that is long enough for all of them."""
    columns = logs.without(logs.plain(20, 120_000, percent=(30, 34)), "unit", "sampling_probability")
    evaluator = se.Evaluator(
        ["new", "other"],
        [se.IPS(), se.StratifiedIPS()],
        USUAL,
        intervals={"adaptive_window": se.EmpiricalLikelihood(drift="include")},
        promotion=["paired", "anytime", "sea", "bsea"],
    )
    return feed.reports(evaluator, batch(columns), 57_000, now=logs.START + 60.0)


USUAL: list[Any] = [se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay(), se.Mixture()]


def long_streams_of_all_kinds(feed: Feed) -> Reports:
    """Cover all estimators on long streams: steady, with one change, with many, and with large weights."""
    percents: dict[str, tuple[int, int]] = {"steady": (30, 30), "one change": (20, 60), "heavy": (30, 45)}
    reports: Reports = {}
    for number, (name, percent) in enumerate(percents.items()):
        columns = logs.plain(61 + number, 60_040, rare=name == "heavy", percent=percent)
        evaluator = se.Evaluator(["new", "other"], PLAIN, USUAL, (-0.0625, 1.0625), promotion=EAGER)
        by_moment = feed.reports(evaluator, batch(columns), 20_000, 31_000)
        reports |= {f"{name} {moment}": report for moment, report in by_moment.items()}
    pieces = [batch(logs.plain(70 + number, 4_000, percent=(20 + 5 * number, 60))) for number in range(8)]
    evaluator = se.Evaluator(["new", "other"], PLAIN, USUAL, (-0.0625, 1.0625), promotion=EAGER)
    for piece in pieces:
        evaluator = feed.update(evaluator, piece)
    described = se.Evaluator(["good", "partial"], [*PLAIN, *FAMILY], USUAL, promotion=EAGER)
    return reports | {
        "many changes": reported(evaluator),
        "described": feed.end(described, logs.described(80, 30_040)),
    }


SLATES: list[Any] = [se.PseudoInverse(), se.WeightedPseudoInverse()]


def slates(feed: Feed) -> Reports:
    """Cover slots filled independently, from full distributions and from the shown slates, and rankings."""
    factored = logs.with_gaps(logs.slots(11, 3_030), {"tilted": (900, 1_450)})
    reports: Reports = {}
    forms = {"slots": (factored, ["tilted", "any"]), "shown": (logs.shown(factored), ["tilted", "any"])}
    forms["rankings"] = (logs.rankings(12, 3_030), ["top"])
    for name, (columns, candidates) in feed.chosen(forms).items():
        evaluator = se.Evaluator(
            candidates,
            [*SLATES, se.DRPI(), se.IPS(), se.SNIPS()],
            EVERY_AVERAGE,
            reward_model=se.Tabular(),
            intervals={"window": "normal", "faded": "empirical_bernstein"},
            promotion=se.Promotion(("paired", "sea"), min_events=500, hold=2, trust=NO_LIMIT),
        )
        reports[name] = feed.end(evaluator, columns)
    return reports


def listed_slates(feed: Feed) -> Reports:
    """Cover messages with the list of all slates, mixed with slates and events of other forms."""
    estimators = [*SLATES, se.DRPI(), se.IPS()]
    evaluator = se.Evaluator(["top"], estimators, EVERY_AVERAGE, promotion=EAGER, reward_model=se.Tabular())
    with written(logs.listed_messages(13, 1_530)) as path:
        for events in se.read_events(path, policies=["top"], batch_size=400):
            evaluator = feed.update(evaluator, events)
    return {"end": reported(evaluator)}


def policies_in_code(feed: Feed) -> Reports:
    """Cover policies computed from scores next to a logged one, with named actions and lines that are not events."""
    candidates: dict[str, Any] = {
        "shadow": se.Logged(),
        "even": "uniform",
        "first": se.First(),
        "greedy": se.EpsilonGreedy(epsilon=0.25),
        "soft": se.Softmax(temperature=0.5),
    }
    reports: Reports = {}
    models: dict[str, Any] = {"ridge": se.Ridge(), "tabular": se.Tabular()}
    with written(logs.scored_messages(14, 2_020)) as path:
        for name, model in feed.chosen(models).items():
            evaluator = se.Evaluator(
                candidates,
                [se.SNIPS(), se.DM(), se.DR(), se.Switch(cap=2), se.StratifiedDR()],
                [se.Cumulative(), se.Mixture()],
                intervals={"cumulative": "normal"},
                reward_model=model,
                promotion=se.Promotion(("paired", "anytime", "sea"), min_events=500, hold=2, trust=NO_LIMIT),
            )
            for events in se.read_events(path, reward_range=(0.0, 1.0), scores=["scores"]):
                evaluator = feed.update(evaluator, events)
            reports[name] = reported(evaluator)
    return reports


def moments(feed: Feed) -> Reports:
    """Cover one stream at several moments, and after it continued from its state."""
    events = batch(logs.described(15, 3_030))
    averages = [*EVERY_AVERAGE, se.Cumulative(name="watched")]
    evaluator = se.Evaluator(
        ["good"],
        [se.SNIPS(), se.StratifiedIPS(), se.DR(), se.StratifiedDR()],
        averages,
        intervals={"watched": "confidence_sequence"},
        drift={"detector": "ADWIN", "delta": 0.1},
        promotion=EAGER,
    )
    reports: Reports = {}
    for first, last in pairwise((0, 1, 37, 100, 750, 1_333, 2_050, 3_030)):
        evaluator = feed.update(evaluator, events[first:last])
        reports[f"{last} events"] = reported(evaluator)
        if last == 1_333:
            evaluator = restarted(evaluator)
            reports["from its state"] = reported(evaluator)
    return reports


def default_on_plain_events(feed: Feed) -> Reports:
    """Cover default estimators and averages on events that have no full distribution."""
    evaluator = se.Evaluator(["now", "new"], reward_range=(-0.125, 1.125))
    return {"end": feed.end(evaluator, logs.plain(16, 3_030))}


def default_on_full_events(feed: Feed) -> Reports:
    """Cover default estimators and averages on events with full distributions and features."""
    return {"end": feed.end(se.Evaluator(["good", "partial"]), logs.described(17, 3_030))}


# -- other forms of events, and rooms ----------------------------------------------------------------------------------


def automatic_caps(feed: Feed) -> Reports:
    """Cover caps that Reports choose, and confidence sequences of estimators that have several."""
    estimators: list[Any] = [
        *(se.ClippedIPS(cap="auto"), se.Switch(cap="auto"), se.CAB(cap="auto"), se.CABDR(cap="auto")),
        *(se.ClippedIPS(cap=2, name="capped_at_2"), se.DR()),
    ]
    evaluator = se.Evaluator(["good", "partial"], estimators, EVERY_AVERAGE, promotion=EAGER)
    plain = se.Evaluator(["now", "new"], estimators[:1], EVERY_AVERAGE, (-0.125, 1.125), promotion=EAGER)
    return {
        "described": feed.end(evaluator, logs.described(25, 2_030)),
        "plain": feed.end(plain, logs.plain(26, 2_030, rare=True)),
    }


def family_of_units(feed: Feed) -> Reports:
    """Cover every estimator, units that start late, long gaps, and a named production that events may lack."""
    columns = logs.with_gaps(logs.described(27, 3_330), {"good": (900, 1_600), "partial": (1_500, 2_000)})
    evaluator = se.Evaluator(["good"], [*PLAIN, *FAMILY], EVERY_AVERAGE, production="partial", promotion=EAGER)
    return {"end": feed.end(evaluator, logs.with_units(columns, 28, first=1_250))}


def slot_rewards(feed: Feed) -> Reports:
    """Cover slates with a reward for each slot, also several rewards, in units."""
    columns = logs.with_units(logs.rewarded_slots(29, 3_030), 30)
    estimators: list[Any] = [se.IIPS(), se.RIPS(), *SLATES, se.IPS()]
    rewards = {"reward": {}, "revenue": {"max": 50}, "stay": {"max": 3, "guardrail": {"max_loss": 0.2}}}
    one: dict[str, Any] = {"candidates": ["tilted", "any"]}
    three: dict[str, Any] = {"candidates": ["tilted"], "production": "any", "rewards": rewards}
    variants = {"three rewards": (three, logs.with_rewards(columns, 31)), "one reward": (one, columns)}
    reports: Reports = {}
    for name, (options, log) in feed.chosen(variants).items():
        evaluator = se.Evaluator(estimators=estimators, averages=EVERY_AVERAGE, promotion=EAGER, **options)
        reports[name] = feed.end(evaluator, log)
    return reports


def revealed_outcomes(feed: Feed) -> Reports:
    """Cover outcomes that were revealed with a known probability, mixed with plain events."""
    evaluator = se.Evaluator(
        ["challenger"],
        [se.ScoredIPS(), se.ScoredSNIPS()],
        EVERY_AVERAGE,
        production="production",
        intervals={"faded": "normal", "coarse": "empirical_bernstein"},
        promotion=EAGER,
    )
    with written(logs.revealed_messages(32, 2_530)) as path:
        for events in se.read_events(path, policies=["production", "challenger"]):
            evaluator = feed.update(evaluator, events)
    return {"end": reported(evaluator)}


CLICKS: list[Any] = [se.ClickIPS(), se.ClickSNIPS(), se.ClippedClickIPS(cap=2), se.ClickCAB(cap=2)]


def clicks(feed: Feed) -> Reports:
    """Cover rankings with clicks by every metric, on every average."""
    columns, reports = logs.pages(33, 2_030), Reports()
    metrics: list[Any] = [
        *("dcg", {"kind": "dcg", "at": 3}, {"kind": "precision", "at": 3}),
        *({"kind": "rank_biased_precision", "persistence": 0.6}, {"kind": "average_relevance_position", "at": 5}),
    ]
    for number, metric in enumerate(metrics[: feed.variants]):
        evaluator = se.Evaluator(
            ["new", "other"],
            CLICKS,
            EVERY_AVERAGE,
            ranking={"metric": metric},
            promotion=EAGER,
            intervals={"window": "normal"},
        )
        reports[f"metric {number}"] = feed.end(evaluator, se.EventBatch.from_rankings(**columns))
    return reports


def examination(feed: Feed) -> Reports:
    """Cover rankings with clicks by every model of examination. Learned curves need more pages."""
    columns, reports = logs.without(logs.pages(34, 2_030), "sampling_probability", "unit"), Reports()
    with_propensities = columns | {"propensities": np.tile(0.9 / np.arange(1, 6), (2_030, 1))}
    curves: dict[str, tuple[Any, se.EventBatch]] = {
        "power": ({"kind": "power", "eta": 0.5}, se.EventBatch.from_rankings(**columns)),
        "table": ({"kind": "table", "values": [1.0, 0.5, 0.25]}, se.EventBatch.from_rankings(**columns)),
        "given": ("given", se.EventBatch.from_rankings(**with_propensities)),
        "swaps": ({"kind": "swaps", "ranks": 6}, ranking_worlds.pages(12_040, 35)[0]),
        "harvested": ({"kind": "harvested", "ranks": 6}, ranking_worlds.pages(12_040, 36, "harvested")[0]),
    }
    for name, (curve, events) in feed.chosen(curves).items():
        candidates = ["new", "other"] if len(events) == 2_030 else ["new"]
        estimators = CLICKS if len(candidates) == 2 else CLICKS[:3]
        ranking = {"metric": {"kind": "dcg", "at": 6}, "examination": curve}
        evaluator = se.Evaluator(candidates, estimators, EVERY_AVERAGE, ranking=ranking, promotion=EAGER)
        reports[name] = feed.end(evaluator, events)
    return reports


REWARDS = {"reward": {"min": -0.125, "max": 1.125}, "revenue": {"max": 60}, "stay": {"guardrail": {"max_loss": 0.05}}}
ALL_RULES = se.Promotion(rule=("paired", "anytime", "sea", "bsea"), min_events=500, hold=2, trust=NO_LIMIT)


def several_rewards(feed: Feed) -> Reports:
    """Cover three rewards that events may lack, one of them a guardrail, of plain and of described events."""
    plain = logs.with_rewards(logs.with_gaps(logs.plain(37, 3_030), {"now": (1_000, 1_400)}), 38)
    evaluator = se.Evaluator(
        ["new", "other"], PLAIN, EVERY_AVERAGE, production="now", rewards=REWARDS, promotion=ALL_RULES
    )
    described = se.Evaluator(["good", "partial"], [*PLAIN, *FAMILY], AVERAGES, rewards=REWARDS, promotion=ALL_RULES)
    complete = logs.without(plain, "sampling_probability", "unit")
    watched: dict[str, Any] = {"cumulative": "confidence_sequence", "mixture": "empirical_likelihood"}
    sequences = se.Evaluator(
        ["new"], PLAIN, [se.Cumulative(), se.Mixture()], rewards=REWARDS, intervals=watched, promotion=ALL_RULES
    )
    return {
        "plain": feed.end(evaluator, plain),
        "described": feed.end(described, logs.with_rewards(logs.described(39, 2_030), 40)),
        "sequences": feed.end(sequences, complete),
    }


def learned_limits(feed: Feed) -> Reports:
    """Cover limits that are learned, of the goal and of a guardrail that events may lack, with a reward model."""
    limited = {"max": "auto", "quantile": 0.95, "quantiles": [0.5, 0.9]}
    goal = {"reward": {"min": -0.125, **limited}, "revenue": {**limited, "guardrail": {"max_loss": 0.05}}, "stay": {}}
    plain = logs.with_rewards(logs.with_gaps(logs.plain(37, 3_030), {"now": (1_000, 1_400)}), 38)
    evaluator = se.Evaluator(["new", "other"], PLAIN, AVERAGES, production="now", rewards=goal)
    described = se.Evaluator(["good", "partial"], [*PLAIN, *FAMILY], AVERAGES, rewards=goal)
    return {
        "plain": feed.end(evaluator, plain),
        "described": feed.end(described, logs.with_rewards(logs.described(39, 2_030), 40)),
    }


SEGMENTS = {"country": {"values": ["de", "fr"], "other": True}, "position": {"most": 3}}


def segments(feed: Feed) -> Reports:
    """Cover segments by the defaults, and by each estimator and average that they may come from."""
    plain = logs.with_segments(logs.with_gaps(logs.plain(41, 3_030), {"new": (800, 1_300)}), 42)
    described = logs.with_segments(logs.with_rewards(logs.described(43, 2_030), 44), 45)
    options: dict[str, Any] = {"reward_range": (-0.125, 1.125), "segments": SEGMENTS}
    reports: Reports = {"default": feed.end(se.Evaluator(["now", "new"], **options), plain)}
    averages = (se.Cumulative(), se.Decay(alpha=0.998), se.Decay(half_life=500, name="faded"))
    for average in averages[: feed.variants]:
        label = str(average.name or average.kind)
        intervals: dict[str, Any] = {label: "normal"} if label == "faded" else {}
        for estimator in (se.IPS(), se.StratifiedIPS()):
            evaluator = se.Evaluator(
                ["new"], [se.SNIPS(), estimator], [average], production="now", intervals=intervals, **options
            )
            reports[f"{estimator.kind} {label}"] = feed.end(evaluator, plain)
        for estimator in (se.DR(), se.StratifiedDR()):
            evaluator = se.Evaluator(
                ["good", "partial"], [se.DM(), estimator], [average, se.Mixture()], rewards=REWARDS, segments=SEGMENTS
            )
            reports[f"{estimator.kind} {label}"] = feed.end(evaluator, described)
    return reports


def ramps(feed: Feed) -> Reports:
    """Cover arms with known and measured shares, logged propensities, and calibration of all logged policies."""
    columns, reports = logs.ramp(46, 4_030), Reports()
    arms: dict[str, Any] = {
        "balanced": {"arms": {"now": 0.8, "new": 0.2}},
        "measured": {"arms": ["now", "new"]},
        "logged": {"arms": {"now": 0.8, "new": 0.2}, "weights": "logged"},
        "none": None,
    }
    for name, logging in feed.chosen(arms).items():
        for production in ("now", "logging"):
            candidates = ["new", "other"] if production == "now" else ["now", "new"]
            evaluator = se.Evaluator(
                candidates, PLAIN, EVERY_AVERAGE, production=production, logging=logging, promotion=EAGER
            )
            kept = columns if production == "now" else logs.with_units(columns, 47)
            reports[f"{name} {production}"] = feed.end(evaluator, kept)
    return reports


def estimated_propensities(feed: Feed) -> Reports:
    """Cover logs without propensities, with names of actions, and with lists."""
    reports: Reports = {}
    models: dict[str, Any] = {
        "alone": "estimated",
        "by": {"kind": "estimated", "model": {"kind": "tabular", "by": ["country"]}},
    }
    estimators: list[Any] = [se.SNIPS(), se.DR(), se.CABDR(cap=5), se.DM()]
    for name, model in feed.chosen(models).items():
        for listed in (False, True):
            evaluator = se.Evaluator(
                ["new"],
                estimators if listed else estimators[:1],
                EVERY_AVERAGE,
                propensity=model,
                reward_model="tabular",
                promotion=EAGER,
            )
            reports[f"{name} {'lists' if listed else 'names'}"] = feed.end(evaluator, logs.choices(48, 3_030, listed))
    return reports


def policies_that_learn(feed: Feed) -> Reports:
    """Cover learned candidates of every objective, and the policy of the reward model."""
    candidates: dict[str, Any] = {
        "ips": se.Learned(),
        "snips": se.Learned(objective="snips", variance=0.5, clip=5.0, horizon=2_000),
        "dr": se.Learned(objective="dr", start_from="logging", step=0.05),
        "cab": se.Learned(objective="cab", clip=2.0, per_action=True),
        "sampled": se.Learned(counter_sample=True),
        "greedy": se.OfRewardModel(epsilon=0.1),
        "soft": se.OfRewardModel(temperature=0.25),
        "good": se.Logged(),
    }
    averages = [se.Cumulative(), se.Window(tau=500), se.AdaptiveDecay(drift_span=600), se.Mixture()]
    reports: Reports = {}
    models: dict[str, Any] = {"ridge": se.Ridge(), "tabular": se.Tabular()}
    for name, model in feed.chosen(models).items():
        evaluator = se.Evaluator(
            candidates, [se.IPS(), se.SNIPS(), se.DR()], averages, reward_model=model, promotion=EAGER
        )
        reports[name] = feed.end(evaluator, logs.described(49, 3_030))
    return reports


def settings_with(candidates: Any, **changes: Any) -> dict[str, Any]:
    """Return a configuration with these candidates."""
    default: dict[str, Any] = {
        "estimators": ["snips", "stratified_ips", "dr", "stratified_dr"],
        "averages": ["cumulative", {"kind": "window", "tau": 500}, "decay", "adaptive_window", "mixture"],
        "promotion": {"rule": ["paired", "anytime"], "min_events": 300, "hold": 1, "trust": {"stale_after": None}},
    }
    return {"policies": {"candidates": candidates}} | default | changes


def versions(feed: Feed) -> Reports:
    """Cover frozen copies of policies that learn."""
    candidates = {
        "apprentice": {"kind": "learned"},
        "greedy": {"kind": "of_reward_model", "epsilon": 0.125},
        "frozen": {"kind": "versions_of", "policy": "apprentice", "every": 600, "keep": 2},
        "copies": {"kind": "versions_of", "policy": "greedy", "every": 900},
    }
    return feed.reports(Changing(settings_with(candidates)), batch(logs.described(50, 3_030)), 1_333)


def changing(
    feed: Feed,
    settings: Callable[[list[str]], dict[str, Any]],
    columns: logs.Columns,
    moments: Sequence[int],
    stays: bool = True,
) -> Reports:
    """Report while candidates come and go. The first one leaves too, unless it `stays`."""
    events, reports = batch(columns), Reports()
    first, second, third = columns["policies"]
    evaluator: Any = Changing(settings([first]))
    steps = ([first], [first, second], [first if stays else second, third], [first, second, third])
    for candidates, (start, end) in zip(steps, pairwise((0, *moments, len(events))), strict=True):
        if start:
            evaluator.change(settings(candidates))
        evaluator = feed.update(evaluator, events[start:end])
        reports[f"{end} events"] = reported(evaluator)
    return reports


AT_BLOCK_ENDS, WITHIN_BLOCKS = (700, 1_500, 2_100), (733, 1_501, 2_099)


def late_candidates_at_block_ends(feed: Feed) -> Reports:
    """Cover candidates that come and go at ends of blocks, of plain and of described events."""
    return late_candidates(feed, AT_BLOCK_ENDS)


def late_candidates_within_blocks(feed: Feed) -> Reports:
    """Cover candidates that come and go inside of blocks."""
    return late_candidates(feed, WITHIN_BLOCKS)


def late_candidates(feed: Feed, moments: Sequence[int]) -> Reports:
    """Cover candidates that come and go, with units, and with several rewards and segments."""
    described = logs.described(51, 3_030)
    described["policies"]["mixed"] = 0.5 * (described["policies"]["good"] + described["propensities"])
    plain = logs.with_segments(logs.with_rewards(logs.plain(52, 3_030), 53), 54)

    def with_rewards(candidates: list[str]) -> dict[str, Any]:
        estimators = ["ips", "snips", {"kind": "clipped_ips", "cap": "auto"}, "control_variate", "stratified_ips"]
        return settings_with(candidates, estimators=estimators, rewards=REWARDS, segments=SEGMENTS)

    variants: dict[str, tuple[Callable[[list[str]], dict[str, Any]], logs.Columns, bool]] = {
        "described": (settings_with, described, True),
        "first one leaves": (settings_with, described, False),
        "plain": (with_rewards, plain, True),
    }
    reports: Reports = {}
    for name, (settings, columns, stays) in feed.chosen(variants).items():
        moves = changing(feed, settings, columns, moments, stays)
        reports |= {f"{name} {moment}": report for moment, report in moves.items()}
    return reports


def many_candidates(feed: Feed) -> Reports:
    """Cover defaults with forty candidates."""
    columns = logs.plain(55, 2_530)
    tilts = np.arange(40) / 40.0
    columns["policies"] = {
        f"candidate-{number}": (1 - tilt) * columns["policies"]["other"] + tilt * columns["policies"]["new"]
        for number, tilt in enumerate(tilts.tolist())
    }
    evaluator = se.Evaluator(list(columns["policies"]), reward_range=(-0.125, 1.125), promotion=EAGER)
    return {"end": feed.end(evaluator, columns)}


def everything(feed: Feed) -> Reports:
    """Cover everything once: rewards, segments, units, gaps, arms, a policy that learns, and a named production."""
    columns = logs.with_gaps(logs.described(56, 2_530), {"good": (700, 1_150), "partial": (1_100, 1_300)})
    columns["logging_policy"] = np.array(["partial", "good", None], dtype=object)[
        logs.generator(57).integers(0, 3, 2_530)
    ].tolist()
    columns = logs.with_segments(logs.with_units(logs.with_rewards(columns, 58), 59, first=550), 60)
    evaluator = se.Evaluator(
        {"good": "logged", "apprentice": se.Learned(objective="snips")},
        [se.SNIPS(), se.ClippedIPS(cap="auto"), se.ControlVariate(), se.StratifiedIPS(), se.DR(), se.StratifiedDR()],
        EVERY_AVERAGE,
        production="partial",
        rewards={name: REWARDS[name] for name in ("reward", "stay")},
        segments=SEGMENTS,
        logging={"arms": {"partial": 0.6, "good": 0.4}, "weights": "logged"},
        intervals={"coarse": "normal", "faded": "empirical_bernstein", "adaptive_window": se.Normal(drift="include")},
        promotion=ALL_RULES,
    )
    return feed.reports(evaluator, batch(columns))


def mixed_forms(feed: Feed) -> Reports:
    """Cover events with full distributions among events with the logged action alone: by turns, and in bursts."""
    columns, rows = logs.described(81, 3_030), np.arange(3_030)
    chosen = rows, columns["action"]
    plain = logs.without(columns, "action", "propensities", "features") | {
        "propensity": columns["propensities"][chosen],
        "policies": {name: column[chosen] for name, column in columns["policies"].items()},
    }
    both = se.EventBatch.concat([batch(plain), batch(columns)])
    reports: Reports = {}
    for name, full in (("by turns", rows % 2 == 0), ("bursts", rows // 170 % 2 == 0)):
        evaluator = se.Evaluator(["good", "partial"], promotion=EAGER)
        reports[name] = feed.end(evaluator, both.take(rows + 3_030 * full))
    return reports


def with_countries(events: se.EventBatch, actions: list[str]) -> se.EventBatch:
    """Return the events with a country in the context, and with names of their actions."""
    countries = logs.generator(82).choice(["de", "fr"], len(events)).tolist()
    fields = [{"context": {"country": country}, "actions": actions} for country in countries]
    return replace(events, raw_fields=RawFields(fields))


def policies_that_learn_by_code(feed: Feed) -> Reports:
    """Cover policies that learn by code of users and of river."""
    linear = {"model": "linear_model.LogisticRegression"}
    candidates: dict[str, Any] = {
        "python": {"kind": "python", "target": "support.coded_policies:Counting", "learns": True},
        "contextual bandit": {"kind": "river", "model": "bandit.LinUCBDisjoint", "epsilon": 0.1},
        "random bandit": {
            "kind": "river",
            "model": "bandit.EpsilonGreedy",
            "parameters": {"epsilon": 0.3, "seed": 7},
        },
        "tree": {
            "kind": "river",
            "model": "tree.HoeffdingTreeClassifier",
            "epsilon": 0.1,
            "parameters": {"grace_period": 50},
        },
        "classes": {
            "kind": "river",
            "model": "multiclass.OneVsRestClassifier",
            "epsilon": 0.1,
            "parameters": {"classifier": linear},
        },
        "two classes": {"kind": "river", **linear},
        "no probabilities": {"kind": "river", "model": "linear_model.PAClassifier", "epsilon": 0.2},
    }
    columns = logs.without(logs.described(83, 1_030, actions=3), "features") | {"policies": {}}
    averages: list[Any] = [se.Cumulative(), se.Mixture()]
    evaluator = se.Evaluator(candidates, [se.IPS()], averages, drift="off", promotion=None)
    events = with_countries(batch(columns), ["a", "b", "c"])
    return {"end": feed.end(Coded(evaluator, candidates=candidates), events)}


def propensities_by_a_classifier(feed: Feed) -> Reports:
    """Cover propensities that a classifier of river estimates from the context."""
    model: dict[str, Any] = {
        "kind": "estimated",
        "warm_up": 100,
        "model": {"kind": "river", "model": "linear_model.SoftmaxRegression"},
    }
    made = EstimatedPropensity(**model)
    evaluator = se.Evaluator(["new"], [se.SNIPS(), se.DR()], [se.Cumulative(), se.Mixture()], propensity=made)
    events = with_countries(batch(logs.choices(85, 1_430, listed=True)), ["a", "b", "c", "d"])
    return {"end": feed.end(Coded(evaluator, propensity=made), events)}


def reward_models_in_code(feed: Feed) -> Reports:
    """Cover reward models of river and of users, and a model of the features for each action."""
    models: dict[str, Any] = {
        "linear": {"kind": "river", "model": "linear_model.BayesianLinearRegression"},
        "trees": {
            "kind": "river",
            "model": "ensemble.BaggingRegressor",
            "parameters": {"model": {"model": "tree.HoeffdingTreeRegressor"}, "n_models": 2, "seed": 3},
        },
        "mean": {"kind": "python", "target": "support.own_models:Mean"},
        "by action": {"kind": "ridge", "per_action": True},
    }
    events = with_countries(batch(logs.described(84, 530)), ["a", "b", "c", "d"])
    reports: Reports = {}
    for name, model in models.items():
        made = TypeAdapter(AnyRewardModel).validate_python(model)
        evaluator = se.Evaluator(
            ["good"], [se.DM(), se.DR()], [se.Cumulative(), se.Mixture()], reward_model=made, block=20, promotion=None
        )
        reports[name] = feed.end(Coded(evaluator, reward_model=made), events)
    return reports


# -- by the command line -----------------------------------------------------------------------------------------------

COMPACT_YAML = """
policies: {candidates: [new, other], production: now}
reward: {field: gain, min: 0, max: 1}
estimators: [ips, snips, {kind: clipped_ips, cap: 1.5}, control_variate, {kind: stratified_ips, threshold: 1.5}]
averages:
  - cumulative
  - {kind: window, tau: 900, resolution: 300}
  - {kind: window, span: 30m, name: half_an_hour}
  - {kind: decay, half_life: 5m}
  - {kind: adaptive_window, drift_span: 500}
  - {kind: adaptive_decay, drift_span: 500}
  - mixture
intervals:
  cumulative: confidence_sequence
  window: {kind: empirical_bernstein, max_weight: 9}
  half_an_hour: normal
  adaptive_window: {kind: normal, drift: include}
confidence: 0.9
drift: {detector: PageHinkley, threshold: 0.5}
promotion:
  rule: [paired, anytime, sea, bsea]
  min_events: 600
  hold: 3
  margin: 0.01
  family_size: 3
  trust: {stale_after: null}
"""
SCORED_YAML = """
policies:
  candidates:
    shadow: logged
    even: uniform
    first: first
    careful: {kind: softmax, temperature: 0.25}
    bold: {kind: epsilon_greedy, epsilon: 0.125}
estimators: [ips, dm, dr, {kind: static_blend, tau: 0.5}, {kind: cab, cap: 2}, {kind: cab_dr, cap: 2}, stratified_dr]
averages: [cumulative, {kind: decay, alpha: 0.999}, mixture]
reward_model: {kind: tabular, horizon: 800}
drift: off
promotion: {rule: {kind: anytime, tau: 400}, min_events: 400, trust: {stale_after: null}}
"""


def replayed(configuration: str, messages: list[Any]) -> Any:
    """Return the Report that `streameval replay --json` prints."""
    with written(messages) as log:
        config = log.with_name("streameval.yaml")
        config.write_text(configuration)
        command = [STREAMEVAL, "replay", "--json", config, log]
        return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)


def replay(_: Feed) -> Reports:
    """Cover YAML configurations through the command line."""
    return {
        "compact": replayed(COMPACT_YAML, logs.compact_messages(18, 3_030)),
        "scored": replayed(SCORED_YAML, logs.scored_messages(19, 1_530)),
    }


CASES: dict[str, Callable[[Feed], Reports]] = {
    case.__name__: case
    for case in (
        everything,
        estimators_and_averages,
        named_production,
        units_that_start_late,
        event_time,
        adaptive_options,
        blocks_of_other_lengths,
        extremes,
        intervals_of_a_complete_log,
        intervals_of_units,
        rules,
        drift_settings,
        family_of_a_ridge,
        family_of_a_table,
        family_of_units,
        automatic_caps,
        long_stream,
        long_streams_of_all_kinds,
        slates,
        listed_slates,
        slot_rewards,
        revealed_outcomes,
        clicks,
        examination,
        several_rewards,
        learned_limits,
        segments,
        ramps,
        estimated_propensities,
        policies_in_code,
        policies_that_learn,
        versions,
        late_candidates_at_block_ends,
        late_candidates_within_blocks,
        moments,
        many_candidates,
        mixed_forms,
        policies_that_learn_by_code,
        propensities_by_a_classifier,
        reward_models_in_code,
        default_on_plain_events,
        default_on_full_events,
        replay,
    )
}
