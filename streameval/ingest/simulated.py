"""Simulate a recommender as the source of events, in a drifting world with known truth."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import BadZipFile

import msgspec
import numpy as np
from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from streameval.common.arrays import Array
from streameval.common.component import StrictModel
from streameval.common.text import Duration, counted, parse_duration
from streameval.errors import InputError
from streameval.ingest.base import (
    BackfillReader,
    BackfillStart,
    Offsets,
    PartitionStatus,
    Records,
    Source,
    SourceOffsets,
    SourceSettings,
    SourceStatus,
    TopicPartition,
)
from streameval.simulation import (
    DailyCycle,
    Drift,
    Interactions,
    InterventionKind,
    ListWorld,
    ShownPages,
    World,
    draw_block,
    truth_after,
)
from streameval.simulation.world import BATCH, DRAW_SIZE, numbered

SIMULATED = "simulated"
LIST_WORLD = "rankings"
SPACING = 0.001  # seconds between timestamps when events are made as fast as possible from a given start time
MIN_WAIT_SECONDS = 0.05  # events come in batches, not one by one

_encoder = msgspec.json.Encoder()


class CycleSettings(StrictModel):
    """Configure how rewards and traffic follow the hour of the day."""

    period: Duration = Field(default="24h", description="Length of the cycle, as a duration.")
    amplitude: float = Field(
        default=0.3, ge=0, lt=1, description="Largest deviation of rewards and traffic, as a share of their mean."
    )
    peak: Duration = Field(default="20h", description="Time of the peak since the start of a period, in UTC.")

    @property
    def cycle(self) -> DailyCycle:
        """Return the cycle in seconds."""
        return DailyCycle(parse_duration(self.period), self.amplitude, parse_duration(self.peak))


class SimulatedSettings(SourceSettings):
    """Configure a simulated recommender with a drifting world and known truth."""

    kind: Literal["simulated"] = "simulated"
    events: PositiveInt | None = Field(default=None, description="Number of events to generate; unlimited by default.")
    rate: NonNegativeFloat = Field(default=1000.0, description="Events per second; 0 is as fast as possible.")
    seed: NonNegativeInt = Field(default=1, description="Equal seeds make equal events.")
    drift: Literal["smooth", "abrupt", "stationary"] = Field(
        default="smooth", description="How user preferences change: gradually, abruptly, or not at all."
    )
    span: PositiveInt = Field(default=100_000, description="Events between one cluster of users and the next.")
    candidates: Annotated[
        list[str], BeforeValidator(lambda value: numbered(value) if isinstance(value, int) else value)
    ] = Field(
        default=3,
        validate_default=True,
        min_length=1,
        max_length=100,
        description="How many candidates, or their names; each is the best for one cluster of users.",
    )
    exploration: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Probability that the logging policy takes a random action, or changes a page by chance.",
    )
    interventions: InterventionKind = Field(
        default="swaps",
        description="How production changes a page of rankings by chance; with shuffles, events have marginals.",
    )
    cycle: CycleSettings | None = Field(
        default=None, description="How rewards and traffic follow the hour of the day; by default not at all."
    )
    action_sets: bool = Field(default=False, description="Write all 25 actions with features, not just the chosen one.")
    world: str | None = Field(
        default=None, description="A prepared world (.npz) instead of a synthetic one, or rankings: a list recommender."
    )
    start_time: AwareDatetime | None = Field(
        default=None, description="Timestamp of the first event; by default the time when it is generated."
    )

    @model_validator(mode="after")
    def _names_differ(self) -> SimulatedSettings:
        if len(set(self.candidates)) < len(self.candidates) or "logging" in self.candidates:
            raise ValueError("candidates must have different names, and none may be called logging")
        return self

    @property
    def description(self) -> str:
        return f"simulated, {counted(self.rate, 'event', 'g')} per second"

    def identity(self) -> dict[str, Any]:
        unset = {"cycle"} if self.cycle is None else set()  # as before there were cycles
        return self.model_dump(mode="json", exclude={"events", "rate"} | unset)

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        return SimulatedSource(
            self, position=offsets[SIMULATED].positions[0] if offsets and SIMULATED in offsets else 0
        )

    def open_backfill(self, start: BackfillStart, live: Mapping[TopicPartition, int]) -> BackfillReader:
        fast = self.model_copy(update={"rate": 0.0})  # past events need no waiting
        return super(SimulatedSettings, fast).open_backfill(start, live)


class SimulatedRecommender:
    """Make the events that the settings describe, as JSON, and the true policy values over time.

    Equal settings make equal events, except for timestamps that the settings do not fix.

    Args:
        settings: describe the world and the events
        now: returns epoch seconds

    Raises:
        InputError: The file of the world cannot be used.
    """

    def __init__(self, settings: SimulatedSettings, *, now: Callable[[], float] = time.time) -> None:
        self.settings, self._now = settings, now
        self.world = self._open_world()
        self.drift = Drift(settings.drift, self.world.clusters, settings.span, cycle=True)
        self.cycle = None if settings.cycle is None else settings.cycle.cycle
        self._start = None if settings.start_time is None else self._evened(settings.start_time.timestamp())

    def lines(self) -> Iterator[bytes]:
        """Yield all events, without line ends."""
        position = 0
        while block := self.after(position):
            yield from block
            position += len(block)

    def after(self, position: int) -> list[bytes]:
        """Return the events from number `position` to the end of its block of 2,000, or none if there are no more."""
        start = position // DRAW_SIZE * DRAW_SIZE
        end = start + DRAW_SIZE if self.settings.events is None else min(start + DRAW_SIZE, self.settings.events)
        if position >= end:
            return []
        return self._block(start)[position - start : end - start]

    def truth(self, events: int) -> dict[str, float]:
        """Return the true value of each policy, `logging` first, after this number of events."""
        truth = truth_after(self.world, self.drift, events)
        if self.cycle is None:
            return truth
        share = float(self.cycle.reward_share(self.times(events - 1, 1)[0]))
        return {policy: share * value for policy, value in truth.items()}

    def truth_lines(self) -> Iterator[bytes]:
        """Yield `{"events": 100, "truth": {"logging": ...}}` as JSON, once every 100 of `settings.events`."""
        for events in range(BATCH, (self.settings.events or 0) + 1, BATCH):
            yield _encoder.encode({"events": events, "truth": self.truth(events)})

    def _block(self, start: int) -> list[bytes]:
        """Return the 2,000 events from number `start`."""
        world, block, times = self.world, start // DRAW_SIZE, self.times(start, DRAW_SIZE)
        counts = np.ones(DRAW_SIZE, dtype=bool)
        if self.cycle is not None:
            random = np.random.default_rng([self.settings.seed, block, DRAW_SIZE])
            counts = random.random(DRAW_SIZE) < self.cycle.reward_share(times)
        timestamps = times.tolist()
        if isinstance(world, ListWorld):
            pages = draw_block(world, self.drift, block, self.settings.seed)
            return encode_pages(replace(pages, clicked=pages.clicked & counts[:, None]), start, timestamps)
        drawn = draw_block(world, self.drift, block, self.settings.seed)
        interactions = replace(drawn, reward=drawn.reward * counts)
        return encode(interactions, start, timestamps, action_sets=self.settings.action_sets)

    def _open_world(self) -> World | ListWorld:
        names, exploration = self.settings.candidates, self.settings.exploration
        if self.settings.world == LIST_WORLD:
            return ListWorld.synthetic(
                self.settings.seed,
                candidates=names,
                exploration=exploration,
                interventions=self.settings.interventions,
            )
        if self.settings.world is None:
            clusters = max(2, len(names))
            return World.synthetic(self.settings.seed, clusters=clusters, candidates=names, exploration=exploration)
        try:
            with Path(self.settings.world).open("rb") as file, np.load(file) as arrays:
                return World.from_arrays(arrays, candidates=names, exploration=exploration)
        except (OSError, EOFError, BadZipFile, ValueError, KeyError) as error:
            hint = "a world is an .npz file with item_features, user_indptr, user_items, user_cluster and theta"
            raise InputError(f"{self.settings.world} is not a world: {error}", hint=hint) from error

    def times(self, first: int, count: int) -> Array:
        """Return the timestamps of these events, in epoch seconds."""
        rate = self.settings.rate
        if self._start is None:
            if not rate:
                return np.full(count, self._now())
            self._start = self._evened(self._now()) - first / rate
        moments = self._start + np.arange(first, first + count, dtype=np.float64) * (1 / rate if rate else SPACING)
        return np.asarray((moments if self.cycle is None else self.cycle.time(moments)).round(6))

    def happened(self, first: int, seconds: float) -> int:
        """Return the number of events in some seconds after event number `first`."""
        if self.cycle is None:
            return int(seconds * self.settings.rate)
        start = float(self.times(first, 1)[0])
        return int((self._evened(start + seconds) - self._evened(start)) * self.settings.rate)

    def _evened(self, time: float) -> float:
        return time if self.cycle is None else float(self.cycle.evened(time))


class SimulatedSource(Source):
    """Read simulated events, `settings.rate` a second.

    Events that are not polled in time wait, as they would in a real log.

    Args:
        settings: describe the events
        position: the number of the first event
        now: returns epoch seconds
        clock: returns seconds
        sleep: waits for some seconds
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
        self._first, self._started = position, clock()
        self._ready: Sequence[bytes] = ()

    def poll(self, timeout: float) -> list[Records]:
        """Return the events since the last call, at most 2,000, waiting up to `timeout` seconds for some."""
        if not self._waiting():
            self._sleep(min(timeout, MIN_WAIT_SECONDS))
        count = self._waiting()
        if count and not self._ready:
            self._ready = self.recommender.after(self.position)
        values, self._ready = self._ready[:count], self._ready[count:]
        if not values:
            return []
        offsets = range(self.position, self.position + len(values))
        self.position += len(values)
        return [Records(SIMULATED, 0, offsets, values)]

    def status(self) -> SourceStatus:
        """Describe the source: always reached, and exhausted after `settings.events`."""
        events = self.settings.events
        has_lag = self.settings.rate or events is not None
        partition = PartitionStatus(SIMULATED, 0, self.position, self._waiting() if has_lag else None)
        exhausted = events is not None and self.position >= events
        return SourceStatus(reached=True, exhausted=exhausted, partitions=(partition,), detail="simulated")

    def offsets(self) -> SourceOffsets:
        """Return the number of the next event."""
        return {SIMULATED: Offsets({0: self.position})}

    def _waiting(self) -> int:
        """Count the events that have happened and were not polled. Without a rate, all have happened."""
        happened = self.settings.events or self.position + DRAW_SIZE
        if self.settings.rate:
            elapsed = self.recommender.happened(self._first, self._clock() - self._started)
            happened = min(self.settings.events or sys.maxsize, self._first + elapsed)
        return max(0, happened - self.position)


