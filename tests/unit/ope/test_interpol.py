"""Test INTERPOL: its expectations under both models of clicks, the choice of a window, and what pages need."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from streameval import ClickInterpol, Evaluator, EventBatch, Ranking, Report
from streameval.common.arrays import Array
from streameval.ope.evidence import Evidence
from support.ranking_worlds import RANKS, random_orders

LENGTH = 4
THETA = np.array([1.0, 0.6, 0.3, 0.2])
GAIN = 1 / np.log2(1 + np.arange(1.0, LENGTH + 1))
ORDERS = np.array(list(permutations(range(LENGTH))))
RANKING: dict[str, Any] = {"metric": {"kind": "dcg", "at": LENGTH}, "examination": {"kind": "table", "values": THETA}}


def production(seed: int, power: float = 1.0) -> tuple[Array, Array]:
    """Return the probability of each order, and of each item at each rank."""
    chance = np.random.default_rng(seed).random(len(ORDERS)) ** power
    chance /= chance.sum()
    at_rank = np.zeros((LENGTH, LENGTH))
    for order, probability in zip(ORDERS, chance, strict=True):
        at_rank[order, np.arange(LENGTH)] += probability
    return chance, at_rank


def pages(order: Array, clicks: Array, at_rank: Array, ranks: Array) -> EventBatch:
    """Return pages of items in these orders, with the candidate's rank of each item."""
    return EventBatch.from_rankings(
        clicks=clicks, ranks={"new": ranks[order]}, rank_probabilities=at_rank[order], list_length=LENGTH
    )


def terms(batch: EventBatch, window: float, **ranking: Any) -> Array:
    options = Ranking(**RANKING | ranking)
    evidence = Evidence.from_rankings(batch, ["logging", "new"], options, with_windows=True)
    numbers = ClickInterpol(window=window).terms(evidence.restricted_to(ClickInterpol.needs), None)[0].numerator
    assert (np.abs(numbers) <= evidence.importance_weight * (1 + 1e-12)).all()
    return numbers


@pytest.mark.parametrize("ranks", [[3.0, 1.0, 4.0, 2.0], [1.0, np.inf, 3.0, 2.0]], ids=["whole", "cut"])
@pytest.mark.parametrize("noise", [(), (0.5, 0.2)], ids=["plain", "noise"])
def test_every_window_has_the_metric_as_expectation_under_the_position_based_model(ranks: Any, noise: Any) -> None:
    chance, at_rank = production(1)
    attractiveness, ranks = np.array([0.2, 0.9, 0.5, 0.7]), np.array(ranks)
    noise_at = np.array([noise[min(rank, 1)] if noise else 0.0 for rank in range(LENGTH)])
    clicked = THETA * (noise_at + (1 - noise_at) * attractiveness[ORDERS])
    gain = np.where(np.isfinite(ranks), GAIN[np.nan_to_num(ranks, posinf=1).astype(int) - 1], 0)
    truth = [chance @ (attractiveness[ORDERS] @ GAIN), attractiveness @ gain]
    examination = {"kind": "table", "values": THETA, "noise": noise}
    single = [pages(ORDERS, np.tile(row, (len(ORDERS), 1)), at_rank, ranks) for row in (*np.eye(LENGTH), np.zeros(4))]
    for window in (0, 1, 2, np.inf):
        *by_rank, none = [terms(batch, window, examination=examination) for batch in single]
        # terms are linear in clicks, so that the expectation takes the probability of each click alone
        expected = none + sum((column - none) * clicked[:, [rank]] for rank, column in enumerate(by_rank))
        np.testing.assert_allclose(chance @ expected, truth, rtol=1e-12)


def test_window_0_has_the_metric_as_expectation_whatever_ranks_do_to_each_item() -> None:
    chance, at_rank = production(2)
    clicked, ranks = np.random.default_rng(3).random((LENGTH, LENGTH)), np.array([3, 1, 4, 2])
    truth = sum(GAIN[rank - 1] / THETA[rank - 1] * clicked[item, rank - 1] for item, rank in enumerate(ranks))
    for window, unbiased in ((0, True), (1, False), (np.inf, False)):
        by_rank = [
            terms(pages(ORDERS, np.tile(row, (len(ORDERS), 1)), at_rank, ranks), window)[:, 1] for row in np.eye(LENGTH)
        ]
        expected = sum(column * clicked[ORDERS[:, rank], rank] for rank, column in enumerate(by_rank))
        assert (chance @ expected == pytest.approx(truth)) == unbiased


