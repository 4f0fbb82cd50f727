"""The Reports of fixed configurations on fixed logs, as they were recorded, and how a Report is compared with them.

    PYTHONPATH=tests python tests/tools/recorded_reports.py --record           # records every case again
    PYTHONPATH=tests python tests/tools/recorded_reports.py --record slates    # or some cases

Record only after a change that is meant to move numbers, and name that change in the commit. The cases use public
names only: `streameval.__all__`, and the command `streameval replay` with a YAML configuration.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import streameval as se
from support import recorded_logs as logs
from support.paths import TESTS

DATA = TESTS / "data" / "recorded_reports"
STREAMEVAL = Path(sys.executable).parent / "streameval"

Reports = dict[str, Any]
"""Reports as JSON, by the moment when they were made."""

TOLERANCE = 1e-12
"""Largest relative or absolute difference between a number and the recorded one."""
LARGER_TOLERANCE = {"lift_design_effect": 1e-9, "design_effect": 1e-11, "lift_lower": 1e-11, "lift_upper": 1e-11}
LARGER_TOLERANCE |= {"lift_ratio_lower": 1e-10, "lift_ratio_upper": 1e-10}
"""A design effect divides by a variance, and that of a lift is small where two policies are alike. Between processors
with and without AVX2 and AVX-512, design effects of lifts differ by up to 1e-10, those of values by up to 7e-13, and
the bounds of lifts, which they widen, by up to 9e-13. Relative lifts divide these bounds by values that may be small.
All other numbers differ by less than 2e-13."""


def batch(columns: logs.Columns, first: int = 0, last: int | None = None) -> se.EventBatch:
    """The events from `first` to `last`."""
    taken: logs.Columns = {name: column[first:last] for name, column in columns.items() if name not in WHOLE}
    taken |= {name: columns[name] for name in WHOLE & columns.keys() - {"policies"}}
    policies = {name: column[first:last] for name, column in columns["policies"].items()}
    return se.EventBatch.from_arrays(**taken, policies=policies)


WHOLE = {"policies", "slate_logging"}


def reported(evaluator: se.Evaluator, now: float | None = None) -> Any:
    """The Report as plain JSON."""
    return json.loads(evaluator.report(now).to_json())


def at_the_end(evaluator: se.Evaluator, columns: logs.Columns, cut: int = 1_733) -> Reports:
    """The Report after all events, which come in two batches."""
    evaluator.update(batch(columns, 0, cut))
    evaluator.update(batch(columns, cut))
    return {"end": reported(evaluator)}


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
    se.Window(tau=640, resolution=20, name="coarse"),
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
NO_LIMIT = se.Trust(stale_after=None)
EAGER = se.Promotion(rule=("paired", "anytime", "sea", "bsea"), min_events=500, hold=2, trust=NO_LIMIT)


def estimators_and_averages() -> Reports:
    """Every estimator for plain events on every average in events, production being the logging policy."""
    evaluator = se.Evaluator(["now", "new", "other"], PLAIN, AVERAGES, (-0.125, 1.125), promotion=EAGER)
    return at_the_end(evaluator, logs.plain(1, 4_040))


def named_production() -> Reports:
    """The same against a named policy, with large weights, rewards of both signs and another block."""
    evaluator = se.Evaluator(
        ["new", "other"],
        PLAIN,
        AVERAGES,
        (-2.0, 3.0),
        "now",
        {"cumulative": "normal", "window": "empirical_bernstein", "adaptive_decay": "normal"},
        confidence=0.9,
        block=60,
        promotion=EAGER,
    )
    return at_the_end(evaluator, logs.plain(2, 4_040, -1.5, 2.5, rare=True))


def event_time() -> Reports:
    """Windows and decays measured by the clock of the events, over a pause."""
    intervals = {"hours": "normal", "brief": "empirical_bernstein", "mixture": "normal"}
    evaluator = se.Evaluator(["now", "new"], PLAIN, TIMED, (-0.125, 1.125), intervals=intervals, promotion="off")
    columns = logs.plain(3, 4_040)
    evaluator.update(batch(columns, 0, 2_025))
    return {"after the pause": reported(evaluator)} | at_the_end_of(evaluator, columns, 2_025)


def at_the_end_of(evaluator: se.Evaluator, columns: logs.Columns, first: int) -> Reports:
    """The Report after the events from `first` on."""
    evaluator.update(batch(columns, first))
    return {"end": reported(evaluator)}


def adaptive_options() -> Reports:
    """The published objectives, immediate growth and the exact bias."""
    averages = [
        se.AdaptiveWindow(drift_span=600, objective="published", name="published"),
        se.AdaptiveWindow(drift_span=600, bias_weight=400.0, growth="immediate", name="immediate"),
        se.AdaptiveDecay(drift_span=600, objective="published", bias_weight=0.01, name="published_decay"),
        se.AdaptiveDecay(drift_span=600, bias_weight=40.0, bias="exact", name="exact"),
    ]
    intervals: dict[str, Any] = {
        "published": se.Normal(drift="include"),
        "exact": se.Normal(drift="include"),
        "immediate": se.EmpiricalLikelihood(drift="include"),
    }
    evaluator = se.Evaluator(
        ["now", "new"], [se.IPS(), se.SNIPS()], averages, (-0.125, 1.125), intervals=intervals, promotion=None
    )
    return at_the_end(evaluator, logs.plain(4, 4_040))


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
    """The average with this label: of the kind that the label starts with, else `cumulative`."""
    if label.startswith("window_drift"):
        return se.AdaptiveWindow(drift_span=600, name=label)
    if label.startswith("decay"):
        return se.AdaptiveDecay(drift_span=600, name=label)
    if label.startswith("window"):
        return se.Window(tau=600, name=label)
    return se.Mixture(name=label) if label.startswith("mixture") else se.Cumulative(name=label)


def intervals_with(columns: logs.Columns, production: str, confidence: float, rules: se.Promotion | None) -> Reports:
    """Every kind of interval with its options."""
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
    return at_the_end(evaluator, columns)


def intervals_of_a_complete_log() -> Reports:
    """No downsampling and no units, as confidence sequences need it."""
    columns = logs.without(logs.plain(5, 3_050), "sampling_probability", "unit")
    return intervals_with(columns, "logging", 0.95, se.Promotion("anytime", min_events=500, family_size=4))


def intervals_of_units() -> Reports:
    """Units widen the intervals; large weights; production is named."""
    columns = logs.without(logs.plain(6, 3_050, rare=True), "sampling_probability")
    return intervals_with(columns, "now", 0.8, None)


def rules() -> Reports:
    """All rules with parameters, early, in the middle, at the end and while events are stale."""
    columns = logs.without(logs.plain(7, 5_000), "unit")
    reports: Reports = {}
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
    for name, promotion in settings.items():
        for production in ("logging", "now"):
            evaluator = se.Evaluator(
                [each for each in ("now", "new", "other") if each != production],
                [se.StratifiedIPS()],
                [se.Mixture()],
                (-0.0625, 0.99 if name == "rejecting" else 1.0625),  # 0.99: the largest rewards are rejected
                production,
                promotion=promotion,
            )
            for first, last in pairwise((0, 450, 2_500, 5_000)):
                evaluator.update(batch(columns, first, last))
                reports[f"{name} {production} {last}"] = reported(evaluator, now=logs.START + 60.0)
            reports[f"{name} {production} stale"] = reported(evaluator, now=logs.START + 1e6)
    return reports


def drift_settings() -> Reports:
    """Each detector with parameters, on a world that changes in the middle."""
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
        reports[name] = at_the_end(evaluator, columns)["end"]
    return reports


def family_with(columns: logs.Columns, model: Any, averages: list[Any], intervals: dict[str, Any]) -> Reports:
    """Every estimator on events with full distributions."""
    evaluator = se.Evaluator(
        ["good", "partial"],
        [*PLAIN, *FAMILY],
        averages,
        intervals=intervals,
        reward_model=model,
        promotion=se.Promotion(("paired", "anytime"), min_events=500, hold=2, trust=NO_LIMIT),
    )
    return at_the_end(evaluator, columns)


def family_of_a_ridge() -> Reports:
    """Reward model of the features, on every average."""
    return family_with(logs.described(9, 3_330), se.Ridge(horizon=2_000, penalty=4), AVERAGES, {"cumulative": "normal"})


def family_of_a_table() -> Reports:
    """Reward model of the actions, by the clock and with confidence sequences."""
    averages = [se.Cumulative(), se.Window(tau=500, name="recent"), *TIMED]
    intervals: dict[str, Any] = dict.fromkeys(("cumulative", "recent"), "confidence_sequence")
    intervals |= {"hours": "empirical_bernstein", "mixture": "empirical_likelihood"}
    columns = logs.without(logs.described(10, 3_330), "features", "sampling_probability")
    return family_with(columns, se.Tabular(shrinkage=5, horizon=1_000), averages, intervals)


def long_stream() -> Reports:
    """Defaults of averages, drift and rules on a stream that is long enough for all of them."""
    columns = logs.without(logs.plain(20, 120_000, percent=(30, 34)), "unit", "sampling_probability")
    averages = [se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay(), se.Mixture()]
    evaluator = se.Evaluator(
        ["new", "other"],
        [se.IPS(), se.StratifiedIPS()],
        averages,
        intervals={"adaptive_window": se.EmpiricalLikelihood(drift="include")},
        promotion=["paired", "anytime", "sea", "bsea"],
    )
    reports: Reports = {}
    for first, last in pairwise((0, 57_000, 120_000)):
        evaluator.update(batch(columns, first, last))
        reports[f"{last} events"] = reported(evaluator, now=logs.START + 60.0)
    return reports


SLATES: list[Any] = [se.PseudoInverse(), se.WeightedPseudoInverse()]


def slates() -> Reports:
    """Slots filled independently, from full distributions and from the shown slates, and rankings."""
    factored = logs.slots(11, 3_030)
    reports: Reports = {}
    given = {"slots": (factored, ["tilted", "any"]), "shown": (logs.shown(factored), ["tilted", "any"])}
    given["rankings"] = (logs.rankings(12, 3_030), ["top"])
    for name, (columns, candidates) in given.items():
        evaluator = se.Evaluator(
            candidates,
            [*SLATES, se.IPS(), se.SNIPS()],
            AVERAGES,
            intervals={"window": "normal", "faded": "empirical_bernstein"},
            promotion=se.Promotion(("paired", "sea"), min_events=500, hold=2, trust=NO_LIMIT),
        )
        reports[name] = at_the_end(evaluator, columns)["end"]
    return reports


def listed_slates() -> Reports:
    """Messages with the list of all slates, mixed with slates and events of other forms."""
    evaluator = se.Evaluator(["top"], [*SLATES, se.IPS()], [se.Cumulative(), se.Mixture()], promotion=EAGER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "slates.ndjson"
        logs.write_lines(path, logs.listed_messages(13, 1_530))
        for events in se.read_events(path, policies=["top"], batch_size=400):
            evaluator.update(events)
    return {"end": reported(evaluator)}


def policies_in_code() -> Reports:
    """Policies computed from scores, next to a logged one; actions have names; some lines are not events."""
    candidates: dict[str, Any] = {
        "shadow": se.Logged(),
        "even": "uniform",
        "first": se.First(),
        "greedy": se.EpsilonGreedy(epsilon=0.25),
        "soft": se.Softmax(temperature=0.5),
    }
    reports: Reports = {}
    models: dict[str, Any] = {"ridge": se.Ridge(), "tabular": se.Tabular()}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.ndjson"
        logs.write_lines(path, logs.scored_messages(14, 2_020))
        for name, model in models.items():
            evaluator = se.Evaluator(
                candidates,
                [se.SNIPS(), se.DM(), se.DR(), se.Switch(cap=2), se.StratifiedDR()],
                [se.Cumulative(), se.Mixture()],
                intervals={"cumulative": "normal"},
                reward_model=model,
                promotion=se.Promotion(("paired", "anytime", "sea"), min_events=500, hold=2, trust=NO_LIMIT),
            )
            for events in se.read_events(path, reward_range=(0.0, 1.0), scores=["scores"]):
                evaluator.update(events)
            reports[name] = reported(evaluator)
    return reports


def moments() -> Reports:
    """One stream at several moments, and after it continued from its state."""
    columns = logs.described(15, 3_030)
    averages = [*AVERAGES, se.Window(span="20m", name="minutes"), se.Cumulative(name="watched")]
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
        evaluator.update(batch(columns, first, last))
        reports[f"{last} events"] = reported(evaluator)
        if last == 1_333:
            evaluator = se.Evaluator.from_state(evaluator.state())
            reports["from its state"] = reported(evaluator)
    return reports


def default_on_plain_events() -> Reports:
    """Default estimators and averages on events that have no full distribution."""
    evaluator = se.Evaluator(["now", "new"], reward_range=(-0.125, 1.125))
    return at_the_end(evaluator, logs.plain(16, 3_030))


def default_on_full_events() -> Reports:
    """Default estimators and averages on events with full distributions and features."""
    return at_the_end(se.Evaluator(["good", "partial"]), logs.described(17, 3_030))


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
  - {kind: adaptive_window, drift_span: 500, bias_weight: 9}
  - {kind: adaptive_decay, drift_span: 500, bias_weight: 9}
  - {kind: mixture, rate: 0.7}
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
  trust: {effective_sample_size: 500, stale_after: null}
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
reward_model: {kind: tabular, shrinkage: 20, horizon: 800}
drift: off
promotion: {rule: anytime, tau: 400, min_events: 400, trust: {stale_after: null}}
"""


