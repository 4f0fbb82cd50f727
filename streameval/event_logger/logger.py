"""Log the decisions and rewards of a recommender without delaying or failing it.

Importing this module loads neither numpy nor scipy, and no Kafka client. Creating a logger loads numpy.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from streameval.event_logger.sinks import (
    ConfluentSink,
    FunctionSink,
    KafkaPythonSink,
    LineSink,
    Message,
    MessageKind,
    MessageSink,
)
from streameval.events.schema import Event
from streameval.ingest.background import RetryError, Worker

if TYPE_CHECKING:
    from streameval.events.validation import Rejected

Rewards: TypeAlias = float | Mapping[str, float]

PAUSE_SECONDS = 0.02  # in which messages gather
MAX_BATCH = 2_000  # messages that are checked and written together
ABORT_SECONDS = 1.0  # at most, and half of the time to close: for a call that waits to be aborted
SHARE_TO_ABORT = 0.9  # of that time, as what is around the waits takes time, too
OVERHEAD_BYTES = 200  # of a buffered message, besides its value
WARNING_SECONDS = 60.0  # between two warnings with the same cause
MAX_BYTES = 32 * 2**20

EVENT_FIELDS = frozenset(Event.__struct_encode_fields__) - {"reward"}
PACKED_FORMS = ("decision", "reward")  # packing one of the others takes about as long as it saves the daemon
NO_DESTINATION = "this logger has no destination for rewards that come later"

log = logging.getLogger("streameval.events.logger")  # the name that users have configured


class Counts(NamedTuple):
    """Count the decisions and rewards of an `EventLogger` by outcome.

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


class Form(NamedTuple):
    """Tell what a message is, and so which decoder checks it.

    Attributes:
        name: `decision`, `ranking`, `slate`, `scored` or `reward`
        rewards: the fields of its rewards, or empty if it has none
    """

    name: str
    rewards: tuple[str, ...]


