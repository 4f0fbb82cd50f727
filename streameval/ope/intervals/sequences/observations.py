"""Events as observations that are never negative, one row for each bound: what confidence sequences are made of.

With rewards scaled to `s = (r - r_min) / (r_max - r_min)` and importance weights w of a policy, w0 of production (1
for the policy that logged):

| row | observation | mean, in reward ranges |
|---|---|---|
| value, lower bound | `w s` | value above r_min |
| value, upper bound | `w (1 - s)` | value below r_max |
| lift, lower bound | `w s + w0 (1 - s)` | 1 + lift |
| lift, upper bound | `w0 s + w (1 - s)` | 1 - lift |

Where production logged, `w s + 1 - s = (w - 1) s + 1`: the observation of the lift, bounded below because a weight is
not negative. For a named production the same sum bounds the lift by one sequence, with the whole error and with what
the two policies have in common; the difference of two sequences would take half the error each.

The means need `E[w] = 1`. Where the logging policy never takes some action of the policy, `E[w] < 1`, and the bounds
are still true: they count the worst possible reward for what was never tried (the lower one r_min, the upper one
r_max). Wrong propensities they do not survive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.ope.evidence.evidence import Evidence

VALUE_LOWER, VALUE_UPPER, LIFT_LOWER, LIFT_UPPER = range(4)
SIDES = 4


class ObservationScale(NamedTuple):
    """How means of observations become bounds: the range [low, high] of what is estimated, and the observation that
    a bounded engine calls 1, for values and for lifts."""

    low: float
    high: float
    value: float = 1.0
    lift: float = 1.0

    def bounds(self, means: Array) -> Array:
        """From lower bounds of the four means, [4, policies], to the bounds themselves."""
        span = self.high - self.low
        return np.stack(
            [
                self.low + span * self.value * means[VALUE_LOWER],
                self.high - span * self.value * means[VALUE_UPPER],
                span * (self.lift * means[LIFT_LOWER] - 1),
                span * (1 - self.lift * means[LIFT_UPPER]),
            ]
        )


def of_weights(evidence: Evidence, side: int, scale: ObservationScale) -> Array:
    """The observations of a side by importance weights, [policies, events]; NaN where one is negative."""
    earned = (evidence.reward - scale.low) / (scale.high - scale.low)
    missed = 1.0 - earned
    if side in (VALUE_UPPER, LIFT_UPPER):
        earned, missed = missed, earned
    weight = evidence.importance_weight.T
    observed = weight * earned
    if side in (LIFT_LOWER, LIFT_UPPER):
        observed += weight[0] * missed
    factor = scale.value if side in (VALUE_LOWER, VALUE_UPPER) else scale.lift
    if factor != 1.0:
        observed /= factor
    if weight.size and weight.min() < 0:
        observed[weight < 0] = np.nan
    return np.asarray(observed)


def of_terms(u: Array, side: int, scale: ObservationScale) -> Array:
    """The observations of a side by terms u [events, policies] that lie in [low, high], [policies, events]."""
    inside = (u.T - scale.low) / (scale.high - scale.low)
    if side in (VALUE_UPPER, LIFT_UPPER):
        inside = 1.0 - inside
    if side in (LIFT_LOWER, LIFT_UPPER):
        inside = (1.0 + inside - inside[0]) / scale.lift
    return np.maximum(inside, 0.0)


def presence(evidence: Evidence) -> tuple[Mask, Mask] | tuple[None, None]:
    """Which events count for the values of policies and for their lifts, [policies, events]; None: all do."""
    present = evidence.averaging_weight.T > 0
    if present.all():
        return None, None
    return present, present & present[0]


def start_sampling(policies: int) -> State:
    """Before the first event it is not known by how much the log is downsampled."""
    return {"first": np.full(policies, np.nan), "uneven": np.zeros(policies, dtype=bool)}


def fold_sampling(state: State, averaging_weight: Array) -> State:
    """Whether the events of a policy are sampled unevenly, so that they stand for different numbers of events.

    A log that keeps every event with the same probability is a smaller log of the same stream: its bounds need no
    change, and are about the events it holds. When probabilities differ, the number of events left out is not known,
    a sum of inverse probabilities is not a count, and no bound here is proven: those of the policy are withheld.
    """
    first, uneven = state["first"], state["uneven"]
    if averaging_weight.size and (averaging_weight == 1.0).all() and (first == 1.0).all():
        return state
    for policy, weights in enumerate(averaging_weight.T):
        present = weights[weights > 0]
        if len(present):
            expected = present[0] if np.isnan(first[policy]) else first[policy]
            first = np.where(np.arange(len(first)) == policy, expected, first)
            uneven = uneven | ((np.arange(len(first)) == policy) & (present != expected).any())
    return {"first": first, "uneven": uneven}


def sampling_path(state: State, averaging_weight: Array, blocks: int) -> tuple[Mask, State]:
    """Whether sampling has been uneven until the end of each block, [blocks, policies]; and the state after all."""
    path = []
    for weights in np.split(averaging_weight, blocks):
        state = fold_sampling(state, weights)
        path.append(state["uneven"])
    return np.stack(path), state
