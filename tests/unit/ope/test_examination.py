"""Test learned examination: the curve is true, its errors widen intervals, and changes of the layout are found."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import EventBatch
from streameval.ope.evidence.examination import LAG_VARIANCE, LearnedCurve, Swaps, variances
from support.ranking_worlds import RANKS, evaluated, pages

KINDS = ["swaps", "harvested"]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_missing_until_the_curve_is_known_whatever_was_clicked(kind: str) -> None:
    batch, _ = pages(20_000, 3, kind)
    (production, candidate) = evaluated(batch, {"kind": kind, "ranks": RANKS}).report().policies
    assert production.events == candidate.events
    assert 0 < production.missing < 10_000
    plain = EventBatch.from_rankings(clicks=[[1, 0]] * 500, ranks={"new": [[2, 1]] * 500})
    assert evaluated(plain, {"kind": kind, "ranks": 2}).report().policies[0].missing == 500


def test_a_curve_that_lags_behind_a_drifting_layout_widens_the_interval() -> None:
    examination, widths = {"kind": "harvested", "ranks": RANKS, "horizon": 5_000}, {}
    for last in (1.0, 0.5):
        batch, lifts = pages(25_000, 6, "harvested", eta=np.linspace(1.0, last, 25_000))
        report = evaluated(batch, examination, "mixture").report()
        estimate = report.get("new", "click_ips", "mixture")
        assert estimate.lift_lower < lifts.mean() < estimate.lift_upper
        widths[last] = [rank.upper - rank.lower for rank in report.examination[1:]]
    assert all(drifting > 1.5 * still for drifting, still in zip(widths[0.5], widths[1.0], strict=True))


def test_a_new_layout_fails_the_trust_check_and_stops_promotion() -> None:
    batch, _ = pages(60_000, 5, "harvested", eta=np.repeat([1.0, 0.3], [54_000, 6_000]))
    examination = {"kind": "harvested", "ranks": RANKS}
    options = {"average": "mixture", "promotion": {"rule": "paired", "min_events": 1_000}}
    before, after = (evaluated(events, examination, **options).report() for events in (batch[:50_000], batch))
    for report, ok in ((before, True), (after, False)):
        (check,) = [check for check in report.trust if check.check == "examination" and check.policy == "new"]
        assert check.ok == ok
        assert report.promotion[0].promotable == ok
    assert "layout" in after.promotion[0].reason


def test_a_candidate_that_is_added_or_removed_leaves_the_curve_as_it_was() -> None:
    batch, _ = pages(12_000, 9, "harvested")
    whole, alone = (evaluated(batch, {"kind": "harvested", "ranks": RANKS}) for _ in range(2))
    assert alone.change_candidates(whole.config.for_policies([])) is None
    assert alone.report().examination == whole.report().examination
    assert [row.value for row in alone.report().estimates] == [whole.report().estimates[0].value]


def test_the_lag_of_a_curve_counts_as_far_as_it_exceeds_its_own_error() -> None:
    errors, lag = np.array([[0.0, 0.1, 0.1]]), np.array([[0.0, 0.05, 0.5]])
    curve = LearnedCurve(np.zeros((1, 3)), np.array([np.diag(errors[0] ** 2)]), lag)
    assert curve.error_now[0] == pytest.approx([0.0, 0.1, np.sqrt(0.1**2 + 0.5**2 - LAG_VARIANCE * 0.1**2)])


def test_a_lag_moves_values_in_proportion_to_the_clicks_at_its_rank() -> None:
    curve = LearnedCurve(np.zeros((1, 2)), np.zeros((1, 2, 2)), np.array([[0.0, 0.5]]))
    clicks, pages = np.array([[[4.0, 2.0], [3.0, 6.0]]]), np.full((1, 2, 1), 10.0)
    value_variances, lift_variances = variances(
        curve, np.concatenate([clicks, 0 * clicks, pages], axis=-1), ratio=False
    )
    assert value_variances[0] == pytest.approx([(0.5 * 0.2) ** 2, (0.5 * 0.6) ** 2])
    assert lift_variances[0] == pytest.approx([0.0, (0.5 * 0.4) ** 2])


def test_a_lag_moves_a_ratio_by_its_linearisation() -> None:
    curve = LearnedCurve(np.zeros((1, 2)), np.zeros((1, 2, 2)), np.array([[0.2, 0.5]]))
    clicks, weights, pages = np.array([[[4.0, 2.0]]]), np.array([[[5.0, 3.0]]]), np.full((1, 1, 1), 10.0)
    value_variances, _ = variances(curve, np.concatenate([clicks, weights, pages], axis=-1), ratio=True)
    moved = ((4 - 6 / 8 * 5) * 0.2 + (2 - 6 / 8 * 3) * 0.5) / 8
    assert value_variances[0] == pytest.approx([moved**2])


def test_a_rank_with_items_that_are_never_at_the_rank_before_is_unknown_and_fails_the_trust_check() -> None:
    """Item 2 is at rank 3 of half of the pages and never at rank 2. The items of ranks 1 and 2 change places."""
    rng, events = np.random.default_rng(3), 20_000
    places = {0: (0.5, 0.5, 0.0), 1: (0.375, 0.375, 0.25), 2: (0.0, 0.0, 0.5), 3: (0.125, 0.125, 0.25)}
    items = np.array([[0, 1, 2], [0, 3, 1], [0, 1, 3]])[rng.choice(3, events, p=[0.5, 0.25, 0.25])]
    swapped = rng.random(events) < 0.5
    items[swapped, :2] = items[swapped, 1::-1]
    clicks = rng.random((events, 3)) < np.array([1, 0.5, 0.3]) * np.array([0.3, 0.2, 0.6, 0.2])[items]
    clicks = np.where(np.stack([rng.random(events) < r for r in (0.0, 0.0, 0.5)], axis=1), np.nan, clicks)
    table = np.array([(*places[item], 0.0) for item in range(4)])
    rank = np.arange(3)
    batch = EventBatch.from_rankings(
        clicks=clicks,
        ranks={"new": np.where(np.isnan(clicks), np.nan, [1.0, 2.0, 3.0])},
        marginals=np.stack([table[items, rank], table[items, rank + 1]], axis=-1),
        list_length=3,
    )
    report = evaluated(batch, {"kind": "harvested", "ranks": 3}, promotion={"rule": "paired"}).report()
    assert [rank.rank for rank in report.examination] == [1, 2]
    assert report.examination[1].value == pytest.approx(0.5, abs=0.05)
    (check,) = [check for check in report.trust if check.check == "examination" and check.policy == "new"]
    assert not check.ok
    assert check.reason.startswith("items at rank 2 are 0.5")


@pytest.mark.parametrize("landmark", [1, 3, RANKS])
def test_swaps_with_another_landmark_give_the_curve_relative_to_rank_1(landmark: int) -> None:
    rng, count = np.random.default_rng(8), 20_000
    others = np.delete(np.arange(RANKS), landmark - 1)
    rows, other = rng.random(count) < 0.6, others[rng.integers(RANKS - 1, size=count)]
    order, swap = np.tile(np.arange(RANKS), (count, 1)), np.zeros((count, 2))
    order[rows, landmark - 1], order[rows, other[rows]] = other[rows], landmark - 1
    swap[rows] = np.stack([np.full(count, landmark), other + 1], axis=1)[rows]
    theta, attractiveness = 1 / np.arange(1.0, RANKS + 1), np.linspace(0.3, 0.8, RANKS)
    clicks = rng.random((count, RANKS)) < theta * attractiveness[order]
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": RANKS - order.astype(float)}, swap=swap)
    swaps = {"kind": "swaps", "ranks": RANKS, "landmark": landmark}
    examined = evaluated(batch, swaps).report().examination
    assert [rank.rank for rank in examined] == list(range(1, RANKS + 1))
    for rank, truth in zip(examined, theta, strict=True):
        assert rank.lower <= truth <= rank.upper

    curve = Swaps(ranks=RANKS, horizon=1e9, landmark=landmark)
    logarithm = curve.now(curve.fold(curve.start(), curve.summarise(batch, 100))[1]).logarithm[0]
    rates = {}
    for rank in others + 1:
        pair = sorted((rank, landmark))
        groups = [(swap.min(axis=1) == pair[0]) & (swap.max(axis=1) == pair[1]), ~swap.any(axis=1)]
        above, below = (sum(clicks[group, at - 1].mean() for group in groups) for at in (rank, landmark))
        rates[rank] = above / below
    rates[landmark] = 1.0
    assert np.exp(logarithm) == pytest.approx([rates[rank] / rates[1] for rank in range(1, RANKS + 1)], rel=1e-3)


def test_derivatives_of_swaps_equal_finite_differences_with_any_landmark() -> None:
    sums, step = np.random.default_rng(2).uniform(1, 9, size=18), 1e-6
    for landmark in (1, 2, 4):
        curve = Swaps(ranks=4, landmark=landmark)
        above, below = (curve.logarithms(sums + sign * step * np.eye(18))[0] for sign in (1, -1))
        derivative = (above - below).T / (2 * step)
        np.testing.assert_allclose(curve.logarithms(sums)[1], derivative, rtol=1e-5, atol=1e-8)


def test_a_landmark_is_one_of_the_learned_ranks() -> None:
    with pytest.raises(ValueError, match="the landmark 5 is beyond the 4 ranks"):
        Swaps(ranks=4, landmark=5)