def test_weights_equal_a_loop_over_the_ranks() -> None:
    rng = np.random.default_rng(4)
    at_rank, ranks = rng.dirichlet(np.ones(6), size=LENGTH), rng.integers(1, 8, size=(30, LENGTH)).astype(float)
    ranks[rng.random(ranks.shape) < 0.2] = np.inf
    at_rank[:, 1] *= rng.random(LENGTH) < 0.5
    at_rank[1, 1] = 0.1
    clicks = rng.random((30, LENGTH)) < 0.5
    ranks = np.argsort(np.argsort(ranks + rng.random(ranks.shape))) + np.where(np.isinf(ranks), np.inf, 1.0)
    batch = EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, rank_probabilities=[at_rank] * 30)
    theta = np.append(THETA, [THETA[-1]] * 2)
    for window in (0, 1, 2.5, 10):
        expected = np.zeros(30)
        for page, shown in np.argwhere(clicks):
            target = ranks[page, shown]
            looks = [theta[j] * at_rank[shown, j] if abs(j + 1 - target) <= window else 0.0 for j in range(6)]
            near = abs(shown + 1 - target) <= window
            if not sum(looks):
                looks, near = theta * at_rank[shown], True
            expected[page] += (GAIN[int(target) - 1] if target <= LENGTH else 0.0) * near / sum(looks)
        np.testing.assert_allclose(terms(batch, window)[:, 1], expected, rtol=1e-12)


def drawn(count: int, seed: int, wrong: float) -> tuple[EventBatch, float]:
    """Draw pages on which an item attracts looks of its own at low ranks, and the candidate's true value."""
    rng, (chance, at_rank) = np.random.default_rng(seed), production(5, 2.0)
    clicked = THETA * np.array([[0.2], [0.9], [0.5], [0.4]])
    clicked[2, 2:] *= 1 + wrong
    ranks = np.array([3, 4, 1, 2])
    order = ORDERS[rng.choice(len(ORDERS), count, p=chance)]
    clicks = rng.random((count, LENGTH)) < clicked[order, np.arange(LENGTH)]
    truth = (GAIN / THETA)[ranks - 1] @ clicked[np.arange(LENGTH), ranks - 1]
    return pages(order, clicks, at_rank, ranks), float(truth)


WINDOWS = (0.0, 1.0, 2.0, 4.0, 8.0, np.inf)


def report(batch: EventBatch, **options: Any) -> Report:
    fixed = [{"kind": "click_interpol", "window": window, "name": f"{window:g}"} for window in WINDOWS]
    settings: dict[str, Any] = {"averages": ["cumulative"], "drift": None, "ranking": RANKING, **options}
    evaluator = Evaluator(["new"], estimators=["click_interpol", "click_ips", *fixed], **settings)
    evaluator.update(batch)
    return evaluator.report()


@pytest.mark.parametrize(("wrong", "worst"), [(0.0, "0"), (1.0, "inf")], ids=["right model", "wrong model"])
def test_the_chosen_window_is_near_the_best_one_and_far_from_the_worst(wrong: float, worst: str) -> None:
    errors: dict[str, list[float]] = {}
    for seed in range(10):
        batch, truth = drawn(10_000, seed, wrong)
        for row in report(batch, promotion=None).estimates:
            if row.policy == "new":
                errors.setdefault(row.estimator, []).append((row.value or 0) - truth)
    error = {label: float(np.sqrt(np.mean(np.square(values)))) for label, values in errors.items()}
    assert error["click_interpol"] < 2.5 * min(error[f"{window:g}"] for window in WINDOWS)
    assert error["click_interpol"] < 0.8 * error[worst]


def test_the_row_has_the_chosen_window_and_the_same_lift_as_the_fixed_one() -> None:
    actual = report(drawn(5_000, 3, 1.0)[0])
    row = actual.get("new", "click_interpol", "cumulative")
    chosen = row.details["click_window"]
    fixed = actual.get("new", f"{np.inf if chosen is None else chosen:g}", "cumulative")
    assert (row.value, row.lift) == (fixed.value, fixed.lift)
    assert row.lower is not None
    assert row.lower < (fixed.lower or 0)
    assert row.covers == "estimand"
    assert "click_window" not in fixed.details
    production = actual.get("logging", "8", "cumulative")
    assert production.value == actual.get("logging", "click_ips", "cumulative").value


