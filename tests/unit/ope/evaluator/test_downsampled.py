"""Test that the diagnoses of a downsampled log use the weights of its events."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.cli.propensities import check_propensities
from streameval.ope.report import Report

EVENTS = 20_000


def lines(odds: float = 1.0, listed: bool = False) -> list[str]:
    """Return a log that keeps all rewarded events and a tenth of the rest.

    Args:
        odds: the true odds of action a, relative to the logged ones
        listed: whether events list all propensities
    """
    rng = np.random.default_rng(7)
    is_a = rng.random(EVENTS) < 0.7 * odds / (0.7 * odds + 0.3)
    reward = (rng.random(EVENTS) < np.where(is_a, 0.1, 0.4)).astype(float)
    kept = np.flatnonzero((reward > 0) | (rng.random(EVENTS) < 0.1))
    return [
        json.dumps(
            {
                "event_id": index,
                "timestamp": index,
                "action": "a" if is_a[index] else "b",
                "reward": reward[index],
                "sampling_probability": 1.0 if reward[index] else 0.1,
                "policies": {"new": [0.2, 0.8] if listed else 0.2 if is_a[index] else 0.8},
                **(
                    {"actions": ["a", "b"], "propensities": [0.7, 0.3]}
                    if listed
                    else {"propensity": 0.7 if is_a[index] else 0.3}
                ),
            }
        )
        for index in kept.tolist()
    ]


def evaluated(log: list[str], pieces: int = 1) -> Report:
    evaluator = Evaluator(["new"])
    for piece in np.array_split(np.array(log), pieces):
        evaluator.update(evaluator.config.decoder().decode_batch([str(line).encode() for line in piece]))
        evaluator = Evaluator.from_state(evaluator.state())
    return evaluator.report()


def check(report: Report, name: str) -> tuple[bool, str]:
    (found,) = {(check.ok, check.reason) for check in report.trust if check.check == name and check.policy == "new"}
    return found


@pytest.mark.parametrize("listed", [False, True])
def test_the_propensities_of_a_right_log_pass_if_it_keeps_rewarded_events(listed: bool) -> None:
    assert check(evaluated(lines(listed=listed)), "propensities")[0]


@pytest.mark.parametrize("listed", [False, True])
def test_wrong_propensities_of_a_downsampled_log_fail(listed: bool) -> None:
    ok, reason = check(evaluated(lines(odds=2.5, listed=listed)), "propensities")
    assert not ok
    assert reason.endswith("% too low")


def test_the_check_of_a_downsampled_log_does_not_depend_on_how_it_is_cut() -> None:
    log = lines()
    assert check(evaluated(log), "propensities") == check(evaluated(log, pieces=7), "propensities")


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("odds", "findings"), [(1.0, 0), (2.5, 2)])
def test_a_whole_log_is_checked_with_the_weights_of_its_events(
    listed: bool, odds: float, findings: int, tmp_path: Path
) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text("\n".join(lines(odds, listed)) + "\n")
    found = [finding for finding in check_propensities(path) if finding.level == "error"]
    assert len(found) >= findings if findings else not found


def ramp(shares: float) -> EventBatch:
    """Return a ramp with these arms, one of them with more rewards, that keeps a tenth of the unrewarded events."""
    rng = np.random.default_rng(8)
    is_new = rng.random(EVENTS) < shares
    reward = (rng.random(EVENTS) < np.where(is_new, 0.4, 0.1)).astype(float)
    kept = (reward > 0) | (rng.random(EVENTS) < 0.1)
    return EventBatch.from_arrays(
        reward=reward[kept],
        propensity=np.full(kept.sum(), 0.5),
        policies={"new": np.full(kept.sum(), 0.5), "old": np.full(kept.sum(), 0.5)},
        sampling_probability=np.where(reward > 0, 1.0, 0.1)[kept],
        logging_policy=np.where(is_new, "new", "old")[kept].tolist(),
    )


@pytest.mark.parametrize(("share", "ok"), [(0.2, True), (0.25, False)])
def test_the_shares_of_arms_are_of_the_events_before_downsampling(share: float, ok: bool) -> None:
    evaluator = Evaluator(["new"], production="old", logging={"arms": {"old": 0.8, "new": 0.2}})
    evaluator.update(ramp(share))
    assert check(evaluator.report(), "arm_shares")[0] == ok


def test_clicks_below_the_cut_count_with_the_weights_of_their_pages() -> None:
    page = {"timestamp": 1.0, "ranking": {"shown": ["x", "y"], "clicked": ["x"]}}
    pages = [
        {**page, "event_id": index, "policies": {"new": {"ranks": {"x": rank}}}, "sampling_probability": sampling}
        for index, (rank, sampling) in enumerate([(1, 1.0), (2, 0.25)])
    ]
    evaluator = Evaluator(["new"], ranking={"metric": {"kind": "precision", "at": 1}, "examination": "power"})
    evaluator.update(evaluator.config.decoder().decode_batch([json.dumps(page).encode() for page in pages]))
    assert evaluator.report().get("new", "click_ips", "cumulative").details["clicks_below_cut"] == pytest.approx(0.8)


@pytest.mark.parametrize("sampling", [1e-40, 1e-6, 1e-4])
def test_a_mixture_has_no_interval_if_one_event_stands_for_most_of_the_log(sampling: float) -> None:
    rng = np.random.default_rng(9)
    is_a, thin = rng.random(5_000) < 0.7, np.arange(5_000) == 2_500
    evaluator = Evaluator(["new"])
    evaluator.update(
        EventBatch.from_arrays(
            reward=np.where(thin, 1.0, rng.random(5_000) < np.where(is_a, 0.1, 0.2)),
            propensity=np.where(is_a, 0.7, 0.3),
            policies={"new": np.where(is_a, 0.2, 0.8)},
            sampling_probability=np.where(thin, sampling, 1.0),
        )
    )
    row = evaluator.report().get("new", "stratified_ips", "mixture")
    assert (row.lower, row.upper, row.lift_lower, row.lift_upper) == (None, None, None, None)
    assert not check(evaluator.report(), "largest_share")[0]
