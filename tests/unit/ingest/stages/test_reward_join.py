"""Test that separate rewards are joined to their decisions, whenever and however both are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.events import EventBatch, RewardBatch, RewardDecoder
from streameval.events.further_rewards import FurtherRewards, RewardField
from streameval.events.origin import Origin
from streameval.ingest.stages import Deduplication, RewardCounts, RewardRepeats
from support.arrivals import TOPIC, Arrival, batch_of, readings, through_a_file
from support.rewards import IDLE, LATENESS, REWARDS, WINDOW, Earned, fresh, rewards_of
from support.strategies import examples


def outcome(batch: EventBatch) -> list[tuple[float, int, int, float]]:
    if not len(batch):
        return []
    assert batch.origin is not None
    columns = batch.timestamp, batch.origin.partition, batch.origin.offset, batch.reward
    return list(zip(*[column.tolist() for column in columns], strict=True))


def read(polls: Iterable[Sequence[Any]], combine: str, partitions: tuple[int, int], restarts: bool = False) -> Any:
    """Return released events, origins of rejected ones, and the counts, after all polls."""
    joining, out = fresh(combine, partitions=partitions), []
    for poll in polls:
        for kind in (Arrival, Earned):
            chosen = [arrival for arrival in poll if isinstance(arrival, kind)]
            if chosen:
                out.append(
                    joining.take(batch_of(chosen)) if kind is Arrival else joining.take(rewards=[rewards_of(chosen)])
                )
            if restarts:
                state = through_a_file(joining.state())
                joining = fresh(combine)
                joining.restore(state)
    out.append(joining.flush())
    rejected = sorted(rejection.origin for batch in out for rejection in batch.rejected)
    return [event for batch in out for event in outcome(batch)], rejected, joining.buffered().rewards


REMEMBERED = 600.0  # ten windows, and at least ten minutes
COMBINE = {"first": lambda rewards: rewards[0], "last": lambda rewards: rewards[-1], "sum": sum}


def joined(decisions: Sequence[Sequence[Arrival]], earned: Sequence[Sequence[Earned]], combine: str) -> Any:
    """Compute the result of `read` with a loop over all pairs of a decision and a reward."""
    out, used, late = [], set(), set()
    for decision in sorted(arrival for log in decisions for arrival in log):
        rewards = []
        for reward in sorted(arrival for log in earned for arrival in log) if decision.event_id else ():
            after = reward.timestamp - decision.timestamp
            if reward.event_id == decision.event_id and -LATENESS <= after <= WINDOW:
                rewards.append(reward.reward)
                used.add(reward)
            elif reward.event_id == decision.event_id and WINDOW < after <= REMEMBERED:
                late.add(reward)
        out.append((*decision[:3], COMBINE[combine](rewards) if rewards else -1.0))
    late -= used
    rejected = [(REWARDS, *reward[1:3]) for reward in late]
    counts = RewardCounts(len(used), len(late), sum(map(len, earned)) - len(used) - len(late))
    return out, sorted(rejected), counts


STEPS = st.lists(st.sampled_from([0, 1, 1, 2, 3, 25, 300]), max_size=30)
DELAYS = st.sampled_from([0, 0, 0, 1, 3, int(LATENESS)])


@st.composite
def two_topics(draw: st.DrawFn) -> tuple[list[list[Arrival]], list[list[Earned]]]:
    """Draw decisions, some with the same id or none, and rewards for them: early, in time, late, several, unmatched."""
    names = st.sampled_from(["", *"abcdefghijklmnop"])

    def times() -> list[float]:
        steps = draw(STEPS)
        return [float(time - draw(DELAYS)) for time in np.cumsum(np.array(steps, dtype=int)).tolist()]

    decisions = [
        [Arrival(time, partition, offset, draw(names)) for offset, time in enumerate(times())]
        for partition in range(draw(st.integers(1, 3)))
    ]
    earned = [
        [
            Earned(time, partition, offset, draw(names), draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])))
            for offset, time in enumerate(times())
        ]
        for partition in range(draw(st.integers(1, 2)))
    ]
    return decisions, earned


@given(data=st.data(), topics=two_topics(), combine=st.sampled_from(["first", "sum", "last"]))
@examples(150)
def test_a_join_equals_a_loop_over_all_pairs(data: st.DataObject, topics: Any, combine: str) -> None:
    decisions, earned = topics
    polls = data.draw(readings([*decisions, *earned]))
    assert read(polls, combine, (len(decisions), len(earned))) == joined(decisions, earned, combine)


@given(data=st.data(), topics=two_topics())
@examples(60)
def test_a_restart_at_every_point_changes_nothing(data: st.DataObject, topics: Any) -> None:
    decisions, earned = topics
    polls = data.draw(readings([*decisions, *earned]))
    partitions = len(decisions), len(earned)
    assert read(polls, "last", partitions, restarts=True) == read(polls, "last", partitions)


def decided(count: int, first: int = 0, every: float = 0.1) -> list[Arrival]:
    return [Arrival(number * every, 0, number, f"e-{number}") for number in range(first, first + count)]


def earned_for(decisions: Sequence[Arrival], after: float) -> list[Earned]:
    return [Earned(decision.timestamp + after, 0, decision.offset, decision.event_id) for decision in decisions]


@pytest.mark.parametrize("rewards_first", [True, False])
def test_a_decision_waits_for_its_window_and_no_longer(rewards_first: bool) -> None:
    joining, decisions = fresh(), decided(1000)
    rewards = rewards_of(earned_for(decisions, after=WINDOW - 0.5))
    if rewards_first:
        assert len(joining.take(rewards=[rewards])) == 0
        out = joining.take(batch_of(decisions))
    else:
        assert len(joining.take(batch_of(decisions))) == 0
        out = joining.take(rewards=[rewards])
    assert set(out.reward.tolist()) == {1.0}
    assert out.timestamp[-1] == pytest.approx(99.9 - 0.9 - LATENESS - 0.5, abs=0.11)


def test_rewards_after_the_window_are_late_and_their_share_is_reported() -> None:
    joining, decisions = fresh(), decided(1000)
    joining.take(batch_of(decisions))
    punctual = [reward for reward in earned_for(decisions, after=1.0) if reward.offset % 4]
    late = [reward for reward in earned_for(decisions, after=WINDOW + 1.0) if reward.offset % 4 == 0]
    out = [joining.take(rewards=[rewards_of(sorted([*punctual, *late]))]), joining.flush()]
    assert joining.buffered().rewards == RewardCounts(joined=750, late=250)
    assert joining.buffered().rewards.late_share == 0.25
    rejected = [rejection for batch in out for rejection in batch.rejected]
    assert {rejection.reason for rejection in rejected} == {"too_late"}
    assert {rejection.origin for rejection in rejected} == {(REWARDS, 0, reward.offset) for reward in late}
    assert rejected[0].detail.startswith("reward: 1 at 21.000000 is more than 20 s after its decision")
    assert sum(float((batch.reward == -1.0).sum()) for batch in out) == 250


@pytest.mark.parametrize(("after", "late"), [(3 * WINDOW, 250), (REMEMBERED - 1.0, 250), (REMEMBERED + 60.0, 0)])
def test_a_reward_long_after_its_window_is_late_and_not_unmatched(after: float, late: int) -> None:
    """Count a quarter of the clicks as late if they come after three windows. The share was once 0."""
    joining, out = fresh(), []
    decisions = decided(1000)
    out.append(joining.take(batch_of(decisions)))
    out.append(
        joining.take(rewards=[rewards_of([reward for reward in earned_for(decisions, after=1.0) if reward.offset % 4])])
    )
    following = [decision._replace(event_id="") for decision in decided(10_000, 1000)]
    clicks = [reward for reward in earned_for(decisions, after) if reward.offset % 4 == 0]
    for first in range(0, 10_000, 500):  # the decisions are released long before the clicks come
        out.append(joining.take(batch_of(following[first : first + 500])))
        now = following[first + 499].timestamp
        due = [reward for reward in clicks if reward.timestamp <= now]
        clicks = clicks[len(due) :]
        out.append(joining.take(rewards=[rewards_of(due or [Earned(now, 0, 0, "")])]))
    out.append(joining.flush())
    counts = joining.buffered().rewards
    assert (counts.joined, counts.late) == (750, late)
    assert counts.late_share == late / (750 + late)
    assert sum(len(batch.rejected) for batch in out) == late


def test_rewards_without_a_decision_are_counted_as_unmatched_and_forgotten() -> None:
    joining = fresh()
    for first in range(0, 20_000, 1000):
        joining.take(batch_of(decided(1000, first)))
        strangers = [
            reward._replace(event_id=f"x-{reward.offset}") for reward in earned_for(decided(1000, first), after=1.0)
        ]
        joining.take(rewards=[rewards_of(strangers)])
        assert joining.nbytes < 100_000
    joining.flush()
    assert joining.buffered().rewards == RewardCounts(unmatched=20_000)
    assert joining.buffered().rewards.late_share is None
    assert joining.buffered().unmatched_share == 1.0


def test_rewards_of_decisions_before_the_first_one_do_not_count_in_the_unmatched_share() -> None:
    """Start at the end of the topic. The first rewards belong to decisions that the daemon never reads."""
    joining = fresh()
    decisions = decided(1000)
    joining.take(batch_of(decisions))
    before = [reward._replace(event_id=f"before-{reward.offset}") for reward in earned_for(decisions, after=-WINDOW)]
    joining.take(rewards=[rewards_of([*before[:200], *earned_for(decisions, after=1.0)])])
    joining.flush()
    assert joining.buffered().rewards == RewardCounts(joined=1000, unmatched=200)
    assert joining.buffered().unmatched_share == 0.0


def test_a_quiet_topic_of_rewards_does_not_hold_up_decisions() -> None:
    joining = fresh()
    joining.take(batch_of(decided(1000)))
    out = joining.take(ended={(REWARDS, 0): 1e9})
    assert out.timestamp[-1] == pytest.approx(99.9 - 0.9 - IDLE - LATENESS - WINDOW, abs=0.11)
    assert set(out.reward.tolist()) == {-1.0}
    assert len(joining.take(ended={(REWARDS, 0): 1e9 + 1, (TOPIC, 0): 1e9 + 1})) == 1000 - len(out)


@pytest.mark.parametrize("rewarded", [600, 0])
def test_decisions_wait_in_the_log_if_they_do_not_fit_into_memory(rewarded: int) -> None:
    """Read live. Rewards come up to 20 seconds later, which is more decisions than fit, and none is passed on early."""
    joining, log = fresh(max_bytes=20_000), decided(3000, every=0.04)
    earned = earned_for(log, after=WINDOW - 0.5)[:: 3000 // rewarded] if rewarded else []
    positions, out, most = [0, 0], [], 0
    for now in np.arange(0.0, 160.0):
        paused = joining.ahead()
        ends = [sum(message.timestamp <= now for message in messages) for messages in (log, earned)]
        ended = {
            (topic, 0): now for topic, index, end in zip((TOPIC, REWARDS), positions, ends, strict=True) if index == end
        }
        out.append(joining.take(ended=ended))
        for index, (topic, messages) in enumerate([(TOPIC, log), (REWARDS, earned)]):
            if (topic, 0) not in paused and ends[index] > positions[index]:
                poll = messages[positions[index] : min(ends[index], positions[index] + 100)]
                out.append(joining.take(batch_of(poll)) if index == 0 else joining.take(rewards=[rewards_of(poll)]))
                positions[index] += len(poll)
        most = max(most, joining.nbytes)
    out.append(joining.flush())
    assert 20_000 < most < 30_000
    assert joining.released_early == 0
    assert sum(map(len, out)) == 3000
    assert joining.buffered().rewards == RewardCounts(joined=rewarded)


def test_memory_is_bounded_when_rewards_never_come_and_reading_never_pauses() -> None:
    joining, passed = fresh(max_bytes=100_000), 0
    for first in range(0, 30_000, 1000):
        passed += len(joining.take(batch_of(decided(1000, first))))
        assert joining.nbytes <= 200_000
    assert passed == joining.released_early > 25_000
    late = joining.take(rewards=[rewards_of(earned_for(decided(3000), after=1.0))])
    joining.flush()
    assert joining.buffered().rewards.joined == 0
    assert isinstance(late, EventBatch)


def test_memory_is_bounded_when_decisions_never_come() -> None:
    joining, reasons = fresh(max_bytes=100_000), []
    for first in range(0, 30_000, 1000):
        out = joining.take(rewards=[rewards_of(earned_for(decided(1000, first), after=0.0))])
        reasons += [rejection.reason for rejection in out.rejected]
        assert joining.nbytes <= 200_000
    assert set(reasons) == {"too_late"}
    assert joining.buffered().rewards.late == len(reasons) > 25_000


def test_duplicates_of_a_decision_are_dropped_before_they_are_joined() -> None:
    joining, twice = fresh(), decided(100)
    once = Deduplication(1000).take(
        batch_of([*twice, *[decision._replace(offset=decision.offset + 100) for decision in twice]])
    )
    joining.take(once)
    assert len(once) == 100
    joining.take(rewards=[rewards_of(earned_for(twice, after=1.0))])
    assert len(joining.flush()) == 100
    assert joining.buffered().rewards.joined == 100


def test_late_copies_of_a_decision_that_counted_are_duplicates_and_other_late_ones_are_too_late() -> None:
    joining, log = fresh(), decided(1000)
    joining.take(batch_of(log))
    assert 3 < len(joining.take(ended={(REWARDS, 0): 1e9})) < 1000
    joining.restore(through_a_file(joining.state()))
    copies = [decision._replace(offset=decision.offset + 1000) for decision in log[:3]]
    strangers = [copies[0]._replace(event_id=name) for name in ("stranger", "")]
    rejected = joining.take(batch_of([*copies, *strangers, copies[0]._replace(timestamp=log[-1].timestamp)])).rejected
    assert [rejection.reason for rejection in rejected] == ["duplicate"] * 3 + ["too_late"] * 2
    assert rejected[0].detail == "event_id: repeats the id of an event that counted"


def test_a_joined_reward_replaces_the_reward_of_the_decision() -> None:
    joining = fresh("sum")
    joining.take(replace(batch_of(decided(3)), reward=np.array([0.5, 0.5, 0.5])))
    joining.take(rewards=[rewards_of([Earned(1.0, 0, 0, "e-1", 0.25), Earned(1.0, 0, 1, "e-1", 0.5)])])
    assert joining.flush().reward.tolist() == [-1.0, 0.75, -1.0]


@pytest.mark.parametrize(
    ("message", "reason", "detail"),
    [
        (b"{", "malformed", "not JSON"),
        (None, "malformed", "a tombstone"),
        (b"[]", "malformed", "not a JSON object"),
        (b'{"timestamp": 1, "reward": 1}', "missing_field", "event_id: missing"),
        (b'{"event_id": 1, "reward": 1}', "missing_field", "timestamp: missing"),
        (b'{"event_id": 1, "timestamp": 1}', "missing_field", "reward: missing"),
        (b'{"event_id": 1, "timestamp": 1, "reward": 1e999}', "not_finite", "reward"),
        (b'{"event_id": 1, "timestamp": 1, "reward": NaN}', "not_finite", "reward"),
        (b'{"event_id": 1, "timestamp": 1, "reward": "x"}', "malformed", "reward: expected"),
        (b'{"event_id": 1, "timestamp": 1e999, "reward": 1}', "not_finite", "timestamp"),
        (b'{"event_id": 1, "timestamp": 1574553634760, "reward": 1}', "malformed", "timestamp: 1.574553635e+12"),
        (b'{"event_id": 1, "timestamp": 1, "reward": 1, "x": "' + b"x" * 2**24 + b'"}', "malformed", "16777"),
        (b"[" * 100_000, "malformed", "n"),
        (b'{"event_id": 1, "timestamp": 1, "reward": 1, "x": "\xff"}', "malformed", "not UTF-8"),
    ],
)
def test_a_message_that_is_not_a_reward_is_rejected_with_its_reason(
    message: bytes | None, reason: str, detail: str
) -> None:
    good = b'{"event_id": "e-1", "timestamp": "2026-01-31T00:00:00Z", "reward": true, "who": "me"}'
    batch = RewardDecoder().decode_batch([good, message, good], Origin.from_parts(REWARDS, [(4, [7, 8, 9])]))
    assert batch.reward.tolist() == [1.0, 1.0]
    assert batch.timestamp[0] == 1769817600.0
    assert batch.origin.offset.tolist() == [7, 9]
    (rejected,) = batch.rejected
    assert (rejected.reason, rejected.origin, rejected.place) == (reason, (REWARDS, 4, 8), 1)
    assert rejected.detail.startswith(detail)


@given(
    st.lists(
        st.binary(max_size=40) | st.none() | st.from_regex(rb'\{"event_id": ?[^}]{0,9}, ?"timestamp": ?[^}]{0,9}\}')
    )
)
def test_nonsense_is_distinguished_from_rewards(messages: list[bytes | None]) -> None:
    origin = Origin.from_parts(REWARDS, [(0, range(len(messages)))])
    batch = RewardDecoder().decode_batch(messages, origin)
    assert len(batch) + len(batch.rejected) == len(messages)
    assert np.isfinite(batch.reward).all()
    assert sorted([*batch.origin.offset.tolist(), *[rejection.place for rejection in batch.rejected]]) == [
        *range(len(messages))
    ]


def messages(*rewards: tuple[str, float, float, str | None]) -> RewardBatch:
    """Decode rewards: the id of the decision, time, value and id of each."""
    names = ("event_id", "timestamp", "reward", "reward_id")
    values = [msgspec.json.encode(dict(zip(names, reward, strict=True))) for reward in rewards]
    return RewardDecoder().decode_batch(values, Origin.from_parts(REWARDS, [(0, range(len(values)))]))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("combine", "value"), [("sum", 5.0), ("first", 1.0), ("last", 3.0)])
def test_a_reward_with_an_id_counts_once_however_often_it_is_delivered(
    combine: str, value: float, restart: bool
) -> None:
    joining = fresh(combine)
    joining.take(rewards=[messages(("e-0", 1, 1, "a"), ("e-0", 2, 1, "b"), ("e-1", 2, 7, "a"))])
    if restart:
        state = through_a_file(joining.state())
        joining = fresh(combine)
        joining.restore(state)
    joining.take(batch_of(decided(2)), [messages(("e-0", 1, 1, "a"), ("e-0", 3, 3, "c"), ("e-0", 3, 3, "c"))])
    assert joining.flush().reward.tolist() == [value, 7.0]
    assert joining.buffered().rewards == RewardCounts(joined=4)
    assert joining.buffered().repeats == RewardRepeats(repeated=2)


@pytest.mark.parametrize(("combine", "suspicious"), [("sum", 2), ("first", 0)])
def test_equal_rewards_without_ids_count_and_are_suspicious_in_a_sum(combine: str, suspicious: int) -> None:
    joining = fresh(combine)
    equal = messages(("e-0", 1, 2, None), ("e-0", 1, 5, None), ("e-0", 1, 2, None), ("e-0", 1, 2, None))
    others = messages(("e-0", 2, 2, None), ("e-1", 1, 2, None), ("e-1", 1, 2, "a"))
    joining.take(batch_of(decided(2)), [equal, others])
    assert joining.flush().reward.tolist() == ([13.0, 4.0] if combine == "sum" else [2.0, 2.0])
    assert joining.buffered().repeats == RewardRepeats(suspicious=suspicious)
    assert joining.buffered().rewards == RewardCounts(joined=7)


def test_a_reward_at_the_end_of_its_window_counts_whatever_rounding_does() -> None:
    start, end, joining = 1_073_741_814.4, 1_073_741_834.4, fresh("sum")
    assert end - start > WINDOW, "rounding takes it out of the window"
    joining.take(batch_of([Arrival(start, 0, 0, "e-0")]), [messages(("e-0", end, 1, None))])
    assert joining.flush().reward.tolist() == [1.0]


def test_messages_with_several_rewards_repeat_them_all() -> None:
    further = [RewardField("cost", "cost", 0.0, 9.0)]
    line = b'{"event_id": "e-0", "timestamp": 1, "reward": 1, "cost": 3, "reward_id": 7}'
    rest = b'{"event_id": "e-0", "timestamp": 1, "cost": 2, "reward_id": "8"}'
    origin = Origin.from_parts(REWARDS, [(0, range(3))])
    joining = fresh("sum")
    decision = replace(batch_of(decided(1)), further=FurtherRewards(("cost",), np.full((1, 1), np.nan)))
    joining.take(decision, [RewardDecoder("reward", further).decode_batch([line, rest, line], origin)])
    released = joining.flush()
    assert released.further is not None
    assert (released.reward.tolist(), released.further.values.tolist()) == ([1.0], [[5.0]])
    assert joining.buffered().repeats == RewardRepeats(repeated=1)
