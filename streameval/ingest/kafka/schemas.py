"""Read messages with the schemas that they name. Each schema is looked up once."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from io import BytesIO
from typing import Any

from streameval.events import Fault
from streameval.ingest.kafka.formats import SchemaFormat

MAX_FAULTS = 10_000
"""Remember for this many schemas why there are none."""
MAX_RECORD_BYTES = 384 * 2**20
"""Memory that the record of one message may take. In Python it may take a hundred times the bytes of the message."""
UNKNOWN_SCHEMA_SECONDS = 60.0
"""Time after which a schema that was not found is looked up again."""


def oversize(length: int, limit: float) -> Fault | None:
    """Return the fault of a message that may become a record of more than `MAX_RECORD_BYTES`, or None.

    Args:
        length: The bytes of the message.
        limit: The most bytes of a message of its schema.
    """
    if length <= limit:
        return None
    reason = "beyond that, lists of its schema may fill the memory"
    return Fault("malformed", f"{length} bytes, more than the limit of {limit:.0f}: {reason}")


class SchemaReader(ABC):
    """Turn messages into records."""

    def __init__(self, settings: SchemaFormat) -> None:
        self._waits = settings.on_missing_schema == "wait"
        self._schemas: dict[Hashable, tuple[Any, float]] = {}

    @abstractmethod
    def __call__(self, message: bytes) -> Any:
        """Return the record of a message, or its `Fault`.

        Raises:
            NotYetReadableError: The schema cannot be looked up yet.
        """

    def paths(self, topic: str) -> list[str] | None:
        """Return the names of the fields of the newest schema of a topic, None if it is not known."""
        return None

    @abstractmethod
    def record(self, data: BytesIO, schema: Any, number: Hashable, indexes: list[int] | None) -> Any:
        """Return the record of a message, or its `Fault`.

        Args:
            data: The message, read up to the end of its prefix.
            schema: The schema, as `_load` returned it.
            number: Its id.
            indexes: The place of the type of the message in a Protobuf schema.
        """

    def _schema(self, number: Hashable) -> Any:
        """Return the schema with an id, or a `Fault`, which holds for a while."""
        schema, until = self._schemas.get(number, (None, 0.0))
        if time.monotonic() < until:
            return schema
        schema = self._load(number)
        until = time.monotonic() + UNKNOWN_SCHEMA_SECONDS if isinstance(schema, Fault) else math.inf
        if len(self._schemas) >= MAX_FAULTS:  # messages may be bytes with any number at that place
            self._forget_faults()
        self._schemas[number] = schema, until
        return schema

    def _forget_faults(self) -> None:
        """Forget why there are no schemas."""
        self._schemas = {key: entry for key, entry in self._schemas.items() if not isinstance(entry[0], Fault)}

    @abstractmethod
    def _load(self, number: Any) -> Any:
        """Look up the schema with an id. Return it, or its `Fault`.

        Raises:
            NotYetReadableError: It cannot be looked up yet.
        """
