"""The decisions of a Report on each candidate under each rule, with the reasons."""

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
from streameval.ope.promotion.monitor import MonitorState, PromotionMonitor, known, transitions
from streameval.ope.promotion.rules import PromotionRule
from streameval.ope.report import Decision, Estimate, GuardrailCheck, Transition, TrustCheck, grouped

CORRELATED = 1.5
"""A design effect that independent events seldom show: 64 signs estimate it to about 18 %."""
WORTH_REPORTING = 0.02
"""Share of the events that a preferred lift could use, from which on a reason names the lift that decides."""


def decide(
    monitor: PromotionMonitor,
    state: MonitorState,
    estimates: Sequence[Estimate],
    arrivals: trust_checks.ArrivalState,
    newest: float | None,
    now: float | None,
    unmatched_share: float | None = None,
    pairs: Sequence[tuple[str, str]] = (),
) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
    """The decisions of the last block end, the trust checks and the transitions.

    Nothing is promotable while a check fails, even one that fails only at this moment, such as `stale`. `estimates`:
    those of the Report. `newest`, `now`: epoch seconds of the newest event and of the Report, None if unknown.
    `unmatched_share`: of rewards that come separately. `pairs`: the estimators and averages of the monitor's lifts.
    """
    stream = list(trust_checks.stream_checks(arrivals, newest, now, unmatched_share, monitor.promotion.trust))
    stream += clusters.check(state.clusters, monitor.context.block, monitor.promotion.trust.error)
    rows = grouped(estimates, "policy")
    found = tuple(_checks(monitor, state, rows, stream))
    failed = grouped((check for check in found if not check.ok), "policy")
    of_stream = {name for name, _, _ in stream}
    numbers = {label: _numbers(monitor, rule, state) for label, rule in monitor.rules.items()}
    decisions = []
    production, *candidates = monitor.policies
    shared = [f"{production}: {each.reason}" for each in failed.get(production, ()) if each.check not in of_stream]
    for place, candidate in enumerate(candidates):
        blocking = list(dict.fromkeys([*(each.reason for each in failed.get(candidate, ())), *shared]))
        if not state.differs[place]:
            blocking = ["it has had the same weighted reward as production on every event"]
        warning = _dependence([each.details for each in rows.get(candidate, ())])
        by = int(state.by[place])
        pair = pairs[by] if pairs and by >= 0 else None
        decisions += [
            _decision(monitor, rule, state, place, numbers[label], blocking, warning, pair)
            for label, rule in monitor.rules.items()
        ]
    return tuple(decisions), found, transitions(monitor, state)


def with_checks(
    checks: tuple[TrustCheck, ...], decisions: tuple[Decision, ...], added: Sequence[TrustCheck], production: str
) -> tuple[tuple[TrustCheck, ...], tuple[Decision, ...]]:
    """The checks and some more; a candidate is not promotable while one of these fails for it or for production.

    Its reason then starts with these; what else keeps it from being promotable, such as a guardrail, follows.
    """
    checks_by_policy = grouped((check for check in added if not check.ok), "policy")
    failed = {policy: [check.reason for check in of_policy] for policy, of_policy in checks_by_policy.items()}
    found = []
    for each in decisions:
        own = failed.get(each.policy, [])
        reasons = [*own, *(f"{production}: {reason}" for reason in failed.get(production, []) if reason not in own)]
        before = [] if each.promotable else [each.reason]
        blocked = structs.replace(each, promotable=False, reason="; ".join([*reasons, *before]))
        found.append(blocked if reasons else each)
    return (*checks, *added), tuple(found)


def of_every_policy(checks: Sequence[TrustCheck], name: str, ok: bool, reason: str) -> Iterator[TrustCheck]:
    """A check of the whole stream, for each policy that has checks."""
    yield from (TrustCheck(policy, name, ok, reason) for policy in dict.fromkeys(each.policy for each in checks))


def _numbers(monitor: PromotionMonitor, rule: PromotionRule, state: MonitorState) -> Mapping[str, Array]:
    """The numbers of a rule after the last block, by name, [candidates]."""
    kept = state.rules[rule.label]
    return {**kept.last, "lower": rule.lower(kept.memory, kept.last, monitor.context)}


def _checks(
    monitor: PromotionMonitor,
    state: MonitorState,
    estimates: Mapping[str, Sequence[Estimate]],
    stream: Sequence[tuple[str, bool, str]],
) -> Iterator[TrustCheck]:
    """All checks of all policies that have events; `estimates`: by policy."""
    recent, limits = trust_checks.recent(state.trust, monitor.context.block), monitor.promotion.trust
    verdicts, figures = recent.sound(limits).T.tolist(), np.stack(recent, axis=-1).tolist()
    for policy, own, sound in zip(monitor.policies, figures, verdicts, strict=True):
        if own[0]:
            rows = estimates.get(policy, ())
            weights = trust_checks.weight_checks(own, sound, limits, monitor.context.weights_average_1)
            if monitor.context.largest_loss is not None:
                known = any(each.details.get("unsupported_probability") is not None for each in rows)
                weights = chain(weights, trust_checks.support_check(own[-1], sound[-1], limits, known))
            for check in (*weights, *stream, trust_checks.reward_range_check(rows, monitor.context.reward_range)):
                yield TrustCheck(policy, *check)


