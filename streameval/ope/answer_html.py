"""Show the answer of a Report in a notebook: sentences first, then the estimates that decide, and all others folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, interval_text, significant
from streameval.ope.answer import (
    CandidateAnswer,
    answers,
    best_first,
    chosen_estimates,
    headline,
    limit_lines,
    quantile_rows,
    relative_lift,
    summary,
)
from streameval.ope.report import Estimate, Report

COLOURS = {"promotable": "#1a7f37", "worse": "#b42318", "untrusted": "#b54708"}
"""Colours by the state of an answer, readable on light and dark pages."""
FADED = "#b54708"
MAX_SEGMENTS = 10
"""Rows of segments that are not folded."""


def answer_html(report: Report) -> str:
    """Return the answer as HTML."""
    found = answers(report)
    report = best_first(report, found)
    chosen = chosen_estimates(report, everything=False)
    parts = [f"<p>{escape(headline(found))}</p>" if headline(found) else "", *map(_sentence, found)]
    parts.append(_estimates(report, chosen))
    parts += [*_segments(report), *_quantiles(report), *_per_unit(report)]
    parts.append(
        f"<p>{'<br>'.join(map(escape, [*summary(report).splitlines(), *limit_lines(report), *_missing(report)]))}</p>"
    )
    if len(chosen) < len(report.estimates):
        parts.append(_folded(f"All {len(report.estimates)} estimates", _estimates(report, report.estimates)))
    return f"<div>{''.join(parts)}</div>"


def _sentence(answer: CandidateAnswer) -> str:
    colour = FADED if answer.faded else COLOURS.get(answer.state)
    style = f' style="color: {colour}"' if colour else ""
    remedy = f"<br>{escape(answer.remedy)}" if answer.remedy else ""
    details = _folded("Why", "<br>".join(map(escape, answer.details))) if answer.details else ""
    return f"<p><strong{style}>{escape(answer.sentence)}</strong>{remedy}</p>{details}"


def _missing(report: Report) -> Iterator[str]:
    """Yield what each policy lacks: events without its probability, and failures of its function."""
    for row in report.policies:
        if row.missing and report.events.accepted:
            share = f"{row.missing / report.events.accepted:.1%}"
            yield f"{row.policy}: {counted(row.missing, 'event')} without its probability ({share})"
        yield from (
            f"{row.policy}: {failure.count:,} × {failure.reason}: {failure.example}" for failure in row.failures
        )
    yield from (f"{count:,} rejected: {reason}" for reason, count in report.events.rejected.items())


def _estimates(report: Report, rows: Sequence[Estimate]) -> str:
    decimals, interval = decimals_for(row.value for row in rows), f"{report.confidence * 100:g}% interval"
    several = len(report.rewards) > 1
    named = ["policy", "reward"] if several else ["policy"]
    headings = [
        *named,
        "estimator",
        "average",
        "value",
        interval,
        "lift",
        interval,
        "relative lift",
        "effective events",
    ]
    lines = []
    for row in rows:
        name = f"{row.policy} (production)" if row.policy == report.production else row.policy
        cells = [name, *([row.reward] if several else []), row.estimator, row.average, decimal(row.value, decimals)]
        cells += [interval_text(row.lower, row.upper, decimals), decimal(row.lift, decimals, signed=True)]
        cells += [interval_text(row.lift_lower, row.lift_upper, decimals, signed=True)]
        cells += [relative_lift(row)]
        lines.append([*cells, decimal(row.effective_sample_size, 0)])
    return _table(headings, lines)


def _segments(report: Report) -> Iterator[str]:
    """Yield the lifts of candidates by segment with events, the lowest one over its error first."""
    rows = [row for row in report.segments_by_lift() if row.events]
    if not rows:
        return
    decimals = decimals_for(row.value for row in rows)
    lines = [
        [
            row.policy,
            f"{row.segment} {row.segment_value}",
            UNKNOWN if row.share is None else f"{row.share:.1%}",
            decimal(row.value, decimals),
            decimal(row.lift, decimals, signed=True),
            interval_text(row.lift_lower, row.lift_upper, decimals, signed=True),
        ]
        for row in rows
    ]
    headings = ["policy", "segment", "share", "value", "lift", "joint interval"]
    yield _table(headings, lines[:MAX_SEGMENTS])
    if len(lines) > MAX_SEGMENTS:
        yield _folded(f"All {len(lines)} rows of segments", _table(headings, lines))


def _quantiles(report: Report) -> Iterator[str]:
    """Yield the quantiles of rewards under each policy, if there are any."""
    lines = [
        [row.policy, row.reward, f"{row.quantile:g}", *map(significant, (row.value, row.lower, row.upper))]
        for row in quantile_rows(report)
    ]
    if lines:
        yield _table(["policy", "reward", "quantile", "value", "at least", "at most"], lines)


def _per_unit(report: Report) -> Iterator[str]:
    """Yield the rewards per unit of the last whole window, if there are any."""
    lines = [
        [row.policy, row.reward, f"{row.units:,}"]
        + [
            significant(number)
            for number in (row.value, row.lower, row.upper, row.lift, row.lift_lower, row.lift_upper)
        ]
        for row in report.per_unit
    ]
    if lines:
        bounds = ["at least", "at most"]
        yield _table(["policy", "reward", "units", "per unit", *bounds, "lift per unit", *bounds], lines)


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    rows = [_row("th", headings), *(_row("td", line) for line in lines)]
    return f"<table>{''.join(rows)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
