"""The mixture on merged buckets of time, compared with that of one process on the same events."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.events.origin import Origin
from streameval.ope.evaluator.merging.merged import MergedEvaluator
from streameval.ope.evaluator.merging.partial import Partial
from streameval.ope.evaluator.plan import Plan
from streameval.ope.report import Report
from streameval.simulation import Drift, DriftKind, World, simulate

EVENTS, SPAN, PER_SECOND, PARTITIONS = 45_000, 30_000, 1_000, 4
ESTIMATORS = ["stratified_ips", "stratified_dr"]
TRIGGER, FIRST = 500, 100
"""Events of a batch, and of the first one. Batches are short, as a reward model learns of a jump after the batch."""


class Merged:
    """A reducer, and the batches of four partitions that an engine evaluates for it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.evaluator = MergedEvaluator(plan, {("log", number): 0 for number in range(PARTITIONS)})
        self._random, self._offsets = np.random.default_rng(seed), [0] * PARTITIONS

    def update(self, batch: EventBatch) -> None:
        """Add events, in batches that are no larger than all events before."""
        while len(batch):
            size = max(FIRST, self.evaluator.accepted) if self.evaluator.learns else len(batch)
            self._add(batch[:size])
            batch = batch[size:]

    def _add(self, batch: EventBatch) -> None:
        partition, lagged = self._random.integers(0, PARTITIONS, len(batch)), self.evaluator.lagged
        parts = []
        for number, first in enumerate(self._offsets):
            own = batch.take(np.flatnonzero(partition == number))
            stop = first + len(own)
            own = replace(own, origin=Origin("log", np.full(len(own), number), np.arange(first, stop)))
            if len(own):
                parts.append(Partial.of(self.evaluator.plan, own, {("log", number): (first, stop)}, lagged))
            self._offsets[number] = stop
        self.evaluator.fold(reduce(Partial.merge, parts))


class Scores(NamedTuple):
    """The mean squared error of all candidates, and the coverage of their current values, each of an estimator."""

    error: Array
    coverage: Array


def scores(report: Report, world: World, truth: Array) -> Scores:
    rows = [[report.get(policy, each, "mixture") for policy in world.candidates] for each in ESTIMATORS]
    value, lower, upper = np.moveaxis(
        np.array([[(each.value, each.lower, each.upper) for each in row] for row in rows], dtype=float), -1, 0
    )
    return Scores(((value - truth) ** 2).mean(axis=1), ((lower <= truth) & (truth <= upper)).mean(axis=1))


def followed(kind: DriftKind, seed: int) -> list[tuple[Scores, Scores]]:
    """The scores of one process and of merged buckets, every second from the tenth on."""
    world = World.synthetic(31, users=200, items=800, clusters=4)
    one = Evaluator(world.candidates, ESTIMATORS, ["mixture"], drift=None, promotion=None)
    merged, found, waiting, count = Merged(one.plan, seed), [], [], 0
    for moment in simulate(world, Drift(kind, clusters=4, span=SPAN), EVENTS, seed, action_sets=True):
        waiting.append(moment.events)
        count += len(moment.events)
        if count % TRIGGER == 0:
            batch, waiting = EventBatch.concat(waiting), []
            one.update(batch)
            merged.update(replace(batch, timestamp=1.6e9 + np.arange(count - len(batch), count) / PER_SECOND))
            if count >= 10 * PER_SECOND and count % PER_SECOND == 0:
                reports = one.report(), merged.evaluator.report()
                found.append(tuple(scores(each, world, moment.truth[1:]) for each in reports))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smooth", "abrupt", "stationary"])
def test_the_errors_of_a_mixture_are_at_most_a_tenth_larger_on_merged_buckets(kind: DriftKind) -> None:
    found = np.array([followed(kind, seed) for seed in (1, 2)])  # seeds, times, evaluators, scores, estimators
    one, merged = found.mean(axis=(0, 1))
    assert (merged[0] <= 1.1 * one[0]).all()
    assert (merged[1] >= 0.95).all()
