"""Send a message for each transition of a promotion rule and each frozen copy of a policy, outside the loop.

A message is sent after a snapshot with it is on disk, and each snapshot holds all messages that are not confirmed yet.
A crash before that snapshot loses the message together with its transition, and the events that are read again repeat
both. A crash after it repeats the message with its id and all its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import structs

from streameval.common.arrays import State as PlainState
from streameval.events.schema import described_schema
from streameval.ingest.background import Sink, Worker, WorkerStatus
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Basis, Decision, NewVersion, Report, State, Transition

CLOSE_TIMEOUT, ABORT_TIMEOUT = 5.0, 2.0  # seconds to send what waits at the end, and then to abort
DIGITS = 9
"""Significant digits of a lift. Two computations of one transition may differ in later digits."""

Promotability = Literal["promotable", "not_promotable", "worse"]


class LogPlace(msgspec.Struct, frozen=True):
    """Name the event after which a rule decided."""

    topic: str
    partition: int
    offset: int


class Message(msgspec.Struct, frozen=True):
    """Describe the form of a message by a JSON Schema."""

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a message."""
        return described_schema(cls)


class DecisionMessage(Message, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """Report that a candidate became promotable, or worse than production, by a promotion rule, or ceased to be.

    A candidate that is neither promotable nor worse is `not_promotable`, and `state` says whether its data are trusted.

    Trust checks of the whole stream (such as `stale`), of a ramp and of propensities suspend what the rule has found
    (`by: trust`), and a second message restores it. They follow the Report, about a second later than the checks.

    Args:
        id: Identity of the transition, equal in all its deliveries.
        policy: The candidate.
        production: The production policy.
        rule: The promotion rule.
        before: State before the transition, `from` in JSON.
        after: State after the transition, `to` in JSON.
        state: State after the transition as the Report names it, null if unknown.
        reason: Reason in words.
        lift: Lift over production at that time, null if unknown.
        lift_lower: Lower bound of the lift by the rule.
        lift_upper: Upper bound of the lift by the rule.
        event: Number of events since the start.
        timestamp: Newest event time in epoch seconds.
        place: Event after which the rule decided.
        configuration: Fingerprint of all settings that decide the numbers, except for the list of candidates.
        propensity: `logged`, or `estimated`, with errors that no bound includes.
        name: Name of the daemon.
        effective_events: Number of equally weighted events with as much evidence about the candidate, null if unknown.
        largest_share: Share of the total weight, or of the value, that one event carries.
        standard_errors: The lift in standard errors.
        missing_share: Share of events that the candidate lacks, by the last Report, as the two below.
        clipped_share: Share of the latest rewards that were clipped, null if rewards are rejected instead.
        failed: Trust checks that fail for the candidate or for production.
        by: What made the transition, the rule or trust checks of the whole stream.
        schema: Number of this layout.
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
    name: str = ""
    schema: int = 1
    state: State | None = None
    effective_events: float | None = None
    largest_share: float | None = None
    standard_errors: float | None = None
    missing_share: float | None = None
    clipped_share: float | None = None
    failed: tuple[str, ...] = ()
    by: Literal["rule", "trust"] = "rule"

    @property
    def found(self) -> Promotability:
        """Return what the rule has found, whatever trust checks say."""
        return self.before if self.by == "trust" and self.after == "not_promotable" else self.after

    @classmethod
    def from_transition(
        cls,
        transition: Transition,
        production: str,
        configuration: str,
        name: str,
        propensity: str = "logged",
        present: Basis | None = None,
    ) -> DecisionMessage:
        """Return the message about a transition.

        Args:
            transition: the transition
            production: the production policy
            configuration: the fingerprint of the configuration
            name: the name of the daemon
            propensity: as in `Estimate`
            present: what the decision rests on by the last Report. Its shares and trust checks are about the stream
        """
        present = present or Basis()
        position = None if transition.place is None else LogPlace(*transition.place)
        named = [transition.policy, transition.rule, transition.promotable, transition.event, position, configuration]
        verdicts: tuple[Promotability, Promotability] = ("not_promotable", "promotable")
        starts, basis = transition.promotable, transition.basis or Basis()
        if transition.worse is not None:
            verdicts, starts = ("not_promotable", "worse"), transition.worse
            named.append({"worse": starts})
        return cls(
            id=fingerprint_of(named),
            policy=transition.policy,
            production=production,
            rule=transition.rule,
            before=verdicts[not starts],
            after=verdicts[starts],
            reason=transition.reason,
            lift=_rounded(transition.lift),
            lift_lower=_rounded(transition.lift_lower),
            lift_upper=_rounded(transition.lift_upper),
            event=transition.event,
            timestamp=transition.timestamp,
            place=position,
            configuration=configuration,
            propensity=propensity,
            name=name,
            state=transition.state,
            **_shares(
                structs.replace(
                    basis,
                    missing_share=present.missing_share,
                    clipped_share=present.clipped_share,
                    failed=present.failed,
                )
            ),
        )

    def after_checks(self, decision: Decision, report: Report) -> DecisionMessage | None:
        """Return the message about checks that suspend or restore what the rule has found, None if nothing changes.

        Args:
            decision: the decision on the candidate by the rule in the Report
            report: a Report
        """
        now: Promotability = "promotable" if decision.promotable else "worse" if decision.worse else "not_promotable"
        event = report.events.accepted
        by_checks = now == self.found or (now == "not_promotable" and decision.basis.failed)
        if self.found == "not_promotable" or now == self.after or event < self.event or not by_checks:
            return None
        return structs.replace(
            self,
            id=fingerprint_of([self.policy, self.rule, now, event, self.configuration, "trust"]),
            before=self.after,
            after=now,
            by="trust",
            reason=decision.reason,
            lift=_rounded(decision.lift),
            lift_lower=_rounded(decision.lower),
            lift_upper=None,
            event=event,
            timestamp=report.events.last_timestamp,
            place=None,
            state=decision.state,
            **_shares(decision.basis),
        )


class VersionMessage(Message, frozen=True, kw_only=True):
    """Report a frozen copy of a policy that learns. The copy is a candidate from the next event on.

    Args:
        id: Identity of the message, equal in all its deliveries.
        policy: Name of the copy.
        of: The policy that was copied.
        production: The production policy.
        event: Number of events of the copied policy.
        timestamp: Newest event time in epoch seconds.
        file: File in the directory of snapshots with what is needed to serve the copy, null if it has none.
        retired: Copies that stopped being candidates. Their files are deleted.
        place: Event after which the copy was made.
        configuration: Fingerprint of all settings that decide the numbers, except for the list of candidates.
        kind: Always `version`.
        name: Name of the daemon.
        schema: Number of this layout.
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
    name: str = ""
    schema: int = 1

    @classmethod
    def from_version(cls, version: NewVersion, production: str, configuration: str, name: str) -> VersionMessage:
        """Return the message about a new copy."""
        position = None if version.place is None else LogPlace(*version.place)
        return cls(
            id=fingerprint_of([version.policy, version.of, version.event, position, configuration]),
            policy=version.policy,
            of=version.of,
            production=production,
            event=version.event,
            timestamp=version.timestamp,
            file=version.file,
            retired=version.retired,
            place=position,
            configuration=configuration,
            name=name,
        )


def _shares(basis: Basis) -> dict[str, Any]:
    """Return the fields of a message about what a decision rests on."""
    names = ("effective_events", "largest_share", "standard_errors", "missing_share", "clipped_share")
    return {"failed": basis.failed} | {name: _rounded(getattr(basis, name)) for name in names}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def fingerprint_of(value: Any) -> str:
    """Return the BLAKE2b digest of a plain value in 16 hexadecimal digits.

    >>> fingerprint_of({"margin": 0.0})
    'fa40eecc06ccfbf3'
    """
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=8).hexdigest()


