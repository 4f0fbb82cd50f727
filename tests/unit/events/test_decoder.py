from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streameval.events import REASONS, EventBatch, JsonDecoder, Rejected, json_schema
from support import strategies
from support.messages import batch_of
from support.strategies import POLICIES, encode

COMPACT: dict[str, Any] = {
    "event_id": "e-81",
    "timestamp": 1574553634.76,
    "action": "14",
    "propensity": 0.0125,
    "reward": 0,
    "policies": {"bts": 0.00659},
}
ACTION_SET: dict[str, Any] = {
    "event_id": "e-82",
    "timestamp": 1574553635.10,
    "context": {"hour": 9},
    "unit": "user-7",
    "actions": ["a", "b", "c"],
    "features": [[1, 0], [0, 1], [1, 1]],
    "propensities": [0.8, 0.1, 0.1],
    "action": "b",
    "reward": 1,
    "policies": {"challenger": [0.1, 0.7, 0.2]},
}


def verdict(message: bytes | None, **settings: Any) -> Rejected | None:
    """Return the rejection of a message, or None if it is an event."""
    return next(iter(JsonDecoder(**settings).decode_batch([message]).rejected), None)


def test_compact_events_become_columns() -> None:
    batch = batch_of(COMPACT, COMPACT | {"policies": {"bts": 0.5, "other": 0.25}}, policies=["bts"])
    assert batch.policies == ("bts",)
    assert batch.probabilities.tolist() == [[0.00659], [0.5]]
    assert batch.propensity.tolist() == [0.0125, 0.0125]
    assert batch.timestamp.tolist() == [1574553634.76] * 2
    assert batch.reward.tolist() == [0.0, 0.0]
    assert batch.sampling_probability.tolist() == [1.0, 1.0]
    assert batch.action_sets is None
    assert batch.rejected == ()


def test_an_event_with_actions_gives_its_set_and_the_probabilities_of_the_logged_action() -> None:
    batch = batch_of(ACTION_SET, COMPACT, policies=["challenger"])
    sets = batch.action_sets
    assert sets is not None
    assert batch.propensity.tolist() == [0.1, 0.0125]
    np.testing.assert_array_equal(batch.probabilities, [[0.7], [np.nan]])
    assert sets.index.tolist() == [1, -1]
    assert sets.offsets.tolist() == [0, 3, 3]
    assert sets.propensities.tolist() == [0.8, 0.1, 0.1]
    assert sets.features is not None
    assert sets.features.offsets.tolist() == [0, 6, 6]
    assert sets.features.values.tolist() == [1, 0, 0, 1, 1, 1]
    assert sets.probabilities.tolist() == [[0.1], [0.7], [0.2]]


def test_probabilities_of_the_logged_action_alone_are_in_its_row_of_the_set() -> None:
    event = {key: value for key, value in ACTION_SET.items() if key != "propensities"}
    batch = batch_of(event | {"propensity": 0.3, "policies": {"challenger": 0.6}})
    sets = batch.action_sets
    assert sets is not None
    np.testing.assert_array_equal(sets.propensities, [np.nan, 0.3, np.nan])
    np.testing.assert_array_equal(sets.probabilities[:, 0], [np.nan, 0.6, np.nan])
    assert batch.probabilities.tolist() == [[0.6]]


def test_tables_of_features_may_have_different_widths() -> None:
    narrow = ACTION_SET | {"features": [[5], [6], [7]]}
    without = {key: value for key, value in ACTION_SET.items() if key != "features"}
    sets = batch_of(narrow, ACTION_SET, without).action_sets
    assert sets is not None
    assert sets.widths.tolist() == [1, 2, 0]
    assert sets.first_width == 1
    for width, rows, features in ((1, range(3), [[5], [6], [7]]), (2, range(3, 6), [[1, 0], [0, 1], [1, 1]])):
        chosen, table = sets.features_of_width(width)
        assert np.flatnonzero(chosen).tolist() == list(rows)
        assert table.tolist() == features


def test_the_probabilities_of_each_policy_are_contiguous_over_events() -> None:
    several = COMPACT | {"policies": {"bts": 0.5, "other": 0.25}}
    for batch in (
        batch_of(*[COMPACT] * 3),
        batch_of(*[several] * 3).take(np.array([2, 0])),
        batch_of(*[ACTION_SET] * 3),
        batch_of(*[ACTION_SET] * 3).take(np.array([2, 0])),
    ):
        assert batch.probabilities.T.flags.c_contiguous
        assert batch.action_sets is None or batch.action_sets.probabilities.T.flags.c_contiguous


