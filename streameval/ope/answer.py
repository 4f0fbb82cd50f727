"""Answer in sentences whether to ship a candidate, and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, get_args

from msgspec import structs

from streameval.common.text import (
    UNKNOWN,
    counted,
    decimal,
    decimals_for,
    duration_text,
    format_duration,
    rounded_up,
    short_time,
    significant,
    utc_time,
)
from streameval.ope.remedies import causes_first, remedy_of
from streameval.ope.report import (
    DAY,
    EVIDENCE_CHECK,
    WEEK,
    Basis,
    Calibration,
    Decision,
    Estimate,
    GuardrailCheck,
    PolicyCounts,
    QuantileEstimate,
    Report,
    State,
    Transition,
    TrustCheck,
    grouped,
)

__all__ = [
    "CandidateAnswer",
    "answer_text",
    "answers",
    "best_first",
    "by_policy",
    "calibrated",
    "chosen_estimates",
    "headline",
    "limit_lines",
    "percentage",
    "quantile_rows",
    "recommended",
    "relative_lift",
    "seen_lifts",
    "summary",
]

POLICY_PARTS = (
    *("policies", "estimates", "promotion", "contenders", "trust"),
    *("transitions", "calibration", "segments", "learners", "quantiles", "per_unit"),
)
"""Parts of a Report with one policy per entry."""
MAX_NAMES = 5
"""Names in a list of candidates."""
SMALLEST_SHARE = 0.0005
"""Smallest share of missing events that an answer mentions."""
MAX_DECIMALS = 3
"""Decimals of a percentage, however narrow its interval is."""

STATES: tuple[State, ...] = get_args(State)
"""From the first answer to the last."""


class CandidateAnswer(NamedTuple):
    """Hold what to do about a candidate.

    Args:
        policy: name of the candidate
        state: `promotable` or `worse` than production, else `undecided`. If the log fails a trust check, `untrusted`.
        sentence: what to do and why, without a full stop
        remedy: what to do about failed trust checks, or nothing
        details: values, bounds and reasons of the rules, one line each
        estimate: row of the Report that decides, if any
        bound: lower bound of the lift that decides, which ranks candidates
        faded: the candidate is or was promotable, and its interval does not exclude 0 any more
        beaten: whether the best candidate beats it, None if it is not compared
    """

    policy: str
    state: State
    sentence: str
    remedy: str = ""
    details: tuple[str, ...] = ()
    estimate: Estimate | None = None
    bound: float = -math.inf
    faded: bool = False
    beaten: bool | None = None


def answers(report: Report) -> list[CandidateAnswer]:
    """Answer for each candidate, promotable ones first, and then by the lower bound of the lift."""
    reports = by_policy(report.of_goal()).items()
    unsorted = [_answer(part, policy) for policy, part in reports if policy != report.production]
    return sorted(unsorted, key=lambda answer: (STATES.index(answer.state), -answer.bound))


def headline(candidates: Sequence[CandidateAnswer]) -> str:
    """Return the line above the sentences: several candidates to ship, and who is beaten, otherwise nothing.

    Candidates that are worse than production are not named, because their sentences say more.
    """
    promotable = sum(answer.state == "promotable" and not answer.faded for answer in candidates)
    first = f"{promotable} candidates beat production; best first" if promotable > 1 else ""
    within_reach = [answer for answer in candidates if answer.state != "worse"]
    beaten, best = ([answer.policy for answer in within_reach if answer.beaten is lost] for lost in (True, False))
    if not beaten:
        return first
    if len(best) == 1:
        second = f"{best[0]} beats {_names(beaten)}"
    else:
        second = f"{_names(best)} are not beaten by another candidate; {_names(beaten)} {'are' if beaten[1:] else 'is'}"
    return ". ".join(filter(None, (first, second)))


def _names(policies: Sequence[str]) -> str:
    """Name some policies.

    >>> _names(["a"]), _names(["a", "b"]), _names(["a", "b", "c", "d", "e", "f", "g"])
    ('a', 'a and b', 'a, b, c, d and 3 others')
    """
    *first, last = policies
    if len(first) >= MAX_NAMES:
        first, last = first[: MAX_NAMES - 1], f"{len(policies) - MAX_NAMES + 1} others"
    return f"{', '.join(first)} and {last}" if first else last


def best_first(report: Report, candidates: Sequence[CandidateAnswer]) -> Report:
    """Sort all parts of a Report by policy: production first, and then candidates in the order of their answers."""
    ranks = {answer.policy: rank for rank, answer in enumerate(candidates)}
    parts = {
        name: tuple(sorted(getattr(report, name), key=lambda row: ranks.get(row.policy, -1))) for name in POLICY_PARTS
    }
    return structs.replace(report, **parts)


def of_policies(report: Report, policies: Collection[str]) -> Report:
    """Leave out the rows of all other policies, except for production."""
    names = {report.production, *policies}
    parts = {name: tuple(row for row in getattr(report, name) if row.policy in names) for name in POLICY_PARTS}
    return structs.replace(report, **parts)


def by_policy(report: Report) -> dict[str, Report]:
    """Split a Report into one for each policy, with the rows of this policy after production's."""
    rows = {name: grouped(getattr(report, name), "policy") for name in POLICY_PARTS}

    def report_of(policy: str) -> Report:
        names = dict.fromkeys((report.production, policy))
        parts = {part: tuple(row for name in names for row in groups.get(name, ())) for part, groups in rows.items()}
        return structs.replace(report, **parts)

    return {counts.policy: report_of(counts.policy) for counts in report.policies}


