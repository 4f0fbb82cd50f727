"""Messages in Avro and Protobuf, with the schemas of a registry: a byte 0, the number of a schema in 4 bytes, and data.

In Protobuf, the place of the type of the message within its schema follows the number.
"""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias
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
WRAPPED = "google.protobuf."
WELL_KNOWN = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
"""Schemas that come with the runtime of Protobuf."""
JSON_LIKE = {f"{WRAPPED}{name}" for name in ("ListValue", "Struct", "Value")}


class RegistryFormat(StrictModel):
    """Where a schema registry is, and how to log in."""

    registry: str = Field(
        pattern="^https?://", description="The URL of the schema registry, e.g. http://localhost:8081."
    )
    username: str | None = Field(None, description="User name for the registry.")
    password: SecretStr | None = Field(None, description="Password for the registry.")
    ssl_cafile: ExistingFile | None = Field(None, description="PEM file of the certificate authority of the registry.")

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> RegistryFormat:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        return self


class AvroFormat(RegistryFormat):
    """Avro, with the schemas of a registry."""

    kind: Literal["avro"]


class ProtobufFormat(RegistryFormat):
    """Protobuf, with the schemas of a registry."""

    kind: Literal["protobuf"]


class DescribedProtobuf(StrictModel):
    """Protobuf, with its schema in a file: messages are of one type, and have no number of a schema."""

    kind: Literal["protobuf"]
    descriptor: ExistingFile = Field(
        description="Schemas in one file, with those that they refer to: protoc --include_imports --descriptor_set_out."
    )
    message: str = Field(min_length=1, description="The full name of the type of the messages, e.g. shop.Decision.")


class Schema(msgspec.Struct):
    """A schema as the registry returns it."""

    schema: str
    schemaType: str = "AVRO"
    references: list[Reference] = []


class Reference(msgspec.Struct):
    """A schema of another subject, of which a schema uses the types; `name`: how it calls that schema."""

    subject: str
    version: int
    name: str = ""


class SchemaRegistry:
    """Asks a registry for its schemas; `form`: the form of a schema in its answers."""

    def __init__(self, settings: RegistryFormat, form: str = "") -> None:
        self._url, self._query = settings.registry.rstrip("/"), form and f"?format={form}"
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
        request = urllib.request.Request(f"{self._url}/{path}{self._query}", headers=self._headers)
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

    def referred(self, reference: Reference) -> Schema:
        """The schema that another one refers to.

        Raises:
            InputError: The registry does not have it.
            NotYetReadableError: The registry does not answer.
        """
        found = self.get(f"subjects/{quote(reference.subject, safe='')}/versions/{reference.version}")
        if found is None:
            message = f"the registry has no version {reference.version} of {reference.subject}"
            raise InputError(message, hint="register the schema that it refers to")
        return found


class SchemaReader(ABC):
    """Turns messages into records; the schemas come from the registry, each is requested once."""

    title: ClassVar[str]
    form: ClassVar[str] = ""

    def __init__(self, settings: RegistryFormat) -> None:
        self.registry = SchemaRegistry(settings, self.form)
        self._known: dict[int, Any] = {}
        self._unknown: dict[int, tuple[Fault, float]] = {}

    def __call__(self, message: bytes) -> Any:
        """The record of a message, or its `Fault`.

        Raises:
            NotYetReadableError: The registry does not answer.
        """
        if len(message) < PREFIX or message[0] != FIRST_BYTE:
            return Fault("malformed", f"not {self.title} with the number of a schema: the first byte is not 0")
        number = int.from_bytes(message[1:PREFIX], "big")
        schema = self._known.get(number) or self._schema(number)
        return schema if isinstance(schema, Fault) else self.record(message, schema, number)

    def _schema(self, number: int) -> Any:
        """The schema of this number, or a `Fault`, which holds for a while."""
        fault, until = self._unknown.get(number, (None, 0.0))
        if fault is not None and time.monotonic() < until:
            return fault
        found = self.registry.get(f"schemas/ids/{number}")
        if found is None:
            fault = Fault("malformed", f"the schema registry has no schema {number}")
        elif found.schemaType != self.title.upper():
            fault = Fault("malformed", f"the schema {number} is {found.schemaType}, not {self.title}")
        else:
            try:
                schema = self._known[number] = self.parsed(found)
                return schema
            except InputError as error:
                fault = Fault("malformed", f"the schema {number}: {error.message}")
        self._unknown[number] = fault, time.monotonic() + ASK_AGAIN
        return fault

    @abstractmethod
    def parsed(self, found: Schema) -> Any:
        """A schema of the registry, with the types of those that it refers to.

        Raises:
            InputError: It is not a schema, or refers to one that the registry does not have.
            NotYetReadableError: The registry does not answer.
        """

    @abstractmethod
    def record(self, message: bytes, schema: Any, number: int) -> Any:
        """The record of a message with the schema of this number, or its `Fault`."""

    @abstractmethod
    def paths(self, found: Schema) -> list[str]:
        """The names of the fields of a schema, as `columns` has them; raises the errors of `parsed`."""


