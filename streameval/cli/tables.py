"""Reports, decisions and configurations as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import groupby

from rich import box
from rich.table import Table
from rich.text import Text

from streameval.common.component import Component
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, format_duration, significant, utc_time
from streameval.config.model import AnyDeadLetters, Config, DeadLetterFile, DeadLetterTopic
from streameval.ope.answer import answers, by_policy, calibrated, percentage, recommended, seen_lifts
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.report import Decision, Estimate, Report

MOST_ANSWERS, MOST_SEGMENTS = 5, 10
"""The numbers of candidates whose answers, and of segments whose lifts, are printed without `--all`."""


def new_table(title: str, *headings: str) -> Table:
    """A table without rows; a heading that starts with `>` is that of numbers, which are justified to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def answer_lines(report: Report, everything: bool) -> Iterator[str]:
    """A sentence for each candidate, the best one first."""
    found = answers(report)
    promotable = [each for each in found if each.verdict == "promotable"]
    if len(promotable) > 1:
        yield f"{len(promotable)} candidates are promotable; the first one has the highest lower bound of its lift:"
    shown = found if everything else found[:MOST_ANSWERS]
    yield from (each.sentence for each in shown)
    if shown != found:
        yield f"(--all prints the answers for {len(found) - len(shown)} more candidates)"
    for policy, estimated, seen, _ in seen_lifts(report):
        yield f"the lift of {policy}: estimated {estimated} from events that others chose, seen {seen} on its own"


def recommended_rows(report: Report) -> list[Estimate]:
    """For each candidate, the estimates by which it is decided; and those of production by the same estimators."""
    parts = by_policy(report).items()
    rows = [recommended(part, policy) for policy, part in parts if policy != report.production]
    pairs = {(each.estimator, each.average) for each in rows if each}
    of_production = [each for each in report.estimates if each.policy == report.production]
    chosen = {(each.policy, each.estimator, each.average) for each in rows if each}
    of_candidates = [each for each in report.estimates if (each.policy, each.estimator, each.average) in chosen]
    return [*(each for each in of_production if (each.estimator, each.average) in pairs), *of_candidates]


def report_table(report: Report, title: str = "", rows: Sequence[Estimate] | None = None) -> Table:
    """The estimates of a Report, or some of them, production first; a dash where a number is not known."""
    estimates = report.estimates if rows is None else rows
    decimals = decimals_for(estimate.value for estimate in estimates)
    compared = any(estimate.lift is not None for estimate in estimates)
    interval = f">{report.confidence * 100:g}% interval"
    lift = (">lift", interval, ">relative lift") if compared else ()
    reward = ("reward",) if len(report.rewards) > 1 else ()
    headings = (
        "policy",
        *reward,
        "estimator",
        "average",
        ">value",
        interval,
        *lift,
        ">effective events",
        ">mean weight",
    )
    table = new_table(title, *headings)
    rank = {counts.policy: place for place, counts in enumerate(report.policies)}
    in_order = sorted(estimates, key=lambda estimate: rank[estimate.policy])
    for policy, of_policy in groupby(in_order, key=lambda estimate: estimate.policy):
        name = Text(f"{policy} (production)" if policy == report.production else policy, style="bold")
        for row, each in enumerate(of_policy):
            bounds = interval_text(each.lift_lower, each.lift_upper, decimals, signed=True)
            relative = percentage(each.lift_ratio, each.lift_ratio_lower, each.lift_ratio_upper) or UNKNOWN
            lift = (decimal(each.lift, decimals, signed=True), bounds, relative) if compared else ()
            table.add_row(
                *("" if row else name, *((each.reward,) if reward else ()), each.estimator, each.average),
                *(decimal(each.value, decimals), interval_text(each.lower, each.upper, decimals), *lift),
                *(decimal(each.effective_sample_size, 0), decimal(each.importance_weight_mean, 3)),
            )
        table.add_section()
    return table


