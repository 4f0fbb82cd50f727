"""The worlds of the experiment, prepared from data or synthetic, and their speed of drift."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from streameval.simulation import World
from streameval.simulation.scenarios import Scenario, find_scenario

TEMPERATURE = 0.3
"""Softmax candidates with continuous importance weights; the favourite gets .73 on average."""

SYNTHETIC: Mapping[str, Scenario] = {
    scene.name: scene
    for scene in (
        Scenario("softmax-slow", partial(World.synthetic, 101, temperature=TEMPERATURE), span=250_000, cycle=True),
        Scenario("softmax-fast", partial(World.synthetic, 102, temperature=TEMPERATURE), span=40_000, cycle=True),
    )
}
"""Seeds, temperature and spans were fixed before the first run."""


def scene(name_or_path: str) -> Scenario:
    """A synthetic scene by its name, or a prepared world from an `.npz` file. Raises InputError for other names."""
    return find_scenario(name_or_path, SYNTHETIC)
