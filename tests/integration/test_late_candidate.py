"""Add a candidate while `streameval run` reads a topic, with its history or without: each event counts once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from streameval.ingest.kafka.producer import produce
from support.asking import asking, report_of
from support.factories import wait_until
from support.integration.broker import Broker
from support.messages import message

pytestmark = pytest.mark.kafka

RUN = [sys.executable, "-c", "from streameval.cli.app import main; main()", "run"]
PARTITIONS = 4
PATIENCE = 120.0


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"late-{uuid4().hex[:8]}"
    broker.create_topic(name, PARTITIONS)
    return name


@cache
def text(number: int) -> bytes:
    policies = {"early": 0.5, "late": 0.5, "later": 0.5}
    return message(number, event_id=f"e-{number}", timestamp=1_700_000_000 + number, reward=number, policies=policies)


def messages(first: int, last: int) -> list[bytes]:
    """Make events with distinct rewards: the sum over any of them is exact, and identifies them."""
    return [text(number) for number in range(first, last)]


class Running:
    """Hold the daemon as a process, its configuration, and its log."""

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        self.path, self._log = folder / "streameval.yaml", folder / "log"
        self._source = source
        self.configure("early")

    def configure(self, *candidates: str, **changes: Any) -> None:
        parts = {
            "source": self._source,
            "policies": {"candidates": list(candidates)},
            "reward": {"min": 0, "max": 10_000_000},
            "estimators": ["ips"],
            "averages": ["cumulative"],
            "drift": "off",
            "http": {"port": 0},
        }
        self.path.write_text(yaml.safe_dump(parts | changes))

    @contextmanager
    def started(self, *options: str) -> Iterator[Running]:
        command = [*RUN, str(self.path), "--log-format", "json", *options]
        here = self.path.parent  # the state is kept there, too
        with self._log.open("wb") as log, subprocess.Popen(command, stderr=log, cwd=here) as self.process:
            try:
                with asking(self._address()) as self._client:
                    yield self
                self.process.terminate()
                assert self.process.wait(PATIENCE) == 0, self._log.read_text()
            finally:
                self.process.kill()

    def reload(self, *candidates: str, **changes: Any) -> None:
        self.configure(*candidates, **changes)
        self.process.send_signal(signal.SIGHUP)

    def logged(self, event: str) -> list[dict[str, Any]]:
        entries = []
        for line in self._log.read_text().splitlines():
            with suppress(ValueError):
                entries.append(json.loads(line))
        return [entry for entry in entries if entry["event"] == event]

    def metrics(self) -> str:
        return self._client.get("/metrics").text

    def report(self) -> dict[str, Any]:
        return report_of(self._client) or {"policies": [], "estimates": []}

    def seen(self) -> dict[str, tuple[int, float]]:
        """Return the number of events of each policy, and the sum of their rewards."""
        report = self.report()
        values = {estimate["policy"]: estimate["value"] for estimate in report["estimates"]}
        return {
            policy["policy"]: (policy["events"], policy["events"] * (values[policy["policy"]] or 0.0))
            for policy in report["policies"]
        }

    def wait_for(self, expected: dict[str, tuple[int, float]], seconds: float = PATIENCE) -> None:
        with suppress(AssertionError):
            wait_until(lambda: {name: seen[0] for name, seen in self.seen().items()} == counts(expected), seconds)
        assert self.seen() == {name: pytest.approx(seen, rel=1e-12) for name, seen in expected.items()}

    def _address(self) -> str:
        wait_until(lambda: bool(self.logged("serving")) or self.process.poll() is not None, PATIENCE)
        assert self.process.poll() is None, self._log.read_text()
        return str(self.logged("serving")[0]["url"])


def counts(expected: dict[str, tuple[int, float]]) -> dict[str, int]:
    return {name: events for name, (events, _) in expected.items()}


def total(first: int, last: int) -> tuple[int, float]:
    """Number and sum of the rewards of `messages(first, last)`."""
    return last - first, float(sum(range(first, last)))


def kafka(broker: Broker, topic: str, **options: Any) -> dict[str, Any]:
    return {"kind": "kafka", "bootstrap_servers": broker.bootstrap, "topic": topic} | options


def in_order_of_arrival(broker: Broker, topic: str) -> dict[str, Any]:
    """Count the last events at once. In the order of time they wait until all partitions are known to be read."""
    return kafka(broker, topic, order="arrival")


@contextmanager
def events_arriving(broker: Broker, topic: str, first: int, pace: int = 500) -> Iterator[list[int]]:
    """Write messages all the while, in small lots. The list ends with the number of the next one."""
    following, stopping = [first], threading.Event()

    def send() -> None:
        while not stopping.wait(0.02):
            produce(messages(following[-1], following[-1] + pace), topic, broker.connection)
            following.append(following[-1] + pace)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield following
    finally:
        stopping.set()
        thread.join()


def test_a_late_candidate_starts_with_the_next_event(broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(messages(0, 4000), topic, broker.connection)
    with Running(tmp_path, in_order_of_arrival(broker, topic)).started() as daemon:
        daemon.wait_for({"logging": total(0, 4000), "early": total(0, 4000)})
        daemon.reload("early", "late")
        wait_until(lambda: bool(daemon.logged("reloaded")))
        produce(messages(4000, 5000), topic, broker.connection)
        daemon.wait_for({"logging": total(0, 5000), "early": total(0, 5000), "late": total(4000, 5000)})


def test_a_late_candidate_with_its_history_has_every_event_once_while_events_arrive(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    produce(messages(0, 30_000), topic, broker.connection)
    with Running(tmp_path, kafka(broker, topic)).started("--backfill", "earliest") as daemon:
        daemon.wait_for({"logging": total(0, 30_000), "early": total(0, 30_000)})
        with events_arriving(broker, topic, 30_000) as following:
            wait_until(lambda: daemon.seen()["logging"][0] > 30_000)
            daemon.reload("early", "late")
            wait_until(lambda: bool(daemon.logged("backfill_done")), PATIENCE)
            joined = len(following)
            wait_until(lambda: len(following) > joined + 3)
            daemon.reload("early", "late", "later")
            wait_until(lambda: len(daemon.logged("backfill_done")) == 2, PATIENCE)
        everything = total(0, following[-1])
        daemon.wait_for(dict.fromkeys(("logging", "early", "late", "later"), everything))
        assert daemon.logged("backfill_done")[0]["events"] > 30_000
        assert not daemon.logged("backfill_failed")


@pytest.mark.slow
def test_a_candidate_that_comes_while_the_others_have_much_to_catch_up_has_every_event_once(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    produce(messages(0, 100_000), topic, broker.connection)
    with Running(tmp_path, kafka(broker, topic)).started("--backfill", "earliest") as daemon:
        wait_until(lambda: bool(daemon.logged("first_event")))
        daemon.reload("early", "late")
        daemon.wait_for(dict.fromkeys(("logging", "early", "late"), total(0, 100_000)))
        assert 0 < daemon.logged("backfill_done")[0]["events"] <= 100_000


def test_history_starts_at_an_offset_of_each_partition(broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(messages(0, 4000), topic, broker.connection)
    with Running(tmp_path, in_order_of_arrival(broker, topic)).started("--backfill", "900") as daemon:
        daemon.wait_for({"logging": total(0, 4000), "early": total(0, 4000)})
        daemon.reload("early", "late")
        wait_until(lambda: bool(daemon.logged("backfill_done")))
        produce(messages(4000, 4400), topic, broker.connection)
        wait_until(lambda: daemon.seen()["logging"][0] == 4400)
        assert daemon.seen()["late"][0] == 4 * 100 + 400
        assert daemon.seen()["early"] == pytest.approx(total(0, 4400))


@pytest.mark.slow
def test_history_from_a_time_starts_with_the_messages_sent_then(broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(messages(0, 3000), topic, broker.connection)
    time.sleep(1.1)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    time.sleep(0.1)
    produce(messages(3000, 5000), topic, broker.connection)
    with Running(tmp_path, kafka(broker, topic)).started("--backfill", moment) as daemon:
        daemon.wait_for({"logging": total(0, 5000), "early": total(0, 5000)})
        daemon.reload("early", "late")
        everything = total(0, 5000)
        daemon.wait_for({"logging": everything, "early": everything, "late": total(3000, 5000)})


def test_fixed_options_are_refused_by_name_and_a_removed_candidate_is_dropped(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    produce(messages(0, 1000), topic, broker.connection)
    with Running(tmp_path, in_order_of_arrival(broker, topic)).started() as daemon:
        daemon.wait_for({"logging": total(0, 1000), "early": total(0, 1000)})
        daemon.reload("early", "late", reward={"min": 0, "max": 5}, confidence=0.9)
        wait_until(lambda: len(daemon.logged("reload_failed")) == 1)
        assert "cannot change confidence, reward.max" in daemon.logged("reload_failed")[0]["error"]
        daemon.reload("early", estimators=["no such thing"])
        wait_until(lambda: len(daemon.logged("reload_failed")) == 2)
        assert "estimators.0" in daemon.logged("reload_failed")[1]["error"]
        produce(messages(1000, 2000), topic, broker.connection)
        daemon.wait_for({"logging": total(0, 2000), "early": total(0, 2000)})
        daemon.reload("late")
        produce(messages(2000, 2500), topic, broker.connection)
        wait_until(lambda: set(daemon.seen()) == {"logging", "late"})
        wait_until(lambda: daemon.seen()["logging"] == pytest.approx(total(0, 2500)))
        assert daemon.logged("reloaded") != []


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_is_read_again_from_its_start_or_from_a_line(tmp_path: Path, follow: bool) -> None:
    log = tmp_path / "log.ndjson"
    log.write_bytes(b"\n".join([*messages(0, 5000), b""]))
    running = Running(tmp_path, {"kind": "file", "path": str(log), "follow": follow})
    with running.started("--backfill", "4001") as daemon:
        daemon.wait_for({"logging": total(0, 5000), "early": total(0, 5000)})
        daemon.reload("early", "late")
        wait_until(lambda: bool(daemon.logged("backfill_done")))
        daemon.wait_for({"logging": total(0, 5000), "early": total(0, 5000), "late": total(4000, 5000)})
