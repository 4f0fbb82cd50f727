"""Decisions: what a Report states about each candidate under each rule, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from streameval.common.arrays import State
from streameval.common.text import counted
from streameval.ope.promotion import trust_checks
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.rules import PromotionRule
from streameval.ope.promotion.trust_checks import OF_THE_STREAM, TrustFigures, checks
from streameval.ope.report import Decision, Transition, TrustCheck

SAME = "it has had the same weighted reward as production on every event"
NO_LIFT = "there is no lift to decide by: add the average mixture with an estimator such as snips or stratified_ips"
CORRELATED = 1.5
"""A design effect that independent events seldom show: 64 signs estimate it to about 18 %."""
WORTH_REPORTING = 0.02
"""Share of the events that a preferred lift could use, from which on a reason names the lift that decides."""


def decide(
    monitor: PromotionMonitor, state: State, figures: TrustFigures
) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
    """The decisions of the last block end, the trust checks and the transitions.

    Nothing is promotable while a check fails, also where it fails only at this moment, such as `stale`.
    """
    recent = trust_checks.recent(state["trust"], monitor.block)
    found = tuple(checks(monitor.policies, recent, figures, monitor.promotion.trust, monitor.reward_range))
    decisions = tuple(
        _decision(monitor, rule, state, place, blocking, figures)
        for place, blocking in enumerate(_blocking(monitor, state, found))
        for rule in monitor.rules.values()
    )
    transitions = tuple(
        Transition(monitor.policies[1 + candidate], rule, int(event), _known(time), promotable, _known(lift))
        for rule, candidate, event, time, promotable, lift in state["transitions"]
    )
    return decisions, found, transitions


def _blocking(monitor: PromotionMonitor, state: State, found: Sequence[TrustCheck]) -> Iterator[list[str]]:
    """The reasons that block each candidate under every rule: a failed check, or no difference from production."""
    production, *candidates = monitor.policies
    failed = {policy: [each for each in found if each.policy == policy and not each.ok] for policy in monitor.policies}
    for candidate, differs in zip(candidates, state["differs"], strict=True):
        checked = [each.reason for each in failed[candidate]]
        checked += [f"{production}: {each.reason}" for each in failed[production] if each.check not in OF_THE_STREAM]
        yield list(dict.fromkeys(checked)) if differs else [SAME]


def _decision(
    monitor: PromotionMonitor,
    rule: PromotionRule,
    state: State,
    place: int,
    blocking: Sequence[str],
    figures: TrustFigures,
) -> Decision:
    kept, policy = state["rules"][rule.label], monitor.policies[1 + place]
    lower = rule.lower(kept["memory"], kept["last"], monitor.context)
    last = {name: float(column[place]) for name, column in {**kept["last"], "lower": lower}.items()}
    hold, held = kept["hold"], int(kept["hold"]["held"][place])
    promotable = held >= monitor.promotion.hold and not blocking
    reason = NO_LIFT
    if figures.has_lift or not rule.needs_lift:
        reason = _reason(monitor, rule, last, held, hold["since"]["event"][place], blocking)
        reason += _deciding_lift(monitor, state, place) if rule.needs_lift else ""
    if promotable and rule.assumes_independence:
        reason += _dependence(figures, policy)
    blocks = hold["later"]["blocks"][place]
    return Decision(
        policy=policy,
        rule=rule.label,
        promotable=promotable,
        reason=reason,
        lift=_known(last["lift"]) if last["events"] else None,
        lower=_known(last["lower"]),
        events=int(last["events"]),
        held=held,
        since_event=_whole(hold["since"]["event"][place]),
        since_timestamp=_known(hold["since"]["time"][place]),
        first_event=_whole(hold["first"]["event"][place]),
        first_timestamp=_known(hold["first"]["time"][place]),
        first_lift=_known(hold["first"]["lift"][place]),
        lift_since=float(hold["later"]["lift"][place] / blocks) if blocks else None,
        times=int(hold["times"][place]),
        promotable_events=int(hold["total"][place]),
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


def _deciding_lift(monitor: PromotionMonitor, state: State, place: int) -> str:
    """Names the lift that decides, where a preferred one could use some of the latest events but too few."""
    by = int(state["by"][place])
    recent = [state["lifts"][name]["recent"][place] for name in monitor.lifts]
    shares = [events / max(recent) for events in recent[:by]] if by > 0 else []
    best = next((better for better, share in enumerate(shares) if share >= WORTH_REPORTING), None)
    if best is None:
        return ""
    preferred, share = monitor.lifts[best], 100 * shares[best]
    return f"; decided by {monitor.lifts[by]}, as {preferred} can use only {share:.0f} % of the events"


def _dependence(figures: TrustFigures, policy: str) -> str:
    """Warns that a proof for independent events may not hold, where the log shows it or cannot show it.

    The design effect is the median over all estimates of the policy, because each of them is noisy.
    """
    details = [each.details for each in figures.estimates if each.policy == policy]
    effects = [each["lift_design_effect"] for each in details if each.get("lift_design_effect") is not None]
    if effects and median(effects) > CORRELATED:
        return f"; but events are correlated (design effect {median(effects):.1f}), which the proof does not allow for"
    if any(each.get("design_effect_of") == "units" for each in details):
        return ""
    return "; this assumes independent events (no `unit` is logged, so clusters cannot be checked)"


def _known(value: Any) -> float | None:
    return None if value != value else float(value)


def _whole(value: Any) -> int | None:
    return None if value != value else int(value)
