from __future__ import annotations

import datetime
import json
import math
from typing import Any

import numpy as np
import pytest

from streameval.events import EventBatch, JsonDecoder, Origin
from streameval.events.records import RecordDecoder, RowDecoder

EVENT = {"event_id": "e", "timestamp": 5, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"new": 0.25}}
SETS = EVENT | {"actions": ["a", "b"], "propensities": [0.5, 0.5], "policies": {"new": [0.25, 0.75]}}
EVENTS: list[Any] = [
    EVENT,
    EVENT | {"unit": 7, "sampling_probability": 0.5, "logging_policy": "old"},
    EVENT | {"policies": {"new": None}},
    EVENT | {"reward": True},
    EVENT | {"features": [[1.0], [2.0]]},
    SETS,
    SETS | {"actions": ["a", "a"]},
    SETS | {"propensities": [0.5, "0.5"]},
    EVENT | {"event_id": None},
    EVENT | {"event_id": 2**70},
    EVENT | {"action": None},
    EVENT | {"action": 1.5},
    EVENT | {"timestamp": None},
    EVENT | {"propensity": 5},
    EVENT | {"reward": "x"},
    EVENT | {"reward": None},
    EVENT | {"reward": 3},
    {},
    [],
]
OPTIONS: dict[str, Any] = {"policies": ["new"], "reward_range": (0.0, 1.0), "identified": True}


def encoded(events: list[Any]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def read(decoder: JsonDecoder, messages: list[bytes]) -> tuple[EventBatch, list[tuple[str, int, bytes]]]:
    batch = decoder.decode_batch(messages, Origin.from_parts("topic", [(0, range(len(messages)))]))
    return batch, [(rejection.reason, rejection.place, rejection.value) for rejection in batch.rejected]


@pytest.mark.parametrize("events", [EVENTS, [EVENT], [EVENT, EVENT], [SETS, SETS], [{}], []])
def test_records_with_the_names_of_fields_are_the_same_events_as_json(events: list[Any]) -> None:
    messages = encoded(events)
    expected, reasons = read(JsonDecoder(**OPTIONS), messages)
    actual, actual_reasons = read(RecordDecoder(json.loads, **OPTIONS), messages)
    assert [rejection[1:] for rejection in actual_reasons] == [rejection[1:] for rejection in reasons]
    assert [rejection[0] for rejection in actual_reasons][:-1] == [rejection[0] for rejection in reasons][:-1]
    for name in ("reward", "propensity", "timestamp", "probabilities", "sampling_probability"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
    assert (actual.origin is None) == (expected.origin is None)
    if expected.origin is not None and actual.origin is not None:
        np.testing.assert_array_equal(actual.origin.identity, expected.origin.identity)
        np.testing.assert_array_equal(actual.origin.offset, expected.origin.offset)


def test_columns_name_values_inside_records() -> None:
    columns = {"event_id": "key", "action": "choice.banner", "timestamp": "at.time", "policies": {"new": "p.new"}}
    record = {
        "key": 1,
        "choice": {"banner": "a"},
        "at": {"time": 5},
        "p": {"new": 0.25},
        "propensity": 0.5,
        "reward": 1,
    }
    decoder = RecordDecoder(json.loads, columns, **OPTIONS)
    batch = decoder.decode_batch(encoded([record, record | {"at": 5}]))
    assert (batch.timestamp.tolist(), batch.probabilities.tolist()) == ([5.0], [[0.25]])
    assert [rejection.detail for rejection in batch.rejected] == [
        "timestamp: missing: there is no value 'at.time', its name in `columns`"
    ]


def test_cells_of_rows_are_text() -> None:
    row = {"event_id": "7", "timestamp": "2026-01-01", "action": "01", "propensity": " 0.5 ", "reward": "1", "new": ""}
    batch = RowDecoder(**OPTIONS).decode_batch(encoded([row, row | {"propensity": "half"}, ["7"], [1, 2]]))
    assert (batch.timestamp.tolist(), batch.propensity.tolist()) == ([1767225600.0], [0.5])
    assert np.isnan(batch.probabilities).all()
    assert [rejection.place for rejection in batch.rejected] == [1, 2, 3]
    assert batch.rejected[1].detail == "1 cell, and the header has another number of columns"


def test_rows_with_lists_of_actions_have_action_sets() -> None:
    row = {"event_id": "7", "timestamp": "5", "action": "a", "actions": '["a", "b"]', "propensities": "[0.5, 0.5]"}
    batch = RowDecoder(**OPTIONS).decode_batch(encoded([row | {"reward": "1", "new": "[0.25, 0.75]"}]))
    assert batch.action_sets is not None
    assert batch.action_sets.probabilities.tolist() == [[0.25], [0.75]]


def test_nan_in_a_list_of_a_record_is_rejected() -> None:
    record = SETS | {"propensities": [float("nan"), 0.5]}
    (rejected,) = RecordDecoder(lambda _: record, **OPTIONS).decode_batch([b"-"]).rejected
    assert (rejected.reason, rejected.detail) == ("malformed", "propensities[0]: expected float, got null")


def test_a_record_with_nan_is_rejected() -> None:
    wrong = [
        EVENT | {"sampling_probability": math.nan},
        EVENT | {"reward": math.nan},
        SETS | {"propensities": [0.5, math.nan]},
        EVENT | {"timestamp": math.nan},
    ]
    records = iter(wrong)
    batch = RecordDecoder(lambda _: next(records), **OPTIONS).decode_batch([b"{}"] * len(wrong))
    reasons = ["not_finite", "not_finite", "malformed", "missing_field"]
    assert [rejection.reason for rejection in batch.rejected] == reasons


def test_dates_of_records_are_text() -> None:
    days = iter([datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), datetime.date(2026, 1, 1)])
    decoder = RecordDecoder(lambda _: EVENT | {"unit": next(days), "context": {"at": next(days)}}, **OPTIONS)
    assert not decoder.decode_batch([b"{}"]).rejected
