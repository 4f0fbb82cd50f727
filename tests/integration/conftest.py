"""Fixtures for tests with real servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.integration.broker import Broker, ExternalBroker, MockBroker, NoBrokerError, RealBroker, real_broker
from support.integration.ci import skip_unless_ci

FALLBACK = pytest.StashKey[str]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reason := config.stash.get(FALLBACK, None):
        terminalreporter.write_line(f"Kafka tests ran on the mock cluster: {reason}", yellow=True)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Start one broker for the whole run. A test that stops it starts it again."""
    with ExitStack() as stack:
        yield open_broker(stack, request.config)


@pytest.fixture(params=["kafka-python", pytest.param("confluent", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, broker: Broker) -> Iterator[str]:
    """Name the client library of all connections to the broker."""
    broker.client = request.param
    yield request.param
    broker.client = "kafka-python"


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> str:
    """Return `host:port` of the broker."""
    return broker.bootstrap


@pytest.fixture
def stoppable_broker(broker: Broker) -> Iterator[Broker]:
    """Return a broker that the test may stop and start."""
    if isinstance(broker, ExternalBroker):
        skip_unless_ci("the broker at STREAMEVAL_TEST_KAFKA is not ours to stop")
    yield broker
    broker.start()


@pytest.fixture
def leaving_broker(client: str) -> Iterator[MockBroker]:
    """Start a broker that goes away and comes back within milliseconds, while a real one restarts its Java."""
    with MockBroker() as broker:
        broker.client = client
        yield broker


@pytest.fixture
def real_kafka(broker: Broker) -> RealBroker:
    """Apache Kafka started by us, with its TLS listener and its administration."""
    if not isinstance(broker, RealBroker):
        skip_unless_ci(f"needs its own broker, not the {broker.kind}")
    assert isinstance(broker, RealBroker)
    return broker


def open_broker(stack: ExitStack, config: pytest.Config) -> Broker:
    external = os.environ.get("STREAMEVAL_TEST_KAFKA")
    if external:
        return ExternalBroker(external)
    try:
        return stack.enter_context(real_broker())
    except NoBrokerError as reason:
        if os.environ.get("CI"):
            pytest.exit(f"CI needs a real Kafka broker: {reason}", returncode=1)
        config.stash[FALLBACK] = str(reason)
        return stack.enter_context(MockBroker())
