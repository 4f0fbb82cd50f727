"""Test that `KafkaSource` reads every message once, whatever happens to the broker."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from structlog.testing import capture_logs

from streameval.errors import SourceError
from streameval.events import JsonDecoder
from streameval.ingest.background import Background, ConnectionGroup
from streameval.ingest.base import Offsets, Records
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import create_topic, produce
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import CONNECT_TIMEOUT, connect
from streameval.service.logging import discreet
from support import identity
from support.factories import crowding, quickest, wait_until
from support.identity import identity_provider
from support.integration.broker import PASSWORD, Broker, MockBroker, RealBroker
from support.integration.ci import skip_unless_ci
from support.integration.reading import Reading, log_lines, numbers, reading
from support.ports import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("client")]

both_clients = pytest.mark.parametrize("client", ["kafka-python", "confluent"], indirect=True)
"""Run a test with both clients in `make test`, because it shows whether one loses messages. Others are slow for one."""

CLIENTS = ("kafka-python", "confluent")
clients_together = pytest.mark.parametrize("client", ["kafka-python"], indirect=True)
"""Run a test once that reads with both clients, because restarts of the broker and lives of tokens take long."""

RECOVERY_SECONDS = 60.0
"""Read a broker that came back within this time."""


@contextmanager
def readers(connection: KafkaConnection, topic: str, **changes: object) -> Iterator[list[Reading]]:
    """Read a topic with each client at the same time."""
    with ExitStack() as stack:
        yield [stack.enter_context(reading(connection, topic, **changes, client=client)) for client in CLIENTS]


@pytest.fixture
def topic(broker: Broker) -> str:
    """Create a topic of four partitions for one test."""
    name = f"test-{uuid4().hex[:8]}"
    broker.create_topic(name, 4)
    return name


@pytest.fixture
def administrator(broker: Broker) -> Iterator[KafkaAdminClient]:
    """Return a client that may change topics, if the broker allows it."""
    if isinstance(broker, MockBroker):
        skip_unless_ci("the mock cluster has no administration")
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as administrator:
        yield administrator


def test_each_of_20000_messages_comes_once_and_the_lag_goes_to_zero(broker: Broker, topic: str) -> None:
    sent = numbers(20_000)
    assert produce(sent, topic, broker.connection) == 20_000
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 20_000)
        reader.poll_for(0.5)
        status = reader.status
    assert reader.seen == Counter(sent)
    assert status.reached
    assert status.lag == 0
    assert [(partition.partition, partition.position) for partition in status.partitions] == [
        (n, 5_000) for n in range(4)
    ]


@both_clients
def test_messages_are_written_and_read_with_options_of_the_client_library(
    broker: Broker, topic: str, client: str
) -> None:
    names = {"kafka-python": ["linger_ms", "fetch_max_wait_ms"], "confluent": ["linger.ms", "fetch.wait.max.ms"]}
    options = dict.fromkeys(names[client], 10)
    sent = numbers(200)
    assert produce(sent, topic, broker.connection.model_copy(update={"client_options": options})) == 200
    with reading(broker.connection, topic, client_options=options) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 200)
    assert reader.seen == Counter(sent)


@both_clients
def test_each_message_has_the_time_at_which_it_was_written(broker: Broker, topic: str, client: str) -> None:
    polled: list[Records] = []
    started = time.time()
    produce(numbers(20), topic, broker.connection)
    with reading(broker.connection, topic) as reader:
        while sum(map(len, polled)) < 20:
            polled += reader.source.poll(0.2)
    for batch in polled:
        assert batch.timestamps is not None
        assert len(batch.timestamps) == len(batch)
        assert all(started - 1 < milliseconds / 1000 < time.time() + 1 for milliseconds in batch.timestamps)
        assert list(batch.timestamps[1:3]) == list(batch.timestamps)[1:3]


def test_a_restart_of_the_broker_loses_and_doubles_no_message(
    stoppable_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.SILENCE_TIMEOUT", 4.0)
    outage(stoppable_broker, topic, seconds=5.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_outage_of_a_minute_loses_and_doubles_no_message(stoppable_broker: Broker, topic: str) -> None:
    outage(stoppable_broker, topic, seconds=60.0)


def outage(broker: Broker, topic: str, seconds: float) -> None:
    produce(numbers(20_000), topic, broker.connection)
    with (
        log_lines() as theirs,
        capture_logs() as ours,
        reading(broker.connection, topic, max_poll_records=100) as reader,
    ):
        reader.poll_until(lambda: reader.seen.total() >= 5000)
        stopped_at = time.monotonic()
        broker.stop()
        reader.poll_until(lambda: not reader.status.reached)
        reader.poll_for(seconds)
        away = reader.status
        broker.start()
        reader.poll_until(lambda: reader.status.reached, timeout=RECOVERY_SECONDS * crowding())
        lasted = time.monotonic() - stopped_at
        produce(numbers(5000, first=20_000), topic, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 25_000)
        reader.poll_for(1.0)
    assert not away.reached
    assert broker.bootstrap in away.detail
    assert reader.seen == Counter(numbers(25_000))
    assert len(theirs) + len(ours) < max(100, 2 * lasted), [*theirs, *ours]


def test_a_broker_that_is_away_at_the_start_is_waited_for(leaving_broker: MockBroker, topic: str) -> None:
    leaving_broker.create_topic(topic, 4)
    produce(numbers(1000), topic, leaving_broker.connection)
    leaving_broker.stop()
    with reading(leaving_broker.connection, topic) as reader:
        polled: list[Records] = []
        assert quickest(lambda: polled.extend(reader.source.poll(0.2))) < 0.2 + 0.2 * crowding()
        assert polled == []
        assert not reader.status.reached
        reader.poll_for(1.0)
        leaving_broker.start()
        reader.poll_until(lambda: reader.seen.total() >= 1000, timeout=RECOVERY_SECONDS * crowding())
        assert reader.status.reached
        assert reader.status.rebuilds == 0
    assert reader.seen == Counter(numbers(1000))


def test_a_source_may_be_closed_at_any_time_while_it_starts(broker: Broker, topic: str) -> None:
    before = set(threading.enumerate())
    for pause in range(10):
        with reading(broker.connection, topic) as reader:
            reader.source.poll(0.0)
            time.sleep(0.02 * pause)
        crowded, started_at = crowding(), time.monotonic()
        wait_until(lambda: set(threading.enumerate()) <= before)
        assert time.monotonic() - started_at < 0.5 * CONNECT_TIMEOUT * max(crowded, crowding())


def delete_records(administrator: KafkaAdminClient, topic: str, before: int) -> None:
    administrator.delete_records({TopicPartition(topic, partition): before for partition in range(4)})


def test_records_deleted_before_they_were_read_are_counted_as_lost(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    produce(numbers(8000), topic, broker.connection)
    with reading(broker.connection, topic, max_poll_records=100, fetch_max_bytes=1000) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 200)
        delete_records(administrator, topic, before=1900)
        reader.poll_to_the_end()
        assert reader.status.lost > 0
        assert reader.seen.total() + reader.status.lost == 8000
        assert set(reader.seen.values()) == {1}


def test_lost_records_stop_the_source_if_configured(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    produce(numbers(8000), topic, broker.connection)
    with reading(
        broker.connection, topic, max_poll_records=100, fetch_max_bytes=1000, on_lost_offsets="fail"
    ) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 200)
        delete_records(administrator, topic, before=1900)
        with pytest.raises(SourceError, match="deleted before they were read"):
            reader.poll_to_the_end()


def test_a_partition_added_while_reading_is_read_from_its_start(
    broker: Broker, administrator: KafkaAdminClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.DISCOVERY_INTERVAL", 0.1)
    with reading(broker.connection, topic, start="latest") as reader:
        reader.poll_until(lambda: reader.status.reached)
        administrator.create_partitions({topic: 6})
        wait_until(
            lambda: [len(description["partitions"]) for description in administrator.describe_topics([topic])] == [6]
        )
        produce(numbers(600), topic, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 600)
        assert [partition.position for partition in reader.status.partitions] == [100] * 6
    assert reader.seen == Counter(numbers(600))


def test_latest_starts_after_the_existing_messages(broker: Broker, topic: str) -> None:
    produce(numbers(100), topic, broker.connection)
    with reading(broker.connection, topic, start="latest") as reader:
        reader.poll_until(lambda: reader.status.reached)
        produce(numbers(100, first=100), topic, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 100)
        reader.poll_to_the_end()
    assert reader.seen == Counter(numbers(100, first=100))


def test_a_start_time_selects_the_first_message_since_then(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    produce(numbers(100), topic, broker.connection)
    time.sleep(0.05)
    since = datetime.now(UTC)
    time.sleep(0.05)
    produce(numbers(101, first=100), topic, broker.connection)
    with reading(broker.connection, topic, start=since) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 101)
        reader.poll_to_the_end()
    assert reader.seen == Counter(numbers(101, first=100))


def test_a_missing_topic_is_waited_for_and_not_created(broker: Broker, administrator: KafkaAdminClient) -> None:
    name = f"missing-{uuid4().hex[:8]}"
    with reading(broker.connection, name) as reader:
        reader.poll_until(lambda: "does not exist" in reader.status.detail)
        assert not reader.status.reached
        assert name not in administrator.list_topics()
        produce(numbers(40), name, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 40)
    assert reader.seen == Counter(numbers(40))


def test_a_client_finds_its_topic_although_the_broker_answers_late(real_kafka: RealBroker, topic: str) -> None:
    settings = KafkaSettings.model_validate(real_kafka.connection.model_dump() | {"topic": topic})
    client = connect(settings, RECOVERY_SECONDS, ConnectionGroup())
    try:
        with real_kafka.suspended():
            time.sleep(0.3)  # 100 ms after it connected, kafka-python requests the addresses of all brokers
            asked = Background(lambda: client.partitions(RECOVERY_SECONDS))
            time.sleep(0.1)
        assert set(asked.result(2 * RECOVERY_SECONDS) or ()) == {0, 1, 2, 3}
    finally:
        client.close()


@both_clients
def test_a_topic_deleted_and_recreated_is_read_from_its_start(
    broker: Broker, administrator: KafkaAdminClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.STALL_TIMEOUT", 2.0)
    produce(numbers(400), topic, broker.connection)
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 400)
        administrator.delete_topics([topic])
        reader.poll_until(lambda: topic not in administrator.list_topics())
        reader.poll_for(1.0)
        create_topic(topic, 2, broker.connection)
        produce(numbers(900, first=1000), topic, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 1300)
        reader.poll_for(0.5)
        assert [partition.position for partition in reader.status.partitions] == [450, 450]
    assert reader.seen == Counter(numbers(400) + numbers(900, first=1000))


def committed(administrator: KafkaAdminClient, group: str) -> dict[int, int]:
    try:
        offsets = administrator.list_group_offsets([group])
    except (
        CoordinatorNotAvailableError,
        CoordinatorLoadInProgressError,
        NotCoordinatorError,
    ):  # it has just started
        return {}
    return {key.partition: value.offset for key, value in offsets.get(group, {}).items()}


def test_positions_are_shown_to_tools_for_lag_and_never_read_back(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    group = f"lag-of-{topic}"
    produce(numbers(400), topic, broker.connection)
    with reading(broker.connection, topic, group_id=group) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 400)
        reader.source.commit({topic: Offsets(dict.fromkeys(range(4), 60)), "another": Offsets({7: 1})})
        deadline = time.monotonic() + 60.0
        while committed(administrator, group) != dict.fromkeys(range(4), 100):
            assert time.monotonic() < deadline
            reader.source.commit(reader.source.offsets())
            time.sleep(0.2)
    with reading(broker.connection, topic, group_id=group) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 400)


def test_commits_to_a_broker_that_is_away_neither_wait_nor_fail(leaving_broker: MockBroker, topic: str) -> None:
    leaving_broker.create_topic(topic, 4)
    produce(numbers(400), topic, leaving_broker.connection)
    with reading(leaving_broker.connection, topic, group_id="lag") as reader:
        reader.poll_until(lambda: reader.seen.total() >= 400)
        reader.source.commit(reader.source.offsets())
        leaving_broker.stop()
        took = quickest(lambda: [reader.source.commit(reader.source.offsets()) for _ in range(100)])
        assert took < 0.5 * crowding()
        started_at = time.monotonic()
    assert time.monotonic() - started_at < 15.0 * crowding(), (
        "a client that waits for an answer gives up after 30 seconds"
    )


def bookmark_of(reader: Reading, topic: str) -> Offsets:
    """Return the offsets as a snapshot restores them."""
    return Offsets.from_state(reader.source.offsets()[topic].to_state())


@both_clients
def test_many_runs_read_each_message_once(broker: Broker, topic: str) -> None:
    produce(numbers(8000), topic, broker.connection)
    seen: Counter[bytes | None] = Counter()
    bookmark = None
    for _ in range(6):
        with reading(broker.connection, topic, bookmark, max_poll_records=100, fetch_max_bytes=1000) as reader:
            reader.poll_until(lambda reader=reader: reader.seen.total() >= 1000)  # type: ignore[misc]
            bookmark = bookmark_of(reader, topic)
        seen += reader.seen
    with reading(broker.connection, topic, bookmark, start="latest") as reader:
        reader.poll_until(lambda: reader.seen.total() + seen.total() >= 8000)
        reader.poll_to_the_end()
        assert reader.status.gaps == {}
    assert seen + reader.seen == Counter(numbers(8000))


def test_records_deleted_between_two_runs_are_counted_as_lost(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    produce(numbers(4000), topic, broker.connection)
    with reading(broker.connection, topic, max_poll_records=100, fetch_max_bytes=1000) as before:
        before.poll_until(lambda: before.seen.total() >= 200)
    delete_records(administrator, topic, before=900)
    with reading(broker.connection, topic, bookmark_of(before, topic)) as after:
        after.poll_until(lambda: after.seen.total() >= 400)
        after.poll_to_the_end()
        assert after.status.gaps == {"deleted": 4}
        assert before.seen.total() + after.status.lost + after.seen.total() == 4000
    assert not before.seen & after.seen


def recreate(administrator: KafkaAdminClient, topic: str, connection: KafkaConnection) -> None:
    administrator.delete_topics([topic])
    deadline = time.monotonic() + 60.0
    while topic in administrator.list_topics() and time.monotonic() < deadline:
        time.sleep(0.1)
    create_topic(topic, 4, connection)


@both_clients
def test_a_topic_recreated_between_two_runs_is_reported_whatever_its_length(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    produce(numbers(400), topic, broker.connection)
    with reading(broker.connection, topic) as before:
        before.poll_until(lambda: before.seen.total() >= 400)
    recreate(administrator, topic, broker.connection)
    produce(numbers(800, first=1000), topic, broker.connection)
    with (
        pytest.raises(SourceError, match="recreated"),
        reading(broker.connection, topic, bookmark_of(before, topic), on_lost_offsets="fail") as strict,
    ):
        strict.poll_for(60.0)
    with reading(broker.connection, topic, bookmark_of(before, topic)) as after:
        after.poll_until(lambda: after.seen.total() >= 800)
        after.poll_to_the_end()
        assert after.status.gaps == {"replaced": 1}
    assert after.seen == Counter(numbers(800, first=1000))


@pytest.mark.slow  # `make test` tests one run below, and truncations before a restart on a fake cluster
def test_a_log_truncated_and_grown_past_the_position_is_read_from_there(real_kafka: RealBroker, topic: str) -> None:
    """Let the broker's disk lose messages that were read, and give their offsets to messages written later."""
    produce(numbers(400), topic, real_kafka.connection)
    with reading(real_kafka.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 400)
        bookmark = Offsets.from_state(reader.source.offsets()[topic].to_state())
    assert bookmark.epochs.keys() == set(range(4))
    lose_all_messages(real_kafka, topic)
    produce(numbers(800, first=1000), topic, real_kafka.connection)
    with reading(real_kafka.connection, topic, bookmark=bookmark) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 800)
        assert reader.status.gaps == {"cut": 4}
    assert reader.seen == Counter(numbers(800, first=1000))


