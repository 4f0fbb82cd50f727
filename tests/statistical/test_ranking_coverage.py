"""Coverage of intervals of rankings from clicks, over 400 streams of pages."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import ClickIPS, ClickSNIPS, Evaluator, EventBatch
from streameval.common.arrays import Array
from support.ranking_worlds import estimate, evaluated, pages

STREAMS, PAGES, RANKS = 400, 1_000, 6
THETA = 1 / np.arange(1.0, RANKS + 1)
RELEVANT = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
ATTRACTIVENESS = 0.9 * RELEVANT + 0.05 * (1 - RELEVANT)
GAIN = 1 / np.log2(1 + np.arange(1.0, RANKS + 1))


def truths() -> dict[tuple[str, str], float]:
    """Return the value of production and of the opposite order, by estimator."""
    values = {}
    for policy, gain in (("logging", GAIN), ("new", GAIN[::-1])):
        values[policy, "click_ips"] = float(ATTRACTIVENESS @ gain)
        values[policy, "click_snips"] = float(ATTRACTIVENESS @ gain / ATTRACTIVENESS.sum())
    return values


def clicks_of(stream: int) -> Array:
    rng = np.random.default_rng([14, stream])
    return ((rng.random((PAGES, RANKS)) < THETA) & (rng.random((PAGES, RANKS)) < ATTRACTIVENESS)).astype(float)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["empirical_likelihood", "normal"])
def test_intervals_with_a_known_curve_cover_values_and_lifts(kind: str) -> None:
    truth, ranks = truths(), np.tile(np.arange(float(RANKS), 0, -1), (PAGES, 1))
    covered = dict.fromkeys([*truth, ("lift", "click_ips"), ("lift", "click_snips")], 0)
    for stream in range(STREAMS):
        evaluator = Evaluator(
            ["new"],
            estimators=[ClickIPS(), ClickSNIPS()],
            averages=["cumulative"],
            intervals={"cumulative": kind},
            promotion=None,
            drift=None,
            ranking={"metric": {"kind": "dcg", "at": RANKS}, "examination": {"kind": "power", "eta": 1}},
        )
        evaluator.update(EventBatch.from_rankings(clicks=clicks_of(stream), ranks={"new": ranks}))
        for row in evaluator.report().estimates:
            covered[row.policy, row.estimator] += row.lower <= truth[row.policy, row.estimator] <= row.upper
            if row.policy == "new":
                lift = truth["new", row.estimator] - truth["logging", row.estimator]
                covered["lift", row.estimator] += row.lift_lower <= lift <= row.lift_upper
    assert min(covered.values()) >= 0.94 * STREAMS, {label: count / STREAMS for label, count in covered.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["swaps", "harvested"])
def test_intervals_with_a_learned_curve_cover_the_lift(kind: str) -> None:
    covered = 0
    for stream in range(STREAMS):
        batch, lifts = pages(12_000, [15, stream], kind)
        estimated = estimate(batch, {"kind": kind, "ranks": RANKS})
        covered += estimated.lift_lower <= lifts.mean() <= estimated.lift_upper
    assert covered >= 0.93 * STREAMS


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["swaps", "harvested"])
def test_while_the_layout_drifts_intervals_of_the_mixture_cover_the_current_lift(kind: str) -> None:
    covered, streams = 0, 50
    for stream in range(streams):
        batch, lifts = pages(100_000, [16, stream], kind, eta=np.linspace(1.0, 0.5, 100_000))
        estimated = estimate(batch, {"kind": kind, "ranks": RANKS}, "mixture")
        covered += estimated.lift_lower <= lifts.mean() <= estimated.lift_upper
    assert covered >= 0.9 * streams


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_60000_pages_of_a_still_layout_the_harvested_curve_is_within_two_percent_at_every_rank() -> None:
    for seed in range(14, 34):
        batch, _ = pages(60_000, seed, "harvested")
        curve = evaluated(batch, {"kind": "harvested", "ranks": RANKS, "horizon": 60_000}).report().examination
        assert [rank.value for rank in curve] == pytest.approx(THETA.tolist(), abs=0.02)