def recommended(report: Report, policy: str) -> Estimate | None:
    """Return the row that decides about a candidate. Without a decision, return its last row with enough evidence."""
    report, decision = report.of_goal(), _decision(report, policy)
    rows = [row for row in report.estimates if row.policy == policy and row.lift is not None]
    if decision and decision.estimator:
        pair = decision.estimator, decision.average
        return next((row for row in rows if (row.estimator, row.average) == pair), None)
    thin = report.thin()
    sound = [row for row in rows if (row.estimator, row.average) not in thin]
    return next(reversed(sound or rows), None)


def summary(report: Report) -> str:
    """Return the number of events, the time of the newest one, rejections, and what no number includes."""
    events = report.events
    until = "" if events.last_timestamp is None else f" until {utc_time(events.last_timestamp)}"
    line = f"{counted(events.accepted, 'event')}{until}, {sum(events.rejected.values()):,} rejected"
    return "\n".join(filter(None, (line, report.caution, report.caution_about_learners)))


def answer_text(report: Report) -> str:
    """Return a line for each candidate, the best first, with the remedies of failed trust checks, and a summary."""
    found = answers(report)
    lines = [headline(found), *(line for answer in found for line in (answer.sentence, answer.remedy)), summary(report)]
    return "\n".join(filter(None, lines))


def chosen_estimates(report: Report, everything: bool) -> list[Estimate]:
    """Return the rows that decide about candidates, after production's rows by the same estimators, or all rows."""
    reports = by_policy(report).items()
    rows = [recommended(own, policy) for policy, own in reports if policy != report.production]
    chosen = {(row.policy, row.estimator, row.average) for row in rows if row}
    if everything or not chosen:
        return list(report.estimates)
    pairs = {(estimator, average) for _, estimator, average in chosen}
    production = [row for row in report.estimates if row.policy == report.production]
    return [
        *(row for row in production if (row.estimator, row.average) in pairs),
        *(row for row in report.estimates if (row.policy, row.estimator, row.average) in chosen),
    ]


def calibrated(report: Report) -> list[Calibration]:
    """Return one row for each policy that chose events itself, on the average that decides if there is one."""
    deciding = {policy: recommended(part, policy) for policy, part in by_policy(report).items()}
    averages = [estimate.average for estimate in deciding.values() if estimate]
    rows: dict[str, Calibration] = {}
    for row in report.calibration:
        estimate = deciding.get(row.policy)
        average = estimate.average if estimate else next(iter(averages), None)
        if row.average == average or row.policy not in rows:
            rows[row.policy] = row
    return list(rows.values())


def limit_lines(report: Report) -> list[str]:
    """Say for each reward with a learned limit at which number it is clipped now."""
    return [
        f"{row.reward} is not clipped: its {row.quantile:g} quantile is the smallest reward, or not known yet"
        if row.limit is None
        else f"{row.reward} is clipped at {significant(row.limit)}, its {row.quantile:g} quantile until now"
        for row in report.limits
    ]


