"""Test rankings drawn by scores, action by action among those left, against the enumeration of all rankings."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import IIPS, IPS, RIPS, Cumulative, Evaluator, EventBatch, PseudoInverse
from streameval.events import JsonDecoder
from streameval.events.plackett_luce import draws, integrated_draws
from streameval.ope.evidence import Evidence
from support.messages import message
from support.slates import slate_weights
from support.strategies import examples
from support.streams import close

Array = NDArray[np.float64]
POLICY = "candidate"
quickly = examples(25)


def chances(rankings: list[tuple[int, ...]], scores: Array) -> Array:
    """Return the probability of each ranking, from its definition."""
    weights, results = np.exp(scores), []
    for ranking in rankings:
        left = [weights.sum() - weights[list(ranking[:index])].sum() for index in range(len(ranking))]
        results.append(math.prod(weights[list(ranking)] / left))
    return np.array(results)


def indicators(rankings: list[tuple[int, ...]], actions: int) -> Array:
    """Return which rows each ranking shows, [rankings, slots x actions]."""
    shown = np.zeros((len(rankings), len(rankings[0]), actions))
    for row, ranking in enumerate(rankings):
        shown[row, np.arange(len(ranking)), ranking] = 1
    return shown.reshape(len(rankings), -1)


def slate(ranking: tuple[int, ...], logits: Array, target: Array, turned: bool = False, **fields: Any) -> bytes:
    """Return the message of a ranking drawn by scores.

    Args:
        turned: Whether later slots list the actions in the opposite order.
    """
    actions, slots = list(range(len(logits))), []
    for index, action in enumerate(ranking):
        order = actions[::-1] if turned and index else actions
        slots.append({"action": action, "actions": order, "policies": {POLICY: target[index, order].tolist()}})
        if "rewards" in fields:
            slots[-1]["reward"] = fields["rewards"][index]
    ranking_fields = {"slots": slots, "slate_logging": "plackett_luce", "scores": logits.tolist(), "reward": 1}
    others = {name: value for name, value in fields.items() if name != "rewards"}
    return message(1, **{"action": ..., "propensity": ...} | ranking_fields | others)


def batch_of(*messages: bytes) -> EventBatch:
    batch = JsonDecoder([POLICY]).decode_batch(messages)
    assert not batch.rejected, batch.rejected
    return batch


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], Array, Array]:
    """Draw all rankings of l of m actions, the scores of the actions, and the marginals of a candidate."""
    actions = draw(st.integers(2, 5))
    slots = draw(st.integers(1, min(actions, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    scores = rng.normal(size=actions) * draw(st.sampled_from([0.0, 0.5, 2.0]))
    rankings = list(permutations(range(actions), slots))
    marginals = rng.dirichlet(np.ones(len(rankings))) @ indicators(rankings, actions)
    return rankings, scores, marginals.reshape(slots, actions)


@quickly
@given(cases(), st.booleans())
def test_slates_have_the_weights_defined_by_the_second_moments_of_all_rankings(
    case: tuple[list[tuple[int, ...]], Array, Array], turned: bool
) -> None:
    rankings, scores, target = case
    share, shown = chances(rankings, scores), indicators(rankings, len(scores))
    gamma = np.einsum("s,si,sj->ij", share, shown, shown)
    batch = batch_of(*[slate(ranking, scores, target, turned) for ranking in rankings])
    assert batch.propensity == pytest.approx(share, rel=1e-12)
    expected = shown @ np.linalg.pinv(gamma, rcond=1e-10, hermitian=True) @ target.ravel()
    actual = slate_weights(batch, [POLICY, "logging"])
    assert actual[:, 0] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert actual[:, 1] == pytest.approx(1)
    assert share @ actual[:, 0] == pytest.approx(1, rel=1e-8)
    assert batch.slates is not None
    marginals = (share @ shown).reshape(target.shape)
    logged = np.array([marginals[np.arange(len(ranking)), ranking] for ranking in rankings]).ravel()
    assert batch.slates.propensity == pytest.approx(logged, rel=1e-12)


@quickly
@given(cases(), st.integers(0, 100))
def test_additive_rewards_are_estimated_without_bias(
    case: tuple[list[tuple[int, ...]], Array, Array], seed: int
) -> None:
    rankings, scores, target = case
    worth = np.random.default_rng(seed).random(target.shape)
    rewards = [worth[np.arange(len(ranking)), ranking].tolist() for ranking in rankings]
    batch = batch_of(
        *[
            slate(ranking, scores, target, rewards=own, reward=sum(own))
            for ranking, own in zip(rankings, rewards, strict=True)
        ]
    )
    share = chances(rankings, scores)
    truth = (worth * target).sum()
    weights = slate_weights(batch, [POLICY])[:, 0]
    assert share @ (weights * batch.reward) == pytest.approx(truth, rel=1e-6)
    (iips,) = (IIPS().terms(Evidence.from_slots(batch, [POLICY], "slot_rewards"), None)[0].numerator.T,)
    assert share @ iips[0] == pytest.approx(truth, rel=1e-9)


def test_rips_weighs_by_the_probability_of_the_actions_up_to_each_slot() -> None:
    rankings, scores = list(permutations(range(4), 3)), np.array([1.0, 0.0, -0.5, 0.3])
    rng = np.random.default_rng(2)
    worth = {ranking[: index + 1]: rng.random() for ranking in rankings for index in range(3)}
    shown = rankings[9]
    rewards = [[worth[ranking[: index + 1]] for index in range(3)] for ranking in rankings]
    messages = [
        slate(ranking, scores, np.eye(4)[list(shown)], rewards=own, reward=sum(own))
        for ranking, own in zip(rankings, rewards, strict=True)
    ]
    terms = RIPS().terms(Evidence.from_slots(batch_of(*messages), [POLICY], "cascade"), None)[0].numerator[:, 0]
    assert chances(rankings, scores) @ terms == pytest.approx(sum(worth[shown[: index + 1]] for index in range(3)))


@pytest.mark.parametrize("compute", [draws, integrated_draws])
@pytest.mark.parametrize(("actions", "slots"), [(6, 3), (5, 5), (12, 2), (3, 1)])
def test_probabilities_of_pairs_of_slots_equal_the_sum_over_all_rankings(
    compute: Callable[..., tuple[Array, Array]], actions: int, slots: int
) -> None:
    scores = np.random.default_rng(actions).normal(size=(3, actions))
    single, joint = compute(np.exp(scores), slots, pairs=True)
    rankings = list(permutations(range(actions), slots))
    shown = indicators(rankings, actions)
    for row in range(3):
        share = chances(rankings, scores[row])
        assert single[row].ravel() == pytest.approx(share @ shown, rel=1e-12)
        both = np.einsum("s,si,sj->ij", share, shown, shown).reshape(joint.shape[1:])
        later = np.arange(slots)[:, None] < np.arange(slots)
        assert np.where(later[:, None, :, None], both, 0.0) == pytest.approx(joint[row], rel=1e-11, abs=1e-14)


def test_integrals_equal_the_sums_over_sets_of_actions_for_distant_scores() -> None:
    weights = np.exp(2.5 * np.random.default_rng(3).normal(size=(1, 10)))
    for sums, integrals in zip(draws(weights, 6, pairs=True), integrated_draws(weights, 6, pairs=True), strict=True):
        assert sums is not None
        assert sums == pytest.approx(integrals, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize(("actions", "slots"), [(5, 3), (20, 10), (20, 20)])
def test_equal_scores_make_a_uniform_ranking(actions: int, slots: int) -> None:
    rng = np.random.default_rng(4)
    log = {
        "reward": np.ones(20),
        "action": np.array([rng.permutation(actions)[:slots] for _ in range(20)]),
        "policies": {POLICY: np.eye(actions)[rng.permutation(actions)[:slots]][None].repeat(20, axis=0)},
    }
    drawn = EventBatch.from_arrays(**log, scores=np.zeros((20, actions)), slate_logging="plackett_luce")
    propensities = np.full((20, slots, actions), 1 / actions)
    uniform = EventBatch.from_arrays(**log, propensities=propensities, slate_logging="uniform_ranking")
    assert drawn.propensity == pytest.approx(uniform.propensity)
    assert slate_weights(drawn, [POLICY]) == pytest.approx(slate_weights(uniform, [POLICY]), rel=1e-8, abs=1e-8)


def test_long_rankings_by_scores_are_estimated_without_bias() -> None:
    rng, scores = np.random.default_rng(5), np.linspace(1.0, -1.0, 20)
    action = np.argsort(-(scores + rng.gumbel(size=(1_000, 20))), axis=1)[:, :10]
    worth, target = rng.random((10, 20)), rng.dirichlet(np.full(20, 5.0), 10)
    batch = EventBatch.from_arrays(
        reward=worth[np.arange(10), action].sum(axis=1) / 10,
        action=action,
        scores=np.tile(scores, (1_000, 1)),
        slate_logging="plackett_luce",
        policies={POLICY: np.tile(target, (1_000, 1, 1))},
    )
    weights = slate_weights(batch, [POLICY, "logging"])
    assert weights[:, 1] == pytest.approx(1)
    for values, truth in ((weights[:, 0], 1.0), (weights[:, 0] * batch.reward, (worth * target).sum() / 10)):
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(1_000)


def test_arrays_of_scores_make_the_events_of_messages() -> None:
    rankings, scores = list(permutations(range(4), 2)), np.array([1.0, 0.0, -0.5, 0.3])
    target, n = np.full((2, 4), 0.25), len(rankings)
    log: dict[str, Any] = {
        "reward": np.ones(n),
        "action": rankings,
        "scores": np.tile(scores, (n, 1)),
        "slate_logging": "plackett_luce",
        "policies": {POLICY: np.tile(target, (n, 1, 1))},
    }
    batch = EventBatch.from_arrays(**log)
    messages = batch_of(*[slate(ranking, scores, target) for ranking in rankings])
    assert batch.propensity == pytest.approx(messages.propensity)
    assert slate_weights(batch, [POLICY]) == pytest.approx(slate_weights(messages, [POLICY]))
    for fault, reason in (
        ({"scores": None}, "plackett_luce: give `action`"),
        ({"propensity": np.full((n, 2), 0.5)}, "plackett_luce: give `action`"),
        ({"scores": np.where(np.arange(n)[:, None] == 3, np.nan, log["scores"])}, "row 3: malformed: scores: differ"),
        ({"slate_logging": "factored"}, "slate_logging: expected plackett_luce with scores, found 'factored'"),
        ({"scores": None, "slate_logging": "Plackett_Luce"}, "slate_logging: expected factored or uniform_ranking or"),
        ({"scores": log["scores"][:, :1]}, "action: 2 slots for a ranking of 1 action"),
        ({"action": np.zeros((n, 2), dtype=int)}, "a ranking shows no action twice"),
    ):
        with pytest.raises(ValueError, match=reason):
            EventBatch.from_arrays(**log | fault)


def test_rankings_drawn_by_scores_are_evaluated_block_by_block_as_an_event_may_take_long() -> None:
    batch = batch_of(*[slate((1, 0), np.array([0.0, 1.0]), np.full((2, 2), 0.5)) for _ in range(450)])
    evaluator, folded = Evaluator([POLICY], [PseudoInverse()], [Cumulative()]), list[int]()
    evaluator.on_fold = lambda: folded.append(1)
    evaluator.update(batch)
    evaluator.fold_pending()
    assert len(folded) == 4


def test_slates_of_different_shapes_and_kinds_have_the_weight_of_each_alone() -> None:
    messages = [
        slate((1, 0), np.array([0.0, 1.0]), np.full((2, 2), 0.5)),
        slate((2,), np.array([0.0, 1.0, 2.0]), np.full((1, 3), 1 / 3)),
        message(2, policies={POLICY: 0.25}),
        slate((0, 2), np.array([0.0, 1.0, 2.0]), np.full((2, 3), 1 / 3)),
        slate((1, 0), np.array([3.0, 1.0]), np.full((2, 2), 0.5), slate_logging="uniform_ranking"),
        slate((0, 1), np.array([2.0, 1.0]), np.full((2, 2), 0.5)),
    ]
    whole = batch_of(*messages)
    alone = [float(slate_weights(batch_of(message_list), [POLICY])[0, 0]) for message_list in messages]
    assert slate_weights(whole, [POLICY])[:, 0] == pytest.approx(alone)
    kept = EventBatch.from_state(EventBatch.concat([whole[:2], whole[2:]]).to_state())
    assert slate_weights(kept, [POLICY])[:, 0] == pytest.approx(alone)
    evaluator = Evaluator([POLICY], [PseudoInverse(), IPS()], [Cumulative()])
    evaluator.update(whole)
    estimate = evaluator.report().get(POLICY, "pseudo_inverse", "cumulative")
    assert estimate.value == close(sum(alone) / 6)
    assert sum(estimate.details["slot_lifts"]) == close(estimate.lift)


def test_extreme_scores_leave_no_number_that_is_not_finite() -> None:
    scores, target = np.array([300.0, 200.0, -100.0]), np.full((3, 3), 1 / 3)
    batch = batch_of(*[slate(ranking, scores, target) for ranking in permutations(range(3))])
    assert batch.propensity[:2] == pytest.approx([1, math.exp(-300)])
    assert ((batch.propensity > 0) & (batch.propensity <= 1)).all()
    evaluator = Evaluator([POLICY], [PseudoInverse(), IPS()], [Cumulative()])
    evaluator.update(batch)
    assert all(estimate.value is None or math.isfinite(estimate.value) for estimate in evaluator.report().estimates)


def test_faulty_scores_are_rejected_with_the_reason() -> None:
    target = np.full((2, 3), 1 / 3)

    def detail(**fields: Any) -> str:
        (rejected,) = JsonDecoder([POLICY]).decode_batch([slate((0, 1), np.zeros(3), target, **fields)]).rejected
        assert rejected.reason == "malformed"
        return rejected.detail

    assert detail(scores=None) == "scores: missing, but the ranking was drawn by them"
    assert detail(scores=[0, "a", 1]) == "scores: not a list of numbers"
    assert detail(scores=[0, 1]) == "scores: 2 entries for 3 actions"
    too_far = "scores: differ by more than 500, which leaves no chance to some actions"
    assert [detail(scores=[0, 1, score]) for score in (600, -500, 10**305)] == [too_far] * 3
    many, rows = np.repeat([21.0, 0.5, 0.0, -300.0], 10), np.full((15, 40), 1 / 40)
    (rejected,) = JsonDecoder([POLICY]).decode_batch([slate(tuple(range(15)), many, rows)]).rejected
    assert rejected.detail == "scores: the 15 highest differ by 20.5, more than 11.67 in a ranking of 15 of 40 actions"
    twice = slate((0, 0), np.zeros(3), target)
    assert JsonDecoder([POLICY]).decode_batch([twice]).rejected[0].detail.endswith("is shown twice in a ranking")


def test_scores_of_other_events_may_be_anything() -> None:
    batch = batch_of(message(1, scores="x"), message(2, scores={"a": 1}, policies={POLICY: 0.5}))
    assert len(batch) == 2
