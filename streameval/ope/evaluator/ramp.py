"""A ramp: balanced weights, and whether estimates come true once a candidate chooses actions itself.

A candidate that is an arm has two values: the mean reward of its own events, and the estimate from the events of the
other arms, by their logged propensities. Both are independent, and equal where the propensities are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, State, ratio
from streameval.common.text import counted, significant
from streameval.events import EventBatch
from streameval.events.origin import fingerprints
from streameval.ope.averages import Cumulative
from streameval.ope.estimators import IPS, TermRange
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence import arms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import EmpiricalLikelihood
from streameval.ope.report import Calibration, TrustCheck

FEWEST_BLOCKS_COMPARED = 50.0
"""The effective number of blocks that a comparison needs, and the one at which its sequential bound is narrowest."""


class _Compared(NamedTuple):
    """The sums over blocks that a comparison is made of, [policies]: of `m`, `m^2`, `m d`, `m^2 d` and `m^2 d^2`."""

    weight: Array
    weight_square: Array
    difference: Array
    difference_square: Array
    square: Array

    @classmethod
    def of(cls, seen: Evidence, estimated: Evidence) -> _Compared:
        """The sums over these blocks.

        In each block, `d` is the estimate less the seen mean, and `m = n n' / (n + n')` for n events of the arm and n'
        of others: drift and changing shares move both sides of a block alike.
        """
        own, others = seen.block_sums(None), estimated.block_sums(None)
        weight = np.nan_to_num(ratio(own * others, own + others))
        difference = ratio(estimated.block_sums(estimated.weighted_reward), others)
        difference = np.nan_to_num(difference - ratio(seen.block_sums(seen.weighted_reward), own))
        parts = (weight, weight**2, weight * difference, weight**2 * difference, (weight * difference) ** 2)
        return cls(*(part.sum(axis=0) for part in parts))

    def deviation(self, place: int) -> tuple[float, float, float]:
        """The mean difference of a policy, its standard error, and the effective number of blocks."""
        weight, square, total, second, third = (float(column[place]) for column in self)
        if not square:
            return math.nan, math.nan, 0.0
        mean = total / weight
        variance = max(third - 2 * mean * second + mean**2 * square, 0.0)
        return mean, math.sqrt(variance) / weight, weight**2 / square


def start(plan: Plan) -> State:
    """The state before the first event; empty without a ramp."""
    found = plan.logging
    if found is None:
        return {}
    grid = _grid(plan)
    return {
        "balance": arms.start(found),
        "policies": list(plan.policies),
        "arms": list(found.names),
        "shares": [] if found.shares is None else found.shares.tolist(),
        "drawn": np.zeros((2, len(found.names))),
        "blocks": 0,
        "compared": np.zeros((5, len(plan.policies))),
        "seen": grid.start(plan.block),
        "estimated": grid.start(plan.block),
    }


def resume(plan: Plan, state: State) -> State:
    """A state that may be that of another plan: the comparison starts from zero where candidates or arms differ."""
    fresh = start(plan)
    same = all(fresh.get(name) == state.get(name) for name in ("policies", "arms", "shares"))
    labels = [list(each["seen"]["averages"]) for each in (fresh, state) if each]
    kept = state if same and len(labels) != 1 and labels[:1] == labels[1:] else fresh
    return {**kept, "balance": arms.resume(plan.logging, state.get("balance", {}))} if fresh else {}


def balanced(plan: Plan, state: State, events: EventBatch) -> EventBatch:
    """The events, whole blocks or an unfinished one, with the propensities of all arms together."""
    return arms.fold(plan.logging, state["balance"], events, plan.block)[0] if plan.logging else events


def fold(plan: Plan, state: State, events: EventBatch) -> tuple[EventBatch, State]:
    """Whole blocks of events with the propensities of all arms together, and the state after them."""
    if plan.logging is None:
        return events, state
    grid, (seen, estimated) = _grid(plan), _evidence(plan, events)
    drawn = plan.logging.of_events(events).reshape(-1, plan.block, len(plan.logging.names)).sum(axis=1)
    weighed, balance = arms.fold(plan.logging, state["balance"], events, plan.block)
    return weighed, {
        **state,
        "balance": balance,
        "drawn": state["drawn"] + np.stack([drawn.sum(axis=0), np.square(drawn).sum(axis=0)]),
        "blocks": state["blocks"] + len(drawn),
        "compared": state["compared"] + np.stack(_Compared.of(seen, estimated)),
        "seen": grid.fold(state["seen"], [seen])[0],
        "estimated": grid.fold(state["estimated"], [estimated])[0],
    }


def _grid(plan: Plan) -> Grid:
    """The mean of weighted rewards on every average that needs no start-up value."""
    averages = tuple(each for each in plan.averages.values() if not each.mixes_components) or (Cumulative(),)
    return Grid(
        estimators=(IPS(),),
        averages=averages,
        bounds=(EmpiricalLikelihood(),) * len(averages),
        candidates=(True,) * len(plan.policies),
        needs=frozenset(),
        trackers={},
    )


def _evidence(plan: Plan, events: EventBatch) -> tuple[Evidence, Evidence]:
    """The evidence about each policy from its own events, with weights of 1, and from those of the other arms."""
    evidence = Evidence.without_rewards(events, plan.policies, plan.block).of_reward(events.reward)
    names = np.zeros(len(events), dtype=np.uint64) if events.logging_policy is None else events.logging_policy
    own = (names[None] == fingerprints(plan.policies)[:, None]).T
    seen = np.where(own, evidence.event_weight[:, None], 0.0)
    others = np.where(own | (names == 0)[:, None], 0.0, evidence.sample_weight)
    ones = np.ones_like(evidence.importance_weight)
    return replace(evidence, importance_weight=ones, sample_weight=seen), replace(evidence, sample_weight=others)


def calibration(plan: Plan, state: State) -> tuple[Calibration, ...]:
    """For each arm and average the seen value and the estimated one, of the finished blocks."""
    if plan.logging is None:
        return ()
    rows = []
    seen, estimated = (list(_values(plan, state[part])) for part in ("seen", "estimated"))
    for (average, own), (_, others) in zip(seen, estimated, strict=True):
        base = own[0] if plan.policies[0] in plan.logging.names else np.full(3, np.nan)
        for place, policy in enumerate(plan.policies):
            if policy in plan.logging.names and not np.isnan(own[place, 0]):
                rows.append(_calibration(policy, average, own[place], others[place], None if place == 0 else base))
    return tuple(rows)


def _values(plan: Plan, state: State) -> Iterator[tuple[str, Array]]:
    """For each average its label, and the value, lower and upper bound of each policy, [policies, 3]."""
    low, high = plan.reward_range
    for average, interval, reading, _ in _grid(plan).read(state, None, plan.errors):
        largest = np.nan_to_num(reading.importance_weight_max)
        terms = TermRange.by_column((IPS(),), plan.reward_range, interval.largest_weight(largest))
        lower, upper = interval.bounds(reading, terms, plan.confidence)
        yield average.label, np.column_stack([reading.value, np.clip(lower, low, high), np.clip(upper, low, high)])


def _calibration(policy: str, average: str, own: Array, others: Array, base: Array | None) -> Calibration:
    """The row of an arm; `base` [3]: production's seen value and interval, None for production."""
    error, lower, upper = _minus(others, own)
    none = np.full(3, np.nan)
    lift, lift_lower, lift_upper = none if base is None else _minus(own, base)
    estimated = math.nan if base is None else others[0] - base[0]
    numbers = (*own, others[0], error, lower, upper, estimated, lift, lift_lower, lift_upper)
    return Calibration(policy, average, *(None if math.isnan(each) else float(each) for each in numbers))


