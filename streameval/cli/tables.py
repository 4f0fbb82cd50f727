"""Print results as sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, interval_text, significant, utc_time
from streameval.ope.answer import (
    answers,
    best_first,
    calibrated,
    chosen_estimates,
    headline,
    limit_lines,
    percentage,
    quantile_rows,
    seen_lifts,
    summary,
)
from streameval.ope.report import Calibration, Decision, Estimate, Report

MAX_ANSWERS = 5
"""Candidates with an answer, unless everything is shown."""
MAX_SEGMENTS = 10
"""Rows of segments, unless everything is shown."""
Cell: TypeAlias = str | Text
Column: TypeAlias = tuple[str, Callable[[Any], Cell]]
"""A heading and the function from a row to its cell. Numbers, with a heading that starts with `>`, align right."""


def new_table(title: str, columns: Iterable[Column], rows: Iterable[Any] = (), spaced: bool = False) -> Table:
    """Build a table with one row per object. Numbers are never broken.

    Args:
        title: the line above the table
        columns: headings and cells
        rows: objects to show
        spaced: whether blank lines separate rows
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    columns = list(columns)
    for heading, _ in columns:
        is_number = heading.startswith(">")
        table.add_column(
            heading.removeprefix(">"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns), end_section=spaced)
    return table


def bold(name: Cell) -> Text:
    """Emphasise the name of a row."""
    return name if isinstance(name, Text) else Text(name, style="bold")


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Show names and values side by side."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def answer_lines(report: Report, everything: bool) -> Iterator[str]:
    """Yield a sentence and remedies for each candidate, the best one first, and details if everything is shown."""
    candidates = answers(report)
    if title := headline(candidates):
        yield title
    shown = candidates if everything else candidates[:MAX_ANSWERS]
    for answer in shown:
        yield answer.sentence
        if answer.remedy:
            yield f"  {answer.remedy}"
        yield from (f"  {detail}" for detail in answer.details if everything)
    if len(shown) < len(candidates):
        yield f"(--all prints the answers for {len(candidates) - len(shown)} more candidates)"
    for policy, estimated, seen, _ in seen_lifts(report):
        yield f"the lift of {policy}: estimated {estimated} from events that others chose, seen {seen} on its own"


def result_tables(report: Report, everything: bool) -> Iterator[RenderableType]:
    """Yield tables of estimates, and of guardrails, segments, quantiles and calibration if there are any.

    The best policy comes first.

    Args:
        report: the Report
        everything: show all rows, not only those that decide
    """
    report = best_first(report, answers(report))
    yield estimates_table(report, everything)
    if any(decision.guardrails for decision in report.promotion):
        yield guardrails_table(report)
    if report.segments_by_lift():
        yield segments_table(report, everything)
    if report.quantiles:
        yield quantiles_table(report)
    if report.per_unit:
        yield per_unit_table(report)
    yield from limit_lines(report)
    if report.calibration if everything else calibrated(report):
        yield calibration_table(report, everything)
    rows = chosen_estimates(report, everything)
    for row in rows:
        if row.is_impossible:
            bounds = f"{significant(row.lower)} to {significant(row.upper)}"
            what = f"{row.policy}, {row.estimator} on {row.average}"
            yield f"{what}: weights carry the value beyond the possible rewards; the interval, {bounds}, keeps to them"
    number = len(rows)
    if number < len(report.estimates):
        yield f"{number} of {len(report.estimates)} estimates, those that decide; --all prints the others"


