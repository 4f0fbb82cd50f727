"""Decisions for machines: a message for each transition of a promotion rule and each frozen copy of a policy.

They are written to a topic outside the loop.

A message is sent after a snapshot that holds it is on disk, and each snapshot holds all messages whose delivery is not
confirmed yet. A crash before that snapshot loses the message together with its transition, which the events that are
read again then repeat; a crash after it repeats the message, with the same id and the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, Literal, NamedTuple

import msgspec

from streameval.common.arrays import State
from streameval.events.schema import described_schema
from streameval.ingest.background import Sink, Worker, WorkerStatus
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import NewVersion, Transition

CLOSE_TIMEOUT, ABORT_TIMEOUT = 5.0, 2.0  # seconds at the end: to send what waits, and then to abort
DIGITS = 9
"""Significant digits of a lift: fewer than those in which two computations of one transition may differ."""

Promotability = Literal["promotable", "not_promotable"]


class LogPlace(msgspec.Struct, frozen=True):
    """The event after which the rule decided."""

    topic: str
    partition: int
    offset: int


class DecisionMessage(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """A transition: a promotion rule has made a candidate promotable, or not promotable any more.

    `id`: the same for each delivery of one transition. `event`, `timestamp`: the number of events since the start, and
    the newest event time in epoch seconds. `lift`, `lift_lower`, `lift_upper`: the lift over production then, and its
    interval by the rule; null where unknown. `place`: the event after which the rule decided. `configuration`: the
    fingerprint of all settings that decide the numbers, except for the list of candidates. `before` and `after` are
    `from` and `to` in JSON. `propensity`: `logged`, or `estimated`, whose error no bound includes. The trust checks of
    the whole stream, such as `stale`, of a ramp and of propensities make no transition: ask
    `streameval_policy_promotable` before acting.
    """

    id: str
    policy: str
    production: str
    rule: str
    before: Promotability
    after: Promotability
    reason: str
    lift: float | None
    lift_lower: float | None
    lift_upper: float | None
    event: int
    timestamp: float | None
    place: LogPlace | None
    configuration: str
    propensity: str = "logged"
    schema: int = 1

    @classmethod
    def of(
        cls, transition: Transition, production: str, configuration: str, propensity: str = "logged"
    ) -> DecisionMessage:
        """The message about a transition."""
        place = None if transition.place is None else LogPlace(*transition.place)
        named = [transition.policy, transition.rule, transition.promotable, transition.event, place, configuration]
        verdicts: tuple[Promotability, Promotability] = ("not_promotable", "promotable")
        return cls(
            id=fingerprint_of(named),
            policy=transition.policy,
            production=production,
            rule=transition.rule,
            before=verdicts[not transition.promotable],
            after=verdicts[transition.promotable],
            reason=transition.reason,
            lift=_rounded(transition.lift),
            lift_lower=_rounded(transition.lift_lower),
            lift_upper=_rounded(transition.lift_upper),
            event=transition.event,
            timestamp=transition.timestamp,
            place=place,
            configuration=configuration,
            propensity=propensity,
        )

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a message."""
        return described_schema(cls)


class VersionMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen copy of a policy that learns, which is a candidate from the next event on.

    `policy`: the name of the copy. `of`: the policy that was copied, after `event` of its events. `timestamp`: the
    newest event time then, in epoch seconds. `file`: its weights, or what its code gives to be served, in the
    directory of the snapshots; null where it has no file. `retired`: the copies that stopped being candidates,
    whose files are deleted. `id`, `place` and `configuration`: as in the message about a transition.
    """

    id: str
    policy: str
    of: str
    production: str
    event: int
    timestamp: float | None
    file: str | None
    retired: tuple[str, ...]
    place: LogPlace | None
    configuration: str
    kind: Literal["version"] = "version"
    schema: int = 1

    @classmethod
    def of_version(cls, version: NewVersion, production: str, configuration: str) -> VersionMessage:
        """The message about a new copy."""
        place = None if version.place is None else LogPlace(*version.place)
        return cls(
            id=fingerprint_of([version.policy, version.of, version.event, place, configuration]),
            policy=version.policy,
            of=version.of,
            production=production,
            event=version.event,
            timestamp=version.timestamp,
            file=version.file,
            retired=version.retired,
            place=place,
            configuration=configuration,
        )

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a message."""
        return described_schema(cls)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def fingerprint_of(value: Any) -> str:
    """The BLAKE2b of a plain value, as 16 hexadecimal digits.

    >>> fingerprint_of({"margin": 0.0})
    'fa40eecc06ccfbf3'
    """
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=8).hexdigest()


