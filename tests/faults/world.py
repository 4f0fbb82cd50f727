"""Simulate the world around the daemon: clocks, and the producers of decisions and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from support.fake_kafka import TOPIC, FakeCluster

REWARDS = "rewards"
WINDOW = 5.0
"""Seconds after a decision while its rewards count."""
START = 1_700_000_000.0
DAY = 86_400.0
PROPENSITY = 0.5
CANDIDATES = ("challenger", "second")
FLUSH_STAGGER = 1.5
"""Seconds between the flushes of two partitions."""


class Clock:
    """Simulate the clocks of the daemon's machine. Its calendar is `ahead` seconds ahead of the true time."""

    def __init__(self) -> None:
        self.elapsed = self.ahead = 0.0

    @property
    def true_time(self) -> float:
        """Return the time of the producers in epoch seconds."""
        return START + self.elapsed

    def time(self) -> float:
        return self.true_time + self.ahead

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(0.0, seconds)


@dataclass(frozen=True)
class Event:
    """Hold a decision with its reward, and the importance weight of each candidate."""

    event_id: str
    timestamp: float
    reward: float
    weights: tuple[float, ...]

    def encoded(self, number: int) -> bytes:
        """Encode the event as JSON. `number` makes the message unique."""
        cells = ",".join(
            f'"{name}":{PROPENSITY * weight}' for name, weight in zip(CANDIDATES, self.weights, strict=True)
        )
        return (
            f'{{"number":{number},"event_id":"{self.event_id}","timestamp":{self.timestamp},"action":"a",'
            f'"propensity":{PROPENSITY},"reward":{self.reward},"policies":{{{cells}}}}}'
        ).encode()


@dataclass(frozen=True)
class Reward:
    """Hold a reward that comes separately from its decision."""

    event_id: str
    timestamp: float
    reward: float

    def encoded(self, number: int) -> bytes:
        """Encode the reward as JSON. `number` makes the message unique."""
        return (
            f'{{"number":{number},"event_id":"{self.event_id}","timestamp":{self.timestamp},"reward":{self.reward}}}'
        ).encode()


class Producers:
    """Simulate recommenders that write events, at once or in batches that are flushed one partition after another.

    If there is a topic of rewards, the rewards of a decision are written to it later.

    Args:
        random: Source of all choices.
        clock: Clock of the schedule.
        topics: Topics by name.
        is_punctual: Whether timestamps are exact, and messages are written at once.

    Attributes:
        coarseness: Seconds to which timestamps are cut.
        flush_every: Seconds between two flushes of a partition.
        pauses: Whether no events are made.
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
        """Return whether messages are written at their own time."""
        return not self.coarseness and not self.flush_every

    @property
    def have_sent_all(self) -> bool:
        """Return whether no events and no rewards wait to be written."""
        return not self._due and not any(self._unsent.values())

    def become_punctual(self) -> None:
        """Write messages at their own time from now on."""
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
        self._due.sort(key=lambda due_reward: due_reward[0])
        while self._due and (everything or self._due[0][0] <= self._clock.true_time):
            self.write(REWARDS, self.some_partition(REWARDS), self._due.pop(0)[1])

    def event(self, ahead: float = 0.0) -> Event:
        """Make an event of now, and its rewards if they are separate.

        Args:
            ahead: Seconds that the producer's clock is ahead.
        """
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
        """Return one of the partitions of a topic."""
        return self._random.choice(list(self._topics[topic].logs))

    def write(self, topic: str, partition: int, message: Event | Reward | None) -> None:
        """Write a message. None stands for a damaged one."""
        number = len(self.written)
        value = b"{damaged %d" % number if message is None else message.encoded(number)
        self._topics[topic].append(partition, value)
        self.number_of[value] = number
        self.written.append(message)
