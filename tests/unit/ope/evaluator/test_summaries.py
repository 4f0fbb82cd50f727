"""Test half 1 in several processes and half 2 in one, against an evaluator of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.errors import ConfigError, StateError
from streameval.events.origin import Origin
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summary, require_halves
from support import recorded_logs as logs
from support.recorded_cases import AVERAGES, PLAIN, written_and_read
from support.summaries import CASES, batch, case, differences, one_process, reported, summarised


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
        ({"production": "old", "logging": {"arms": ["old", "new"]}}, "the shares of a ramp are measured in order"),
        (
            {"ranking": {"metric": "dcg", "examination": "swaps"}, "estimators": ["click_ips"]},
            "the examination of ranks is learned in order",
        ),
        (
            {"reward_range": {"max": "auto", "quantile": 0.99}},
            "reward.max: auto clips each block at a quantile of all blocks before it, and executors lack",
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
