"""Kill daemons again and again that read 400,000 events in transactions, with both clients and all codecs.

Counts are exact, and so are sums, except for rounding.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_args
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer

from streameval.config.model import Config
from streameval.ingest.base import Offsets
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import describe_state
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.snapshots import MAX_SNAPSHOTS, WRITING, read_snapshot
from support.disk import STEPS
from support.factories import wait_until
from support.integration.broker import Broker, MockBroker
from support.integration.daemon_runs import PATIENCE, DaemonRuns, assert_same, final_state, settled

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1800)]

EVENTS = 400_000
FIELDS = ("timestamp", "propensity", "reward", "early", "late")
FEWER, MORE = 100_000, 1_000_000
IN_BATCH = 500
"""Events in a message of the log of batches."""
PARTITIONS = 4
SHARES = [0.4, 0.3, 0.2, 0.1]
DUPLICATED = 1000
"""One in this many events is sent again at the end of its transaction, as by a producer that was not sure."""
MOVED = 75_000
"""Among the first of them, half are sent again to another partition, which is not read at the same pace."""
WINDOW = 300_000
"""Events among which duplicates are found, in the order of time. In the order of arrival, copies may be further apart:
partitions are not read at the same pace, least of all by runs that are killed.
"""
KILLS = 14
"""In each run of one client in one order: 28 of each client, and as many in each order."""
FEWER_KILLS = 5
SCORED = int(os.environ.get("SCORED_EVENTS", FEWER))
SCORED_KILLS = int(os.environ.get("SCORED_KILLS", FEWER_KILLS))
"""Decisions with scores apart, and kills of a daemon that reads them."""
MOST_LATE = 540.0
"""Seconds from a decision to its score."""
KILLED_WITHIN, STOPPED_AT = 0.7, 0.8
"""Shares of the log in which all kills fall, and after which a daemon is stopped."""
SLEEP = 12.0
"""Seconds of a stop by SIGSTOP: longer than clients with these options wait for an answer."""
IMPATIENT = {"kafka-python": {"request_timeout_ms": 5_000}, "confluent": {"socket.timeout.ms": 5_000}}
CODECS = ("gzip", "snappy", "lz4", "zstd")
IN_TRANSACTION, ABORTED = 5000, 4
"""Events in each transaction; before one in this many, the same events are sent with other rewards, and are aborted."""
CLIENTS = get_args(KafkaSettings.model_fields["client"].annotation)


class TransactionalProducer(Protocol):
    """Write in transactions with one client library and one codec."""

    def __init__(self, broker: Broker, topic: str, codec: str) -> None: ...

    def start(self) -> None: ...

    def send(self, partition: int, value: bytes) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ConfluentProducer(TransactionalProducer):
    """Writes with confluent-kafka."""

    def __init__(self, broker: Broker, topic: str, codec: str) -> None:
        transactional = {"transactional.id": f"{topic}-{codec}", "compression.type": codec}
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, **transactional})
        self._producer.init_transactions(PATIENCE)
        self._topic = topic

    def start(self) -> None:
        self._producer.begin_transaction()

    def send(self, partition: int, value: bytes) -> None:
        self._producer.produce(self._topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE)

    def abort(self) -> None:
        self._producer.flush(PATIENCE)  # so that the messages are in the log
        self._producer.abort_transaction(PATIENCE)

    def close(self) -> None:
        self._producer.flush(PATIENCE)


class KafkaPythonProducer(TransactionalProducer):
    """Writes with kafka-python."""

    def __init__(self, broker: Broker, topic: str, codec: str) -> None:
        transactional = {"transactional_id": f"{topic}-kafka-python-{codec}", "compression_type": codec}
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=50, **transactional)
        self._producer.init_transactions()
        self._topic = topic

    def start(self) -> None:
        self._producer.begin_transaction()

    def send(self, partition: int, value: bytes) -> None:
        self._producer.send(self._topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.flush(PATIENCE)  # so that the messages are in the log
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(PATIENCE)


def message(number: int, timestamp: float, propensity: float, reward: float, early: float, late: float | None) -> bytes:
    """Make an event with these FIELDS."""
    policies = f'{{"early":{early}}}' if late is None else f'{{"early":{early},"late":{late}}}'
    return (
        f'{{"event_id":"e-{number}","timestamp":{timestamp},"action":"a","propensity":{propensity},'
        f'"reward":{reward},"policies":{policies}}}'
    ).encode()


def batch(rows: list[tuple[int, tuple[Any, ...]]]) -> bytes:
    """Make a message of Arrow of the same events."""
    _, timestamp, propensity, reward, early, late = zip(*(fields for _, fields in rows), strict=True)
    numbers = {"timestamp": timestamp, "propensity": propensity, "reward": reward}
    table = pa.record_batch(
        {
            "event_id": [f"e-{number}" for number, _ in rows],
            "action": pa.array(["a"] * len(rows)).dictionary_encode(),
            **{name: pa.array(values) for name, values in numbers.items()},
            "policies": pa.StructArray.from_arrays([pa.array(early), pa.array(late)], ["early", "late"]),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class Log:
    """Hold a topic full of events, and their sums.

    With `apart`, a topic of scores has the probabilities of `late`. With `in_batches`, messages are Arrow.
    """

    broker: Broker
    topic: str
    events: int
    producers: tuple[type[TransactionalProducer], ...]
    apart: bool = False
    in_batches: bool = False

    @property
    def scores(self) -> str:
        return f"{self.topic}-scores"

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        rng, count = np.random.default_rng(7), self.events
        partition = rng.choice(PARTITIONS, count, p=SHARES)
        timestamp = 1_700_000_000 + (np.arange(count) * 0.01 + rng.uniform(0, 0.5, count)).round(4)
        timestamp[::DUPLICATED] += 0.00005  # no other event has the time of one that is also in another partition
        return {
            "partition": partition,
            "timestamp": timestamp,
            "propensity": rng.uniform(0.1, 1.0, count).round(4),
            "reward": rng.integers(0, 1000, count) / 1000,
            "early": rng.uniform(0.0, 1.0, count).round(4),
            "late": rng.uniform(0.0, 1.0, count).round(4),
        }

    @cached_property
    def length(self) -> int:
        """Return the number of messages, with aborted transactions and markers."""
        with closing(Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "none"})) as consumer:
            topics = (self.topic, self.scores) if self.apart else (self.topic,)
            partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(partition, PATIENCE)[1] for partition in partitions)

    def fill(self) -> None:
        clients = [make(self.broker, self.topic, codec) for codec in CODECS for make in self.producers]
        rows = list(enumerate(zip(*(self.columns[name].tolist() for name in ("partition", *FIELDS)), strict=True)))
        for number, first in enumerate(range(0, self.events, IN_TRANSACTION)):
            client, events = clients[number % len(clients)], rows[first : first + IN_TRANSACTION]
            if number % ABORTED == 0 and not isinstance(self.broker, MockBroker):  # which returns them all the same
                client.start()
                self._send(client, [(row_number, (*row[:3], 1.0 - row[3], *row[4:])) for row_number, row in events])
                client.abort()
            client.start()
            self._send(client, [*events, *map(_sent_again, (row for row in events if row[0] % DUPLICATED == 0))])
            client.commit()
        for client in clients:
            client.close()
        if self.apart:
            self._fill_scores()

    def _fill_scores(self) -> None:
        """Write scores up to nine minutes after their decisions, out of order, and some of them twice."""
        rng, producer = np.random.default_rng(8), Producer({"bootstrap.servers": self.broker.bootstrap})
        number = np.append(np.arange(self.events), np.arange(0, self.events, DUPLICATED))
        dated = self.columns["timestamp"][number] + rng.uniform(0, MOST_LATE, len(number)).round(3)
        partition = rng.integers(0, PARTITIONS, len(number)).tolist()
        for row in np.argsort(dated + rng.uniform(0, 1.5, len(number))).tolist():
            late = float(self.columns["late"][number[row]])
            score = {"event_id": f"e-{number[row]}", "timestamp": float(dated[row]), "policies": {"late": late}}
            producer.produce(self.scores, json.dumps(score).encode(), partition=partition[row])
            producer.poll(0)
        assert producer.flush(PATIENCE) == 0

    def _send(self, client: TransactionalProducer, rows: list[tuple[int, tuple[Any, ...]]]) -> None:
        if self.in_batches:
            for partition in range(PARTITIONS):
                own = [row for row in rows if row[1][0] == partition]
                for first in range(0, len(own), IN_BATCH):
                    client.send(partition, batch(own[first : first + IN_BATCH]))
            return
        for number, (partition, *fields) in rows:
            client.send(partition, message(number, *fields[:-1], None if self.apart else fields[-1]))

    def config(self, **source: Any) -> dict[str, Any]:
        address = {"kind": "kafka", "bootstrap_servers": self.broker.bootstrap, "topic": self.topic}
        return {
            "source": address
            | {"duplicates": WINDOW, "max_lateness": "2s", "idle_timeout": "5s"}
            | ({"candidates": {"topic": self.scores, "window": "10m"}} if self.apart else {})
            | ({"format": {"kind": "arrow"}} if self.in_batches else {})
            | source,
            "policies": {"candidates": ["early", "late"]},
            "estimators": ["ips", "snips"],
            "averages": ["cumulative", {"kind": "window", "tau": 50_000}, {"kind": "decay", "half_life": 5_000}],
            "drift": "off",
            "http": {"port": 0},
            "state": {"interval": "500ms"},
        }

    @cached_property
    def state_in_order_of_time(self) -> Any:
        """Return the state of an evaluator that was given all events by (timestamp, partition, offset)."""
        changing = Evaluator.from_config(Config.model_validate(self.config()).evaluator_config())
        decoder, columns = changing.config.decoder(), self.columns
        order = np.lexsort((np.arange(self.events), columns["partition"], columns["timestamp"]))
        for first in range(0, self.events, 6000):
            some = order[first : first + 6000]
            rows = zip(some.tolist(), *(columns[name][some].tolist() for name in FIELDS), strict=True)
            changing.update(decoder.decode_batch([message(*row) for row in rows]))
        state = settled(changing)
        state["events"]["rejected"] = {"duplicate": self.events // DUPLICATED}
        return state

    def expected(self) -> dict[tuple[str, str], float]:
        """By estimator and policy: the averages over all events, of sums without rounding errors."""
        columns = self.columns
        weights = {name: columns[name] / columns["propensity"] for name in ("early", "late")}
        weights["logging"] = np.ones(self.events)
        earned = {name: math.fsum(weight * columns["reward"]) for name, weight in weights.items()}
        ips = {("ips", name): total / self.events for name, total in earned.items()}
        return ips | {("snips", name): total / math.fsum(weights[name]) for name, total in earned.items()}


def _sent_again(event: tuple[int, Any]) -> tuple[int, Any]:
    number, (partition, *fields) = event
    moves = number < MOVED and number % (2 * DUPLICATED) == 0
    return number, ((partition + moves) % PARTITIONS, *fields)


def filled(broker: Broker, events: int, *producers: type[TransactionalProducer], **kind: bool) -> Log:
    log = Log(broker, f"kills-{uuid4().hex[:8]}", events, producers, **kind)
    for topic in (log.topic, log.scores) if log.apart else (log.topic,):
        broker.create_topic(topic, PARTITIONS)
    log.fill()
    return log


@pytest.fixture(scope="module")
def log(broker: Broker) -> Log:
    if isinstance(broker, MockBroker):  # which has no transactions for kafka-python
        return filled(broker, EVENTS, ConfluentProducer)
    return filled(broker, EVENTS, ConfluentProducer, KafkaPythonProducer)


@pytest.fixture(scope="module")
def shorter(broker: Broker) -> Log:
    return filled(broker, FEWER, ConfluentProducer)


@pytest.fixture(scope="module")
def scored(broker: Broker) -> Log:
    return filled(broker, SCORED, ConfluentProducer, apart=True)


@pytest.fixture(scope="module")
def of_batches(broker: Broker) -> Log:
    return filled(broker, MORE, ConfluentProducer, in_batches=True)


@pytest.fixture(scope="module")
def undisturbed(shorter: Log, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the state of a daemon that has read the shorter log in event time, and was never disturbed."""
    runs = DaemonRuns(tmp_path_factory.mktemp("undisturbed"), shorter.config(order="event_time"))
    runs.finish(FEWER)
    return final_state(runs.state)


