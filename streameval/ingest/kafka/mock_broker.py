"""Run a broker inside this process for the demo and for tests: the mock cluster of librdkafka.

It speaks the Kafka protocol, keeps about 5 MB per partition in memory and drops older messages.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Mapping
from typing import Any

from streameval.common.text import counted
from streameval.errors import InputError
from streameval.ingest.kafka.connection import KafkaConnection

PRODUCER = 0
TOPIC_NAME = "[a-zA-Z0-9._-]{1,249}"  # Kafka's rule, which the mock cluster does not check
POINTER, TEXT, INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

SIGNATURES: Mapping[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (POINTER, []),
    "rd_kafka_conf_set": (INT, [POINTER, TEXT, TEXT, TEXT, ctypes.c_size_t]),
    "rd_kafka_new": (POINTER, [INT, POINTER, TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [POINTER]),
    "rd_kafka_mock_cluster_new": (POINTER, [POINTER, INT]),
    "rd_kafka_mock_cluster_destroy": (None, [POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (TEXT, [POINTER]),
    "rd_kafka_mock_topic_create": (INT, [POINTER, TEXT, INT, INT]),
}


class EmbeddedBroker:
    """Run a cluster on free ports of 127.0.0.1. Clients need the protocol version in `connection`.

    Args:
        partitions: The number of partitions of each topic, by its name.
        brokers: The number of brokers.

    Raises:
        InputError: confluent-kafka is not installed.
    """

    def __init__(self, partitions: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        self._library = load_librdkafka()
        quiet = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(quiet, b"log_level", b"0", None, 0)
        self._owner = self._library.rd_kafka_new(PRODUCER, quiet, None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._owner, brokers)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for topic, count in (partitions or {}).items():
            self.create_topic(topic, count)

    @property
    def connection(self) -> KafkaConnection:
        """Return how to reach it."""
        return KafkaConnection.model_validate({"bootstrap_servers": self.bootstrap, "api_version": "2.3"})

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Create a topic. A topic that is written to before has 4 partitions.

        Raises:
            InputError: The broker refuses the name or the number of partitions.
        """
        refused = partitions < 1 or re.fullmatch(TOPIC_NAME, name) is None
        if refused or self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1):
            raise InputError(
                f"the embedded broker cannot create the topic {name!r} with {counted(partitions, 'partition')}",
                hint="give the topic another name, and at least one partition",
            )

    def close(self) -> None:
        """End the cluster and drop its messages."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            self._library.rd_kafka_mock_cluster_destroy(cluster)
            self._library.rd_kafka_destroy(self._owner)

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def load_librdkafka() -> Any:
    """Load the C library inside the confluent-kafka wheel, with the functions used here declared.

    Raises:
        InputError: The wheel is not installed.
    """
    try:
        extension = importlib.import_module("confluent_kafka.cimpl")
        library = ctypes.CDLL(extension.__file__)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError) as error:
        raise InputError(
            f"the embedded broker needs confluent-kafka: {error}", hint="pip install 'streameval[demo]'"
        ) from error
    return library
