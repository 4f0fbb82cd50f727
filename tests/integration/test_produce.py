"""Test `streameval produce`: the messages of a topic, and events that it leaves out."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streameval.config.model import Config
from support.commands import Run, command
from support.integration.broker import Broker
from support.integration.reading import reading

pytestmark = pytest.mark.kafka

EVENT = {
    "event_id": "e-0",
    "timestamp": 1574553634.5,
    "action": "a",
    "propensity": 0.25,
    "reward": 1,
    "policies": {"challenger": 0.5},
}
BAD = EVENT | {"propensity": 25}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    return partial(command, capfd)


def written(path: str, *events: dict[str, Any]) -> str:
    Path(path).write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def configured(broker: Broker, topic: str, **others: Any) -> str:
    """Write a configuration with this topic as JSON, which is YAML."""
    source = broker.connection.model_dump(exclude_defaults=True) | {"topic": topic}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "reward": {"max": 1}} | others
    Path("streameval.yaml").write_text(json.dumps(parts, default=str))
    return "streameval.yaml"


def sent(broker: Broker, topic: str, number: int) -> list[bytes]:
    """Return the messages of a topic, after at least `number` have arrived."""
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= number)
        reader.poll_to_the_end()
        return sorted(value or b"" for value in reader.seen.elements())


def test_events_that_would_be_rejected_are_not_sent(run: Run, broker: Broker) -> None:
    file = written("log.ndjson", EVENT, BAD, EVENT | {"reward": "x"}, EVENT | {"event_id": "e-3"})
    outcome = run("produce", file, "produced-validated", "--bootstrap-servers", broker.bootstrap)
    assert outcome.code == 1
    assert "warning: 2 of 4 events were rejected" in outcome.err
    assert "propensity_range  e.g. propensity: 25 is not in (0, 1] (log.ndjson:2)" in outcome.err
    assert f"2 events sent to produced-validated at {broker.bootstrap}" in outcome.err
    assert sent(broker, "produced-validated", 2) == [
        json.dumps(EVENT | {"event_id": f"e-{n}"}).encode() for n in (0, 3)
    ]


def test_rankings_need_no_configuration(run: Run, broker: Broker) -> None:
    page = {"event_id": 1, "timestamp": 0, "ranking": {"shown": ["a", "b"], "clicked": ["b"]}}
    bad = page | {"ranking": {"shown": ["a"], "clicked": ["b"]}}
    outcome = run(
        "produce", written("log.ndjson", page, bad), "produced-pages", "--bootstrap-servers", broker.bootstrap
    )
    assert outcome.code == 1
    assert "'b' is not one of `shown` (log.ndjson:2)" in outcome.err
    assert sent(broker, "produced-pages", 1) == [json.dumps(page).encode()]


def test_without_validation_every_line_is_sent_as_it_is(run: Run, broker: Broker) -> None:
    file = written("log.ndjson", EVENT, BAD)
    servers = ("--bootstrap-servers", broker.bootstrap)
    assert run("produce", file, "produced-unchecked", "--no-validate", *servers).code == 0
    assert len(sent(broker, "produced-unchecked", 2)) == 2


def test_a_configuration_gives_topic_connection_and_reward_range(run: Run, broker: Broker) -> None:
    config = configured(broker, "produced-configured")
    outcome = run("produce", written("log.ndjson", EVENT, EVENT | {"reward": 3}), "--config", config)
    assert outcome.code == 1
    assert "reward_range" in outcome.err
    assert len(sent(broker, "produced-configured", 1)) == 1


def test_rows_of_a_table_become_events_by_the_columns_of_the_configuration(run: Run, broker: Broker) -> None:
    columns = {"event_id": "id", "timestamp": "time", "action": "banner", "policies": {"challenger": "p_new"}}
    config = configured(broker, "produced-rows", columns=columns)
    Path("log.csv").write_text(
        "id,time,banner,propensity,reward,p_new\n"
        "1,2026-01-01T00:00:00,x,0.5,1,0.25\n"
        "2,2026-01-01T00:00:01,y,0.5,0,\n"
        "3,2026-01-01T00:00:02,y,5,0,0.75\n"
    )
    outcome = run("produce", "log.csv", "--config", config)
    assert outcome.code == 1
    assert "(log.csv:3)" in outcome.err
    batch = Config.load(config).event_format().decode_batch(sent(broker, "produced-rows", 2))
    assert batch.rejected == ()
    assert sorted(batch.timestamp.tolist()) == [1767225600.0, 1767225601.0]
    assert sorted(batch.probabilities[:, 0].tolist(), key=str) == pytest.approx([0.25, float("nan")], nan_ok=True)


def test_candidates_name_the_columns_of_a_table(run: Run, broker: Broker) -> None:
    Path("log.csv").write_text("event_id,timestamp,action,propensity,reward,new\n7,5.5,x,0.5,1,0.25\n")
    servers = ("--bootstrap-servers", broker.bootstrap)
    assert run("produce", "log.csv", "produced-named", "--candidates", "new", *servers).code == 0
    (message,) = sent(broker, "produced-named", 1)
    assert json.loads(message)["policies"] == {"new": 0.25}


def test_rows_without_ids_and_times_count_in_their_order_each_once(run: Run, broker: Broker) -> None:
    Path("log.csv").write_text("action,propensity,reward,new\nx,0.5,1,0.25\ny,0.5,0,0.75\n")
    servers, before = ("--bootstrap-servers", broker.bootstrap), time.time()
    assert run("produce", "log.csv", "produced-numbered", "--candidates", "new", *servers).code == 0
    first, second = sorted(map(json.loads, sent(broker, "produced-numbered", 2)), key=lambda row: row["event_id"])
    assert (first["event_id"], second["event_id"]) == ("log.csv:1", "log.csv:2")
    assert before <= first["timestamp"] <= second["timestamp"] <= time.time()


def test_a_table_without_names_of_candidates_is_refused(run: Run, broker: Broker) -> None:
    Path("log.csv").write_text("event_id,timestamp,action,propensity,reward,new\n7,5.5,x,0.5,1,0.25\n")
    outcome = run("produce", "log.csv", "produced-refused", "--bootstrap-servers", broker.bootstrap)
    assert outcome.code == 2
    assert "no column of a candidate is named" in outcome.err
    assert "hint: add --candidates" in outcome.err


def test_a_file_is_packed_in_batches_with_json_for_events_that_are_no_table(run: Run, broker: Broker) -> None:
    arrow = broker.connection.model_dump(exclude_defaults=True) | {"topic": "packed", "format": {"kind": "arrow"}}
    config = configured(broker, "packed", source=arrow)
    events = [EVENT | {"event_id": f"e-{number}", "reward": number % 2} for number in range(250)]
    outcome = run("produce", written("log.ndjson", *events, BAD), "--config", config, "--batch", "100")
    assert outcome.code == 1
    assert f"250 events sent in 3 messages to packed at {broker.bootstrap}" in outcome.err
    batch = Config.load(config).event_format().decode_batch(sent(broker, "packed", 3))
    assert (batch.rejected, len(batch), batch.reward.sum()) == ((), 250, 125.0)
    odd = EVENT | {"actions": ["a", 1], "propensities": [0.25, 0.75]}
    outcome = run("produce", written("odd.ndjson", EVENT, odd), "odd", "--config", config, "--batch", "9")
    assert "2 events sent in 2 messages to odd" in outcome.err
    assert sent(broker, "odd", 2) == sorted(json.dumps(event).encode() for event in (EVENT, odd))


def test_what_is_no_event_is_sent_as_it_is_among_batches_without_validation(run: Run, broker: Broker) -> None:
    Path("log.ndjson").write_text("7\n{\n" + json.dumps({"policies": [1]}) + "\n")
    options = ("--no-validate", "--batch", "3", "--bootstrap-servers", broker.bootstrap)
    assert run("produce", "log.ndjson", "packed-odd", *options).code == 0
    assert sent(broker, "packed-odd", 3) == [b"7", b"{", b'{"policies": [1]}']


def test_batches_that_the_configuration_does_not_read_are_refused(run: Run, broker: Broker) -> None:
    outcome = run("produce", written("log.ndjson", EVENT), "--config", configured(broker, "plain"), "--batch", "9")
    assert outcome.code == 2
    assert "hint: write `format: {kind: arrow}` in source" in outcome.err


def test_a_topic_is_needed(run: Run) -> None:
    outcome = run("produce", written("log.ndjson", EVENT))
    assert outcome.code == 2
    assert "no topic is named" in outcome.err
