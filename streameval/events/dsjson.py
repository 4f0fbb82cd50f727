"""Decode the decision logs of Vowpal Wabbit and Azure Personalizer (ds-json).

Logs hold contextual bandits, conditional contextual bandits (CCB) and slates. Only the first slot of a CCB decision is
used, because the others are conditional on it. The reward is minus the cost. Logs have the chosen action first. Events
have actions sorted by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from streameval.common.arrays import is_positive_probability
from streameval.common.text import counted
from streameval.events.decoder import JsonDecoder
from streameval.events.diagnosis import Diagnosis
from streameval.events.further_rewards import RewardField
from streameval.events.schema import NAN, Event, RewardValue, Slot, attributes, derived, policies_type, score_fields
from streameval.events.validation import Fault

BASELINE = "baseline"  # the policy that always takes the baseline action, if the log names one (`_ba`)
LABEL_COST = "_label_cost"
COSTS = {"reward": "cost", LABEL_COST: "cost", "_original_label_cost": "original_cost"}
"""Map each field with a cost, and `reward` for `_label_cost`, to the attribute of `Interaction` or `Outcome`."""

Cost: TypeAlias = float | None


class _UnusableError(ValueError):
    """Report a line that can be decoded but is not an event. Its arguments are a reason and a detail, as in `Fault`."""


class Observation(msgspec.Struct, frozen=True, gc=False):
    """Represent a later report about a decision."""

    activated: bool = msgspec.field(name="ActionTaken", default=False)


class Outcome(msgspec.Struct, frozen=True):
    """Represent the choice of one slot. Actions count from 0, and the chosen one comes first."""

    actions: list[int] = msgspec.field(name="_a", default_factory=list)
    probabilities: list[float] = msgspec.field(name="_p", default_factory=list)
    cost: Cost = msgspec.field(name="_label_cost", default=None)
    original_cost: Cost = msgspec.field(name="_original_label_cost", default=None)


class Interaction(msgspec.Struct, frozen=True):
    """Represent one line of a log. Without slots, actions count from 1, and the chosen one comes first."""

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
    """Decode ds-json to the columns of `JsonDecoder`, with its reasons of rejection.

    If the log has baseline actions, events carry the policy `baseline`. All other policies must be code. Decisions that
    were never activated (`_skipLearn`, `_deferred`) have no reward and are rejected. In a downsampled log (`pdrop`) an
    event counts `1 / (1 - pdrop)` times. Scores are in the order of `a`, or of `_a` of the first slot.

    Args:
        reward_field: `_label_cost` (also called `reward`), or `_original_label_cost`. In apprentice mode the latter is
            the true cost, and `_label_cost` only shows whether the baseline was followed. With `further` rewards, also
            another numeric field of the line
        further: the secondary rewards, each a cost or another field of the line. An event then needs at least one of
            all rewards. A field of the line is the reward of the whole event, even if only the first slot is used
        rewarded: False if rewards arrive separately, by `EventId`. Costs then only tell slates from conditional slots
        options: as of `JsonDecoder`

    Raises:
        ValueError: The only reward is another field, or a reward is a field with another meaning.

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
        rewarded: bool = True,
        further: Sequence[RewardField] = (),
        **options: Any,
    ) -> None:
        if reward_field not in COSTS and not further and rewarded:
            raise ValueError(f"reward_field must be one of {', '.join(COSTS)}; found {reward_field!r}")
        logged = [_with_logged_field(reward) for reward in further]
        super().__init__(policies, "reward", reward_range, scores, rewarded, further=logged, **options)
        self.reward_field = reward_field
        named_fields = (reward_field, *(reward.field for reward in further)) if rewarded else ()
        self._rewards = {f"reward{index or ''}": field for index, field in enumerate(named_fields)}
        changed = self._fields_of_line()
        if self._any_fields is not None:
            context: Any = ("context", Any, msgspec.field(name="c", default=None))
            changed += [context, *score_fields(self._any_fields, attributes(Interaction))]
        form: type[msgspec.Struct] = derived(Interaction, changed) if changed else Interaction
        line_attributes = attributes(form)
        self._line_scores = {
            self._attributes[field]: line_attributes[field]
            for field in self._any_fields or ()
            if self._attributes[field] not in Event.__struct_fields__
        }
        decode_line = self._decoder_of(form)
        self._decode = lambda message: self._event(decode_line(message))
        self._diagnosis = Diagnosis(form)
        self._policies_type = None if self.policies is None else policies_type(self.policies)

    def _fields_of_line(self) -> list[Any]:
        """Return struct fields for rewards that are not costs.

        Raises:
            ValueError: Such a field has another meaning in ds-json.
        """
        fields = {attribute: field for attribute, field in self._rewards.items() if field not in COSTS}
        taken = sorted({*fields.values()} & {*attributes(Interaction)})
        if taken:
            raise ValueError(f"{', '.join(taken)} of ds-json cannot be a reward")
        return [(name, RewardValue | None, msgspec.field(name=field, default=None)) for name, field in fields.items()]

    def _refused(self, message: bytes, error: Exception) -> Any:
        if isinstance(error, _UnusableError):
            return Fault(*error.args)
        line = self._diagnosis.decode_message(message, error)
        try:
            return line if isinstance(line, Fault) else self._event(line)
        except _UnusableError as unusable:
            return Fault(*unusable.args)

    def _event(self, line: Any) -> Event:
        self._require_activated(line)
        if not self.rewarded and line.event_id is None:
            raise _UnusableError("missing_field", "EventId: missing, and rewards are joined by it")
        if line.dropped is not None and not is_positive_probability(1.0 - line.dropped):
            raise _UnusableError("propensity_range", f"pdrop: {line.dropped:.10g} is not in [0, 1)")
        if line.outcomes is None:
            return self._bandit(line)
        for index, outcome in enumerate(line.outcomes):
            if not outcome.actions or len(outcome.actions) != len(outcome.probabilities):
                problem = _entries(outcome.probabilities, outcome.actions)
                raise _UnusableError("malformed", f"_outcomes[{index}]._p: {problem}")
        if line.cost is not None or line.original_cost is not None:
            slots = [self._slot(line, index, outcome) for index, outcome in enumerate(line.outcomes)]
            return self._event_type(**self._common_fields(line, None), **self._rewards_of(line, line), slots=slots)
        if not line.outcomes:
            raise _UnusableError("malformed", "_outcomes: empty")
        first = line.outcomes[0]
        if first.cost is None and first.original_cost is None:  # this may be a slate without its reward
            raise _UnusableError("missing_field", f"_outcomes[0].{self._missing_field}: missing")
        fields = self._common_fields(line, first.actions) | self._rewards_of(line, first, "_outcomes[0].")
        fields |= self._choice(line, 0, first.actions, first.probabilities)
        return self._event_type(**fields, action=first.actions[0], propensity=first.probabilities[0])

    @staticmethod
    def _require_activated(line: Any) -> None:
        """Refuse a decision that was not activated, as it has no reward."""
        if line.skipped:
            raise _UnusableError("missing_field", "_label_cost: the decision was not activated (`_skipLearn`)")
        if line.deferred and not any(observation.activated for observation in line.observations or ()):
            raise _UnusableError("missing_field", "_label_cost: the deferred decision was not activated")

    def _bandit(self, line: Interaction) -> Event:
        rewards, action = self._rewards_of(line, line), line.action
        if action is None and line.position is not None:
            action = line.position + 1
        if action is None and line.actions:
            action = line.actions[0]
        if action is None:
            raise _UnusableError("missing_field", "_label_Action: missing")
        if line.position is not None and line.position + 1 != action:
            raise _UnusableError("malformed", f"_labelIndex: {line.position}, but `_label_Action` is {action}")
        if line.probabilities is not None and len(line.probabilities) != len(line.actions or ()):
            raise _UnusableError("malformed", f"p: {_entries(line.probabilities, line.actions or ())}")
        fields = self._common_fields(line, line.actions) | rewards
        fields |= self._choice(line, 0, line.actions, line.probabilities)
        return self._event_type(**fields, action=action, propensity=line.probability)

    def _slot(self, line: Interaction, index: int, outcome: Outcome) -> Slot:
        choice = self._choice(line, index, outcome.actions, outcome.probabilities)
        return Slot(**choice, action=outcome.actions[0], propensity=outcome.probabilities[0])

    def _rewards_of(self, line: Any, costs: Interaction | Outcome, where: str = "") -> dict[str, Any]:
        """Return rewards by attribute of the event: negative costs, and fields of the line."""
        rewards = dict[str, Any]()
        for attribute, field in self._rewards.items():
            if field in COSTS:
                cost: Cost = getattr(costs, COSTS[field])
                rewards[attribute] = None if cost is None else 0.0 - cost
            else:
                rewards[attribute] = getattr(line, attribute)
        if self.rewarded and all(reward is None for reward in rewards.values()):
            raise _UnusableError("missing_field", f"{where}{self._missing_field}: missing")
        return rewards

    @property
    def _missing_field(self) -> str:
        return LABEL_COST if self.reward_field == "reward" else self.reward_field

    def _choice(
        self, line: Interaction, slot: int, actions: list[int] | None, probabilities: list[float] | None
    ) -> dict[str, Any]:
        """Return the lists over actions, sorted by number. The baseline has the probability 1 for its action."""
        order, logged = _order(actions or ()), line.baseline or []
        names = None if actions is None else [actions[index] for index in order]
        propensities = None if probabilities is None else [probabilities[index] for index in order]
        cell: Any = NAN
        if names and slot < len(logged) and logged[slot] in names:
            cell = [float(action == logged[slot]) for action in names]
        policies: Any = {BASELINE: cell} if logged else None
        if self._policies_type is not None:
            policies = self._policies_type(*[cell if name == BASELINE else NAN for name in self.policies or ()])
        return {"actions": names, "propensities": propensities, "policies": policies}

    def _common_fields(self, line: Interaction, actions: list[int] | None) -> dict[str, Any]:
        """Return the fields that all events have. Scores are sorted like the actions."""
        moment = line.timestamp
        if moment is not None and moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return {
            "event_id": "" if line.event_id is None else line.event_id,
            "timestamp": NAN if moment is None else moment.timestamp(),
            "sampling_probability": 1.0 - (line.dropped or 0.0),
            "context": line.context,
            **{name: _by_number(actions, getattr(line, logged)) for name, logged in self._line_scores.items()},
        }


def _with_logged_field(reward: RewardField) -> RewardField:
    """Replace the field `reward` by its name in a log."""
    return reward._replace(field=LABEL_COST) if reward.field == "reward" else reward


def _by_number(actions: list[int] | None, values: Any) -> Any:
    """Sort a list over actions by the numbers of the actions. Return other values unchanged."""
    if actions is None or not isinstance(values, list) or len(values) != len(actions):
        return values
    return [values[index] for index in _order(actions)]


def _order(actions: Sequence[int]) -> list[int]:
    return sorted(range(len(actions)), key=actions.__getitem__)


def _entries(values: Sequence[object], actions: Sequence[object]) -> str:
    return f"{counted(len(values), 'entry')} for {counted(len(actions), 'action')}"
