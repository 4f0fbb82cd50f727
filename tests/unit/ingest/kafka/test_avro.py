"""Test Avro with a schema registry, and all that can be wrong with it."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ingest.base import NotYetReadableError
from streameval.ingest.kafka import registry as registries
from streameval.ingest.kafka import schemas
from support.factories import wait_until
from support.schema_registry import (
    EVENT_COLUMNS,
    EVENT_SCHEMA,
    PASSWORD,
    USER,
    Registry,
    encoded,
    event,
    schema_registry,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Registry]:
    with schema_registry() as started:
        yield started


@pytest.fixture
def registry(server: Registry) -> Registry:
    """Register the schema of an event, and nothing else."""
    server.clear()
    server.register(7, subject="decisions-value")
    return server


def configured(url: str, columns: dict[str, Any] | None = None, **login: str) -> Config:
    form = {"kind": "avro", "registry": url, **login}
    return Config.model_validate(
        {
            "source": {"kind": "kafka", "topic": "decisions", "format": form},
            "policies": {"candidates": ["challenger"]},
            "columns": EVENT_COLUMNS if columns is None else columns,
        }
    )


def decode(url: str, *messages: bytes | None, **login: str) -> EventBatch:
    return configured(url, **login).event_format().decode_batch(messages)


def test_records_become_events_by_their_columns(registry: Registry) -> None:
    batch = decode(registry.url, encoded(event(0), 7), encoded(event(1, reward=None), 7), encoded(event(2), 7))
    assert batch.timestamp.tolist() == [1_700_000_000.0, 1_700_000_000.002]
    assert batch.propensity.tolist() == [0.5, 0.5]
    assert batch.probabilities.tolist() == [[0.25], [0.25]]
    assert [(rejection.reason, rejection.detail, rejection.place) for rejection in batch.rejected] == [
        ("missing_field", "reward: missing", 1)
    ]
    assert batch.rejected[0].value == encoded(event(1, reward=None), 7)
    assert registry.requests == ["/schemas/ids/7"]


def test_a_schema_may_change_from_message_to_message(registry: Registry) -> None:
    schema = EVENT_SCHEMA | {"fields": [*EVENT_SCHEMA["fields"], {"name": "unit", "type": "long"}]}
    registry.register(8, schema)
    batch = decode(registry.url, encoded(event(0), 7), encoded(event(1, unit=5), 8, schema), encoded(event(2), 7))
    assert batch.unit is not None
    assert (batch.unit != 0).tolist() == [False, True, False]
    assert registry.requests == ["/schemas/ids/7", "/schemas/ids/8"]


def test_a_schema_may_refer_to_others(registry: Registry) -> None:
    fields = {field["name"]: field for field in EVENT_SCHEMA["fields"]}
    registry.register(9, fields["choice"]["type"], subject="choice")
    schema = EVENT_SCHEMA | {"fields": [*fields.values(), {"name": "next", "type": ["null", "Choice"]}]}
    shortened = EVENT_SCHEMA | {"fields": [*(fields | {"choice": {"name": "choice", "type": "Choice"}}).values()]}
    shortened["fields"].append({"name": "next", "type": ["null", "Choice"]})
    registry.register(8, shortened, references=[{"name": "Choice", "subject": "choice", "version": 1}])
    registry.register(10, shortened, references=[{"name": "Choice", "subject": "none", "version": 1}])
    batch = decode(registry.url, *(encoded(event(0, next=None), number, schema) for number in (8, 10)))
    assert batch.propensity.tolist() == [0.5]
    assert "no version 1 of none" in batch.rejected[0].detail


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (encoded(event(0), 99), "the schema registry has no schema 99"),
        (encoded(event(0), 5), "the schema 5 is PROTOBUF, not Avro"),
        (encoded(event(0), 6), "the schema 6: it cannot be used"),
        (b'{"event_id": 1}', "not Avro with the number of a schema"),
        (b"\0", "not Avro with the number of a schema"),
        (encoded(event(0), 7) + b"more", "4 bytes after the record of the schema 7"),
        (encoded(event(0), 7)[:-9], "not a record of the schema 7"),
        (None, "a tombstone"),
    ],
)
def test_messages_without_a_schema_or_a_record_are_rejected(registry: Registry, message: bytes, detail: str) -> None:
    registry.register(5, schemaType="PROTOBUF")
    registry.register(6, {"type": "recrd"})
    batch = decode(registry.url, message, encoded(event(1), 7))
    assert len(batch) == 1
    assert [rejection.reason for rejection in batch.rejected] == ["malformed"]
    assert batch.rejected[0].detail.startswith(detail)


VERSION = UUID("7c9f5d1e-1f6b-4f2e-9d55-0a4f1c2b3d4e")


def glue(content: bytes, version: UUID = VERSION, *, packed: bool = False) -> bytes:
    """Return a message in the frame of AWS Glue."""
    return b"\3" + (b"\5" if packed else b"\0") + version.bytes + (zlib.compress(content) if packed else content)


def of_folder(folder: Path, **more: str) -> Any:
    form = {"kind": "avro", "schemas": str(folder), **more}
    source = {"kind": "kafka", "topic": "decisions", "format": form}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS}
    return Config.model_validate(parts).event_format()


def test_messages_of_glue_are_read_with_the_schemas_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / f"{VERSION}.avsc").write_text(json.dumps(EVENT_SCHEMA))
    (tmp_path / f"{UUID(int=2)}.avsc").write_text("recrd")
    record = encoded(event(0), 7)[5:]
    broken = {
        glue(record, UUID(int=1)): f"no schema {UUID(int=1)}: .*No such file",
        glue(record, UUID(int=2)): f"the schema {UUID(int=2)}: it cannot be used",
        glue(record + b"more"): f"4 bytes after the record of the schema {VERSION}",
        glue(bytes(30_000_000), packed=True): "more than the limit of 1048576 bytes",
        b"\3\7" + glue(record)[2:]: "the compression 7",
        encoded(event(0), 7): "not in the frame of AWS Glue",
        b"\3\0": "not in the frame of AWS Glue",
    }
    batch = of_folder(tmp_path).decode_batch([glue(record), glue(record, packed=True), *broken])
    assert batch.propensity.tolist() == [0.5, 0.5]
    assert {rejected.reason for rejected in batch.rejected} == {"malformed"}
    for rejected, detail in zip(batch.rejected, broken.values(), strict=True):
        assert re.match(detail, rejected.detail), rejected.detail


def test_a_schema_of_glue_may_be_waited_for(tmp_path: Path) -> None:
    decoder, message = of_folder(tmp_path, on_missing_schema="wait"), glue(encoded(event(0), 7)[5:])
    with pytest.raises(NotYetReadableError, match=f"no schema {VERSION}"):
        decoder.decode_batch([message])
    (tmp_path / f"{VERSION}.avsc").write_text(json.dumps(EVENT_SCHEMA))
    assert len(decoder.decode_batch([message])) == 1


def test_the_guid_of_a_schema_is_as_good_as_its_number(registry: Registry) -> None:
    registry.schemas[f"/schemas/guids/{VERSION}"] = registry.schemas["/schemas/ids/7"]
    record = encoded(event(0), 7)[5:]
    batch = decode(registry.url, b"\1" + VERSION.bytes + record, b"\1" + UUID(int=1).bytes + record, glue(record))
    assert len(batch) == 1
    assert [rejected.detail.partition(":")[0] for rejected in batch.rejected] == [
        f"the schema registry has no schema {UUID(int=1)}",
        "not Avro with the number of a schema",
    ]
    assert "schemas: FOLDER" in batch.rejected[1].detail


def test_an_unknown_schema_is_asked_for_again_after_a_while(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, message = configured(registry.url).event_format(), encoded(event(0), 8)
    for _ in range(2):
        assert len(decoder.decode_batch([message, message])) == 0
    assert registry.requests == ["/schemas/ids/8"]
    registry.register(8)
    now = registries.time.monotonic()
    monkeypatch.setattr(registries.time, "monotonic", lambda: now + schemas.UNKNOWN_SCHEMA_SECONDS)
    assert len(decoder.decode_batch([message])) == 1


def test_damaged_messages_are_rejected_or_read(registry: Registry) -> None:
    decoder, chance = configured(registry.url).event_format(), random.Random(17)
    for _ in range(100):
        damaged = bytearray(encoded(event(0), 7))
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(5, len(damaged))] = chance.randrange(256)
        batch = decoder.decode_batch([bytes(damaged[: chance.randrange(5, len(damaged) + 1)])])
        assert len(batch) + len(batch.rejected) == 1
        assert np.isfinite(batch.reward).all()


def test_the_registry_gets_the_login_and_nothing_shows_it() -> None:
    with schema_registry(needs_login=True) as registry:
        registry.register(7)
        assert len(decode(registry.url, encoded(event(0), 7), username=USER, password=PASSWORD)) == 1
        with pytest.raises(NotYetReadableError, match=r"401: .*Unauthorized") as caught:
            decode(registry.url, encoded(event(0), 7), username=USER, password="wrong-secret")
        assert "wrong-secret" not in str(caught.value)
    assert PASSWORD not in repr(configured(registry.url, username=USER, password=PASSWORD))


@pytest.mark.parametrize("package", ["fastavro", "confluent_kafka.schema_registry"])
def test_without_its_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for module in ("avro", "registry"):
        monkeypatch.delitem(sys.modules, f"streameval.ingest.kafka.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match="avro needs a package that is not installed") as caught:
        configured("http://localhost:8081").event_format()
    assert caught.value.hint == "pip install 'streameval[avro]'"


def with_field(kind: Any) -> dict[str, Any]:
    return EVENT_SCHEMA | {"fields": [*EVENT_SCHEMA["fields"], {"name": "more", "type": kind}]}


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def test_a_record_that_is_nested_too_deeply_is_rejected(registry: Registry) -> None:
    """The compiled reader of fastavro would crash the process, at twenty kilobytes."""
    registry.register(8, with_field(NODE))
    shallow = encoded(event(0, more={"next": {"next": None}}), 8, with_field(NODE))
    deep = shallow[:-2] + b"\2" * 20_000 + b"\0"
    batch = decode(registry.url, shallow, deep, encoded(event(1), 7))
    assert len(batch) == 2
    assert [(rejected.place, rejected.reason, rejected.detail) for rejected in batch.rejected] == [
        (1, "malformed", "nested too deeply")
    ]


CHOICES = {
    "type": "record",
    "name": "Choices",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["first", "last"]}},
        {"name": "again", "type": "Kind"},
        {"name": "number", "type": ["null", "double", "int"]},
    ],
}
NESTED_CHOICES = CHOICES | {"fields": [*CHOICES["fields"], {"name": "next", "type": ["null", "Choices"]}]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "data", "detail"),
    [
        (CHOICES, b"\2\0\0", None),
        (CHOICES, b"\1\0\0", "it has no choice -1"),
        (CHOICES, b"\0\3\0", "it has no choice -2"),
        (CHOICES, b"\0\0\1\0", "it has no choice -1"),
        (CHOICES, b"\0\0\6\0", "it has no choice 3"),
        (CHOICES, b"\2\0", "it ends too early"),
        (NESTED_CHOICES, b"\0\0\0\2\2\0\0\0", None),
        (NESTED_CHOICES, b"\0\1\0\0", "it has no choice -1"),
        (NESTED_CHOICES, b"\0\0\5\0\0", "it has no choice -3"),
        (NESTED_CHOICES, b"\0\0\0\2\0", "it ends too early"),
        (NESTED_CHOICES, b"\0\0\4" + b"\xff" * 20_000 + b"\1\0", "an integer of more than 10 bytes"),
        (PRICE, b"\4\1\0", None),
        (PRICE, b"\x80\x89\x7a" + bytes(1_000_000), "a decimal of 1000000 bytes, more than the limit of 1024"),
    ],
)
def test_what_the_reader_of_avro_would_take_or_take_long_for_is_rejected(
    registry: Registry, kind: Any, data: bytes, detail: str | None
) -> None:
    """Negative numbers count choices from the end of a list. Long numbers take the square of their length."""
    registry.register(8, with_field(kind))
    batch = decode(registry.url, encoded(event(0), 7)[:4] + b"\x08" + encoded(event(0), 7)[5:] + data)
    details = [rejected.detail for rejected in batch.rejected]
    assert details == ([] if detail is None else [f"not a record of the schema 8: {detail}"])


def test_a_union_of_records_may_be_the_whole_schema(registry: Registry) -> None:
    """A topic of several types has a schema that only refers to others."""
    registry.register(9, subject="decision")
    registry.register(8, ["null", "Decision"], references=[{"name": "Decision", "subject": "decision", "version": 1}])
    registry.register(10, '"Decision"', references=[{"name": "Decision", "subject": "decision", "version": 1}])
    record = encoded(event(0), 7)[5:]
    whole = [b"\0\0\0\0\x08\2" + record, b"\0\0\0\0\x0a" + record]
    batch = decode(registry.url, *whole, b"\0\0\0\0\x08\1" + record)
    assert len(batch) == 2
    assert [rejected.detail for rejected in batch.rejected] == ["not a record of the schema 8: it has no choice -1"]


@pytest.mark.parametrize(
    "schema",
    [{}, "0", [], {"type": "enum", "name": "Kind"}, EVENT_SCHEMA | {"fields": 5}, EVENT_SCHEMA | {"name": True}],
)
def test_json_that_is_not_a_schema_is_refused(registry: Registry, schema: Any) -> None:
    registry.register(8, schema, subject="decisions-value")
    (rejected,) = decode(registry.url, encoded(event(0), 8)).rejected
    assert rejected.detail.startswith("the schema 8: it cannot be used")


def doubled(levels: int) -> dict[str, Any]:
    """Return a schema of records that hold two of the next level each, and no byte."""
    schema: dict[str, Any] = {"type": "record", "name": "L0", "fields": [{"name": "none", "type": "null"}]}
    for level in range(1, levels):
        fields = [{"name": "one", "type": schema}, {"name": "other", "type": f"L{level - 1}"}]
        schema = {"type": "record", "name": f"L{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0"),
        ({"type": "array", "items": {"type": "fixed", "name": "Nothing", "size": 0}}, b"\x80\x80\x80\x80\x80\x08\0"),
        (doubled(40), b""),
        ({"type": "array", "items": NODE | {"fields": [{"name": "bits", "type": "boolean"}]}}, b"\0" * 2 * 2**20),
    ],
)
def test_a_message_that_may_become_a_record_of_gigabytes_is_rejected(
    registry: Registry, kind: Any, data: bytes
) -> None:
    """Items of some types take no byte of the message, so that eleven bytes are a list without an end."""
    registry.register(8, with_field(kind))
    batch = decode(registry.url, encoded(event(0), 7)[:4] + b"\x08" + encoded(event(0), 7)[5:] + data)
    ((reason, detail),) = [(rejected.reason, rejected.detail) for rejected in batch.rejected]
    assert reason == "malformed"
    assert "bytes, more than the limit of" in detail


def test_lists_and_maps_of_ordinary_records_are_read(registry: Registry) -> None:
    banner = {"type": "record", "name": "Banner", "fields": [{"name": "id", "type": "long"}]}
    schema = with_field({"type": "array", "items": ["null", {"type": "map", "values": banner}]})
    registry.register(8, schema)
    assert len(decode(registry.url, encoded(event(0, more=[None, {"a": {"id": 1}}] * 1000), 8, schema))) == 1


class Clock:
    """Replace the monotonic clock, which passes a minute whenever it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, clock = 0.0, registries.time.monotonic
        monkeypatch.setattr(registries.time, "monotonic", lambda: clock() + self.passed)


