"""Reports, decisions and configurations as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby

from rich import box
from rich.console import JustifyMethod as Justify
from rich.table import Table
from rich.text import Text

from streameval.common.component import Component
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, format_duration, utc_time
from streameval.config.model import AnyDeadLetters, Config, DeadLetterFile, DeadLetterTopic
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.plan import Plan
from streameval.ope.report import Decision, Estimate, Report


def new_table(title: str, *headings: str) -> Table:
    """A table without rows; a heading that starts with `>` is that of numbers, which are justified to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def report_table(report: Report, title: str = "") -> Table:
    """The estimates of a Report, production first; a dash where a number is not known."""
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
    """When each rule would have promoted each candidate, for how long, and with which lift."""
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
    when += "" if decision.first_timestamp is None else f"\n{utc_time(decision.first_timestamp)}"
    share = decision.promotable_events / max(1, report.events.accepted)
    often = "once" if decision.times == 1 else f"{decision.times} times"
    return [
        decision.rule,
        when,
        decimal(decision.first_lift, decimals, signed=True),
        decimal(decision.lift_since, decimals, signed=True),
        f"{counted(decision.promotable_events, 'event')}\n{share:.0%}, {often}",
        Text(f"{'promotable' if decision.promotable else 'not'}: {decision.reason}"),
    ]


def plan_table(config: Config) -> Table:
    """The parts that a configuration runs."""
    http, reward = config.http, config.reward
    plan = config.plan()
    products = plan.products
    policies = len(plan.policies)
    estimates = policies * sum(len(grid.estimators) * len(grid.averages) for grid in plan.grids() if not grid.optional)
    table = Table.grid(padding=(0, 2))
    table.add_row("source", Text(config.source.description if config.source else "none: for `replay` only"))
    kinds = {name: f" ({policy.kind})" for name, policy in plan.computed_policies.items()}
    named = [name + kinds.get(name, "") for name in plan.policies[1:]]
    table.add_row("policies", Text(", ".join([f"{config.policies.production} (production)", *named])))
    table.add_row("reward", Text(f"the field {reward.field}, from {reward.min:g} to {reward.max:g}"))
    for estimators, averages in products:
        table.add_row("estimators", Text(_named(plan, estimators)))
        for row, average in enumerate(averages):
            bound = _described(plan.interval(average))
            table.add_row("" if row else "averages", Text(f"{_described(average)}: {bound} interval"))
    table.add_row("drift", Text(_detector(config)))
    table.add_row("promotion", Text(_promotion(config)))
    table.add_row("estimates", f"{estimates} for {counted(policies, 'policy')}, {config.confidence * 100:g}% intervals")
    scheme, login = "https" if http.tls_certfile else "http", "with a login" if http.has_login else "without a login"
    table.add_row("serves", Text(f"{scheme}://{http.host}:{http.port}, {login}"))
    table.add_row("state", Text(_state_line(config)))
    table.add_row("rejected", Text(_dead_letters_line(config.dead_letters)))
    return table


def events_line(report: Report) -> str:
    """The number of events, and the time of the newest.

    >>> from streameval.ope.report import EventCounts
    >>> events_line(Report(0.95, "logging", EventCounts(10000, {"malformed": 2}, 1575158399.1), (), ()))
    '10,000 events until 2019-11-30 23:59:59 UTC, 2 rejected'
    """
    events = report.events
    until = "" if events.last_timestamp is None else f" until {utc_time(events.last_timestamp)}"
    return f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"


def _state_line(config: Config) -> str:
    kept = config.kept_state()
    if kept is None:
        return "no state directory: a restart starts from zero"
    return f"snapshots in {kept.dir}, one every {format_duration(kept.interval)}"


def _dead_letters_line(settings: AnyDeadLetters | None) -> str:
    match settings:
        case DeadLetterFile() as file:
            full = f"{counted(file.keep, 'full file')} {'is' if file.keep == 1 else 'are'} kept"
            return f"messages are counted and written to {file.path}; {full}"
        case DeadLetterTopic() as topic:
            return f"messages are counted and written to the topic {topic.topic}"
    return "messages are counted but not stored"


def _named(plan: Plan, estimators: Sequence[AnyEstimator]) -> str:
    """The estimators, those apart that have rows only when events have what they need."""
    optional = [each for each in estimators if plan.default_estimators and plan.needs_of(each)]
    names = ", ".join(_described(each) for each in estimators if each not in optional)
    better = ", ".join(each.label for each in optional)
    return f"{names}; {better} if events have features and distributions" if better else names


def _promotion(config: Config) -> str:
    settings = config.promotion
    if settings is None:
        return "off"
    idle = config.idle_rules()
    missing = f"; {' and '.join(idle)} cannot promote: no unbiased estimator is on a mixture" if idle else ""
    events, hold = f"after {counted(settings.min_events, 'event')}", f"held for {counted(settings.hold, 'block end')}"
    return (
        f"{', '.join(rule.label for rule in settings.rules)}: lift over {settings.margin:g}, {events}, {hold}{missing}"
    )


def _detector(config: Config) -> str:
    """The drift detector with its parameters."""
    if config.drift is None:
        return "off"
    return ", ".join([config.drift.name, *(f"{name} {value}" for name, value in config.drift.parameters.items())])


def _described(choice: Component) -> str:
    """The label of a component, with its kind if it has a name, and the parameters that are not the defaults."""
    parts = [choice.kind] if choice.name else []
    for option in fields(choice):
        value = getattr(choice, option.name)
        if option.name not in ("name", "kind") and value is not None and value != option.default:
            parts.append(f"{option.name} {value:g}" if isinstance(value, float) else f"{option.name} {value}")
    return f"{choice.label} ({', '.join(parts)})" if parts else choice.label


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
        decimal(estimate.lift, decimals, signed=True),
        _interval(estimate.lift_lower, estimate.lift_upper, decimals, signed=True),
    ]
    return [
        estimate.estimator,
        estimate.average,
        decimal(estimate.value, decimals),
        _interval(estimate.lower, estimate.upper, decimals),
        *(lift if compared else ()),
        decimal(estimate.effective_sample_size, 0),
        decimal(estimate.importance_weight_mean, 3),
    ]


def _interval(lower: float | None, upper: float | None, decimals: int, signed: bool = False) -> str:
    if lower is None or upper is None:
        return UNKNOWN
    return f"{decimal(lower, decimals, signed)} … {decimal(upper, decimals, signed)}"
