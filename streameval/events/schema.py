"""The wire format: one logged decision as JSON. These types decode it and are its JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

NAN = float("nan")  # JSON cannot say NaN, so in a decoded event it always means "not given"

Identifier: TypeAlias = str | int
Moment: TypeAlias = float | Annotated[datetime, Meta(tz=True)]


def _schema(description: str, **keywords: Any) -> Meta:
    """Words and bounds for the schema alone: a number out of its range is for the rules to name, not the decoder."""
    return Meta(description=description, extra_json_schema=keywords)


_POSITIVE = {"exclusiveMinimum": 0, "maximum": 1}

Probability: TypeAlias = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
PolicyCell: TypeAlias = Probability | list[Probability] | None
Reward: TypeAlias = Annotated[float | bool, _schema("What the decision earned; true and false count as 1 and 0.")]
OpenPolicies: TypeAlias = Annotated[
    dict[str, PolicyCell] | None,
    _schema(
        "By policy name: its probability of the logged action, or its distribution over `actions`, with a sum of 1 "
        "but for rounding to six digits. A policy that is absent or null is missing for this event only."
    ),
]


Actions: TypeAlias = Annotated[
    list[Identifier] | None, _schema("The actions to choose from, each once.", minItems=1, uniqueItems=True)
]
Propensities: TypeAlias = Annotated[
    list[Probability] | None,
    _schema("The logging policy's distribution over `actions`, with a sum of 1 but for rounding."),
]
Features: TypeAlias = Annotated[
    list[list[float]] | None, _schema("One row of numbers for each of `actions`, all of one length.")
]


class Event(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One logged decision: what was chosen, with which probability, and what it earned.

    Optional fields may be null, which means the same as absent. Fields not named here are ignored.
    """

    event_id: Annotated[Identifier, _schema("Identifies the event.")]
    timestamp: Annotated[Moment, _schema("When it was decided: seconds since 1970 (UTC), or RFC 3339 with its offset.")]
    action: Annotated[Identifier, _schema("The chosen action; one of `actions` where these are given.")]
    propensity: Annotated[
        float | None,
        _schema("The logging policy's probability of `action`; may be left out beside `propensities`.", **_POSITIVE),
    ] = None
    reward: Reward
    policies: OpenPolicies = None
    actions: Actions = None
    propensities: Propensities = None
    features: Features = None
    sampling_probability: Annotated[
        float | None,
        _schema("The log was downsampled, keeping this event with this probability: it stands for 1/it.", **_POSITIVE),
    ] = 1.0
    unit: Annotated[Identifier | None, _schema("The user or session it belongs to.")] = None
    logging_policy: Annotated[Identifier | None, _schema("Name or version of the policy that chose.")] = None
    context: Annotated[Raw | UnsetType, _schema("What was known at decision time; anything.")] = UNSET
    slots: None = None  # a message that has them does not fit here: it is a `Slate`