def decoded_at_last(decoder: Any, messages: list[bytes], clock: Clock, waits: int) -> EventBatch:
    """Decode messages that cannot be decoded for a number of times."""
    for _ in range(waits):
        with pytest.raises(NotYetReadableError, match="the schema registry"):
            decoder.decode_batch(messages)
        clock.passed += 60
    batch: EventBatch = decoder.decode_batch(messages)
    return batch


@pytest.mark.parametrize("status", [400, 403, 422, 500])
def test_a_message_whose_schema_is_refused_is_rejected_after_some_attempts(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    registry.refusals["/schemas/ids/8"] = status, {"error_code": 50001, "message": "no"}
    clock, decoder = Clock(monkeypatch), configured(registry.url).event_format()
    messages = [encoded(event(0), 7), encoded(event(1), 8), encoded(event(2), 7)]
    batch = decoded_at_last(decoder, messages, clock, registries.ATTEMPTS - 1)
    assert [(rejected.place, rejected.reason, rejected.detail) for rejected in batch.rejected] == [
        (1, "malformed", f"the schema registry has no schema 8: {status}: no")
    ]
    assert registry.requests.count("/schemas/ids/8") == registries.ATTEMPTS
    assert len(decoder.decode_batch(messages)) == 2, "without a request"
    registry.register(8)
    registry.refusals.clear()
    clock.passed += schemas.UNKNOWN_SCHEMA_SECONDS
    assert len(decoder.decode_batch(messages)) == 3


def test_a_refused_schema_is_requested_again_after_a_pause_only(registry: Registry) -> None:
    registry.refusals["/schemas/ids/8"] = 500, {"message": "no"}
    decoder = configured(registry.url).event_format()
    for _ in range(3):
        with pytest.raises(NotYetReadableError, match="500: no"):
            decoder.decode_batch([encoded(event(0), 8)])
    assert registry.requests == ["/schemas/ids/8"]


@pytest.mark.parametrize("answer", [b"not JSON", b"[]", b"null", b"[" * 100_000, b" " * 2**24 + b"{}"])
def test_an_answer_that_is_no_schema_is_a_refusal(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    registry.refusals["/schemas/ids/8"] = 200, answer
    decoder = configured(registry.url).event_format()
    batch = decoded_at_last(decoder, [encoded(event(0), 8)], Clock(monkeypatch), registries.ATTEMPTS - 1)
    assert [rejected.reason for rejected in batch.rejected] == ["malformed"]


@pytest.mark.parametrize("status", [401, 429, 503])
def test_while_the_registry_answers_nobody_no_message_is_rejected(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    registry.refusals["/schemas/ids/7"] = status, {"message": "later"}
    clock, decoder = Clock(monkeypatch), configured(registry.url).event_format()
    with pytest.raises(NotYetReadableError, match=f"{status}: later"):
        decoded_at_last(decoder, [encoded(event(0), 7)], clock, 3 * registries.ATTEMPTS)
    registry.refusals.clear()
    assert len(decoder.decode_batch([encoded(event(0), 7)])) == 1


def test_a_compressed_answer_is_a_refusal_but_not_if_nobody_gets_an_answer(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred megabytes of spaces are a hundred kilobytes when they are compressed."""
    decoder, content = configured(registry.url).event_format(), gzip.compress(bytes(10_000))
    monkeypatch.setattr(registry, "headers", {"Content-Encoding": "gzip"})
    registry.refusals["/schemas/ids/8"] = 200, content
    (rejected,) = decoded_at_last(decoder, [encoded(event(0), 8)], Clock(monkeypatch), registries.ATTEMPTS - 1).rejected
    assert "it is compressed" in rejected.detail
    registry.refusals["/schemas/ids/9"] = 503, content
    decoder = configured(registry.url).event_format()
    for _ in range(registries.ATTEMPTS):
        with pytest.raises(NotYetReadableError, match="503"):
            decoder.decode_batch([encoded(event(0), 9)])


def test_ids_without_schemas_are_forgotten_if_there_are_too_many(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages may be bytes with any number in the place of the id."""
    monkeypatch.setattr(schemas, "MAX_FAULTS", 10)
    decoder = configured(registry.url).event_format()
    messages = [encoded(event(number), 7 if number % 5 == 0 else 100 + number % 20) for number in range(60)]
    assert len(decoder.decode_batch(messages)) == 12
    assert registry.requests.count("/schemas/ids/7") == 1
    assert registry.requests.count("/schemas/ids/101") > 1


def test_by_option_no_message_without_a_schema_is_rejected(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.refusals["/schemas/ids/8"] = 422, {"message": "no"}
    clock = Clock(monkeypatch)
    decoder = configured(registry.url, on_missing_schema="wait").event_format()
    for number in (8, 9):
        with pytest.raises(NotYetReadableError):
            decoded_at_last(decoder, [encoded(event(0), number)], clock, 3 * registries.ATTEMPTS)


def test_a_redirect_carries_the_login_to_no_other_host(registry: Registry) -> None:
    with schema_registry() as other:
        other.register(7)
        registry.refusals["/schemas/ids/7"] = 307, f"{other.url}/schemas/ids/7"
        with pytest.raises(NotYetReadableError, match="307"):
            decode(registry.url, encoded(event(0), 7), username=USER, password=PASSWORD)
        assert other.requests == []


def test_an_answer_that_comes_byte_by_byte_is_given_up_and_no_thread_waits_for_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "LOOP_WAIT_SECONDS", 0.01)
    registry.refusals["/schemas/ids/7"] = 200, None
    clock, decoder = Clock(monkeypatch), configured(registry.url).event_format()
    for _ in range(2):
        with pytest.raises(NotYetReadableError, match="it has not answered yet"):
            decoder.decode_batch([encoded(event(0), 7)])
    clock.passed += registries.ANSWER_TIMEOUT_SECONDS
    with pytest.raises(NotYetReadableError, match="no whole answer within 10 s"):
        decoder.decode_batch([encoded(event(0), 7)])
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "streameval-background"])
    registry.refusals.clear()
    monkeypatch.setattr(registries, "LOOP_WAIT_SECONDS", 5.0)
    assert len(decoder.decode_batch([encoded(event(0), 7)])) == 1


def test_many_schemas_of_a_slow_registry_let_the_reader_go_on_in_between(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = range(20, 30)
    for number in numbers:
        registry.register(number, EVENT_SCHEMA)
    decoder = configured(registry.url).event_format()
    ticks, clock = itertools.count(), registries.time.monotonic
    monkeypatch.setattr(registries, "LOOP_WAIT_SECONDS", 3.0)
    monkeypatch.setattr(registries.time, "monotonic", lambda: clock() + next(ticks))
    messages = [encoded(event(number), number) for number in numbers]
    reasons = []
    while True:
        try:
            assert len(decoder.decode_batch(messages)) == len(messages)
            break
        except NotYetReadableError as error:
            reasons.append(str(error).rpartition(": ")[2])
    assert set(reasons) == {"it is asked for many schemas, and answers slowly"}
    assert 2 <= len(reasons) <= len(numbers)
    assert sorted(registry.requests) == sorted(set(registry.requests))


def test_schemas_that_refer_to_each_other_are_refused(registry: Registry) -> None:
    reference = {"name": "Choice", "subject": "choice", "version": 1}
    registry.register(9, with_field("Other"), subject="choice", references=[reference])
    (rejected,) = decode(registry.url, encoded(event(0), 9)).rejected
    assert rejected.detail.startswith("the schema 9: it cannot be used")
    assert len(registry.requests) == 2
