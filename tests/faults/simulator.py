"""Run the real daemon through a schedule of faults, and check it after every turn of its loop.

A schedule follows from one seed: what is produced, when the broker, the disk or a clock fails, and when the process
ends. Time is virtual and nothing runs outside the loop, so a seed always gives the same run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from faults import environment
from faults.faults import FAULTS, UNPUNCTUAL, Killed
from faults.world import CANDIDATES, REWARDS, WINDOW, Clock, Event, Producers, Reward
from streameval.config.loading import parse_yaml
from streameval.config.model import Config, StateSettings
from streameval.ingest.base import Offsets, Records, SourceStatus, TopicPartition
from streameval.ingest.stages import BufferStatus
from streameval.ingest.stages.reward_store import RewardCounts
from streameval.ope.report import Report
from streameval.service import snapshots, startup
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text
from streameval.service.snapshots import SnapshotStore
from streameval.service.status import DaemonStatus
from support.fake_kafka import TOPIC, FakeCluster

TURNS = 20
"""Turns of the loop with faults. Then everything heals, and the daemon must catch up."""
CATCHING_UP = 600
"""Turns that the daemon may need to catch up."""
LIVENESS = 60.0
"""Seconds in which some position moves if messages are unread and no fault is active. A partition that delivers nothing
is noticed after half of that."""
RECOVERY = 600.0
"""Seconds after which no clock that was wrong is further ahead of the true time than a clock may be."""
LAST_EVENTS = 15
"""Events of each partition, on average, that are written in time after the recovery."""
IDLE_TURNS = 4
"""Turns without messages after which the daemon should have counted everything."""
FAULT_RATE = 0.5
WRONG_AT_START = 0.2
"""Share of schedules that start with a wrong clock."""
PAGES_EVERY = 10
"""Reports between two checks of the exported metrics."""
MAX_LATENESS = 2.0
FILE = "streameval.yaml"
CONFIGURATION = """
policies: {candidates: [%s]}
source: {topic: clicks, duplicates: 5000, max_poll_records: 40, max_lateness: 2s, idle_timeout: 2s%s}
estimators: [ips]
averages: [cumulative]
intervals: {cumulative: normal}
drift: off
promotion: off
"""
JOINED = ", rewards: {topic: rewards, window: 5s, combine: %s}"


Removed: TypeAlias = dict[int, tuple[TopicPartition, int]]
"""Partition and offset of messages that a log no longer has, by their numbers."""


class ViolationError(AssertionError):
    """Report a promise that the daemon broke."""


def require(holds: bool, promise: str, **details: object) -> None:
    """Raise ViolationError unless a promise holds."""
    if not holds:
        raise ViolationError(f"{promise}: {details}")


@dataclass
class Account:
    """Hold what the state of the daemon must contain.

    Args:
        delivered: Numbers of the messages delivered to the daemon, by topic, in order.
        gaps: Gaps reported so far.
        since: Number of decisions delivered before each candidate joined, None if its events are not known exactly.
        removed: Former candidates.
    """

    delivered: dict[str, list[int]] = field(default_factory=lambda: {TOPIC: [], REWARDS: []})
    gaps: int = 0
    since: dict[str, int | None] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    def copy(self) -> Account:
        delivered = {topic: list(numbers) for topic, numbers in self.delivered.items()}
        return Account(delivered, self.gaps, dict(self.since), self.removed)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of all messages delivered."""
        return [number for numbers in self.delivered.values() for number in numbers]


@dataclass(frozen=True)
class Recovered:
    """Hold the counts of a daemon after all faults.

    Args:
        late: Events out of order.
        too_late: Decisions that were too late.
        joined: Rewards that were joined.
        written: Messages written so far.
    """

    late: int
    too_late: int
    joined: int
    written: int

    @classmethod
    def from_status(cls, published: DaemonStatus, written: int) -> Recovered:
        assert published.report is not None, "an idle daemon has made a report"
        buffered = published.buffered or BufferStatus(0)
        rewards = buffered.rewards or RewardCounts()
        too_late = published.report.events.rejected.get("too_late", 0) - rewards.late
        return cls(buffered.late, too_late, rewards.joined, written)


