"""Log decisions and rewards to Kafka, also while no broker answers, and from forked processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streameval import EventLogger
from streameval.events import EventBatch, JsonDecoder
from streameval.events.arrow_messages import ArrowDecoder
from streameval.events.tables import ColumnNames
from support.asking import report_of
from support.factories import wait_until
from support.integration.broker import Broker, RealBroker
from support.integration.faulty_cluster import StoppableBroker
from support.integration.reading import Reading, reading
from support.integration.running import daemon

CHOICE: tuple[Any, ...] = ({"hour": 9}, ["a", "b", "c"], [0.8, 0.1, 0.1], "a")
PER_SECOND = 5_000
OUTAGE = 60.0  # seconds
RESIDENT_MEMORY = 150.0  # MiB that a full buffer of 32 MiB and a Kafka client may take


def options_of(broker: Broker, client: str) -> dict[str, Any]:
    """Return the options of a producer: kafka-python does not understand what the mock cluster says of its version."""
    is_mock = client == "kafka-python" and not isinstance(broker, RealBroker)
    return {"api_version": (2, 3)} if is_mock else {}


def logger_of(broker: Broker, topics: Sequence[str], client: Any, **batches: Any) -> EventLogger:
    options = options_of(broker, client)
    return EventLogger.to_kafka(broker.bootstrap, *topics, client=client, options=options, **batches)


def ids(messages: Reading) -> list[int]:
    """Return the ids of all messages. The id of a message that came twice is there twice."""
    return sorted(json.loads(value or b"")["event_id"] for value in messages.seen.elements())


def resident_memory() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def log_for(seconds: float, logger: EventLogger) -> list[float]:
    """Log decisions at `PER_SECOND`, and return the processor time of each call."""
    costs: list[float] = []
    started_at = time.monotonic()
    while (elapsed := time.monotonic() - started_at) < seconds:
        for number in range(len(costs) + 1, int(elapsed * PER_SECOND) + 2):
            before = time.thread_time()
            logger.decision(*CHOICE, event_id=number, reward=number % 2)
            costs.append(time.thread_time() - before)
        time.sleep(0.001)
    return costs


FORKED = """
import os, sys, streameval
logger = streameval.EventLogger.to_file(sys.argv[1])
def log(process):
    for number in range(3):
        logger.decision(process, None, .5, number, reward=0)
log("parent")
child = os.fork()
if child:
    os.waitpid(child, 0)
    log("parent")
else:
    log("child")
    logger.close()
    print(*logger.counts, flush=True)
    os._exit(0)
"""


def test_a_forked_process_writes_and_counts_its_own_messages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "log")]
    child = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert child.stdout.split() == ["3", "0", "0", "0", "0"]
    lines = [json.loads(line)["context"] for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(lines) == ["child"] * 3 + ["parent"] * 6


def test_importing_the_logger_loads_no_numpy_and_creating_it_no_kafka_client() -> None:
    program = (
        "import streameval, sys\nlogger = streameval.EventLogger\n"
        "print(*sorted({'numpy', 'scipy', 'pydantic'} & {*sys.modules}))\n"
        "logger.to_function(print)\n"
        "print(*sorted({'scipy', 'pyarrow', 'kafka', 'confluent_kafka'} & {*sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert loaded.stdout.split() == []


@pytest.mark.kafka
def test_decisions_and_rewards_reach_their_topics_once(broker: Broker, client: str) -> None:
    topics = [f"logged-decisions-{client}", f"logged-rewards-{client}"]
    for topic in topics:
        broker.create_topic(topic, 2)
    with logger_of(broker, topics, client) as logger:
        for number in range(500):
            logger.decision(*CHOICE, event_id=number)
            logger.reward(number, 1)
    assert logger.counts == (1_000, 0, 0, 0, 0)
    for topic in topics:
        with reading(broker.connection, topic) as messages:
            messages.poll_until(lambda messages=messages: messages.seen.total() >= 500)
            messages.poll_to_the_end()
            assert ids(messages) == list(range(500))


ENDING = """
import ast, sys, time, streameval
broker, topic, client, options = sys.argv[1:]
logger = streameval.EventLogger.to_kafka(broker, topic, client=client, options=ast.literal_eval(options))
for number in range(3000):
    logger.decision({}, None, .5, "a", reward=0, event_id=number)
    if number == 0:
        time.sleep(.5)  # the producer is then open, and sends a part
