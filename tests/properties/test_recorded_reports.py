"""Compare the Report of one configuration that has everything with the recorded one, number by number."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest

from streameval.config.model import Config
from support.paths import DATA
from support.recorded_cases import CASES, COMPACT_YAML, SCORED_YAML, Feed, Reports
from tools.recorded_reports import Difference, compare, recorded

CASE, TOLERANCE = "everything", 1e-7
RECORD = (
    "to record a change that is meant:\n"
    f"PYTHONPATH=.:tests python tests/tools/recorded_reports.py --record tests/data/recorded_reports {CASE}"
)


@cache
def wanted() -> Reports:
    return recorded(DATA / "recorded_reports", CASE)


def differences(reports: Reports) -> str:
    """List each key that differs once, with the number of its values and the largest difference."""
    by_key: dict[str, list[Difference]] = {}
    for entry in compare(reports, wanted()).beyond(TOLERANCE):
        by_key.setdefault(re.sub(r"\[.*?\]", "", entry.path), []).append(entry)
    lines = [f"{key}: {len(entries)} values, e.g. {entries[0]}" for key, entries in by_key.items()]
    return "\n".join([*lines, RECORD] if lines else [])


def test_reports_equal_the_recorded_ones() -> None:
    assert not differences(CASES[CASE](Feed()))


def test_a_small_difference_a_missing_row_and_a_new_key_are_found() -> None:
    changed = deepcopy(wanted())
    estimates = next(iter(changed.values()))["estimates"]
    estimates[5]["value"] *= 1 + 3e-7
    assert "value: 1 values" in differences(changed)
    del estimates[5]
    assert "absent" in differences(changed)
    changed = deepcopy(wanted())
    rows = [row["details"].setdefault("share", 1.0) for row in next(iter(changed.values()))["estimates"]]
    first, *others = differences(changed).splitlines()
    assert f"estimates.details.share: {len(rows)} values" in first
    assert others == RECORD.splitlines()


@pytest.mark.parametrize("configuration", [COMPACT_YAML, SCORED_YAML])
def test_the_configurations_of_recorded_replays_are_valid(configuration: str, tmp_path: Path) -> None:
    file = tmp_path / "streameval.yaml"
    file.write_text(f"source: {{kind: file, path: log.ndjson}}\n{configuration}")
    assert Config.load(file).policies.candidates
