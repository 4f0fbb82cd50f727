"""Read messages in the frame of AWS Glue, with schemas in files that are named after the UUIDs of their versions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from io import BytesIO
from typing import Any, ClassVar
from uuid import UUID

from streameval.errors import InputError
from streameval.events import Fault
from streameval.events.frames import GLUE_BYTES, glue_content
from streameval.ingest.base import NotYetReadableError
from streameval.ingest.kafka.formats import GlueFormat
from streameval.ingest.kafka.schemas import SchemaReader


class GlueReader(SchemaReader):
    """Turn messages into records with the schemas of a folder, each read once. Nothing asks AWS."""

    suffix: ClassVar[str]

    def __init__(self, settings: GlueFormat) -> None:
        super().__init__(settings)
        self._folder = settings.schemas

    def __call__(self, message: bytes) -> Any:
        content = glue_content(message)
        if isinstance(content, Fault):
            return content
        version, data = UUID(bytes=message[2:GLUE_BYTES]), BytesIO(content)
        schema = self._schema(version)
        return schema if isinstance(schema, Fault) else self.record(data, schema, version, self.indexes(data))

    def indexes(self, data: BytesIO) -> list[int] | None:
        """Read the place of the type of a message in its schema. Avro has none."""
        return None

    @abstractmethod
    def parse_file(self, content: bytes) -> Any:
        """Parse the content of a file.

        Raises:
            InputError: It is not a schema.
        """

    def _load(self, version: Hashable) -> Any:
        file = self._folder / f"{version}{self.suffix}"
        try:
            return self.parse_file(file.read_bytes())
        except InputError as error:
            return Fault("malformed", f"the schema {version}: {error.message}")
        except OSError as error:
            detail = f"no schema {version}: {file} cannot be read: {error.strerror}"
        if self._waits:
            raise NotYetReadableError(detail, hint="add the file, or let on_missing_schema be reject")
        return Fault("malformed", detail)
