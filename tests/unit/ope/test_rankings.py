"""Test rankings from clicks: estimates equal the metric in expectation, and everything else works with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streameval import (
    ClickCAB,
    ClickIPS,
    ClickStaticBlend,
    ClickSwitch,
    ClippedClickIPS,
    Evaluator,
    EventBatch,
    Ranking,
    Report,
)
from streameval.common.arrays import Array
from streameval.ope.evidence import Evidence

METRICS = [
    {"kind": "dcg", "at": 3},
    {"kind": "precision", "at": 2},
    {"kind": "rank_biased_precision", "persistence": 0.6},
    {"kind": "average_relevance_position", "at": 4},
    {"kind": "clicked_reciprocal_rank", "at": 3},
]
POLICIES = ["logging", "new"]
SIX = {"kind": "dcg", "at": 6}


def gains(metric: Any, ranks: Any) -> Array:
    """Return the gain of attractive items at these ranks, written down once more."""
    rank = np.asarray(ranks, dtype=float)
    return np.array(
        {
            "dcg": [1 / np.log2(1 + r) if r <= metric.get("at", 0) else 0.0 for r in rank],
            "precision": [1 / metric.get("at", 1) if r <= metric.get("at", 0) else 0.0 for r in rank],
            "rank_biased_precision": [0.4 * 0.6 ** (r - 1) for r in rank],
            "average_relevance_position": [-min(r, metric.get("at", 0) + 1) for r in rank],
            "clicked_reciprocal_rank": [1 / r if r <= metric.get("at", 0) else 0.0 for r in rank],
        }[metric["kind"]]
    )


def terms(batch: EventBatch, ranking: Ranking, estimator: Any = None) -> Array:
    evidence = Evidence.from_rankings(batch, POLICIES, ranking)
    return np.asarray((estimator or ClickIPS()).terms(evidence, None)[0].numerator)


@st.composite
def pages(draw: Any) -> tuple[list[bool], list[float], list[float]]:
    """Draw the attractiveness of some items, their ranks by the candidate, and how often users look at each rank."""
    size = draw(st.integers(1, 5))
    attractive = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    ranks = draw(st.permutations(range(1, size + 1)))
    looks = draw(st.lists(st.floats(0.05, 1.0), min_size=size, max_size=size))
    return attractive, [float(rank) for rank in ranks], looks


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric["kind"])
@settings(max_examples=20)
@given(page=pages())
def test_the_expectation_over_all_patterns_of_looks_is_the_metric(metric: Any, page: Any) -> None:
    attractive, ranks, looks = page
    patterns = list(product([0, 1], repeat=len(looks)))
    chance = [
        np.prod([look if seen else 1 - look for look, seen in zip(looks, pattern, strict=True)]) for pattern in patterns
    ]
    clicks = np.array(patterns) * np.array(attractive)
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": [ranks] * len(patterns)})
    ranking = Ranking(metric=metric, examination={"kind": "table", "values": looks})
    expected = np.array(chance) @ terms(batch, ranking)
    shown = np.arange(1.0, len(looks) + 1)
    truth = [gains(metric, order)[np.array(attractive)].sum() for order in (shown, ranks)]
    np.testing.assert_allclose(expected, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric["kind"])
@settings(max_examples=10)
@given(page=pages(), noise=st.lists(st.floats(0.0, 0.9), min_size=1, max_size=3), data=st.data())
def test_noise_of_any_rank_is_taken_out_of_the_expectation(metric: Any, page: Any, noise: Any, data: Any) -> None:
    _, ranks, looks = page
    size = len(looks)
    attractiveness = np.array(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    chance = np.array([noise[min(rank, len(noise) - 1)] for rank in range(size)])
    clicked = np.array(looks) * (chance + (1 - chance) * attractiveness)
    patterns = np.array(list(product([0, 1], repeat=size)))
    probability = np.where(patterns, clicked, 1 - clicked).prod(axis=1)
    batch = EventBatch.from_rankings(clicks=patterns, ranks={"new": [ranks] * len(patterns)}, list_length=size)
    ranking = Ranking(metric=metric, examination={"kind": "table", "values": looks, "noise": noise})
    values = terms(batch, ranking)
    shown = np.arange(1.0, size + 1)
    truth = [gains(metric, order) @ attractiveness for order in (shown, ranks)]
    np.testing.assert_allclose(probability @ values, truth, rtol=1e-9, atol=1e-9)
    assert (values[:, 0] - values[:, 1]).max() <= ranking.largest_loss * (1 + 1e-12)


def test_with_one_attractive_item_on_each_page_the_mean_reciprocal_rank_is_found() -> None:
    rng = np.random.default_rng(4)
    attractive, order = rng.integers(6, size=20_000), rng.permuted(np.tile(np.arange(1.0, 7.0), (20_000, 1)), axis=1)
    clicks = (np.arange(6) == attractive[:, None]) & (rng.random((20_000, 6)) < 1 / np.arange(1.0, 7.0))
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": order})
    found = report(batch, ranking={"metric": "clicked_reciprocal_rank"}, estimators=["click_snips"])
    row = found.get("new", "click_snips", "cumulative")
    truth = (1 / order[np.arange(20_000), attractive]).mean()
    assert row.value == pytest.approx(truth, abs=0.02)
    assert row.lower < truth < row.upper


def log(events: int, seed: int = 1, looks: Any = None, **options: Any) -> EventBatch:
    """Draw pages of six items with attractive ones at low ranks. The candidate shows them in the opposite order."""
    rng = np.random.default_rng(seed)
    attractiveness = rng.choice([0.05, 0.9], size=(events, 6), p=[0.7, 0.3]) * np.linspace(0.5, 1, 6)
    theta = 1 / np.arange(1.0, 7.0) if looks is None else looks
    clicks = rng.random((events, 6)) < attractiveness * theta
    ranks = np.tile(np.arange(6.0, 0, -1), (events, 1))
    return EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, timestamp=np.arange(float(events)), **options)


def report(batch: EventBatch, **options: Any) -> Report:
    options = {"averages": ["cumulative", "mixture"], "ranking": {"metric": METRICS[0]}, "drift": None, **options}
    evaluator = Evaluator(["new"], **options)
    evaluator.update(batch)
    return evaluator.report()


def test_with_a_look_at_every_rank_the_estimate_is_the_metric_of_the_clicks() -> None:
    batch, ranking = log(50), Ranking(metric={"kind": "dcg", "at": 3}, examination={"kind": "power", "eta": 0})
    rankings = batch.rankings
    assert rankings is not None
    plain = np.bincount(rankings.owner, gains(METRICS[0], rankings.ranks[:, 0]), len(batch))
    np.testing.assert_allclose(terms(batch, ranking)[:, 1], plain)


def test_a_cap_of_1_is_the_metric_of_the_clicks_and_no_cap_is_click_ips() -> None:
    batch, ranking = log(50), Ranking()
    plain = Ranking(examination={"kind": "power", "eta": 0})
    np.testing.assert_allclose(terms(batch, ranking, ClippedClickIPS(cap=1.0)), terms(batch, plain))
    for large in (6.0, np.inf):
        np.testing.assert_allclose(terms(batch, ranking, ClippedClickIPS(cap=large)), terms(batch, ranking))
    assert (terms(batch, ranking, ClippedClickIPS(cap=3.0)) <= terms(batch, ranking) + 1e-12).all()


def test_snips_divides_by_the_weight_of_the_clicks() -> None:
    batch = EventBatch.from_rankings(clicks=[[1, 0, 1]], ranks={"new": [[2, 3, 1]]})
    estimate = report(batch, estimators=["click_snips"]).get("new", "click_snips", "cumulative")
    assert estimate.value == pytest.approx((1 / np.log2(3) + 3 * 1) / (1 + 3))


TABLE = [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]


@pytest.mark.parametrize(
    ("examination", "propensities"),
    [({"kind": "power", "eta": 1}, None), ({"kind": "table", "values": TABLE}, None), ("given", [TABLE] * 30)],
)
def test_a_curve_a_table_and_the_events_may_give_the_same_probabilities(examination: Any, propensities: Any) -> None:
    batch = log(30, propensities=propensities)
    actual = terms(batch, Ranking(examination=examination))
    np.testing.assert_allclose(actual, terms(log(30), Ranking()))


def test_pages_with_clicks_of_unknown_probability_are_missing() -> None:
    actual = report(log(40), ranking={"examination": "given"})
    clicked = int(np.count_nonzero(log(40).reward))
    assert [policy.events for policy in actual.policies] == [40 - clicked] * 2


def test_clicks_with_noise_keep_the_order_of_candidates() -> None:
    rng = np.random.default_rng(3)
    relevant, theta = rng.random((8_000, 6)) < 0.3, 1 / np.arange(1.0, 7.0)
    better = np.argsort(np.argsort(~relevant, axis=1, kind="stable"), axis=1) + 1.0
    orders = {"best": better, "same": np.tile(np.arange(1.0, 7.0), (8_000, 1)), "worst": 7.0 - better}
    for clicked, mistaken in ((1.0, 0.0), (0.9, 0.05), (0.7, 0.3)):
        clicks = (rng.random((8_000, 6)) < theta) & (rng.random((8_000, 6)) < np.where(relevant, clicked, mistaken))
        options = {"averages": ["cumulative"], "promotion": None, "drift": None}
        evaluator = Evaluator(list(orders), ranking={"metric": METRICS[0]}, **options)
        evaluator.update(EventBatch.from_rankings(clicks=clicks, ranks=orders))
        values = [evaluator.report().get(name, "click_ips", "cumulative").value for name in orders]
        assert values == sorted(values, key=lambda value: -(value or 0))


def test_lower_positions_are_better_so_that_lifts_and_rules_are_reversed() -> None:
    actual = report(
        log(20_000), ranking={"metric": METRICS[3]}, promotion={"rule": ["paired", "bsea"], "min_events": 100}
    )
    new = actual.get("new", "click_snips", "cumulative")
    shown = actual.get("logging", "click_snips", "cumulative")
    assert new.value is not None
    assert shown.value is not None
    assert new.lower is not None
    assert new.upper is not None
    assert 1 < new.lower < new.value < new.upper < shown.value < 6
    assert new.lift == pytest.approx(shown.value - new.value)
    assert new.lift_lower is not None
    assert new.lift_lower > 0
    assert all(decision.promotable for decision in actual.promotion)
    assert all(check.ok for check in actual.trust)


def test_production_is_the_shown_order_and_a_lift_pairs_the_same_clicks() -> None:
    batch = log(2_000)
    actual = report(batch, estimators=["click_ips", {"kind": "clipped_click_ips", "cap": 3}])
    for label, estimator in (("click_ips", ClickIPS()), ("clipped_click_ips", ClippedClickIPS(cap=3.0))):
        values = terms(batch, Ranking(metric=METRICS[0]), estimator)
        new = actual.get("new", label, "cumulative")
        assert actual.get("logging", label, "cumulative").value == pytest.approx(values[:, 0].mean())
        assert new.lift == pytest.approx((values[:, 1] - values[:, 0]).mean())
        error = (values[:, 1] - values[:, 0]).std() / np.sqrt(len(batch))
        assert new.lift_upper is not None
        assert new.lift_lower is not None
        assert new.lift_upper - new.lift_lower == pytest.approx(2 * 1.96 * error, rel=0.2)
        assert new.importance_weight_mean is None
        assert new.importance_weight_max is None


@pytest.mark.parametrize("kind", ["normal", "empirical_likelihood", "empirical_bernstein"])
def test_every_interval_contains_the_truth_of_known_looks(kind: str) -> None:
    batch = log(20_000, seed=5)
    actual = report(batch, averages=["cumulative"], intervals={"cumulative": kind})
    attractiveness = (0.05 * 0.7 + 0.9 * 0.3) * np.linspace(0.5, 1, 6)
    for policy, ranks in (("logging", np.arange(1.0, 7.0)), ("new", np.arange(6.0, 0, -1))):
        gain = gains(METRICS[0], ranks)
        truths = {"click_ips": attractiveness @ gain, "click_snips": attractiveness @ gain / attractiveness.sum()}
        for label, truth in truths.items():
            estimate = actual.get(policy, label, "cumulative")
            assert estimate.lower is not None
            assert estimate.upper is not None
            assert estimate.lower < truth < estimate.upper


def test_a_confidence_sequence_needs_a_limit_to_the_terms() -> None:
    options = {"averages": ["cumulative"], "estimators": ["click_ips", {"kind": "clipped_click_ips", "cap": 6}]}
    actual = report(log(5_000), intervals={"cumulative": "confidence_sequence"}, **options)
    assert actual.get("new", "click_ips", "cumulative").lower is None
    bounded = actual.get("new", "clipped_click_ips", "cumulative")
    assert bounded.lower is not None
    assert bounded.value is not None
    assert bounded.upper is not None
    assert bounded.lower < bounded.value < bounded.upper


def test_anytime_proves_lifts_only_if_terms_of_production_are_limited() -> None:
    events, rule = log(8_000), {"rule": "anytime", "min_events": 1_000}
    decision = report(events, promotion=rule).promotion[0]
    assert decision.promotable
    assert decision.lower is not None
    assert 0 < decision.lower < (report(events).get("new", "click_ips", "cumulative").lift or 0)
    theta = np.tile(1 / np.arange(1.0, 7.0), (20_000, 1))
    unknown = report(log(20_000, propensities=theta), promotion="anytime", ranking={"examination": "given"}).promotion[
        0
    ]
    assert not unknown.promotable
    assert "terms have no limit" in unknown.reason


def test_the_share_of_clicks_below_the_cut_and_the_unsupported_gain_are_reported() -> None:
    batch = EventBatch.from_rankings(
        clicks=[[1, 1, 0], [0, 0, 1]] * 50, ranks={"new": [[1, np.inf, 4], [np.inf, 2, 1]] * 50}, list_length=3
    )
    actual = report(batch)
    details = actual.get("new", "click_ips", "cumulative").details
    assert details["clicks_below_cut"] == pytest.approx(1 / 3)
    all_gain = gains(METRICS[0], [1, 2, 3]).sum()
    supported = (gains(METRICS[0], [1]).sum() + gains(METRICS[0], [1, 2]).sum()) / 2
    assert details["unsupported_probability"] == pytest.approx(1 - supported / all_gain)
    assert actual.get("logging", "click_ips", "cumulative").details["unsupported_probability"] == 0
    (check,) = [check for check in actual.trust if check.check == "unsupported" and check.policy == "new"]
    assert not check.ok
    assert "over 10%" in check.reason


def test_the_support_is_unknown_if_only_clicked_items_have_ranks() -> None:
    actual = report(log(100))
    assert actual.get("new", "click_ips", "cumulative").details["unsupported_probability"] is None
    (check,) = [check for check in actual.trust if check.check == "unsupported" and check.policy == "new"]
    assert check.ok
    assert check.reason.startswith("not known")
    assert not [check for check in actual.trust if check.check == "mean_weight"]


def test_pages_without_a_candidate_are_missing_for_it_alone() -> None:
    batch = EventBatch.from_rankings(clicks=[[1, 0]] * 3, ranks={"new": [[2, 1], [np.nan] * 2, [1, 2]]})
    actual = report(batch)
    assert [(policy.events, policy.missing) for policy in actual.policies] == [(3, 0), (2, 1)]
    assert actual.get("new", "click_ips", "cumulative").value == pytest.approx((1 / np.log2(3) + 1) / 2)


def test_a_model_replaces_what_the_cap_removes() -> None:
    rng = np.random.default_rng(7)
    events = 4_000
    relevant = rng.random((events, 6)) < np.linspace(0.1, 0.5, 6)
    clicks = (rng.random((events, 6)) < 1 / np.arange(1.0, 7.0)) & relevant
    ranks = np.tile(np.arange(6.0, 0, -1), (events, 1))
    features = relevant[..., None] + 0.1 * rng.standard_normal((events, 6, 1))
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, features=features, list_length=6)
    caps = [ClickCAB(cap=0.0, name="model"), ClickCAB(cap=np.inf, name="all"), ClickCAB(cap=2.0, name="some")]
    actual = report(batch, estimators=[ClickIPS(), ClippedClickIPS(cap=2.0), *caps], averages=["cumulative"])
    truth = (relevant @ gains(METRICS[0], ranks[0])).mean()
    value = {label: actual.get("new", label, "cumulative").value or 0 for label in ("click_ips", "clipped_click_ips")}
    value |= {cap.label: actual.get("new", cap.label, "cumulative").value or 0 for cap in caps}
    assert value["all"] == pytest.approx(value["click_ips"])
    assert value["model"] == pytest.approx(truth, rel=0.1)
    assert abs(value["some"] - truth) < abs(value["clipped_click_ips"] - truth) / 3
    assert actual.reward_model is not None
    assert actual.reward_model.squared_error is not None
    assert actual.reward_model.baseline_squared_error is not None
    assert actual.reward_model.squared_error < actual.reward_model.baseline_squared_error


@pytest.mark.parametrize(
    ("estimator", "beta"),
    [
        (ClickStaticBlend(tau=0.3), lambda weight: 0.3),
        (ClickSwitch(cap=3.0), lambda weight: float(weight <= 3)),
        (ClickCAB(cap=3.0), lambda weight: min(3 / weight, 1)),
    ],
)
def test_estimators_with_a_model_equal_the_published_table(estimator: Any, beta: Any) -> None:
    batch = log(40, list_length=6)
    rankings, ranking = batch.rankings, Ranking(metric=SIX)
    assert rankings is not None
    relevance = np.random.default_rng(2).random(len(rankings.rank))
    evidence = Evidence.from_rankings(batch, POLICIES, ranking)
    assert evidence.clicks is not None
    evidence = replace(evidence, clicks=replace(evidence.clicks, relevance=relevance))
    expected = np.zeros((40, 2))
    for row, owner in enumerate(rankings.owner):
        weight = rankings.rank[row]  # 1 / theta
        counted = rankings.clicked[row] * weight * beta(weight) + (1 - beta(weight)) * relevance[row]
        for policy, rank in enumerate((rankings.rank[row], rankings.ranks[row, 0])):
            expected[owner, policy] += counted * gains(SIX, [rank])[0]
    np.testing.assert_allclose(estimator.terms(evidence, None)[0].numerator, expected, rtol=1e-12)


def with_features(events: int, seed: int) -> tuple[EventBatch, float]:
    """Draw pages of ten items with a steep curve of looks and informative features, and the candidate's true value."""
    rng, rank = np.random.default_rng(seed), np.arange(1.0, 11.0)
    attractive = rng.random((events, 10)) < 0.3
    clicks = (rng.random((events, 10)) < rank**-2.0) & attractive
    ranks = np.tile(rank[::-1], (events, 1))
    features = attractive[..., None] + 0.3 * rng.standard_normal((events, 10, 1))
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, features=features, list_length=10)
    return batch, float(np.mean(attractive @ gains({"kind": "dcg", "at": 10}, ranks[0])))


