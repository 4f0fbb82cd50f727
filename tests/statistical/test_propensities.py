"""Check that correct propensities pass over a whole stream, and that wrong ones are found."""

from __future__ import annotations

import pytest

from support.propensities import finding_of, findings_about, three_actions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUNS, RUNS_WRONG, EVENTS, LOOK = 400, 50, 100_000, 5_000


def test_correct_propensities_ever_fail_the_check_in_at_most_5_of_100_streams() -> None:
    failed = sum(finding_of(three_actions(seed, 20_000, listed=seed % 2 == 0), LOOK) != "" for seed in range(RUNS))
    print(failed)
    assert failed <= 0.05 * RUNS


@pytest.mark.parametrize(("wrong", "listed"), [(0.8, False), (0.8, True), (1.2, True)])
def test_one_of_three_actions_wrong_by_a_fifth_fails_the_check_in_at_least_9_of_10_streams(
    wrong: float, listed: bool
) -> None:
    logs = (three_actions(RUNS + seed, EVENTS, wrong, listed=listed) for seed in range(RUNS_WRONG))
    findings = [finding_of(log, LOOK) for log in logs]
    print(sum(map(bool, findings)), findings[0])
    assert sum(map(bool, findings)) >= 0.9 * RUNS_WRONG
    if wrong < 1:
        assert sum("action sport" in finding for finding in findings) >= 0.9 * RUNS_WRONG


@pytest.mark.parametrize("wrong", [0.8, 1.2])
def test_a_log_names_the_action_that_is_wrong_by_a_fifth(wrong: float) -> None:
    side = "low" if wrong < 1 else "high"
    findings = [findings_about(three_actions(seed, 10_000, wrong)) for seed in range(RUNS_WRONG)]
    named = [
        any(finding.startswith("action sport") and finding.endswith(f"too {side}") for finding in off)
        for off in findings
    ]
    assert sum(named) >= 0.9 * RUNS_WRONG
