"""A sequential test of a lift: the evidence at every block end that a candidate is better than production."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streameval.common.arrays import Array, State
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.heavy_tailed import HeavyTailed
from streameval.ope.intervals.sequences.observations import (
    LIFT_LOWER,
    ObservationScale,
    of_weights,
    sampling_path,
    start_sampling,
)
from streameval.ope.intervals.sequences.restarts import RestartSchedule, SinceStart
from streameval.ope.intervals.sequences.wealth import measure


@dataclass(frozen=True)
class LiftTest:
    """Evidence that the average lift over production exceeds `margin`, in units of reward, after every block.

    It is the logarithm of the wealth that bets on a lift above `margin` have made: the lower bound of the lift's
    confidence sequence with error e is above `margin` exactly where the evidence is above `ln(1 / e)`. If the average
    lift since the start (or over the stretch of `span`) never exceeds `margin`, the evidence ever reaches `ln(1 / e)`
    with probability at most e, whenever and however often it is looked at. With a span of several sequences, it
    includes the logarithm of this one's share of the error.

    The test is about the average lift over the stretch, not about the lift now.
    """

    reward_range: tuple[float, float]
    margin: float = 0.0
    span: RestartSchedule = field(default_factory=SinceStart)
    process: HeavyTailed = field(default_factory=HeavyTailed)

    def start(self, policies: int) -> State:
        """The state before the first event."""
        return {
            "sampling": start_sampling(policies),
            "centre": np.zeros((policies, 1, 2)),
            "span": self.span.start(np.zeros((policies, self.process.width))),
        }

    def fold(self, state: State, evidence: Evidence) -> tuple[Array, State]:
        """The evidence after each of these whole blocks, [blocks, policies], and the state after them.

        Minus infinity for production itself, where sampling is uneven, and once a weight was negative, as those of
        slates may be.
        """
        seen = of_weights(evidence, ObservationScale(*self.reward_range), sides=(LIFT_LOWER,))
        sums, centre = measure(self.process, seen, state["centre"], [1] * evidence.blocks)
        span, path, shares = state["span"], [], []
        for added in sums[:, :, 0]:
            span = self.span.add(span, added, 1)
            path.append(self.span.sums(span))
            shares.append(self.span.share(span))
        low, high = self.reward_range
        wealth = self.process.log_wealth(np.stack(path), np.array(1 + self.margin / (high - low)))
        wealth += np.log(shares)[:, None]
        uneven, sampling = sampling_path(state["sampling"], evidence.sample_weight, evidence.blocks)
        unknown = np.isnan(wealth) | uneven | uneven[:, :1]
        unknown[:, 0] = True
        return np.where(unknown, -np.inf, wealth), {"sampling": sampling, "centre": centre, "span": span}

    def lower(self, state: State, error: Array) -> Array:
        """The lower bound of the average lift at the last block end; NaN where unknown. `error` is [policies]."""
        low, high = self.reward_range
        mean = self.process.lower(self.span.sums(state["span"]), error * self.span.share(state["span"]))
        uneven = state["sampling"]["uneven"]
        known = ~(uneven | uneven[0]) & (np.arange(len(mean)) > 0)
        return np.where(known, (high - low) * (mean - 1), np.nan)
