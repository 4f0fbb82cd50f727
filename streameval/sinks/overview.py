"""What the top of the status page says: one estimator on one average, which candidate gains, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from streameval.published import Published
from streameval.report import Decision, Estimate, Report, TrustCheck
from streameval.sinks.charts import UNKNOWN, Chart, Row, Scale, is_known, make_chart, make_lift_chart, memory
from streameval.sinks.meanings import meanings, outside
from streameval.sinks.timelines import Timeline, Timelines, make_timelines


class Link(NamedTuple):
    """Another choice of what the top of the page shows."""

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
        """What is `wanted`, as far as there is such a thing; else the last average, which is the best where nobody
        configured others, and its last estimator."""
        pairs = list(dict.fromkeys((each.average, each.estimator) for each in report.estimates))
        known = {(each.average, each.estimator) for each in report.estimates if is_known(each.value)}
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
    """How far each average that forgets looks back at this moment, for one policy."""

    policy: str
    memories: tuple[str, ...]
    drift_detections: int | None


class Checks(NamedTuple):
    """Whether the numbers of one policy can be believed: all checks, and those that say no."""

    policy: str
    checks: tuple[TrustCheck, ...]
    failed: tuple[TrustCheck, ...]


@dataclass(frozen=True)
class Overview:
    """The top of the page. `values` are the candidates' rows and the pictures of their last hours, where there are any.

    `adapting`: the columns of the table `adaptation`. `outside`: what to say of a value outside its interval.
    """

    choice: Choice
    lifts: Chart
    lift_ticks: tuple[tuple[float, str], ...]
    meanings: tuple[str, ...]
    outside: str
    production: Row | None
    values: tuple[tuple[Row, Timeline | None], ...]
    timelines: Timelines | None
    decisions: tuple[Decision, ...]
    adapting: tuple[str, ...]
    adaptation: tuple[Adaptation, ...]
    trust: tuple[Checks, ...]

    @property
    def doubted(self) -> tuple[Checks, ...]:
        """The policies that do not pass all checks."""
        return tuple(each for each in self.trust if each.failed)

    @property
    def checked(self) -> tuple[str, ...]:
        """What is checked, in words."""
        return tuple(dict.fromkeys(words(check) for each in self.trust for check in each.checks))


def make_overview(now: Published, report: Report, wanted: Mapping[str, str]) -> Overview | None:
    """What there is to say of `report`; None while it has no estimates."""
    choice = Choice.of(report, wanted)
    if choice is None:
        return None
    shown = [each for each in report.estimates if (each.estimator, each.average) == (choice.estimator, choice.average)]
    candidates = [each for each in shown if each.policy != report.production]
    base = next((each for each in shown if each.policy == report.production), None)
    lift_scale = Scale.of_lifts(candidates)
    rows = make_chart(choice.estimator, shown, report.production, Scale.of(shown)).rows
    timelines = make_timelines(now.history, now.at, candidates, base)
    pictures: Sequence[Timeline | None] = timelines.pictures if timelines else [None] * len(candidates)
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


def news(now: Published) -> str:
    """What a person who hears the page is told when it changes.

    >>> from streameval.sources import SourceStatus
    >>> news(Published(SourceStatus(reached=False), at=0.0, detail="no broker answers"))
    'Not ready: no broker answers.'
    """
    decisions = now.report.promotion if now.report else ()
    names = list(dict.fromkeys(each.policy for each in decisions if each.promotable))
    told = "Ready." if now.ready else f"Not ready: {now.detail}."
    return told + (
        f" Promotable: {', '.join(names)}." if names else " No candidate is promotable." if decisions else ""
    )


def _link(text: str, query: Mapping[str, str], current: bool) -> Link:
    return Link(text, "?" + urlencode(query), current)


def _adapting(report: Report, estimator: str) -> dict[str, dict[str, Estimate]]:
    """By average that forgets, the estimates of all policies: by the estimator that is shown, else by its last one."""
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
    """What a check looks at, so that it reads well whether it is passed or not."""
    return {"stale": "freshness"}.get(check.check, check.check.replace("_", " "))
