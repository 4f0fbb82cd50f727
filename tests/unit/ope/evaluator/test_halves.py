"""Test the two halves of a fold: sums as a pure function of events, and the state that follows from sums alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import to_plain
from streameval.events.origin import Origin
from streameval.ope.evaluator import halves, rooms, weighing
from streameval.ope.evaluator.halves import Sums
from streameval.ope.evaluator.weighing import Weighed
from streameval.ope.evidence import largest_weights

EVENTS, BLOCK, CANDIDATES = 2_000, 100, ["one", "two"]
RULES = ["paired", "anytime", "sea", "bsea"]


def log(units: bool = False, thinned: bool = False) -> EventBatch:
    """Draw events of two candidates. Some events lack the second one."""
    rng = np.random.default_rng(3)
    propensity = rng.uniform(0.1, 1.0, EVENTS)
    policies = {name: np.clip(propensity * rng.gamma(2, 0.5, EVENTS), 0, 1) for name in CANDIDATES}
    policies["two"][rng.random(EVENTS) < 0.1] = np.nan
    batch = EventBatch.from_arrays(
        reward=(rng.random(EVENTS) < 0.3) * 1.0,
        propensity=propensity,
        policies=policies,
        timestamp=1_000.0 + np.arange(EVENTS),
        **({"unit": [f"u{index % 40}" for index in range(EVENTS)]} if units else {}),
        **({"sampling_probability": rng.choice([0.5, 1.0], EVENTS)} if thinned else {}),
    )
    return replace(batch, origin=Origin.from_parts("log", [(0, range(EVENTS))]))


def slates() -> EventBatch:
    """Draw slates of three slots."""
    rng = np.random.default_rng(4)
    shown = rng.integers(0, 2, (EVENTS, 3))
    policies = {name: np.where(shown == 1, share, 1 - share) for name, share in (("one", 0.7), ("two", 0.4))}
    times = 1_000.0 + np.arange(EVENTS)
    return EventBatch.from_arrays(
        reward=shown.mean(axis=1), propensity=np.full(shown.shape, 0.5), policies=policies, timestamp=times
    )


LOGS = {
    "plain": (log(), {"promotion": {"rule": RULES, "hold": 1, "min_events": 100}}),
    "units": (log(units=True), {"promotion": RULES}),
    "thinned": (log(thinned=True), {"promotion": RULES}),
    "slates": (slates(), {"estimators": ["pseudo_inverse", "iips"]}),
}


def weighed_by(evaluator: Evaluator, events: EventBatch) -> Weighed:
    """Return events as an evaluator weighs them."""
    config = evaluator.config
    return weighing.weighed(config, evaluator._grids, evaluator._state, events.with_policies(config.columns))


def sums_of(evaluator: Evaluator, events: EventBatch) -> Sums:
    """Compute half 1 of some events, without grids because their coefficients follow the blocks before."""
    weighed = weighed_by(evaluator, events)
    context = evaluator.config, evaluator._grids, evaluator._state
    return msgspec.structs.replace(halves.summarise_blocks(*context, weighed, events, evaluator._monitor), grids=())


def blocks_by_path(value: Any, path: str = "") -> dict[str, Any]:
    """Return all arrays and numbers inside a value by their path."""
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, Origin):
        value = {"partition": value.partition, "offset": value.offset}
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {
            key: inner
            for name, field in value.items()
            for key, inner in blocks_by_path(field, f"{path}/{name}").items()
        }
    return {path: value}


@pytest.mark.parametrize("case", LOGS)
def test_the_sums_of_blocks_do_not_depend_on_how_the_stream_is_cut(case: str) -> None:
    """Compare signs of units too, which depend on earlier events. They are equal if every event has a unit."""
    events, options = LOGS[case]
    evaluator = Evaluator(CANDIDATES, block=BLOCK, **cast(Any, options))
    whole = blocks_by_path(sums_of(evaluator, events))
    parts = [blocks_by_path(sums_of(evaluator, events[first : first + 500])) for first in range(0, EVENTS, 500)]
    blocks = [key for key, array in whole.items() if isinstance(array, np.ndarray) and len(array) == EVENTS // BLOCK]
    assert len(blocks) > 20
    for key in blocks:
        np.testing.assert_array_equal(np.concatenate([sums[key] for sums in parts]), whole[key], err_msg=key)


@pytest.mark.parametrize("case", LOGS)
def test_sums_that_come_from_another_process_make_the_same_state(case: str) -> None:
    events, options = LOGS[case]
    here, there = (Evaluator(CANDIDATES, block=BLOCK, **cast(Any, options)) for _ in range(2))
    whole = halves.summarise_blocks
    for first in range(0, EVENTS, 1_000):
        here.update(events[first : first + 1_000])
        here.fold_pending()
    with pytest.MonkeyPatch.context() as patch:

        def sent(*arguments: Any) -> Sums:
            return received(msgspec.msgpack.encode(whole(*arguments), enc_hook=to_plain))

        patch.setattr(halves, "summarise_blocks", sent)
        for first in range(0, EVENTS, 1_000):
            there.update(events[first : first + 1_000])
            there.fold_pending()
    assert there.state() == here.state()
    assert there.report() == here.report()


def received(data: bytes) -> Sums:
    """Decode sums from bytes."""
    return msgspec.msgpack.decode(data, type=Sums, dec_hook=rooms.decoded)


def test_numbers_that_are_left_out_because_larger_ones_are_known_change_no_state() -> None:
    events, options = LOGS["plain"]
    evaluator = Evaluator(CANDIDATES, block=BLOCK, **cast(Any, options))
    evaluator.update(events[:1_000])
    evaluator.fold_pending()
    before, weighed = evaluator._state.weights, weighed_by(evaluator, events[1_000:])
    evidence, rest = weighed.every[0], weighed.events
    some = largest_weights.summarise(evidence, rest, before.events, largest_weights.floor(before))
    every = largest_weights.summarise(evidence, rest, before.events)
    assert (some.numbers != every.numbers).any()
    states = [largest_weights.fold(before, numbers) for numbers in (some, every)]
    np.testing.assert_array_equal(states[0].largest, states[1].largest)
