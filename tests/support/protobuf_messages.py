"""Make schemas of Protobuf as a registry returns them, and messages with them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2

Field = descriptor_pb2.FieldDescriptorProto
WELL_KNOWN = (struct_pb2, timestamp_pb2, wrappers_pb2)


def add_field(to: Any, name: str, kind: int | str, *, repeated: bool = False, optional: bool = False) -> None:
    """Add a field of a type of Protobuf, or of the message of a full name."""
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    field = to.field.add(name=name, number=len(to.field) + 1, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = Field.TYPE_MESSAGE, kind
    else:
        field.type = kind
    if optional:
        field.proto3_optional, field.oneof_index = True, len(to.oneof_decl)
        to.oneof_decl.add(name=f"_{name}")


def choice_file() -> Any:
    """Return the schema of a nested message that `event_file` refers to."""
    file = descriptor_pb2.FileDescriptorProto(name="choice.proto", package="shop", syntax="proto3")
    choice = file.message_type.add(name="Choice")
    add_field(choice, "banner", Field.TYPE_STRING)
    add_field(choice, "probability", Field.TYPE_DOUBLE)
    return file


def event_file() -> Any:
    """Return the schema of an event. Its second type is nested in another one."""
    file = descriptor_pb2.FileDescriptorProto(name="decision.proto", package="shop", syntax="proto3")
    file.dependency.append("choice.proto")
    file.dependency.extend(module.DESCRIPTOR.name for module in WELL_KNOWN)
    event = file.message_type.add(name="Decision")
    add_field(event, "event_id", Field.TYPE_STRING)
    add_field(event, "at", ".google.protobuf.Timestamp")
    add_field(event, "choice", ".shop.Choice")
    add_field(event, "reward", Field.TYPE_DOUBLE, optional=True)
    entry = event.nested_type.add(name="PoliciesEntry")
    entry.options.map_entry = True
    add_field(entry, "key", Field.TYPE_STRING)
    add_field(entry, "value", Field.TYPE_DOUBLE)
    add_field(event, "policies", ".shop.Decision.PoliciesEntry", repeated=True)
    add_field(event, "unit", Field.TYPE_STRING)
    add_field(event, "sampling_probability", ".google.protobuf.DoubleValue")
    add_field(event, "actions", Field.TYPE_STRING, repeated=True)
    add_field(event, "propensities", Field.TYPE_DOUBLE, repeated=True)
    add_field(event, "context", ".google.protobuf.Struct")
    outer = file.message_type.add(name="Envelope")
    outer.nested_type.add(name="Empty")
    outer.nested_type.add(name="Inner").CopyFrom(event)
    inner = outer.nested_type[1]
    inner.name = "Inner"
    inner.field[4].type_name = ".shop.Envelope.Inner.PoliciesEntry"
    return file


def serialized(file: Any) -> str:
    """Return a schema as a registry returns it with format=serialized."""
    return b64encode(file.SerializeToString()).decode()


def message_class(name: str = "shop.Decision") -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in (*(module.DESCRIPTOR.serialized_pb for module in WELL_KNOWN),):
        pool.AddSerializedFile(file)
    for schema in (choice_file(), event_file()):
        pool.AddSerializedFile(schema.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def decision(number: int, kind: str = "shop.Decision", **changes: Any) -> Any:
    """Return an event as a message."""
    event = message_class(kind)(event_id=f"e-{number}", reward=1.0, policies={"challenger": 0.25})
    event.at.FromMilliseconds(1_700_000_000_000 + number)
    event.choice.banner, event.choice.probability = f"banner {number % 2}", 0.5
    for name, value in changes.items():
        event.ClearField(name)
        if value is not None:
            event.MergeFrom(type(event)(**{name: value}))
    return event


def framed(message: Any, number: int, index: bytes = b"\0") -> bytes:
    """Return a message with the id of its schema and the index of its type in front."""
    return b"\0" + number.to_bytes(4, "big") + index + message.SerializeToString()