def _decision(
    monitor: PromotionMonitor,
    rule: PromotionRule,
    state: MonitorState,
    place: int,
    numbers: Mapping[str, Array],
    blocking: Sequence[str],
    warning: str,
    pair: tuple[str, str] | None,
) -> Decision:
    """`numbers`: those of the rule after the last block, by name, [candidates]."""
    last = {name: float(column[place]) for name, column in numbers.items()}
    hold = state.rules[rule.label].hold
    held = int(hold.held[place])
    promotable = held >= monitor.promotion.hold and not blocking
    reason = "no lift can decide: add the average mixture, with an estimator such as snips or stratified_ips"
    can_decide = bool(monitor.lifts) or not rule.needs_lift
    guardrails = _guardrails(monitor, rule, state, place, held)
    if can_decide:
        reason = _reason(monitor, rule, last, held, hold.since[place, 0], blocking)
        failing = (f"guardrail {each.reward}: {each.reason}" for each in guardrails if not each.ok)
        reason = "; ".join([reason, *failing])
        reason += _deciding_lift(monitor, state, place) if rule.needs_lift else ""
    if promotable and rule.assumes_independence:
        reason += warning
    since_event, since_timestamp, _ = hold.since[place]
    first_event, first_timestamp, first_lift = hold.first[place]
    lifts, blocks = hold.later[place]
    estimator, average = pair if pair and rule.needs_lift else (None, None)
    return Decision(
        policy=monitor.policies[1 + place],
        rule=rule.label,
        reward=monitor.goal,
        promotable=promotable,
        reason=reason,
        lift=known(last["lift"]) if last["events"] else None,
        lower=known(last["lower"]),
        events=int(last["events"]),
        held=held,
        since_event=_whole(since_event),
        since_timestamp=known(since_timestamp),
        first_event=_whole(first_event),
        first_timestamp=known(first_timestamp),
        first_lift=known(first_lift),
        lift_since=float(lifts / blocks) if blocks else None,
        times=int(hold.times[place]),
        promotable_events=int(hold.total[place]),
        estimator=estimator,
        average=average,
        more=_more(last, monitor.promotion.min_events) if can_decide else None,
        guardrails=guardrails,
    )


def _reason(
    monitor: PromotionMonitor,
    rule: PromotionRule,
    last: Mapping[str, float],
    held: int,
    since: float,
    blocking: Sequence[str],
) -> str:
    settings = monitor.promotion
    if last["events"] < settings.min_events:
        return f"only {last['events']:,.0f} of {counted(settings.min_events, 'event')}"
    if blocking:
        return "; ".join(blocking)
    if held >= settings.hold:
        return f"{rule.reason_to_stay(last, settings.margin)} since event {since:,.0f}"
    reason = rule.reason(last, settings.margin)
    return f"{reason}, held for {held:,.0f} of {counted(settings.hold, 'block end')}" if held else reason


def _guardrails(
    monitor: PromotionMonitor, rule: PromotionRule, state: MonitorState, place: int, held: int
) -> tuple[GuardrailCheck, ...]:
    """Whether the candidate keeps each guardrail; `held`: the block ends in a row at which it passed the rule."""
    settings, of_rules = monitor.promotion, {name: kept.rules for name, kept in state.guardrails.items()}
    return tuple(
        each.check(rule, of_rules[each.name][rule.label], place, settings.min_events, held >= settings.hold)
        for each in monitor.guardrails
    )


def _more(last: Mapping[str, float], least: int) -> float | None:
    """How many more events the candidate needs, as far as it is known."""
    forecast = last["more"] if last["more"] > 0 else None  # NaN, and the marks of an unknown number, are not
    return max(forecast or 0.0, least - last["events"]) if last["events"] < least else forecast


def _deciding_lift(monitor: PromotionMonitor, state: MonitorState, place: int) -> str:
    """Names the lift that decides, where a preferred one could use some of the latest events but too few."""
    by = int(state.by[place])
    recent = [float(state.lifts[name].recent[place]) for name in monitor.lifts] if by > 0 else []
    shares = [events / max(recent) for events in recent[:by]]
    best = next((better for better, share in enumerate(shares) if share >= WORTH_REPORTING), None)
    if best is None:
        return ""
    preferred, share = monitor.lifts[best], 100 * shares[best]
    return f"; decided by {monitor.lifts[by]}, as {preferred} can use only {share:.0f} % of the events"


def _dependence(details: Sequence[Mapping[str, Any]]) -> str:
    """Warns that a proof for independent events may not hold, where the log shows it or cannot show it.

    The design effect is the median over all estimates of the policy, whose `details` these are: each of them is noisy.
    """
    effects = [each["lift_design_effect"] for each in details if each.get("lift_design_effect") is not None]
    if effects and median(effects) > CORRELATED:
        return f"; but events are correlated (design effect {median(effects):.1f}), and the proof assumes independence"
    if any(each.get("design_effect_of") == "units" for each in details):
        return ""
    return "; this assumes independent events (no `unit` is logged, so clusters cannot be checked)"


def _whole(value: Any) -> int | None:
    return None if value != value else int(value)
