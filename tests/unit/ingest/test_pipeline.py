"""Test that events pass the pipeline alike however messages arrive, and over restarts at any point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streameval.config.model import Config, RewardSettings
from streameval.events import EventBatch, JsonDecoder
from streameval.events.arrow_messages import arrow_message
from streameval.ingest import groups, pipeline
from streameval.ingest.base import Records, TopicPartition
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.stages import ClockBehindError
from streameval.service.startup import resume, start_fresh
from support.messages import message
from support.snapshots import snapshot_of

TOPIC, REWARDS, PARTITIONS = "decisions", "rewards", 3
EVENTS = 600


def config(**source: Any) -> Config:
    patience = {"max_lateness": "2s", "idle_timeout": "5s"}
    return Config.model_validate(
        {"source": {"kind": "kafka", "topic": TOPIC} | patience | source, "policies": {"candidates": ["a"]}}
    )


def event(number: int, **fields: Any) -> bytes:
    common = {
        "event_id": f"e-{number}",
        "timestamp": 1000.0 + 0.1 * number,
        "reward": number % 2,
        "policies": {"a": 0.5},
        "place": number % 4,
    }
    return message(number, **(common | fields))


class Log:
    """Hold partitions of messages, and how far a reader is in each."""

    def __init__(self, parts: dict[tuple[str, int], list[bytes]]) -> None:
        self.parts, self.positions = parts, dict.fromkeys(parts, 0)

    def read(self, chance: np.random.Generator) -> list[Records]:
        """Read some messages of some partitions."""
        polled = []
        for (topic, partition), values in self.parts.items():
            first = self.positions[topic, partition]
            some = values[first : first + int(chance.integers(0, 40))]
            if some:
                self.positions[topic, partition] += len(some)
                polled.append(Records(topic, partition, range(first, first + len(some)), some))
        return polled

    def partitions(self, ended: bool = False) -> dict[TopicPartition, float | None]:
        """Return all partitions with the time when their end was seen.

        Args:
            ended: Whether a request has shown that no messages wait.
        """
        return dict.fromkeys(self.positions, 1e9 if ended else None)

    @property
    def ended(self) -> bool:
        return all(self.positions[source] == len(values) for source, values in self.parts.items())


def spread(count: int = EVENTS, copies: int = 0) -> Log:
    """Spread events over partitions.

    Args:
        copies: How many times more the first of every ten events is sent.
    """
    parts: dict[tuple[str, int], list[bytes]] = {(TOPIC, partition): [] for partition in range(PARTITIONS)}
    for number in range(count):
        repeated = 1 + copies * (number % 10 == 0)
        parts[TOPIC, number * 7 % 11 % PARTITIONS] += [event(number)] * repeated
    return Log(parts)


def restarted(intake: EventPipeline, settings: Config) -> EventPipeline:
    goal, *further = settings.reward_fields
    again = EventPipeline(settings.event_format(), settings.required_source(), goal.field, further=further)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(intake.state())))
    return again


def went_through(intake: EventPipeline, log: Log, settings: Config, restarts: bool, seed: int) -> EventBatch:
    """Read the whole log. Return all events that come out, in their order, with all that were rejected."""
    chance, passed = np.random.default_rng(seed), []
    while not log.ended:
        passed.append(intake.take(log.read(chance), log.partitions()))
        if restarts and chance.random() < 0.3:
            intake = restarted(intake, settings)
    passed.append(intake.take([], log.partitions(ended=True)))
    return EventBatch.concat(passed)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_event_time_orders_events_however_partitions_are_read(restarts: bool, seed: int) -> None:
    settings = config(order="event_time", duplicates=100)
    out = went_through(start_fresh(settings).pipeline, spread(copies=2), settings, restarts, seed)
    np.testing.assert_allclose(out.timestamp, 1000.0 + 0.1 * np.arange(EVENTS))
    assert [rejection.reason for rejection in out.rejected] == ["duplicate"] * (2 * EVENTS // 10)


@pytest.mark.parametrize("restarts", [False, True])
def test_copies_in_two_partitions_count_once_even_if_one_is_read_long_before_the_other(
    restarts: bool,
) -> None:
    """Read 600 events between two copies while catching up. A live reader gets them one after the other."""
    settings = config(order="event_time", duplicates=100)
    sent = [event(number) for number in range(EVENTS)]
    log, intake, passed = Log({(TOPIC, partition): sent for partition in range(3)}), start_fresh(settings).pipeline, []
    for source in log.parts:
        log.positions[source] = EVENTS
        passed.append(intake.take([Records(*source, range(EVENTS), sent)], log.partitions()))
        if restarts:
            intake = restarted(intake, settings)
    out = EventBatch.concat([*passed, intake.take([], log.partitions(ended=True))])
    np.testing.assert_allclose(out.timestamp, 1000.0 + 0.1 * np.arange(EVENTS))
    assert [rejection.reason for rejection in out.rejected] == ["duplicate"] * 2 * EVENTS


@pytest.mark.parametrize("restarts", [False, True])
def test_in_arrival_order_each_event_counts_once_and_none_waits(restarts: bool) -> None:
    settings = config(order="arrival", duplicates=100)
    pipeline = start_fresh(settings).pipeline
    assert list(pipeline.ahead()) == []
    out = went_through(pipeline, spread(copies=1), settings, restarts, 3)
    np.testing.assert_allclose(np.sort(out.timestamp), 1000.0 + 0.1 * np.arange(EVENTS))
    assert len(out.rejected) == EVENTS // 10


@pytest.mark.parametrize("restarts", [False, True])
def test_several_separate_rewards_of_a_decision_are_joined(restarts: bool) -> None:
    late = {"topic": REWARDS, "window": "20s", "default": 0, "combine": "sum"}
    several = {"click": {}, "sale": {"max": 9}}
    added = {"rewards": several, "segments": {"place": {"most": 3}}}
    settings = Config.model_validate(config(rewards=late).model_dump(exclude_unset=True) | added)
    log = spread()
    messages = [
        {"event_id": f"e-{number}", "timestamp": 1000.0 + 0.1 * number + 3, **rewards}
        for number in range(0, EVENTS, 3)
        for rewards in ({"click": 1}, {"sale": 2.5}, {"sale": 1.5, "other": 7})
    ]
    log.parts[REWARDS, 0] = [
        json.dumps(message).encode() for message in [*messages, {"event_id": "e-1", "timestamp": 1e3}]
    ]
    log.positions[REWARDS, 0] = 0
    out = went_through(start_fresh(settings).pipeline, log, settings, restarts, 4)
    rewarded = np.arange(EVENTS) % 3 == 0
    np.testing.assert_allclose(out.reward, np.where(rewarded, 1.0, 0.0))
    assert out.further is not None
    np.testing.assert_allclose(out.further.column("sale"), np.where(rewarded, 4.0, 0.0))
    assert out.segments is not None
    members = settings.segments["place"].members(out.segments.column("place"))
    np.testing.assert_array_equal(members, [np.arange(EVENTS) % 4 == index for index in (1, 2, 3)])
    assert [rejection.detail for rejection in out.rejected] == ["click: missing, and so are all others of click, sale"]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("ahead", [60.0, 3_600.0, 300 * 86_400.0, 4e9])
def test_events_dated_ahead_count_and_make_no_other_too_late(joined: bool, ahead: float) -> None:
    """Date twenty in a row ahead, as one host with a wrong clock sends them to a partition at once.

    No snapshot keeps that clock.
    """
    late = {"rewards": {"topic": REWARDS, "window": "20s"}} if joined else {}
    settings = config(order="event_time", **late)
    pipeline, wrong = start_fresh(settings).pipeline, range(100, 120)
    times = [1000.0 + (ahead if number in wrong else 0.0) for number in range(300)]
    log = Log({(TOPIC, 0): [event(number, timestamp=time) for number, time in enumerate(times)]})
    clicks = [{"event_id": f"e-{number}", "timestamp": time + 3.0, "reward": 1} for number, time in enumerate(times)]
    if joined:
        log.parts[REWARDS, 0], log.positions[REWARDS, 0] = [json.dumps(click).encode() for click in clicks], 0
    out, chance, counted = [], np.random.default_rng(8), 0
    while not log.ended:
        out.append(pipeline.take(log.read(chance), log.partitions(), 1010.0))
        counted, state = counted + pipeline.ahead_of_clock, pipeline.state()
        pipeline = start_fresh(settings).pipeline
        pipeline.restore(state)
    batch = EventBatch.concat([*out, pipeline.take([], log.partitions(ended=True), 1010.0)])
    assert len(batch) == 300
    assert not batch.rejected
    assert batch.timestamp.max() <= 1010.0 + settings.required_source().clock_tolerance
    assert counted == (20 * (1 + joined) if ahead > 300.0 else 0)
    assert not joined or batch.reward.sum() == 300.0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_events_dated_ahead_count_even_if_the_clock_of_this_machine_was_ahead(joined: bool, restarts: bool) -> None:
    """Buffer events as of their own time, which is in the future once the clock is right."""
    late = {"rewards": {"topic": REWARDS, "window": "20s"}} if joined else {}
    settings = config(order="event_time", **late)
    pipeline, chance = start_fresh(settings).pipeline, np.random.default_rng(9)
    years, days = 5 * 365 * 86_400.0, 300 * 86_400.0
    ahead = [1000.0 + 0.1 * number + days for number in range(60)]
    right = [1010.0 + 0.1 * number for number in range(60)]
    events = [event(number, timestamp=time) for number, time in enumerate([*ahead, *right])]
    clicks = [{"event_id": f"e-{row}", "timestamp": time + 3.0, "reward": 1} for row, time in enumerate(ahead + right)]
    log = Log({(TOPIC, 0): events[:60]})
    if joined:
        rewards = [json.dumps(click).encode() for click in clicks]
        log.parts[REWARDS, 0], log.positions[REWARDS, 0] = rewards[:60], 0
    taken = []
    while not log.ended:
        taken.append(pipeline.take(log.read(chance), log.partitions(), 1010.0 + years))
    pipeline = restarted(pipeline, settings) if restarts else pipeline
    log.parts[TOPIC, 0] = events
    if joined:
        log.parts[REWARDS, 0] = rewards
    while not log.ended:
        taken.append(pipeline.take(log.read(chance), log.partitions(), 1020.0))
    batch = EventBatch.concat([*taken, pipeline.take([], log.partitions(ended=True), 1020.0)])
    assert len(batch) == 120
    assert not batch.rejected
    assert pipeline.buffered().events == 0
    assert not joined or batch.reward.sum() == 120.0


def test_no_event_counts_while_the_clock_is_years_behind() -> None:
    """Withhold events at the start and after the clock has been right. They come when it is right again."""
    pipeline, log = start_fresh(config(order="event_time")).pipeline, Log({(TOPIC, 0): [event(n) for n in range(60)]})
    records = [Records(TOPIC, 0, range(60), log.parts[TOPIC, 0])]
    later = [Records(TOPIC, 0, range(60, 61), [event(60)])]
    years = 5 * 365 * 86_400.0
    with pytest.raises(ClockBehindError, match="5 years behind"):
        pipeline.take(records, log.partitions(), 1010.0 - years)
    taken = [pipeline.take(records, log.partitions(), 1010.0)]
    with pytest.raises(ClockBehindError):
        pipeline.take(later, log.partitions(), 1010.0 - years)
    taken += [pipeline.take(later, log.partitions(), 1010.0), pipeline.take([], log.partitions(ended=True), 1010.0)]
    assert sum(map(len, taken)) == 61


YEARS, DAY = 5 * 365 * 86_400.0, 86_400.0
RIGHT = 1010.0
"""Correct time at which these tests read their events."""


class Reader:
    """Read events of one partition as the daemon does. Withheld events come again with the next ones."""

    def __init__(self, times: list[Any]) -> None:
        self.pipeline, self.number = start_fresh(config(order="arrival")).pipeline, 0
        self._events = [event(number, timestamp=time) for number, time in enumerate(times)]
        self._withheld: list[Records] = []

    def poll(self, count: int, now: float) -> int | None:
        """Return the number of events that count after a poll of `count` events, or None if all are withheld."""
        numbers = range(self.number, self.number + count)
        self.number = numbers.stop
        if count:
            self._withheld.append(Records(TOPIC, 0, numbers, self._events[numbers.start : numbers.stop]))
        try:
            batch = self.pipeline.take(self._withheld, {(TOPIC, 0): None}, now)
        except ClockBehindError:
            return None
        self._withheld = []
        return len(batch)


@pytest.mark.parametrize("size", [1, 5, 19])
def test_no_event_counts_while_the_clock_is_years_behind_however_few_are_polled(size: int) -> None:
    reader = Reader([1000.0 + 0.1 * number for number in range(100)])
    waits = [reader.poll(size, RIGHT - YEARS + 5.0 * number) for number in range(40 // size)]
    waits += [reader.poll(0, RIGHT - YEARS + DAY) if reader.number >= 20 else None]
    assert waits == [None] * len(waits)
    assert reader.poll(size, RIGHT) == reader.number
    assert reader.poll(size, RIGHT - YEARS) is None, "the events so far have shown the time"
    assert reader.poll(0, RIGHT - YEARS + DAY) is None
    assert reader.poll(0, RIGHT) == size
    assert reader.pipeline.ahead_of_clock == 0


def test_a_producer_with_a_wrong_clock_delays_the_only_events_of_a_quiet_topic_by_ten_minutes() -> None:
    reader = Reader([RIGHT + 2 * DAY] * 4)
    assert [reader.poll(1, RIGHT + wait) for wait in (0.0, 300.0, 599.0)] == [None] * 3
    assert reader.poll(0, RIGHT + 600.0) == 3
    assert reader.poll(1, RIGHT + 601.0) == 1, "the next one is not withheld"
    assert reader.pipeline.ahead_of_clock == 4


def test_a_producer_with_a_wrong_clock_delays_no_event_once_another_producer_shows_the_time() -> None:
    reader = Reader([RIGHT + 2 * DAY, ..., RIGHT, *[RIGHT + 2 * DAY] * 30])
    assert reader.poll(1, RIGHT) is None
    assert reader.poll(1, RIGHT + 10.0) is None
    assert reader.poll(1, RIGHT + 20.0) == 2
    assert reader.poll(30, RIGHT + 30.0) == 30
    assert reader.pipeline.ahead_of_clock == 31


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("right", "waits"), [(30, []), (1, [None] * 2), (0, [None] * 2)])
def test_a_quiet_topic_continues_after_the_clocks_of_a_producer_and_of_this_machine_were_ahead(
    right: int, waits: list[None], restarts: bool
) -> None:
    """Read the last dozen events with a clock that did not show that they were dated ahead.

    Continue at once if earlier events have shown the time, otherwise after few events have shown no time for long.
    """
    reader = Reader([*[RIGHT] * right, *[RIGHT + 300 * DAY] * 12])
    assert [reader.poll(right, RIGHT + YEARS), reader.poll(12, RIGHT + YEARS)] == [right, 12]
    if restarts:
        reader.pipeline = restarted(reader.pipeline, config(order="arrival"))
    assert [reader.poll(0, RIGHT + wait) for wait in (1.0, 300.0)[: len(waits)]] == waits
    assert reader.poll(0, RIGHT + (601.0 if waits else 1.0)) == 0


def test_rewards_alone_show_that_the_clock_is_behind() -> None:
    settings = config(rewards={"topic": REWARDS, "window": "20s", "default": 0})
    pipeline, log = start_fresh(settings).pipeline, Log({(TOPIC, 0): [], (REWARDS, 0): []})
    click = json.dumps({"event_id": "e-1", "timestamp": RIGHT, "reward": 1}).encode()
    with pytest.raises(ClockBehindError):
        pipeline.take([Records(REWARDS, 0, range(1), [click])], log.partitions(), RIGHT - YEARS)


def test_joined_rewards_out_of_range_are_rejected_with_the_origin_of_their_decision() -> None:
    """Join two rewards within the range. Their sum is not within it."""
    settings = config(rewards={"topic": REWARDS, "window": "20s", "default": 0, "combine": "sum"})
    log = Log({(TOPIC, 0): [event(number) for number in range(20)]})
    clicks = [{"event_id": f"e-{number}", "timestamp": 1003.0, "reward": 1} for number in (3, 5, 7, 5)]
    log.parts[REWARDS, 0], log.positions[REWARDS, 0] = [json.dumps(click).encode() for click in clicks], 0
    out = went_through(start_fresh(settings).pipeline, log, settings, restarts=False, seed=7)
    assert len(out) == 19
    assert out.reward.sum() == 2.0
    (rejected,) = out.rejected
    assert (rejected.reason, rejected.origin) == ("reward_range", (TOPIC, 0, 5))
    assert rejected.detail == "reward: 2 is not in [0, 1]"


def test_joined_rewards_beyond_their_range_are_clipped() -> None:
    """Join two rewards within the range. Their sum is not within it."""
    settings = config(rewards={"topic": REWARDS, "window": "20s", "default": 0, "combine": "sum"})
    clipping = settings.model_copy(update={"reward": RewardSettings(above="clip")})
    log = Log({(TOPIC, 0): [event(number) for number in range(20)]})
    clicks = [{"event_id": f"e-{number}", "timestamp": 1003.0, "reward": 1} for number in (3, 5, 7, 5)]
    log.parts[REWARDS, 0], log.positions[REWARDS, 0] = [json.dumps(click).encode() for click in clicks], 0
    evaluator = clipping.evaluator()
    evaluator.update(went_through(start_fresh(clipping).pipeline, log, clipping, restarts=False, seed=7))
    report = evaluator.report()
    assert (report.events.accepted, report.events.rejected) == (20, {})
    (clipped,) = report.clipped
    assert (clipped.above, clipped.worth) == (1, pytest.approx(1 / 20))


def test_every_input_rejects_a_reward_out_of_range_alike() -> None:
    """Reject it in the decoder of messages, as a row of a frame, joined, and from arrays in the evaluator."""
    row = {"timestamp": 1000.0, "action": "x", "propensity": 0.5, "reward": 2.0, "challenger": 0.5}
    click = {"event_id": "e-5", "timestamp": 1003.0, "reward": 2}
    settings = config(rewards={"topic": REWARDS, "window": "20s", "default": 0})
    log = Log({(TOPIC, 0): [event(number) for number in range(10)], (REWARDS, 0): [json.dumps(click).encode()]})
    frame = EventBatch.from_frame({name: [value] for name, value in row.items()}, reward_range=(0.0, 1.0))
    arrays = EventBatch.from_arrays(reward=[2.0], propensity=[0.5])
    batches = [
        JsonDecoder([], reward_range=(0.0, 1.0)).decode_batch([event(1, reward=2)]),
        frame,
        went_through(start_fresh(settings).pipeline, log, settings, restarts=False, seed=7),
        arrays.with_rewards_in(0.0, 1.0),
    ]
    rejections = [[(rejection.reason, rejection.detail) for rejection in batch.rejected] for batch in batches]
    assert rejections == [[("reward_range", "reward: 2 is not in [0, 1]")]] * 4


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({"order": "arrival"}, ["order"]),
        ({"order": "arrival", "duplicates": 10}, ["duplicates", "order"]),
        ({"order": "event_time", "duplicates": 10}, ["duplicates", "order", "later_duplicates"]),
    ],
)
def test_only_configured_stages_have_a_state(options: dict[str, Any], stages: list[str]) -> None:
    pipeline = start_fresh(config(**options)).pipeline
    pipeline.decide(spread().partitions())
    state = pipeline.state()
    assert [name for name in ("duplicates", "order", "later_duplicates") if state[name] is not None] == stages


def test_the_default_order_is_arrival_for_one_partition_and_event_time_for_several() -> None:
    one, several = start_fresh(config()).pipeline, start_fresh(config()).pipeline
    alone = Log({(TOPIC, 0): [event(number) for number in range(20)]})
    assert len(one.take(alone.read(np.random.default_rng(9)), alone.partitions())) > 0
    assert not one.by_time
    assert one.buffered() is None
    log = spread(30)
    several.take(log.read(np.random.default_rng(9)), log.partitions())
    assert several.by_time
    holding = several.buffered()
    assert holding is not None
    assert holding.events > 0


def test_the_first_decision_on_order_stays_when_partitions_are_added() -> None:
    intake = start_fresh(config()).pipeline
    alone = Log({(TOPIC, 0): [event(number) for number in range(20)]})
    intake.take(alone.read(np.random.default_rng(9)), alone.partitions())
    again = restarted(intake, config())
    log = spread(30)
    again.take(log.read(np.random.default_rng(9)), log.partitions())
    assert not again.by_time


def test_buffered_events_are_released_when_the_order_changes_to_arrival() -> None:
    before, after = config(order="event_time"), config(order="arrival")
    log, chance = spread(60), np.random.default_rng(5)
    intake = start_fresh(before).pipeline
    first = intake.take(log.read(chance), log.partitions())
    again = restarted(intake, after)
    saved = restarted(again, after)
    rest = saved.take(log.read(chance), log.partitions())
    read = sum(log.positions.values())
    assert len(first) + len(rest) == read
    assert saved.buffered() is None


def test_buffered_events_have_no_evidence_about_a_policy_that_was_reset() -> None:
    """Drop their evidence, because they describe the policy before it was retrained."""
    settings = config(rewards={"topic": REWARDS, "window": "20s"})
    daemon, log, chance = start_fresh(settings), spread(), np.random.default_rng(11)
    log.parts[REWARDS, 0], log.positions[REWARDS, 0] = [], 0
    while not log.ended:
        daemon.evaluator.update(daemon.pipeline.take(log.read(chance), log.partitions()))
    daemon.evaluator.update(daemon.pipeline.take([], log.partitions(ended=True), 1e9))
    first = [event(EVENTS + number, policies={"a": 1.0}) for number in range(300)]
    daemon.evaluator.update(daemon.pipeline.take([Records(TOPIC, 0, range(300), first)], log.partitions()))
    continued = resume(settings, Path("a snapshot"), snapshot_of(settings, daemon), ["a"])
    changing, intake = continued.evaluator, continued.pipeline
    assert continued.late is not None
    changing.activate(continued.late)
    second = [event(EVENTS + 300 + number, policies={"a": 0.25}) for number in range(200)]
    changing.update(intake.take([Records(TOPIC, 0, range(300, 500), second)], log.partitions()))
    changing.update(intake.take([], log.partitions(ended=True), 1e9))
    counts = {policy.policy: (policy.events, policy.missing) for policy in changing.report().policies}
    assert counts == {"logging": (EVENTS + 500, 0), "a": (200, 300)}
    assert changing.report().get("a", "ips", "cumulative").importance_weight_max == 0.5


@pytest.mark.parametrize("backfills", [False, True])
def test_only_a_backfill_gives_a_new_candidate_the_events_buffered_before(
    backfills: bool,
) -> None:
    """Buffer events that were decoded without the candidate."""
    settings = config(order="event_time")
    started, log = start_fresh(settings), spread(20)
    assert len(started.pipeline.take(log.read(np.random.default_rng(1)), log.partitions())) == 0
    document = snapshot_of(settings, started)
    policies = settings.policies.model_copy(update={"candidates": ["a", "b"]})
    both = settings.model_copy(update={"policies": policies})
    late = resume(both, Path("a snapshot"), document, backfills=backfills).late
    assert (None if late is None else late.policies) == (("logging", "b") if backfills else None)


@pytest.mark.parametrize("ahead", ["live", "late"])
def test_two_readings_release_equal_events_whichever_sees_the_end_first(ahead: str) -> None:
    """Check that the second reading passes on no event that the live one still buffers."""
    settings = config(order="event_time")
    live = start_fresh(settings).pipeline
    late = live.second_reading()
    readings = {"live": live, "late": late}
    log, chance = spread(), np.random.default_rng(6)
    polls = [log.read(chance) for _ in range(6)]
    passed = {name: [reading.take(polled, log.partitions()) for polled in polls] for name, reading in readings.items()}
    passed[ahead].append(readings[ahead].take([], log.partitions(ended=True)))
    rest = late.hand_over()
    assert rest is not None
    passed["late"] += [rest, live.flush()]  # both readings share live events from now on
    passed["live"].append(passed["late"][-1])
    times = {name: sorted(EventBatch.concat(parts).timestamp.tolist()) for name, parts in passed.items()}
    assert times["live"] == times["late"]


def test_a_second_reading_is_handed_over_once_earlier_events_are_released() -> None:
    settings = config(order="event_time")
    live = start_fresh(settings).pipeline
    late = live.second_reading()
    log, chance = spread(), np.random.default_rng(6)
    live.take(log.read(chance), log.partitions())
    assert late.hand_over() is None
    live.take([], log.partitions(ended=True))
    assert late.hand_over() is not None


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_each_message_of_an_unreadable_batch_is_rejected(order: str) -> None:
    pipeline = start_fresh(config(order=order)).pipeline
    records = [
        Records(TOPIC, 0, [0, 1], [event(0), None]),
        Records(TOPIC, 1, [7, 8], [None, None], unreadable="codec 7"),
        Records(TOPIC, 0, [2], [b"no event"]),
    ]
    rejected = pipeline.take(records, {(TOPIC, 0): None, (TOPIC, 1): None}).rejected
    assert [(rejection.reason, rejection.place) for rejection in rejected] == [
        ("malformed", 1),
        ("unreadable_batch", 2),
        ("unreadable_batch", 3),
        ("malformed", 4),
    ]
    assert [rejection.detail for rejection in rejected][1:3] == ["codec 7"] * 2


def test_long_messages_are_decoded_a_few_at_a_time_with_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of short numbers take twenty times the memory of their text while they are Python values."""
    values = [event(number) if number % 3 else b"not an event" for number in range(50)]
    records = [Records(TOPIC, 0, range(100, 130), values[:30]), Records(TOPIC, 1, range(7, 27), values[30:])]
    together: list[int] = []

    class Counting(JsonDecoder):
        def decode_batch(self, values: Any, origin: Any = None) -> EventBatch:
            messages = list(values)
            together.append(len(messages))
            return super().decode_batch(messages, origin)

    whole = EventPipeline(JsonDecoder(["a"])).take(records, {})
    monkeypatch.setattr(pipeline, "MAX_DECODED_BYTES", 4 * len(values[1]))
    cut = EventPipeline(Counting(["a"])).take(records, {})
    assert max(together) <= 12
    assert cut.rejected == whole.rejected
    np.testing.assert_array_equal(cut.timestamp, whole.timestamp)
    np.testing.assert_array_equal(cut.probabilities, whole.probabilities)
    assert cut.origin is not None
    assert whole.origin is not None
    np.testing.assert_array_equal(cut.origin.offset, whole.origin.offset)


