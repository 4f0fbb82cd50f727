"""Log to stderr: text on a terminal, JSON elsewhere. Repeated entries are limited or summarised."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from streameval.errors import without_secrets
from streameval.events import Rejected
from streameval.ope.core import COMPILE_HINT, NOT_COMPILED
from streameval.ope.core.kernel import compiled
from streameval.ope.report import Report

CHATTY = ("confluent_kafka.", "kafka.", "opentelemetry.", "uvicorn.", "asyncio.", "streameval.access.")
"""Loggers that brokers, receivers of metrics and strangers can make repeat themselves."""
MAX_RECORDS, PERIOD_SECONDS = 3, 60.0
REPEATING = {
    "backfill_continues": 10.0,
    "dead_letters_not_written": PERIOD_SECONDS,
    "events_ahead": 600.0,
    "events_late": 600.0,
    "kafka_connected": PERIOD_SECONDS,
    "kafka_not_reached": PERIOD_SECONDS,
    "offsets_not_committed": PERIOD_SECONDS,
    "snapshot_failed": PERIOD_SECONDS,
    "snapshots_deleted": PERIOD_SECONDS,
}
"""Seconds in which an event of streameval is logged at most once."""
SUMMARY_SECONDS = 10.0
MAX_EXAMPLE_LENGTH = 200

log = structlog.get_logger("streameval")


def configure_logging(level: str = "info", format: str = "auto") -> None:
    """Send the logs of streameval and of all libraries to stderr, in place of what was configured before.

    Args:
        level: Level: debug, info, warning or error.
        format: Format: console, json, or auto, which is console on a terminal and else JSON.
    """
    as_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    plain = structlog.dev.plain_traceback  # the default shows local variables, such as passwords
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *renderer,
                lambda logger, name, line: without_secrets(str(line)),
            ],
        )
    )
    handler.addFilter(discreet)
    handler.addFilter(RateLimit())
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # At level info kafka-python logs every connection.
    least = logging.DEBUG if level.upper() == "DEBUG" else max(logging.WARNING, root.level)
    logging.getLogger("kafka").setLevel(least)
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


def warn_if_uncompiled() -> None:
    """Log a warning if the kernels are not compiled."""
    if not compiled():
        log.warning("kernels_not_compiled", detail=NOT_COMPILED, hint=COMPILE_HINT)


def discreet(record: logging.LogRecord) -> bool:
    """Return whether a record may be written. At level debug, kafka-python logs logins and whole messages."""
    if record.levelno > logging.DEBUG or not record.name.startswith("kafka."):
        return True
    return record.name != "kafka.protocol.parser" and "SaslAuthenticate" not in record.getMessage()


@dataclass
class RateWindow:
    """Count the records of one kind that were written and held back since `start`."""

    start: float
    passed: int = 0
    held: int = 0


class RateLimit(logging.Filter):
    """Limit streameval's events by name, and records of some libraries by the line of code that logs them.

    The last record of a period notes that more will be held back, and the first one of the next period how many were.
    While a broker is away, kafka-python writes thousands of lines a minute, with differing times and numbers. The
    filter belongs on a handler, because filters of a logger do not see the records of its children.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[Hashable, RateWindow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record, after a note was added if needed."""
        event = str(record.msg.get("event")) if isinstance(record.msg, dict) else ""
        if event in REPEATING:
            return self._passes(record, event, 1, REPEATING[event])
        if f"{record.name}.".startswith(CHATTY):
            return self._passes(record, (record.pathname, record.lineno), MAX_RECORDS, PERIOD_SECONDS)
        return True

    def _passes(self, record: logging.LogRecord, key: Hashable, max_records: int, period: float) -> bool:
        now, held = self._clock(), 0
        window = self._windows.get(key)
        if window is None or now - window.start >= period:
            held = window.held if window else 0
            window = self._windows[key] = RateWindow(now)
        if window.passed == max_records:
            window.held += 1
            return False
        window.passed += 1
        notes = [f"{held} similar entries were suppressed"] if held else []
        notes += [f"more like this are suppressed for {period:.0f} s"] if window.passed == max_records else []
        if notes and isinstance(record.msg, dict):  # an event of streameval, which structlog renders later
            record.msg = {**record.msg, "note": "; ".join(notes)}
        elif notes:
            record.msg, record.args = f"{record.getMessage()} ({'; '.join(notes)})", ()
        return True


class LogSummaries:
    """Summarise rejected events and failing policies in the log, with one example for each reason."""

    def __init__(self) -> None:
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._due = -math.inf

    def add(self, rejected: Iterable[Rejected]) -> Counter[str]:
        """Add rejected events to the next summary, and return their number by reason."""
        events = list(rejected)
        counts = Counter(event.reason for event in events)
        self.count(counts, {event.reason: event.detail for event in events})
        return counts

    def count(self, rejected: Mapping[str, int], examples: Mapping[str, str]) -> None:
        """Add numbers by reason to the next summary, with one example each."""
        self._rejected.update(rejected)
        self._examples.update(examples)

    def write_when_due(self, report: Report | None) -> None:
        """Write a summary if there is something new and the last one is old enough."""
        if time.monotonic() >= self._due and self.write(report):
            self._due = time.monotonic() + SUMMARY_SECONDS

    def write(self, report: Report | None) -> bool:
        """Write what is new since the last summary, and return False if nothing is."""
        wrote = bool(self._rejected)
        for reason, count in self._rejected.items():
            log.warning(
                "events_rejected", reason=reason, count=count, example=self._examples[reason][:MAX_EXAMPLE_LENGTH]
            )
        self._rejected.clear()
        for policy in report.policies if report else ():
            for failure in policy.failures:
                key = policy.policy, failure.reason
                new = failure.count - self._failures.get(key, 0)
                if new > 0:
                    log.warning("policy_failed", policy=key[0], reason=key[1], count=new, example=failure.example)
                    self._failures[key] = failure.count
                    wrote = True
        return wrote
