"""Runs the real daemon through a schedule of faults, and checks it after every turn of its loop.

A schedule is made of one seed: what is produced, when the broker, the disk or a clock fails, when the process ends.
Time is virtual and nothing runs beside the loop, so that a seed always gives the same run.
"""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import structlog

from faults.broker import TOPIC, Broker, PartitionLog
from streameval.config.model import Config
from streameval.ingest import background
from streameval.ingest.base import Records, Source, SourceOffsets, SourceStatus
from streameval.ingest.kafka import source as kafka_source
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.service import snapshots, startup
from streameval.service.daemon import Daemon
from streameval.service.snapshots import SnapshotStore

START = 1_700_000_000.0
DAY = 86_400.0
TURNS = 40
"""Turns of the loop with faults; then everything heals, and the daemon must catch up."""
CATCHING_UP = 600
"""Turns that it may need for that."""
IDLE_TURNS = 8
"""Turns without messages after which the daemon should have counted everything."""
FAULT_RATE = 0.25
PROPENSITY = 0.5
FLUSH_STAGGER = 1.5
"""Seconds between the flushes of two partitions."""
CONFIGURATION = """
policies: {candidates: [challenger]}
source: {topic: clicks, duplicates: 100000, max_poll_records: 40, max_lateness: 2s, idle_timeout: 2s}
estimators: [ips]
averages: [cumulative]
intervals: {cumulative: normal}
drift: off
promotion: off
state: {dir: %s, interval: 3s}
"""


class ViolationError(AssertionError):
    """The daemon broke a promise."""


class Killed(BaseException):
    """The process ends here, as by `kill -9`."""


def require(holds: bool, promise: str, **found: object) -> None:
    """Raise ViolationError unless a promise holds."""
    if not holds:
        raise ViolationError(f"{promise}: {found}")


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


@dataclass
class Account:
    """The contents that the state of the daemon must have: messages given to it, in order, and gaps."""

    given: list[int] = field(default_factory=list)
    gaps: int = 0

    def copy(self) -> Account:
        return Account(list(self.given), self.gaps)


@dataclass(frozen=True)
class Event:
    """The contents of a message. `weight` is that of the candidate.

    `is_doubtful`: the daemon may reject the event, as it is far behind or ahead of others.
    """

    event_id: str
    timestamp: float
    reward: float
    weight: float
    is_doubtful: bool = False

    def encoded(self) -> bytes:
        """The event as JSON."""
        policies = {"challenger": PROPENSITY * self.weight}
        chosen = {"action": "a", "propensity": PROPENSITY, "reward": self.reward, "policies": policies}
        return json.dumps({"event_id": self.event_id, "timestamp": self.timestamp} | chosen).encode()


class Producers:
    """Recommenders that write events, at once or in batches that are flushed one partition after another.

    `coarseness`: seconds to which timestamps are cut; `flush_every`: seconds between two flushes of a partition.
    """

    def __init__(self, random: Random, clock: Clock, broker: Broker) -> None:
        self._random, self._clock, self._broker = random, clock, broker
        self.coarseness = random.choice([0.0, 0.0, 1.0, 60.0, DAY])
        self.flush_every = random.choice([0.0, 0.0, 10.0, 30.0])
        self.written: list[Event | None] = []
        self._events = 0
        self._unsent: dict[int, list[tuple[float, Event]]] = {}

    def produce(self, count: int) -> None:
        """Make events over a short time."""
        for _ in range(count):
            self._clock.sleep(self._random.expovariate(20.0))
            partition, event = self._random.choice(list(self._broker.logs)), self.event()
            if self.flush_every:
                self._unsent.setdefault(partition, []).append((self._clock.true_time, event))
            else:
                self.write(partition, event)

    def flush(self, *, everything: bool = False) -> None:
        """Send the batches that are due."""
        for partition, events in self._unsent.items():
            due = self._clock.true_time - self.flush_every - FLUSH_STAGGER * partition
            if events and (everything or events[0][0] < due):
                for _, event in events:
                    self.write(partition, event)
                events.clear()

    def event(self, ahead: float = 0.0) -> Event:
        """An event of now, by a clock that is `ahead` (seconds)."""
        self._events += 1
        timestamp = self._clock.true_time + ahead
        if self.coarseness:
            timestamp -= timestamp % self.coarseness
        weight = self._random.choice([0.4, 1.6])
        return Event(f"e{self._events}", timestamp, self._random.random(), weight, is_doubtful=ahead != 0.0)

    def write(self, partition: int, event: Event | None) -> None:
        """Write a message; None is a damaged one."""
        value = b"{damaged" if event is None else event.encoded()
        self._broker.logs[partition].append(len(self.written), value)
        self.written.append(event)


