"""Mutated and extreme messages cause no crash and no number that is not finite, in bounded time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.extreme_messages import CASES
from support.factories import crowding
from support.fuzz_messages import FORMATS
from support.paths import TESTS
from tools.fuzz import RANGES, fuzz

SECONDS, MEGABYTES = 5.0, 700.0
MESSAGES = 3_000
"""Of each range of rewards; `make fuzz` has ten million in all."""


@pytest.mark.parametrize(("seed", "reward_range"), list(enumerate(RANGES)))
def test_mutated_messages_crash_nothing_and_leave_finite_numbers(
    seed: int, reward_range: tuple[float, float] | None
) -> None:
    verdicts = fuzz(MESSAGES, seed, reward_range)
    assert verdicts.total() == MESSAGES // len(FORMATS) * len(FORMATS)
    for kind in FORMATS:
        accepted = verdicts[f"{kind} accepted"] * len(FORMATS) / MESSAGES
        assert 0.2 < accepted < 0.8, "mutations that hit too much or little"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["open", "scored", "dsjson"])
def test_an_extreme_message_takes_bounded_time_and_memory_and_costs_no_other(form: str) -> None:
    script = str(TESTS / "support" / "extreme_messages.py")
    reported = subprocess.run([sys.executable, script, form], capture_output=True, text=True, timeout=250, check=True)
    lines = [json.loads(line) for line in reported.stdout.splitlines()]
    assert [case for case, *_ in lines] == list(CASES)
    limit = SECONDS * crowding()
    for case, verdict, seconds, megabytes, size in lines:
        assert seconds < limit, case
        assert megabytes < MEGABYTES, case
        assert verdict != "accepted" or size < 17, case