def test_without_given_policies_every_name_becomes_a_column_in_order_of_appearance() -> None:
    batch = batch_of(
        COMPACT | {"policies": {"z": 0.5}}, COMPACT | {"policies": {"a": 0.25, "z": None}}, COMPACT | {"policies": None}
    )
    assert batch.policies == ("z", "a")
    np.testing.assert_array_equal(batch.probabilities, [[0.5, np.nan], [np.nan, 0.25], [np.nan, np.nan]])


@pytest.mark.parametrize("cell", [None, "0.5", True, {}, ["x"], [0.5, None], [[0.5]]])
@pytest.mark.parametrize("policies", [None, ["bts", "other"]])
def test_a_candidate_with_an_unusable_probability_is_missing_and_the_others_count(cell: Any, policies: Any) -> None:
    batch = batch_of(COMPACT | {"policies": {"bts": cell, "other": 0.5}}, COMPACT, policies=policies)
    assert batch.policies == ("bts", "other")
    np.testing.assert_array_equal(batch.probabilities, [[np.nan, 0.5], [0.00659, np.nan]])


@pytest.mark.parametrize("policies", [{}, None, {"of others": 7}])
def test_an_event_without_policies_counts_for_the_logging_policy(policies: Any) -> None:
    batch = batch_of(COMPACT | {"policies": policies}, policies=["bts"])
    np.testing.assert_array_equal(batch.probabilities, [[np.nan]])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00.250+01:00", 0.25),
        ("2019-11-24 00:00:34.7612345Z", datetime(2019, 11, 24, 0, 0, 34, 761234, UTC).timestamp()),
    ],
)
def test_a_timestamp_may_be_rfc_3339(text: str, seconds: float) -> None:
    batch = batch_of(COMPACT | {"timestamp": text}, COMPACT | {"timestamp": 5})
    assert batch.timestamp.tolist() == pytest.approx([seconds, 5.0], abs=1e-6)


def test_a_reward_of_true_is_1_and_of_false_0() -> None:
    assert batch_of(COMPACT | {"reward": True}, COMPACT | {"reward": False}).reward.tolist() == [1.0, 0.0]


def test_the_reward_is_read_from_the_configured_field() -> None:
    event = COMPACT | {"revenue": 12.5}
    assert batch_of(event, reward_field="revenue").reward.tolist() == [12.5]
    assert batch_of(COMPACT, reward_field="revenue").rejected[0].detail == "revenue: missing"


def test_the_reward_cannot_be_a_field_that_means_something_else() -> None:
    with pytest.raises(ValueError, match="'propensity' has another meaning"):
        JsonDecoder(reward_field="propensity")


def test_a_policy_cannot_be_named_twice() -> None:
    with pytest.raises(ValueError, match="contain a duplicate"):
        JsonDecoder(["a", "b", "a"])


def test_an_optional_field_may_be_null() -> None:
    nothing = dict.fromkeys(("actions", "propensities", "features", "sampling_probability", "unit", "context"))
    batch = batch_of(COMPACT | nothing)
    assert len(batch) == 1
    assert batch.sampling_probability.tolist() == [1.0]


