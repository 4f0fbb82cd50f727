"""Forecast how many events are needed to detect a lift."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from streameval.cli.plots import check_path, lift_name, power_figure, save
from streameval.cli.replay import Replay, config_and_files, require_configured
from streameval.cli.tables import Column, bold, new_table
from streameval.cli.terminal import console
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, duration_text, rounded_up
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.intervals import Normal
from streameval.ope.power import USUAL, CandidatePower, LogSummary, PowerReport, TargetLift, forecast_power

REPLAY_HINT = "replay the log: the reason of each decision names the events that are still needed"


def run_plan(
    arguments: Sequence[str],
    candidates: str | None,
    lifts: Sequence[str],
    power: float,
    estimator: str | None,
    events_format: str | None,
    plot: Path | None,
    *,
    explore: bool,
    as_json: bool,
) -> None:
    """Print the forecast, and draw it if `plot` names a file.

    Raises:
        InputError: An option or a file cannot be used.
    """
    config, files = config_and_files(arguments, candidates)
    if plot:
        check_path(plot)
    report = plan_power(config, files, lifts, power, estimator, events_format, candidates is None, explore)
    if plot:
        save(power_figure(report, ", ".join(Path(file).name for file in files)), plot)
    if as_json:
        sys.stdout.write(report.to_json().decode() + "\n")
    else:
        console().print(power_table(report))
        for line in notes(report, explore):
            print(line)


def plan_power(
    config: Config,
    files: Sequence[str],
    lifts: Sequence[str] = (),
    power: float = 0.8,
    estimator: str | None = None,
    written: str | None = None,
    timed: bool = True,
    explore: bool = False,
) -> PowerReport:
    """Forecast, from files, how many events each lift takes for each candidate.

    Args:
        config: the configuration
        files: paths of events
        lifts: lifts to detect, such as `0.01` or `5%`
        power: probability of detecting such a lift
        estimator: label of the estimator, by default the preferred one with evidence about a candidate
        written: format of the files
        timed: rows of tables must have a timestamp
        explore: plan the exploration that halves the events needed, too

    Raises:
        InputError: An option cannot be used.
    """
    try:
        targets = [TargetLift.read(lift) for lift in lifts] or USUAL
    except ValueError as error:
        raise InputError(f"--lift: {error}", hint="write --lift 0.01, or --lift 5% of what production earns") from error
    if not 0 < power < 1:
        raise InputError(f"--power must lie between 0 and 1, found {power:g}", hint="0.8 is usual")
    configured, cumulative = config.evaluator_config(), Cumulative()
    if configured.ranking is not None:
        raise InputError("plan forecasts the events of decisions, not of rankings with clicks", hint=REPLAY_HINT)
    if configured.propensity is not None:
        raise InputError("plan forecasts from logged propensities, and these are estimated", hint=REPLAY_HINT)
    if configured.rewards[0].is_ratio:
        hint = "make one of its parts the first of `rewards`"
        raise InputError("plan forecasts rewards of events, and a ratio has none", hint=hint)
    if configured.rewards[0].quantile is not None:
        hint = "give max a number near that quantile, e.g. reward: {max: 200, above: clip}"
        raise InputError("plan forecasts rewards with a fixed range, and max: auto has none", hint=hint)
    labels = sorted(configured.estimators, key=lambda label: configured.estimators[label].preference)
    require_configured("--estimator", estimator, labels)
    estimators = {label: configured.estimators[label] for label in labels if estimator in (None, label)}
    sizes = {label: average.effective_events for label, average in configured.averages.items()}
    # The forecast rests on normal theory, and needs a bound that is unknown while the noise is.
    forecast = replace(
        configured.with_products([(tuple(configured.estimators.values()), (cumulative,))]),
        intervals={cumulative.label: Normal()},
        drift=None,
        promotion=None,
    )
    log = LogSummary(configured.policies, configured.computed_policies, configured.reward_range, explore)
    replay = Replay(config, Evaluator.from_config(forecast), timed)

    def update(batch: EventBatch) -> None:
        replay.evaluator.update(batch)
        log.update(configured.resolved(batch)[0])

    replay.update = update
    report = replay.read(files, written)
    horizons = {label: size for label, size in sizes.items() if size is not None}
    return forecast_power(report, log, estimators, targets, power, horizons)


def power_table(report: PowerReport) -> Table:
    """Show the estimates of each candidate, and the events that each lift takes."""
    forecasts = [row for row in report.candidates if row.reason is None]
    decimals = decimals_for([report.value, *(row.value for row in forecasts)])
    estimators = list(dict.fromkeys(row.estimator for row in forecasts))
    by = f" by {estimators[0]}" if len(estimators) == 1 else ""
    rate = "" if report.events_per_second is None else f", {report.events_per_second:.3g} per second"

    def number(attribute: str, decimals: int, heading: str, signed: bool = False) -> Column:
        return heading, lambda row: UNKNOWN if row.reason else decimal(getattr(row, attribute), decimals, signed)

    columns: list[Column] = [
        ("policy", lambda row: bold(row.policy)),
        *([("estimator", lambda row: row.estimator or "")] if len(estimators) > 1 else []),
        number("value", decimals, ">value"),
        number("lift", decimals, ">lift", signed=True),
        (">events", lambda row: f"{row.events:,}"),
        number("effective_share", 3, ">effective\nper event"),
        number("deviation", decimals, ">noise of\none event"),
        (">design\neffect", lambda row: UNKNOWN if row.reason else decimal(max(1.0, row.design_effect or 1.0), 2)),
        number("detectable", decimals, ">detectable\nlift"),
    ]
    columns += [
        _needed(index, f">events for\n{lift_name(lift, report.value)}") for index, lift in enumerate(report.lifts)
    ]
    table = new_table(
        f"{counted(report.events, 'event')}{rate}; events until a lift is detected{by} "
        f"at {report.confidence * 100:g}% confidence with {report.power * 100:g}% power:",
        columns,
    )
    blank = [""] if len(estimators) > 1 else []
    production = bold(f"{report.production}\n(production)")
    table.add_row(production, *blank, decimal(report.value, decimals), "", f"{report.events:,}")
    for row in report.candidates:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


def _needed(index: int, heading: str) -> Column:
    """Return the column of events, and the time they take, for one of the lifts."""

    def cell(row: CandidatePower) -> str:
        if row.reason:
            return UNKNOWN
        need = row.needed[index]
        return rounded_up(need.events) + ("" if need.seconds is None else f"\n{duration_text(need.seconds)}")

    return heading, cell


def notes(report: PowerReport, explore: bool) -> Iterator[str]:
    """Yield lines about candidates without a forecast, advice, and lifts that an average cannot detect.

    Args:
        report: the forecast
        explore: whether a plan to explore replaces the advice, which knows no lists of actions
    """
    for row in report.candidates:
        if row.reason is not None:
            yield f"{row.policy}: no forecast: {row.reason}"
        elif explore:
            yield f"{row.policy}: {exploration_text(row)}"
        if row.relief is not None and row.exploration is None:
            more = row.relief
            yield (
                f"{row.policy}: about half as many events would be enough if actions with weights over {more.over:g} "
                f"({more.events_share:.1%} of events, {more.noise_share:.0%} of the noise) "
                f"were logged {more.times:.1f} times as often"
            )
    limited = [row for row in report.candidates if row.limits]
    for limits in zip(*(row.limits for row in limited), strict=True):
        smallest = ", ".join(f"{limit.lift:.2g} ({row.policy})" for row, limit in zip(limited, limits, strict=True))
        worth = f"worth at most {rounded_up(limits[0].events)} events"
        yield f"{limits[0].average}: {worth}, so it detects no lift under {smallest}"


def exploration_text(row: CandidatePower) -> str:
    """Describe the exploration that halves the events needed for a candidate."""
    plan = row.exploration
    if plan is None:
        return "no plan to explore: it needs events with propensities, and its probabilities, of all actions"

    def enough(share: float | None) -> str:
        return "no share is enough" if share is None else f"{share:.0%} of events"

    return (
        "half as many events would be enough if a share of events took actions in proportion to the absolute "
        f"difference of its and production's probabilities ({enough(plan.focused)}), or random actions "
        f"({enough(plan.uniform)}); the first, with {plan.best_share:.0%} of events, "
        f"needs {plan.best_factor:.0%} of them"
    )
