"""Log to stderr, for people or machines, and not too much."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from streameval.errors import InputError
from streameval.service.logging import RateLimit, configure_logging
from support.daemon_logs import daemon_logs, written_logs


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    with daemon_logs():
        yield


Capture = pytest.CaptureFixture[str]


def test_without_a_terminal_each_record_is_a_line_of_json_on_stderr(capsys: Capture) -> None:
    configure_logging("info")
    structlog.get_logger("here").info("started", port=9108)
    logging.getLogger("there").warning("%d left", 3)
    written = capsys.readouterr()
    ours, theirs = map(json.loads, written.err.splitlines())
    assert (ours["event"], ours["level"], ours["logger"], ours["port"]) == ("started", "info", "here", 9108)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("3 left", "warning", "there")
    assert written.out == ""


@pytest.mark.parametrize("format", ["json", "console"])
def test_the_queries_of_addresses_are_not_logged(capsys: Capture, format: str) -> None:
    configure_logging("info", format)
    url = "https://store/log.csv?sig=s3cret"
    structlog.get_logger("here").info("gone", place={"log": url})
    logging.getLogger("there").warning("no answer from %s", url)
    try:
        raise ValueError(url)
    except ValueError:
        structlog.get_logger("here").exception("failed")
    written = capsys.readouterr().err
    assert "s3cret" not in written
    assert written.count("https://store/log.csv?***") >= 3


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("HTTPS://store/log?sig=s3cret", "HTTPS://store/log?***"),
        ("az://box/log?sas=s3cret", "az://box/log?***"),
        ("https://me:s3cret@store/log", "https://***@store/log"),
        ("Https://s3cret@store/log", "Https://***@store/log"),
        ("ftp://me:s3cret@store/log?key=s3cret", "ftp://***@store/log?***"),
        ("abfs://box@account/log", "abfs://box@account/log"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_the_secrets_of_addresses_are_not_shown(address: str, shown: str) -> None:
    assert InputError(f"{address} is gone", hint="wait").message == f"{shown} is gone"


def test_console_lines_are_for_people(capsys: Capture) -> None:
    configure_logging("info", "console")
    structlog.get_logger("here").info("started", port=9108)
    written = capsys.readouterr().err
    assert "started" in written
    assert "port=9108" in written
    assert "{" not in written


def test_a_traceback_shows_no_local_variables(capsys: Capture) -> None:
    configure_logging("info", "console")
    password = "-".join(["of", "nobodys", "business"])
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("here").exception("failed")
    written = capsys.readouterr().err
    assert "ValueError" in written
    assert "business" not in written


def test_records_below_the_level_are_left_out(capsys: Capture) -> None:
    configure_logging("warning")
    structlog.get_logger("here").info("fine")
    structlog.get_logger("here").warning("odd")
    assert [line["event"] for line in written_logs(capsys)] == ["odd"]


@pytest.mark.parametrize(("level", "heard"), [("info", False), ("debug", True)])
def test_messages_of_the_kafka_clients_are_logged_at_level_debug(capsys: Capture, level: str, heard: bool) -> None:
    configure_logging(level)
    logging.getLogger("kafka.net").info("connecting")
    assert bool(capsys.readouterr().err) is heard


def test_logins_and_messages_are_not_logged_at_level_debug_either(capsys: Capture) -> None:
    configure_logging("debug")
    logging.getLogger("kafka.net.connection").debug("Request 3: %s", "SaslAuthenticateRequest(auth_bytes=b'sesame')")
    logging.getLogger("kafka.protocol.parser").debug("Send: %r", bytearray(b"sesame"))
    logging.getLogger("kafka.net.connection").debug("Request 4: %s", "MetadataRequest()")
    logging.getLogger("kafka.protocol.parser").error("cannot parse")
    assert [line["event"] for line in written_logs(capsys)] == ["Request 4: MetadataRequest()", "cannot parse"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limited(clock: Clock) -> tuple[logging.Handler, list[str]]:
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(RateLimit(clock))
    return handler, written


def log_often(handler: logging.Handler, name: str, count: int) -> None:
    for number in range(count):
        handler.handle(logging.LogRecord(name, logging.ERROR, "net.py", 7, "attempt %d failed", (number,), None))


@pytest.mark.parametrize("library", ["kafka.net", "opentelemetry.exporter"])
def test_one_line_of_code_is_limited_and_the_rest_is_counted(library: str) -> None:
    clock = Clock()
    handler, written = limited(clock)
    log_often(handler, library, 1000)
    assert written[:2] == ["attempt 0 failed", "attempt 1 failed"]
    assert written[2:] == ["attempt 2 failed (more like this are suppressed for 60 s)"]
    clock.now = 61.0
    log_often(handler, library, 1)
    assert written[3:] == ["attempt 0 failed (997 similar entries were suppressed)"]


def test_a_repeated_event_is_written_once_in_its_period_and_the_rest_is_counted(capsys: Capture) -> None:
    configure_logging("info")
    for failures in range(10):
        structlog.get_logger("streameval.snapshots").error("snapshot_failed", failures=failures)
        structlog.get_logger("streameval").info("reloaded")
    written = written_logs(capsys)
    (failed,) = [line for line in written if line["event"] == "snapshot_failed"]
    assert (failed["failures"], failed["note"]) == (0, "more like this are suppressed for 60 s")
    assert len(written) == 11, "others are not limited"


@pytest.mark.parametrize("format", ["json", "console"])
def test_log_entries_caused_by_strangers_are_limited(capsys: Capture, format: str) -> None:
    configure_logging("info", format)
    for _ in range(10):
        structlog.get_logger("streameval.access").warning("token_refused", client="192.0.2.1")
    written = capsys.readouterr().err.splitlines()
    assert [("token_refused" in line, "192.0.2.1" in line) for line in written] == [(True, True)] * 3
    assert ["more like this are suppressed for 60 s" in line for line in written] == [False, False, True]


def test_other_libraries_are_not_limited() -> None:
    handler, written = limited(Clock())
    log_often(handler, "kafka_cousin", 50)
    assert len(written) == 50
