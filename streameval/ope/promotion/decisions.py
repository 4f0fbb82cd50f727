"""Reading a contest: its state and the moment of a Report make decisions, with the reasons for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from streameval.common.arrays import State
from streameval.ope.promotion import reasons, trust_checks
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.rules import PromotionRule
from streameval.ope.promotion.settings import NEEDS_LIFT
from streameval.ope.promotion.trust_reasons import OF_THE_STREAM, TrustFigures, checks
from streameval.ope.report import Decision, Transition, TrustCheck


class Findings(NamedTuple):
    """What a Report says of promotion: a decision for each candidate and rule, the checks, and what has changed."""

    decisions: tuple[Decision, ...]
    trust: tuple[TrustCheck, ...]
    transitions: tuple[Transition, ...]


WORTH_SAYING = 0.02
"""Share of the events that a preferred lift could use, from which on a reason names the lift that decides."""
NOTHING_FOUND = Findings((), (), ())


def read(contest: PromotionMonitor, state: State, seen: TrustFigures) -> Findings:
    """The decisions of the last block end; where a check fails that is of this moment, nothing is promotable."""
    recent = trust_checks.recent(state["trust"], contest.block)
    found = tuple(checks(contest.policies, recent, seen, contest.promotion.trust, contest.reward_range))
    decisions = tuple(
        _decision(contest, rule, state["rules"][name], place, blocking, seen, _decided_by(contest, state, place))
        for place, blocking in enumerate(_blocking(contest, state, found))
        for name, rule in contest.rules.items()
    )
    return Findings(decisions, found, tuple(_transition(contest, each) for each in state["transitions"]))


def _blocking(contest: PromotionMonitor, state: State, found: Sequence[TrustCheck]) -> Iterator[list[str]]:
    """What blocks each candidate under every rule: nothing to tell it from production by, or a check that fails."""
    production, *candidates = contest.policies
    failed = {policy: [each for each in found if each.policy == policy and not each.ok] for policy in contest.policies}
    for candidate, differs in zip(candidates, state["differs"], strict=True):
        checked = [each.reason for each in failed[candidate]]
        checked += [f"{production}: {each.reason}" for each in failed[production] if each.check not in OF_THE_STREAM]
        yield list(dict.fromkeys(checked)) if differs else [reasons.SAME]


def _decision(
    contest: PromotionMonitor,
    rule: PromotionRule,
    state: State,
    place: int,
    blocking: Sequence[str],
    seen: TrustFigures,
    decided_by: str,
) -> Decision:
    lower = rule.lower(state["memory"], state["last"], contest.errors)
    last = {name: float(column[place]) for name, column in {**state["last"], "lower": lower}.items()}
    holding, held = state["holding"], int(state["holding"]["held"][place])
    policy = contest.policies[1 + place]
    reason, promotable = reasons.NO_LIFT, held >= contest.promotion.hold and not blocking
    if seen.has_lift or rule.name not in NEEDS_LIFT:
        reason = _reason(contest, rule, last, held, holding["since"]["event"][place], blocking)
        reason += decided_by if rule.name in NEEDS_LIFT else ""
    if promotable and rule.proves:
        reason += _caveat(seen, policy)
    return Decision(
        policy=policy,
        rule=rule.name,
        promotable=promotable,
        reason=reason,
        lift=_known(last["lift"]) if last["events"] else None,
        lower=_known(last["lower"]),
        events=int(last["events"]),
        held=held,
        since_event=_whole(holding["since"]["event"][place]),
        since_timestamp=_known(holding["since"]["time"][place]),
        first_event=_whole(holding["first"]["event"][place]),
        first_timestamp=_known(holding["first"]["time"][place]),
        first_lift=_known(holding["first"]["lift"][place]),
        lift_since=_mean(holding["later"], place),
        times=int(holding["times"][place]),
        promotable_events=int(holding["total"][place]),
    )


def _reason(
    contest: PromotionMonitor,
    rule: PromotionRule,
    last: Mapping[str, float],
    held: int,
    since: float,
    blocking: Sequence[str],
) -> str:
    settings = contest.promotion
    if last["events"] < settings.min_events:
        return reasons.of_too_few(last["events"], settings.min_events)
    if blocking:
        return "; ".join(blocking)
    if held >= settings.hold:
        return f"{rule.says_of_promotable(last, settings.margin)} since event {since:,.0f}"
    said = rule.says(last, settings.margin)
    return f"{said}, {reasons.of_held(held, settings.hold)}" if held else said


def _decided_by(contest: PromotionMonitor, state: State, place: int) -> str:
    """By which lift it is decided, where a preferred one could use some of the latest events, and too few."""
    by = int(state["by"][place])
    recent = [state["lifts"][name]["recent"][place] for name in contest.lifts]
    shares = [count / max(recent) for count in recent[:by]] if by > 0 else []
    best = next((better for better, share in enumerate(shares) if share >= WORTH_SAYING), None)
    return "" if best is None else reasons.of_choice(contest.lifts[by], contest.lifts[best], shares[best])


def _caveat(seen: TrustFigures, policy: str) -> str:
    """What the lift of a policy lacks to be proven, by the median of what all its estimates say: each is noisy."""
    details = [each.details for each in seen.estimates if each.policy == policy]
    effects = [told["lift_design_effect"] for told in details if told.get("lift_design_effect") is not None]
    knows_units = any(told.get("design_effect_of") == "units" for told in details)
    return reasons.of_dependence(median(effects) if effects else None, knows_units)


def _transition(contest: PromotionMonitor, kept: Sequence[Any]) -> Transition:
    rule, candidate, event, time, promotable, lift = kept
    return Transition(contest.policies[1 + candidate], rule, int(event), _known(time), promotable, _known(lift))


def _known(value: Any) -> float | None:
    return None if value != value else float(value)


def _mean(later: State, place: int) -> float | None:
    blocks = later["blocks"][place]
    return float(later["lift"][place] / blocks) if blocks else None


def _whole(value: Any) -> int | None:
    return None if value != value else int(value)