"""


@pytest.mark.kafka
def test_a_process_that_ends_writes_what_is_buffered(broker: Broker, client: str) -> None:
    topic = f"ended-{client}"
    broker.create_topic(topic, 1)
    command = [sys.executable, "-c", ENDING, broker.bootstrap, topic, client, repr(options_of(broker, client))]
    subprocess.run(command, check=True, timeout=120)
    with reading(broker.connection, topic) as messages:
        messages.poll_until(lambda: messages.seen.total() >= 3000)
        assert ids(messages) == list(range(3000))


@pytest.mark.parametrize("library", ["kafka-python", "confluent"])
def test_a_logger_closed_during_an_outage_counts_what_it_drops_and_leaves_no_thread(library: Any) -> None:
    before = set(threading.enumerate())
    options = {"api_version": (2, 3)} if library == "kafka-python" else {}
    with StoppableBroker({"logged": 1}) as broker:
        logger = EventLogger.to_kafka(broker.bootstrap, "logged", client=library, options=options)
        logger.decision(*CHOICE, reward=0)
        assert logger.flush(60.0)
        broker.stop()
        for _ in range(100):
            logger.decision(*CHOICE, reward=0)
        logger.close(timeout=0.5)
        assert logger.counts == (1, 0, 100, 0, 0)
        wait_until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.kafka
@pytest.mark.slow
def test_an_outage_delays_no_decision_and_all_are_counted(stoppable_broker: Broker, client: str) -> None:
    topic = f"logged-through-outage-{client}"
    stoppable_broker.create_topic(topic, 2)
    with logger_of(stoppable_broker, [topic], client) as logger:
        logger.decision(*CHOICE, event_id=0, reward=0)
        assert logger.flush(60.0)
        stoppable_broker.stop()
        memory = resident_memory()
        costs = log_for(OUTAGE, logger)
        counts, growth = logger.counts, resident_memory() - memory
        assert counts.waiting + counts.dropped == len(costs)
        assert (counts.written, counts.invalid, counts.failed) == (1, 0, 0)
        assert counts.dropped > 0, "the buffer must have been full"
        assert growth < RESIDENT_MEMORY
        assert np.quantile(costs, 0.99) < 1e-3  # seconds of processor time
        stoppable_broker.start()
        assert logger.flush(120.0)
    assert logger.counts == (1 + counts.waiting, 0, counts.dropped, 0, 0)
    with reading(stoppable_broker.connection, topic) as messages:
        messages.poll_until(lambda: messages.seen.total() >= 1 + counts.waiting)
        messages.poll_to_the_end()
        arrived = ids(messages)
    assert arrived == list(range(1 + counts.waiting)), "the first ones, each once"


def read_batches(broker: Broker, topic: str, events: int = 0) -> tuple[list[int], int]:
    """Return the ids of the decisions in a topic with at least so many of them, in order, and its messages."""
    decoder = ArrowDecoder(JsonDecoder(["new"], rewarded=False), ColumnNames())

    def decoded() -> EventBatch:
        batch: EventBatch = decoder.decode_batch(messages.seen.elements())
        assert batch.rejected == ()
        return batch

    with reading(broker.connection, topic) as messages:
        messages.poll_until(lambda: len(decoded()) >= events)
        messages.poll_to_the_end()
        return sorted(map(int, decoded().timestamp)), messages.seen.total()


@pytest.mark.kafka
def test_a_daemon_reads_the_batches_that_were_logged(broker: Broker, client: str, tmp_path: Path) -> None:
    topics = [f"batches-decisions-{client}", f"batches-rewards-{client}"]
    for topic in topics:
        broker.create_topic(topic, 2)
    with logger_of(broker, topics, client, batch=500, linger="300ms") as logger:
        for number in range(3_000):
            place = {"event_id": number, "timestamp": number}
            logger.decision(*CHOICE, policies={"new": [0.4, number % 2 * 0.6, 0.6 - number % 2 * 0.6]}, **place)
            logger.reward(number, number % 2, timestamp=number)
        assert logger.flush(60.0)
    assert logger.counts == (6_000, 0, 0, 0, 0)
    found, messages = read_batches(broker, topics[0], 3_000)
    assert found == list(range(3_000))
    assert messages < 100
    config = tmp_path / "streameval.yaml"
    source = broker.connection.model_dump(exclude_defaults=True) | {"topic": topics[0], "format": {"kind": "arrow"}}
    source |= {"rewards": {"topic": topics[1], "window": "1m"}, "idle_timeout": "1s"}
    parts = {"source": source, "policies": {"candidates": ["new"]}, "http": {"port": 0}}
    config.write_text(json.dumps(parts | {"state": {"dir": str(tmp_path / "state")}}, default=str))

    def events() -> dict[str, Any]:
        report: dict[str, Any] = report_of(http) or {"events": {}}
        return report["events"]  # type: ignore[no-any-return]

    with daemon(config, tmp_path / "log") as http:
        wait_until(lambda: events().get("accepted", 0) >= 2_900)  # the last minute waits for rewards
        assert events()["rejected"] == {}
        estimates = (report_of(http) or {})["estimates"]
    means = {(one["policy"], one["estimator"]): one["value"] for one in estimates if one["average"] == "cumulative"}
    assert means["logging", "ips"] == pytest.approx(0.5, abs=1e-3)
    assert means["new", "ips"] == pytest.approx(0.25, abs=1e-3)


BATCHES = """
import os, sys, time, ast, streameval
broker, topic, client, options = sys.argv[1:]
logger = streameval.EventLogger.to_kafka(
    broker, topic, client=client, options=ast.literal_eval(options), batch=500, linger="500ms"
)
def log(numbers):
    for number in numbers:
        logger.decision({}, None, .5, "a", reward=0, event_id=number, timestamp=number)
        print(number, time.monotonic(), flush=True)
        time.sleep(.0005)