REJECTED: list[tuple[dict[str, Any], str, str]] = [
    ({"reward": "1"}, "malformed", "reward: expected bool | float, got str: '1'"),
    ({"propensity": True}, "malformed", "propensity: expected float, got bool"),
    ({"event_id": 1.5}, "malformed", "event_id: expected int | str, got float"),
    ({"action": ["a"]}, "malformed", "action: expected int | str, got array"),
    ({"unit": []}, "malformed", "unit: expected int | str, got array"),
    ({"timestamp": "yesterday"}, "malformed", "timestamp: invalid RFC3339 encoded datetime"),
    ({"timestamp": "2019-11-24T00:00:34"}, "malformed", "timestamp: expected datetime with a timezone component"),
    ({"policies": [0.5]}, "malformed", "policies: expected object, got array"),
    ({"policies": {"bts": [0.5, 0.5]}}, "malformed", "policies.bts: a list over actions, but `actions` is missing"),
    ({"propensities": [1.0]}, "malformed", "propensities: a list over actions, but `actions` is missing"),
    ({"features": [[1]]}, "malformed", "features: a list over actions, but `actions` is missing"),
    ({"actions": []}, "malformed", "actions: empty"),
    ({"actions": ["14", 2, 2]}, "malformed", "actions: 2 is listed twice"),
    ({"actions": ["14", "2"], "propensities": [1.0]}, "malformed", "propensities: 1 entry for 2 actions"),
    ({"actions": ["14", "2"], "features": [[1]]}, "malformed", "features: 1 entry for 2 actions"),
    ({"actions": ["14", "2"], "features": [[1], []]}, "malformed", "features[1]: 0 numbers, but features[0] has 1"),
    ({"actions": ["14"], "policies": {"bts": [0, 1]}}, "malformed", "policies.bts: 2 entries for 1 action"),
    ({"event_id": None}, "missing_field", "event_id: missing"),
    ({"timestamp": None}, "missing_field", "timestamp: missing"),
    ({"action": None}, "missing_field", "action: missing"),
    ({"reward": None}, "missing_field", "reward: missing"),
    ({"propensity": None}, "missing_field", "propensity: missing, as is `propensities`"),
    ({"propensity": 0}, "propensity_range", "propensity: 0 is not in (0, 1]"),
    ({"propensity": -0.5}, "propensity_range", "propensity: -0.5 is not in (0, 1]"),
    ({"propensity": 1.0000001}, "propensity_range", "propensity: 1.0000001 is not in (0, 1]"),
    ({"sampling_probability": 0}, "propensity_range", "sampling_probability: 0 is not in (0, 1]"),
    ({"actions": ["14", "2"], "propensities": [-1, 2]}, "propensity_range", "propensities[0]: -1 is not in [0, 1]"),
    ({"policies": {"bts": -1e-9}}, "probability_range", "policies.bts: -1e-09 is not in [0, 1]"),
    ({"policies": {"bts": 1.00001}}, "probability_range", "policies.bts: 1.00001 is not in [0, 1]"),
    (
        {"actions": ["1", "14"], "policies": {"bts": [-0.5, 1.5]}},
        "probability_range",
        "policies.bts: 1.5 is not in [0, 1]",
    ),
    (
        {"actions": ["14", "1", "2"], "policies": {"bts": [0.5, 1.5, -1]}},
        "probability_range",
        "policies.bts[1]: 1.5 is not in [0, 1]",
    ),
    (
        {"actions": ["14", "1"], "policies": {"bts": [0.5, 0.4]}},
        "distribution_sum",
        "policies.bts: sums to 0.9, not to 1",
    ),
    (
        {"actions": ["14", "1"], "propensities": [0.0125, 0.5]},
        "distribution_sum",
        "propensities: sums to 0.5125, not to 1",
    ),
    ({"reward": 1.5}, "reward_range", "reward: 1.5 is not in [0, 1]"),
    ({"reward": strategies.OVERFLOW}, "not_finite", "reward: inf is not a finite number"),
    ({"reward": 10**400}, "not_finite", "reward: inf is not a finite number"),
    ({"reward": -(10**5000)}, "not_finite", "reward: -inf is not a finite number"),
    ({"timestamp": math.inf}, "not_finite", "timestamp: inf is not a finite number"),
    (
        {"timestamp": 1574553634760},
        "malformed",
        "timestamp: 1.574553635e+12 is not a time in seconds since 1970; is it in milliseconds?",
    ),
    ({"policies": {"bts": math.nan}}, "not_finite", "policies.bts: nan is not a finite number"),
    ({"context": {"x": [0, -math.inf]}}, "not_finite", "context.x[1]: -inf is not a finite number"),
    ({"actions": ["1", "2", 14]}, "unknown_action", "action: not one of the 3 `actions`"),
    (
        {"actions": ["14", "2"], "propensities": [0.5, 0.5], "propensity": 0.500001},
        "inconsistent_propensity",
        "propensity: 0.500001, but `propensities` has 0.5 for the action",
    ),
]


@pytest.mark.parametrize(("change", "reason", "detail"), REJECTED)
def test_a_wrong_field_is_rejected_with_its_reason(change: dict[str, Any], reason: str, detail: str) -> None:
    message = big_encode(COMPACT | change)
    for settings in ({}, {"policies": ["bts"]}):
        assert verdict(message, reward_range=(0, 1), **settings) == Rejected(reason, detail, message)


