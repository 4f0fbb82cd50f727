"""Check that the checks of a ramp stay silent while propensities and shares are right, and find wrong ones."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from streameval import Evaluator, EventBatch
from support.ramps import POLICIES, THREE, failed_checks, sessions, three_actions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RUNS, RUNS_WRONG, EVENTS = 100, 50, 100_000
"""Ramps with correct propensities, those with each kind of wrong ones, and the events of each."""
FIRST_WRONG = 400
"""The first seed of ramps with wrong propensities."""
RUNS_COVERED, EVENTS_COVERED = 200, 10_000
"""Ramps whose intervals are looked at once, at their end, and the events of each."""
RUNS_OF_SESSIONS, ACTIVE = 30, (1, 20, 200)
"""Ramps of users who keep their arm for a session of 10 to 50 events, and how many sessions are active at a time."""


def test_correct_propensities_and_shares_ever_fail_a_check_in_at_most_5_of_100_ramps() -> None:
    failed = [failed_checks(three_actions(seed, EVENTS)) for seed in range(RUNS)]
    shares = {name: sum(name in checks for checks in failed) / RUNS for name in ("calibration", "arm_shares")}
    print(shares)
    assert max(shares.values()) <= 0.05


def test_propensities_wrong_by_a_fifth_on_one_action_in_three_fail_the_check_in_at_least_9_of_10_ramps() -> None:
    check = "calibration"
    shares = [
        sum(
            check in failed_checks(three_actions(FIRST_WRONG + seed, EVENTS, wrong=wrong), until=check)
            for seed in range(RUNS_WRONG)
        )
        / RUNS_WRONG
        for wrong in (0.8, 1.2)
    ]
    print(shares)
    assert min(shares) >= 0.9


def test_sessions_with_correct_propensities_ever_fail_a_check_in_at_most_5_of_100_ramps() -> None:
    """Sessions have one arm and one level of reward each, and reach over many blocks: events depend on each other."""
    failed = [failed_checks(sessions(seed, EVENTS, active=ACTIVE[seed % 3])) for seed in range(RUNS_OF_SESSIONS)]
    shares = {name: sum(name in checks for checks in failed) / len(failed) for name in ("calibration", "arm_shares")}
    print(shares)
    assert max(shares.values()) <= 0.05


def test_sessions_with_propensities_wrong_by_a_fifth_fail_the_check_in_at_least_9_of_10_ramps() -> None:
    check, wrong = "calibration", (0.8, 1.2)
    logs = (
        sessions(FIRST_WRONG + seed, EVENTS, wrong=wrong[seed % 2], active=ACTIVE[seed % 3])
        for seed in range(RUNS_OF_SESSIONS)
    )
    failures = [check in failed_checks(log, until=check) for log in logs]
    print(sum(failures))
    assert sum(failures) / len(failures) >= 0.9


@pytest.mark.parametrize("active", [None, 20], ids=["events", "sessions"])
def test_intervals_of_the_seen_value_of_its_lift_and_of_the_error_cover_the_truth(active: int | None) -> None:
    """Expect an error of 0 if propensities are right, whatever the average.

    In sessions, the seen value rests on the 70 or so that the candidate had.
    """
    covered, value = Counter[tuple[str, str]](), float(POLICIES[1] @ THREE)
    lift = value - float(POLICIES[0] @ THREE)
    for seed in range(RUNS_COVERED):
        evaluator = Evaluator(
            ["challenger"], ["ips"], ["cumulative", "decay", "mixture"], production="production", drift=None
        )
        columns = sessions(seed, EVENTS_COVERED, active=active) if active else three_actions(seed, EVENTS_COVERED)
        evaluator.update(EventBatch.from_arrays(**columns))
        for row in evaluator.report().calibration:
            if row.policy == "challenger":
                intervals = {
                    "value": (value, row.lower, row.upper),
                    "lift": (lift, row.lift_lower, row.lift_upper),
                    "error": (0.0, row.error_lower, row.error_upper),
                }
                for name, (truth, lower, upper) in intervals.items():
                    assert lower is not None
                    assert upper is not None
                    covered[name, row.average] += lower <= truth <= upper
    shares = {label: count / RUNS_COVERED for label, count in covered.items()}
    print(shares)
    assert len(shares) == 9
    assert min(share for (name, _), share in shares.items() if name == "error") >= 0.94
    assert min(shares.values()) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / RUNS_COVERED)
