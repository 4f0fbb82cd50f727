"""Configure how the partitions of a log are ordered by time, and what is joined to its decisions."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from streameval.common.text import Seconds
from streameval.ingest.base import CandidatesTopic, JoinedTopic, LogSettings, RewardTopic
from streameval.ingest.stages import EventOrder, RewardStore

MAX_AHEAD = 300.0
"""An event that is dated more seconds ahead of this machine's clock counts as an event of now."""


class JoinedSettings(LogSettings):
    """Order the events of a log by time, and join what comes separately."""

    keeps_position: ClassVar[bool] = True

    order: Literal["event_time", "arrival"] | None = Field(
        None,
        description="Merge partitions by event time, or take events as they arrive; the default is event_time if "
        "the topic has several partitions when it is first read.",
    )
    max_lateness: Seconds = Field(
        5.0,
        description="How long an event waits for earlier events of its partition. Events that are later still "
        "count at once, out of order.",
    )
    idle_timeout: Seconds = Field(
        10.0, description="How much longer events of other partitions wait for an idle partition."
    )
    held_max_bytes: PositiveInt = Field(
        128 * 2**20, description="Memory for buffered events; beyond it, partitions that are ahead are not read."
    )
    stall_after: Seconds = Field(
        600.0,
        description="/livez fails, so that the process is restarted, once nothing has answered, or unread messages "
        "have not come, for this long. The source is opened anew long before.",
    )
    rewards: RewardTopic | None = Field(
        None, description="A topic of delayed rewards in JSON, joined to their decisions by event_id."
    )
    candidates: CandidatesTopic | None = Field(
        None,
        description="A topic of probabilities in JSON that production does not log, joined to decisions by event_id.",
    )

    @property
    @abstractmethod
    def decisions_topic(self) -> str:
        """Return the topic of the decisions."""

    @model_validator(mode="after")
    def _topics_can_be_joined(self) -> JoinedSettings:
        if len(set(self.log_topics)) < len(self.log_topics):
            own = ", each in its own" if len(self.log_topics) > 2 else ""
            raise ValueError(f"{self._joined} must be in another topic than the decisions{own}")
        if self._joined and self.order == "arrival":
            raise ValueError(f"{self._joined} are joined in event time: order cannot be arrival")
        return self

    @property
    def _joined(self) -> str:
        """Return what is joined to decisions, for people."""
        names = {"rewards": self.rewards, "candidates": self.candidates}
        return " and ".join(name for name, topic in names.items() if topic is not None)

    @property
    def longest_wait(self) -> float:
        return self.stall_after

    @property
    def clock_tolerance(self) -> float:
        return MAX_AHEAD

    @property
    def reward_topic(self) -> RewardTopic | None:
        return self.rewards

    @property
    def candidates_topic(self) -> CandidatesTopic | None:
        return self.candidates

    @property
    def log_topics(self) -> tuple[str, ...]:
        """Return the names of the decisions and of what is joined to them."""
        joined: tuple[JoinedTopic | None, ...] = (self.rewards, self.candidates)
        return (self.decisions_topic, *(topic.topic for topic in joined if topic is not None))

    def event_order(self, partitions: int) -> EventOrder | None:
        limits: dict[str, Any] = {"max_lateness": self.max_lateness, "max_bytes": self.held_max_bytes}
        rewards = (
            None if self.rewards is None else RewardStore(**self.rewards.model_dump(exclude={"columns"}), **limits)
        )
        joined: dict[str, Any] = {"default": math.nan, "combine": "first", "by_name": True, **limits}
        scores = None
        if self.candidates is not None:
            scores = RewardStore(self.candidates.topic, window=self.candidates.window, **joined)
        is_joined = rewards is not None or scores is not None
        if not is_joined and (self.order == "arrival" or (self.order is None and partitions == 1)):
            return None
        return EventOrder(
            self.decisions_topic, idle_timeout=self.idle_timeout, rewards=rewards, scores=scores, **limits
        )
