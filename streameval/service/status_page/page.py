"""Render the status page at `/`: a Report as charts and tables, readable without scripts."""

from __future__ import annotations

import gzip
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from streameval.common.text import UNKNOWN, counted, decimal, measured_time, significant, utc_time
from streameval.ope.answer import (
    CandidateAnswer,
    best_first,
    headline,
    limit_lines,
    of_policies,
    quantile_rows,
    relative_lift,
    seen_lifts,
)
from streameval.ope.intervals import KINDS
from streameval.ope.report import Estimate, GuardrailCheck, Report, TrustCheck, grouped
from streameval.service.shown import SHOWN, ranked_candidates, shown_candidates
from streameval.service.status import DaemonStatus
from streameval.service.status_page.charts import (
    ChartScale,
    between,
    is_known,
    lift_of,
    make_chart,
    make_phase_charts,
    make_timelines,
    memory,
    value_of,
)

STYLE = files("streameval.service.status_page").joinpath("status.css").read_text(encoding="utf-8")
SCRIPT = files("streameval.service.status_page").joinpath("status.js").read_text(encoding="utf-8")
NO_SELECTION: Mapping[str, str] = MappingProxyType({})
RANGES = {"12 h": 12 * 3600.0, "4 h": 4 * 3600.0, "1 h": 3600.0}
"""Seconds that the pictures over time may show, by name. The first one is the whole history."""
MAX_SEGMENTS = 12  # further rows are folded
MAX_PAGES = 100  # of one status, as each name and number asked for makes a page
MANY_CANDIDATES = 12  # with more candidates the page has a table of contents
TOLERANCE = 0.02  # a mean weight this close to 1 is never flagged
SIGMAS = 4.0  # a mean weight within this many standard errors of 1 is never flagged
ABOUT = {
    "current": "for the present value",
    "average": "for the mean over the events of the average",
    "estimand": "for the limit of the estimator, which differs from the value",
}
WATCHED = {
    True: "They are valid under continuous monitoring.",
    False: "Each interval is valid for a single look; do not scan many of them.",
}

OUTSIDE = "A value outside its interval is not an error: the interval is cut to the reward range, the value is not."


