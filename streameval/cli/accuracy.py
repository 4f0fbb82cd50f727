"""Compare estimates with the true values of simulated logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from streameval.cli.tables import Column, new_table
from streameval.cli.terminal import console, progress_bar, warn
from streameval.cli.trace import Trace
from streameval.common.arrays import Array
from streameval.common.text import UNKNOWN, counted, decimal
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from streameval.ope.evaluator.evaluator import Evaluator

WARM_UP = 0.1
"""Share of a log, at its start, that is not compared."""
POINTS = 100
"""Points of a log that are compared."""
BLOCK = 100
"""Events between two points, at least."""
HEADINGS = {"value": "error of value", "lift": "error of lift", "bias": "bias", "covered": "covered"}


@dataclass(frozen=True)
class Score:
    """Compare one estimator on one average with the truth of one log, at evenly spaced points, for all candidates.

    Args:
        value: mean square of the estimated value less the true value
        lift: the same for the lift
        bias: mean of the estimated value less the true value
        covered: share of the intervals that contain the true value at their time
    """

    value: float
    lift: float
    bias: float
    covered: float


class ErrorRow(msgspec.Struct, frozen=True):
    """Hold the errors of one estimator on one average, with standard errors over logs (None with a single log).

    Args:
        estimator: its label
        average: its label
        value: root mean square error of the value
        value_se: its standard error
        lift: root mean square error of the lift
        lift_se: its standard error
        bias: mean error of the value
        bias_se: its standard error
        covered: share of the intervals of values that contain the true value at their time
        covered_se: its standard error
    """

    estimator: str
    average: str
    value: float | None
    value_se: float | None
    lift: float | None
    lift_se: float | None
    bias: float | None
    bias_se: float | None
    covered: float | None
    covered_se: float | None


def score(trace: Trace, truth: Mapping[str, Array], pair: tuple[str, str]) -> Score:
    """Compare the estimates of a pair of an estimator and an average with the truth of one log.

    Args:
        trace: its estimates over the events
        truth: true values as `read_truth` returns them
        pair: labels of an estimator and an average

    Raises:
        InputError: The truth lacks a policy.
    """
    counts = trace.counts
    compared = counts > WARM_UP * counts[-1]
    curves = {policy: curve[:, compared] for policy, curve in trace.curves(*pair).items()}
    if absent := [policy for policy in curves if policy not in truth]:
        hint = f"it names {', '.join(truth)}: name the candidates as the simulation does"
        raise InputError(f"the truth has no policy '{absent[0]}'", hint=hint)
    if len(curves) < 2:
        return Score(math.nan, math.nan, math.nan, math.nan)
    true = np.array([np.interp(counts[compared], *truth[policy]) for policy in curves])
    value, lower, upper = np.stack(list(curves.values()), axis=1)
    error = (value - true)[1:]
    has_interval = ~np.isnan(lower[1:] + upper[1:])
    covered = ((lower <= true) & (true <= upper))[1:][has_interval]
    return Score(_mean(error**2), _mean((error - (value - true)[:1]) ** 2), _mean(error), _mean(covered))


def error_rows(pairs: Sequence[tuple[str, str]], scores: Sequence[Sequence[Score]]) -> Iterator[ErrorRow]:
    """Average the scores of several logs, with standard errors.

    Args:
        pairs: labels of estimators and averages
        scores: the scores of all pairs, by log
    """
    for (estimator, average), of_logs in zip(pairs, zip(*scores, strict=True), strict=True):
        value, lift = (_root(*_average([getattr(log, name) for log in of_logs])) for name in ("value", "lift"))
        bias, covered = (_average([getattr(log, name) for log in of_logs]) for name in ("bias", "covered"))
        yield ErrorRow(estimator, average, *value, *lift, *bias, *covered)


def error_table(rows: Sequence[ErrorRow], logs: str) -> Table:
    """Show errors, the smallest error of the value first.

    Args:
        rows: the errors
        logs: what they come from, for the title
    """

    def cells(name: str) -> Column:
        def cell(row: ErrorRow) -> str:
            mean, error = getattr(row, name), getattr(row, f"{name}_se")
            return decimal(mean, 4) + ("" if error is None else f" ± {decimal(error, 4)}")

        return f">{HEADINGS[name]}", cell

    columns: list[Column] = [("estimator", lambda row: row.estimator), ("average", lambda row: row.average)]
    columns += [cells(name) for name in HEADINGS]
    ordered = sorted(rows, key=lambda row: math.inf if row.value is None else row.value)
    table = new_table(f"Errors against the truth, {logs}:", columns, ordered)
    table.caption = (
        "Root mean square errors, mean error (bias) and coverage of the present value, over all candidates and after "
        f"the first tenth of a log. ± is a standard error over logs, {UNKNOWN} is not known."
    )
    table.caption_justify = "left"
    return table


def simulate_errors(settings: SimulatedSettings, seeds: int, path: Path | None, *, as_json: bool) -> None:
    """Evaluate simulated logs of several seeds, and print errors against their truth.

    Args:
        settings: of the simulation. The first log has its seed, each further log the next one
        seeds: number of logs
        path: the configuration, None for the defaults
        as_json: print lines of JSON in place of a table

    Raises:
        InputError: The configuration cannot be used, or names other candidates.
    """
    if path is None:
        config = Config.model_validate({"policies": {"candidates": settings.candidates}})
    else:
        config = Config.load(path)
        warn(config)
    pairs = list(config.evaluator_config().pairs)
    scores = []
    columns = (TextColumn("logs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as progress:
        for seed in progress.track(range(settings.seed, settings.seed + seeds)):
            recommender = SimulatedRecommender(settings.model_copy(update={"seed": seed}))
            trace = _traced(config, recommender, pairs)
            true = [recommender.truth(int(events)) for events in trace.counts]
            truth = {policy: np.array([trace.counts, [moment[policy] for moment in true]]) for policy in true[0]}
            scores.append([score(trace, truth, pair) for pair in pairs])
    rows = list(error_rows(pairs, scores))
    if as_json:
        print(b"\n".join(msgspec.json.encode(row) for row in rows).decode())
    else:
        logs = f"{counted(seeds, 'log')} of {counted(settings.events or 0, 'event')}"
        console().print(error_table(rows, logs))


def _traced(config: Config, recommender: SimulatedRecommender, pairs: Sequence[tuple[str, str]]) -> Trace:
    evaluator, decoder = Evaluator.from_config(config.evaluator_config()), config.event_format("json", is_log=True)
    trace = Trace(pairs, points=POINTS, every=max(BLOCK, (recommender.settings.events or 0) // POINTS))
    while lines := recommender.after(trace.taken):
        trace.update(evaluator, decoder.decode_batch(lines))
    trace.finish(evaluator.report())
    return trace


def _mean(numbers: Array) -> float:
    return float(np.nanmean(numbers)) if not np.isnan(numbers).all() else math.nan


def _average(numbers: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean over logs and its standard error."""
    known = [number for number in numbers if not math.isnan(number)]
    if not known:
        return None, None
    return float(np.mean(known)), float(np.std(known, ddof=1) / math.sqrt(len(known))) if len(known) > 1 else None


def _root(mean: float | None, error: float | None) -> tuple[float | None, float | None]:
    """Return the root of a mean square, and its standard error by the delta method."""
    if not mean:
        return mean, error
    return math.sqrt(mean), None if error is None else error / (2 * math.sqrt(mean))
