"""Make the daemon of a configuration, with a new state or one that is resumed from a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from streameval.common.arrays import State
from streameval.config.model import BLOCK, Config
from streameval.errors import ConfigError, InputError, StateError
from streameval.events.further_rewards import RewardField
from streameval.ingest.base import BackfillStart, SourceOffsets
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.options import NamedReward
from streameval.ope.policies.logged import LOGGING
from streameval.service.daemon import Daemon
from streameval.service.dead_letters import DeadLetterQueue, open_dead_letters
from streameval.service.decisions import DecisionOutbox, fingerprint_of
from streameval.service.policy_files import keep_files
from streameval.service.reload import Reload
from streameval.service.snapshots import WAYS_OUT, Snapshot, SnapshotStore

__all__ = ["StartState", "daemon", "dead_letters_of_configuration", "fingerprint", "open_state", "pipeline_of"]
__all__ += ["require_same_configuration", "resume", "start_fresh"]

log = structlog.get_logger("streameval")

E = TypeVar("E")


@dataclass(frozen=True)
class StartState(Generic[E]):
    """Hold the state that a daemon starts with.

    Args:
        evaluator: Takes the events.
        pipeline: Stages of events before the evaluator.
        offsets: Where to continue reading.
        late: Evaluator of candidates and averages that the snapshot lacks.
        decisions: Messages that have not been confirmed.
    """

    evaluator: E
    pipeline: EventPipeline
    offsets: SourceOffsets
    late: Evaluator | None = None
    decisions: Sequence[State] = ()


def fingerprint(config: Config) -> dict[str, Any]:
    """Return the settings that decide what is estimated.

    A snapshot with another fingerprint is refused. All other changes are applied to its state.
    """
    source = {f"source.{key}": value for key, value in config.required_source().identity().items()}
    settings = config.reward.model_dump(mode="json").items()
    reward = {f"reward.{key}": value for key, value in settings if value not in ("reject", None, [])}
    if config.rewards:
        reward = {"rewards": [_identity(field, config.rewards[field.name]) for field in config.reward_fields]}
    ranking = {} if config.ranking is None else {"ranking": repr(config.ranking)}
    engine = {} if config.engine is None else {"engine": config.engine.kind}
    return {"block": BLOCK} | source | reward | ranking | engine


def _identity(field: RewardField, reward: NamedReward) -> list[Any]:
    """Return what decides about one of several rewards, without the keys that earlier versions do not have."""
    options = {name: getattr(reward, name) for name in ("below", "above", "of", "quantile", "quantiles", "per_unit")}
    changed = {name: value for name, value in options.items() if value not in ("reject", {}, None, ())}
    changed |= {
        name: list(value) for name, value in changed.items() if isinstance(value, tuple)
    }  # as a snapshot has them
    return [field.name, field.field, reward.min, reward.max, *([changed] if changed else [])]


def configuration(config: Config) -> str:
    """Return the fingerprint of all settings that decide the numbers, except for the list of candidates."""
    return fingerprint_of({**fingerprint(config), "plan": config.evaluator_config().for_policies(()).settings()})


def start_fresh(config: Config) -> StartState[Evaluator]:
    """Return the state of a start without a snapshot."""
    return StartState(Evaluator.from_config(config.evaluator_config()), pipeline_of(config), {})


def pipeline_of(config: Config) -> EventPipeline:
    """Return the stages of events before the evaluator."""
    goal, *further = config.reward_fields
    limits, source = (goal.low, goal.high), config.required_source()
    return EventPipeline(config.event_format(), source, goal.field, limits, further)


def require_same_configuration(config: Config, path: Path, snapshot: Snapshot) -> None:
    """Require a snapshot with the fingerprint of a configuration.

    Raises:
        StateError: The fingerprint differs.
    """
    before, now = snapshot.fingerprint, fingerprint(config)
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
    config: Config, path: Path, snapshot: Snapshot, reset_policies: Collection[str] = (), *, backfills: bool = False
) -> StartState[Evaluator]:
    """Return the state of a snapshot with the changes of the configuration.

    Args:
        config: The configuration.
        path: File of the snapshot, for messages.
        snapshot: The snapshot.
        reset_policies: Policies that start from zero.
        backfills: Whether new candidates read the log again.

    Raises:
        StateError: The snapshot has another fingerprint, or a schema that cannot be read.
        DamagedError: The content cannot be restored.
        InputError: A policy to reset does not exist.
    """
    require_same_configuration(config, path, snapshot)
    evaluator_config, pipeline = config.evaluator_config(), pipeline_of(config)
    evaluator = Evaluator.from_state(
        snapshot.evaluator, config.reward_model, config.policies.candidates, config.propensity, without_code=True
    )
    evaluator.fold_pending()
    evaluator.report()  # reads every part of the state
    parts = evaluator.parts
    _require_policies(reset_policies, evaluator_config.policies)
    for policy in reset_policies:
        evaluator.reset_policy(policy)
    reset: Collection[str] = reset_policies
    if evaluator.restarts(evaluator_config):
        reset = evaluator_config.policies
        log.warning(
            "restarted_from_zero", reason="another production policy or other propensities: every lift depends on it"
        )
    pipeline.restore(snapshot.pipeline)
    buffered = pipeline.buffered() if backfills else None
    late = evaluator.apply_config(evaluator_config, buffered.events if buffered else 0)
    offsets = snapshot.source_offsets
    pipeline.drop_policies(reset_policies)
    log.info(
        "continued",
        snapshot=str(path),
        written=datetime.fromtimestamp(snapshot.written, UTC).isoformat(timespec="seconds"),
        **{
            kind: compared(parts[kind], after, reset if kind == "policies" else ())
            for kind, after in evaluator_config.parts.items()
        },
    )
    return StartState(evaluator, pipeline, offsets, late, snapshot.decisions)


def _value(value: Any) -> str:
    return "not set" if value is None else f"{value}"


def _require_policies(reset: Collection[str], policies: Collection[str]) -> None:
    names = [name for name in policies if name != LOGGING]
    unknown = sorted(set(reset) - set(names))
    if unknown:
        raise InputError(
            f"--reset-policy: there is no policy {', '.join(unknown)} to reset",
            hint=f"the policies of the configuration are {', '.join(names)}; `logging` is the log itself",
        )


def compared(before: Mapping[str, Any], after: Mapping[str, Any], reset: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the names that are kept, new, reset and dropped.

    Names are reset if their settings changed, or by request.

    >>> compared({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 20, "d": 4})
    {'kept': ['a'], 'new': ['d'], 'reset': ['b'], 'dropped': ['c']}
    """
    again = [name for name in after if name in before and (name in reset or before[name] != after[name])]
    groups = {
        "kept": [name for name in after if name in before and name not in again],
        "new": [name for name in after if name not in before],
        "reset": again,
        "dropped": [name for name in before if name not in after],
    }
    return {group: names for group, names in groups.items() if names}


