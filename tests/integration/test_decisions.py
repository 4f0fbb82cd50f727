"""Decisions in a topic of a real broker, by daemons that are killed again and again."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from kafka import KafkaConsumer, TopicPartition

from streameval.config.model import Config
from streameval.events import EventBatch
from streameval.ingest.kafka.producer import produce
from streameval.ope.evaluator.evaluator import Evaluator
from support.alternating import PROMOTION, columns
from support.integration.broker import Broker
from support.integration.daemon_runs import PATIENCE, DaemonRuns
from support.learning import ACTIONS, WIDTH, log

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1800)]

KILLED_AT = """
import os, signal, sys
from streameval.ingest.kafka.producer import MessageSender
from support.disk import observed_calls

left = int(sys.argv.pop())
write = MessageSender.write

def reached(step):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def write_and_count(sender, messages):
    reached("before a message")
    sent = write(sender, messages)
    reached("after a message, which is not confirmed")
    return sent

vars(os).update(observed_calls(reached))
MessageSender.write = write_and_count
from streameval.cli.app import main
main()
"""
"""A daemon that is killed after a call of the file system, or of sending a message, that many steps after its start."""


def config(broker: Broker, topic: str, client: str) -> dict[str, Any]:
    """Configure a daemon that reads slowly and writes snapshots often, so that kills are everywhere in the log."""
    address = {"kind": "kafka", "bootstrap_servers": broker.bootstrap, "topic": topic, "client": client}
    return {
        "source": address | {"max_poll_records": 200},
        "policies": {"candidates": ["challenger"]},
        "estimators": ["ips"],
        "averages": ["cumulative"],
        "promotion": PROMOTION,
        "drift": "off",
        "http": {"port": 0},
        "state": {"interval": "10ms"},
        "decisions": {"kind": "kafka", "topic": f"{topic}-decisions"},
    }


def messages_in(broker: Broker, topic: str) -> list[Any]:
    """Return all messages of partition 0."""
    options = {"bootstrap_servers": broker.bootstrap, "api_version": broker.connection.api_version}
    messages: list[Any] = []
    with closing(KafkaConsumer(**options, auto_offset_reset="earliest")) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end, deadline = consumer.end_offsets([partition])[partition], time.monotonic() + PATIENCE
        while consumer.position(partition) < end and time.monotonic() < deadline:
            messages += [message for batch in consumer.poll(timeout_ms=200).values() for message in batch]
    return messages


def expected(settings: dict[str, Any], events: EventBatch) -> list[tuple[int, bool]]:
    evaluator = Evaluator.from_config(Config.model_validate(settings).evaluator_config())
    evaluator.update(events)
    evaluator.fold_pending()
    return [(transition.event, transition.promotable) for transition in evaluator.take_transitions()]


def written(broker: Broker, topic: str, transitions: int) -> EventBatch:
    """Write the events of a log with this many transitions to the topic, and return them."""
    arrays = columns(transitions)
    rows = zip(arrays["timestamp"].tolist(), arrays["policies"]["challenger"].tolist(), strict=True)
    values = [
        b'{"event_id":%d,"timestamp":%f,"action":"a","propensity":0.5,"reward":1,"policies":{"challenger":%f}}'
        % (number, timestamp, probability)
        for number, (timestamp, probability) in enumerate(rows)
    ]
    produce(values, topic, broker.connection, partitions=1)
    return EventBatch.from_arrays(**arrays)


def contents(messages: Sequence[Any]) -> dict[str, set[bytes]]:
    """Return the different messages by their id."""
    values: dict[str, set[bytes]] = {}
    for message in messages:
        values.setdefault(msgspec.json.decode(message.value)["id"], set()).add(message.value)
    return values


def killed(folder: Path, settings: dict[str, Any], events: int, kills: int) -> DaemonRuns:
    """Kill a daemon this often, and let it then read all events."""
    runs, doomed, chance = DaemonRuns(folder, settings), DaemonRuns(folder, settings, KILLED_AT), random.Random(kills)
    for _ in range(kills):
        doomed.start(str(chance.randrange(10, 60)))
        assert doomed.process is not None
        assert doomed.process.wait(PATIENCE) == -signal.SIGKILL, doomed.log.read_text()[-3000:]
    runs.finish(events)
    return runs


@pytest.mark.parametrize(
    ("client", "transitions", "kills"),
    [
        ("kafka-python", 2, 1),
        pytest.param("kafka-python", 50, 10, marks=pytest.mark.slow),
        pytest.param("confluent", 50, 10, marks=pytest.mark.slow),
    ],
)
def test_each_transition_is_in_the_topic_and_none_with_two_contents_after_kills(
    broker: Broker, tmp_path: Path, client: str, transitions: int, kills: int
) -> None:
    topic = f"decided-{uuid4().hex[:8]}"
    settings = config(broker, topic, client)
    events = written(broker, topic, transitions)
    killed(tmp_path, settings, len(events), kills)
    messages = messages_in(broker, f"{topic}-decisions")
    contents_by_id = contents(messages)
    assert {len(values) for values in contents_by_id.values()} == {1}
    sent = [msgspec.json.decode(value) for (value,) in contents_by_id.values()]
    assert all(message["failed"] == ["propensities"] for message in sent if message["by"] == "trust"), "as in this log"
    decided = [message for message in sent if message["by"] == "rule"]
    assert sorted((transition["event"], transition["to"] == "promotable") for transition in decided) == expected(
        settings, events
    )
    assert {(message.key, message.partition) for message in messages} == {(b"challenger", 0)}
    assert all(transition["place"]["offset"] == transition["event"] - 1 for transition in decided)
    print(f"{len(messages)} messages about {len(contents_by_id)} transitions")


def test_a_stale_log_suspends_a_decision_once_over_restarts(broker: Broker, tmp_path: Path) -> None:
    topic = f"stale-{uuid4().hex[:8]}"
    promotion = PROMOTION | {"trust": PROMOTION["trust"] | {"stale_after": "1h"}}
    runs = DaemonRuns(tmp_path, config(broker, topic, "kafka-python") | {"promotion": promotion})
    events = written(broker, topic, 1)
    for _ in range(3):
        runs.finish(len(events))
    by_id = contents(messages_in(broker, f"{topic}-decisions"))  # a restart may send what it does not know as confirmed
    rises, suspended = (msgspec.json.decode(value) for (value,) in by_id.values())
    assert (rises["to"], rises["by"], rises["state"]) == ("promotable", "rule", "promotable")
    assert (suspended["from"], suspended["to"], suspended["by"]) == ("promotable", "not_promotable", "trust")
    assert (suspended["state"], suspended["failed"], suspended["event"]) == ("untrusted", ["stale"], len(events))


EVERY, KEEP = 300, 2


def learned_from(broker: Broker, topic: str, versions: int) -> EventBatch:
    """Write the events that a policy learns from, and return them.

    Args:
        versions: How many copies of the policy the events make.
    """
    batch = log(EVERY * versions + 50)
    sets = batch.action_sets
    assert sets is not None
    assert sets.features is not None
    rows = {
        "propensities": sets.propensities.reshape(-1, ACTIONS).tolist(),
        "features": sets.features.values.reshape(-1, ACTIONS, WIDTH).tolist(),
        "action": sets.index.tolist(),
        "reward": batch.reward.tolist(),
    }
    values = [
        msgspec.json.encode(
            {"event_id": str(number), "timestamp": 1.7e9 + number, "actions": list(range(ACTIONS))}
            | dict(zip(rows, row, strict=True))
        )
        for number, row in enumerate(zip(*rows.values(), strict=True))
    ]
    produce(values, topic, broker.connection, partitions=1)
    return batch


@pytest.mark.parametrize(
    ("versions", "kills"),
    [(3, 1), pytest.param(30, 10, marks=pytest.mark.slow)],
)
def test_each_frozen_copy_is_in_the_topic_and_none_with_two_contents_after_kills(
    broker: Broker, tmp_path: Path, versions: int, kills: int
) -> None:
    topic = f"copied-{uuid4().hex[:8]}"
    frozen = {"kind": "versions_of", "policy": "apprentice", "every": EVERY, "keep": KEEP}
    settings = config(broker, topic, "kafka-python") | {
        "policies": {"candidates": {"apprentice": {"kind": "learned"}, "frozen": frozen}},
    }
    events = learned_from(broker, topic, versions)
    runs = killed(tmp_path, settings, len(events), kills)
    messages = [
        version for version in messages_in(broker, f"{topic}-decisions") if b'"kind":"version"' in version.value
    ]
    contents_by_id = contents(messages)
    assert {len(values) for values in contents_by_id.values()} == {1}
    copied = sorted(
        (msgspec.json.decode(value) for (value,) in contents_by_id.values()), key=lambda version: version["event"]
    )
    undisturbed = Evaluator.from_config(Config.model_validate(settings).evaluator_config())
    undisturbed.update(events)
    assert [
        (version["policy"], version["event"], tuple(version["retired"]), version["file"]) for version in copied
    ] == [(made.policy, made.event, made.retired, made.file) for made in undisturbed.take_versions()]
    assert len(copied) == versions
    assert all(version["place"]["offset"] == version["event"] - 1 for version in copied)
    assert {(message.key.decode(), message.partition) for message in messages} == {
        (version["policy"], 0) for version in copied
    }
    assert sorted(path.name for path in runs.state.glob("*.npz")) == sorted(
        version["file"] for version in copied[-KEEP:]
    )
    print(f"{len(messages)} messages about {len(contents_by_id)} copies")
