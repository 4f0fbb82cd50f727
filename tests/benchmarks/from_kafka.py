"""Measure the whole daemon on a topic of a real broker, with each client: polls, threads of the client, everything."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of the tests

import confluent_kafka
import kafka
from measuring import Benchmark, Ratio, Work, processor_seconds
from memory_source import parsing
from messages import CANDIDATES, batched, compact

from streameval.config.model import Config
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.service.daemon import DaemonLoop
from streameval.service.logging import configure_logging
from streameval.service.startup import daemon
from support.integration.broker import real_broker

TOPIC, BATCHES, LIVE, PARTITIONS = "events", "batches", "live", 4
IN_BATCH, REPEATED = 500, 5
"""Events in a batch, and how often a topic has all batches, so that they take longer than the start of a daemon."""
LOOK_EVERY = 0.2
EVENTS_PER_SECOND = 500
SETTLED, LOOKED_AT = 2.0, 5.0
"""Seconds until a daemon that reads a live stream has caught up, and seconds of the measurement after that."""
SENDER = """
import sys, time
import confluent_kafka, orjson
from messages import compact
servers, topic, partitions, rate = *sys.argv[1:3], *map(int, sys.argv[3:])
producer, events = confluent_kafka.Producer({"bootstrap.servers": servers}), list(map(orjson.loads, compact(1_000)))
started, sent = time.monotonic(), 0
while True:
    while sent < (time.monotonic() - started) * rate:
        event = events[sent % len(events)] | {"event_id": f"live-{time.time_ns()}", "timestamp": time.time()}
        producer.produce(topic, orjson.dumps(event), partition=sent % partitions)
        sent += 1
    producer.poll(0.002)
"""


def send(topic: str, values: list[bytes], connection: KafkaConnection) -> None:
    """Send messages to each partition in turn. They are not compressed, because unpacking costs more than polling."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": ",".join(connection.bootstrap_servers), "queue.buffering.max.messages": len(values) + 1}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    producer.flush()


def run_daemon(
    connection: KafkaConnection, topic: str, look: Callable[[DaemonLoop[Any]], float | None]
) -> float | None:
    """Run a daemon that reads a topic in a fresh directory until `look` returns, and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config.model_validate(
            {
                "source": connection.model_dump() | {"kind": "kafka", "topic": topic, "format": {"kind": "arrow"}},
                "policies": {"candidates": list(CANDIDATES)},
                "state": {"dir": folder},
            }
        )
        running = daemon(Path(folder) / "streameval.yaml", config)
        read = threading.Thread(target=running.run)
        read.start()
        result = look(running)
        running.stop()
        read.join()
    return result


def read_backlog(connection: KafkaConnection, topic: str, messages: int) -> None:
    """Read the topic to its end."""

    def look(running: DaemonLoop[Any]) -> None:
        while sum((running.published.source.positions or {0: 0}).values()) < messages:
            time.sleep(LOOK_EVERY)

    run_daemon(connection, topic, look)


def read_live(connection: KafkaConnection) -> float:
    """Return the seconds of processor time of a daemon that reads a live stream for LOOKED_AT seconds."""

    def look(_: DaemonLoop[Any]) -> float:
        time.sleep(SETTLED)
        before = processor_seconds()
        time.sleep(LOOKED_AT)
        return processor_seconds() - before

    address, rate = ",".join(connection.bootstrap_servers), str(EVENTS_PER_SECOND)
    with subprocess.Popen([sys.executable, "-c", SENDER, address, LIVE, str(PARTITIONS), rate]) as sender:
        try:
            return run_daemon(connection, LIVE, look) or 0.0
        finally:
            sender.kill()


def poll_kafka_python(connection: KafkaConnection, events: int) -> None:
    """Poll with kafka-python in an empty loop."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=connection.bootstrap_servers)
    parts = [kafka.TopicPartition(TOPIC, number) for number in consumer.partitions_for_topic(TOPIC)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    read = 0
    while read < events:
        read += sum(map(len, consumer.poll(timeout_ms=200, max_records=POLLED).values()))
    consumer.close()


def poll_confluent(connection: KafkaConnection, events: int) -> None:
    """Poll with confluent-kafka in an empty loop."""
    settings = {"bootstrap.servers": ",".join(connection.bootstrap_servers), "group.id": "benchmark"}
    consumer = confluent_kafka.Consumer(settings | {"enable.auto.commit": False})
    numbers = consumer.list_topics(TOPIC).topics[TOPIC].partitions
    first = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, first) for number in numbers])
    read = 0
    while read < events:
        read += len(consumer.consume(POLLED, 0.2))
    consumer.close()


POLLED = 2_000
POLLS = {"kafka-python": poll_kafka_python, "confluent": poll_confluent}


def benchmark(events: int = 200_000) -> Benchmark:
    configure_logging("error")
    running = ExitStack()
    atexit.register(running.close)
    broker, values = running.enter_context(real_broker()), compact(events)
    batches = batched(values, IN_BATCH) * REPEATED
    for topic in (TOPIC, BATCHES, LIVE):
        broker.create_topic(topic, PARTITIONS)
    send(TOPIC, values, broker.connection)
    send(BATCHES, batches, broker.connection)
    works = {"orjson.loads": parsing(values), "a core": Work(lambda: LOOKED_AT)}
    for client, poll in POLLS.items():
        connection = broker.connection.model_copy(update={"client": client})
        works[client] = Work(lambda connection=connection: read_backlog(connection, TOPIC, events), events)
        works[f"{client}, batches"] = Work(
            lambda connection=connection: read_backlog(connection, BATCHES, len(batches)), events * REPEATED
        )
        works[f"live, {client}"] = Work(lambda connection=connection: read_live(connection))
        works[f"polls of {client}"] = Work(lambda poll=poll: poll(broker.connection, events), events)
    ratios = [
        Ratio("confluent", "orjson.loads", 5.0),
        Ratio("confluent, batches", "orjson.loads", 1.25),
        Ratio("kafka-python, batches", "orjson.loads", 1.8),
        Ratio("kafka-python", "polls of kafka-python", 1.4),
        Ratio("confluent", "polls of confluent"),
        Ratio("confluent", "kafka-python"),
        *(Ratio(f"live, {client}", "a core", 0.05) for client in POLLS),
    ]
    title = f"The daemon from a broker: {PARTITIONS} partitions, and live with {EVENTS_PER_SECOND} events a second"
    return Benchmark(title, works, ratios)
