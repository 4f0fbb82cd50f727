"""Errors and coverage of an engine that reads four partitions, compared with one process on the same events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summariser, Summary
from streameval.ope.report import Report
from streameval.simulation import Drift, DriftKind, World, simulate

EVENTS, SPAN, BATCH, PARTITIONS, LOOKED_AT = 45_000, 30_000, 1_000, 4, 5_000
ESTIMATORS = ["stratified_ips", "stratified_dr"]
AVERAGES: list[Any] = [
    "cumulative",
    {"kind": "window", "tau": 5_000},
    "mixture",
    {"kind": "adaptive_window", "drift_span": 10_000},
    {"kind": "adaptive_decay", "drift_span": 10_000},
]


def scores(report: Report, config: EvaluatorConfig, world: World, truth: Array) -> Array:
    """Squared errors and the shares of intervals that hold the value now, [2, estimators, averages]."""
    rows = [
        [
            [report.get(policy, *pair) for policy in world.candidates]
            for pair in ((estimator, average) for average in config.averages)
        ]
        for estimator in config.estimators
    ]
    numbers = np.array(
        [[[(estimate.value, estimate.lower, estimate.upper) for estimate in cell] for cell in row] for row in rows]
    )
    value, lower, upper = np.moveaxis(numbers.astype(float), -1, 0)
    return np.array([((value - truth) ** 2).mean(axis=-1), ((lower <= truth) & (truth <= upper)).mean(axis=-1)])


def folded(evaluator: PartitionedEvaluator, batch: EventBatch, offsets: list[int], chance: np.random.Generator) -> None:
    """Fold a batch that is spread over the partitions at random."""
    partition, knowledge, rests = chance.integers(0, PARTITIONS, len(batch)), evaluator.knowledge(), evaluator.rests()
    summaries = []
    for number in range(PARTITIONS):
        own = batch.take(np.flatnonzero(partition == number))
        summariser = Summariser(evaluator.config, number, offsets[number], knowledge, rests.get(number))
        summariser.update(own)
        offsets[number] += len(own)
        summaries.append(Summary.from_bytes(summariser.summary(offsets[number]).to_bytes()))
    evaluator.fold(summaries)


def followed(config: EvaluatorConfig, world: World, drift: Drift, seed: int) -> Iterator[tuple[Array, Array]]:
    """Return the scores of one process and of four partitions, from the second multiple of `LOOKED_AT` events on."""
    one, several = Evaluator.from_config(config), PartitionedEvaluator.from_config(config)
    offsets, chance = [0] * PARTITIONS, np.random.default_rng(seed)
    waiting: list[EventBatch] = []
    count = 0
    for moment in simulate(world, drift, EVENTS, seed, action_sets=True):
        waiting.append(moment.events)
        count += len(moment.events)
        if count % BATCH == 0:
            events, waiting = EventBatch.concat(waiting), []
            one.update(events)
            folded(several, events, offsets, chance)
            if count % LOOKED_AT == 0 and count > LOOKED_AT:
                pair = [scores(evaluator.report(), config, world, moment.truth[1:]) for evaluator in (one, several)]
                yield pair[0], pair[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smooth", "abrupt"])
def test_errors_and_coverage_on_four_partitions_are_those_of_one_process(kind: DriftKind) -> None:
    world, drift = World.synthetic(31, users=200, items=800, clusters=4), Drift(kind, clusters=4, span=SPAN)
    config = Evaluator(world.candidates, ESTIMATORS, AVERAGES, drift=None, promotion=None).config
    run_scores = np.array([list(followed(config, world, drift, seed)) for seed in range(4)]).mean(axis=1)
    (error, coverage), (_, coverage_of_several) = run_scores.mean(axis=0)
    difference = run_scores[:, 1, 0] - run_scores[:, 0, 0]
    noise = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
    assert (difference.mean(axis=0) <= 0.05 * error + 4 * noise).all()
    assert (coverage_of_several >= coverage - 0.03).all()
