"""Track confidence sequences of all values and lifts on one average, and test a lift sequentially."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, ratio, side_by_side
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.observations import (
    LIFT_LOWER,
    LIFT_UPPER,
    SIDES,
    VALUE_LOWER,
    Observations,
    ObservationScale,
    Sampling,
    SamplingState,
    fold_sampling,
    observe_differences,
    observe_terms,
    observe_weights,
    start_sampling,
)
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, HeavyTailed, WealthProcess, measure

AT_ONCE = 20
"""Blocks that are measured at once, few enough for the cache."""
ROBUST = HeavyTailed()
LEVELS = 24
"""Lengths of windows with intervals that share the error: epochs of 1, 2, 4, .. 2^23 blocks."""


class SpanState(Struct, frozen=True, eq=False):
    """Hold the sums of the running sequences, with policies on axis 0.

    Attributes:
        blocks: the number of blocks so far
        older: the sums of the older sequence
        younger: the sums of the younger one, None if a single sequence runs
    """

    blocks: int
    older: Array
    younger: Array | None = None


@dataclass(frozen=True)
class SinceStart:
    """Cover all events since the start by one sequence with the whole error."""

    def start(self, nothing: Array) -> SpanState:
        """Start before the first block, from sums of no observations."""
        return SpanState(0, nothing)

    def parts(self, state: SpanState, blocks: int) -> Iterator[int]:
        """Yield the lengths of the parts that the next `blocks` fall into, so that no sequence ends within a part."""
        yield blocks

    def add(self, state: SpanState, sums: Array, blocks: int) -> SpanState:
        """Return the state after a part."""
        return SpanState(state.blocks + blocks, state.older + sums)

    def sums(self, state: SpanState) -> Array:
        """Return the sums over the stretch."""
        return state.older

    def share(self, state: SpanState) -> float:
        """Return the share of the error for the interval of this stretch."""
        return 1.0

    def running(self, state: SpanState) -> tuple[Array, Array]:
        """Return the sums of running sequences [rows, sequences, width], and their shares of the error of a test."""
        return state.older[..., None, :], np.ones(1)


@dataclass(frozen=True)
class Restarted:
    """Cover at most the last `2 tau` events and, once there are as many, more than the last `tau / 2`, at every time.

    A sequence that runs since the start hardly moves with the present. So at each level l = 0, 1, .. `LEVELS - 1` a new
    one starts after every epoch of `2^l` blocks, and runs for two epochs. The k-th gets the share `p_k = 1 / (k (k +
    1))` of the error of its level. Only the level of `tau` is kept, `2^l block <= tau < 2^(l+1) block`. From the end of
    the first epoch two of its sequences run. The older one has seen between one and two epochs, and provides `sums`.

    The shares of all restarts add up to 1. So the probability that any sequence ever misses the mean of its events is
    at most the error of the level (union bound). The intervals of windows of all lengths hold together, each level with
    `1 / LEVELS` of the error.

    A test is about one `tau`, a setting that does not come from the data, so it has the whole error. It also adds up
    the wealths. Let `W_k` be 1 until the k-th sequence starts. While the mean over no sequence exceeds the margin, each
    `W_k` is at most a supermartingale that starts at 1. Then `p_1 W_1 + p_2 W_2 + ..` is at most one, too, and ever
    reaches 1 / error with at most this probability (Ville). The sum over the two running sequences is smaller still.

    The price is width. After k restarts the logarithm of 1 / error has grown by about `2 ln k`, and by 3.2 for levels.

    >>> recent = Restarted(tau=250, block=100)
    >>> recent.epoch, list(recent.parts(SpanState(3, np.zeros(1)), 6))  # 200 events; 3 blocks are done
    (2, [1, 2, 2, 1])
    """

    tau: int
    block: int

    def __post_init__(self) -> None:
        if self.tau < self.block:
            raise ValueError(
                f"a sequence over the last {self.tau} events cannot restart within a block of {self.block}"
            )

    @property
    def epoch(self) -> int:
        """Return the number of blocks between two restarts."""
        return 1 << min((self.tau // self.block).bit_length(), LEVELS) - 1

    def start(self, nothing: Array) -> SpanState:
        return SpanState(0, nothing, nothing)

    def parts(self, state: SpanState, blocks: int) -> Iterator[int]:
        done, left = state.blocks % self.epoch, blocks
        while left:
            part = min(left, self.epoch - done)
            yield part
            done, left = 0, left - part

    def add(self, state: SpanState, sums: Array, blocks: int) -> SpanState:
        assert state.younger is not None
        done = state.blocks + blocks
        older, younger = state.older + sums, state.younger + sums
        if done % self.epoch == 0:
            older, younger = older if done == self.epoch else younger, np.zeros_like(younger)
        return SpanState(done, older, younger)

    def sums(self, state: SpanState) -> Array:
        return state.older

    def share(self, state: SpanState) -> float:
        return _share(max(1, state.blocks // self.epoch)) / LEVELS

    def running(self, state: SpanState) -> tuple[Array, Array]:
        assert state.younger is not None
        restarts = state.blocks // self.epoch
        shares = [_share(restarts), _share(restarts + 1)] if restarts else [_share(1), 0.0]
        return np.stack([state.older, state.younger], axis=-2), np.array(shares)


def _share(number: int) -> float:
    """Return the share of the error of its level for the sequence with this number, from 1."""
    return 1 / (number * (number + 1))


RestartSchedule: TypeAlias = SinceStart | Restarted
"""The stretch of the stream that a sequence is about, and its share of the error probability."""


def error_shares(error: float, ranks: Sequence[int], family_size: int | None = None) -> Array:
    """Return the error probability of each candidate.

    The i-th candidate gets `6 error / (pi i)^2`. These add up to `error` over any number of candidates, so that one
    more costs the others nothing. With a `family_size`, each gets an equal share.

    Args:
        error: the error of all candidates together
        ranks: the number of each candidate in the order of all that were ever added, from 1
        family_size: the number of candidates with equal shares

    >>> error_shares(0.05, [1, 2, 3]).round(4), error_shares(0.05, [1, 2, 3], family_size=10)
    (array([0.0304, 0.0076, 0.0034]), array([0.005, 0.005, 0.005]))
    """
    if family_size is not None:
        return np.full(len(ranks), error / family_size)
    return 6.0 * error / (math.pi * np.asarray(ranks, dtype=float)) ** 2


@dataclass(frozen=True)
class TrackedGroup:
    """Group estimators that share their sequences.

    Attributes:
        label: the key of its state
        process: bets on the observations
        scale: the scale of the observations
        estimators: their indices in the grid
        term: the index of the estimator with the observed terms, None to observe importance weights
    """

    label: str
    process: WealthProcess
    scale: ObservationScale
    estimators: tuple[int, ...]
    term: int | None = None

    def observed(self, evidence: Evidence, terms: Sequence[Terms], blocks: slice = slice(None)) -> Observations:
        """Return the observations of some blocks."""
        if self.term is None:
            return observe_weights(evidence, self.scale, blocks)
        return observe_terms(evidence, terms[self.term].numerator, self.scale, blocks)


class TrackedBounds(NamedTuple):
    """Hold the bounds of values and of lifts over production, and further columns of the Report.

    Columns are ordered as `policy * E + estimator`. Policy 0 is production, which has no lift.

    Attributes:
        value: the lower bound, the upper bound, and the estimate of each of them, not cut to any range, NaN if
            withheld. The lower bound is about weighted rewards, the upper one about weighted losses. [4, columns]
        lift: likewise for lifts [4, columns]
        details: further columns by name
    """

    value: Array
    lift: Array
    details: Mapping[str, Array]

    @classmethod
    def side_by_side(cls, trackers: Sequence[TrackedBounds | None], policies: int) -> TrackedBounds | None:
        """Join the bounds of several averages into one, without details. Return None if there are none."""
        bounds = [part for part in trackers if part is not None]
        if not bounds:
            return None
        value, lift = (
            side_by_side([part.T for part in columns], policies).T
            for columns in zip(*(part[:2] for part in bounds), strict=True)
        )
        return cls(value, lift, {})


class GroupState(Struct, frozen=True, eq=False):
    """Hold the centre of the bets of some sequences [policies, sides, 2], and their sums."""

    centre: Array
    span: SpanState


class TrackerState(Struct, frozen=True, eq=False):
    """Hold how events are sampled, and the sequences of each group by its label."""

    sampling: SamplingState
    groups: dict[str, GroupState]


@dataclass(frozen=True)
class SequenceTracker:
    """Track confidence sequences for every policy under several estimators, some with shared sequences.

    The intervals of an estimator that is in no group are withheld.

    Attributes:
        groups: the groups of estimators
        span: the stretch of the stream
        estimators: the number of estimators
    """

    groups: tuple[TrackedGroup, ...]
    span: RestartSchedule
    estimators: int

    def start(self, policies: int) -> TrackerState:
        """Start before the first event."""
        shape = policies, len(SIDES)
        groups = {
            group.label: GroupState(np.zeros((*shape, 2)), self.span.start(np.zeros((*shape, group.process.width))))
            for group in self.groups
        }
        return TrackerState(start_sampling(policies), groups)

    def fold(self, state: TrackerState, evidence: Evidence, terms: Sequence[Terms]) -> TrackerState:
        """Return the state after these whole blocks, with `terms` for each estimator."""
        groups = {}
        for group in self.groups:
            centre, span = state.groups[group.label].centre, state.groups[group.label].span
            for first in range(0, evidence.blocks, AT_ONCE):
                observations = group.observed(evidence, terms, slice(first, first + AT_ONCE))
                parts = list(self.span.parts(span, len(observations.values)))
                sums, centre = measure(group.process, observations, centre, parts)
                for size, added in zip(parts, sums, strict=True):
                    span = self.span.add(span, added, size)
            groups[group.label] = GroupState(centre, span)
        return TrackerState(fold_sampling(state.sampling, evidence.sample_weight), groups)

    def select_groups(self, state: TrackerState) -> TrackerState:
        """Return the state of this tracker, out of the state of one with more estimators."""
        return structs.replace(state, groups={group.label: state.groups[group.label] for group in self.groups})

    def read(self, state: TrackerState, tail: tuple[Evidence, Sequence[Terms]] | None, error: Array) -> TrackedBounds:
        """Return the current intervals.

        Args:
            state: the state after the last block
            tail: evidence and terms of the unfinished block
            error: the probability that the two-sided interval of a policy ever misses [policies]
        """
        bounds_and_estimates = np.full((2, len(SIDES), len(error), self.estimators), np.nan)
        bounds, estimates = bounds_and_estimates
        counts = np.full((len(error), self.estimators), np.nan)
        for group in self.groups:
            group_state = state.groups[group.label]
            sums = self.span.sums(group_state.span)
            if tail is not None:
                sums = sums + measure(group.process, group.observed(*tail), group_state.centre, [1])[0][0]
            share = np.broadcast_to((error / 2 * self.span.share(group_state.span))[:, None], sums.shape[:-1])
            means = group.process.lower(sums.reshape(-1, group.process.width), share.ravel()).reshape(share.shape)
            bounds[:, :, group.estimators] = group.scale.bounds(means)[..., None]
            averages = ratio(sums[..., TOTAL], sums[..., COUNT])
            estimates[:, :, group.estimators] = group.scale.bounds(averages)[..., None]
            counts[:, group.estimators] = sums[:, VALUE_LOWER, COUNT, None]
        sampling = state.sampling
        uneven = (sampling if tail is None else fold_sampling(sampling, tail[0].sample_weight)).uneven
        bounds[:, uneven] = np.nan
        bounds[LIFT_LOWER:, uneven | uneven[0]] = np.nan
        bounds[LIFT_LOWER:, 0] = np.nan
        details = {"interval_events": counts.ravel()}
        if uneven.any():
            details["uneven_sampling"] = np.repeat(np.where(uneven, 1.0, np.nan), self.estimators)
        return TrackedBounds(
            bounds_and_estimates[:, :LIFT_LOWER].reshape(4, -1),
            bounds_and_estimates[:, LIFT_LOWER:].reshape(4, -1),
            details,
        )


class LiftObservations(NamedTuple):
    """Hold the events of some blocks as a `LiftTest` bets on them, whatever its margin.

    They are not summed up, because the centre of a bet comes from all blocks before.
    """

    seen: Observations
    sampling: Sampling


class LiftTestState(Struct, frozen=True, eq=False):
    """Hold how events are sampled, the centre of the bets [policies, 1, 2], and the sums of the sequences."""

    sampling: SamplingState
    centre: Array
    span: SpanState


@dataclass(frozen=True)
class LiftTest:
    """Test a lift sequentially: collect evidence that the average lift over production exceeds `margin`.

    The evidence is the logarithm of the wealth of bets on a lift above `margin`. The lower bound of the lift's
    confidence sequence with error e is above `margin` exactly if the evidence is above `ln(1 / e)`. If the average lift
    since the start (or over the stretch of `span`) never exceeds `margin`, the evidence ever reaches `ln(1 / e)` with
    probability at most e, whenever and however often anyone looks. With a span of several sequences, wealths are added
    up with their shares of the error. Then some running sequence has seen such a lift. The test is not about the
    current lift.

    With `below` the evidence is that the average lift is below `margin`. Nothing limits the term of a ranking from
    above, so rankings give no such evidence.

    Args:
        reward_range: the lowest and the highest reward
        margin: in units of reward
        span: the stretch of the stream
        largest_loss: see promotion's `RuleContext`, infinity gives no evidence
        below: tests whether the average lift is below the margin
    """

    reward_range: tuple[float, float]
    margin: float = 0.0
    span: RestartSchedule = SinceStart()
    largest_loss: float | None = None
    below: bool = False

    @property
    def _unit(self) -> float:
        """Return the difference of lifts that moves the mean of the observations by 1."""
        low, high = self.reward_range
        return high - low if self.largest_loss is None else self.largest_loss

    @property
    def _sign(self) -> float:
        return -1.0 if self.below else 1.0

    def start(self, policies: int) -> LiftTestState:
        """Start before the first event."""
        span = self.span.start(np.zeros((policies, ROBUST.width)))
        return LiftTestState(start_sampling(policies), np.zeros((policies, 1, 2)), span)

    def observed(self, evidence: Evidence) -> LiftObservations:
        """Return the observations of some whole blocks (half 1)."""
        if self.largest_loss is None:
            scale = ObservationScale(*self.reward_range)
            observations = observe_weights(evidence, scale, sides=(LIFT_LOWER, LIFT_UPPER))
        else:
            observations = observe_differences(evidence, self.largest_loss)
        return LiftObservations(observations, Sampling.from_weights(evidence.sample_weight, evidence.blocks))

    def fold(self, state: LiftTestState, observed: LiftObservations) -> tuple[Array, LiftTestState]:
        """Return the evidence after each of these whole blocks [blocks, policies], and the state after them (half 2).

        It is minus infinity for production itself, under uneven sampling, and once a weight was negative, as for
        slates.
        """
        seen = observed.seen.select_side(int(self.below))
        sums, centre = measure(ROBUST, seen, state.centre, [1] * len(seen.values))
        span, path = state.span, []
        for added in sums[:, :, 0]:
            span = self.span.add(span, added, 1)
            path.append(self.span.running(span))
        running, shares = (np.stack(parts) for parts in zip(*path, strict=True))
        wealth = ROBUST.log_wealth_of_all(running, shares[:, None], np.array(1 + self._sign * self.margin / self._unit))
        uneven, sampling = observed.sampling.path(state.sampling)
        unknown = np.isnan(wealth) | uneven | uneven[:, :1] | math.isinf(self._unit)
        unknown[:, 0] = True
        return np.where(unknown, -np.inf, wealth), LiftTestState(sampling, centre, span)

    def bound(self, state: LiftTestState, error: Array) -> Array:
        """Return the bound of the average lift at the last block end, NaN if unknown, for errors [policies].

        It is the lower bound, or the upper one with `below`.
        """
        mean = ROBUST.lower_of_all(*self.span.running(state.span), error)
        uneven = state.sampling.uneven
        is_known = ~(uneven | uneven[0] | math.isinf(self._unit)) & (np.arange(len(mean)) > 0)
        with np.errstate(invalid="ignore"):
            return np.where(is_known, self._sign * self._unit * (mean - 1), np.nan)