def quantile_rows(report: Report) -> list[QuantileEstimate]:
    """Return quantiles of rewards so that policies stand below each other."""
    by_reward = grouped(report.quantiles, "reward").values()
    return [row for rows in by_reward for row in sorted(rows, key=lambda row: row.quantile)]


def seen_lifts(report: Report) -> list[tuple[str, str, str, TrustCheck | None]]:
    """Compare the estimated lift of each candidate that chose events with the lift seen on these events.

    Returns:
        For each candidate its name, the estimated lift, the seen lift with its error to two digits, and the trust
        check that compares them, if there is one.
    """
    checks = {check.policy: check for check in report.trust if check.check == "calibration"}
    lifts = []
    for row in calibrated(report):
        if row.lift is None:
            continue
        ends = row.lift_lower, row.lift_upper
        half = None if ends[0] is None or ends[1] is None else (ends[1] - ends[0]) / 2
        decimals = max(decimals_for([half]) - 2, 0) if half else decimals_for([row.lift])
        estimated, seen = (decimal(lift, decimals, signed=True) for lift in (row.lift_estimated, row.lift))
        lifts.append((row.policy, estimated, f"{seen} ± {decimal(half, decimals)}", checks.get(row.policy)))
    return lifts


def percentage(value: float | None, lower: float | None, upper: float | None) -> tuple[str, str]:
    """Format a ratio in percent, and its interval. Unknown numbers are empty texts.

    >>> percentage(0.1487, 0.1196, 0.1804), percentage(-0.031, -0.0392, -0.0203), percentage(0.5, None, None)
    (('+15 %', '+12 to +18'), ('-3.1 %', '-3.9 to -2.0'), ('+50 %', ''))
    """
    if value is None:
        return "", ""
    width = 100 * (upper - lower) if lower is not None and upper is not None else 0.0
    decimals = min(max(0, math.ceil(math.log10(2 / width))), MAX_DECIMALS) if width > 0 else 0
    size, *ends = (
        "" if number is None else decimal(round(100 * number, decimals) + 0.0, decimals, signed=True)
        for number in (value, lower, upper)
    )
    return f"{size} %", " to ".join(ends) if all(ends) else ""


def relative_lift(estimate: Estimate) -> str:
    """Return the lift in percent of production's value, with its interval."""
    size, ends = percentage(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper)
    return f"{size} ({ends})" if ends else size or UNKNOWN


class _Lift(NamedTuple):
    """Hold the lift that decides, with its bounds per event, and its texts.

    Args:
        value: the lift, None if it is unknown
        lower: its lower bound, None if it is unknown
        upper: its upper bound, None if it is unknown
        size: the lift with its sign and unit
        interval: the interval or bound that decides
        period: the period of the lift, or its events
    """

    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    size: str = ""
    interval: str = ""
    period: str = ""

    @property
    def reaches_0(self) -> bool:
        """Tell whether the lower bound is known and not above 0."""
        return self.lower is not None and self.lower <= 0

    @property
    def loss(self) -> str:
        """Say how much less a candidate earns."""
        number, *unit = self.size.removeprefix("-").partition(" per event")
        return f"it earns {f'{number} ' if number else ''}less{''.join(unit)}{self.period}{self._bracket}"

    def __str__(self) -> str:
        return f"{self.size}{self.period}{self._bracket}"

    @property
    def _bracket(self) -> str:
        return f" ({self.interval})" if self.interval else ""


def _lift(report: Report, decision: Decision | None, estimate: Estimate | None) -> _Lift:
    """Return the lift that decides: the lift that the rule judges if it is no estimate, else the estimate.

    Rules compare a stricter bound of the same estimate, which makes no interval of this confidence.
    """
    if decision is not None and (decision.is_of_periods or (decision.estimator is None and decision.lift)):
        return _judged_lift(decision)
    if estimate is None or estimate.lift is None:
        return _Lift()
    bounds = estimate.lift, estimate.lift_lower, estimate.lift_upper
    if estimate.lift_ratio is not None:
        size, ends = percentage(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper)
    else:
        size, *numbers = _numbers(bounds)
        size, ends = f"{size} per event", " to ".join(numbers) if None not in bounds else ""
    interval = f"{100 * report.confidence:g} %: {ends}" if ends else ""
    return _Lift(*bounds, size, interval, _shared_events(estimate))


