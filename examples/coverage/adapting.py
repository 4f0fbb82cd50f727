"""Readings of adaptive averages at every look of a run, and the events that they cover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from readings import BLOCK, PLAIN, Known, reading_of
from worlds import Floats, Integers

from streameval.ope.averages import DEFAULT_ALPHA, SHORTEST, AdaptiveDecay, AdaptiveWindow, Blocks
from streameval.ope.averages import variance as spreads
from streameval.ope.averages.moments import fade, fold, nothing, total
from streameval.ope.averages.variance import LONGER

Adaptive = AdaptiveWindow | AdaptiveDecay
Kernel = Callable[[Floats], Floats]
"""Means over the kernel of an average at each look, of a quantity per event; both [columns, ...]."""


@dataclass(frozen=True)
class Stretch:
    """A range of blocks: the part of it that is added to a spread. `variance_steps`: as in `Blocks`."""

    spread: Floats
    compared: dict[str, Floats]
    size: int
    events: Integers
    variance_steps: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.spread)

    @classmethod
    def of(cls, blocks: Blocks, part: slice) -> Stretch:
        """A subset of these blocks."""
        compared = {name: rows[part] for name, rows in blocks.compared.items()}
        return cls(blocks.spread[part], compared, blocks.size, blocks.events[part])


def on_adaptive(average: Adaptive, blocks: Blocks, every: int) -> tuple[Known, Kernel]:
    """The readings of an adaptive average by number of blocks, and its kernel at these looks."""
    measure, columns = average.drift, blocks.moments.shape[1]
    rate, _ = measure.fold(measure.start(columns, BLOCK), blocks)
    variance, _ = average.variance(average.start_kernel(columns, BLOCK)["recent"], blocks)
    if isinstance(average, AdaptiveWindow):
        moments, horizon, kernel = _on_window(blocks, average.choose(rate, variance), every)
    else:
        events = BLOCK * np.arange(1.0, len(blocks) + 1)
        moments, horizon, kernel = _on_decay(blocks, average.choose(rate, variance, events), every)
    reading = reading_of(moments, _spreads(blocks, horizon, every))
    return Known(reading, reading.lift(len(PLAIN))), kernel


def _spreads(blocks: Blocks, horizon: Floats, every: int) -> dict[str, Floats]:
    """The spread at each look, with a memory that fades with this horizon, [blocks, columns]."""
    state, found = spreads.start(blocks.moments.shape[1]), []
    for first in range(0, len(blocks), every):
        part = slice(first, first + every)
        state = spreads.fold(state, Stretch.of(blocks, part), horizon[part])  # type: ignore[arg-type]
        found.append(state)
    return {name: np.array([each[name] for each in found]) for name in spreads.FADING if name in state}


def _on_window(blocks: Blocks, limits: Floats, every: int) -> tuple[Floats, Floats, Kernel]:
    """Moments at the looks, horizon of the spread at all blocks, and the kernel, for the chosen windows."""
    lengths = limits.copy()
    for index in range(len(lengths)):
        lengths[index] = np.minimum(limits[index], (lengths[index - 1] if index else 0.0) + BLOCK)
    looks = np.arange(every, len(blocks) + 1, every)
    held = np.clip(np.floor(lengths[looks - 1] / BLOCK).astype(int), 1, looks[:, None])
    moments = [
        np.stack([total(blocks.moments[last - count : last, column]) for column, count in enumerate(counts)])
        for last, counts in zip(looks, held, strict=True)
    ]

    def kernel(values: Floats) -> Floats:
        so_far = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
        count = held.T[-len(values) :]
        before = np.take_along_axis(so_far, (looks - count) * BLOCK, axis=1)
        return np.asarray((so_far[:, looks * BLOCK] - before) / (count * BLOCK))

    return np.array(moments), LONGER * np.maximum(lengths, SHORTEST), kernel


def _on_decay(blocks: Blocks, chosen: Floats, every: int) -> tuple[Floats, Floats, Kernel]:
    """As for the window, for the chosen alphas."""
    alpha = np.concatenate([np.full_like(chosen[:1], DEFAULT_ALPHA), chosen[:-1]])
    factors = alpha**BLOCK
    new = fade(blocks.moments, (1 - factors) / BLOCK)
    state, moments = nothing(alpha.shape[1]), []
    for first in range(0, len(blocks), every):
        state = fold(state, new[first : first + every], factors[first : first + every])
        moments.append(state)

    def kernel(values: Floats) -> Floats:
        means = values.reshape(len(values), -1, BLOCK).mean(axis=2)
        total, weight, path = np.zeros(len(values)), np.zeros(len(values)), []
        for mean, factor in zip(means.T, factors.T[-len(values) :].T, strict=True):
            total, weight = total * factor + (1 - factor) * mean, weight * factor + (1 - factor)
            path.append(total / weight)
        return np.array(path[every - 1 :: every]).T

    return np.array(moments), LONGER / (1 - alpha), kernel