def assert_every_event_once(report: dict[str, Any], log: Log) -> None:
    assert report["events"]["accepted"] == log.events
    assert {row["policy"]: (row["events"], row["missing"]) for row in report["policies"]} == dict.fromkeys(
        ("logging", "early", "late"), (log.events, 0)
    )
    values = {
        (row["estimator"], row["policy"]): row["value"] for row in report["estimates"] if row["average"] == "cumulative"
    }
    expected = log.expected()
    assert values.keys() == expected.keys()
    differences = {key: abs(value / expected[key] - 1.0) for key, value in values.items()}
    print(f"{log.events} events, largest relative difference {max(differences.values()):.1e}")
    assert max(differences.values()) < 5e-15, differences
    assert report["events"]["rejected"] == {"duplicate": log.events // DUPLICATED}


SIGNALLED = """
import os, sys
from streameval.ingest.kafka.source import KafkaSource
from streameval.service.snapshots import SnapshotStore

signal, turns, least = (int(sys.argv.pop()) for _ in range(3))
poll, maybe_write, read_by, read, drawn = KafkaSource.poll, SnapshotStore.maybe_write, {}, 0, turns

def counted(source, timeout):
    global read
    records = poll(source, timeout)
    read_by[source] = sum(source.positions.values())
    read = sum(read_by.values())
    return records

def write_or_signal(writer, document):
    global turns
    if read < least or turns < 0:
        return maybe_write(writer, document)
    if turns == drawn:
        writer.write_last(document)
    if turns == 0:
        os.kill(os.getpid(), signal)
    turns -= 1

KafkaSource.poll, SnapshotStore.maybe_write = counted, write_or_signal
from streameval.cli.app import main
main()
"""
"""A daemon that writes a snapshot once it has read `least` messages, and sends itself `signal` some `turns` of its loop
later. Neither depends on how fast the machine is: a daemon that is killed after some time may have read everything.
"""


def read_in(runs: DaemonRuns) -> int:
    """Return the number of messages before the offsets of the newest snapshot."""
    paths = runs.snapshots()
    states = read_snapshot(paths[-1]).offsets.values() if paths else []
    return sum(sum(Offsets.from_state(state).positions.values()) for state in states)


def kill_again_and_again(log: Log, runs: DaemonRuns, chance: random.Random, kills: int = KILLS) -> None:
    """Let one run after another add its share of the messages to a snapshot, and be killed soon after."""
    for kill in range(kills):
        before = read_in(runs)
        least = round(KILLED_WITHIN * log.length * (kill + chance.random()) / kills)
        runs.start(str(max(least, before + 1)), str(chance.randrange(10)), str(signal.SIGKILL.value))
        assert runs.process is not None
        assert runs.process.wait(PATIENCE) == -signal.SIGKILL, runs.log.read_text()
        assert before < read_in(runs) < log.length


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_after_kills_the_state_equals_one_of_all_events_in_time_order(log: Log, tmp_path: Path, client: str) -> None:
    """Refuse a second daemon meanwhile, and stop the last one for longer than requests may take."""
    config = log.config(order="event_time", client=client, client_options=IMPATIENT[client])
    runs = DaemonRuns(tmp_path / "disturbed", config, SIGNALLED)
    kill_again_and_again(log, runs, random.Random(1))
    runs.start(str(round(STOPPED_AT * log.length)), "3", str(signal.SIGSTOP.value))
    assert runs.process is not None
    os.waitid(os.P_PID, runs.process.pid, os.WSTOPPED)
    assert KILLED_WITHIN * log.length < read_in(runs) < log.length
    assert "is in use by another streameval" in runs.refused("0", "-1", "0")
    time.sleep(SLEEP)
    runs.process.send_signal(signal.SIGCONT)
    report = runs.report_of(EVENTS)
    runs.end()
    assert len(runs.logged("continued")) == runs.continuing == KILLS, "every run but the first continues"
    assert_every_event_once(report, log)
    assert_same(final_state(runs.state), log.state_in_order_of_time)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_in_the_order_of_arrival_counts_are_exact_and_sums_are_right_after_kills(
    log: Log, tmp_path: Path, client: str
) -> None:
    config = log.config(order="arrival", client=client, duplicates=EVENTS)
    runs = DaemonRuns(tmp_path / "disturbed", config, SIGNALLED)
    kill_again_and_again(log, runs, random.Random(2))
    assert_every_event_once(runs.finish(EVENTS, "0", "-1", "0"), log)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_after_kills_scores_count_as_if_the_log_carried_them(scored: Log, tmp_path: Path, client: str) -> None:
    longer_than_a_transaction = {"max_lateness": "1m"}  # or copies at its end may be too late to be duplicates
    config = scored.config(order="event_time", client=client, **longer_than_a_transaction)
    runs = DaemonRuns(tmp_path / "scored", config, SIGNALLED)
    kill_again_and_again(scored, runs, random.Random(4), SCORED_KILLS)
    assert_every_event_once(runs.finish(SCORED, "0", "-1", "0"), scored)
    assert_same(final_state(runs.state), scored.state_in_order_of_time, tolerance=1e-12)
    pipeline = describe_state(read_snapshot(runs.snapshots()[-1]).pipeline)
    assert pipeline["scores"] == {"joined": SCORED + SCORED // DUPLICATED, "late": 0, "unmatched": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("client", "order"), [*zip(CLIENTS, ("event_time", "arrival"), strict=True)])
def test_after_kills_each_event_of_a_batch_counts_once(
    of_batches: Log, tmp_path: Path, client: str, order: str
) -> None:
    runs = DaemonRuns(tmp_path / "batches", of_batches.config(order=order, client=client, duplicates=MORE), SIGNALLED)
    kill_again_and_again(of_batches, runs, random.Random(5), FEWER_KILLS)
    assert_every_event_once(runs.finish(MORE, "0", "-1", "0"), of_batches)
    if order == "event_time":
        assert_same(final_state(runs.state), of_batches.state_in_order_of_time)


def tear(path: Path, chance: random.Random) -> None:
    """Damage to a file that a disk may cause."""
    content = path.read_bytes()
    kept = chance.randrange(len(content))
    path.write_bytes(content[:kept] if chance.random() < 0.7 else content[:kept] + bytes(len(content) - kept))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_torn_snapshots_cost_time_and_no_event(shorter: Log, undisturbed: Any, tmp_path: Path, order: str) -> None:
    chance = random.Random(3)
    runs = DaemonRuns(tmp_path / "torn", shorter.config(order=order))
    torn = 0
    for _ in range(3):
        runs.disturbed(chance, snapshots=3)
        for path in runs.snapshots()[chance.choice((1, 2)) :]:
            tear(path, chance)
            torn += 1
    report = runs.finish(FEWER)
    assert torn == len(runs.logged("snapshot_damaged")) > 0
    assert_every_event_once(report, shorter)
    if order == "event_time":
        assert_same(final_state(runs.state), undisturbed)


KILLED_AT = """
import os, signal, sys
from support.disk import observed_calls

step, times = sys.argv.pop(), 2

def reached(at):
    global times
    times -= at == step
    if not times:
        os.kill(os.getpid(), signal.SIGKILL)

vars(os).update(observed_calls(reached))
from streameval.cli.app import main
main()
"""


@pytest.mark.parametrize("client", ["kafka-python", pytest.param("confluent", marks=pytest.mark.slow)])
def test_a_kill_between_any_two_steps_of_a_checkpoint_loses_and_doubles_nothing(
    shorter: Log, undisturbed: Any, tmp_path: Path, client: str
) -> None:
    config = shorter.config(order="event_time", max_poll_records=500, client=client)
    config["state"] = {"interval": "100ms"}  # soon reached: a daemon is killed in the second snapshot of its life
    runs = DaemonRuns(tmp_path / "steps", config)
    killed = DaemonRuns(tmp_path / "steps", config, KILLED_AT)
    for step in STEPS:
        killed.start(step)
        assert killed.process is not None
        assert killed.process.wait(PATIENCE) == -9, killed.log.read_text()
    assert_every_event_once(runs.finish(FEWER), shorter)
    assert_same(final_state(runs.state), undisturbed)
    assert len(runs.logged("continued")) == len(STEPS)
    assert not runs.logged("snapshot_damaged")
    assert len(list(runs.state.glob("*"))) <= 4, "three snapshots and the lock, and nothing half written"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 12 MB if mounting is permitted."""
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    yield disk if mounted.returncode == 0 else tmp_path / "none"
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill_up(disk: Path, runs: DaemonRuns, ballast: Path) -> None:
    """Leave no room while the daemon stands still between two snapshots: no room for any but those three."""
    assert runs.process is not None
    while not ballast.exists():
        wait_until(lambda: len(runs.snapshots()) == MAX_SNAPSHOTS, PATIENCE)
        runs.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, runs.process.pid, os.WSTOPPED)
        if len(runs.snapshots()) == MAX_SNAPSHOTS and not list(runs.state.glob(f"*{WRITING}")):
            room = os.statvfs(disk)
            ballast.write_bytes(bytes(room.f_bavail * room.f_bsize))
        runs.process.send_signal(signal.SIGCONT)
        time.sleep(0.05)


def test_the_daemon_continues_on_a_full_disk_and_snapshots_resume_once_there_is_room(
    shorter: Log, tmp_path: Path, small_disk: Path
) -> None:
    """Let older snapshots make room for new ones if that helps. Otherwise, existing ones are kept."""
    runs = DaemonRuns(tmp_path / "full", shorter.config(order="event_time"))
    ballast = small_disk / "ballast"
    if small_disk.exists():
        runs.state.symlink_to(small_disk)
        runs.start()
        fill_up(small_disk, runs, ballast)
        event = "snapshots_deleted"
    else:  # a quota in the place of the disk: no file may be larger than this
        quota = (20_000, resource.RLIM_INFINITY)
        runs.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, quota))
        event = "snapshot_failed"
    wait_until(lambda: bool(runs.logged(event)), PATIENCE)
    full_since = time.monotonic()
    before = runs.snapshots()
    report = runs.report_of(40_000)
    assert report["events"]["accepted"] >= 40_000
    assert runs.snapshots() if event == "snapshots_deleted" else runs.snapshots() == before
    runs.kill()
    before = runs.snapshots()
    minutes = (time.monotonic() - full_since) / 60
    ballast.unlink(missing_ok=True)
    runs.start()
    wait_until(lambda: runs.snapshots() != before, PATIENCE)
    runs.kill()
    assert_every_event_once(runs.finish(FEWER), shorter)
    assert len(runs.logged(event)) <= 1 + minutes, "logged once a minute, not every time"
