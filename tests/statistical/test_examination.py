"""Test that a learned examination curve gives the true lift."""

from __future__ import annotations

import pytest

from support.ranking_worlds import RANKS, estimate, evaluated, pages

KINDS = ["swaps", "harvested"]


@pytest.mark.parametrize("kind", KINDS)
def test_on_60000_pages_a_learned_curve_gives_the_true_lift(kind: str) -> None:
    batch, lifts = pages(60_000, 14, kind)
    report = evaluated(batch, {"kind": kind, "ranks": RANKS}).report()
    learned = report.get("new", "click_ips", "cumulative")
    correct, naive = (estimate(batch, {"kind": "power", "eta": eta}) for eta in (1, 0))
    truth, error = lifts.mean(), (learned.lift_upper - learned.lift) / 1.96
    assert abs(learned.lift - truth) < 0.03 * truth + 2 * error
    assert learned.lift_lower < truth < learned.lift_upper
    assert learned.lift_upper - learned.lift_lower > correct.lift_upper - correct.lift_lower
    assert naive.lift_upper < 0 < correct.lift_lower
    assert [rank.rank for rank in report.examination] == list(range(1, RANKS + 1))
    for rank in report.examination[1:]:
        assert rank.lower < rank.value < rank.upper
        assert rank.value == pytest.approx(1 / rank.rank, abs=0.02 if kind == "harvested" else 0.06)
