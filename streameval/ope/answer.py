"""Answer in sentences whether a candidate is better than production, by how much, and whether to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from msgspec import structs

from streameval.common.text import decimal, decimals_for, duration_text, rounded_up, significant, utc_time
from streameval.ope.report import Calibration, Decision, Estimate, Report, TrustCheck, grouped

__all__ = ["CandidateAnswer", "answers", "by_policy", "calibrated", "percentage", "recommended", "seen_lifts"]

POLICY_PARTS = ("policies", "estimates", "promotion", "trust", "transitions", "calibration", "segments", "learners")
"""Parts of a Report with one policy per entry."""
EVIDENCE_CHECK = "effective_sample_size"
"""The trust check that fails for lack of evidence, although the numbers may be right."""

SMALLEST_SHARE = 0.0005
"""Smallest share of missing events that a sentence mentions."""

Verdict: TypeAlias = Literal["promotable", "better", "unknown", "worse", "untrusted"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""From the first answer to the last."""


class CandidateAnswer(NamedTuple):
    """Hold what is known about a candidate.

    Args:
        policy: name of the candidate
        verdict: `promotable`, or `better` or `worse` than production by the interval of its lift, or `unknown`. If the
            log fails a trust check, `untrusted`.
        sentence: answer without a full stop
        estimate: row of the Report that the sentence is about, if any
        lower: decision bound of the lift of a whole period, if that decides
    """

    policy: str
    verdict: Verdict
    sentence: str
    estimate: Estimate | None
    lower: float | None = None

    @property
    def bound(self) -> float:
        """Return the lower bound of the lift, which ranks candidates."""
        return _lower_bound(self.estimate) if self.lower is None else self.lower


def answers(report: Report) -> list[CandidateAnswer]:
    """Answer for each candidate, promotable ones first, and then by the lower bound of the lift."""
    reports = by_policy(report.of_goal()).items()
    unsorted = [_answer(part, policy) for policy, part in reports if policy != report.production]
    return sorted(unsorted, key=lambda answer: (VERDICTS.index(answer.verdict), -answer.bound))


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


def percentage(value: float | None, lower: float | None, upper: float | None, signed: bool = True) -> str:
    """Format a ratio in percent, with its interval if that is known.

    >>> percentage(0.1487, 0.1196, 0.1804), percentage(-0.031, -0.05, -0.012), percentage(0.5, None, None)
    ('+14.9 % [12, 18]', '-3.1 % [-5.0, -1.2]', '+50.0 %')
    """
    if value is None:
        return ""
    if lower is None or upper is None:
        return f"{decimal(100 * value, 1, signed)} %"
    width = max(100 * (upper - lower), 1e-6)
    value_decimals, bound_decimals = (max(0, math.ceil(math.log10(unit / width))) for unit in (30, 6))
    ends = ", ".join(decimal(round(100 * end, bound_decimals) + 0.0, bound_decimals) for end in (lower, upper))
    return f"{decimal(100 * value, value_decimals, signed)} % [{ends}]"


def _answer(report: Report, policy: str) -> CandidateAnswer:
    decision, estimate = _decision(report, policy), recommended(report, policy)
    failed = [check for check in report.trust if not check.ok and check.policy in (policy, report.production)]
    doubts = [check for check in failed if check.check != EVIDENCE_CHECK]
    if doubts:
        return CandidateAnswer(
            policy, "untrusted", f"do not trust the numbers of {policy}: {_reasons(doubts, policy)}", estimate
        )
    if decision and decision.worse is not None:
        return _of_whole_periods(report, decision, estimate, _reasons(failed, policy))
    if decision and decision.promotable and estimate:
        promotable = f"promotable {_since(decision)}{_by_bound(decision, estimate)}"
        sentence = f"{_earns(report, estimate)}, {promotable}{_but_worse(report, policy)}"
        return CandidateAnswer(policy, "promotable", sentence, estimate)
    missing = _missing(report, decision, _reasons(failed, policy), estimate)
    if estimate and estimate.lift_upper is not None and estimate.lift_upper < 0:
        return CandidateAnswer(policy, "worse", _earns(report, estimate), estimate)
    if estimate and estimate.lift_lower is not None and estimate.lift_lower > 0:
        yet = f", but it is not promotable: {missing}" if decision else ""
        sentence = f"{_earns(report, estimate)}{yet}{_but_worse(report, policy)}"
        return CandidateAnswer(policy, "better", sentence, estimate)
    sentence = f"not known yet whether {policy} earns more than production: {missing}"
    return CandidateAnswer(policy, "unknown", sentence + _so_far(estimate), estimate)


def _of_whole_periods(report: Report, decision: Decision, estimate: Estimate | None, failed: str) -> CandidateAnswer:
    """Answer by a rule that judges whole periods. The estimates are about this minute, and say something else."""
    policy, reason = decision.policy, decision.reason.partition(" since event")[0]
    if decision.promotable:
        sentence = f"{policy} is promotable {_since(decision)}: {reason}{_but_worse(report, policy)}"
        return CandidateAnswer(policy, "promotable", sentence, estimate, decision.lower)
    if decision.worse:
        return CandidateAnswer(policy, "worse", f"{policy} is {reason}", estimate, decision.lower)
    missing = _missing(report, decision, failed, estimate)
    sentence = f"not known yet whether {policy} earns more than production: {missing}"
    if estimate and ((estimate.lift_lower or 0.0) > 0 or (estimate.lift_upper or 0.0) < 0):
        sentence += f"; at this minute, {_earns(report, estimate)}"
    return CandidateAnswer(policy, "unknown", sentence, estimate, decision.lower)


