"""Compare possible components of a bound with the squared error of a lift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scoring import EVERY
from worlds import leads, scene

from streameval import Evaluator, EventBatch, Mixture, Report, StratifiedDR
from streameval.ope.promotion import MOVED, SPREAD, recent_mean
from streameval.simulation import BATCH, DriftKind, simulate

Floats = NDArray[np.float64]

FIRST_SEED = 100
"""First seed for choosing constants. The tables of the rules exclude these seeds."""
SETTLED = 60_000
"""Number of events after which drift is known, too."""
NAMES: Mapping[str, str] = {
    "sampling": "its sampling variance, `se^2`",
    "spread": "current disagreement of the decays, `spread^2`",
    "recent_spread": "… its mean over the last 30,000 events",
    "recent_movement": "its distance from its own mean over the last 30,000 events, `moved^2`, averaged likewise",
    "drift": "common drift of all lifts, `drift^2`",
    "recent_drift": "… its mean over the last 30,000 events",
    "paired": "the combination in `paired` for one candidate, `se^2 + (2 spread)^2 + (moved / 3)^2`",
    "drift_aware": "the combination in `drift_aware`, `se^2 + spread^2 + drift^2`",
}


class ErrorScores(msgspec.Struct, frozen=True):
    """Hold how well each component predicts the squared error of the lifts in one run.

    Args:
        world: Name of the world.
        setting: Kind of drift.
        seed: Seed of the run.
        events: Events of the run.
        correlation: Correlation of each component with the squared error.
        size: Root mean square of the errors, in units of the error that each of the two bounds assumes.
    """

    world: str
    setting: DriftKind
    seed: int
    events: int
    correlation: dict[str, float]
    size: dict[str, float]


def error_scores(world_name: str, setting: DriftKind, seed: int, events: int) -> ErrorScores:
    """Run once, and compare lifts and their components with the true leads of all candidates, every 1,000 events."""
    stage = scene(world_name)
    world = stage.make()
    drift = stage.drift(setting, world)
    evaluator = Evaluator(world.candidates, [StratifiedDR()], [Mixture()], promotion=None, drift=None)
    batches: list[EventBatch] = []
    looks: list[Floats] = []
    for moment in simulate(world, drift, events, seed, action_sets=True):
        batches.append(moment.events)
        if len(batches) == EVERY // BATCH:
            evaluator.update(EventBatch.concat(batches))
            evaluator.fold_pending()
            batches = []
            looks.append(_look(evaluator.report(), world.candidates))
    value, *parts = np.stack(looks, axis=1)
    lead = leads(world, drift, EVERY * np.arange(1, len(looks) + 1))
    return ErrorScores(stage.name, setting, seed, events, *held_against(value - lead, parts_of(value, *parts)))


def _look(report: Report, candidates: Sequence[str]) -> Floats:
    """Return the lift, and its sampling variance, squared spread and squared drift, [4, candidates]."""
    estimates = {estimate.policy: estimate for estimate in report.estimates if estimate.lift is not None}
    rows = []
    for name in candidates:
        details = estimates[name].details
        effect = max(1.0, details["lift_design_effect"] or 1.0)
        squares = [(details[f"lift_{term}"] or 0.0) ** 2 for term in ("se", "spread", "drift")]
        rows.append([estimates[name].lift, effect * squares[0], *squares[1:]])
    return np.array(rows, dtype=float).T


def parts_of(value: Floats, sampling: Floats, spread: Floats, drift: Floats) -> dict[str, Floats]:
    """Return all components by name, [looks, candidates], from the evidence at each look."""

    def mean(values: Floats) -> Floats:
        return recent_mean(values, np.zeros((values.shape[1], 2)), EVERY)[0]

    recent_spread, recent_movement = mean(spread), mean((value - mean(value)) ** 2)
    return {
        "sampling": sampling,
        "spread": spread,
        "recent_spread": recent_spread,
        "recent_movement": recent_movement,
        "drift": drift,
        "recent_drift": mean(drift),
        "paired": sampling + SPREAD**2 * recent_spread + MOVED**2 * recent_movement,
        "drift_aware": sampling + spread + drift,
    }


def held_against(error: Floats, parts: Mapping[str, Floats]) -> tuple[dict[str, float], dict[str, float]]:
    """Correlate components with the squared error, and measure the error in units of both bounds.

    Looks before SETTLED events are left out, because some components are unknown there.

    Args:
        error: Errors of the lifts, [looks, candidates].
        parts: Components by name, [looks, candidates].

    Returns:
        Correlations and sizes, both by name.

    >>> error = np.tile([1.0, -2.0, 3.0], (61, 1))
    >>> held_against(error, {"paired": error**2, "drift_aware": 4 * error**2})
    ({'paired': 1.0, 'drift_aware': 1.0}, {'paired': 1.0, 'drift_aware': 0.5})
    """
    settled = slice(SETTLED // EVERY, None)
    square = error[settled] ** 2
    correlation = {
        name: round(float(np.corrcoef(component[settled].ravel(), square.ravel())[0, 1]), 3)
        for name, component in parts.items()
    }
    size = {
        name: round(float(np.sqrt((square / parts[name][settled]).mean())), 3) for name in ("paired", "drift_aware")
    }
    return correlation, size
