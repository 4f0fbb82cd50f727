"""Pack the messages of a logger into Arrow messages of many events. Importing this module loads pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from streameval.event_logger.sinks import Message
from streameval.events.arrow_messages import arrow_message

__all__ = ["MAX_MESSAGE_BYTES", "pack"]

MAX_MESSAGE_BYTES = 900_000  # a broker takes 1 MB by default
MIN_PACKED = 16  # events that are no table are searched for the odd one down to so many


def pack(messages: Sequence[Message]) -> Iterator[tuple[Message, int]]:
    """Yield messages with the number of events in each: batches, and the JSON of events that are no table.

    Args:
        messages: messages of one kind, in order

    >>> texts = [b'{"event_id":1,"actions":["a"]}', b'{"event_id":2,"actions":["b"]}']
    >>> [count for _, count in pack([Message("decision", number, text) for number, text in enumerate(texts)])]
    [2]
    """
    packed, is_table = b"", len(messages) > 1
    if is_table:
        try:
            packed = arrow_message([msgspec.json.decode(message.value) for message in messages])
        except (ValueError, AttributeError, TypeError, RecursionError, msgspec.DecodeError):  # a message is no event
            is_table = False
    if is_table and len(packed) <= MAX_MESSAGE_BYTES:
        yield messages[0]._replace(value=packed), len(messages)
    elif is_table or len(messages) > MIN_PACKED:
        half = len(messages) // 2
        yield from pack(messages[:half])
        yield from pack(messages[half:])
    else:
        yield from ((message, 1) for message in messages)
