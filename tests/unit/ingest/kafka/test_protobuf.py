"""Test Protobuf with a schema registry and without one, and all that can be wrong with it."""

from __future__ import annotations

import math
import random
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.events.records import RecordDecoder
from streameval.ingest.kafka.formats import ProtobufFormat
from streameval.ingest.kafka.settings import reader_of
from support.protobuf_messages import choice_file, decision, event_file, framed, serialized
from support.schema_registry import EVENT_COLUMNS, Registry, schema_registry

CHOICE = {"name": "choice.proto", "subject": "choice", "version": 1}


def register(registry: Registry, number: int = 7, **changes: Any) -> None:
    registry.register(number + 100, serialized(choice_file()), "choice", schemaType="PROTOBUF")
    options = {"schemaType": "PROTOBUF", "references": [CHOICE], "subject": "decisions-value"} | changes
    registry.register(number, serialized(event_file()), **options)


@pytest.fixture(scope="module")
def server() -> Iterator[Registry]:
    with schema_registry() as started:
        yield started


@pytest.fixture
def registry(server: Registry) -> Registry:
    """Register the schema of an event, and nothing else."""
    server.clear()
    register(server)
    return server


def configured(url: str, **columns: Any) -> Config:
    source = {"kind": "kafka", "topic": "decisions", "format": {"kind": "protobuf", "registry": url}}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    return Config.model_validate(parts)


def decode(url: str, *messages: bytes | None) -> EventBatch:
    return configured(url).event_format().decode_batch(messages)


def test_messages_become_events_by_their_columns(registry: Registry) -> None:
    some = [decision(0), decision(1, reward=None), decision(2, unit="u", sampling_probability={"value": 0.5})]
    batch = decode(registry.url, *(framed(event, 7) for event in some))
    assert batch.timestamp.tolist() == [1_700_000_000.0, 1_700_000_000.002]
    assert batch.propensity.tolist() == [0.5, 0.5]
    assert batch.probabilities.tolist() == [[0.25], [0.25]]
    assert batch.sampling_probability.tolist() == [1.0, 0.5]
    assert batch.unit is not None
    assert (batch.unit != 0).tolist() == [False, True]
    assert [(rejection.reason, rejection.detail) for rejection in batch.rejected] == [
        ("missing_field", "reward: missing")
    ]
    assert batch.rejected[0].value == framed(some[1], 7)
    assert [path.partition("?")[0] for path in registry.requests] == ["/schemas/ids/7", "/subjects/choice/versions/1"]
    assert all("format=serialized" in path for path in registry.requests)


def test_lists_and_contexts_are_read(registry: Registry) -> None:
    changes = {"actions": ["banner 0", "banner 1"], "propensities": [0.5, 0.5], "context": {"hour": 9}}
    batch = decode(registry.url, framed(decision(0, **changes), 7), framed(decision(1), 7))
    assert len(batch) == 2
    assert batch.action_sets is not None
    assert batch.action_sets.sizes.tolist() == [2, 0]


def test_numbers_of_a_context_that_are_not_finite_cost_no_event(registry: Registry) -> None:
    values = {"hour": 9, "list": [True, None, {"a": "b"}], "unknown": math.nan, "far": math.inf}
    reader = reader_of(ProtobufFormat(kind="protobuf", registry=registry.url))
    decoder = RecordDecoder(reader, EVENT_COLUMNS, policies=["challenger"], scores=[])
    batch = decoder.decode_batch([framed(decision(0, context=values), 7)])
    assert batch.rejected == ()
    assert batch.raw_fields is not None
    assert batch.raw_fields.values[0]["context"] == values | {"unknown": None}


def test_indexes_select_the_type_of_a_message(registry: Registry) -> None:
    inner = decision(0, "shop.Envelope.Inner")
    assert len(decode(registry.url, framed(inner, 7, b"\x04\x02\x02"))) == 1
    assert len(decode(registry.url, framed(decision(0), 7, b"\x02\x00"))) == 1
    empty = decode(registry.url, framed(inner, 7, b"\x04\x02\x00"))
    assert [rejection.reason for rejection in empty.rejected] == ["missing_field"]


