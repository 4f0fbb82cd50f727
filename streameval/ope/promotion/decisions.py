"""Decide on each candidate under each rule for a Report, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array
from streameval.common.text import counted
from streameval.ope.promotion import clusters, trust_checks
from streameval.ope.promotion.guardrails import is_worse, rule_numbers
from streameval.ope.promotion.monitor import MonitorState, PromotionMonitor, number_or_none, transitions
from streameval.ope.promotion.propensity_factor import with_factor
from streameval.ope.promotion.rules import PromotionRule
from streameval.ope.report import (
    EVIDENCE_CHECK,
    Basis,
    Decision,
    Estimate,
    GuardrailCheck,
    PolicyCounts,
    Profile,
    Transition,
    TrustCheck,
    grouped,
)

CORRELATED = 1.5
"""Design effect that independent events seldom show, as 64 signs estimate it to about 18 %."""
WORTH_REPORTING = 0.02
"""Smallest share of usable events of a preferred lift at which a reason names the deciding lift."""


def decide(
    monitor: PromotionMonitor,
    state: MonitorState,
    estimates: Sequence[Estimate],
    arrivals: trust_checks.ArrivalState,
    newest: float | None,
    now: float | None,
    unmatched_share: float | None = None,
    pairs: Sequence[tuple[str, str]] = (),
    counts: Sequence[PolicyCounts] = (),
) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
    """Return the decisions of the last block end, the trust checks and the transitions.

    Nothing is promotable while a check fails, even one that fails only at this moment, such as `stale`.

    Args:
        monitor: the monitor
        state: its state
        estimates: the estimates of the Report
        arrivals: the numbers of accepted and rejected events
        newest: epoch seconds of the newest event, None if unknown
        now: epoch seconds of the Report, None if unknown
        unmatched_share: the share of rewards without a decision, None unless rewards come separately
        pairs: the estimators and averages of the monitor's lifts
        counts: the numbers of events of each policy
    """
    stream = list(trust_checks.stream_checks(arrivals, newest, now, unmatched_share, monitor.promotion.trust))
    stream += clusters.check(state.clusters, monitor.context.block, monitor.promotion.trust.error)
    estimates_by_policy = grouped(estimates, "policy")
    recent = trust_checks.recent(state.trust, monitor.context.block)
    checks = tuple(_checks(monitor, recent, estimates_by_policy, stream, {policy.policy: policy for policy in counts}))
    failed = grouped((check for check in checks if not check.ok), "policy")
    stream_names = {name for name, _, _ in stream}
    numbers = {label: rule_numbers(rule, state.rules[label], monitor.context) for label, rule in monitor.rules.items()}
    decisions = []
    production, *candidates = monitor.policies
    profiles = {
        label: rule.profiles(state.rules[label].memory) or [()] * len(candidates)
        for label, rule in monitor.rules.items()
    }
    shared = [
        f"{production}: {check.reason}" for check in failed.get(production, ()) if check.check not in stream_names
    ]
    for candidate_index, candidate in enumerate(candidates):
        blocking = list(dict.fromkeys([*(check.reason for check in failed.get(candidate, ())), *shared]))
        if not state.differs[candidate_index]:
            blocking = ["it has had the same weighted reward as production on every event"]
        doubted = (check.check for policy in (candidate, production) for check in failed.get(policy, ()))
        is_untrusted = bool(state.differs[candidate_index]) and any(name != EVIDENCE_CHECK for name in doubted)
        warning = _dependence([estimate.details for estimate in estimates_by_policy.get(candidate, ())])
        by = int(state.by[candidate_index])
        pair = pairs[by] if pairs and by >= 0 else None
        rows = [
            _decision(
                monitor,
                rule,
                state,
                candidate_index,
                numbers[label],
                blocking,
                warning,
                pair,
                profiles[label][candidate_index],
                is_untrusted,
                Basis(
                    float(recent.effective_sample_size[1 + candidate_index]),
                    number_or_none(recent.largest_share[1 + candidate_index]),
                ),
            )
            for label, rule in monitor.rules.items()
        ]
        own = estimates_by_policy.get(candidate, ())
        moved_gains = None if state.moved_gains is None else state.moved_gains[candidate_index]
        rows = [with_factor(row, pair, own, monitor.context, moved_gains) for row in rows]
        if _untimed_share(monitor, state, candidate_index) == 1:  # a rule that needs timestamps has nothing to say
            rows = [row for row in rows if row.decides]
        decisions += sorted(rows, key=lambda decision: not decision.decides)
    return tuple(decisions), checks, transitions(monitor, state)


def add_checks(
    checks: tuple[TrustCheck, ...], decisions: tuple[Decision, ...], added: Sequence[TrustCheck], production: str
) -> tuple[tuple[TrustCheck, ...], tuple[Decision, ...]]:
    """Add checks. A candidate is not promotable while one of them fails for it or for production.

    Its reason then starts with these checks. Other obstacles, such as a guardrail, follow.
    """
    checks_by_policy = grouped((check for check in added if not check.ok), "policy")
    failed = {policy: [check.reason for check in policy_checks] for policy, policy_checks in checks_by_policy.items()}
    updated = []
    for decision in decisions:
        about_policy = failed.get(decision.policy, [])
        reasons = [
            *about_policy,
            *(f"{production}: {reason}" for reason in failed.get(production, []) if reason not in about_policy),
        ]
        before = [] if decision.promotable else [decision.reason]
        worse = None if decision.worse is None else False
        state = "untrusted" if decision.decides else decision.state
        reason = "; ".join([*reasons, *before])
        blocked = structs.replace(decision, promotable=False, worse=worse, state=state, reason=reason)
        updated.append(blocked if reasons else decision)
    return (*checks, *added), tuple(updated)


def repeat_for_policies(checks: Sequence[TrustCheck], name: str, ok: bool, reason: str) -> Iterator[TrustCheck]:
    """Yield a check of the whole stream for each policy that has checks."""
    yield from (TrustCheck(policy, name, ok, reason) for policy in dict.fromkeys(check.policy for check in checks))


def _checks(
    monitor: PromotionMonitor,
    recent: trust_checks.WeightFigures,
    estimates: Mapping[str, Sequence[Estimate]],
    stream: Sequence[tuple[str, bool, str]],
    counts: Mapping[str, PolicyCounts],
) -> Iterator[TrustCheck]:
    """Yield all checks of all policies that have events, from estimates by policy."""
    limits = monitor.promotion.trust
    verdicts, figures = recent.sound(limits).T.tolist(), np.stack(recent, axis=-1).tolist()
    accepted = max((known.events + known.missing for known in counts.values()), default=0)
    unknown = min((known.missing for known in counts.values() if known.events + known.missing == accepted), default=0)
    for policy, numbers, sound in zip(monitor.policies, figures, verdicts, strict=True):
        if numbers[0]:
            rows = estimates.get(policy, ())
            weights = trust_checks.weight_checks(numbers, sound, limits, monitor.context.weights_average_1)
            if monitor.context.largest_loss is not None:
                is_known = any(row.details.get("unsupported_probability") is not None for row in rows)
                weights = chain(weights, trust_checks.support_check(numbers[-1], sound[-1], limits, is_known))
            if policy in counts:
                weights = chain(weights, [trust_checks.missing_check(counts[policy], unknown, rows, limits)])
            if not monitor.context.is_ratio:
                weights = chain(weights, [trust_checks.reward_range_check(rows, monitor.context.reward_range)])
            for check in (*weights, *stream):
                yield TrustCheck(policy, *check)


def _decision(
    monitor: PromotionMonitor,
    rule: PromotionRule,
    state: MonitorState,
    index: int,
    numbers: Mapping[str, Array],
    blocking: Sequence[str],
    warning: str,
    pair: tuple[str, str] | None,
    profiles: tuple[Profile, ...],
    is_untrusted: bool,
    basis: Basis,
) -> Decision:
    """Return the decision on one candidate, from the numbers of the rule after the last block by name [candidates]."""
    last = {name: float(column[index]) for name, column in numbers.items()}
    hold = state.rules[rule.label].hold
    held, is_idle = int(hold.held[index]), _is_idle(monitor, rule, state, index)
    promotable = held >= monitor.hold_of(rule) and not blocking
    reason = "no lift can decide: add the average mixture, with an estimator such as snips or stratified_ips"
    can_decide = bool(monitor.lifts) or not rule.needs_lift
    guardrails = _guardrails(monitor, rule, state, index, held)
    verdicts = [is_worse(last, monitor.hold_of(rule)), *(guardrail.worse for guardrail in guardrails)]
    worse = any(verdicts) and not blocking if can_decide and not is_idle and verdicts[0] is not None else None
    if can_decide:
        reason = _reason(monitor, rule, last, held, hold.since[index, 0], blocking, is_idle)
        failing = (f"guardrail {guardrail.reward}: {guardrail.reason}" for guardrail in guardrails if not guardrail.ok)
        reason = "; ".join([reason, *failing])
        reason += _deciding_lift(monitor, state, index) if rule.needs_lift else ""
        if rule == monitor.promotion.companion and not is_idle:
            share = 100 * _untimed_share(monitor, state, index)
            reason += f"; about this minute, as {share:.0f} % of events have no timestamp"
    if promotable and rule.assumes_independence:
        reason += warning
    since_event, since_timestamp, _ = hold.since[index]
    first_event, first_timestamp, first_lift = hold.first[index]
    lifts, blocks = hold.later[index]
    estimator, average = pair if pair and rule.needs_lift else (None, None)
    return Decision(
        policy=monitor.policies[1 + index],
        rule=rule.label,
        reward=monitor.goal,
        promotable=promotable,
        reason=reason,
        lift=number_or_none(last["lift"]) if last["events"] else None,
        lower=number_or_none(last["lower"]),
        events=int(last["events"]),
        held=held,
        since_event=_whole(since_event),
        since_timestamp=number_or_none(since_timestamp),
        first_event=_whole(first_event),
        first_timestamp=number_or_none(first_timestamp),
        first_lift=number_or_none(first_lift),
        lift_since=float(lifts / blocks) if blocks else None,
        times=int(hold.times[index]),
        promotable_events=int(hold.total[index]),
        estimator=estimator,
        average=average,
        more=_more(last, monitor.promotion.min_events) if can_decide else None,
        guardrails=guardrails,
        decides=not is_idle,
        worse=worse,
        profiles=() if is_idle else profiles,
        covers=rule.covers,
        basis=structs.replace(basis, standard_errors=number_or_none(rule.standard_errors(last, monitor.context))),
        state="promotable" if promotable else "untrusted" if is_untrusted else "worse" if worse else "undecided",
    )


def _is_idle(monitor: PromotionMonitor, rule: PromotionRule, state: MonitorState, index: int) -> bool:
    """Return whether a rule leaves the decision on a candidate to others, see `PromotionMonitor.is_idle`."""
    return bool(monitor.is_idle(rule, _untimed_share(monitor, state, index)))


def _untimed_share(monitor: PromotionMonitor, state: MonitorState, index: int) -> float:
    """Return the share of events without timestamps, 0 if no rule needs them."""
    last = [state.rules[label].last for label, rule in monitor.rules.items() if rule.needs_time]
    return max((float(numbers["untimed"][index]) for numbers in last if "untimed" in numbers), default=0.0)


def _reason(
    monitor: PromotionMonitor,
    rule: PromotionRule,
    last: Mapping[str, float],
    held: int,
    since: float,
    blocking: Sequence[str],
    is_idle: bool,
) -> str:
    settings, hold = monitor.promotion, monitor.hold_of(rule)
    if last["events"] < settings.min_events:
        return f"only {last['events']:,.0f} of {counted(settings.min_events, 'event')}"
    if blocking:
        return "; ".join(blocking)
    if held >= hold:
        return f"{rule.reason_to_stay(last, settings.margin)} since event {since:,.0f}"
    if is_worse(last, hold):
        return rule.reason_of_loss(last, monitor.context.floor)
    reason = rule.reason(last, settings.margin)
    if is_idle and not rule.needs_time:
        is_better = "better" if last["lower"] > settings.margin else "not known to be better"
        return f"{is_better} at this minute: {reason}"
    return f"{reason}, held for {held:,.0f} of {counted(hold, 'block end')}" if held else reason


def _guardrails(
    monitor: PromotionMonitor, rule: PromotionRule, state: MonitorState, index: int, held: int
) -> tuple[GuardrailCheck, ...]:
    """Check whether the candidate keeps each guardrail, given the block ends in a row at which it passed the rule."""
    hold, min_events = monitor.hold_of(rule), monitor.promotion.min_events
    states = {name: guardrail.rules[rule.label] for name, guardrail in state.guardrails.items()}
    return tuple(
        guardrail.check(rule, states[guardrail.name], index, min_events, held >= hold, hold)
        for guardrail in monitor.guardrails
    )


def _more(last: Mapping[str, float], least: int) -> float | None:
    """Return how many more events the candidate needs, as far as it is known."""
    forecast = last["more"] if last["more"] > 0 else None  # NaN, and the marks of an unknown number, are not
    return max(forecast or 0.0, least - last["events"]) if last["events"] < least else forecast


def _deciding_lift(monitor: PromotionMonitor, state: MonitorState, index: int) -> str:
    """Name the deciding lift if a preferred one could use some of the latest events but too few."""
    by = int(state.by[index])
    recent = [float(state.lifts[name].recent[index]) for name in monitor.lifts] if by > 0 else []
    shares = [events / max(recent) for events in recent[:by]]
    best = next((better for better, share in enumerate(shares) if share >= WORTH_REPORTING), None)
    if best is None:
        return ""
    preferred, share = monitor.lifts[best], 100 * shares[best]
    return f"; decided by {monitor.lifts[by]}, as {preferred} can use only {share:.0f} % of the events"


def _dependence(details: Sequence[Mapping[str, Any]]) -> str:
    """Warn that a proof for independent events may not hold, if the log shows dependence or cannot show it.

    The design effect is the median over the details of all estimates of the policy, because each of them is noisy.
    """
    effects = [detail["lift_design_effect"] for detail in details if detail.get("lift_design_effect") is not None]
    if effects and median(effects) > CORRELATED:
        return f"; but events are correlated (design effect {median(effects):.1f}), and the proof assumes independence"
    if any(detail.get("design_effect_of") == "units" for detail in details):
        return ""
    return "; this assumes independent events (no `unit` is logged, so clusters cannot be checked)"


def _whole(value: Any) -> int | None:
    return None if value != value else int(value)
