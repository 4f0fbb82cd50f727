"""Make snapshots as the daemon writes them."""

from __future__ import annotations

from typing import Any

import msgspec

from streameval.config.model import Config
from streameval.ingest.base import Offsets
from streameval.service.snapshots import Snapshot
from streameval.service.startup import StartState, fingerprint, start_fresh


def make_snapshot(number: int = 0, **parts: Any) -> Snapshot:
    """Return a small snapshot with a number as the state of its evaluator."""
    plain: dict[str, Any] = {"version": "0", "written": 0.0, "fingerprint": {}, "decisions": []}
    plain["offsets"] = {"a log": Offsets({0: 7}).to_state()}
    return Snapshot(**plain | {"pipeline": {}, "evaluator": {"number": number}} | parts)


def snapshot_of(config: Config, start: StartState | None = None, **parts: Any) -> Snapshot:
    """Return the snapshot of a program after it was written and read.

    Args:
        config: The configuration.
        start: State of the program, by default a new one.
        parts: Entries that differ from a program that has read nothing and decided nothing.
    """
    start = start or start_fresh(config)
    state = {"pipeline": start.pipeline.state(), "evaluator": start.evaluator.state()}
    snapshot = make_snapshot(fingerprint=fingerprint(config), **state | parts)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot)