class EventLogger:
    """Write the decisions and rewards of a recommender to Kafka, a file or a function.

    All methods encode their arguments, add the message to a buffer and return. They never wait for the network or a
    disk, and never raise an exception. A thread checks the messages by the rules by which an evaluator rejects events,
    and writes them. Invalid, dropped and failed messages are counted in `counts`, and logged as warnings at most once a
    minute per cause. When the buffer is full, for example during an outage of Kafka, further messages are dropped.

    A logger may be created before a server forks its workers: each process has its own thread and its own connection,
    from its first message on.

    Args:
        open_sink: called in the thread of the logger, returns the place to write to. If it fails, for example because
            no broker answers, or if the sink raises an OSError, the logger tries again after a pause
        kinds: the kinds of messages that the sink takes
        max_bytes: size of the buffer
        batch: the number of decisions or rewards in a message, see `to_kafka`
        linger: seconds that an event waits for others of its batch

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
        batch: int | None = None,
        linger: float = 0.0,
    ) -> None:
        found: object = open_sink
        if not callable(found):
            ways = "EventLogger.to_file(path), EventLogger.to_kafka(servers, topic) or EventLogger.to_function(write)"
            raise TypeError(f"expected a function that opens a sink, found {found!r:.60}: write {ways}")
        self._open_sink, self._kinds, self._max_bytes = open_sink, frozenset(kinds), max_bytes
        self._batch = max(1, batch or 1)
        self._linger = linger if self._batch > 1 else 0.0
        if self._batch > 1:
            _packing()
        _decoder(Form("decision", ("reward",)))  # loads numpy now: a fork would cut off a thread that loads it
        self._start()
        start = weakref.WeakMethod(self._start)
        os.register_at_fork(after_in_child=lambda: (method := start()) and method())

    @classmethod
    def to_function(cls, write: Callable[[Message], None], *, max_bytes: int = MAX_BYTES) -> EventLogger:
        """Call a function with each message, in order, from the thread of the logger.

        After an OSError it is called again with the same message. After any other exception, the message has failed.
        """
        return cls(lambda: FunctionSink(write), max_bytes=max_bytes)

    @classmethod
    def to_file(
        cls, path: str | os.PathLike[str], rewards: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES
    ) -> EventLogger:
        """Append decisions to a file, one line each, and rewards that come later to another one."""
        paths = _destinations(path, rewards)
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
        batch: int | None = None,
        linger: str | float = "200ms",
    ) -> EventLogger:
        """Produce decisions to a topic, and rewards that come later to another one, by an idempotent producer.

        With `batch=500`, a message holds up to 500 decisions or rewards in Arrow, which the daemon reads several times
        faster, with `source.format: {kind: arrow}`. A message is sent whole or not at all. A process that dies loses
        the events of at most its last `linger`, and those that the broker has not acknowledged yet. Events that are no
        rows of a table, for example with names and numbers among their actions, are messages of JSON, as are rankings,
        slates and scored outcomes.

        Args:
            bootstrap_servers: addresses of brokers, as `host:port`, separated by commas
            topic: the topic of decisions
            rewards_topic: the topic of rewards, `source.rewards.topic` of the daemon
            client: the Kafka client library. `confluent` needs the extra `streameval[confluent]`
            options: further options of the client's producer, by its own names, for example for TLS and SASL
            max_bytes: size of the buffer
            batch: the number of decisions or rewards in a message, at most. By default, each is a message of JSON
            linger: how long an event waits for others of its batch, as text such as `200ms`, or in seconds

        Raises:
            ImportError: The client is not installed, or pyarrow for batches.
            ValueError: `linger` is no duration.
        """
        if isinstance(linger, str):
            from streameval.common.text import parse_duration  # with pydantic

            linger = parse_duration(linger)
        topics = _destinations(topic, rewards_topic)
        is_librdkafka = client == "confluent"
        library = import_module("confluent_kafka" if is_librdkafka else "kafka")
        kind: Callable[..., MessageSink] = ConfluentSink if is_librdkafka else KafkaPythonSink
        open_sink = partial(kind, library, bootstrap_servers, topics, options or {})
        return cls(open_sink, topics, max_bytes=max_bytes, batch=batch, linger=linger)

    def _start(self) -> None:
        """Start with an empty buffer, also in a child after a fork, which has no copy of the parent's thread."""
        self._is_closed = False
        self._writer = _Writer(self._open_sink, self, self._batch)
        self._worker = Worker(
            self._writer,
            name="streameval-logger",
            event="events_not_logged",
            batch=max(MAX_BATCH, self._batch),
            gathered=self._batch,
            linger=self._linger,
            max_bytes=self._max_bytes,
            size=lambda logged: len(logged.message.value) + OVERHEAD_BYTES,
        )

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
                in [0, 1], or None if it is not known
            reward: the reward, or several by their fields, or None if it comes later, by `reward`
            features: numbers for the reward model, [n, d]
            unit: id of the user or session
            event_id: a unique id, random by default
            timestamp: time of the decision in seconds since 1970, now by default
            logging_policy: name or version of the policy that chose the action
        """
        fields = {
            "action": chosen,
            "actions": actions,
            "propensities" if hasattr(propensities, "__len__") else "propensity": propensities,
            "policies": policies,
            "reward": reward,
            "features": features,
            "unit": unit,
            "logging_policy": logging_policy,
            "context": context,
        }
        return self._log("decision", event_id, timestamp, fields)

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
        rank_probabilities: Sequence[Sequence[float]] | None = None,
        features: Sequence[Sequence[float]] | None = None,
        unit: str | int | None = None,
        event_id: str | int | None = None,
        timestamp: float | None = None,
    ) -> str | int:
        """Log one page with the clicks on it, and return its `event_id`.

        Args:
            context: the context of the page, anything that JSON can hold
            shown: the items in the order in which the page showed them
            clicked: the items that the user clicked
            policies: for each candidate, the ranks of the clicked items by item, from 1, or its whole list; an empty
                mapping if nothing was clicked, or None if it is not known
            propensities: the probability of a look at the rank of each clicked item, in (0, 1]
            swap: the two ranks with items that were exchanged by chance
            marginals: [n, 2] of a random production, its probability of each shown item at this rank and at the next
            rank_probabilities: [n, K] of a random production, its probability of each shown item at rank 1, 2, ...
            features: numbers of the items for the reward model, [n, d]
            unit: id of the user or session
            event_id: a unique id, random by default
            timestamp: time of the page in seconds since 1970, now by default
        """
        page = {"shown": shown, "clicked": clicked, "propensities": propensities, "swap": swap, "marginals": marginals}
        page["rank_probabilities"] = rank_probabilities
        fields = {
            "ranking": _without_none(page),
            "policies": policies,
            "features": features,
            "unit": unit,
            "context": context,
        }
        return self._log("ranking", event_id, timestamp, fields)

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
            reward: the reward of the slate, or several by their fields, or None if it comes later, by `reward`
            unit: id of the user or session
            event_id: a unique id, random by default
            timestamp: time of the decision in seconds since 1970, now by default
            fields: `slate_logging`, `scores`, `slates`, `slate_propensities` and `logging_policy` of the event
        """
        fields = {**fields, "slots": slots, "reward": reward, "unit": unit, "context": context}
        return self._log("slate", event_id, timestamp, fields)

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
            values: the value of the revealed outcome by policy, or None if the outcome was not revealed
            unit: id of the user or session
            event_id: a unique id, random by default
            timestamp: time of the decision in seconds since 1970, now by default
        """
        outcome = _without_none({"propensity": propensity, "values": values}) | {"revealed": values is not None}
        fields = {"scored": outcome, "unit": unit, "context": context}
        return self._log("scored", event_id, timestamp, fields)

    def reward(
        self,
        event_id: str | int,
        value: Rewards,
        *,
        timestamp: float | None = None,
        reward_id: str | int | None = None,
    ) -> None:
        """Log the reward of an earlier decision, or several by their fields: `{"click": 1, "revenue": 12.5}`.

        Args:
            event_id: the id of the decision
            value: the reward, or some of several rewards. The others may come in another message
            timestamp: time in seconds since 1970, now by default
            reward_id: an id that no other reward of the decision has, random by default. Copies of the message, such as
                an attempt after a lost answer, then count once
        """
        reward_id = uuid.uuid4().hex if reward_id is None else reward_id
        self._log("reward", event_id, timestamp, {"reward": value, "reward_id": reward_id})

    @property
    def counts(self) -> Counts:
        """Count the decisions and rewards of this process so far, by outcome."""
        writer, logged = self._writer, self._writer.logged
        settled = writer.written + writer.invalid + writer.failed
        dropped = writer.late + self._worker.status().dropped
        waiting = max(0, logged - settled - dropped)
        if self._is_closed:
            dropped, waiting = dropped + waiting, 0
        return Counts(writer.written, waiting, dropped, writer.invalid, writer.failed)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until no message is buffered or unacknowledged, and the buffer is free again.

        Args:
            timeout: the longest wait, in seconds

        Returns:
            Whether all messages have been written, or refused.
        """
        until = time.monotonic() + timeout
        while not self._is_empty() and time.monotonic() < until:
            self._worker.hurry()
            time.sleep(PAUSE_SECONDS)
        return not self.counts.waiting

    def _is_empty(self) -> bool:
        """Return whether nothing waits. Messages are counted as written before they leave the buffer."""
        return not self.counts.waiting and (self._is_closed or not self._worker.status().waiting)

    def close(self, timeout: float = 10.0) -> None:
        """Write buffered messages, and drop later ones.

        After an error, what is buffered is written again until the timeout. The last second of it, or its last half, is
        for a sink that has to give up. One that still waits is left alone in its thread. A logger is closed when Python
        exits, with a timeout of 10 seconds, unless it has been closed before.

        Args:
            timeout: seconds after which this returns. Messages that are still buffered are dropped
        """
        self._writer.closing.set()
        with suppress(RuntimeError):  # closed by the function that writes, in the thread
            abort_timeout = min(ABORT_SECONDS, timeout / 2)
            self._worker.close(timeout - abort_timeout, SHARE_TO_ABORT * abort_timeout, keeps_trying=True)
        self._is_closed = True
        atexit.unregister(self.close)

    def __enter__(self) -> EventLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={number}" for name, number in self.counts._asdict().items())
        return f"{type(self).__name__}({numbers})"

    # --- In the thread of the recommender ---

    def _log(self, form: str, event_id: str | int | None, timestamp: float | None, fields: dict[str, Any]) -> str | int:
        if event_id is None and form != "reward":
            event_id = uuid.uuid4().hex
        fields["event_id"] = event_id
        fields["timestamp"] = time.time() if timestamp is None else timestamp
        self._writer.count_logged()
        try:
            names, value = self._encode(form, fields)
        except Exception as error:  # noqa: BLE001 - no argument, whatever it is, may fail the recommender
            self._writer.refuse(form, str(error) or type(error).__name__)
        else:
            kind: MessageKind = "reward" if form == "reward" else "decision"
            self._put(_Logged(Form(form, names), Message(kind, event_id, value)))  # type: ignore[arg-type]
        return event_id  # type: ignore[return-value]

    def _encode(self, form: str, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], bytes]:
        """Return the fields of the rewards of a message, and its JSON.

        Raises:
            ValueError: JSON cannot hold the message as it is meant, or the rewards have no destination or no name.
        """
        event = {name: _plain(value, name) for name, value in _without_none(fields).items()}
        rewards = event.pop("reward", None)
        if "reward" not in self._kinds:
            if form == "reward":
                raise ValueError(NO_DESTINATION)
            if form in ("decision", "slate") and rewards is None:
                raise ValueError(f"reward: missing, and {NO_DESTINATION}")
        by_field = rewards if isinstance(rewards, dict) else {} if rewards is None else {"reward": rewards}
        if rewards == {}:
            raise ValueError("reward: an empty mapping")
        for name in by_field:
            if not isinstance(name, str) or name in EVENT_FIELDS:
                raise ValueError(f"reward: {name} is not the field of a reward")
        if form == "ranking" and "policies" in event:
            event["policies"] = {name: _placement(listed) for name, listed in event["policies"].items()}
        return tuple(by_field), msgspec.json.encode(event | by_field, enc_hook=_plain)

    def _put(self, logged: _Logged) -> None:
        before = self._writer.late + self._worker.status().dropped
        if self._writer.closing.is_set():
            self._writer.count_late()
        else:
            self._writer.close_at_exit(anew=False)
            self._worker.put([logged])
        if self._writer.late + self._worker.status().dropped > before:
            self._writer.warn("dropped", "the buffer is full or the logger is closed: messages are dropped")


