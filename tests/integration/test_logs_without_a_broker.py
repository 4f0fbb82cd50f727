"""Say in a few lines of the log, and in the status, why a broker does not answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.service.logging import configure_logging
from support.daemon_logs import daemon_logs, written_logs


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    with daemon_logs():
        yield


Capture = pytest.CaptureFixture[str]


def test_a_broker_that_is_away_fills_a_few_lines_not_thousands(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "streameval.ingest.kafka.kafka_python.RECONNECT_BACKOFF_MAX_MS", 50
    )  # a minute in three seconds
    configure_logging("info")
    source = KafkaSource(KafkaSettings(bootstrap_servers=["127.0.0.1:1"], topic="clicks"))
    written, end = [], time.monotonic() + 3.0
    while time.monotonic() < end or not written:
        source.poll(0.2)
        written += written_logs(capsys)
    source.close()
    assert len([*written, *written_logs(capsys)]) < 40


def test_the_status_tells_why_a_broker_is_not_reached_if_nothing_is_logged(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.CONNECT_TIMEOUT", 0.2)
    configure_logging("critical")
    with closing(KafkaSource(KafkaSettings(bootstrap_servers=["127.0.0.1:1"], topic="clicks"))) as source:
        end = time.monotonic() + 60.0
        while "REFUSED" not in source.status().detail:
            assert time.monotonic() < end, source.status().detail
            source.poll(0.2)
    assert capsys.readouterr().err == ""


def test_a_broker_that_closes_the_connection_at_login_may_have_refused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.source.CONNECT_TIMEOUT", 0.5)
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "a"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        settings = KafkaSettings(bootstrap_servers=[address], topic="clicks", sasl_password="b", **login)
        with closing(KafkaSource(settings)) as source:
            end = time.monotonic() + 60.0
            while "socket disconnected, as brokers do" not in source.status().detail:
                assert time.monotonic() < end, source.status().detail
                source.poll(0.01)
                with suppress(TimeoutError), server.accept()[0] as connection:
                    connection.settimeout(1.0)
                    connection.recv(4096)
                    connection.shutdown(socket.SHUT_WR)
