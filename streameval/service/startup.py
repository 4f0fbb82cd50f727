"""The daemon that a configuration describes: its source, its state, and what has come since it was last written.

Going on from a snapshot: whether it is of the same numbers, and what the configuration changes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from streameval.common.arrays import State
from streameval.config.model import BLOCK, Config
from streameval.config.model import State as StateSection
from streameval.errors import ConfigError, InputError, StateError
from streameval.ingest.base import BackfillStart, Offsets, SourceOffsets
from streameval.ingest.kafka.settings import KafkaConnection
from streameval.ingest.pipeline import EventPipeline, PipelineSettings
from streameval.ope.evaluator.cohorts import CohortEvaluator, named_parts
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.plan import Plan
from streameval.ope.policies import LOGGING
from streameval.service.daemon import Daemon
from streameval.service.dead_letters import open_dead_letters
from streameval.service.reload import Reload
from streameval.service.snapshots import SnapshotStore, SnapshotWriter, evaluator_from
from streameval.service.status import NEVER, SnapshotStatus

SCHEMA = 1
WAYS_OUT = "--reset begins anew and sets the old snapshots aside; another state.dir keeps both"

Parts = Mapping[str, Mapping[str, Any]]
"""Policies, estimators and averages by name."""

log = structlog.get_logger("streameval")


@dataclass(frozen=True)
class Resumed:
    """What a daemon begins with. `late`: evaluators of what the snapshot does not know."""

    roster: CohortEvaluator
    intake: EventPipeline
    bookmarks: SourceOffsets
    snapshots: SnapshotStatus = NEVER
    late: Sequence[Evaluator] = ()


def header(config: Config) -> State:
    """What every snapshot says of who wrote it."""
    return {"schema": SCHEMA, "version": version("streameval"), "fingerprint": fingerprint(config)}


def fingerprint(config: Config) -> dict[str, Any]:
    """The parts of a configuration that decide what the numbers are of: by key, as plain values.

    Whatever else changes, the numbers go on: see `CohortEvaluator.change`.
    """
    source = {f"source.{key}": value for key, value in config.required_source().identity().items()}
    reward = {f"reward.{key}": value for key, value in config.reward.model_dump(mode="json").items()}
    return {"block": BLOCK} | source | reward


def begin_anew(config: Config) -> Resumed:
    """Without a snapshot."""
    return Resumed(CohortEvaluator(config.plan()), EventPipeline(config.event_format(), _stages(config)), {})


def _stages(config: Config) -> PipelineSettings:
    return PipelineSettings(config.required_source(), config.reward.field, (config.reward.min, config.reward.max))


def go_on(config: Config, path: Path, document: State, reset_policies: Collection[str] = ()) -> Resumed:
    """From a snapshot. StateError when its numbers are not those of this configuration, or cannot be read."""
    if document.get("schema") != SCHEMA:
        raise StateError(
            f"{path} has schema {document.get('schema')}, this version reads {SCHEMA}",
            hint=f"use the version that wrote it, or start anew: {WAYS_OUT}",
        )
    _refuse_others(path, document["fingerprint"], fingerprint(config))
    plan = config.plan()
    roster = evaluator_from(document["roster"], config.reward_model, config.policies.candidates)
    before = roster.named_parts
    roster = _without(roster, plan, reset_policies)
    late = roster.adopt(plan)
    bookmarks = {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
    intake = EventPipeline.from_state(document["intake"], config.event_format(), _stages(config))
    intake.drop_policies(reset_policies)
    _tell(path, document, before, named_parts(plan), reset_policies)
    return Resumed(roster, intake, bookmarks, replace(NEVER, written_at=document["written"]), late)


def _refuse_others(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    differing = [
        f"{key} was {_said(before.get(key))} and is now {_said(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise StateError(
            f"the snapshot {path} is of other numbers, which must not be mixed with these: {'; '.join(differing)}",
            hint=WAYS_OUT,
        )


def _said(value: Any) -> str:
    return "not set" if value is None else f"{value}"


def _without(roster: CohortEvaluator, plan: Plan, reset: Collection[str]) -> CohortEvaluator:
    """Forget policies that are to begin anew."""
    retrainable = [name for name in plan.policies if name != LOGGING]
    unknown = sorted(set(reset) - set(retrainable))
    if unknown:
        raise InputError(
            f"--reset-policy: there is no policy {', '.join(unknown)} that could have been retrained",
            hint=f"the policies of the configuration are {', '.join(retrainable)}; `logging` is what took the actions",
        )
    for policy in reset:
        roster.forget(policy)
    return roster


def _tell(path: Path, document: State, before: Parts, after: Parts, reset: Collection[str]) -> None:
    log.info(
        "continued",
        snapshot=str(path),
        written=datetime.fromtimestamp(document["written"], UTC).isoformat(timespec="seconds"),
        **{kind: compared(before[kind], now, reset if kind == "policies" else ()) for kind, now in after.items()},
    )


def compared(before: Mapping[str, Any], after: Mapping[str, Any], reset: Collection[str] = ()) -> dict[str, list[str]]:
    """Which names are kept, new, reset (they begin anew, being something else now, or by request), and dropped.

    >>> compared({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 20, "d": 4})
    {'kept': ['a'], 'new': ['d'], 'reset': ['b'], 'dropped': ['c']}
    """
    again = [name for name in after if name in before and (name in reset or before[name] != after[name])]
    sorts = {
        "kept": [name for name in after if name in before and name not in again],
        "new": [name for name in after if name not in before],
        "reset": again,
        "dropped": [name for name in before if name not in after],
    }
    return {sort: names for sort, names in sorts.items() if names}


def daemon(
    path: Path,
    config: Config,
    backfill: BackfillStart | None = None,
    *,
    reset: bool = False,
    reset_policies: Collection[str] = (),
) -> Daemon:
    """Ready to run, from the newest snapshot if there is one; the file at `path` is read again on SIGHUP.

    `reset` begins anew, `reset_policies` lets some policies begin anew; both need a state that is kept.
    """
    kept = config.kept_state()
    if kept is None or kept.dir is None:
        if reset or reset_policies:
            raise ConfigError("there is no state to reset", hint="write state: {dir: DIRECTORY}, or leave --reset out")
        return _assembled(path, config, begin_anew(config), backfill, None, None)
    store = SnapshotStore(kept.dir)
    try:
        if reset:
            store.set_aside()
        found = store.newest()
        begun = begin_anew(config) if found is None else go_on(config, *found, reset_policies)
        return _assembled(path, config, begun, backfill, store, kept)
    except BaseException:
        store.close()
        raise


def _assembled(
    path: Path,
    config: Config,
    begun: Resumed,
    backfill: BackfillStart | None,
    store: SnapshotStore | None,
    kept: StateSection | None,
) -> Daemon:
    settings = config.required_source()
    source = settings.open(begun.bookmarks)
    roster = begun.roster
    writer = None

    def commit(document: State) -> None:
        source.commit({topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()})

    if store is not None and kept is not None:
        writer = SnapshotWriter(store, kept.interval, header(config), begun.snapshots, commit)
    dead_letters = None
    if config.dead_letters is not None:
        dead_letters = open_dead_letters(config.dead_letters, settings.connection or KafkaConnection())

    def examine(events: EventBatch) -> Iterator[str]:
        if config.drift is not None:
            Background(config.drift.make)  # imports river, which takes a second, before the loop needs it
        return (f"{each}; {each.hint}" for each in roster.shortfalls(events))

    history = None if backfill is None else partial(settings.open_backfill, backfill)
    reloading = Reload(path, config, roster, history)
    return Daemon(
        source,
        begun.intake,
        roster,
        examine=examine,
        reload=reloading,
        snapshots=writer,
        dead_letters=dead_letters,
        backfills=[late for late in map(reloading.admit, begun.late) if late is not None],
    )