class Slot(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One place of a slate, with a choice of its own; its fields are those of an event."""

    action: Annotated[Identifier, _schema("What was shown in this slot; one of `actions` where these are given.")]
    propensity: Annotated[
        float | None,
        _schema(
            "The logging policy's probability of `action` in this slot, whatever the other slots show.", **_POSITIVE
        ),
    ] = None
    policies: OpenPolicies = None
    actions: Actions = None
    propensities: Propensities = None
    features: Features = None


class Slate(Event, kw_only=True, frozen=True, gc=False):
    """One logged slate: an action for each of several slots, and one reward for all of them."""

    action: None = None  # type: ignore[assignment]
    propensity: None = None
    policies: None = None
    actions: None = None
    propensities: None = None
    features: None = None
    slots: Annotated[  # type: ignore[assignment]
        list[Slot],
        _schema("A slate: what each slot shows. In place of `action` and all that belongs to it.", minItems=1),
    ]
    slate_logging: Annotated[
        Literal["factored", "uniform_ranking"] | None,
        _schema(
            "How the slots of the slate were filled: each on its own (`factored`, the default), or by a ranking drawn "
            "uniformly from all, where every slot has the same `actions`. Neither, where `slates` are given."
        ),
    ] = None
    slates: Annotated[
        list[list[Identifier]] | None,
        _schema("All slates that the logging policy could have shown, each as one action a slot.", minItems=1),
    ] = None
    slate_propensities: Annotated[
        list[Probability] | None,
        _schema("The logging policy's distribution over `slates`, with a sum of 1 but for rounding."),
    ] = None


def event_types(
    policies: Sequence[str] | None = None,
    reward_field: str = "reward",
    scores: Sequence[str] | None = None,
    rewarded: bool = True,
) -> tuple[type[Event], type[Slate]]:
    """`Event` and `Slate` for one configuration: reward read from `reward_field`, `policies` a struct of these names.

    A struct of known names decodes faster than a dict, and gives all its numbers to `astuple` in one call. With
    `scores`, which policies in code look at, these fields may hold anything, and the context is decoded too. Not
    `rewarded`: rewards come apart from their decisions, and what is called so in these may be anything.
    """
    others = {*Event.__struct_fields__, *Slate.__struct_fields__} - {"reward"}
    if reward_field in others:
        raise ValueError(f"reward_field {reward_field!r} has another meaning in an event")
    wire_name = msgspec.field(name=reward_field, default=msgspec.NODEFAULT if rewarded else UNSET)
    reward: list[Any] = [("reward", Reward if rewarded else Raw | UnsetType, wire_name)]
    if scores is not None:
        reward += [("context", Any, None)]
        reward += [
            (f"scores{place}", Any, msgspec.field(name=name, default=None))
            for place, name in enumerate(scores)
            if name not in others | {reward_field}
        ]
    if policies is None:
        return cast("type[Event]", _made(Event, reward)), cast("type[Slate]", _made(Slate, reward))
    known = policies_type(policies)
    cells: list[Any] = [("policies", known, msgspec.field(default_factory=known))]
    slot = _made(Slot, cells)
    slots: list[Any] = [("slots", list[slot])]  # type: ignore[valid-type]
    return cast("type[Event]", _made(Event, reward + cells)), cast("type[Slate]", _made(Slate, reward + slots))


def reward_type(reward_field: str) -> type[msgspec.Struct]:
    """The type of a reward that arrives as a message of its own."""
    fields: list[Any] = [("event_id", Identifier), ("timestamp", Moment)]
    fields.append(("reward", Reward, msgspec.field(name=reward_field)))
    return msgspec.defstruct("RewardMessage", fields, frozen=True, gc=False, module=__name__)


def _made(base: type[msgspec.Struct], fields: list[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(base.__name__, fields, bases=(base,), kw_only=True, frozen=True, gc=False, module=__name__)


def policies_type(names: Sequence[str]) -> type[msgspec.Struct]:
    """A struct with a cell for each of these policies, in this order."""
    if len(set(names)) < len(names):
        raise ValueError(f"policies {list(names)} name one twice")
    fields = [(f"p{i}", PolicyCell, msgspec.field(name=name, default=NAN)) for i, name in enumerate(names)]
    return msgspec.defstruct("Policies", fields, frozen=True, gc=False, module=__name__)


def policy_names(policies: Any) -> Iterable[str]:
    """The names in an event's `policies`, struct or dict or nothing."""
    if isinstance(policies, dict) or policies is None:
        return policies or ()
    names: tuple[str, ...] = policies.__struct_encode_fields__
    return names


def policy_cells(policies: Any) -> Iterable[PolicyCell]:
    """What an event's `policies` say, in the order of `policy_names`."""
    if isinstance(policies, dict) or policies is None:
        return policies.values() if policies else ()
    return msgspec.structs.astuple(policies)


_SLATE_FIELDS = ("slots", "slate_logging", "slates", "slate_propensities")


def json_schema(reward_field: str = "reward") -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one event, made from the types that decode it."""
    _, components = msgspec.json.schema_components(event_types(None, reward_field))
    event, slate = components["Event"], components["Slate"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **event,
        "description": inspect.cleandoc(Event.__doc__ or ""),
        "properties": event["properties"] | {field: slate["properties"][field] for field in _SLATE_FIELDS},
        "required": [field for field in event["required"] if field != "action"],
        "dependentRequired": {
            "propensities": ["actions"],
            "features": ["actions"],
            **{field: ["slots"] for field in _SLATE_FIELDS[1:]},
            "slates": ["slate_propensities"],
            "slate_propensities": ["slates"],
        },
        "oneOf": [
            {
                "required": ["action"],
                "anyOf": [{"required": ["propensity"]}, {"required": ["propensities", "actions"]}],
            },
            {"required": ["slots"]},
        ],
        "$defs": {"Slot": components["Slot"]},
    }