def estimates_table(report: Report, everything: bool = False) -> Table:
    """Show estimates, production first, with intervals below numbers and a dash for unknown numbers.

    An estimator and an average that all rows share are named above the table.
    """
    rows = chosen_estimates(report, everything)
    decimals = decimals_for(row.value for row in rows)
    pairs = list(dict.fromkeys(f"{row.estimator} on {row.average}" for row in rows))

    def name(row: Estimate) -> str:
        labels = [row.reward] if len(report.rewards) > 1 else []
        return "\n".join([*labels, *([row.estimator, f"on {row.average}"] if len(pairs) > 1 else [])])

    def relative(row: Estimate) -> str:
        size, ends = percentage(row.lift_ratio, row.lift_ratio_lower, row.lift_ratio_upper)
        return "\n".join(filter(None, (size, ends))) or UNKNOWN

    def evidence(row: Estimate) -> str:
        return f"{decimal(row.effective_sample_size, 0)}\n{decimal(row.importance_weight_mean, 3)}"

    lifts: list[Column] = [_bounded("lift", "lift", decimals, signed=True), (">relative\nlift", relative)]
    columns: list[Column] = [
        ("policy", name),
        _bounded("value", "", decimals),
        *(lifts if any(row.lift is not None for row in rows) else []),
        (">effective\nevents,\nweight", evidence),
    ]
    shared = f"{pairs[0]}, " if len(pairs) == 1 else ""
    table = new_table(f"{summary(report)}\n{shared}{report.confidence * 100:g}% intervals below values", columns)
    for policy in report.policies:
        own = [row for row in rows if row.policy == policy.policy]
        title = bold(policy.policy).append("\n(production)" if policy.production else "", style="not bold")
        if own and name(own[0]):
            table.add_row(title)
        for row in own:
            table.add_row(name(row) or title, *(cell(row) for _, cell in columns[1:]))
        table.add_section()
    return table


def segments_table(report: Report, everything: bool = False) -> Table:
    """Show the lifts of candidates in segments, the lowest one over its error first."""
    segments = report.segments_by_lift()
    rows = segments if everything else segments[:MAX_SEGMENTS]
    title = f"Segments, by {rows[0].estimator} on {rows[0].average}, joint intervals below values"
    if len(rows) < len(segments):
        title += f": the {len(rows)} lowest lifts over their error (--all prints {len(segments)})"
    decimals = decimals_for(row.value for row in rows)
    columns: list[Column] = [
        ("policy", lambda row: _warning(row.policy, row.is_worse)),
        ("segment", lambda row: _warning(f"{row.segment} {row.segment_value}", row.is_worse)),
        (">share", lambda row: UNKNOWN if row.share is None else f"{row.share:.1%}"),
        _bounded("value", "", decimals),
        _bounded("lift", "lift", decimals, signed=True),
    ]
    return new_table(title, columns, rows)


def quantiles_table(report: Report) -> Table:
    """Show the quantiles of rewards under each policy, with their intervals."""
    columns: list[Column] = [
        ("policy", lambda row: row.policy),
        ("reward", lambda row: row.reward),
        (">quantile", lambda row: f"{row.quantile:g}"),
        (">value", lambda row: significant(row.value)),
        (">at least", lambda row: significant(row.lower)),
        (">at most", lambda row: significant(row.upper)),
    ]
    return new_table("Quantiles of rewards since the start", columns, quantile_rows(report))


def per_unit_table(report: Report) -> Table:
    """Show rewards per unit in the last whole window under each policy, with their intervals."""
    decimals = decimals_for(row.value for row in report.per_unit)
    columns: list[Column] = [
        ("policy", lambda row: row.policy),
        ("reward", lambda row: row.reward),
        ("until", lambda row: utc_time(row.end)),
        (">units", lambda row: f"{row.units:,}"),
        _bounded("per unit", "", decimals),
        _bounded("lift", "lift", decimals, signed=True),
    ]
    title = "Rewards per unit in the last whole window, at the visits in the log, intervals below"
    return new_table(title, columns, report.per_unit)