def _shared_events(estimate: Estimate) -> str:
    """Say that some events count for production alone, if there are such."""
    missing = estimate.details.get("missing_share") or 0.0
    return f" on the {100 * (1 - missing):.1f} % of events that both have" if missing >= SMALLEST_SHARE else ""


def _judged_lift(decision: Decision) -> _Lift:
    """Return the lift of a whole period, or of all data, with the one bound that the rule compares."""
    lift, lower = decision.lift, decision.lower
    if lift is None:
        return _Lift()
    upper = 2 * lift - lower if lower is not None and decision.is_of_periods else None
    size, least, most = _numbers((lift, lower, upper))
    bound = f"at least {most.removeprefix('-')} less" if decision.worse else f"at least {least}"
    return _Lift(lift, lower, upper, f"{size} per event", "" if lower is None else bound, _period(decision))


def _period(decision: Decision) -> str:
    if not decision.is_of_periods:
        return ""
    seconds = decision.profiles[-1].period if decision.profiles else None
    if seconds is None:
        return " over whole periods"
    return f" over a whole {({DAY: 'day', WEEK: 'week'}).get(seconds, f'period of {format_duration(seconds)}')}"


def _numbers(values: Sequence[float | None]) -> list[str]:
    decimals = max(decimals_for(values) - 1, 0)
    return [decimal(value, decimals, signed=True) for value in values]


def _answer(report: Report, policy: str) -> CandidateAnswer:
    decision, estimate = _decision(report, policy), recommended(report, policy)
    lift, details = _lift(report, decision, estimate), tuple(_details(report, policy, estimate))
    about = [check for check in report.trust if not check.ok and check.policy in (policy, report.production)]
    failed = causes_first(about)
    doubts = [check for check in failed if check.check != EVIDENCE_CHECK]
    counts = next(counts for counts in report.policies if counts.policy == policy)
    end = _end(report, decision)
    state: State = "undecided"
    if not counts.events and report.events.accepted:
        sentence, failed = no_events(counts, report.events.accepted), []
    elif report.events.rejected and not report.events.accepted:
        sentence = f"No event counts for {policy}: all events were rejected ({sum(report.events.rejected.values()):,})"
    elif doubts:
        state, failed = "untrusted", doubts
        sentence = f"Do not decide yet about {policy}: {_reasons(doubts, policy)}"
    elif decision and decision.promotable:
        state, sentence = "promotable", _ship(report, decision, lift) + _but_worse(report, policy)
    elif decision.worse if decision and decision.worse is not None else lift.upper is not None and lift.upper < 0:
        state = "worse"
        sentence = f"Do not ship {policy}: {_loss(decision, lift)}"
    elif failed:
        sentence = f"Keep production over {policy}: too little evidence, {_reasons(failed, policy)}"
    else:
        sentence = f"Keep production over {policy}: {_why_not(report, decision, lift, end)}{_but_worse(report, policy)}"
    remedy = "; ".join(dict.fromkeys(filter(None, (remedy_of(report, check.check, policy) for check in failed))))
    faded = lift.reaches_0 and (state == "promotable" or (state == "undecided" and end is not None))
    beaten = next((row.beaten for row in report.contenders if row.policy == policy), None)
    return CandidateAnswer(policy, state, sentence, remedy, details, estimate, _rank(lift, estimate), faded, beaten)


def no_events(counts: PolicyCounts, accepted: int) -> str:
    """Say why no event counts for a policy.

    >>> from streameval.ope.report import Failure
    >>> no_events(PolicyCounts("geo", False, 0, 20_000, (Failure("raised", 20_000, "KeyError: 'country'"),)), 20_000)
    "No event counts for geo: its function raised KeyError 'country' (20,000 of 20,000)"
    """
    failure = max(counts.failures, key=lambda failure: failure.count, default=None)
    if failure is None:
        return f"No event counts for {counts.policy}: none has its probability ({accepted:,} of {accepted:,})"
    example = failure.example
    if failure.reason == "raised":
        example = f"its function raised {example.replace(': ', ' ', 1)}"
    return f"No event counts for {counts.policy}: {example} ({failure.count:,} of {accepted:,})"


