"""Test that buffered events are equal off the heap."""

from __future__ import annotations

import mmap
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from streameval.events import EventBatch, JsonDecoder
from streameval.events.origin import Origin
from streameval.ingest.stages.buffer import HeldEvents, off_heap
from support.messages import message
from support.strategies import encode

EVENTS = 1000
CHANCES = np.random.default_rng(3).uniform(0.1, 0.9, (EVENTS, 3))
MESSAGE = {"timestamp": 1.5, "context": {"hour": 9}, "actions": ["a", "b"], "propensities": [0.5, 0.5], "action": "b"}


def compact() -> EventBatch:
    policies = {"x": CHANCES[:, 0], "y": CHANCES[:, 1]}
    return EventBatch.from_arrays(
        reward=np.arange(EVENTS), propensity=CHANCES[:, 2], policies=policies, unit=[f"u{row}" for row in range(EVENTS)]
    )


def action_sets() -> EventBatch:
    features = np.arange(6.0 * EVENTS).reshape(EVENTS, 3, 2)
    halves = np.tile([0.25, 0.25, 0.5], (EVENTS, 1))
    return EventBatch.from_arrays(
        reward=np.arange(EVENTS),
        action=np.arange(EVENTS) % 3,
        propensities=halves,
        features=features,
        policies={"x": halves, "y": CHANCES[:, 1]},
    )


def slates() -> EventBatch:
    halves = np.tile([0.25, 0.25, 0.5], (EVENTS, 2, 1))
    return EventBatch.from_arrays(
        reward=np.arange(EVENTS), action=np.ones((EVENTS, 2), int), propensities=halves, policies={"x": halves}
    )


def read_messages() -> EventBatch:
    messages = [encode(MESSAGE | {"event_id": row, "reward": row % 2}) for row in range(EVENTS)]
    events = JsonDecoder(["x"], scores=[], identified=True)
    return events.decode_batch(messages, Origin.from_parts("clicks", [(7, range(EVENTS))]))


def arrays(value: Any) -> list[np.ndarray]:
    if is_dataclass(value):
        return [array for field in fields(value) for array in arrays(getattr(value, field.name))]
    return [value] if isinstance(value, np.ndarray) else []


def memory_of(array: np.ndarray) -> object:
    """Return the object that holds the bytes of an array."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


@pytest.mark.parametrize("make", [compact, action_sets, slates, read_messages])
def test_events_off_the_heap_are_equal(make: Any) -> None:
    batch = make()
    copy = off_heap(batch)
    assert copy.to_state() == batch.to_state()
    assert len({id(memory_of(array)) for array in arrays(copy)}) == 1
    assert all(isinstance(memory_of(array), mmap.mmap) for array in arrays(copy))
    for one, other in zip(arrays(copy), arrays(batch), strict=True):
        assert (one.flags.c_contiguous, one.flags.f_contiguous) == (other.flags.c_contiguous, other.flags.f_contiguous)


def test_a_slice_of_a_batch_is_contiguous_off_the_heap() -> None:
    rows = compact()[100:900]
    copy = off_heap(rows)
    assert copy.probabilities.T.flags.c_contiguous
    assert copy.to_state() == rows.to_state()


def test_few_events_stay_on_the_heap() -> None:
    few = compact()[:10]
    assert off_heap(few) is few


def test_only_events_after_the_latest_time_are_redated() -> None:
    held = HeldEvents()
    for partition, times in enumerate([[1.0, 5.0, 9.0], [2.0, 5.0]]):
        messages = [message(number, timestamp=time) for number, time in enumerate(times)]
        held.add(JsonDecoder([]).decode_batch(messages, Origin.from_parts("clicks", [(partition, range(len(times)))])))
    assert held.redate(latest=5.0, now=4.0) == 1
    assert held.take().timestamp.tolist() == [1.0, 2.0, 4.0, 5.0, 5.0]
