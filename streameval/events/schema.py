"""Define the types that decode the JSON of one logged decision, and its JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

NAN = float("nan")  # JSON has no NaN, so in a decoded event it always means "not given"

Identifier: TypeAlias = str | int
Timestamp: TypeAlias = float | Annotated[datetime, Meta(tz=True)]


def described(description: str, **keywords: Any) -> Meta:
    """Add a description and bounds to the schema. Numbers are checked by the validation rules, not by the decoder."""
    return Meta(description=description, extra_json_schema=keywords)


_POSITIVE = {"exclusiveMinimum": 0, "maximum": 1}

NOISE = 1e-6  # tolerance of sums, and of a candidate's probability above 1, as logs are often float32
ROUNDING_ERROR = 0.5e-6  # of an entry of a distribution that is logged with six digits
MAX_TIMESTAMP = 1e12  # seconds since 1970, far beyond the year 9999: larger timestamps are in smaller units

Probability: TypeAlias = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
PolicyCell: TypeAlias = Probability | list[Probability] | None
RewardValue: TypeAlias = Annotated[
    float | bool, described("The reward of the decision; true and false count as 1 and 0.")
]
SlotReward: TypeAlias = Annotated[
    float | bool | None,
    described("The reward of this slot. All slots of a slate have one, or none has; they sum to the slate's."),
]
OpenPolicies: TypeAlias = Annotated[
    dict[str, PolicyCell] | None,
    described(
        "By policy name: the probability of the logged action, or the distribution over `actions`, which sums to 1 "
        "up to rounding to six digits. A policy that is absent or null is missing for this event only."
    ),
]
ListedPolicies: TypeAlias = Annotated[
    dict[str, PolicyCell] | list[PolicyCell] | None,
    described(
        "By policy name: the probability of the logged action, or the distribution over `actions`, which sums to 1 "
        "up to rounding to six digits. A policy that is absent or null is missing for this event only. With "
        "`policies_of` also a list, in the order of its header."
    ),
]
LateScores: TypeAlias = Annotated[
    dict[str, Probability | None],
    described("By policy name: the probability of the action that was logged. Null means absent."),
]
ActionList: TypeAlias = Annotated[
    list[Identifier] | None, described("The actions to choose from, without duplicates.", minItems=1, uniqueItems=True)
]
Propensities: TypeAlias = Annotated[
    list[Probability] | None,
    described("The logging policy's distribution over `actions`, which sums to 1 up to rounding."),
]
FeatureRows: TypeAlias = Annotated[
    list[list[float]] | None, described("One row of up to 4096 numbers for each of `actions`, all of the same length.")
]


SamplingProbability: TypeAlias = Annotated[
    float | None,
    described("The probability of keeping this event in a downsampled log; its weight is the inverse.", **_POSITIVE),
]
HeaderName: TypeAlias = Annotated[
    str | None,
    described("The header in the configuration (`source.policies_of`) that names the entries of a list `policies`."),
]
Unit: TypeAlias = Annotated[Identifier | None, described("The user or session of the event.")]


# The docstrings of these types are the descriptions in the published JSON Schema.


class Slot(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One slot of a slate, with the fields of a choice."""

    action: Annotated[Identifier, described("The action shown in this slot; one of `actions` if these are given.")]
    propensity: Annotated[
        float | None, described("The logging policy's marginal probability of `action` in this slot.", **_POSITIVE)
    ] = None
    policies: OpenPolicies = None
    actions: ActionList = None
    propensities: Propensities = None
    features: FeatureRows = None
    reward: SlotReward = None


