"""The share of the noise that comes from rarely logged actions, and the exploration that would reduce it.

The noise of a lift is the variance of one event's paired difference; an event with importance weight w adds to it about
`w^2`. If actions with large weights were taken c times as often, their weights and their share of the noise would be c
times smaller, for the same rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.policies import LOGGING, AnyPolicy, CodedPolicies

EDGES = 2.0 ** np.arange(0, 24)
"""The bins of weights: up to 1, to 2, to 4, ..."""
MOST_OF_IT = 0.8
"""The share of the noise that large weights must have: less can hardly be halved by them."""
RARE = 0.2
"""The largest share of events to spend on rare actions: more would change the rest of the log."""
TIMES = np.geomspace(1.05, 50, 400)
FEWEST = 10
"""The fewest events with large weights: the noise of fewer may be one wrong propensity."""


class ExplorationAdvice(msgspec.Struct, frozen=True):
    """Half as many events suffice if actions with weights above `over` are taken `times` as often.

    `events_share`: the share of events with such weights. `noise_share`: their share of the noise.
    """

    over: float
    events_share: float
    noise_share: float
    times: float


class Exploration:
    """Sums over events by the size of their weights, of all policies, production first.

    `coded`: the policies in code, which are evaluated on every event.
    """

    def __init__(self, policies: Sequence[str], coded: Mapping[str, AnyPolicy], reward_range: tuple[float, float]):
        self.policies, self.reward_range = tuple(policies), reward_range
        self._coded = CodedPolicies(coded)
        self._sums = np.zeros((len(self.policies), len(EDGES) + 1, 14))
        self._sampling = np.zeros((len(self.policies), 3))

    def update(self, batch: EventBatch) -> None:
        """Add events; those with a reward out of range are ignored."""
        low, high = self.reward_range
        batch = batch.take((batch.reward >= low) & (batch.reward <= high))
        if not len(batch):
            return
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        evidence = Evidence.from_batch(self._coded.fill(named)[0], self.policies, len(batch))
        other = evidence.importance_weight[:, 0]
        for place in range(1, len(self.policies)):
            q = np.where(evidence.sample_weight[:, 0] > 0, evidence.sample_weight[:, place], 0.0)
            self._sampling[place] += np.count_nonzero(q), q.sum(), q @ q
            weight = evidence.importance_weight[:, place]
            octave = np.searchsorted(EDGES, weight, side="left")
            for row, column in enumerate(_columns(weight, other, evidence.reward)):
                self._sums[place, :, row] += np.bincount(octave, weights=q * column, minlength=len(EDGES) + 1)

    def unevenness(self, policy: str) -> float:
        """`n sum(q^2) / (sum q)^2`: the factor by which uneven sampling increases the events needed."""
        events, total, squares = self._sampling[self.policies.index(policy)]
        return float(events * squares / total**2) if total > 0 else 1.0

    def advice(self, policy: str) -> ExplorationAdvice | None:
        """The exploration that would halve the events needed; None where no such advice can be given.

        A few events must have most of the noise, and halving it must leave the rest of the log nearly unchanged.
        """
        sums = self._sums[self.policies.index(policy)]
        events, noise = sums[:, 0], _noise(sums)
        if not events.sum() > 0 or not noise.sum() > 0:
            return None
        for place in range(len(EDGES) - 1, -1, -1):
            share, part = events[place + 1 :].sum() / events.sum(), noise[place + 1 :].sum() / noise.sum()
            if part >= MOST_OF_IT:
                times = _halving(share, part) if events[place + 1 :].sum() >= FEWEST else None
                return (
                    None if times is None else ExplorationAdvice(float(EDGES[place]), float(share), float(part), times)
                )
        return None


def _columns(weight: Array, other: Array, reward: Array) -> list[Array]:
    """The columns to sum: 1, the weights with and without reward, and their products with 1, r and r^2."""
    products = (weight * weight, weight * other, other * other)
    powers = (np.ones_like(reward), reward, reward * reward)
    means = [weight, weight * reward, other, other * reward]
    return [powers[0], *means, *(product * power for product in products for power in powers)]


def _noise(sums: Array) -> Array:
    """Sum of the squared differences `w (r - E) / mean(w) - v (r - P) / mean(v)` in each octave; of `snips`."""
    count, weight, rewarded, other, other_rewarded = sums[:, :5].sum(axis=0)
    if not (weight > 0 and other > 0):
        return np.zeros(len(sums))
    own, production = rewarded / weight, other_rewarded / other
    squares, products, other_squares = sums[:, 5:8], sums[:, 8:11], sums[:, 11:14]
    first = squares @ [own**2, -2 * own, 1.0] * (count / weight) ** 2
    both = products @ [own * production, -own - production, 1.0] * (count / weight) * (count / other)
    last = other_squares @ [production**2, -2 * production, 1.0] * (count / other) ** 2
    return np.asarray(np.maximum(first - 2 * both + last, 0.0))


def _halving(share: float, part: float) -> float | None:
    """The factor that halves the noise; the rest of the events becomes rarer by as much, and its weights larger."""
    fits = TIMES * share <= RARE
    noise = part / TIMES + (1 - part) * (1 - share) / np.maximum(1 - TIMES * share, 1e-9)
    enough = TIMES[fits & (noise <= 0.5)]
    return float(enough[0]) if len(enough) else None