STEEP: dict[str, Any] = {"metric": "dcg", "examination": {"kind": "power", "eta": 2.0}}


def test_switch_and_blend_have_less_error_than_clicks_alone() -> None:
    estimators = ["click_ips", ClickSwitch(cap=20.0), ClickStaticBlend(tau=0.1), ClickCAB(cap=20.0)]
    errors: dict[str, list[float]] = {}
    for seed in range(12):
        batch, truth = with_features(1_000, seed)
        actual = report(batch, ranking=STEEP, estimators=estimators, averages=["cumulative"])
        for row in actual.estimates:
            if row.policy == "new":
                errors.setdefault(row.estimator, []).append((row.value or 0) - truth)
    error = {label: np.sqrt(np.mean(np.square(values))) for label, values in errors.items()}
    assert max(error["click_switch"], error["click_static_blend"], error["click_cab"]) < 0.8 * error["click_ips"]


@pytest.mark.parametrize("kind", ["clipped_click_ips", "click_cab", "click_switch"])
def test_the_cap_of_clicks_is_chosen_among_fixed_caps(kind: str) -> None:
    batch, _ = with_features(3_000, 3)
    caps = [np.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0]
    fixed = [{"kind": kind, "cap": cap, "name": f"{cap:g}"} for cap in caps]
    settings = {"ranking": STEEP, "averages": ["cumulative"], "intervals": {"cumulative": "normal"}}
    actual = report(batch, estimators=[{"kind": kind, "cap": "auto"}, *fixed], **settings)
    rows = [actual.get("new", f"{cap:g}", "cumulative") for cap in caps]
    largest, full = terms(batch, Ranking(**STEEP))[:, 1].max(), gains({"kind": "dcg", "at": 10}, range(1, 11)).sum()
    width, low, high, chosen = np.inf, -np.inf, np.inf, 0
    for index, (row, cap) in enumerate(zip(rows, caps, strict=True)):
        assert row.value is not None
        assert row.upper is not None
        width = min(width, (row.upper - row.value) / 1.959964 / 2 + 2 * min(cap * full, largest) / 3_000)
        low, high = max(low, row.value - width), min(high, row.value + width)
        if low > high:
            break
        chosen = index
    row = actual.get("new", kind, "cumulative")
    assert row.details["cap"] == (caps[chosen] if chosen else None)
    assert row.value == pytest.approx(rows[chosen].value)
    assert row.lower is not None
    assert row.lower < (rows[chosen].lower or 0)