def lose_all_messages(broker: RealBroker, topic: str) -> None:
    broker.stop()
    broker.lose_messages(topic)
    broker.start()


@pytest.mark.slow  # `make test` tests one run below, and several runs on a fake cluster
@clients_together
def test_a_log_truncated_between_three_runs_is_read_from_the_truncation(
    real_kafka: RealBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two truncations a source reads nothing, and keeps the epochs of the one before."""
    monkeypatch.setattr("streameval.ingest.kafka.source.PROBE_INTERVAL", 0.5)
    bookmarks: dict[str, Offsets | None] = {"kafka-python": None, "confluent": None}
    for life in range(1, 4):
        if life > 1:
            lose_all_messages(real_kafka, topic)
        sent = numbers(400 * life, first=10_000 * life)
        produce(sent, topic, real_kafka.connection)
        for client, bookmark in bookmarks.items():
            connection = real_kafka.connection.model_copy(update={"client": client})
            with reading(connection, topic, bookmark) as reader:
                reader.poll_until(lambda: reader.seen.total() >= len(sent))  # noqa: B023 - used in this turn only
                assert reader.status.gaps == ({"cut": 4} if life > 1 else {})
                seen = bookmark_of(reader, topic)
            assert reader.seen == Counter(sent)
            with reading(connection, topic, seen) as idle:
                idle.poll_until(lambda: idle.status.lag == 0)
                idle.poll_for(1.5)
                bookmarks[client] = bookmark_of(idle, topic)
            assert idle.seen.total() == 0
            assert bookmark_of(idle, topic).epochs == seen.epochs


def test_a_log_truncated_while_nothing_comes_is_read_from_there(real_kafka: RealBroker, topic: str) -> None:
    """Let a client that has fetched nothing for a while find other messages."""
    produce(numbers(400), topic, real_kafka.connection)
    with reading(real_kafka.connection, topic) as first:
        first.poll_until(lambda: first.seen.total() >= 400)
    with reading(real_kafka.connection, topic, bookmark_of(first, topic)) as reader:
        reader.poll_until(lambda: reader.status.lag == 0)
        reader.poll_for(1.0)
        lose_all_messages(real_kafka, topic)
        produce(numbers(800, first=1000), topic, real_kafka.connection)
        reader.poll_until(lambda: reader.seen.total() >= 800)
        assert reader.status.gaps == {"cut": 4}
    assert reader.seen == Counter(numbers(800, first=1000))


@both_clients
def test_partitions_that_are_paused_wait_in_the_log(broker: Broker, topic: str) -> None:
    produce(numbers(8000), topic, broker.connection)
    with reading(broker.connection, topic, max_poll_records=100) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 200)
        reader.source.pause([(topic, 1), (topic, 2)])
        positions = dict(reader.source.positions)
        reader.poll_until(lambda: [reader.source.positions[partition] for partition in (0, 3)] == [2000, 2000])
        reader.poll_for(0.5)
        assert [reader.source.positions[partition] for partition in (1, 2)] == [positions[1], positions[2]]
        reader.source.pause([])
        reader.poll_until(lambda: reader.seen.total() >= 8000)
    assert reader.seen == Counter(numbers(8000))


def test_messages_fetched_before_a_pause_arrive_when_the_partition_resumes(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive without a new client, also if all other partitions have come to their end."""
    monkeypatch.setattr("streameval.ingest.kafka.source.STALL_TIMEOUT", 3600.0)
    produce(numbers(8000), topic, broker.connection)
    with reading(broker.connection, topic, max_poll_records=100) as reader:
        reader.poll_until(lambda: reader.seen.total() > 0)
        started = {number for number, position in reader.source.positions.items() if 0 < position < 2000}
        reader.source.pause([(topic, number) for number in started])
        others = reader.source.positions.keys() - started
        reader.poll_until(lambda: all(reader.source.positions[number] == 2000 for number in others))
        reader.source.pause([])
        reader.poll_until(lambda: reader.seen.total() >= 8000)
    assert started
    assert reader.seen == Counter(numbers(8000))


def megabytes() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory in use from /proc")
def test_a_slow_reader_sees_its_lag_grow_and_not_its_memory(broker: Broker, topic: str) -> None:
    produce((os.urandom(2000) for _ in range(35_000)), topic, broker.connection)
    with reading(broker.connection, topic, max_poll_records=2, fetch_max_bytes=4_000_000) as reader:
        deadline, before = time.monotonic() + 120.0, megabytes()

        def poll_slowly_until_the_lag_is(least: int) -> int:
            while (lag := reader.status.lag) is None or lag < least:
                assert time.monotonic() < deadline, reader.status
                reader.source.poll(0.2)
                time.sleep(0.05)
            return lag

        first = poll_slowly_until_the_lag_is(0)
        produce((os.urandom(2000) for _ in range(6000)), topic, broker.connection)
        poll_slowly_until_the_lag_is(first + 4000)
        assert first > 30_000
        assert megabytes() - before < 40.0


@both_clients
@pytest.mark.parametrize("codec", ["zstd", pytest.param("gzip", marks=pytest.mark.slow)])
def test_a_message_that_is_unpacked_to_more_than_the_limit_is_cut_and_those_around_it_are_read(
    broker: Broker, topic: str, client: str, codec: str
) -> None:
    options = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "message.max.bytes": 10**8}
    producer = confluent_kafka.Producer(options)
    for value in (b"one", b" " * 70 * 2**20, b"two"):
        producer.produce(topic, value, partition=0)
        producer.flush()
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 3)
    long = max(reader.seen, key=len)
    assert reader.seen == Counter([b"one", b"two", long])
    (rejected,) = JsonDecoder().decode_batch([long]).rejected
    assert rejected.reason == "malformed"
    assert rejected.detail.startswith("a message of 734003")


