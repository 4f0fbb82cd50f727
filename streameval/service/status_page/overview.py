"""The top of the status page: lifts, decisions and the last hours by one estimator on one average; checks; texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from streameval.common.text import UNKNOWN
from streameval.ope.intervals import KINDS
from streameval.ope.report import Decision, Estimate, Report, TrustCheck
from streameval.service.status import DaemonStatus
from streameval.service.status_page.charts import (
    Chart,
    ChartRow,
    ChartScale,
    ChartTimeline,
    Timelines,
    is_known,
    lift_of,
    make_chart,
    make_lift_chart,
    make_timelines,
    memory,
    value_of,
)

ABOUT = {
    "current": "for the present value",
    "average": "for the mean over the events of the average",
    "estimand": "for the limit of the estimator, which differs from the value",
}
WATCHED = {
    True: "They are valid under continuous monitoring.",
    False: "Each interval is valid for a single look; do not scan many of them.",
}

OUTSIDE = (
    "A value outside its interval is not an error: the interval is cut to the reward range, or uses, by empirical "
    "likelihood, that the true mean weight is 1, which the value itself does not."
)


def meanings(estimates: Iterable[Estimate], confidence: float) -> tuple[str, ...]:
    """The meaning of the intervals of these estimates: one text for each kind.

    >>> known = {"lower": 0.1, "upper": 0.3, "kind": "confidence_sequence", "anytime": True, "covers": "average"}
    >>> unknown = dict.fromkeys(("effective_sample_size", "importance_weight_mean", "importance_weight_max"))
    >>> (text,) = meanings([Estimate("a", "ips", "window", 0.2, **known, **unknown)], 0.95)
    >>> text.partition(".")[0]
    '95 % intervals (confidence sequence) for the mean over the events of the average'
    >>> text.endswith("They hold at all times at once. They are valid under continuous monitoring.")
    True
    """
    kinds: dict[tuple[str, str, bool], dict[str, None]] = {}
    for each in estimates:
        kinds.setdefault((each.kind, each.covers, each.anytime), {})[each.estimator] = None
    whose = len(kinds) > 1
    return tuple(
        (f"{', '.join(estimators)}: " if whose else "") + _meaning(*kind, confidence)
        for kind, estimators in kinds.items()
    )


def _meaning(kind: str, covers: str, anytime: bool, confidence: float) -> str:
    head = f"{100 * confidence:g} % intervals ({kind.replace('_', ' ')}) {ABOUT.get(covers, '')}".rstrip()
    return " ".join(filter(None, (f"{head}.", KINDS[kind].description, WATCHED[anytime])))


def outside(estimates: Iterable[Estimate]) -> str:
    """A note for values and lifts outside their intervals; empty if there are none.

    >>> ends = dict.fromkeys(("effective_sample_size", "importance_weight_mean", "importance_weight_max"))
    >>> found = Estimate("a", "ips", "window", 1.02, 0.9, 1.0, "normal", False, "average", **ends)
    >>> outside([found]) == OUTSIDE
    True
    """
    for value, ends in (shown for each in estimates for shown in (value_of(each), lift_of(each))):
        if ends is not None and is_known(value):
            rounding = 1e-9 * max(map(abs, (value, *ends)))
            if not ends[0] - rounding <= value <= ends[1] + rounding:
                return OUTSIDE
    return ""


class Link(NamedTuple):
    """A choice of what the top of the page shows."""

    text: str
    query: str
    current: bool


@dataclass(frozen=True)
class Choice:
    """The estimator and average that the top of the page shows, and links to the others."""

    estimator: str
    average: str
    averages: tuple[Link, ...]
    estimators: tuple[Link, ...]

    @classmethod
    def of(cls, report: Report, wanted: Mapping[str, str]) -> Choice | None:
        """The `wanted` average and estimator, if they exist; else the last ones, which are the best by default."""
        pairs = list(dict.fromkeys((each.average, each.estimator) for each in report.estimates))
        known = {(each.average, each.estimator) for each in report.estimates if is_known(each.value)}
        known -= {(average, estimator) for estimator, average in report.thin()}
        if not pairs:
            return None
        ranked = sorted(
            pairs,
            key=lambda pair: (pair[0] == wanted.get("average"), pair[1] == wanted.get("estimator"), pair in known),
        )
        average, estimator = ranked[-1]  # the sort is stable: of equals, the last
        averages = tuple(dict.fromkeys(name for name, _ in pairs))
        beside = tuple(name for shown, name in pairs if shown == average)
        return cls(
            estimator,
            average,
            tuple(_link(name, {"average": name, "estimator": estimator}, name == average) for name in averages),
            tuple(_link(name, {"average": average, "estimator": name}, name == estimator) for name in beside),
        )


class Adaptation(NamedTuple):
    """How many events each average that forgets looks back over, for one policy."""

    policy: str
    memories: tuple[str, ...]
    drift_detections: int | None


class Checks(NamedTuple):
    """The trust checks of one policy, and those that failed."""

    policy: str
    checks: tuple[TrustCheck, ...]
    failed: tuple[TrustCheck, ...]


@dataclass(frozen=True)
class Overview:
    """The top of the page. `values` are the rows of the candidates with their timelines, if there are any.

    `adapting` are the columns of the table `adaptation`.
    """

    choice: Choice
    lifts: Chart
    lift_ticks: tuple[tuple[float, str], ...]
    meanings: tuple[str, ...]
    outside: str
    production: ChartRow | None
    values: tuple[tuple[ChartRow, ChartTimeline | None], ...]
    timelines: Timelines | None
    decisions: tuple[Decision, ...]
    adapting: tuple[str, ...]
    adaptation: tuple[Adaptation, ...]
    trust: tuple[Checks, ...]

    @property
    def doubted(self) -> tuple[Checks, ...]:
        """The policies that fail a check."""
        return tuple(each for each in self.trust if each.failed)

    @property
    def checked(self) -> tuple[str, ...]:
        """The names of all checks."""
        return tuple(dict.fromkeys(words(check) for each in self.trust for check in each.checks))


def make_overview(now: DaemonStatus, report: Report, wanted: Mapping[str, str]) -> Overview | None:
    """The overview of `report`; None while it has no estimates."""
    choice = Choice.of(report, wanted)
    if choice is None:
        return None
    shown = [each for each in report.estimates if (each.estimator, each.average) == (choice.estimator, choice.average)]
    candidates = [each for each in shown if each.policy != report.production]
    base = next((each for each in shown if each.policy == report.production), None)
    lift_scale = ChartScale.of_lifts(candidates)
    rows = make_chart(choice.estimator, shown, report.production, ChartScale.of(shown)).rows
    timelines = make_timelines(now.history, now.at, candidates, base)
    pictures: Sequence[ChartTimeline | None] = timelines.pictures if timelines else [None] * len(candidates)
    adapting = _adapting(report, choice.estimator)
    return Overview(
        choice=choice,
        lifts=make_lift_chart(choice.estimator, candidates, lift_scale),
        lift_ticks=tuple(lift_scale.tick_texts()) if lift_scale else (),
        meanings=meanings(shown, report.confidence),
        outside=outside(shown),
        production=next((row for row in rows if row.production), None),
        values=tuple(zip((row for row in rows if not row.production), pictures, strict=True)),
        timelines=timelines,
        decisions=tuple(sorted(report.promotion, key=lambda each: not each.promotable)),
        adapting=tuple(adapting),
        adaptation=tuple(_adaptation(report, adapting)),
        trust=tuple(_checks(report)),
    )


def news(now: DaemonStatus) -> str:
    """The announcement of a change for screen readers.

    >>> from streameval.ingest.base import SourceStatus
    >>> news(DaemonStatus(SourceStatus(reached=False), at=0.0, detail="no broker answers"))
    'Not ready: no broker answers.'
    """
    decisions = now.report.promotion if now.report else ()
    names = list(dict.fromkeys(each.policy for each in decisions if each.promotable))
    ready = "Ready." if now.ready else f"Not ready: {now.detail}."
    promotable = f" Promotable: {', '.join(names)}." if names else " No candidate is promotable."
    return ready + (promotable if decisions else "")


def _link(text: str, query: Mapping[str, str], current: bool) -> Link:
    return Link(text, "?" + urlencode(query), current)


def _adapting(report: Report, estimator: str) -> dict[str, dict[str, Estimate]]:
    """For each average that forgets, the estimates of all policies: by `estimator`, else by its last one."""
    found: dict[str, dict[str, Estimate]] = {}
    for each in report.estimates:
        column = found.setdefault(each.average, {})
        if each.estimator == estimator or column.get(each.policy, each).estimator != estimator:
            column[each.policy] = each
    return {
        average: column for average, column in found.items() if any(memory(each) != UNKNOWN for each in column.values())
    }


def _adaptation(report: Report, adapting: Mapping[str, Mapping[str, Estimate]]) -> Iterator[Adaptation]:
    for each in report.policies:
        cells = (column.get(each.policy) for column in adapting.values())
        yield Adaptation(each.policy, tuple(memory(cell) if cell else UNKNOWN for cell in cells), each.drift_detections)


def _checks(report: Report) -> Iterator[Checks]:
    for each in report.policies:
        checks = tuple(check for check in report.trust if check.policy == each.policy)
        if checks:
            yield Checks(each.policy, checks, tuple(check for check in checks if not check.ok))


def words(check: TrustCheck) -> str:
    """The name of a check, which fits whether it passes or fails."""
    return {"stale": "freshness"}.get(check.check, check.check.replace("_", " "))
