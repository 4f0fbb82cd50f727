"""The arms of a ramp: balanced weights, and whether each arm has its share of the events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from streameval.common.arrays import Array, State, typed_like
from streameval.common.text import counted
from streameval.events import EventBatch
from streameval.ope.core import past
from streameval.ope.core.summary import BlockSums
from streameval.ope.estimators import Terms
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence import arms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.report import TrustCheck


def start(plan: Plan) -> State:
    """The state before the first event; empty without a ramp. `drawn`: the sums of the number of events of each arm."""
    found = plan.logging
    if found is None:
        return {}
    return {
        "balance": arms.start(found),
        "arms": list(found.names),
        "shares": [] if found.shares is None else found.shares.tolist(),
        "drawn": past.start_ratio(len(found.names), has_denominator=False),
    }


def resume(plan: Plan, state: State) -> State:
    """A state that may be that of another plan: the shares are counted from zero where arms or shares differ."""
    fresh = start(plan)
    kept = state if all(fresh.get(name) == state.get(name) for name in ("arms", "shares")) else fresh
    if "drawn" in fresh:
        kept = {**kept, "drawn": typed_like(fresh["drawn"], kept["drawn"])}
    return {**kept, "balance": arms.resume(plan.logging, state.get("balance", {}))} if fresh else {}


def balanced(plan: Plan, state: State, events: EventBatch) -> EventBatch:
    """The events, whole blocks or an unfinished one, with the propensities of all arms together."""
    return arms.fold(plan.logging, state["balance"], events, plan.block)[0] if plan.logging else events


def fold(plan: Plan, state: State, events: EventBatch) -> tuple[EventBatch, State]:
    """Whole blocks of events with the propensities of all arms together, and the state after them but for `drawn`."""
    if plan.logging is None:
        return events, state
    weighed, balance = arms.fold(plan.logging, state["balance"], events, plan.block)
    return weighed, {**state, "balance": balance}


def summarise(plan: Plan, events: EventBatch, signs: Array | None) -> BlockSums | None:
    """Half 1: the sums of whole blocks; `signs` [events, 64]: of the units of their events."""
    if plan.logging is None or plan.logging.shares is None:
        return None
    drawn = np.asfortranarray(plan.logging.of_events(events))
    ones = np.ones_like(drawn)
    named = np.where(drawn.any(axis=1, keepdims=True), ones, 0.0)
    evidence = replace(Evidence.of(ones, np.ones(len(events)), plan.block, named), signs=signs)
    return past.sum_ratio(evidence, Terms(drawn))


def fold_shares(state: State, sums: BlockSums) -> State:
    """Half 2: the state after whole blocks."""
    past.fold_ratio(state["drawn"], sums, has_denominator=False)
    return state


def checks(plan: Plan, state: State) -> Iterator[TrustCheck]:
    """The trust check `arm_shares`, of all policies."""
    if plan.logging is None or plan.logging.shares is None or plan.promotion is None:
        return
    found, sums = past.read_ratio(state["drawn"], has_denominator=False)
    counts = sums[:, 1]
    if counts.any():
        effect = float(np.nanmax(found["design_effect"], initial=1.0))
        error = plan.promotion.trust.error
        ok, finding = shares_check(plan.logging.names, plan.logging.shares, counts, effect, error)
        yield from (TrustCheck(policy, "arm_shares", ok, finding) for policy in plan.policies)


def shares_check(names: Sequence[str], shares: Array, counts: Array, effect: float, error: float) -> tuple[bool, str]:
    """Whether the arms have their configured shares of the events (a sample ratio mismatch), and the finding.

    The wealth of a bet against the shares, the ratio of a Dirichlet mixture of multinomial likelihoods to theirs, ever
    exceeds `1 / error` with at most this probability. Its logarithm is divided by `effect`, the variance of the
    `counts` [arms] over that of independent draws, where users rather than events are assigned.

    >>> shares_check(["a", "b"], np.array([0.9, 0.1]), np.array([9500.0, 500.0]), effect=1.0, error=0.01)
    (False, 'the arms have shares of 95.0 % (a) and 5.0 % (b) of 10,000 events, configured 90.0 % and 10.0 %')

    Source: Lindon & Malek, Anytime-valid inference for multinomial count data, NeurIPS 2022.
    """
    total, prior = float(counts.sum()), len(shares) * shares
    wealth = math.lgamma(prior.sum()) - math.lgamma(prior.sum() + total)
    wealth += sum(math.lgamma(a + n) - math.lgamma(a) for a, n in zip(prior.tolist(), counts.tolist(), strict=True))
    wealth -= float(counts @ np.log(shares))
    ok = wealth / effect < math.log(1 / error)
    seen = " and ".join(f"{100 * share:.1f} % ({name})" for share, name in zip(counts / total, names, strict=True))
    events = counted(total, "event")
    if ok:
        return True, f"the arms have shares of {seen} of {events}"
    wanted = " and ".join(f"{100 * share:.1f} %" for share in shares)
    return False, f"the arms have shares of {seen} of {events}, configured {wanted}"