log(range(100))
if os.fork():
    os.wait()
    log(range(200, 10**9))
else:
    log(range(100, 200))
    logger.close()
    os._exit(0)
"""


@pytest.mark.kafka
def test_a_killed_process_loses_at_most_the_linger_and_sends_no_half_of_a_batch(broker: Broker, client: str) -> None:
    topic = f"batches-killed-{client}"
    broker.create_topic(topic, 1)
    command = [sys.executable, "-c", BATCHES, broker.bootstrap, topic, client, repr(options_of(broker, client))]
    logged: dict[int, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        until = time.monotonic() + 60.0
        for line in process.stdout:
            number, moment = line.split()
            logged[int(number)] = float(moment)
            if len(logged) == 200:
                until = time.monotonic() + 4.0
            if time.monotonic() > until:
                break
        process.kill()
        killed_at = time.monotonic()
        for line in process.stdout:
            if len(parts := line.split()) == 2:
                logged[int(parts[0])] = float(parts[1])
    found, messages = read_batches(broker, topic)
    assert found == list(range(len(found))), "the parent's, the child's, and then all but the last"
    assert 200 < len(found) < 500 * messages
    lost = [moment for number, moment in logged.items() if number >= len(found)]
    assert lost, "the process was killed while it logged"
    assert killed_at - min(lost) < 0.5 + 1.0, "the linger, and the time of a busy machine to write"
