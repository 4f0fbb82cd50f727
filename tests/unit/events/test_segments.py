"""Fields that define segments are read from every format, and no event is rejected for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streameval import EventBatch, read_events
from streameval.errors import InputError
from streameval.events import DsjsonDecoder, JsonDecoder
from streameval.events.segments import SegmentField

FIELDS = [SegmentField("country", "context.country"), SegmentField("position", "position")]
CONTEXTS: list[Any] = [{"country": "de"}, {"country": "fr", "age": [1]}, [1], {}, None]
POSITIONS: list[Any] = [1, 2.0, True, "1", {"x": 1}]


def event(number: int) -> dict[str, Any]:
    context, position = CONTEXTS[number], POSITIONS[number]
    return {
        "event_id": number,
        "timestamp": 1.0,
        "action": 7,
        "propensity": 0.5,
        "reward": 1,
        "context": context,
        "position": position,
    }


def expected(country: list[Any], position: list[Any]) -> np.ndarray[Any, Any]:
    count = len(country)
    columns = {"country": country, "position": position}
    batch = EventBatch.from_arrays(reward=[1] * count, propensity=[0.5] * count, segments=columns)
    assert batch.segments is not None
    return batch.segments.values


@pytest.mark.parametrize("scores", [None, [], ["position"]])
def test_messages_and_rows_have_the_values_that_arrays_have(scores: list[str] | None) -> None:
    decoder = JsonDecoder([], scores=scores, segments=FIELDS)
    events = [event(number) for number in range(5)]
    for batch in (
        decoder.decode_batch([json.dumps(record).encode() for record in events]),
        decoder.decode_rows(events),
    ):
        assert not batch.rejected
        assert batch.segments is not None
        wanted = expected(["de", "fr", None, None, None], [1, 2, "true", "1", None])
        np.testing.assert_array_equal(batch.segments.values, wanted)
        assert (batch.raw_fields is None) == (scores is None)


def test_a_value_is_the_same_as_number_and_as_text() -> None:
    values = expected(["3", 3, 3.0, 2.5, None], ["true", True, "", False, None])
    assert len(set(values[:3, 0].tolist())) == 1
    assert values[3:, 0].tolist() == [0, 0]
    assert values[0, 1] == values[1, 1] != values[3, 1] != values[2, 1] == values[4, 1] == 0


def test_columns_of_segments_stay_with_their_events() -> None:
    batch = JsonDecoder([], segments=FIELDS).decode_batch([json.dumps(event(number)).encode() for number in range(5)])
    assert batch.segments is not None
    again = EventBatch.concat([batch[:2], batch[2:]]).take(np.array([4, 0, 1]))
    restored = EventBatch.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(again.to_state())))
    for copy in (again, restored):
        assert copy.segments is not None
        np.testing.assert_array_equal(copy.segments.values, batch.segments.values[[4, 0, 1]])
        np.testing.assert_array_equal(copy.segments.column("country"), batch.segments.values[[4, 0, 1], 0])


def test_decisions_of_vowpal_wabbit_have_them_in_their_context() -> None:
    line = {"_label_cost": -1, "_label_probability": 0.8, "_label_Action": 2, "a": [2, 1], "p": [0.8, 0.2]}
    lines = [{**line, "c": {"country": "de"}, "position": 2}, line]
    batch = DsjsonDecoder(segments=FIELDS).decode_batch([json.dumps(decision).encode() for decision in lines])
    assert batch.segments is not None
    np.testing.assert_array_equal(batch.segments.values, expected(["de", None], [2, None]))


def test_tables_have_them_in_columns(tmp_path: Path) -> None:
    log, names = tmp_path / "log.csv", {"context": ["country"], "propensity": "p"}
    log.write_text("action,p,reward,country,position\na,0.5,1,de,1\nb,0.5,0,,2\n")
    segments = {"country": "context.country", "position": "position"}
    (batch,) = read_events(log, policies=[], columns=names, segments=segments)
    frame = {"action": ["a", "b"], "p": [0.5, 0.5], "reward": [1, 0], "country": ["de", None], "position": [1, 2]}
    for actual in (batch, EventBatch.from_frame(frame, names, segments=segments)):
        assert actual.segments is not None
        np.testing.assert_array_equal(actual.segments.values, expected(["de", None], [1, 2]))
    with pytest.raises(InputError, match="'place' for place"):
        EventBatch.from_frame(frame, names, segments={"place": "place"})
