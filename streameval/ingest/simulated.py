"""A recommender with a drifting world and known truth, in place of a log: the same bytes that a real one would send."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np

from streameval.errors import InputError
from streameval.ingest.base import Offsets, PartitionStatus, Records, SourceOffsets, SourceStatus, TopicPartition
from streameval.ingest.settings import SimulatedSettings
from streameval.simulation import Drift, Interactions, World, draw_block, truth_after
from streameval.simulation.stream import BATCH, BLOCK

TOPIC = "simulated"
SPACING = 0.001
"""Seconds between timestamps when events are made as fast as possible from a given start time."""
SHORTEST_WAIT = 0.05
"""Seconds: events are handed over in batches worth the trouble, not one by one."""

_encoder = msgspec.json.Encoder()


def simulated_world(settings: SimulatedSettings) -> World:
    """The world that the settings describe; InputError when its file cannot be used."""
    names = settings.candidates
    if settings.world is None:
        clusters = max(2, len(names))
        return World.synthetic(settings.seed, clusters=clusters, candidates=names, exploration=settings.exploration)
    try:
        with Path(settings.world).open("rb") as file, np.load(file) as arrays:
            return World.from_arrays(arrays, candidates=names, exploration=settings.exploration)
    except (OSError, EOFError, BadZipFile, ValueError, KeyError) as error:
        hint = "a world is an .npz file with item_features, user_indptr, user_items, user_cluster and theta"
        raise InputError(f"{settings.world} is not a world: {error}", hint=hint) from error


class SimulatedRecommender:
    """The stream of events that the settings describe, as JSON, with the truth at every moment of it.

    Equal settings make equal events, timestamps excepted when the settings do not fix them; `now` gives epoch seconds.
    """

    def __init__(self, settings: SimulatedSettings, *, now: Callable[[], float] = time.time) -> None:
        self.settings, self._now = settings, now
        self.world = simulated_world(settings)
        self.drift = Drift(settings.drift, self.world.clusters, settings.span, cycle=True)
        self._start = None if settings.start_time is None else settings.start_time.timestamp()

    def lines(self, first: int = 0) -> Iterator[bytes]:
        """The events from the one with number `first` (0-based) on, one by one, without line ends."""
        position = first
        while block := self.after(position):
            yield from block
            position += len(block)

    def after(self, position: int) -> list[bytes]:
        """The events from number `position` to the end of its block of 2,000; empty when there are no more."""
        start = position // BLOCK * BLOCK
        end = start + BLOCK if self.settings.events is None else min(start + BLOCK, self.settings.events)
        if position >= end:
            return []
        interactions = draw_block(self.world, self.drift, start // BLOCK, self.settings.seed)
        lines = encode(interactions, start, self._timestamps(start), action_sets=self.settings.action_sets)
        return lines[position - start : end - start]

    def truth(self, events: int) -> dict[str, float]:
        """The value of each policy, `logging` first, at the moment when so many events have happened."""
        return truth_after(self.world, self.drift, events)

    def truth_lines(self, every: int = BATCH) -> Iterator[bytes]:
        """`{"events": 100, "truth": {"logging": ...}}` as JSON, for every so many of `settings.events`."""
        for events in range(every, (self.settings.events or 0) + 1, every):
            yield _encoder.encode({"events": events, "truth": self.truth(events)})

    def _timestamps(self, start: int) -> list[float]:
        rate = self.settings.rate
        if self._start is None:
            if not rate:
                return [self._now()] * BLOCK
            self._start = self._now() - start / rate
        moments = self._start + (start + np.arange(BLOCK)) * (1 / rate if rate else SPACING)
        return [float(moment) for moment in moments.round(6)]


class SimulatedSource:
    """A Source of simulated events, `settings.rate` a second, beginning at number `position`.

    Events that are not fetched in time wait, as they would in a real log. `clock` gives seconds for the pace, `sleep`
    waits so many.
    """

    def __init__(
        self,
        settings: SimulatedSettings,
        *,
        position: int = 0,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings, self.position = settings, position
        self.recommender = SimulatedRecommender(settings, now=now)
        self._clock, self._sleep = clock, sleep
        self._first, self._began = position, clock()
        self._ready: Sequence[bytes] = ()

    def poll(self, timeout: float) -> list[Records]:
        """What has happened since the last call, at most 2,000 events; waits up to `timeout` seconds for some."""
        if not self._waiting():
            self._sleep(min(timeout, SHORTEST_WAIT))
        values = self._take(self._waiting())
        if not values:
            return []
        offsets = range(self.position, self.position + len(values))
        self.position += len(values)
        return [Records(TOPIC, 0, offsets, values)]

    def status(self) -> SourceStatus:
        """Always reached; exhausted after `settings.events`."""
        endless = not self.settings.rate and self.settings.events is None
        partition = PartitionStatus(TOPIC, 0, self.position, None if endless else self._waiting())
        return SourceStatus(reached=True, exhausted=self._ended(), partitions=(partition,), detail="simulated")

    def truth(self) -> dict[str, float]:
        """The value of each policy, `logging` first, at the moment after the events that have been polled."""
        return self.recommender.truth(self.position)

    def bookmarks(self) -> SourceOffsets:
        """The number of the next event."""
        return {TOPIC: Offsets({0: self.position})}

    def pause(self, places: Collection[TopicPartition]) -> None:
        """There is one partition only: nothing can be ahead."""

    def commit(self, bookmarks: SourceOffsets) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing to release."""

    def _take(self, count: int) -> Sequence[bytes]:
        if count and not self._ready:
            self._ready = self.recommender.after(self.position)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _waiting(self) -> int:
        """Events that have happened and were not polled; without a rate, everything has happened already."""
        happened = self.settings.events or self.position + BLOCK
        if self.settings.rate:
            elapsed = int((self._clock() - self._began) * self.settings.rate)
            happened = min(self.settings.events or sys.maxsize, self._first + elapsed)
        return max(0, happened - self.position)

    def _ended(self) -> bool:
        return self.settings.events is not None and self.position >= self.settings.events


