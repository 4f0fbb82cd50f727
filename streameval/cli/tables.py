"""Print results as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeAlias

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from streameval.cli.results import chosen_estimates, summary
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, significant, utc_time
from streameval.ope.answer import calibrated, percentage
from streameval.ope.report import Calibration, Decision, Report

MAX_SEGMENTS = 10
"""Rows of segments, unless everything is shown."""
Cell: TypeAlias = str | Text
Column: TypeAlias = tuple[str, Callable[[Any], Cell]]
"""A heading and the function from a row to its cell. Numbers, with a heading that starts with `>`, align right."""


def new_table(
    title: str, columns: Iterable[Column], rows: Iterable[Any] = (), group: Callable[[Any], Cell] | None = None
) -> Table:
    """Build a table with one line per row.

    Args:
        title: the line above the table
        columns: headings and cells
        rows: objects to show
        group: returns the name of a row for the first column, which is shown once for consecutive rows
    """
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    columns = list(columns)
    for heading, _ in columns:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    if group is None:
        for row in rows:
            table.add_row(*(cell(row) for _, cell in columns))
        return table
    for name, members in groupby(rows, key=group):
        for index, row in enumerate(members):
            table.add_row("" if index else bold(name), *(cell(row) for _, cell in columns[1:]))
        table.add_section()
    return table


def bold(name: Cell) -> Text:
    """Emphasise the name of a row."""
    return name if isinstance(name, Text) else Text(name, style="bold")


def interval_text(lower: float | None, upper: float | None, decimals: int, signed: bool = False) -> str:
    """Return `lower … upper`, or a dash if a bound is unknown."""
    if lower is None or upper is None:
        return UNKNOWN
    return f"{decimal(lower, decimals, signed)} … {decimal(upper, decimals, signed)}"


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Show names and values side by side."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def result_tables(report: Report, everything: bool) -> Iterator[RenderableType]:
    """Yield tables of estimates and, if there are any, of guardrails, segments and calibration.

    Args:
        report: the Report
        everything: show all rows, not only those that decide
    """
    yield estimates_table(report, everything)
    if any(decision.guardrails for decision in report.promotion):
        yield guardrails_table(report)
    if report.segments_by_lift():
        yield segments_table(report, everything)
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
    """Show estimates, production first, with a dash for unknown numbers."""
    rows = chosen_estimates(report, everything)
    decimals = decimals_for(row.value for row in rows)
    order = {counts.policy: index for index, counts in enumerate(report.policies)}
    interval = f">{report.confidence * 100:g}% interval"
    lifts = [
        _number("lift", decimals, signed=True),
        _interval(interval, "lift_", decimals, signed=True),
        (
            ">relative lift",
            lambda row: percentage(row.lift_ratio, row.lift_ratio_lower, row.lift_ratio_upper) or UNKNOWN,
        ),
    ]
    columns = [
        _text("policy"),
        *([_text("reward")] if len(report.rewards) > 1 else []),
        _text("estimator"),
        _text("average"),
        _number("value", decimals),
        _interval(interval, "", decimals),
        *(lifts if any(row.lift is not None for row in rows) else []),
        _number("effective_sample_size", 0, ">effective events"),
        _number("importance_weight_mean", 3, ">mean weight"),
    ]
    return new_table(
        summary(report),
        columns,
        sorted(rows, key=lambda row: order[row.policy]),
        group=lambda row: f"{row.policy} (production)" if row.policy == report.production else row.policy,
    )


def segments_table(report: Report, everything: bool = False) -> Table:
    """Show the lifts of candidates in segments, the lowest one over its error first."""
    segments = report.segments_by_lift()
    rows = segments if everything else segments[:MAX_SEGMENTS]
    title = f"Segments, by {rows[0].estimator} on {rows[0].average}"
    if len(rows) < len(segments):
        title += f": the {len(rows)} lowest lifts over their error (--all prints {len(segments)})"
    decimals, interval = decimals_for(row.value for row in rows), ">joint interval"
    columns: list[Column] = [
        ("policy", lambda row: _warning(row.policy, row.is_worse)),
        ("segment", lambda row: _warning(row.segment, row.is_worse)),
        ("value", lambda row: Text(row.segment_value)),
        (">share", lambda row: UNKNOWN if row.share is None else f"{row.share:.1%}"),
        _number("value", decimals),
        _interval(interval, "", decimals),
        _number("lift", decimals, signed=True),
        _interval(interval, "lift_", decimals, signed=True),
    ]
    return new_table(title, columns, rows)


def calibration_table(report: Report, everything: bool = False) -> Table:
    """Compare the estimate of each policy with what it earned on events that it chose itself."""
    rows = report.calibration if everything else calibrated(report)
    decimals = decimals_for(row.value for row in rows)
    interval = f">{report.confidence * 100:g}% interval"
    checks = {check.policy: check for check in report.trust if check.check == "calibration"}

    def outcome(row: Calibration) -> Text:
        check = checks.get(row.policy)
        verdict = "too few events yet" if check is None else "passed" if check.ok else "failed"
        return _warning(verdict, verdict == "failed")

    columns: list[Column] = [
        ("policy", lambda row: bold(row.policy)),
        _text("average"),
        _number("value", decimals, ">seen"),
        _interval(interval, "", decimals),
        _number("estimated", decimals),
        _number("error", decimals, ">estimated less seen", signed=True),
        _interval(interval, "error_", decimals, signed=True),
        ("check", outcome),
    ]
    return new_table("Was the estimate right?", columns, rows)


def guardrails_table(report: Report) -> Table:
    """Show whether candidates keep guardrails, and the bounds that decide."""
    columns: list[Column] = [
        ("policy", lambda row: row[0].policy),
        ("rule", lambda row: row[0].rule),
        ("reward", lambda row: row[1].reward),
        (">may lose", lambda row: significant(row[1].max_loss, 2)),
        (">lift", lambda row: significant(row[1].lift, 2)),
        (">decision bound", lambda row: significant(row[1].lower, 2)),
        ("guardrail", lambda row: _warning(row[1].verdict, row[1].verdict == "not kept")),
    ]
    deciding = [decision for decision in report.promotion if decision.decides]
    rows = [(decision, check) for decision in deciding for check in decision.guardrails]
    return new_table("Guardrails", columns, rows)


def decisions_table(report: Report) -> Table:
    """Show when each rule would have promoted each candidate, its duration and lift."""
    decisions = report.promotion
    decimals = decimals_for(lift for row in decisions for lift in (row.first_lift, row.lift_since))

    def first(row: Decision) -> str:
        if row.first_event is None:
            return "never"
        time = "" if row.first_timestamp is None else f"\n{utc_time(row.first_timestamp)}"
        return f"event {row.first_event:,}{time}"

    def duration(row: Decision) -> str:
        if row.first_event is None:
            return UNKNOWN
        share = row.promotable_events / max(1, report.events.accepted)
        often = "once" if row.times == 1 else f"{row.times} times"
        return f"{counted(row.promotable_events, 'event')}\n{share:.0%}, {often}"

    def end(row: Decision) -> Text:
        verdict = "promotable: " if row.promotable else "not: "
        return Text(row.reason if row.first_event is None else verdict + row.reason)

    columns = [
        _text("policy"),
        _text("rule"),
        ("first promotable", first),
        _number("first_lift", decimals, ">lift then", signed=True),
        _number("lift_since", decimals, ">lift since", signed=True),
        (">promotable for", duration),
        ("at the end", end),
    ]
    return new_table("Promotion", columns, decisions, group=lambda row: row.policy)


def _text(attribute: str) -> Column:
    return attribute, lambda row: str(getattr(row, attribute))


def _number(attribute: str, decimals: int, heading: str | None = None, signed: bool = False) -> Column:
    return heading or f">{attribute}", lambda row: decimal(getattr(row, attribute), decimals, signed)


def _interval(heading: str, prefix: str, decimals: int, signed: bool = False) -> Column:
    """Return a column of intervals from the attributes `lower` and `upper` with a prefix."""
    return heading, lambda row: interval_text(
        getattr(row, f"{prefix}lower"), getattr(row, f"{prefix}upper"), decimals, signed
    )


def _warning(text: str, is_bad: bool) -> Text:
    return Text(text, style="red" if is_bad else "")