IN_TABLES = [case for case in REJECTED if case[1] != "not_finite"] + [
    ({"reward": math.inf}, "not_finite", "reward: inf is not a finite number"),
    ({"propensity": math.inf}, "not_finite", "propensity: inf is not a finite number"),
    ({"policies": {"bts": -math.inf}}, "not_finite", "policies.bts: -inf is not a finite number"),
]


@pytest.mark.parametrize(("change", "reason", "detail"), IN_TABLES)
def test_a_row_of_a_table_has_the_verdict_of_the_message(change: dict[str, Any], reason: str, detail: str) -> None:
    batch = JsonDecoder(reward_range=(0, 1)).decode_rows([COMPACT, COMPACT | change])
    assert len(batch) == 1
    assert batch.rejected == (Rejected(reason, detail, b"", place=1),)


@given(st.lists(strategies.good_messages, max_size=6))
def test_rows_and_messages_of_the_same_events_have_the_same_numbers(messages: list[bytes]) -> None:
    decoder = JsonDecoder(POLICIES)
    assert_same_numbers(decoder.decode_rows(list(map(json.loads, messages))), decoder.decode_batch(messages))


def big_encode(event: Any) -> bytes:
    """Encode an event, also with integers of more digits than Python prints at once."""
    reward = event["reward"]
    if isinstance(reward, int) and abs(reward) > 10**4000:
        digits = "-1" + "0" * 5000 if reward < 0 else "1" + "0" * 5000
        return encode(event | {"reward": "@"}).replace(b'"@"', digits.encode())
    return encode(event)


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (None, "a tombstone: the message has no value"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"event_id":', "not JSON: Expecting value: line 1 column 13 (char 12)"),
        (encode(COMPACT) + b"}", "not JSON: Extra data: line 1 column 130 (char 129)"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xef\xbb\xbf{}", "not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)"),
        (encode(COMPACT)[:-1] + b', "x": "\xff"}', "not UTF-8: invalid start byte at byte 136"),
        (encode(COMPACT | {"event_id": "@"}).replace(b"@", b"\xff"), "not UTF-8: invalid start byte at byte 14"),
        (b"[" * 100_000, "nested too deeply"),
        (encode(COMPACT)[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_message_that_is_not_a_json_object_is_malformed(message: bytes | None, detail: str) -> None:
    assert verdict(message) == Rejected("malformed", detail, message or b"")
    batch = JsonDecoder().decode_batch([encode(COMPACT), message, encode(COMPACT)])
    assert len(batch) == 2
    assert [(rejection.place, rejection.reason, rejection.detail) for rejection in batch.rejected] == [
        (1, "malformed", detail)
    ]


def test_every_reason_that_needs_no_memory_has_a_test() -> None:
    assert {reason for _, reason, _ in REJECTED} == set(REASONS) - {"duplicate", "too_late", "unreadable_batch"}


def test_numbers_that_no_field_of_interest_holds_may_be_anything() -> None:
    event = COMPACT | {"debug": strategies.OVERFLOW, "policies": {"bts": "?", "other": strategies.OVERFLOW}}
    assert len(batch_of(event, policies=["bts"])) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"policies": {"bts": 1.0000005}},
        {"actions": ["14", "1"], "policies": {"bts": [0.3333333, 0.6666663]}},
        {"actions": ["14", "1"], "propensities": [0.0125, 0.9875003]},
        {"actions": ["14", "1"], "propensities": [0.0125 * (1 + 9e-7), 0.9875]},
    ],
)
def test_the_noise_of_float32_is_tolerated_and_kept(change: dict[str, Any]) -> None:
    batch = batch_of(COMPACT | change, policies=["bts"])
    assert batch.rejected == ()
    assert batch.propensity.tolist() == [0.0125]
    cell = (change.get("policies") or COMPACT["policies"])["bts"]
    assert batch.probabilities.tolist() == [[cell[0] if isinstance(cell, list) else cell]]


def test_bad_events_are_rejected_in_order_and_the_others_keep_their_numbers() -> None:
    events = [COMPACT | {"event_id": number, "timestamp": number} for number in range(6)]
    events[1] |= {"propensity": 2}
    events[2] |= {"reward": "x"}
    events[4] |= {"propensities": [1]}
    batch = batch_of(*events)
    assert batch.timestamp.tolist() == [0, 3, 5]
    assert [(json.loads(rejection.value)["event_id"], rejection.reason) for rejection in batch.rejected] == [
        (1, "propensity_range"),
        (2, "malformed"),
        (4, "malformed"),
    ]


