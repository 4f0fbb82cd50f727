"""Write frozen copies of policies to files for a recommender, and report them in messages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from streameval.common.arrays import to_plain
from streameval.config.model import Config
from streameval.events import EventBatch
from streameval.events.origin import Origin
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies.base import Log
from streameval.service.decisions import DecisionOutbox, KeyedMessage, VersionMessage
from streameval.service.policy_files import keep_files
from support.factories import wait_until
from support.learning import ACTIONS, WIDTH, log
from support.paths import ROOT

FROZEN = {"kind": "versions_of", "policy": "apprentice", "every": 300, "keep": 2}


def evaluator() -> Evaluator:
    candidates = {"apprentice": {"kind": "learned", "per_action": True}, "frozen": FROZEN}
    settings: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": "off"}
    return Evaluator.from_config(
        Config.model_validate({"policies": {"candidates": candidates}, **settings}).evaluator_config()
    )


def state_of(changing: Evaluator) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(changing.state()))


def placed(events: int) -> EventBatch:
    batch = log(events)
    times = 1_700_000_000.0 + np.arange(events)
    return replace(batch, timestamp=times, origin=Origin.from_parts("interactions", [(0, range(events))]))


def test_only_copies_that_are_candidates_have_files(tmp_path: Path) -> None:
    changing = evaluator()
    other = tmp_path / "frozen-x.npz"
    other.write_bytes(b"not ours")
    seen = []
    for _ in range(4):
        changing.update(log(300))
        keep_files(tmp_path, state_of(changing))
        seen.append(sorted(path.name for path in tmp_path.iterdir() if path != other))
    one, two, three, four = (f"frozen-{number}.npz" for number in (1, 2, 3, 4))
    assert seen == [[one], [one, two], [two, three], [three, four]]
    assert other.read_bytes() == b"not ours"


def test_a_recommender_reads_the_weights_of_a_copy_with_numpy(tmp_path: Path) -> None:
    changing = evaluator()
    changing.update(log(700))
    keep_files(tmp_path, state_of(changing))
    content = (tmp_path / "frozen-2.npz").read_bytes()
    with np.load(io.BytesIO(content)) as file:
        about, weights = json.loads(str(file["description"])), file["weights"]
    assert to_plain(weights) == changing.state()["rooms"]["learning"]["frozen-2"]["weights"]
    assert (about["kind"], about["per_action"], about["events"]) == ("learned", True, 600)
    keep_files(tmp_path, state_of(changing))
    assert (tmp_path / "frozen-2.npz").read_bytes() == content


def with_copies(policy: dict[str, Any], **options: Any) -> Evaluator:
    settings: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": "off"}
    policies = {"candidates": {"apprentice": policy, "frozen": FROZEN}}
    return Evaluator.from_config(
        Config.model_validate({"policies": policies, **settings, **options}).evaluator_config()
    )


def coded(name: str) -> Evaluator:
    return with_copies({"kind": "python", "target": f"support.coded_policies:{name}", "learns": True})


def test_the_file_of_a_copy_in_code_has_the_bytes_that_the_code_returns(tmp_path: Path) -> None:
    changing, batch = coded("Served"), log(1_000)
    changing.update(batch[:300])
    keep_files(tmp_path, state_of(changing))
    content = (tmp_path / "frozen-1.bin").read_bytes()
    weight = 1 / batch.propensity[:300]
    index = batch.action_sets.index[:300]  # type: ignore[union-attr]
    means = {
        str(action): np.average(batch.reward[:300][index == action], weights=weight[index == action])
        for action in range(ACTIONS)
    }
    assert json.loads(content) == pytest.approx(means)
    changing.update(batch[300:])
    keep_files(tmp_path, state_of(changing))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen-2.bin", "frozen-3.bin"]
    assert [made.file for made in changing.take_versions()] == ["frozen-1.bin", "frozen-2.bin", "frozen-3.bin"]


def test_a_copy_of_code_that_returns_no_bytes_has_no_file_and_the_reason_is_counted(tmp_path: Path) -> None:
    changing = coded("Unwritable")
    changing.update(log(300))
    keep_files(tmp_path, state_of(changing))
    assert not list(tmp_path.iterdir())
    (failure,) = changing.report().policies[1].failures
    assert (failure.reason, failure.count) == ("not_written", 1)
    assert failure.example == "to_bytes() of a policy that learns gave str"


def test_a_file_that_cannot_be_written_is_written_with_the_next_snapshot(tmp_path: Path) -> None:
    changing = evaluator()
    changing.update(log(300))
    directory = tmp_path / "state"
    keep_files(directory, state_of(changing))
    directory.mkdir()
    keep_files(directory, state_of(changing))
    assert [path.name for path in directory.iterdir()] == ["frozen-1.npz"]


class Topic:
    """Take all messages."""

    def __init__(self) -> None:
        self.messages: list[KeyedMessage] = []

    def write(self, messages: Any) -> int:
        self.messages += messages
        return len(messages)

    def abort(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("cut", [950, 170])
def test_a_message_reports_each_new_copy_once_a_snapshot_holds_it(cut: int) -> None:
    changing, topic, batch = evaluator(), Topic(), placed(950)
    box = DecisionOutbox(topic, "logging", "0123456789abcdef", name="home")
    for first in range(0, 950, cut):
        changing.update(batch[first : min(first + cut, 950)])
        box.collect(changing, changing.take_versions())
    assert not topic.messages
    box.saved(box.state())
    wait_until(lambda: box.status().done == 3)
    box.close()
    messages = [msgspec.json.decode(message.value) for message in topic.messages]
    assert [message.key for message in topic.messages] == [b"frozen-1", b"frozen-2", b"frozen-3"]
    assert [message["retired"] for message in messages] == [[], [], ["frozen-1"]]
    last = messages[-1]
    assert (last["of"], last["event"], last["file"], last["kind"]) == ("apprentice", 900, "frozen-3.npz", "version")
    assert last["name"] == "home"
    assert (last["timestamp"], last["place"]["offset"]) == (1_700_000_899.0, 899)
    validator = Draft202012Validator(VersionMessage.json_schema())
    for message in messages:
        validator.validate(message)
    assert len({message["id"] for message in messages}) == 3


def test_new_copies_are_reported_after_an_interruption() -> None:
    changing = evaluator()
    changing.update(placed(700))
    resumed = Evaluator.from_state(state_of(changing))
    assert resumed.take_versions() == changing.take_versions() != []
    assert resumed.take_versions() == []


READER = (ROOT / "deploy" / "operate.md").read_text().partition("## Candidates that learn")[2].partition("\n## ")[0]
NAMES: dict[str, Any] = {}
exec(READER.partition("```python\n")[2].partition("```")[0], NAMES)


def test_the_reader_of_the_deployment_guide_gives_the_probabilities_of_the_copy(tmp_path: Path) -> None:
    changing, batch = evaluator(), log(400)
    changing.update(batch)
    keep_files(tmp_path, state_of(changing))
    version, learned, _ = next(iter(Evaluator.versions_in(state_of(changing))))
    sets = batch.action_sets
    assert sets is not None
    (expected, _), _ = version.fold(learned, Log(sets, batch.propensity, batch.reward, np.ones(400), 100))
    features = np.asarray(sets.features.values).reshape(400, ACTIONS, WIDTH)  # type: ignore[union-attr]
    probabilities = [NAMES["probabilities"](tmp_path / "frozen-1.npz", row) for row in features]
    np.testing.assert_allclose(np.concatenate(probabilities), expected, rtol=1e-12)


FOLLOWERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "explores, forgets": ({"epsilon": 0.2}, {"horizon": 500}),
    "softmax, per action": ({"temperature": 0.1}, {"per_action": True}),
}


def following(policy: dict[str, Any], model: dict[str, Any]) -> Evaluator:
    return with_copies({"kind": "of_reward_model", **policy}, reward_model=model)


@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_copy_of_the_reward_models_policy_is_a_file_for_the_same_reader(name: str, tmp_path: Path) -> None:
    options, model = FOLLOWERS[name]
    changing, batch = following(options, {"kind": "ridge", **model}), log(700)
    changing.update(batch[:600])
    keep_files(tmp_path, state_of(changing))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen-1.npz", "frozen-2.npz"]
    changing.update(batch[600:])
    features = np.asarray(batch.action_sets.features.values).reshape(700, ACTIONS, WIDTH)[600:]  # type: ignore[union-attr]
    probabilities = np.stack([NAMES["probabilities"](tmp_path / "frozen-2.npz", row) for row in features])
    logged = batch.action_sets.index[600:]  # type: ignore[union-attr]
    value = np.mean(probabilities[np.arange(100), logged] / batch.propensity[600:] * batch.reward[600:])
    changing.fold_pending()
    assert changing.report().get("frozen-2", "ips", "cumulative").value == pytest.approx(value, rel=1e-9)


def test_a_copy_that_follows_means_of_actions_has_no_file(tmp_path: Path) -> None:
    changing = following({}, {"kind": "tabular"})
    changing.update(log(300))
    keep_files(tmp_path, state_of(changing))
    assert not list(tmp_path.iterdir())