@pytest.mark.parametrize("examination", [{"kind": "swaps", "ranks": LENGTH}, "given"])
def test_pages_without_probabilities_or_curves_are_missing_for_it_alone(examination: Any) -> None:
    batch, _ = drawn(400, 1, 0.0)
    without = EventBatch.from_rankings(clicks=[[0, 0, 0, 0]] * 100, ranks={"new": [[4, 3, 2, 1]] * 100}, list_length=4)
    joined = EventBatch.concat([batch, without])
    actual, alone = report(joined), report(batch)
    assert actual.get("new", "2", "cumulative").value == pytest.approx(alone.get("new", "2", "cumulative").value)
    assert actual.get("new", "click_ips", "cumulative").value < 0.9 * alone.get("new", "click_ips", "cumulative").value
    unknown = report(joined, ranking=RANKING | {"examination": examination})
    assert unknown.get("new", "2", "cumulative").value is None


def test_arrays_have_a_probability_of_each_rank_of_the_page() -> None:
    with pytest.raises(ValueError, match="rank_probabilities has 3 ranks, expected at least 4"):
        pages(ORDERS[:1], np.ones((1, LENGTH)), np.full((LENGTH, 3), 0.3), np.arange(1.0, 5.0))


def test_blocks_of_any_size_give_the_same_report() -> None:
    batch, _ = drawn(2_000, 2, 0.0)
    evaluator = Evaluator(["new"], estimators=["click_interpol"], ranking=RANKING, drift=None)
    for part in np.array_split(np.arange(2_000), [7, 350, 1_201]):
        evaluator.update(batch.take(part))
    whole = Evaluator(["new"], estimators=["click_interpol"], ranking=RANKING, drift=None)
    whole.update(batch)
    assert evaluator.report().estimates == whole.report().estimates
    restored = Evaluator.from_state(evaluator.state())
    assert restored.report().estimates == whole.report().estimates


@pytest.mark.parametrize("never", [0, 2])
def test_windows_use_a_learned_curve(never: int) -> None:
    rng, count = np.random.default_rng(11), 20_000
    orders, chance, at_rank = random_orders()
    order = orders[rng.choice(len(orders), count, p=chance)]
    attractiveness, theta = np.linspace(0.9, 0.3, RANKS), 1 / np.arange(1.0, RANKS + 1)
    later = np.column_stack([at_rank, np.zeros(RANKS)])
    batch = EventBatch.from_rankings(
        clicks=rng.random((count, RANKS)) < theta * attractiveness[order],
        ranks={"new": RANKS - order.astype(float)},
        marginals=np.stack([later[order, np.arange(RANKS)], later[order, np.arange(1, RANKS + 1)]], axis=-1),
        rank_probabilities=np.column_stack([at_rank, np.zeros((RANKS, never))])[order],
        list_length=RANKS,
    )
    ranking = {"metric": {"kind": "dcg", "at": RANKS}, "examination": {"kind": "harvested", "ranks": RANKS + never}}
    actual = report(batch, ranking=ranking)
    truth = attractiveness @ (1 / np.log2(1 + RANKS - np.arange(RANKS)))
    for name in ("0", "2", "inf", "click_interpol"):
        row = actual.get("new", name, "cumulative")
        assert row.lower is not None
        assert row.upper is not None
        assert row.lower < truth < row.upper
        assert row.upper - row.lower < 0.3 * truth


@pytest.mark.parametrize(("chance", "missing"), [(0.0, False), (0.01, True)])
def test_a_page_is_missing_if_an_item_may_be_at_a_rank_without_a_known_look(chance: float, missing: bool) -> None:
    table = np.column_stack([np.full((LENGTH, LENGTH), 0.2), np.full(LENGTH, chance)])
    batch = EventBatch.from_rankings(
        clicks=[[1, 0, 0, 0]] * 200, ranks={"new": [[4, 3, 2, 1]] * 200}, rank_probabilities=[table] * 200
    )
    curves, ranking = np.tile(np.append(THETA, np.nan), (2, 1)), Ranking(**RANKING)
    evidence = Evidence.from_rankings(batch, ["new"], ranking, curves=curves, with_windows=True)
    assert ((evidence.restricted_to(ClickInterpol.needs).sample_weight == 0) == missing).all()
