"""Cost of each stage between decoding and the evaluator, in microseconds of processor time per event.

    python tests/benchmarks/stages.py

Four partitions in step, polls of 2000 events with ten policies; the median of some rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import orjson
from throughput import POLICIES, messages

from streameval.events import EventBatch, JsonDecoder, RewardBatch, RewardDecoder
from streameval.events.origin import Origin
from streameval.ingest.stages import Deduplication, EventOrder, RewardStore

POLL, PARTITIONS = 2000, 4
SHARE_REWARDED = 0.1


def polls(values: list[bytes], topic: str) -> Iterator[tuple[list[bytes], Origin]]:
    """Messages in polls of a few hundred of each partition."""
    each = POLL // PARTITIONS
    for number, first in enumerate(range(0, len(values), POLL)):
        part = [value for place in range(PARTITIONS) for value in values[first + place : first + POLL : PARTITIONS]]
        offsets = range(number * each, (number + 1) * each)
        yield part, Origin.of(topic, [(place, offsets) for place in range(PARTITIONS)])


def decoded(values: list[bytes], events: JsonDecoder, with_origin: bool) -> list[EventBatch]:
    return [events.decode_batch(part, origin if with_origin else None) for part, origin in polls(values, "a")]


def rewards_for(values: list[bytes], seed: int = 5) -> list[bytes]:
    """Rewards of a tenth of the decisions, up to a minute later, in the order of time."""
    rng = np.random.default_rng(seed)
    rewarded = [orjson.loads(value) for value in values if rng.random() < SHARE_REWARDED]
    late = [
        {"event_id": each["event_id"], "timestamp": each["timestamp"] + delay, "reward": 1}
        for each, delay in zip(rewarded, rng.uniform(0, 60, len(rewarded)).tolist(), strict=True)
    ]
    return [orjson.dumps(each) for each in sorted(late, key=lambda each: each["timestamp"])]


def joining(window: float) -> EventOrder:
    rewards = RewardStore("b", window=window, default=0.0, combine="first", max_lateness=5.0, max_bytes=2**30)
    made = EventOrder("a", max_lateness=5.0, idle_timeout=10.0, max_bytes=2**30, rewards=rewards)
    made.expect([*[("a", place) for place in range(PARTITIONS)], ("b", 0)])
    return made


def joined(batches: list[EventBatch], rewards: list[RewardBatch], window: float) -> int:
    """Read both topics in step; the most decisions that waited."""
    stage, most = joining(window), 0
    for batch, late in zip(batches, rewards, strict=True):
        stage.take(batch)
        stage.take_rewards(late)
        most = max(most, len(stage.held))
    return most


def ordered(batches: list[EventBatch], max_lateness: float) -> int:
    stage, most = EventOrder("a", max_lateness=max_lateness, idle_timeout=10.0, max_bytes=2**30), 0
    stage.expect([("a", place) for place in range(PARTITIONS)])
    for batch in batches:
        stage.take(batch)
        most = max(most, len(stage.held))
    return most


def sifted(batches: list[EventBatch], remembered: int) -> None:
    stage = Deduplication(remembered)
    for batch in batches:
        stage.take(batch)


def microseconds(task: Callable[[], object], events: int, rounds: int) -> float:
    measured = []
    for _ in range(rounds):
        before = time.process_time()
        task()
        measured.append((time.process_time() - before) / events * 1e6)
    return statistics.median(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    values = messages(options.events)
    plain, known = JsonDecoder(POLICIES), JsonDecoder(POLICIES, identified=True)
    batches = decoded(values, known, with_origin=True)
    late = rewards_for(values)
    edges = np.searchsorted([orjson.loads(each)["timestamp"] for each in late], [b.timestamp.max() for b in batches])
    cuts = list(zip([0, *edges[:-1].tolist()], edges.tolist(), strict=True))
    read = [RewardDecoder().decode_batch(late[a:b], Origin.of("b", [(0, range(a, b))])) for a, b in cuts]
    tasks: dict[str, Callable[[], object]] = {
        "decoding": lambda: decoded(values, plain, with_origin=False),
        "decoding, with origins": lambda: decoded(values, plain, with_origin=True),
        "decoding, with origins and identities": lambda: decoded(values, known, with_origin=True),
        "duplicates among 100,000": lambda: sifted(batches, 100_000),
        "duplicates among 1,000,000": lambda: sifted(batches, 1_000_000),
        "order, max_lateness 5 s (5,000 events)": lambda: ordered(batches, 5.0),
        "order, max_lateness 100 s (100,000 events)": lambda: ordered(batches, 100.0),
        "join, window 60 s (60,000 decisions)": lambda: joined(batches, read, 60.0),
        "join, window 300 s (300,000 decisions)": lambda: joined(batches, read, 300.0),
    }
    for name, task in tasks.items():
        print(f"{name:45} {microseconds(task, len(values), options.rounds):6.2f} us an event")


if __name__ == "__main__":
    main()
