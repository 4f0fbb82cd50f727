"""Compare estimates with what happened: what a policy earned by its own choices, and its estimate from other events.

Calibration starts by itself with the first block in which `logging_policy` names a candidate: a ramp, or an A/B test.
Both values of a policy start with its own first event.

The events that other policies chose give the estimate by their logged propensities. The weight `pi(a | x) / p`, with p
the probability of the action under the policy that chose it, has expectation 1, and the weighted reward has the
policy's value as its expectation, given any policy that chose. The same holds for the mean over any selection of events
by their `logging_policy`.

If p is the probability under all arms together, this holds for all events together only. The policy's own events then
have weights other than 1, and the excess over 1 belongs to the estimate. With the sums over the n own and n' other
events, `(sum' w r + sum (w - 1) r) / n'` has the value as its expectation in either case. If own weights are 1, it is
the mean over the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, structs
from pydantic import TypeAdapter

from streameval.common.arrays import Array, Mask, decayed_path, ratio, split_blocks
from streameval.common.text import significant
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints
from streameval.ope.core import past
from streameval.ope.core.past import RatioPast
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.estimators import IPS, TermRange, Terms
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.grid import Grid, GridState
from streameval.ope.evaluator.room import Blocks, Owned, Present, Room
from streameval.ope.evidence.evidence import Evidence, RecentState, start_recent
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies.logged import LOGGING
from streameval.ope.report import Calibration, TrustCheck

FEWEST_BLOCKS_COMPARED = 50.0
"""The effective number of blocks that a comparison needs, and the one at which its sequential bound is narrowest."""
CENTRE_HORIZON = 10_000.0
"""The horizon in events of the value around which deviations within units are measured."""
ROUNDED = 1e-6
"""A propensity may differ from the probability of the policy that chose by this share."""
NUMBERS = (
    *("value", "lower", "upper", "estimated", "error", "error_lower", "error_upper"),
    *("lift_estimated", "lift", "lift_lower", "lift_upper"),
)
"""The numbers of a row of a Report."""
_INTERVAL: TypeAdapter[AnyInterval] = TypeAdapter(AnyInterval)


class CalibrationState(Struct, eq=False):
    """Hold the sums over the events that each policy chose, and over the others. Axis 0 of arrays counts policies.

    Attributes:
        started: [P]. Whether a policy has had an event of its own.
        recent: sums behind recent means
        centre: [P, 2]. Sums behind the value around which deviations are measured.
        compared: difference between the estimate and the observed mean
        size_square: [P]. Sum of the squares of block sizes.
        seen: grid over the events that each policy chose itself
        estimated: grid over the events of others
        base: grid over what the events of others earned, which candidates are compared with if production is `logging`
    """

    started: Mask
    recent: RecentState
    centre: Array
    compared: RatioPast
    size_square: Array
    seen: GridState
    estimated: GridState
    base: GridState | None = None

    @property
    def grids(self) -> dict[str, GridState]:
        """Return the states of grids by name."""
        states = {"seen": self.seen, "estimated": self.estimated}
        return states if self.base is None else {**states, "base": self.base}


class _Sides(NamedTuple):
    """Hold averaging weights of the events that each policy chose itself, and of the other events, [events, policies].

    Args:
        excess: averaging weight of an own event times the excess of its importance weight over 1. It is 0 if the
            propensity is the policy's own.
    """

    evidence: Evidence
    own: Array
    others: Array
    excess: Array

    @classmethod
    def from_evidence(cls, evidence: Evidence, own: Mask, named: Mask) -> _Sides:
        """Split events by the policy that chose them. An event without a `logging_policy` may be anyone's.

        Args:
            evidence: the events
            own: [events, policies]. Whether the policy chose the event.
            named: [events, policies]. Whether the event counts as chosen by the policy or by another one.
        """
        by_policy = own.T  # few policies choose an event
        chosen = np.flatnonzero(by_policy)
        weight, (own_weight, excess) = evidence.event_weight[chosen % len(own)], np.zeros((2, own.size))
        present = evidence.sample_weight.T.ravel()[chosen] > 0
        over = np.where(present, evidence.importance_weight.T.ravel()[chosen] - 1.0, 0.0)
        own_weight[chosen], excess[chosen] = weight, np.where(np.abs(over) > ROUNDED, over * weight, 0.0)
        others = np.where(named & ~own, evidence.sample_weight, 0.0)
        return cls(evidence, own_weight.reshape(by_policy.shape).T, others, excess.reshape(by_policy.shape).T)

    def sums(self, column: Array) -> Array:
        """Sum up a column over blocks, [blocks, policies]."""
        return np.asarray(split_blocks(column, self.evidence.blocks).sum(axis=-1))

    def expand(self, values: Array) -> Array:
        """Repeat numbers of blocks [blocks, policies] for each of their events, [events, policies]."""
        return np.repeat(values.T, self.evidence.block, axis=1).T

    @property
    def seen(self) -> Evidence:
        """Return the own events of each policy, with weights of 1."""
        ones, recent = np.ones_like(self.own), self.evidence.recent
        recent = recent._replace(weight_square=np.ones_like(recent.weight_square))
        return replace(self.evidence, importance_weight=ones, sample_weight=self.own, recent=recent)

    @property
    def estimated(self) -> Evidence:
        """Return the events of others. The excess of each block is spread over them."""
        evidence = replace(self.evidence, sample_weight=self.others)
        if not self.excess.any():
            return evidence
        reward, count = self.evidence.reward[:, None], self.sums(self.others)
        more, earned = (
            np.nan_to_num(ratio(self.sums(excess), count)) for excess in (self.excess, self.excess * reward)
        )
        weighted = evidence.weighted_reward + self.expand(earned)
        return replace(evidence, importance_weight=evidence.importance_weight + self.expand(more), weighted=weighted)

    def base(self, named: Mask) -> Evidence:
        """Return the events of others, with weights of 1."""
        weight = np.where(named & (self.own == 0), self.evidence.event_weight[:, None], 0.0)
        return replace(self.seen, sample_weight=weight)

    @property
    def left(self) -> Array:
        """Return the share of an own event's pairs with own events of other units, [blocks, policies].

        In a block, the number of own events and their excess depend on each other. Without the pairs of an event and
        its own unit, their product has the expectation that it has for independent events.
        """
        count, alone = self.sums(self.own), self.sums(self.own**2)
        signs = self.evidence.signs
        if signs is not None:
            signed = split_blocks(self.own, self.evidence.blocks) @ signs.reshape(
                self.evidence.blocks, -1, signs.shape[1]
            )
            alone = np.maximum(alone, np.square(signed).mean(axis=-1))
        return np.asarray(np.nan_to_num(1.0 - ratio(alone, count**2)))

    def differences(self, centre: Array) -> tuple[Evidence, Terms, Array, Array]:
        """Return the differences between the estimate and the observed mean, block by block.

        In each block, `d` is the estimate less the observed mean, and `m = n n' / (n + n')`. The terms u of the events
        of a block add up to `m d`, and the terms v to m. Drift and changing shares move both sides of a block alike.
        The term of an event is its reward less the centre, weighted. The sums over the events of a unit, in several
        blocks and on either side, thus show how much they vary.

        Args:
            centre: [policies, 2]. Sums behind the centre before the first block.

        Returns:
            Evidence and terms, m [blocks, policies], and the sums behind the centre after each block.
        """
        blocks = self.evidence.blocks
        reward, weighted = (
            self.evidence.reward.reshape(blocks, 1, -1),
            split_blocks(self.evidence.weighted_reward, blocks),
        )
        own_weight, other_weight = split_blocks(self.own, blocks), split_blocks(self.others, blocks)
        own, others = own_weight.sum(axis=-1), other_weight.sum(axis=-1)
        size = np.nan_to_num(ratio(own * others, own + others))
        middle = ratio((own_weight * reward).sum(axis=-1), own) + ratio((other_weight * weighted).sum(axis=-1), others)
        steps = np.stack([np.nan_to_num(size * middle) / 2, size], axis=-1)
        path = decayed_path(centre, steps, math.exp(-self.evidence.block / CENTRE_HORIZON))
        before = np.concatenate([centre[None], path[:-1]])
        sums = np.where(before[..., 1:] > 0, before, steps)
        around = np.nan_to_num(ratio(sums[..., 0], sums[..., 1]))[..., None]
        per_own, per_other = (np.nan_to_num(ratio(size, count))[..., None] for count in (own, others))
        u, v = (column.T for column in np.empty((2, *self.own.T.shape)))
        u_blocks, v_blocks = split_blocks(u, blocks), split_blocks(v, blocks)
        np.multiply(per_other, other_weight, out=v_blocks)
        np.multiply(v_blocks, weighted - around, out=u_blocks)
        u_blocks -= per_own * own_weight * (reward - around)
        if self.excess.any():
            u_blocks += per_other * self.left[..., None] * split_blocks(self.excess, blocks) * reward
        compared = self.expand((size > 0).astype(float))
        evidence = replace(self.evidence, importance_weight=v, sample_weight=compared, weighted=None)
        return evidence, Terms(u, v), size, path


def observe(config: EvaluatorConfig, state: CalibrationState | None, blocks: Blocks) -> CalibrationState | None:
    """Return the state after whole blocks, or None while no event names a candidate."""
    events, signs = blocks.logged, blocks.goal.signs
    names = events.logging_policy
    if config.ranking is not None or config.rewards[0].is_ratio or (names is None and state is None):
        return state
    names = np.full(len(events), NO_IDENTITY) if names is None else names
    own = (names[None] == _identities(config)[:, None]).T
    if state is None:
        chosen = own[:, 1:].any(axis=1)
        if not chosen.any():
            return None
        rest = slice(int(np.argmax(chosen)) // config.block * config.block, None)
        events, names, own, signs = events[rest], names[rest], own[rest], None if signs is None else signs[rest]
        state = fresh(config)
    by_block = split_blocks(own, len(events) // config.block).any(axis=-1)
    started = np.logical_or.accumulate(np.concatenate([state.started[None], by_block]))[1:]
    named = np.repeat(started.T, config.block, axis=1).T & (names != NO_IDENTITY)[:, None]
    evidence = Evidence.without_rewards(events, config.policies, config.block).with_reward(events.reward)
    evidence, recent = evidence.with_recent_means(state.recent)
    sides = _Sides.from_evidence(replace(evidence, signs=signs, actions=None, unsupported=None), own, named)
    compared, terms, size, path = sides.differences(state.centre)
    past.fold_ratio(state.compared, past.sum_ratio(compared, terms), has_denominator=True)
    grid, parts = _grid(config), {"seen": sides.seen, "estimated": sides.estimated}
    if state.base is not None:
        parts["base"] = sides.base(named)
    for name, part in parts.items():
        grid.fold(state.grids[name], [part])
    size_square = state.size_square + np.square(size).sum(axis=0)
    return structs.replace(state, started=started[-1], recent=recent, centre=path[-1], size_square=size_square)


def _identities(config: EvaluatorConfig) -> Identity:
    """Return the fingerprints of the policies, none for `logging`, which names all of them."""
    return fingerprints(["" if name == LOGGING else name for name in config.policies])


def start(_config: EvaluatorConfig) -> None:
    """Start without a state."""


def fresh(config: EvaluatorConfig) -> CalibrationState:
    """Start before the first block with an event of a candidate."""
    grid, policies = _grid(config), len(config.policies)
    return CalibrationState(
        started=np.zeros(policies, dtype=bool),
        recent=start_recent(policies),
        centre=np.zeros((policies, 2)),
        compared=past.start_ratio(policies, has_denominator=True),
        size_square=np.zeros(policies),
        seen=grid.start(),
        estimated=grid.start(),
        base=grid.start() if config.policies[0] == LOGGING else None,
    )


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: CalibrationState | None) -> CalibrationState | None:
    """Return the state of the config `before` under another one, or None if the averages differ."""
    if state is None or any(before.averages.get(label) != average for label, average in config.averages.items()):
        return None
    index, part = [before.policies.index(name) for name in config.policies], _grid(config)
    whole = replace(part, candidates=(True,) * len(before.policies))
    grids = {name: whole.select(grid_state, part, index) for name, grid_state in state.grids.items()}
    others = structs.replace(state, **dict.fromkeys(grids))
    kept: CalibrationState = structs.replace(select_policies(others, index), **grids)
    return kept


def join(both: EvaluatorConfig, own: Owned, late: Owned, company: Company) -> CalibrationState | None:
    """Return the state of a config that joins two others, or None while no event has named a candidate."""
    if own.state is None and late.state is None:
        return None
    first, second = (fresh(observer.config) if observer.state is None else observer.state for observer in (own, late))
    grid, names = _grid(both), ["seen", "estimated", *(["base"] if first.base is not None else [])]
    grids = {name: grid.join(getattr(first, name), getattr(second, name), company) for name in names}
    none: dict[str, Any] = dict.fromkeys(names)
    others = joined(structs.replace(first, **none), structs.replace(second, **none), company)
    merged: CalibrationState = structs.replace(others, **grids)
    return merged


def _grid(config: EvaluatorConfig) -> Grid:
    """Return a grid with the mean of weighted rewards on every average, with the usual interval."""
    averages = tuple(config.averages.values())
    return Grid(
        estimators=(IPS(),),
        averages=averages,
        bounds=tuple(_INTERVAL.validate_python({"kind": average.default_interval}) for average in averages),
        candidates=(True,) * len(config.policies),
        needs=frozenset(),
        trackers={},
        block=config.block,
    )


def rows(config: EvaluatorConfig, state: CalibrationState, _present: Present) -> dict[str, tuple[Calibration, ...]]:
    """Return the observed and the estimated value of each policy that chose events, on each average.

    Only finished blocks count.
    """
    calibrations = []
    values = {name: list(_values(config, grid_state)) for name, grid_state in state.grids.items()}
    for index, (average, seen) in enumerate(values["seen"]):
        estimated = values["estimated"][index][1]
        base = values["base"][index][1] if "base" in values else np.repeat(seen[:1], len(seen), axis=0)
        for policy, name in enumerate(config.policies):
            if not np.isnan(seen[policy, 0]):
                numbers = _numbers(seen[policy], estimated[policy], None if policy == 0 else base[policy])
                origin = config.origin_of_propensities
                calibrations.append(Calibration(policy=name, average=average, propensity=origin, **numbers))
    return {"calibration": tuple(calibrations)}


def _values(config: EvaluatorConfig, state: GridState) -> Iterator[tuple[str, Array]]:
    """Yield the label of each average, and the value, lower and upper bound of each policy, [policies, 3]."""
    low, high = config.reward_range
    for average, interval, reading, _ in _grid(config).read(state, None, config.errors):
        largest = np.nan_to_num(reading.importance_weight_max)
        terms = TermRange.by_column((IPS(),), config.reward_range, interval.largest_weight(largest))
        lower, upper = interval.bounds(reading, terms, config.confidence)
        yield average.label, np.column_stack([reading.value, np.clip(lower, low, high), np.clip(upper, low, high)])


def _numbers(seen: Array, estimated: Array, base: Array | None) -> dict[str, float | None]:
    """Return the numbers of a row, by `NUMBERS`.

    Args:
        seen: [3]. Observed value with its interval.
        estimated: [3]. Estimated value with its interval.
        base: [3]. Value of production with its interval, None for production's own row.
    """
    lifts = (math.nan,) * 4 if base is None else (estimated[0] - base[0], *_minus(seen, base))
    numbers = zip(NUMBERS, (*seen, estimated[0], *_minus(estimated, seen), *lifts), strict=True)
    return {name: None if math.isnan(number) else float(number) for name, number in numbers}


def _minus(one: Array, other: Array) -> tuple[float, float, float]:
    """Return the difference of two values with intervals, [3] each, from disjoint events.

    Units with events on both sides move both alike. The interval is then wider than necessary.
    """
    value = one[0] - other[0]
    return (
        value,
        value - math.hypot(one[0] - one[1], other[2] - other[0]),
        value + math.hypot(one[2] - one[0], other[0] - other[1]),
    )


def checks(
    config: EvaluatorConfig, state: CalibrationState, _policy_checks: Sequence[TrustCheck]
) -> Iterator[TrustCheck]:
    """Yield the trust check `calibration` of each policy with an estimate that can be compared with what it earned."""
    if config.promotion is None:
        return
    half = NormalDist().inv_cdf(0.5 + config.confidence / 2)
    for policy, mean, deviation, blocks in zip(
        config.policies, *(column.tolist() for column in compared(state)), strict=True
    ):
        if blocks >= FEWEST_BLOCKS_COMPARED:
            ok = abs(mean) <= multiple(blocks, config.promotion.trust.error) * deviation
            side = "below" if mean < 0 else "above"
            distance = f"{significant(abs(mean))} +- {significant(half * deviation)}"
            finding = f"the estimate is {distance} {side} the seen reward"
            yield TrustCheck(policy, "calibration", ok, finding if ok else f"{finding}: the propensities are wrong")


def compared(state: CalibrationState) -> tuple[Array, Array, Array]:
    """Return the mean difference of each policy, its standard error, and the effective number of independent blocks.

    The standard error for independent events is multiplied by the design effect, see `core.past`.
    """
    reading, sums = past.read_ratio(state.compared, has_denominator=True)
    _, difference, total, *_ = sums.T
    effect = np.fmax(1.0, reading["design_effect"])
    deviation = np.sqrt(ratio(reading["variance"] * effect, reading["count"]))
    blocks = np.nan_to_num(ratio(total**2, state.size_square * effect))
    return ratio(difference, total), deviation, blocks


def multiple(blocks: float, error: float) -> float:
    """Return the number of standard errors that a mean of this many blocks ever exceeds with about this probability.

    The bound is the normal mixture, an asymptotic confidence sequence: `sqrt((1 + 1 / t) (ln(1 + t) + 2 ln(1 /
    error)))` with `t = blocks / 50`.

    >>> round(multiple(1000, 0.01), 2)
    3.59

    Source: Robbins 1970; Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, Annals of Statistics 2024.
    """
    time = blocks / FEWEST_BLOCKS_COMPARED
    return math.sqrt((1 + 1 / time) * (math.log1p(time) + 2 * math.log(1 / error)))


ROOM = Room("calibration", start, resume, join, fresh, observe=observe, rows=rows, checks=checks)