class Schedule:
    """One run, made of `seed`, with these `faults`: names of `FAULTS`, by default all."""

    def __init__(self, seed: int, directory: Path, faults: Collection[str] | None = None) -> None:
        self.random = Random(seed)
        self.clock, self.broker = Clock(), Broker(partitions=self.random.choice([1, 1, 2, 3]))
        self.producers = Producers(self.random, self.clock, self.broker)
        self.account = Account()
        self.history: list[str] = []
        self.at_step: dict[str, Callable[[], None]] = {}
        self.state = directory / "state"
        self.accounts: dict[str, Account] = {}
        self.stores: list[SnapshotStore] = []
        self.removed_unread = 0
        self._path = directory / "streameval.yaml"
        self._faults = sorted(FAULTS if faults is None else faults)
        self._healing: list[tuple[int, Callable[[], None]]] = []
        self._turn = self._idle_turns = 0
        self._taken = Account()
        self._resumed = Account()
        self.daemon: Daemon

    def run(self) -> None:
        """Run the schedule to its end; raises ViolationError."""
        self._path.write_text(CONFIGURATION % self.state)
        config = Config.load(self._path, {})
        try:
            with _simulated(self):
                while not self._run_process(config):
                    pass
        except ViolationError as violation:
            violation.add_note(f"history: {self.history}")
            raise

    def _run_process(self, config: Config) -> bool:
        """One process of the daemon, from start to end; whether it has counted everything."""
        self.account = self._expected_state()
        self._resumed = self.account.copy()
        self.removed_unread = 0  # this process may start where it had not been read yet
        try:
            self.daemon = startup.daemon(self._path, config)
            self.daemon.run()
        except Killed:
            for store in self.stores:
                with suppress(OSError):  # it is closed already
                    store.close()
            return False
        except ViolationError:
            raise
        except Exception as error:
            raise ViolationError(f"the daemon ended: {error!r}") from error
        if self._has_caught_up():
            self._check_end()
            return True
        return False

    def _expected_state(self) -> Account:
        """The contents of the newest whole snapshot."""
        paths = snapshots.found_in(self.state) if self.state.is_dir() else []
        whole = [path.name for path in paths if path.name in self.accounts]
        return self.accounts[whole[-1]].copy() if whole else Account()

    def later(self, act: Callable[[], None]) -> None:
        """Do this after some turns."""
        self._healing.append((self._turn + self.random.randrange(1, 15), act))

    def turn(self) -> None:
        """Called by the loop before each poll: check what is published; produce, fail or heal."""
        self._check_published()
        self._turn += 1
        self.clock.sleep(self.random.uniform(0.0, 0.4))
        for due, act in tuple(self._healing):
            if due <= self._turn or self._turn >= TURNS:
                self._healing.remove((due, act))
                act()
        self.producers.flush(everything=self._turn >= TURNS)
        if self._turn < TURNS:
            self.producers.produce(self.random.randrange(12))
            if self._faults and self.random.random() < FAULT_RATE:
                name = self.random.choice(self._faults)
                self.history.append(f"turn {self._turn}: {name}")
                FAULTS[name](self)
        elif self._has_caught_up():
            self.daemon.stop()
        else:
            require(self._turn < TURNS + CATCHING_UP, "the daemon catches up", status=self.daemon.published.source)

    def see(self, records: list[Records], status: SourceStatus) -> None:
        """Called after each poll: these messages were given to the pipeline."""
        for part in records:
            log = self.broker.logs[part.partition]
            self.account.given += [log.messages[offset - log.first].number for offset in part.offsets]
        self.account.gaps = self._resumed.gaps + sum(status.gaps.values())
        self._idle_turns = 0 if records else self._idle_turns + 1

    def step(self, step: str) -> None:
        """Called after each step of writing a snapshot."""
        if step == "taken":
            self._taken = self.account.copy()
        elif step == "renamed":
            self.accounts[snapshots.found_in(self.state)[-1].name] = self._taken
        self.at_step.pop(step, lambda: None)()

    def remove(self, log: PartitionLog, start: int, stop: int) -> None:
        """These messages are about to go."""
        given = set(self.account.given)
        if given.isdisjoint(message.number for message in log.messages):
            return  # the daemon does not know yet where this log starts
        unread = [message for message in log.between(start, stop) if message.number not in given]
        self.removed_unread += len(unread)

    def _has_caught_up(self) -> bool:
        published = self.daemon.published
        buffered = published.buffered.events if published.buffered is not None else 0
        ends = {(TOPIC, partition): log.end for partition, log in self.broker.logs.items()}
        is_read = published.source.reached and published.source.positions == ends
        return self._turn > TURNS and self._idle_turns > IDLE_TURNS and is_read and not buffered

    def _check_published(self) -> None:
        """Every published number is one that the daemon can stand behind."""
        report = self.daemon.published.report
        if report is None:
            return
        require(report.events.accepted <= len(self.account.given), "no event is counted twice", report=report.events)
        for row in report.estimates:
            known = [number for number in (row.lower, row.value, row.upper) if number is not None]
            require(bool(np.isfinite(known).all()), "published numbers are finite", row=row)
            require(known == sorted(known), "a value lies inside its interval", row=row)

    def _check_end(self) -> None:
        """Everything that can still be read was given once, and was counted once or rejected for its reason."""
        given = Counter(self.account.given)
        repeated = [number for number, times in given.items() if times > 1]
        require(not repeated, "no message is read twice", repeated=repeated)
        logs = self.broker.logs.values()
        skipped = [message.number for log in logs for message in log.messages if message.number not in given]
        require(not skipped, "no message is skipped", skipped=skipped, gaps=self.account.gaps)
        require(self.account.gaps > 0 or not self.removed_unread, "gaps are reported", removed=self.removed_unread)
        self._check_counts()

    def _check_counts(self) -> None:
        events = [self.producers.written[number] for number in self.account.given]
        distinct = {event.event_id: event for event in events if event is not None}
        doubtful = sum(event.is_doubtful for event in distinct.values())
        report = self.daemon.published.report
        assert report is not None, "an idle daemon has made a report"
        rejected = Counter(report.events.rejected)
        out_of_time = rejected.pop("too_late", 0)
        require(out_of_time <= doubtful, "only doubtful events are out of time", out_of_time=out_of_time)
        expected = Counter(malformed=events.count(None))
        expected["duplicate"] = len(events) - events.count(None) - len(distinct)
        require(+rejected == +expected, "rejected messages are counted by reason", found=rejected, expected=expected)
        counted = len(distinct) - out_of_time
        require(report.events.accepted == counted, "each event is counted once", found=report.events, expected=counted)
        if out_of_time or not distinct:
            return
        rewards = np.array([event.reward for event in distinct.values()])
        weights = np.array([event.weight for event in distinct.values()])
        for policy, terms in {"challenger": weights * rewards, "logging": rewards}.items():
            value = float(terms.mean())
            found = report.get(policy, "ips", "cumulative").value
            require(found is not None and abs(found - value) < 1e-9, "values equal those of a batch", found=found)


