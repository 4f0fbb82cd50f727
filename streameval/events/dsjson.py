"""Decision logs of Vowpal Wabbit and Azure Personalizer (ds-json), read as they are.

Contextual bandits, conditional ones with several slots (CCB: the first slot, the others being conditional on it), and
slates. The reward is minus the cost. Actions are put in the order of their numbers; the log has the chosen one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from streameval.common.text import counted
from streameval.events.decoder import JsonDecoder, Messages
from streameval.events.diagnosis import (
    LONGEST_LOOKED_AT,
    LONGEST_MESSAGE,
    UNREADABLE,
    explained,
    non_finite,
    parsed,
)
from streameval.events.rejection import Rejected, rejection
from streameval.events.schema import NAN, Event, Slate, Slot, policies_type
from streameval.events.validation import Fault

BASELINE = "baseline"
"""The policy that always takes the baseline action, where the log names one (`_ba`)."""
COSTS = {"reward": "cost", "_label_cost": "cost", "_original_label_cost": "original_cost"}
"""What a `reward_field` may be, and the field below that holds it."""

Cost: TypeAlias = float | None


class Observation(msgspec.Struct, frozen=True, gc=False):
    """Something that was reported of a decision later."""

    activated: bool = msgspec.field(name="ActionTaken", default=False)


class Outcome(msgspec.Struct, frozen=True):
    """What one slot showed: actions from 0, the chosen one first."""

    actions: list[int] = msgspec.field(name="_a", default_factory=list)
    probabilities: list[float] = msgspec.field(name="_p", default_factory=list)
    cost: Cost = msgspec.field(name="_label_cost", default=None)
    original_cost: Cost = msgspec.field(name="_original_label_cost", default=None)


class Interaction(msgspec.Struct, frozen=True):
    """One line of a log: actions from 1 where there are no slots, the chosen one first."""

    event_id: str | int | None = msgspec.field(name="EventId", default=None)
    timestamp: datetime | None = msgspec.field(name="Timestamp", default=None)
    cost: Cost = msgspec.field(name="_label_cost", default=None)
    original_cost: Cost = msgspec.field(name="_original_label_cost", default=None)
    probability: float | None = msgspec.field(name="_label_probability", default=None)
    action: int | None = msgspec.field(name="_label_Action", default=None)
    position: int | None = msgspec.field(name="_labelIndex", default=None)
    actions: list[int] | None = msgspec.field(name="a", default=None)
    probabilities: list[float] | None = msgspec.field(name="p", default=None)
    outcomes: list[Outcome] | None = msgspec.field(name="_outcomes", default=None)
    baseline: list[int] | None = msgspec.field(name="_ba", default=None)
    observations: list[Observation] | None = msgspec.field(name="o", default=None)
    skipped: bool | None = msgspec.field(name="_skipLearn", default=None)
    deferred: bool | None = msgspec.field(name="_deferred", default=None)
    dropped: float | None = msgspec.field(name="pdrop", default=None)
    context: msgspec.Raw = msgspec.field(name="c", default=msgspec.Raw(b"null"))


class DsjsonDecoder(JsonDecoder):
    """Reads ds-json as `JsonDecoder` reads its own format, to the same columns, with the same reasons to reject.

    `reward_field`: `_label_cost` (also called `reward`), or `_original_label_cost`, the true one in apprentice mode,
    where `_label_cost` only tells whether the baseline was followed. Events carry no policy but `baseline`, where the
    log has baseline actions; other policies are code. Decisions that were never activated (`_skipLearn`, `_deferred`)
    have no reward and are rejected; where a log was subsampled (`pdrop`), an event stands for `1 / (1 - pdrop)`.

    >>> line = b'{"_label_cost":-2,"_label_probability":0.8,"_label_Action":2,"a":[2,1],"p":[0.8,0.2]}'
    >>> batch = DsjsonDecoder().decode_batch([line, b"{}"])
    >>> batch.reward, batch.propensity, batch.action_sets.propensities
    (array([2.]), array([0.8]), array([0.2, 0.8]))
    >>> batch.rejected[0].reason, batch.rejected[0].detail
    ('missing_field', '_label_cost: missing')
    """

    def __init__(
        self,
        policies: Sequence[str] | None = None,
        reward_field: str = "reward",
        reward_range: tuple[float, float] | None = None,
        scores: Sequence[str] | None = None,
        identified: bool = False,
    ) -> None:
        super().__init__(policies, "reward", reward_range, scores, identified=identified)
        if reward_field not in COSTS:
            raise ValueError(f"reward_field must be one of {', '.join(COSTS)}; found {reward_field!r}")
        self.reward_field = reward_field
        self._decode_line = msgspec.json.Decoder(Interaction).decode
        self._known = None if self.policies is None else policies_type(self.policies)

    def _read(self, messages: Messages, rejected: dict[int, Rejected]) -> list[Any]:
        """The interactions among the messages as events."""
        events: list[Any] = []
        for place, message in enumerate(messages):
            event = self._event_of(message)
            if isinstance(event, Rejected):
                rejected[place] = event
            else:
                events.append(event)
        return events

    def _event_of(self, message: bytes | None) -> Event | Rejected:
        if message is None:
            return Rejected("malformed", "a tombstone: the message has no value", b"")
        if len(message) > LONGEST_MESSAGE:
            return rejection(
                "malformed", f"{len(message)} bytes, more than the {LONGEST_MESSAGE} that are read", message
            )
        try:
            message.decode()
            told = self._decode_line(message)
            context = None if self.scores is None else msgspec.json.decode(told.context)
        except UNREADABLE as error:
            return rejection(*_unreadable(message, error), message)
        fault = _left_out(told)
        event = fault or (self._bandit(told) if told.outcomes is None else self._of_slots(told, told.outcomes))
        if isinstance(event, Fault):
            return rejection(*event, message)
        return msgspec.structs.replace(event, context=context)

    def _bandit(self, told: Interaction) -> Event | Fault:
        reward = self._reward(told, "")
        if isinstance(reward, Fault):
            return reward
        action = told.action
        if action is None and told.position is not None:
            action = told.position + 1
        if action is None and told.actions:
            action = told.actions[0]
        if action is None:
            return Fault("missing_field", "_label_Action: missing")
        if told.position is not None and told.position + 1 != action:
            return Fault("malformed", f"_labelIndex: {told.position}, but `_label_Action` is {action}")
        if told.probabilities is not None and len(told.probabilities) != len(told.actions or ()):
            return Fault("malformed", f"p: {_entries(told.probabilities, told.actions or ())}")
        return self._event_with(told, reward, action, told.probability, told.actions, told.probabilities)

    def _of_slots(self, told: Interaction, outcomes: list[Outcome]) -> Event | Fault:
        for place, outcome in enumerate(outcomes):
            if not outcome.actions or len(outcome.actions) != len(outcome.probabilities):
                found = _entries(outcome.probabilities, outcome.actions)
                return Fault("malformed", f"_outcomes[{place}]._p: {found}")
        if told.cost is not None or told.original_cost is not None:
            return self._whole_slate(told, outcomes)
        if not outcomes:
            return Fault("malformed", "_outcomes: empty")
        first = outcomes[0]
        reward = self._reward(first, "_outcomes[0].")
        if isinstance(reward, Fault):
            return reward
        probability = first.probabilities[0]
        return self._event_with(told, reward, first.actions[0], probability, first.actions, first.probabilities)

    def _reward(self, costs: Interaction | Outcome, where: str) -> float | Fault:
        cost: Cost = getattr(costs, COSTS[self.reward_field])
        if cost is None:
            field = "_label_cost" if self.reward_field == "reward" else self.reward_field
            return Fault("missing_field", f"{where}{field}: missing")
        return 0.0 - cost

    def _event_with(
        self,
        told: Interaction,
        reward: float,
        action: int,
        probability: float | None,
        actions: list[int] | None,
        probabilities: list[float] | None,
    ) -> Event:
        order = _order(actions or ())
        return Event(
            event_id="" if told.event_id is None else told.event_id,
            timestamp=_seconds(told.timestamp),
            action=action,
            propensity=probability,
            reward=reward,
            policies=self._policies(told.baseline, 0, actions, order),
            actions=[actions[place] for place in order] if actions is not None else None,
            propensities=[probabilities[place] for place in order] if probabilities is not None else None,
            sampling_probability=1.0 - (told.dropped or 0.0),
        )

    def _whole_slate(self, told: Interaction, outcomes: list[Outcome]) -> Event | Fault:
        reward = self._reward(told, "")
        if isinstance(reward, Fault):
            return reward
        return Slate(
            event_id="" if told.event_id is None else told.event_id,
            timestamp=_seconds(told.timestamp),
            reward=reward,
            slots=[self._slot(told.baseline, place, outcome) for place, outcome in enumerate(outcomes)],
            sampling_probability=1.0 - (told.dropped or 0.0),
        )

    def _slot(self, baseline: list[int] | None, place: int, outcome: Outcome) -> Slot:
        order = _order(outcome.actions)
        return Slot(
            action=outcome.actions[0],
            propensity=outcome.probabilities[0],
            policies=self._policies(baseline, place, outcome.actions, order),
            actions=[outcome.actions[each] for each in order],
            propensities=[outcome.probabilities[each] for each in order],
        )

    def _policies(self, baseline: list[int] | None, slot: int, actions: list[int] | None, order: Sequence[int]) -> Any:
        """What the log says of policies: at most what the baseline would have done in a slot."""
        cell: Any = NAN
        if baseline and actions and slot < len(baseline) and baseline[slot] in actions:
            cell = [float(actions[place] == baseline[slot]) for place in order]
        if self._known is None:
            return {BASELINE: cell} if baseline else None
        return self._known(*[cell if name == BASELINE else NAN for name in self.policies or ()])


def _left_out(told: Interaction) -> Fault | None:
    """Why an interaction cannot count, although it can be read."""
    if told.skipped:
        return Fault("missing_field", "_label_cost: not known, since the decision was not activated (`_skipLearn`)")
    if told.deferred and not any(observation.activated for observation in told.observations or ()):
        return Fault("missing_field", "_label_cost: not known, since the deferred decision was not activated")
    if told.dropped is not None and not 0 <= told.dropped < 1:
        return Fault("propensity_range", f"pdrop: {told.dropped:.10g} is not in [0, 1)")
    return None


def _order(actions: Sequence[int]) -> list[int]:
    """The places of the actions in the order of their numbers."""
    return sorted(range(len(actions)), key=actions.__getitem__)


def _seconds(moment: datetime | None) -> float:
    if moment is None:
        return NAN
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _unreadable(message: bytes, error: Exception) -> Fault:
    """Numbers that are not finite have a reason of their own, though they are not JSON."""
    if len(message) > LONGEST_LOOKED_AT:
        return Fault("malformed", explained(error))
    try:
        tree, _ = parsed(message)
        if not isinstance(tree, dict):
            return Fault("malformed", "not a JSON object")
        for where, number in non_finite(tree):
            return Fault("not_finite", f"{where}: {number} is not a finite number")
    except UNREADABLE:
        pass
    return Fault("malformed", explained(error))


def _entries(values: Sequence[object], actions: Sequence[object]) -> str:
    return f"{counted(len(values), 'entry')} for {counted(len(actions), 'action')}"
