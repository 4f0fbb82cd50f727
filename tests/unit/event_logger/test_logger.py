"""Test what the logger of a recommender writes and refuses, and that it never raises, blocks or grows."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from streameval import EventLogger, read_events
from streameval.event_logger import Message, MessageSink
from streameval.event_logger.packing import pack
from streameval.events import JsonDecoder, Origin, RankingDecoder, RewardDecoder
from streameval.events.arrow_messages import ArrowDecoder, is_arrow
from streameval.events.further_rewards import RewardField
from streameval.events.tables import ColumnNames
from support.factories import wait_until
from support.strategies import POLICIES, examples

CHOICE: tuple[Any, ...] = ({"hour": 9}, ["a", "b"], [0.9, 0.1], "a")


def decoded(messages: list[Message], **options: Any) -> Any:
    return JsonDecoder(POLICIES, **options).decode_batch([message.value for message in messages])


def test_decisions_arrive_as_they_were_logged() -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.decision(*CHOICE, policies={"a": [0.5, 0.5], "b": 0.25}, reward=1, event_id=7, timestamp=3.0, unit="u")
        logger.decision(None, None, 0.125, 4, policies={"c d": 0.5}, reward=-2.5, timestamp=4.0, logging_policy="v2")
        arrays = np.array(["x", "y"]), np.array([0.25, 0.75], np.float32)
        logger.decision({}, *arrays, "y", features=np.eye(2), reward=np.float32(1), timestamp=5)
    batch = decoded(messages)
    assert batch.rejected == ()
    assert batch.propensity.tolist() == [0.9, 0.125, 0.75]
    assert batch.reward.tolist() == [1.0, -2.5, 1.0]
    assert batch.timestamp.tolist() == [3.0, 4.0, 5.0]
    np.testing.assert_array_equal(batch.probabilities, [[0.5, 0.25, np.nan], [np.nan, np.nan, 0.5], [np.nan] * 3])
    assert [message.kind for message in messages] == ["decision"] * 3
    assert messages[0].event_id == 7
    assert json.loads(messages[0].value)["context"] == {"hour": 9}


def test_a_path_is_no_sink() -> None:
    with pytest.raises(TypeError, match=r"found 'log.ndjson': write EventLogger.to_file\(path\)"):
        EventLogger("log.ndjson")  # type: ignore[arg-type]


SEVERAL = (RewardField("revenue", "revenue", 0.0, 200.0), RewardField("hide", "hide", 0.0, 1.0))


def test_several_rewards_are_fields_of_one_message_or_of_several() -> None:
    messages: list[Message] = []
    slots = [{"action": "a", "propensity": 0.5}]
    with EventLogger.to_function(messages.append) as logger:
        logger.decision(*CHOICE, reward={"click": np.float32(1), "revenue": 12.5})
        logger.slate(None, slots, reward={"click": 0, "hide": 1})
        later = logger.decision(*CHOICE)
        logger.reward(later, {"revenue": 3})
        logger.reward(later, {"click": 1, "hide": 0.0}, timestamp=9)
    assert logger.counts.invalid == 0
    decisions = JsonDecoder(POLICIES, "click", further=SEVERAL).decode_batch(
        [message.value for message in messages[:2]]
    )
    assert decisions.further is not None
    assert decisions.reward.tolist() == [1.0, 0.0]
    np.testing.assert_array_equal(decisions.further.values, [[12.5, np.nan], [np.nan, 1.0]])
    origin = Origin.from_parts("rewards", [(0, [0, 1])])
    rewards = RewardDecoder("click", SEVERAL).decode_batch([message.value for message in messages[3:]], origin)
    assert rewards.further is not None
    np.testing.assert_array_equal(rewards.reward, [np.nan, 1.0])
    np.testing.assert_array_equal(rewards.further.values, [[3.0, np.nan], [np.nan, 0.0]])


@pytest.mark.parametrize("wrong", [{}, {"click": math.inf}, {"timestamp": 1.0}, {"click": "x"}, {"a\n": 1}, {1: 1}])
def test_rewards_without_a_field_or_a_number_are_refused(wrong: Any) -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.reward("e", wrong)
        logger.decision(*CHOICE, reward=wrong)
        logger.slate(None, [{"action": "a", "propensity": 0.5}], reward=wrong)
    assert (messages, logger.counts.invalid) == ([], 3)


def test_rewards_that_come_later_name_their_decision() -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        ids = [logger.decision(*CHOICE) for _ in range(100)]
        logger.reward(ids[3], 0.5, timestamp=9.0)
        logger.reward(ids[4], math.nan)
    assert len(set(ids)) == 100
    assert logger.counts == (101, 0, 0, 1, 0)
    rewards = RewardDecoder().decode_batch([messages[-1].value], Origin.from_parts("rewards", [(0, [0])]))
    decisions = decoded(messages[:-1], rewarded=False)
    assert (rewards.reward.tolist(), rewards.timestamp.tolist()) == ([0.5], [9.0])
    assert json.loads(messages[-1].value)["event_id"] == json.loads(messages[3].value)["event_id"] == ids[3]
    assert len(decisions) == 100


values = st.sampled_from([0, 1, 0.25, 0.5, 0.75, 1 / 3, 1.5, -0.25, math.nan, math.inf, 1e-9, 1 + 5e-7])
lists = st.lists(values, max_size=3)
cells = st.just([0.25, 0.75]) | st.just([1 / 3, 1 / 3, 1 / 3]) | lists | values
rows = st.lists(st.lists(values, min_size=1, max_size=2), max_size=3)


@given(
    actions=st.just(["a", "b"]) | st.lists(st.sampled_from(["a", "b", 1]), max_size=3) | st.none(),
    propensities=cells,
    chosen=st.sampled_from(["a", "b", 1]),
    policies=st.none() | st.dictionaries(st.sampled_from(POLICIES), cells, max_size=2),
    features=st.none() | rows,
    reward=st.just(1) | values,
    timestamp=st.just(3.0) | st.sampled_from([0, -1e11, 1.5e9, 1.5e12, 1e18, math.nan]),
)
@examples(600)
def test_the_logger_refuses_what_a_decoder_rejects(timestamp: float, **fields: Any) -> None:
    messages: list[Message] = []
    logger = EventLogger.to_function(messages.append)
    arguments = {"context": None, "event_id": 1, "timestamp": timestamp} | fields
    logger.decision(**arguments)
    logger.close()
    raw = {name: value for name, value in arguments.items() if name not in ("chosen", "propensities")}
    is_one = not isinstance(fields["propensities"], list)
    raw |= {"action": fields["chosen"], "propensity" if is_one else "propensities": fields["propensities"]}
    batch = JsonDecoder(POLICIES).decode_batch([json.dumps(raw).encode()])
    assert len(messages) == len(batch), batch.rejected or "refused without need"
    assert logger.counts.invalid == 1 - len(messages)


@pytest.mark.parametrize(
    "bad",
    [
        (object(), ["a"], [1.0], "a"),
        ({}, 7, [1.0], "a"),
        ({}, ["a"], "1.0", "a"),
        ({}, ["a"], [1.0], None),
        ({}, [["a"]], [1.0], ["a"]),
        ({}, ["a", True], [0.5, 0.5], "a"),
        ({}, ["a"], [1.0], "\ud800"),
        ({}, None, None, 2**80),
    ],
)
def test_no_argument_raises(bad: tuple[Any, ...], caplog: pytest.LogCaptureFixture) -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.decision(*bad, reward=0)
        logger.reward(bad, bad)  # type: ignore[arg-type]
    assert (logger.counts.invalid, messages) == (2, [])
    assert len(caplog.records) == 1, "one warning a minute"
    assert "invalid and was not logged" in caplog.text


def test_files_hold_one_line_per_event_and_can_be_read(tmp_path: Path) -> None:
    for _ in range(2):
        with EventLogger.to_file(tmp_path / "log.ndjson", tmp_path / "rewards.ndjson") as logger:
            logger.reward(logger.decision(*CHOICE, reward=0, policies={"new": [0.1, 0.9]}), 1)
    (batch,) = read_events(tmp_path / "log.ndjson")
    assert (batch.policies, len(batch)) == (("new",), 2)
    assert len((tmp_path / "rewards.ndjson").read_text().splitlines()) == 2


def test_half_a_line_of_an_earlier_process_costs_no_message(tmp_path: Path) -> None:
    log, rewards = tmp_path / "log.ndjson", tmp_path / "rewards.ndjson"
    log.write_text('{"event_id": "lost", "times')
    rewards.write_text('{"event_id": "late", "timestamp": 0, "reward": 1}')  # whole, but for its end
    with EventLogger.to_file(log, rewards) as logger:
        logger.reward(logger.decision(*CHOICE, reward=0), 1)
    assert logger.counts == (2, 0, 0, 0, 0)
    (batch,) = read_events(log)
    assert (len(batch), [rejected.value for rejected in batch.rejected]) == (1, [b'{"event_id": "lost", "times'])
    assert len(rewards.read_text().splitlines()) == 2


def test_without_a_destination_for_rewards_decisions_need_one(tmp_path: Path) -> None:
    with EventLogger.to_file(tmp_path / "log.ndjson") as logger:
        logger.decision(*CHOICE)
        logger.reward("e", 1)
        logger.decision(*CHOICE, reward=1)
    assert logger.counts == (1, 0, 0, 2, 0)


def test_a_full_buffer_drops_and_counts_messages(caplog: pytest.LogCaptureFixture) -> None:
    resume = threading.Event()
    messages: list[Message] = []

    def slow(message: Message) -> None:
        resume.wait()
        messages.append(message)

    logger = EventLogger.to_function(slow, max_bytes=100_000)
    logger.decision(*CHOICE, reward=0)
    assert not caplog.records
    for _ in range(1_999):
        logger.decision(*CHOICE, reward=0)
    counts = logger.counts
    assert counts.written == counts.failed == counts.invalid == 0
    assert counts.waiting + counts.dropped == 2_000
    assert 200 < counts.waiting < 500  # each takes its JSON of about 200 bytes, and as much besides
    assert len(caplog.records) == 1
    resume.set()
    assert logger.flush()
    logger.decision(*CHOICE, reward=0)
    logger.close()
    assert logger.counts == (counts.waiting + 1, 0, counts.dropped, 0, 0)
    assert len(messages) == counts.waiting + 1
    logger.decision(*CHOICE, reward=0)
    assert logger.counts.dropped == counts.dropped + 1, "a closed logger drops"


def test_a_message_is_sent_again_after_an_os_error_and_fails_after_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ingest.background.PAUSE_FIRST", 0.01)
    messages: list[Message] = []
    faults: list[Exception] = [OSError("no space"), OSError("no space"), ValueError("not this one")]

    def write(message: Message) -> None:
        if faults:
            raise faults.pop(0)
        messages.append(message)

    with EventLogger.to_function(write) as logger:
        for number in range(3):
            logger.decision(*CHOICE, reward=number)
        assert logger.flush()
    assert [json.loads(message.value)["reward"] for message in messages] == [1, 2]
    assert logger.counts == (2, 0, 0, 0, 1)


def test_messages_not_written_when_the_logger_closes_are_dropped() -> None:
    def write(message: Message) -> None:
        raise OSError("no space")

    logger = EventLogger.to_function(write)
    logger.decision(*CHOICE, reward=0)
    logger.close(timeout=0.2)
    assert logger.counts == (0, 0, 1, 0, 0)


def test_a_sink_that_cannot_be_opened_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.background.PAUSE_FIRST", 0.01)
    messages: list[Message] = []
    faults: list[Exception] = [ValueError("no such option"), ConnectionError("no broker")]

    class Collecting(MessageSink):
        def __len__(self) -> int:
            return 0  # a sink is not absent because it is empty

        def send(self, message: Message, done: Any) -> None:
            messages.append(message)
            done(None)

    sinks: list[MessageSink] = []

    def open_sink() -> MessageSink:
        if faults:
            raise faults.pop(0)
        sinks.append(Collecting())
        return sinks[-1]

    with EventLogger(open_sink) as logger:
        logger.decision(*CHOICE, reward=0)
        assert logger.flush()
        logger.decision(*CHOICE, reward=0)
    assert (len(messages), len(sinks)) == (2, 1)
    assert "no such option" in caplog.text


def test_a_message_acknowledged_after_the_logger_closed_stays_dropped() -> None:
    acknowledge: list[Any] = []

    class Slow(MessageSink):
        def send(self, message: Message, done: Any) -> None:
            acknowledge.append(done)

    logger = EventLogger(Slow)
    logger.decision(*CHOICE, reward=0)
    wait_until(lambda: len(acknowledge) == 1)
    assert logger.counts.waiting == 1
    logger.close(timeout=0.1)
    acknowledge[0](None)
    assert logger.counts == (0, 0, 1, 0, 0)


def test_pages_slates_and_outcomes_arrive_as_they_were_logged() -> None:
    messages: list[Message] = []
    slots = [{"action": slot, "propensity": 0.5, "policies": {"new": np.float64(0.25)}} for slot in range(2)]
    with EventLogger.to_function(messages.append) as logger:
        page: dict[str, Any] = {"policies": {"new": {"b": 1}, "other": ["b", "a"], "none": None}, "swap": (1, 2)}
        assert logger.ranking({"hour": 9}, np.array(["a", "b"]), ["b"], **page, event_id=7, timestamp=3) == 7
        logger.slate(None, slots, reward=2, logging_policy="v2", timestamp=4)
        logger.scored(None, 0.5, {"new": 0.25}, unit="u", timestamp=5)
        logger.scored(None, None, None, timestamp=6)
    assert logger.counts == (4, 0, 0, 0, 0)
    pages = RankingDecoder(["new", "other", "none"]).decode_batch([messages[0].value])
    assert pages.rankings.swap_to.tolist() == [2]
    np.testing.assert_array_equal(pages.rankings.ranks[-1], [1, 1, np.nan])
    assert decoded(messages[1:2]).slates.propensity.tolist() == [0.5, 0.5]
    outcomes = JsonDecoder(["new"]).decode_batch([message.value for message in messages[2:]])
    assert outcomes.rejected == ()
    assert outcomes.scored.outcomes[0].tolist() == [0.25]
    assert json.loads(messages[0].value)["context"] == {"hour": 9}


def test_a_page_without_clicks_has_candidates_with_empty_ranks() -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.ranking({}, ["a", "b"], [], policies={"ranks": {}, "missing": None, "list": ["b", "a"]})
    pages = RankingDecoder(["ranks", "missing", "list"]).decode_batch([messages[0].value])
    np.testing.assert_array_equal(pages.probabilities, [[1.0, np.nan, 1.0]])


def test_empty_values_are_not_absent() -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.decision(
            {}, ["a"], [1.0], "a", policies={}, reward=0, unit="", logging_policy="", event_id=0, timestamp=0
        )
        logger.scored({}, 0.5, {})
        logger.ranking([], [], [], event_id="", timestamp=0)
        for empty in ({"actions": [], "propensities": 0.5}, {"actions": ["a"], "propensities": []}):
            logger.decision({}, chosen="a", reward=0, **empty)  # type: ignore[arg-type]
        logger.slate({}, [], reward=0)
    assert logger.counts == (3, 0, 0, 3, 0)
    decision, outcome, page = (json.loads(message.value) for message in messages)
    assert (decision["event_id"], decision["timestamp"], decision["unit"], decision["policies"]) == (0, 0, "", {})
    assert outcome["scored"] == {"propensity": 0.5, "values": {}, "revealed": True}
    assert (page["event_id"], page["context"]) == ("", [])


ITEMS = st.lists(st.sampled_from(["a", "b", 1]), max_size=3)
PLACEMENTS = st.none() | ITEMS | st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-1, 3), max_size=2)


@given(
    shown=st.just(["a", "b", 1]) | ITEMS,
    clicked=ITEMS,
    policies=st.none() | st.dictionaries(st.sampled_from(POLICIES), PLACEMENTS, max_size=2),
    propensities=st.none() | lists,
    swap=st.none() | st.lists(st.integers(0, 4), max_size=3),
    marginals=st.none() | rows,
    rank_probabilities=st.none() | rows,
    features=st.none() | rows,
    timestamp=st.just(3.0) | st.sampled_from([0, 1e18, math.nan]),
)
@examples(300)
def test_the_logger_refuses_pages_that_a_decoder_rejects(timestamp: float, features: Any, **page: Any) -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.ranking(None, event_id=1, timestamp=timestamp, features=features, **page)
    placements = page.pop("policies") or {}
    named = {
        name: None if listed is None else {"ranks" if isinstance(listed, dict) else "ranking": listed}
        for name, listed in placements.items()
    }
    raw = {"event_id": 1, "timestamp": timestamp, "ranking": page, "policies": named, "features": features}
    batch = RankingDecoder(POLICIES).decode_batch([json.dumps(raw).encode()])
    assert len(messages) == len(batch), batch.rejected or "refused without need"
    assert logger.counts.invalid == 1 - len(messages)


@pytest.mark.parametrize("bad", [(7, 8), (["a"], object()), ("a", None), (["a"], ["b"]), (["\ud800"], [])])
def test_no_argument_of_another_form_raises(bad: tuple[Any, Any]) -> None:
    messages: list[Message] = []
    with EventLogger.to_function(messages.append) as logger:
        logger.ranking(None, *bad)
        logger.ranking(None, ["a"], ["a"], policies=bad)  # type: ignore[arg-type]
        logger.slate(None, bad)  # type: ignore[arg-type]
        logger.slate(None, [{"action": 1, "propensity": 0.5}], reward=math.inf)
        logger.scored(None, *bad)
    assert (logger.counts.invalid, messages) == (5, [])


def test_a_slate_needs_a_reward_or_a_destination_for_it(tmp_path: Path) -> None:
    slots: list[dict[str, Any]] = [{"action": 1, "propensity": 0.5}]
    with EventLogger.to_file(tmp_path / "log.ndjson") as logger:
        logger.slate(None, slots)
        logger.slate(None, [{**slots[0], "reward": 1}], reward=1)
    assert logger.counts == (1, 0, 0, 1, 0)
    with EventLogger.to_file(tmp_path / "log.ndjson", tmp_path / "rewards.ndjson") as logger:
        logger.reward(logger.slate(None, slots), 1)
    assert logger.counts == (2, 0, 0, 0, 0)


def test_a_closing_logger_tries_again_until_its_timeout() -> None:
    attempts: list[bytes] = []

    def failing_at_first(message: Message) -> None:
        attempts.append(message.value)
        if len(attempts) <= 3:
            raise OSError("no answer")

    logger = EventLogger.to_function(failing_at_first)
    for _ in range(5):
        logger.decision(*CHOICE, reward=1)
    logger.close()
    assert tuple(logger.counts) == (5, 0, 0, 0, 0)


def test_messages_that_come_while_the_logger_closes_are_dropped_and_the_others_written() -> None:
    start, written = threading.Event(), list[Message]()

    def waiting(message: Message) -> None:
        start.wait()
        written.append(message)

    logger = EventLogger.to_function(waiting)
    logger.decision(*CHOICE, reward=1)
    closing = threading.Thread(target=logger.close)
    closing.start()
    wait_until(lambda: logger.decision(*CHOICE, reward=1) is not None and logger.counts.dropped > 0)
    start.set()
    closing.join()
    counts = logger.counts
    assert (counts.written, counts.waiting) == (len(written), 0)
    assert counts.dropped > 0


def test_each_message_is_counted_once_while_a_sink_waits_for_answers() -> None:
    done: list[Any] = []

    class Silent:
        def send(self, message: Message, answer: Any) -> None:
            done.append(answer)

        def poll(self, timeout: float) -> None:
            threading.Event().wait(min(timeout, 0.001))

        def close(self) -> None:
            """Hold nothing open."""

    logger = EventLogger(Silent)
    for wrong in (*[True] * 20, False):
        logger.decision({}, ["a", "b"], [0.9, 0.2 if wrong else 0.1], "a", reward=0)
    wait_until(lambda: bool(done))
    assert tuple(logger.counts) == (0, 1, 0, 20, 0)
    done[0](None)
    assert tuple(logger.counts) == (1, 0, 0, 20, 0)
    logger.close()


@pytest.mark.parametrize("timeout", [3.0, 0.02])
def test_closing_waits_no_longer_than_its_timeout_for_a_sink_that_blocks(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, released, waits = threading.Event(), threading.Event(), list[float]()

    def block(_: Message) -> None:
        blocked.set()
        released.wait()

    def join(thread: threading.Thread, seconds: float) -> None:
        waits.append(seconds)

    logger = EventLogger.to_function(block)
    logger.decision(*CHOICE, reward=0)
    assert blocked.wait(60)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        logger.close(timeout)
    assert 0.9 * timeout <= sum(waits) < timeout
    assert logger.counts.dropped == 1
    released.set()


# --- Batches ---


class Collecting(MessageSink):
    """Keep messages, and fail with the next of `faults`."""

    def __init__(self, *faults: Exception) -> None:
        self.messages: list[Message] = []
        self.faults = list(faults)

    def send(self, message: Message, done: Any) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.messages.append(message)
        done(None)

    def sizes(self) -> list[int]:
        """Return the number of events in each message."""
        values = [message.value for message in self.messages]
        return [len(ipc.open_stream(value).read_all()) if is_arrow(value) else 1 for value in values]

    def read(self, kind: str = "decision", policies: Sequence[str] = ("new",), **options: Any) -> Any:
        values = [message.value for message in self.messages if message.kind == kind]
        decoder: Any = RewardDecoder() if kind == "reward" else JsonDecoder(policies, **options)
        origin = Origin.from_parts("topic", [(0, range(len(values)))])
        return ArrowDecoder(decoder, ColumnNames()).decode_batch(values, origin)


def test_batches_of_decisions_and_rewards_are_what_was_logged() -> None:
    sink = Collecting()
    with EventLogger(lambda: sink, batch=500, linger=60.0) as logger:
        for number in range(1_200):
            fields = {"policies": {"new": [number % 2, 1 - number % 2]}, "event_id": number, "timestamp": number}
            logger.decision({"hour": number}, ["a", "b"], [0.75, 0.25], "ab"[number % 2], **fields)
            logger.reward(number, number % 3, timestamp=number)
        wait_until(lambda: logger.counts.written >= 1_000)
        assert logger.flush(5.0), "waits for no further events"
    assert logger.counts == (2_400, 0, 0, 0, 0)
    assert max(sink.sizes()) <= 500
    assert len(sink.messages) <= 24
    decisions, rewards = sink.read(rewarded=False), sink.read("reward")
    assert (decisions.rejected, rewards.rejected) == ((), ())
    np.testing.assert_array_equal(decisions.timestamp, range(1_200))
    np.testing.assert_array_equal(decisions.propensity, [0.75, 0.25] * 600)
    np.testing.assert_array_equal(decisions.probabilities, [[0.0], [0.0]] * 600)
    np.testing.assert_array_equal(rewards.reward, np.arange(1_200) % 3)


def test_a_batch_waits_for_its_linger_and_an_end_for_nothing() -> None:
    sink = Collecting()
    logger = EventLogger(lambda: sink, batch=500, linger=0.4)
    for _ in range(3):
        logger.decision(*CHOICE, reward=1)
    started_at = time.monotonic()
    wait_until(lambda: logger.counts.written == 3)
    assert 0.2 < time.monotonic() - started_at < 2.0
    assert sink.sizes() == [3]
    logger.close()
    slow = EventLogger(lambda: sink, batch=500, linger=3_600.0)
    slow.decision(*CHOICE, reward=1)
    slow.close(timeout=5.0)
    assert slow.counts == (1, 0, 0, 0, 0)


def test_events_that_are_no_table_are_single_messages_in_order() -> None:
    sink = Collecting()
    with EventLogger(lambda: sink, batch=100, linger=60.0) as logger:
        for number in range(100):
            actions: list[Any] = ["a", 1] if number == 50 else ["a", "b"]
            logger.decision({}, actions, [0.5, 0.5], "a", reward=number, timestamp=number)
            if number == 20:
                logger.decision(None, None, 2.0, "a", reward=0)
                logger.scored({}, 0.5, {"new": 1}, timestamp=number)
    assert logger.counts == (101, 0, 0, 1, 0)
    batch = sink.read()
    assert batch.rejected == ()
    assert sorted(batch.timestamp.tolist()) == sorted([*range(100), 20])
    sizes = sink.sizes()
    assert (sizes[:2], sum(sizes)) == ([21, 1], 101)
    assert 1 in sizes[2:]
    assert max(sizes[2:]) > 30, "the others are batches still"


def test_a_batch_is_smaller_than_what_a_broker_takes() -> None:
    sink = Collecting()
    with EventLogger(lambda: sink, batch=500, linger=60.0) as logger:
        for _ in range(100):
            logger.decision({"text": "x" * 50_000}, ["a"], [1.0], "a", reward=1)
    assert logger.counts == (100, 0, 0, 0, 0)
    assert 500_000 < max(len(message.value) for message in sink.messages) < 1_000_000
    assert len(sink.read()) == 100


def test_counts_of_batches_are_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ingest.background.PAUSE_FIRST", 0.01)
    sink = Collecting(OSError("no space"), OSError("no space"), ValueError("not this one"))
    with EventLogger(lambda: sink, batch=10, linger=60.0) as logger:
        for number in range(30):
            logger.decision(*CHOICE, reward=number)
        assert logger.flush()
    assert (logger.counts, sink.sizes()) == ((20, 0, 0, 0, 10), [10, 10])
    assert sink.read().reward.tolist() == list(range(10, 30))


def test_a_full_buffer_of_batches_drops_and_ends_the_linger() -> None:
    sink = Collecting()
    logger = EventLogger(lambda: sink, batch=10_000, linger=3_600.0, max_bytes=100_000)
    for _ in range(1_000):
        logger.decision(*CHOICE, reward=0)
    wait_until(lambda: logger.counts.written > 100)
    logger.close()
    counts = logger.counts
    assert counts.dropped > 100
    assert counts.written + counts.dropped == 1_000


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "propensities": st.sampled_from([0.5, [0.5, 0.5], [0.25, 0.75]]),
                "policies": st.none()
                | st.dictionaries(st.sampled_from(POLICIES), st.sampled_from([0.25, 1, None, [0, 1]]), max_size=2),
                "reward": st.sampled_from([0, 1, 0.5, True]),
                "unit": st.sampled_from([None, "u", 7, ""]),
                "features": st.sampled_from([None, [[1], [2.5]]]),
                "logging_policy": st.sampled_from([None, "v1", 2]),
                "context": st.sampled_from([None, {}, {"a": 1}, "text", '{"a":1}', [1, "x"]]),
            }
        ),
        max_size=6,
    )
)
@examples(200)
def test_batches_are_read_as_single_messages_are(decisions: list[dict[str, Any]]) -> None:
    one, many = Collecting(), Collecting()
    for sink, batch in ((one, None), (many, 500)):
        with EventLogger(lambda sink=sink: sink, batch=batch, linger=60.0) as logger:
            for number, fields in enumerate(decisions):
                logger.decision(**fields, actions=["a", "b"], chosen="a", event_id=number, timestamp=number)
    options = {"policies": POLICIES, "identified": True, "named": True}
    expected, found = one.read(**options), many.read(**options)
    assert found.rejected == expected.rejected == ()
    assert len(many.messages) <= len(one.messages) == len(decisions)
    for name in ("timestamp", "propensity", "reward", "probabilities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(found.origin.identity, expected.origin.identity)


def test_batches_need_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "streameval.event_logger.packing", None)
    with pytest.raises(ImportError, match=r"pip install 'streameval\[columnar\]'"):
        EventLogger.to_kafka("localhost:1", "decisions", batch=500)
    with pytest.raises(ValueError, match="duration"):
        EventLogger.to_kafka("localhost:1", "decisions", linger="soon")


@pytest.mark.parametrize("odd", [b"1", b"null", b"[1]", b"\xff", b'{"context":' + b"[" * 1100 + b"]" * 1100 + b"}"])
def test_what_is_no_event_stays_as_it_is_in_a_batch(odd: bytes) -> None:
    event = b'{"event_id":"e","timestamp":0,"action":"a","propensity":0.5,"reward":1}'
    values = [event] * 40 + [odd]
    packed = list(pack([Message("decision", "", value) for value in values]))
    assert sum(count for _, count in packed) == len(values)
    assert packed[0][1] > 1, "the other events are packed"
    assert packed[-1][0].value == odd