class ObservedSource:
    """A source whose every poll is a turn of the schedule."""

    def __init__(self, schedule: Schedule, source: Source) -> None:
        self._schedule, self._source = schedule, source
        self.status, self.offsets, self.pause = source.status, source.offsets, source.pause
        self.commit, self.close = source.commit, source.close

    def poll(self, timeout: float) -> list[Records]:
        self._schedule.turn()
        records = self._source.poll(timeout)
        if not records:
            self._schedule.clock.sleep(timeout)
        self._schedule.see(records, self._source.status())
        return records


@contextmanager
def _simulated(schedule: Schedule) -> Iterator[None]:
    """The process sees the clock, the broker and the disk of a schedule; its background calls run at once."""
    clock = schedule.clock

    class VirtualEvent:
        """An event that is waited for in virtual time."""

        def __init__(self) -> None:
            self._is_set = False

        def set(self) -> None:
            self._is_set = True

        def is_set(self) -> bool:
            return self._is_set

        def wait(self, timeout: float) -> bool:
            clock.sleep(timeout)
            return self._is_set

    class RecordedStore(SnapshotStore):
        """The lock of a process that was killed goes with the process."""

        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            schedule.stores = [self]

    def run_at_once(self: Any, call: Callable[[], Any]) -> None:
        self._future = Future()
        self._run(call)

    def open_source(settings: KafkaSettings, offsets: SourceOffsets | None = None) -> Source:
        known = (offsets or {}).get(settings.topic)
        connect, chance = schedule.broker.connect, schedule.random.random
        source = KafkaSource(settings, known, connect=connect, clock=clock.monotonic, chance=chance)
        return ObservedSource(schedule, source)

    with ExitStack() as stack:
        for name in ("time", "monotonic", "sleep"):
            stack.enter_context(patch.object(time, name, getattr(clock, name)))
        stack.enter_context(patch.dict(Daemon.__init__.__kwdefaults__, clock=clock.time))
        stack.enter_context(patch.object(background.Background, "__init__", run_at_once))
        stack.enter_context(patch.object(kafka_source, "Event", VirtualEvent))
        stack.enter_context(patch.object(KafkaSettings, "open", open_source))
        stack.enter_context(patch.object(startup, "SnapshotStore", RecordedStore))
        stack.enter_context(patch.object(snapshots, "reached", schedule.step))
        stack.enter_context(structlog.testing.capture_logs())
        yield


