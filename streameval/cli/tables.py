"""Reports and plans as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from itertools import groupby

from rich import box
from rich.console import JustifyMethod as Justify
from rich.table import Table
from rich.text import Text

from streameval.common.component import Component
from streameval.common.text import counted, format_duration
from streameval.config.model import AnyDeadLetters, Config, DeadLetterFile, DeadLetterTopic
from streameval.ingest.settings import FileSettings, KafkaSettings, SimulatedSettings
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.plan import Plan
from streameval.ope.report import Decision, Estimate, Report

UNKNOWN = "–"


def report_table(report: Report, title: str = "") -> Table:
    """The estimates of a Report, production first; a dash where nothing is known yet."""
    decimals = decimals_for(estimate.value for estimate in report.estimates)
    compared = any(estimate.lift is not None for estimate in report.estimates)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for heading, justify in _headings(report.confidence, compared):
        table.add_column(heading, justify=justify)
    rank = {counts.policy: place for place, counts in enumerate(report.policies)}
    in_order = sorted(report.estimates, key=lambda estimate: rank[estimate.policy])
    for policy, estimates in groupby(in_order, key=lambda estimate: estimate.policy):
        name = Text(f"{policy} (production)" if policy == report.production else policy, style="bold")
        for row, estimate in enumerate(estimates):
            table.add_row("" if row else name, *_cells(estimate, decimals, compared))
        table.add_section()
    return table


def decisions_table(report: Report) -> Table:
    """When each rule would have promoted each candidate: since when, for how long, and what came of it."""
    lifts = (each.first_lift for each in report.promotion)
    decimals = decimals_for((*lifts, *(each.lift_since for each in report.promotion)))
    table = Table(box=box.SIMPLE_HEAD, title="Promotion", title_justify="left", title_style="bold", pad_edge=False)
    for heading, justify in DECISION_HEADINGS:
        table.add_column(heading, justify=justify)
    for policy, decisions in groupby(report.promotion, key=lambda decision: decision.policy):
        for row, decision in enumerate(decisions):
            table.add_row("" if row else Text(policy, style="bold"), *_decision_cells(decision, report, decimals))
        table.add_section()
    return table


DECISION_HEADINGS: tuple[tuple[str, Justify], ...] = (
    ("policy", "left"),
    ("rule", "left"),
    ("first promotable", "left"),
    ("lift then", "right"),
    ("lift since", "right"),
    ("promotable for", "right"),
    ("at the end", "left"),
)


def _decision_cells(decision: Decision, report: Report, decimals: int) -> list[str | Text]:
    if decision.first_event is None:
        return [decision.rule, "never", UNKNOWN, UNKNOWN, UNKNOWN, Text(decision.reason)]
    when = f"event {decision.first_event:,}"
    when += "" if decision.first_timestamp is None else f"\n{moment(decision.first_timestamp)}"
    share = decision.promotable_events / max(1, report.events.accepted)
    often = "once" if decision.times == 1 else f"{decision.times} times"
    return [
        decision.rule,
        when,
        number(decision.first_lift, decimals, signed=True),
        number(decision.lift_since, decimals, signed=True),
        f"{counted(decision.promotable_events, 'event')}\n{share:.0%}, {often}",
        Text(f"{'promotable' if decision.promotable else 'not'}: {decision.reason}"),
    ]


def plan_table(config: Config) -> Table:
    """What a configuration would run."""
    http, reward = config.http, config.reward
    plan = config.plan()
    products = plan.products()
    policies = len(plan.policies)
    estimates = policies * sum(len(grid.estimators) * len(grid.averages) for grid in plan.grids() if not grid.optional)
    table = Table.grid(padding=(0, 2))
    table.add_row("source", Text(_source_line(config)))
    named = [name if name not in plan.coded else f"{name} ({plan.coded[name].kind})" for name in plan.policies[1:]]
    table.add_row("policies", Text(", ".join([f"{config.policies.production} (production)", *named])))
    table.add_row("reward", Text(f"the field {reward.field}, from {reward.min:g} to {reward.max:g}"))
    for estimators, averages in products:
        table.add_row("estimators", Text(_named(plan, estimators)))
        for row, average in enumerate(averages):
            bound = _described(plan.bound(average))
            table.add_row("" if row else "averages", Text(f"{_described(average)}: {bound} interval"))
    table.add_row("drift", Text(_detector(config)))
    table.add_row("promotion", Text(_promotion(config)))
    table.add_row("estimates", f"{estimates} for {counted(policies, 'policy')}, {config.confidence * 100:g}% intervals")
    scheme, login = "https" if http.tls_certfile else "http", "with a login" if http.has_login else "without a login"
    table.add_row("serves", Text(f"{scheme}://{http.host}:{http.port}, {login}"))
    table.add_row("keeps", Text(_state_line(config)))
    table.add_row("rejected", Text(_letters_line(config.dead_letters)))
    return table


def events_line(report: Report) -> str:
    """How many events were taken, and up to when.

    >>> from streameval.ope.report import EventCounts
    >>> events_line(Report(0.95, "logging", EventCounts(10000, {"malformed": 2}, 1575158399.1), (), ()))
    '10,000 events until 2019-11-30 23:59:59 UTC, 2 rejected'
    """
    events = report.events
    until = "" if events.last_timestamp is None else f" until {moment(events.last_timestamp)}"
    return f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"


def moment(timestamp: float) -> str:
    """Epoch seconds as people read them."""
    return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"


def number(value: float | None, decimals: int, signed: bool = False) -> str:
    """A number with so many decimals, or a dash.

    >>> number(0.00455, 4), number(0.00455, 4, signed=True), number(None, 4)
    ('0.0046', '+0.0046', '–')
    """
    return UNKNOWN if value is None else f"{value:{'+' if signed else ''},.{decimals}f}"


def _source_line(config: Config) -> str:
    match config.source:
        case KafkaSettings() as kafka:
            return f"kafka, topic {kafka.topic} at {kafka.address}, from {kafka.start}"
        case FileSettings() as file:
            return f"file, {', '.join(file.path)}{', followed' if file.follow else ''}"
        case SimulatedSettings() as simulated:
            return f"simulated, {counted(simulated.rate, 'event', 'g')} a second"
    return "none: good for `replay` only"


def _state_line(config: Config) -> str:
    """Where state goes."""
    kept = config.kept_state()
    if kept is None:
        return "no state: a restart begins anew"
    return f"snapshots in {kept.dir}, one every {format_duration(kept.interval)}"


def _letters_line(letters: AnyDeadLetters | None) -> str:
    """Where rejected messages go."""
    match letters:
        case DeadLetterFile() as file:
            full = f"{counted(file.keep, 'full file')} of it {'is' if file.keep == 1 else 'are'} kept"
            return f"messages are counted, and written to {file.path}; {full}"
        case DeadLetterTopic() as topic:
            return f"messages are counted, and written to the topic {topic.topic}"
    return "messages are counted, and go nowhere"


def _named(plan: Plan, estimators: Sequence[AnyEstimator]) -> str:
    """The estimators, those apart that have rows only when events have what they need."""
    optional = [each for each in estimators if plan.implied and plan.needs_of(each)]
    names = ", ".join(_described(each) for each in estimators if each not in optional)
    better = ", ".join(each.label for each in optional)
    return f"{names}; {better} if events have features and distributions" if better else names


def _promotion(config: Config) -> str:
    """The rules, and what they ask for."""
    asked = config.promotion
    if asked is None:
        return "off"
    idle = config.idle_rules()
    beside = f"; {' and '.join(idle)} without a mixture of an unbiased estimator to decide by" if idle else ""
    events, hold = f"after {counted(asked.min_events, 'event')}", f"held for {counted(asked.hold, 'block end')}"
    return f"{', '.join(asked.rules)}: lift over {asked.margin:g}, {events}, {hold}{beside}"


def _detector(config: Config) -> str:
    """The detector of drift, with the parameters that are set."""
    if config.drift is None:
        return "not tested for"
    return ", ".join([config.drift.name, *(f"{name} {value}" for name, value in config.drift.parameters.items())])


def _described(choice: Component) -> str:
    """The label of a choice, with its kind if it has a name, and the parameters that are set."""
    said = [choice.kind] if choice.name else []
    for option in fields(choice):
        value = getattr(choice, option.name)
        if option.name not in ("name", "kind") and value is not None and value != option.default:
            said.append(f"{option.name} {value:g}" if isinstance(value, float) else f"{option.name} {value}")
    return f"{choice.label} ({', '.join(said)})" if said else choice.label


def _headings(confidence: float, compared: bool) -> list[tuple[str, Justify]]:
    interval = f"{confidence * 100:g}% interval"
    lift: list[tuple[str, Justify]] = [("lift", "right"), (interval, "right")] if compared else []
    return [
        ("policy", "left"),
        ("estimator", "left"),
        ("average", "left"),
        ("value", "right"),
        (interval, "right"),
        *lift,
        ("effective events", "right"),
        ("mean weight", "right"),
    ]


def _cells(estimate: Estimate, decimals: int, compared: bool) -> list[str]:
    lift = [
        number(estimate.lift, decimals, signed=True),
        _interval(estimate.lift_lower, estimate.lift_upper, decimals, signed=True),
    ]
    return [
        estimate.estimator,
        estimate.average,
        number(estimate.value, decimals),
        _interval(estimate.lower, estimate.upper, decimals),
        *(lift if compared else ()),
        number(estimate.effective_sample_size, 0),
        number(estimate.importance_weight_mean, 3),
    ]


def _interval(lower: float | None, upper: float | None, decimals: int, signed: bool = False) -> str:
    if lower is None or upper is None:
        return UNKNOWN
    return f"{number(lower, decimals, signed)} … {number(upper, decimals, signed)}"


def decimals_for(values: Iterable[float | None]) -> int:
    """As many decimals as give the largest value four digits."""
    largest = max((abs(value) for value in values if value and math.isfinite(value)), default=1.0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 9)
