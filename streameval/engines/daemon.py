"""Run the daemon of a configuration with an engine: executors evaluate, and this process folds, publishes and saves."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from streameval.config.engine import SparkSettings
from streameval.config.model import Config
from streameval.engines.client import Engine, EngineClient, EvaluatedRange
from streameval.engines.ranges import BatchTask, RangeResult
from streameval.errors import ConfigError, SourceError, StateError
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records, Source, SourceStatus
from streameval.ingest.kafka.client import Client
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summary
from streameval.service.daemon import DaemonLoop
from streameval.service.reload import Reload
from streameval.service.snapshots import WAYS_OUT, Snapshot, SnapshotStore
from streameval.service.startup import (
    StartState,
    dead_letters_of_configuration,
    open_state,
    pipeline_of,
    require_same_configuration,
)
from streameval.service.status import EngineStatus

MAX_SUMS = 100_000
"""Limit blocks times policies of a batch. With the default settings their sums take 160 MB."""
SPARK = "pip install 'streameval[spark]'"

log = structlog.get_logger("streameval")


def spark(settings: SparkSettings) -> Engine:
    """Start Spark, with executors that are ready or about to be.

    Raises:
        ConfigError: Spark cannot be started.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("engine: spark requires a package that is not installed", hint=SPARK)
    from streameval.engines.spark import Spark  # an extra

    return Spark(settings)


class EngineDaemon(DaemonLoop[PartitionedEvaluator]):
    """Run a daemon on ranges of events that an engine has summarised."""

    def __init__(
        self,
        source: Source,
        pipeline: EventPipeline,
        evaluator: PartitionedEvaluator,
        *,
        engine: Engine,
        **options: Any,
    ) -> None:
        self._engine = engine
        super().__init__(source, pipeline, evaluator, **options)
        self._batches, self._read_at = EngineStatus(), self._clock()

    def run(self) -> None:
        """Work as `Daemon.run` does, and end the engine.

        Raises:
            SourceError: The source cannot continue.
        """
        try:
            super().run()
        finally:
            self._engine.close()

    def _take(self, records: list[Records]) -> None:
        started, accepted = time.perf_counter(), self._accepted
        ranges = [evaluated for evaluated in records if isinstance(evaluated, EvaluatedRange)]
        for evaluated in ranges:
            self._skip_lost(evaluated.topic, evaluated.partition, evaluated.result.range.start)
        self._evaluator.fold([Summary.from_bytes(evaluated.result.summary) for evaluated in ranges])
        for evaluated in ranges:
            self._count_range(evaluated.result)
        self._batch_duration = self._batch_duration.add(np.array([time.perf_counter() - started]))
        duration = self._batches.batch_duration.add(np.array([ranges[0].seconds]))
        self._batches, self._read_at = EngineStatus(duration, self._accepted - accepted), ranges[0].read_at

    def _count_range(self, result: RangeResult) -> None:
        if self._dead_letters is not None:
            self._dead_letters.add(result.dead_letters, result.dropped)
        self._summaries.count(result.rejected, result.examples)
        if result.events and not self._accepted:
            log.info("first_event", policies=list(self._evaluator.policies))
            self._log_problems(result.problems)
        self._count(result.events, result.delays, result.rejected)

    def _reason_stalled(self, status: SourceStatus) -> str:
        """Return why the source is not reached. A batch may take long, and Spark repeats its tasks by itself."""
        return "" if status.reached else super()._reason_stalled(status)

    def _skip_lost(self, topic: str, partition: int, start: int) -> None:
        """Let the evaluator pass over offsets that the source reports as lost.

        Raises:
            SourceError: The log starts before the offsets that are counted already, because it was cut or replaced.
        """
        expected = self._evaluator.offset(partition)
        self._evaluator.skip(partition, start)
        if expected is not None and start < expected:
            raise SourceError(
                f"{topic}-{partition} continues at offset {start:,}, and events up to {expected:,} are counted already",
                hint="the topic was cut or recreated: with an engine, start from zero with --reset",
            )

    def _engine_status(self, at: float) -> EngineStatus:
        """Return the status of the engine. At the end of the log, every event counts that was in it then."""
        ended_at = [time or 0.0 for time in self._source.status().ended_at.values()]
        age = at - max(self._read_at, min(ended_at, default=0.0))
        return replace(self._batches, age=max(0.0, age), executors_lost=self._engine.executors_lost())