def test_no_messages_are_an_empty_batch() -> None:
    for policies in (None, [], ["a", "b"]):
        batch = JsonDecoder(policies).decode_batch([])
        assert len(batch) == 0
        assert batch.probabilities.shape == (0, len(policies or []))


@given(st.lists(strategies.good_messages, max_size=6))
def test_good_events_are_accepted(messages: list[bytes]) -> None:
    assert JsonDecoder(POLICIES).decode_batch(messages).rejected == ()


@given(st.lists(strategies.messages, max_size=6), st.sampled_from([None, POLICIES, POLICIES[1:]]))
def test_no_message_puts_a_number_that_is_not_finite_into_a_column(messages: list[bytes | None], policies: Any) -> None:
    batch = JsonDecoder(policies, reward_range=(-1e300, 1e300)).decode_batch(messages)
    assert len(batch) + len(batch.rejected) == len(messages)
    assert {rejection.reason for rejection in batch.rejected} <= set(REASONS)
    assert np.isfinite(batch.reward).all()
    assert np.isfinite(batch.timestamp).all()
    for chance in (batch.propensity, batch.sampling_probability):
        assert ((chance > 0) & (chance <= 1)).all()
    assert within(batch.probabilities, 0.0, 1.000001)
    if batch.action_sets is not None:
        assert within(batch.action_sets.propensities, 0.0, 1.0)
        assert within(batch.action_sets.probabilities, 0.0, 1.000001)
        assert batch.action_sets.features is None or np.isfinite(batch.action_sets.features.values).all()


def within(values: Any, low: float, high: float) -> bool:
    """Return whether all numbers are in the range, or missing."""
    return bool((np.isnan(values) | ((values >= low) & (values <= high))).all())


@given(st.lists(strategies.messages, max_size=6), st.sampled_from([None, (0.0, 1.0)]))
def test_one_by_one_and_all_at_once_have_the_same_verdicts_and_numbers(
    messages: list[bytes | None], reward_range: Any
) -> None:
    events = JsonDecoder(POLICIES, reward_range=reward_range)
    together = events.decode_batch(messages)
    singles = [events.decode_batch([message]) for message in messages]
    rejected = [
        replace(rejection, place=index) for index, single in enumerate(singles) for rejection in single.rejected
    ]
    assert together.rejected == tuple(rejected)
    assert_same_numbers(together, EventBatch.concat(single for single in singles if len(single)))