def encode(
    interactions: Interactions, first: int, timestamps: Sequence[float], *, action_sets: bool = False
) -> list[bytes]:
    """Each interaction as JSON in the wire format; `first` is the number of the first one, for `event_id`."""
    make = _whole if action_sets else _compact
    return [_encoder.encode(event) for event in make(interactions, first, timestamps)]


def _compact(interactions: Interactions, first: int, timestamps: Sequence[float]) -> Iterator[dict[str, Any]]:
    names = interactions.world.candidates
    chosen = interactions.items[np.arange(len(interactions)), interactions.action].tolist()
    chances = np.stack([interactions.probability(candidate) for candidate in range(len(names))], axis=1).tolist()
    rest = zip(timestamps, interactions.propensity().tolist(), interactions.reward.tolist(), strict=True)
    for number, (item, chance, (timestamp, propensity, reward)) in enumerate(
        zip(chosen, chances, rest, strict=True), start=first
    ):
        yield {
            "event_id": f"e-{number}",
            "timestamp": timestamp,
            "action": f"item-{item}",
            "propensity": propensity,
            "reward": int(reward),
            "policies": dict(zip(names, chance, strict=True)),
        }


def _whole(interactions: Interactions, first: int, timestamps: Sequence[float]) -> Iterator[dict[str, Any]]:
    names = interactions.world.candidates
    features = _feature_json(interactions.world)
    given = np.stack([interactions.distribution(candidate) for candidate in range(len(names))], axis=1)
    propensities = interactions.propensities().tolist()
    rest = zip(timestamps, interactions.action.tolist(), interactions.reward.tolist(), strict=True)
    for row, (timestamp, action, reward) in enumerate(rest):
        items = interactions.items[row].tolist()
        yield {
            "event_id": f"e-{first + row}",
            "timestamp": timestamp,
            "actions": [f"item-{item}" for item in items],
            "features": msgspec.Raw(b"[" + b",".join([features[item] for item in items]) + b"]"),
            "propensities": propensities[row],
            "action": f"item-{items[action]}",
            "reward": int(reward),
            "policies": dict(zip(names, given[row].tolist(), strict=True)),
        }


@lru_cache(maxsize=2)
def _feature_json(world: World) -> list[bytes]:
    """The features of each item as JSON: an item is on offer many times, its numbers are written once."""
    return [_encoder.encode(row) for row in world.item_features.tolist()]