class KeyedMessage(NamedTuple):
    """Hold a message as brokers take it."""

    id: str
    key: bytes
    value: bytes

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """Return the id, by which readers recognise a message that was sent again."""
        return [("streameval.id", self.id.encode())]


class DecisionOutbox:
    """Send decisions to a sink in a thread, in order, each one after a snapshot with it is on disk.

    Args:
        sink: Destination of the messages.
        production: The production policy.
        configuration: Fingerprint of the configuration.
        waiting: Messages of a snapshot that were not confirmed, which are sent at once, and the last one of each
            candidate and rule.
        name: Name of the daemon in its messages.
    """

    def __init__(
        self,
        sink: Sink[KeyedMessage],
        production: str,
        configuration: str,
        waiting: Iterable[Mapping[str, Any]] = (),
        name: str = "",
    ) -> None:
        self._settings = production, configuration, name
        saved = list(waiting)
        self._last: dict[tuple[str, str], DecisionMessage] = {}
        self._checked: Report | None = None
        for message in saved:
            if "rule" in msgspec.json.decode(message["value"]):  # no frozen copy
                last = msgspec.json.decode(message["value"], type=DecisionMessage)
                self._last[last.policy, last.rule] = last
        self._unconfirmed = {
            message["id"]: KeyedMessage(message["id"], message["key"], message["value"])
            for message in saved
            if not message.get("confirmed")
        }
        self._queued: set[str] = set()
        self._lock = Lock()
        self._worker: Worker[KeyedMessage] = Worker(
            sink, name="streameval-decisions", event="decisions_not_sent", written=self._confirm
        )
        self.saved(saved)

    def collect(self, evaluator: Evaluator, versions: Iterable[NewVersion] = (), report: Report | None = None) -> None:
        """Keep messages about new transitions and new frozen copies until a snapshot holds them.

        Args:
            evaluator: the evaluator with the transitions
            versions: the new copies
            report: the last Report, with the shares and trust checks of the whole stream
        """
        settings, origin = self._settings, evaluator.config.origin_of_propensities
        transitions = evaluator.take_transitions()
        decisions: dict[tuple[str, str], Decision] = {}
        if report is not None and (transitions or report is not self._checked):
            decisions = {(decision.policy, decision.rule): decision for decision in report.promotion}
        self._checked = report
        for change in transitions:
            decision = decisions.get((change.policy, change.rule))
            basis = None if decision is None else decision.basis
            self._keep(DecisionMessage.from_transition(change, *settings, origin, basis))
        for version in versions:
            self._keep(VersionMessage.from_version(version, *settings))
        if report is not None and decisions:
            self._last = {key: last for key, last in self._last.items() if last.policy in evaluator.config.policies}
            for key, last in list(self._last.items()):
                changed = last.after_checks(decisions[key], report) if key in decisions else None
                if changed is not None:
                    self._keep(changed)

    def _keep(self, message: DecisionMessage | VersionMessage) -> None:
        """Keep a message until a snapshot holds it."""
        keyed = KeyedMessage(message.id, message.policy.encode(), msgspec.json.encode(message))
        if isinstance(message, DecisionMessage):
            self._last[message.policy, message.rule] = message
        with self._lock:
            self._unconfirmed.setdefault(message.id, keyed)

    def state(self) -> list[PlainState]:
        """Return the messages that are not confirmed, and the last ones, for the next snapshot."""
        with self._lock:
            waiting = list(self._unconfirmed.values())
        known = {message.id for message in waiting}
        confirmed = [
            {"id": last.id, "key": last.policy.encode(), "value": msgspec.json.encode(last), "confirmed": True}
            for last in self._last.values()
            if last.id not in known
        ]
        return [*confirmed, *({"id": one.id, "key": one.key, "value": one.value} for one in waiting)]

    def saved(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Send messages that are in a snapshot on disk."""
        with self._lock:
            ids = [message["id"] for message in messages]
            due = [self._unconfirmed[id] for id in ids if id in self._unconfirmed and id not in self._queued]
            self._queued.update(message.id for message in due)
        if due:
            self._worker.put(due)

    def status(self) -> WorkerStatus:
        """Return how many messages this process has sent, and how many wait."""
        return self._worker.status()

    def close(self) -> None:
        """Try once more to send what waits, for a few seconds. The next start sends the rest."""
        self._worker.close(CLOSE_TIMEOUT, ABORT_TIMEOUT)

    def _confirm(self, messages: Sequence[KeyedMessage]) -> None:
        with self._lock:
            for message in messages:
                del self._unconfirmed[message.id]
                self._queued.remove(message.id)
