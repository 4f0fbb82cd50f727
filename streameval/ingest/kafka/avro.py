"""Messages in Avro, in the wire format of Confluent: a byte 0, the number of a schema in 4 bytes, and the record."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from pydantic import Field, SecretStr, model_validator

from streameval.errors import InputError
from streameval.events import Fault
from streameval.ingest.base import ExistingFile, NotYetReadableError, StrictModel

FIRST_BYTE, PREFIX = 0, 5
ANSWER_WITHIN = 5.0  # seconds for one request
ASK_AGAIN = 60.0  # seconds after which the registry is asked again for a schema that it did not have
DEEPEST = 4  # records inside records whose fields are listed
LONGEST_ANSWER = 200  # characters of a refusal that are reported
BAD_RECORD = (EOFError, IndexError, KeyError, OverflowError, MemoryError, StopIteration, TypeError, ValueError)
"""Errors of fastavro for bytes that are not a record of the schema."""


class AvroFormat(StrictModel):
    """Avro, with the schemas of a registry."""

    kind: Literal["avro"]
    registry: str = Field(
        pattern="^https?://", description="The URL of the schema registry, e.g. http://localhost:8081."
    )
    username: str | None = Field(None, description="User name for the registry.")
    password: SecretStr | None = Field(None, description="Password for the registry.")
    ssl_cafile: ExistingFile | None = Field(None, description="PEM file of the certificate authority of the registry.")

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> AvroFormat:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        return self


class Schema(msgspec.Struct):
    """A schema as the registry returns it."""

    schema: str
    schemaType: str = "AVRO"
    references: list[Reference] = []


class Reference(msgspec.Struct):
    """A schema of another subject, of which a schema uses the types."""

    subject: str
    version: int


class AvroReader:
    """Turns messages into records; the schemas come from the registry, each is requested once.

    Raises:
        InputError: fastavro is not installed.
    """

    def __init__(self, settings: AvroFormat) -> None:
        try:
            import fastavro
        except ImportError as error:
            hint = "pip install 'streameval[avro]'"
            raise InputError("Avro needs fastavro, which is not installed", hint=hint) from error
        self._fastavro = fastavro
        self._registry = SchemaRegistry(settings)
        self._known: dict[int, Any] = {}
        self._unknown: dict[int, tuple[Fault, float]] = {}

    def __call__(self, message: bytes) -> Any:
        """The record of a message, or its `Fault`.

        Raises:
            NotYetReadableError: The registry does not answer.
        """
        if len(message) < PREFIX or message[0] != FIRST_BYTE:
            return Fault("malformed", "not Avro with the number of a schema: the first byte is not 0")
        number = int.from_bytes(message[1:PREFIX], "big")
        schema = self._known.get(number) or self._schema(number)
        if isinstance(schema, Fault):
            return schema
        stream = BytesIO(message)
        stream.seek(PREFIX)
        try:
            record = self._fastavro.schemaless_reader(stream, schema, None)
        except BAD_RECORD as error:
            return Fault("malformed", f"not a record of the schema {number}: {error}")
        left = len(message) - stream.tell()
        return Fault("malformed", f"{left} bytes after the record of the schema {number}") if left else record

    def _schema(self, number: int) -> Any:
        """The schema of this number, or a `Fault`, which holds for a while."""
        fault, until = self._unknown.get(number, (None, 0.0))
        if fault is not None and time.monotonic() < until:
            return fault
        found = self._registry.get(f"schemas/ids/{number}")
        if found is None:
            fault = Fault("malformed", f"the schema registry has no schema {number}")
        elif found.schemaType != "AVRO":
            fault = Fault("malformed", f"the schema {number} is {found.schemaType}, not Avro")
        else:
            try:
                schema = self._known[number] = self._registry.parsed(found)
                return schema
            except InputError as error:
                fault = Fault("malformed", f"the schema {number}: {error.message}")
        self._unknown[number] = fault, time.monotonic() + ASK_AGAIN
        return fault


class SchemaRegistry:
    """Asks a registry for its schemas."""

    def __init__(self, settings: AvroFormat) -> None:
        self._url = settings.registry.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.username is not None and settings.password is not None:
            login = f"{settings.username}:{settings.password.get_secret_value()}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        is_https = self._url.startswith("https:")
        self._tls = ssl.create_default_context(cafile=settings.ssl_cafile) if is_https else None

    def get(self, path: str) -> Schema | None:
        """The schema at a path, None where the registry has none.

        Raises:
            NotYetReadableError: The registry does not answer, or refuses to.
        """
        request = urllib.request.Request(f"{self._url}/{path}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN, context=self._tls) as answer:
                return msgspec.json.decode(answer.read(), type=Schema)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                reason = f"{error.code}: {error.read(LONGEST_ANSWER).decode(errors='replace')}"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            reason = str(getattr(error, "reason", None) or error)
        hint = "check source.format: the address of the registry, username and password"
        raise NotYetReadableError(f"the schema registry at {self._url} cannot be used: {reason}", hint=hint)

    def newest(self, topic: str) -> Schema | None:
        """The newest schema of the values of a topic by the usual naming, None where the registry has none."""
        return self.get(f"subjects/{quote(topic, safe='')}-value/versions/latest")

    def parsed(self, found: Schema, types: dict[str, Any] | None = None) -> Any:
        """The schema for fastavro, with the types of those that it refers to.

        Raises:
            InputError: It is not a schema, or refers to one that the registry does not have.
            NotYetReadableError: The registry does not answer.
        """
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType

        types = {} if types is None else types
        for reference in found.references:
            other = self.get(f"subjects/{quote(reference.subject, safe='')}/versions/{reference.version}")
            if other is None:
                raise InputError(
                    f"the registry has no version {reference.version} of {reference.subject}",
                    hint="register the schema that it refers to",
                )
            self.parsed(other, types)
        try:
            return fastavro.parse_schema(msgspec.json.decode(found.schema), types)
        except (SchemaParseException, UnknownType, msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"it cannot be used: {error}", hint="register a valid schema") from error


def paths_of(schema: Any, types: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names of the fields of a parsed schema, as `columns` has them; `types`: those that it names."""
    for branch in schema if isinstance(schema, list) else [schema]:
        record = types.get(branch, {}) if isinstance(branch, str) else branch
        for field in record.get("fields", ()) if before.count(".") < DEEPEST else ():
            path = f"{before}{field['name']}"
            yield path
            yield from paths_of(field["type"], types, f"{path}.")
