"""Test tables, river's regressors and code of users as reward models: what they know, and what faults cost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from streameval import Evaluator
from streameval.config.model import Config
from streameval.errors import ConfigError, StateError
from streameval.events import ActionSets, EventBatch, JsonDecoder, RawFields
from streameval.ingest.base import SourceStatus
from streameval.ope.estimators import DM, DR, IPS
from streameval.ope.reward_models import (
    FAILURES,
    AnyRewardModel,
    PythonModel,
    Ridge,
    RiverModel,
    Tabular,
    builtin,
)
from streameval.ope.reward_models.base import LoggedActions
from streameval.ope.reward_models.online import RewardModelAccuracy
from streameval.service.metrics import metrics_text
from streameval.service.status import DaemonStatus
from support import own_models
from support.bandits import CANDIDATE, cut, without_features
from support.reward_models import BLOCK, LINEAR, REWARDING, TREES, dm, evaluator, fed

MEAN = PythonModel(target="support.own_models:Mean")
MODELS: list[AnyRewardModel] = [Ridge(), Ridge(per_action=True, name="by_position"), Tabular(), LINEAR, TREES, MEAN]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.label)


def accuracy(evaluated: Evaluator) -> RewardModelAccuracy:
    actual = evaluated.report().reward_model
    assert actual is not None
    return actual


def named(batch: EventBatch, names: list[Any], contexts: list[Any] | None = None) -> EventBatch:
    """Return the batch with names for the actions of each event."""
    all_contexts = contexts or [None] * len(batch)
    return replace(
        batch, raw_fields=RawFields([{"context": context, "actions": list(names)} for context in all_contexts])
    )


@every_model
def test_no_reward_touches_a_prediction_of_its_own_block(model: AnyRewardModel) -> None:
    batch = REWARDING.log(3 * BLOCK, seed=2)
    late = np.arange(3 * BLOCK) >= 2 * BLOCK
    other = replace(batch, reward=np.where(late, 1 - batch.reward, batch.reward))
    assert dm(fed(model, batch).report()) == dm(fed(model, other).report())
    early = replace(batch, reward=np.where(late, batch.reward, 1 - batch.reward))
    assert dm(fed(model, batch).report()) != dm(fed(model, early).report())


@every_model
def test_a_model_that_no_estimator_needs_is_not_asked_and_not_in_the_report(model: AnyRewardModel) -> None:
    own_models.Witness.seen = ()
    assert fed(model, REWARDING.log(100, seed=4), estimators=[IPS()]).report().reward_model is None
    fed(PythonModel(target="support.own_models:Witness"), REWARDING.log(100, seed=4), estimators=[IPS()])
    assert not own_models.Witness.seen


def test_the_error_and_its_baseline_are_means_over_all_events_after_the_first_block() -> None:
    batch = REWARDING.log(5 * BLOCK, seed=6)
    reward = batch.reward
    errors, baseline = [], []
    for block in range(1, 5):
        past, now = reward[: block * BLOCK], reward[block * BLOCK : (block + 1) * BLOCK]
        errors += ((now - np.clip(past.mean() + 0.1, 0, 1)) ** 2).tolist()
        baseline += ((now - past.mean()) ** 2).tolist()
    actual = accuracy(fed(PythonModel(target="support.own_models:Mean", options={"offset": 0.1}), batch))
    assert actual.squared_error == pytest.approx(np.mean(errors), rel=1e-3)  # the past fades over 100,000 events
    assert actual.baseline_squared_error == pytest.approx(np.mean(baseline), rel=1e-3)


def test_before_a_block_has_ended_the_error_is_not_known() -> None:
    actual = accuracy(fed(Tabular(), REWARDING.log(BLOCK - 1, seed=7)))
    assert (actual.squared_error, actual.baseline_squared_error) == (None, None)


def test_a_table_has_the_shrunken_means_of_the_definition() -> None:
    batch = REWARDING.log(10 * BLOCK, seed=8)
    sets = batch.action_sets
    assert sets is not None
    weight = np.random.default_rng(8).choice([1.0, 2.0], len(batch))
    model = Tabular(shrinkage=3.0, horizon=500.0)
    actual, _ = model.fold(model.start(), LoggedActions(sets, batch.reward, weight, BLOCK, (0.0, 1.0)))
    for event in range(len(batch)):
        done = event // BLOCK * BLOCK
        age = event // BLOCK - 1 - np.arange(done) // BLOCK
        kernel = weight[:done] * (1 - 1 / 500.0) ** (BLOCK * age)
        mean = np.average(batch.reward[:done], weights=kernel) if done else 0.0
        for action in range(4):
            counted = kernel * (sets.index[:done] == action)
            expected = ((counted * batch.reward[:done]).sum() + 3 * mean) / (counted.sum() + 3)
            assert actual[4 * event + action] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_table_distinguishes_actions_by_their_names_in_any_position() -> None:
    batch = REWARDING.log(400, seed=9)
    sets = batch.action_sets
    assert sets is not None
    rows = (np.arange(4 * 400).reshape(400, 4)[:, ::-1]).ravel()
    turned = replace(
        batch,
        action_sets=ActionSets(
            sets.offsets, 3 - sets.index, sets.propensities[rows], None, np.asfortranarray(sets.probabilities[rows])
        ),
    )
    straight = dm(fed(Tabular(), named(batch, ["a", "b", "c", "d"])).report())
    reverse = dm(fed(Tabular(), named(turned, ["d", "c", "b", "a"])).report())
    confused = dm(fed(Tabular(), named(turned, ["a", "b", "c", "d"])).report())
    assert reverse == pytest.approx(straight, rel=1e-12)
    assert dm(fed(Tabular(), batch).report()) == pytest.approx(straight, rel=1e-12)
    assert confused == pytest.approx(straight, rel=1e-12)  # the target is uniform: a sum over all actions is the same
    mixed = dm(fed(Tabular(), *cut(named(batch, ["a", "b", "c", "d"]), [200])[:1], cut(turned, [200])[1]).report())
    assert mixed != pytest.approx(straight, rel=1e-3)


def test_a_table_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "MAX_ACTIONS", 10)
    batch = REWARDING.log(200, seed=10)
    names = [[f"{event}-{index}" for index in range(4)] for event in range(200)]
    never_again = replace(batch, raw_fields=RawFields([{"actions": name} for name in names]))
    crowded = fed(Tabular(), never_again)
    assert dm(crowded.report()) == pytest.approx(batch.reward.mean(), abs=0.1)
    crowded.fold_pending()
    state = crowded.state()["predictions"][0]["model"]
    assert len(json.loads(state["names"])) == 10


def test_river_learns_from_contexts_and_names_if_there_are_no_features() -> None:
    rng = np.random.default_rng(11)
    n, hour = 2_000, rng.integers(0, 24, 2_000)
    action = rng.integers(0, 2, n)
    chance = 0.1 + 0.3 * action + 0.5 * (hour > 12)
    batch = EventBatch.from_arrays(
        reward=(rng.random(n) < chance).astype(float),
        action=action,
        propensities=np.full((n, 2), 0.5),
        policies={CANDIDATE: np.tile([0.0, 1.0], (n, 1))},
    )
    contexts = [{"hour": int(h), "part": {"of": "day" if h > 12 else "night"}, "tags": [1]} for h in hour]
    errors = {}
    for inputs in (("context", "action"), ("action",), ("context",)):
        model = RiverModel(model=LINEAR.model, inputs=inputs)
        errors[inputs] = accuracy(fed(model, named(batch, ["a", "b"], contexts))).squared_error or 1.0
    assert errors["context", "action"] < min(errors["action",], errors["context",]) - 0.01


def test_decoded_events_have_names_and_contexts_for_models_that_need_them() -> None:
    lines = [
        msgspec.json.encode(
            {
                "event_id": index,
                "timestamp": index,
                "context": {"hour": index % 24},
                "actions": ["a", "b"] if index % 2 else ["b", "a"],
                "propensities": [0.5, 0.5],
                "action": "a" if index % 3 else "b",
                "reward": int(index % 3 > 0),
                "policies": {CANDIDATE: [1, 0] if index % 2 else [0, 1]},
            }
        )
        for index in range(400)
    ]
    results = {}
    for model in ({"kind": "tabular"}, {"kind": "river", "model": LINEAR.model, "inputs": ["action"]}):
        config = Config.model_validate(
            {"policies": {"candidates": [CANDIDATE]}, "estimators": ["dm"], "averages": ["cumulative"]}
            | {"reward_model": model}
        )
        made = config.evaluator()
        made.update(config.event_format().decode_batch(lines))
        results[model["kind"]] = dm(made.report())
    assert results["tabular"] == pytest.approx(0.75, abs=0.05)  # 0 in the first block of a hundred, then near 1
    assert results["river"] == pytest.approx(0.75, abs=0.05)
    assert JsonDecoder([CANDIDATE]).decode_batch(lines).raw_fields is None


def test_a_model_in_code_predicts_and_learns_block_by_block_in_order() -> None:
    own_models.Witness.seen = ()
    batch = REWARDING.log(2 * BLOCK + 3, seed=12)
    sets = batch.action_sets
    assert sets is not None
    _, features = sets.features_of_width(sets.first_width)
    fed(PythonModel(target="support.own_models:Witness"), batch).report()
    assert [what for what, _, _ in own_models.Witness.seen] == ["predict", "learn", "predict", "learn", "predict"]
    for block in range(2):
        (_, asked, _), (_, taught, reward) = own_models.Witness.seen[2 * block : 2 * block + 2]
        events = slice(block * BLOCK, (block + 1) * BLOCK)
        np.testing.assert_array_equal(asked, features[4 * events.start : 4 * events.stop])
        np.testing.assert_array_equal(taught, features[sets.logged[1][events]])
        assert reward is not None
        np.testing.assert_array_equal(reward, batch.reward[events])
    assert len(own_models.Witness.seen[4][1]) == 3 * 4


@pytest.mark.parametrize(
    ("model", "reason", "count"),
    [
        ("Raising", "predict_raised", 4 * 100),
        ("Short", "predict_malformed", 4 * 100),
        ("Talkative", "predict_raised", 4 * 100),
        ("Infinite", "predict_not_finite", 5 * 27),
        ("Unteachable", "learn_raised", 100),
    ],
)
def test_a_model_that_fails_costs_its_predictions_and_nothing_else(model: str, reason: str, count: int) -> None:
    batch = REWARDING.log(100, seed=13)
    failing = fed(PythonModel(target=f"support.own_models:{model}"), batch, estimators=[IPS(), DM(), DR()])
    report = failing.report()
    reported = accuracy(failing)
    assert set(reported.failures) == set(FAILURES)
    assert {name: number for name, number in reported.failures.items() if number} == {reason: count}
    healthy = fed(MEAN, batch, estimators=[IPS(), DM(), DR()]).report()
    assert report.get(CANDIDATE, "ips", "cumulative") == healthy.get(CANDIDATE, "ips", "cumulative")
    assert all(estimate.value is not None for estimate in report.estimates)
    if model != "Unteachable":  # the others fall back to the mean, which is their own prediction
        assert dm(report) == pytest.approx(dm(healthy), rel=1e-12)


def test_events_without_features_are_missing_and_not_shown_to_a_model_that_needs_them() -> None:
    batch = REWARDING.log(100, seed=14)
    own_models.Witness.seen = ()
    half = without_features(batch, np.arange(100) < 50)
    report = fed(PythonModel(target="support.own_models:Witness"), half).report()
    assert sum(len(rows) for what, rows, _ in own_models.Witness.seen if what == "learn") == 50
    assert all(np.isfinite(rows).all() for _, rows, _ in own_models.Witness.seen)
    blind = without_features(batch, np.full(100, True))
    assert fed(MEAN, blind).report().get(CANDIDATE, "dm", "cumulative").value is None
    assert report.get(CANDIDATE, "dm", "cumulative").value is not None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PythonModel(target="support.own_models:Absent"), "support.own_models has no function Absent"),
        (PythonModel(target="no_such_module_at_all:Model"), "no_such_module_at_all cannot be imported"),
        (PythonModel(target="support.own_models:nothing"), "returns NoneType, which has no predict and no learn"),
        (PythonModel(target="support.own_models:broken"), "OSError: no such file"),
        (PythonModel(target="support.own_models:Mean", options={"of": 1}), "unexpected keyword argument 'of'"),
        (RiverModel(model="linear_model.Bayesian"), "river's linear_model.Bayesian cannot be made"),
        (RiverModel(model="linear_model.LogisticRegression"), "is not a regressor"),
        (RiverModel(model="linear_model.LinearRegression", parameters={"lr": 1}), "'lr'"),
    ],
)
def test_a_model_that_cannot_be_made_stops_the_start_and_is_named(model: AnyRewardModel, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        evaluator(model)


def test_a_model_that_cannot_be_made_is_a_problem_of_the_configuration(tmp_path: Any) -> None:
    path = tmp_path / "streameval.yaml"
    path.write_text(
        "policies: {candidates: [a]}\nestimators: [dr]\nreward_model: {kind: river, model: linear_model.Ridge}\n"
    )
    with pytest.raises(ConfigError, match=r"reward_model \(line 3\): river's linear_model.Ridge cannot be made"):
        Config.load(path, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "river"},
        {"kind": "river", "model": "os"},
        {"kind": "river", "model": "linear_model.LinearRegression", "inputs": []},
        {"kind": "python", "target": "module"},
        {"kind": "tabular", "shrinkage": 0},
        {"kind": "oracle"},
    ],
)
def test_a_malformed_model_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AnyRewardModel).validate_python(wrong)


@pytest.mark.parametrize("other", [None, Ridge(), PythonModel(target="support.own_models:Raising")])
def test_a_state_with_code_in_it_loads_only_if_the_caller_names_that_code(other: AnyRewardModel | None) -> None:
    saved = fed(MEAN, REWARDING.log(50, seed=15)).state()
    with pytest.raises(StateError, match="'python', which is code"):
        Evaluator.from_state(saved, reward_model=other)


def test_the_state_of_a_table_or_a_ridge_has_no_code_in_it() -> None:
    for model in (Ridge(), Tabular()):
        saved = fed(model, REWARDING.log(50, seed=16)).state()
        assert dm(Evaluator.from_state(saved).report()) == dm(fed(model, REWARDING.log(50, seed=16)).report())


def test_a_model_that_cannot_be_copied_is_refused_if_a_copy_is_needed() -> None:
    taught = fed(PythonModel(target="support.own_models:Unsaveable"), REWARDING.log(50, seed=17))
    taught.fold_pending()
    assert taught.report().reward_model is not None
    with pytest.raises(StateError, match="cannot be saved"):
        taught.state()
    taught.update(REWARDING.log(50, seed=18))
    with pytest.raises(StateError, match="cannot be copied") as caught:
        taught.report()
    assert caught.value.hint == "call fold_pending() before report()"


@every_model
def test_a_report_teaches_the_model_nothing(model: AnyRewardModel) -> None:
    asked, silent = evaluator(model, drift="ADWIN"), evaluator(model, drift="ADWIN")
    for seed in range(3):
        for instance in (asked, silent):
            instance.fold_pending()
            instance.update(REWARDING.log(70, seed=seed))
        before = msgspec.msgpack.encode(asked.state())
        assert asked.report() == asked.report()
        assert msgspec.msgpack.encode(asked.state()) == before
    assert asked.report() == silent.report()


def test_the_error_of_the_model_and_its_failures_are_metrics() -> None:
    report = fed(PythonModel(target="support.own_models:Raising", name="mine"), REWARDING.log(100, seed=18)).report()
    lines = metrics_text(DaemonStatus(SourceStatus(reached=True), at=0.0, report=report)).decode().splitlines()
    reported = report.reward_model
    assert reported is not None
    assert f'streameval_reward_model_squared_error{{model="mine"}} {reported.squared_error}' in lines
    assert f'streameval_reward_model_baseline_squared_error{{model="mine"}} {reported.baseline_squared_error}' in lines
    assert 'streameval_reward_model_failures_total{model="mine",reason="predict_raised"} 400.0' in lines


def test_a_ridge_per_action_learns_a_different_effect_of_the_context_for_each_action() -> None:
    rng, events, actions = np.random.default_rng(0), 2_000, 4
    context, slopes = rng.normal(size=(events, 3)), 0.1 * rng.normal(size=(actions, 3))
    action = rng.integers(actions, size=events)
    reward = 0.5 + (context * slopes[action]).sum(axis=1)
    features = np.repeat(context[:, None], actions, axis=1)
    some = {"propensities": np.full((events, actions), 1 / actions), "features": features}
    sets = EventBatch.from_arrays(reward=reward, action=action, **some).action_sets
    assert sets is not None
    log = LoggedActions(sets, reward, np.ones(events), 100, (-9.0, 9.0))
    expected = (0.5 + context @ slopes.T)[1_000:]
    errors = []
    for model in (Ridge(horizon=1e6, penalty=1e-9, per_action=True), Ridge(horizon=1e6, penalty=1e-9)):
        prediction, _ = model.fold(model.start(), log)
        errors.append(float(np.abs(prediction.reshape(events, actions)[1_000:] - expected).max()))
    assert errors[0] < 1e-9
    assert errors[1] > 0.1


def test_a_ridge_per_action_leaves_out_events_with_another_number_of_actions() -> None:
    two = ActionSets.joined([ActionSets.none(100, 0)], [100])
    log = LoggedActions(two, np.ones(100), np.ones(100), 100, (0.0, 1.0))
    model = Ridge(per_action=True)
    assert model.fold(model.start(), log)[1] == {"positions": []}
    events, sizes = 200, np.array([2, 3] * 100)
    rng = np.random.default_rng(1)
    features = [rng.normal(size=(size, 2)).tolist() for size in sizes]
    names = [list("abc"[:size]) for size in sizes]
    lines = [
        {
            "event_id": "",
            "timestamp": 0.0,
            "actions": name,
            "features": table,
            "propensities": [1 / len(name)] * len(name),
        }
        | {"action": "a", "reward": 1}
        for name, table in zip(names, features, strict=True)
    ]
    sets = JsonDecoder([]).decode_rows(lines).action_sets
    assert sets is not None
    prediction, state = model.fold(
        model.start(), LoggedActions(sets, np.ones(events), np.ones(events), 100, (0.0, 1.0))
    )
    assert len(state["positions"]) == 2
    predictions = np.split(prediction, sets.offsets[1:-1])
    assert all((row == 0).all() for row in predictions[1::2])
    assert np.mean([row[0] for row in predictions[100::2]]) > 0.5