def _minus(one: Array, other: Array) -> tuple[float, float, float]:
    """The difference of two independent values with intervals, [3] each."""
    value = one[0] - other[0]
    return (
        value,
        value - math.hypot(one[0] - one[1], other[2] - other[0]),
        value + math.hypot(one[2] - one[0], other[0] - other[1]),
    )


def checks(plan: Plan, state: State) -> Iterator[TrustCheck]:
    """The trust checks of the ramp: whether estimates came true, and whether arms have their shares."""
    if plan.logging is None or plan.promotion is None:
        return
    error = plan.promotion.trust.error
    compared = _Compared(*state["compared"])
    for place, policy in enumerate(plan.policies):
        mean, deviation, blocks = compared.deviation(place)
        if policy in plan.logging.names and blocks >= FEWEST_BLOCKS_COMPARED:
            allowed = multiple(blocks, error) * deviation
            half = NormalDist().inv_cdf(0.5 + plan.confidence / 2) * deviation
            ok = abs(mean) <= allowed
            finding = f"the estimate exceeds the seen reward by {significant(mean)} +- {significant(half)}"
            yield TrustCheck(policy, "calibration", ok, finding if ok else f"{finding}: the propensities are wrong")
    if plan.logging.shares is not None and state["drawn"][0].any():
        ok, finding = shares_check(plan.logging.names, plan.logging.shares, state["drawn"], state["blocks"], error)
        yield from (TrustCheck(policy, "arm_shares", ok, finding) for policy in plan.policies)