# --- Faults ---


def kill(schedule: Schedule) -> None:
    raise Killed


def kill_while_writing(schedule: Schedule) -> None:
    schedule.at_step[schedule.random.choice(snapshots.STEPS)] = lambda: kill(schedule)


def stop(schedule: Schedule) -> None:
    schedule.daemon.stop()


def fill_disk(schedule: Schedule) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    schedule.at_step[schedule.random.choice(["opened", "begun", "written", "synced"])] = fail


def damage_snapshot(schedule: Schedule) -> None:
    """Change a byte of the newest snapshot, and restart."""
    for path in snapshots.found_in(schedule.state)[-1:]:
        content = bytearray(path.read_bytes())
        content[schedule.random.randrange(len(content))] ^= 1
        path.write_bytes(content)
        schedule.accounts.pop(path.name, None)
    kill(schedule)


NOT_READ = {"schema", "is_decided", "released"}
"""Entries of a state that decide nothing in these schedules, or that are those of another version."""


def change_snapshot(schedule: Schedule) -> None:
    """Give the newest snapshot a state that does not fit, under a right checksum, and restart."""
    for path in snapshots.found_in(schedule.state)[-1:]:
        document = snapshots.read_document(path)
        part = schedule.random.choice([document["evaluator"]["cohorts"][0]["evaluator"], document["pipeline"]])
        name = schedule.random.choice(sorted(part.keys() - NOT_READ - {name for name in part if part[name] is None}))
        if schedule.random.random() < 0.5:
            del part[name]
        else:
            part[name] = "text"
        with path.open("wb") as file:
            snapshots.write_document(file, document)
        schedule.accounts.pop(path.name, None)
    kill(schedule)


