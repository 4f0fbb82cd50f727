"""Read Avro with the schemas of a registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import fastavro
import msgspec
from confluent_kafka.schema_registry import Schema
from fastavro.schema import SchemaParseException, UnknownType

from streameval.errors import InputError
from streameval.events import Fault
from streameval.ingest.kafka.registry import SchemaReader

MAX_DEPTH = 4
"""List the fields of records inside records to this depth."""
BAD_RECORD = (EOFError, IndexError, KeyError, OverflowError, MemoryError, StopIteration, TypeError, ValueError)
"""Errors of fastavro for bytes that are not a record of the schema."""


class AvroReader(SchemaReader):
    """Read Avro. `AvroDeserializer` takes twice the time of this, and accepts bytes after the record."""

    title = "Avro"

    def record(self, data: BytesIO, schema: Any, number: int, indexes: list[int] | None) -> Any:
        try:
            record = fastavro.schemaless_reader(data, schema, None)
        except BAD_RECORD as error:
            return Fault("malformed", f"not a record of the schema {number}: {error}")
        rest = len(data.read())
        return Fault("malformed", f"{rest} bytes after the record of the schema {number}") if rest else record

    def parse(self, schema: Schema, types: dict[str, Any] | None = None) -> Any:
        types = {} if types is None else types
        for reference in schema.references or ():
            self.parse(self.referenced(reference), types)
        try:
            return fastavro.parse_schema(msgspec.json.decode(schema.schema_str or ""), types)
        except (SchemaParseException, UnknownType, msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"it cannot be used: {error}", hint="register a valid schema") from error

    def paths_of(self, schema: Schema) -> list[str]:
        types = dict[str, Any]()
        return list(_paths(self.parse(schema, types), types))


def _paths(schema: Any, types: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of a parsed schema.

    Args:
        schema: A parsed schema, or the name of one.
        types: The schemas that have names.
        prefix: The path to the schema.
    """
    for branch in schema if isinstance(schema, list) else [schema]:
        record = types.get(branch, {}) if isinstance(branch, str) else branch
        for field in record.get("fields", ()) if prefix.count(".") < MAX_DEPTH else ():
            path = f"{prefix}{field['name']}"
            yield path
            yield from _paths(field["type"], types, f"{path}.")
