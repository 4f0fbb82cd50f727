"""Read Protobuf: a message becomes a record of its fields, by their names in the schema.

A field that may be absent, and is, has no value, and an empty text, list or map has none either. Times of
google.protobuf.Timestamp are seconds since 1970, wrappers become plain values, and enum values their names.
`google.protobuf.json_format` would make text of 64-bit integers, which are ids and actions here.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka.schema_registry import Schema
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from kafka.errors import CorruptRecordError

from streameval.errors import InputError
from streameval.events import Fault
from streameval.ingest.kafka.formats import DescribedProtobuf
from streameval.ingest.kafka.glue import GlueReader
from streameval.ingest.kafka.registry import RegistryReader
from streameval.ingest.kafka.schemas import MAX_RECORD_BYTES, SchemaReader, oversize
from streameval.ingest.kafka.unpacking import read_varint

SET_HINT = "write it with protoc --include_imports --descriptor_set_out=FILE"
MAX_DEPTH = 4
"""List the fields of messages inside messages to this depth."""
MESSAGE_BYTES = 100  # of memory for a message without fields, which takes 2 bytes inside another one
LIST_BYTES = 24  # of memory for each byte of a list of numbers
ENTRY_BYTES = 40  # of memory for each byte of an entry of a map
GOOGLE = "google.protobuf."
RUNTIME = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
}
"""Modules of the schemas that come with the runtime of Protobuf. Each schema stands alone."""

BAD_MESSAGE = (DecodeError, KeyError)
"""Errors for bytes that are not a message of a type, and for a type with a map that has no values."""

Convert: TypeAlias = Callable[[Any], Any]


def _plain_value(value: Any) -> Any:
    """Return a google.protobuf.Value. `MessageToDict` refuses numbers that are not finite, which the rules judge."""
    kind = value.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    content = getattr(value, kind)
    read = JSON_LIKE.get(content.DESCRIPTOR.full_name) if kind in ("struct_value", "list_value") else None
    return content if read is None else read(content)


JSON_LIKE: dict[str, Convert] = {
    f"{GOOGLE}Struct": lambda struct: {name: _plain_value(value) for name, value in struct.fields.items()},
    f"{GOOGLE}ListValue": lambda values: list(map(_plain_value, values.values)),
    f"{GOOGLE}Value": _plain_value,
}
"""Functions that turn types with values of JSON into plain values, by name."""


class Records:
    """Turn messages into records. Remember how to read the fields of a type."""

    def __init__(self) -> None:
        self._converters: dict[str, dict[str, Convert]] = {}
        self._defaults: dict[str, dict[str, Any]] = {}

    def record(self, message: Any) -> dict[str, Any]:
        """Return the values of a message by the names of its fields."""
        kind = message.DESCRIPTOR
        if kind.full_name not in self._converters:
            self._converters[kind.full_name] = {field.name: self._converter(field) for field in kind.fields}
            self._defaults[kind.full_name] = {field.name: self._default(field) for field in kind.fields}
        converters, fields = self._converters[kind.full_name], message.ListFields()
        own = {field.name: converters[field.name](value) for field, value in fields if not field.is_extension}
        return self._defaults[kind.full_name] | own

    def _default(self, field: Any) -> Any:
        """Return the value of a field that a message lacks: 0 for numbers that are not written if they are 0."""
        if field.is_repeated or field.has_presence or field.type == field.TYPE_STRING:
            return None
        return self._converter(field)(field.default_value)

    def _converter(self, field: Any) -> Convert:
        """Return the function that turns a field into a value of a record."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            plain = self._item_converter(field.message_type.fields_by_name["value"])
            return lambda entries: {key: plain(value) for key, value in entries.items()}
        plain = self._item_converter(field)
        return (lambda items: list(map(plain, items))) if field.is_repeated else plain

    def _item_converter(self, field: Any) -> Convert:
        """Return the function that turns one value of a field into a value of a record."""
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, number)
        if field.message_type is None:
            return lambda value: value
        kind = field.message_type.full_name
        if kind == f"{GOOGLE}Timestamp":
            return lambda moment: moment.seconds + moment.nanos / 1e9
        if kind in JSON_LIKE:
            return JSON_LIKE[kind]
        if kind.startswith(GOOGLE) and kind.endswith("Value") and "value" in field.message_type.fields_by_name:
            return lambda wrapper: wrapper.value
        return self.record


