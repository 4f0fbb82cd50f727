"""Test that summaries of ranges give the numbers of one process, however the events are divided."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import PartitionedEvaluator
from support import recorded_logs as logs
from support.recorded_cases import written_and_read
from support.summaries import CASES, EVENTS, batch, case, differences, one_process, reported, summarised


@pytest.mark.parametrize("name", CASES)
def test_one_range_gives_the_numbers_of_one_process_to_the_last_bit(name: str) -> None:
    config, events = CASES[name]
    evaluator = PartitionedEvaluator.from_config(config)
    evaluator.fold([summarised(evaluator, events, start=0, pieces=7)])
    assert reported(evaluator.report(now=logs.START)) == one_process(config, events)
    assert evaluator.accepted == EVENTS


@pytest.mark.parametrize("name", CASES)
def test_ranges_of_one_partition_give_the_numbers_of_one_process_if_nothing_learns(name: str) -> None:
    config, events = CASES[name]
    products = [
        (tuple(kind for kind in estimators if "prediction" not in kind.needs and not kind.start(1)), averages)
        for estimators, averages in config.products
    ]
    config = config.with_products([product for product in products if product[0]])
    evaluator = PartitionedEvaluator.from_config(config)
    for start in range(0, EVENTS, 343):
        evaluator.fold([summarised(evaluator, events[start : start + 343], start)])
        evaluator = PartitionedEvaluator.from_state(
            written_and_read(evaluator.state()), candidates=config.computed_policies
        )
    assert evaluator.offset(0) == EVENTS
    actual, expected = reported(evaluator.report(now=logs.START)), one_process(config, events)
    assert list(differences(actual, expected, tolerance=1e-9)) == []


def partitioned(events: se.EventBatch, partitions: int, seed: int) -> list[se.EventBatch]:
    partition = np.random.default_rng(seed).integers(0, partitions, len(events))
    return [events.take(np.flatnonzero(partition == number)) for number in range(partitions)]


def evaluated_in_batches(
    config: EvaluatorConfig, parts: Iterable[se.EventBatch], size: int, order: tuple[int, ...]
) -> PartitionedEvaluator:
    """Evaluate several partitions in batches of at most `size` events of each, folded in this order."""
    evaluator, parts = PartitionedEvaluator.from_config(config), list(parts)
    for start in range(0, max(map(len, parts)), size):
        summaries = [
            summarised(evaluator, events_of_partition[start : start + size], start, number)
            for number, events_of_partition in enumerate(parts)
            if start < len(events_of_partition)
        ]
        evaluator.fold([summaries[index] for index in order if index < len(summaries)])
    return evaluator


@pytest.mark.parametrize("name", ["rewards", "late units and named production"])
def test_the_order_of_summaries_changes_no_bit(name: str) -> None:
    config, events = CASES[name]
    parts = partitioned(events, 3, seed=1)
    evaluators = [evaluated_in_batches(config, parts, 250, order) for order in ((0, 1, 2), (2, 1, 0))]
    first, other = [reported(evaluator.report(now=logs.START)) for evaluator in evaluators]
    assert other == first
    states = [msgspec.msgpack.encode(evaluator.state()) for evaluator in evaluators]
    assert first["events"]["accepted"] == EVENTS
    assert len({len(state) for state in states}) == 1


@pytest.mark.parametrize("size", [40, 130, 999])
def test_the_size_of_batches_changes_nothing_if_nothing_learns(size: int) -> None:
    """Fold blocks by the time of their last event, whatever came with the same batch."""
    columns = logs.without(logs.plain(19, EVENTS), "unit")
    columns["timestamp"] = np.sort(columns["timestamp"])
    config = case(["now", "new"], [se.IPS(), se.SNIPS()], reward_range=(-0.125, 1.125))
    parts = partitioned(batch(columns), 3, seed=3)
    actual, expected = (
        evaluated_in_batches(config, parts, events, (0, 1, 2)).report(now=logs.START) for events in (size, EVENTS)
    )
    assert list(differences(reported(actual), reported(expected), tolerance=1e-9)) == []


def test_sums_over_all_events_do_not_depend_on_partitions() -> None:
    events = batch(logs.plain(20, EVENTS))
    config = case(["now", "new"], [se.IPS(), se.SNIPS()], averages=["cumulative"])
    report = evaluated_in_batches(config, partitioned(events, 4, seed=2), 90, (0, 1, 2, 3)).report()
    expected = se.Evaluator.from_config(config)
    expected.update(events)
    for row in expected.report().estimates:
        mine = report.get(row.policy, row.estimator, row.average)
        assert mine.value == pytest.approx(row.value, rel=1e-12)
        assert mine.effective_sample_size == pytest.approx(row.effective_sample_size, rel=1e-12)