def test_two_topics_are_read_by_one_source(broker: Broker, topic: str) -> None:
    rewards = f"{topic}-rewards"
    broker.create_topic(rewards, 2)
    settings = KafkaSettings.model_validate(
        broker.connection.model_dump() | {"topic": topic, "rewards": {"topic": rewards}}
    )
    read: Counter[tuple[str, bytes | None]] = Counter()
    bookmarks = None
    for run in range(2):
        produce(numbers(400), topic, broker.connection)
        produce(numbers(100), rewards, broker.connection)
        with closing(settings.open(bookmarks)) as source:
            deadline = time.monotonic() + 60.0
            while read.total() < 500 * (run + 1) and time.monotonic() < deadline:
                read.update((batch.topic, value) for batch in source.poll(0.2) for value in batch.values)
            bookmarks = source.offsets()
            assert source.status().reached
            assert len(source.status().partitions) == 6
    assert read == Counter(
        2 * [(topic, value) for value in numbers(400)] + 2 * [(rewards, value) for value in numbers(100)]
    )


@both_clients
def test_messages_of_aborted_transactions_are_not_events(
    broker: Broker, administrator: KafkaAdminClient, topic: str
) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"writer-{topic}")) as producer:
        producer.init_transactions()
        for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction] * 2):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0).get(60)
            ends()
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 2)
        reader.poll_to_the_end()
    assert reader.seen == Counter([b"0", b"2"])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_kafka_is_read_whichever_library_wrote_it(broker: Broker, topic: str, codec: str) -> None:
    options = {"bootstrap_servers": broker.bootstrap, "api_version": broker.connection.api_version}
    with closing(KafkaProducer(**options, compression_type=codec, linger_ms=100)) as producer:
        for value in numbers(1000):
            producer.send(topic, value, partition=0)
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "compression.codec": codec})
    for value in numbers(1000, first=1000):
        librdkafka.produce(topic, value, partition=1)
    assert librdkafka.flush(60.0) == 0
    with reading(broker.connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 2000)
    assert reader.seen == Counter(numbers(2000))


