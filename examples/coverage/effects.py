"""Measure design effects on longer streams: how much less an event counts because events are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from worlds import LOGGING, WAVES, WORLDS, draw

from streameval import IPS, Cumulative, Evaluator

EVENTS = 100_000
SHAPES = ("drifting", "sessions", "sessions-named", "crowd", "crowd-named")
SHOWN = {
    world.name: world for world in (WORLDS["still-mild-0.3"], WAVES, *(WORLDS[f"{shape}-mild-0.3"] for shape in SHAPES))
}


class Effect(NamedTuple):
    """Hold the design effect of `policy` by `ips` on `cumulative`.

    Args:
        world: Name of the world.
        policy: Name of the policy.
        events: Events of each run.
        runs: Number of runs.
        mean: Mean over the runs.
        deviation: Standard deviation over the runs.
        asks: Share of runs in which the trust check `clusters` asks for a unit.
    """

    world: str
    policy: str
    events: int
    runs: int
    mean: float
    deviation: float
    asks: float


def effects_of(runs: int) -> Iterator[Effect]:
    """Yield the design effects of the mean reward and of the first candidate's value in each world of SHOWN."""
    for name in SHOWN:
        effects = np.array([_effects(name, run) for run in range(runs)])
        means, deviations = effects.mean(axis=0).round(3).tolist(), effects.std(axis=0, ddof=1).round(3).tolist()
        for policy, mean, deviation in zip((LOGGING, "one"), means, deviations, strict=False):
            yield Effect(name, policy, EVENTS, runs, mean, deviation, means[-1])


def _effects(name: str, run: int) -> list[float]:
    """Return the design effects of both policies, and 1 if a unit is asked for, otherwise 0."""
    evaluator = Evaluator(["one"], [IPS()], [Cumulative()], drift=None, promotion="bsea")
    evaluator.update(draw(SHOWN[name], run, EVENTS).batch)
    report = evaluator.report()
    effects = [report.get(policy, "ips", "cumulative").details["design_effect"] for policy in (LOGGING, "one")]
    return [*effects, float(any(check.check == "clusters" and not check.ok for check in report.trust))]