def _by_bound(decision: Decision, estimate: Estimate) -> str:
    """Return why it stays promotable, in the words of the rule, if the interval of the lift reaches to 0 or below."""
    if estimate.lift_lower is None or estimate.lift_lower > 0:
        return ""
    reason = decision.reason.partition(" since event")[0]
    return f" (not by the interval, but by the rule {decision.rule}: {reason})"


def _but_worse(report: Report, policy: str) -> str:
    """Name the segments in which a candidate earns less than production, the clearest first."""
    segments = []
    for row in report.segments_by_lift():
        if row.policy == policy and row.is_worse:
            lift, lower, upper = (significant(number) for number in (row.lift, row.lift_lower, row.lift_upper))
            segments.append(f"{row.segment} {row.segment_value} ({lift} [{lower}, {upper}])")
    return f"; it earns less in {', '.join(segments)}" if segments else ""


def _decision(report: Report, policy: str) -> Decision | None:
    """Return the decision by the first rule that promotes the candidate, else by the first rule that decides."""
    decisions = [decision for decision in report.promotion if decision.policy == policy and decision.decides]
    return next((decision for decision in decisions if decision.promotable), decisions[0] if decisions else None)


def _earns(report: Report, estimate: Estimate) -> str:
    """Say how much more or less a candidate earns than production."""
    values = _compared_values(report, estimate)
    decimals = decimals_for(values)
    own, production = (decimal(value, decimals) for value in values)
    missing = estimate.details.get("missing_share") or 0.0
    events = f" on the {100 * (1 - missing):.1f} % of events that both have" if missing >= SMALLEST_SHARE else ""
    is_less = (estimate.lift or 0.0) < 0
    word, than = "less" if is_less else "more", f"than production ({own} against {production}{events})"
    if estimate.lift_ratio is None:
        lift = _mirrored(estimate.lift, estimate.lift_lower, estimate.lift_upper, is_less)
        size, lower, upper = (decimal(number, decimals) for number in lift)
        return f"{estimate.policy} earns {size} [{lower}, {upper}] {word} per event {than}"
    ratio = _mirrored(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper, is_less)
    return f"{estimate.policy} earns {percentage(*ratio, signed=not is_less)} {word} {than}"


Bounded: TypeAlias = tuple[float | None, float | None, float | None]
"""A number, its lower and its upper bound."""


def _mirrored(value: float | None, lower: float | None, upper: float | None, is_less: bool) -> Bounded:
    """Turn a loss and its bounds into the size of the loss."""
    if not is_less:
        return value, lower, upper
    size, above, below = (None if number is None else -number for number in (value, lower, upper))
    return size, below, above


def _compared_values(report: Report, estimate: Estimate) -> tuple[float | None, float | None]:
    """Return the values of a candidate and of production with the events and weights of the lift.

    A Report from elsewhere may have only the values on each policy's own events.
    """
    own, production = (estimate.details.get(name) for name in ("lift_value", "lift_production_value"))
    if production is not None:
        return own, production
    rows = (row for row in report.estimates if (row.estimator, row.average) == (estimate.estimator, estimate.average))
    return estimate.value, next((row.value for row in rows if row.policy == report.production), None)


def _since(decision: Decision) -> str:
    if decision.since_timestamp is not None:
        return f"since {utc_time(decision.since_timestamp)}"
    return "" if decision.since_event is None else f"since event {decision.since_event:,}"


def _missing(report: Report, decision: Decision | None, failed: str, estimate: Estimate | None) -> str:
    """Say what is missing for a promotion: passed trust checks, or more events."""
    if failed:
        return failed
    if decision is None:
        is_known = estimate is not None and estimate.lift_lower is not None
        return "the interval of its lift includes 0" if is_known else "there are too few events with rewards"
    if decision.more is None:
        return decision.reason
    events = report.events
    rate = None
    if events.first_timestamp is not None and events.last_timestamp is not None:
        span = events.last_timestamp - events.first_timestamp
        rate = events.accepted / span if span > 0 else None
    needed = rounded_up(max(decision.more, 1.0))
    time = f" ({duration_text(decision.more / rate)})" if rate else ""
    broken = "".join(
        f"; guardrail {check.reward}: {check.reason}" for check in decision.guardrails if check.verdict == "not kept"
    )
    return f"needs about {needed} more event{'' if needed == '1' else 's'}{time}{broken}"


def _so_far(estimate: Estimate | None) -> str:
    if estimate is None or estimate.lift_lower is None:
        return ""
    if estimate.lift_ratio is None:
        bounds = estimate.lift, estimate.lift_lower, estimate.lift_upper
        decimals = decimals_for(bounds)
        lift, *ends = (decimal(number, decimals, signed=index == 0) for index, number in enumerate(bounds))
        return f"; so far {lift} [{', '.join(ends)}] per event"
    return f"; so far {percentage(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper)}"


def _reasons(checks: Sequence[TrustCheck], policy: str) -> str:
    """Join the reasons of checks, first about the policy, then about production alone."""
    own = [check.reason for check in checks if check.policy == policy]
    others = [check for check in checks if check.reason not in own]
    return "; ".join(dict.fromkeys([*own, *(f"production: {check.reason}" for check in others)]))


def _lower_bound(estimate: Estimate | None) -> float:
    """Return the lower bound of the lift, which ranks candidates."""
    if estimate is None:
        return -math.inf
    bounds = (estimate.lift_ratio_lower, estimate.lift_lower, estimate.lift)
    return next((bound for bound in bounds if bound is not None), -math.inf)