def encode(
    interactions: Interactions, first: int, timestamps: Sequence[float], *, action_sets: bool = False
) -> list[bytes]:
    """Encode interactions as JSON in the wire format. `first` is the number of the first one, for `event_id`."""
    names = interactions.world.candidates
    features = _feature_json(interactions.world) if action_sets else []
    target = interactions.distribution if action_sets else interactions.probability
    logged = interactions.propensities() if action_sets else interactions.propensity()
    columns = [interactions.items, interactions.action, interactions.reward, logged]
    columns.append(np.stack([target(candidate) for candidate in range(len(names))], axis=1))
    rows = zip(timestamps, *(column.tolist() for column in columns), strict=True)
    lines = []
    for number, (timestamp, items, action, reward, propensity, chances) in enumerate(rows, start=first):
        event = {"event_id": f"e-{number}", "timestamp": timestamp}
        if action_sets:
            event["actions"] = [f"item-{item}" for item in items]
            event["features"] = msgspec.Raw(b"[" + b",".join([features[item] for item in items]) + b"]")
            event["propensities"] = propensity
        event["action"] = f"item-{items[action]}"
        if not action_sets:
            event["propensity"] = propensity
        event["reward"] = int(reward)
        event["policies"] = dict(zip(names, chances, strict=True))
        lines.append(_encoder.encode(event))
    return lines


