"""Test the check `propensities`: how often a stream chose its actions, and how often the propensities expect it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ope.evidence import frequencies
from streameval.ope.report import Report
from support.propensities import NAMES, named, three_actions

ERROR = 0.01


def followed(batches: Sequence[EventBatch]) -> frequencies.FrequencyState:
    state = frequencies.start()
    for batch in batches:
        state = frequencies.fold(state, batch, ERROR)
    return state


def judged(*batches: EventBatch) -> tuple[bool, str]:
    actual = frequencies.judge(followed(batches), ERROR)
    assert actual is not None
    return actual


def decoded(evaluator: Evaluator, seed: int, events: int, wrong: float) -> EventBatch:
    """Decode events of JSON. The challenger hardly differs from production, so that only this check can fail."""
    batch = three_actions(seed, events, wrong)
    chosen = zip([NAMES[index] for index in action_numbers(batch)], batch.propensity.tolist(), strict=True)
    lines = [
        json.dumps(
            {"event_id": n, "timestamp": n, "action": action, "propensity": p, "reward": n % 2, "policies": {"new": p}}
        )
        for n, (action, p) in enumerate(chosen)
    ]
    return evaluator.config.decoder().decode_batch(map(str.encode, lines))


def action_numbers(batch: EventBatch) -> list[int]:
    assert batch.actions is not None
    return [NAMES.index(batch.actions.names[code]) for code in batch.actions.chosen.tolist()]


def findings(report: Report) -> set[tuple[str, bool, str]]:
    return {(check.policy, check.ok, check.reason) for check in report.trust if check.check == "propensities"}


def test_an_action_with_too_low_propensities_is_named_and_nothing_is_promotable() -> None:
    evaluator = Evaluator(["new"], promotion="paired")
    evaluator.update(decoded(evaluator, 1, 6_000, wrong=0.8))
    report = evaluator.report()
    ((_, ok, reason),) = {finding for finding in findings(report) if finding[0] == "new"}
    assert not ok
    assert reason.startswith("action sport: the logged propensities are")
    assert reason.endswith("% too low")
    assert {finding[0] for finding in findings(report)} == {"new", "logging"}
    (decision,) = report.promotion
    assert not decision.promotable
    assert decision.reason.startswith(f"{reason}; ")


def test_the_report_of_correct_propensities_has_the_check_and_a_resumed_evaluator_has_the_same() -> None:
    evaluator = Evaluator(["new"])
    batch = decoded(evaluator, 2, 2_050, wrong=1.0)
    evaluator.update(batch[:1_030])
    resumed = Evaluator.from_state(evaluator.state())
    for instance in (evaluator, resumed):
        instance.update(batch[1_030:])
    reason = "how often actions were chosen agrees with the propensities of 2,000 events"
    assert findings(evaluator.report()) == {("new", True, reason), ("logging", True, reason)}
    assert findings(resumed.report()) == findings(evaluator.report())


def test_without_promotion_or_action_names_there_is_no_check() -> None:
    alone, unnamed = Evaluator(["new"], promotion=None), Evaluator(["new"])
    alone.update(decoded(alone, 3, 300, wrong=0.5))
    unnamed.update(three_actions(3, 300).with_policies(["new"]))
    assert findings(alone.report()) == set()
    plain = EventBatch.from_arrays(reward=np.zeros(300), propensity=np.full(300, 0.5), policies={"new": np.ones(300)})
    unchecked = Evaluator(["new"])
    unchecked.update(plain)
    assert findings(unchecked.report()) == set()


@pytest.mark.parametrize(("logged", "finding"), [(0.05, "150 % too high"), (0.011, "45 % too low")])
def test_wrong_propensities_of_a_bucket_are_named_in_either_direction(logged: float, finding: str) -> None:
    second = (np.arange(10_000) % 50 == 0).astype(int)
    lists = np.full((10_000, 2), [1 - logged, logged])
    ok, reason = judged(EventBatch.from_arrays(reward=np.zeros(10_000), action=second, propensities=lists))
    bounds = "0.03 to 0.1" if logged > 0.03 else "0.01 to 0.03"
    assert (ok, reason) == (False, f"propensities from {bounds}: the logged propensities are {finding}")


def test_the_comparison_does_not_depend_on_the_cut_of_the_stream_and_ends_after_a_span_of_correct_ones() -> None:
    wrong, right = three_actions(4, 150_000, wrong=0.9), three_actions(5, 300_000)
    whole = followed([wrong, right[:200_000]])
    cut = followed([wrong[:70_001], wrong[70_001:], right[:1], right[1:199_999], right[199_999:200_000]])
    assert frequencies.judge(cut, ERROR) == frequencies.judge(whole, ERROR)
    np.testing.assert_allclose(cut.sums, whole.sums, rtol=1e-9)
    assert "action sport" in str(frequencies.judge(whole, ERROR)), "of the span that has ended"
    assert judged(wrong, right)[0]


def test_memory_is_bounded_and_a_thinner_event_starts_a_span_of_events_as_thin() -> None:
    names = list(range(2100)) + [f"{'x' * 200}{index}" for index in range(1030)]
    batch = EventBatch.from_arrays(
        reward=np.zeros(3130), propensity=np.full(3130, 0.5), sampling_probability=np.repeat([1.0, 0.5], [2100, 1030])
    )
    state = followed([named(batch, names)] * 2)
    assert len(state.names) == len(state.sums) == frequencies.MAX_ACTIONS
    assert (state.names[0], state.span) == ("x" * frequencies.MAX_NAME, 2)
    assert state.events == pytest.approx(1030 + 1050 + 1030, rel=0.05), "half of the events of a thicker part"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_propensities_that_differ_by_rounding_are_in_one_bucket(dtype: type[np.floating[Any]]) -> None:
    rng, events = np.random.default_rng(3), 20_000
    first = rng.random(events) < 0.7
    rest = float(dtype(1) - dtype(0.7)), float(dtype(0.3))  # above and below each other, by the type
    pair = np.where(first[:, None], [float(dtype(0.7)), rest[0]], [1.0 - rest[1], rest[1]])
    batch = EventBatch.from_arrays(
        reward=np.zeros(events), action=np.where(first, 0, 1), propensities=pair, policies={"a": pair}
    )
    assert judged(batch) == (True, "how often actions were chosen agrees with the propensities of 20,000 events")