def segments_table(report: Report, everything: bool) -> Table:
    """The lift of candidates in each segment, the lowest one over its error first."""
    found = report.segments_by_lift()
    rows = found if everything else found[:MOST_SEGMENTS]
    decimals = decimals_for(each.value for each in rows)
    title = f"Segments, by {rows[0].estimator} on {rows[0].average}"
    if rows != found:
        title += f": the {len(rows)} lowest lifts over their error (--all prints {len(found)})"
    interval = ">joint interval"
    table = new_table(title, "policy", "segment", "value", ">share", ">value", interval, ">lift", interval)
    for each in rows:
        table.add_row(
            *(Text(name, style="red" if each.is_worse else "") for name in (each.policy, each.segment)),
            Text(each.segment_value),
            UNKNOWN if each.share is None else f"{each.share:.1%}",
            decimal(each.value, decimals),
            interval_text(each.lower, each.upper, decimals),
            decimal(each.lift, decimals, signed=True),
            interval_text(each.lift_lower, each.lift_upper, decimals, signed=True),
        )
    return table


def calibration_table(report: Report, everything: bool) -> Table:
    """The seen and the estimated value of each policy that chose events itself, and their difference."""
    rows = report.calibration if everything else calibrated(report)
    decimals = decimals_for(each.value for each in rows)
    interval = f">{report.confidence * 100:g}% interval"
    headings = ("policy", "average", ">seen", interval, ">estimated", ">estimated less seen", interval, "check")
    table = new_table("Was the estimate right?", *headings)
    checks = {each.policy: each for each in report.trust if each.check == "calibration"}
    for each in rows:
        check = checks.get(each.policy)
        finding = "too few events yet" if check is None else "passed" if check.ok else "failed"
        table.add_row(
            *(Text(each.policy, style="bold"), each.average),
            *(decimal(each.value, decimals), interval_text(each.lower, each.upper, decimals)),
            *(decimal(each.estimated, decimals), decimal(each.error, decimals, signed=True)),
            interval_text(each.error_lower, each.error_upper, decimals, signed=True),
            Text(finding, style="red" if finding == "failed" else ""),
        )
    return table


def guardrails_table(report: Report) -> Table:
    """Whether each candidate keeps each guardrail, by which bound."""
    rows = [(decision, each) for decision in report.promotion for each in decision.guardrails]
    table = new_table("Guardrails", "policy", "rule", "reward", ">may lose", ">lift", ">decision bound", "guardrail")
    for decision, each in rows:
        numbers = (significant(number, 2) for number in (each.max_loss, each.lift, each.lower))
        verdict = Text(each.verdict, style="red" if each.verdict == "not kept" else "")
        table.add_row(decision.policy, decision.rule, each.reward, *numbers, verdict)
    return table


def decisions_table(report: Report) -> Table:
    """When each rule would have promoted each candidate, for how long, and with which lift."""
    decimals = decimals_for(lift for each in report.promotion for lift in (each.first_lift, each.lift_since))
    headings = ("first promotable", ">lift then", ">lift since", ">promotable for", "at the end")
    table = new_table("Promotion", "policy", "rule", *headings)
    for policy, decisions in groupby(report.promotion, key=lambda decision: decision.policy):
        for row, decision in enumerate(decisions):
            cells = _decision_cells(decision, report, decimals)
            table.add_row("" if row else Text(policy, style="bold"), decision.rule, *cells)
        table.add_section()
    return table


def _decision_cells(decision: Decision, report: Report, decimals: int) -> list[str | Text]:
    if decision.first_event is None:
        return ["never", UNKNOWN, UNKNOWN, UNKNOWN, Text(decision.reason)]
    when = "" if decision.first_timestamp is None else f"\n{utc_time(decision.first_timestamp)}"
    share = decision.promotable_events / max(1, report.events.accepted)
    often = "once" if decision.times == 1 else f"{decision.times} times"
    return [
        f"event {decision.first_event:,}{when}",
        decimal(decision.first_lift, decimals, signed=True),
        decimal(decision.lift_since, decimals, signed=True),
        f"{counted(decision.promotable_events, 'event')}\n{share:.0%}, {often}",
        Text(f"{'promotable' if decision.promotable else 'not'}: {decision.reason}"),
    ]


