"""Decisions and their rewards, which come as messages of their own, joined by their ids in event time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from streameval.arrays import State
from streameval.events import EventBatch
from streameval.events.late_rewards import RewardBatch
from streameval.stages.clocks import Place


@dataclass(frozen=True)
class RewardCounts:
    """What has become of reward messages.

    joined: counted in an event. late: dated after the window of their decision, or too late in their own partition.
    unmatched: no decision of this id was dated near them, or it is too long ago to know.
    """

    joined: int = 0
    late: int = 0
    unmatched: int = 0

    @property
    def late_share(self) -> float | None:
        """Of the rewards whose decision is known, those that were not counted; what they earned is missing."""
        known = self.joined + self.late
        return self.late / known if known else None


class Joining:
    """Gives every decision the rewards dated up to `window` (seconds) after it, and passes it on, in the order of time.

    A decision waits until the watermarks of both topics say that no such reward will come any more (`Clocks`), then
    gets the rewards with its id: the `first`, their `sum` or the `last`, by (timestamp, partition, offset), and
    without any `default`. Rewards that come before their decision wait, too; one may be dated up to
    `max_lateness` before it, since clocks differ. Later rewards are rejected as `too_late`.

    Other arguments and methods: as those of `Ordering`, with both topics' partitions.
    """

    def __init__(
        self,
        topic: str,
        rewards_topic: str,
        *,
        window: float,
        default: float,
        combine: Literal["first", "sum", "last"],
        max_lateness: float,
        idle_timeout: float,
        most_bytes: int,
    ) -> None:
        raise NotImplementedError

    counts: RewardCounts

    @property
    def held(self) -> int:
        """Decisions that wait."""
        raise NotImplementedError

    def expect(self, places: Iterable[Place]) -> None:
        """These partitions exist."""
        raise NotImplementedError

    def take(self, batch: EventBatch) -> EventBatch:
        """The next decisions; what is due comes back."""
        raise NotImplementedError

    def take_rewards(self, rewards: RewardBatch) -> EventBatch:
        """The next rewards; what is due comes back."""
        raise NotImplementedError

    def rest(self, ended: Mapping[Place, float]) -> EventBatch:
        """These partitions were found at their end by a question asked at this time."""
        raise NotImplementedError

    def flush(self) -> EventBatch:
        """All decisions that wait, with the rewards that are known: nothing more will come."""
        raise NotImplementedError

    def ahead(self) -> frozenset[Place]:
        """Partitions that must not be read on for now."""
        raise NotImplementedError

    def state(self) -> State:
        """All that it remembers."""
        raise NotImplementedError

    def restore(self, state: State) -> None:
        """Go on from a state."""
        raise NotImplementedError
