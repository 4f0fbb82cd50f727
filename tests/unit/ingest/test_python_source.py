"""Read events from functions: their forms, failures and ends."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from streameval.config.model import Config
from streameval.errors import ConfigError, SourceError
from streameval.events import JsonDecoder
from streameval.ingest.base import Offsets, Records, Source, SourceOffsets
from streameval.ingest.python_source import PythonSettings
from streameval.service.startup import pipeline_of
from support.factories import wait_until
from support.messages import message

MODULE = sys.modules[__name__]
Stream = Callable[..., Iterator[Any]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Source]]:
    """Opens a function as a source, at saved offsets. All of them are closed after the test."""
    sources: list[Source] = []

    def open(function: Any, offsets: SourceOffsets | None = None, **options: Any) -> Source:
        monkeypatch.setattr(MODULE, "stream", function, raising=False)
        settings = PythonSettings(target=f"{__name__}:stream", **options)
        monkeypatch.setitem(sys.modules, __name__, MODULE)
        sources.append(settings.open(offsets))
        return sources[-1]

    yield open
    for source in sources:
        source.close()


def drained(source: Source, wanted: int | None = None) -> list[Records]:
    """Read until the source ends, or until this many messages have come."""
    read: list[Records] = []
    deadline = time.monotonic() + 10.0
    while not source.status().exhausted and (wanted is None or sum(map(len, read)) < wanted):
        assert time.monotonic() < deadline, source.status()
        read += source.poll(0.1)
    return read


def values(records: list[Records]) -> list[bytes | None]:
    return [value for part in records for value in part.values]


def numbers(positions: Mapping[int, int] | None, count: int = 10) -> Iterator[Any]:
    for number in range((positions or {0: 0})[0] + 1, count + 1):
        yield {0: number}, b"%d" % number


def test_a_restart_continues_after_the_last_message_that_was_polled(opened: Callable[..., Source]) -> None:
    seen: list[Any] = []

    def stream(positions: Any) -> Iterator[Any]:
        seen.append(positions)
        return numbers(positions, 5000)

    first = opened(stream)
    head = [records for records in (first.poll(5.0) for _ in range(1)) for records in records]
    state = {topic: Offsets.from_state(saved.to_state()) for topic, saved in first.offsets().items()}
    rest = drained(opened(stream, state))
    assert 0 < len(values(head)) < 5000
    assert values(head + rest) == [b"%d" % number for number in range(1, 5001)]
    assert [offset for part in head + rest for offset in part.offsets] == list(range(5000))
    assert seen == [None, {0: len(values(head))}]


def test_positions_of_several_partitions_are_numbers_and_text(opened: Callable[..., Source]) -> None:
    def stream(positions: Any) -> Iterator[Any]:
        yield {3: "a"}, b"1"
        yield {0: 1.5, 3: "b"}, b"2"
        yield {3: "c"}, None

    source = opened(stream)
    assert [(part.partition, list(part.values)) for part in drained(source)] == [(3, [b"1"]), (0, [b"2"])]
    seen: list[Any] = []
    drained(opened(lambda positions: iter(seen.append(positions) or ()), source.offsets()))
    assert seen == [{3: "c", 0: 1.5}]


def test_mappings_become_events_with_times_and_decimals(opened: Callable[..., Source]) -> None:
    event = {"event_id": UUID(int=7), "timestamp": datetime(2026, 1, 31, tzinfo=UTC), "action": "a", "reward": 1}
    event |= {"propensity": Decimal("0.5"), "policies": {"new": 0.25}}

    def stream(positions: Any) -> Iterator[Any]:
        yield {0: 1}, event
        yield {0: 2}, message(2, policies={"new": 0.25}).decode()
        yield {0: 3}, event | {"timestamp": float("inf")}
        yield {0: 4}, {"event_id": b"\xff"}

    batch = JsonDecoder(["new"]).decode_batch(values(drained(opened(stream))))
    assert batch.timestamp.tolist() == [datetime(2026, 1, 31, tzinfo=UTC).timestamp(), 2.0]
    assert batch.propensity.tolist() == [0.5, 0.5]
    assert [rejected.place for rejected in batch.rejected] == [2, 3]


def test_the_lag_is_known_once_nothing_is_new(opened: Callable[..., Source]) -> None:
    go = {"on": False}

    def stream(positions: Any) -> Iterator[Any]:
        yield {0: 1}, b"1"
        while not go["on"]:
            yield None
            time.sleep(0.01)

    source = opened(stream)
    assert values(drained(source, 1)) == [b"1"]
    wait_until(lambda: source.poll(0.0) == [] and source.status().lag == 0, 10.0)
    (partition,) = source.status().partitions
    assert (source.status().reached, partition.position, partition.ended_at is not None) == (True, 1, True)
    go["on"] = True


def test_a_function_that_raises_is_called_again_after_its_last_message(opened: Callable[..., Source]) -> None:
    calls: list[Any] = []

    def stream(positions: Any) -> Iterator[Any]:
        calls.append(positions)
        for position, value in numbers(positions, 6):
            if len(calls) < 3 and value == b"%d" % (2 * len(calls) + 1):
                raise OSError("the connection was lost")
            yield position, value

    source = opened(stream)
    assert values(drained(source)) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert calls == [None, {0: 2}, {0: 4}]
    assert source.status().rebuilds == 2


def test_a_function_that_goes_on_failing_is_not_reached(opened: Callable[..., Source]) -> None:
    def stream(positions: Any) -> Iterator[Any]:
        raise OSError("no route")

    source = opened(stream)
    wait_until(lambda: "no route" in source.status().detail and source.status().waiting > 0.0, 10.0)
    assert not source.status().reached
    assert source.poll(0.0) == []


def test_an_exit_in_the_function_does_not_end_the_program(opened: Callable[..., Source]) -> None:
    source = opened(lambda positions: sys.exit("over"))
    wait_until(lambda: "SystemExit: over" in source.status().detail, 10.0)


def test_an_interrupt_in_the_function_is_a_failure_and_it_is_called_again(opened: Callable[..., Source]) -> None:
    calls: list[Any] = []

    def stream(positions: Any) -> Iterator[Any]:
        calls.append(positions)
        yield {0: len(calls)}, b"1"
        raise KeyboardInterrupt

    source = opened(stream)
    wait_until(lambda: "fails: KeyboardInterrupt" in source.status().detail and len(calls) > 1, 10.0)
    wait_until(lambda: not source.status().reached and source.status().waiting > 0.0, 10.0)


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (7, "yielded 7"),
        (({}, b"1"), "yielded"),
        (({"a": 1}, b"1"), "partition 'a', not a whole number"),
        (({0: None}, b"1"), "the position None, neither"),
        (({0: True}, b"1"), "the position True, neither"),
        (({0: math.inf}, b"1"), "the position inf, which a snapshot cannot hold"),
        (({0: math.nan}, b"1"), "the position nan, which a snapshot cannot hold"),
        (({0: "\ud800"}, b"1"), "which a snapshot cannot hold"),
        (({0: 1}, 7), "an event of the type int"),
        (({0: 0}, b"1"), "the position 0 after 0 of partition 0"),
    ],
)
def test_other_forms_stop_the_source_after_the_messages_before(
    opened: Callable[..., Source], item: object, found: str
) -> None:
    source = opened(lambda positions: iter([({0: 0}, b"0"), item]))
    assert values(drained(source, 1)) == [b"0"]
    with pytest.raises(SourceError, match=found) as error:
        drained(source)
    assert "POSITION" in error.value.hint


def test_a_function_without_an_iterator_and_its_own_refusal_stop_the_source(opened: Callable[..., Source]) -> None:
    with pytest.raises(SourceError, match="returned NoneType"):
        drained(opened(lambda positions: None))

    def refuses(positions: Any) -> Iterator[Any]:
        raise SourceError("the table is gone", hint="restore it")

    with pytest.raises(SourceError, match="the table is gone"):
        drained(opened(refuses))


def test_a_function_that_ends_is_called_again_after_the_interval(opened: Callable[..., Source]) -> None:
    source = opened(
        lambda positions, step: numbers(positions, (positions or {0: 0})[0] + step),
        interval="10ms",
        options={"step": 2},
    )
    assert values(drained(source, 6))[:6] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert not source.status().exhausted


@pytest.mark.parametrize(
    ("options", "most"), [({"buffered": 10}, 11), ({"held_max_bytes": 1000}, 4)], ids=["many", "long"]
)
def test_messages_wait_for_the_evaluation(opened: Callable[..., Source], options: dict[str, int], most: int) -> None:
    made = [0]

    def stream(positions: Any) -> Iterator[Any]:
        for number in range(200):
            made[0] += 1
            yield {0: number}, b"x" * 400

    source = opened(stream, **options)
    wait_until(lambda: made[0] >= most, 10.0)
    time.sleep(0.05)
    assert made[0] == most
    assert len(values(drained(source))) == 200


def test_a_poll_that_waits_learns_that_nothing_is_new(opened: Callable[..., Source]) -> None:
    source = opened(lambda positions: iter(()), interval="1h")
    started = time.monotonic()
    source.poll(30.0)
    assert time.monotonic() - started < 10.0


def test_a_pause_of_all_partitions_withholds_messages(opened: Callable[..., Source]) -> None:
    source = opened(lambda positions: iter([({0: 1}, b"1"), ({1: 1}, b"2"), None, ({0: 2}, b"3")]), buffered=1)
    first = values(drained(source, 2))
    saved = source.offsets()
    source.pause(source.status().positions)
    assert source.poll(0.2) == []
    assert source.offsets() == saved
    source.pause([("stream", 0)])
    assert [*first, *values(drained(source))] == [b"1", b"2", b"3"]


def test_rewards_that_come_later_are_joined_and_counted_once(opened: Callable[..., Source]) -> None:
    def stream(positions: Any) -> Iterator[Any]:
        done = (positions or {}).get(0, 0)
        for number in range(done + 1, 9):
            yield {0: number}, message(number, reward=..., policies={"new": 0.25})
            if number % 2 == 0:
                yield {"clicks": number}, {"event_id": number, "timestamp": number + 1, "reward": 1}

    source = {"kind": "python", "target": "x:stream", "rewards": {"topic": "clicks", "window": "3s"}}
    source |= {"max_lateness": "100ms", "idle_timeout": "100ms"}
    config = Config.model_validate({"source": source, "policies": {"candidates": ["new"]}})
    options = {name: value for name, value in source.items() if name not in ("kind", "target")}
    reader = opened(stream, **options)
    pipeline = pipeline_of(config)
    taken = []
    wait_until(
        lambda: taken.append(pipeline.take(reader.poll(0.1), reader.status().ended_at)) or reader.status().exhausted,
        10.0,
    )
    pipeline.take([], reader.status().ended_at)
    rewards = [reward for batch in [*taken, pipeline.flush()] for reward in batch.reward.tolist()]
    assert rewards == [0.0, 1.0] * 4
    assert reader.status().positions == {("stream", 0): 8, ("clicks", 0): 4}
    again = opened(
        stream, {topic: Offsets.from_state(log.to_state()) for topic, log in reader.offsets().items()}, **options
    )
    assert drained(again) == []
    assert again.status().positions == reader.status().positions


def test_a_check_reads_decisions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(positions: Any) -> Iterator[Any]:
        yield {"clicks": 1}, b"a reward"
        yield {0: 1}, b"a decision"

    monkeypatch.setattr(MODULE, "stream", stream, raising=False)
    settings = PythonSettings.model_validate({"target": f"{__name__}:stream", "rewards": {"topic": "clicks"}})
    source = settings.for_check().open()
    assert values(drained(source)) == [b"a decision"]
    source.close()


def test_a_backfill_calls_the_function_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "stream", numbers, raising=False)
    settings = PythonSettings(target=f"{__name__}:stream")
    reader = settings.open_backfill("earliest", {})
    live = {("stream", 0): 4}
    read: list[Records] = []
    while not reader.caught_up(live):
        read += reader.poll(live, 1.0)
    reader.close()
    assert values(read) == [b"1", b"2", b"3", b"4"]


def test_a_function_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="the module no_such_module cannot be imported"):
        PythonSettings(target="no_such_module:stream").open()


def test_the_state_is_kept_by_default() -> None:
    source = {"kind": "python", "target": "stream:decisions"}
    config = Config.model_validate({"source": source, "policies": {"candidates": ["new"]}})
    assert config.kept_state() is not None
    assert config.daemon_name == "decisions"
