"""Test the policy that fills slots by estimated parts of the reward, against the enumeration of all slates."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Evaluator, EventBatch, OfSlotRewards
from streameval.common.problems import ProblemsError
from streameval.config.model import Config
from streameval.events import ActionSets
from streameval.ope.evidence.slate_weights import with_duals
from streameval.ope.policies.base import Log
from support.streams import close

Array = NDArray[np.float64]
ACTIONS, SLOTS = 4, 2


def log(events: int, way: str, seed: int = 1) -> tuple[dict[str, Any], Array]:
    """Draw slates whose slots add up to the reward, and return the parts of all actions [events, slots, actions]."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(events, SLOTS, ACTIONS, 2))
    if way != "factored":  # a ranking has the same actions in each slot
        features[:, 1] = features[:, 0]
    parts = np.einsum("njad,jd->nja", features, np.array([[0.05, -0.02], [-0.03, 0.04]]))
    noise = {"factored": rng.gumbel(size=(events, SLOTS, ACTIONS))}.get(way)
    scores = rng.normal(size=(events, ACTIONS))
    keys = (scores if way == "plackett_luce" else 0.0) + rng.gumbel(size=(events, ACTIONS))
    action = np.argsort(-keys, axis=1)[:, :SLOTS] if noise is None else noise.argmax(axis=2)
    earned = np.take_along_axis(parts, action[..., None], axis=2).sum(axis=(1, 2))
    columns: dict[str, Any] = {
        "reward": np.clip(0.5 + earned, 0, 1),
        "action": action,
        "features": features,
        "slate_logging": way,
        "policies": {},
    }
    uniform = np.full((events, SLOTS, ACTIONS), 1 / ACTIONS)
    return columns | ({"scores": scores} if way == "plackett_luce" else {"propensities": uniform}), parts


def evaluated(batch: EventBatch, *cuts: int, **options: Any) -> Evaluator:
    names = {"estimators": ["pseudo_inverse"], "averages": ["cumulative"], "drift": None, "promotion": None}
    evaluator = Evaluator({"filler": OfSlotRewards(**options)}, **names)
    for first, last in zip((0, *cuts), (*cuts, len(batch)), strict=True):
        evaluator.update(batch[first:last])
        evaluator.fold_pending()
        evaluator = Evaluator.from_state(evaluator.state())
    return evaluator


def value(evaluator: Evaluator) -> float:
    found = evaluator.report().get("filler", "pseudo_inverse", "cumulative").value
    assert found is not None
    return found


@pytest.mark.parametrize("way", ["factored", "uniform_ranking", "plackett_luce"])
def test_the_policy_has_the_value_of_the_best_slates_of_all(way: str) -> None:
    columns, parts = log(4_000, way)
    slates = np.array(list(product(range(ACTIONS), repeat=SLOTS) if way == "factored" else permutations(range(4), 2)))
    greedy = parts.copy()
    first = greedy[:, 0].argmax(axis=1)
    if way != "factored":  # slot after slot, without the actions shown before
        greedy[np.arange(len(first)), 1, first] = -np.inf
    best = 0.5 + parts[:, 0].max(axis=1) + greedy[:, 1].max(axis=1)
    all_slates = 0.5 + parts[:, np.arange(SLOTS), slates].sum(axis=2)
    assert (best <= all_slates.max(axis=1) + 1e-12).all()
    batch = EventBatch.from_arrays(**columns)
    nothing = ActionSets.none(len(batch), 0)
    reward, ones = batch.reward, np.ones(len(batch))
    assert batch.slates is not None
    stream = Log(nothing, ones, reward, ones, 100, slates=with_duals(batch.slates))
    (rows, faults), state = OfSlotRewards().fold(OfSlotRewards().start(), stream)
    chosen = rows.reshape(parts.shape)
    assert not faults
    assert state["steps"] == 40
    assert chosen.sum(axis=2) == pytest.approx(1)
    assert way == "factored" or chosen.sum(axis=1).max() == 1
    found, uniform = 0.5 + (chosen * parts).sum(axis=(1, 2)), all_slates.mean(axis=1)
    assert (found - uniform)[-1_000:].mean() > 0.97 * (best - uniform)[-1_000:].mean()


def test_cuts_and_restarts_change_nothing() -> None:
    columns, _ = log(450, "uniform_ranking")
    batch = EventBatch.from_arrays(**columns)
    assert value(evaluated(batch, 30, 130, 431)) == close(value(evaluated(batch)), rel=1e-12)


def test_before_it_has_learned_and_at_random_it_has_a_distribution() -> None:
    columns, _ = log(100, "factored")
    batch = EventBatch.from_arrays(**columns)
    assert value(evaluated(batch, epsilon=1.0)) == close(batch.reward.mean())


@pytest.mark.parametrize("way", ["uniform_ranking", "plackett_luce"])
def test_next_to_the_policy_others_have_the_values_that_they_have_alone(way: str) -> None:
    columns, _ = log(250, way)
    batch = EventBatch.from_arrays(**columns | {"policies": {"even": np.full((250, SLOTS, ACTIONS), 1 / ACTIONS)}})
    found = []
    for candidates in ({"even": "logged"}, {"even": "logged", "filler": "of_slot_rewards"}):
        evaluator = Evaluator(candidates, estimators=["pseudo_inverse"], averages=["cumulative"], drift=None)
        evaluator.update(batch)
        found.append(evaluator.report().get("even", "pseudo_inverse", "cumulative").value)
    assert found[0] == found[1]


def test_slates_without_features_are_missing() -> None:
    columns, _ = log(200, "uniform_ranking")
    del columns["features"]
    evaluator = evaluated(EventBatch.from_arrays(**columns))
    assert evaluator.report().get("filler", "pseudo_inverse", "cumulative").value is None


@pytest.mark.parametrize("way", ["factored", "uniform_ranking"])
def test_a_frozen_copy_is_read_from_its_file_and_chooses_the_same_slates(way: str, tmp_path: Path) -> None:
    columns, _ = log(900, way)
    batch = EventBatch.from_arrays(**columns)
    versions = {"kind": "versions_of", "policy": "filler", "every": 300, "keep": 1}
    candidates = {"filler": OfSlotRewards(epsilon=0.1), "frozen": versions}
    options: dict[str, Any] = {"estimators": ["pseudo_inverse"], "averages": ["cumulative"], "drift": None}
    made = Evaluator(candidates, **options)
    made.update(batch[:650])
    ((copy, _, content),) = Evaluator.versions_in(made.state())
    assert copy.name == "frozen-2"
    assert content is not None
    path = tmp_path / copy.file
    path.write_bytes(content)
    stored = {"kind": "of_slot_rewards", "file": str(path)}
    read = Config.model_validate({"policies": {"candidates": {"filler": stored}}}).evaluator_config().learned_policies
    made.update(batch[650:850])
    from_file = Evaluator(read, **options)
    from_file.update(batch[600:850])
    found = [
        one.report().get(name, "pseudo_inverse", "cumulative")
        for one, name in ((made, "frozen-2"), (from_file, "filler"))
    ]
    assert found[0].value == found[1].value
    assert found[0].importance_weight_max == found[1].importance_weight_max
    assert [row.learns for row in from_file.report().learners] == [False]


def test_weights_are_up_to_20_equal_rows() -> None:
    for wrong in (((1.0,), (2.0, 3.0)), ((),), ((1.0,),) * 21):
        with pytest.raises(ProblemsError, match="weights must be up to 20 rows"):
            OfSlotRewards(weights=wrong)
