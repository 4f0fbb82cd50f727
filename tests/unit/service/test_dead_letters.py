"""Store rejected messages within bounds, and without holding up the loop."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streameval.config.model import Config, DeadLetterFile
from streameval.errors import ConfigError, InputError
from streameval.events import JsonDecoder, Origin, Rejected
from streameval.ingest import background
from streameval.ingest.background import RetryError
from streameval.ingest.base import Records
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.service import dead_letters as deadletter
from streameval.service.dead_letters import DeadLetter, DeadLetterQueue, FileSink, dead_letters_of, open_dead_letters
from support.daemon_logs import daemon_logs
from support.factories import wait_until

RECORDS = [
    Records("clicks", 0, [3, 5], [b"null", b'{"no": 1}'], timestamps=[1000, 2000]),
    Records("clicks", 1, [], []),
    Records("rewards", 0, range(7, 9), [None, b"\xff"]),
]


def dead_letter(offset: int = 0, value: bytes = b"x") -> DeadLetter:
    return DeadLetter("malformed", "not JSON", "clicks", 0, offset, 1000, value, len(value))


ORIGINS = [(batch.topic, batch.partition, offset) for batch in RECORDS for offset in batch.offsets]


def rejected(*indices: int) -> list[Rejected]:
    """Return messages of RECORDS as rejected."""
    return [Rejected("malformed", "not JSON", b"x", origin=ORIGINS[index]) for index in indices]


def test_a_dead_letter_hides_the_query_of_an_address() -> None:
    origin = ("https://store/log?sig=s3cret", 0, 5)
    (letter,) = dead_letters_of([], [Rejected("malformed", "not JSON", b"x", origin=origin)])
    assert (letter.topic, letter.offset) == ("https://store/log?***", 5)


def many(count: int) -> list[Rejected]:
    return [Rejected("malformed", "not JSON", b"x", origin=("clicks", 0, offset)) for offset in range(count)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


class Box:
    """Take dead letters, unless the test closes the box or makes it fail."""

    def __init__(self, failures: int = 0) -> None:
        self.queue: list[DeadLetter] = []
        self.failures = failures
        self.open = threading.Event()
        self.open.set()
        self.closed = False

    def write(self, queue: Sequence[DeadLetter]) -> int:
        assert self.open.wait(60.0)
        if self.failures:
            self.failures -= 1
            self.queue += queue[:1]
            raise RetryError("no space left", queue[1:])
        self.queue += queue
        return len(queue)

    def abort(self) -> None:
        """Do nothing: the test opens the box."""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_FIRST", 0.01)
    monkeypatch.setattr(deadletter, "CLOSE_TIMEOUT", 60.0)  # as long as it takes on a busy machine


def test_dead_letters_contain_reason_origin_and_time() -> None:
    rejected = [
        message
        for part in RECORDS
        for message in JsonDecoder()
        .decode_batch(part.values, Origin.from_parts(part.topic, [(part.partition, part.offsets)]))
        .rejected
    ]
    letters = list(dead_letters_of(RECORDS, rejected))
    assert [(letter.topic, letter.partition, letter.offset, letter.timestamp) for letter in letters] == [
        ("clicks", 0, 3, 1000),
        ("clicks", 0, 5, 2000),
        ("rewards", 0, 7, None),
        ("rewards", 0, 8, None),
    ]
    assert [letter.value for letter in letters] == [b"null", b'{"no": 1}', b"", b"\xff"]
    assert [letter.reason for letter in letters] == ["malformed", "missing_field", "malformed", "malformed"]


def test_the_message_of_an_origin_is_looked_up_in_recent_records() -> None:
    origins = [("rewards", 0, 8), ("clicks", 0, 5), ("clicks", 0, 4), ("clicks", 9, 5)]
    letters = dead_letters_of(RECORDS, [Rejected("too_late", "", b"", origin=origin) for origin in origins])
    assert [(letter.offset, letter.value, letter.timestamp) for letter in letters] == [
        (8, b"\xff", None),
        (5, b'{"no": 1}', 2000),
        (4, b"", None),
        (5, b"", None),
    ]


def test_a_huge_message_is_kept_in_part() -> None:
    (letter,) = dead_letters_of(RECORDS, [Rejected("malformed", "", b"y" * 10**6, origin=ORIGINS[0])])
    assert (len(letter.value), letter.size) == (deadletter.MAX_VALUE_BYTES, 10**6)


def test_dead_letters_are_written_in_order_and_before_the_end() -> None:
    box = Box()
    queue = DeadLetterQueue(box)
    queue.put(RECORDS, [])
    queue.put(RECORDS, rejected(0, 1))
    queue.put(RECORDS, rejected(2))
    queue.close()
    assert [(letter.topic, letter.offset) for letter in box.queue] == [("clicks", 3), ("clicks", 5), ("rewards", 7)]
    assert queue.status().done == 3
    assert box.closed


@pytest.mark.usefixtures("impatient")
def test_dead_letters_refused_by_a_sink_are_retried_and_arrive_once() -> None:
    box = Box(failures=3)
    queue = DeadLetterQueue(box)
    queue.put([Records("clicks", 0, range(10), [b"x"] * 10)], many(10))
    wait_until(lambda: queue.status().waiting == 0)
    queue.close()
    assert [letter.offset for letter in box.queue] == list(range(10))
    assert (queue.status().done, queue.status().dropped) == (10, 0)
    assert queue.status().trouble == ""


def test_items_that_wait_for_a_retry_are_tried_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_FIRST", 60.0)
    monkeypatch.setattr(deadletter, "CLOSE_TIMEOUT", 60.0)
    box = Box(failures=1)
    queue = DeadLetterQueue(box)
    queue.put(RECORDS, rejected(0, 1, 2))
    wait_until(lambda: queue.status().trouble != "")
    queue.close()
    assert [letter.offset for letter in box.queue] == [3, 5, 7]
    assert (queue.status().done, queue.status().waiting) == (3, 0)


class Odd(Box):
    """Raise an unexpected error for the dead letter of offset 3."""

    def write(self, queue: Sequence[DeadLetter]) -> int:
        if queue[0].offset == 3:
            raise ValueError("need at least one: key or value")
        return super().write(queue)


def test_an_unexpected_error_loses_one_dead_letter_and_not_the_next_ones() -> None:
    box = Odd()
    queue = DeadLetterQueue(box)
    queue.put(RECORDS, rejected(0))
    wait_until(lambda: queue.status().dropped == 1)
    queue.put(RECORDS, rejected(1))
    queue.close()
    assert [letter.offset for letter in box.queue] == [5]
    assert (queue.status().done, queue.status().waiting) == (1, 0)


@pytest.mark.usefixtures("impatient")
def test_a_stuck_sink_does_not_delay_the_loop_and_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 50
    monkeypatch.setattr(deadletter, "CLOSE_TIMEOUT", 0.5)
    monkeypatch.setattr(deadletter, "ABORT_TIMEOUT", 0.1)
    (letter,) = dead_letters_of(RECORDS, rejected(0))
    monkeypatch.setattr(deadletter, "MAX_BYTES", kept * letter.nbytes)
    box = Box()
    box.open.clear()
    queue = DeadLetterQueue(box)
    started_at = time.monotonic()
    for _ in range(200):
        queue.put(RECORDS, rejected(0))
    assert time.monotonic() - started_at < 30.0
    assert (queue.status().waiting, queue.status().dropped) == (kept, 200 - kept)
    queue.close()
    assert time.monotonic() - started_at < 30.0
    box.open.set()
    wait_until(lambda: queue.status().waiting == 0)
    assert len(box.queue) == kept


@pytest.mark.usefixtures("impatient")
def test_a_problem_is_logged_once_and_its_repetitions_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    box = Box(failures=10**6)
    with daemon_logs():
        queue = DeadLetterQueue(box)
        queue.put([Records("clicks", 0, range(10**4), [b"x"] * 10**4)], many(10**4))
        wait_until(lambda: box.failures < 10**6 - 4)
        assert queue.status().trouble == "no space left"
        queue.close()
    logged = capsys.readouterr().err
    assert logged.count("dead_letters_not_written") == 1
    assert logged.count("dead_letters_lost") == 1
    assert box.closed


def test_a_line_of_the_file_has_all_fields_and_keeps_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "rejected.ndjson"
    queue = open_dead_letters(DeadLetterFile(path=path), KafkaConnection())
    beyond = Rejected("not_finite", "so", b"{}", origin=ORIGINS[0])
    queue.put(RECORDS, [Rejected("malformed", "not JSON", b"\xff", origin=ORIGINS[3]), beyond])
    queue.close()
    first, second = lines(path)
    assert first == {
        "reason": "malformed",
        "detail": "not JSON",
        "topic": "rewards",
        "partition": 0,
        "offset": 8,
        "timestamp": None,
        "size": 1,
        "value_base64": "/w==",
    }
    assert second["value"] == "{}"
    assert second["timestamp"] == 1000


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_files_are_rotated_and_their_number_and_size_are_bounded(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "rejected.ndjson"
    sink = FileSink(path, max_bytes=4000, keep=keep)
    for offset in range(0, 400, 5):
        sink.write([dead_letter(number) for number in range(offset, offset + 5)])
    sink.close()
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert {file.name for file in files} == {path.name} | {f"{path.name}.{n}" for n in range(1, keep + 1)}
    assert max(file.stat().st_size for file in files) <= 4000
    kept = [letter["offset"] for n in range(keep, 0, -1) for letter in lines(tmp_path / f"{path.name}.{n}")]
    kept += [letter["offset"] for letter in lines(path)]
    assert kept == list(range(400 - len(kept), 400))


def test_after_a_crash_in_the_middle_of_a_line_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rejected.ndjson"
    path.write_bytes(b'{"offset": 1}\n{"off')
    sink = FileSink(path, max_bytes=10**6, keep=1)
    sink.write([dead_letter(7)])
    sink.close()
    assert json.loads(path.read_bytes().splitlines()[-1])["offset"] == 7


@pytest.mark.parametrize("how", ["moved", "deleted", "emptied"])
def test_a_file_rotated_by_another_program_is_reopened(tmp_path: Path, how: str) -> None:
    path = tmp_path / "rejected.ndjson"
    sink = FileSink(path, max_bytes=1000, keep=1)
    sink.write([dead_letter(number) for number in range(5)])
    if how == "moved":
        path.rename(tmp_path / "elsewhere")
    elif how == "deleted":
        path.unlink()
    else:
        os.truncate(path, 0)
    sink.write([dead_letter(5)])
    sink.write([dead_letter(6)])
    sink.close()
    assert [letter["offset"] for letter in lines(path)] == [5, 6]
    assert not (tmp_path / "rejected.ndjson.1").exists()


def test_a_full_disk_leaves_whole_lines_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rejected.ndjson"
    sink = FileSink(path, max_bytes=10**6, keep=1)
    sink.write([dead_letter(1)])
    write, room = os.write, [50]

    def write_while_there_is_room(descriptor: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, room[0] = min(room[0], len(data)), room[0] - min(room[0], len(data))
        return write(descriptor, data[:taken])

    monkeypatch.setattr(os, "write", write_while_there_is_room)
    with pytest.raises(RetryError, match="No space left") as raised:
        sink.write([dead_letter(2), dead_letter(3)])
    assert [letter.offset for letter in raised.value.items] == [2, 3]
    assert [letter["offset"] for letter in lines(path)] == [1]
    room[0] = 10**6
    sink.write(raised.value.items)
    sink.close()
    assert [letter["offset"] for letter in lines(path)] == [1, 2, 3]


def test_a_file_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory") as raised:
        open_dead_letters(DeadLetterFile(path=tmp_path / "no" / "where"), KafkaConnection())
    assert "directory" in raised.value.hint


def test_headers_contain_reason_and_origin() -> None:
    headers = dict(dead_letter(7).headers)
    assert headers["streameval.reason"] == b"malformed"
    assert headers["streameval.offset"] == b"7"
    assert "streameval.timestamp" not in dict(DeadLetter("duplicate", "", "t", 0, 1, None, b"", 0).headers)


@pytest.mark.parametrize(
    ("source", "option", "problem"),
    [
        ({"kind": "file", "path": "log"}, "dead_letters.kind", "the source is not a topic"),
        ({"topic": "rejected"}, "dead_letters.topic", "a topic that is not read"),
        ({"topic": "clicks", "rewards": {"topic": "rejected"}}, "dead_letters.topic", "a topic that is not read"),
    ],
)
def test_a_topic_for_dead_letters_must_be_one_that_is_not_read(
    tmp_path: Path, source: dict[str, Any], option: str, problem: str
) -> None:
    path = tmp_path / "streameval.yaml"
    queue = {"kind": "kafka", "topic": "rejected"}
    path.write_text(json.dumps({"source": source, "policies": {"candidates": ["a"]}, "dead_letters": queue}))
    with pytest.raises(ConfigError, match=problem) as raised:
        Config.load(path, {})
    assert option in raised.value.message
