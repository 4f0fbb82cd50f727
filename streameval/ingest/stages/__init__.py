"""Pass events from the decoder to the evaluator: drop duplicates, order by event time, join separate rewards.

A stage takes batches with their `origin` and returns batches, with what it rejects in their `rejected`. `state()` holds
all that it remembers, and a stage made with other settings continues by `restore(state)`. No stage reads a clock.

The results depend on what the log holds, not on when it was read, as long as every event comes within `max_lateness`
in its own partition, and within `max_lateness + idle_timeout` after the events of other partitions.
"""

from streameval.ingest.stages.deduplication import Deduplication
from streameval.ingest.stages.event_order import BufferStatus, EventOrder, PartitionEnds
from streameval.ingest.stages.reader_clock import ClockBehindError, ReaderClock
from streameval.ingest.stages.reward_store import RewardCounts, RewardRepeats, RewardStore
from streameval.ingest.stages.watermark import TopicPartition

__all__ = [
    "BufferStatus",
    "ClockBehindError",
    "Deduplication",
    "EventOrder",
    "PartitionEnds",
    "ReaderClock",
    "RewardCounts",
    "RewardRepeats",
    "RewardStore",
    "TopicPartition",
]