def without_values(file: Any) -> bytes:
    """Return a schema with a map that has no values."""
    file.message_type[0].nested_type[0].field[1].name = "worth"
    return bytes(file.SerializeToString())


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (framed(decision(0), 99), "the schema registry has no schema 99"),
        (framed(decision(0), 5), "the schema 5 is AVRO, not Protobuf"),
        (framed(decision(0), 6), "the schema 6: it did not come as a serialized descriptor"),
        (framed(decision(0), 8), "the schema 8: the registry has no version 3 of choice"),
        (framed(decision(0), 9), "the schema 9: it cannot be used"),
        (b'{"event_id": 1}', "not Protobuf with the number of a schema"),
        (framed(decision(0), 7)[:5], "not a message of the schema 7: it has no type at that place"),
        (framed(decision(0), 7, b"\x02\x0e"), "not a message of the schema 7: it has no type at that place"),
        (framed(decision(0), 7, b"\x01"), "not a message of the schema 7: it has no type at that place"),
        (framed(decision(0), 7, b"\x02\x01"), "not a message of the schema 7: it has no type at that place"),
        (framed(decision(0), 7, b"\xff" * 2_000_000), "not a message of the schema 7: it has no type at that place"),
        (framed(decision(0), 10), "the schema 10: it did not come as a serialized descriptor"),
        (framed(decision(0), 11), "the schema 11: it cannot be used"),
        (framed(decision(0), 12), "not a message of the schema 12: 'value'"),
        (framed(decision(0), 7)[:-1], "not a message of the schema 7: "),
        (None, "a tombstone"),
    ],
)
def test_messages_without_a_schema_or_a_type_are_rejected(registry: Registry, message: bytes, detail: str) -> None:
    registry.register(5)
    registry.register(6, 'syntax = "proto3";', schemaType="PROTOBUF")
    register(registry, 8, references=[CHOICE | {"version": 3}], subject="")
    register(registry, 9, references=[], subject="")
    file = event_file()
    for number, damaged in [(10, b"\x0a\x01\xff"), (11, b"\x1a\x01\xff"), (12, without_values(file))]:
        text = b64encode(damaged if number == 12 else file.SerializeToString() + damaged).decode()
        registry.register(number, text, schemaType="PROTOBUF", references=[CHOICE])
    batch = decode(registry.url, message, framed(decision(1), 7))
    assert len(batch) == 1
    assert [rejection.reason for rejection in batch.rejected] == ["malformed"]
    assert batch.rejected[0].detail.startswith(detail)


def test_damaged_messages_are_rejected_or_read(registry: Registry) -> None:
    decoder, chance, whole = configured(registry.url).event_format(), random.Random(17), framed(decision(0), 7)
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(5, len(damaged))] = chance.randrange(256)
        batch = decoder.decode_batch([bytes(damaged[: chance.randrange(5, len(damaged) + 1)])])
        assert len(batch) + len(batch.rejected) == 1
        assert np.isfinite(batch.reward).all()


def described(folder: Path, message: str = "shop.Decision", **columns: Any) -> Config:
    """Configure schemas in a file, as protoc writes them, without the schemas of the runtime."""
    (folder / "schemas.pb").write_bytes(FileDescriptorSet(file=[choice_file(), event_file()]).SerializeToString())
    form = {"kind": "protobuf", "descriptor": str(folder / "schemas.pb"), "message": message}
    source = {"kind": "kafka", "topic": "decisions", "format": form}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    return Config.model_validate(parts)


def test_a_file_and_a_registry_give_equal_events(tmp_path: Path, registry: Registry) -> None:
    events = [decision(0), decision(1, unit="u", sampling_probability={"value": 0.5}), decision(2, reward=None)]
    batch = described(tmp_path).event_format().decode_batch([event.SerializeToString() for event in events])
    other = decode(registry.url, *(framed(event, 7) for event in events))
    np.testing.assert_array_equal(batch.probabilities, other.probabilities)
    np.testing.assert_array_equal(batch.timestamp, other.timestamp)
    np.testing.assert_array_equal(batch.sampling_probability, other.sampling_probability)
    assert [rejection.detail for rejection in batch.rejected] == [rejection.detail for rejection in other.rejected]


