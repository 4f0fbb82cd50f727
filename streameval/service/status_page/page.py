"""The status page at `/`: a Report as charts and tables, readable without scripts."""

from __future__ import annotations

import gzip
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streameval.common.text import UNKNOWN, counted, decimal, measured_time, significant, utc_time
from streameval.ope.report import Estimate, PolicyCounts, Report
from streameval.service.status import DaemonStatus
from streameval.service.status_page.charts import Chart, ChartScale, between, make_chart, memory
from streameval.service.status_page.overview import Choice, make_overview, meanings, news, outside, words

STYLE = files("streameval.service.status_page").joinpath("status.css").read_text(encoding="utf-8")
SCRIPT = files("streameval.service.status_page").joinpath("status.js").read_text(encoding="utf-8")
NOTHING: Mapping[str, str] = MappingProxyType({})
Thing = TypeVar("Thing")
MANY = 12  # with more candidates the page has a table of contents
TOLERANCE = 0.02  # a mean weight this close to 1 is never flagged
SIGMAS = 4.0  # nor one that chance could explain


def source_hash(text: str) -> str:
    """The name by which a Content-Security-Policy allows an inline block of this text."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


STYLE_HASH, SCRIPT_HASH = source_hash(STYLE), source_hash(SCRIPT)


class Page(NamedTuple):
    """The page as bytes, plain and compressed to a tenth: a browser asks every two seconds."""

    plain: bytes
    packed: bytes


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
        environment.filters.update(
            count=count, counted=counted, number=significant, duration=measured_time, moment=utc_time, words=words
        )
        environment.globals.update(many=MANY, style=Markup(STYLE), script=Markup(SCRIPT))  # our own files, not input
        self._template = environment.get_template("status.html")
        self._rendered: DaemonStatus | None = None
        self._pages: dict[tuple[str, str] | None, Page] = {}

    def page(self, now: DaemonStatus, wanted: Mapping[str, str] = NOTHING) -> Page:
        """As `render`, once for all clients that ask for the same status and choice."""
        choice = Choice.of(now.report, wanted) if now.report else None
        key = None if choice is None else (choice.average, choice.estimator)
        if self._rendered is not now:
            self._rendered, self._pages = now, {}
        if key not in self._pages:
            plain = self.render(now, wanted).encode()
            self._pages[key] = Page(plain, gzip.compress(plain, compresslevel=1))
        return self._pages[key]

    def render(self, now: DaemonStatus, wanted: Mapping[str, str] = NOTHING) -> str:
        """The whole page as HTML; `wanted` may name the `estimator` and `average` of its top."""
        report = now.report
        sections = tuple(_sections(report)) if report else ()
        policies = tuple(_policies(report)) if report else ()
        return self._template.render(
            now=now,
            report=report,
            sections=sections,
            policies=policies,
            standings=tuple(_standings(policies, sections)),
            marked=tuple(_marked(sections)),
            overview=make_overview(now, report, wanted) if report else None,
            news=news(now),
            decided=now.accepted + sum(now.rejected.values()),
        )


class Column(NamedTuple):
    """One column of the table below the charts of an average."""

    name: str
    text: Callable[[Estimate], str]


@dataclass(frozen=True)
class Section:
    """All estimates over one average, on one axis. `memory` is empty where the rows differ in it.

    `diagnostics` are the columns of its table that are not empty.
    """

    average: str
    memory: str
    charts: tuple[Chart, ...]
    ticks: tuple[tuple[float, str], ...]
    diagnostics: tuple[Column, ...]
    meanings: tuple[str, ...]

    @property
    def estimators(self) -> tuple[str, ...]:
        """The names of its estimators, in order."""
        return tuple(chart.estimator for chart in self.charts)


@dataclass(frozen=True)
class PromotionStanding:
    """A candidate against production: per average, the verdict of each estimator.

    `suspect`: the mean weight is away from 1, so that the verdicts cannot be trusted.
    """

    policy: str
    verdicts: tuple[tuple[tuple[str, str], ...], ...]
    suspect: bool


@dataclass(frozen=True)
class PolicyTrust:
    """The weights of a policy, by its first estimate; `suspect`: the mean weight is away from 1."""

    counts: PolicyCounts
    missing_share: float | None
    first: Estimate | None
    suspect: bool


def _sections(report: Report) -> Iterator[Section]:
    for average, estimates in _grouped(report.estimates, "average").items():
        scale = ChartScale.of(estimates)
        memories = {memory(each) for each in estimates}
        yield Section(
            average,
            memories.pop() if len(memories) == 1 else "",
            tuple(
                make_chart(estimator, rows, report.production, scale)
                for estimator, rows in _grouped(estimates, "estimator").items()
            ),
            tuple(scale.tick_texts()) if scale else (),
            tuple(column for column in DIAGNOSTICS if any(column.text(each) != UNKNOWN for each in estimates)),
            tuple(filter(None, (*meanings(estimates, report.confidence), outside(estimates)))),
        )


def _grouped(things: Iterable[Thing], attribute: str) -> dict[Any, list[Thing]]:
    """The things by one of their attributes, in order of first appearance."""
    groups: dict[Any, list[Thing]] = {}
    for each in things:
        groups.setdefault(getattr(each, attribute), []).append(each)
    return groups


def _policies(report: Report) -> Iterator[PolicyTrust]:
    for each in report.policies:
        first = next((estimate for estimate in report.estimates if estimate.policy == each.policy), None)
        seen = each.events + each.missing
        yield PolicyTrust(each, each.missing / seen if seen else None, first, first is not None and is_suspect(first))


def _standings(policies: Iterable[PolicyTrust], sections: Iterable[Section]) -> Iterator[PromotionStanding]:
    for each in policies:
        if not each.counts.production:
            name = each.counts.policy
            verdicts = tuple(tuple(_verdicts(section, name)) for section in sections)
            yield PromotionStanding(name, verdicts, each.suspect)


def _verdicts(section: Section, policy: str) -> Iterator[tuple[str, str]]:
    for chart in section.charts:
        yield from ((chart.estimator, row.verdict) for row in chart.rows if row.estimate.policy == policy)


def _marked(sections: Iterable[Section]) -> Iterator[str]:
    """The estimators of the marks; by average, where the averages differ."""
    same = _grouped(sections, "estimators")
    for estimators, some in same.items():
        names = ", ".join(estimators)
        yield names if len(same) == 1 else f"{names} on {', '.join(section.average for section in some)}"


def is_suspect(each: Estimate) -> bool:
    """Whether the mean weight is away from 1 by more than chance: wrong propensities, or actions without support.

    The standard error of a mean weight is about one over the square root of the effective sample size.
    """
    mean, size = each.importance_weight_mean, each.effective_sample_size
    return bool(mean is not None and size and abs(mean - 1) > max(TOLERANCE, SIGMAS / math.sqrt(size)))


def count(value: float | None) -> str:
    """A number of things: `12,345`."""
    return decimal(value, 0)


def interval(lower: float | None, upper: float | None) -> str:
    """Both bounds of an interval."""
    return f"{significant(lower)} to {significant(upper)}" if between(lower, upper) else UNKNOWN


def _detail(key: str, digits: int) -> Callable[[Estimate], str]:
    return lambda each: significant(each.details.get(key), digits)


DIAGNOSTICS = (
    Column("Lift", lambda each: significant(each.lift)),
    Column("Lift interval", lambda each: interval(each.lift_lower, each.lift_upper)),
    Column("Effective sample", lambda each: count(each.effective_sample_size)),
    Column("Design effect", _detail("design_effect", 3)),
    Column("Mean weight", lambda each: significant(each.importance_weight_mean, 4)),
    Column("Largest weight", lambda each: significant(each.importance_weight_max)),
    Column("Share of largest term", _detail("largest_term_share", 2)),
    Column("Looks back", memory),
    Column("alpha", _detail("alpha", 6)),
    Column("Drift per event", _detail("lipschitz_per_event", 2)),
    Column("Sampling error", _detail("se", 2)),
    Column("Disagreement", _detail("spread", 2)),
    Column("Drift since", _detail("drift", 2)),
    Column("Bias bound", _detail("bias_bound", 2)),
    Column("Interval", lambda each: f"{each.kind}, covers {each.covers}{', anytime' if each.anytime else ''}"),
)