def break_connection(schedule: Schedule) -> None:
    schedule.broker.failures += 1


def stop_broker(schedule: Schedule) -> None:
    def restart() -> None:
        schedule.broker.up = True

    schedule.broker.up = False
    schedule.later(restart)


def withhold_partition(schedule: Schedule) -> None:
    partition = schedule.random.choice(list(schedule.broker.logs))
    schedule.broker.deaf.add(partition)
    schedule.later(lambda: schedule.broker.deaf.discard(partition))


def cut_log(schedule: Schedule) -> None:
    """Lose the end of a log; often it grows beyond its old end at once."""
    partition, log = schedule.random.choice(list(schedule.broker.logs.items()))
    end = schedule.random.randint(max(log.first, log.end - 30), log.end)
    lost = log.end - end
    if any(message.number in schedule.account.given for message in log.between(end, log.end)):
        schedule.remove(log, end, log.end)  # else the daemon cannot know that there was anything
    log.cut(end)
    for _ in range(schedule.random.choice([0, lost // 2, lost + 5])):
        schedule.producers.write(partition, schedule.producers.event())


def delete_oldest(schedule: Schedule) -> None:
    log = schedule.random.choice(list(schedule.broker.logs.values()))
    first = schedule.random.randint(log.first, log.end)
    schedule.remove(log, log.first, first)
    log.delete_before(first)


def create_topic_again(schedule: Schedule) -> None:
    for log in schedule.broker.logs.values():
        schedule.remove(log, log.first, log.end)
    schedule.broker.create_again()


def add_partition(schedule: Schedule) -> None:
    schedule.broker.logs[len(schedule.broker.logs)] = PartitionLog()


def move_clock(schedule: Schedule) -> None:
    """The calendar of the daemon's machine jumps; it is set right later."""

    def set_right() -> None:
        schedule.clock.ahead = 0.0

    written = (event.timestamp for event in schedule.producers.written if event is not None)
    others_are_right = max(written, default=START) <= schedule.clock.true_time
    forward = [3600.0, 5 * 365 * DAY] if others_are_right else []  # two clocks ahead at once cannot be distinguished
    schedule.clock.ahead = schedule.random.choice([-5 * 365 * DAY, -3600.0, *forward])
    schedule.later(set_right)


def produce_ahead(schedule: Schedule) -> None:
    """One producer's clock is ahead for a dozen events in a row."""
    if schedule.clock.ahead > 0:
        return  # the daemon cannot know which clock is right
    partition = schedule.random.choice(list(schedule.broker.logs))
    ahead = schedule.random.choice([60.0, 3600.0, 300 * DAY])
    for _ in range(12):
        schedule.producers.write(partition, schedule.producers.event(ahead))


def produce_late(schedule: Schedule) -> None:
    """One event is far behind the others."""
    partition = schedule.random.choice(list(schedule.broker.logs))
    schedule.producers.write(partition, schedule.producers.event(ahead=-300.0))


def produce_damaged(schedule: Schedule) -> None:
    schedule.producers.write(schedule.random.choice(list(schedule.broker.logs)), None)


def produce_again(schedule: Schedule) -> None:
    """A producer sends an event a second time, to any partition."""
    events = [event for event in schedule.producers.written if event is not None]
    if events:
        partition = schedule.random.choice(list(schedule.broker.logs))
        schedule.producers.write(partition, schedule.random.choice(events[-50:]))


FAULTS: dict[str, Callable[[Schedule], None]] = {
    fault.__name__: fault
    for fault in (
        kill,
        kill_while_writing,
        stop,
        fill_disk,
        damage_snapshot,
        change_snapshot,
        break_connection,
        stop_broker,
        withhold_partition,
        cut_log,
        delete_oldest,
        create_topic_again,
        add_partition,
        move_clock,
        produce_ahead,
        produce_late,
        produce_damaged,
        produce_again,
    )
}
"""Everything that goes wrong in a schedule, by name."""