def replayed(configuration: str, messages: list[Any]) -> Any:
    """The Report that `streameval replay --json` prints."""
    with tempfile.TemporaryDirectory() as directory:
        config, log = Path(directory) / "streameval.yaml", Path(directory) / "log.ndjson"
        config.write_text(configuration)
        logs.write_lines(log, messages)
        command = [STREAMEVAL, "replay", "--json", config, log]
        return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)


def replay() -> Reports:
    """YAML configurations through the command line."""
    return {
        "compact": replayed(COMPACT_YAML, logs.compact_messages(18, 3_030)),
        "scored": replayed(SCORED_YAML, logs.scored_messages(19, 1_530)),
    }


CASES: dict[str, Callable[[], Reports]] = {
    case.__name__: case
    for case in (
        estimators_and_averages,
        named_production,
        event_time,
        adaptive_options,
        intervals_of_a_complete_log,
        intervals_of_units,
        rules,
        drift_settings,
        family_of_a_ridge,
        family_of_a_table,
        long_stream,
        slates,
        listed_slates,
        policies_in_code,
        moments,
        default_on_plain_events,
        default_on_full_events,
        replay,
    )
}
DEFAULTS = {"default_on_plain_events", "default_on_full_events"}
"""Cases of which only the recorded estimates and the counts are compared: other estimators may run next to them, and
decisions may be made by these."""


