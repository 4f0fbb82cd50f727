"""What happens to events between decoding and the evaluator: duplicates, the order of time, rewards that come later.

Each stage takes batches whose `origin` is known and passes on batches, with what it rejects in their `rejected`. It is
a value: `state()` holds all that it remembers and all events that it holds back, and a stage made with the settings of
today goes on from there by `restore(state)`, bit for bit. No stage knows a clock: times are those of events, and what
it is told.

Whoever reads the log chains them after every poll, in this order:

    stage.expect(places)        every partition that there is, once it is known
    stage.rest(ended)           partitions found at their end, before later records: see `EventTimeOrder.rest`
    stage.take(batch)           what was read; the events that are due come back in the order of time
    source.pause(stage.ahead()) what is too far ahead of the others waits in the log, not in memory

The numbers then depend on what the log holds, not on when it was read, as long as no event comes later than
`max_lateness` in its own partition, nor than `max_lateness + idle_timeout` after those of the other partitions.
"""

from streameval.ingest.stages.deduplication import Deduplication
from streameval.ingest.stages.event_time_order import EventTimeOrder
from streameval.ingest.stages.reward_join import RewardJoin
from streameval.ingest.stages.reward_store import RewardCounts

__all__ = ["Deduplication", "RewardJoin", "EventTimeOrder", "RewardCounts"]