def test_the_model_learns_from_a_sampled_page_as_from_all_that_it_stands_for() -> None:
    clicked = np.arange(2_000) % 2
    batch = EventBatch.from_rankings(
        clicks=clicked[:, None],
        ranks={"new": np.ones((2_000, 1))},
        features=np.ones((2_000, 1, 1)),
        list_length=1,
        sampling_probability=np.where(clicked, 0.1, 1.0),
    )
    actual = report(batch, estimators=[ClickCAB(cap=0.0)], averages=["cumulative"])
    value = actual.get("new", "click_cab", "cumulative").value
    assert value == pytest.approx(10 / 11, abs=0.06)  # nothing is known before the first pages


def test_decisions_and_rankings_are_not_mixed_and_other_metrics_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"mrr is not a sum over items.*depends on all items above it"):
        Evaluator(["new"], ranking={"metric": "mrr"})
    with pytest.raises(ValueError, match="found 'ips', which needs the probabilities of actions"):
        Evaluator(["new"], estimators=["ips"], ranking=Ranking())
    with pytest.raises(ValueError, match="found 'click_ips', which estimates rankings from clicks"):
        Evaluator(["new"], estimators=["click_ips"])
    with pytest.raises(ValueError, match=r"candidates\.even: .* policies in code cannot rank"):
        Evaluator({"even": "uniform"}, ranking=Ranking())
    for limits in ({"max": "auto", "quantile": 0.99}, {"max": 60.0, "quantiles": [0.5]}, {"per_unit": "24h"}):
        with pytest.raises(
            ValueError, match="reward_range: expected a range without max: auto, quantiles and per_unit"
        ):
            Evaluator(["new"], ranking=Ranking(), reward_range=limits)
    with pytest.raises(ValueError, match="the events are rankings, and this evaluator takes decisions"):
        Evaluator(["new"]).update(log(1))
    with pytest.raises(ValueError, match="the events are decisions, and this evaluator takes rankings"):
        Evaluator(["new"], ranking=Ranking()).update(EventBatch.from_arrays(reward=[1], propensity=[1]))