def source_hash(text: str) -> str:
    """Return the source by which a Content-Security-Policy allows an inline block."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


STYLE_HASH, SCRIPT_HASH = source_hash(STYLE), source_hash(SCRIPT)


@cache
def page_template() -> Template:
    """Return the template of the page. Every text from configuration or events is escaped."""
    environment = Environment(
        loader=PackageLoader("streameval.service", "status_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": partial(decimal, decimals=0), "counted": counted, "number": significant}
    environment.filters |= {"signed": lambda value: f"{'+' if (value or 0) > 0 else ''}{significant(value)}"}
    environment.filters |= {"duration": measured_time, "moment": utc_time, "words": words, "memory": memory}
    environment.tests["suspect"] = is_suspect
    assets = {"style": Markup(STYLE), "script": Markup(SCRIPT)}  # our own files, not input
    environment.globals.update(many=MANY_CANDIDATES, **assets)
    return environment.get_template("status.html")


def page(now: DaemonStatus, wanted: Mapping[str, str] = NO_SELECTION) -> tuple[bytes, bytes]:
    """Return the page as bytes, plain and compressed. Each browser asks every two seconds.

    Args:
        now: The status.
        wanted: What to show, as for `render`.
    """
    key = (chosen(now.reported.of_goal(), wanted), chosen_range(wanted), *kept_choice(wanted).items())
    pages = _pages(now)
    if key in pages:
        return pages[key]
    plain = render(now, wanted).encode()
    made = plain, gzip.compress(plain, compresslevel=1)
    if len(pages) < MAX_PAGES:
        pages[key] = made
    return made


@lru_cache(maxsize=1)
def _pages(_: DaemonStatus) -> dict[tuple[Any, ...], tuple[bytes, bytes]]:
    """Return where the pages of the newest status are kept. All clients with one choice share a page."""
    return {}


def render(now: DaemonStatus, wanted: Mapping[str, str] = NO_SELECTION) -> str:
    """Return the whole page as HTML.

    Args:
        now: The status.
        wanted: Names of the `estimator` and `average` at the top, and of the `last` hours. The name of one `policy`, or
            how many candidates to show, `top`.
    """
    every, named = ranked_candidates(now), [wanted["policy"]] if wanted.get("policy") else []
    shown = shown_candidates(now, named, wanted.get("top", ""), SHOWN)
    kept = None if shown is None else set(shown)
    candidate_answers = [answer for answer in every if kept is None or answer.policy in kept]
    reported = now.reported if shown is None else of_policies(now.reported, shown)
    reported = best_first(reported, candidate_answers)
    report = reported.of_goal()
    sections, segments, deciding = _sections(report), report.segments_by_lift(), _deciding(report, candidate_answers)
    return page_template().render(
        now=now,
        report=report if now.report else None,
        news=news(now),
        overview=make_overview(now, report, wanted),
        answers=candidate_answers,
        headline=headline(every),
        left_out=len(every) - len(candidate_answers),
        every=len(every),
        deciding=deciding,
        deciding_pairs=list(
            dict.fromkeys(f"{estimate.estimator} on {estimate.average}" for estimate in deciding.values())
        ),
        ramp=seen_lifts(report),
        phase_charts=make_phase_charts(report),
        segments=segments,
        worse=grouped((segment for segment in segments if segment.is_worse), "policy"),
        shown=MAX_SEGMENTS,
        rewards=_rewards(reported, deciding),
        guardrails=_guardrails(reported),
        quantiles=quantile_rows(reported),
        limits=limit_lines(report),
        per_unit=reported.per_unit,
        sections=sections,
        marked=_marked(sections),
        firsts={estimate.policy: estimate for estimate in reversed(report.estimates)},
        checks=grouped(report.trust, "policy"),
        failed=grouped((check for check in report.trust if not check.ok), "policy"),
    )


def chosen(report: Report, wanted: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the wanted estimator and average if they exist, else the last ones, which are the best by default."""
    pairs = list(dict.fromkeys(map(_pair, report.estimates)))
    evident = {_pair(estimate) for estimate in report.estimates if is_known(estimate.value)} - report.thin()
    ranked = sorted(
        pairs, key=lambda pair: (pair[1] == wanted.get("average"), pair[0] == wanted.get("estimator"), pair in evident)
    )
    return ranked[-1] if ranked else None  # the sort is stable: of equals, the last


def _pair(estimate: Estimate) -> tuple[str, str]:
    return estimate.estimator, estimate.average


def chosen_range(wanted: Mapping[str, str]) -> str:
    """Return the name of the wanted hours, by default the longest of `RANGES`."""
    return wanted["last"] if wanted.get("last") in RANGES else next(iter(RANGES))


