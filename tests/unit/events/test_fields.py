"""Test JSON events that have fields under other names, or inside of objects."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder, Origin, RewardDecoder
from streameval.events.fields import FieldDecoder, FieldNames, json_decoder, reward_decoder
from streameval.events.further_rewards import RewardField
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames

PLAIN = {"event_id": "e", "timestamp": 5, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"new": 0.25}}
SETS = {"actions": ["a", "b"], "propensities": [0.5, 0.5], "policies": {"new": [0.25, 0.75]}}
SLATE = {"slots": [{"action": "a", "propensity": 0.5, "policies": {"new": 0.5}}], "action": None, "propensity": None}
CHANGES: list[dict[str, Any]] = [
    {},
    {"timestamp": "2026-01-01T00:00:00+02:00"},
    {"unit": 7, "sampling_probability": 0.5, "logging_policy": "old"},
    {"context": {"country": "de", "age": 7}},
    {"context": None},
    {"policies": {"new": None}},
    {"policies": None},
    {"revenue": 2.5},
    {"reward": None, "revenue": 0.5},
    {"features": [[1.0], [2.0]]},
    SETS,
    SETS | {"actions": ["a", "a"]},
    SLATE,
    {"event_id": None},
    {"event_id": 2**70},
    {"action": 1.5},
    {"timestamp": None},
    {"timestamp": "tomorrow"},
    {"propensity": 5},
    {"propensity": float("nan")},
    {"ignored": float("nan")},
    {"reward": "x"},
    {"reward": None},
]
FORMS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "with context": {"scores": []},
    "several rewards": {"further": [RewardField("revenue", "revenue", 0.0, 100.0)]},
    "segments": {"segments": [SegmentField("country", "context.country")]},
    "rewards later": {"rewarded": False},
    "estimated": {"estimated": True},
}
FLAT = {"event_id": "id", "timestamp": "at", "action": "arm", "propensity": "prob", "reward": "won", "unit": "user"}
FLAT |= {"context": "about"}
NESTED = {"event_id": "meta.id", "timestamp": "meta.at", "action": "choice.arm", "propensity": "choice.prob"}
NESTED |= {"reward": "outcome.won", "unit": "meta.user", "context": "about", "policies": {"new": "choice.probs.new"}}


def nested(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with objects in place of names with dots."""
    whole: dict[str, Any] = {}
    for path, value in record.items():
        *steps, name = path.split(".")
        inside = whole
        for step in steps:
            inside = inside.setdefault(step, {})
        inside[name] = value
    return whole


