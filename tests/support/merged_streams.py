"""A stream as an engine evaluates it: ranges of two partitions, whose sums a reducer adds up batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.events.origin import Origin
from streameval.ope.evaluator.merging.mergeable import MergePlan
from streameval.ope.evaluator.merging.merged import MergedEvaluator
from streameval.ope.evaluator.merging.partial import Partial
from streameval.ope.evaluator.plan import Plan
from streameval.ope.report import Report
from streameval.simulation import Drift, World, simulate

PARTITIONS, PER_SECOND, FIRST = 2, 1_000, 100
"""`FIRST`: events of the first batch."""
SCORED_FROM = 10 * PER_SECOND


class Merged:
    """A reducer, and the batches of two partitions that an engine evaluates for it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.evaluator = MergedEvaluator(plan, {("log", number): 0 for number in range(PARTITIONS)})
        self._plan = MergePlan.of(plan)
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
                parts.append(Partial.of(self._plan, own, {("log", number): (first, stop)}, lagged))
            self._offsets[number] = stop
        self.evaluator.fold(reduce(Partial.merge, parts))


class Scores(NamedTuple):
    """Means over the candidates, [estimators, averages]: squared errors, the shares of intervals that hold the value
    now, and half the widths of intervals."""

    error: Array
    coverage: Array
    half_width: Array


def scores(report: Report, plan: Plan, world: World, truth: Array) -> Scores:
    pairs = [[(estimator, average) for average in plan.averages] for estimator in plan.estimators]
    rows = [[[report.get(policy, *pair) for policy in world.candidates] for pair in row] for row in pairs]
    numbers = [[[(each.value, each.lower, each.upper) for each in row] for row in of] for of in rows]
    value, lower, upper = np.moveaxis(np.array(numbers, dtype=float), -1, 0)
    return Scores(
        ((value - truth) ** 2).mean(axis=-1),
        ((lower <= truth) & (truth <= upper)).mean(axis=-1),
        ((upper - lower) / 2).mean(axis=-1),
    )


def followed(
    plan: Plan, world: World, drift: Drift, events: int, seed: int, *, batch: int, every: int
) -> Iterator[tuple[Scores, Scores]]:
    """The scores of one process and of merged buckets, after each `every` events from the tenth second on.

    `batch`: events from one batch to the next.
    """
    one, merged, waiting, count = Evaluator.from_plan(plan), Merged(plan, seed), [], 0
    for moment in simulate(world, drift, events, seed, action_sets=True):
        waiting.append(moment.events)
        count += len(moment.events)
        if count % batch == 0:
            some, waiting = EventBatch.concat(waiting), []
            one.update(some)
            merged.update(replace(some, timestamp=1.6e9 + np.arange(count - len(some), count) / PER_SECOND))
            if count >= SCORED_FROM and count % every == 0:
                first, second = (
                    scores(each, plan, world, moment.truth[1:]) for each in (one.report(), merged.evaluator.report())
                )
                yield first, second