def multiple(blocks: float, error: float) -> float:
    """The number of standard errors that a mean of this many blocks ever exceeds with about this probability.

    It is that of the normal mixture, an asymptotic confidence sequence: `sqrt((1 + 1 / t) (ln(1 + t) + 2 ln(1 /
    error)))` with `t = blocks / 50`.

    >>> round(multiple(1000, 0.01), 2)
    3.59

    Source: Robbins 1970; Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, Annals of Statistics 2024.
    """
    time = blocks / FEWEST_BLOCKS_COMPARED
    return math.sqrt((1 + 1 / time) * (math.log1p(time) + 2 * math.log(1 / error)))


def shares_check(names: Sequence[str], shares: Array, drawn: Array, blocks: int, error: float) -> tuple[bool, str]:
    """Whether the arms have their configured shares of the events (a sample ratio mismatch), and the finding.

    The wealth of a bet against the shares, the ratio of a Dirichlet mixture of multinomial likelihoods to theirs, ever
    exceeds `1 / error` with at most this probability. Its logarithm is divided by the variance of block counts over
    that of independent draws, where users rather than events are assigned. `drawn` [2, arms]: sums of the blocks'
    counts and of their squares.

    >>> drawn = np.array([[9500.0, 500.0], [902600.0, 2600.0]])
    >>> shares_check(["a", "b"], np.array([0.9, 0.1]), drawn, blocks=100, error=0.01)
    (False, 'the arms have shares of 95.0 % (a) and 5.0 % (b) of 10,000 events, configured 90.0 % and 10.0 %')

    Source: Lindon & Malek, Anytime-valid inference for multinomial count data, NeurIPS 2022.
    """
    counts, total = drawn[0], float(drawn[0].sum())
    prior = len(shares) * shares
    wealth = math.lgamma(prior.sum()) - math.lgamma(prior.sum() + total)
    wealth += sum(math.lgamma(a + n) - math.lgamma(a) for a, n in zip(prior.tolist(), counts.tolist(), strict=True))
    wealth -= float(counts @ np.log(shares))
    found = counts / total
    between = (drawn[1] - counts**2 / blocks) / blocks
    effect = np.nanmax(ratio(between, total / blocks * found * (1 - found)), initial=1.0)
    ok = wealth / effect < math.log(1 / error)
    seen = " and ".join(f"{100 * share:.1f} % ({name})" for share, name in zip(found, names, strict=True))
    events = counted(total, "event")
    if ok:
        return True, f"the arms have shares of {seen} of {events}"
    wanted = " and ".join(f"{100 * share:.1f} %" for share in shares)
    return False, f"the arms have shares of {seen} of {events}, configured {wanted}"
