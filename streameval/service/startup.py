"""The daemon of a configuration: with a fresh state, or resumed from a snapshot that fits the configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from streameval.common.arrays import State
from streameval.config.model import BLOCK, Config
from streameval.errors import ConfigError, InputError, StateError
from streameval.events import EventBatch
from streameval.ingest.base import BackfillStart, Offsets, SourceOffsets
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies.logged import LOGGING
from streameval.service.daemon import Daemon
from streameval.service.dead_letters import DeadLetterQueue, open_dead_letters
from streameval.service.decisions import DecisionOutbox, fingerprint_of
from streameval.service.policy_files import keep_files
from streameval.service.reload import Reload
from streameval.service.snapshots import (
    DAMAGED,
    SCHEMA,
    WAYS_OUT,
    SnapshotStore,
    SnapshotWriter,
    found_in,
    require_document,
)
from streameval.service.status import own_version

__all__ = [
    "StartState",
    "daemon",
    "dead_letters_of_configuration",
    "fingerprint",
    "from_newest",
    "header",
    "pipeline_of",
]
__all__ += ["require_same_configuration", "resume", "start_fresh"]

LOST = (
    "every snapshot is damaged: all numbers start from zero, and the source is read from its configured start; "
    "with `start: latest`, events since the last snapshot are not counted"
)

log = structlog.get_logger("streameval")


E = TypeVar("E")
Made = TypeVar("Made")


@dataclass(frozen=True)
class StartState(Generic[E]):
    """The state that a daemon starts with, written to a snapshot at `written_at` (epoch seconds).

    `late`: an evaluator of parts that the snapshot lacks. `decisions`: messages whose delivery is not confirmed.
    """

    evaluator: E
    pipeline: EventPipeline
    offsets: SourceOffsets
    written_at: float | None = None
    late: Evaluator | None = None
    decisions: Sequence[State] = ()


def header(config: Config) -> State:
    """Entries that are the same in every snapshot."""
    return {"schema": SCHEMA, "version": own_version(), "fingerprint": fingerprint(config)}


def fingerprint(config: Config) -> dict[str, Any]:
    """The parts of a configuration that decide what is estimated, by key, as plain values.

    A snapshot of another fingerprint is refused; all other changes are applied to its state.
    """
    source = {f"source.{key}": value for key, value in config.required_source().identity().items()}
    reward = {f"reward.{key}": value for key, value in config.reward.model_dump(mode="json").items()}
    if config.rewards:
        reward = {"rewards": [list(each) for each in config.reward_fields]}
    ranking = {} if config.ranking is None else {"ranking": repr(config.ranking)}
    engine = {} if config.engine is None else {"engine": config.engine.kind}
    return {"block": BLOCK} | source | reward | ranking | engine


def configuration(config: Config) -> str:
    """The fingerprint of all settings that decide the numbers, except for the list of candidates."""
    return fingerprint_of({**fingerprint(config), "plan": config.evaluator_config().for_policies(()).settings()})


def start_fresh(config: Config) -> StartState[Evaluator]:
    """The state without a snapshot."""
    return StartState(Evaluator.from_config(config.evaluator_config()), pipeline_of(config), {})


def pipeline_of(config: Config, *, located: bool = False) -> EventPipeline:
    """The stages of events on their way from messages to the evaluator; `located`: events keep their offsets."""
    goal, *further = config.reward_fields
    source, located = config.required_source(), located or config.decisions is not None
    limits = goal.low, goal.high
    return EventPipeline(config.event_format(), source, goal.field, limits, further, located=located)


def require_same_configuration(config: Config, path: Path, document: State) -> None:
    """Require a snapshot of this version and of the same fingerprint.

    Raises:
        StateError: The snapshot has another schema or fingerprint.
        DamagedError: Its content is not that of a snapshot.
    """
    require_document(path, document)
    before, now = document["fingerprint"], fingerprint(config)
    differing = [
        f"{key} was {_value(before.get(key))} and is now {_value(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise StateError(
            f"the snapshot {path} was computed with a different configuration: {'; '.join(differing)}", hint=WAYS_OUT
        )


def resume(
    config: Config, path: Path, document: State, reset_policies: Collection[str] = (), *, backfills: bool = False
) -> StartState[Evaluator]:
    """The state of a snapshot, with the changes of the configuration; `backfills`: of new candidates.

    Raises:
        StateError: The snapshot has another schema or fingerprint.
        DamagedError: Its content is not that of a snapshot.
        InputError: A policy to reset does not exist.
    """
    require_same_configuration(config, path, document)
    plan, pipeline = config.evaluator_config(), pipeline_of(config)
    evaluator = Evaluator.from_state(
        document["evaluator"], config.reward_model, config.policies.candidates, config.propensity, without_code=True
    )
    evaluator.fold_pending()
    evaluator.report()  # reads every part of the state
    parts = evaluator.parts
    _require_policies(reset_policies, plan.policies)
    for policy in reset_policies:
        evaluator.reset_policy(policy)
    reset: Collection[str] = reset_policies
    if evaluator.restarts(plan):
        reset = plan.policies
        log.warning(
            "restarted_from_zero", reason="another production policy or other propensities: every lift depends on it"
        )
    pipeline.restore(document["pipeline"])
    buffered = pipeline.buffered() if backfills else None
    late = evaluator.apply_config(plan, buffered.events if buffered else 0)
    offsets = {topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()}
    pipeline.drop_policies(reset_policies)
    log.info(
        "continued",
        snapshot=str(path),
        written=datetime.fromtimestamp(document["written"], UTC).isoformat(timespec="seconds"),
        **{
            kind: compared(parts[kind], after, reset if kind == "policies" else ())
            for kind, after in plan.parts.items()
        },
    )
    return StartState(evaluator, pipeline, offsets, document["written"], late, document["decisions"])


def _value(value: Any) -> str:
    return "not set" if value is None else f"{value}"


def _require_policies(reset: Collection[str], policies: Collection[str]) -> None:
    known = [name for name in policies if name != LOGGING]
    unknown = sorted(set(reset) - set(known))
    if unknown:
        raise InputError(
            f"--reset-policy: there is no policy {', '.join(unknown)} to reset",
            hint=f"the policies of the configuration are {', '.join(known)}; `logging` is the log itself",
        )


def compared(before: Mapping[str, Any], after: Mapping[str, Any], reset: Collection[str] = ()) -> dict[str, list[str]]:
    """The names that are kept, new, reset (their settings changed, or by request), and dropped.

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
    """The daemon of a configuration, ready to run, from the newest snapshot if there is one.

    Args:
        path: The file of the configuration, which is read again on SIGHUP.
        config: The configuration.
        backfill: Where a new candidate's history starts; None gives it no history.
        reset: Start from zero.
        reset_policies: Start these policies from zero.

    Raises:
        ConfigError: There is no state to reset.
        StateError: The snapshot does not fit the configuration.
    """
    read = partial(resume, config, reset_policies=reset_policies, backfills=backfill is not None)
    return from_newest(
        config,
        read,
        lambda: start_fresh(config),
        lambda start, snapshots: _assemble(path, config, start, backfill, snapshots),
        reset=reset,
        needs_state=bool(reset or reset_policies),
    )


