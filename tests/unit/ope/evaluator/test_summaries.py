"""Test half 1 in several processes and half 2 in one, against an evaluator of one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.errors import ConfigError, StateError
from streameval.events.origin import Origin
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summariser, Summary, require_halves
from streameval.ope.report import Report
from support import recorded_logs as logs
from support.recorded_cases import AVERAGES, EVERY_AVERAGE, FAMILY, PLAIN, REWARDS, SEGMENTS, written_and_read

EVENTS = 1_030
RULES = se.Promotion(("paired", "sea", "bsea"), min_events=500, hold=2, trust=se.Trust(stale_after=None))


def batch(columns: logs.Columns) -> se.EventBatch:
    return se.EventBatch.from_arrays(**columns)


def case(candidates: list[str], estimators: list[Any], **options: Any) -> EvaluatorConfig:
    actual = {"averages": EVERY_AVERAGE, "promotion": RULES, **options}
    return se.Evaluator(candidates, estimators, **actual).config


CASES: dict[str, tuple[EvaluatorConfig, se.EventBatch]] = {
    "defaults": (se.Evaluator(["now", "new"], reward_range=(-0.125, 1.125)).config, batch(logs.plain(1, EVENTS))),
    "defaults of full events": (se.Evaluator(["good", "partial"]).config, batch(logs.described(2, EVENTS))),
    "plain": (case(["now", "new"], PLAIN, reward_range=(-0.125, 1.125)), batch(logs.plain(3, EVENTS))),
    "family": (case(["good", "partial"], [*PLAIN, *FAMILY]), batch(logs.described(4, EVENTS))),
    "late units and named production": (
        case(["good"], [*PLAIN, *FAMILY], production="partial"),
        batch(logs.with_units(logs.with_gaps(logs.described(5, EVENTS), {"partial": (300, 600)}), 6, first=450)),
    ),
    "rewards": (
        case(["new", "other"], PLAIN, production="now", rewards=REWARDS),
        batch(logs.with_rewards(logs.with_gaps(logs.plain(7, EVENTS), {"now": (500, 800)}), 8)),
    ),
    "segments": (
        case(
            ["now", "new"], [se.SNIPS(), se.IPS(), se.StratifiedIPS()], reward_range=(-0.125, 1.125), segments=SEGMENTS
        ),
        batch(logs.with_segments(logs.plain(9, EVENTS), 10)),
    ),
    "slates": (case(["tilted", "any"], [se.PseudoInverse(), se.IPS()]), batch(logs.slots(11, EVENTS))),
    "slots": (
        case(["tilted", "any"], [se.IIPS(), se.RIPS(), se.IPS()]),
        batch(logs.with_units(logs.rewarded_slots(12, EVENTS), 13)),
    ),
    "clicks": (
        case(["new", "other"], [se.ClickIPS(), se.ClickSNIPS(), se.ClickCAB(cap=2)], ranking={"metric": "dcg"}),
        se.EventBatch.from_rankings(**logs.pages(14, EVENTS)),
    ),
    "ramp": (
        case(["new", "other"], PLAIN, production="now", logging={"arms": {"now": 0.8, "new": 0.2}}),
        batch(logs.ramp(15, EVENTS)),
    ),
    "code": (
        se.Evaluator({"even": "uniform", "partial": se.Logged()}, [se.SNIPS()], ["cumulative"], drift=None).config,
        batch(logs.described(16, EVENTS)),
    ),
}


def summarised(
    evaluator: PartitionedEvaluator, events: se.EventBatch, start: int, partition: int = 0, pieces: int = 1
) -> Summary:
    """Summarise a range with one event at each offset, and return the summary decoded from bytes."""
    summariser = Summariser(evaluator.config, partition, start, evaluator.knowledge(), evaluator.rests().get(partition))
    for piece in np.array_split(np.arange(len(events)), pieces):
        summariser.update(events[piece[0] : piece[-1] + 1])
    return Summary.from_bytes(summariser.summary(start + len(events)).to_bytes())


def reported(report: Report) -> Any:
    """Return the fields of a Report that an engine knows: no calibration, and no check that compares propensities."""
    trust = [check for check in report.trust if check.check not in ("propensities", "calibration")]
    return msgspec.to_builtins(msgspec.structs.replace(report, calibration=(), trust=tuple(trust)))


def one_process(config: EvaluatorConfig, events: se.EventBatch) -> Any:
    evaluator = se.Evaluator.from_config(config)
    evaluator.update(events)
    return reported(evaluator.report(now=logs.START))


def differences(one: Any, other: Any, tolerance: float, path: str = "") -> Iterator[str]:
    if isinstance(one, dict | list | tuple) and type(one) is type(other) and len(one) == len(other):
        for key in one if isinstance(one, dict) else range(len(one)):
            yield from differences(one[key], other[key], tolerance, f"{path}.{key}")
    elif isinstance(one, float) and isinstance(other, float) and one == pytest.approx(other, rel=tolerance, abs=1e-12):
        return
    elif one != other and not isinstance(one, str):
        yield f"{path}: {one}, and {other}"


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


def test_each_range_counts_once_and_none_may_be_left_out() -> None:
    config, events = CASES["defaults"]
    evaluator = PartitionedEvaluator.from_config(config)
    first = summarised(evaluator, events[:500], start=0)
    evaluator.fold([first])
    second = summarised(evaluator, events[500:900], start=500)
    third = replace_range(second, 900, 1_300)
    before = evaluator.state()
    evaluator.fold([first])
    for wrong in (third, replace_range(second, 400, 900)):
        with pytest.raises(StateError, match="500 is the next one"):
            evaluator.fold([second, wrong] if wrong is not third else [wrong])
    assert evaluator.state() == before
    evaluator.fold([third, first, second])
    assert (evaluator.accepted, evaluator.offset(0)) == (1_300, 1_300)
    evaluator.skip(0, 2_000)
    assert evaluator.offset(0) == 2_000


def replace_range(summary: Summary, start: int, end: int) -> Summary:
    return msgspec.structs.replace(summary, start=start, end=end)


def test_a_summary_of_another_config_or_no_summary_is_refused() -> None:
    config, events = CASES["defaults"]
    other = PartitionedEvaluator.from_config(replace(config, confidence=0.9))
    with pytest.raises(StateError, match="is of config"):
        PartitionedEvaluator.from_config(config).fold([summarised(other, events[:10], start=0)])
    with pytest.raises(StateError, match="not the Summary of this version"):
        Summary.from_bytes(b"{}")


def test_blocks_wait_for_partitions_of_the_same_batch_and_a_report_has_them_all() -> None:
    config = case(["now", "new"], PLAIN, reward_range=(-0.125, 1.125))
    events = batch(logs.without(logs.plain(21, 1_200), "unit"))
    ahead, behind = events[600:], events[:600]
    evaluator = PartitionedEvaluator.from_config(config)
    evaluator.fold([summarised(evaluator, behind[:300], 0, 0), summarised(evaluator, ahead, 0, 1)])
    assert evaluator.state()["held"] is not None
    assert evaluator.report().events.accepted == 900
    assert {counts.events for counts in evaluator.report().policies if counts.policy == "logging"} == {900}
    evaluator = PartitionedEvaluator.from_state(written_and_read(evaluator.state()))
    evaluator.fold([summarised(evaluator, behind[300:], 300, 0)])
    assert evaluator.state()["held"] is not None  # the other partition is behind the waiting blocks
    actual, one = reported(evaluator.report(now=logs.START)), one_process(config, events)
    rows = zip(actual["estimates"], one["estimates"], strict=True)
    for mine, theirs in rows:  # only coefficients lag
        if theirs["estimator"] in ("ips", "snips", "clipped_ips"):
            assert list(differences(mine, theirs, tolerance=1e-9)) == []


def test_the_number_of_blocks_that_wait_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ope.evaluator.summaries.MAX_HELD", 6)
    config, events = CASES["defaults"]
    evaluator = PartitionedEvaluator.from_config(config)
    evaluator.fold([summarised(evaluator, events[:50], 0, 0), summarised(evaluator, events[30:1_030], 0, 1)])
    assert evaluator._held is not None
    assert len(evaluator._held.times) == 2


def test_transitions_name_the_partition_and_offset_of_the_event() -> None:
    config = se.Evaluator(
        ["best"], ["ips"], ["cumulative", "mixture"], promotion={"rule": "paired", "min_events": 100, "hold": 1}
    ).config
    events, rng = 4_000, np.random.default_rng(1)
    columns = {"reward": rng.integers(0, 2, events) * 1.0, "propensity": np.full(events, 0.5)}
    log = se.EventBatch.from_arrays(**columns, policies={"best": np.where(columns["reward"] > 0, 0.9, 0.1)})
    log = replace(log, origin=Origin.from_parts("log", [(0, range(events))]))
    evaluator = PartitionedEvaluator.from_config(config)
    evaluator.fold([summarised(evaluator, log, start=0)])
    (transition,) = evaluator.take_transitions()
    assert transition.place == ("log", 0, transition.event - 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"intervals": {"cumulative": "confidence_sequence"}},
            "confidence_sequence on cumulative follows single events",
        ),
        ({"promotion": ["paired", "anytime"]}, "the rule anytime bets on single events"),
        ({"candidates": {"new": se.Learned()}}, "new learns from one event after the other"),
        ({"logging": {"arms": ["logging", "new"]}}, "the shares of a ramp are measured in order"),
        (
            {"ranking": {"metric": "dcg", "examination": "swaps"}, "estimators": ["click_ips"]},
            "the examination of ranks is learned in order",
        ),
        ({"propensity": "estimated", "estimators": ["snips"]}, "propensities are estimated from the events before"),
    ],
)
def test_options_that_need_all_events_in_order_are_refused_with_a_remedy(options: dict[str, Any], problem: str) -> None:
    settings = {"candidates": ["new"], "estimators": ["ips"], "averages": ["cumulative", "mixture"], **options}
    with pytest.raises(ConfigError, match=problem) as refused:
        require_halves(se.Evaluator(**settings).config)
    assert refused.value.hint


@pytest.mark.parametrize("average", AVERAGES, ids=lambda average: average.label)
def test_every_average_and_drift_may_be_included(average: Any) -> None:
    options: dict[str, Any] = {"intervals": {average.label: se.Normal(drift="include")}} if average.drift else {}
    require_halves(se.Evaluator(["new"], ["ips"], [average], **options).config)
