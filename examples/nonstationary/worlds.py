"""Define the worlds of the experiment, prepared from data or synthetic, and their speed of drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from streameval import InputError
from streameval.simulation import Drift, DriftKind, World


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


TEMPERATURE = 0.3
"""Gives softmax candidates continuous importance weights. Their favourite has a probability of .73 on average."""

SYNTHETIC: Mapping[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene("softmax-slow", partial(World.synthetic, 101, temperature=TEMPERATURE), span=250_000, cycle=True),
        Scene("softmax-fast", partial(World.synthetic, 102, temperature=TEMPERATURE), span=40_000, cycle=True),
    )
}
"""Seeds, temperature and spans were fixed before the first run."""


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
