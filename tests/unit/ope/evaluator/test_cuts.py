"""However a stream is cut, interrupted and resumed, and whenever a Report is made, the numbers are the same bits."""

from __future__ import annotations

import pytest

from support.recorded_cases import CASES, Feed

EVENTS = 433
"""Events of each part of a case: four blocks of the default length, and an unfinished one."""
FEWER = {"late_candidates_within_blocks": 171}
"""Events of each part of a case that has many parts."""
LONG = {"replay", "long_stream", "long_streams_of_all_kinds", "late_candidates_at_block_ends", "moments"}
"""Cases that the tool alone runs: a command, streams that need all of their events, and variations of other cases."""


@pytest.mark.parametrize("case", [case for case in CASES if case not in LONG])
def test_cuts_restarts_and_reports_change_no_number(case: str) -> None:
    most = FEWER.get(case, EVENTS)
    assert CASES[case](Feed(1, restarts=True, most=most)) == CASES[case](Feed(most=most))
