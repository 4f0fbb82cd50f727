"""What the stages of a stream hold back, by their state: how much, from when to when, in how many bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from streameval.arrays import Array, State, from_plain


def held_back(intake: State) -> dict[str, Any]:
    """Of the state of an intake: what is waiting, the time that is over, and what has become of rewards.

    `waiting`: rows with `what`, `count`, `oldest` and `newest` (epoch seconds; None where times are not kept) and
    `bytes`; none of what there is nothing of. `watermark`: what is older has been counted, with `hurried` events that
    were not waited for as long as they should have been; None where events count as they come.
    """
    merging, rows = intake["merging"] or {}, []
    rewards = merging.get("rewards")
    rows.append(_row("events that wait for their turn", merging.get("held", ())))
    if rewards is not None:
        rows.append(_row("rewards that wait for their events", rewards["waiting"]["runs"]))
        rows.append(_row("ids of counted events, for rewards that are late", rewards["decided"]["runs"]))
    for stage, of in (("duplicates", "ids of events, to know copies by"), ("copies", "the same, in the order of time")):
        if intake.get(stage) is not None:
            rows.append(_ids(of, intake[stage]["remembered"]))
    passed = merging.get("passed", -math.inf)
    return {
        "waiting": [row for row in rows if row["count"]],
        "watermark": passed if math.isfinite(passed) else None,
        "hurried": merging.get("hurried", 0),
        "rewards": None if rewards is None else rewards["counts"],
    }


def _row(what: str, parts: Sequence[State]) -> dict[str, Any]:
    """Of parts that have a column of times."""
    times: Array = np.concatenate([np.empty(0), *(from_plain(part["timestamp"]) for part in parts)])
    known = len(times) > 0
    return {
        "what": what,
        "count": len(times),
        "oldest": float(times.min()) if known else None,
        "newest": float(times.max()) if known else None,
        "bytes": sum(_bytes(parts)),
    }


def _ids(what: str, remembered: State) -> dict[str, Any]:
    return {
        "what": what,
        "count": len(from_plain(remembered)),
        "oldest": None,
        "newest": None,
        "bytes": sum(_bytes([remembered])),
    }


def _bytes(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, dict | list | tuple):
            yield from _bytes(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, bytes | memoryview):
            yield len(value)
