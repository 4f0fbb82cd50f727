"""Compare the Report of one configuration that has everything with the recorded one, number by number."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest

from streameval.config.model import Config
from support.paths import DATA
from support.recorded_cases import CASES, COMPACT_YAML, SCORED_YAML, Feed, Reports
from tools.recorded_reports import compare, recorded

CASE, TOLERANCE = "everything", 1e-7


@cache
def wanted() -> Reports:
    return recorded(DATA / "recorded_reports", CASE)


def differences(reports: Reports) -> str:
    """List the largest differences, one per line."""
    return "\n".join(map(str, compare(reports, wanted()).beyond(TOLERANCE)[:20]))


def test_reports_equal_the_recorded_ones() -> None:
    assert not differences(CASES[CASE](Feed()))


def test_a_small_difference_and_a_missing_row_are_found() -> None:
    changed = deepcopy(wanted())
    estimates = next(iter(changed.values()))["estimates"]
    estimates[5]["value"] *= 1 + 3e-7
    assert "value" in differences(changed)
    del estimates[5]
    assert "absent" in differences(changed)


@pytest.mark.parametrize("configuration", [COMPACT_YAML, SCORED_YAML])
def test_the_configurations_of_recorded_replays_are_valid(configuration: str, tmp_path: Path) -> None:
    file = tmp_path / "streameval.yaml"
    file.write_text(f"source: {{kind: file, path: log.ndjson}}\n{configuration}")
    assert Config.load(file).policies.candidates
