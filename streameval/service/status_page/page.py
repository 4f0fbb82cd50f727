"""The status page at `/`: a Report as charts and tables, readable without scripts."""

from __future__ import annotations

import gzip
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streameval.common.text import UNKNOWN, counted, decimal, measured_time, significant, utc_time
from streameval.ope.answer import CandidateAnswer, answers, percentage, seen_lifts
from streameval.ope.intervals import KINDS
from streameval.ope.report import Estimate, GuardrailCheck, Report, TrustCheck, grouped
from streameval.service.status import DaemonStatus
from streameval.service.status_page.charts import (
    ChartScale,
    between,
    is_known,
    lift_of,
    make_chart,
    make_lift_timelines,
    make_timelines,
    memory,
    value_of,
)

STYLE = files("streameval.service.status_page").joinpath("status.css").read_text(encoding="utf-8")
SCRIPT = files("streameval.service.status_page").joinpath("status.js").read_text(encoding="utf-8")
NO_SELECTION: Mapping[str, str] = MappingProxyType({})
RANGES = {"12 h": 12 * 3600.0, "4 h": 4 * 3600.0, "1 h": 3600.0}
"""The seconds that the pictures over time may show, by name; the first is all of the history."""
SEGMENTS_SHOWN = 12  # the other rows are in a part to open
MANY_CANDIDATES = 12  # with more candidates the page has a table of contents
TOLERANCE = 0.02  # a mean weight this close to 1 is never flagged
SIGMAS = 4.0  # nor one that chance could explain
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
    """The name by which a Content-Security-Policy allows an inline block of this text."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


STYLE_HASH, SCRIPT_HASH = source_hash(STYLE), source_hash(SCRIPT)


class StatusPage:
    """Renders the status of the daemon; every text from configuration or events is escaped."""

    def __init__(self) -> None:
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
        self._template = environment.get_template("status.html")
        self._rendered: DaemonStatus | None = None
        self._pages: dict[tuple[tuple[str, str] | None, str], tuple[bytes, bytes]] = {}

    def page(self, now: DaemonStatus, wanted: Mapping[str, str] = NO_SELECTION) -> tuple[bytes, bytes]:
        """As `render`, once for all clients with one choice, plain and compressed: a browser asks every two seconds."""
        key = chosen(now.report.of_goal(), wanted) if now.report else None, chosen_range(wanted)
        if self._rendered is not now:
            self._rendered, self._pages = now, {}
        if key not in self._pages:
            plain = self.render(now, wanted).encode()
            self._pages[key] = plain, gzip.compress(plain, compresslevel=1)
        return self._pages[key]

    def render(self, now: DaemonStatus, wanted: Mapping[str, str] = NO_SELECTION) -> str:
        """The whole page as HTML; `wanted` may name the `estimator` and `average` of its top, and the `last` hours."""
        report = now.report.of_goal() if now.report else None
        sections = _sections(report) if report else []
        found = answers(report) if report else []
        deciding = _deciding(report, found) if report else {}
        segments = report.segments_by_lift() if report else []
        return self._template.render(
            now=now,
            report=report,
            news=news(now),
            overview=make_overview(now, report, wanted) if report else None,
            answers=found,
            deciding=deciding,
            deciding_pairs=list(dict.fromkeys(f"{each.estimator} on {each.average}" for each in deciding.values())),
            ramp=seen_lifts(report) if report else [],
            segments=segments,
            worse=grouped((each for each in segments if each.is_worse), "policy"),
            ahead=_ahead(found),
            shown=SEGMENTS_SHOWN,
            rewards=_rewards(now.report, deciding) if now.report else [],
            guardrails=_guardrails(now.report) if now.report else {},
            sections=sections,
            marked=_marked(sections),
            firsts={each.policy: each for each in reversed(report.estimates)} if report else {},
            checks=grouped(report.trust, "policy") if report else {},
            failed=grouped((check for check in report.trust if not check.ok), "policy") if report else {},
        )


def chosen(report: Report, wanted: Mapping[str, str]) -> tuple[str, str] | None:
    """The `wanted` estimator and average, if they exist; else the last ones, which are the best by default."""
    pairs = list(dict.fromkeys((each.estimator, each.average) for each in report.estimates))
    known = {(each.estimator, each.average) for each in report.estimates if is_known(each.value)} - report.thin()
    ranked = sorted(
        pairs, key=lambda pair: (pair[1] == wanted.get("average"), pair[0] == wanted.get("estimator"), pair in known)
    )
    return ranked[-1] if ranked else None  # the sort is stable: of equals, the last


def chosen_range(wanted: Mapping[str, str]) -> str:
    """The name of the `last` hours that are wanted, by default the longest of `RANGES`."""
    return wanted["last"] if wanted.get("last") in RANGES else next(iter(RANGES))


def make_overview(now: DaemonStatus, report: Report, wanted: Mapping[str, str]) -> dict[str, Any] | None:
    """The top of the page, by one estimator over one average; None while `report` has no estimates.

    `candidates` are the rows of values with their timelines, if there are any. `adapting` are the averages that forget,
    with the estimates of all policies.
    """
    choice = chosen(report, wanted)
    if choice is None:
        return None
    estimator, average = choice
    shown = [each for each in report.estimates if (each.estimator, each.average) == choice]
    candidates = [each for each in shown if each.policy != report.production]
    base = next((each for each in shown if each.policy == report.production), None)
    rows = make_chart(shown, report.production, ChartScale.of(shown)).rows
    last = chosen_range(wanted)
    history = now.history.since(now.at - RANGES[last])
    timelines = make_timelines(history, now.at, candidates, base)
    pictures = timelines.pictures if timelines else [None] * len(candidates)
    lifts = make_lift_timelines(history, now.at, candidates, report.transitions, now.margin)
    lift_rows = make_chart(candidates, report.production, ChartScale.of(candidates, lift_of), lift_of).rows
    return {
        "estimator": estimator,
        "average": average,
        "last": last,
        "ranges": list(RANGES),
        "averages": list(dict.fromkeys(each.average for each in report.estimates)),
        "estimators": list(dict.fromkeys(each.estimator for each in report.estimates if each.average == average)),
        "lifts": make_chart(candidates, report.production, ChartScale.of(candidates, lift_of), lift_of),
        "meanings": meanings(shown, report.confidence),
        "outside": outside(shown),
        "production": next((row for row in rows if row.production), None),
        "candidates": list(zip((row for row in rows if not row.production), pictures, strict=True)),
        "timelines": timelines,
        "lift_timelines": lifts,
        "lift_candidates": list(zip(lift_rows, lifts.pictures, strict=True)) if lifts else [],
        "adapting": _adapting(report, estimator),
    }


def _adapting(report: Report, estimator: str) -> dict[str, dict[str, Estimate]]:
    """For each average that forgets, the estimates of all policies: by `estimator`, else by its last one."""
    found: dict[str, dict[str, Estimate]] = {}
    for each in report.estimates:
        column = found.setdefault(each.average, {})
        if each.estimator == estimator or column.get(each.policy, each).estimator != estimator:
            column[each.policy] = each
    return {name: column for name, column in found.items() if any(memory(each) != UNKNOWN for each in column.values())}


def _sections(report: Report) -> list[dict[str, Any]]:
    """All estimates by average, on one axis each.

    `memory` is empty where the rows differ in it. `marks`: for each policy the estimators with their verdicts.
    """
    sections = []
    for average, estimates in grouped(report.estimates, "average").items():
        scale = ChartScale.of(estimates)
        memories = {memory(each) for each in estimates}
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
                name: text for name, text in DIAGNOSTICS.items() if any(text(each) != UNKNOWN for each in estimates)
            },
            "meanings": [*filter(None, (*meanings(estimates, report.confidence), outside(estimates)))],
        }
        sections.append(section)
    return sections


def _deciding(report: Report, found: Sequence[CandidateAnswer]) -> dict[str, Estimate]:
    """By policy, the estimate that decides; of production the one by which the first candidate is decided."""
    decided = {each.policy: each for each in reversed(report.estimates)}
    decided |= {each.policy: each.estimate for each in found if each.estimate}
    pairs = [(each.estimate.estimator, each.estimate.average) for each in found if each.estimate]
    same = [each for each in report.estimates if each.policy == report.production]
    return decided | {each.policy: each for each in same if pairs and (each.estimator, each.average) == pairs[0]}


def _ahead(found: Iterable[CandidateAnswer]) -> dict[str, str]:
    """Of the candidates that are better on average, in what way."""
    better = [each for each in found if each.estimate and (each.estimate.lift or 0.0) > 0]
    return {each.policy: "promotable" if each.verdict == "promotable" else "better on average" for each in better}


def _rewards(report: Report, deciding: Mapping[str, Estimate]) -> list[Estimate]:
    """Of several rewards, the estimates of each candidate by the estimator that decides."""
    pairs = {(each.policy, each.estimator, each.average) for each in deciding.values()}
    rows = [each for each in report.estimates if (each.policy, each.estimator, each.average) in pairs]
    order = [each.policy for each in report.policies if not each.production]
    shown = [each for each in rows if each.policy in order]
    return sorted(shown, key=lambda each: order.index(each.policy)) if len(report.rewards) > 1 else []


def _guardrails(report: Report) -> dict[tuple[str, str], list[tuple[str, GuardrailCheck]]]:
    """By candidate and reward, whether it keeps a guardrail, by each rule."""
    found: dict[tuple[str, str], list[tuple[str, GuardrailCheck]]] = {}
    for decision in report.promotion:
        for each in decision.guardrails:
            found.setdefault((decision.policy, each.reward), []).append((decision.rule, each))
    return found


def _marked(sections: Iterable[dict[str, Any]]) -> list[str]:
    """The estimators of the marks; by average, where the averages differ."""
    averages: dict[str, list[str]] = {}
    for section in sections:
        averages.setdefault(", ".join(section["charts"]), []).append(section["average"])
    if len(averages) == 1:
        return list(averages)
    return [f"{estimators} on {', '.join(names)}" for estimators, names in averages.items()]


def meanings(estimates: Iterable[Estimate], confidence: float) -> list[str]:
    """The meaning of the intervals of these estimates: one text for each kind."""
    kinds: dict[tuple[str, str, bool], dict[str, None]] = {}
    for each in estimates:
        kinds.setdefault((each.kind, each.covers, each.anytime), {})[each.estimator] = None
    texts = []
    for (kind, covers, anytime), estimators in kinds.items():
        whose = f"{', '.join(estimators)}: " if len(kinds) > 1 else ""
        head = f"{whose}{100 * confidence:g} % intervals ({kind.replace('_', ' ')}) {ABOUT.get(covers, '')}".rstrip()
        texts.append(" ".join(filter(None, (f"{head}.", KINDS[kind].description, WATCHED[anytime]))))
    return texts


def outside(estimates: Iterable[Estimate]) -> str:
    """A note for values and lifts outside their intervals; empty if there are none."""
    for value, ends in (shown for each in estimates for shown in (value_of(each), lift_of(each))):
        if ends is not None and is_known(value):
            rounding = 1e-9 * max(map(abs, (value, *ends)))
            if not ends[0] - rounding <= value <= ends[1] + rounding:
                return OUTSIDE
    return ""


def news(now: DaemonStatus) -> str:
    """The announcement of a change for screen readers."""
    decisions = now.report.promotion if now.report else ()
    names = list(dict.fromkeys(each.policy for each in decisions if each.promotable))
    ready = "Ready" if now.ready else "Not ready"
    ready += f": {now.detail}." if now.detail else "."
    promotable = f" Promotable: {', '.join(names)}." if names else " No candidate is promotable."
    return ready + (promotable if decisions else "")


def is_suspect(each: Estimate) -> bool:
    """Whether the mean weight differs from 1 by more than chance: its standard error is about 1 / sqrt(sample)."""
    mean, size = each.importance_weight_mean, each.effective_sample_size
    return bool(mean is not None and size and abs(mean - 1) > max(TOLERANCE, SIGMAS / math.sqrt(size)))


def interval(lower: float | None, upper: float | None) -> str:
    """Both bounds of an interval."""
    return f"{significant(lower)} to {significant(upper)}" if between(lower, upper) else UNKNOWN


def _detail(key: str, digits: int) -> Callable[[Estimate], str]:
    return lambda each: significant(each.details.get(key), digits)


def words(check: TrustCheck) -> str:
    """The name of a check, which fits whether it passes or fails."""
    return {"stale": "freshness"}.get(check.check, check.check.replace("_", " "))


def lifts_of_slots(each: Estimate) -> str:
    """The parts of the lift that come from the slots of slates, from the first."""
    return ", ".join(significant(lift, 2) for lift in each.details.get("slot_lifts", ())) or UNKNOWN


DIAGNOSTICS: dict[str, Callable[[Estimate], str]] = {
    "Lift": lambda each: significant(each.lift),
    "Lift interval": lambda each: interval(each.lift_lower, each.lift_upper),
    "Relative lift": lambda each: percentage(each.lift_ratio, each.lift_ratio_lower, each.lift_ratio_upper) or UNKNOWN,
    "Lift by slot": lifts_of_slots,
    "Effective sample": lambda each: decimal(each.effective_sample_size, 0),
    "Effective rewarded events": lambda each: decimal(each.details.get("reward_effective_sample_size"), 0),
    "Design effect": _detail("design_effect", 3),
    "Mean weight": lambda each: significant(each.importance_weight_mean, 4),
    "Largest weight": lambda each: significant(each.importance_weight_max),
    "Share of largest term": _detail("largest_term_share", 2),
    "Looks back": memory,
    "alpha": _detail("alpha", 6),
    "Drift per event": _detail("lipschitz_per_event", 2),
    "Sampling error": _detail("se", 2),
    "Disagreement": _detail("spread", 2),
    "Drift since": _detail("drift", 2),
    "Cap": _detail("cap", 3),
    "Bias bound": _detail("bias_bound", 2),
    "Interval": lambda each: f"{each.kind}, covers {each.covers}{', anytime' if each.anytime else ''}",
}