def _ship(report: Report, decision: Decision, lift: _Lift) -> str:
    """Recommend a promotable candidate, but not while its interval does not exclude 0 any more."""
    if not lift.reaches_0:
        holds = f"; this {_holds(decision)}" if decision.propensity != "logged" and _holds(decision) else ""
        return f"Ship {decision.policy}: {lift}{holds}" if lift.size else f"Ship {decision.policy}{holds}"
    return f"Wait with {decision.policy}: {_since(report, decision)}, but {_position(lift)}, {lift}"


def _why_not(report: Report, decision: Decision | None, lift: _Lift, end: Transition | None) -> str:
    """Say why an undecided candidate is not promotable: what is missing, or what is wrong."""
    if decision is None:
        return f"no rule decides, {lift}" if lift.size else "there are too few events with rewards"
    lost = next((check for check in decision.guardrails if check.verdict == "not kept"), None)
    if lost is not None:
        return _loss_of_guardrail(lost)
    more = "" if decision.more is None else _more(report, decision.more)
    if end is not None and lift.reaches_0:
        moment = _moment(report, end.timestamp, end.event)
        return "; ".join(filter(None, (f"it was better until {moment}", f"{_position(lift)}, {lift}", more)))
    if more:
        return f"too early, {more}"
    if decision.lift is None or lift.lower is None or lift.lower == lift.upper:
        return decision.reason
    return f"not proven better, {lift}" if lift.reaches_0 else f"it looks better, {lift}, but its rule does not hold"


def _loss(decision: Decision | None, lift: _Lift) -> str:
    """Say what a candidate that is worse loses: of the goal, or if its lift is not below 0, of a guardrail."""
    lost = next((check for check in decision.guardrails if check.worse), None) if decision else None
    return lift.loss if lost is None or (lift.value or 0.0) < 0 else _loss_of_guardrail(lost)


def _loss_of_guardrail(check: GuardrailCheck) -> str:
    loss = significant(-(check.lift or 0.0), 2)
    return f"it loses {loss} {check.reward} per event, and may lose {significant(check.max_loss, 2)}"


def _position(lift: _Lift) -> str:
    return f"the interval {'is now below' if lift.upper is not None and lift.upper < 0 else 'now includes'} 0"


def _end(report: Report, decision: Decision | None) -> Transition | None:
    """Return the moment when a candidate stopped being promotable, None if it never was or still is."""
    if decision is None or decision.promotable:
        return None
    rule = decision.policy, decision.rule
    changes = (change for change in reversed(report.transitions) if change.worse is None)
    last = next((change for change in changes if (change.policy, change.rule) == rule), None)
    return None if last is None or last.promotable else last


def _moment(report: Report, timestamp: float | None, event: int | None) -> str:
    if timestamp is not None:
        return short_time(timestamp, report.events.last_timestamp)
    return "" if event is None else f"event {event:,}"


def _since(report: Report, decision: Decision) -> str:
    moment = _moment(report, decision.since_timestamp, decision.since_event)
    return f"promotable since {moment}" if moment else "promotable"


def _more(report: Report, more: float) -> str:
    """Say how many more events are needed, and how long they take if events have timestamps."""
    events, rate = report.events, None
    if events.first_timestamp is not None and events.last_timestamp is not None:
        span = events.last_timestamp - events.first_timestamp
        rate = events.accepted / span if span > 0 else None
    needed = rounded_up(max(more, 1.0))
    time = f" ({duration_text(more / rate)})" if rate else ""
    return f"about {needed} more event{'' if needed == '1' else 's'}{time}"


def _but_worse(report: Report, policy: str) -> str:
    """Name the segments in which a candidate earns less than production, the clearest first."""
    rows = [row for row in report.segments_by_lift() if row.policy == policy and row.is_worse]
    names = ", ".join(f"{row.segment} {row.segment_value}" for row in rows)
    return f"; it earns less in {names}" if names else ""


