"""Compare ways to decode compact events: to Python objects, and to columns from JSON and from batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from measuring import Benchmark, Ratio, Work
from memory_source import POLL, decoding, parsing
from messages import CANDIDATES, batched, compact

from streameval.events import JsonDecoder
from streameval.events.arrow_messages import ArrowDecoder
from streameval.events.schema import event_type
from streameval.events.tables import ColumnNames

IN_BATCH, FEWER_POLLS = (50, 500, 1_000), 8
"""Events of a message of Arrow, and how many times more events a poll then returns, as polls are limited by bytes."""


class Positional(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Represent an event of a binary form with a schema: values in the order of the fields, without names."""

    event_id: str
    timestamp: float
    action: str
    propensity: float
    reward: float
    policies: list[float]

    @classmethod
    def from_json(cls, value: bytes) -> Positional:
        """Convert the event of a JSON message."""
        fields = msgspec.json.decode(value)
        return cls(**fields | {"policies": list(fields["policies"].values())})


def poll_work(values: Sequence[bytes], decode: Callable[[Sequence[bytes]], Any]) -> Work:
    """Decode all messages, a poll at a time."""

    def run() -> None:
        for first in range(0, len(values), POLL):
            decode(values[first : first + POLL])

    return Work(run, len(values))


def one_by_one(decode: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], Any]:
    """Decode the messages of a poll one by one."""
    return lambda poll: list(map(decode, poll))


def benchmark(events: int = 40_000) -> Benchmark:
    values, form = compact(events), event_type(CANDIDATES)
    named = [msgspec.msgpack.encode(msgspec.json.decode(value)) for value in values]
    positional = [msgspec.msgpack.encode(Positional.from_json(value)) for value in values]
    array_decode = msgspec.json.Decoder(list[form]).decode  # type: ignore[valid-type]
    tasks = {
        "JSON, message by message": poll_work(values, one_by_one(msgspec.json.Decoder(form).decode)),
        "JSON, a poll as one array": poll_work(values, lambda poll: array_decode(b"[" + b",".join(poll) + b"]")),
        "MessagePack": poll_work(named, one_by_one(msgspec.msgpack.Decoder(form).decode)),
        "MessagePack without names": poll_work(positional, one_by_one(msgspec.msgpack.Decoder(Positional).decode)),
        "JSON to columns": decoding(values, JsonDecoder(CANDIDATES)),
    }
    decoder = ArrowDecoder(JsonDecoder(CANDIDATES), ColumnNames())
    for size in IN_BATCH:
        messages = batched(values, size)
        work = decoding(messages, decoder, POLL * FEWER_POLLS // size)
        tasks[f"Arrow to columns, {size} events a message"] = work._replace(events=len(values))
    ratios = [Ratio(name, "orjson.loads") for name in tasks]
    return Benchmark("Ways to decode a compact event", {**tasks, "orjson.loads": parsing(values)}, ratios)
