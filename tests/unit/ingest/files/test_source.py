from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streameval.errors import InputError, SourceError
from streameval.events import JsonDecoder
from streameval.ingest.base import Offsets, Records
from streameval.ingest.files import lines
from streameval.ingest.files.reading import read_events
from streameval.ingest.files.source import FileSource
from support.strategies import encode

LINES = [b'{"line": %d}' % number for number in range(1, 6)]
TEXT = b"".join(line + b"\n" for line in LINES)
EVENT = {"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"a": 0.25}}


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def append(path: str, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def drain(source: FileSource, into: list[Records] | None = None) -> list[Records]:
    """Read all that is left after the batches in `into`, which came before a failure."""
    read = [] if into is None else into
    try:
        while not source.status().exhausted:
            read += source.poll(1.0)
    finally:
        source.close()
    return read


def values(records: Sequence[Records]) -> list[bytes | None]:
    return [value for chunk in records for value in chunk.values]


def offsets(records: Sequence[Records]) -> list[int]:
    return [offset for chunk in records for offset in chunk.offsets]


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Callable[[bytes], FileSource]]:
    """Makes a source that follows `log.ndjson`, which starts with the given content."""
    opened: list[FileSource] = []

    def follow(data: bytes) -> FileSource:
        opened.append(FileSource(write(tmp_path / "log.ndjson", data), follow=True))
        return opened[-1]

    yield follow
    for source in opened:
        source.close()


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("log.ndjson", bytes),
        ("log.ndjson.gz", gzip.compress),
        ("log.ndjson.zst", zstandard.ZstdCompressor().compress),
        ("gzip-by-another-name", gzip.compress),
        ("not-really.gz", bytes),
    ],
)
def test_lines_are_read_with_their_numbers(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path / name, compress(TEXT))
    records = drain(FileSource(path, batch=2))
    assert [len(chunk) for chunk in records] == [2, 2, 1]
    assert {(chunk.topic, chunk.partition) for chunk in records} == {(path, 0)}
    assert values(records) == LINES
    assert offsets(records) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_files_put_behind_each_other_are_one(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path / "log", compress(TEXT[:17]) + compress(b"") + compress(TEXT[17:]) + b"\0" * 512)
    assert values(drain(FileSource(path))) == LINES


def test_files_are_read_one_after_another_each_with_its_own_line_numbers(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1", TEXT), write(tmp_path / "2", gzip.compress(TEXT))
    records = drain(FileSource([first, Path(second)]))
    assert [(chunk.topic, chunk.partition, list(chunk.offsets)) for chunk in records] == [
        (first, 0, [1, 2, 3, 4, 5]),
        (second, 1, [1, 2, 3, 4, 5]),
    ]


def test_blank_lines_are_left_out_but_counted(tmp_path: Path) -> None:
    records = drain(FileSource(write(tmp_path / "log", b"\n1\n  \n\r\n2\r\n\n")))
    assert values(records) == [b"1", b"2\r"]
    assert offsets(records) == [2, 5]


def test_a_last_line_without_newline_is_an_event(tmp_path: Path) -> None:
    assert values(drain(FileSource(write(tmp_path / "log", b"1\n2")))) == [b"1", b"2"]


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path) -> None:
    assert values(drain(FileSource(write(tmp_path / "log", b"\xef\xbb\xbf1\n2\n")))) == [b"1", b"2"]


def test_an_empty_file_is_exhausted_at_once(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "log", b""))
    assert source.poll(0.0) == []
    assert source.status().exhausted


