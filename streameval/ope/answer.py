"""The answer of a Report in sentences: is a candidate better than production, by how much, and may one trust it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from msgspec import structs

from streameval.common.text import decimal, decimals_for, in_words, rounded_up, significant, utc_time
from streameval.ope.report import Calibration, Decision, Estimate, Report, TrustCheck, grouped

__all__ = ["CandidateAnswer", "answers", "by_policy", "calibrated", "percentage", "recommended", "seen_lifts"]

PER_POLICY = ("policies", "estimates", "promotion", "trust", "transitions", "calibration", "segments", "learners")
"""The parts of a Report whose entries are each about one policy."""
TOO_LITTLE = "effective_sample_size"
"""The trust check that fails for lack of evidence, where the numbers themselves may be right."""


Verdict: TypeAlias = Literal["promotable", "better", "unknown", "worse", "untrusted"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""In the order of the answers."""


class CandidateAnswer(NamedTuple):
    """The knowledge about a candidate, as a sentence without a full stop.

    `verdict`: whether it is promotable, better or worse than production by the interval of its lift, unknown, or based
    on a log that fails a trust check. `estimate`: the one that the sentence is about, if any.
    """

    policy: str
    verdict: Verdict
    sentence: str
    estimate: Estimate | None


def answers(report: Report) -> list[CandidateAnswer]:
    """The answer for each candidate; the promotable ones first, and within a verdict by the lower bound of the lift."""
    parts = by_policy(report.of_goal()).items()
    found = [_answer(part, policy) for policy, part in parts if policy != report.production]
    return sorted(found, key=lambda each: (VERDICTS.index(each.verdict), -_least(each.estimate)))


def by_policy(report: Report) -> dict[str, Report]:
    """For each policy, the Report of it and production alone, production first."""
    rows = {name: grouped(getattr(report, name), "policy") for name in PER_POLICY}

    def about(policy: str) -> Report:
        shown = dict.fromkeys((report.production, policy))
        parts = {name: tuple(row for each in shown for row in of.get(each, ())) for name, of in rows.items()}
        return structs.replace(report, **parts)

    return {each.policy: about(each.policy) for each in report.policies}


def recommended(report: Report, policy: str) -> Estimate | None:
    """The estimate by which the promotion of a candidate is decided; else its last one that has a lift."""
    report, decision = report.of_goal(), _decision(report, policy)
    rows = [each for each in report.estimates if each.policy == policy and each.lift is not None]
    if decision and decision.estimator:
        pair = decision.estimator, decision.average
        return next((each for each in rows if (each.estimator, each.average) == pair), None)
    thin = report.thin()
    sound = [each for each in rows if (each.estimator, each.average) not in thin]
    return next(reversed(sound or rows), None)


def calibrated(report: Report) -> list[Calibration]:
    """For each policy that chose events itself, the row on the average that decides, if possible, production first."""
    deciding = {policy: recommended(part, policy) for policy, part in by_policy(report).items()}
    averages = [each.average for each in deciding.values() if each]
    found: dict[str, Calibration] = {}
    for row in report.calibration:
        estimate = deciding.get(row.policy)
        average = estimate.average if estimate else next(iter(averages), None)
        if row.average == average or row.policy not in found:
            found[row.policy] = row
    return list(found.values())


def seen_lifts(report: Report) -> list[tuple[str, str, str, TrustCheck | None]]:
    """Of each candidate that chose events: its name, the estimated and the seen lift, and the check that compares them.

    The lifts have as many decimals as their error has two digits for.
    """
    checks = {each.policy: each for each in report.trust if each.check == "calibration"}
    found = []
    for row in calibrated(report):
        if row.lift is None:
            continue
        ends = row.lift_lower, row.lift_upper
        half = None if ends[0] is None or ends[1] is None else (ends[1] - ends[0]) / 2
        decimals = max(decimals_for([half]) - 2, 0) if half else decimals_for([row.lift])
        estimated, seen = (decimal(each, decimals, signed=True) for each in (row.lift_estimated, row.lift))
        found.append((row.policy, estimated, f"{seen} ± {decimal(half, decimals)}", checks.get(row.policy)))
    return found


def percentage(value: float | None, lower: float | None, upper: float | None, signed: bool = True) -> str:
    """A ratio in percent, with its interval as far as it is known.

    >>> percentage(0.1487, 0.1196, 0.1804), percentage(-0.031, -0.05, -0.012), percentage(0.5, None, None)
    ('+14.9 % [12, 18]', '-3.1 % [-5.0, -1.2]', '+50.0 %')
    """
    if value is None:
        return ""
    if lower is None or upper is None:
        return f"{decimal(100 * value, 1, signed)} %"
    width = max(100 * (upper - lower), 1e-6)
    own, of_bounds = (max(0, math.ceil(math.log10(unit / width))) for unit in (30, 6))
    ends = ", ".join(decimal(round(100 * end, of_bounds) + 0.0, of_bounds) for end in (lower, upper))
    return f"{decimal(100 * value, own, signed)} % [{ends}]"


