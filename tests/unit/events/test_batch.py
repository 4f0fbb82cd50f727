from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streameval.events import EventBatch, JsonDecoder, Rejected
from support.strategies import POLICIES, encode, good_messages

REJECTED = Rejected("malformed", "not a JSON object", b"[]")
SET_COLUMNS = ("index", "offsets", "propensities", "probabilities", "widths")
COLUMNS = ("probabilities", "propensity", "reward", "timestamp", "sampling_probability")


def same(one: EventBatch, other: EventBatch) -> bool:
    """Return whether all columns are equal to the last bit, but for how a batch without action sets writes them."""
    if one.policies != other.policies or not all(equal(getattr(one, name), getattr(other, name)) for name in COLUMNS):
        return False
    if one.action_sets is None or other.action_sets is None:
        return all(batch.action_sets is None or not batch.action_sets.sizes.any() for batch in (one, other))
    return all(
        equal(getattr(one.action_sets, name), getattr(other.action_sets, name)) for name in SET_COLUMNS
    ) and equal(
        *(
            np.empty(0) if features is None else features.values
            for features in (one.action_sets.features, other.action_sets.features)
        )
    )


def equal(one: Any, other: Any) -> bool:
    return one is other or np.array_equal(one, other, equal_nan=True)


def decoded(messages: list[bytes]) -> EventBatch:
    return JsonDecoder(POLICIES).decode_batch([*messages, b"[]"])


def indexed(n: int = 3, **changes: Any) -> EventBatch:
    """Events that choose from two actions, as arrays."""
    arrays: dict[str, Any] = {
        "reward": np.arange(n),
        "action": np.arange(n) % 2,
        "propensities": np.tile([0.25, 0.75], (n, 1)),
        "features": np.arange(4.0 * n).reshape(n, 2, 2),
        "policies": {"a": np.tile([0.5, 0.5], (n, 1)), "b": np.full(n, 0.125)},
    }
    return EventBatch.from_arrays(**arrays | changes)


def test_arrays_become_columns() -> None:
    batch = EventBatch.from_arrays(
        reward=[1, 0, 5.5],
        propensity=[0.5, 1, 0.25],
        policies={"a": [0, 1, np.nan], "b": (0.5, 0.5, 0.5)},
        timestamp=[1, 2, np.nan],
        sampling_probability=[1, 1, 0.5],
    )
    assert batch.policies == ("a", "b")
    np.testing.assert_array_equal(batch.probabilities, [[0, 0.5], [1, 0.5], [np.nan, 0.5]])
    assert batch.probabilities.T.flags.c_contiguous
    assert batch.reward.tolist() == [1, 0, 5.5]
    assert batch.sampling_probability.tolist() == [1, 1, 0.5]
    assert repr(batch) == "EventBatch(3 events, policies=['a', 'b'], 0 rejected)"


def test_arrays_with_action_sets_become_ragged_columns() -> None:
    batch = indexed()
    sets = batch.action_sets
    assert sets is not None
    assert batch.propensity.tolist() == [0.25, 0.75, 0.25]
    assert batch.probabilities.tolist() == [[0.5, 0.125]] * 3
    assert sets.index.tolist() == [0, 1, 0]
    assert sets.offsets.tolist() == [0, 2, 4, 6]
    assert sets.owner.tolist() == [0, 0, 1, 1, 2, 2]
    assert sets.features is not None
    assert sets.features.offsets.tolist() == [0, 4, 8, 12]
    assert sets.features.values.tolist() == list(range(12))
    np.testing.assert_array_equal(sets.probabilities[2:4], [[0.5, np.nan], [0.5, 0.125]])


def test_arrays_and_messages_of_the_same_events_give_the_same_columns() -> None:
    events = [
        {
            "event_id": row,
            "timestamp": row,
            "actions": ["x", "y"],
            "action": "xy"[row % 2],
            "propensities": [0.25, 0.75],
            "reward": row,
            "features": np.arange(4.0 * row, 4.0 * row + 4).reshape(2, 2).tolist(),
            "policies": {"a": [0.5, 0.5], "b": 0.125},
        }
        for row in range(3)
    ]
    assert same(JsonDecoder(["a", "b"]).decode_batch(map(encode, events)), indexed(timestamp=[0, 1, 2]))


def test_later_changes_of_the_callers_arrays_do_not_change_the_batch() -> None:
    reward = np.array([1.0, 2.0])
    batch = EventBatch.from_arrays(reward=reward, propensity=reward / 2)
    reward[:] = np.nan
    assert batch.reward.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("actions", [1, 4])
