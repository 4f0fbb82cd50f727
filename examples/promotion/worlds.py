"""The worlds in which candidates are promoted: prepared from data, or synthetic, and how fast each drifts."""

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
    """A synthetic scene by its name, or a prepared world from an `.npz` file; InputError for anything else."""
    return find_scenario(name_or_path, SYNTHETIC)


def leads(world: World, drift: Drift, events: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how much each candidate is better than the deployed logging policy after so many events.

    [moments, candidates]. `events` are whole batches of 100; the world is the one that the next batch is drawn from.
    """
    value = drift.mixture(events - BATCH) @ world.value
    return np.asarray(value[:, 1:] - value[:, :1])