def calibration_table(report: Report, everything: bool = False) -> Table:
    """Compare the estimate of each policy with what it earned on events that it chose itself."""
    rows = report.calibration if everything else calibrated(report)
    decimals = decimals_for(row.value for row in rows)
    averages = list(dict.fromkeys(row.average for row in rows))
    checks = {check.policy: check for check in report.trust if check.check == "calibration"}

    def outcome(row: Calibration) -> Text:
        check = checks.get(row.policy)
        verdict = "too few events yet" if check is None else "passed" if check.ok else "failed"
        return _warning(verdict, verdict == "failed")

    columns: list[Column] = [
        ("policy", lambda row: bold(row.policy)),
        *([("average", lambda row: row.average)] if averages[1:] else []),
        _bounded("seen", "", decimals),
        (">estimated", lambda row: decimal(row.estimated, decimals)),
        _bounded("estimated\nless seen", "error", decimals, signed=True),
        ("check", outcome),
    ]
    return new_table(f"Was the estimate right{'' if averages[1:] else f' on {averages[0]}'}?", columns, rows)


def guardrails_table(report: Report) -> Table:
    """Show whether candidates keep guardrails, and the bounds that decide."""
    deciding = [decision for decision in report.promotion if decision.decides]
    rows = [(decision, check) for decision in deciding for check in decision.guardrails]
    rules = list(dict.fromkeys(decision.rule for decision, _ in rows))
    columns: list[Column] = [
        ("policy", lambda row: row[0].policy),
        *([("rule", lambda row: row[0].rule)] if rules[1:] else []),
        ("reward", lambda row: row[1].reward),
        (">may lose", lambda row: significant(row[1].max_loss, 2)),
        (">lift", lambda row: significant(row[1].lift, 2)),
        (">decision\nbound", lambda row: significant(row[1].lower, 2)),
        ("guardrail", lambda row: _warning(row[1].verdict, row[1].verdict == "not kept")),
    ]
    return new_table(f"Guardrails{'' if rules[1:] else f' by {rules[0]}'}", columns, rows)


def decisions_table(report: Report) -> Table:
    """Show when each rule would have promoted each candidate, its duration and lift."""
    decisions = best_first(report, answers(report)).promotion
    decimals = decimals_for(lift for row in decisions for lift in (row.first_lift, row.lift_since))

    def first(row: Decision) -> str:
        if row.first_event is None:
            return "never"
        time = "" if row.first_timestamp is None else f"\n{utc_time(row.first_timestamp)}"
        share = row.promotable_events / max(1, report.events.accepted)
        often = "once" if row.times == 1 else f"{row.times} times"
        lasted = f"for {counted(row.promotable_events, 'event')}\n{share:.0%}, {often}"
        return f"event {row.first_event:,}{time}\n{lasted}"

    def lifts(row: Decision) -> str:
        return f"{decimal(row.first_lift, decimals, signed=True)}\n{decimal(row.lift_since, decimals, signed=True)}"

    def end(row: Decision) -> Text:
        verdict = "promotable: " if row.promotable else "not: "
        return Text(row.reason if row.first_event is None else verdict + row.reason)

    columns: list[Column] = [
        ("policy\nrule", lambda row: bold(row.policy).append(f"\n{row.rule}", style="not bold")),
        ("first promotable", first),
        (">lift then\nand since", lifts),
        ("at the end", end),
    ]
    return new_table("Promotion", columns, decisions, spaced=True)


def _bounded(heading: str, prefix: str, decimals: int, signed: bool = False) -> Column:
    """Return a column of numbers with their intervals below.

    Args:
        heading: the heading
        prefix: the attribute with the number, `value` if empty, and the start of the attributes of its bounds
        decimals: the number of decimals
        signed: whether positive numbers get a plus sign
    """

    def cell(row: Any) -> str:
        lower, upper = (getattr(row, f"{prefix}_{end}" if prefix else end) for end in ("lower", "upper"))
        ends = "" if lower is None or upper is None else f"\n{interval_text(lower, upper, decimals, signed)}"
        return f"{decimal(getattr(row, prefix or 'value'), decimals, signed)}{ends}"

    return f">{heading}", cell


def _warning(text: str, is_bad: bool) -> Text:
    return Text(text, style="red" if is_bad else "")
