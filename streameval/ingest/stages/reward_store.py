"""Rewards that wait for their decisions, and what becomes of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from streameval.common.arrays import Array, State
from streameval.events import Rejected, RewardBatch
from streameval.events.action_sets import Index
from streameval.events.origin import Identity
from streameval.ingest.stages.sorted_runs import Column, Run, SortedRuns

WAITS, LATE, JOINED = 0, 1, 2
"""What is known of a reward: nothing yet; that its decision was passed on without it; that it counted."""
REMEMBERED = 2.0
"""So many windows after a decision it is still known that a reward for it is late."""


@dataclass(frozen=True)
class RewardCounts:
    """What has become of reward messages.

    joined: counted in an event. late: dated after the window of their decision (but not more than as long again), or
    they came when it had been passed on. unmatched: there is no decision of this id that is dated near them.

    >>> RewardCounts(joined=3, late=1).late_share
    0.25
    """

    joined: int = 0
    late: int = 0
    unmatched: int = 0

    @property
    def late_share(self) -> float | None:
        """Of the rewards whose decision is known, those that were not counted: what they earned is missing."""
        known = self.joined + self.late
        return self.late / known if known else None


class RewardStore:
    """Joins rewards to decisions by their ids, and knows of decisions that were passed on who is late for them.

    Arguments: see `Joining`. A reward takes 41 bytes, a decision that is remembered 16, all of these together at most
    `most_remembered_bytes`.
    """

    def __init__(
        self,
        window: float,
        default: float,
        combine: Literal["first", "sum", "last"],
        max_lateness: float,
        most_remembered_bytes: float,
    ) -> None:
        self._window, self._default, self._combine = window, default, combine
        self._max_lateness, self._most_remembered_bytes = max_lateness, most_remembered_bytes
        self._waiting, self._decided = SortedRuns(), SortedRuns()
        self.counts = RewardCounts()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def nbytes(self) -> int:
        """Memory that those take which wait, or are kept to be counted."""
        return self._waiting.nbytes

    def add(self, rewards: RewardBatch) -> None:
        """Keep these rewards for decisions that are still to come."""
        identity = rewards.origin.identity
        assert identity is not None
        fate = np.full(len(rewards), WAITS, dtype=np.int8)
        for which, decided, rows in self._decided.find(identity):
            after = rewards.timestamp[which] - decided["timestamp"][rows]
            fate[which[(after >= -self._max_lateness) & (after <= REMEMBERED * self._window)]] = LATE
        columns: Run = {"identity": identity, "timestamp": rewards.timestamp, "reward": rewards.reward, "fate": fate}
        columns |= {"partition": rewards.origin.partition, "offset": rewards.origin.offset}
        self._waiting.add(columns)

    def of(self, identity: Identity, timestamp: Array) -> Array:
        """The rewards of these decisions, which are passed on now, [n]."""
        which, earned = [], []
        for decision, rewards, rows in self._waiting.find(identity):
            after = rewards["timestamp"][rows] - timestamp[decision]
            inside = (after >= -self._max_lateness) & (after <= self._window)
            beyond = (after > self._window) & (after <= REMEMBERED * self._window)
            self._settle(rewards["fate"], rows[beyond], rows[inside])
            which.append(decision[inside])
            earned.append({name: column[rows[inside]] for name, column in rewards.items()})
        self._remember(identity, timestamp)
        reward = np.full(len(identity), self._default)
        if which:
            columns = {name: np.concatenate([part[name] for part in earned]) for name in earned[0]}
            self._combine_into(reward, np.concatenate(which), columns)
        return reward

    def _settle(self, fate: Column, late: Index, joined: Index) -> None:
        newly = np.unique(joined[fate[joined] != JOINED])
        self.counts = replace(self.counts, joined=self.counts.joined + len(newly))
        fate[late] = np.maximum(fate[late], LATE)
        fate[newly] = JOINED

    def _combine_into(self, reward: Array, which: Index, rewards: Run) -> None:
        """Rewards [m] to those of the decisions that they are for, `which` [m]."""
        order = np.lexsort((rewards["offset"], rewards["partition"], rewards["timestamp"], which))
        which, earned = which[order], rewards["reward"][order]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        if self._combine == "sum" and len(first):
            reward[which[first]] = np.add.reduceat(earned, first)
        elif self._combine == "first":
            reward[which[first]] = earned[first]
        else:
            last = np.append(first, len(which))[1:] - 1
            reward[which[last]] = earned[last]

    def _remember(self, identity: Identity, timestamp: Array) -> None:
        self._decided.add({"identity": identity, "timestamp": timestamp})
        if self._decided.nbytes > self._most_remembered_bytes:
            self._forget(float(np.median(self._decided.times())))

    def _forget(self, before: float) -> None:
        self._decided.take(lambda run: run["timestamp"] <= before)

    def sweep(self, before: float, topic: str) -> tuple[Rejected, ...]:
        """Let go of rewards for which no decision will come, when those before this time have been passed on."""
        self._forget(before - self._window)
        gone = self._waiting.take(lambda run: run["timestamp"] < before - self._max_lateness)
        return self._given_up(gone, topic) if gone else ()

    def give_up_beyond(self, time: float, topic: str) -> tuple[Rejected, ...]:
        """Let go of rewards from after this time, when the memory is full: their turn would never come."""
        gone = self._waiting.take(lambda run: run["timestamp"] > time)
        self.count(unmatched=int(np.count_nonzero(gone["fate"] == WAITS)) if gone else 0)
        places = zip(gone["partition"].tolist(), gone["offset"].tolist(), strict=True) if gone else ()
        detail = "timestamp: far ahead of all others"
        return tuple(Rejected("too_early", detail, b"", origin=(topic, *place)) for place in places)

    def give_up_older_half(self, topic: str) -> tuple[Rejected, ...]:
        """Let go of rewards for which a decision may still come, when the memory is full."""
        middle = float(np.median(self._waiting.times()))
        gone = self._waiting.take(lambda run: run["timestamp"] <= middle)
        gone["fate"] = np.maximum(gone["fate"], LATE)
        return self._given_up(gone, topic)

    def _given_up(self, gone: Run, topic: str) -> tuple[Rejected, ...]:
        late = np.flatnonzero(gone["fate"] == LATE)
        self.count(late=len(late), unmatched=int(np.count_nonzero(gone["fate"] == WAITS)))
        why = f"more than {self._window:g} s after its decision, or the decision did not wait for it"
        columns = [gone[name][late].tolist() for name in ("reward", "timestamp", "partition", "offset")]
        return tuple(
            Rejected("too_late", f"reward: {reward:.10g} at {timestamp:.6f} is {why}", b"", origin=(topic, *place))
            for reward, timestamp, *place in zip(*columns, strict=True)
        )

    def count(self, late: int = 0, unmatched: int = 0) -> None:
        """Rewards that did not even wait."""
        counts = self.counts
        self.counts = replace(counts, late=counts.late + late, unmatched=counts.unmatched + unmatched)

    def state(self) -> State:
        """All that is known, as a plain value."""
        return {"waiting": self._waiting.state(), "decided": self._decided.state(), "counts": asdict(self.counts)}

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self._waiting.restore(state["waiting"])
        self._decided.restore(state["decided"])
        self.counts = RewardCounts(**state["counts"])
