"""Test that policy files are read again, also by a recommender with numpy, and that wrong ones are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streameval.common.problems import ProblemsError
from streameval.config.model import Config
from streameval.errors import ConfigError, InputError
from streameval.events import EventBatch
from streameval.ope.candidates import named_policies
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.learning.learned import Learned
from streameval.ope.policies import policy_file

WEIGHTS = np.array([[0.5, -1.25], [2.0, 1e-17]])


def log(events: int) -> EventBatch:
    """Draw two actions with two features. The reward follows the first feature."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(events, 2, 2))
    action = rng.integers(2, size=events)
    reward = rng.random(events) < 1 / (1 + np.exp(-features[np.arange(events), action, 0]))
    return EventBatch.from_arrays(
        reward=reward, action=action, propensities=np.full((events, 2), 0.5), features=features
    )


def content(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def described(**changes: Any) -> Any:
    return np.array(json.dumps({"schema": 1, "kind": "learned", "events": 5, **changes}))


def test_a_policy_is_read_as_it_was_written_to_the_last_bit() -> None:
    options: dict[str, Any] = {"objective": "snips", "variance": 0.5, "clip": 20.0, "start_from": "logging"}
    policy = Learned(**options, step=0.1, per_action=True, average=True, temperature=0.5)
    written = policy_file.to_bytes(policy, WEIGHTS, 700)
    assert written == policy_file.to_bytes(policy, WEIGHTS, 700)
    read = Learned(**policy_file.options_of(written))
    assert np.array(read.weights).tobytes() == WEIGHTS.tobytes()
    assert {**vars(read), "weights": ()} == vars(policy)


def test_a_recommender_reads_a_policy_with_numpy_alone() -> None:
    with np.load(io.BytesIO(policy_file.to_bytes(Learned(step=0.1), WEIGHTS[:1], 700))) as file:
        about = json.loads(str(file["description"]))
        assert file["weights"].tolist() == WEIGHTS[:1].tolist()
    assert (about["schema"], about["kind"], about["step"], about["events"]) == (1, "learned", 0.1, 700)
    assert "weights" not in about


def test_a_policy_with_step_0_stays_as_its_file_has_it() -> None:
    batch = log(500)
    frozen = Learned(weights=((1.0, 0.0),), step=0)
    report = _evaluated(frozen, batch)
    scores = np.asarray(batch.action_sets.features.values).reshape(500, 2, 2)[:, :, 0]  # type: ignore[union-attr]
    chances = 1 / (1 + np.exp(scores[:, ::-1] - scores))
    logged = dict.fromkeys(["apprentice"], chances[np.arange(500), batch.action_sets.index])  # type: ignore[union-attr]
    expected = Evaluator(["apprentice"], estimators=["ips"], averages=["cumulative"])
    expected.update(EventBatch.from_arrays(reward=batch.reward, propensity=np.full(500, 0.5), policies=logged))
    assert report == pytest.approx(expected.report().get("apprentice", "ips", "cumulative").value, rel=1e-12)


def test_a_policy_keeps_learning_from_its_weights() -> None:
    batch = log(3_000)
    wrong = ((-1.0, 0.0),)
    assert _evaluated(Learned(weights=wrong, step=0.5), batch) > _evaluated(Learned(weights=wrong, step=0), batch) + 0.1


def _evaluated(policy: Learned, batch: EventBatch) -> float:
    evaluator = Evaluator({"apprentice": policy}, estimators=["ips"], averages=["cumulative"])
    evaluator.update(batch)
    resumed = Evaluator.from_state(evaluator.state())
    assert resumed.config == evaluator.config
    return resumed.report().get("apprentice", "ips", "cumulative").value or 0.0


def test_events_with_another_number_of_features_are_missing() -> None:
    evaluator = Evaluator({"apprentice": Learned(weights=((1.0, 2.0, 3.0),))}, estimators=["ips"])
    evaluator.update(log(200))
    assert [policy.missing for policy in evaluator.report().policies] == [0, 200]


@pytest.mark.parametrize(
    ("weights", "per_action"), [(((1.0,), (2.0,)), False), (((1.0, 2.0), (3.0,)), True), (((),), False)]
)
def test_weights_must_be_a_table_and_one_row_if_actions_share_them(weights: Any, per_action: bool) -> None:
    with pytest.raises(ProblemsError, match="weights"):
        Learned(weights=weights, per_action=per_action)
    named = named_policies({"apprentice": {"kind": "learned", "weights": [[1.0], [2.0]], "per_action": True}})
    assert named["apprentice"].weights == ((1.0,), (2.0,))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"", "not a policy file: it is not in the format .npz"),
        (b"\x80\x05not a file", "not a policy file: it is not in the format .npz"),
        (content(weights=WEIGHTS), "not a policy file: KeyError"),
        (policy_file.to_bytes(Learned(), WEIGHTS[:0], 1), r"shape \(0, 2\), expected rows"),
        (content(weights=WEIGHTS, description=np.array("{")), "not a policy file: JSONDecodeError"),
        (content(weights=WEIGHTS, description=np.array([{}], dtype=object)), "not a policy file: ValueError"),
        (content(weights=WEIGHTS, description=described(schema=2)), "has schema 2, this version reads 1"),
        (content(weights=WEIGHTS, description=described(kind="of_reward_model")), "is of kind of_reward_model"),
    ],
)
def test_other_files_are_refused(written: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        policy_file.options_of(written)


@pytest.mark.parametrize(
    ("written", "option"),
    [
        (content(weights=WEIGHTS, description=described(step=-1)), "step"),
        (content(weights=WEIGHTS, description=described(wings=2)), "wings"),
        (content(weights=np.full((1, 1), np.nan), description=described()), "weights"),
    ],
)
def test_wrong_options_in_a_file_are_named(written: bytes, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        named_policies({"apprentice": policy_file.options_of(written)})


def configured(**options: Any) -> Config:
    return Config.model_validate({"policies": {"candidates": {"apprentice": {"kind": "learned", **options}}}})


def test_a_configuration_reads_a_policy_file_and_its_own_options_come_first(tmp_path: Path) -> None:
    file = tmp_path / "apprentice.npz"
    file.write_bytes(policy_file.to_bytes(Learned(objective="snips", step=0.1), WEIGHTS[:1], 700))
    policy = configured(file=str(file), step=0).evaluator_config().learned_policies["apprentice"]
    assert policy == Learned(objective="snips", step=0, weights=((0.5, -1.25),))


def test_a_configuration_names_the_problem_of_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "streameval.yaml"
    path.write_text(f"policies: {{candidates: {{apprentice: {{kind: learned, file: {tmp_path}/absent.npz}}}}}}\n")
    with pytest.raises(ConfigError, match=r"policies.candidates.apprentice.file .*absent.npz cannot be read: No such"):
        Config.load(path)
    (tmp_path / "absent.npz").write_text("weights")
    with pytest.raises(ConfigError, match="this is not a policy file"):
        Config.load(path)
