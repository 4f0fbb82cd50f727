"""The kinds of event sources. A new kind adds a line to the union."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.simulated import SimulatedSettings

AnySource: TypeAlias = Annotated[
    KafkaSettings  # a topic
    | FileSettings  # lines of files
    | SimulatedSettings,  # a simulated recommender with known truth
    Field(discriminator="kind"),
]
