"""Whether estimates come true: what a policy earned by its own choices, and its estimate from the events of others.

It starts by itself with the first block in which `logging_policy` names a candidate: a ramp, or an A/B test. Both
values of a policy start with its own first event.

The events of the others give the estimate by their logged propensities. The weight `pi(a | x) / p`, with p the
probability of the action under the policy that chose it, has the expectation 1, and the weighted reward that of the
policy's value, given any policy that chose: so has the mean over any selection of events by their `logging_policy`.
Where p is the probability under all arms together, this holds for all events together only. The policy's own events
then have weights other than 1, and the excess over 1 belongs to the estimate: with the sums over the n own and n' other
events, `(sum' w r + sum (w - 1) r) / n'` has the expectation of the value in either case, and where own weights are 1
it is the mean over the others.
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
    """Hold what is known about the events of each policy; axis 0 of arrays counts policies.

    Attributes:
        started: whether a policy has had an event of its own [P]
        recent: the sums behind recent means
        centre: the sums behind the value around which deviations are measured [P, 2]
        compared: the difference between the estimate and the seen mean
        size_square: the sum of the squares of the sizes of blocks [P]
        seen: the events that each policy chose itself
        estimated: the events of others
        base: what the events of others earned, with which candidates are compared if production is `logging`
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
        """The states of grids by name."""
        found = {"seen": self.seen, "estimated": self.estimated}
        return found if self.base is None else {**found, "base": self.base}


