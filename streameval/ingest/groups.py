"""Cut the messages of a poll into groups of events that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from streameval.ingest.base import Records

MAX_NUMBERS, OTHER_NUMBERS = 2**24, 10
"""Numbers of all events of a group, 128 MB. An event has one for each policy, and about so many others."""


def grouped_messages(records: Sequence[Records], decoder: Any) -> Iterator[list[Records]]:
    """Yield messages in groups with at most `MAX_NUMBERS` numbers. A message with more is alone.

    Args:
        records: the messages of a poll
        decoder: decodes them. It has `most_events` if a message may hold many

    >>> [[len(part) for part in group] for group in grouped_messages([Records("t", 0, [7, 8], [b"1", b"2"])], None)]
    [[2]]
    """
    room = most = max(1, MAX_NUMBERS // (OTHER_NUMBERS + len(getattr(decoder, "policies", None) or ())))
    count = getattr(decoder, "most_events", None)
    values = chain.from_iterable(part.values for part in records)
    events = [1] * sum(map(len, records)) if count is None else count(list(values), most)
    if sum(events) <= most:
        yield list(records)
        return
    sizes, group = iter(events), list[Records]()
    for part in records:
        start = 0
        for index in range(len(part)):
            size = next(sizes)
            if size > room < most:
                yield [*group, part.between(start, index)] if index > start else group
                group, start, room = [], index, most
            room -= size
        group.append(part.between(start, len(part)))
    yield group
