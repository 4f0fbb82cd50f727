"""Documents of snapshots, as the daemon writes them."""

from __future__ import annotations

from typing import Any

import msgspec

from streameval.config.model import Config
from streameval.service.startup import StartState, header, start_fresh


def snapshot_document(config: Config, start: StartState | None = None, **parts: Any) -> dict[str, Any]:
    """The document of a program with this evaluator and pipeline, by default new ones, after it was written and read.

    `parts`: other entries than those of a program that has read nothing and decided nothing.
    """
    start = start or start_fresh(config)
    state = {"pipeline": start.pipeline.state(), "evaluator": start.evaluator.state()}
    document = header(config) | {"written": 0.0, "offsets": {}, "decisions": []} | state | parts
    read: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(document))
    return read
