"""Test that cutting, interrupting, resuming and reporting change no bit of any number."""

from __future__ import annotations

import pytest

from support.recorded_cases import CASES, Feed

EVENTS = 333
"""Events of each part of a case: three blocks of the default length, and an unfinished one."""
FEWER = {"late_candidates_within_blocks": 171}
"""Events of each part, for cases of many parts."""
ROOMS = [
    "everything",
    "named_production",
    "units_that_start_late",
    "event_time",
    "adaptive_options",
    "blocks_of_other_lengths",
    "intervals_of_a_complete_log",
    "family_of_units",
    "automatic_caps",
    "slates",
    "slot_rewards",
    "revealed_outcomes",
    "examination",
    "learned_limits",
    "ramps",
    "estimated_propensities",
    "policies_in_code",
    "policies_that_learn",
    "versions",
    "late_candidates_within_blocks",
    "mixed_forms",
    "policies_that_learn_by_code",
    "propensities_by_a_classifier",
    "reward_models_in_code",
]
"""Cases that together use all code that keeps a state."""
LONG = {"replay", "long_stream", "long_streams_of_all_kinds", "late_candidates_at_block_ends", "moments"}
"""Cases that only the tool runs: a command, streams that need all of their events, and variations of other cases."""


@pytest.mark.parametrize("case", ROOMS)
def test_cuts_restarts_and_reports_change_no_number(case: str) -> None:
    require_equal(case, FEWER.get(case, EVENTS), variants=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in LONG])
def test_cuts_restarts_and_reports_change_no_number_of_any_variant(case: str) -> None:
    require_equal(case, FEWER.get(case, 433), variants=None)


def require_equal(case: str, events: int, variants: int | None) -> None:
    """Compare a case in cut and restarted batches of at most so many events with all events at once."""
    whole = CASES[case](Feed(most=events, variants=variants))
    assert CASES[case](Feed(1, restarts=True, most=events, variants=variants)) == whole