def test_the_status_has_the_next_line_and_the_progress_in_stored_bytes(tmp_path: Path) -> None:
    data = gzip.compress(TEXT)
    source = FileSource([write(tmp_path / "1", data), write(tmp_path / "2", TEXT)], batch=3)
    assert (source.bytes_read, source.bytes_total) == (0, len(data) + len(TEXT))
    assert [(partition.position, partition.lag) for partition in source.status().partitions] == [(1, None), (1, None)]
    source.poll(0.0)
    assert (source.bytes_read, source.status().partitions[0].position) == (len(data), 4)
    drain(source)
    assert source.bytes_read == source.bytes_total
    assert [(partition.position, partition.lag) for partition in source.status().partitions] == [(6, 0), (6, 0)]
    assert source.status().lag == 0


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_compressed_file_that_is_cut_off_is_an_input_error_after_all_that_is_in_it(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    good = os.urandom(300_000).hex().encode() + b"\n"
    path = write(tmp_path / "torn", compress(good) + compress(TEXT * 1000)[:-4])
    source = FileSource(path)
    read: list[Records] = []
    with pytest.raises(InputError, match=r"torn is cut off after line [\d,]+: ") as failure:
        drain(source, into=read)
    assert values(read)[0] == good.strip()
    assert str(failure.value).startswith(f"{path} is cut off after line {len(values(read)):,}")
    assert failure.value.exit_code == 2
    assert not source.status().exhausted


def test_a_torn_gzip_file_gives_every_whole_line_before_the_tear(tmp_path: Path) -> None:
    whole = [os.urandom(500).hex().encode() for _ in range(100)]
    read: list[Records] = []
    with pytest.raises(InputError):
        drain(FileSource(write(tmp_path / "torn.gz", gzip.compress(b"\n".join(whole))[:-40_000])), into=read)
    assert 10 < len(values(read)) < 100
    assert values(read) == whole[: len(values(read))]


def test_a_damaged_gzip_file_is_an_input_error_with_the_line(tmp_path: Path) -> None:
    data = gzip.compress(TEXT) + gzip.compress(TEXT)[:-8] + b"checksum"
    with pytest.raises(InputError, match=r"log is damaged after line \d+: .*incorrect data check"):
        drain(FileSource(write(tmp_path / "log", data)))


def test_garbage_behind_a_compressed_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is damaged after line 5"):
        list(read_events(write(tmp_path / "log", gzip.compress(TEXT) + b" " * 300_000)))


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "missing does not exist"), ("", "is a directory"), ("file/below", "does not exist")],
)
def test_a_path_that_is_not_a_file_is_an_input_error_before_reading(tmp_path: Path, name: str, message: str) -> None:
    good = write(tmp_path / "file", TEXT)
    with pytest.raises(InputError, match=message) as failure:
        FileSource([good, str(tmp_path / name)])
    assert failure.value.hint


def test_a_file_that_vanished_before_its_turn_is_an_input_error(tmp_path: Path) -> None:
    source = FileSource([write(tmp_path / "1", TEXT), write(tmp_path / "2", TEXT)])
    (tmp_path / "2").unlink()
    assert values(source.poll(0.0)) == LINES
    with pytest.raises(InputError, match="2 cannot be opened"):
        source.poll(0.0)


def test_a_line_longer_than_memory_allows_is_cut_and_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 4000)
    long = encode(EVENT) + b" " * 15_000
    records = drain(FileSource(write(tmp_path / "log", b"1\n" + long + b"\n2\n3\n" + long + b"\n4"), batch=2))
    read = values(records)
    assert [read[0], *read[2:4], read[5]] == [b"1", b"2", b"3", b"4"]
    for cut in (read[1], read[4]):
        assert cut is not None
        assert len(cut) < lines.EXCERPT_BYTES + 100
        assert cut.endswith(b"(cut: a line of %d bytes)" % len(long))
        assert JsonDecoder().decode_batch([cut]).rejected[0].reason == "malformed"


@given(st.lists(st.binary(max_size=6), max_size=6), st.integers(1, 8), st.integers(1, 3))
def test_lines_are_the_same_however_the_text_is_cut(rest: list[bytes], chunk: int, batch: int) -> None:
    text = b"\n".join([b"plain", *rest])
    with TemporaryDirectory() as directory, patch.object(lines, "CHUNK_BYTES", chunk):
        read = values(drain(FileSource(write(Path(directory) / "log", text), batch=batch)))
    assert read == [line for line in text.split(b"\n") if line.strip()]


