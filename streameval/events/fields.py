"""Decode JSON events that have fields under other names, or inside of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.decoder import JsonDecoder, RewardDecoder
from streameval.events.diagnosis import Diagnosis, read_fields, require_shallow
from streameval.events.further_rewards import RewardField
from streameval.events.origin import Origin
from streameval.events.schema import derived
from streameval.events.tables import ColumnNames, to_seconds, value_at, with_names


def json_decoder(columns: ColumnNames | Mapping[str, Any] | None = None, **options: Any) -> JsonDecoder:
    """Return the decoder of JSON events: a `JsonDecoder`, unless fields have other names.

    Args:
        columns: the name of each field, `choice.p` is the value `p` of the object `choice`
        options: as of `JsonDecoder`

    >>> columns = {"propensity": "choice.p", "timestamp": "at", "policies": {"new": "choice.p_new"}}
    >>> decoder = json_decoder(columns, policies=["new"])
    >>> message = b'{"event_id": 1, "at": 0, "action": 7, "choice": {"p": 0.5, "p_new": 0.25}, "reward": 1}'
    >>> decoder.decode_batch([message]).probabilities
    array([[0.25]])
    """
    rewards = [options.get("reward_field", "reward"), *(reward.field for reward in options.get("further", ()))]
    names = FieldNames.from_columns(ColumnNames.from_mapping(columns), rewards)
    return FieldDecoder(names, **options) if names else JsonDecoder(**options)


def reward_decoder(
    reward_field: str = "reward",
    further: Sequence[RewardField] = (),
    columns: Mapping[str, str | None] | None = None,
    policies: Sequence[str] | None = None,
) -> RewardDecoder:
    """Return the decoder of rewards that arrive as separate messages.

    Args:
        reward_field: the field with the reward
        further: the further rewards
        columns: the name of each of `event_id`, `timestamp`, `reward` and `reward_id`, None for its own
        policies: read probabilities of these policies in place of rewards

    >>> message = b'{"request": {"id": "e-81"}, "timestamp": 1574553700.1, "clicked": 1}'
    >>> decoder = reward_decoder(columns={"event_id": "request.id", "reward": "clicked"})
    >>> decoder.decode_batch([message], Origin.from_parts("clicks", [(0, [10])])).reward
    array([1.])
    """
    rewards = [reward_field, *(reward.field for reward in further)]
    names = {field: field for field in rewards if "." in field}
    for field, path in (columns or {}).items():
        own = reward_field if field == "reward" else field
        names |= {own: path} if path not in (None, own) else {}
    return (
        FieldRewardDecoder(FieldNames(names, {}), reward_field, further, policies)
        if names
        else RewardDecoder(reward_field, further, policies)
    )


@dataclass(frozen=True)
class FieldNames:
    """Hold the fields of events that have other names in the JSON of a log.

    Attributes:
        fields: the path of the value of a field
        policies: the path of the probability of a policy. A policy that has its own name may also be in `policies`
        context: the paths that make the context
        actions: the actions of every event, None if events list them
    """

    fields: Mapping[str, str]
    policies: Mapping[str, str]
    context: Sequence[str] = ()
    actions: Sequence[str | int] | None = None

    @classmethod
    def from_columns(cls, columns: ColumnNames, rewards: Sequence[str]) -> FieldNames:
        """Return the names that differ.

        Args:
            columns: the name of each field
            rewards: the fields of the rewards, the primary one first. A dot in them is a step into an object
        """
        named = dict(columns) | {"reward": None}
        fields = {name: path for name, path in named.items() if isinstance(path, str) and path != name}
        fields |= {field: field for field in rewards if "." in field}
        if columns.reward not in (None, rewards[0]):
            fields[rewards[0]] = str(columns.reward)
        context = columns.context if isinstance(columns.context, list) else ()
        return cls(fields, columns.policies, context, columns.actions if isinstance(columns.actions, list) else None)

    def __bool__(self) -> bool:
        return bool(self.fields or self.policies or self.context or self.actions)

    def reader(self, fields: Sequence[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Return what makes an event with these fields of a record. A field with another name is found by it alone."""
        unnamed = [field for field in fields if field not in self.fields]
        paths = [(field, self.fields[field]) for field in fields if field in self.fields]
        context = self.context if "context" in fields else ()

        def event_of(record: Mapping[str, Any]) -> dict[str, Any]:
            event = {field: record[field] for field in unnamed if field in record}
            for field, path in paths:
                value = value_at(record, path)
                if value is not None:
                    event[field] = value
            if self.policies:
                event["policies"] = self._probabilities(record)
            if context:
                event["context"] = {path: value_at(record, path) for path in context}
            if self.actions:
                event["actions"] = self.actions
            if isinstance(event.get("timestamp"), str):
                event["timestamp"] = to_seconds(event["timestamp"])
            return event

        return event_of

    def record(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of an event, for a log that is read by these names."""
        record = {field: value for field, value in event.items() if field not in self.fields}
        record |= {path: event[field] for field, path in self.fields.items() if field in event}
        if self.context:
            record |= record.pop("context", None) or {}
        if self.policies:
            cells = dict(record.pop("policies", None) or {})
            named = {policy: path for policy, path in self.policies.items() if policy in cells and policy != path}
            record |= {path: cells.pop(policy) for policy, path in named.items()}
            record["policies"] = cells
        return record

    def renamed(self, form: type[msgspec.Struct]) -> type[msgspec.Struct] | None:
        """Return a struct type with these names, None if it takes more than names to read events."""
        names = [self.fields.get(field.encode_name, field.encode_name) for field in structs.fields(form)]
        is_nested = any("." in path for path in self.fields.values())
        if is_nested or self.policies or self.context or self.actions or len(set(names)) < len(names):
            return None
        return derived(form, [_renamed(*pair) for pair in zip(structs.fields(form), names, strict=True)])

    def _probabilities(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all policies of a record."""
        listed = record.get("policies")
        cells = dict(listed) if isinstance(listed, dict) else {}
        for policy, path in self.policies.items():
            own = cells.get(policy) if policy == path else None
            cells[policy] = value_at(record, path) if own is None else own
        return cells


class FieldDecoder(JsonDecoder):
    """Decode JSON events that name fields otherwise, as fast as `JsonDecoder` if only names at the top differ.

    Args:
        names: the fields with other names
        options: as of `JsonDecoder`
    """

    def __init__(self, names: FieldNames, **options: Any) -> None:
        super().__init__(**options)
        self._event_of = names.reader(read_fields(self._event_type))
        self._diagnosis = Diagnosis(self._event_type, self.policies, event_of=self._event_of)
        self._names = names.fields
        renamed = names.renamed(self._event_type)
        self._decode = self._decode_record if renamed is None else self._decoder_of(renamed)

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        return with_names(super().decode_batch(values, origin), self._names)

    def _decode_record(self, message: bytes) -> Any:
        if self._any_fields is not None:
            require_shallow(message)
        return _converted(message, self._event_of, self._event_type)


class FieldRewardDecoder(RewardDecoder):
    """Decode rewards that name fields otherwise.

    Args:
        names: the fields with other names
        options: as of `RewardDecoder`
    """

    def __init__(self, names: FieldNames, *options: Any) -> None:
        super().__init__(*options)
        self._names, event_of = names.fields, names.reader(read_fields(self.form))
        renamed = names.renamed(self.form)
        self._decode = (
            (lambda message: _converted(message, event_of, self.form))
            if renamed is None
            else msgspec.json.Decoder(renamed).decode
        )
        self._refused = Diagnosis(self.form, self.policies, event_of=event_of).decode_message

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin) -> RewardBatch:
        return with_names(super().decode_batch(values, origin), self._names)


def _converted(
    message: bytes, event_of: Callable[[Mapping[str, Any]], dict[str, Any]], form: type[msgspec.Struct]
) -> Any:
    """Decode a message that is an object, name its fields as usual, and make the struct of them."""
    return msgspec.convert(event_of(msgspec.json.decode(message, type=dict[str, Any])), form)


def _renamed(field: structs.FieldInfo, name: str) -> tuple[str, Any, Any]:
    defaults: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
    return field.name, field.type, msgspec.field(name=name, **defaults)