@pytest.mark.parametrize("order", ["arrival", "event_time", "joined"])
def test_events_with_many_numbers_are_taken_in_groups_with_equal_results(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few messages of Arrow stand for more numbers than memory holds, if each event has one for each policy.

    In order of time, they are one group.
    """
    trees = [json.loads(event(number)) | {"event_id": f"e-{number}"} for number in range(120)]
    packed = [arrow_message(trees[start : start + 10]) for start in range(0, 120, 10)]
    damaged, tombstone = packed[0][:-20], None
    values = [packed[:5], [*packed[5:8], json.dumps(trees[80]).encode(), damaged, tombstone, *packed[9:]]]
    records = [Records(TOPIC, number, range(len(part)), part) for number, part in enumerate(values)]
    options: dict[str, Any] = {"order": order, "format": {"kind": "arrow"}, "held_max_bytes": 2_000}
    if order == "joined":
        options |= {"order": "event_time", "rewards": {"topic": REWARDS, "window": "20s", "default": 0}}
        late = [
            json.dumps({"event_id": f"e-{number}", "timestamp": 1001.0 + 0.1 * number, "reward": 1}).encode()
            for number in range(120)
        ]
        records.append(Records(REWARDS, 0, range(120), late))
    ends: dict[TopicPartition, float | None] = {(part.topic, part.partition): 2e9 for part in records}

    def taken() -> list[EventBatch]:
        intake = start_fresh(config(**options)).pipeline
        batches = [intake.take(group, ends) for group in intake.groups(records, ends)]
        batches.append(intake.take([], dict.fromkeys(ends, 3e9)))
        assert not (buffered := intake.buffered()) or (buffered.late, buffered.released_early) == (0, 0)
        return batches

    whole = EventBatch.concat(taken())
    monkeypatch.setattr(groups, "MAX_NUMBERS", 25 * (1 + groups.OTHER_NUMBERS))
    cut = taken()
    assert len(cut) == (7 if order == "arrival" else 2)
    assert order != "arrival" or max(map(len, cut)) == 21
    assert order != "joined" or set(whole.reward) == {1.0}
    joined = EventBatch.concat(cut)
    assert (len(whole), len(whole.rejected)) == (111, 11)
    assert [one.reason for one in joined.rejected] == [one.reason for one in whole.rejected]
    for name in ("timestamp", "probabilities", "reward"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert joined.origin is not None
    assert whole.origin is not None
    for name in ("offset", "row", "partition"):
        np.testing.assert_array_equal(getattr(joined.origin, name), getattr(whole.origin, name))


@pytest.mark.parametrize(("duplicates", "repeated", "count"), [("off", 3, 6), (100, 0, 3)])
def test_events_that_repeat_an_id_are_counted_if_they_count_again(duplicates: Any, repeated: int, count: int) -> None:
    pipeline = start_fresh(config(duplicates=duplicates, order="arrival")).pipeline
    polls = [Records(TOPIC, 0, range(first, first + 3), [event(number) for number in range(3)]) for first in (0, 3)]
    batches = [pipeline.take([poll], {(TOPIC, 0): None}) for poll in polls]
    assert sum(map(len, batches)) == count
    assert pipeline.repeated_events == repeated
    assert all(batch.origin is not None for batch in batches), "exemplars and decisions name offsets"
