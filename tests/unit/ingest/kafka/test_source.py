"""Test what `KafkaSource` does about each kind of failure, over a cluster in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kafka import KafkaAdminClient
from pydantic import ValidationError

from streameval.errors import SourceError
from streameval.ingest.background import MAX_BACKOFF, RetryError
from streameval.ingest.base import Offsets, Records, SourceStatus
from streameval.ingest.kafka import confluent
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.kafka_python import arguments, connection_options, consumer_options
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import (
    OPENING_TIMEOUT,
    PROBE_INTERVAL,
    KafkaSource,
    MultiSource,
)
from support.daemon_logs import daemon_logs
from support.factories import wait_until
from support.fake_kafka import TOPIC, FakeCluster

CONNECT_SECONDS = 60.0
"""Seconds to wait for a connection in the background, on a busy machine."""


class Bench:
    """Run a source over a cluster in memory, with a clock that moves by hand."""

    def __init__(self, cluster: FakeCluster, bookmark: Offsets | None = None, **changes: object) -> None:
        self.cluster = cluster
        self.now, self.chance = 1000.0, 0.0
        self.seen: list[bytes | None] = []
        settings = KafkaSettings.model_validate({"topic": TOPIC, "max_poll_records": 3} | changes)
        chance, clock = (lambda: self.chance), (lambda: self.now)
        self.source = KafkaSource(settings, bookmark, clock=clock, connect=cluster.connect, chance=chance)

    def poll(self, times: int = 1, every: float = MAX_BACKOFF, timeout: float = CONNECT_SECONDS) -> SourceStatus:
        for _ in range(times):
            self.now += every
            for records in self.source.poll(timeout):
                self.seen += records.values
        return self.source.status()

    def seen_of(self, partition: int) -> list[bytes | None]:
        return [value for value in self.seen if value is not None and value.startswith(b"%d:" % partition)]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.fill(0, 10)
    cluster.fill(1, 10)
    return cluster


def test_all_partitions_are_read_in_order_and_the_lag_goes_to_zero(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    assert bench.poll(2).lag == 8
    status = bench.poll(10)
    assert status.reached
    assert status.lag == 0
    assert bench.seen_of(0) == cluster.logs[0]
    assert bench.seen_of(1) == cluster.logs[1]
    assert bench.source.positions == {0: 10, 1: 10}


def test_the_age_of_the_last_message_read_is_known_while_others_are_unread(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    behind = bench.poll(2).partitions[0]
    assert behind.lag
    assert behind.lag_seconds(100.0) == 100.0 - (behind.position - 1), "each message is a second after the one before"
    cluster.faults = [ClientError("the leader moved")]
    assert bench.poll(1).partitions[0].lag_seconds(100.0) == behind.lag_seconds(100.0), "also while it reconnects"
    assert bench.poll(12).partitions[0].lag_seconds(100.0) == 0.0


@pytest.mark.parametrize("polls_before", [1, 2, 3, 4])
def test_after_a_failure_a_new_client_continues_at_the_same_position(cluster: FakeCluster, polls_before: int) -> None:
    bench = Bench(cluster)
    bench.poll(polls_before)
    cluster.faults = [ClientError("the leader moved")]
    status = bench.poll(12)
    assert sorted(bench.seen) == sorted(cluster.logs[0] + cluster.logs[1])
    assert status.rebuilds == 1
    assert cluster.clients[0].closed


def test_while_no_broker_answers_polls_are_empty_and_the_status_reports_it(cluster: FakeCluster) -> None:
    cluster.up = False
    bench = Bench(cluster, bootstrap_servers="kafka-1:9092")
    status = bench.poll(3)
    assert not status.reached
    assert status.lag is None
    assert "kafka-1:9092" in status.detail
    assert "no broker answers" in status.detail
    cluster.up = True
    assert bench.poll(12).reached
    assert len(bench.seen) == 20


@pytest.mark.parametrize(
    ("chance", "seconds"),
    [(0.0, [1, 2, 3, 4, 6, 10, 15, 20, 25, 30]), (1.0, [1, 2, 3, 4, 5, 7, 10, 13, 16, 19, 22, 25, 28])],
)
def test_pauses_between_attempts_double_up_to_a_limit_with_jitter(
    cluster: FakeCluster, chance: float, seconds: list[int]
) -> None:
    cluster.up = False
    bench = Bench(cluster)
    bench.chance = chance
    attempts = []
    for second in range(1, 31):
        bench.poll(every=1.0, timeout=0.05)
        attempts += [second] * (cluster.attempts - len(attempts))
    assert attempts == seconds


def test_a_poll_returns_in_time_while_connecting_takes_long(cluster: FakeCluster) -> None:
    answered = threading.Event()
    cluster.before_connect = lambda: answered.wait(60.0)
    bench = Bench(cluster)
    started_at = time.monotonic()
    assert bench.source.poll(timeout=0.05) == []
    assert time.monotonic() - started_at < 30.0
    answered.set()
    bench.poll(5)
    assert cluster.attempts == 1
    assert len(bench.seen) > 0


def test_a_client_that_connects_after_the_source_was_closed_is_closed(cluster: FakeCluster) -> None:
    answered = threading.Event()
    cluster.before_connect = lambda: answered.wait(60.0)
    bench = Bench(cluster)
    bench.source.poll(timeout=0.01)
    bench.source.close()
    answered.set()
    wait_until(lambda: cluster.clients != [] and cluster.clients[0].closed)


def test_the_source_waits_for_a_missing_topic(cluster: FakeCluster) -> None:
    logs, cluster.logs = cluster.logs, {}
    bench = Bench(cluster)
    status = bench.poll(3)
    assert not status.reached
    assert "'clicks' does not exist" in status.detail
    assert all(client.closed for client in cluster.clients)
    cluster.logs = logs
    bench.poll(12)
    assert len(bench.seen) == 20


def test_silence_of_the_cluster_is_distinguished_from_a_quiet_topic(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(10)
    assert bench.poll(20, every=PROBE_INTERVAL).reached
    cluster.up = False
    assert bench.poll(2, every=PROBE_INTERVAL).reached
    status = bench.poll(4, every=PROBE_INTERVAL)
    assert not status.reached
    assert status.detail == "no answer from localhost:9092 for 18 s"
    assert status.rebuilds == 0


def test_a_client_that_gets_no_answer_for_the_stall_timeout_is_replaced(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(10)
    cluster.up = False
    assert bench.poll(12, every=PROBE_INTERVAL).rebuilds == 1
    cluster.fill(0, 5, first=10)
    cluster.up = True
    bench.poll(10)
    assert bench.seen_of(0) == cluster.logs[0]


def test_a_partition_that_stands_still_while_events_wait_gets_a_new_client(cluster: FakeCluster) -> None:
    cluster.deaf = {1}
    bench = Bench(cluster)
    assert bench.poll(9, every=PROBE_INTERVAL).rebuilds == 0
    assert bench.source.status().lag == 10
    assert bench.poll(8, every=PROBE_INTERVAL).rebuilds == 1  # little of the time in which messages came counts
    cluster.deaf = set()
    bench.poll(6)
    assert bench.seen_of(1) == cluster.logs[1]
    assert bench.seen_of(0) == cluster.logs[0]


@pytest.mark.parametrize(("every", "stuck"), [(10.0, False), (40.0, True)])
def test_a_partition_that_waits_for_its_turn_counts_as_stuck_only_much_later(
    cluster: FakeCluster, every: float, stuck: bool
) -> None:
    """Poll all the time, and get messages of another partition first."""
    cluster.fill(0, 90)
    cluster.deaf = {1}
    assert (Bench(cluster).poll(20, every=every).rebuilds > 0) == stuck


def test_a_source_that_is_never_reached_waits_for_longer_and_longer(cluster: FakeCluster) -> None:
    cluster.up = False
    bench = Bench(cluster)
    assert bench.poll(20).waiting == 100.0
    cluster.up = True
    assert bench.poll(12).waiting == 0.0


def test_new_clients_that_return_nothing_do_not_end_the_wait_of_their_partition(cluster: FakeCluster) -> None:
    """Connect again and again, and answer every request but the fetches of one partition."""
    cluster.deaf = {1}
    status = Bench(cluster).poll(100)
    assert status.rebuilds > 5
    assert status.waiting == 495.0  # since the first poll has found the partitions
    assert status.partitions[0].lag == 0


def test_a_source_whose_every_client_fails_at_once_waits(cluster: FakeCluster) -> None:
    cluster.faults = [ClientError("ReferenceError('weakly-referenced object no longer exists')")] * 1000
    status = Bench(cluster).poll(100)
    assert status.rebuilds > 20
    assert status.waiting == 495.0  # since the first poll has found the partitions


@pytest.mark.parametrize("quiet", ["at its end", "in a transaction", "paused"])
def test_a_partition_with_nothing_to_read_does_not_wait(cluster: FakeCluster, quiet: str) -> None:
    bench = Bench(cluster)
    bench.poll(1 if quiet == "paused" else 12)
    cluster.hidden = 2 if quiet == "in a transaction" else 0
    bench.source.pause([(TOPIC, 0), (TOPIC, 1)] if quiet == "paused" else [])
    assert bench.poll(100).waiting <= MAX_BACKOFF


def test_a_process_that_was_suspended_has_not_waited(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(12)
    cluster.fill(0, 5, first=10)
    assert bench.poll(every=3600.0).waiting < 60.0


def test_a_client_that_never_finishes_connecting_is_given_up(cluster: FakeCluster) -> None:
    answered = Event()
    cluster.before_connect = lambda: answered.wait(60.0)
    bench = Bench(cluster)
    bench.poll(int(OPENING_TIMEOUT / MAX_BACKOFF) + 2, timeout=0.0)
    assert "has not connected for 120 s" in bench.source.status().detail
    cluster.before_connect = lambda: None
    bench.poll(12)
    assert len(bench.seen) == 20
    answered.set()
    wait_until(lambda: len(cluster.clients) == 2 and cluster.clients[1].closed)


def test_a_caller_that_is_slower_than_the_stall_timeout_keeps_its_client(cluster: FakeCluster) -> None:
    cluster.fill(0, 200)
    cluster.fill(1, 200)
    bench = Bench(cluster)
    assert bench.poll(40, every=31.0).rebuilds == 0
    assert len(bench.seen) >= 39 * 3


def test_events_of_an_open_transaction_wait_without_alarm(cluster: FakeCluster) -> None:
    cluster.hidden = 2
    status = Bench(cluster).poll(30, every=PROBE_INTERVAL)
    assert status.rebuilds == 0
    assert status.lag == 4


def test_a_partition_with_an_open_transaction_is_not_at_its_end(cluster: FakeCluster) -> None:
    """Wait for its messages, because they have earlier timestamps and come once it is committed."""
    cluster.hidden = 2
    bench = Bench(cluster)
    assert [partition.ended_at for partition in bench.poll(12).partitions] == [None, None]
    cluster.hidden = 0
    assert all(partition.ended_at for partition in bench.poll(12).partitions)
    assert len(bench.seen) == 20


def test_a_log_truncated_before_it_was_read_ends_at_its_new_end(cluster: FakeCluster) -> None:
    """Check that the source does not wait for lost messages that it never read."""
    bench = Bench(cluster)
    bench.poll(1)
    del cluster.logs[1][6:]
    status = bench.poll(5)
    assert status.lag == 0
    assert all(partition.ended_at for partition in status.partitions)
    assert bench.seen_of(1) == cluster.logs[1]


def test_markers_of_transactions_do_not_count_as_lag(cluster: FakeCluster) -> None:
    cluster.markers = 1
    assert Bench(cluster).poll(12).lag == 0


def test_messages_deleted_before_they_were_read_are_counted_as_lost(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(1)
    cluster.first = {1: 7}
    status = bench.poll(12)
    assert status.lost == 4
    assert status.gaps == {"deleted": 1}
    assert bench.seen_of(1) == cluster.logs[1][:3] + cluster.logs[1][7:]
    assert bench.seen_of(0) == cluster.logs[0]
    assert status.rebuilds == 0


def test_lost_messages_stop_the_source_if_configured(cluster: FakeCluster) -> None:
    bench = Bench(cluster, on_lost_offsets="fail")
    bench.poll(1)
    cluster.first = {1: 7}
    with pytest.raises(SourceError, match="known to be lost: 4") as raised:
        bench.poll(2)
    assert "retention" in raised.value.hint


def test_a_log_truncated_below_the_position_is_read_from_its_end(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(10)
    del cluster.logs[1][8:]
    bench.poll(1)
    cluster.fill(1, 3, first=20)
    status = bench.poll(5)
    assert bench.seen_of(1)[10:] == [b"1:20", b"1:21", b"1:22"]
    assert status.lost == 0
    assert status.gaps == {"cut": 1}


@pytest.mark.parametrize("between", ["two clients", "two runs"])
def test_a_log_truncated_below_the_position_and_grown_past_it_is_noticed(cluster: FakeCluster, between: str) -> None:
    """Elect a new leader that has six of ten messages, and write others."""
    cluster.epochs = {0: [4] * 10, 1: [4] * 10}
    bench = Bench(cluster)
    bench.poll(5)
    assert bench.seen_of(0) == cluster.logs[0]
    cluster.logs[0][6:] = [b"0:new-%d" % number for number in range(20)]
    cluster.epochs[0] = [4] * 6 + [5] * 20
    if between == "two runs":
        (state,) = [mark.to_state() for mark in bench.source.offsets().values()]
        bench = Bench(cluster, Offsets.from_state(state))
    else:
        cluster.faults = [ClientError("the broker went away")]
    status = bench.poll(12)
    assert status.gaps == {"cut": 1}
    assert bench.seen_of(0)[-20:] == cluster.logs[0][6:]
    assert status.positions == {(TOPIC, 0): 26, (TOPIC, 1): 10}
    assert bench.seen_of(1) == (cluster.logs[1] if between == "two clients" else [])


def test_a_log_truncated_twice_in_a_row_is_read_from_the_second_truncation(cluster: FakeCluster) -> None:
    cluster.epochs = {0: [4] * 10, 1: [4] * 10}
    bench = Bench(cluster)
    bench.poll(5)
    for cut, epoch in ((6, 5), (3, 6)):
        del cluster.logs[0][cut:], cluster.epochs[0][cut:]
        cluster.fill(0, 20, first=100 * epoch)
        cluster.epochs[0] += [epoch] * 20
        bench.poll(1)
    assert bench.poll(12).gaps == {"cut": 2}
    assert bench.seen_of(0)[-20:] == cluster.logs[0][3:]


def test_a_log_truncated_between_three_runs_is_read_from_the_truncation(cluster: FakeCluster) -> None:
    """Read nothing between two truncations, and keep the epochs of the run before."""
    cluster.forgetful = True
    bookmark = Offsets({})
    for life in range(1, 4):
        cluster.logs = {}
        cluster.epochs = {0: [life] * 10 * life, 1: [life] * 10 * life}
        cluster.fill(0, 10 * life, first=100 * life)
        cluster.fill(1, 10 * life, first=100 * life)
        bench = Bench(cluster, bookmark)
        assert bench.poll(20).gaps == ({"cut": 2} if life > 1 else {})
        assert sorted(bench.seen) == sorted(cluster.logs[0] + cluster.logs[1])
        _, bookmark = read_a_while(cluster, polls=5, bookmark=bench.source.offsets()[TOPIC])
        assert bookmark == Offsets({0: 10 * life, 1: 10 * life}, "id-1", {0: life, 1: life})


def test_an_epoch_is_not_kept_beyond_its_position(cluster: FakeCluster) -> None:
    """Let brokers stop reporting epochs. An old epoch would make later messages look lost."""
    cluster.epochs, cluster.forgetful = {0: [4] * 10, 1: [4] * 10}, True
    bench = Bench(cluster)
    bench.poll(8)
    cluster.epochs = {}
    cluster.fill(0, 10, first=10)
    bench.poll(8)
    assert bench.source.offsets()[TOPIC] == Offsets({0: 20, 1: 10}, "id-1", {1: 4})


def test_reading_continues_at_a_truncation_that_the_client_reports(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(10)
    cluster.logs[1][8:] = [b"1:a", b"1:b", b"1:c"]
    cluster.faults = [OffsetsGoneError({1: 8})]
    bench.poll(5)
    assert bench.seen_of(1)[10:] == [b"1:a", b"1:b", b"1:c"]


@pytest.mark.parametrize("length", [4, 30])
def test_a_recreated_topic_is_read_from_its_start(cluster: FakeCluster, length: int) -> None:
    bench = Bench(cluster)
    bench.poll(2)
    cluster.topic_id, cluster.logs = "id-2", {}
    cluster.fill(0, length, first=100)
    bench.poll(20)
    assert bench.seen_of(0)[-length:] == cluster.logs[0]
    assert len(bench.seen_of(0)) <= 10 + length
    assert bench.source.positions == {0: length}


def test_a_topic_recreated_while_disconnected_is_read_from_its_start(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(10)
    cluster.faults = [ClientError("gone")]
    bench.poll(1)
    cluster.topic_id, cluster.logs = "id-2", {}
    cluster.fill(0, 25, first=100)
    bench.poll(20)
    assert bench.seen_of(0)[10:] == cluster.logs[0]


def test_a_recreated_topic_stops_the_source_if_configured(cluster: FakeCluster) -> None:
    bench = Bench(cluster, on_lost_offsets="fail")
    bench.poll(2)
    cluster.topic_id = "id-2"
    with pytest.raises(SourceError, match=r"recreated.*known to be lost: 8"):
        bench.poll(2)


def test_a_partition_added_later_is_read_from_its_start(cluster: FakeCluster) -> None:
    bench = Bench(cluster, start="latest")
    bench.poll(5)
    cluster.fill(2, 6)
    bench.poll(5)
    assert bench.seen == []
    bench.poll(12)
    assert bench.seen == cluster.logs[2]


def test_messages_that_come_twice_are_returned_once(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(3)
    cluster.clients[0].positions[0] = 2
    status = bench.poll(12)
    assert bench.seen_of(0) == cluster.logs[0]
    assert status.rebuilds == 1


def test_the_first_start_reads_from_the_configured_position() -> None:
    for start, first in [("earliest", 4), ("latest", 10), (datetime.fromtimestamp(6, UTC), 6)]:
        cluster = FakeCluster(first={0: 4})
        cluster.fill(0, 10)
        bench = Bench(cluster, start=start)
        bench.poll(8)
        cluster.fill(0, 2, first=10)
        bench.poll(4)
        assert bench.seen == cluster.logs[0][first:]


def test_saved_positions_win_over_the_configured_start(cluster: FakeCluster) -> None:
    bench = Bench(cluster, Offsets({0: 8}), start="latest")
    bench.poll(12)
    assert bench.seen_of(0) == cluster.logs[0][8:]
    assert bench.seen_of(1) == cluster.logs[1]  # added while no source was running


def read_a_while(cluster: FakeCluster, polls: int = 2, bookmark: Offsets | None = None) -> tuple[Bench, Offsets]:
    bench = Bench(cluster, bookmark)
    bench.poll(polls)
    bench.source.close()
    return bench, bench.source.offsets()[TOPIC]


@pytest.mark.parametrize("polls", [1, 2, 3, 4, 8])
def test_the_next_run_continues_exactly_at_its_offsets(cluster: FakeCluster, polls: int) -> None:
    before, bookmark = read_a_while(cluster, polls)
    after = Bench(cluster, Offsets.from_state(bookmark.to_state()), start="latest")
    after.poll(12)
    assert before.seen_of(0) + after.seen_of(0) == cluster.logs[0]
    assert before.seen_of(1) + after.seen_of(1) == cluster.logs[1]
    assert after.source.status().gaps == {}


def test_a_topic_recreated_between_two_runs_is_read_from_its_start(cluster: FakeCluster) -> None:
    _, bookmark = read_a_while(cluster)
    cluster.topic_id, cluster.logs = "id-2", {}
    cluster.fill(0, 30, first=100)
    after = Bench(cluster, bookmark)
    status = after.poll(20)
    assert after.seen == cluster.logs[0]
    assert status.gaps == {"replaced": 1}
    assert after.source.offsets()[TOPIC] == Offsets({0: 30}, "id-2")


def test_messages_of_a_recreated_topic_do_not_count_as_lost(cluster: FakeCluster) -> None:
    """Check the count when the broker returns the end of the new log for the name of the topic. All its messages are
    read."""
    bench = Bench(cluster)
    bench.poll(12)
    cluster.create_again()
    cluster.fill(0, 30, first=100)
    status = bench.poll(20)
    assert status.gaps == {"replaced": 1}
    assert bench.seen[-30:] == cluster.logs[0]
    assert status.lost == 0


def test_unread_messages_of_a_recreated_topic_count_as_lost(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.poll(2)
    unread = 20 - sum(bench.source.positions.values())
    cluster.create_again()
    assert bench.poll(20).lost == unread > 0


def test_without_topic_ids_a_missing_partition_shows_that_the_topic_was_recreated(cluster: FakeCluster) -> None:
    cluster.topic_id = None
    _, bookmark = read_a_while(cluster)
    del cluster.logs[1]
    after = Bench(cluster, bookmark)
    assert after.poll(20).gaps == {"replaced": 1}
    assert after.seen == cluster.logs[0]
    assert after.source.positions == {0: 10}


def test_the_source_waits_for_a_partition_that_the_broker_does_not_list_for_now(cluster: FakeCluster) -> None:
    before, bookmark = read_a_while(cluster)
    gone = cluster.logs.pop(1)
    after = Bench(cluster, bookmark)
    assert "does not list the partitions [1]" in after.poll(5).detail
    cluster.logs[1] = gone
    after.poll(12)
    assert before.seen_of(1) + after.seen_of(1) == gone


def test_a_broker_that_learns_or_forgets_topic_ids_is_not_a_new_topic(cluster: FakeCluster) -> None:
    for before, after in [(None, "id-1"), ("id-1", None)]:
        cluster.topic_id = before
        _, bookmark = read_a_while(cluster)
        cluster.topic_id = after
        bench = Bench(cluster, bookmark)
        assert bench.poll(12).gaps == {}
        assert bench.source.offsets()[TOPIC].identity == "id-1"


@pytest.mark.parametrize(
    ("first", "length", "reported"),
    [(8, 10, "deleted before they were read; known to be lost: 2"), (0, 4, "truncated.*position 6, resume_at 4")],
)
def test_messages_lost_between_two_runs_stop_the_source_if_configured(
    cluster: FakeCluster, first: int, length: int, reported: str
) -> None:
    _, bookmark = read_a_while(cluster)
    cluster.first = {1: first}
    del cluster.logs[1][length:]
    bench = Bench(cluster, bookmark, on_lost_offsets="fail")
    with pytest.raises(SourceError, match=reported) as raised:
        bench.poll(5)
    assert "source.on_lost_offsets" in raised.value.hint
    assert bench.source.offsets()[TOPIC].positions[1] == 6


def test_a_paused_partition_waits_in_the_log_and_is_not_stuck(cluster: FakeCluster) -> None:
    bench = Bench(cluster)
    bench.source.pause([(TOPIC, 1), ("another", 0)])
    status = bench.poll(20, every=PROBE_INTERVAL)
    assert bench.seen == cluster.logs[0]
    assert status.rebuilds == 0
    assert status.lag == 10
    cluster.faults = [ClientError("the leader moved")]
    bench.poll(12)
    assert bench.seen_of(1) == []
    bench.source.pause([])
    bench.poll(12)
    assert bench.seen_of(1) == cluster.logs[1]


class Ends:
    """Return these records, then raise at every poll."""

    def __init__(self, *polls: list[Records] | SourceError) -> None:
        self.polls = [*polls]

    def poll(self, timeout: float) -> list[Records]:
        polled = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        if isinstance(polled, SourceError):
            raise polled
        return polled


def test_messages_of_one_source_survive_the_failure_of_another() -> None:
    """Get the messages before the error, because a snapshot after the failure counts them as read."""
    decisions = [Records(TOPIC, 0, [7], [b"7"])]
    several = MultiSource([Ends(decisions, []), Ends(SourceError("cut", hint="fix it"), [])])  # type: ignore[list-item]
    assert several.poll(0.0) == decisions
    for _ in range(2):
        with pytest.raises(SourceError, match="cut"):
            several.poll(0.0)


def test_empty_records_move_nothing() -> None:
    bench = Bench(FakeCluster(logs={0: []}))
    bench.poll(3)
    assert bench.source.positions == {0: 0}
    assert len(Records(TOPIC, 0, [], [])) == 0


def test_security_settings_become_the_clients_arguments(tmp_path: Path) -> None:
    authority, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "me.pem", "me.key"))
    for path in (authority, certificate, key):
        Path(path).touch()
    settings = KafkaSettings.model_validate(
        {
            "topic": TOPIC,
            "bootstrap_servers": "a:9093, b:9093",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "reader",
            "sasl_password": "of-nobodys-business",
            "ssl_cafile": authority,
            "ssl_certfile": certificate,
            "ssl_keyfile": key,
            "ssl_password": "nor-this",
            "api_version": 2.3,
        }
    )
    options = consumer_options(settings)
    assert options == options | {
        "bootstrap_servers": ["a:9093", "b:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "reader",
        "sasl_plain_password": "of-nobodys-business",
        "ssl_cafile": authority,
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
        "ssl_password": "nor-this",
        "api_version": (2, 3),
    }
    options = confluent.consumer_options(settings)
    assert options == options | {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": "of-nobodys-business",
        "ssl.ca.location": authority,
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
        "ssl.key.password": "nor-this",
    }
    assert "of-nobodys-business" not in repr(settings)
    assert "nor-this" not in repr(settings)


def test_the_log_of_the_library_does_not_show_the_password() -> None:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "reader"}
    options = connection_options(KafkaConnection.model_validate(login | {"sasl_password": "a-secret"}))
    assert options["sasl_plain_password"] == "a-secret"
    assert "a-secret" not in repr(options)


def test_the_consumer_never_commits_and_never_jumps() -> None:
    options = consumer_options(KafkaSettings(topic=TOPIC))
    assert options["enable_auto_commit"] is False
    assert options["auto_offset_reset"] == "none"
    assert options["fetch_max_bytes"] == 16 * 1024 * 1024
    options = confluent.consumer_options(KafkaSettings(topic=TOPIC))
    assert options["enable.auto.commit"] is False
    assert options["auto.offset.reset"] == "error"
    assert options["fetch.max.bytes"] == 16 * 1024 * 1024
    assert options["receive.message.max.bytes"] == 64 * 1024 * 1024, "of a batch that is unpacked"


def test_options_that_are_not_set_are_left_to_the_client() -> None:
    assert "api_version" not in connection_options(KafkaConnection())
    assert not [name for name in connection_options(KafkaConnection()) if name.startswith("sasl")]


@pytest.mark.parametrize(
    ("client", "wait", "linger", "client_id"),
    [
        ("kafka-python", "fetch_max_wait_ms", "linger_ms", "client_id"),
        ("confluent", "fetch.wait.max.ms", "linger.ms", "client.id"),
    ],
)
def test_options_of_the_client_library_are_passed_on_last(client: str, wait: str, linger: str, client_id: str) -> None:
    options = {wait: 150, linger: 5, client_id: "mine"}
    settings = KafkaSettings.model_validate({"topic": TOPIC, "client": client, "client_options": options})
    configured = (consumer_options if client == "kafka-python" else confluent.consumer_options)(settings)
    assert (configured[wait], configured[client_id]) == (150, "mine")
    requests = consumer_options(settings)
    assert "linger_ms" not in requests, "a producer has it"
    assert not [name for name in requests if "." in name], "kafka-python has no such options"
    assert arguments(KafkaAdminClient, settings)["client_id"] == ("mine" if client == "kafka-python" else "streameval")


@pytest.mark.parametrize(
    ("client", "options", "reason"),
    [
        ("kafka-python", {"enable_auto_commit": True}, "'enable_auto_commit' cannot be changed: the guarantees"),
        ("kafka-python", {"check_crcs": True}, "'check_crcs' cannot be changed"),
        ("kafka-python", {"value_deserializer": "json"}, "'value_deserializer' cannot be changed"),
        ("kafka-python", {"auto_offset_reset": "latest"}, "'auto_offset_reset' cannot be changed"),
        (
            "kafka-python",
            {"bootstrap_servers": "b:1"},
            "'bootstrap_servers' has its own option: set bootstrap_servers instead",
        ),
        ("kafka-python", {"fetch_wait_max_ms": 5}, "no option 'fetch_wait_max_ms' .* did you mean 'fetch_max_wait_ms'"),
        ("kafka-python", {"fetch_max_wait_ms": "soon"}, "'fetch_max_wait_ms' is by default 500, and cannot be 'soon'"),
        ("kafka-python", {"metrics_enabled": 1}, "'metrics_enabled' is by default True, and cannot be 1"),
        ("kafka-python", {"ssl_context": "mine"}, "no option 'ssl_context' that a configuration can set"),
        ("confluent", {"enable.auto.commit": True}, "'enable.auto.commit' cannot be changed"),
        ("confluent", {"group.id": "mine"}, "set group_id instead"),
        ("confluent", {"fetch.wait.max": 5}, 'No such configuration property: "fetch.wait.max"'),
        ("confluent", {"fetch.wait.max.ms": "soon"}, 'Invalid value for configuration property "fetch.wait.max.ms"'),
    ],
)
def test_unknown_and_protected_client_options_are_refused(client: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as raised:
        KafkaSettings.model_validate({"topic": TOPIC, "client": client, "client_options": options})
    assert raised.value.errors()[0]["loc"] == ("client_options",)


class SlowGroup:
    """Answer or fail when the test says so."""

    def __init__(self, failures: int = 0) -> None:
        self.answers, self.failures = threading.Semaphore(0), failures
        self.written: list[dict[int, int]] = []
        self.asked = self.closed = 0

    def write(self, batch: Sequence[Mapping[int, int]]) -> int:
        self.asked += 1
        assert self.answers.acquire(timeout=60.0)
        if self.failures:
            self.failures -= 1
            raise RetryError("not the coordinator", batch[-1:])
        self.written.append(dict(batch[-1]))
        return len(batch)

    def abort(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


def committing(group: SlowGroup, monkeypatch: pytest.MonkeyPatch, close_timeout: float = 30.0) -> KafkaSource:
    monkeypatch.setattr("streameval.ingest.kafka.source.GroupWriter", lambda *_: group)
    monkeypatch.setattr("streameval.ingest.kafka.source.COMMIT_TIMEOUT", close_timeout)
    return KafkaSource(KafkaSettings(topic=TOPIC, group_id="lag"))


def test_only_the_newest_positions_wait_during_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SlowGroup()
    source = committing(group, monkeypatch)
    source.commit({TOPIC: Offsets({0: 1})})
    wait_until(lambda: group.asked == 1)
    for offset in range(2, 100):
        source.commit({TOPIC: Offsets({0: offset})})
    group.answers.release(2)
    source.close()
    assert group.written == [{0: 1}, {0: 99}]
    assert group.closed == 1


def test_failed_commits_are_logged_sparsely_and_retried_with_the_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.background.PAUSE_FIRST", 0.01)
    group = SlowGroup(failures=5)
    group.answers.release(100)
    with daemon_logs():
        source = committing(group, monkeypatch)
        for offset in range(20):
            source.commit({TOPIC: Offsets({0: offset})})
            wait_until(lambda offset=offset: group.asked > offset)
        source.close()
    assert group.written[-1] == {0: 19}
    assert capsys.readouterr().err.count("offsets_not_committed") == 1


def test_a_group_that_never_answers_does_not_delay_closing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SlowGroup()
    source = committing(group, monkeypatch, close_timeout=0.1)
    started_at = time.monotonic()
    source.commit({TOPIC: Offsets({0: 1})})
    source.close()
    assert time.monotonic() - started_at < 30.0
    group.answers.release()


def test_client_confluent_without_its_library_is_refused_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.connection.find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"pip install 'streameval\[confluent\]'"):
        KafkaSettings.model_validate({"topic": TOPIC, "client": "confluent"})
    KafkaSettings(topic=TOPIC)
