"""Read logs in polls as they are written, over restarts."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from streameval.ingest.base import Records, TopicPartition
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator

Logs = Mapping[TopicPartition, Sequence[tuple[Any, ...]]]
"""Messages by partition, with the seconds at which they are written first, and their content last."""


def polls(written: Logs, seed: int, moments: Iterable[float], start: float, most: int) -> Iterator[tuple[Any, Any]]:
    """Yield messages at each moment, fewer than `most` of a partition, and when the end of a partition was seen."""
    read, rng = dict.fromkeys(written, 0), np.random.default_rng(seed)
    for now in moments:
        records, ended = [], dict[TopicPartition, float | None]()
        for partition, messages in written.items():
            first, end = read[partition], bisect(messages, now, key=itemgetter(0))
            last = min(end, first + int(rng.integers(0, most)))
            if last > first:
                records.append(Records(*partition, range(first, last), [part[-1] for part in messages[first:last]]))
            ended[partition], read[partition] = start + now if first == end else None, last
        yield records, ended


def read_through(
    stages: Callable[[], EventPipeline],
    evaluator: Evaluator,
    polled: Iterable[tuple[Any, Any]],
    restarts: Sequence[int],
) -> tuple[EventPipeline, Evaluator]:
    """Return both after all polls. They restart after polls with a number of this divisor and remainder, if any."""
    intake = stages()
    for number, (records, ended) in enumerate(polled):
        evaluator.update(intake.take(records, ended))
        if restarts and number % restarts[0] == restarts[1]:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode([intake.state(), evaluator.state()]))
            intake, evaluator = stages(), Evaluator.from_state(state[1])
            intake.restore(state[0])
    return intake, evaluator