def encode_pages(pages: ShownPages, first: int, timestamps: Sequence[float]) -> list[bytes]:
    """Encode pages as JSON in the wire format. `first` is the number of the first one, for `event_id`."""
    world, lines = pages.world, []
    marginals = pages.marginals().tolist() if world.interventions == "shuffles" else []
    columns = pages.shown.tolist(), pages.clicked.tolist(), pages.swap.tolist(), pages.ranks.swapaxes(0, 1).tolist()
    for row, (timestamp, shown, clicked, swap, ranks) in enumerate(zip(timestamps, *columns, strict=True)):
        items = [f"item-{item}" for item in shown]
        ranking: dict[str, Any] = {
            "shown": items,
            "clicked": [item for item, click in zip(items, clicked, strict=True) if click],
        }
        if swap:
            ranking["swap"] = [1, swap]
        if marginals:
            ranking["marginals"] = marginals[row]
        policies = {
            name: {"ranks": {items[index]: own[index] for index, click in enumerate(clicked) if click}, "support": 1}
            for name, own in zip(world.candidates, ranks, strict=True)
        }
        event = {"event_id": f"e-{first + row}", "timestamp": timestamp, "ranking": ranking, "policies": policies}
        lines.append(_encoder.encode(event))
    return lines


@lru_cache(maxsize=2)
def _feature_json(world: World) -> list[bytes]:
    """Encode the features of each item as JSON, once although an item is offered many times."""
    return [_encoder.encode(row) for row in world.item_features.tolist()]
