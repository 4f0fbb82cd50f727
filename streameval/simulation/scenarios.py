"""Scenarios of a study: a world, prepared from data or synthetic, and how fast it drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from streameval.errors import InputError
from streameval.simulation import Drift, DriftKind, World


@dataclass(frozen=True)
class Scenario:
    """A world, the events from one cluster to the next, and whether the first cluster follows the last."""

    name: str
    make: Callable[[], World]
    span: int = 100_000
    cycle: bool = False

    def drift(self, kind: DriftKind, world: World) -> Drift:
        """The drift of this scenario in one of the settings."""
        return Drift(kind, clusters=world.clusters, span=self.span, cycle=self.cycle)


def find_scenario(name_or_path: str, synthetic: Mapping[str, Scenario]) -> Scenario:
    """A `synthetic` scenario by its name, or a prepared world from an `.npz` file.

    Raises:
        InputError: There is no such scenario or file.

    >>> find_scenario("calm", {"calm": Scenario("calm", partial(World.synthetic, 1), span=5_000)}).span
    5000
    """
    if name_or_path in synthetic:
        return synthetic[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(synthetic)
        raise InputError(f"there is no world {name_or_path}", hint=f"name a prepared .npz file or one of {names}")
    return Scenario(path.stem, partial(_prepared, path))


def _prepared(path: Path) -> World:
    with np.load(path) as arrays:
        return World.from_arrays(arrays)
