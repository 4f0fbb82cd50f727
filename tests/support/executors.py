"""Run an engine in this process, over a Kafka cluster in memory."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streameval.config.model import Config
from streameval.engines.daemon import EngineDaemon, daemon
from streameval.engines.ranges import BatchTask, RangeEvaluator, RangeGone, RangeResult, RangeTask
from streameval.ingest.kafka.client import ClientError
from support.fake_kafka import TOPIC, FakeCluster
from support.messages import message

CANDIDATES = ["bold", "shy"]


def config_of(folder: Path | None = None, **sections: Any) -> Config:
    """Make a configuration with an engine.

    Args:
        folder: Directory of its state, None for no state.
        sections: Sections of the configuration that differ.
    """
    state = {"state": "off" if folder is None else {"dir": str(folder), "interval": "1h"}}
    source = {"kind": "kafka", "topic": TOPIC}
    engine = {"kind": "spark", "trigger": "1ms", "most_per_partition": 300}
    policies = {"candidates": CANDIDATES}
    evaluated = {"estimators": ["ips", "snips"], "averages": ["cumulative", {"kind": "decay", "half_life": 500}]}
    return Config.model_validate(
        {"source": source, "policies": policies, "engine": engine, **evaluated, **state, **sections}
    )


def fill(cluster: FakeCluster, partition: int, count: int, first: int = 0) -> None:
    """Append events. Every hundredth is not JSON."""
    log = cluster.logs.setdefault(partition, [])
    for number in range(first, first + count):
        shares = {"bold": 0.1 + (number * 7 % 10) / 20, "shy": 0.5 - (number * 3 % 7) / 20}
        own = {"timestamp": (number * 4 + partition) / 100, "reward": number * 11 % 3 % 2, "propensity": 0.25}
        event = message(number * 4 + partition, policies=shares, **own)
        log.append(event if number % 100 else b"{")


def batch_task(config: Config) -> BatchTask:
    """Describe how the ranges of the first batch of a configuration are evaluated."""
    return BatchTask(pickle.dumps(config), pickle.dumps(config.evaluator_config()))


class Executors:
    """Run the tasks of a batch here, each through its own client.

    Attributes:
        batches: Tasks of each batch so far.
        faults: Errors to raise, one for each of the next batches.
        lost: Number of executors lost.
        free: Event that `run` waits for.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.batches: list[Sequence[RangeTask]] = []
        self.faults: list[Exception] = []
        self.lost, self.closed, self.ended = 0, False, False
        self.free = threading.Event()
        self.free.set()
        self._cancelled = False

    def run(self, tasks: Sequence[RangeTask]) -> list[RangeResult | RangeGone]:
        self.batches.append(tasks)
        self._cancelled = False
        self.free.wait(60.0)
        if self._cancelled:
            raise ClientError("cancelled")
        if self.faults:
            raise self.faults.pop(0)
        return [pickle.loads(pickle.dumps(self._evaluated(pickle.loads(pickle.dumps(task))))) for task in tasks]

    def _evaluated(self, task: RangeTask) -> RangeResult | RangeGone:
        evaluator = RangeEvaluator(pickle.loads(task.batch.config), self._cluster.connect)
        return evaluator(task.range, task.now, task.batch)

    def cancel(self) -> None:
        self._cancelled = True
        self.free.set()

    def executors_lost(self) -> int:
        return self.lost

    def has_ended(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.closed = True


def engine_daemon(cluster: FakeCluster, config: Config, **options: Any) -> tuple[EngineDaemon, Executors]:
    """Make the daemon of a configuration, and return it with its engine."""
    executors = Executors(cluster)
    connect: Callable[..., Any] = cluster.connect
    return daemon(config, open_engine=lambda _: executors, connect=connect, **options), executors
