"""The worlds in which candidates are promoted: prepared from data, or synthetic, and how fast each drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streameval.errors import InputError
from streameval.simulation import Drift, DriftKind, World
from streameval.simulation.stream import BATCH

SETTINGS: tuple[DriftKind, ...] = ("smooth", "abrupt", "stationary")


@dataclass(frozen=True)
class Scene:
    """A world, and how many events its clusters take to hand over to one another."""

    name: str
    make: Callable[[], World]
    span: int = 100_000
    cycle: bool = False

    def drift(self, kind: DriftKind, world: World) -> Drift:
        """The drift of this scene in one of the settings."""
        return Drift(kind, clusters=world.clusters, span=self.span, cycle=self.cycle)


SYNTHETIC: Mapping[str, Scene] = {
    "softmax": Scene("softmax", partial(World.synthetic, 101, temperature=0.3), span=40_000, cycle=True)
}
"""Softmax candidates with continuous importance weights."""


def scene(name_or_path: str) -> Scene:
    """A synthetic scene by its name, or a prepared world from an `.npz` file; InputError for anything else."""
    if name_or_path in SYNTHETIC:
        return SYNTHETIC[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise InputError(
            f"there is no world {name_or_path}", hint=f"name a prepared .npz file or one of {', '.join(SYNTHETIC)}"
        )
    return Scene(path.stem, partial(_prepared, path))


def _prepared(path: Path) -> World:
    with np.load(path) as arrays:
        return World.from_arrays(arrays)


def leads(world: World, drift: Drift, events: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how much each candidate is better than the deployed logging policy after so many events.

    [moments, candidates]. `events` are whole batches of 100; the world is the one that the next batch is drawn from.
    """
    value = drift.mixture(events - BATCH) @ world.value
    return np.asarray(value[:, 1:] - value[:, :1])