class Scored(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """The outcome of a decision that may be revealed, with its value under each policy."""

    propensity: Annotated[
        float | None, described("The probability that the outcome was revealed; required if it was.", **_POSITIVE)
    ] = None
    values: Annotated[
        dict[str, float | bool | None] | None,
        described("By policy name: the value of the revealed outcome, in the range of the rewards; more is better."),
    ] = None
    revealed: Annotated[bool, described("False if the outcome of the decision was not revealed.")] = True


_SCORED = described("The outcome of a decision and its values, in place of `action`, `slots` and `reward`.")
_SLOTS = described("The slots of a slate, in place of `action` and its fields.", minItems=1)


class Event(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One logged decision: the chosen action, its probability, and its reward.

    Optional fields may be null, which means the same as absent. Fields not named here are ignored.
    """

    event_id: Annotated[Identifier, described("Identifies the event.")]
    timestamp: Annotated[
        Timestamp, described("Time of the decision: seconds since 1970 (UTC), or RFC 3339 with an offset.")
    ]
    action: Annotated[Identifier | UnsetType, described("The chosen action; one of `actions` if these are given.")] = (
        UNSET
    )
    propensity: Annotated[
        float | None,
        described("The logging policy's probability of `action`; optional if `propensities` are given.", **_POSITIVE),
    ] = None
    reward: RewardValue | UnsetType = UNSET
    policies: OpenPolicies = None
    actions: ActionList = None
    propensities: Propensities = None
    features: FeatureRows = None
    scored: Annotated[Scored | None, _SCORED] = None
    sampling_probability: SamplingProbability = 1.0
    unit: Unit = None
    logging_policy: Annotated[
        Identifier | None,
        described(
            "Name of the policy that chose the action, in a ramp of its arm. If it is a candidate, its rewards are "
            "compared with its estimate."
        ),
    ] = None
    context: Annotated[Raw | UnsetType, described("The context of the decision, of any type.")] = UNSET
    slots: Annotated[list[Slot] | None, _SLOTS] = None
    slate_logging: Annotated[
        Literal["factored", "uniform_ranking", "plackett_luce"] | None,
        described(
            "How the slots were filled: independently (`factored`, the default), by a uniformly drawn ranking, or by "
            "one in which each action is drawn with a probability proportional to `exp(score)` among those left "
            "(`plackett_luce`). In a ranking all slots have the same `actions`. Not allowed with `slates`."
        ),
    ] = None
    scores: Annotated[
        Any,
        described(
            "With `plackett_luce`, the score of each of the actions of the first slot. Other uses are up to you."
        ),
    ] = None
    slates: Annotated[
        list[list[Identifier]] | None,
        described("All slates that the logging policy could have shown: one action per slot.", minItems=1),
    ] = None
    slate_propensities: Annotated[
        list[Probability] | None,
        described("The logging policy's distribution over `slates`, which sums to 1 up to rounding."),
    ] = None


@lru_cache(maxsize=16)
def event_type(
    policies: tuple[str, ...] | None = None,
    reward_field: str = "reward",
    scores: tuple[str, ...] | None = None,
    rewarded: bool = True,
    further_fields: tuple[str, ...] = (),
    listed: bool = False,
) -> type[Event]:
    """Return `Event` for one configuration. For the arguments see `JsonDecoder`.

    `policies` become a struct, which decodes faster than a dictionary and yields its numbers in one call of `astuple`.
    With `scores`, these fields and the context are decoded and may have any type. Unless `rewarded`, the reward field
    is ignored and may have any type. If `listed`, the policies of an event may also be a list, see `HeaderNames`.

    Raises:
        ValueError: Another field of events has the name of the reward field.
    """
    others = {*Event.__struct_fields__, *(["policies_of"] if listed else ())} - {"reward"}
    if reward_field in others:
        raise ValueError(f"reward_field {reward_field!r} has another meaning in an event")
    wire_name = msgspec.field(name=reward_field, default=UNSET)
    form: Any = RewardValue | UnsetType if rewarded else Raw | UnsetType
    if further_fields and rewarded:
        form = RewardValue | None | UnsetType
    changed: list[Any] = [("reward", form, wire_name), *_further_rewards(further_fields, others | {reward_field}, form)]
    if scores is not None:
        changed += [("context", Any, None), *score_fields(scores, others | {reward_field})]
    if listed:
        changed += [
            ("policies_of", HeaderName, None),
            *([("policies", ListedPolicies, None)] if policies is None else []),
        ]
    optional_name = msgspec.field(name=reward_field, default=None if rewarded else UNSET)
    slot_form: Any = SlotReward if rewarded else Raw | UnsetType
    slot_fields: list[Any] = [("reward", slot_form, optional_name), *_further_rewards(further_fields, (), slot_form)]
    if policies is not None:
        form_of_policies = policies_type(policies)
        cells: Any = ("policies", form_of_policies, msgspec.field(default_factory=form_of_policies))
        values = policies_type(policies, float | bool | None, NAN)
        scored = derived(Scored, [("values", values, msgspec.field(default_factory=values))])
        changed = [*changed, cells, ("scored", scored | None, None)]
        slot_fields.append(cells)
        if listed:
            changed.append(("policies", form_of_policies | list[PolicyCell], cells[2]))
    changed += [("slots", Annotated[list[derived(Slot, slot_fields)] | None, _SLOTS], None)]  # type: ignore[misc]
    return cast("type[Event]", derived(Event, changed))


def _further_rewards(fields: Sequence[str], others: Iterable[str], form: Any) -> list[Any]:
    """Return the fields of further rewards.

    Raises:
        ValueError: Another field of events has the name of one.
    """
    taken = set(fields) & set(others)
    if taken or len(set(fields)) < len(fields):
        names = ", ".join(sorted(taken or fields))
        raise ValueError(f"each reward needs its own field, which has no other meaning: {names}")
    return [
        (f"reward{index}", form, msgspec.field(name=name, default=UNSET)) for index, name in enumerate(fields, start=1)
    ]


def score_fields(scores: Sequence[str], others: Iterable[str]) -> list[Any]:
    """Return fields of any type for scores, except for names in `others`."""
    names = [(f"scores{index}", name) for index, name in enumerate(scores) if name not in others]
    return [(attribute, Any, msgspec.field(name=name, default=None)) for attribute, name in names]


def derived(base: type[msgspec.Struct], fields: list[Any]) -> type[msgspec.Struct]:
    """Return a struct type with more fields, or with fields of other types."""
    return msgspec.defstruct(base.__name__, fields, bases=(base,), kw_only=True, frozen=True, gc=False, module=__name__)


def attributes(form: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the attribute of each field of a struct type."""
    return dict(zip(form.__struct_encode_fields__, form.__struct_fields__, strict=True))


@lru_cache(maxsize=16)
def reward_type(reward_field: str, further_fields: tuple[str, ...] = ()) -> type[msgspec.Struct]:
    """Return the type of a message with rewards that arrive separately. With `further_fields` all are optional.

    Messages have no `reward_id` if a reward has that name.
    """
    optional: Any = RewardValue | None | UnsetType
    rewards: list[Any] = [("reward", RewardValue, msgspec.field(name=reward_field))]
    if further_fields:
        rewards = [
            (f"reward{index or ''}", optional, msgspec.field(name=name, default=UNSET))
            for index, name in enumerate((reward_field, *further_fields))
        ]
    reward_id: Any = Annotated[
        Identifier | None,
        described("Identifies the reward. Of several messages with the same `event_id` and `reward_id` one counts."),
    ]
    fields: list[Any] = [("event_id", Identifier), ("timestamp", Timestamp), *rewards]
    if "reward_id" not in (reward_field, *further_fields):
        fields.append(("reward_id", reward_id, None))
    return msgspec.defstruct("RewardMessage", fields, frozen=True, gc=False, module=__name__)


@lru_cache(maxsize=16)
def score_type(policies: tuple[str, ...] | None) -> type[msgspec.Struct]:
    """Return the type of a message with probabilities of candidates that arrive separately.

    Args:
        policies: names to decode, None = any
    """
    cells: Any = LateScores if policies is None else policies_type(policies, float | None)
    fields: list[Any] = [("event_id", Identifier), ("timestamp", Timestamp), ("policies", cells)]
    return msgspec.defstruct("ScoreMessage", fields, frozen=True, gc=False, module=__name__)


def policies_type(names: Sequence[str], cell: Any = PolicyCell, absent: Any = NAN) -> type[msgspec.Struct]:
    """Return a struct type with one cell per policy, in this order.

    Raises:
        ValueError: Two policies have one name.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"policies {list(names)} contain a duplicate")
    fields = [(f"p{i}", cell, msgspec.field(name=name, default=absent)) for i, name in enumerate(names)]
    return msgspec.defstruct("Policies", fields, frozen=True, gc=False, module=__name__)


def policy_cells(policies: Any) -> Iterable[PolicyCell]:
    """Return the values of an event's `policies`, which are a struct, a dictionary or None."""
    if isinstance(policies, dict) or policies is None:
        return policies.values() if policies else ()
    return msgspec.structs.astuple(policies)


def named_cells(policies: Any) -> Iterable[tuple[str, PolicyCell]]:
    """Return names and values of an event's `policies`."""
    names = (policies or ()) if isinstance(policies, dict | None) else policies.__struct_encode_fields__
    return zip(names, policy_cells(policies), strict=True)


DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def described_schema(form: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a struct type, with the descriptions of all types in it."""
    _, components = msgspec.json.schema_components([form])
    for component in components.values():
        component["description"] = inspect.cleandoc(component["description"])
    return {**DRAFT, **components.pop(form.__name__), "$defs": components}


def json_schema(reward_field: str = "reward", estimated: bool = False) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one event, generated from the types that decode it.

    Args:
        reward_field: the field with the reward
        estimated: whether propensities are estimated. Events then may lack them, and are no slates.
    """
    _, components = msgspec.json.schema_components([event_type(None, reward_field, listed=True)])
    event = components["Event"]
    for name in ("slots", "scored"):
        form = event["properties"][name]
        form |= form.pop("anyOf")[0]
        del form["default"]
    with_propensity = {"anyOf": [{"required": ["propensity"]}, {"required": ["propensities", "actions"]}]}
    single: dict[str, Any] = {"required": ["action", reward_field], **({} if estimated else with_propensity)}
    return {
        **DRAFT,
        **event,
        "description": inspect.cleandoc(Event.__doc__ or ""),
        "dependentRequired": {
            "propensities": ["actions"],
            "features": ["actions"],
            "slate_logging": ["slots"],
            "slates": ["slots", "slate_propensities"],
            "slate_propensities": ["slots", "slates"],
        },
        "oneOf": [single, *([] if estimated else [{"required": ["slots", reward_field]}]), {"required": ["scored"]}],
        "$defs": {"Scored": components["Scored"], "Slot": components["Slot"]},
    }


def reward_schema(reward_field: str = "reward") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a reward in a message of its own."""
    _, components = msgspec.json.schema_components([reward_type(reward_field)])
    reward = components["RewardMessage"]
    return {
        **DRAFT,
        **reward,
        "title": "Reward",
        "description": "The reward of an earlier decision with the same `event_id`.",
    }


def score_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of probabilities of candidates in a message of their own."""
    description = "What candidates would have done in an earlier decision with the same `event_id`."
    _, components = msgspec.json.schema_components([score_type(None)])
    return {**DRAFT, **components["ScoreMessage"], "title": "Candidates", "description": description}
