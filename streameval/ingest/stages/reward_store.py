"""Keep rewards until their decisions come, and join them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain
from streameval.events import Rejected, RewardBatch
from streameval.events.action_sets import Index
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints
from streameval.ope.promotion import ArrivalState, fold_arrivals, rejected_share

Column: TypeAlias = NDArray[Any]
Run: TypeAlias = dict[str, Column]
"""Columns by name, sorted by the column `identity`."""

WAITS, LATE, JOINED = 0, 1, 2
"""What became of a reward: nothing yet; its decision was released without it; it counted."""
REMEMBERED_WINDOWS, REMEMBERED_SECONDS = 10.0, 600.0
"""How many windows after a decision, and at least how many seconds, a reward for it is recognised as late."""
REMEMBERED_SHARE = 0.25
"""Memory for the ids of released decisions, as a share of the memory for the buffer."""

GROWTH = 4
"""A run is merged with the one before it unless that is this many times larger."""


class SortedRuns:
    """Keep rows with the columns `identity` (the key, which need not be unique), `timestamp`, and others.

    Sorted runs grow by merging in numpy. A row moves about log(rows) times, at 50 ns each. A look-up is a binary search
    in each run.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []

    @property
    def nbytes(self) -> int:
        """Return the memory of the rows."""
        return sum(column.nbytes for run in self.runs for column in run.values())

    def add(self, rows: Mapping[str, Column]) -> None:
        """Add rows."""
        if not len(rows["identity"]):
            return
        self.runs.append(_sorted(dict(rows)))
        while len(self.runs) > 1 and len(self.runs[-2]["identity"]) < GROWTH * len(self.runs[-1]["identity"]):
            last, before = self.runs.pop(), self.runs.pop()
            self.runs.append(_sorted(_concatenated([before, last])))

    def find(self, identity: Identity) -> Iterator[tuple[Index, Run, Index]]:
        """Yield the rows with one of these keys, by run: which key [m], the run (it may be changed), which row [m]."""
        for run in self.runs:
            first = run["identity"].searchsorted(identity, side="left")
            count = run["identity"].searchsorted(identity, side="right") - first
            keys = np.repeat(np.arange(len(identity)), count)
            if len(keys):
                within = np.arange(len(keys)) - np.repeat(np.cumsum(count) - count, count)
                yield keys, run, first[keys] + within

    def take(self, where: Callable[[Run], Mask]) -> Run:
        """Remove the rows selected by `where`, and return them in the order of their time."""
        taken, kept = [], []
        for run in self.runs:
            wanted = where(run)
            if wanted.any():
                taken.append({name: column[wanted] for name, column in run.items()})
                kept.append({name: column[~wanted] for name, column in run.items()})
            else:
                kept.append(run)
        self.runs = [run for run in kept if len(run["identity"])]
        return _sorted(_concatenated(taken), by="timestamp") if taken else {}

    def median_time(self) -> float:
        """Return the median of the times of all rows."""
        return float(np.median(np.concatenate([run["timestamp"] for run in self.runs])))


def _sorted(run: Run, by: str = "identity") -> Run:
    order = np.argsort(run[by], kind="stable")
    return {name: column[order] for name, column in run.items()}


def _concatenated(runs: Sequence[Run]) -> Run:
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def repeated_rows(*columns: Column) -> Mask:
    """Return which rows repeat an earlier row in all of these columns [n]."""
    order = np.lexsort(columns)
    alike = np.logical_and.reduce([column[order][1:] == column[order][:-1] for column in columns])
    repeated = np.zeros(len(order), dtype=bool)
    repeated[order[1:][alike]] = True
    return repeated


def _seconds_after(later: Array, earlier: Array) -> Array:
    """Return differences in whole microseconds, as rounding would leave out a reward at the end of its window."""
    return np.round(later - earlier, 6)


@dataclass(frozen=True)
class RewardRepeats:
    """Count reward messages that seem to have been delivered more than once.

    Attributes:
        repeated: have the `reward_id` of another reward of their decision, and did not count
        suspicious: have no id, and the time and value of another reward of their decision. They count in its sum
    """

    repeated: int = 0
    suspicious: int = 0


