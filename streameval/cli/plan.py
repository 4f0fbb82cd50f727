"""The verb `plan`: how many events are needed to detect a lift, as a table and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from streameval.cli.plots import lift_name
from streameval.cli.replay import Replay
from streameval.cli.tables import new_table
from streameval.common.problems import did_you_mean
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, in_words, rounded_up
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.intervals import Normal
from streameval.ope.power import USUAL, CandidatePower, LogSummary, PowerReport, TargetLift, forecast_power


def plan_power(
    config: Config,
    files: Sequence[str],
    lifts: Sequence[str] = (),
    power: float = 0.8,
    estimator: str | None = None,
    written: str | None = None,
) -> PowerReport:
    """From files, how many events each lift takes, for every candidate of a configuration.

    `estimator`: the label of the one to plan with; by default the best that has evidence about a candidate. `written`:
    the format of the files.

    Raises:
        InputError: A lift, a power or an estimator cannot be used.
    """
    try:
        targets = [TargetLift.read(lift) for lift in lifts] or USUAL
    except ValueError as error:
        raise InputError(f"--lift: {error}", hint="write --lift 0.01, or --lift 5% of what production earns") from error
    if not 0 < power < 1:
        raise InputError(f"--power must lie between 0 and 1, found {power:g}", hint="0.8 is usual")
    plan, cumulative = config.evaluator_config(), Cumulative()
    if plan.ranking is not None:
        raise InputError(
            "plan forecasts the events of decisions, not of rankings with clicks",
            hint="replay the log: the reason of each decision names the events that are still needed",
        )
    if plan.propensity is not None:
        raise InputError(
            "plan forecasts from logged propensities, and these are estimated",
            hint="replay the log: the reason of each decision names the events that are still needed",
        )
    estimators = _estimators(plan, estimator)
    known = {label: average.effective_events for label, average in plan.averages.items()}
    horizons = {label: events for label, events in known.items() if events is not None}
    plain = replace(
        plan.with_products([(tuple(plan.estimators.values()), (cumulative,))]),
        intervals={cumulative.label: Normal()},  # the forecast rests on normal theory; unknown while noise is
        drift=None,
        promotion=None,
    )
    log = LogSummary(plan.policies, plan.computed_policies, plan.reward_range)

    def update(evaluator: Evaluator, batch: EventBatch, _: float | None) -> None:
        evaluator.update(batch)
        log.update(batch)

    report = Replay(config, Evaluator.from_config(plain), update).read(files, written)
    return forecast_power(report, log, estimators, targets, power, horizons)


def _estimators(plan: EvaluatorConfig, wanted: str | None) -> dict[str, AnyEstimator]:
    """The estimators by label, the preferred one first."""
    estimators = {each.label: each for each in sorted(plan.estimators.values(), key=lambda each: each.preference)}
    if wanted is None:
        return estimators
    if wanted not in estimators:
        hint = did_you_mean(wanted, estimators) or f"choose one of {', '.join(estimators)}"
        raise InputError(f"--estimator: '{wanted}' is not configured", hint=hint)
    return {wanted: estimators[wanted]}


def power_table(found: PowerReport) -> Table:
    """One row for each candidate: its estimates, and the events that each lift takes."""
    judged = [each for each in found.candidates if each.reason is None]
    decimals = decimals_for([found.value, *(each.value for each in judged)])
    used = {each.estimator for each in judged}
    by = f" by {next(iter(used))}" if len(used) == 1 else ""
    rate = "" if found.events_per_second is None else f", {found.events_per_second:.3g} per second"
    table = new_table(
        f"{counted(found.events, 'event')}{rate}; events until a lift is detected{by} "
        f"at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power:",
        *("policy", *(["estimator"] if len(used) > 1 else []), ">value", ">lift", ">events"),
        *(">effective\nper event", ">noise of\none event", ">design\neffect", ">detectable\nlift"),
        *(f">events for\n{lift_name(lift, found.value)}" for lift in found.lifts),
    )
    blank = [""] if len(used) > 1 else []
    production = Text(f"{found.production}\n(production)", style="bold")
    table.add_row(production, *blank, decimal(found.value, decimals), "", f"{found.events:,}")
    for each in found.candidates:
        estimator = [each.estimator or ""] if len(used) > 1 else []
        table.add_row(Text(each.policy, style="bold"), *estimator, *_cells(each, found, decimals))
    return table


def _cells(each: CandidatePower, found: PowerReport, decimals: int) -> list[str]:
    if each.reason is not None:
        return [*[UNKNOWN] * 2, f"{each.events:,}", *[UNKNOWN] * (4 + len(found.lifts))]
    durations = ["" if need.seconds is None else f"\n{in_words(need.seconds)}" for need in each.needed]
    return [
        decimal(each.value, decimals),
        decimal(each.lift, decimals, signed=True),
        f"{each.events:,}",
        decimal(each.effective_share, 3),
        decimal(each.deviation, decimals),
        decimal(max(1.0, each.design_effect or 1.0), 2),
        decimal(each.detectable, decimals),
        *(f"{rounded_up(need.events)}{duration}" for need, duration in zip(each.needed, durations, strict=True)),
    ]


def sentences(found: PowerReport) -> Iterator[str]:
    """Notes below the table: candidates without a forecast, advice, and lifts that an average cannot detect."""
    for each in found.candidates:
        if each.reason is not None:
            yield f"{each.policy}: no forecast: {each.reason}"
        if each.relief is not None:
            more = each.relief
            yield (
                f"{each.policy}: about half as many events would be enough if actions with weights over {more.over:g} "
                f"({more.events_share:.1%} of events, {more.noise_share:.0%} of the noise) "
                f"were logged {more.times:.1f} times as often"
            )
    judged = [each for each in found.candidates if each.limits]
    for limits in zip(*(each.limits for each in judged), strict=True):
        smallest = ", ".join(f"{limit.lift:.2g} ({each.policy})" for each, limit in zip(judged, limits, strict=True))
        worth = f"worth at most {rounded_up(limits[0].events)} events"
        yield f"{limits[0].average}: {worth}, so it detects no lift under {smallest}"
