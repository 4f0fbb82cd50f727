"""The world around the daemon: clocks, and the producers of decisions and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from support.fake_kafka import TOPIC, FakeCluster

REWARDS = "rewards"
WINDOW = 5.0
"""Seconds after a decision in which its rewards count."""
START = 1_700_000_000.0
DAY = 86_400.0
PROPENSITY = 0.5
CANDIDATES = ("challenger", "second")
FLUSH_STAGGER = 1.5
"""Seconds between the flushes of two partitions."""


class Clock:
    """The clocks of the daemon's machine. `ahead`: how far its calendar is ahead of the true time, in seconds."""

    def __init__(self) -> None:
        self.elapsed = self.ahead = 0.0

    @property
    def true_time(self) -> float:
        """The time of the producers, in epoch seconds."""
        return START + self.elapsed

    def time(self) -> float:
        return self.true_time + self.ahead

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(0.0, seconds)


@dataclass(frozen=True)
class Event:
    """A decision with its reward. `weights`: those of the candidates."""

    event_id: str
    timestamp: float
    reward: float
    weights: tuple[float, ...]

    def encoded(self, number: int) -> bytes:
        """The event as JSON; `number` makes the message unique."""
        cells = ",".join(
            f'"{name}":{PROPENSITY * weight}' for name, weight in zip(CANDIDATES, self.weights, strict=True)
        )
        return (
            f'{{"number":{number},"event_id":"{self.event_id}","timestamp":{self.timestamp},"action":"a",'
            f'"propensity":{PROPENSITY},"reward":{self.reward},"policies":{{{cells}}}}}'
        ).encode()


@dataclass(frozen=True)
class Reward:
    """A reward that comes separately from its decision."""

    event_id: str
    timestamp: float
    reward: float

    def encoded(self, number: int) -> bytes:
        """The reward as JSON; `number` makes the message unique."""
        return (
            f'{{"number":{number},"event_id":"{self.event_id}","timestamp":{self.timestamp},"reward":{self.reward}}}'
        ).encode()


class Producers:
    """Recommenders that write events, at once or in batches that are flushed one partition after another.

    `coarseness`: seconds to which timestamps are cut; `flush_every`: seconds between two flushes of a partition;
    `is_punctual`: neither; `pauses`: no events are made. Where there is a topic of rewards, those of a decision are
    written to it later.
    """

    def __init__(self, random: Random, clock: Clock, topics: Mapping[str, FakeCluster], *, is_punctual: bool) -> None:
        self._random, self._clock, self._topics = random, clock, topics
        self.coarseness = 0.0 if is_punctual else random.choice([0.0, 0.0, 1.0, 60.0, DAY])
        self.flush_every = 0.0 if is_punctual else random.choice([0.0, 0.0, 10.0, 30.0])
        self.written: list[Event | Reward | None] = []
        self.number_of: dict[bytes, int] = {}
        self.pauses = False
        self._events = 0
        self._unsent: dict[int, list[tuple[float, Event]]] = {}
        self._due: list[tuple[float, Reward]] = []

    @property
    def are_punctual(self) -> bool:
        """Whether messages are written at the time that they are dated."""
        return not self.coarseness and not self.flush_every

    @property
    def have_sent_all(self) -> bool:
        """Whether neither events nor rewards wait to be written."""
        return not self._due and not any(self._unsent.values())

    def become_punctual(self) -> None:
        """Write messages from now on at the time that they are dated."""
        self.coarseness = self.flush_every = 0.0

    def produce(self, count: int) -> None:
        """Make events over a short time."""
        for _ in range(0 if self.pauses else count):
            self._clock.sleep(self._random.expovariate(20.0))
            partition, event = self.some_partition(), self.event()
            if self.flush_every:
                self._unsent.setdefault(partition, []).append((self._clock.true_time, event))
            else:
                self.write(TOPIC, partition, event)

    def flush(self, *, everything: bool = False) -> None:
        """Send the batches and the rewards that are due."""
        for partition, events in self._unsent.items():
            due = self._clock.true_time - self.flush_every - FLUSH_STAGGER * partition
            if events and (everything or events[0][0] < due):
                for _, event in events:
                    self.write(TOPIC, partition, event)
                events.clear()
        self._due.sort(key=lambda each: each[0])
        while self._due and (everything or self._due[0][0] <= self._clock.true_time):
            self.write(REWARDS, self.some_partition(REWARDS), self._due.pop(0)[1])

    def event(self, ahead: float = 0.0) -> Event:
        """An event of now, by a clock that is `ahead` (seconds); its rewards follow, where they come separately."""
        self._events += 1
        timestamp = self._clock.true_time + ahead
        if self.coarseness:
            timestamp -= timestamp % self.coarseness
        weights = tuple(self._random.choice([0.4, 1.6]) for _ in CANDIDATES)
        event = Event(f"e{self._events}", timestamp, self._random.random(), weights)
        for _ in range(self._random.choice([0, 1, 1, 2]) if REWARDS in self._topics else 0):
            after = self._random.choice([0.1, 1.0, 3.0, 4.5, WINDOW + 3.0]) + self._random.random() / 4
            reward = Reward(event.event_id, timestamp + after, self._random.random() / 2)
            self._due.append((self._clock.true_time + after, reward))
        return event

    def some_partition(self, topic: str = TOPIC) -> int:
        """One of the partitions of a topic."""
        return self._random.choice(list(self._topics[topic].logs))

    def write(self, topic: str, partition: int, message: Event | Reward | None) -> None:
        """Write a message; None is a damaged one."""
        number = len(self.written)
        value = b"{damaged %d" % number if message is None else message.encoded(number)
        self._topics[topic].append(partition, value)
        self.number_of[value] = number
        self.written.append(message)