def assert_same_numbers(one: EventBatch, other: EventBatch) -> None:
    if len(one) == len(other) == 0:
        return
    for column in ("probabilities", "propensity", "reward", "timestamp", "sampling_probability"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    assert (one.action_sets is None) == (other.action_sets is None)
    if one.action_sets is not None and other.action_sets is not None:
        for column in ("index", "offsets", "propensities", "widths", "probabilities"):
            np.testing.assert_array_equal(getattr(one.action_sets, column), getattr(other.action_sets, column))
        tables = [sets.features and sets.features.values for sets in (one.action_sets, other.action_sets)]
        np.testing.assert_array_equal(*tables)


@given(strategies.events)
def test_the_numbers_of_an_event_are_those_that_were_written(event: dict[str, Any]) -> None:
    batch = batch_of(event, policies=POLICIES)
    assert batch.reward.tolist() == [float(event["reward"])]
    chosen = event["actions"].index(event["action"]) if "actions" in event else None
    propensity = event["propensity"] if "propensity" in event else event["propensities"][chosen]
    assert batch.propensity.tolist() == [propensity]
    for policy, probability in zip(POLICIES, batch.probabilities[0], strict=True):
        cell = (event.get("policies") or {}).get(policy)
        expected = cell[chosen] if isinstance(cell, list) else cell
        assert (probability == expected) if isinstance(expected, float) else np.isnan(probability)


@given(strategies.action_set_events(), strategies.action_set_events())
def test_an_action_set_holds_what_was_written_wherever_the_event_stands(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    sets = batch_of(first, second, policies=POLICIES).action_sets
    assert sets is not None
    for index, event in enumerate((first, second)):
        rows = slice(sets.offsets[index], sets.offsets[index + 1])
        assert event["actions"][sets.index[index]] == event["action"]
        if "propensities" in event:
            assert sets.propensities[rows].tolist() == event["propensities"]
        cell = (event.get("policies") or {}).get("a")
        if isinstance(cell, list):
            assert sets.probabilities[rows, 0].tolist() == cell


def test_the_schema_describes_every_field_and_requires_what_decoding_requires() -> None:
    schema = json_schema("revenue")
    assert set(schema["properties"]) >= {*COMPACT, *ACTION_SET, "sampling_probability", "logging_policy", "revenue"} - {
        "reward"
    }
    assert all(field["description"] for field in schema["properties"].values())
    assert sorted(schema["required"]) == ["event_id", "timestamp"]
    assert [form["required"] for form in schema["oneOf"]] == [["action", "revenue"], ["slots", "revenue"], ["scored"]]
    assert schema["dependentRequired"] == {
        "propensities": ["actions"],
        "features": ["actions"],
        "slate_logging": ["slots"],
        "slates": ["slots", "slate_propensities"],
        "slate_propensities": ["slots", "slates"],
    }


def test_the_schema_is_json() -> None:
    assert json.loads(json.dumps(json_schema(), allow_nan=False)) == json_schema()


HEADER = ["other", "bts", "challenger"]


def listed(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event with its policies in the order of `HEADER`."""
    return event | {"policies_of": "v7", "policies": [(event["policies"] or {}).get(name) for name in HEADER]}


@pytest.mark.parametrize("policies", [None, HEADER, ["challenger", "bts"], ["bts"], ["bts", "unknown"], []])
@pytest.mark.parametrize(
    "events",
    [
        [COMPACT | {"policies": {"other": 1, "bts": 0.5, "challenger": 0.25}}] * 2,
        [COMPACT, COMPACT | {"policies": {"other": 0.5, "bts": 0.25, "challenger": 0}}],
        [COMPACT, ACTION_SET],
        [COMPACT | {"policies": {"bts": "?", "challenger": 0.25}}],
        [COMPACT | {"policies": {"bts": 0.1, "other": 2, "challenger": 0.25}}, COMPACT],
        [COMPACT | {"policies": {"other": 1, "bts": 0.5, "challenger": 0.25}, "actions": []}, COMPACT],
    ],
    ids=["numbers", "null", "distributions", "text", "a bad number", "a bad list"],
)
def test_policies_in_the_order_of_a_header_count_like_named_ones(events: Any, policies: Any) -> None:
    expected = batch_of(*events, policies=policies)
    for rows in ([listed(event) for event in events], [listed(events[0]), *events[1:]]):
        found = batch_of(*rows, policies=policies, headers={"v6": ["bts"], "v7": HEADER})
        assert set(found.policies) >= set(expected.policies)
        assert_same_numbers(found.with_policies(expected.policies), expected)
        assert [(one.reason, one.place) for one in found.rejected] == [
            (one.reason, one.place) for one in expected.rejected
        ]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"policies_of": "v8"}, "policies_of: 'v8' is no header in source.policies_of, which has v7"),
        ({"policies": [0.5]}, "policies: 1 values for the 3 names of 'v7'"),
        ({"policies": [0.5] * 4}, "policies: 4 values for the 3 names of 'v7'"),
        ({"policies_of": None}, "policies: a list needs `policies_of`, the name of its header"),
        ({"policies_of": 7}, "policies_of: expected str, got int"),
    ],
)
@pytest.mark.parametrize("policies", [None, ["bts"]])
def test_a_list_that_fits_no_header_is_rejected(change: dict[str, Any], detail: str, policies: Any) -> None:
    batch = batch_of(COMPACT, listed(COMPACT) | change, listed(COMPACT), policies=policies, headers={"v7": HEADER})
    assert [(one.reason, one.detail, one.place) for one in batch.rejected] == [("malformed", detail, 1)]
    assert batch.with_policies(("bts",)).probabilities.tolist() == [[0.00659], [0.00659]]


def test_a_list_without_headers_is_rejected_with_the_option() -> None:
    rejected = verdict(encode(listed(COMPACT)), policies=["bts"])
    assert rejected is not None
    assert rejected.detail == "policies: expected object, got array: the option `source.policies_of` names its header"
