"""Test that no message is lost or read twice, on a mock cluster of three brokers that fail on command."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from streameval.ingest.base import Offsets
from streameval.ingest.kafka.producer import produce
from support.factories import crowding
from support.integration.faulty_cluster import (
    CONNECTION_LOST,
    ERRORS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    NO_LEADER,
    OFFSET_COMMIT,
    FaultyCluster,
)
from support.integration.reading import Reading, log_lines, numbers, reading

TOPIC, MESSAGES = "clicks", 4000
MAX_LINES = 60
RECOVERY_SECONDS = 60.0


@pytest.fixture(params=["kafka-python", pytest.param("confluent", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Iterator[FaultyCluster]:
    """Run a cluster with a topic of four partitions and 4000 messages."""
    with FaultyCluster({TOPIC: 4}) as cluster:
        cluster.client = request.param
        produce(numbers(MESSAGES), TOPIC, cluster.connection)
        yield cluster


@pytest.fixture(autouse=True)
def few_lines() -> Iterator[None]:
    """Check that no failure fills a disk with log lines."""
    with log_lines() as theirs, capture_logs() as ours:
        yield
    assert len(theirs) + len(ours) < MAX_LINES, [*theirs, *ours]


def read_all(reader: Reading, count: int = MESSAGES) -> None:
    """Read each message once, and no other."""
    reader.poll_until(lambda: reader.seen.total() >= count, RECOVERY_SECONDS * crowding())
    reader.poll_for(0.2)
    assert reader.seen == Counter(numbers(count))


def gently(cluster: FaultyCluster, bookmark: Offsets | None = None, **changes: Any) -> Any:
    """Read little at a time, so that faults come in between."""
    return reading(
        cluster.connection, TOPIC, bookmark, **({"max_poll_records": 100, "fetch_max_bytes": 2000} | changes)
    )


def test_failed_fetches_are_retried_whatever_the_reason(cluster: FaultyCluster) -> None:
    with gently(cluster) as reader:
        for number, error in enumerate(ERRORS.values()):
            reader.poll_until(lambda number=number: reader.seen.total() >= 250 * number)  # type: ignore[misc]
            cluster.fail(FETCH, [error] * 2)
        read_all(reader)
        assert reader.status.lost == 0
        assert reader.status.gaps == {}


@pytest.mark.parametrize("request_kind", [FETCH, METADATA, LIST_OFFSETS])
def test_broken_connections_are_made_again(cluster: FaultyCluster, request_kind: int) -> None:
    with gently(cluster) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 1000)
        cluster.fail(request_kind, [CONNECTION_LOST] * 5)
        read_all(reader)


def test_a_start_survives_brokers_that_cannot_list_their_topics(cluster: FaultyCluster) -> None:
    cluster.fail(METADATA, [ERRORS["broker not available"], ERRORS["leader not available"]])
    cluster.fail(LIST_OFFSETS, [ERRORS["not the leader"], ERRORS["request timed out"], CONNECTION_LOST])
    with gently(cluster) as reader:
        read_all(reader)


def test_changing_leaders_are_followed(cluster: FaultyCluster) -> None:
    with gently(cluster) as reader:
        for step in range(12):
            reader.poll_until(lambda step=step: reader.seen.total() >= 250 * step)  # type: ignore[misc]
            for partition in range(4):
                cluster.lead(TOPIC, partition, (step + partition) % 3 + 1)
        read_all(reader)


def test_a_broker_that_dies_leaves_its_partitions_to_the_others(cluster: FaultyCluster) -> None:
    with gently(cluster) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 1000)
        cluster.take_down(2)
        for partition in range(4):
            cluster.lead(TOPIC, partition, 1 + 2 * (partition % 2))
        read_all(reader)


def test_a_partition_without_a_leader_waits_while_the_others_are_read(cluster: FaultyCluster) -> None:
    if cluster.client == "confluent":
        pytest.skip("the mock cluster crashes when librdkafka fetches from a partition without a leader")
    with gently(cluster) as reader:
        reader.poll_until(lambda: reader.status.reached)
        cluster.lead(TOPIC, 0, NO_LEADER)
        reader.poll_until(lambda: reader.seen.total() >= 3 * MESSAGES // 4)
        reader.poll_for(1.0)
        cluster.lead(TOPIC, 0, 2)
        read_all(reader)


def test_slow_brokers_are_not_taken_for_dead_ones(cluster: FaultyCluster) -> None:
    cluster.slow_down(300)
    with reading(cluster.connection, TOPIC) as reader:
        read_all(reader)
        reader.poll_for(4.0)  # beyond a probe
        assert reader.status.reached
        assert reader.status.rebuilds == 0


def test_a_lost_coordinator_costs_commits_but_no_message(cluster: FaultyCluster) -> None:
    took = []
    with gently(cluster, group_id="lag") as reader:
        for step in range(10):
            reader.poll_until(lambda step=step: reader.seen.total() >= 300 * step)  # type: ignore[misc]
            cluster.coordinate("lag", step % 3 + 1)
            cluster.fail(FIND_COORDINATOR, [15, CONNECTION_LOST])  # not available
            cluster.fail(OFFSET_COMMIT, [16, CONNECTION_LOST])  # not the coordinator
            started_at = time.monotonic()
            reader.source.commit(reader.source.offsets())
            took.append(time.monotonic() - started_at)
        assert statistics.median(took) < 0.1 * crowding()
        read_all(reader)


def test_all_brokers_away_for_a_while_cost_no_message(cluster: FaultyCluster) -> None:
    with gently(cluster) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 1000)
        cluster.stop()
        reader.poll_for(3.0)
        cluster.start()
        read_all(reader)


def test_faults_between_many_runs_lose_and_double_no_message(cluster: FaultyCluster) -> None:
    seen: Counter[bytes | None] = Counter()
    bookmark: Offsets | None = None
    for run in range(8):
        cluster.fail(FETCH, [list(ERRORS.values())[run], CONNECTION_LOST])
        with gently(cluster, bookmark) as reader:
            goal = min(MESSAGES, 600 * (run + 1)) - seen.total()
            reader.poll_until(lambda: reader.seen.total() >= goal)  # noqa: B023 - used in this turn only
            for partition in range(4):
                cluster.lead(TOPIC, partition, (run + partition) % 3 + 1)
            reader.poll_for(0.1)
            bookmark = reader.source.offsets()[TOPIC]
        seen += reader.seen
    assert seen == Counter(numbers(MESSAGES))


def test_messages_deleted_between_two_runs_are_counted(cluster: FaultyCluster) -> None:
    with gently(cluster) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 500)
    read = reader.seen.total()
    for partition in range(4):
        cluster.delete_before(TOPIC, partition, 900)
    with gently(cluster, reader.source.offsets()[TOPIC]) as after:
        after.poll_until(lambda: after.status.lag == 0)
        assert after.status.lost == 3600 - read
        assert after.status.gaps == {"deleted": 4}
    assert after.seen.total() == 400