@contextmanager
def open_state(config: Config, *, reset: bool, needs_state: bool) -> Iterator[SnapshotStore | None]:
    """Open the snapshots of a configuration, None if it keeps none. They are closed if the daemon cannot be made.

    Args:
        config: The configuration.
        reset: Whether to set existing snapshots aside.
        needs_state: Whether to refuse a configuration that keeps no state.

    Raises:
        ConfigError: State is needed, and none is kept.
        StateError: Another process has locked the directory.
    """
    kept = config.kept_state()
    if kept is None or kept.dir is None:
        if needs_state:
            raise ConfigError("there is no state to reset", hint="write state: {dir: DIRECTORY}, or leave --reset out")
        yield None
        return
    config.evaluator_config()  # errors of the configuration are raised here, not as errors of a snapshot
    pipeline_of(config)
    store = SnapshotStore(kept.dir, kept.interval, fingerprint(config))
    try:
        if reset:
            store.set_aside()
        yield store
    except BaseException:
        store.close()
        raise


def daemon(
    path: Path,
    config: Config,
    backfill: BackfillStart | None = None,
    *,
    reset: bool = False,
    reset_policies: Collection[str] = (),
) -> Daemon:
    """Return the daemon of a configuration, ready to run, from the newest snapshot if there is one.

    Args:
        path: File of the configuration, which is read again on SIGHUP.
        config: The configuration.
        backfill: Where the history of a new candidate starts, None for no history.
        reset: Whether to start from zero.
        reset_policies: Policies that start from zero.

    Raises:
        ConfigError: There is no state to reset.
        StateError: The snapshot does not fit the configuration.
    """
    read = partial(resume, config, reset_policies=reset_policies, backfills=backfill is not None)
    with open_state(config, reset=reset, needs_state=bool(reset or reset_policies)) as snapshots:
        start = snapshots.newest(read) if snapshots else None
        return _assemble(path, config, start or start_fresh(config), backfill, snapshots)


def connection_of(config: Config) -> KafkaConnection:
    """Return the connection for topics that are written."""
    source = config.required_source()
    return source if isinstance(source, KafkaConnection) else KafkaConnection()


def dead_letters_of_configuration(config: Config) -> DeadLetterQueue | None:
    """Open the destination of rejected messages, None if they are only counted."""
    return None if config.dead_letters is None else open_dead_letters(config.dead_letters, connection_of(config))


def _decisions(config: Config, waiting: Sequence[State]) -> DecisionOutbox | None:
    if config.decisions is None:
        return None
    from streameval.ingest.kafka.producer import MessageSender

    sender = MessageSender(config.decisions.topic, connection_of(config))
    origin = config.policies.production, configuration(config)
    return DecisionOutbox(sender, *origin, waiting, name=config.daemon_name)


def _assemble(
    path: Path,
    config: Config,
    start: StartState[Evaluator],
    backfill: BackfillStart | None,
    snapshots: SnapshotStore | None,
) -> Daemon:
    settings = config.required_source()
    source, decisions = settings.open(start.offsets), _decisions(config, start.decisions)
    if snapshots is not None:
        directory = snapshots.directory

        def written(snapshot: Snapshot) -> None:
            keep_files(directory, snapshot.evaluator)
            source.commit(snapshot.source_offsets)
            if decisions is not None:
                decisions.saved(snapshot.decisions)

        snapshots.after = written
    history = None if backfill is None else partial(settings.open_backfill, backfill)
    reloading = Reload(lambda: Config.load(path), config, start.evaluator, history)
    return Daemon(
        source,
        start.pipeline,
        start.evaluator,
        stall_after=settings.longest_wait,
        reload=reloading,
        snapshots=snapshots,
        dead_letters=dead_letters_of_configuration(config),
        decisions=decisions,
        backfills=filter(None, [reloading.admit(start.late)]),
        name=config.daemon_name,
    )