def test_standard_input_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(write(tmp_path / "log.gz", gzip.compress(TEXT))) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        source = FileSource("-")
        assert source.bytes_total is None
        assert values(drain(source)) == LINES
        assert not sys.stdin.buffer.closed
        assert source.offsets()["-"].identity is None


def test_a_pipe_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    source = FileSource(str(path))
    assert source.poll(0.05) == []
    os.write(writer, b"1\n2\n3")
    assert values(source.poll(5.0)) == [b"1", b"2"]
    assert source.poll(0.05) == []
    os.close(writer)
    assert values(drain(source)) == [b"3"]


def test_a_followed_file_gives_its_lines_when_their_newline_comes(following: Any) -> None:
    source = following(b"1\n2")
    path = source.status().partitions[0].topic
    assert values(source.poll(1.0)) == [b"1"]
    assert source.poll(0.05) == []
    assert not source.status().exhausted
    assert source.status().lag == 0
    append(path, b"2\n3\n")
    records = source.poll(5.0)
    assert values(records) == [b"22", b"3"]
    assert offsets(records) == [2, 3]


def test_a_followed_file_wakes_the_poll_that_waits_for_it(following: Any) -> None:
    source = following(b"")
    timer = threading.Timer(0.2, append, [source.status().partitions[0].topic, b"1\n"])
    timer.start()
    assert values(source.poll(30.0)) == [b"1"]
    timer.join()


def test_a_rotated_file_is_read_to_its_end_and_then_its_successor(following: Any, tmp_path: Path) -> None:
    source = following(b"1\n")
    path = tmp_path / "log.ndjson"
    assert values(source.poll(1.0)) == [b"1"]
    path.rename(tmp_path / "log.ndjson.1")
    assert source.poll(0.05) == []
    append(str(tmp_path / "log.ndjson.1"), b"2\n3")
    write(path, b"4\n")
    records = [chunk for _ in range(3) for chunk in source.poll(1.0)]
    assert values(records) == [b"2", b"3", b"4"]
    assert offsets(records) == [2, 3, 4]


def test_a_truncated_file_is_read_from_its_start(following: Any, tmp_path: Path) -> None:
    source = following(b"1\n2\nunfinis")
    assert values(source.poll(1.0)) == [b"1", b"2"]
    assert source.poll(0.05) == []
    write(tmp_path / "log.ndjson", b"3\n")
    records = source.poll(1.0)
    assert values(records) == [b"3"]
    assert offsets(records) == [3]


def test_only_the_last_file_is_followed(tmp_path: Path) -> None:
    source = FileSource([write(tmp_path / "1", gzip.compress(b"1")), write(tmp_path / "2", b"2\n")], follow=True)
    assert values(source.poll(1.0) + source.poll(1.0)) == [b"1", b"2"]
    assert not source.status().exhausted
    source.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [("compressed", gzip.compress(TEXT)), ("in UTF-16", TEXT.decode().encode("utf-16"))],
    ids=["compressed", "UTF-16"],
)
def test_a_file_that_is_not_plain_text_cannot_be_followed(tmp_path: Path, name: str, text: bytes) -> None:
    source = FileSource(write(tmp_path / "log", text), follow=True)
    with pytest.raises(InputError, match=f"{name}, and cannot be followed"):
        source.poll(0.0)
    source.close()


LONG = b"".join(
    b'{"line": %d, "filled": "%s"}\n' % (number, random.Random(number).randbytes(150).hex().encode())
    for number in range(1, 41)
)


def put_down(source: FileSource) -> dict[str, Offsets]:
    """Close a source, and return where it is, over what a snapshot holds."""
    state = {path: bookmark.to_state() for path, bookmark in source.offsets().items()}
    source.close()
    return {path: Offsets.from_state(plain) for path, plain in json.loads(json.dumps(state)).items()}


def next_run(source: FileSource, paths: Any, **options: Any) -> FileSource:
    return FileSource(paths, offsets=put_down(source), **options)


