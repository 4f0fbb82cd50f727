"""Options of a Kafka client library that a configuration passes through by the library's own names."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

ClientOptions: TypeAlias = Mapping[str, bool | int | float | str]

NAMED = {
    "bootstrap_servers": ("bootstrap_servers", "bootstrap.servers", "metadata.broker.list"),
    "security_protocol": ("security_protocol", "security.protocol"),
    "sasl_mechanism": ("sasl_mechanism", "sasl.mechanism", "sasl.mechanisms"),
    "sasl_username": ("sasl_plain_username", "sasl.username"),
    "sasl_password": ("sasl_plain_password", "sasl.password"),
    "ssl_cafile": ("ssl_cafile", "ssl.ca.location"),
    "ssl_certfile": ("ssl_certfile", "ssl.certificate.location"),
    "ssl_keyfile": ("ssl_keyfile", "ssl.key.location"),
    "ssl_password": ("ssl_password", "ssl.key.password"),
    "ssl_check_hostname": ("ssl_check_hostname", "ssl.endpoint.identification.algorithm"),
    "api_version": ("api_version", "broker.version.fallback"),
    "request_timeout": ("request_timeout_ms", "socket.timeout.ms"),
    "group_id": ("group_id", "group.id"),
    "max_poll_records": ("max_poll_records",),
    "fetch_max_bytes": ("fetch_max_bytes", "fetch.max.bytes"),
}
"""The options behind each named setting, in both libraries."""

REQUIRED = {
    *("enable_auto_commit", "auto_offset_reset", "isolation_level", "check_crcs", "key_deserializer"),
    *("value_deserializer", "group_instance_id", "partition_assignment_strategy", "default_offset_commit_callback"),
    *("consumer_timeout_ms", "bootstrap_timeout_ms", "delivery_timeout_ms", "max_block_ms", "key_serializer"),
    *("value_serializer", "acks", "enable_idempotence", "transactional_id", "allow_auto_create_topics"),
    *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset", "isolation.level"),
    *("check.crcs", "group.instance.id", "group.protocol", "partition.assignment.strategy", "enable.partition.eof"),
    *("message.timeout.ms", "delivery.timeout.ms", "acks", "request.required.acks", "enable.idempotence"),
    *("transactional.id", "allow.auto.create.topics", "plugin.library.paths", "logger", "error_cb"),
}
"""The options on which it depends that each event counts once, that no message is lost, and that calls end in time."""

OBJECTS = {"kafka_client", "selector", "metric_reporters", "partitioner", "socket_options", "ssl_context"}
OBJECTS |= {"sasl_oauth_token_provider"}
"""Options of kafka-python whose values are Python objects, which a configuration cannot hold."""


def require_usable(client: str, options: ClientOptions) -> None:
    """Check that a client library has these options, and that none changes what streameval relies on.

    Raises:
        ValueError: Names the first option that cannot be used, and why.
    """
    for name in options:
        setting = next((setting for setting, names in NAMED.items() if name in names), None)
        if setting is not None:
            raise ValueError(f"'{name}' has its own option: set {setting} instead")
        if name in REQUIRED:
            raise ValueError(f"'{name}' cannot be changed: the guarantees of streameval depend on it")
    for problem in (_kafka_python_problems if client == "kafka-python" else _confluent_problems)(options):
        raise ValueError(problem)


def _kafka_python_problems(options: ClientOptions) -> Iterator[str]:
    from kafka import KafkaConsumer, KafkaProducer  # only imported where options are given

    known = {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}
    for name, value in options.items():
        if name not in known or name in OBJECTS:
            yield f"the client kafka-python has no option '{name}' that a configuration can set{_like(name, known)}"
        default = known.get(name)
        if isinstance(default, bool | int | float | str) and isinstance(value, bool) != isinstance(default, bool):
            yield f"'{name}' is by default {default!r}, and cannot be {value!r}"
        if isinstance(default, int | float) and isinstance(value, str):
            yield f"'{name}' is by default {default!r}, and cannot be {value!r}"


def _like(name: str, known: Mapping[str, Any]) -> str:
    usable = known.keys() - OBJECTS - REQUIRED
    found = difflib.get_close_matches(name.lower().replace(".", "_"), usable, n=1)
    return f"; did you mean '{found[0]}'?" if found else ""


def _confluent_problems(options: ClientOptions) -> Iterator[str]:
    from confluent_kafka import KafkaException, Producer  # an extra

    try:
        Producer({**options, "logger": logging.getLogger("confluent_kafka")})  # connects to nothing
    except KafkaException as error:
        yield f"the client confluent refuses them: {error.args[0].str()}"