class _Logged(NamedTuple):
    form: Form
    message: Message


class _Writer:
    """Check messages as an evaluator does, send them to a sink, and count them by outcome.

    Args:
        open_sink: returns the sink
        logger: is shown in warnings
        batch: the number of decisions or rewards in a message

    Attributes:
        closing: is set when messages need no longer gather
    """

    def __init__(self, open_sink: Callable[[], MessageSink], logger: EventLogger, batch: int = 1) -> None:
        self._open_sink, self._logger, self._batch = open_sink, logger, batch
        self._sink: MessageSink | None = None
        self.closing = threading.Event()
        self._lock, self._is_aborted = threading.Lock(), False
        self._warned: dict[str, float] = {}
        self._closes_at_exit = False
        self.logged = self.late = self.written = self.invalid = self.failed = 0

    def count_logged(self) -> None:
        """Count a message that the recommender logs."""
        with self._lock:
            self.logged += 1

    def count_late(self) -> None:
        """Count a message that came after the logger was closed."""
        with self._lock:
            self.late += 1

    def close_at_exit(self, *, anew: bool) -> None:
        """Let Python close the logger when it exits.

        Args:
            anew: whether to do so before all that was registered since, such as the producer of kafka-python
        """
        if anew:
            atexit.unregister(self._logger.close)
        if anew or not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(self._logger.close)

    def refuse(self, form: str, fault: str) -> None:
        """Count an invalid message."""
        with self._lock:
            self.invalid += 1
        self.warn("invalid", f"a {form} is invalid and was not logged: {fault}")

    def warn(self, cause: str, text: str) -> None:
        """Log a warning, unless one with this cause was logged in the last minute."""
        now = time.monotonic()
        if now - self._warned.get(cause, -math.inf) > WARNING_SECONDS:
            self._warned[cause] = now
            log.warning("%s; %s", text, self._logger)

    def write(self, batch: Sequence[_Logged]) -> int:
        """Write the messages that an evaluator accepts, and wait until they are acknowledged or refused.

        Raises:
            RetryError: Some messages were not taken.
        """
        valid = list(self._check(batch))
        if self._batch > 1:
            valid.sort(key=lambda logged: logged.message.kind)
        answers, sent = _Answers(self), 0
        try:
            for message, count in self._packed(valid):
                if self._is_aborted:
                    break
                self._send(message, partial(answers.add, count=count))
                sent += count
        except OSError as error:
            self.warn("waiting", f"cannot write, trying again: {error}")
        while answers.count < sent and not self._is_aborted:
            self._poll()
        rest = valid[answers.end() :]
        if rest:
            raise RetryError("", rest)  # without a reason, as it was reported
        self.closing.wait(PAUSE_SECONDS)
        return len(batch)

    def answer(self, error: Exception | None, count: int) -> None:
        """Count the events of a message that was written, or refused with an error."""
        self.written += count * (error is None)
        self.failed += count * (error is not None)

    def _packed(self, valid: Sequence[_Logged]) -> Iterator[tuple[Message, int]]:
        """Yield what is sent, with the number of events in it, in order of arrival for each topic."""
        for name, group in groupby(valid, key=lambda logged: logged.form.name):
            messages = [logged.message for logged in group]
            if self._batch > 1 and name in PACKED_FORMS:
                for start in range(0, len(messages), self._batch):
                    yield from _packing().pack(messages[start : start + self._batch])
            else:
                yield from ((message, 1) for message in messages)

    def _poll(self) -> None:
        try:
            self._opened().poll(PAUSE_SECONDS)
        except OSError as error:
            self.warn("waiting", f"cannot write, waiting for answers: {error}")
            time.sleep(PAUSE_SECONDS)

    def abort(self) -> None:
        """Wait for no more acknowledgements."""
        self._is_aborted = True

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._sink.close()

    def _opened(self) -> MessageSink:
        try:
            if self._sink is None:
                self._sink = self._open_sink()
                self.close_at_exit(anew=True)
        except Exception as error:  # wrong options of a client must not end the thread in silence
            raise OSError(str(error) or type(error).__name__) from error
        return self._sink

    def _send(self, message: Message, done: Callable[[Exception | None], None]) -> None:
        sink = self._opened()
        try:
            sink.send(message, done)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - of a function of the user, or a client that refuses the message
            done(error)

    def _check(self, batch: Sequence[_Logged]) -> Iterator[_Logged]:
        """Yield the messages that an evaluator accepts, and count the others."""
        indices: dict[Form, list[int]] = {}
        for index, logged in enumerate(batch):
            indices.setdefault(logged.form, []).append(index)
        faults: dict[int, str] = {}
        for form, rows in indices.items():
            try:
                rejected = _decoder(form)([batch[index].message.value for index in rows])
                faults |= {rows[rejection.place]: rejection.detail for rejection in rejected}
            except Exception as error:  # noqa: BLE001 - a name of a reward that no configuration could have
                faults |= dict.fromkeys(rows, str(error))
        for index, logged in enumerate(batch):
            if index in faults:
                self.refuse(logged.form.name, faults[index])
            else:
                yield logged


