"""Test rankers that learn: losses and gradients, ranks before learning, cuts of the stream, resumption, copies."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch, LearnedRanker
from streameval.common.problems import ProblemsError
from streameval.ope.learning.learned_ranker import ClickedPages
from streameval.ope.policies import policy_file
from support import ranking_worlds as worlds

EVERY = {
    "hinge": LearnedRanker(),
    "dcg": LearnedRanker(loss="dcg"),
    "clip": LearnedRanker(clip=3.0, l2=0.01),
    "sampled": LearnedRanker(loss="dcg", counter_sample=True),
    "averaged and forgetting": LearnedRanker(horizon=1_000, average=True),
}
SWAPS = {"kind": "swaps", "ranks": 3, "horizon": 2_000}


def pages(count: int, seed: int = 1, **options: Any) -> EventBatch:
    return worlds.featured(count, seed, *worlds.scorers(3), **options)[0]


def swapped(count: int, seed: int = 1) -> EventBatch:
    """Draw pages for `SWAPS`. The exchanges are made up: what is learned from them has no meaning."""
    swap = np.zeros((count, 2))
    chosen = np.random.default_rng(seed).random(count) < 0.6
    swap[chosen] = [1, 2]
    swap[chosen & (np.arange(count) % 2 == 0)] = [1, 3]
    return pages(count, seed, swap=swap)


def evaluator(policy: Any, **options: Any) -> Evaluator:
    ranking = {**worlds.LINEAR, "examination": options.pop("examination", worlds.LINEAR["examination"])}
    candidates = policy if isinstance(policy, dict) else {"ranker": policy}
    options = {"averages": ["cumulative"], "estimators": ["click_ips"], "drift": None, "ranking": ranking, **options}
    return Evaluator(candidates, **options)


def evaluated(policy: Any, *batches: EventBatch, **options: Any) -> Evaluator:
    made = evaluator(policy, **options)
    for batch in batches:
        made.update(batch)
    return made


def clicked(seed: int = 2) -> ClickedPages:
    rng, sizes = np.random.default_rng(seed), np.array([4, 1, 6, 3])
    click = np.where(rng.random(14) < 0.5, rng.uniform(1, 5, 14), 0.0)
    return ClickedPages(
        rng.normal(size=(14, 3)), np.cumsum(sizes) - sizes, sizes, click, np.array([1.0, 2.0, 1.0, 3.0])
    )


@pytest.mark.parametrize("loss", ["hinge", "dcg"])
def test_the_loss_adds_up_bounds_of_ranks_and_its_gradient_equals_finite_differences(loss: Any) -> None:
    policy, some = LearnedRanker(loss=loss), clicked()
    scores, total = some.scores(np.array([[1.0, -0.5, 0.2]])), 0.0
    for page, (start, size) in enumerate(zip(some.starts, some.sizes, strict=True)):
        rows = range(start, start + size)
        for row in rows:
            bound = 1 + sum(max(0.0, 1 - (scores[row] - scores[other])) for other in rows if other != row)
            cost = bound if loss == "hinge" else -1 / np.log2(1 + bound)
            total += some.weight[page] * some.click[row] * cost / some.weight.sum()
    value, gradient = policy.loss_of(some, scores)
    assert value == pytest.approx(total, rel=1e-12)
    for row in range(len(scores)):
        step = np.zeros(len(scores))
        step[row] = 1e-6
        slope = (policy.loss_of(some, scores + step)[0] - policy.loss_of(some, scores - step)[0]) / 2e-6
        assert gradient[row] == pytest.approx(slope, abs=1e-7)


def test_one_block_moves_each_weight_by_one_step_against_the_loss() -> None:
    """Descend from the first block: the first step of Adam has the length `step` in each weight."""
    batch = pages(100)
    rankings = batch.rankings
    assert rankings is not None
    assert rankings.features is not None
    click = np.where(rankings.clicked > 0, np.minimum(rankings.rank, 3.0), 0.0)
    features = rankings.features.values.reshape(-1, worlds.WIDTH)
    some = ClickedPages(features, rankings.offsets[:-1], rankings.sizes, click, np.ones(100))
    _, by_score = LearnedRanker().loss_of(some, np.zeros(len(features)))
    moved = evaluated(LearnedRanker(clip=3.0, step=0.1), batch).learned("ranker")["weights"]
    assert moved[0] == pytest.approx(-0.1 * np.sign(by_score @ features), rel=1e-4)


@pytest.mark.parametrize("sampled", [False, True])
def test_clicks_that_trust_in_the_rank_explains_teach_nothing(sampled: bool) -> None:
    rng, width, count = np.random.default_rng(1), 4, 40_000
    theta, noise = 1 / np.arange(1.0, width + 1), np.array([0.8, 0.4, 0.2, 0.0])
    features = rng.normal(size=(count, width, 2))
    features[..., 1] = -np.sort(-features[..., 1], axis=1)  # production ranks by the second one, users by the first
    attractive = 1 / (1 + np.exp(-2 * features[..., 0]))
    clicks = rng.random((count, width)) < theta * (noise + (1 - noise) * attractive)
    batch = EventBatch.from_rankings(clicks=clicks, ranks={}, features=features)
    examination = {"kind": "table", "values": theta, "noise": noise}
    ranker = LearnedRanker(step=0.01, counter_sample=sampled)
    weights = evaluated(ranker, batch, examination=examination).learned("ranker")["weights"]
    assert weights[0, 0] > 0
    assert abs(weights[0, 1]) < 0.2 * weights[0, 0]


def test_the_first_block_is_ranked_as_production_ranks_it() -> None:
    row = evaluated(LearnedRanker(), pages(100)).report().get("ranker", "click_ips", "cumulative")
    assert row.lift == 0
    assert row.value is not None


def test_its_ranks_are_valued_as_logged_ranks_are() -> None:
    weights = ((0.3, -1.0, 0.2, 0.0, 2.0, 0.1, 0.5, -0.4),)
    batch, features, _ = worlds.featured(300, 4, *worlds.scorers(3))
    order = np.argsort(np.argsort(-(features @ np.array(weights[0])), axis=1), axis=1) + 1.0
    clicks = np.zeros((300, worlds.ITEMS))
    assert batch.rankings is not None
    clicks[batch.rankings.owner, batch.rankings.rank.astype(int) - 1] = batch.rankings.clicked
    logged = EventBatch.from_rankings(clicks=clicks, ranks={"ranker": order}, list_length=worlds.ITEMS)
    mine = evaluated(LearnedRanker(weights=weights, step=0), batch).report().estimates
    assert mine == evaluated({"ranker": "logged"}, logged).report().estimates


@pytest.mark.parametrize("name", EVERY)
def test_clicks_do_not_touch_the_ranks_of_their_own_block(name: str) -> None:
    batch = pages(300)
    first, second = (evaluated(EVERY[name], batch[:200], batch[200:n]) for n in (300, 200))
    before = EVERY[name].weights_of(second.learned("ranker"))
    frozen = evaluated(LearnedRanker(weights=tuple(map(tuple, before.tolist())), step=0), batch[200:])
    start = evaluated(EVERY[name], batch[:200])
    values = [made.report().get("ranker", "click_ips", "cumulative").value or 0.0 for made in (first, start, frozen)]
    assert values[0] == pytest.approx((2 * values[1] + values[2]) / 3, rel=1e-12)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("examination", ["power", SWAPS], ids=["power", "swaps"])
def test_the_state_is_the_same_however_the_stream_is_cut_and_continued(name: str, examination: Any) -> None:
    batch = swapped(3_050)
    whole = evaluated(EVERY[name], batch, examination=examination)
    cut = evaluator(EVERY[name], examination=examination)
    for first, last in ((0, 37), (37, 1_900), (1_900, 1_901), (1_901, 2_000), (2_000, 3_050)):
        cut.update(batch[first:last])
        cut.report()
        cut = Evaluator.from_state(cut.state())
    assert cut.report() == whole.report()
    mine, other = cut.learned("ranker"), whole.learned("ranker")
    assert mine.keys() == other.keys()
    assert all(np.array_equal(mine[field], other[field]) for field in mine)
    assert mine["steps"] == 30
    assert np.any(mine["weights"])


def test_a_click_counts_by_the_curve_that_was_known_before_its_block() -> None:
    """Without a known curve at any rank, nothing is learned."""
    unknown = evaluated(LearnedRanker(), pages(1_000), examination=SWAPS)
    assert not np.any(unknown.learned("ranker")["weights"])
    one, other = (evaluated(LearnedRanker(), swapped(3_000), examination=kind) for kind in (SWAPS, "power"))
    assert not np.array_equal(one.learned("ranker")["weights"], other.learned("ranker")["weights"])


def test_pages_without_usable_features_are_missing_for_this_policy_alone() -> None:
    batch, features, _ = worlds.featured(500, 1, *worlds.scorers(3))
    assert batch.rankings is not None
    clicks = batch.rankings.clicked.reshape(500, worlds.ITEMS)
    features[::5, 3, 2] = np.nan
    broken = EventBatch.from_rankings(clicks=clicks, ranks={}, features=features)
    logging, ranker = evaluated(LearnedRanker(), broken).report().policies
    assert (logging.missing, ranker.missing) == (0, 100)
    assert [(failure.reason, failure.count) for failure in ranker.failures] == [("missing_field", 100)]
    without = EventBatch.from_rankings(clicks=clicks, ranks={})
    assert evaluated(LearnedRanker(), without).report().policies[1].missing == 500


def test_a_page_of_a_downsampled_log_counts_as_the_pages_that_it_stands_for() -> None:
    some = clicked()
    twice = np.concatenate([np.arange(14), np.arange(4, 5), np.arange(11, 14), np.arange(11, 14)])
    sizes = np.array([*some.sizes, 1, 3, 3])
    doubled = ClickedPages(some.features[twice], np.cumsum(sizes) - sizes, sizes, some.click[twice], np.ones(7))
    for policy in EVERY.values():
        losses = [policy.loss_of(log, log.scores(np.ones((1, 3))))[0] for log in (some, doubled)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_frozen_copies_are_candidates_with_files_that_rankers_start_from() -> None:
    versions = {"kind": "versions_of", "policy": "ranker", "every": 500, "keep": 2}
    made = evaluated({"ranker": LearnedRanker(loss="dcg"), "frozen": versions}, pages(700), pages(1_000, seed=2))
    files = {copy.name: content for copy, _, content in Evaluator.versions_in(made.state())}
    assert list(files) == ["frozen-2", "frozen-3"]
    assert made.policies == ("logging", "ranker", "frozen-2", "frozen-3")
    learned = {row.policy: row for row in made.report().learners}
    assert (learned["ranker"].steps, learned["ranker"].learns, learned["frozen-3"].learns) == (17, True, False)
    assert learned["ranker"].step_norm is not None
    content = files["frozen-3"]
    assert content is not None
    options = policy_file.options_of(content, "learned_ranker")
    assert options["loss"] == "dcg"
    assert np.array_equal(options["weights"], made.learned("frozen-3")["weights"])
    again = Evaluator.from_state(made.state())
    assert again.report() == made.report()


def test_a_ranker_needs_rankings_and_no_policy_that_chooses_actions_fits_them() -> None:
    with pytest.raises(ProblemsError, match="'ranker', which ranks pages"):
        Evaluator({"ranker": "learned_ranker"})
    with pytest.raises(ProblemsError, match="a logged policy next to `ranking`"):
        evaluator({"other": "learned"})
    with pytest.raises(ProblemsError, match="weights must be one row"):
        LearnedRanker(weights=((1.0,), (2.0,)))


def test_a_ranker_joins_late_and_survives_the_removal_of_another() -> None:
    batch, made = pages(1_000), evaluator({"other": LearnedRanker(step=0.1)})
    made.update(batch[:300])
    late = made.apply_config(evaluator({"other": LearnedRanker(step=0.1), "ranker": LearnedRanker()}).config)
    assert late is not None
    made.activate(late, from_zero=True)
    made.update(batch[300:700])
    assert made.apply_config(evaluator(LearnedRanker()).config) is None
    made.update(batch[700:])
    alone = evaluated(LearnedRanker(), batch[300:])
    assert np.array_equal(made.learned("ranker")["weights"], alone.learned("ranker")["weights"])
    rows = [one.report().get("ranker", "click_ips", "cumulative") for one in (made, alone)]
    assert rows[0].value == pytest.approx(rows[1].value, rel=1e-12)


def test_pages_in_json_or_one_by_one_are_learned_from() -> None:
    batch, features, _ = worlds.featured(250, 1, *worlds.scorers(3))
    assert batch.rankings is not None
    clicks, messages = batch.rankings.clicked.reshape(250, worlds.ITEMS), []
    for table, clicked_items in zip(features.tolist(), clicks, strict=True):
        page = {"shown": list(range(worlds.ITEMS)), "clicked": np.flatnonzero(clicked_items).tolist()}
        messages.append(json.dumps({"event_id": "", "timestamp": 0, "ranking": page, "features": table}).encode())
    made, one_by_one = evaluator(LearnedRanker()), evaluator(LearnedRanker())
    made.update(made.config.decoder().decode_batch(messages))
    for message in messages:
        one_by_one.update_one(json.loads(message))
    expected = evaluated(LearnedRanker(), batch).learned("ranker")["weights"]
    assert np.array_equal(made.learned("ranker")["weights"], expected)
    assert np.array_equal(one_by_one.learned("ranker")["weights"], expected)


@pytest.mark.parametrize("name", EVERY)
def test_extreme_features_leave_finite_weights(name: str) -> None:
    batch, rng = pages(600), np.random.default_rng(6)
    assert batch.rankings is not None
    shape = (600, worlds.ITEMS, worlds.WIDTH)
    features = np.exp(rng.normal(0, 30, shape)) * rng.choice([-1, 1], shape)
    clicks = batch.rankings.clicked.reshape(600, worlds.ITEMS)
    made = evaluated(EVERY[name], EventBatch.from_rankings(clicks=clicks, ranks={}, features=features))
    assert np.isfinite(made.learned("ranker")["weights"]).all()