def undefined_codec(batch: bytearray) -> None:
    batch[22] |= 7


def no_gzip(batch: bytearray) -> None:
    batch[61:] = bytes(len(batch) - 61)


def one_bit(batch: bytearray) -> None:
    batch[-1] ^= 1


def huge_count(batch: bytearray) -> None:
    batch[23] |= 64


def wrong_length_of_the_sixth_message(batch: bytearray) -> None:
    index = 61
    for _ in range(5):
        index += 1 + batch[index] // 2
    batch[index] += 2


def test_batches_that_cannot_be_unpacked_are_skipped_and_their_messages_counted(
    real_kafka: RealBroker, topic: str
) -> None:
    with closing(
        KafkaProducer(bootstrap_servers=real_kafka.bootstrap, compression_type="gzip", linger_ms=60_000)
    ) as producer:
        for number in range(8):
            for value in numbers(10, first=10 * number):
                producer.send(topic, value, partition=0)
            producer.flush()
    with closing(KafkaProducer(bootstrap_servers=real_kafka.bootstrap, linger_ms=60_000)) as producer:
        for value in numbers(10, first=80):
            producer.send(topic, value, partition=0)
        producer.flush()
    real_kafka.stop()
    real_kafka.alter_batch(topic, 1, undefined_codec)
    real_kafka.alter_batch(topic, 2, no_gzip)
    real_kafka.alter_batch(topic, 4, one_bit, checksum=False)
    real_kafka.alter_batch(topic, 5, huge_count, checksum=False)
    real_kafka.alter_batch(topic, 7, one_bit, checksum=False)
    real_kafka.alter_batch(topic, 8, wrong_length_of_the_sixth_message)
    real_kafka.start()
    with capture_logs() as logs, reading(real_kafka.connection, topic) as reader:
        reader.poll_until(lambda: reader.status.lag == 0)
        assert reader.source.positions[0] == 90
        assert reader.status.rebuilds == 0
    readable = [value for number in (0, 3, 6) for value in numbers(10, first=10 * number)]
    assert reader.seen == Counter([*readable, *numbers(5, first=80), *[None] * 55])
    reported = [(entry["offset"], entry["lost"]) for entry in logs if entry["event"] == "unreadable_batch"]
    assert reported == [(10, 20), (40, 20), (70, 10), (85, 5)]


