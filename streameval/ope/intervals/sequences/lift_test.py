"""How sure it is that a candidate is better than production, at every block end: evidence instead of an interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.heavy_tailed import HeavyTailed
from streameval.ope.intervals.sequences.measuring import measure
from streameval.ope.intervals.sequences.observations import LIFT_LOWER, ObservationScale, sampling_path, start_sampling
from streameval.ope.intervals.sequences.restarts import RestartSchedule, SinceStart
from streameval.ope.intervals.sequences.tracker import BlockView, TrackedGroup


@dataclass(frozen=True)
class LiftTest:
    """Evidence that the average lift over production exceeds `margin`, in units of reward, after every block.

    It is the logarithm of the wealth that bets on a lift above `margin` have made: the lower end of the lift's
    confidence sequence with error e is above `margin` exactly where the evidence is above `ln(1 / e)`, without a root
    to be found. If the average lift since the start (or over the stretch of `span`) never exceeds `margin`, the
    evidence ever reaches `ln(1 / e)` with probability at most e, whenever and however often it is looked at. With a
    span of several sequences, the logarithm of this one's share of the error is in it already.

    Evidence counts events, not surprise: it proves that the average lift is above `margin`, never that it is so now.
    """

    reward_range: tuple[float, float]
    margin: float = 0.0
    span: RestartSchedule = field(default_factory=SinceStart)
    engine: HeavyTailed = field(default_factory=HeavyTailed)

    def start(self, policies: int) -> State:
        """The state before the first event."""
        return {
            "sampling": start_sampling(policies),
            "centre": np.zeros((policies, 2)),
            "span": self.span.start(np.zeros((policies, self.engine.width))),
        }

    def fold(self, state: State, evidence: Evidence) -> tuple[Array, State]:
        """The evidence after each of these whole blocks, [blocks, policies], and the state after them.

        Minus infinity for production itself, where sampling is uneven, and once a weight was negative, as those of
        slates may be.
        """
        look, group = BlockView(evidence, ()), TrackedGroup(self.engine, ObservationScale(*self.reward_range), ())

        def one_by_one(block: int) -> Iterator[tuple[Array, Mask | None]]:
            return islice(look.one_by_one(group, block), LIFT_LOWER, LIFT_LOWER + 1)

        seen = look.powers(group).of_side(LIFT_LOWER)
        sums, after = measure(self.engine, seen, state["centre"][None], [1] * evidence.blocks, one_by_one)
        span, path, shares = state["span"], [], []
        for added in sums[:, 0]:
            span = self.span.add(span, added, 1)
            path.append(self.span.sums(span))
            shares.append(self.span.share(span))
        low, high = self.reward_range
        wealth = self.engine.log_wealth(np.stack(path), np.array(1 + self.margin / (high - low)))
        wealth += np.log(shares)[:, None]
        uneven, sampling = sampling_path(state["sampling"], evidence.averaging_weight, evidence.blocks)
        unknown = np.isnan(wealth) | uneven | uneven[:, :1]
        unknown[:, 0] = True
        return np.where(unknown, -np.inf, wealth), {"sampling": sampling, "centre": after[0], "span": span}

    def lower(self, state: State, error: Array) -> Array:
        """The lower end of the average lift at the last block end, with `error` [policies]; NaN where not known."""
        low, high = self.reward_range
        mean = self.engine.lower(self.span.sums(state["span"]), error * self.span.share(state["span"]))
        uneven = state["sampling"]["uneven"]
        known = ~(uneven | uneven[0]) & (np.arange(len(mean)) > 0)
        return np.where(known, (high - low) * (mean - 1), np.nan)
