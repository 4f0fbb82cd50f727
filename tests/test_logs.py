"""Logs: on stderr, for people or for machines, and few."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from collections.abc import Iterator

import pytest
import structlog

from streameval.logs import RateLimit, configure_logging
from streameval.sources.kafka import KafkaSource
from streameval.sources.settings import KafkaSettings


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is written to stderr; afterwards logging is as it was."""
    root, kafka = logging.getLogger(), logging.getLogger("kafka")
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    yield written
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    kafka.setLevel(logging.NOTSET)


def lines(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_without_a_terminal_each_record_is_a_line_of_json_on_stderr(
    stderr: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info")
    structlog.get_logger("here").info("started", port=9108)
    logging.getLogger("there").warning("%d left", 3)
    ours, theirs = lines(stderr)
    assert (ours["event"], ours["level"], ours["logger"], ours["port"]) == ("started", "info", "here", 9108)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("3 left", "warning", "there")
    assert capsys.readouterr().out == ""


def test_console_lines_are_for_people(stderr: io.StringIO) -> None:
    configure_logging("info", "console")
    structlog.get_logger("here").info("started", port=9108)
    assert "started" in stderr.getvalue()
    assert "port=9108" in stderr.getvalue()
    assert "{" not in stderr.getvalue()


def test_a_traceback_shows_no_local_variables(stderr: io.StringIO) -> None:
    configure_logging("info", "console")
    password = "of-nobodys-business"
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("here").exception("failed")
    assert "ValueError" in stderr.getvalue()
    assert password not in stderr.getvalue().replace(f'password = "{password}"', "")


def test_records_below_the_level_are_left_out(stderr: io.StringIO) -> None:
    configure_logging("warning")
    structlog.get_logger("here").info("fine")
    structlog.get_logger("here").warning("odd")
    assert [line["event"] for line in lines(stderr)] == ["odd"]


@pytest.mark.parametrize(("level", "heard"), [("info", False), ("debug", True)])
def test_the_kafka_clients_chatter_is_for_those_who_debug(stderr: io.StringIO, level: str, heard: bool) -> None:
    configure_logging(level)
    logging.getLogger("kafka.net").info("connecting")
    assert bool(stderr.getvalue()) is heard


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limited(clock: Clock) -> tuple[logging.Handler, list[str]]:
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(RateLimit(("chatty",), most=2, period=60.0, clock=clock))
    return handler, written


def log_often(handler: logging.Handler, name: str, count: int) -> None:
    for number in range(count):
        handler.handle(logging.LogRecord(name, logging.ERROR, "net.py", 7, "attempt %d failed", (number,), None))


def test_one_place_in_the_code_may_log_so_often_a_minute_and_the_rest_is_counted() -> None:
    clock = Clock()
    handler, written = limited(clock)
    log_often(handler, "chatty.net", 1000)
    assert written == ["attempt 0 failed", "attempt 1 failed (more like this are held back for 60 s)"]
    clock.now = 61.0
    log_often(handler, "chatty.net", 1)
    assert written[2:] == ["attempt 0 failed (998 like this were held back)"]


def test_other_libraries_are_not_limited() -> None:
    handler, written = limited(Clock())
    log_often(handler, "chatty_cousin", 50)
    assert len(written) == 50


def test_a_broker_that_is_away_fills_a_few_lines_not_thousands(
    stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.sources.kafka_python.RECONNECT_BACKOFF_MAX_MS", 50)  # a minute in three seconds
    configure_logging("info")
    source = KafkaSource(KafkaSettings(bootstrap_servers=["127.0.0.1:1"], topic="clicks"))
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        source.poll(0.2)
    source.close()
    assert 1 <= len(lines(stderr)) < 40