def reader_of(settings: AvroFormat | ProtobufFormat | DescribedProtobuf) -> SchemaReader | DescribedReader:
    """The reader of a format.

    Raises:
        InputError: The library that it needs is not installed, or a file does not have the schema.
    """
    if isinstance(settings, DescribedProtobuf):
        return DescribedReader(settings)
    return AvroReader(settings) if settings.kind == "avro" else ProtobufReader(settings)


# --- Avro ---


class AvroReader(SchemaReader):
    """Reads Avro.

    Raises:
        InputError: fastavro is not installed.
    """

    title = "Avro"

    def __init__(self, settings: RegistryFormat) -> None:
        try:
            import fastavro
        except ImportError as error:
            hint = "pip install 'streameval[avro]'"
            raise InputError("Avro needs fastavro, which is not installed", hint=hint) from error
        self._fastavro = fastavro
        super().__init__(settings)

    def record(self, message: bytes, schema: Any, number: int) -> Any:
        stream = BytesIO(message)
        stream.seek(PREFIX)
        try:
            record = self._fastavro.schemaless_reader(stream, schema, None)
        except BAD_RECORD as error:
            return Fault("malformed", f"not a record of the schema {number}: {error}")
        left = len(message) - stream.tell()
        return Fault("malformed", f"{left} bytes after the record of the schema {number}") if left else record

    def parsed(self, found: Schema, types: dict[str, Any] | None = None) -> Any:
        from fastavro.schema import SchemaParseException, UnknownType

        types = {} if types is None else types
        for reference in found.references:
            self.parsed(self.registry.referred(reference), types)
        try:
            return self._fastavro.parse_schema(msgspec.json.decode(found.schema), types)
        except (SchemaParseException, UnknownType, msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"it cannot be used: {error}", hint="register a valid schema") from error

    def paths(self, found: Schema) -> list[str]:
        types = dict[str, Any]()
        return list(_paths_of_avro(self.parsed(found, types), types))