def utf_16(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress, utf_16])
@pytest.mark.parametrize("polls", range(14))
def test_the_next_run_continues_at_the_exact_line(tmp_path: Path, compress: Any, polls: int) -> None:
    paths = [
        write(tmp_path / "1", compress(b"\xef\xbb\xbfone\n\n" + LONG)),
        write(tmp_path / "2", compress(b"two\r\n\nx")),
    ]
    whole = drain(FileSource(paths, batch=5))
    source = FileSource(paths, batch=5)
    read = [chunk for _ in range(polls) for chunk in source.poll(1.0)]
    source = next_run(source, paths, batch=5)
    read += drain(source)
    assert values(read) == values(whole)
    assert offsets(read) == offsets(whole)
    assert source.status().gaps == {}
    assert values(drain(next_run(source, paths))) == []


def test_the_next_run_reads_lines_and_files_that_were_added_since(tmp_path: Path) -> None:
    path = write(tmp_path / "b", b"1\n2\n")
    source = FileSource(path)
    assert values(source.poll(1.0)) == [b"1", b"2"]
    append(path, b"3\n")
    source = next_run(source, [write(tmp_path / "a", b"new\n"), path])
    records = drain(source)
    assert values(records) == [b"new", b"3"]
    assert offsets(records) == [1, 3]


def test_a_long_text_is_not_read_again_to_find_the_place(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LONG * 100)
    source = FileSource(path, batch=3999)
    source.poll(1.0)
    source = next_run(source, path)
    assert values(source.poll(1.0)) == [LONG.splitlines()[-1]]
    assert source.bytes_read == len(LONG) * 100
    source.close()


def test_a_line_that_was_too_long_does_not_shift_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1500)
    path = write(tmp_path / "log", b"x" * 5000 + b"\n" + LONG)
    source = FileSource(path, batch=3)
    read = source.poll(1.0)
    source = next_run(source, path)
    assert values(read + drain(source))[1:] == LONG.splitlines()
    assert source.status().gaps == {}


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (b"new\n" + LONG, "replaced"),
        (LONG.replace(b"filled", b"FILLED"), "replaced"),
        (LONG[:6000] + b"\n", "cut"),
        (b"", "replaced"),
        (gzip.compress(LONG), "replaced"),
    ],
)
def test_a_replaced_file_is_reported_and_read_from_its_start(tmp_path: Path, now: bytes, kind: str) -> None:
    path = write(tmp_path / "log", LONG)
    source = FileSource(path, batch=39)
    source.poll(1.0)
    bookmarks = put_down(source)
    write(tmp_path / "log", now)
    source = FileSource(path, offsets=bookmarks)
    records = drain(source)
    assert source.status().gaps == {kind: 1}
    assert values(records) == (values(drain(FileSource(path))) if kind == "replaced" else [])
    assert offsets(records) == list(range(40, 40 + len(records and records[0].offsets)))


def test_a_compressed_file_that_has_fewer_lines_now_was_cut(tmp_path: Path) -> None:
    member = gzip.compress(LONG)  # once, as its header has the time
    path = write(tmp_path / "log", member + member)
    source = FileSource(path)
    drain(source)
    bookmarks = put_down(source)
    write(tmp_path / "log", member)
    source = FileSource(path, offsets=bookmarks)
    assert values(drain(source)) == []
    assert source.status().gaps == {"cut": 1}


def test_a_replaced_file_stops_the_source_if_configured(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LONG)
    source = FileSource(path, batch=39)
    source.poll(1.0)
    bookmarks = put_down(source)
    write(tmp_path / "log", TEXT)
    source = FileSource(path, offsets=bookmarks, loss_reaction="fail")
    with pytest.raises(SourceError, match=r"recreated.*line 40") as raised:
        source.poll(1.0)
    assert "on_lost_offsets" in raised.value.hint
    assert source.offsets()[path].positions == {0: 40}


def test_after_a_rotation_the_place_is_one_in_the_new_file(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LONG + b"unfinished")
    source = FileSource(path, follow=True, batch=3)
    seen = source.poll(1.0)
    Path(path).rename(tmp_path / "log.1")
    write(tmp_path / "log", TEXT)
    while b"unfinished" not in values(seen):
        seen += source.poll(1.0)
    for _ in range(3):
        seen += source.poll(1.0)
        source = next_run(source, path, follow=True, batch=3)
    source.close()
    assert source.status().gaps == {}
    assert values(seen) == [*LONG.splitlines(), b"unfinished", *LINES]


