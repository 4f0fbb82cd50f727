"""Test events that are buffered while a candidate is added."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from streameval.events import JsonDecoder
from streameval.ingest.base import Records
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from support.messages import message

TOPIC = "clicks"
EVENTS = 200
PARTITIONS: dict[tuple[str, int], float | None] = {(TOPIC, 0): None, (TOPIC, 1): None}


def messages() -> list[Records]:
    """Return events of both policies, by turns in two partitions."""
    values = [message(number, policies={"early": 0.25, "late": 0.75}) for number in range(EVENTS)]
    return [Records(TOPIC, number, range(EVENTS // 2), values[number::2]) for number in range(2)]


@pytest.mark.parametrize("read_before", [0, 1, 57, 99, 100])
def test_a_candidate_added_while_events_are_buffered_gets_each_of_them_once(read_before: int) -> None:
    source = KafkaSettings(topic=TOPIC)
    both, early = JsonDecoder(["early", "late"]), JsonDecoder(["early"])
    live = EventPipeline(early, source)
    passed = []
    cuts = [0, read_before, EVENTS // 2]
    for form, (start, stop) in zip((early, both), pairwise(cuts), strict=True):
        live.events = form
        lots = [
            Records(TOPIC, chunk.partition, chunk.offsets[start:stop], chunk.values[start:stop]) for chunk in messages()
        ]
        passed.append(live.take(lots, PARTITIONS))
    again = live.second_reading()
    history = again.take(messages(), PARTITIONS)
    rest = again.hand_over()
    assert rest is not None
    waited = live.flush()
    assert 0 < len(waited) < EVENTS
    assert len(history) + len(rest) + len(waited) == EVENTS
    assert sum(map(len, passed)) + len(waited) == EVENTS
    for batch in (history, rest, waited.with_policies(["early", "late"])):
        np.testing.assert_array_equal(batch.with_policies(["late"]).probabilities, np.full((len(batch), 1), 0.75))
    assert (np.diff(waited.timestamp) == 1).all()


@pytest.mark.parametrize("duplicates", [0, 100])
def test_events_of_a_recreated_topic_do_not_replace_buffered_ones(duplicates: int) -> None:
    """Read new events at the offsets of the old ones."""
    settings = KafkaSettings(topic=TOPIC, duplicates=duplicates)
    live = EventPipeline(JsonDecoder(["early"], identified=duplicates > 0), settings)
    old, new = (
        [message(number, timestamp=1000.0, reward=number) for number in range(first, first + 4)] for first in (0, 4)
    )
    live.take([Records(TOPIC, 0, range(4), old)], PARTITIONS)
    late = live.second_reading()
    late.take([Records(TOPIC, 0, range(4), new)], PARTITIONS)
    assert late.hand_over() is None
    assert live.flush().reward.tolist() == [0.0, 1.0, 2.0, 3.0]
    rest = late.hand_over()
    assert rest is not None
    assert rest.reward.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_the_first_partitions_decide_the_order_before_messages_come() -> None:
    """Give a second reading the same order, even if it starts before the first message."""
    live = EventPipeline(JsonDecoder(["early"]), KafkaSettings(topic=TOPIC))
    live.decide([(TOPIC, 0)])
    late = live.second_reading()
    assert len(late.take(messages(), PARTITIONS)) == len(live.take(messages(), PARTITIONS)) == EVENTS