class _Sides(NamedTuple):
    """The averaging weights of the events that each policy chose itself, and of those of others, [events, policies].

    `excess`: of its own events, the averaging weight times what the importance weight exceeds 1 by; 0 where the
    propensity is that of the policy.
    """

    evidence: Evidence
    own: Array
    others: Array
    excess: Array

    @classmethod
    def of(cls, evidence: Evidence, own: Mask, named: Mask) -> _Sides:
        """`own`: the events that a policy chose; `named` [events, policies]: those that count as its own or another's.

        An event without a `logging_policy` may be anyone's.
        """
        by_policy = own.T  # few policies choose an event
        chosen = np.flatnonzero(by_policy)
        weight, (of_own, excess) = evidence.event_weight[chosen % len(own)], np.zeros((2, own.size))
        present = evidence.sample_weight.T.ravel()[chosen] > 0
        over = np.where(present, evidence.importance_weight.T.ravel()[chosen] - 1.0, 0.0)
        of_own[chosen], excess[chosen] = weight, np.where(np.abs(over) > ROUNDED, over * weight, 0.0)
        others = np.where(named & ~own, evidence.sample_weight, 0.0)
        return cls(evidence, of_own.reshape(by_policy.shape).T, others, excess.reshape(by_policy.shape).T)

    def sums(self, column: Array) -> Array:
        """Sums over blocks, [blocks, policies]."""
        return np.asarray(split_blocks(column, self.evidence.blocks).sum(axis=-1))

    def each(self, of_blocks: Array) -> Array:
        """Numbers of blocks [blocks, policies] for each of their events, [events, policies]."""
        return np.repeat(of_blocks.T, self.evidence.block, axis=1).T

    @property
    def seen(self) -> Evidence:
        """The own events of each policy, with weights of 1."""
        ones, recent = np.ones_like(self.own), self.evidence.recent
        recent = recent._replace(weight_square=np.ones_like(recent.weight_square))
        return replace(self.evidence, importance_weight=ones, sample_weight=self.own, recent=recent)

    @property
    def estimated(self) -> Evidence:
        """The events of others; each block's excess is spread over them."""
        found = replace(self.evidence, sample_weight=self.others)
        if not self.excess.any():
            return found
        reward, count = self.evidence.reward[:, None], self.sums(self.others)
        more, earned = (np.nan_to_num(ratio(self.sums(each), count)) for each in (self.excess, self.excess * reward))
        weighted = found.weighted_reward + self.each(earned)
        return replace(found, importance_weight=found.importance_weight + self.each(more), weighted=weighted)

    def base(self, named: Mask) -> Evidence:
        """The events of others, with weights of 1."""
        weight = np.where(named & (self.own == 0), self.evidence.event_weight[:, None], 0.0)
        return replace(self.seen, sample_weight=weight)

    @property
    def left(self) -> Array:
        """The share of an own event's pairs with own events of other units, [blocks, policies].

        In a block, the number of own events and their excess depend on each other: without the pairs of an event and
        its own unit, the product of both has the expectation that it has for independent events.
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
        """The differences between the estimate and the seen mean, block by block.

        In each block, `d` is the estimate less the seen mean, and `m = n n' / (n + n')`. The terms u of the events of a
        block add up to `m d`, the terms v to m; drift and changing shares move both sides of a block alike. The terms
        of an event are its reward less the centre, weighted, so that the sums over the events of a unit, which lie in
        several blocks and on either side, show how much they vary. Returned are also m, [blocks, policies], and the
        sums for the centre after each block; `centre` [policies, 2]: those before.
        """
        blocks = self.evidence.blocks
        reward, weighted = (
            self.evidence.reward.reshape(blocks, 1, -1),
            split_blocks(self.evidence.weighted_reward, blocks),
        )
        of_own, of_others = split_blocks(self.own, blocks), split_blocks(self.others, blocks)
        own, others = of_own.sum(axis=-1), of_others.sum(axis=-1)
        size = np.nan_to_num(ratio(own * others, own + others))
        middle = ratio((of_own * reward).sum(axis=-1), own) + ratio((of_others * weighted).sum(axis=-1), others)
        steps = np.stack([np.nan_to_num(size * middle) / 2, size], axis=-1)
        path = decayed_path(centre, steps, math.exp(-self.evidence.block / CENTRE_HORIZON))
        before = np.concatenate([centre[None], path[:-1]])
        known = np.where(before[..., 1:] > 0, before, steps)
        around = np.nan_to_num(ratio(known[..., 0], known[..., 1]))[..., None]
        per_own, per_other = (np.nan_to_num(ratio(size, count))[..., None] for count in (own, others))
        u, v = (column.T for column in np.empty((2, *self.own.T.shape)))
        of_u, of_v = split_blocks(u, blocks), split_blocks(v, blocks)
        np.multiply(per_other, of_others, out=of_v)
        np.multiply(of_v, weighted - around, out=of_u)
        of_u -= per_own * of_own * (reward - around)
        if self.excess.any():
            of_u += per_other * self.left[..., None] * split_blocks(self.excess, blocks) * reward
        compared = self.each((size > 0).astype(float))
        evidence = replace(self.evidence, importance_weight=v, sample_weight=compared, weighted=None)
        return evidence, Terms(u, v), size, path


def observe(config: EvaluatorConfig, state: CalibrationState | None, blocks: Blocks) -> CalibrationState | None:
    """Return the state after whole blocks; None while no event names a candidate."""
    events, signs = blocks.logged, blocks.goal.signs
    names = events.logging_policy
    if config.ranking is not None or (names is None and state is None):
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
    evidence = Evidence.without_rewards(events, config.policies, config.block).of_reward(events.reward)
    evidence, recent = evidence.with_recent_means(state.recent)
    sides = _Sides.of(replace(evidence, signs=signs, actions=None, unsupported=None), own, named)
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
    """The fingerprints of the policies; none for `logging`, which names all of them."""
    return fingerprints(["" if name == LOGGING else name for name in config.policies])


def start(_plan: EvaluatorConfig) -> None:
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
    """Return the state of the config `before` under another one; None if an average is another one."""
    if state is None or any(before.averages.get(label) != average for label, average in config.averages.items()):
        return None
    index, part = [before.policies.index(name) for name in config.policies], _grid(config)
    whole = replace(part, candidates=(True,) * len(before.policies))
    grids = {name: whole.select(each, part, index) for name, each in state.grids.items()}
    others = structs.replace(state, **dict.fromkeys(grids))
    kept: CalibrationState = structs.replace(select_policies(others, index), **grids)
    return kept


def join(both: EvaluatorConfig, own: Owned, late: Owned, company: Company) -> CalibrationState | None:
    """Return the state of a config of two; None while no event has named a candidate."""
    if own.state is None and late.state is None:
        return None
    first, second = (fresh(each.config) if each.state is None else each.state for each in (own, late))
    grid, names = _grid(both), ["seen", "estimated", *(["base"] if first.base is not None else [])]
    grids = {name: grid.join(getattr(first, name), getattr(second, name), company) for name in names}
    none: dict[str, Any] = dict.fromkeys(names)
    others = joined(structs.replace(first, **none), structs.replace(second, **none), company)
    found: CalibrationState = structs.replace(others, **grids)
    return found


def _grid(config: EvaluatorConfig) -> Grid:
    """The mean of weighted rewards on every average, with the usual interval."""
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
    """For each policy that chose events, and each average, the seen value and the estimated one.

    Of the finished blocks.
    """
    found = []
    values = {name: list(_values(config, each)) for name, each in state.grids.items()}
    for place, (average, seen) in enumerate(values["seen"]):
        estimated = values["estimated"][place][1]
        base = values["base"][place][1] if "base" in values else np.repeat(seen[:1], len(seen), axis=0)
        for policy, name in enumerate(config.policies):
            if not np.isnan(seen[policy, 0]):
                numbers = _numbers(seen[policy], estimated[policy], None if policy == 0 else base[policy])
                origin = config.origin_of_propensities
                found.append(Calibration(policy=name, average=average, propensity=origin, **numbers))
    return {"calibration": tuple(found)}


def _values(config: EvaluatorConfig, state: GridState) -> Iterator[tuple[str, Array]]:
    """For each average its label, and the value, lower and upper bound of each policy, [policies, 3]."""
    low, high = config.reward_range
    for average, interval, reading, _ in _grid(config).read(state, None, config.errors):
        largest = np.nan_to_num(reading.importance_weight_max)
        terms = TermRange.by_column((IPS(),), config.reward_range, interval.largest_weight(largest))
        lower, upper = interval.bounds(reading, terms, config.confidence)
        yield average.label, np.column_stack([reading.value, np.clip(lower, low, high), np.clip(upper, low, high)])


def _numbers(seen: Array, estimated: Array, base: Array | None) -> dict[str, float | None]:
    """The numbers of a row, by `NUMBERS`; `base` [3]: value and interval of production, None for its own row."""
    lifts = (math.nan,) * 4 if base is None else (estimated[0] - base[0], *_minus(seen, base))
    numbers = zip(NUMBERS, (*seen, estimated[0], *_minus(estimated, seen), *lifts), strict=True)
    return {name: None if math.isnan(each) else float(each) for name, each in numbers}


def _minus(one: Array, other: Array) -> tuple[float, float, float]:
    """The difference of two values with intervals, [3] each, from other events.

    Units that have events on both sides move both alike: the interval is then wider than it need be.
    """
    value = one[0] - other[0]
    return (
        value,
        value - math.hypot(one[0] - one[1], other[2] - other[0]),
        value + math.hypot(one[2] - one[0], other[0] - other[1]),
    )


def checks(config: EvaluatorConfig, state: CalibrationState, _known: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """The trust check `calibration` of each policy whose estimate can be compared with what it earned."""
    if config.promotion is None:
        return
    half = NormalDist().inv_cdf(0.5 + config.confidence / 2)
    for policy, mean, deviation, blocks in zip(
        config.policies, *(each.tolist() for each in compared(state)), strict=True
    ):
        if blocks >= FEWEST_BLOCKS_COMPARED:
            ok = abs(mean) <= multiple(blocks, config.promotion.trust.error) * deviation
            side = "below" if mean < 0 else "above"
            distance = f"{significant(abs(mean))} +- {significant(half * deviation)}"
            finding = f"the estimate is {distance} {side} the seen reward"
            yield TrustCheck(policy, "calibration", ok, finding if ok else f"{finding}: the propensities are wrong")


def compared(state: CalibrationState) -> tuple[Array, Array, Array]:
    """The mean difference of each policy, its standard error, and the effective number of independent blocks.

    The standard error is that of independent events, times the design effect: see `core.past`.
    """
    found, sums = past.read_ratio(state.compared, has_denominator=True)
    _, difference, total, *_ = sums.T
    effect = np.fmax(1.0, found["design_effect"])
    deviation = np.sqrt(ratio(found["variance"] * effect, found["count"]))
    blocks = np.nan_to_num(ratio(total**2, state.size_square * effect))
    return ratio(difference, total), deviation, blocks


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


ROOM = Room("calibration", start, resume, join, fresh, observe=observe, rows=rows, checks=checks)
