"""The daemon of a configuration with an engine: executors evaluate, and this process folds, publishes and saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import structlog

from streameval.common.arrays import State
from streameval.config.engine import SparkSettings
from streameval.config.model import Config
from streameval.engines.client import Engine, EngineClient, EvaluatedRange
from streameval.engines.ranges import RangeResult
from streameval.errors import ConfigError, SourceError, StateError
from streameval.events import EventBatch
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Offsets, Records, Source, TopicPartition
from streameval.ingest.kafka.client import Client
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.evaluator.merging.merged import MergedEvaluator
from streameval.ope.evaluator.merging.partial import Partial
from streameval.service.daemon import Daemon
from streameval.service.snapshots import PARTS, WAYS_OUT, SnapshotWriter
from streameval.service.startup import (
    StartState,
    dead_letters_of_configuration,
    from_newest,
    pipeline_of,
    require_same_configuration,
)
from streameval.service.status import EngineStatus

SPARK = "pip install 'streameval[spark]'"

log = structlog.get_logger("streameval")


def spark(settings: SparkSettings) -> Engine:
    """Spark, with executors that are ready or about to be.

    Raises:
        ConfigError: It cannot be started.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("engine: spark requires a package that is not installed", hint=SPARK)
    from streameval.engines.spark import Spark  # an extra

    return Spark(settings)


class EngineDaemon(Daemon):
    """A daemon whose events are evaluated by `engine`, and come as ranges with their `Partial`s."""

    def __init__(
        self, source: Source, pipeline: EventPipeline, evaluator: MergedEvaluator, *, engine: Engine, **options: Any
    ) -> None:
        self._merged, self._engine = evaluator, engine
        self._batches, self._read_at = EngineStatus(), math.nan
        # It has everything that `Daemon` asks for without `_take`.
        super().__init__(source, pipeline, cast("CohortEvaluator", evaluator), **options)

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
        ranges = [part for part in records if isinstance(part, EvaluatedRange)]
        for part in ranges:
            self._skip_lost((part.topic, part.partition), part.result.range.start)
        # One fold for all ranges: event time then advances equally in all partitions.
        self._merged.fold(reduce(Partial.merge, (Partial.from_bytes(part.result.partial) for part in ranges)))
        for part in ranges:
            self._count_range(part.result)
        self._batch_duration = self._batch_duration.add(np.array([time.perf_counter() - started]))
        duration = self._batches.batch_duration.add(np.array([ranges[0].seconds]))
        self._batches, self._read_at = EngineStatus(duration, self._accepted - accepted), ranges[0].read_at

    def _count_range(self, result: RangeResult) -> None:
        self._dead_letters.add(result.dead_letters, result.dropped)
        self._summaries.count(result.rejected, result.examples)
        if result.events and not self._accepted:
            log.info("first_event", policies=list(self._merged.policies))
            self._log_problems(result.problems)
        self._count(result.events, result.delays, result.rejected)

    def _skip_lost(self, place: TopicPartition, start: int) -> None:
        """Let the evaluator pass over offsets that the log has lost, as the source has found.

        Raises:
            SourceError: The log goes back behind what was counted: it was cut or replaced.
        """
        expected = self._merged.offsets.get(place, start)
        if start > expected:
            nothing = EventBatch.concat([])
            self._merged.fold(Partial.of(self._merged.plan, nothing, {place: (expected, start)}))
        if start < expected:
            topic, partition = place
            raise SourceError(
                f"{topic}-{partition} continues at offset {start:,}, and events up to {expected:,} are counted already",
                hint="the topic was cut or recreated: with an engine, start from zero with --reset",
            )

    def _document(self) -> State | None:
        document = super()._document()
        if document is not None:
            document["evaluator"] = {**PARTS["evaluator"], "merged": document["evaluator"]}
        return document

    def _engine_status(self, at: float) -> EngineStatus:
        return replace(self._batches, age=max(0.0, at - self._read_at), executors_lost=self._engine.executors_lost())


def daemon(
    config: Config,
    *,
    reset: bool = False,
    open_engine: Callable[[SparkSettings], Engine] = spark,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client] = KafkaPythonClient,
) -> Daemon:
    """The daemon of a configuration with an engine, ready to run, from the newest snapshot if there is one.

    Args:
        config: The configuration.
        reset: Start from zero.
        open_engine: Starts the engine.
        connect: Makes the client that asks for the ends of the topic.

    Raises:
        ConfigError: There is no state to reset, or the engine cannot be started.
        StateError: The snapshot does not fit the configuration.
    """

    def assemble(start: StartState[MergedEvaluator], snapshots: SnapshotWriter | None) -> EngineDaemon:
        assert config.engine is not None
        return _assemble(config, start, snapshots, open_engine(config.engine), connect)

    def fresh() -> StartState[MergedEvaluator]:
        return StartState(MergedEvaluator(config.plan()), pipeline_of(config), {})

    return from_newest(config, partial(_resume, config), fresh, assemble, reset=reset, needs_state=reset)


def _resume(config: Config, path: Path, document: State) -> StartState[MergedEvaluator]:
    require_same_configuration(config, path, document)
    evaluator = MergedEvaluator.from_state(document["evaluator"]["merged"], config.policies.candidates)
    if evaluator.plan.settings() != config.plan().settings():
        raise StateError(
            f"the snapshot {path} has other policies, estimators or averages than the configuration", hint=WAYS_OUT
        )
    offsets = {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
    log.info("continued", snapshot=str(path), events=evaluator.accepted)
    return StartState(evaluator, pipeline_of(config), offsets, document["written"])


def _assemble(
    config: Config,
    start: StartState[MergedEvaluator],
    snapshots: SnapshotWriter | None,
    engine: Engine,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client],
) -> EngineDaemon:
    settings = config.required_source()
    assert isinstance(settings, KafkaSettings)

    def engine_client(topic: KafkaTopic, timeout: float, connections: ConnectionGroup) -> EngineClient:
        return EngineClient(config, engine, connect(topic, timeout, connections), lambda: start.evaluator.lagged)

    source = KafkaSource(settings, start.offsets.get(settings.topic), connect=engine_client)
    if snapshots is not None:
        snapshots.after = lambda document: source.commit(
            {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
        )
    return EngineDaemon(
        source,
        start.pipeline,
        start.evaluator,
        engine=engine,
        reload=_refuse_reload,
        snapshots=snapshots,
        dead_letters=dead_letters_of_configuration(config),
    )


def _refuse_reload() -> None:
    log.error("reload_failed", error="with an engine, nothing can change while it runs", hint="restart the daemon")
