"""Test which candidates the best one beats."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.summaries import PartitionedEvaluator
from streameval.ope.promotion import leader
from streameval.ope.report import Contender, Report
from support.changes import adopt
from support.summaries import one_process, summarised

SHARES = {"best": 0.9, "twin": 0.9, "equal": 0.9, "sparse": 0.9, "poor": 0.3}
"""How often each candidate takes the first action, which earns more.

`equal` is sure of its action on some events and less sure on others, and `sparse` lacks every 20th event.
"""


def test_many_late_candidates_end_the_comparison_until_few_are_left() -> None:
    """Add more candidates at once than are compared, and drop them again."""
    some, batch = evaluator("best", "poor"), log(1_000)
    some.update(batch)
    many = dict.fromkeys(("best", "poor", *map(str, range(leader.MOST_CANDIDATES + 1))), "logged")
    adopt(some, evaluator(*many).config)
    some.update(log(8_000))
    assert some.report().contenders == ()
    assert some.change_candidates(evaluator("best", "poor").config) is None
    again = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(some.state())))
    again.update(log(20_000))
    assert beaten(again.report())["poor"]


def test_too_many_candidates_are_not_compared() -> None:
    many = evaluator(*map(str, range(leader.MOST_CANDIDATES + 1)))
    many.update(se.EventBatch.from_arrays(reward=np.ones(200), propensity=np.ones(200), policies={"0": np.ones(200)}))
    assert many.report().contenders == ()


def evaluator(*candidates: str, **options: Any) -> Evaluator:
    promotion = se.Promotion(rule="paired", min_events=5_000)
    return se.Evaluator(list(candidates), ["snips"], [se.Mixture()], drift=None, promotion=promotion, **options)


def log(events: int, seed: int = 1) -> se.EventBatch:
    """Draw two actions by a coin. The first one earns 0.4 and the second one 0.2."""
    rng = np.random.default_rng(seed)
    first = rng.random(events) < 0.5
    reward = 1.0 * (rng.random(events) < np.where(first, 0.4, 0.2))
    shares = {name: np.full(events, share) for name, share in SHARES.items()}
    shares["equal"] += rng.choice([-0.1, 0.1], events)
    shares["sparse"][::20] = np.nan
    policies = {name: np.where(first, share, 1 - share) for name, share in shares.items()}
    return se.EventBatch.from_arrays(reward=reward, propensity=np.full(events, 0.5), policies=policies)


def beaten(report: Report) -> dict[str, bool]:
    return {row.policy: row.beaten for row in report.contenders}


def test_the_best_candidate_beats_a_poor_one_and_neither_its_twin_nor_an_equal_one() -> None:
    found = evaluator(*SHARES)
    found.update(log(20_000))
    report = found.report()
    assert [name for name, is_beaten in beaten(report).items() if is_beaten] == ["poor"]
    rows = {row.policy: row for row in report.contenders}
    (leader,) = {row.leader for row in rows.values()}
    assert rows[leader].lift is None
    assert rows["poor"].lift == pytest.approx(-0.12, abs=0.02)
    assert rows["poor"].lift < rows["poor"].upper < 0


def test_a_twin_is_equal_and_a_candidate_that_lacks_events_of_every_block_is_not_compared() -> None:
    found = evaluator("best", "twin", "sparse")
    found.update(log(20_000))
    rows = {row.policy: row for row in found.report().contenders}
    assert rows["best"].leader == "best"
    assert rows["twin"].lift == rows["twin"].upper == 0
    assert "sparse" not in rows


def test_nobody_is_compared_without_company_or_before_the_first_decision() -> None:
    for candidates, events in ((["best"], 20_000), (["best", "poor"], 4_900)):
        found = evaluator(*candidates)
        found.update(log(events))
        assert found.report().contenders == ()
    found.update(log(300))
    assert beaten(found.report()).keys() == {"best", "poor"}


def test_the_comparison_does_not_depend_on_how_the_stream_is_cut_or_resumed() -> None:
    batch, whole, cut = log(20_000), evaluator(*SHARES), evaluator(*SHARES)
    whole.update(batch)
    for start in range(0, 20_000, 777):
        cut.update(batch[start : start + 777])
        cut = Evaluator.from_state(cut.state())
    assert cut.report().contenders == whole.report().contenders


def test_summaries_of_ranges_compare_candidates_as_one_process_does() -> None:
    config, events = evaluator("best", "equal", "poor").config, log(7_000)
    parts = PartitionedEvaluator.from_config(config)
    for start in range(0, 7_000, 1_777):
        parts.fold([summarised(parts, events[start : start + 1_777], start)])
    compared = parts.report().contenders
    assert len(compared) == 3
    assert msgspec.to_builtins(compared) == one_process(config, events)["contenders"]


def test_a_state_without_comparisons_starts_them_from_zero() -> None:
    found = evaluator(*SHARES)
    found.update(log(20_000))
    found.fold_pending()
    state = found.state()
    del state["promotion"]["pairs"]
    resumed = Evaluator.from_state(state)
    assert resumed.report().contenders == ()
    assert resumed.report().estimates == found.report().estimates
    resumed.update(log(20_000))
    assert beaten(resumed.report())["poor"]


def test_a_late_candidate_is_compared_on_the_events_since_its_start() -> None:
    found = evaluator("best", "poor")
    found.update(log(20_000))
    (_, before) = found.report().contenders
    adopt(found, evaluator("best", "poor", "equal").config)
    (_, after) = found.report().contenders
    assert (after.policy, after.lift, after.beaten) == ("poor", before.lift, True)
    found.update(log(4_000))
    assert beaten(found.report()) == {"best": False, "poor": True}
    found.update(log(4_000, seed=2))
    assert beaten(found.report()) == {"best": False, "poor": True, "equal": False}
    found.change_candidates(evaluator("equal", "poor").config)
    assert beaten(found.report()) == {"equal": False, "poor": True}


def pairs(*means: float, blocks: int = 100) -> leader.PairState:
    """Return the state after blocks with these mean differences from a candidate of 0, and a variance of 1."""
    differences = np.subtract.outer(means, means)
    shape = differences.shape
    square = blocks * (differences**2 + 1)
    return leader.PairState(
        np.ones(2), np.full(shape, 1.0 * blocks), np.full(shape, 100.0 * blocks), blocks * differences, square
    )


def compared(state: leader.PairState, **doubts: Any) -> tuple[Contender, ...]:
    return leader.contenders(state, ["a", "b", "c"], 0.01, min_blocks=0, **doubts)


def test_a_candidate_that_is_worse_does_not_lead_and_an_untrusted_one_is_not_compared() -> None:
    state = pairs(3.0, 2.0, 1.0)
    assert [(row.leader, row.beaten) for row in compared(state)] == [("a", False), ("a", True), ("a", True)]
    assert [(row.leader, row.beaten) for row in compared(state, worse={"a"})] == [
        ("b", False),
        ("b", False),
        ("b", True),
    ]
    assert [row.policy for row in compared(state, untrusted={"a"})] == ["b", "c"]
    assert compared(state, untrusted={"a", "b"}) == compared(state, worse={"a", "b", "c"}) == ()


def test_new_candidates_meet_the_others_from_zero_and_each_other_as_before() -> None:
    joined = leader.join(pairs(1.0, 2.0), pairs(5.0, 6.0, 8.0), new=2)
    assert joined.total.tolist() == [[0, -100, 0, 0], [100, 0, 0, 0], [0, 0, 0, -200], [0, 0, 200, 0]]
    assert leader.select(joined, [3, 2]).total.tolist() == [[0, 200], [-200, 0]]