def daemon(
    config: Config,
    *,
    reset: bool = False,
    open_engine: Callable[[SparkSettings], Engine] = spark,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client] = KafkaPythonClient,
    load: Callable[[], Config] | None = None,
) -> EngineDaemon:
    """Return the daemon of a configuration with an engine, ready to run, from the newest snapshot if there is one.

    Args:
        config: the configuration
        reset: whether to start from zero
        open_engine: starts the engine
        connect: makes the client that asks for the ends of the topic
        load: reads the configuration again on SIGHUP

    Raises:
        ConfigError: There is no state to reset, or the engine cannot be started.
        StateError: The snapshot does not fit the configuration.
    """

    with open_state(config, reset=reset, needs_state=reset) as snapshots:
        start = snapshots.newest(partial(_resume, config)) if snapshots else None
        if start is None:
            evaluator = PartitionedEvaluator.from_config(config.evaluator_config())
            start = StartState(evaluator, pipeline_of(config), {})
        assert config.engine is not None
        reload = EngineReload(load or (lambda: config), config, start.evaluator)
        return _assemble(reload, start, snapshots, open_engine(config.engine), connect)


def _resume(config: Config, path: Path, snapshot: Snapshot) -> StartState[PartitionedEvaluator]:
    require_same_configuration(config, path, snapshot)
    wanted = config.evaluator_config()
    evaluator = PartitionedEvaluator.from_state(snapshot.evaluator, None, config.policies.candidates, without_code=True)
    if evaluator.config.for_policies(()).settings() != wanted.for_policies(()).settings():
        raise StateError(
            f"the snapshot {path} has another production policy, other estimators or averages than the configuration",
            hint=WAYS_OUT,
        )
    before, late = evaluator.policies, evaluator.change_candidates(wanted)
    added = [] if late is None else list(late.policies[1:])
    removed = [name for name in before if name not in evaluator.policies or name in added]
    log.info("continued", snapshot=str(path), events=evaluator.accepted, added=added, removed=removed)
    return StartState(evaluator, pipeline_of(config), snapshot.source_offsets)


def _assemble(
    reload: EngineReload,
    start: StartState[PartitionedEvaluator],
    snapshots: SnapshotStore | None,
    engine: Engine,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client],
) -> EngineDaemon:
    settings = reload.config.required_source()
    assert isinstance(settings, KafkaSettings)

    def engine_client(topic: KafkaTopic, timeout: float, connections: ConnectionGroup) -> EngineClient:
        requests = connect(topic, timeout, connections)
        client = EngineClient(reload.config, engine, requests, reload.task)
        reload.cancel = client.cancel
        return client

    source = KafkaSource(settings, start.offsets.get(settings.topic), connect=engine_client)
    if snapshots is not None:
        snapshots.after = lambda snapshot: source.commit(snapshot.source_offsets)
    return EngineDaemon(
        source,
        start.pipeline,
        start.evaluator,
        engine=engine,
        stall_after=settings.longest_wait,
        reload=reload,
        snapshots=snapshots,
        dead_letters=dead_letters_of_configuration(reload.config),
        name=reload.config.daemon_name,
    )


class EngineReload(Reload):
    """Apply the candidates of a configuration that is read again. New ones start from zero.

    Attributes:
        cancel: Cancels a running batch, which starts again with the new candidates.
    """

    def __init__(self, load: Callable[[], Config], config: Config, evaluator: PartitionedEvaluator) -> None:
        super().__init__(load, config, evaluator)
        self._partitioned, self._pickled = evaluator, pickle.dumps(config)
        self.cancel: Callable[[], None] = lambda: None

    def task(self) -> BatchTask:
        """Return the task that tells executors how to evaluate the next batch."""
        evaluator = self._partitioned
        most = max(1, MAX_SUMS // len(evaluator.policies)) * evaluator.config.block
        return BatchTask(self._pickled, pickle.dumps(evaluator.config), evaluator.knowledge(), evaluator.rests(), most)

    def admit(self, late: Evaluator | None) -> None:
        """Let the next batch evaluate the new candidates."""
        self._pickled = pickle.dumps(self.config)
        self.cancel()
