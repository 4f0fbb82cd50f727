"""From settings to the source they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from streameval.errors import InputError
from streameval.ingest.backfill_reader import BackfillReader
from streameval.ingest.base import Offsets, Source, SourceOffsets, TopicPartition
from streameval.ingest.settings import FileSettings, KafkaSettings, SimulatedSettings

AnySettings: TypeAlias = KafkaSettings | FileSettings | SimulatedSettings
Beginning: TypeAlias = Literal["earliest"] | int | datetime
"""Where a second reading begins: at the first message there is, at an offset of each partition, or at a time."""

_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


def open_source(settings: AnySettings, bookmarks: SourceOffsets | None = None, *, also: Sequence[str] = ()) -> Source:
    """The source of a configuration, going on at `bookmarks`, as an earlier one gave them; what has none, at its start.

    A log that is no longer the one of its bookmark, or has lost what comes next, is told apart from it, logged, counted
    in `status`, and handled as `on_lost_offsets` says: SourceError from `poll`, or on from where there are messages.
    Partitions that a bookmark does not know came after it, and are read from their beginning. `also`: more topics of
    the same cluster, whose records come among the others.

    Libraries that only one kind needs are imported for that kind.
    """
    known = bookmarks or {}
    if isinstance(settings, KafkaSettings):
        from streameval.ingest.kafka.source import KafkaSource
        from streameval.ingest.multi import MultiSource

        topics = [settings.model_copy(update={"topic": topic}) for topic in (settings.topic, *also)]
        sources = [KafkaSource(topic, known.get(topic.topic)) for topic in topics]
        return MultiSource(sources) if also else sources[0]
    if isinstance(settings, FileSettings):
        from streameval.ingest.files.source import FileSource

        return FileSource(settings.path, follow=settings.follow, bookmarks=known, on_lost=settings.on_lost_offsets)
    from streameval.ingest.simulated import TOPIC, SimulatedSource

    return SimulatedSource(settings, position=known[TOPIC].positions[0] if TOPIC in known else 0)


def beginning(text: str, settings: AnySettings) -> Beginning:
    """Where a second reading of this source is to begin; InputError when it cannot be read from there.

    >>> beginning("120000", KafkaSettings(topic="interactions"))
    120000
    """
    if settings.kind == "file" and "-" in settings.path:
        raise InputError("standard input cannot be read a second time", hint="leave --backfill out, or name a file")
    if text == "earliest" or text.isdecimal():
        return int(text) if text.isdecimal() else "earliest"
    try:
        time = _TIME.validate_python(text)
    except ValidationError:
        hint = "write earliest, an offset such as 120000, or a time such as 2026-01-31T00:00:00Z"
        raise InputError(f"--backfill: found '{text}'", hint=hint) from None
    if settings.kind != "kafka":
        hint = "write earliest, or the number of a line"
        raise InputError(
            f"--backfill: only a topic can be read from a time on, not a {settings.kind} source", hint=hint
        )
    return time


def open_again(settings: AnySettings, begin: Beginning, live: Mapping[TopicPartition, int]) -> BackfillReader:
    """A second reading of a source, from `begin` to where its first one is: `live`, the next offset by partition.

    Of a topic of rewards an offset of the decisions says nothing: it is read whole then.
    """
    if isinstance(settings, KafkaSettings):
        return BackfillReader(
            _topics_again(settings, begin, live), begin if isinstance(begin, int) else 0, of=settings.topic
        )
    if isinstance(settings, SimulatedSettings):  # what has happened need not be waited for
        settings = settings.model_copy(update={"rate": 0.0})
    first = begin if isinstance(begin, int) else 0
    return BackfillReader(open_source(settings), first, knows_its_end=isinstance(settings, FileSettings))


def _topics_again(settings: KafkaSettings, begin: Beginning, live: Mapping[TopicPartition, int]) -> Source:
    from streameval.ingest.kafka.source import KafkaSource
    from streameval.ingest.multi import MultiSource

    start = "earliest" if isinstance(begin, int) else begin
    bookmark = None
    if isinstance(begin, int):
        here = {number: position for (topic, number), position in live.items() if topic == settings.topic}
        bookmark = Offsets({partition: min(begin, position) for partition, position in here.items()})
    decisions = KafkaSource(settings.model_copy(update={"start": start}), bookmark)
    if settings.rewards is None:
        return decisions
    rewards = settings.model_copy(update={"start": start, "topic": settings.rewards.topic, "rewards": None})
    return MultiSource([decisions, KafkaSource(rewards)])
