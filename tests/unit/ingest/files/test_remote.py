from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem

import streameval
from streameval.errors import InputError
from streameval.ingest.base import Source
from streameval.ingest.files.lines import check
from streameval.ingest.files.remote import expand
from streameval.ingest.files.source import FileSettings
from support.commands import command
from support.http_servers import serving
from support.messages import message

COUNT = 3000
LINES = [message(number, policies={"challenger": 0.25}) + b"\n" for number in range(COUNT)]


def table(count: int = COUNT) -> pa.Table:
    return pa.table(
        {
            "action": ["a", "b"] * (count // 2),
            "propensity": [0.5] * count,
            "reward": [0, 1] * (count // 2),
            "challenger": [0.3, 0.7] * (count // 2),
        }
    )


def parquet(count: int = COUNT, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(count), sink, **options)
    return sink.getvalue().to_pybytes()


def arrow(*, of_stream: bool = False) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_stream if of_stream else pa.ipc.new_file)(sink, table().schema) as writer:
        writer.write_table(table(), 500)
    return sink.getvalue().to_pybytes()


def count_events(*paths: str, **options: Any) -> int:
    return sum(map(len, streameval.read_events(paths, policies=["challenger"], **options)))


def drained(source: Source) -> list[bytes | None]:
    lines: list[bytes | None] = []
    while not source.status().exhausted:
        lines += [value for records in source.poll(1.0) for value in records.values]
    source.close()
    return lines


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


class Files(SimpleHTTPRequestHandler):
    """Serve a directory with parts of files, and refuse files with `secret` in their names."""

    in_parts = True

    def do_GET(self) -> None:
        if "secret" in self.path or "broken" in self.path:
            self.send_error(403 if "secret" in self.path else 500)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not (self.in_parts and wanted and path.is_file()):
            super().do_GET()
            return
        first, last = int(wanted[1]), int(wanted[2])
        content = path.read_bytes()[first : last + 1]
        self.server.sent += len(content)  # type: ignore[attr-defined]
        self.send_response(206)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(content)

    def do_HEAD(self) -> None:
        if "secret" in self.path or "broken" in self.path:
            self.send_error(403 if "secret" in self.path else 500)
            return
        super().do_HEAD()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of tests short."""


class WholeFiles(Files):
    in_parts = False


@pytest.fixture(params=[Files, WholeFiles], ids=["in parts", "whole files"])
def web(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    yield from _served(tmp_path, request.param)


def _served(directory: Path, handler: type[Files]) -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(directory)))) as server:
        server.sent = 0  # type: ignore[attr-defined]
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_pattern_names_all_files_that_match(memory: Any) -> None:
    memory.pipe("/logs/1.ndjson.gz", gzip.compress(b"".join(LINES[:2000])))
    memory.pipe("/logs/2.ndjson", b"".join(LINES[2000:]))
    memory.pipe("/logs/notes.txt", b"none")
    assert expand(["memory://logs/*.ndjson*"]) == ["memory://logs/1.ndjson.gz", "memory://logs/2.ndjson"]
    assert count_events("memory://logs/*.ndjson*") == COUNT


def test_two_stars_name_each_file_once(memory: Any) -> None:
    for name in ("1.ndjson", "a/2.ndjson", "a/b/3.ndjson", "_temporary/0/4.ndjson", "a/_SUCCESS", "a/.x/5.ndjson"):
        memory.pipe(f"/_logs/{name}", b"".join(LINES[:10]))
    files = [f"memory://_logs/{name}" for name in ("1.ndjson", "a/2.ndjson", "a/b/3.ndjson")]
    assert expand(["memory://_logs/**"]) == expand(["memory://_logs/**/*.ndjson"]) == files
    assert expand(["memory://_logs/_temporary/0/*"]) == ["memory://_logs/_temporary/0/4.ndjson"]
    assert expand(["memory://_logs"]) == files


def test_the_folders_of_a_partitioned_table_are_columns(memory: Any) -> None:
    for country, hour in (("de", "7"), ("fr", "8"), ("fr%20x", "8")):
        memory.pipe(f"/logs/country={country}/hour={hour}/part-0.parquet", parquet())
    memory.pipe("/logs/_SUCCESS", b"x")
    memory.pipe("/logs/_temporary/part-1.parquet", b"unfinished")
    answer = streameval.compare("memory://logs", candidates=["challenger"], segments=["country", "hour"])
    found = {row.segment_value: row.events for row in answer.report.segments if row.policy == "challenger"}
    del found["other"]
    assert found == {"de": COUNT, "fr": COUNT, "fr x": COUNT, "7": COUNT, "8": 2 * COUNT}


def test_a_local_folder_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "part-0.parquet").write_bytes(parquet())
    (tmp_path / "_SUCCESS").touch()
    assert count_events(str(tmp_path)) == 2 * COUNT
    assert count_events(str(tmp_path / "*" / "*.parquet")) == 2 * COUNT


@pytest.mark.parametrize(
    "name", ["log.ndjson", "log.ndjson.gz", "log.parquet", "unnamed", "log.arrow", "log.arrows", "x"]
)
def test_a_web_server_sends_parts_or_whole_files(web: str, tmp_path: Path, name: str) -> None:
    text = b"".join(LINES)
    content = {
        "log.ndjson.gz": gzip.compress(text),
        "log.parquet": parquet(),
        "unnamed": parquet(),
        "log.arrow": arrow(),
        "log.arrows": arrow(of_stream=True),
        "x": arrow(of_stream=True),
    }.get(name, text)
    (tmp_path / name).write_bytes(content)
    assert check(f"{web}/{name}") == len(content)
    assert count_events(f"{web}/{name}") == COUNT
    assert count_events(f"{web}/{name}?signature=a.b") == COUNT


def test_arrow_files_in_folders_of_a_store_are_one_table_with_their_partitions(memory: Any) -> None:
    memory.pipe("/frames/country=de/part-0.feather", arrow())
    memory.pipe("/frames/country=fr/part-0.arrows", arrow(of_stream=True) * 2)
    answer = streameval.compare("memory://frames", candidates=["challenger"], segments=["country"])
    found = {row.segment_value: row.events for row in answer.report.segments if row.policy == "challenger"}
    assert (found["de"], found["fr"]) == (COUNT, 2 * COUNT)


def test_columns_that_are_not_read_are_not_sent(tmp_path: Path) -> None:
    wide = table(20_000).append_column("other", pa.array([str(number) * 50 for number in range(20_000)]))
    pq.write_table(wide, tmp_path / "log.parquet", compression="none", use_dictionary=False)
    handler = partial(Files, directory=str(tmp_path))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        server.sent = 0  # type: ignore[attr-defined]
        assert count_events(f"http://127.0.0.1:{server.server_port}/log.parquet") == 20_000
        assert server.sent < (tmp_path / "log.parquet").stat().st_size / 3  # type: ignore[attr-defined]


def test_a_restart_continues_in_the_file(web: str, tmp_path: Path) -> None:
    (tmp_path / "log.ndjson").write_bytes(b"".join(LINES))
    settings = FileSettings(path=[f"{web}/log.ndjson"])
    first = settings.open()
    lines = [value for records in first.poll(1.0) for value in records.values]
    offsets = first.offsets()
    first.close()
    assert 0 < len(lines) < COUNT
    assert lines + drained(settings.open(offsets)) == [line.strip() for line in LINES]
    (tmp_path / "log.ndjson").write_bytes(b"".join(reversed(LINES)))
    assert len(drained(settings.open(offsets))) == COUNT  # another file


def test_a_server_that_goes_away_is_named_in_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "log.ndjson").write_bytes(b"".join(LINES))
    served = _served(tmp_path, Files)
    source = FileSettings(path=[f"{next(served)}/log.ndjson"]).open()
    source.poll(1.0)
    served.close()
    with pytest.raises(InputError, match=r"log\.ndjson (cannot be read|does not exist)"):
        source.offsets()
    source.close()


@pytest.mark.parametrize("newer", [LINES[: COUNT // 2], LINES[::-1]], ids=["shorter", "as long"])
def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path, newer: list[bytes]) -> None:
    (tmp_path / "log.ndjson").write_bytes(b"".join(LINES))
    with contextmanager(_served)(tmp_path, Files) as url:
        source = FileSettings(path=[f"{url}/log.ndjson"]).open()
        assert 0 < sum(map(len, source.poll(1.0))) < COUNT
        (tmp_path / "log.ndjson").write_bytes(b"".join(newer))
        os.utime(tmp_path / "log.ndjson", (0, 0))
        with pytest.raises(InputError, match=r"log\.ndjson .*the file was replaced while it was read"):
            drained(source)
        source.close()


class Listed(MemoryFileSystem):
    """Answer from what was seen before until it is invalidated, as the drivers of object stores do."""

    protocol = "listed"
    known: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("listed:/")))

    def info(self, path: str, **options: Any) -> Any:
        return self.known.setdefault(path, super().info(path, **options))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.known.clear()


def test_a_file_that_was_listed_before_it_is_replaced_is_refused(memory: Any) -> None:
    fsspec.register_implementation("listed", Listed, clobber=True)
    memory.pipe("/logs/1.ndjson", b"".join(LINES))
    source = FileSettings(path=["listed://logs/*.ndjson"]).open()
    assert 0 < sum(map(len, source.poll(1.0))) < COUNT
    memory.pipe("/logs/1.ndjson", b"".join(LINES[::-1]))
    with pytest.raises(InputError, match=r"1\.ndjson .*the file was replaced while it was read"):
        drained(source)
    source.close()


def test_a_table_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_bytes(parquet(row_group_size=100))
    with contextmanager(_served)(tmp_path, Files) as url:
        batches = streameval.read_events(f"{url}/log.parquet", policies=["challenger"], batch_size=100)
        next(batches)
        (tmp_path / "log.parquet").write_bytes(parquet(row_group_size=100))
        os.utime(tmp_path / "log.parquet", (0, 0))
        with pytest.raises(InputError, match=r"log\.parquet cannot be used: the file was replaced"):
            list(batches)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("missing.csv", "does not exist", "check the address"),
        ("secret.csv", "no permission to read", "credentials"),
        ("broken.csv", "cannot be read: the server answers with 500", "network"),
        ("*.csv", "no file matches", "pattern"),
    ],
)
def test_refusals_are_told_apart(web: str, name: str, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        count_events(f"{web}/{name}")
    assert hint in error.value.hint
    assert name in error.value.message


@pytest.mark.parametrize("name", ["missing.csv", "secret.csv", "broken.csv", "log.parquet", "*.csv"])
def test_the_query_of_a_signed_address_is_not_shown(
    web: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    shown = command(capfd, "replay", f"{web}/{name}?sv=1&sig=s3cret%2F", "--candidates", "challenger")
    assert shown.code == 2
    assert f"{name}?***" in shown.err
    assert "s3cret" not in shown.err + shown.out
    settings = FileSettings(path=[f"{web}/log?sig=s3cret"])
    assert (settings.name, settings.description) == ("log", f"file, {web}/log?***")


def test_a_server_that_does_not_answer_is_no_missing_file() -> None:
    with pytest.raises(InputError, match=r"log.csv cannot be read: .*Connect"):
        count_events("http://127.0.0.1:1/log.csv")


@pytest.mark.parametrize(
    ("address", "hint"),
    [("gs://bucket/log.csv", "pip install 'streameval[cloud]' gcsfs"), ("gopher://x/log.csv", "addresses start with")],
)
def test_a_missing_driver_is_named(address: str, hint: str) -> None:
    with pytest.raises(InputError, match=address.partition(":")[0]) as error:
        count_events(address)
    assert hint in error.value.hint


def test_without_fsspec_the_extra_is_named() -> None:
    with (
        patch.dict(sys.modules, {"fsspec": None, "fsspec.core": None}),
        pytest.raises(InputError, match="needs fsspec") as error,
    ):
        count_events("s3://bucket/log.csv")
    assert error.value.hint == "pip install 'streameval[cloud]'"


def test_a_folder_of_parquet_files_is_no_source_of_lines(memory: Any) -> None:
    memory.pipe("/logs/1.parquet", parquet())
    with pytest.raises(InputError, match=r"memory://logs/1.parquet is Parquet"):
        FileSettings(path=["memory://logs"]).open()


def test_an_object_store_is_read_with_its_own_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of S3 in this process; keys and address come from the environment, as for other programs."""
    boto3, server_of = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    get_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="fsspecIO"))
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        store = boto3.client("s3")
        store.create_bucket(Bucket="logs")
        for name, content in {
            "day=1/part-0.parquet": parquet(),
            "day=2/part-0.parquet": parquet(),
            "day=2/_SUCCESS": b"",
            "lines/1.ndjson.gz": gzip.compress(b"".join(LINES)),
        }.items():
            store.put_object(Bucket="logs", Key=name, Body=content)
        assert count_events("s3://logs/day=*/*.parquet") == 2 * COUNT
        assert count_events("s3://logs/day=2") == COUNT
        source = FileSettings(path=["s3://logs/lines/*"]).open()
        assert len(drained(source)) == COUNT
        (position,) = source.offsets().values()
        assert json.loads(position.identity or "")["compressed"]
        with pytest.raises(InputError, match="does not exist"):
            count_events("s3://logs/day=3/part-0.parquet")
        with pytest.raises(InputError, match="no file matches"):
            count_events("s3://logs/day=3/*")
    finally:
        server.stop()


def test_commands_take_addresses(web: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pq.write_table(table(), tmp_path / "log.parquet")
    (tmp_path / "log.ndjson").write_bytes(b"".join(LINES))
    scores = [
        json.dumps({"event_id": str(number), "timestamp": number, "policies": {"late": 0.5}}) for number in range(COUNT)
    ]
    (tmp_path / "scores.ndjson").write_text("\n".join(scores))
    replayed = command(capfd, "replay", f"{web}/log.parquet", "--candidates", "challenger", "--json")
    assert json.loads(replayed.out)["events"]["accepted"] == COUNT
    both = [f"{web}/log.ndjson", "--candidates", "late", "--json", "--scores", f"{web}/scores.ndjson"]
    assert json.loads(command(capfd, "replay", *both).out)["events"]["accepted"] == COUNT
    assert "challenger" in command(capfd, "plan", f"{web}/log.parquet", "--candidates", "challenger").out
    checked = command(capfd, "check", "--propensities", f"{web}/log.parquet", "--candidates", "challenger")
    assert "log.parquet" not in checked.err
    assert command(capfd, "replay", f"{web}/secret.csv", "--candidates", "challenger").code == 2
