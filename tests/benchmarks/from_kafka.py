"""The whole daemon that reads a topic of a real broker, with each client: polls, threads of the client, everything."""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of the tests

import confluent_kafka
import kafka
from measuring import Benchmark, Ratio, Work
from memory_source import parsing
from messages import CANDIDATES, compact

from streameval.config.model import Config
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.service.logging import configure_logging
from streameval.service.startup import daemon
from support.integration.broker import real_broker

TOPIC, PARTITIONS = "events", 4
LOOK_EVERY = 0.2


def send(values: list[bytes], connection: KafkaConnection) -> None:
    """Messages without compression, to each partition in turn: to unpack them would cost more than to poll them."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": ",".join(connection.bootstrap_servers), "queue.buffering.max.messages": len(values) + 1}
    )
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    producer.flush()


def run_daemon(connection: KafkaConnection, events: int) -> None:
    """Read the topic to its end in a fresh directory."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config.model_validate(
            {
                "source": connection.model_dump() | {"kind": "kafka", "topic": TOPIC},
                "policies": {"candidates": list(CANDIDATES)},
                "state": {"dir": folder},
            }
        )
        running = daemon(Path(folder) / "streameval.yaml", config)
        read = threading.Thread(target=running.run)
        read.start()
        while read.is_alive() and sum((running.published.source.positions or {0: 0}).values()) < events:
            time.sleep(LOOK_EVERY)
        running.stop()
        read.join()


def poll_kafka_python(connection: KafkaConnection, events: int) -> None:
    """An empty loop around the polls of kafka-python."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=connection.bootstrap_servers)
    parts = [kafka.TopicPartition(TOPIC, number) for number in consumer.partitions_for_topic(TOPIC)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    read = 0
    while read < events:
        read += sum(map(len, consumer.poll(timeout_ms=200, max_records=POLLED).values()))
    consumer.close()


def poll_confluent(connection: KafkaConnection, events: int) -> None:
    """An empty loop around the polls of confluent-kafka."""
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
    broker.create_topic(TOPIC, PARTITIONS)
    send(values, broker.connection)
    works = {"orjson.loads": parsing(values)}
    for client, poll in POLLS.items():
        connection = broker.connection.model_copy(update={"client": client})
        works[client] = Work(lambda connection=connection: run_daemon(connection, events), events)
        works[f"polls of {client}"] = Work(lambda poll=poll: poll(broker.connection, events), events)
    ratios = [
        Ratio("confluent", "orjson.loads", 5.0),
        Ratio("kafka-python", "polls of kafka-python", 1.4),
        Ratio("confluent", "polls of confluent"),
        Ratio("confluent", "kafka-python"),
    ]
    return Benchmark(f"The daemon from a broker: default, 10 candidates, {PARTITIONS} partitions", works, ratios)
