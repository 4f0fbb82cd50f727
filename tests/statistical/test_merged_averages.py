"""Averages that choose their own memory on merged buckets of time, compared with those of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.simulation import Drift, DriftKind, World
from support.merged_streams import PER_SECOND, followed

EVENTS, SPAN = 45_000, 30_000
ESTIMATORS = ["stratified_ips", "stratified_dr"]
AVERAGES: list[Any] = [
    "mixture",
    {"kind": "adaptive_window", "drift_span": 10_000},
    {"kind": "adaptive_decay", "drift_span": 10_000},
]
BATCH = 500
"""Batches are short, as a reward model learns of a jump after the batch."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smooth", "abrupt", "stationary"])
def test_errors_are_at_most_a_tenth_larger_on_merged_buckets_and_coverage_is_no_less(kind: DriftKind) -> None:
    world, drift = World.synthetic(31, users=200, items=800, clusters=4), Drift(kind, clusters=4, span=SPAN)
    plan = Evaluator(world.candidates, ESTIMATORS, AVERAGES, drift=None, promotion=None).plan
    found = np.array(  # seeds, times, evaluators, scores, estimators, averages
        [list(followed(plan, world, drift, EVENTS, seed, batch=BATCH, every=PER_SECOND)) for seed in (1, 2)]
    )
    (error, coverage, _), (merged_error, merged_coverage, _) = found.mean(axis=(0, 1))
    assert (merged_error <= 1.1 * error).all()
    assert (merged_coverage[:, 0] >= 0.95).all()
    assert (merged_coverage >= coverage - 0.02).all()