def _answer(report: Report, policy: str) -> CandidateAnswer:
    decision, estimate = _decision(report, policy), recommended(report, policy)
    failed = [check for check in report.trust if not check.ok and check.policy in (policy, report.production)]
    doubts = [check for check in failed if check.check != TOO_LITTLE]
    if doubts:
        return CandidateAnswer(
            policy, "untrusted", f"do not trust the numbers of {policy}: {_reasons(doubts, policy)}", estimate
        )
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


def _by_bound(decision: Decision, estimate: Estimate) -> str:
    """Why it stays promotable, in the words of the rule, where the interval of the lift reaches to 0 or below."""
    if estimate.lift_lower is None or estimate.lift_lower > 0:
        return ""
    reason = decision.reason.partition(" since event")[0]
    return f" (not by the interval, but by the rule {decision.rule}: {reason})"


def _but_worse(report: Report, policy: str) -> str:
    """The segments in which a candidate earns less than production, the clearest first."""
    rows = [each for each in report.segments_by_lift() if each.policy == policy and each.is_worse]
    lifts = [[significant(number) for number in (each.lift, each.lift_lower, each.lift_upper)] for each in rows]
    found = ", ".join(
        f"{each.segment} {each.segment_value} ({lift} [{lower}, {upper}])"
        for each, (lift, lower, upper) in zip(rows, lifts, strict=True)
    )
    return f"; it earns less in {found}" if found else ""


def _decision(report: Report, policy: str) -> Decision | None:
    """The decision on a candidate: by the first rule that holds, else by the first one."""
    decisions = [each for each in report.promotion if each.policy == policy]
    return next((each for each in decisions if each.promotable), decisions[0] if decisions else None)


def _earns(report: Report, estimate: Estimate) -> str:
    """How much more or less a candidate earns than production."""
    values = estimate.value, _value_of_production(report, estimate)
    decimals = decimals_for(values)
    own, production = (decimal(value, decimals) for value in values)
    is_less = (estimate.lift or 0.0) < 0
    word, than = "less" if is_less else "more", f"than production ({own} against {production})"
    if estimate.lift_ratio is None:
        lift = _mirrored(estimate.lift, estimate.lift_lower, estimate.lift_upper, is_less)
        size, lower, upper = (decimal(each, decimals) for each in lift)
        return f"{estimate.policy} earns {size} [{lower}, {upper}] {word} per event {than}"
    ratio = _mirrored(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper, is_less)
    return f"{estimate.policy} earns {percentage(*ratio, signed=not is_less)} {word} {than}"


Bounded: TypeAlias = tuple[float | None, float | None, float | None]
"""A number, its lower and its upper bound."""


def _mirrored(value: float | None, lower: float | None, upper: float | None, is_less: bool) -> Bounded:
    """A number and its bounds; of a loss its size."""
    if not is_less:
        return value, lower, upper
    size, above, below = (None if each is None else -each for each in (value, lower, upper))
    return size, below, above


def _value_of_production(report: Report, estimate: Estimate) -> float | None:
    try:
        return report.get(report.production, estimate.estimator, estimate.average).value
    except KeyError:
        return None


def _since(decision: Decision) -> str:
    if decision.since_timestamp is not None:
        return f"since {utc_time(decision.since_timestamp)}"
    return "" if decision.since_event is None else f"since event {decision.since_event:,}"


def _missing(report: Report, decision: Decision | None, failed: str, estimate: Estimate | None) -> str:
    """The missing condition of a decision; `failed`: the findings of the trust checks that fail, if any."""
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
    time = f" ({in_words(decision.more / rate)})" if rate else ""
    broken = "".join(
        f"; guardrail {each.reward}: {each.reason}" for each in decision.guardrails if each.verdict == "not kept"
    )
    return f"needs about {needed} more event{'' if needed == '1' else 's'}{time}{broken}"


def _so_far(estimate: Estimate | None) -> str:
    if estimate is None or estimate.lift_lower is None:
        return ""
    if estimate.lift_ratio is None:
        bounds = estimate.lift, estimate.lift_lower, estimate.lift_upper
        decimals = decimals_for(bounds)
        lift, *ends = (decimal(each, decimals, signed=place == 0) for place, each in enumerate(bounds))
        return f"; so far {lift} [{', '.join(ends)}] per event"
    return f"; so far {percentage(estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper)}"


def _reasons(checks: Sequence[TrustCheck], policy: str) -> str:
    """The findings about a policy and production; those about production alone say so."""
    own = [check.reason for check in checks if check.policy == policy]
    others = [check for check in checks if check.reason not in own]
    return "; ".join(dict.fromkeys([*own, *(f"production: {check.reason}" for check in others)]))


def _least(estimate: Estimate | None) -> float:
    """The lower bound of the lift by which candidates are ranked."""
    if estimate is None:
        return -math.inf
    known = (estimate.lift_ratio_lower, estimate.lift_lower, estimate.lift)
    return next((each for each in known if each is not None), -math.inf)
