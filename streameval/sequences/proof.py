"""How sure it is that a candidate is better than production, at every block end: evidence instead of an interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from streameval.arrays import Array, Mask, State
from streameval.evidence import Evidence
from streameval.sequences.engine import running_centre
from streameval.sequences.heavy import LARGEST_OBSERVATION, HeavyTailed
from streameval.sequences.observations import LIFT_LOWER, Scale, fold_sampling, of_weights, presence, start_sampling
from streameval.sequences.spans import SinceStart, Span


@dataclass(frozen=True)
class LiftProof:
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
    span: Span = field(default_factory=SinceStart)
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
        observed = of_weights(evidence, LIFT_LOWER, Scale(*self.reward_range))
        np.minimum(observed, LARGEST_OBSERVATION, out=observed)
        _, present = presence(evidence)
        if present is not None:
            observed = np.where(present, observed, 0.0)
        centre, after = running_centre(observed, present, state["centre"])
        blocks = evidence.blocks
        observed, centre = _by_block(observed, blocks), _by_block(centre, blocks)
        sums = self.engine.sums(observed, centre, None if present is None else _by_block(present, blocks))
        span, path, shares = state["span"], [], []
        for block in range(blocks):
            span = self.span.add(span, sums[:, block], 1)
            path.append(self.span.sums(span))
            shares.append(self.span.share(span))
        low, high = self.reward_range
        wealth = self.engine.log_wealth(np.stack(path), np.array(1 + self.margin / (high - low)))
        wealth += np.log(shares)[:, None]
        sampling = fold_sampling(state["sampling"], evidence.averaging_weight)
        unknown = np.isnan(wealth) | sampling["uneven"] | sampling["uneven"][0]
        unknown[:, 0] = True
        return np.where(unknown, -np.inf, wealth), {"sampling": sampling, "centre": after, "span": span}

    def lower(self, state: State, error: Array) -> Array:
        """The lower end of the average lift at the last block end, with `error` [policies]; NaN where not known."""
        low, high = self.reward_range
        mean = self.engine.lower(self.span.sums(state["span"]), error * self.span.share(state["span"]))
        uneven = state["sampling"]["uneven"]
        known = ~(uneven | uneven[0]) & (np.arange(len(mean)) > 0)
        return np.where(known, (high - low) * (mean - 1), np.nan)


Row = TypeVar("Row", Array, Mask)


def _by_block(rows: Row, blocks: int) -> Row:
    return rows.reshape(len(rows), blocks, -1)