def test_a_tombstone_is_a_message_without_a_value(broker: Broker, topic: str) -> None:
    connection = broker.connection
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, api_version=connection.api_version)) as producer:
        producer.send(topic, None, key=b"k").get(60)
    with reading(connection, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 1)
    assert reader.seen == Counter([None])


@both_clients
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_topic_is_read_through_tls_with_a_login_that_appears_in_no_log(
    real_kafka: RealBroker, topic: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    secure = real_kafka.secure_connection(mechanism)
    produce(numbers(100), topic, secure)
    secret_filter = caplog.filtering(discreet)  # type: ignore[arg-type]  # functions are filters, too
    all_levels = caplog.at_level("DEBUG"), caplog.at_level("DEBUG", logger="kafka")  # whatever other tests have set
    with all_levels[0], all_levels[1], secret_filter, reading(secure, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 100)
    assert reader.seen == Counter(numbers(100))
    if secure.client == "kafka-python":
        assert "SaslHandshakeRequest" in caplog.text, "nothing else is held back"
    assert PASSWORD not in caplog.text


@both_clients
def test_a_topic_is_read_with_tokens_of_an_identity_provider(real_kafka: RealBroker, topic: str) -> None:
    with identity_provider() as provider:
        secure = real_kafka.secure_connection().model_copy(
            update={"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_url": provider.url, "sasl_oauth_scope": "kafka"}
        )
        produce(numbers(100), topic, secure)
        with reading(secure, topic) as reader:
            reader.poll_until(lambda: reader.seen.total() >= 100)
    assert reader.seen == Counter(numbers(100))
    assert provider.requests


@clients_together
def test_a_cluster_whose_addresses_have_all_changed_is_found_by_its_bootstrap_servers(
    real_kafka: RealBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.STALL_TIMEOUT", 5.0)
    port = free_port()
    both = {"bootstrap_servers": [real_kafka.bootstrap, f"127.0.0.1:{port}"]}
    produce(numbers(100), topic, real_kafka.connection)
    with readers(real_kafka.connection.model_copy(update=both), topic) as together:
        for reader in together:
            reader.poll_until(lambda: reader.seen.total() >= 100)  # noqa: B023 - ends within the loop
        with real_kafka.moved(port):
            produce(numbers(100, first=100), topic, real_kafka.connection)
            for reader in together:
                reader.poll_until(lambda: reader.seen.total() >= 200)  # noqa: B023
    assert [reader.seen for reader in together] == [Counter(numbers(200))] * 2


@clients_together
def test_a_topic_is_read_while_tokens_of_a_function_expire(real_kafka: RealBroker, topic: str) -> None:
    """The broker closes connections when their tokens expire."""
    secure = real_kafka.secure_connection().model_copy(
        update={
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_username": None,
            "sasl_password": None,
            "sasl_oauth_provider": "support.identity:short_lived_token",
        }
    )
    before, started = len(identity.GRANTED), time.monotonic()
    with readers(secure, topic) as together:
        for number in range(12):
            client = CLIENTS[number % 2]
            produce(numbers(10, first=10 * number), topic, secure.model_copy(update={"client": client}))
            for reader in together:
                reader.poll_until(lambda: reader.seen.total() >= 10 * (number + 1))  # noqa: B023
            reader.poll_until(lambda: time.monotonic() >= started + number + 1.0)  # noqa: B023
    assert [reader.seen for reader in together] == [Counter(numbers(120))] * 2
    assert len(identity.GRANTED) - before >= 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts to connect end soon."""
    monkeypatch.setattr("streameval.ingest.kafka.source.CONNECT_TIMEOUT", 4.0)


@pytest.mark.usefixtures("impatient")
def test_the_status_reports_a_wrong_password(real_kafka: RealBroker, topic: str) -> None:
    with reading(real_kafka.secure_connection(password="wrong"), topic) as reader:
        reader.poll_until(lambda: "uthentication" in reader.status.detail)
        assert not reader.status.reached


@pytest.mark.usefixtures("impatient")
def test_the_status_reports_a_certificate_of_an_unknown_authority(real_kafka: RealBroker, topic: str) -> None:
    distrusting = real_kafka.secure_connection().model_copy(update={"ssl_cafile": None})
    with reading(distrusting, topic) as reader:
        reader.poll_until(lambda: "certificate" in reader.status.detail.lower())
        assert not reader.status.reached