def test_no_events_at_all_may_come_as_arrays(actions: int) -> None:
    nothing = np.empty((0, actions))
    batch = EventBatch.from_arrays(
        reward=[], action=[], propensities=nothing, features=np.empty((0, actions, 2)), policies={"a": nothing, "b": []}
    )
    assert len(batch) == 0
    assert batch.probabilities.shape == (0, 2)


COMPACT: dict[str, Any] = {"reward": [1, 0], "propensity": [0.5, 0.5], "policies": {"a": [0.5, 0.5]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [1, np.nan]}, "row 1: not_finite: reward: nan is not a finite number"),
        ({"timestamp": [0, -np.inf]}, "row 1: not_finite: timestamp: -inf is not a finite number"),
        ({"propensity": [np.nan, 0.5]}, "row 0: missing_field: propensity: missing"),
        ({"propensity": [0.5, 0]}, "row 1: propensity_range: propensity: 0 is not in (0, 1]"),
        ({"propensity": [np.inf, 0.5]}, "row 0: propensity_range: propensity: inf is not in (0, 1]"),
        ({"sampling_probability": [1, 2]}, "row 1: propensity_range: sampling_probability: 2 is not in (0, 1]"),
        ({"policies": {"a": [0.5, -0.5]}}, "row 1: probability_range: policies.a: -0.5 is not in [0, 1]"),
        ({"propensity": [0.5, 2], "policies": {"a": [7, 7]}}, "row 0: probability_range"),
        ({"propensity": [0.5]}, "propensity: expected the shape [2], found [1]"),
        ({"policies": {"a": [[0.5], [0.5]]}}, "policies['a']: expected the shape [2], found [2, 1]"),
        ({"reward": [[1, 0]]}, "reward: expected the shape [any], found [1, 2]"),
        ({"reward": ["x", 0]}, "reward: not an array of numbers"),
        (
            {"reward": ["0,6", 0]},
            "reward: not an array of numbers: could not convert string to float: '0,6'; write",
        ),
        ({"propensity": [25, 50]}, "row 0: propensity_range: propensity: 25 is not in (0, 1]; divide percent by 100"),
        ({"propensities": [[1.0], [1.0]]}, "give `propensity`, or else"),
        ({"features": [[[1.0]], [[1.0]]]}, "give `propensity`, or else"),
        ({"policies": [[0.5, 0.5]]}, "policies: expected a mapping by name, found [[0.5, 0.5]]"),
        ({"rewards": [[0.5, 0.5]]}, "rewards: expected a mapping by name, found [[0.5, 0.5]]"),
        ({"segments": ["a", "b"]}, "segments: expected a mapping by name, found ['a', 'b']"),
        ({"segments": {"day": "ab"}}, "segments['day']: expected 2 values, one per event, found 'ab'"),
        ({"segments": {"day": None}}, "segments['day']: expected 2 values, one per event, found None"),
        ({"segments": {"day": ["a"]}}, "segments['day']: expected 2 values, one per event, found 1"),
    ],
)
def test_invalid_arrays_are_refused_with_the_first_bad_row(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared below
        EventBatch.from_arrays(**COMPACT | changes)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": [0, 1, 2]}, "row 2: action: 2 is not a position among 2 actions, counted from 0"),
        ({"action": [0, -1, 0]}, "row 1: action: -1 is not a position among 2 actions, counted from 0"),
        ({"action": [0.0, 1.0, 0.0]}, "action: expected integers of the shape [3], found float64 of the shape [3]"),
        ({"action": [0, 1]}, "action: expected integers of the shape [3], found int64 of the shape [2]"),
        ({"propensities": [[0.5, 0.5], [0.25, 0.25], [1, 0]]}, "row 1: distribution_sum: propensities: sums to 0.5"),
        ({"propensities": [[0, 1], [0, 1], [1, 0]]}, "row 0: propensity_range: propensity: 0 is not in (0, 1]"),
        ({"propensities": [[0.5, 0.5], [-1, 2], [1, 0]]}, "row 1: propensity_range: propensity: 2 is not in (0, 1]"),
        ({"propensities": [[2, -1], [0, 1], [2, -1]], "action": [1, 1, 1]}, "row 0: propensity_range: propensity: -1"),
        ({"policies": {"a": [[0.5, 0.5], [1.5, -0.5], [1, 0]]}}, "row 1: probability_range: policies.a: -0.5"),
        ({"policies": {"a": [[1, 0], [1, 0], [1, 1]]}}, "row 2: distribution_sum: policies.a: sums to 2, not to 1"),
        ({"policies": {"a": [[1, 0, 0]] * 3}}, "policies['a']: expected the shape [3, 2], found [3, 3]"),
        ({"features": [[[1], [2]]] * 2}, "features: expected the shape [3, 2, any], found [2, 2, 1]"),
        ({"features": [[[1], [np.inf]]] * 3}, "row 0: not_finite: features[1]: inf is not a finite number"),
        ({"features": [[[1], [2]], [[1], [np.nan]], [[1], [2]]]}, "row 1: not_finite: features[1]: nan is not a"),
    ],
)
def test_action_sets_that_make_no_sense_are_refused_with_the_first_bad_row(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared below
        indexed(**changes)
    assert str(refused.value).startswith(message)


@given(st.lists(good_messages, max_size=6), st.integers(-8, 8), st.integers(-8, 8))
def test_a_part_is_what_its_events_alone_would_be(messages: list[bytes], start: int, stop: int) -> None:
    whole = decoded(messages)
    cut = whole[start:stop]
    alone = decoded(messages[start:stop])
    assert len(cut) == len(messages[start:stop])
    assert same(cut, alone)
    assert same(cut, whole.take(np.arange(len(whole))[start:stop]))
    assert cut.rejected == (whole.rejected if slice(start, stop).indices(len(messages))[0] == 0 else ())


@given(st.lists(good_messages, min_size=1, max_size=6), st.data())
def test_parts_put_together_again_are_the_whole(messages: list[bytes], data: st.DataObject) -> None:
    whole = decoded(messages)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(whole)), max_size=3)))
    parts = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    together = EventBatch.concat(parts)
    assert same(together, whole)
    assert together.rejected == whole.rejected == (replace(REJECTED, place=len(messages)),)


