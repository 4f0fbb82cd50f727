"""Read Avro with the schemas of a registry."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import msgspec
from confluent_kafka.schema_registry import Schema
from fastavro import _read_py as recursive_reader
from fastavro.io.binary_decoder import BinaryDecoder
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from streameval.errors import InputError
from streameval.events import Fault
from streameval.ingest.kafka.glue import GlueReader
from streameval.ingest.kafka.registry import RegistryReader
from streameval.ingest.kafka.schemas import MAX_RECORD_BYTES, SchemaReader, oversize

MAX_DEPTH = 4
"""List the fields of records inside records to this depth."""
BAD_SCHEMA = (AttributeError, KeyError, RecursionError, SchemaParseException, TypeError, ValueError)
"""Errors of fastavro, and of code that visits what it has parsed, for JSON that is not a schema."""
CUT_RECORD = (EOFError, IndexError, StopIteration)
"""Errors of fastavro for bytes that end within a record."""
BAD_RECORD = (*CUT_RECORD, ArithmeticError, KeyError, MemoryError, TypeError, ValueError)
"""Errors of fastavro for bytes that are not a record of the schema."""
MAX_INTEGER_BYTES = 10
MAX_DECIMAL_BYTES = 1024
"""The time to read a decimal grows with the square of its length."""
SHORT_DECIMAL = "streameval-decimal"
"""The logical type of decimals that are not longer than `MAX_DECIMAL_BYTES`."""


class AvroSchema(NamedTuple):
    """Hold a schema that fastavro has parsed.

    Attributes:
        parsed: the schema
        max_bytes: a longer message might become a record of more than `MAX_RECORD_BYTES`
        read: return a record. The compiled reader of fastavro crashes the process if records are nested very deeply,
            which only recursive schemas allow. The same reader in Python raises RecursionError
    """

    parsed: Any
    max_bytes: float
    read: Callable[[BytesIO, Any], Any]


class ShortIntegers(BinaryDecoder):
    """Refuse integers of endless length, which take the Python reader a time that grows with the square of it."""

    def read_long(self) -> int:
        start = self.fo.tell()
        digits = self.fo.read(MAX_INTEGER_BYTES)
        if len(digits) == MAX_INTEGER_BYTES and min(digits) > 127:
            raise ValueError(f"an integer of more than {MAX_INTEGER_BYTES} bytes")
        self.fo.seek(start)
        number: int = super().read_long()  # type: ignore[no-untyped-call]
        return number

    read_int = read_long


def _read_flat(data: BytesIO, schema: Any) -> Any:
    return fastavro.schemaless_reader(data, schema, None)


def _read_recursive(data: BytesIO, schema: Any) -> Any:
    names = {"writer": schema["__named_schemas"], "reader": {}}
    return recursive_reader.read_data(ShortIntegers(data), schema, names)  # type: ignore[no-untyped-call]


def _read_decimal(data: bytes, schema: Any, _: Any = None) -> Any:
    if len(data) > MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(data)} bytes, more than the limit of {MAX_DECIMAL_BYTES}")
    return LOGICAL_READERS["bytes-decimal"](data, schema, None)


LOGICAL_READERS |= {f"{kind}-{SHORT_DECIMAL}": _read_decimal for kind in ("bytes", "fixed")}


class AvroRecords(SchemaReader):
    """Read the records of messages in Avro.

    `AvroDeserializer` takes twice the time of this, and accepts bytes after the record.
    """

    def record(self, data: BytesIO, schema: AvroSchema, number: Hashable, indexes: list[int] | None) -> Any:
        if fault := oversize(data.getbuffer().nbytes, schema.max_bytes):
            return fault
        try:
            record = schema.read(data, schema.parsed)
        except RecursionError:
            return Fault("malformed", "nested too deeply")
        except BAD_RECORD as error:
            reason = "it ends too early" if isinstance(error, CUT_RECORD) else str(error)
            reason = f"it has no choice {error}" if isinstance(error, KeyError) else reason
            return Fault("malformed", f"not a record of the schema {number}: {reason}")
        rest = len(data.read())
        return Fault("malformed", f"{rest} bytes after the record of the schema {number}") if rest else record


class AvroReader(RegistryReader, AvroRecords):
    """Read Avro with the schemas of a registry."""

    title = "Avro"

    def parse(self, schema: Schema) -> AvroSchema:
        return _judged_schema(*self._parsed(schema, {}, set()))

    def paths_of(self, schema: Schema) -> list[str]:
        parsed = self._parsed(schema, {}, set())
        with _judged():
            return list(_paths(*parsed))

    def _parsed(
        self, schema: Schema, types: dict[str, Any], added: set[tuple[str | None, int | None]]
    ) -> tuple[Any, dict[str, Any]]:
        """Return a parsed schema, and all schemas that have names.

        Args:
            schema: The schema.
            types: The schemas that have names. Gets the ones in this schema, and in all that it refers to.
            added: The subjects and versions of the schemas in `types`, each once, also if they refer to each other.
        """
        for reference in schema.references or ():
            if (reference.subject, reference.version) not in added:
                added.add((reference.subject, reference.version))
                self._parsed(self.referenced(reference), types, added)
        with _judged():
            return fastavro.parse_schema(msgspec.json.decode(schema.schema_str or ""), types), types


class GlueAvroReader(GlueReader, AvroRecords):
    """Read Avro in the frame of AWS Glue."""

    suffix = ".avsc"

    def parse_file(self, content: bytes) -> AvroSchema:
        types: dict[str, Any] = {}
        with _judged():
            parsed = fastavro.parse_schema(msgspec.json.decode(content), types)
        return _judged_schema(parsed, types)


def _judged_schema(parsed: Any, types: dict[str, Any]) -> AvroSchema:
    """Return a schema with its limits.

    Args:
        parsed: The parsed schema.
        types: All schemas that have names.

    Raises:
        InputError: It is not a schema.
    """
    with _judged():
        extents = _Extents(types)
        max_bytes = extents.max_bytes(parsed)
        strict = {"type": parsed} if isinstance(parsed, str) else _strict(parsed)
        names = {name: _strict(named) for name, named in types.items()}
    strict |= {"__fastavro_parsed": True, "__named_schemas": names}
    return AvroSchema(strict, max_bytes, _read_recursive if extents.is_recursive else _read_flat)


@contextmanager
def _judged() -> Iterator[None]:
    """Raise InputError for JSON that is not a schema."""
    try:
        yield
    except BAD_SCHEMA as error:
        reason = repr(error) if isinstance(error, AttributeError | KeyError | TypeError) else str(error)
        reason = "nested too deeply" if isinstance(error, RecursionError) else reason
        raise InputError(f"it cannot be used: {reason}", hint="register a valid schema") from error


def _strict(schema: Any) -> Any:
    """Return a parsed schema with limits that fastavro lacks: to the length of decimals, and to numbers of choices.

    Choices are mappings by number. From the lists of fastavro, negative numbers would choose, too.
    """
    if isinstance(schema, list):
        return {"type": "union", **dict(enumerate(map(_strict, schema)))}
    if not isinstance(schema, dict):
        return schema
    strict = {**schema, **{key: _strict(schema[key]) for key in ("type", "items", "values") if key in schema}}
    if "fields" in schema:
        strict["fields"] = list(map(_strict, schema["fields"]))
    if "symbols" in schema:
        strict["symbols"] = dict(enumerate(schema["symbols"]))
    if schema.get("logicalType") == "decimal":
        strict["logicalType"] = SHORT_DECIMAL
    return strict


class Extent(NamedTuple):
    """Hold the fewest bytes of a value in a message, and about the memory that such a value takes."""

    least: float
    memory: float


PRIMITIVE = {
    "null": Extent(0, 0),
    "boolean": Extent(1, 0),
    "int": Extent(1, 32),
    "long": Extent(1, 32),
    "float": Extent(4, 24),
    "double": Extent(8, 24),
    "bytes": Extent(1, 40),
    "string": Extent(1, 56),
    "enum": Extent(1, 0),
}
LOGICAL_BYTES = 64  # of the object that a logical type becomes, such as a datetime or Decimal
LIST = Extent(1, 64)
ENTRY_BYTES = {"array": 8, "map": 150}  # beside the item itself


class _Extents:
    """Find how much memory a message of a schema may take."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types, self._known, self._recursive = types, dict[str, Extent](), set[str]()
        self._most = 0.0  # bytes of memory from one byte of a message

    @property
    def is_recursive(self) -> bool:
        """Return whether a type contains itself."""
        return bool(self._recursive)

    def max_bytes(self, schema: Any) -> float:
        """Return the largest length of a message with a record that fits into `MAX_RECORD_BYTES`."""
        if self._of(schema).memory > MAX_RECORD_BYTES:
            return 0
        return MAX_RECORD_BYTES / self._most if self._most else math.inf

    def _of(self, schema: Any) -> Extent:
        if isinstance(schema, list):
            branches = [self._of(branch) for branch in schema]
            least, memory = max(branches, key=lambda branch: branch.memory / (1 + branch.least))
            return Extent(1 + least, memory)
        if isinstance(schema, str):
            return PRIMITIVE[schema] if schema in PRIMITIVE else self._named(schema, self._types[schema])
        kind = schema["type"]
        if "logicalType" in schema and kind in PRIMITIVE:
            return PRIMITIVE[kind]._replace(memory=LOGICAL_BYTES)
        if kind in ENTRY_BYTES:
            item = self._of(schema["items" if kind == "array" else "values"])
            self._may_repeat(Extent(item.least + (kind == "map"), item.memory + ENTRY_BYTES[kind]))
            return LIST
        if "name" in schema:
            return self._named(schema["name"], schema)
        return self._of(kind)

    def _named(self, name: str, schema: Any) -> Extent:
        if name not in self._known:
            self._known[name] = Extent(math.inf, 0)  # a value of a type inside itself is never complete
            if schema["type"] == "fixed":
                self._known[name] = Extent(schema["size"], schema["size"])
            elif schema["type"] == "enum":
                self._known[name] = PRIMITIVE["enum"]
            else:
                fields = [self._of(field["type"]) for field in schema["fields"]]
                own = sys.getsizeof(dict.fromkeys(range(len(fields))))
                least, memory = sum(field.least for field in fields), sum(field.memory for field in fields)
                self._known[name] = Extent(least, own + memory)
                if name in self._recursive:
                    self._may_repeat(self._known[name])
        elif math.isinf(self._known[name].least):
            self._recursive.add(name)
        return self._known[name]

    def _may_repeat(self, item: Extent) -> None:
        """Note a value that a message may hold many times."""
        self._most = max(self._most, item.memory / item.least if item.least else math.inf)


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