def _paths_of_avro(schema: Any, types: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names of the fields of a parsed schema; `types`: those that it names."""
    for branch in schema if isinstance(schema, list) else [schema]:
        record = types.get(branch, {}) if isinstance(branch, str) else branch
        for field in record.get("fields", ()) if before.count(".") < DEEPEST else ():
            path = f"{before}{field['name']}"
            yield path
            yield from _paths_of_avro(field["type"], types, f"{path}.")


# --- Protobuf ---

MessageFields: TypeAlias = list[tuple[str, Callable[[Any], Any]]]


class ProtobufReader(SchemaReader):
    """Reads Protobuf: a message becomes a record of its fields, by their names in the schema.

    A field that may be absent, and is, has no value, nor has an empty text, list or map. Times of
    google.protobuf.Timestamp are seconds since 1970, values of wrappers are plain, and those of enums have their names.

    Raises:
        InputError: protobuf is not installed.
    """

    title = "Protobuf"
    form = "serialized"  # a FileDescriptorProto in base64: the runtime cannot read the text of a schema

    def __init__(self, settings: RegistryFormat) -> None:
        self._refusal = _decode_error()
        super().__init__(settings)

    def record(self, message: bytes, schema: ProtobufSchema, number: int) -> Any:
        try:
            place, after = _place_of_type(message)
            kind = schema.type_at(place)
        except (IndexError, ValueError):
            return Fault("malformed", f"not a message of the schema {number}: it has no type at that place")
        try:
            return schema.record(kind.FromString(message[after:]))
        except self._refusal as error:
            return Fault("malformed", f"not a message of the schema {number}: {error}")

    def parsed(self, found: Schema) -> ProtobufSchema:
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        return ProtobufSchema(pool, self._added(found, pool, {}))

    def paths(self, found: Schema) -> list[str]:
        return list(self.parsed(found).paths())

    def _added(self, found: Schema, pool: Any, known: dict[str, Any], name: str = "") -> Any:
        """Add a schema to a pool, after those that it refers to; `known`: those in the pool, by name."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        try:
            file = FileDescriptorProto.FromString(b64decode(found.schema, validate=True))
        except (ValueError, self._refusal) as error:
            hint = "streameval needs a registry that returns schemas with format=serialized"
            raise InputError("it did not come as a serialized descriptor", hint=hint) from error
        file.name = name or file.name or "the schema"
        for reference in found.references:
            if reference.name not in known:
                known[reference.name] = None
                self._added(self.registry.referred(reference), pool, known, reference.name)
        _add_with_well_known(file, pool, known)
        return file


class DescribedReader:
    """Reads Protobuf of one type, whose schema is in a file, as `ProtobufReader` does.

    Raises:
        InputError: protobuf is not installed, or the file does not have the type.
    """

    def __init__(self, settings: DescribedProtobuf) -> None:
        self._refusal, self.name = _decode_error(), settings.message
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        pool, known, found = DescriptorPool(), dict[str, Any](), f"source.format.descriptor: {settings.descriptor}"
        try:
            files = FileDescriptorSet.FromString(Path(settings.descriptor).read_bytes()).file
        except (OSError, self._refusal) as error:
            hint = "write it with protoc --include_imports --descriptor_set_out=FILE"
            raise InputError(f"{found} holds no set of schemas: {error}", hint=hint) from error
        known |= {file.name: None for file in files}
        for file in files:
            _add_with_well_known(file, pool, known)
        try:
            self._schema = ProtobufSchema(pool, pool.FindMessageTypeByName(settings.message).file)
        except KeyError as error:
            names = [".".join(filter(None, (file.package, each.name))) for file in files for each in file.message_type]
            hint = f"the file has {', '.join(names) or 'no type'}"
            raise InputError(f"{found} has no type '{settings.message}'", hint=hint) from error
        self._kind = self._schema.named(settings.message)

    def __call__(self, message: bytes) -> Any:
        """The record of a message, or its `Fault`."""
        try:
            return self._schema.record(self._kind.FromString(message))
        except self._refusal as error:
            return Fault("malformed", f"not a message of the type {self.name}: {error}")

    def paths(self) -> list[str]:
        """The names of the fields of the type, as `columns` has them."""
        return list(_paths_of_protobuf(self._kind.DESCRIPTOR))


def _decode_error() -> type[Exception]:
    """The error of the runtime of Protobuf for bytes that are not a message.

    Raises:
        InputError: It is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
    except ImportError as error:
        hint = "pip install 'streameval[protobuf]'"
        raise InputError("Protobuf needs protobuf, which is not installed", hint=hint) from error
    refusal: type[Exception] = DecodeError
    return refusal


def _add_with_well_known(file: Any, pool: Any, known: dict[str, Any]) -> None:
    """Add a schema to a pool, after those of the runtime that it refers to; `known`: those in the pool, by name."""
    for other in file.dependency:
        if other not in known and other.startswith("google/protobuf/"):
            known[other] = None
            _add_well_known(other, pool)
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise InputError(f"it cannot be used: {error}", hint="register a valid schema") from error


class ProtobufSchema:
    """A schema whose types are in a pool; `file`: its descriptor."""

    def __init__(self, pool: Any, file: Any) -> None:
        self._pool, self._file = pool, file
        self._types: dict[tuple[int, ...], Any] = {}
        self._fields: dict[str, MessageFields] = {}

    def type_at(self, place: tuple[int, ...]) -> Any:
        """The class of the messages of a type, by its place among the types of the file, and of those within them.

        Raises:
            IndexError: There is no type at that place.
        """
        if not place:
            raise IndexError
        if place not in self._types:
            from google.protobuf.message_factory import GetMessageClass

            self._types[place] = GetMessageClass(self._descriptor(place))
        return self._types[place]

    def named(self, name: str) -> Any:
        """The class of the messages of the type with this full name."""
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self._pool.FindMessageTypeByName(name))

    def _descriptor(self, place: tuple[int, ...]) -> Any:
        names, types = [self._file.package] if self._file.package else [], self._file.message_type
        for number in place:
            if number < 0:
                raise IndexError
            names.append(types[number].name)
            types = types[number].nested_type
        return self._pool.FindMessageTypeByName(".".join(names))

    def record(self, message: Any) -> dict[str, Any]:
        """The values of a message by the names of its fields."""
        kind = message.DESCRIPTOR
        fields = self._fields.get(kind.full_name)
        if fields is None:
            fields = self._fields[kind.full_name] = [(field.name, self._value_of(field)) for field in kind.fields]
        return {name: value_of(message) for name, value_of in fields}

    def _value_of(self, field: Any) -> Callable[[Any], Any]:
        """The function that returns the value of a field of a message."""
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            plain = self._plain(field.message_type.fields_by_name["value"])
            return lambda message: {key: plain(value) for key, value in getattr(message, name).items()} or None
        plain = self._plain(field)
        if field.is_repeated:
            return lambda message: [plain(value) for value in getattr(message, name)] or None
        if field.has_presence:
            return lambda message: plain(getattr(message, name)) if message.HasField(name) else None
        if field.type == field.TYPE_STRING:
            return lambda message: getattr(message, name) or None
        return lambda message: plain(getattr(message, name))

    def _plain(self, field: Any) -> Callable[[Any], Any]:
        """The function that turns one value of a field into one of a record."""
        if field.enum_type is not None:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, number)
        if field.message_type is None:
            return lambda value: value
        kind = field.message_type.full_name
        if kind == f"{WRAPPED}Timestamp":
            return lambda moment: moment.seconds + moment.nanos / 1e9
        if kind in JSON_LIKE:
            from google.protobuf.json_format import MessageToDict

            return lambda value: MessageToDict(value)
        if kind.startswith(WRAPPED) and kind.endswith("Value") and "value" in field.message_type.fields_by_name:
            return lambda wrapper: wrapper.value
        return self.record

    def paths(self) -> Iterator[str]:
        """The names of the fields of the first type, which is that of messages by the usual naming."""
        yield from _paths_of_protobuf(self._descriptor((0,)))


def _paths_of_protobuf(kind: Any, before: str = "") -> Iterator[str]:
    for field in kind.fields if before.count(".") < DEEPEST else ():
        yield f"{before}{field.name}"
        inside = field.message_type
        if inside is not None and not field.is_repeated and not inside.full_name.startswith(WRAPPED):
            yield from _paths_of_protobuf(inside, f"{before}{field.name}.")


def _place_of_type(message: bytes) -> tuple[tuple[int, ...], int]:
    """The place of the type of a message within its schema, and where the message itself starts.

    Raises:
        IndexError, ValueError: The message ends before that.
    """
    from kafka.record.util import decode_varint

    if message[PREFIX] == 0:  # short for a list of one 0
        return (0,), PREFIX + 1
    count, after = decode_varint(message, PREFIX)
    place = []
    for _ in range(min(count, len(message))):
        number, after = decode_varint(message, after)
        place.append(number)
    return tuple(place), after


def _add_well_known(name: str, pool: Any) -> None:
    """Add a schema that comes with the runtime to a pool; all of them stand alone."""
    from importlib import import_module

    stem = Path(name).stem
    if stem in WELL_KNOWN:
        pool.AddSerializedFile(import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.serialized_pb)