class RegisteredTypes:
    """Find the types of a registered schema by their indexes.

    Args:
        file: The descriptor of the schema.
    """

    def __init__(self, file: Any) -> None:
        self._file, self.records = file, Records()
        self._max_bytes: dict[str, float] = {}

    def max_bytes(self, kind: Any) -> float:
        """Return `max_bytes` of a type."""
        if kind.full_name not in self._max_bytes:
            self._max_bytes[kind.full_name] = max_bytes(kind)
        return self._max_bytes[kind.full_name]

    def descriptor_at(self, indexes: list[int]) -> Any:
        """Return the descriptor of a type.

        Args:
            indexes: The index of the type in the file, or of the type around it, followed by the index in that.

        Raises:
            IndexError: There is no such type.
        """
        if not indexes or min(indexes) < 0:
            raise IndexError
        types, kind = list(self._file.message_types_by_name.values()), None
        for index in indexes:
            kind = types[index]
            types = kind.nested_types
        return kind


class ProtobufRecords(SchemaReader):
    """Read the records of messages in Protobuf."""

    def record(self, data: BytesIO, schema: RegisteredTypes, number: Hashable, indexes: list[int] | None) -> Any:
        try:
            kind = schema.descriptor_at(indexes or [])
        except IndexError:
            return Fault("malformed", f"not a message of the schema {number}: it has no type at that place")
        if fault := oversize(data.getbuffer().nbytes, schema.max_bytes(kind)):
            return fault
        try:
            return schema.records.record(GetMessageClass(kind).FromString(data.read()))
        except BAD_MESSAGE as error:
            return Fault("malformed", f"not a message of the schema {number}: {error}")


class ProtobufReader(RegistryReader, ProtobufRecords):
    """Read Protobuf with the schemas of a registry.

    `ProtobufDeserializer` needs a class that was compiled from the schema. Here the registry's schema is enough.
    """

    title = "Protobuf"
    fetched_as = "serialized"  # a FileDescriptorProto in base64: the runtime cannot read the text of a schema

    def parse(self, schema: Schema) -> RegisteredTypes:
        pool = DescriptorPool()
        return RegisteredTypes(pool.FindFileByName(self._add(schema, pool, set())))

    def paths_of(self, schema: Schema) -> list[str]:
        return list(_paths(self.parse(schema).descriptor_at([0])))  # by the usual naming, messages have the first type

    def _add(self, schema: Schema, pool: Any, added: set[str], name: str = "") -> str:
        """Add a schema to a pool, after the schemas that it refers to, and return its name.

        Args:
            schema: The schema.
            pool: Where it is added.
            added: The names of the schemas in the pool.
            name: The name by which others refer to it.
        """
        try:
            file = FileDescriptorProto.FromString(b64decode(schema.schema_str or "", validate=True))
            file.name = name or file.name or "the schema"  # a name that is not UTF-8 is a ValueError
        except (ValueError, DecodeError) as error:
            hint = "streameval needs a registry that returns schemas with format=serialized"
            raise InputError("it did not come as a serialized descriptor", hint=hint) from error
        for reference in schema.references or ():
            if reference.name and reference.name not in added:
                added.add(reference.name)
                self._add(self.referenced(reference), pool, added, reference.name)
        add_file(file, pool, added)
        return str(file.name)