@dataclass(frozen=True)
class RewardCounts:
    """Count reward messages by outcome.

    Attributes:
        joined: counted in an event
        late: dated after the window of their decision, or read after its release
        unmatched: no decision with this id is dated near them

    >>> RewardCounts(joined=3, late=1).late_share
    0.25
    """

    joined: int = 0
    late: int = 0
    unmatched: int = 0

    @property
    def late_share(self) -> float | None:
        """Return the share of rewards with a decision that did not count, or None without any."""
        decided = self.joined + self.late
        return self.late / decided if decided else None


class RewardStore:
    """Join rewards to decisions by their ids, and remember released decisions to recognise late rewards.

    A reward takes 50 bytes, a remembered decision 16. A message with several rewards has a row for each. Probabilities
    of candidates that come separately are joined in the same way: a message has a row for each policy that it names.

    Args:
        topic: the topic of the rewards
        window: a decision gets the rewards with its id dated up to this many seconds later
        default: the reward of a decision without any
        combine: which of several rewards counts, by (timestamp, partition, offset), or their sum
        max_lateness: a reward may be dated up to this many seconds before its decision, because clocks differ. It waits
            for a decision that comes after it
        max_bytes: memory for the decisions and rewards that wait. Released decisions take up to a quarter as much
        by_name: tell rewards of a message apart by their names, which may change while they wait, not by their order
    """

    def __init__(
        self,
        topic: str,
        *,
        window: float,
        default: float,
        combine: Literal["first", "sum", "last"],
        max_lateness: float,
        max_bytes: float,
        by_name: bool = False,
    ) -> None:
        self.topic, self.window, self._by_name = topic, window, by_name
        self._default, self._combine = default, combine
        self._max_lateness, self._max_remembered_bytes = max_lateness, REMEMBERED_SHARE * max_bytes
        self._waiting, self._released = SortedRuns(), SortedRuns()
        self.counts, self.repeats, self._recent = RewardCounts(), RewardRepeats(), ArrivalState()
        self._newest = -math.inf  # or an earlier one, which is no longer here
        self._remembered = max(REMEMBERED_WINDOWS * window, REMEMBERED_SECONDS)
        self._first = math.inf  # the time of the first decision

    @property
    def nbytes(self) -> int:
        """Return the memory of the rewards that wait, or are kept to be counted."""
        return self._waiting.nbytes

    def add(self, rewards: RewardBatch) -> None:
        """Keep rewards for decisions to come."""
        assert rewards.origin.identity is not None
        named = rewards.take(rewards.origin.identity != NO_IDENTITY)
        self.count(unmatched=len(rewards) - len(named))
        identity = named.origin.identity
        assert identity is not None
        values, keys = named.reward[:, None], self._keys(() if named.further is None else named.further.names)
        if named.further is not None:
            values = np.column_stack([values, named.further.values])
        message, which_reward = np.nonzero(~np.isnan(values))
        fate = np.full(len(named), WAITS, dtype=np.int8)
        for which, released, rows in self._released.find(identity):
            after = _seconds_after(named.timestamp[which], released["timestamp"][rows])
            fate[which[(after >= -self._max_lateness) & (after <= self._remembered)]] = LATE
        columns: Run = {"identity": identity, "timestamp": named.timestamp, "fate": fate}
        columns |= {"partition": named.origin.partition, "offset": named.origin.offset}
        no_ids = np.full(len(named), NO_IDENTITY)
        columns |= {"reward_id": no_ids if named.reward_id is None else named.reward_id}
        waiting: Run = {name: column[message] for name, column in columns.items()}
        waiting |= {"reward": values[message, which_reward], "which": keys[which_reward]}
        self._waiting.add(waiting)
        self._newest = max(self._newest, float(named.timestamp.max(initial=-math.inf)))

    def _keys(self, names: Sequence[str]) -> Column:
        """Return what tells the rewards of a message apart: a key for the first one, and for each further name."""
        return fingerprints(["", *names]) if self._by_name else np.arange(1 + len(names), dtype=np.int8)

    def drop(self, names: Collection[str]) -> None:
        """Drop the waiting rewards with these names, if rewards have names here."""
        if self._by_name:
            self._waiting.take(lambda run: np.isin(run["which"], fingerprints(list(names))))

    def redate(self, latest: float, now: float) -> int:
        """Date the rewards after `latest` at `now`, and return their number."""
        if self._newest <= latest:
            return 0
        self._newest, count = latest, 0
        for run in self._waiting.runs:
            ahead = run["timestamp"] > latest
            run["timestamp"] = np.where(ahead, now, run["timestamp"])
            count += int(np.count_nonzero(ahead))
        return count

    def join(self, identity: Identity, timestamp: Array, names: Sequence[str] = ()) -> Array:
        """Return the rewards of decisions that are released now, [1 + names, n].

        Args:
            identity: [n] the fingerprints of the ids of the decisions
            timestamp: [n] the times of the decisions
            names: of the further rewards
        """
        self._first = min(self._first, float(timestamp.min(initial=math.inf)))
        which, joined = [], []
        for decision, rewards, rows in self._waiting.find(identity):
            after = _seconds_after(rewards["timestamp"][rows], timestamp[decision])
            inside = (after >= -self._max_lateness) & (after <= self.window)
            beyond = (after > self.window) & (after <= self._remembered)
            fate, counted = rewards["fate"], rows[inside]
            is_new = fate[counted] != JOINED
            newly = np.unique(counted[is_new])
            self.count(joined=len(newly))
            fate[rows[beyond]] = np.maximum(fate[rows[beyond]], LATE)
            fate[newly] = JOINED
            which.append(decision[inside])
            joined.append({name: column[counted] for name, column in rewards.items()} | {"is_new": is_new})
        self._released.add({"identity": identity, "timestamp": timestamp})
        if self._released.nbytes > self._max_remembered_bytes:
            self._forget(self._released.median_time())
        columns = np.full((1 + len(names), len(identity)), self._default)
        if which:
            decisions, rewards = self._without_repeated(np.concatenate(which), _concatenated(joined))
            for key, column in zip(self._keys(names), columns, strict=True):
                rows = rewards["which"] == key
                self._combine_into(column, decisions[rows], {name: values[rows] for name, values in rewards.items()})
        return columns

    def have_counted(self, identity: Identity) -> Mask:
        """Return which ids are ids of decisions that were released and are still remembered [n]."""
        known = np.zeros(len(identity), dtype=bool)
        for which, _, _ in self._released.find(identity):
            known[which] = True
        return np.asarray(known & (identity != NO_IDENTITY))

    def _without_repeated(self, decisions: Index, rewards: Run) -> tuple[Index, Run]:
        """Return the rewards of decisions in their order, each id once, and count what is delivered more than once."""
        order = np.lexsort((rewards["offset"], rewards["partition"], rewards["timestamp"], decisions))
        decisions, rewards = decisions[order], {name: column[order] for name, column in rewards.items()}
        which, has_id = rewards["which"], rewards["reward_id"] != NO_IDENTITY
        repeated, alike = np.zeros(len(order), dtype=bool), np.zeros(len(order), dtype=bool)
        if has_id.any():
            repeated = repeated_rows(rewards["reward_id"], which, decisions) & has_id
        if self._combine == "sum" and not has_id.all():
            alike = repeated_rows(rewards["reward"], rewards["timestamp"], has_id, which, decisions) & ~has_id

        def number(rows: Mask) -> int:
            rows = rows & rewards["is_new"]
            return len(set(zip(rewards["partition"][rows].tolist(), rewards["offset"][rows].tolist(), strict=True)))

        before, counts = self.repeats, self.counts
        self.repeats = RewardRepeats(before.repeated + number(repeated), before.suspicious + number(alike))
        self.counts = replace(counts, joined=counts.joined - int(np.count_nonzero(repeated & rewards["is_new"])))
        return decisions[~repeated], {name: column[~repeated] for name, column in rewards.items()}

    def _combine_into(self, reward: Array, which: Index, rewards: Run) -> None:
        """Write the combination of rewards [m] to the rows `which` [m] of `reward` [n]."""
        order = np.lexsort((rewards["offset"], rewards["partition"], rewards["timestamp"], which))
        which, ordered = which[order], rewards["reward"][order]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        if self._combine == "sum" and len(first):
            reward[which[first]] = np.add.reduceat(ordered, first)
        elif self._combine == "first":
            reward[which[first]] = ordered[first]
        else:
            last = np.append(first, len(which))[1:] - 1
            reward[which[last]] = ordered[last]

    def _forget(self, before: float) -> None:
        self._released.take(lambda run: run["timestamp"] <= before)

    def sweep(self, before: float) -> tuple[Rejected, ...]:
        """Drop rewards for which no decision will come, now that decisions before this time have been released."""
        self._forget(before - self._remembered + self.window)
        gone = self._waiting.take(lambda run: run["timestamp"] < before - self._max_lateness)
        return self._rejected(gone) if gone else ()

    def reject_older_half(self) -> tuple[Rejected, ...]:
        """Drop rewards although a decision may still come for them: the memory is full."""
        middle = self._waiting.median_time()
        gone = self._waiting.take(lambda run: run["timestamp"] <= middle)
        gone["fate"] = np.maximum(gone["fate"], LATE)
        return self._rejected(gone)

    def _rejected(self, gone: Run) -> tuple[Rejected, ...]:
        late, unmatched = np.flatnonzero(gone["fate"] == LATE), gone["fate"] == WAITS
        earlier = unmatched & (gone["timestamp"] <= self._first + self._remembered)
        self.count(0, len(late), int(np.count_nonzero(unmatched)), int(np.count_nonzero(earlier)))
        reason = f"more than {self.window:g} s after its decision, or after the decision had been counted"
        what = "score" if self._by_name else "reward"
        columns = [gone[name][late].tolist() for name in ("reward", "timestamp", "partition", "offset")]
        return tuple(
            Rejected(
                "too_late", f"{what}: {reward:.10g} at {timestamp:.6f} is {reason}", b"", origin=(self.topic, *position)
            )
            for reward, timestamp, *position in zip(*columns, strict=True)
        )

    def count(self, joined: int = 0, late: int = 0, unmatched: int = 0, earlier: int = 0) -> None:
        """Count rewards by outcome.

        Args:
            joined: counted in an event
            late: came too late
            unmatched: have no decision
            earlier: how many of the unmatched rewards may belong to a decision before the first one that was read
        """
        counts = self.counts
        self.counts = RewardCounts(counts.joined + joined, counts.late + late, counts.unmatched + unmatched)
        self._recent = fold_arrivals(self._recent, joined + late, {"unmatched": unmatched - earlier})

    @property
    def unmatched_share(self) -> float | None:
        """Return the share of recent rewards without a decision, although decisions of that time have been read."""
        recent = self._recent
        return rejected_share(recent) if recent.accepted or recent.rejected else None

    def state(self) -> State:
        """Return all that is remembered, as a plain value."""
        runs = {"waiting": {"runs": self._waiting.runs}, "released": {"runs": self._released.runs}}
        recent = {"accepted": self._recent.accepted, "rejected": self._recent.rejected}
        counts = {"counts": asdict(self.counts), "repeats": asdict(self.repeats)}
        return {**counts, "recent": recent, "first": self._first, **to_plain(runs)}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self._waiting.runs = from_plain(state["waiting"]["runs"])
        self._released.runs = from_plain(state["released"]["runs"])
        self.counts, self._recent = RewardCounts(**state["counts"]), ArrivalState(**state["recent"])
        self.repeats = RewardRepeats(**state["repeats"])
        self._first = state["first"]
        self._newest = max((float(run["timestamp"].max()) for run in self._waiting.runs), default=-math.inf)