def test_the_type_may_be_nested_in_another(tmp_path: Path) -> None:
    inner = decision(0, "shop.Envelope.Inner").SerializeToString()
    assert len(described(tmp_path, "shop.Envelope.Inner").event_format().decode_batch([inner])) == 1


def test_bytes_that_are_not_messages_of_the_type_are_rejected(tmp_path: Path) -> None:
    batch = described(tmp_path).event_format().decode_batch([b"\xff\xff", None, b""])
    assert [rejection.reason for rejection in batch.rejected] == ["malformed", "malformed", "missing_field"]
    assert batch.rejected[0].detail.startswith("not a message of the type shop.Decision: ")


def test_a_file_without_the_type_or_without_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no type 'shop.Decisoin'") as refused:
        described(tmp_path, "shop.Decisoin").event_format()
    assert refused.value.hint == "the file has shop.Choice, shop.Decision, shop.Envelope"
    config = described(tmp_path)
    (tmp_path / "schemas.pb").write_bytes(b"message Decision {}")
    with pytest.raises(InputError, match="holds no set of schemas"):
        config.event_format()


def test_messages_of_glue_name_their_type_by_its_place_among_sorted_names(tmp_path: Path) -> None:
    """Choice is in another file. So the names are Decision, Decision.PoliciesEntry, Envelope, .Empty, .Inner, ..."""
    files = FileDescriptorSet(file=[choice_file(), event_file()]).SerializeToString()
    version = UUID("7c9f5d1e-1f6b-4f2e-9d55-0a4f1c2b3d4e")
    (tmp_path / f"{version}.pb").write_bytes(files)
    (tmp_path / f"{UUID(int=1)}.pb").write_bytes(b"message Decision {}")
    source = {"kind": "kafka", "topic": "decisions", "format": {"kind": "protobuf", "schemas": str(tmp_path)}}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS}
    head = b"\3\0" + version.bytes
    outer, inner = decision(0).SerializeToString(), decision(1, "shop.Envelope.Inner").SerializeToString()
    good = [head + b"\0" + outer, head + b"\4" + inner, b"\3\5" + head[2:] + zlib.compress(b"\4" + inner)]
    bad = [head + b"\x7f" + outer, head, head + b"\0\xff\xff", b"\3\0" + UUID(int=1).bytes + b"\0" + outer]
    batch = Config.model_validate(parts).event_format().decode_batch([*good, *bad])
    assert batch.propensity.tolist() == [0.5] * 3
    assert [rejected.detail.partition(": ")[0] for rejected in batch.rejected] == [
        f"not a message of the schema {version}",
        f"not a message of the schema {version}",
        f"not a message of the schema {version}",
        f"the schema {UUID(int=1)}",
    ]


def nested(levels: int) -> bytes:
    """Return the bytes of a list of one list of one list, ..."""
    value = b""
    for _ in range(levels):
        for tag in (b"\x0a", b"\x32"):  # ListValue.values, Value.list_value
            value = tag + _length(value) + value
    return value


def _length(value: bytes) -> bytes:
    length, digits = len(value), b""
    while length > 127:
        length, digits = length >> 7, digits + bytes([length & 127 | 128])
    return digits + bytes([length])


def test_messages_that_are_nested_too_deeply_are_rejected(tmp_path: Path) -> None:
    decoder = described(tmp_path).event_format()
    entry = [b"\x0a\x01a\x12" + _length(value) + value for value in (nested(10), nested(5_000))]
    contexts = [b"\x52" + _length(field) + field for field in (b"\x0a" + _length(text) + text for text in entry)]
    batch = decoder.decode_batch([decision(0).SerializeToString() + context for context in contexts])
    assert [(rejected.place, rejected.reason) for rejected in batch.rejected] == [(1, "malformed")]


def test_a_message_that_may_become_a_record_of_gigabytes_is_rejected(tmp_path: Path) -> None:
    """Five million empty texts take ten megabytes here, and Python objects much more."""
    message = decision(0).SerializeToString()
    batch = described(tmp_path).event_format().decode_batch([message, message + b"\x42\0" * 5_000_000])
    ((place, detail),) = [(rejected.place, rejected.detail) for rejected in batch.rejected]
    assert place == 1
    assert "bytes, more than the limit of" in detail
