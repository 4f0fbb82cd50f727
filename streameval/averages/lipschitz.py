"""How fast the world moves: the Lipschitz constant of the value, measured once for all averages that ask for it.

Source: Jagerman, Markov & de Rijke, WSDM 2019 (equation 5.12 of Jagerman's thesis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from streameval.arrays import ROUNDING, Array, Mask, State, decayed_path, exchange, ratio
from streameval.averages.blocks import Blocks
from streameval.averages.moments import Row, variance
from streameval.averages.spread import SpreadRow

DRIFT_SPAN = 50_000
SMOOTHING_WINDOW = 10_000
SMOOTHING_DECAY = 0.99995
VARIANCE_DECAY = 1 - 1 / 100_000
LATEST_RATES = 5
VARIANCE_ROWS = slice(SpreadRow.WEIGHT, SpreadRow.VV + 1)


class Pace(NamedTuple):
    """Drift rate `k` (per event, NaN while unknown) and variance of the term, each [blocks, columns] at block ends."""

    rate: Array
    variance: Array


@dataclass(frozen=True, slots=True)
class Lipschitz:
    """`k = |V(t) - V(t - span)| / span`, averaged over the last five block ends; unknown until `span` events have
    passed.

    `V` is smoothed by a window of 10,000 events or by a decay of 0.99995. The variance is that of the last 100,000
    events.
    """

    smoothing: Literal["window", "decay"]
    span: int = DRIFT_SPAN

    def start(self, columns: int, block: int) -> State:
        """The state before the first event."""
        return {
            "values": np.full((max(1, -(-self.span // block)), columns), np.nan),
            "blocks": 0,
            "latest": np.full((LATEST_RATES, columns), np.nan),
            "mean": np.full(columns, np.nan),
            "recent": np.zeros((columns, VARIANCE_ROWS.stop)),
            "smoother": _sliding(columns, max(1, SMOOTHING_WINDOW // block))
            if self.smoothing == "window"
            else {"sums": np.zeros((columns, 2))},
        }

    def fold(self, state: State, blocks: Blocks) -> tuple[Pace, State]:
        """The pace at the end of each block, and the state after them."""
        sums, smoother = _smooth(state["smoother"], blocks.moments[:, :, Row.U : Row.V + 1], blocks.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = sums[..., 0] / sums[..., 1]
        before = exchange(state["values"], state["blocks"], values)
        rates = np.concatenate([state["latest"], _distance(values, before) / (len(state["values"]) * blocks.size)])
        recent = decayed_path(state["recent"], blocks.spread[..., VARIANCE_ROWS], VARIANCE_DECAY**blocks.size)
        present = blocks.moments[..., Row.WEIGHT] > 0
        means = _held(state["mean"], _mean_of_latest(rates[1:]), present)
        return Pace(means, variance(recent)), {
            "values": state["values"],
            "blocks": state["blocks"] + len(blocks),
            "latest": rates[-LATEST_RATES:],
            "mean": means[-1],
            "recent": recent[-1],
            "smoother": smoother,
        }

    def rate(self, state: State) -> Array:
        """The drift rate at the last block end, [columns]."""
        return np.asarray(state["mean"])


def _distance(values: Array, before: Array) -> Array:
    """How far values have moved; a difference that is mere rounding counts as none."""
    distance = np.abs(values - before)
    return np.where(distance <= ROUNDING * np.abs(values), 0.0, distance)


def _mean_of_latest(rates: Array) -> Array:
    """The mean of what is known of each rate and the four before it, [blocks + 4, columns] to [blocks, columns]."""
    known = ~np.isnan(rates)
    both = np.stack([np.where(known, rates, 0.0), known])
    blocks = len(rates) - LATEST_RATES + 1
    total, count = np.sum([both[:, lag : lag + blocks] for lag in range(LATEST_RATES)], axis=0)
    return ratio(total, count)


def _held(before: Array, values: Array, present: Mask) -> Array:
    """Each column's values, the last one held through blocks that say nothing about it."""
    held = np.concatenate([before[None], values])
    latest = np.maximum.accumulate(np.where(present, np.arange(1, len(held))[:, None], 0), axis=0)
    return np.take_along_axis(held, latest, axis=0)


def _sliding(columns: int, blocks: int) -> State:
    """A moving sum over the last `blocks` blocks that only ever adds.

    The past is cut into stretches of that length; a window is the end of one stretch, summed from its back, and the
    beginning of the next, summed from its front.
    """
    return {"ends": np.zeros((blocks + 1, columns, 2)), "stretch": np.zeros((0, columns, 2))}


def _smooth(state: State, sums: Array, block: int) -> tuple[Array, State]:
    if "sums" in state:
        path = decayed_path(state["sums"], sums, SMOOTHING_DECAY**block)
        return path, {"sums": path[-1]}
    ends, stretch, windows = state["ends"], state["stretch"], []
    while len(sums):
        part, sums = np.split(sums, [len(ends) - 1 - len(stretch)])
        stretch = np.concatenate([stretch, part])
        beginnings = np.cumsum(stretch, axis=0)
        taken = np.arange(len(stretch) - len(part), len(stretch))
        windows.append(beginnings[taken] + ends[taken + 1])
        if len(stretch) == len(ends) - 1:
            ends = np.concatenate([np.cumsum(stretch[::-1], axis=0)[::-1], np.zeros_like(ends[:1])])
            stretch = stretch[:0]
    return np.concatenate(windows), {"ends": ends, "stretch": stretch}