class GlueTypes(RegisteredTypes):
    """Find the types of a schema by one number: their place among all names in the file, sorted."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._sorted = sorted(_nested(file.message_types_by_name.values()), key=lambda kind: kind.full_name)

    def descriptor_at(self, indexes: list[int]) -> Any:
        return self._sorted[indexes[0]]


def _nested(kinds: Iterable[Any]) -> Iterator[Any]:
    """Yield types, and all types inside them."""
    for kind in kinds:
        yield kind
        yield from _nested(kind.nested_types)


class GlueProtobufReader(GlueReader, ProtobufRecords):
    """Read Protobuf in the frame of AWS Glue. Files of schemas are sets: the runtime cannot read the text of a schema.

    In a set of protoc, the file that was asked for is the last one.
    """

    suffix = ".pb"

    def indexes(self, data: BytesIO) -> list[int] | None:
        try:
            number = read_varint(data)
        except CorruptRecordError:
            return None
        return [2 * number if number >= 0 else -2 * number - 1]  # it was read as if its last bit were a sign

    def parse_file(self, content: bytes) -> GlueTypes:
        try:
            files = FileDescriptorSet.FromString(content).file
        except DecodeError as error:
            raise InputError(f"the file holds no set of schemas: {error}", hint=SET_HINT) from error
        pool, added = DescriptorPool(), {file.name for file in files}
        for file in files:
            add_file(file, pool, added)
        if not files:
            raise InputError("the file holds no schema", hint=SET_HINT)
        return GlueTypes(pool.FindFileByName(files[-1].name))


class DescribedReader:
    """Read Protobuf of one type with its schema in a file.

    Raises:
        InputError: The file does not have the type.
    """

    def __init__(self, settings: DescribedProtobuf) -> None:
        self.name, setting = settings.message, f"source.format.descriptor: {settings.descriptor}"
        try:
            files = FileDescriptorSet.FromString(Path(settings.descriptor).read_bytes()).file
        except (OSError, DecodeError) as error:
            raise InputError(f"{setting} holds no set of schemas: {error}", hint=SET_HINT) from error
        pool, added = DescriptorPool(), {file.name for file in files}
        for file in files:
            add_file(file, pool, added)
        try:
            self._descriptor = pool.FindMessageTypeByName(settings.message)
        except KeyError as error:
            names = [".".join(filter(None, (file.package, kind.name))) for file in files for kind in file.message_type]
            hint = f"the file has {', '.join(names) or 'no type'}"
            raise InputError(f"{setting} has no type '{settings.message}'", hint=hint) from error
        self._class, self._records = GetMessageClass(self._descriptor), Records()
        self._max_bytes = max_bytes(self._descriptor)

    def __call__(self, message: bytes) -> Any:
        """Return the record of a message, or its `Fault`."""
        if fault := oversize(len(message), self._max_bytes):
            return fault
        try:
            return self._records.record(self._class.FromString(message))
        except BAD_MESSAGE as error:
            return Fault("malformed", f"not a message of the type {self.name}: {error}")

    def paths(self, topic: str) -> list[str]:
        """Return the names of the fields of the type, as `columns` has them."""
        return list(_paths(self._descriptor))


def max_bytes(kind: Any) -> float:
    """Return the largest length of a message of a type with a record that fits into `MAX_RECORD_BYTES`."""
    types = _types_in(kind)
    many = {name for name, inner in types.items() if name in _types_in(inner)}
    fields = [field for inner in types.values() for field in inner.fields]
    many |= {field.message_type.full_name for field in fields if field.message_type and field.is_repeated}
    return MAX_RECORD_BYTES / max([LIST_BYTES, *(_memory_of_a_byte(types[name]) for name in many)])


def _memory_of_a_byte(kind: Any) -> float:
    """Return about the memory that a short message of a type takes, divided by its bytes inside another message."""
    if kind.GetOptions().map_entry:
        return ENTRY_BYTES
    own = 0 if kind.full_name.startswith(GOOGLE) else sys.getsizeof(dict.fromkeys(range(len(kind.fields))))
    return (own + MESSAGE_BYTES + 16 * len(kind.fields)) / 2


def _types_in(kind: Any) -> dict[str, Any]:
    """Return the types of all messages inside a type by name, with the type itself only if it is among them."""
    found, unread = dict[str, Any](), [kind]
    while unread:
        for field in unread.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                unread.append(inner)
    return found


def add_file(file: Any, pool: Any, added: set[str]) -> None:
    """Add a schema to a pool, after the schemas of the runtime that it refers to.

    Raises:
        InputError: The schema refers to one that is not in the pool.
    """
    try:
        for dependency in file.dependency:
            if dependency in RUNTIME and dependency not in added:
                added.add(dependency)
                pool.AddSerializedFile(import_module(RUNTIME[dependency]).DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError) as error:
        raise InputError(f"it cannot be used: {error}", hint="register a valid schema") from error


def _paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of a type."""
    for field in kind.fields if prefix.count(".") < MAX_DEPTH else ():
        yield f"{prefix}{field.name}"
        inner = field.message_type
        if inner is not None and not field.is_repeated and not inner.full_name.startswith(GOOGLE):
            yield from _paths(inner, f"{prefix}{field.name}.")
