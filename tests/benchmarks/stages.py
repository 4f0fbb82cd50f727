"""Measure each stage between the source and the evaluator, on polls of 2,000 events from four partitions in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import orjson
from measuring import Benchmark, Ratio, Work
from memory_source import POLL, parsing
from messages import CANDIDATES, compact

from streameval.events import EventBatch, JsonDecoder, RewardBatch, RewardDecoder
from streameval.events.origin import Origin
from streameval.ingest.stages import Deduplication, EventOrder, RewardStore

PARTITIONS = 4
SHARE_REWARDED = 0.1


def polls(values: Sequence[bytes]) -> Iterator[tuple[list[bytes], Origin]]:
    """Yield messages in polls of a few hundred from each partition."""
    share = POLL // PARTITIONS
    for number, first in enumerate(range(0, len(values), POLL)):
        poll = [
            value for partition in range(PARTITIONS) for value in values[first + partition : first + POLL : PARTITIONS]
        ]
        offsets = range(number * share, (number + 1) * share)
        yield poll, Origin.from_parts("a", [(partition, offsets) for partition in range(PARTITIONS)])


def decoded(values: Sequence[bytes], decoder: JsonDecoder, has_origin: bool) -> list[EventBatch]:
    return [decoder.decode_batch(poll, origin if has_origin else None) for poll, origin in polls(values)]


def rewards_for(values: Sequence[bytes], batches: Sequence[EventBatch], seed: int = 5) -> list[RewardBatch]:
    """Make rewards for a tenth of the decisions, up to a minute later, in order.

    Returns:
        One batch for each of `batches`.
    """
    rng = np.random.default_rng(seed)
    rewarded = [orjson.loads(value) for value in values if rng.random() < SHARE_REWARDED]
    late = [
        {"event_id": reward["event_id"], "timestamp": reward["timestamp"] + delay, "reward": 1}
        for reward, delay in zip(rewarded, rng.uniform(0, 60, len(rewarded)).tolist(), strict=True)
    ]
    late.sort(key=lambda reward: reward["timestamp"])
    edges = np.searchsorted(
        [reward["timestamp"] for reward in late], [batch.timestamp.max() for batch in batches]
    ).tolist()
    lines = [orjson.dumps(reward) for reward in late]
    return [
        RewardDecoder().decode_batch(lines[first:end], Origin.from_parts("b", [(0, range(first, end))]))
        for first, end in zip([0, *edges], edges, strict=False)
    ]


def joined(batches: Sequence[EventBatch], rewards: Sequence[RewardBatch], window: float) -> None:
    store = RewardStore("b", window=window, default=0.0, combine="first", max_lateness=5.0, max_bytes=2**30)
    stage = EventOrder("a", max_lateness=5.0, idle_timeout=10.0, max_bytes=2**30, rewards=store)
    stage.expect([*[("a", partition) for partition in range(PARTITIONS)], ("b", 0)])
    for batch, late in zip(batches, rewards, strict=True):
        stage.take(batch)
        stage.take(rewards=[late])


def ordered(batches: Sequence[EventBatch], max_lateness: float) -> None:
    stage = EventOrder("a", max_lateness=max_lateness, idle_timeout=10.0, max_bytes=2**30)
    stage.expect([("a", partition) for partition in range(PARTITIONS)])
    for batch in batches:
        stage.take(batch)


def deduplicated(batches: Sequence[EventBatch], remembered: int) -> None:
    stage = Deduplication(remembered)
    for batch in batches:
        stage.take(batch)


def benchmark(events: int = 200_000) -> Benchmark:
    values = compact(events)
    plain, identified = JsonDecoder(CANDIDATES), JsonDecoder(CANDIDATES, identified=True)
    batches = decoded(values, identified, has_origin=True)
    rewards = rewards_for(values, batches)
    tasks = {
        "decoding": lambda: decoded(values, plain, has_origin=False),
        "decoding, with origins": lambda: decoded(values, plain, has_origin=True),
        "decoding, with origins and identities": lambda: decoded(values, identified, has_origin=True),
        "duplicates among 100,000": lambda: deduplicated(batches, 100_000),
        "order, max_lateness 5 s": lambda: ordered(batches, 5.0),
        "order, max_lateness 100 s": lambda: ordered(batches, 100.0),
        "join, window 60 s": lambda: joined(batches, rewards, 60.0),
    }
    works = {name: Work(task, events) for name, task in tasks.items()}
    ratios = [Ratio(name, "orjson.loads") for name in works]
    title = "Stages: 1,000 compact events per second of event time"
    return Benchmark(title, {**works, "orjson.loads": parsing(values)}, ratios)
