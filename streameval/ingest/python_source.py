"""Read events from a function of the user: any stream that Python can read, such as a database or a cloud's queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import structlog
from pydantic import Field, PositiveInt, PrivateAttr

from streameval.common.foreign_code import CodeError, foreign_code
from streameval.common.text import Seconds
from streameval.errors import SourceError, StreamevalError
from streameval.events.tables import plain
from streameval.ingest.background import backoff
from streameval.ingest.base import (
    JSON_FORMATS,
    Offsets,
    PartitionStatus,
    Records,
    Source,
    SourceOffsets,
    SourceStatus,
    TopicPartition,
    WireFormat,
)
from streameval.ingest.joined import JoinedSettings
from streameval.ingest.stages import EventOrder
from streameval.ope.policies.python import find

__all__ = ["PythonSettings", "PythonSource"]

Positions: TypeAlias = dict[int | str, int | float | str]
"""By partition, the position of the last message. A partition with a name has messages that are joined to decisions."""

POLLED = 2000
QUIET_SECONDS = 1.0  # without an answer or a failure, after which a call counts as a stream without messages
CLOSING_SECONDS = 2.0  # to wait for the function at the end of the program
EXPECTED = "yield ({0: POSITION}, EVENT), with the position after which a restart continues, or None if nothing is new"

log = structlog.get_logger(__name__)


class PythonSettings(JoinedSettings):
    """Read events from a function of the user.

    The function is called with the position of the last message of each partition, None at the first start. It yields
    pairs of new positions and an event, or None if there is nothing new. Events of the partition `rewards.topic` are
    rewards that are joined to their decisions. In the partition `candidates.topic` they are probabilities.
    """

    kind: Literal["python"] = "python"
    target: str = Field(
        pattern=r"^[\w.]+:[\w.]+$",
        description="The function, `package.module:function`. It takes the last position of each partition, None at "
        "first, and yields `({partition: position}, event)`, or None if nothing is new.",
    )
    options: dict[str, Any] = Field({}, description="Keywords of the function. Secrets belong into the environment.")
    format: Literal["json", "dsjson"] = Field("json", description=f"{JSON_FORMATS}; of events that are bytes or text.")
    interval: Seconds | None = Field(
        None, description="When the function ends, call it again after this time; null: the stream has ended."
    )
    buffered: PositiveInt = Field(
        10_000, description="Messages that are read ahead of the evaluation, of at most `held_max_bytes` together."
    )
    _left_out: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def description(self) -> str:
        return f"python, {self.target}"

    @property
    def name(self) -> str:
        return self.target.rpartition(":")[2]

    @property
    def decisions_topic(self) -> str:
        return self.name

    @property
    def wire_format(self) -> WireFormat:
        return self.format

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target, "format": self.format}

    def event_order(self, partitions: int) -> EventOrder | None:
        """Return the stage that orders events. Several partitions do not suffice: the function merges them."""
        return super().event_order(1)

    def for_check(self) -> PythonSettings:
        """Return settings that read decisions alone."""
        decisions = self.model_copy(update={"rewards": None, "candidates": None})
        decisions._left_out = frozenset(self.log_topics[1:])
        return decisions

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        """Open the source. A missing function is an error, and a function that fails is called again."""
        return PythonSource(self, find(self.target), offsets or {}, leaves_out=self._left_out)


class _Item(NamedTuple):
    """Hold what the function has yielded: new positions and a message, or neither if nothing was new."""

    positions: Positions
    value: bytes | None


class PythonSource(Source):
    """Call a function in a thread, and again after a failure, from the position of its last message.

    A message and its positions are taken together, so that a snapshot between two polls counts each message once.

    Args:
        settings: describe the function
        function: the function
        saved: where an earlier source stopped
        leaves_out: partitions with names that are read and dropped
    """

    def __init__(
        self,
        settings: PythonSettings,
        function: Callable[..., Iterable[Any]],
        saved: SourceOffsets,
        *,
        leaves_out: Collection[str] = (),
    ) -> None:
        self._settings, self._function = settings, function
        self._joined, self._leaves_out = settings.log_topics[1:], leaves_out
        self._taken: Positions = {}
        self._counts: dict[int | str, int] = dict.fromkeys(self._joined, 0)
        for topic in settings.log_topics:
            log_offsets = saved.get(topic, Offsets({}))
            self._taken |= dict(msgspec.json.decode(log_offsets.identity)) if log_offsets.identity else {}
            counts = log_offsets.positions.items()
            self._counts |= {topic if topic in self._joined else number: count for number, count in counts}
        self._read = dict(self._taken)  # with the items that wait; only the thread uses it
        self._items: deque[_Item] = deque()
        self._bytes = 0  # of the messages in the queue
        self._paused: frozenset[TopicPartition] = frozenset()
        self._changed = threading.Condition()
        self._closed = self._ended = self._answered = False
        self._trouble = ""
        self._failing_since: float | None = None
        self._failure: SourceError | None = None
        self._failures = self._calls = 0
        self._ended_at: float | None = None
        self._called_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="streameval-source", daemon=True)
        self._thread.start()

    def poll(self, timeout: float) -> list[Records]:
        """Return the next messages.

        Raises:
            SourceError: The function yields something else, or raises an error of streameval.
        """
        with self._changed:
            if self._is_paused:
                self._changed.wait_for(lambda: self._closed, timeout)
                return []
            self._changed.wait_for(lambda: self._items or self._ended or self._failure, timeout)
            items = [self._items.popleft() for _ in range(min(POLLED, len(self._items)))]
            self._bytes -= sum(len(item.value or b"") for item in items)
            if self._failure is not None and not items:
                raise self._failure
            self._changed.notify_all()
        messages: list[tuple[int | str, bytes]] = []
        for positions, value in items:
            self._taken |= positions
            self._ended_at = None if positions else time.time()
            for partition in positions:
                self._counts.setdefault(partition, 0)
            partition = next(iter(positions), 0)
            if value is not None and partition not in self._leaves_out:
                messages.append((partition, value))
        return [
            self._numbered(partition, [value for _, value in run])
            for partition, run in groupby(messages, lambda message: message[0])
        ]

    def _numbered(self, partition: int | str, values: list[bytes]) -> Records:
        first = self._counts[partition]
        self._counts[partition] += len(values)
        return Records(*self._place(partition), range(first, first + len(values)), values)

    def _place(self, partition: int | str) -> TopicPartition:
        """Return the topic and the number of a partition."""
        return (partition, 0) if isinstance(partition, str) else (self._settings.name, partition)

    def status(self) -> SourceStatus:
        """Return numbers of messages as positions. The lag is 0 after the function has said that nothing is new."""
        now = time.monotonic()
        with self._changed:
            is_quiet = now - self._called_at > QUIET_SECONDS
            exhausted = self._ended and not self._items
            ended_at = time.time() if exhausted else self._ended_at
            lag = len(self._items) if self._ended or ended_at is not None else None
            return SourceStatus(
                reached=not self._trouble and (self._answered or is_quiet),
                exhausted=exhausted,
                partitions=tuple(
                    PartitionStatus(*place, count, lag, ended_at)
                    for place, count in sorted(
                        (self._place(partition), count) for partition, count in self._counts.items()
                    )
                ),
                detail=self._trouble or f"reading {self._settings.target}",
                rebuilds=max(0, self._calls - 1),
                waiting=0.0 if self._failing_since is None else now - self._failing_since,
            )

    def offsets(self) -> SourceOffsets:
        """Return the number of messages of each partition, and as identities the positions of the function."""
        saved: dict[str, tuple[dict[int, int], list[Any]]] = {}
        for partition, position in self._taken.items():
            topic, number = self._place(partition)
            counts, positions = saved.setdefault(topic, ({}, []))
            counts[number] = self._counts[partition]
            positions.append([partition, position])
        return {
            topic: Offsets(counts, msgspec.json.encode(positions).decode())
            for topic, (counts, positions) in saved.items()
        }

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no messages while all partitions are paused.

        A pause of some has no effect: the function yields one stream, so messages of the others would wait behind them.
        """
        self._paused = frozenset(partitions)

    @property
    def _is_paused(self) -> bool:
        return bool(self._counts) and all(self._place(partition) in self._paused for partition in self._counts)

    def close(self) -> None:
        """Let the function end after its next message. A function that waits ends with the program."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSING_SECONDS)

    # --- In the thread ---

    def _run(self) -> None:
        while not self._closed:
            try:
                with foreign_code():
                    self._call()
            except (CodeError, KeyboardInterrupt) as error:  # Ctrl-C reaches the main thread only
                if isinstance(error.__cause__, StreamevalError):
                    cause = error.__cause__
                    with self._changed:
                        self._failure = SourceError(cause.message, hint=cause.hint)
                        self._changed.notify_all()
                    return
                self._wait(self._failed(str(error) or type(error).__name__))
            else:
                self._answer()
                if self._settings.interval is None:
                    with self._changed:
                        self._ended = True
                        self._changed.notify_all()
                    return
                self._wait(self._settings.interval)

    def _call(self) -> None:
        """Call the function, and queue what it yields until it ends."""
        self._called_at, self._calls = time.monotonic(), self._calls + 1
        answer = self._function(dict(self._read) or None, **self._settings.options)
        if not isinstance(answer, Iterable):
            raise self._wrong(f"returned {type(answer).__name__}")
        for item in answer:
            checked = self._checked(item)
            self._answer()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._has_room)
                if self._closed:
                    return
                self._read |= checked.positions
                self._put(checked)
        with self._changed:
            self._put(_Item({}, None))

    @property
    def _has_room(self) -> bool:
        return len(self._items) < self._settings.buffered and self._bytes < self._settings.held_max_bytes

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        self._bytes += len(item.value or b"")
        self._changed.notify_all()

    def _answer(self) -> None:
        """Note that the function works."""
        if self._trouble:
            log.info("source_function_works", target=self._settings.target)
        self._trouble, self._failing_since, self._failures, self._answered = "", None, 0, True

    def _failed(self, reason: str) -> float:
        """Note a failure, and return the seconds until the next call, which about double each time."""
        pause = backoff(self._failures)
        self._failures += 1
        self._failing_since = self._failing_since or time.monotonic()
        self._trouble = f"{self._settings.target} fails: {reason}"
        log.warning("source_function_failed", detail=self._trouble, failures=self._failures)
        return pause

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def _checked(self, item: Any) -> _Item:
        """Return what the function has yielded.

        Raises:
            SourceError: It is not one of the forms, or a number does not rise.
        """
        if item is None:
            return _Item({}, None)
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], Mapping) and item[0]):
            raise self._wrong(f"yielded {_shown(item)}")
        positions = dict(item[0])
        for partition, position in positions.items():
            is_number = type(partition) is int and 0 <= partition < 2**31
            if not is_number and partition not in (*self._joined, *self._leaves_out):
                other = f" or {' or '.join(self._joined)}" if self._joined else ""
                raise self._wrong(f"yielded the partition {_shown(partition)}, not a whole number from 0{other}")
            if type(position) not in (int, float, str):
                raise self._wrong(f"yielded the position {_shown(position)}, neither a number nor text")
            if not _can_be_saved(position):
                raise self._wrong(f"yielded the position {_shown(position)}, which a snapshot cannot hold")
            before = self._read.get(partition)
            if type(before) is type(position) is int and position <= before:
                raise self._wrong(f"yielded the position {position} after {before} of partition {partition}")
        return _Item(positions, self._encoded(item[1]))

    def _encoded(self, event: Any) -> bytes | None:
        """Return a message. What is not JSON becomes text that a decoder rejects."""
        if event is None or isinstance(event, bytes):
            return event
        if isinstance(event, str):
            return event.encode(errors="surrogatepass")
        if not isinstance(event, Mapping):
            raise self._wrong(f"yielded an event of the type {type(event).__name__}")
        try:
            return msgspec.json.encode({name: plain(value) for name, value in event.items()}, enc_hook=str)
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError):
            return repr(event).encode(errors="replace")

    def _wrong(self, found: str) -> SourceError:
        return SourceError(f"{self._settings.target} {found}", hint=EXPECTED)


def _can_be_saved(position: float | str) -> bool:
    """Return whether JSON holds a position: infinities and lone surrogates are lost."""
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(position)) == position)
    except (ValueError, OverflowError, msgspec.MsgspecError):
        return False


def _shown(value: object) -> str:
    return repr(value)[:80]
