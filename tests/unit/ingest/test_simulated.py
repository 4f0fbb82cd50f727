"""Test the simulated recommender as a source: its wire format, pace, truth and end."""

from __future__ import annotations

import datetime as dt
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streameval.errors import InputError
from streameval.events import JsonDecoder
from streameval.ingest.base import Records
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings, SimulatedSource
from streameval.simulation import draw_block

MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CANDIDATES = ["candidate-1", "candidate-2", "candidate-3"]


class Clock:
    """Advance only in `sleep`."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def settings(**options: object) -> SimulatedSettings:
    return SimulatedSettings.model_validate({"events": 3_000, "rate": 0, "start_time": MIDNIGHT, **options})


def source(clock: Clock, position: int = 0, **options: object) -> SimulatedSource:
    return SimulatedSource(settings(**options), position=position, now=clock, clock=clock, sleep=clock.sleep)


def drained(one: SimulatedSource) -> list[Records]:
    records: list[Records] = []
    while not one.status().exhausted:
        records += one.poll(1.0)
    return records


def values_of(records: list[Records]) -> list[bytes]:
    return [value for chunk in records for value in chunk.values if value is not None]


@pytest.mark.parametrize("action_sets", [False, True])
def test_the_bytes_decode_to_the_columns_that_were_drawn(action_sets: bool) -> None:
    recommender = SimulatedRecommender(settings(action_sets=action_sets, events=2_200))
    decoded = JsonDecoder(CANDIDATES, reward_range=(0.0, 1.0)).decode_batch(recommender.lines())
    drawn = [draw_block(recommender.world, recommender.drift, block, seed=1) for block in (0, 1)]
    assert len(decoded) == 2_200
    assert decoded.rejected == ()
    assert decoded.timestamp[:2] - MIDNIGHT.timestamp() == pytest.approx([0.0, 0.001], abs=1e-6)
    first = drawn[0].columns(action_sets=action_sets)
    assert np.array_equal(decoded.reward[:2_000], first.reward)
    assert np.array_equal(decoded.propensity[:2_000], first.propensity)
    assert np.array_equal(decoded.probabilities[:2_000], first.probabilities)
    assert np.array_equal(decoded.reward[2_000:], drawn[1].reward[:200])
    if action_sets:
        sets, expected = decoded[:2_000].action_sets, first.action_sets
        assert sets is not None
        assert expected is not None
        assert np.array_equal(sets.index, expected.index)
        assert np.array_equal(sets.features.values, expected.features.values)
        assert np.array_equal(sets.propensities, expected.propensities)
        assert np.array_equal(sets.probabilities, expected.probabilities)


def test_equal_settings_make_equal_bytes_and_another_seed_makes_others() -> None:
    one, same, other = (list(SimulatedRecommender(settings(seed=seed, events=100)).lines()) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_the_source_ends_after_its_events_with_offsets_in_order() -> None:
    one = source(Clock())
    records = drained(one)
    assert [offset for chunk in records for offset in chunk.offsets] == list(range(3_000))
    assert one.poll(1.0) == []
    assert one.status().exhausted
    assert one.status().reached
    assert one.status().lag == 0


def test_a_source_continues_where_another_one_stopped() -> None:
    whole = values_of(drained(source(Clock())))
    assert values_of(drained(source(Clock(), position=1_234))) == whole[1_234:]


def test_events_come_at_the_rate_and_wait_for_a_slow_reader() -> None:
    clock = Clock()
    one = source(clock, rate=1_000, events=None)
    assert sum(len(chunk) for chunk in one.poll(0.5)) == pytest.approx(50, abs=1)
    clock.time += 0.2
    assert one.status().lag == pytest.approx(200, abs=1)
    assert sum(len(chunk) for chunk in one.poll(0.5)) == pytest.approx(200, abs=1)
    assert clock.time == pytest.approx(100.25)
    clock.time += 10.0
    assert sum(len(chunk) for _ in range(10) for chunk in one.poll(0.0)) == pytest.approx(10_000, abs=1)
    assert not one.status().exhausted


def test_a_poll_waits_at_most_for_its_timeout() -> None:
    clock = Clock()
    one = source(clock, rate=1.0)
    assert one.poll(0.01) == []
    assert clock.time == pytest.approx(100.01)


def test_timestamps_advance_at_the_rate_from_the_start_time() -> None:
    events = [json.loads(line) for line in islice(SimulatedRecommender(settings(rate=250)).lines(), 3)]
    assert [event["timestamp"] - MIDNIGHT.timestamp() for event in events] == pytest.approx([0, 0.004, 0.008], abs=1e-6)


def test_without_a_start_time_events_happen_now() -> None:
    clock = Clock()
    for rate, expected in ((100, [100.0, 100.01]), (0, [100.0, 100.0])):
        recommender = SimulatedRecommender(settings(rate=rate, start_time=None), now=clock)
        events = [json.loads(line) for line in islice(recommender.lines(), 2)]
        assert [event["timestamp"] for event in events] == pytest.approx(expected)


def test_the_truth_moves_with_the_world_and_is_listed_for_every_hundred_events() -> None:
    one = source(Clock(), drift="abrupt", span=1_000)
    values = [one.recommender.truth(one.position)]
    while not one.status().exhausted:
        one.poll(1.0)
        values.append(one.recommender.truth(one.position))
    best = [max(CANDIDATES, key=value.__getitem__) for value in values[1:]]
    assert best == ["candidate-2", "candidate-3"]
    listed = [json.loads(line) for line in one.recommender.truth_lines()]
    assert [row["events"] for row in listed] == list(range(100, 3_001, 100))
    assert listed[-1]["truth"] == pytest.approx(one.recommender.truth(one.position))
    assert list(listed[0]["truth"]) == ["logging", *CANDIDATES]


def test_a_prepared_world_is_read_from_its_file(tmp_path: Path) -> None:
    world = SimulatedRecommender(settings(candidates=5)).world
    np.savez(
        tmp_path / "world.npz",
        item_features=world.item_features,
        user_indptr=world.liked_start,
        user_items=world.liked_items,
        user_cluster=world.user_cluster,
        theta=world.theta,
    )
    prepared = SimulatedRecommender(settings(world=str(tmp_path / "world.npz"), candidates=["a", "b"]))
    assert prepared.world.candidates == ("a", "b")
    assert prepared.world.value == pytest.approx(world.value[:, :3])


@pytest.mark.parametrize("content", [b"", b"not a world", b"PK\x03\x04 torn", None])
def test_a_file_that_is_not_a_world_is_an_input_error_with_a_hint(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "world.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="is not a world") as caught:
        SimulatedRecommender(settings(world=str(path)))
    assert "item_features" in caught.value.hint


CYCLE = {"period": "1h", "amplitude": 0.5, "peak": "15m"}


def test_a_cycle_brings_more_events_and_rewards_at_its_peak_and_the_truth_follows() -> None:
    recommender = SimulatedRecommender(settings(events=20_000, rate=5, drift="stationary", cycle=CYCLE))
    events = JsonDecoder(CANDIDATES, reward_range=(0.0, 1.0)).decode_batch(recommender.lines())
    phase = (events.timestamp - MIDNIGHT.timestamp()) % 3600
    peak, trough = np.abs(phase - 900) < 300, np.abs(phase - 2_700) < 300
    assert np.all(np.diff(events.timestamp) > 0)
    assert np.count_nonzero(peak) / np.count_nonzero(trough) == pytest.approx(3.0, rel=0.15)
    assert events.reward[peak].mean() / events.reward[trough].mean() == pytest.approx(3.0, rel=0.25)
    even = SimulatedRecommender(settings(rate=5, drift="stationary")).truth(100)["logging"]
    truth = np.array([recommender.truth(number + 1)["logging"] for number in np.flatnonzero(peak)[::50]])
    assert events.reward[peak].mean() == pytest.approx(truth.mean(), rel=0.1)
    assert 0.9 * even < truth.max() <= even


def test_pages_follow_a_cycle_too() -> None:
    recommender = SimulatedRecommender(settings(events=2_000, rate=0.5, world="rankings", cycle=CYCLE))
    lines = [json.loads(line) for line in recommender.lines()]
    clicks = np.array([len(line["ranking"]["clicked"]) for line in lines])
    phase = np.array([line["timestamp"] for line in lines]) % 3600
    assert clicks[np.abs(phase - 900) < 450].mean() > 1.5 * clicks[np.abs(phase - 2_700) < 450].mean()


def test_a_source_with_a_cycle_delivers_events_when_they_happen() -> None:
    clock = Clock()
    one = source(clock, events=20_000, rate=5, cycle=CYCLE)
    delivered = 0
    for _ in range(60):
        clock.sleep(30.0)
        values = values_of(one.poll(1.0))
        delivered += len(values)
        newest = json.loads(values[-1])["timestamp"]
        assert newest <= MIDNIGHT.timestamp() + clock.time - 100.0
    assert delivered == pytest.approx(5 * 1_800 * (1 + 1 / np.pi), rel=0.01)


def test_settings_without_a_cycle_keep_their_identity() -> None:
    assert "cycle" not in settings().identity()
    assert settings(cycle=CYCLE).identity() != settings().identity()
