"""From settings to the source they describe."""

from __future__ import annotations

from streameval.sources import Source
from streameval.sources.settings import FileSettings, KafkaSettings, SimulatedSettings


def open_source(settings: KafkaSettings | FileSettings | SimulatedSettings) -> Source:
    """The source of a configuration; libraries that only one kind needs are imported for that kind."""
    if isinstance(settings, KafkaSettings):
        from streameval.sources.kafka import KafkaSource

        return KafkaSource(settings)
    if isinstance(settings, FileSettings):
        from streameval.sources.file import FileSource

        return FileSource(settings.path, follow=settings.follow)
    from streameval.sources.simulated import SimulatedSource

    return SimulatedSource(settings)
