"""Logs on stderr: lines for people on a terminal, JSON for machines; what repeats itself is limited or summarised."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from streameval.events import Rejected
from streameval.ope.core import COMPILE_HINT, NOT_COMPILED
from streameval.ope.core.kernel import compiled
from streameval.ope.report import Report

# loggers that brokers and strangers can make repeat
CHATTY = ("confluent_kafka", "kafka", "uvicorn", "asyncio", "streameval.access")
MOST, PERIOD = 3, 60.0
REPEATING = {
    "backfill_continues": 10.0,
    "dead_letters_not_written": PERIOD,
    "events_ahead": 600.0,
    "events_late": 600.0,
    "kafka_connected": PERIOD,
    "kafka_not_reached": PERIOD,
    "offsets_not_committed": PERIOD,
    "polling_takes_most_time": 86400.0,
    "snapshot_failed": PERIOD,
    "snapshots_deleted": PERIOD,
}
"""Seconds in which an event of streameval is logged at most once."""
SUMMARY_EVERY = 10.0  # seconds
LONGEST_EXAMPLE = 200  # characters of a rejection's detail in the log

log = structlog.get_logger("streameval")


def configure_logging(level: str = "info", format: str = "auto") -> None:
    """Send our logs, and those of all libraries, to stderr; replaces what was configured before.

    Args:
        level: debug, info, warning or error.
        format: console, json, or auto: console on a terminal, else JSON.
    """
    as_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    plain = structlog.dev.plain_traceback  # the default shows local variables: passwords among them
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
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
    """Whether a record may be written: at level debug, kafka-python logs logins and whole messages byte by byte."""
    if record.levelno > logging.DEBUG or not record.name.startswith("kafka."):
        return True
    return record.name != "kafka.protocol.parser" and "SaslAuthenticate" not in record.getMessage()


@dataclass
class RateWindow:
    """Records of one kind since `start`: how many were written, and how many were held back."""

    start: float
    passed: int = 0
    held: int = 0


class RateLimit(logging.Filter):
    """Limits streameval's events by name, and records of some libraries by the place in the code that logs them.

    An event in `repeating` is written once in its period; a place in the `loggers` writes `most` records in `period`
    seconds. The last record of a period notes that more will be held back, the first of the next how many were. While a
    broker is away, kafka-python writes thousands of lines a minute, whose texts contain times and numbers. The filter
    belongs on a handler: filters of a logger do not see its children's records.
    """

    def __init__(
        self,
        loggers: tuple[str, ...] = CHATTY,
        most: int = MOST,
        period: float = PERIOD,
        repeating: Mapping[str, float] = REPEATING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._loggers = tuple(f"{name}." for name in loggers)
        self._most, self._period, self._repeating, self._clock = most, period, repeating, clock
        self._windows: dict[Hashable, RateWindow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written; may add a note to it."""
        event = str(record.msg.get("event")) if isinstance(record.msg, dict) else ""
        if event in self._repeating:
            return self._passes(record, event, 1, self._repeating[event])
        if f"{record.name}.".startswith(self._loggers):
            return self._passes(record, (record.pathname, record.lineno), self._most, self._period)
        return True

    def _passes(self, record: logging.LogRecord, key: Hashable, most: int, period: float) -> bool:
        now, held = self._clock(), 0
        window = self._windows.get(key)
        if window is None or now - window.start >= period:
            held = window.held if window else 0
            window = self._windows[key] = RateWindow(now)
        if window.passed == most:
            window.held += 1
            return False
        window.passed += 1
        notes = [f"{held} similar entries were suppressed"] if held else []
        notes += [f"more like this are suppressed for {period:.0f} s"] if window.passed == most else []
        if notes and isinstance(record.msg, dict):  # ours, which structlog has not written yet
            record.msg = {**record.msg, "note": "; ".join(notes)}
        elif notes:
            record.msg, record.args = f"{record.getMessage()} ({'; '.join(notes)})", ()
        return True


class LogSummaries:
    """Rejected events and failing policies in the log: a summary per reason with one example, every ten seconds."""

    def __init__(self) -> None:
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._due = -math.inf

    def add(self, rejected: Iterable[Rejected]) -> Counter[str]:
        """Remember `rejected` for the next summary; return their number by reason."""
        events = list(rejected)
        counts = Counter(event.reason for event in events)
        self.count(counts, {event.reason: event.detail for event in events})
        return counts

    def count(self, rejected: Mapping[str, int], examples: Mapping[str, str]) -> None:
        """Remember numbers by reason for the next summary, with one example each."""
        self._rejected.update(rejected)
        self._examples.update(examples)

    def write_when_due(self, report: Report | None) -> None:
        """Write a summary if there is something new and the last one is long enough ago."""
        if time.monotonic() >= self._due and self.write(report):
            self._due = time.monotonic() + SUMMARY_EVERY

    def write(self, report: Report | None) -> bool:
        """Write what is new since the last summary; False if nothing is."""
        wrote = bool(self._rejected)
        for reason, count in self._rejected.items():
            log.warning("events_rejected", reason=reason, count=count, example=self._examples[reason][:LONGEST_EXAMPLE])
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