class Schedule:
    """Run one schedule of faults.

    If rewards have a topic of their own, half of the schedules have no fault that makes anything late. Every reward is
    then known to come in time.

    Args:
        seed: Determines the whole run.
        directory: Directory of the state.
        faults: Names of `FAULTS`, by default all.

    Attributes:
        combine: How rewards of a separate topic are combined, None without such a topic.
        order: Setting `order` in the file, if it has been changed.
        backfills: Whether candidates that are added get the events from the start of the log.
        is_punctual: Whether no clock was wrong, and every message was written at its own time.
        is_complete: Whether no message was lost.
        is_replaced: Whether a topic was deleted and recreated.
        deleted: Messages that were deleted by retention.
        cut: Messages that were cut off with the end of a log.
        replaced: Messages that were deleted with their topic.
    """

    def __init__(self, seed: int, directory: Path, faults: Collection[str] | None = None) -> None:
        self.seed, self.random = seed, Random(seed)
        self.clock = Clock()
        self.combine = self.random.choice([None, None, None, "first", "sum", "last"])
        self.backfills = self.random.random() < 0.5
        self.topics = {TOPIC: self._topic(TOPIC)} | ({} if self.combine is None else {REWARDS: self._topic(REWARDS)})
        keeps_time = self.combine is not None and self.random.random() < 0.5
        self.producers = Producers(self.random, self.clock, self.topics, is_punctual=keeps_time)
        self.is_punctual, self.is_complete, self.is_replaced = self.producers.are_punctual, True, False
        self.account = Account()
        self.candidates: list[str] = [self.random.choice(CANDIDATES)]
        self.history: list[str] = []
        self.step_actions: dict[str, Callable[[], None]] = {}
        self.state = directory / "state"
        self.accounts: dict[str, Account] = {}
        self.stores: list[SnapshotStore] = []
        self.deleted: Removed = {}
        self.cut: Removed = {}
        self.replaced: Removed = {}
        self.order = ""
        self._faults = sorted(set(FAULTS if faults is None else faults) - (UNPUNCTUAL if keeps_time else set()))
        self._healing: list[tuple[int, Callable[[], None]]] = []
        self._turn = self._idle_turns = self._reports = 0
        self._checked: Report | None = None
        self._taken = Account()
        self._resumed = Account()
        self._account_before_poll = Account()
        self._positions_after_poll: dict[TopicPartition, int] = {}
        self._read_from: dict[TopicPartition, int] = {}
        self._seen_positions: dict[TopicPartition, int] = {}
        self._moved_at = 0.0
        self._recovered: Recovered | None = None
        self.daemon: Daemon
        if "move_clock" in self._faults and self.random.random() < WRONG_AT_START:
            self._break("move_clock")

    def _topic(self, name: str) -> FakeCluster:
        partitions = range(self.random.choice([1, 1, 2, 3]))
        return FakeCluster({number: [] for number in partitions}, topic=name, forgetful=True, wait=self.clock.sleep)

    def run(self) -> None:
        """Run the schedule to its end.

        Raises:
            ViolationError: The daemon broke a promise.
        """
        try:
            with environment.simulated(self):
                while not self._run_process():
                    pass
        except ViolationError as violation:
            violation.add_note(f"seed {self.seed}, history: {self.history}")
            raise

    # --- Called by the process ---

    def _run_process(self) -> bool:
        """Run one process of the daemon from start to end, and return whether it has counted everything."""
        self.order, self._recovered = "", None
        try:
            self.daemon = startup.daemon(Path(FILE), self.configuration(), "earliest" if self.backfills else None)
            self.account = self._expected_state()
            self._read_from = self._positions_after_poll = self.daemon.published.source.positions
            self._seen_positions, self._moved_at = {}, self.clock.elapsed
            self.see_candidates(self.candidates)
            self._resumed = self.account.copy()
            self.daemon.run()
        except Killed:
            for store in self.stores:
                with suppress(OSError):  # it is closed already
                    store.close()
            return False
        except ViolationError:
            raise
        except Exception as error:
            raise ViolationError(f"the daemon ended: {error!r}") from error
        if self._has_caught_up():
            self._check_end()
            return True
        return False

    def _expected_state(self) -> Account:
        """Return the contents of the newest snapshot. The daemon has just set damaged ones aside."""
        paths = snapshots.snapshot_files(self.state)
        return self.accounts[paths[-1].name].copy() if paths else Account()

    def see_candidates(self, candidates: Iterable[str]) -> None:
        """Note that the daemon has these candidates from now on."""
        delivered, before = len(self.account.delivered[TOPIC]), self.account.since
        joins_at: int | None = 0 if self.backfills or not delivered else delivered
        knows_clock = self.clock.ahead >= 0 and self.daemon.published.accepted > 0
        if delivered and not knows_clock and not self.backfills:
            joins_at = None  # messages may be kept until the clock is known to be right
        returned = set() if self.backfills else self.account.removed  # events may be buffered since then
        new = {name: None if name in returned else joins_at for name in candidates}
        self.account.since = {name: before.get(name, new[name]) for name in candidates}
        self.account.removed = self.account.removed | (before.keys() - self.account.since.keys())

    def configuration(self) -> Config:
        """Return the contents of the configuration file."""
        config = _config(tuple(self.candidates), self.combine, self.order)
        return config.model_copy(update={"state": StateSettings(dir=self.state, interval=5.0)})

    def turn(self) -> None:
        """Check what is published, and then produce, fail or heal. The loop calls this before each poll."""
        self._check_published()
        self._check_liveness()
        self._turn += 1
        self.clock.sleep(self.random.uniform(0.0, 0.8) if self._turn < TURNS else 1.5)
        for due, act in tuple(self._healing):
            if due <= self._turn or self._turn >= TURNS:
                self._healing.remove((due, act))
                act()
        self.producers.flush(everything=self._turn >= TURNS and self._recovered is None)
        if self._turn < TURNS:
            self.producers.produce(self.random.randrange(16))
            if self._faults and self.random.random() < FAULT_RATE:
                self._break(self.random.choice(self._faults))
        elif not self._has_caught_up():
            require(self._turn < TURNS + CATCHING_UP, "the daemon catches up", status=self.daemon.published.source)
        elif self._recovered is None:
            self._produce_last()
        else:
            self.daemon.stop()

    def _break(self, name: str) -> None:
        self.history.append(f"turn {self._turn}: {name}")
        FAULTS[name](self)

    def _produce_last(self) -> None:
        """Write events in time, long after all faults. They must count in order, with their rewards."""
        self.clock.sleep(RECOVERY)
        self._moved_at = self.clock.elapsed  # nobody has polled meanwhile
        self.producers.become_punctual()
        self._recovered = Recovered.from_status(self.daemon.published, len(self.producers.written))
        self.producers.produce(LAST_EVENTS * len(self.topics[TOPIC].logs))

    def see(self, records: list[Records], status: SourceStatus) -> None:
        """Note which messages a poll gave to the pipeline."""
        number_of = self.producers.number_of
        self._account_before_poll, self._positions_after_poll = self.account.copy(), status.positions
        for batch in records:
            self.account.delivered[batch.topic] += [number_of[value] for value in batch.values if value is not None]
            self._see_position((batch.topic, batch.partition), batch.offsets[0])
        for partition, position in status.positions.items():
            self._see_position(partition, position)
        self.account.gaps = self._resumed.gaps + sum(status.gaps.values())
        self._idle_turns = 0 if records else self._idle_turns + 1

    def _see_position(self, partition: TopicPartition, offset: int) -> None:
        self._read_from[partition] = min(offset, self._read_from.get(partition, offset))

    def step(self, step: str) -> None:
        """Follow the steps of writing a snapshot, which is written when it is taken."""
        if step == "opened":
            self._taken = self.account.copy()
        elif step == "renamed":
            path = snapshots.snapshot_files(self.state)[-1]
            self.accounts[path.name] = self._taken
            self._check_offsets(path)
        self.step_actions.pop(step, lambda: None)()

    # --- Called by faults ---

    def later(self, act: Callable[[], None]) -> None:
        """Call `act` after some turns."""
        self._healing.append((self._turn + self.random.randrange(1, 15), act))

    def some_topic(self) -> FakeCluster:
        """Return one of the topics."""
        return self.random.choice(list(self.topics.values()))

    def remove(self, topic: FakeCluster, partition: int, start: int, stop: int, removed: Removed) -> None:
        """Add messages that are about to go to `removed`."""
        self.is_complete = self.is_complete and start >= stop
        for offset in range(start, stop):
            number = self.producers.number_of[topic.logs[partition][offset]]
            removed[number] = (topic.topic, partition), offset

    # --- Checks ---

    def _check_offsets(self, path: Path) -> None:
        """Check that every message before the offsets of a snapshot was delivered, and none after them."""
        if not self.is_complete:
            return  # the daemon may not know yet that a log was cut
        delivered = set(self._taken.numbers)
        for name, offsets in snapshots.read_snapshot(path).offsets.items():
            topic = self.topics[name]
            for partition, position in Offsets.from_state(offsets).positions.items():
                log = [self.producers.number_of[value] for value in topic.logs[partition]]
                before, after = log[topic.first_offset(partition) : position], log[position:]
                details = {"topic": name, "partition": partition, "position": position}
                require(delivered.issuperset(before), "a snapshot skips no message", **details)
                require(delivered.isdisjoint(after), "a snapshot repeats no message", **details)

    def _has_caught_up(self) -> bool:
        published = self.daemon.published
        is_busy = bool(published.backfills) or (published.buffered is not None and published.buffered.events > 0)
        ends = {(name, number): len(log) for name, topic in self.topics.items() for number, log in topic.logs.items()}
        is_read = published.source.reached and published.source.positions == ends
        is_quiet = self._turn > TURNS and self._idle_turns > IDLE_TURNS and self.producers.have_sent_all
        return is_quiet and is_read and not is_busy

    def _check_liveness(self) -> None:
        """Check that unread messages are read soon if no fault is active, and that the source is not called stalled."""
        topics = self.topics.values()
        is_disturbed = bool(self._healing) or self.clock.ahead != 0
        is_disturbed |= any(topic.faults or topic.deaf or not topic.up for topic in topics)
        ends = {(topic.topic, number): len(log) for topic in topics for number, log in topic.logs.items()}
        positions = self._positions_after_poll
        is_unread = not positions or any(position < ends.get(at, 0) for at, position in positions.items())
        if is_disturbed or not is_unread or positions != self._seen_positions:
            self._seen_positions, self._moved_at = dict(positions), self.clock.elapsed
        waited, source = self.clock.elapsed - self._moved_at, self.daemon.published.source
        require(waited <= LIVENESS, "unread messages are read", seconds=waited, source=source)
        require(is_disturbed or not self.daemon.source_stalled, "a source that is read is not stalled", source=source)

    def _check_published(self) -> None:
        """Check that every published number is right."""
        report = self.daemon.published.report
        if report is None or report is self._checked:
            return
        self._checked = report
        self._check_published_counts(report)
        for row in report.estimates:
            numbers = [number for number in (row.lower, row.value, row.upper) if number is not None]
            require(all(map(math.isfinite, numbers)), "published numbers are finite", row=row)
            within = [min(max(number, 0.0), 1.0) for number in numbers]  # as bounds are, and rewards
            require(within == sorted(within), "a value lies inside its interval", row=row)
        self._reports += 1
        if self._reports % PAGES_EVERY == 0:
            self._check_page(report)

    def _check_published_counts(self, report: Report) -> None:
        """Check that each message before the published positions is counted, rejected or buffered.

        If no message is buffered, all numbers are known and compared.
        """
        published = self.daemon.published
        if self.clock.ahead < 0 or "clock" in published.detail:
            return  # messages may be kept until the clock is right
        buffered = 0 if published.buffered is None else published.buffered.events
        has_polled_since = published.source.positions != self._positions_after_poll
        account = self._account_before_poll if has_polled_since else self.account
        damaged = [self.producers.written[number] for number in account.delivered[REWARDS]].count(None)
        decisions = report.events.accepted + sum(report.events.rejected.values()) - self._late_rewards() - damaged
        delivered = len(account.delivered[TOPIC])
        counts = {"report": report.events, "buffered": buffered, "delivered": delivered}
        require(decisions + buffered == delivered, "each message is counted, rejected or buffered", **counts)
        if delivered and not buffered and not published.backfills:
            self._check_counts(report, account)

    def _check_page(self, report: Report) -> None:
        """Check that exported metrics are numbers, and that policies without events have none."""
        counted = {policy_counts.policy for policy_counts in report.policies if policy_counts.events}
        for line in metrics_text(self.daemon.published).decode().splitlines():
            if line.startswith("streameval_"):
                name, _, number = line.rpartition(" ")
                require(math.isfinite(float(number)), "exported numbers are finite", line=line)
                if 'estimator="' in name:
                    policy = name.partition('policy="')[2].partition('"')[0]
                    require(policy in counted, "no estimate is exported without events", line=line)

    def _check_end(self) -> None:
        """Check that every message that can still be read was delivered once.

        Each is counted once or rejected for its reason.
        """
        delivered = Counter(self.account.numbers)
        repeated = [number for number, times in delivered.items() if times > 1]
        require(not repeated, "no message is read twice", repeated=repeated)
        left = [
            self.producers.number_of[value]
            for topic in self.topics.values()
            for partition, log in topic.logs.items()
            for value in log[topic.first_offset(partition) :]
        ]
        skipped = [number for number in left if number not in delivered]
        require(not skipped, "no message is skipped", skipped=skipped, gaps=self.account.gaps)
        self._check_lost(delivered)
        report = self.daemon.published.report
        assert report is not None, "an idle daemon has made a report"
        missing = self.account.since.keys() - {policy_counts.policy for policy_counts in report.policies}
        require(not missing, "every candidate is reported", missing=missing)
        self._check_page(report)
        self._check_counts(report, self.account)
        self._check_recovery()

    def _check_lost(self, delivered: Collection[int]) -> None:
        """Check that messages deleted before they were read are counted.

        Unread messages of a cut or replaced log may be counted, too.
        """
        read_and_gone = [number for number in (*self.cut, *self.replaced) if number in delivered]
        require(self.account.gaps > 0 or not read_and_gone, "gaps are reported", read_and_gone=read_and_gone)
        unread = {number: partition for number, partition in self.deleted.items() if number not in delivered}
        deleted = sum(offset >= self._read_from[partition] for partition, offset in unread.values())
        others = sum(number not in delivered for number in (*self.cut, *self.replaced))
        lost = self.daemon.published.source.lost
        least = 0 if self.is_replaced else deleted  # the new log may have lost some before the daemon knew of it
        most = len(unread) + others if self.cut or self.is_replaced else deleted  # a cut log is read from further back
        require(least <= lost <= most, "messages lost unread are counted", found=lost, deleted=deleted, others=others)

    def _check_recovery(self) -> None:
        """Check that events that were written in time after all faults are in time, and their rewards are joined."""
        before = self._recovered
        assert before is not None, "the last events have been written"
        after = Recovered.from_status(self.daemon.published, 0)
        require(after.late == before.late, "no clock stays wrong", late=(before.late, after.late))
        require(after.too_late == before.too_late, "no clock stays wrong", too_late=(before.too_late, after.too_late))
        last = self.producers.written[before.written :]
        decided = {event.event_id: event.timestamp for event in last if isinstance(event, Event)}
        rewards = [reward for reward in last if isinstance(reward, Reward) and reward.event_id in decided]
        timely = sum(reward.timestamp - decided[reward.event_id] <= WINDOW for reward in rewards)
        joined = (before.joined + timely, after.joined)
        require(joined[0] == joined[1], "rewards in time are joined after a recovery", expected_and_found=joined)

    def _check_counts(self, report: Report, account: Account) -> None:
        written = self.producers.written
        events = [written[number] for number in account.delivered[TOPIC]]
        first = {event.event_id: index for index, event in reversed([*enumerate(events)]) if isinstance(event, Event)}
        damaged = events.count(None) + [written[number] for number in account.delivered[REWARDS]].count(None)
        rejected = Counter(report.events.rejected)
        out_of_time = rejected.pop("too_late", 0) - self._late_rewards()
        require(out_of_time == 0 or self._may_be_late, "no event in time is rejected", out_of_time=out_of_time)
        expected = Counter(malformed=damaged)
        expected["duplicate"] = len(events) - events.count(None) - len(first)
        require(+rejected == +expected, "rejected messages are counted by reason", found=rejected, expected=expected)
        counted = len(first) - out_of_time
        require(report.events.accepted == counted, "each event is counted once", found=report.events, expected=counted)
        if out_of_time:
            return
        rewards = self._rewards({event_id: events[index] for event_id, index in first.items()}, account)
        if rewards is None:
            return
        self._check_policy(report, "logging", [(1.0, rewards[event_id]) for event_id in first])
        shown = {policy_counts.policy for policy_counts in report.policies}  # others have joined since this Report
        for name, since in account.since.items():
            weight_index = CANDIDATES.index(name)
            terms = [
                (events[index].weights[weight_index], rewards[event_id])
                for event_id, index in first.items()
                if since is not None and index >= since
            ]
            if since is not None and name in shown and (self.is_complete or not self.backfills):
                self._check_policy(report, name, terms)

    def _check_policy(self, report: Report, policy: str, terms: list[tuple[float, float]]) -> None:
        """Check that the value of a policy equals a batch computation over these weights and rewards."""
        (counted,) = [policy_counts.events for policy_counts in report.policies if policy_counts.policy == policy]
        require(counted == len(terms), "a policy has its events", policy=policy, found=counted, expected=len(terms))
        if not terms:
            return
        value = float(np.mean([weight * reward for weight, reward in terms]))
        estimate = report.get(policy, "ips", "cumulative").value
        close = estimate is not None and abs(estimate - value) < 1e-9
        require(close, "values equal those of a batch", policy=policy, found=estimate, expected=value)

    @property
    def _may_be_late(self) -> bool:
        """Return whether decisions may come after their rewards were dropped."""
        return self.combine is not None and not self.is_punctual

    def _late_rewards(self) -> int:
        """Return the number of rewards that were rejected because they came late."""
        buffered = self.daemon.published.buffered
        return 0 if buffered is None or buffered.rewards is None else buffered.rewards.late

    def _rewards(self, decisions: dict[str, Event], account: Account) -> dict[str, float] | None:
        """Return the reward of each decision, computed at once, or None if some rewards have come late."""
        if self.combine is None:
            return {event_id: event.reward for event_id, event in decisions.items()}
        delivered = [self.producers.written[number] for number in account.delivered[REWARDS]]
        event_rewards: dict[str, list[Reward]] = {event_id: [] for event_id in decisions}
        for reward in delivered:
            if isinstance(reward, Reward) and reward.event_id in decisions:
                after = reward.timestamp - decisions[reward.event_id].timestamp
                if -MAX_LATENESS <= after <= WINDOW:
                    event_rewards[reward.event_id].append(reward)
        buffered = self.daemon.published.buffered
        assert buffered is not None, "rewards are joined in a buffer"
        counts, expected = buffered.rewards, sum(map(len, event_rewards.values()))
        assert counts is not None
        undamaged = sum(reward is not None for reward in delivered)
        require(
            counts.joined + counts.late + counts.unmatched <= undamaged, "no reward is counted twice", counts=counts
        )
        if not self.is_punctual:
            return None
        require(counts.joined == expected, "rewards in time are joined", found=counts, expected=expected)
        return {event_id: _combined(rewards, self.combine) for event_id, rewards in event_rewards.items()}


def _combined(rewards: list[Reward], combine: str) -> float:
    ordered = [reward.reward for reward in sorted(rewards, key=lambda reward: reward.timestamp)]
    if combine == "sum" or not ordered:
        return sum(ordered)
    return ordered[0 if combine == "first" else -1]


@cache
def _config(candidates: tuple[str, ...], combine: str | None, order: str) -> Config:
    """Return the configuration. It is cached, because reading YAML takes a fifth of the time of a schedule."""
    more = order + ("" if combine is None else JOINED % combine)
    return Config.model_validate(parse_yaml(CONFIGURATION % (", ".join(candidates), more), FILE).values)
