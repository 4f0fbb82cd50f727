"""Test what is repaired in kafka-python."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from kafka.protocol import api_message
from kafka.protocol.admin import DescribeLogDirsResponse

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.settings import KafkaSettings
from support.ports import free_ports, open_sockets


def test_two_threads_that_make_a_response_class_at_once_make_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may_end = threading.Event(), threading.Event()
    registered = api_message.ResponseClassRegistry.register_response_class
    monkeypatch.setattr(DescribeLogDirsResponse, "_VERSIONS", {})

    def register(response_class: Any) -> None:
        registered(response_class)
        if not entered.is_set():
            entered.set()
            may_end.wait(60.0)

    monkeypatch.setattr(api_message.ResponseClassRegistry, "register_response_class", register)
    first, second = (threading.Thread(target=lambda: DescribeLogDirsResponse[2]) for _ in range(2))
    first.start()
    assert entered.wait(60.0)
    second.start()
    second.join(0.1)  # it waits for the first one; without the repair it is the one that stays registered
    may_end.set()
    first.join()
    second.join()
    gc.collect()
    newest = api_message.ResponseClassRegistry._response_class_registry[DescribeLogDirsResponse.API_KEY]
    assert newest[2] is DescribeLogDirsResponse[2]


def test_attempts_that_are_refused_leave_no_sockets_to_the_garbage_collector() -> None:
    (port,) = free_ports(1)
    settings = KafkaSettings(topic="t", bootstrap_servers=[f"127.0.0.1:{port}"])
    gc.disable()
    try:
        before = open_sockets()
        for _ in range(2):
            with pytest.raises(ClientError):
                KafkaPythonClient(settings, 0.05, ConnectionGroup())
        assert open_sockets() <= before
    finally:
        gc.enable()
