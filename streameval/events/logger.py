"""The logging side: decisions and rewards of a recommender, written without delaying or failing it.

This module needs neither numpy nor scipy, and imports a Kafka client only for a logger that writes to Kafka.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from streameval.events.message_sinks import (
    ConfluentSink,
    Done,
    FunctionSink,
    KafkaPythonSink,
    LineSink,
    Message,
    MessageKind,
    MessageSink,
)
from streameval.events.schema import MAX_TIMESTAMP, NOISE, ROUNDING_ERROR, Event

EventForm: TypeAlias = Literal["ranking", "slate", "scored"]
Rewards: TypeAlias = float | Mapping[str, float]

LINGER = 0.02  # seconds between two looks at the queue
LONGEST_PAUSE = 5.0  # seconds between two attempts to write
MOST_UNACKNOWLEDGED = 5_000  # messages in a Kafka client: it needs a kilobyte for each
OVERHEAD = 200  # bytes of a buffered message besides its value
QUIET = 60.0  # seconds between two warnings with the same cause
MAX_BYTES = 32 * 2**20
OTHER_FIELDS = frozenset(Event.__struct_encode_fields__) - {"reward"}
NO_DESTINATION = "this logger has no destination for rewards that come later"

log = logging.getLogger("streameval.events.logger")


class Counts(NamedTuple):
    """Decisions and rewards of an `EventLogger`, by outcome.

    Attributes:
        written: taken by the file or function, or acknowledged by Kafka
        waiting: buffered, or sent and not acknowledged yet
        dropped: not buffered because the buffer was full, or still waiting when the logger was closed
        invalid: refused because an evaluator would reject them
        failed: refused by the file, function or Kafka
    """

    written: int
    waiting: int
    dropped: int
    invalid: int
    failed: int


class EventLogger:
    """Writes the decisions and rewards of a recommender to Kafka, a file or a function.

    All methods check their arguments by the rules by which an evaluator rejects events, add the message to
    a buffer and return; a thread writes it. They never wait for the network or a disk, and never raise an exception:
    invalid, dropped and failed messages are counted in `counts`, and logged as warnings at most once a minute per
    cause. When the buffer is full, for example during an outage of Kafka, further messages are dropped.

    `slate`, `scored` and `ranking` check by the decoder itself: it needs numpy, and a tenth to half of a millisecond.

    Args:
        open_sink: called in the thread of the logger, returns the place to write to. If it or the sink raises an
            OSError, for example because no broker answers, the logger tries again after a pause
        kinds: the kinds of messages that the sink takes
        max_bytes: size of the buffer

    A logger may be created before a server forks its workers: each process has its own thread and its own connection.

    >>> written = []
    >>> with EventLogger.to_function(written.append) as logger:
    ...     event_id = logger.decision({"hour": 9}, ["a", "b"], [0.9, 0.1], "a", policies={"new": [0.2, 0.8]}, reward=1)
    ...     invalid = logger.decision({}, ["a", "b"], [0.9, 0.2], "a", reward=0)
    >>> logger.counts
    Counts(written=1, waiting=0, dropped=0, invalid=1, failed=0)
    >>> msgspec.json.decode(written[0].value)["policies"]
    {'new': [0.2, 0.8]}
    """

    def __init__(
        self,
        open_sink: Callable[[], MessageSink],
        kinds: Collection[MessageKind] = ("decision", "reward"),
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._open_sink, self._kinds, self._max_bytes = open_sink, frozenset(kinds), max_bytes
        self._warned: dict[str, float] = {}
        self._written = self._dropped = self._invalid = self._failed = 0
        self._start()
        instance = weakref.ref(self)

        def start_in_child() -> None:
            if (logger := instance()) is not None:
                logger._start()

        os.register_at_fork(after_in_child=start_in_child)

    @classmethod
    def to_function(cls, write: Callable[[Message], None], *, max_bytes: int = MAX_BYTES) -> EventLogger:
        """Call a function with each message, in order, from the thread of the logger.

        After an OSError it is called again with the same message; after any other exception, the message has failed.
        """
        return cls(lambda: FunctionSink(write), max_bytes=max_bytes)

    @classmethod
    def to_file(
        cls, path: str | os.PathLike[str], rewards: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES
    ) -> EventLogger:
        """Append decisions to a file, one line each, and rewards that come later to another one."""
        paths = _by_kind(path, rewards)
        return cls(lambda: LineSink(paths), paths, max_bytes=max_bytes)

    @classmethod
    def to_kafka(
        cls,
        bootstrap_servers: str,
        topic: str,
        rewards_topic: str | None = None,
        *,
        client: Literal["kafka-python", "confluent"] = "kafka-python",
        options: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> EventLogger:
        """Produce decisions to a topic, and rewards that come later to another one, by an idempotent producer.

        Args:
            bootstrap_servers: addresses of brokers, as `host:port`, separated by commas
            topic: the topic of decisions
            rewards_topic: the topic of rewards, `source.rewards.topic` of the daemon
            client: the Kafka client library; `confluent` needs the extra `streameval[confluent]`
            options: further options of the client's producer, by its own names, for example for TLS and SASL
            max_bytes: size of the buffer

        Raises:
            ImportError: The client is not installed.
        """
        topics = _by_kind(topic, rewards_topic)
        is_librdkafka = client == "confluent"
        library = import_module("confluent_kafka" if is_librdkafka else "kafka")
        kind: Callable[..., MessageSink] = ConfluentSink if is_librdkafka else KafkaPythonSink
        return cls(lambda: kind(library, bootstrap_servers, topics, options or {}), topics, max_bytes=max_bytes)

    def _start(self) -> None:
        """Start with an empty buffer; the thread starts with the first message, in the process that logs it."""
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._queue: deque[Message] = deque()
        self._waiting = self._bytes = self._unacknowledged = 0
        self._deadline = math.inf
        self._thread: threading.Thread | None = None

    def decision(
        self,
        context: Any,
        actions: Sequence[str | int] | None,
        propensities: Sequence[float] | float,
        chosen: str | int,
        *,
        policies: Mapping[str, Sequence[float] | float | None] | None = None,
        reward: Rewards | None = None,
        features: Sequence[Sequence[float]] | None = None,
        unit: str | int | None = None,
        event_id: str | int | None = None,
        timestamp: float | None = None,
        logging_policy: str | int | None = None,
    ) -> str | int:
        """Log one decision, and return its `event_id`, which the reward needs if it comes later.

        Args:
            context: the context of the decision, anything that JSON can hold
            actions: the n actions to choose from; may be None if `propensities` is one number
            propensities: the logging policy's distribution over `actions`, [n], or its probability of `chosen` alone,
                in (0, 1]
            chosen: the action that was drawn
            policies: for each candidate, its distribution over `actions`, [n], or its probability of `chosen` alone,
                in [0, 1]; None if it is not known
            reward: the reward, or several by their fields; None if it comes later, by `reward`
            features: numbers for the reward model, [n, d]
            unit: id of the user or session
            event_id: a unique id; random by default
            timestamp: time of the decision in seconds since 1970; now by default
            logging_policy: name or version of the policy that chose the action
        """
        event_id = uuid.uuid4().hex if event_id is None else event_id
        fields = {
            "event_id": event_id,
            "timestamp": time.time() if timestamp is None else timestamp,
            "action": chosen,
            "actions": actions,
            "propensities" if _is_sequence(propensities) else "propensity": propensities,
            "policies": policies,
            "reward": reward,
            "features": features,
            "unit": unit,
            "logging_policy": logging_policy,
            "context": context,
        }
        self._log("decision", event_id, fields)
        return event_id

    def ranking(
        self,
        context: Any,
        shown: Sequence[str | int],
        clicked: Sequence[str | int],
        *,
        policies: Mapping[str, Mapping[str | int, int] | Sequence[str | int] | None] | None = None,
        propensities: Sequence[float] | None = None,
        swap: Sequence[int] | None = None,
        marginals: Sequence[Sequence[float]] | None = None,
        features: Sequence[Sequence[float]] | None = None,
        unit: str | int | None = None,
        event_id: str | int | None = None,
        timestamp: float | None = None,
    ) -> str | int:
        """Log one page with the clicks on it, and return its `event_id`.

        Args:
            context: the context of the page, anything that JSON can hold
            shown: the items in the order in which the page showed them
            clicked: those that the user clicked
            policies: for each candidate, the ranks of the clicked items by item, from 1, or its whole list
            propensities: the probability of a look at the rank of each clicked item, in (0, 1]
            swap: the two ranks whose items were exchanged by chance
            marginals: [n, 2] of a random production, its probability of each shown item at this rank and at the next
            features: numbers of the items for the reward model, [n, d]
            unit: id of the user or session
            event_id: a unique id; random by default
            timestamp: time of the page in seconds since 1970; now by default
        """
        page = {"shown": shown, "clicked": clicked, "propensities": propensities, "swap": swap, "marginals": marginals}
        fields = {**page, "policies": policies, "features": features, "unit": unit, "context": context}
        return self._log_form("ranking", event_id, timestamp, fields)

    def slate(
        self,
        context: Any,
        slots: Sequence[Mapping[str, Any]],
        *,
        reward: Rewards | None = None,
        unit: str | int | None = None,
        event_id: str | int | None = None,
        timestamp: float | None = None,
        **fields: Any,
    ) -> str | int:
        """Log one decision that fills several slots, and return its `event_id`, which a later reward needs.

        Args:
            context: the context of the decision, anything that JSON can hold
            slots: for each slot, its fields as in the event: `action`, `propensity`, `policies` and others
            reward: the reward of the slate, or several by their fields; None if it comes later, by `reward`
            unit: id of the user or session
            event_id: a unique id; random by default
            timestamp: time of the decision in seconds since 1970; now by default
            fields: `slate_logging`, `scores`, `slates`, `slate_propensities` and `logging_policy` of the event
        """
        given = {"slots": slots, "reward": reward, "unit": unit, "context": context}
        return self._log_form("slate", event_id, timestamp, {**fields, **given})

    def scored(
        self,
        context: Any,
        propensity: float | None,
        values: Mapping[str, float | None] | None,
        *,
        unit: str | int | None = None,
        event_id: str | int | None = None,
        timestamp: float | None = None,
    ) -> str | int:
        """Log the outcome of one decision with its value under each policy, and return its `event_id`.

        Args:
            context: the context of the decision, anything that JSON can hold
            propensity: the probability that the outcome was revealed, in (0, 1]
            values: the value of the revealed outcome by policy; None if the outcome was not revealed
            unit: id of the user or session
            event_id: a unique id; random by default
            timestamp: time of the decision in seconds since 1970; now by default
        """
        fields = {"propensity": propensity, "values": values, "unit": unit, "context": context}
        return self._log_form("scored", event_id, timestamp, fields)

    def reward(self, event_id: str | int, value: Rewards, *, timestamp: float | None = None) -> None:
        """Log the reward of an earlier decision, or several by their fields: `{"click": 1, "revenue": 12.5}`.

        `timestamp`: time in seconds since 1970, now by default. Each reward may come in another message.
        """
        timestamp = time.time() if timestamp is None else timestamp
        self._log("reward", event_id, {"event_id": event_id, "timestamp": timestamp, "reward": value})

    @property
    def counts(self) -> Counts:
        """Decisions and rewards of this process so far, by outcome."""
        with self._lock:
            return Counts(self._written, self._waiting, self._dropped, self._invalid, self._failed)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until nothing is buffered or unacknowledged, at most `timeout` seconds; returns whether that is so."""
        until = time.monotonic() + timeout
        while self.counts.waiting and time.monotonic() < until:
            time.sleep(LINGER)
        return not self.counts.waiting

    def close(self, timeout: float = 10.0) -> None:
        """Write buffered messages, for at most `timeout` seconds; later ones are dropped.

        A logger is closed when Python exits, with a timeout of 10 seconds, unless it has been closed before.
        """
        with self._lock:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            thread = self._thread
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout + LONGEST_PAUSE)
            atexit.unregister(self.close)

    def __enter__(self) -> EventLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={number}" for name, number in self.counts._asdict().items())
        return f"{type(self).__name__}({numbers})"

    # --- In the thread of the recommender ---

    def _log_form(
        self, form: EventForm, event_id: str | int | None, timestamp: float | None, fields: dict[str, Any]
    ) -> str | int:
        event_id = uuid.uuid4().hex if event_id is None else event_id
        moment = time.time() if timestamp is None else timestamp
        self._log("decision", event_id, {"event_id": event_id, "timestamp": moment, **fields}, form)
        return event_id

    def _log(
        self, kind: MessageKind, event_id: str | int, fields: dict[str, Any], form: EventForm | None = None
    ) -> None:
        try:
            plain = {name: _plain(value) for name, value in fields.items() if value is not None}
            if form is None:
                fault = self._fault(kind, plain)
            else:
                plain = NESTED[form](plain)
                fault = next(_form_faults(form, plain, "reward" in self._kinds), None)
            if isinstance(plain.get("reward"), dict):
                plain |= plain.pop("reward")
            value = b"" if fault else msgspec.json.encode(plain, enc_hook=_plain)
        except Exception as error:  # noqa: BLE001 - no argument, whatever it is, may fail the recommender
            fault = str(error) or type(error).__name__
        if fault:
            with self._lock:
                self._invalid += 1
            self._warn("invalid", f"a {form or kind} is invalid and was not logged: {fault}")
        elif not self._put(Message(kind, event_id, value)):
            self._warn("dropped", "the buffer is full or the logger is closed: messages are dropped")

    def _fault(self, kind: MessageKind, fields: dict[str, Any]) -> str | None:
        if kind == "reward":
            return NO_DESTINATION if "reward" not in self._kinds else next(_reward_faults(fields), None)
        if "reward" not in fields and "reward" not in self._kinds:
            return f"reward: missing, and {NO_DESTINATION}"
        return next(_decision_faults(fields), None)

    def _put(self, message: Message) -> bool:
        size = len(message.value) + OVERHEAD
        with self._lock:
            if self._bytes + size > self._max_bytes or self._stop.is_set():
                self._dropped += 1
                return False
            self._queue.append(message)
            self._bytes += size
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="streameval-logger", daemon=True)
                atexit.register(self.close)
                self._thread.start()
        return True

    def _warn(self, cause: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(cause, -math.inf) > QUIET:
            self._warned[cause] = now
            log.warning("%s; %s", text, self)

    # --- In the thread of the logger ---

    def _write_all(self) -> None:
        sink, pause = None, LINGER
        while not self._is_finished():
            try:
                sink = sink or self._open_sink()
                self._write_some(sink)
                pause = LINGER
            except OSError as error:
                self._warn("waiting", f"cannot write, trying again: {error}")
                pause = min(2 * pause, LONGEST_PAUSE)
            if self._stop.wait(pause):
                time.sleep(max(0.0, min(pause, self._deadline - time.monotonic())))
        if sink is not None:
            sink.close(max(0.1, self._deadline - time.monotonic()))
        with self._lock:
            self._dropped += self._waiting
            self._waiting = self._bytes = 0

    def _is_finished(self) -> bool:
        return self._stop.is_set() and (not self._queue or time.monotonic() > self._deadline)

    def _write_some(self, sink: MessageSink) -> None:
        while self._queue and self._unacknowledged < MOST_UNACKNOWLEDGED and time.monotonic() < self._deadline:
            message = self._queue[0]
            with self._lock:
                self._unacknowledged += 1
            try:
                sink.send(message, self._done(message))
            except OSError:
                with self._lock:
                    self._unacknowledged -= 1
                raise
            self._queue.popleft()
        sink.poll()

    def _done(self, message: Message) -> Done:
        def done(error: Exception | None) -> None:
            with self._lock:
                self._unacknowledged -= 1
                self._waiting -= 1
                self._bytes -= len(message.value) + OVERHEAD
                self._written += error is None
                self._failed += error is not None
            if error is not None:
                self._warn("failed", f"a message was refused: {error or type(error).__name__}")

        return done


# --- The rules of decisions and rewards, each for one event; `validation` has them for columns ---


def _decision_faults(event: Mapping[str, Any]) -> Iterator[str]:
    yield from _identifier_faults(event, "event_id", "action", "unit", "logging_policy")
    yield from _moment_and_reward_faults(event)
    actions, chosen = event.get("actions"), event["action"]
    if actions is not None:
        yield from _action_faults(actions, chosen)
    logged = event.get("propensities", event.get("propensity"))
    yield from _probability_faults("propensities", logged, actions, limit=1.0)
    propensity = logged[actions.index(chosen)] if actions and isinstance(logged, list) else logged
    if not 0.0 < propensity <= 1.0:
        yield f"propensities: {propensity:.10g} for the chosen action is not in (0, 1]"
    for name, cell in event.get("policies", {}).items():
        yield from _probability_faults(f"policies[{name!r}]", cell, actions, limit=1.0 + NOISE)
    for number, row in enumerate(event.get("features", ())):
        if len(row) != len(event["features"][0]) or not all(map(math.isfinite, row)):
            yield f"features[{number}]: expected as many finite numbers as features[0] has"
    if "features" in event and (actions is None or len(event["features"]) != len(actions)):
        yield "features: expected one row for each action"


def _form_faults(form: EventForm, event: dict[str, Any], later: bool) -> Iterator[str]:
    """The faults of another form of events, found by its decoder; `later`: a slate may get its reward later."""
    given = event.keys() - {"context"}
    yield from (f"{name}: not all of its numbers are finite" for name in given if not _is_finite(event[name]))
    if form == "slate" and "reward" not in event and not later:
        yield f"reward: missing, and {NO_DESTINATION}"
    if isinstance(event.get("reward"), dict):
        yield from _moment_and_reward_faults(event)
        event = {name: value for name, value in event.items() if name != "reward"}
    decoder = _decoder(form, "reward" in event or form == "scored")
    rejected = decoder.decode_batch([msgspec.json.encode(event, enc_hook=_plain)]).rejected
    yield from (each.detail for each in rejected)


@lru_cache(maxsize=4)
def _decoder(form: EventForm, rewarded: bool) -> Any:
    decoders = import_module("streameval.events.decoder")  # with numpy, which decisions do not need
    return decoders.RankingDecoder() if form == "ranking" else decoders.JsonDecoder(rewarded=rewarded)


def _page(fields: dict[str, Any]) -> dict[str, Any]:
    """A ranking in the form of the event."""
    event = {name: value for name, value in fields.items() if name not in PAGE_FIELDS}
    event["ranking"] = {name: fields[name] for name in PAGE_FIELDS if name in fields}
    if "policies" in fields:
        placements = fields["policies"].items()
        event["policies"] = {
            name: given and {"ranks" if isinstance(given, dict) else "ranking": given} for name, given in placements
        }
    return event


def _outcome(fields: dict[str, Any]) -> dict[str, Any]:
    """A scored outcome in the form of the event."""
    event = {name: value for name, value in fields.items() if name not in ("propensity", "values")}
    event["scored"] = {name: fields[name] for name in ("propensity", "values") if name in fields}
    event["scored"]["revealed"] = "values" in fields
    return event


PAGE_FIELDS = ("shown", "clicked", "propensities", "swap", "marginals")
NESTED: Mapping[EventForm, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "ranking": _page,
    "slate": dict,
    "scored": _outcome,
}


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a plain value are finite: JSON has no others."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _reward_faults(reward: Mapping[str, Any]) -> Iterator[str]:
    yield from _identifier_faults(reward, "event_id")
    yield from _moment_and_reward_faults(reward)


def _moment_and_reward_faults(fields: Mapping[str, Any]) -> Iterator[str]:
    rewards = fields.get("reward", 0.0)
    by_field = rewards if isinstance(rewards, dict) else {"reward": rewards}
    for name in by_field.keys() & OTHER_FIELDS or ([] if by_field else ["{}"]):
        yield f"reward: {name} is not the field of a reward"
    yield from _number_faults({"timestamp": fields["timestamp"], **by_field}, "timestamp", *by_field)


def _identifier_faults(fields: Mapping[str, Any], *names: str) -> Iterator[str]:
    for name in names:
        if type(fields.get(name, "")) not in (str, int):
            yield f"{name}: expected a string or an integer, found {fields[name]!r}"


def _number_faults(fields: Mapping[str, Any], *names: str) -> Iterator[str]:
    for name in names:
        if not math.isfinite(fields.get(name, 0)):
            yield f"{name}: {fields[name]} is not a finite number"
    if abs(fields["timestamp"]) > MAX_TIMESTAMP:
        yield f"timestamp: {fields['timestamp']:.10g} is not a time in seconds since 1970"


def _action_faults(actions: Sequence[Any], chosen: Any) -> Iterator[str]:
    for action in actions:
        yield from _identifier_faults({"actions": action}, "actions")
    if len(set(actions)) < len(actions):
        yield "actions: an action is listed twice"
    if chosen not in actions:
        yield f"chosen: {chosen!r} is not one of the {len(actions)} actions"


def _probability_faults(name: str, cell: Any, actions: Sequence[Any] | None, limit: float) -> Iterator[str]:
    if cell is None:
        return
    values = cell if isinstance(cell, list) else [cell]
    for value in values:
        if not 0.0 <= value <= limit:
            yield f"{name}: {value:.10g} is not in [0, 1]"
    if values is cell:
        if actions is None or len(values) != len(actions):
            yield f"{name}: {len(values)} probabilities for {len(actions or ())} actions"
        if abs(math.fsum(values) - 1.0) > NOISE + ROUNDING_ERROR * len(values):
            yield f"{name}: sums to {math.fsum(values):.10g}, not to 1"


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__len__")


def _plain(value: Any) -> Any:
    """Return lists in place of arrays and tuples, and Python's numbers in place of others."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(cell) for name, cell in value.items()}
    return [_plain(cell) for cell in value] if isinstance(value, list | tuple) else value


def _by_kind(decisions: Any, rewards: Any) -> dict[MessageKind, Any]:
    return {"decision": decisions} if rewards is None else {"decision": decisions, "reward": rewards}