def from_newest(
    config: Config,
    read: Callable[[Path, State], StartState[E]],
    fresh: Callable[[], StartState[E]],
    assemble: Callable[[StartState[E], SnapshotWriter | None], Made],
    *,
    reset: bool,
    needs_state: bool,
) -> Made:
    """`assemble` of the newest snapshot as `read` understands it, or of a `fresh` start without one, or by `reset`.

    Raises:
        ConfigError: `needs_state`, and none is kept.
        StateError: The snapshot does not fit the configuration.
    """
    kept = config.kept_state()
    if kept is None or kept.dir is None:
        if needs_state:
            raise ConfigError("there is no state to reset", hint="write state: {dir: DIRECTORY}, or leave --reset out")
        return assemble(fresh(), None)
    store = SnapshotStore(kept.dir)
    try:
        if reset:
            store.set_aside()
        (
            config.evaluator_config(),
            pipeline_of(config),
        )  # raise here what is wrong with the configuration, not with a snapshot
        start = store.newest(read)
        if start is None:
            if not reset and found_in(kept.dir, DAMAGED):
                log.error("state_lost", reason=LOST, directory=str(kept.dir), damaged=store.damaged)
            start = fresh()
        return assemble(start, SnapshotWriter(store, kept.interval, header(config), start.written_at))
    except BaseException:
        store.close()
        raise


def dead_letters_of_configuration(config: Config) -> DeadLetterQueue | None:
    """Where the rejected messages of a configuration go."""
    source = config.required_source()
    connection = source if isinstance(source, KafkaConnection) else KafkaConnection()
    return None if config.dead_letters is None else open_dead_letters(config.dead_letters, connection)


def _assemble(
    path: Path,
    config: Config,
    start: StartState[Evaluator],
    backfill: BackfillStart | None,
    snapshots: SnapshotWriter | None = None,
) -> Daemon:
    settings, kept = config.required_source(), config.kept_state()
    source = settings.open(start.offsets)
    evaluator = start.evaluator
    connection = settings if isinstance(settings, KafkaConnection) else KafkaConnection()
    decisions = None
    if config.decisions is not None:
        from streameval.ingest.kafka.producer import MessageSender

        sender, production = MessageSender(config.decisions.topic, connection), config.policies.production
        decisions = DecisionOutbox(sender, production, configuration(config), start.decisions)

    def written(document: State) -> None:
        if kept is not None and kept.dir is not None:
            keep_files(kept.dir, document["evaluator"])
        source.commit({topic: Offsets.from_state(mark) for topic, mark in document["offsets"].items()})
        if decisions is not None:
            decisions.saved(document["decisions"])

    if snapshots is not None:
        snapshots.after = written

    def examine(events: EventBatch) -> Iterator[str]:
        return (f"{each}; {each.hint}" for each in evaluator.missing_fields(events))

    history = None if backfill is None else partial(settings.open_backfill, backfill)
    reloading = Reload(path, config, evaluator, history)
    return Daemon(
        source,
        start.pipeline,
        evaluator,
        examine=examine,
        reload=reloading,
        snapshots=snapshots,
        dead_letters=dead_letters_of_configuration(config),
        decisions=decisions,
        backfills=filter(None, [reloading.admit(start.late)]),
    )
