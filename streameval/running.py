"""The daemon that a configuration describes: its source, its state, and what has come since it was last written."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from streameval.arrays import State
from streameval.config import Config
from streameval.continuing import Continued, begin_anew, go_on, header
from streameval.daemon import Daemon
from streameval.errors import ConfigError
from streameval.reloading import Reloading
from streameval.sections import State as StateSection
from streameval.sinks.checkpoints import Checkpoints
from streameval.sinks.deadletter import open_dead_letters
from streameval.sinks.snapshots import Snapshots
from streameval.sources import Bookmark
from streameval.sources.opening import Beginning, open_again, open_source
from streameval.sources.settings import KafkaConnection


def daemon(
    path: Path,
    config: Config,
    backfill: Beginning | None = None,
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
    snapshots = Snapshots(kept.dir)
    try:
        if reset:
            snapshots.set_aside()
        found = snapshots.newest()
        begun = begin_anew(config) if found is None else go_on(config, *found, reset_policies)
        return _assembled(path, config, begun, backfill, snapshots, kept)
    except BaseException:
        snapshots.close()
        raise


def _assembled(
    path: Path,
    config: Config,
    begun: Continued,
    backfill: Beginning | None,
    snapshots: Snapshots | None,
    kept: StateSection | None,
) -> Daemon:
    if config.drift is not None:
        config.drift.make()  # river takes seconds to load: not amid the stream, when nobody would be answered
    settings = config.required_source()
    rewards = getattr(settings, "rewards", None)
    source = open_source(settings, begun.bookmarks, also=[] if rewards is None else [rewards.topic])
    keeper = None

    def committed(document: State) -> None:
        source.commit({topic: Bookmark.from_state(mark) for topic, mark in document["bookmarks"].items()})

    if snapshots is not None and kept is not None:
        keeper = Checkpoints(
            snapshots, kept.interval, header(config), begun.snapshots, committed, capacity=lambda: begun.roster.capacity
        )
    letters = None
    if config.dead_letters is not None:
        connection = settings if isinstance(settings, KafkaConnection) else KafkaConnection()
        letters = open_dead_letters(config.dead_letters, connection)
    roster = begun.roster
    history = None if backfill is None else partial(open_again, settings, backfill)
    reloading = Reloading(path, config, roster, history)
    return Daemon(
        source,
        begun.intake,
        roster,
        examine=lambda events: (f"{each}; {each.hint}" for each in roster.shortfalls(events)),
        reload=reloading,
        keeper=keeper,
        letters=letters,
        backfills=[late for late in map(reloading.admit, begun.late) if late is not None],
    )
