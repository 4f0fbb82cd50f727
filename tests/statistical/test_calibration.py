"""The checks of a ramp: silent while propensities and shares are right, and loud where they are wrong."""

from __future__ import annotations

import pytest

from support.ramps import failed_checks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RUNS, RUNS_WRONG, EVENTS = 400, 100, 100_000
"""Ramps with correct propensities, those with each kind of wrong ones, and the events of each."""


def test_correct_propensities_and_shares_ever_fail_a_check_in_at_most_5_of_100_ramps() -> None:
    failed = [failed_checks(seed, EVENTS, wrong=1.0) for seed in range(RUNS)]
    shares = {name: sum(name in each for each in failed) / RUNS for name in ("calibration", "arm_shares")}
    print(shares)
    assert max(shares.values()) <= 0.05


def test_propensities_wrong_by_a_fifth_on_one_action_in_three_fail_the_check_in_at_least_9_of_10_ramps() -> None:
    check = "calibration"
    found = [
        sum(check in failed_checks(RUNS + seed, EVENTS, wrong, until=check) for seed in range(RUNS_WRONG)) / RUNS_WRONG
        for wrong in (0.8, 1.2)
    ]
    print(found)
    assert min(found) >= 0.9
