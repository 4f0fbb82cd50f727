"""Run a mock cluster of three brokers with faults that tests trigger."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.mock_broker import INT, POINTER, TEXT, EmbeddedBroker

BROKERS, NO_LEADER = 3, -1
FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 1, 2, 3, 8, 10

ERRORS = {
    "unknown server error": -1,
    "offset out of range": 1,
    "corrupt message": 2,
    "unknown topic": 3,
    "leader not available": 5,
    "not the leader": 6,
    "request timed out": 7,
    "broker not available": 8,
    "replica not available": 9,
    "network exception": 13,
    "storage error": 56,
    "fenced leader epoch": 74,
    "unknown leader epoch": 75,
    "offset not available": 78,
}
"""Error codes of the protocol for the answer to a fetch."""

CONNECTION_LOST = -195

FAULTS: Mapping[str, tuple[Any, list[Any]]] = {
    "rd_kafka_mock_broker_set_down": (INT, [POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (INT, [POINTER, ctypes.c_int32]),
    "rd_kafka_mock_partition_set_leader": (INT, [POINTER, TEXT, ctypes.c_int32, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_rtt": (INT, [POINTER, ctypes.c_int32, INT]),
    "rd_kafka_mock_push_request_errors_array": (None, [POINTER, ctypes.c_int16, ctypes.c_size_t, POINTER]),
    "rd_kafka_mock_coordinator_set": (INT, [POINTER, TEXT, TEXT, ctypes.c_int32]),
    "rd_kafka_mock_partition_delete_records": (INT, [POINTER, TEXT, ctypes.c_int32, ctypes.c_int64]),
}


class StoppableBroker(EmbeddedBroker):
    """Run an embedded broker that tests may stop and start.

    Attributes:
        client: Name of the library for connections to it.
    """

    client = "kafka-python"

    @property
    def connection(self) -> KafkaConnection:
        return super().connection.model_copy(update={"client": self.client})

    def __init__(self, partitions: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        super().__init__(partitions, brokers=brokers)
        self._brokers = range(1, brokers + 1)
        for name, (result, arguments) in FAULTS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def stop(self) -> None:
        """Close all connections and refuse new ones until `start`. The messages are kept."""
        for broker in self._brokers:
            self.take_down(broker)

    def start(self) -> None:
        """Answer again after `stop`."""
        for broker in self._brokers:
            self.bring_back(broker)

    def take_down(self, broker: int) -> None:
        """Break the connections of one broker, and refuse new ones."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def bring_back(self, broker: int) -> None:
        """Let the broker answer again."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)


class FaultyCluster(StoppableBroker):
    """Run three brokers that share the messages. A partition is read at its leader."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        super().__init__(partitions, brokers=BROKERS)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Let another broker (1 to 3) be the leader of a partition, or `NO_LEADER`."""
        assert not self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def coordinate(self, group: str, broker: int) -> None:
        """Let another broker be the coordinator of a group."""
        assert not self._library.rd_kafka_mock_coordinator_set(self._cluster, b"group", group.encode(), broker)

    def slow_down(self, milliseconds: int) -> None:
        """Delay every answer of every broker."""
        for broker in self._brokers:
            assert not self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds)

    def fail(self, request: int, errors: Sequence[int]) -> None:
        """Answer the next requests of a kind, to any broker, with one of these error codes each."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, request, len(errors), ctypes.cast(codes, POINTER)
        )

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the messages of a partition before an offset."""
        assert not self._library.rd_kafka_mock_partition_delete_records(
            self._cluster, topic.encode(), partition, offset
        )
