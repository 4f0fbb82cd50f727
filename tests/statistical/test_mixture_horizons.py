"""Check the memory that the mixture chooses in worlds that drift, and in one that does not."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Mixture
from streameval.ope.estimators import StratifiedIPS
from streameval.simulation import Drift, DriftKind, World, simulate


def horizon(kind: DriftKind, seed: int) -> float:
    """Mean horizon of the candidates after 150,000 events, the mean of both strata."""
    world = World.synthetic(31, users=200, items=800, clusters=4)
    evaluator = Evaluator(world.candidates, estimators=[StratifiedIPS()], averages=[Mixture()])
    events = [moment.events for moment in simulate(world, Drift(kind, clusters=4, span=40_000), 150_000, seed)]
    evaluator.update(EventBatch.concat(events))
    return float(
        np.mean(
            [
                estimate.details["horizon_events"]
                for estimate in evaluator.report().estimates
                if estimate.policy in world.candidates
            ]
        )
    )


@pytest.mark.slow
def test_horizons_are_short_in_a_world_that_drifts_and_long_in_one_that_rests() -> None:
    resting = horizon("stationary", seed=1)
    assert resting > 70_000
    assert horizon("abrupt", seed=1) < resting / 2
    assert horizon("smooth", seed=1) < resting / 2
