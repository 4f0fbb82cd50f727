"""The worlds of the study, prepared from data or synthetic, and their speed of drift."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streameval.simulation import Drift, DriftKind, World
from streameval.simulation.scenarios import Scenario, find_scenario
from streameval.simulation.stream import BATCH

SETTINGS: tuple[DriftKind, ...] = ("smooth", "abrupt", "stationary")

SYNTHETIC: Mapping[str, Scenario] = {
    "softmax": Scenario("softmax", partial(World.synthetic, 101, temperature=0.3), span=40_000, cycle=True)
}
"""Softmax candidates with continuous importance weights."""


def scene(name_or_path: str) -> Scenario:
    """A synthetic scene by its name, or a prepared world from an `.npz` file. Raises InputError for other names."""
    return find_scenario(name_or_path, SYNTHETIC)


def leads(world: World, drift: Drift, events: NDArray[np.int64]) -> NDArray[np.float64]:
    """The lead of each candidate over the deployed logging policy, by number of events.

    [moments, candidates]. `events` are multiples of 100; the world is that of the next batch.
    """
    value = drift.mixture(events - BATCH) @ world.value
    return np.asarray(value[:, 1:] - value[:, :1])