def _details(report: Report, policy: str, estimate: Estimate | None) -> Iterator[str]:
    """Yield the values behind the sentence, and the bounds and reasons of all rules."""
    if estimate is not None and estimate.value is not None:
        values = _compared_values(report, estimate)
        own, production = (decimal(value, decimals_for(values)) for value in values)
        pair = f"{estimate.estimator} on {estimate.average}"
        yield f"{own} per event against {production} of production{_shared_events(estimate)}, by {pair}"
    for decision in report.promotion:
        if decision.policy == policy:
            yield f"{', '.join(_words(report, decision))}: {decision.reason}"
            if decision.decides and decision.lift is not None and (found := ", ".join(_basis(decision.basis))):
                yield f"{decision.rule} rests on {found}"
            if decision.decides and (holds := _holds(decision)):
                yield f"{decision.rule} {holds}"


def _holds(decision: Decision) -> str:
    """Say how wrong propensities may be, rounded down, or nothing if that is unknown or next to nothing.

    >>> _holds(Decision("new", "paired", True, "", basis=Basis(propensity_factor=1.2999)))
    'holds while propensities are right within 1.29 times'
    """
    factor = math.floor(100 * (decision.basis.propensity_factor or 0.0) + 1e-6) / 100
    what = "probabilities of looks" if (decision.estimator or "").startswith("click_") else "propensities"
    return f"holds while {what} are right within {factor:.2f} times" if factor > 1 else ""


def _basis(basis: Basis) -> Iterator[str]:
    """Yield what a decision rests on."""
    if basis.effective_events is not None:
        yield counted(round(basis.effective_events), "effective event")
    if basis.standard_errors is not None:
        yield f"a lift of {basis.standard_errors:.1f} standard errors"
    if basis.largest_share is not None:
        yield f"{100 * basis.largest_share:.2g} % of the weight by one event"
    for share, what in ((basis.missing_share, "events that it lacks"), (basis.clipped_share, "clipped rewards")):
        if share is not None and share >= SMALLEST_SHARE:
            yield f"{100 * share:.2g} % {what}"
    if basis.failed:
        yield f"failed trust checks ({', '.join(basis.failed)})"


def _words(report: Report, decision: Decision) -> Iterator[str]:
    """Yield a rule, and what it says or said about a candidate."""
    yield decision.rule
    if decision.promotable:
        yield _since(report, decision)
    elif decision.worse or not decision.decides:
        yield "worse" if decision.worse else "does not decide"
    elif decision.promotable_events:
        yield f"was promotable for {decision.promotable_events:,} events"


def _compared_values(report: Report, estimate: Estimate) -> tuple[float | None, float | None]:
    """Return the values of a candidate and of production with the events and weights of the lift.

    A Report from elsewhere may have only the values on each policy's own events.
    """
    own, production = (estimate.details.get(name) for name in ("lift_value", "lift_production_value"))
    if production is not None:
        return own, production
    rows = (row for row in report.estimates if (row.estimator, row.average) == (estimate.estimator, estimate.average))
    return estimate.value, next((row.value for row in rows if row.policy == report.production), None)


def _decision(report: Report, policy: str) -> Decision | None:
    """Return the decision by the first rule that promotes the candidate, else by the first rule that decides."""
    decisions = [decision for decision in report.promotion if decision.policy == policy and decision.decides]
    return next((decision for decision in decisions if decision.promotable), decisions[0] if decisions else None)


def _reasons(checks: Sequence[TrustCheck], policy: str) -> str:
    """Join the reasons of checks, first about the policy, then about production alone."""
    own = [check.reason for check in checks if check.policy == policy]
    others = [check for check in checks if check.reason not in own]
    return "; ".join(dict.fromkeys([*own, *(f"production: {check.reason}" for check in others)]))


def _rank(lift: _Lift, estimate: Estimate | None) -> float:
    """Return the lower bound of the lift that decides, as a share of production's value if that is known."""
    ratio = estimate.lift_ratio_lower if estimate and estimate.lift_lower == lift.lower else None
    return next((bound for bound in (ratio, lift.lower, lift.value) if bound is not None), -math.inf)
