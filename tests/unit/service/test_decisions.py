"""Send each transition, and none with two contents, wherever the daemon ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator
from msgspec import structs

from streameval.config.model import Config
from streameval.errors import ConfigError
from streameval.events import EventBatch
from streameval.events.origin import Origin
from streameval.ingest.background import RetryError
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Basis, Report, Transition
from streameval.service.decisions import DecisionMessage, DecisionOutbox, KeyedMessage
from streameval.service.startup import configuration
from support.alternating import PROMOTION, STRETCH, columns
from support.factories import wait_until
from support.learning import log as learnable

TRANSITIONS, KILLS = 50, 20
SOURCE = {"kind": "kafka", "topic": "interactions"}
CONFIG: dict[str, Any] = {
    "source": SOURCE,
    "policies": {"candidates": ["challenger"]},
    "estimators": ["ips"],
    "averages": ["cumulative"],
    "promotion": PROMOTION,
    "drift": "off",
    "decisions": {"kind": "kafka", "topic": "decisions"},
}


class Topic:
    """Take messages until the process ends, and perhaps do not confirm the last one."""

    def __init__(self) -> None:
        self.messages: list[KeyedMessage] = []
        self.confirms, self.takes = True, True

    def write(self, messages: Sequence[KeyedMessage]) -> int:
        if self.takes:
            self.messages += messages
        if not (self.takes and self.confirms):
            raise RetryError("no answer in time", messages)
        return len(messages)

    def abort(self) -> None: ...

    def close(self) -> None: ...


def log(transitions: int = TRANSITIONS) -> EventBatch:
    batch = EventBatch.from_arrays(**columns(transitions))
    return replace(batch, origin=Origin.from_parts("interactions", [(0, range(len(batch)))]))


def decided(messages: Sequence[KeyedMessage]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(message.value) for message in messages]


def undisturbed(events: EventBatch) -> list[Transition]:
    evaluator = Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config())
    evaluator.update(events)
    evaluator.fold_pending()
    return evaluator.take_transitions()


def outbox(topic: Topic, waiting: Sequence[Any] = ()) -> DecisionOutbox:
    return DecisionOutbox(topic, "logging", "0123456789abcdef", waiting, name="home")


def test_a_message_has_the_transition_its_reason_and_its_event() -> None:
    events, topic = log(3), Topic()
    evaluator, box = Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config()), outbox(topic)
    evaluator.update(events)
    evaluator.fold_pending()
    report = evaluator.report()
    basis = Basis(missing_share=0.25, clipped_share=0.125, failed=("stale",))
    box.collect(evaluator, (), structs.replace(report, promotion=(structs.replace(report.promotion[0], basis=basis),)))
    box.saved(box.state())
    wait_until(lambda: box.status().done == 3)
    box.close()
    assert [message.key for message in topic.messages] == [b"challenger"] * 3
    rises, falls, again = decided(topic.messages)
    assert [(message["from"], message["to"]) for message in (rises, falls, again)] == [
        ("not_promotable", "promotable"),
        ("promotable", "not_promotable"),
        ("not_promotable", "promotable"),
    ]
    assert (rises["policy"], rises["production"], rises["rule"]) == ("challenger", "logging", "bsea")
    assert rises["name"] == "home"
    assert rises["place"] == {"topic": "interactions", "partition": 0, "offset": rises["event"] - 1}
    assert rises["timestamp"] == 1_700_000_000.0 + rises["event"] - 1
    assert rises["lift"] == pytest.approx(0.2)
    assert (rises["missing_share"], rises["clipped_share"], rises["failed"]) == (0.25, 0.125, ["stale"])
    assert rises["reason"] == "decision bound of lift 0.2 over margin 0, held for 1 block end"
    assert "under margin 0" in falls["reason"]
    validator = Draft202012Validator(DecisionMessage.json_schema())
    for message in (rises, falls, again):
        validator.validate(message)
        assert not validator.is_valid(message | {"to": "shipped"})
    assert len({message["id"] for message in (rises, falls, again)}) == 3


def is_sent(box: DecisionOutbox) -> bool:
    return box.status().done == 1


def test_a_message_names_propensities_that_are_estimated() -> None:
    topic, (transition,) = Topic(), undisturbed(log(1))
    for propensity in (None, "estimated"):
        plan = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=propensity).config
        box = outbox(topic)
        box.collect(cast(Evaluator, SimpleNamespace(config=plan, take_transitions=lambda: [transition])))
        box.saved(box.state())
        wait_until(partial(is_sent, box))
        box.close()
    assert [message["propensity"] for message in decided(topic.messages)] == ["logged", "estimated"]


def test_the_interval_of_a_lift_is_symmetric_around_it() -> None:
    plan = Config.model_validate(CONFIG | {"promotion": {**PROMOTION, "rule": "sea"}}).evaluator_config()
    evaluator = Evaluator.from_config(plan)
    rewards = np.random.default_rng(1).integers(0, 2, 20_000)
    policies = {"challenger": np.where(rewards, 0.6, 0.4)}
    evaluator.update(EventBatch.from_arrays(reward=rewards, propensity=np.full(20_000, 0.5), policies=policies))
    evaluator.fold_pending()
    (transition,) = evaluator.take_transitions()
    assert transition.lift is not None
    assert transition.lift_lower is not None
    assert transition.lift_upper is not None
    assert 0 <= transition.lift_lower < transition.lift
    assert transition.lift_upper - transition.lift == pytest.approx(transition.lift - transition.lift_lower)
    assert transition.place is None, "these events have no place"


def test_messages_are_sent_once_and_only_after_a_snapshot_holds_them() -> None:
    topic, evaluator = Topic(), Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config())
    box = outbox(topic)
    evaluator.update(log(3))
    evaluator.fold_pending()
    box.collect(evaluator)
    waiting = box.state()
    assert (len(waiting), box.status().waiting, topic.messages) == (3, 0, [])
    box.saved(waiting)
    box.saved(waiting)
    wait_until(lambda: box.status().done == 3)
    box.saved(waiting)
    box.close()
    assert (len(topic.messages), [message["confirmed"] for message in box.state()]) == (3, [True])


def test_checks_of_the_stream_suspend_and_restore_a_decision() -> None:
    """Each change has one message, also after a restart."""
    topic, evaluator = Topic(), Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config())
    box = outbox(topic)

    def reported(*failed: str) -> Report:
        report = evaluator.report()
        (decision,) = report.promotion
        assert decision.promotable
        basis = structs.replace(decision.basis, failed=failed)
        change = {"promotable": False, "state": "untrusted", "reason": "stale: no events for 3 h"} if failed else {}
        return structs.replace(report, promotion=(structs.replace(decision, basis=basis, **change),))

    early = evaluator.report()
    evaluator.update(log(1))
    evaluator.fold_pending()
    box.collect(evaluator, (), early)
    for failed in ((), ("stale",), ("stale",)):
        box.collect(evaluator, (), reported(*failed))
    waiting = msgspec.msgpack.decode(msgspec.msgpack.encode(box.state()))
    box.saved(box.state())
    wait_until(lambda: all(message.get("confirmed") for message in box.state()))
    confirmed = box.state()
    box.close()
    assert len(waiting) == 2
    for saved in (confirmed, waiting):  # after a snapshot without, and with messages that are not confirmed
        again, later = outbox(other := Topic(), saved), len(saved)
        for failed in (("stale",), (), ()):
            again.collect(evaluator, (), reported(*failed))
        again.saved(again.state())
        wait_until(lambda again=again, later=later: again.status().done >= later)  # type: ignore[misc]
        again.close()
        (*_, restored) = decided(other.messages)
        assert (restored["from"], restored["to"], restored["by"]) == ("not_promotable", "promotable", "trust")
    rises, suspended = decided(topic.messages)
    assert (rises["to"], rises["by"]) == ("promotable", "rule")
    assert (suspended["from"], suspended["to"], suspended["by"]) == ("promotable", "not_promotable", "trust")
    assert (suspended["state"], suspended["failed"]) == ("untrusted", ["stale"])
    assert suspended["reason"] == "stale: no events for 3 h"
    assert suspended["event"] == evaluator.report().events.accepted > rises["event"]
    for message in (rises, suspended, restored):
        Draft202012Validator(DecisionMessage.json_schema()).validate(message)
    assert len({message["id"] for message in (rises, suspended, restored)}) == 3


class Runs:
    """Run one daemon after another on a log, each one from the last snapshot before it."""

    def __init__(self, events: EventBatch, seed: int) -> None:
        self.events, self.chance, self.topic = events, random.Random(seed), Topic()
        first = Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config())
        self.snapshot: tuple[int, Any, list[Any]] = 0, first.state(), []
        self._resume()

    def _resume(self) -> None:
        self.place, state, waiting = self.snapshot
        self.topic.takes = self.topic.confirms = True
        self.evaluator, self.box = Evaluator.from_state(state), outbox(self.topic, waiting)

    def read(self, polls: int) -> None:
        """Read on with occasional snapshots. The topic may lose messages from one on, or their confirmation."""
        for _ in range(polls):
            part = self.events[self.place : self.place + self.chance.randrange(1, 300)]
            self.evaluator.update(part)
            self.place += len(part)
            if self.chance.random() < 0.3:
                self.evaluator.fold_pending()
            if self.chance.random() < 0.3:
                self.write()
                lost, silent = self.chance.random(), self.chance.random()
                self.topic.takes, self.topic.confirms = lost > 0.1, silent > 0.2

    def write(self) -> None:
        """Write a snapshot, and send what it holds."""
        self.box.collect(self.evaluator)
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.evaluator.state()))
        self.snapshot = self.place, state, self.box.state()
        self.box.saved(self.snapshot[2])

    def kill(self) -> None:
        """Lose everything since the last snapshot."""
        self.topic.takes = False
        self.box.close()
        self._resume()

    def finish(self) -> None:
        """Read the rest, and send everything."""
        self.read(len(self.events) // 100)
        self.topic.takes = self.topic.confirms = True
        self.evaluator.fold_pending()
        self.write()
        self.box.close()
        assert all(message.get("confirmed") for message in self.box.state())


def test_fifty_transitions_survive_twenty_kills_with_one_content_each() -> None:
    runs = Runs(log(), seed=5)
    expected = undisturbed(runs.events)
    assert len(expected) == TRANSITIONS
    for _ in range(KILLS):
        runs.read(runs.chance.randrange(2, 10))
        runs.kill()
    assert 0 < runs.place < len(runs.events)
    runs.finish()
    contents: dict[tuple[str, str, int], set[bytes]] = {}
    for message in runs.topic.messages:
        decisions = msgspec.json.decode(message.value)
        contents.setdefault((decisions["policy"], decisions["rule"], decisions["event"]), set()).add(message.value)
    assert sorted(contents) == sorted((transition.policy, transition.rule, transition.event) for transition in expected)
    assert {len(values) for values in contents.values()} == {1}
    assert len(runs.topic.messages) > TRANSITIONS, "some were sent again"


def test_frozen_copies_have_messages_without_promotion() -> None:
    learner = {"kind": "learned", "objective": "ips"}
    copies = {"kind": "versions_of", "policy": "apprentice", "every": 1_000}
    policies = {"candidates": {"apprentice": learner, "frozen": copies}}
    topic, settings = Topic(), CONFIG | {"policies": policies, "promotion": "off"}
    evaluator, box = Evaluator.from_config(Config.model_validate(settings).evaluator_config()), outbox(topic)
    evaluator.update(learnable(2_000))
    evaluator.fold_pending()
    box.collect(evaluator, evaluator.take_versions())
    box.saved(box.state())
    wait_until(lambda: box.status().done == 2)
    box.close()
    decisions = [msgspec.json.decode(message.value) for message in topic.messages]
    assert [(message["kind"], message["policy"], message["event"]) for message in decisions] == [
        ("version", "frozen-1", 1_000),
        ("version", "frozen-2", 2_000),
    ]


def test_the_fingerprint_depends_on_the_margin_and_not_on_candidates() -> None:
    def fingerprint(**changed: Any) -> str:
        return configuration(Config.model_validate(CONFIG | changed))

    first = fingerprint()
    assert fingerprint(policies={"candidates": ["challenger", "other"]}) == first
    assert fingerprint(http={"port": 0}) == first
    assert fingerprint(promotion={**PROMOTION, "margin": 0.1}) != first
    assert fingerprint(source={**SOURCE, "topic": "other"}) != first


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"state": "off"}, "expected a state"),
        ({"promotion": "off"}, "expected promotion rules, or frozen copies"),
        ({"source": {"kind": "file", "path": "log.ndjson"}}, "expected a source that is a topic"),
        ({"decisions": {"topic": "interactions"}}, "expected its own topic"),
        ({"dead_letters": {"kind": "kafka", "topic": "decisions"}}, "expected its own topic"),
    ],
)
def test_settings_that_cannot_send_decisions_are_refused(changed: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "streameval.yaml"
    path.write_text(yaml.safe_dump(CONFIG | changed))
    with pytest.raises(ConfigError, match=problem):
        Config.load(path, {})


def test_the_transitions_before_a_resumed_state_are_not_taken_again() -> None:
    events = log(4)
    evaluator = Evaluator.from_config(Config.model_validate(CONFIG).evaluator_config())
    evaluator.update(events[: 2 * STRETCH])
    evaluator.fold_pending()
    before = evaluator.take_transitions()
    resumed = Evaluator.from_state(evaluator.state())
    resumed.update(events[2 * STRETCH :])
    resumed.fold_pending()
    assert [*before, *resumed.take_transitions()] == undisturbed(events)
    assert resumed.take_transitions() == []
    assert len(before) == 2