def test_a_single_page_may_be_a_dictionary() -> None:
    evaluator = Evaluator(["new"], averages=["cumulative"], ranking=Ranking())
    evaluator.update_one({"ranking": {"shown": ["a", "b"], "clicked": ["b"]}, "policies": {"new": {"ranks": {"b": 1}}}})
    assert evaluator.report().get("new", "click_ips", "cumulative").value == pytest.approx(2)


def simulated(events: int, seed: int) -> tuple[EventBatch, float]:
    """Simulate pages of six ranks with clicks, right with .9 and wrong with .05, and the true lift of the candidate."""
    rng = np.random.default_rng(seed)
    relevant = rng.random((events, 6)) < np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
    attractiveness = np.where(relevant, 0.9, 0.05)
    clicks = (rng.random((events, 6)) < 1 / np.arange(1.0, 7.0)) & (rng.random((events, 6)) < attractiveness)
    ranks = np.arange(6.0, 0, -1)
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": np.tile(ranks, (events, 1))})
    lift = attractiveness @ (gains(SIX, ranks) - gains(SIX, np.arange(1.0, 7.0)))
    return batch, float(lift.mean())


def test_on_60000_pages_the_lift_is_true_with_the_true_curve_and_has_the_wrong_sign_without() -> None:
    batch, truth = simulated(60_000, seed=14)
    options = {"averages": ["cumulative"], "estimators": [ClickIPS()], "promotion": None, "drift": None}
    actual = {
        eta: report(
            batch, ranking={"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "power", "eta": eta}}, **options
        )
        for eta in (1.0, 0.0)
    }
    corrected, naive = (report.get("new", "click_ips", "cumulative") for report in actual.values())
    assert corrected.lift is not None
    assert corrected.lift_upper is not None
    assert naive.lift_upper is not None
    assert abs(corrected.lift - truth) < 2 * (corrected.lift_upper - corrected.lift) / 1.96
    assert truth > 0.25
    assert naive.lift_upper < 0


def test_trust_in_high_ranks_is_corrected_on_pages_with_whole_lists() -> None:
    rng, events, theta, noise = np.random.default_rng(21), 30_000, 1 / np.arange(1.0, 7.0), [0.6, 0.4, 0.3, 0.2, 0.1, 0]
    attractive = rng.random((events, 6)) < np.linspace(0.1, 0.5, 6)
    clicks = rng.random((events, 6)) < theta * np.where(attractive, 1.0, noise)
    ranks = np.arange(6.0, 0, -1)
    columns = {"clicks": clicks, "ranks": {"new": np.tile(ranks, (events, 1))}}
    estimators = ["click_ips", "click_snips", {"kind": "clipped_click_ips", "cap": 60.0}]
    gain = gains(SIX, ranks)
    truths = {
        "click_ips": (attractive @ gain).mean(),
        "click_snips": (attractive @ gain).mean() / attractive.mean() / 6,
    }
    for corrected in (True, False):
        examination = {"kind": "power", "noise": noise if corrected else []}
        actual = report(
            EventBatch.from_rankings(**columns, list_length=6),
            ranking={"metric": SIX, "examination": examination},
            estimators=estimators,
            averages=["cumulative"],
        )
        for label, truth in truths.items():
            row = actual.get("new", label, "cumulative")
            assert row.lower is not None
            assert row.upper is not None
            assert (row.lower < truth < row.upper) == corrected
        assert actual.get("new", "clipped_click_ips", "cumulative").value == pytest.approx(
            actual.get("new", "click_ips", "cumulative").value
        )
    clicked_items = report(
        EventBatch.from_rankings(**columns), ranking={"examination": {"kind": "power", "noise": noise}}
    )
    assert {policy.missing for policy in clicked_items.policies} == {events}