def renamed(event: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    names = FieldNames.from_columns(ColumnNames.from_mapping(columns), ["reward"])
    return nested(names.record(event))


def read(decoder: JsonDecoder, events: list[dict[str, Any]]) -> tuple[EventBatch, list[tuple[str, int]]]:
    messages = [json.dumps(event).encode() for event in events]
    batch = decoder.decode_batch(messages, Origin.from_parts("topic", [(0, range(len(messages)))]))
    return batch, [(rejection.reason, rejection.place) for rejection in batch.rejected]


def arrays(batch: EventBatch) -> Iterator[tuple[str, Any]]:
    for name in ("probabilities", "propensity", "reward", "timestamp", "sampling_probability", "unit"):
        yield name, getattr(batch, name)
    yield "identity", batch.origin and batch.origin.identity
    yield "offset", batch.origin and batch.origin.offset
    yield "segments", batch.segments and batch.segments.values
    yield "further", batch.further and batch.further.values
    yield "propensities", batch.action_sets and batch.action_sets.propensities
    yield "slots", batch.slates and batch.slates.propensity


@pytest.mark.parametrize("columns", [FLAT, NESTED], ids=["flat", "nested"])
@pytest.mark.parametrize("form", FORMS)
@given(changes=st.lists(st.sampled_from(CHANGES), max_size=6))
def test_events_with_other_names_are_the_same_events(
    form: str, columns: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    options: dict[str, Any] = {"policies": ["new"], "reward_range": (0.0, 1.0), "identified": True} | FORMS[form]
    events = [PLAIN | change for change in changes]
    expected, reasons = read(JsonDecoder(**options), events)
    actual, actual_reasons = read(json_decoder(columns, **options), [renamed(event, columns) for event in events])
    assert actual_reasons == reasons
    for (name, values), (_, other) in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_array_equal(values, other, err_msg=name)
    contexts = [
        batch.raw_fields and [row.get("context") for row in batch.raw_fields.values] for batch in (actual, expected)
    ]
    assert contexts[0] == contexts[1]


def test_values_in_a_list_of_objects_are_found_by_the_names_inside() -> None:
    columns = {"policies": {"new": "policies.new.p"}}
    listed = [{"id": "old", "p": 0.5}, "none", {"id": "new", "p": 0.25}]
    gains = [{"kind": "view"}, {"kind": "click", "amount": 1}]
    events = [PLAIN | {"policies": policies, "gains": gains} for policies in (listed, listed[:2], [], None)]
    batch, rejected = read(json_decoder(columns, policies=["new"], reward_field="gains.click.amount"), events)
    np.testing.assert_array_equal(batch.probabilities, [[0.25], [np.nan], [np.nan], [np.nan]])
    assert (batch.reward.tolist(), rejected) == ([1.0] * 4, [])


def test_standard_names_are_decoded_as_without_columns() -> None:
    same = {"event_id": "event_id", "action": "action", "reward": "reward"}
    assert type(json_decoder(same)) is JsonDecoder
    assert type(json_decoder({"action": "arm"})) is FieldDecoder


def test_a_field_with_another_name_is_not_read_under_its_own() -> None:
    decoder = json_decoder({"reward": "outcome.won", "propensity": "prob"}, policies=["new"])
    event = PLAIN | {"propensity": 0.9, "prob": 0.5, "reward": 0, "outcome": {"won": 1}}
    batch, _ = read(decoder, [event, event | {"prob": None}, event | {"outcome": "none"}])
    assert (batch.propensity.tolist(), batch.reward.tolist()) == ([0.5], [1.0])
    assert [rejection.detail for rejection in batch.rejected] == [
        "propensity: missing, as is `propensities`: there is no value 'prob', its name in `columns`",
        "reward: missing: there is no value 'outcome.won', its name in `columns`",
    ]


@pytest.mark.parametrize("columns", [{"action": "arm"}, {"action": "choice.arm"}])
def test_a_missing_field_is_named_as_in_the_log(columns: dict[str, str]) -> None:
    (rejected,) = read(json_decoder(columns, policies=["new"]), [PLAIN])[0].rejected
    (name,) = columns.values()
    assert rejected.detail == f"action: missing: there is no value '{name}', its name in `columns`"


def test_one_value_may_be_two_fields_and_several_values_a_context() -> None:
    columns = {"unit": "user", "logging_policy": "user", "context": ["country", "device.kind"], "actions": ["a", "b"]}
    event = {**PLAIN, "user": 7, "country": "de", "device": {"kind": "phone"}}
    event |= {"policies": {"new": [0.25, 0.75]}, "propensities": [0.5, 0.5]}
    batch, _ = read(json_decoder(columns, policies=["new"], scores=()), [event])
    assert batch.raw_fields is not None
    assert batch.raw_fields.values[0]["context"] == {"country": "de", "device.kind": "phone"}
    np.testing.assert_array_equal(batch.unit, batch.logging_policy)
    assert batch.probabilities.tolist() == [[0.25]]


def test_probabilities_are_found_by_policy_inside_and_outside_of_policies() -> None:
    event = PLAIN | {"policies": {"b": 0.2}, "a": 0.1, "p_c": 0.3}
    decoder = json_decoder({"policies": {"a": "a", "c": "p_c"}}, policies=["a", "b", "c"])
    assert read(decoder, [event])[0].probabilities.tolist() == [[0.1, 0.2, 0.3]]
    every = json_decoder({"policies": {"c": "p_c"}})
    assert read(every, [event])[0].policies == ("b", "c")


def test_fields_of_rewards_may_be_inside_of_an_object() -> None:
    decoder = json_decoder(
        policies=["new"], reward_field="outcome.click", further=[RewardField("revenue", "outcome.revenue", 0.0, 9.0)]
    )
    batch, _ = read(decoder, [PLAIN | {"outcome": {"click": 1, "revenue": 2.5}}, PLAIN])
    assert batch.further is not None
    assert (batch.reward.tolist(), batch.further.values.tolist()) == ([1.0], [[2.5]])
    assert len(batch.rejected) == 1


def test_local_times_of_other_names_are_taken_as_utc() -> None:
    for name in ("at", "meta.at"):
        event = nested({**PLAIN, name: "1970-01-02T00:00:00"})
        assert read(json_decoder({"timestamp": name}), [event])[0].timestamp.tolist() == [86400.0]


def test_an_unknown_field_in_columns_is_refused() -> None:
    with pytest.raises(InputError, match="columns: propensty: events have no such field"):
        json_decoder({"propensty": "p"})


# --- The frame of Confluent's serializers, and other forms ---


@pytest.mark.parametrize("columns", [{}, {"propensity": "propensity", "unit": "user"}, {"unit": "meta.user"}])
def test_the_frame_of_a_serializer_is_left_out(columns: dict[str, str]) -> None:
    whole = json.dumps(PLAIN).encode()
    glue = b"\3\0" + bytes(range(16))
    framed = [whole, b"\0\0\0\0\7" + whole, b"\0\xff\0\xff\1" + whole, glue + whole]
    others = [b"\0\0\0\0\7{", b"\0\0\0\0\7avro", glue + b"avro", b"\3\5" + glue[2:] + b"compressed", None]
    batch = json_decoder(columns, policies=["new"]).decode_batch([*framed, *others])
    assert batch.propensity.tolist() == [0.5] * 4
    assert [(rejection.place, rejection.value) for rejection in batch.rejected] == [
        *enumerate(others[:-1], start=4),
        (8, b""),
    ]


GLUE = b"\3\5" + bytes(range(16))


def test_compressed_messages_of_glue_are_read_and_bombs_are_not_unpacked() -> None:
    whole = json.dumps(PLAIN).encode()
    packed = GLUE + zlib.compress(whole)
    padded = zlib.compress(whole[:-1] + b" " * 20_000_000 + b"}", 9)
    broken = [
        GLUE + padded,
        packed[:-5],
        packed + b"more",
        GLUE + b"none",
        b"\3\7" + packed[2:],
        GLUE + zlib.compress(b"[1]"),
    ]
    tracemalloc.start()
    batch = JsonDecoder(["new"]).decode_batch([packed, *broken, whole, packed])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert batch.propensity.tolist() == [0.5] * 3
    assert [rejection.value for rejection in batch.rejected] == broken
    details = [rejection.detail for rejection in batch.rejected]
    for detail, expected in zip(
        details,
        ["more than the limit of 1048576", "ends too early", "ends too early", "damaged zlib", "not", "not"],
        strict=True,
    ):
        assert expected in detail


def test_framed_rewards_are_read() -> None:
    reward = b'\0\0\0\1\0{"event_id": 1, "timestamp": 5, "reward": 1}'
    assert RewardDecoder().decode_batch([reward], Origin.from_parts("t", [(0, [0])])).reward.tolist() == [1.0]


def test_the_rejection_of_another_form_names_the_option_that_reads_it() -> None:
    page = {"event_id": 1, "timestamp": 5, "ranking": {"shown": ["a"], "clicked": []}}
    line = {"_label_cost": -1, "_label_probability": 0.8, "_label_Action": 1, "a": [1], "p": [1.0]}
    batch, _ = read(JsonDecoder(["new"]), [page, line])
    assert [rejection.detail for rejection in batch.rejected] == [
        "action: missing: this is a page with clicks, which the option `ranking` reads",
        "event_id: missing: this is a line of Vowpal Wabbit, which the format `dsjson` reads",
    ]


@pytest.mark.parametrize(
    "columns", [{"event_id": "id", "timestamp": "at", "reward": "won"}, {"event_id": "of.id", "reward": "got.won"}]
)
def test_rewards_with_other_names_are_the_same_rewards(columns: dict[str, str]) -> None:
    further = [RewardField("revenue", "revenue", 0.0, 100.0)]
    plain = {"event_id": "e", "timestamp": 5, "reward": 1, "revenue": 2.5, "reward_id": "r"}
    changes: list[dict[str, Any]] = [{}, {"timestamp": None}, {"event_id": None}, {"reward": None}, {"revenue": "x"}]
    rewards = [plain | change for change in changes]
    named = [nested({columns.get(field, field): value for field, value in reward.items()}) for reward in rewards]
    origin = Origin.from_parts("clicks", [(0, range(len(rewards)))])
    expected, actual = (
        decoder.decode_batch([json.dumps(message).encode() for message in messages], origin)
        for decoder, messages in (
            (RewardDecoder("reward", further), rewards),
            (reward_decoder("reward", further, columns), named),
        )
    )
    assert len(actual) == 2
    values = [(batch.reward.tolist(), batch.further and batch.further.values.tolist()) for batch in (actual, expected)]
    assert repr(values[0]) == repr(values[1])  # nan is not itself
    for one, other in zip(actual.rejected, expected.rejected, strict=True):
        assert (one.reason, one.place, one.detail.split(": there is no")[0]) == (
            other.reason,
            other.place,
            other.detail,
        )
    np.testing.assert_array_equal(actual.origin.identity, expected.origin.identity)
    np.testing.assert_array_equal(actual.reward_id, expected.reward_id)


def test_a_reward_in_an_object_is_read_by_its_field() -> None:
    message = b'{"event_id": "e", "timestamp": 5, "outcome": {"clicks": 2}}'
    batch = reward_decoder("outcome.clicks").decode_batch([message], Origin.from_parts("clicks", [(0, [0])]))
    assert batch.reward.tolist() == [2.0]


@pytest.mark.parametrize("message", [b'"x"', b"[1]", b"5", b"null"])
@pytest.mark.parametrize("columns", [NESTED, {"policies": {"new": "policies.new.p"}}, FLAT])
def test_a_message_that_is_no_object_is_rejected(columns: dict[str, Any], message: bytes) -> None:
    good = json.dumps(renamed(PLAIN, columns)).encode()
    batch = json_decoder(columns, policies=["new"]).decode_batch([good, message, good])
    assert [rejection.reason for rejection in batch.rejected] == ["malformed"]
    rewards = reward_decoder(columns={"event_id": "of.id"})
    assert len(rewards.decode_batch([message], Origin.from_parts("clicks", [(0, [0])])).rejected) == 1