# -- recorded values, and compared values ------------------------------------------------------------------------------


def recorded(case: str) -> Reports:
    """The Reports of a case as they were recorded."""
    reports: Reports = json.loads(gzip.decompress((DATA / f"{case}.json.gz").read_bytes()))
    return reports


def record(case: str) -> int:
    """Writes the Reports of a case; returns the size of the file in bytes."""
    text = json.dumps(CASES[case](), sort_keys=True, separators=(",", ":"))
    packed = gzip.compress(text.encode(), 9, mtime=0)
    (DATA / f"{case}.json.gz").write_bytes(packed)
    return len(packed)


KEYS = {
    "estimates": ("policy", "estimator", "average"),
    "policies": ("policy",),
    "promotion": ("policy", "rule"),
    "trust": ("policy", "check"),
    "transitions": ("policy", "rule", "event"),
    "failures": ("reason",),
}
"""By what the entries of these lists are known; their order is not compared."""
SENTENCES = {("promotion", "reason"), ("trust", "reason"), ("failures", "example")}
"""Free text, whose words may change: only its presence is compared."""


def leaves(value: Any, path: str = "", inside: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, name and null of a Report, with its path."""
    if isinstance(value, list):
        keyed = KEYS.get(inside)
        for place, entry in enumerate(value):
            name = place if keyed is None else " ".join(str(entry[key]) for key in keyed)
            yield from leaves(entry, f"{path}[{name}]", inside)
    elif isinstance(value, dict):
        for key, entry in value.items():
            where = f"{path}.{key}"
            if (inside, key) in SENTENCES:
                yield where, bool(entry)
            else:
                yield from leaves(entry, where, key)
    else:
        yield path, value


def equal(path: str, found: Any, wanted: Any) -> bool:
    """Whether a leaf is the recorded one; numbers may differ by the tolerance."""
    if isinstance(wanted, float) and isinstance(found, float | int):
        tolerance = LARGER_TOLERANCE.get(path.rsplit(".", 1)[-1], TOLERANCE)
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance)
    return type(found) is type(wanted) and bool(found == wanted)


def differences(case: str, found: Reports, wanted: Reports) -> list[str]:
    """Where the Reports of a case differ from the recorded ones.

    An estimate that was recorded without a value may be absent.
    """
    now, before = dict(leaves(found)), dict(leaves(wanted))
    without_value = {row(path) for path, value in before.items() if path.endswith("].value") and value is None}
    optional = without_value - {row(path) for path in now}
    if case in DEFAULTS:
        before = {path: value for path, value in before.items() if COMPARED_OF_DEFAULTS.search(path)}
        now = {path: value for path, value in now.items() if path in before}
    lines = [
        f"{path}: {now.get(path, 'absent')!r}, recorded {value!r}"
        for path, value in before.items()
        if not (equal(path, now[path], value) if path in now else row(path) in optional)
    ]
    return lines + [f"{path}: {now[path]!r}, not recorded" for path in now.keys() - before.keys()]


COMPARED_OF_DEFAULTS = re.compile(r"\.estimates\[|\.events\.|\.policies\[")


def row(path: str) -> str:
    """The list entry that a leaf belongs to."""
    return path.partition("]")[0]


def main() -> None:
    """Records what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="*", metavar="CASE", required=True, help="the cases to record; none: all")
    DATA.mkdir(parents=True, exist_ok=True)
    for case in parser.parse_args().record or CASES:
        print(f"{case:32} {record(case):8,} bytes")


if __name__ == "__main__":
    main()