def plan_table(config: Config) -> Table:
    """The parts that a configuration runs."""
    http, drift = config.http, config.drift
    plan, kept = config.evaluator_config(), config.kept_state()
    policies = len(plan.policies)
    estimates = policies * sum(len(grid.estimators) * len(grid.averages) for grid in plan.grids() if not grid.optional)
    kinds = {name: f" ({policy.kind})" for name, policy in plan.computed_policies.items()}
    named = [name + kinds.get(name, "") for name in plan.policies[1:]]
    named += [
        f"{name}-1, {name}-2, ... (of {each.policy} after every {each.every:,} events, the last {each.keep})"
        for name, each in plan.versions.items()
    ]
    rows = [
        ("source", config.source.description if config.source else "none: for `replay` only"),
        ("policies", ", ".join([f"{config.policies.production} (production)", *named])),
        ("reward", "\n".join(_reward_lines(config))),
    ]
    if plan.ranking is not None:
        looks = f"users look at ranks by {_described(plan.ranking.examination)}"
        rows[-1] = ("ranking", f"clicks, {_described(plan.ranking.metric)}; {looks}")
    if plan.propensity is not None:
        model = plan.propensity.model
        by = f" by {', '.join(model.by)}" if model.by else ""
        rows.append(("propensities", f"estimated ({model.kind}{by}); intervals leave out their error"))
    if plan.segments:
        lists = [f"{name}: {', '.join(each.labels)}" for name, each in plan.segments.items()]
        rows.append(("segments", "\n".join(lists)))
    for estimators, averages in plan.products:
        rows.append(("estimators", _named(plan, estimators)))
        lines = [f"{_described(average)}: {_described(plan.interval(average))} interval" for average in averages]
        rows.append(("averages", "\n".join(lines)))
    parameters = [f"{name} {value}" for name, value in drift.parameters.items()] if drift else []
    scheme, login = "https" if http.tls_certfile else "http", "with a token" if http.token_file else "without a token"
    no_state = "no state directory: a restart starts from zero"
    rows += [
        ("drift", ", ".join([drift.name, *parameters]) if drift else "off"),
        ("promotion", _promotion(config)),
        ("estimates", f"{estimates} for {counted(policies, 'policy')}, {config.confidence * 100:g}% intervals"),
        ("serves", f"{scheme}://{http.host}:{http.port}, {login}"),
        ("state", f"snapshots in {kept.dir}, one every {format_duration(kept.interval)}" if kept else no_state),
        ("rejected", _dead_letters(config.dead_letters)),
    ]
    if config.decisions is not None:
        of = ["transition"] if config.promotion else []
        of += ["frozen copy"] if config.policies.versions else []
        what = " and ".join(f"each {each}" for each in of)
        rows.append(("decisions", f"a message for {what}, to the topic {config.decisions.topic}"))
    return facts(rows)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values side by side."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def events_line(report: Report) -> str:
    """The number of events, the time of the newest, the number of rejected ones, and what all numbers leave out."""
    events = report.events
    until = "" if events.last_timestamp is None else f" until {utc_time(events.last_timestamp)}"
    line = f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"
    return "\n".join(filter(None, (line, report.caution, report.caution_about_learners)))


def _reward_lines(config: Config) -> Iterator[str]:
    """A line for each reward, the goal first."""
    for (name, field, low, high), reward in zip(config.reward_fields, config.evaluator_config().rewards, strict=True):
        line = f"the field {field}, from {low:g} to {high:g}"
        guard = "" if reward.max_loss is None else f"; a guardrail: a loss of up to {reward.max_loss:g}"
        yield f"{name}: {line}{guard}" if config.rewards else line


def _dead_letters(settings: AnyDeadLetters | None) -> str:
    match settings:
        case DeadLetterFile() as file:
            full = f"{counted(file.keep, 'full file')} {'is' if file.keep == 1 else 'are'} kept"
            return f"messages are counted and written to {file.path}; {full}"
        case DeadLetterTopic() as topic:
            return f"messages are counted and written to the topic {topic.topic}"
    return "messages are counted but not stored"


def _named(plan: EvaluatorConfig, estimators: Sequence[AnyEstimator]) -> str:
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


def _described(choice: Component) -> str:
    """The label of a component, with its kind if it has a name, and the parameters that are not the defaults."""
    parts = [choice.kind] if choice.name else []
    for option in fields(choice):
        value = getattr(choice, option.name)
        if option.name not in ("name", "kind") and value is not None and value != option.default:
            parts.append(f"{option.name} {value:g}" if isinstance(value, float) else f"{option.name} {value}")
    return f"{choice.label} ({', '.join(parts)})" if parts else choice.label


def interval_text(lower: float | None, upper: float | None, decimals: int, signed: bool = False) -> str:
    """`lower … upper`, or a dash where a bound is not known."""
    if lower is None or upper is None:
        return UNKNOWN
    return f"{decimal(lower, decimals, signed)} … {decimal(upper, decimals, signed)}"
