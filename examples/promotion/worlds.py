"""Define the worlds of the study, prepared from data or synthetic, and their speed of drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streameval import InputError
from streameval.simulation import BATCH, Drift, DriftKind, World


@dataclass(frozen=True)
class Scene:
    """Describe a world and how it drifts.

    Args:
        name: Name of the world.
        make: Makes the world.
        span: Events from one cluster to the next.
        cycle: Whether the first cluster follows the last.
    """

    name: str
    make: Callable[[], World]
    span: int = 100_000
    cycle: bool = False

    def drift(self, kind: DriftKind, world: World) -> Drift:
        """Return the drift of this scene in one of the settings."""
        return Drift(kind, clusters=world.clusters, span=self.span, cycle=self.cycle)


SETTINGS: tuple[DriftKind, ...] = ("smooth", "abrupt", "stationary")

SYNTHETIC: Mapping[str, Scene] = {
    "softmax": Scene("softmax", partial(World.synthetic, 101, temperature=0.3), span=40_000, cycle=True)
}
"""Softmax candidates with continuous importance weights."""


def scene(name_or_path: str) -> Scene:
    """Return a synthetic scene by its name, or a prepared world from an `.npz` file.

    Raises:
        InputError: There is no such scene or file.
    """
    if name_or_path in SYNTHETIC:
        return SYNTHETIC[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(SYNTHETIC)
        raise InputError(f"there is no world {name_or_path}", hint=f"name a prepared .npz file or one of {names}")
    return Scene(path.stem, partial(_prepared, path))


def _prepared(path: Path) -> World:
    with np.load(path) as arrays:
        return World.from_arrays(arrays)


def leads(world: World, drift: Drift, events: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the lead of each candidate over the deployed logging policy, [moments, candidates].

    Args:
        world: The world.
        drift: Its drift.
        events: Numbers of events, multiples of 100. A lead is computed for the next batch.
    """
    value = drift.mixture(events - BATCH) @ world.value
    return np.asarray(value[:, 1:] - value[:, :1])
