"""Logs on stderr: lines for people on a terminal, JSON for machines; chatty libraries held back."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

CHATTY = ("kafka", "uvicorn", "asyncio", "streameval.access")  # what brokers and strangers can make repeat itself
MOST, PERIOD = 3, 60.0


def configure_logging(level: str = "info", format: str = "auto") -> None:
    """Send our logs, and those of all libraries, to stderr; replaces what was configured before.

    `level`: debug, info, warning or error. `format`: console, json, or auto: console on a terminal, else JSON.
    Libraries that repeat themselves in trouble are rate-limited, see `RateLimit`.
    """
    as_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(shared, as_json))
    handler.addFilter(discreet)
    handler.addFilter(RateLimit(CHATTY))
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _quiet_kafka(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _formatter(shared: list[structlog.typing.Processor], as_json: bool) -> logging.Formatter:
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [_console_renderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )


def _console_renderer() -> structlog.dev.ConsoleRenderer:
    plain = structlog.dev.plain_traceback  # the default shows local variables: passwords among them
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)


def _quiet_kafka(level: str) -> None:
    """kafka-python tells of every connection at level info; that is for those who debug."""
    least = logging.DEBUG if level.upper() == "DEBUG" else max(logging.WARNING, logging.getLevelName(level.upper()))
    logging.getLogger("kafka").setLevel(least)


def discreet(record: logging.LogRecord) -> bool:
    """Whether a record may be written: kafka-python, at level debug, tells logins and whole messages byte by byte."""
    if record.levelno > logging.DEBUG or not record.name.startswith("kafka."):
        return True
    return record.name != "kafka.protocol.parser" and "SaslAuthenticate" not in record.getMessage()


@dataclass
class RateWindow:
    """Records from one place in the code since `begin`: how many were let through, and how many not."""

    begin: float
    passed: int = 0
    held: int = 0


class RateLimit(logging.Filter):
    """Lets each place in the code of some libraries log `most` records in `period` seconds.

    The last of them says that more will be held back, the first of the next period how many were. While a broker is
    away, kafka-python writes thousands of lines a minute; places rather than messages are counted, because its
    messages contain times and numbers. Belongs on a handler: filters of a logger do not see its children's records.
    """

    def __init__(
        self,
        loggers: tuple[str, ...],
        most: int = MOST,
        period: float = PERIOD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._loggers = tuple(f"{name}." for name in loggers)
        self._most = most
        self._period = period
        self._clock = clock
        self._windows: dict[tuple[str, int], RateWindow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written; may add a remark to it."""
        if not f"{record.name}.".startswith(self._loggers):
            return True
        held = 0
        place = (record.pathname, record.lineno)
        now = self._clock()
        window = self._windows.get(place)
        if window is None or now - window.begin >= self._period:
            held = window.held if window else 0
            window = self._windows[place] = RateWindow(now)
        if window.passed == self._most:
            window.held += 1
            return False
        window.passed += 1
        self._remark(record, held, last=window.passed == self._most)
        return True

    def _remark(self, record: logging.LogRecord, held: int, last: bool) -> None:
        remarks = [f"{held} like this were held back"] if held else []
        remarks += [f"more like this are held back for {self._period:.0f} s"] if last else []
        if not remarks:
            return
        if isinstance(record.msg, dict):  # ours, which structlog has not written yet
            record.msg = {**record.msg, "note": "; ".join(remarks)}
        else:
            record.msg, record.args = f"{record.getMessage()} ({'; '.join(remarks)})", ()
