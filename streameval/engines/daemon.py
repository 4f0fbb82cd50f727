"""The daemon of a configuration with an engine: executors evaluate, and this process folds, publishes and saves."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from msgspec.structs import replace as with_fields

from streameval.common.arrays import State
from streameval.config.engine import SparkSettings
from streameval.config.model import Config
from streameval.engines.client import Engine, EngineClient, EvaluatedRange
from streameval.engines.ranges import BatchTask, CohortTask, RangeResult
from streameval.errors import ConfigError, SourceError, StateError, StreamevalError
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Offsets, Records, Source
from streameval.ingest.kafka.client import Client
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.core.state import STATE_SCHEMA, require_schema
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summary
from streameval.ope.report import Report, Transition
from streameval.service.daemon import DaemonLoop
from streameval.service.reload import Change, require_reloadable
from streameval.service.snapshots import PARTS, WAYS_OUT, SnapshotWriter
from streameval.service.startup import (
    StartState,
    dead_letters_of_configuration,
    from_newest,
    pipeline_of,
    require_same_configuration,
)
from streameval.service.status import EngineStatus

MAX_SUMS = 100_000
"""Blocks times policies of a batch, at most: with the default settings their sums take 160 MB."""
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


@dataclass(frozen=True)
class PartitionedCohort:
    """An evaluator of the candidates added at one time, and the policies whose rows come from it.

    `number`: its place among all that there ever were; summaries are named by it.
    """

    number: int
    evaluator: PartitionedEvaluator
    policies: tuple[str, ...]

    def names_in(self, plan: Plan) -> tuple[str, ...]:
        """Its policies that the plan has, computed in the same way."""
        own = self.evaluator.plan
        return tuple(name for name in self.policies if name in plan.policies and own.policy(name) == plan.policy(name))


class PartitionedCohorts:
    """Folds summaries for a plan whose candidates change; every evaluator has production.

    Candidates that are added start from zero in their own evaluator. Removed ones have no rows any more. Numbers
    of events are those of the first evaluator.

    Raises:
        ConfigError: Some of the plan needs all events in order; the hint names what to take instead.
    """

    def __init__(self, plan: Plan) -> None:
        self._cohorts = [PartitionedCohort(0, PartitionedEvaluator.from_plan(plan), plan.policies)]
        self._next = 1

    @property
    def plan(self) -> Plan:
        """The plan of the first evaluator, whose settings all share except for the candidates."""
        return self._cohorts[0].evaluator.plan

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates in the order they were added."""
        return tuple(name for cohort in self._cohorts for name in cohort.policies)

    @property
    def accepted(self) -> int:
        """The number of accepted events."""
        return self._cohorts[0].evaluator.accepted

    @property
    def tasks(self) -> tuple[CohortTask, ...]:
        """The work of executors on every range from now on."""
        evaluators = [(each.number, each.evaluator) for each in self._cohorts]
        return tuple(CohortTask(number, pickle.dumps(of.plan), of.knowledge(), of.rests()) for number, of in evaluators)

    @property
    def most(self) -> int:
        """The offsets of the next batch, at most."""
        policies = sum(len(each.evaluator.policies) for each in self._cohorts)
        return max(1, MAX_SUMS // policies) * self.plan.block

    def change_candidates(self, plan: Plan) -> tuple[list[str], list[str]]:
        """Continue with the candidates of this plan, which differs in nothing else; those added, and those removed.

        A candidate that is computed in another way counts as another one.
        """
        before = self.policies
        first, *others = [replace(each, policies=each.names_in(plan)) for each in self._cohorts]
        self._cohorts = [first, *(each for each in others if each.policies)]
        kept = self.policies
        added = [name for name in plan.policies if name not in kept]
        if added:
            late = PartitionedEvaluator.from_plan(plan.for_policies(added))
            self._cohorts.append(PartitionedCohort(self._next, late, tuple(added)))
            self._next += 1
        return added, [name for name in before if name not in kept]

    def fold(self, batch: Sequence[Mapping[int, bytes]]) -> None:
        """Fold the summaries of each range of a batch, as bytes by the numbers of evaluators.

        An evaluator that is younger than the ranges starts after them.

        Raises:
            StateError: See `PartitionedEvaluator.fold`.
        """
        for each in self._cohorts:
            each.evaluator.fold([Summary.from_bytes(of[each.number]) for of in batch if each.number in of])

    def next_offset(self, partition: int) -> int | None:
        """The offset after the last one that counts; None if no range of the partition has come."""
        return self._cohorts[0].evaluator.offset(partition)

    def skip(self, partition: int, end: int) -> None:
        """Pass over the offsets up to `end`, which the log has lost."""
        for each in self._cohorts:
            each.evaluator.skip(partition, end)

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """One Report, of each policy the rows of its evaluator: see `Evaluator.report`."""
        reports = [(set(each.policies), each.evaluator.report(now, unmatched_share)) for each in self._cohorts]

        def rows(part: str) -> tuple[Any, ...]:
            return tuple(row for shown, report in reports for row in getattr(report, part) if row.policy in shown)

        return with_fields(
            reports[0][1],
            **{part: rows(part) for part in ("policies", "estimates", "segments", "promotion", "trust", "transitions")},
        )

    def fold_pending(self) -> bool:
        """Do nothing: no events wait to be folded."""
        return False

    def take_transitions(self) -> list[Transition]:
        """The transitions of candidates since the last call."""
        taken = [(each.policies, each.evaluator.take_transitions()) for each in self._cohorts]
        return [each for shown, transitions in taken for each in transitions if each.policy in shown]

    def state(self) -> State:
        """Everything needed to continue, as a plain value that msgpack can hold."""
        cohorts = [
            {"number": each.number, "policies": list(each.policies), "evaluator": each.evaluator.state()}
            for each in self._cohorts
        ]
        return {"schema": STATE_SCHEMA, "next": self._next, "cohorts": cohorts}

    @classmethod
    def from_state(cls, state: State, candidates: Candidates = (), wanted: Iterable[str] = ()) -> PartitionedCohorts:
        """Continue from a state; see `Evaluator.from_state`.

        Code of policies that are not shown, or not `wanted` any more, is forgotten, so that `candidates` need not name
        it.

        Raises:
            StateError: The state is of another version, or has policies in code that `candidates` do not name.
        """
        require_schema(state)
        found = cls.__new__(cls)
        found._next, found._cohorts = state["next"], []
        names = set(wanted)
        for each in state["cohorts"]:
            evaluator = dict(each["evaluator"])
            settings = dict(evaluator["settings"])
            shown = names.intersection(each["policies"])
            settings["computed_policies"] = {
                name: policy for name, policy in settings["computed_policies"].items() if name in shown
            }
            partitioned = PartitionedEvaluator.from_state({**evaluator, "settings": settings}, candidates=candidates)
            found._cohorts.append(PartitionedCohort(each["number"], partitioned, tuple(each["policies"])))
        return found


class EngineDaemon(DaemonLoop[PartitionedCohorts]):
    """A daemon whose events are summed up by `engine`, and come as ranges with their summaries."""

    def __init__(
        self, source: Source, pipeline: EventPipeline, evaluator: PartitionedCohorts, *, engine: Engine, **options: Any
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
        ranges = [part for part in records if isinstance(part, EvaluatedRange)]
        for part in ranges:
            self._skip_lost(part.topic, part.partition, part.result.range.start)
        self._evaluator.fold([part.result.summaries for part in ranges])
        for part in ranges:
            self._count_range(part.result)
        self._batch_duration = self._batch_duration.add(np.array([time.perf_counter() - started]))
        duration = self._batches.batch_duration.add(np.array([ranges[0].seconds]))
        self._batches, self._read_at = EngineStatus(duration, self._accepted - accepted), ranges[0].read_at

    def _count_range(self, result: RangeResult) -> None:
        self._dead_letters.add(result.dead_letters, result.dropped)
        self._summaries.count(result.rejected, result.examples)
        if result.events and not self._accepted:
            log.info("first_event", policies=list(self._evaluator.policies))
            self._log_problems(result.problems)
        self._count(result.events, result.delays, result.rejected)

    def _skip_lost(self, topic: str, partition: int, start: int) -> None:
        """Let the evaluator pass over offsets that the log has lost, as the source has found.

        Raises:
            SourceError: The log goes back behind what was counted: it was cut or replaced.
        """
        expected = self._evaluator.next_offset(partition)
        self._evaluator.skip(partition, start)
        if expected is not None and start < expected:
            raise SourceError(
                f"{topic}-{partition} continues at offset {start:,}, and events up to {expected:,} are counted already",
                hint="the topic was cut or recreated: with an engine, start from zero with --reset",
            )

    def caught_up(self, at: float) -> None:
        """Note that every event that was in the log at this time counts."""
        self._read_at = at

    def _document(self) -> State | None:
        document = super()._document()
        if document is not None:
            document["evaluator"] = {**PARTS["evaluator"], "partitioned": document["evaluator"]}
        return document

    def _engine_status(self, at: float) -> EngineStatus:
        return replace(self._batches, age=max(0.0, at - self._read_at), executors_lost=self._engine.executors_lost())


def daemon(
    config: Config,
    *,
    reset: bool = False,
    open_engine: Callable[[SparkSettings], Engine] = spark,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client] = KafkaPythonClient,
    load: Callable[[], Config] | None = None,
) -> EngineDaemon:
    """The daemon of a configuration with an engine, ready to run, from the newest snapshot if there is one.

    Args:
        config: The configuration.
        reset: Start from zero.
        open_engine: Starts the engine.
        connect: Makes the client that asks for the ends of the topic.
        load: Reads the configuration again, on SIGHUP.

    Raises:
        ConfigError: There is no state to reset, or the engine cannot be started.
        StateError: The snapshot does not fit the configuration.
    """

    def assemble(start: StartState[PartitionedCohorts], snapshots: SnapshotWriter | None) -> EngineDaemon:
        assert config.engine is not None
        reload = EngineReload(config, start.evaluator, load or (lambda: config))
        return _assemble(reload, start, snapshots, open_engine(config.engine), connect)

    def fresh() -> StartState[PartitionedCohorts]:
        return StartState(PartitionedCohorts(config.plan()), pipeline_of(config), {})

    return from_newest(config, partial(_resume, config), fresh, assemble, reset=reset, needs_state=reset)


def _resume(config: Config, path: Path, document: State) -> StartState[PartitionedCohorts]:
    require_same_configuration(config, path, document)
    plan, partitioned = config.plan(), document["evaluator"]["partitioned"]
    evaluator = PartitionedCohorts.from_state(partitioned, config.policies.candidates, plan.policies)
    if evaluator.plan.for_policies(()).settings() != plan.for_policies(()).settings():
        raise StateError(
            f"the snapshot {path} has another production policy, other estimators or averages than the configuration",
            hint=WAYS_OUT,
        )
    added, removed = evaluator.change_candidates(plan)
    offsets = {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
    log.info("continued", snapshot=str(path), events=evaluator.accepted, added=added, removed=removed)
    return StartState(evaluator, pipeline_of(config), offsets, document["written"])


def _assemble(
    reload: EngineReload,
    start: StartState[PartitionedCohorts],
    snapshots: SnapshotWriter | None,
    engine: Engine,
    connect: Callable[[KafkaTopic, float, ConnectionGroup], Client],
) -> EngineDaemon:
    settings = reload.config.required_source()
    assert isinstance(settings, KafkaSettings)

    def engine_client(topic: KafkaTopic, timeout: float, connections: ConnectionGroup) -> EngineClient:
        requests = connect(topic, timeout, connections)
        return EngineClient(reload.config, engine, requests, reload.task, lambda at: made.caught_up(at))

    source = KafkaSource(settings, start.offsets.get(settings.topic), connect=engine_client)
    if snapshots is not None:
        snapshots.after = lambda document: source.commit(
            {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
        )
    made = EngineDaemon(
        source,
        start.pipeline,
        start.evaluator,
        engine=engine,
        reload=reload,
        snapshots=snapshots,
        dead_letters=dead_letters_of_configuration(reload.config),
    )
    return made


class EngineReload:
    """Reads the configuration again, and applies its candidates from the next batch on; new ones start from zero.

    One that is invalid, or changes something else, changes nothing.
    """

    def __init__(self, config: Config, evaluator: PartitionedCohorts, load: Callable[[], Config]) -> None:
        self.config, self._evaluator, self._load = config, evaluator, load
        self._pickled = pickle.dumps(config)

    def task(self) -> BatchTask:
        """How the ranges of the next batch are evaluated."""
        return BatchTask(self._pickled, self._evaluator.tasks, self._evaluator.most)

    def __call__(self) -> Change | None:
        """The change for the daemon; None when it is refused, which is logged with the reason."""
        try:
            config = self._load()
            require_reloadable(self.config, config)
            added, removed = self._evaluator.change_candidates(config.plan())
        except StreamevalError as error:
            log.error("reload_failed", error=error.message, hint=error.hint)
            return None
        self.config, self._pickled = config, pickle.dumps(config)
        log.info("reloaded", added=added, removed=removed)
        return Change(config.event_format())