class _Answers:
    """Count the answers to the events of one batch, until the writer waits no more."""

    def __init__(self, writer: _Writer) -> None:
        self._writer, self._lock, self._is_over = writer, threading.Lock(), False
        self.count = 0

    def add(self, error: Exception | None, count: int = 1) -> None:
        """Count an answer for some events, in any thread."""
        with self._lock:
            if self._is_over:
                return
            self.count += count
            self._writer.answer(error, count)
        if error is not None:
            self._writer.warn("failed", f"a message was refused: {str(error) or type(error).__name__}")

    def end(self) -> int:
        """Count no more answers, and return how many there were. Events without one are written again, or dropped."""
        with self._lock:
            self._is_over = True
        return self.count


def _packing() -> Any:
    """Import what packs events.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        return import_module("streameval.event_logger.packing")
    except ImportError as error:
        raise ImportError("batches need pyarrow: pip install 'streameval[columnar]'") from error


@lru_cache(maxsize=32)
def _decoder(form: Form) -> Callable[[Sequence[bytes]], Sequence[Rejected]]:
    """Return a function that decodes messages of a form as an evaluator does, and returns those that it rejects."""
    # with numpy, which a program that only imports the logger does not need
    from streameval.events.decoder import JsonDecoder, RankingDecoder, RewardDecoder
    from streameval.events.further_rewards import RewardField
    from streameval.events.origin import Origin

    field, *others = form.rewards or ("reward",)
    further = [RewardField(name, name, -math.inf, math.inf) for name in others]
    if form.name == "reward":
        rewards = RewardDecoder(field, further)
        return lambda values: rewards.decode_batch(values, Origin.from_parts("", [(0, range(len(values)))])).rejected
    decoder = JsonDecoder(None, field, further=further, rewarded=len(form.rewards) > 0)
    if form.name == "ranking":
        decoder = RankingDecoder()
    return lambda values: decoder.decode_batch(values).rejected


def _placement(listed: Any) -> dict[str, Any] | None:
    """Return the ranks of a candidate, or its whole list, in the form of the event. No ranks are not None."""
    return None if listed is None else {"ranks" if isinstance(listed, dict) else "ranking": listed}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _plain(value: Any, field: str = "context") -> Any:
    """Return lists in place of arrays and tuples, and Python's numbers in place of others.

    Raises:
        ValueError: A number outside the context is not finite. JSON would have null in its place.
    """
    if isinstance(value, float):  # also numpy's
        if not math.isfinite(value) and field != "context":
            raise ValueError(f"{field}: {value} is not a finite number")
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, field) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item, field) for name, item in value.items()}
    return _plain(value.tolist(), field) if hasattr(value, "tolist") else value


def _destinations(decisions: Any, rewards: Any) -> dict[MessageKind, Any]:
    return {"decision": decisions} if rewards is None else {"decision": decisions, "reward": rewards}
