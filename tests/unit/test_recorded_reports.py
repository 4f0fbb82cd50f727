"""Reports of fixed configurations and logs equal the recorded ones, number by number."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tools.recorded_reports import CASES, DATA, differences, recorded

SHOWN = 20


@pytest.mark.parametrize("case", CASES)
def test_reports_equal_the_recorded_ones(case: str) -> None:
    found = differences(case, CASES[case](), recorded(case))
    assert not found, f"{len(found)} differences:\n" + "\n".join(sorted(found)[:SHOWN])


def test_every_recorded_file_belongs_to_a_case() -> None:
    assert {path.name for path in DATA.iterdir()} == {f"{case}.json.gz" for case in CASES}


def changed(case: str, moment: str) -> tuple[Any, Any]:
    """A copy of the recorded Reports of a case, and in it the Report of one moment."""
    copy = deepcopy(recorded(case))
    return copy, copy[moment]


def test_the_comparison_finds_a_small_difference_a_missing_row_and_a_new_key() -> None:
    copy, report = changed("moments", "3030 events")
    report["estimates"][5]["value"] += 3e-12
    assert len(differences("moments", copy, recorded("moments"))) == 1
    report["new"] = 1
    assert len(differences("moments", copy, recorded("moments"))) == 2
    del report["estimates"][5]
    assert len(differences("moments", copy, recorded("moments"))) > 10


def test_the_comparison_ignores_order_words_and_estimates_without_a_value() -> None:
    copy, report = changed("moments", "1 events")
    assert any(estimate["value"] is None for estimate in report["estimates"])
    report["estimates"] = [estimate for estimate in report["estimates"][::-1] if estimate["value"] is not None]
    report["promotion"][0]["reason"] = "in other words"
    assert not differences("moments", copy, recorded("moments"))


def test_a_default_configuration_may_have_other_estimates_next_to_the_recorded_ones() -> None:
    case = "default_on_full_events"
    copy, report = changed(case, "end")
    report["estimates"].append(report["estimates"][0] | {"estimator": "another"})
    report["promotion"] = []
    assert not differences(case, copy, recorded(case))
    del report["estimates"][0]
    assert differences(case, copy, recorded(case))
