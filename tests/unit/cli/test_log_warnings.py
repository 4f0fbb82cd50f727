"""Test that failed trust checks come with a remedy, or with a link to their runbook."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from streameval import Evaluator
from streameval.cli.log_warnings import trust_warnings
from streameval.ope.report import TrustCheck
from support.paths import ROOT

RUNBOOK = ROOT / "deploy" / "runbooks" / "StreamevalTrustCheckFailed.md"


def hint_of(check: str) -> str:
    report = structs.replace(Evaluator(["new"]).report(), trust=(TrustCheck("new", check, False, "found"),))
    (warning,) = trust_warnings(report)
    return warning.partition("\nhint: ")[2]


def test_each_check_of_the_runbook_has_a_remedy() -> None:
    named = re.findall(r"`(\w+)`[;:,. ]", RUNBOOK.read_text().partition("**Do.**")[0])
    checks = {*named, "mean_weight", "stale", "rejected_share", "unmatched_share"} - {"trust", "unit"}
    assert {"largest_share", "calibration", "clusters"} <= checks
    assert [check for check in checks if "runbook" in hint_of(check)] == []


@pytest.mark.parametrize("address", [None, "https://grafana.example.com/"])
def test_a_check_without_a_remedy_links_to_the_runbook_in_grafana(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("STREAMEVAL_GRAFANA", raising=False)
    if address is not None:
        monkeypatch.setenv("STREAMEVAL_GRAFANA", address)
    start = "http://localhost:3000" if address is None else "https://grafana.example.com"
    assert hint_of("new_one") == f"{start}/public/runbooks/{RUNBOOK.name} explains each check"