class KeyedMessage(NamedTuple):
    """A message as a broker takes it."""

    id: str
    key: bytes
    value: bytes

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The id, by which readers recognise a message that was sent again."""
        return [("streameval.id", self.id.encode())]


class DecisionOutbox:
    """Sends decisions to a sink in its own thread, one after the other, each once a snapshot holds it.

    Args:
        sink: Where messages are sent.
        production: The policy that candidates are compared with.
        configuration: The fingerprint of the configuration.
        waiting: Messages of a snapshot, whose delivery was not confirmed; they are sent at once.
    """

    def __init__(
        self, sink: Sink[KeyedMessage], production: str, configuration: str, waiting: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._production, self._configuration = production, configuration
        self._unconfirmed: dict[str, KeyedMessage] = {}
        self._queued: set[str] = set()
        self._lock, self._sink = Lock(), sink
        self._worker: Worker[KeyedMessage] = Worker(
            self._send,
            name="streameval-decisions",
            event="decisions_not_sent",
            close=sink.close,
            abort=sink.abort,
        )
        saved = list(waiting)
        self._unconfirmed = {each["id"]: KeyedMessage(each["id"], each["key"], each["value"]) for each in saved}
        self.saved(saved)

    def collect(self, evaluator: Evaluator, versions: Iterable[NewVersion] = ()) -> None:
        """Keep the messages about new transitions and new frozen copies until a snapshot holds them."""
        named, origin = (self._production, self._configuration), evaluator.config.origin_of_propensities
        messages: list[DecisionMessage | VersionMessage] = [
            *(DecisionMessage.of(each, *named, origin) for each in evaluator.take_transitions()),
            *(VersionMessage.of_version(version, *named) for version in versions),
        ]
        for message in messages:
            keyed = KeyedMessage(message.id, message.policy.encode(), msgspec.json.encode(message))
            with self._lock:
                self._unconfirmed.setdefault(message.id, keyed)

    def state(self) -> list[State]:
        """The messages whose delivery is not confirmed, for the next snapshot."""
        with self._lock:
            return [{"id": each.id, "key": each.key, "value": each.value} for each in self._unconfirmed.values()]

    def saved(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Send these messages: they are in a snapshot that is on disk."""
        with self._lock:
            names = [each["id"] for each in messages if each["id"] not in self._queued]
            sent = [self._unconfirmed[name] for name in names if name in self._unconfirmed]
            self._queued.update(message.id for message in sent)
        if sent:
            self._worker.put(sent)

    def status(self) -> WorkerStatus:
        """How many messages this process has sent, and how many wait."""
        return self._worker.status()

    def close(self) -> None:
        """Try once more to send what waits, for a few seconds; the next start sends the rest."""
        self._worker.close(CLOSE_TIMEOUT, ABORT_TIMEOUT)

    def _send(self, messages: Sequence[KeyedMessage]) -> int:
        sent = self._sink.write(messages)
        with self._lock:
            for message in messages:
                self._unconfirmed.pop(message.id, None)
                self._queued.discard(message.id)
        return sent


class NoDecisions:
    """Sends nothing: there are no messages about transitions."""

    def collect(self, evaluator: Evaluator, versions: Iterable[NewVersion] = ()) -> None:
        """Do nothing."""

    def state(self) -> list[State]:
        """No message."""
        return []

    def status(self) -> None:
        """No status: nothing is sent."""

    def close(self) -> None:
        """Do nothing."""
