"""Test drift detectors: their detections, what a resumed one remembers, and that no estimate depends on them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from river import drift as river_drift

from streameval.common.arrays import to_plain
from streameval.events import EventBatch
from streameval.ope.core.state import decode
from streameval.ope.evaluator.drift_detection import (
    FEWEST,
    KEPT_VALUES,
    LONGEST_WINDOW,
    DriftDetector,
    DriftState,
    RiverState,
    block_means,
    saved,
)
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evidence import Evidence
from streameval.ope.report import Report

Array = NDArray[np.float64]
DETECTORS = [DriftDetector("ADWIN"), DriftDetector("PageHinkley", {"threshold": 5.0}), DriftDetector("KSWIN")]


def means(blocks: int, policies: int = 1, *, jump: int | None = None, seed: int = 0) -> Array:
    """Draw block means around 0.3, and from block `jump` on around 0.6."""
    random = np.random.default_rng(seed)
    level = np.where(np.arange(blocks) >= (blocks if jump is None else jump), 0.6, 0.3)
    return level[:, None] + random.normal(0, 0.05, (blocks, policies))


def updated(detector: DriftDetector, values: Array) -> DriftState:
    state = detector.start(values.shape[1])
    detector.update(state, values)
    return state


def seen(state: DriftState) -> list[list[float]]:
    """Return the block means that a detector of river remembers."""
    assert isinstance(state, RiverState)
    return state.seen


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_a_jump_is_found(detector: DriftDetector) -> None:
    before = updated(detector, means(600, jump=400)[:400]).detections[0]
    assert updated(detector, means(600, jump=400)).detections[0] > before


def test_nothing_is_detected_in_a_stationary_world() -> None:
    assert updated(DriftDetector("ADWIN"), means(6_000, policies=3)).detections.tolist() == [0, 0, 0]


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_detections_equal_those_in_river(detector: DriftDetector) -> None:
    values = means(600 if detector.name == "KSWIN" else LONGEST_WINDOW, jump=400)
    alone = getattr(river_drift, detector.name)(**{"seed": 1} if detector.name == "KSWIN" else detector.parameters)
    count = 0
    for index, value in enumerate(values[:, 0].tolist()):
        alone.update(value)
        count += alone.drift_detected and index >= FEWEST
    assert updated(detector, values).detections.tolist() == [count]


def packed(state: DriftState) -> bytes:
    return msgspec.msgpack.encode(to_plain(saved(state)))


@pytest.mark.parametrize("detector", DETECTORS[:2], ids=lambda detector: detector.name)
@pytest.mark.parametrize("cut", [FEWEST, LONGEST_WINDOW, 3_100])
def test_a_resumed_detector_continues_as_if_uninterrupted(detector: DriftDetector, cut: int) -> None:
    values = np.concatenate([means(1_500, 2, jump=800), means(2_600, 2, jump=1_900, seed=1)])
    uninterrupted = updated(detector, values[:cut])
    resumed = decode(msgspec.msgpack.decode(packed(uninterrupted)), detector.start(2))
    for value in values[cut:]:
        detector.update(uninterrupted, value[None])
        detector.update(resumed, value[None])
        assert resumed.detections.tolist() == uninterrupted.detections.tolist()
    assert uninterrupted.detections[0] >= 2
    assert packed(resumed) == packed(uninterrupted)


def test_the_memory_of_block_means_is_bounded() -> None:
    detector, sizes = DriftDetector("PageHinkley"), []
    state = detector.start(1)
    for _ in range(20):
        detector.update(state, means(500))
        sizes.append(len(seen(state)[0]))
    assert max(sizes) <= LONGEST_WINDOW


def test_a_full_memory_keeps_its_newest_block_means() -> None:
    values = means(LONGEST_WINDOW + 1)
    assert seen(updated(DriftDetector("PageHinkley"), values))[0] == values[-KEPT_VALUES - 1 :, 0].tolist()


def test_blocks_without_evidence_about_a_policy_are_left_out() -> None:
    values = means(300, 2, jump=150)
    gaps = np.full((600, 2), np.nan)
    gaps[::2] = values
    assert seen(updated(DriftDetector("PageHinkley"), gaps))[1] == values[:, 1].tolist()
    for detector in DETECTORS:
        assert updated(detector, gaps).detections.tolist() == updated(detector, values).detections.tolist()


def test_adwin_restarts_as_a_detector_of_river_does() -> None:
    random = np.random.default_rng(5)
    values = random.normal(0.3, 0.05, (11_000, 3)) + 0.2 * random.integers(0, 4, 111).repeat(100)[:11_000, None]
    values[random.random(values.shape) < 0.2] = np.nan
    for parameters in ({}, {"clock": 1, "delta": 0.05}):
        detector, rivers = DriftDetector("ADWIN", parameters), RiverState.start(3)
        detector.update(rivers, values)
        assert rivers.detections.min() > 10
        assert updated(detector, values).detections.tolist() == rivers.detections.tolist()


@pytest.mark.parametrize("wrong", [{"clock": 0}, {"clock": 2.5}, {"max_buckets": 0}, {"delta": 0}, {"delta": np.nan}])
def test_parameters_that_adwin_cannot_have_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="ADWIN cannot be made with"):
        DriftDetector.from_option(wrong)


def test_block_means_cut_large_weights_and_are_in_units_of_the_reward_range() -> None:
    evidence = Evidence.from_numbers(
        [[125.0], [2.0], [1.0], [1.0]], [10.0, 5.0, 0.0, 10.0], 2, [[1.0], [1.0], [0.0], [0.0]]
    )
    means = block_means(evidence, (0.0, 10.0))
    assert means[0, 0] == pytest.approx((5.0 * 1.0 + 2.0 * 0.5) / 2)
    assert np.isnan(means[1, 0])


def log(events: int = 40_000, jump: int = 20_000) -> EventBatch:
    """Draw a log with a candidate that earns less, then more. The logging policy always earns as much."""
    random = np.random.default_rng(3)
    action = random.integers(2, size=events)
    good = np.where(np.arange(events) < jump, 0, 1)
    reward = (random.random(events) < np.where(action == good, 0.6, 0.2)).astype(float)
    target = np.where(action == 1, 0.9, 0.1)
    return EventBatch.from_arrays(reward=reward, propensity=np.full(events, 0.5), policies={"a": target})


def detections(evaluator: Evaluator) -> dict[str, int | None]:
    return {counts.policy: counts.drift_detections for counts in evaluator.report().policies}


def test_the_report_counts_the_changes_of_each_policy() -> None:
    evaluator = Evaluator(["a"])
    evaluator.update(log())
    counts = detections(evaluator)
    assert counts["logging"] == 0
    assert counts["a"]


def estimates(report: Report) -> Report:
    return replace(report, policies=tuple(replace(counts, drift_detections=None) for counts in report.policies))


@pytest.mark.parametrize("wish", [None, "off", {"detector": "ADWIN", "delta": 0.5}])
def test_no_estimate_depends_on_the_detector(wish: object) -> None:
    usual, other = Evaluator(["a"]), Evaluator(["a"], drift=wish)  # type: ignore[arg-type]
    for evaluator in (usual, other):
        evaluator.update(log(10_000, 5_000))
    assert estimates(other.report()).to_json() == estimates(usual.report()).to_json()


def test_without_a_detector_nothing_is_counted() -> None:
    evaluator = Evaluator(["a"], drift=None)
    evaluator.update(log(5_000))
    assert detections(evaluator) == {"logging": None, "a": None}
    assert evaluator.state()["drift"] is None
    assert detections(Evaluator.from_state(evaluator.state())) == {"logging": None, "a": None}