@given(st.lists(good_messages, max_size=6), st.data())
def test_taken_events_keep_their_numbers_in_any_order(messages: list[bytes], data: st.DataObject) -> None:
    whole = decoded(messages)
    rows = np.array(data.draw(st.permutations(range(len(messages)))), dtype=np.int64)
    back = whole.take(rows).take(np.argsort(rows))
    assert same(back, whole)
    assert back.rejected == whole.rejected


def test_events_are_taken_by_a_mask_too() -> None:
    batch = indexed()
    assert same(batch.take(np.array([True, False, True])), batch.take(np.array([0, 2])))


def test_a_batch_is_not_cut_by_steps() -> None:
    with pytest.raises(ValueError, match="not by steps of 2"):
        indexed()[::2]


def test_policies_that_only_one_part_has_are_missing_in_the_other() -> None:
    both = EventBatch.concat(
        [
            EventBatch.from_arrays(reward=[1], propensity=[1], policies={"a": [0.5]}),
            indexed(1, policies={"b": [[0.25, 0.75]]}),
        ]
    )
    assert both.policies == ("a", "b")
    np.testing.assert_array_equal(both.probabilities, [[0.5, np.nan], [np.nan, 0.25]])
    assert both.action_sets is not None
    assert both.action_sets.index.tolist() == [-1, 0]
    np.testing.assert_array_equal(both.action_sets.probabilities, [[np.nan, 0.25], [np.nan, 0.75]])


@given(st.lists(good_messages, max_size=6))
def test_a_state_gives_the_batch_back_bit_for_bit(messages: list[bytes]) -> None:
    batch = decoded(messages)
    back = EventBatch.from_state(batch.to_state())
    assert same(back, batch)
    assert back.probabilities.T.flags.c_contiguous
    assert (back.action_sets is None) == (batch.action_sets is None)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"segments": {"country": ["de"]}}, r"segments\['country'\]: expected 2 values, one per event"),
        ({"reward": pd.Series([1, 0], [1, 0])}, "propensity: its index differs from the index of reward"),
        ({"segments": {"c": pd.Series(["a", "b"], [7, 8])}}, r"segments\['c'\]: its index differs"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(arrays: dict[str, Any], message: str) -> None:
    aligned = {"propensity": pd.Series([0.5, 0.25]), "reward": [1, 0]}
    with pytest.raises(ValueError, match=message):
        EventBatch.from_arrays(**aligned | arrays)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_frame_gives_the_context_of_each_event(frame: Any) -> None:
    batch = EventBatch.from_arrays(reward=[1, 0], propensity=[1, 1], context=frame({"country": ["de", "fr"]}))
    assert [fields["context"] for fields in batch.raw_fields.values] == [{"country": "de"}, {"country": "fr"}]
