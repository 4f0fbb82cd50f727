"""Turn events into non-negative observations, one row for each bound: the input of the confidence sequences.

Let `s = (r - r_min) / (r_max - r_min)` be the scaled reward, w the importance weight of a policy, and w0 the weight of
production (1 for the policy that logged):

| side | observation | mean, in units of the reward range |
|---|---|---|
| value, lower bound | `w s` | value above r_min |
| value, upper bound | `w (1 - s)` | value below r_max |
| lift, lower bound | `w s + w0 (1 - s)` | 1 + lift |
| lift, upper bound | `w0 s + w (1 - s)` | 1 - lift |

If production logged, `w s + 1 - s = (w - 1) s + 1`. So the observation of the lift is bounded below, because a weight
is not negative. For a named production one sequence bounds the lift with the whole error and uses what the two policies
have in common. The difference of two sequences would take half the error each.

The means need `E[w] = 1`. If the logging policy never takes some action of the policy, `E[w] < 1`, and the bounds still
hold. They count the worst possible reward for actions that were never logged (r_min in the lower bound, r_max in the
upper one). They do not hold with wrong propensities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, split_blocks
from streameval.events.action_sets import Index
from streameval.ope.evidence.evidence import Evidence

VALUE_LOWER, VALUE_UPPER, LIFT_LOWER, LIFT_UPPER = range(4)
SIDES = (VALUE_LOWER, VALUE_UPPER, LIFT_LOWER, LIFT_UPPER)
MAX_OBSERVATION = 1.5**50
"""Larger observations (6e8) count as this much, which can only lower a lower bound."""
LIGHT = 3.0
"""Weights up to this one are light."""
RANGE_ROUNDING = 1e-6
"""Tolerance for an observation above 1, because distributions add up to 1 only up to rounding."""


class ObservationScale(NamedTuple):
    """Scale an estimate in [low, high] to observations.

    Attributes:
        low: the lowest estimate
        high: the highest estimate
        value: the observation of a value that a bounded wealth process calls 1
        lift: the observation of a lift that a bounded wealth process calls 1
    """

    low: float
    high: float
    value: float = 1.0
    lift: float = 1.0

    def bounds(self, means: Array) -> Array:
        """Return bounds [sides, policies] from lower bounds of the four means [policies, sides]."""
        span, (value_low, value_high, lift_low, lift_high) = self.high - self.low, np.moveaxis(means, 1, 0)
        value = self.low + span * self.value * value_low, self.high - span * self.value * value_high
        return np.stack([*value, span * (self.lift * lift_low - 1), span * (1 - self.lift * lift_high)])


class Observations(NamedTuple):
    """Hold the observations of some blocks.

    Attributes:
        values: 0 if absent, NaN if unknown [blocks, policies, sides, events]
        present: None if all are present
        light: whether the weights behind an observation are at most `LIGHT`, None if all are
    """

    values: Array
    present: Mask | None = None
    light: Mask | None = None

    @property
    def counts(self) -> Array:
        """Return how many observations are present in each block [blocks, policies, sides]."""
        if self.present is None:
            return np.full(self.values.shape[:-1], float(self.values.shape[-1]))
        return np.asarray(self.present.sum(axis=-1, dtype=float))

    def select_blocks(self, blocks: Index) -> Observations:
        """Select blocks."""
        present, light = (None if mask is None else mask[blocks] for mask in self[1:])
        return Observations(self.values[blocks], present, light)

    def select_side(self, side: int) -> Observations:
        """Select one side, by its index."""
        present, light = (None if mask is None else mask[:, :, side : side + 1] for mask in self[1:])
        return Observations(self.values[:, :, side : side + 1], present, light)


def observe_weights(
    evidence: Evidence, scale: ObservationScale, blocks: slice = slice(None), sides: Sequence[int] = SIDES
) -> Observations:
    """Return the observations of some sides by importance weights, NaN if a weight is negative.

    All are NaN if the weighted reward is not the weight times the reward.
    """
    weight = split_blocks(evidence.importance_weight, evidence.blocks)[blocks]
    if evidence.weighted is not None:
        weight = np.full_like(weight, np.nan)
    if weight.size and weight.min() < 0:
        weight = np.where(weight < 0, np.nan, weight)
    share = ((evidence.reward - scale.low) / (scale.high - scale.low)).reshape(evidence.blocks, 1, -1)[blocks]
    values = np.empty((len(weight), weight.shape[1], len(sides), weight.shape[2]))
    for index, side in enumerate(sides):
        earned, missed = (share, 1.0 - share) if side in (VALUE_LOWER, LIFT_LOWER) else (1.0 - share, share)
        np.multiply(weight, earned, out=values[:, :, index])
        if side in (LIFT_LOWER, LIFT_UPPER):
            values[:, :, index] += weight[:, :1] * missed
        factor = scale.lift if side in (LIFT_LOWER, LIFT_UPPER) else scale.value
        if factor != 1.0:
            values[:, :, index] /= factor
    light = None
    if weight.size and not weight.max() <= LIGHT:  # NaN is not
        fits = (weight <= LIGHT) | np.isnan(weight)
        light = _by_side(fits, fits & fits[:, :1], sides)
        np.minimum(values, MAX_OBSERVATION, out=values)
    return _present(Observations(values, light=light), evidence, blocks, sides)


def observe_terms(
    evidence: Evidence, term: Array, scale: ObservationScale, blocks: slice = slice(None)
) -> Observations:
    """Return the observations of all sides by terms [events, policies] in [low, high], NaN beyond."""
    inside = (split_blocks(term, evidence.blocks)[blocks] - scale.low) / (scale.high - scale.low)
    if inside.size and (inside.max() > 1.0 + RANGE_ROUNDING or inside.min() < -RANGE_ROUNDING):
        inside[(inside > 1.0 + RANGE_ROUNDING) | (inside < -RANGE_ROUNDING)] = np.nan
    above = inside - inside[:, :1]
    sides = (inside, 1.0 - inside, (1.0 + above) / scale.lift, (1.0 - above) / scale.lift)
    return _present(Observations(np.stack(sides, axis=2)), evidence, blocks, SIDES)


def observe_differences(evidence: Evidence, largest_loss: float) -> Observations:
    """Return `1 + (term - term of production) / largest_loss` for the lower side of lifts, NaN below 0.

    Observations of the upper side are NaN, because no number limits how much larger a candidate's term is.
    """
    terms = split_blocks(evidence.weighted_reward, evidence.blocks)
    values = (1.0 + (terms - terms[:, :1]) / largest_loss)[:, :, None]
    values = np.where(values < -RANGE_ROUNDING, np.nan, np.clip(values, 0.0, MAX_OBSERVATION))
    values = np.concatenate([values, np.full_like(values, np.nan)], axis=2)
    light = (values <= LIGHT) | np.isnan(values)
    return _present(Observations(values, light=light), evidence, slice(None), (LIFT_LOWER, LIFT_UPPER))


def _by_side(values: Mask, lifts: Mask, sides: Sequence[int]) -> Mask:
    return np.stack([lifts if side in (LIFT_LOWER, LIFT_UPPER) else values for side in sides], axis=2)


def _present(observations: Observations, evidence: Evidence, blocks: slice, sides: Sequence[int]) -> Observations:
    """Leave out observations of events that lack the policy, or, for a lift, production."""
    is_present = split_blocks(evidence.sample_weight, evidence.blocks)[blocks] > 0
    if is_present.all():
        return observations
    present = _by_side(is_present, is_present & is_present[:, :1], sides)
    return observations._replace(values=np.where(present, observations.values, 0.0), present=present)


class SamplingState(Struct, frozen=True, eq=False):
    """Hold how the events of each policy are sampled [policies].

    Attributes:
        first: the sampling weight of the first event, NaN without one
        uneven: whether another event has a different one
    """

    first: Array
    uneven: Mask


def start_sampling(policies: int) -> SamplingState:
    """Start before the first event, when nothing is known about downsampling."""
    return SamplingState(np.full(policies, np.nan), np.zeros(policies, dtype=bool))


def fold_sampling(state: SamplingState, sample_weight: Array) -> SamplingState:
    """Note whether the events of a policy are sampled unevenly, so that they stand for different numbers of events.

    A log that keeps every event with equal probability is a smaller log of this stream. Its bounds need no change, and
    are about the events it holds. If probabilities differ, the number of omitted events is unknown, a sum of inverse
    probabilities is not a count, and no bound here is proven. The bounds of the policy are then withheld.
    """
    first, uneven = state.first, state.uneven
    if not sample_weight.size or ((sample_weight == 1.0).all() and (first == 1.0).all()):
        return state
    present = sample_weight > 0
    earliest = sample_weight[present.argmax(axis=0), np.arange(len(first))]
    first = np.where(np.isnan(first) & present.any(axis=0), earliest, first)
    return SamplingState(first, uneven | (present & (sample_weight != first)).any(axis=0))


class Sampling(NamedTuple):
    """Hold how the events of some blocks are sampled [blocks, policies].

    Attributes:
        first: the sampling weight of the first event that has the policy, NaN without one
        uneven: whether another event of the block differs
    """

    first: Array
    uneven: Mask

    @classmethod
    def from_weights(cls, sample_weight: Array, blocks: int) -> Sampling:
        """Summarise the weights [events, policies] of whole blocks."""
        weight = split_blocks(sample_weight, blocks)
        if (weight == 1.0).all():
            return cls(np.ones(weight.shape[:2]), np.zeros(weight.shape[:2], dtype=bool))
        present = weight > 0
        first = np.take_along_axis(weight, present.argmax(axis=-1)[..., None], axis=-1)
        uneven = (present & (weight != first)).any(axis=-1)
        return cls(np.where(present.any(axis=-1), first[..., 0], np.nan), uneven)

    def path(self, state: SamplingState) -> tuple[Mask, SamplingState]:
        """Tell whether sampling was uneven up to the end of each block [blocks, policies]. Return the state too."""
        firsts = np.concatenate([state.first[None], self.first])
        first = np.take_along_axis(firsts, np.argmax(~np.isnan(firsts), axis=0)[None], axis=0)[0]
        new = self.uneven | (~np.isnan(self.first) & (self.first != first))
        path = np.logical_or.accumulate(np.concatenate([state.uneven[None], new]))[1:]
        return path, SamplingState(first, path[-1])
