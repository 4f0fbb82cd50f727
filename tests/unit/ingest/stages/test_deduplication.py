"""Test that an event sent twice counts once, as far back as ids are remembered."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streameval.events import EventBatch, JsonDecoder, Origin, fingerprints
from streameval.ingest.stages import Deduplication
from support.arrivals import TOPIC, Arrival, arrivals_of, batch_of, through_a_file
from support.messages import message

identifiers = st.text(max_size=70) | st.integers(-(2**70), 2**70)


def arrivals(ids: Sequence[str]) -> list[Arrival]:
    return [Arrival(0.0, 0, offset, event_id) for offset, event_id in enumerate(ids)]


def first_times(ids: Sequence[str], remembered: int) -> list[int]:
    """Return the indices of new ids, if the last `remembered` new ones are known."""
    memory: OrderedDict[str, None] = OrderedDict()
    new = []
    for index, event_id in enumerate(ids):
        if event_id and event_id in memory:
            continue
        new.append(index)
        if event_id:
            memory[event_id] = None
        if len(memory) > remembered:
            memory.popitem(last=False)
    return new


@given(
    ids=st.lists(st.sampled_from(["", *"abcdefgh"]), max_size=60),
    remembered=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    restarts=st.booleans(),
)
@example(ids=list("abcdefa"), remembered=2, cuts=[6], restarts=False)
@example(ids=[*map(str, range(1200)), "700", "3", *map(str, range(800))], remembered=600, cuts=[1201], restarts=False)
def test_deduplication_equals_a_set_of_the_last_ids(
    ids: list[str], remembered: int, cuts: list[int], restarts: bool
) -> None:
    stage, passed, rejected = Deduplication(remembered), [], []
    for first, last in pairwise(sorted([0, *cuts, len(ids)])):
        out = stage.take(batch_of(arrivals(ids)[first:last]))
        passed += [offset for _, _, offset in arrivals_of(out)]
        rejected += [(rejection.reason, rejection.origin) for rejection in out.rejected]
        if restarts:
            state = through_a_file(stage.state())
            stage = Deduplication(remembered)
            stage.restore(state)
            assert through_a_file(stage.state()) == state
    assert passed == first_times(ids, remembered)
    assert rejected == [("duplicate", (TOPIC, 0, index)) for index in range(len(ids)) if index not in passed]


def test_a_shorter_memory_continues_with_the_newest_ids() -> None:
    stage, shorter = Deduplication(100), Deduplication(2)
    stage.take(batch_of(arrivals(list("abcde"))))
    shorter.restore(stage.state())
    assert len(shorter.take(batch_of(arrivals(list("de"))))) == 0
    assert len(shorter.take(batch_of(arrivals(list("c"))))) == 1


@given(st.lists(identifiers, unique_by=str))
def test_different_ids_have_different_fingerprints_which_do_not_depend_on_their_neighbours(
    ids: list[str | int],
) -> None:
    together = fingerprints(ids)
    assert len(set(together.tolist())) == len(ids)
    assert [int(fingerprints([event_id])[0]) for event_id in ids] == together.tolist()


def test_ids_that_follow_one_another_have_different_fingerprints() -> None:
    assert len(np.unique(fingerprints([f"event-{number}" for number in range(200_000)]))) == 200_000


def test_an_id_takes_less_than_100_bytes() -> None:
    """Measure the size that the guarantees state, at a window that fills the set least."""
    window, size = 79_000, 7_900
    parts = fingerprints([f"e-{number}" for number in range(window + 2 * size)]).reshape(-1, size)
    rows = EventBatch.from_arrays(reward=np.ones(size), propensity=np.ones(size), policies={})
    offsets = np.arange(size)
    batches = [replace(rows, origin=Origin(TOPIC, np.zeros_like(offsets), offsets, identity)) for identity in parts]
    tracemalloc.start()
    try:
        stage = Deduplication(window)
        for batch in batches:
            assert len(stage.take(batch)) == size
        assert tracemalloc.get_traced_memory()[0] < 100 * window
    finally:
        tracemalloc.stop()


def test_fingerprints_are_the_same_in_every_version() -> None:
    """Compare with recorded values, because snapshots contain fingerprints."""
    recorded = [405949554014470194, 0, 15026085800773577291, 11340756792998685539]
    assert fingerprints(["e-81", "", 17, "x" * 100]).tolist() == recorded


@pytest.mark.parametrize("identifier", ["\ud800", "a\0", "a", "é", -1, 10**300])
def test_an_odd_id_has_a_fingerprint(identifier: str | int) -> None:
    assert fingerprints([identifier])[0] not in (0, fingerprints(["b"])[0])
    assert fingerprints(["a\0"]) != fingerprints(["a"])


def test_events_keep_the_origin_of_their_messages() -> None:
    origin = Origin.from_parts("clicks", [(2, [10, 12]), (5, [7])])
    batch = JsonDecoder([], identified=True).decode_batch([message(1), b"{}", message(3)], origin)
    assert batch.origin is not None
    assert [batch.origin.position(row) for row in range(2)] == [("clicks", 2, 10), ("clicks", 5, 7)]
    assert batch.origin.identity is not None
    assert batch.origin.identity.tolist() == fingerprints([1, 3]).tolist()
    assert batch.rejected[0].origin == ("clicks", 2, 12)
    assert JsonDecoder([]).decode_batch([message(1)]).origin is None


def test_an_origin_follows_its_events_through_cuts_and_files() -> None:
    batch = batch_of(arrivals(list("abc")))
    joined = type(batch).concat([batch[2:], batch.take(np.array([1, 0]))])
    kept = type(batch).from_state(through_a_file(joined.to_state()))
    assert arrivals_of(kept) == [(0.0, 0, 2), (0.0, 0, 1), (0.0, 0, 0)]
    assert kept.origin is not None
    assert kept.origin.identity is not None
    assert kept.origin.identity.tolist() == fingerprints(["c", "b", "a"]).tolist()


def test_decisions_without_rewards_are_events_if_rewards_come_separately() -> None:
    decision = b'{"event_id": 1, "timestamp": 1, "action": 1, "propensity": 0.5}'
    odd = decision[:-1] + b', "reward": {"pending": true}}'
    batch = JsonDecoder([], rewarded=False, reward_range=(0, 1)).decode_batch([decision, odd])
    assert np.isnan(batch.reward).all()
    assert len(batch) == 2
    assert JsonDecoder([]).decode_batch([decision]).rejected[0].reason == "missing_field"