def test_a_file_that_was_truncated_when_its_place_was_put_down_is_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LONG)
    source = FileSource(path, follow=True)
    source.poll(1.0)
    write(tmp_path / "log", TEXT)
    source = next_run(source, path)
    assert values(drain(source)) == LINES


def test_a_pipe_has_no_place_to_go_back_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, TEXT)
    source = FileSource(str(path))
    assert len(values(source.poll(1.0))) == 5
    assert source.offsets()[str(path)].identity is None
    source = next_run(source, str(path))
    os.write(writer, b"more\n")
    assert values(source.poll(1.0)) == [b"more"]
    source.close()
    os.close(writer)


def test_events_are_read_in_batches_with_what_was_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "log", encode(EVENT) + b"\nnonsense\n" + encode(EVENT) + b"\n\n" + encode(EVENT))
    batches = list(read_events(path, batch_size=2))
    assert [(len(batch), len(batch.rejected)) for batch in batches] == [(1, 1), (1, 0), (1, 0)]
    assert batches[0].policies == ("a",)
    assert batches[0].rejected[0].value == b"nonsense"
    (whole,) = read_events([path], policies=["b"], reward_field="reward", reward_range=(0.0, 0.5))
    assert (whole.policies, len(whole)) == (("b",), 0)
    assert [rejection.reason for rejection in whole.rejected] == [
        "reward_range",
        "malformed",
        "reward_range",
        "reward_range",
    ]


def test_events_may_be_read_in_part(tmp_path: Path) -> None:
    events = read_events(write(tmp_path / "log", (encode(EVENT) + b"\n") * 10), batch_size=3)
    assert len(next(events)) == 3
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_line_of_many_megabytes_in_a_compressed_file_is_cut_and_those_around_it_are_read(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    long = b"{" + b" " * 60 * 2**20
    source = FileSource(write(tmp_path / "log", compress(b"1\n" + long + b"\n2\n")))
    tracemalloc.start()
    try:
        first, cut, last = values(drain(source))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (first, last) == (b"1", b"2")
    assert cut is not None
    (rejected,) = JsonDecoder().decode_batch([cut]).rejected
    assert (rejected.reason, rejected.detail) == ("malformed", f"a line of {len(long)} bytes, more than the limit")
    assert peak < 60 * 2**20


def test_a_read_returns_a_limited_amount_of_text_however_small_the_compressed_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_READ_BYTES", 10_000)
    texts = [b"%04d" % number + b" " * 996 for number in range(500)]
    frames = b"".join(zstandard.compress(text + b"\n") for text in texts)  # twenty to fifty of them are read at once
    source, read = FileSource(write(tmp_path / "log", frames), batch=500), []
    while records := source.poll(0.0):
        read.append(values(records))
    assert [line for some in read for line in some] == texts
    assert max(map(len, read)) <= 100


def test_the_work_for_a_long_line_grows_with_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is searched for the end of the line once."""
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1000)
    searched = 0

    class Text(bytearray):
        def find(self, sought: Any, *where: int) -> int:  # type: ignore[override]
            nonlocal searched
            searched += len(self) - (where[0] if where else 0)
            return super().find(sought, *where)

    monkeypatch.setattr(lines, "bytearray", Text, raising=False)
    assert values(drain(FileSource(write(tmp_path / "log", b"x" * 500_000 + b"\n1\n")))) == [b"x" * 500_000, b"1"]
    assert 500_000 <= searched < 600_000


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress, utf_16])
def test_damaged_files_are_named_with_the_line_before_the_damage(tmp_path: Path, compress: Any) -> None:
    path = write(tmp_path / "x", compress(LONG)[:-7])
    with pytest.raises(InputError, match=r"x is cut off after line [\d,]+: its data end in the middle"):
        drain(FileSource(path))