def kept_choice(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return which candidates are wanted, for all links of the page."""
    return {name: wanted[name] for name in ("policy", "top") if wanted.get(name)}


def make_overview(now: DaemonStatus, report: Report, wanted: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the values of the top of the page, by one estimator over one average.

    Returns:
        None while the report has no estimates. `candidates` are rows of values with their timelines, if there are any,
        `adapting` the averages that forget, with the estimates of all policies, and `links` what links must keep.
    """
    choice = chosen(report, wanted)
    if choice is None:
        return None
    estimator, average = choice
    shown = [estimate for estimate in report.estimates if _pair(estimate) == choice]
    candidates = [estimate for estimate in shown if estimate.policy != report.production]
    base = next((estimate for estimate in shown if estimate.policy == report.production), None)
    last = chosen_range(wanted)
    history = now.history.since(now.at - RANGES[last])
    timelines = make_timelines(history, now.at, candidates, base)
    lift_timelines = make_timelines(history, now.at, candidates, None, lift_of, report.transitions, now.margin)
    rows = make_chart(shown, report.production, ChartScale.from_estimates(shown)).rows
    lifts = make_chart(candidates, report.production, ChartScale.from_estimates(candidates, lift_of), lift_of)
    links = {"average": average, "estimator": estimator, "last": last}
    return {
        **links,
        "links": links,
        "ranges": list(RANGES),
        "kept": kept_choice(wanted),
        "averages": list(dict.fromkeys(estimate.average for estimate in report.estimates)),
        "estimators": list(
            dict.fromkeys(name for name, its_average in map(_pair, report.estimates) if its_average == average)
        ),
        "lifts": lifts,
        "meanings": meanings(shown, report.confidence),
        "outside": outside(shown),
        "production": next((row for row in rows if row.production), None),
        "candidates": list(
            zip_longest((row for row in rows if not row.production), timelines.pictures if timelines else ())
        ),
        "timelines": timelines,
        "lift_timelines": lift_timelines,
        "lift_candidates": list(zip(lifts.rows, lift_timelines.pictures, strict=True)) if lift_timelines else [],
        "adapting": _adapting(report, estimator),
    }


def _adapting(report: Report, estimator: str) -> dict[str, dict[str, Estimate]]:
    """Return the estimates of all policies for each average that forgets, by one estimator or else the last one."""
    columns: dict[str, dict[str, Estimate]] = {}
    for estimate in report.estimates:
        column = columns.setdefault(estimate.average, {})
        if estimate.estimator == estimator or column.get(estimate.policy, estimate).estimator != estimator:
            column[estimate.policy] = estimate
    return {name: column for name, column in columns.items() if set(map(memory, column.values())) != {UNKNOWN}}


def _sections(report: Report) -> list[dict[str, Any]]:
    """Return all estimates by average, with one axis per average.

    `memory` is empty if the rows differ in it. `marks` are the estimators with their verdicts, by policy.
    """
    sections = []
    for average, estimates in grouped(report.estimates, "average").items():
        scale = ChartScale.from_estimates(estimates)
        memories = set(map(memory, estimates))
        by_estimator = grouped(estimates, "estimator").items()
        charts = {name: make_chart(rows, report.production, scale) for name, rows in by_estimator}
        marks: dict[str, list[tuple[str, str]]] = {}
        for name, chart in charts.items():
            for row in chart.rows:
                marks.setdefault(row.estimate.policy, []).append((name, row.verdict))
        section = {
            "average": average,
            "memory": memories.pop() if len(memories) == 1 else "",
            "charts": charts,
            "marks": marks,
            "diagnostics": {
                name: text
                for name, text in DIAGNOSTICS.items()
                if any(text(estimate) != UNKNOWN for estimate in estimates)
            },
            "meanings": [*filter(None, (*meanings(estimates, report.confidence), outside(estimates)))],
        }
        sections.append(section)
    return sections


def _deciding(report: Report, candidate_answers: Sequence[CandidateAnswer]) -> dict[str, Estimate]:
    """Return the estimate that decides by policy. Production has the one that decides about the first candidate."""
    decided = {answer.policy: answer.estimate for answer in candidate_answers if answer.estimate}
    first = next(map(_pair, decided.values()), None)
    base = [estimate for estimate in report.estimates if estimate.policy == report.production]
    defaults = {estimate.policy: estimate for estimate in reversed(report.estimates)}
    return defaults | decided | {estimate.policy: estimate for estimate in base if _pair(estimate) == first}


def _rewards(report: Report, deciding: Mapping[str, Estimate]) -> list[Estimate]:
    """Return the estimates of all rewards for each candidate by its deciding estimator. Empty for a single reward."""
    pairs = {(estimate.policy, *_pair(estimate)) for estimate in deciding.values()}
    rows = [estimate for estimate in report.estimates if (estimate.policy, *_pair(estimate)) in pairs]
    return [estimate for estimate in rows if estimate.policy != report.production] if len(report.rewards) > 1 else []


def _guardrails(report: Report) -> dict[tuple[str, str], list[tuple[str, GuardrailCheck]]]:
    """Return the guardrail checks with their rules, by candidate and reward."""
    checks: dict[tuple[str, str], list[tuple[str, GuardrailCheck]]] = {}
    for decision in report.promotion:
        for check in decision.guardrails if decision.decides else ():
            checks.setdefault((decision.policy, check.reward), []).append((decision.rule, check))
    return checks


def _marked(sections: Iterable[dict[str, Any]]) -> list[str]:
    """Return the estimators of the marks, with their averages if these differ."""
    averages: dict[str, list[str]] = {}
    for section in sections:
        averages.setdefault(", ".join(section["charts"]), []).append(section["average"])
    if len(averages) == 1:
        return list(averages)
    return [f"{estimators} on {', '.join(names)}" for estimators, names in averages.items()]


def meanings(estimates: Iterable[Estimate], confidence: float) -> list[str]:
    """Return the meaning of the intervals of some estimates, one text for each kind."""
    kinds: dict[tuple[str, str, bool], dict[str, None]] = {}
    for estimate in estimates:
        kinds.setdefault((estimate.kind, estimate.covers, estimate.anytime), {})[estimate.estimator] = None
    texts = []
    for (kind, covers, anytime), estimators in kinds.items():
        names = f"{', '.join(estimators)}: " if len(kinds) > 1 else ""
        head = f"{names}{100 * confidence:g} % intervals ({kind.replace('_', ' ')}) {ABOUT.get(covers, '')}".rstrip()
        texts.append(" ".join(filter(None, (f"{head}.", KINDS[kind].description, WATCHED[anytime]))))
    return texts


def outside(estimates: Iterable[Estimate]) -> str:
    """Return a note if a value or lift is outside its interval, else an empty text."""
    for value, ends in (shown for estimate in estimates for shown in (value_of(estimate), lift_of(estimate))):
        if ends is not None and is_known(value):
            rounding = 1e-9 * max(map(abs, (value, *ends)))
            if not ends[0] - rounding <= value <= ends[1] + rounding:
                return OUTSIDE
    return ""


def news(now: DaemonStatus) -> str:
    """Return the announcement of a change for screen readers."""
    decisions = now.reported.promotion
    names = list(dict.fromkeys(decision.policy for decision in decisions if decision.promotable))
    ready = "Ready" if now.ready else "Not ready"
    ready += f": {now.detail}." if now.detail else "."
    promotable = f" Promotable: {', '.join(names)}." if names else " No candidate is promotable."
    return ready + (promotable if decisions else "")


def is_suspect(estimate: Estimate) -> bool:
    """Return whether the mean weight differs from 1 by more than chance.

    Its standard error is about 1 / sqrt(effective sample size).
    """
    mean, size = estimate.importance_weight_mean, estimate.effective_sample_size
    return bool(mean is not None and size and abs(mean - 1) > max(TOLERANCE, SIGMAS / math.sqrt(size)))


def interval(lower: float | None, upper: float | None) -> str:
    """Return both bounds of an interval as text."""
    return f"{significant(lower)} to {significant(upper)}" if between(lower, upper) else UNKNOWN


def _detail(key: str, digits: int) -> Callable[[Estimate], str]:
    return lambda estimate: significant(estimate.details.get(key), digits)


def words(check: TrustCheck) -> str:
    """Return the name of a check that fits whether it passes or fails."""
    return {"stale": "freshness"}.get(check.check, check.check.replace("_", " "))


def lifts_of_slots(estimate: Estimate) -> str:
    """Return the parts of the lift by slot of the slates, from the first slot."""
    return ", ".join(significant(lift, 2) for lift in estimate.details.get("slot_lifts", ())) or UNKNOWN


DIAGNOSTICS: dict[str, Callable[[Estimate], str]] = {
    "Lift": lambda estimate: significant(estimate.lift),
    "Lift interval": lambda estimate: interval(estimate.lift_lower, estimate.lift_upper),
    "Relative lift": relative_lift,
    "Lift by slot": lifts_of_slots,
    "Effective sample": lambda estimate: decimal(estimate.effective_sample_size, 0),
    "Effective rewarded events": lambda estimate: decimal(estimate.details.get("reward_effective_sample_size"), 0),
    "Design effect": _detail("design_effect", 3),
    "Mean weight": lambda estimate: significant(estimate.importance_weight_mean, 4),
    "Largest weight": lambda estimate: significant(estimate.importance_weight_max),
    "Share of largest term": _detail("largest_term_share", 2),
    "Looks back": memory,
    "alpha": _detail("alpha", 6),
    "Drift per event": _detail("lipschitz_per_event", 2),
    "Sampling error": _detail("se", 2),
    "Disagreement": _detail("spread", 2),
    "Drift since": _detail("drift", 2),
    "Cap": _detail("cap", 3),
    "Window of ranks": _detail("click_window", 1),
    "Bias bound": _detail("bias_bound", 2),
    "Interval": lambda estimate: f"{estimate.kind}, covers {estimate.covers}{', anytime' if estimate.anytime else ''}",
}
