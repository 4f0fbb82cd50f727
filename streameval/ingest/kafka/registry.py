"""Read messages with the schemas of a registry: a byte 0, the id of a schema in 4 bytes, and data."""

from __future__ import annotations

import math
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationError

from streameval.errors import InputError
from streameval.events import Fault
from streameval.ingest.base import NotYetReadableError
from streameval.ingest.kafka.formats import RegistryFormat

REQUEST_TIMEOUT_SECONDS = 5.0
MAX_RECORD_BYTES = 384 * 2**20
"""Memory that the record of one message may take. In Python it may take a hundred times the bytes of the message."""
UNKNOWN_SCHEMA_SECONDS = 60.0
"""Time after which the registry is asked again for a schema that it did not have."""


def client_options(settings: RegistryFormat) -> dict[str, Any]:
    """Translate settings into the configuration of `SchemaRegistryClient`."""
    options: dict[str, Any] = {
        "url": settings.registry,
        "timeout": REQUEST_TIMEOUT_SECONDS,
        "max.retries": 0,  # the daemon tries again, and reports meanwhile why it waits
        # without a file the client would trust the authorities of a package, not those of this machine
        "ssl.ca.location": settings.ssl_cafile or ssl.get_default_verify_paths().cafile,
    }
    if settings.username is not None and settings.password is not None:
        options["basic.auth.user.info"] = f"{settings.username}:{settings.password.get_secret_value()}"
    return options


def oversize(length: int, limit: float) -> Fault | None:
    """Return the fault of a message that may become a record of more than `MAX_RECORD_BYTES`, or None.

    Args:
        length: The bytes of the message.
        limit: The most bytes of a message of its schema.
    """
    if length <= limit:
        return None
    reason = "from which the lists of its schema may fill the memory"
    return Fault("malformed", f"{length} bytes, more than the limit of {limit:.0f}, {reason}")


class SchemaReader(ABC):
    """Turn messages into records with the schemas of a registry, each requested once."""

    title: ClassVar[str]
    fetched_as: ClassVar[str | None] = None
    """Let the registry return schemas in this form. None = as they were registered."""

    def __init__(self, settings: RegistryFormat) -> None:
        self._url = settings.registry
        self._client = SchemaRegistryClient(client_options(settings))
        self._schemas: dict[int, tuple[Any, float]] = {}

    def __call__(self, message: bytes) -> Any:
        """Return the record of a message, or its `Fault`.

        Raises:
            NotYetReadableError: The registry does not answer.
        """
        prefix, data = SchemaId(self.title.upper()), BytesIO(message)
        indexes: list[int] | None = []
        try:
            prefix.from_bytes(data)
            indexes = prefix.message_indexes
        except (SerializationError, EOFError, struct.error):
            pass  # what the prefix lacks is reported below, with the schema if it has one
        if prefix.id is None:
            return Fault("malformed", f"not {self.title} with the number of a schema: the first byte is not 0")
        schema = self._schema(prefix.id)
        return schema if isinstance(schema, Fault) else self.record(data, schema, prefix.id, indexes)

    def paths(self, topic: str) -> list[str] | None:
        """Return the names of the fields of the newest schema of a topic, as `columns` has them.

        Returns:
            None if the registry has no schema by the usual name.

        Raises:
            InputError: The schema cannot be used.
            NotYetReadableError: The registry does not answer.
        """
        newest = self._request(lambda: self._client.get_latest_version(f"{topic}-value", fmt=self.fetched_as).schema)
        return None if newest is None else self.paths_of(newest)

    @abstractmethod
    def record(self, data: BytesIO, schema: Any, number: int, indexes: list[int] | None) -> Any:
        """Return the record of a message, or its `Fault`.

        Args:
            data: The message, read up to the end of its prefix.
            schema: The schema, as `parse` returned it.
            number: Its id.
            indexes: The place of the type of the message in a Protobuf schema.
        """

    @abstractmethod
    def parse(self, schema: Schema) -> Any:
        """Parse a schema with the schemas that it refers to.

        Raises:
            InputError: It is not a schema, or refers to one that the registry does not have.
            NotYetReadableError: The registry does not answer.
        """

    @abstractmethod
    def paths_of(self, schema: Schema) -> list[str]:
        """Return the names of the fields of a schema. Raise what `parse` raises."""

    def referenced(self, reference: SchemaReference) -> Schema:
        """Return the schema that another one refers to.

        Raises:
            InputError: The registry does not have it.
            NotYetReadableError: The registry does not answer.
        """
        subject, version = reference.subject or "", reference.version or "latest"
        schema = self._request(lambda: self._client.get_version(subject, version, fmt=self.fetched_as).schema)
        if schema is None:
            message = f"the registry has no version {version} of {subject}"
            raise InputError(message, hint="register the schema that it refers to")
        return schema

    def _schema(self, number: int) -> Any:
        """Return the schema with an id, or a `Fault`, which holds for a while."""
        schema, until = self._schemas.get(number, (None, 0.0))
        if time.monotonic() < until:
            return schema
        schema = self._load(number)
        until = time.monotonic() + UNKNOWN_SCHEMA_SECONDS if isinstance(schema, Fault) else math.inf
        self._schemas[number] = schema, until
        return schema

    def _load(self, number: int) -> Any:
        schema = self._request(lambda: self._client.get_schema(number, fmt=self.fetched_as))
        if schema is None:
            return Fault("malformed", f"the schema registry has no schema {number}")
        if schema.schema_type != self.title.upper():
            return Fault("malformed", f"the schema {number} is {schema.schema_type}, not {self.title}")
        try:
            return self.parse(schema)
        except InputError as error:
            return Fault("malformed", f"the schema {number}: {error.message}")

    def _request(self, request: Callable[[], Schema | None]) -> Schema | None:
        """Return the answer of the registry, None if it has no such schema.

        Raises:
            NotYetReadableError: The registry does not answer, or refuses to.
        """
        try:
            return request()
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return None
            reason = f"{error.http_status_code}: {error.error_message}"
        except Exception as error:  # noqa: BLE001 - of the HTTP library, which differs by the version of the client
            reason = str(error) or repr(error)
        hint = "check source.format: the address of the registry, username and password"
        raise NotYetReadableError(f"the schema registry at {self._url} cannot be used: {reason}", hint=hint)
