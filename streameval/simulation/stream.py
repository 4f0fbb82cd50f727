"""A stream of interactions in a drifting world, the true values over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array, Integers
from streameval.events import EventBatch
from streameval.simulation.world import Interactions, World

DriftKind = Literal["smooth", "abrupt", "stationary"]

BATCH = 100  # interactions that share one mixture of clusters
DRAW_SIZE = 2_000  # interactions drawn at once from their own seed: a stream can start at any block


@dataclass(frozen=True)
class Drift:
    """How the mixture of clusters moves with the number n of interactions so far.

    `smooth`: linearly from cluster k to cluster k + 1 within `span` interactions, and so on. `abrupt`: cluster k for
    `span` interactions, then the next. `stationary`: equal shares. After the last cluster it stays there, or with
    `cycle` returns to the first one. Before the first interaction (n < 0) the shares are equal.

    >>> Drift("smooth", clusters=3, span=100).mixture([50, 100, 175, 900])
    array([[0.5 , 0.5 , 0.  ],
           [0.  , 1.  , 0.  ],
           [0.  , 0.25, 0.75],
           [0.  , 0.  , 1.  ]])
    """

    kind: DriftKind = "smooth"
    clusters: int = 10
    span: int = 100_000
    cycle: bool = False

    def mixture(self, n: ArrayLike) -> Array:
        """Shares of the clusters ([..., clusters]) after `n` interactions ([...])."""
        count = np.asarray(n, dtype=np.int64)
        uniform = np.full((*count.shape, self.clusters), 1 / self.clusters)
        if self.kind == "stationary":
            return uniform
        step, rest = np.divmod(count, self.span)
        moved = rest[..., None] / self.span if self.kind == "smooth" else 0.0
        moving = (1 - moved) * self._alone(step) + moved * self._alone(step + 1)
        return np.where(count[..., None] < 0, uniform, moving)

    def _alone(self, step: Integers) -> Array:
        cluster = step % self.clusters if self.cycle else np.clip(step, 0, self.clusters - 1)
        return np.eye(self.clusters)[cluster]


@dataclass(frozen=True, eq=False)
class Moment:
    """A batch and the value of each policy ([1 + candidates], the deployed logging policy first).

    `drawn`: in the world that the events came from. `truth`: in the world after them; estimates are compared with it.
    """

    events: EventBatch
    drawn: Array
    truth: Array


def simulate(world: World, drift: Drift, n: int, seed: int, *, action_sets: bool = False) -> Iterator[Moment]:
    """`n` interactions in batches of 100 (the last may be shorter), each with the true values.

    A longer run starts with the events of a shorter one. `action_sets` adds features and full distributions.
    """
    for start in range(0, n, DRAW_SIZE):
        events = draw_block(world, drift, start // DRAW_SIZE, seed).columns(action_sets=action_sets)
        values = mixtures(drift, start, DRAW_SIZE // BATCH + 1) @ world.value
        for batch, first in enumerate(range(0, min(DRAW_SIZE, n - start), BATCH)):
            yield Moment(events[first : min(first + BATCH, n - start)], values[batch], values[batch + 1])


def draw_block(world: World, drift: Drift, block: int, seed: int) -> Interactions:
    """The 2,000 interactions of one block (0-based) of the stream; equal arguments draw equal interactions."""
    random = np.random.default_rng([seed, block])
    upper = np.cumsum(mixtures(drift, block * DRAW_SIZE, DRAW_SIZE // BATCH), axis=1)[:, None, :-1]
    cluster = (random.random((DRAW_SIZE // BATCH, BATCH, 1)) >= upper).sum(axis=2)
    return world.draw(cluster.ravel(), random)


def mixtures(drift: Drift, start: int, batches: int) -> Array:
    """[batches, clusters]: each batch is drawn with the mixture of the batch before it, the first with equal shares."""
    return drift.mixture(start - BATCH + BATCH * np.arange(batches))


def truth_after(world: World, drift: Drift, n: int) -> dict[str, float]:
    """The value of each policy after `n` interactions, that of the logging policy as `logging`."""
    values = drift.mixture((n - 1) // BATCH * BATCH) @ world.value
    return dict(zip(("logging", *world.candidates), values.tolist(), strict=True))
