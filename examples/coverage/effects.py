"""Design effects on longer streams: what one event of a stream counts less because events are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from worlds import LOGGING, WAVES, WORLDS, draw

from streameval import IPS, Cumulative, Evaluator

EVENTS = 50_000
SHAPES = ("drifting", "sessions", "sessions-named", "crowd", "crowd-named")
SHOWN = {
    world.name: world for world in (WORLDS["still-mild-0.3"], WAVES, *(WORLDS[f"{shape}-mild-0.3"] for shape in SHAPES))
}


class Effect(NamedTuple):
    """The mean design effect of `policy` by `ips` on `cumulative` over some runs, and its standard deviation."""

    world: str
    policy: str
    events: int
    runs: int
    mean: float
    deviation: float


def effects_of(runs: int) -> Iterator[Effect]:
    """The design effects of the mean reward and of the first candidate's value, in each of the worlds SHOWN."""
    for name in SHOWN:
        found = np.array([_effects(name, run) for run in range(runs)])
        for policy, column in zip((LOGGING, "one"), found.T, strict=True):
            yield Effect(
                name, policy, EVENTS, runs, round(float(column.mean()), 3), round(float(column.std(ddof=1)), 3)
            )


def _effects(name: str, run: int) -> list[float]:
    evaluator = Evaluator(["one"], [IPS()], [Cumulative()], drift=None, promotion=None)
    evaluator.update(draw(SHOWN[name], run, EVENTS).batch)
    report = evaluator.report()
    return [report.get(policy, "ips", "cumulative").details["design_effect"] for policy in (LOGGING, "one")]
