"""Processor time per event of the whole daemon that reads a topic of a real broker, with each client in turn.

    python tests/benchmarks/from_kafka.py

The default configuration with ten policies, four partitions, events of 277 bytes. Everything counts: polls, threads of
the client, order, decoding, evaluation, Reports. `orjson.loads` of the same messages is timed in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of the tests

from throughput import POLICIES, messages, run_orjson, seconds

from streameval.config.model import Config
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import produce
from streameval.service.logging import configure_logging
from streameval.service.process import set_up_process
from streameval.service.startup import daemon
from support.integration.broker import real_broker

CLIENTS = ("kafka-python", "confluent")
LOOK_EVERY = 0.2


def run_daemon(connection: KafkaConnection, events: int) -> None:
    """Read the topic to its end in a fresh directory."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config.model_validate(
            {
                "source": connection.model_dump() | {"kind": "kafka", "topic": "events"},
                "policies": {"candidates": POLICIES},
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    set_up_process()
    configure_logging("error")
    values = messages(options.events)
    with real_broker() as broker:
        produce(values, "events", broker.connection)
        measured: dict[str, list[float]] = {name: [] for name in (*CLIENTS, "orjson.loads")}
        for _ in range(options.rounds + 1):
            for client in CLIENTS:
                connection = broker.connection.model_copy(update={"client": client})
                measured[client].append(seconds(run_daemon, connection, options.events) / options.events)
            measured["orjson.loads"].append(seconds(run_orjson, values, options.events) / options.events)
    turns = {name: column[1:] for name, column in measured.items()}  # without the warm-up
    for name, column in turns.items():
        print(f"{name:14} {statistics.median(column) * 1e6:6.2f} us an event")
    for one, other in (CLIENTS, *((client, "orjson.loads") for client in CLIENTS)):
        ratios = [first / second for first, second in zip(turns[one], turns[other], strict=True)]
        print(f"{one} / {other}: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
