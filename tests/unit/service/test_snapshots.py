"""Write snapshots that are complete or absent, and read the newest one, without holding up the loop."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from structlog.testing import capture_logs

import streameval as se
from streameval.errors import DamagedError, StateError, StreamevalError
from streameval.ingest.stages import RewardRepeats
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.snapshots import (
    DAMAGED,
    SUFFIX,
    WRITING,
    Snapshot,
    SnapshotStore,
    read_snapshot,
    snapshot_files,
)
from support.arrivals import Arrival, batch_of, through_a_file
from support.disk import STEPS, observed_calls
from support.factories import wait_until
from support.rewards import Earned, fresh, rewards_of
from support.snapshots import make_snapshot


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "state")


def numbers(snapshots: SnapshotStore, suffix: str = SUFFIX) -> list[int]:
    return [int(path.stem) for path in snapshot_files(snapshots.directory, suffix)]


def newest(snapshots: SnapshotStore) -> Any:
    """Return the number in the newest snapshot."""
    return snapshots.newest(lambda _, snapshot: snapshot.evaluator["number"])


def test_the_newest_of_several_is_read_and_the_last_three_are_kept(snapshots: SnapshotStore) -> None:
    assert newest(snapshots) is None
    for number in range(1, 6):
        snapshots.write(make_snapshot(number))
        assert newest(snapshots) == number
    assert numbers(snapshots) == [3, 4, 5]


def test_numbers_continue_after_a_restart(snapshots: SnapshotStore) -> None:
    snapshots.write(make_snapshot(1))
    snapshots.close()
    again = SnapshotStore(snapshots.directory)
    again.write(make_snapshot(2))
    assert numbers(again) == [1, 2]
    assert newest(again) == 2


def torn(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def compressed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


DAMAGES = {
    "torn": torn,
    "flipped": flipped,
    "empty": lambda _: b"",
    "one byte short": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\x00",
    "zeros, as after a power cut": lambda content: bytes(len(content)),
    "only its start": lambda content: content[:20],
    "not compressed": lambda _: b"no zstd",
    "no msgpack": lambda _: compressed(b"\xc1"),
    "no table": lambda _: compressed(b"\x07"),
    "an empty frame": lambda _: compressed(b""),
    "a text that is not UTF-8": lambda _: compressed(b"\x81\xa1a\xa1\xff"),
    "a list of four billion entries": lambda _: compressed(b"\x81\xa1a\xdd\xff\xff\xff\xff"),
    "a list in a list, 100,000 times": lambda _: compressed(b"\x81\xa1a" + b"\x91" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_set_aside_and_the_one_before_is_used(snapshots: SnapshotStore, damage: str) -> None:
    snapshots.write(make_snapshot(1))
    path = snapshots.write(make_snapshot(2))
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with capture_logs() as logs:
        assert newest(snapshots) == 1
    assert [entry["event"] for entry in logs] == ["snapshot_damaged"]
    assert logs[0]["set_aside_as"] == str(path.with_suffix(DAMAGED))
    assert numbers(snapshots) == [1]
    snapshots.close()
    again = SnapshotStore(snapshots.directory)
    again.write(make_snapshot(3))
    assert numbers(again) == [1, 3], "no number is used twice"


def test_when_all_are_damaged_there_is_none(snapshots: SnapshotStore) -> None:
    for number in range(3):
        path = snapshots.write(make_snapshot(number))
        path.write_bytes(torn(path.read_bytes()))
    assert newest(snapshots) is None
    assert len(numbers(snapshots, DAMAGED)) == 3


def test_each_start_tells_that_the_state_is_lost_until_there_is_a_snapshot(tmp_path: Path) -> None:
    for damaged, lost in ((1, True), (0, True), (0, False)):
        with closing(SnapshotStore(tmp_path / "again")) as store, capture_logs() as logs:
            if damaged:
                path = store.write(make_snapshot(1))
                path.write_bytes(torn(path.read_bytes()))
            elif not lost:
                store.write(make_snapshot(2))
            newest(store)
        assert ("state_lost" in [entry["event"] for entry in logs]) == lost


def test_a_reset_is_not_a_lost_state(snapshots: SnapshotStore) -> None:
    path = snapshots.write(make_snapshot(1))
    path.write_bytes(torn(path.read_bytes()))
    newest(snapshots)
    snapshots.set_aside()
    with capture_logs() as logs:
        assert newest(snapshots) is None
    assert logs == []


def test_no_changed_bit_goes_unnoticed(snapshots: SnapshotStore) -> None:
    path = snapshots.write(make_snapshot(1))
    content, expected = path.read_bytes(), read_snapshot(path)
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with suppress(DamagedError):
            assert read_snapshot(path) == expected, "some bits of the header have no effect"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (compressed(msgspec.msgpack.encode({"schema": 99})), "has schema 99, this version reads"),
        (b"streameval snapshot 1\n and more", "was written by an older development version"),
    ],
)
def test_a_file_of_another_version_stops_the_start_and_is_not_moved(
    snapshots: SnapshotStore, content: bytes, message: str
) -> None:
    path = snapshots.write(make_snapshot(1))
    path.write_bytes(content)
    with pytest.raises(StateError, match=message) as error:
        newest(snapshots)
    assert "--reset starts from zero" in error.value.hint
    assert numbers(snapshots) == [1]


def test_rewards_that_wait_in_a_snapshot_of_an_earlier_version_are_joined(snapshots: SnapshotStore) -> None:
    waiting = fresh("sum")
    waiting.take(rewards=[rewards_of([Earned(1.0, 0, number, "e-0") for number in range(2)])])
    before = through_a_file(waiting.state())
    del before["rewards"]["repeats"]
    for run in before["rewards"]["waiting"]["runs"]:
        del run["reward_id"]
    earlier = snapshots.write(make_snapshot(1, schema=13, pipeline={"order": before}))
    joining = fresh("sum")
    joining.restore(read_snapshot(earlier).pipeline["order"])
    joining.take(batch_of([Arrival(0.0, 0, 0, "e-0")]))
    assert joining.flush().reward.tolist() == [2.0]
    assert joining.buffered().repeats == RewardRepeats(suspicious=1)


def test_half_written_files_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    left = tmp_path / f"model.npz{WRITING}"
    left.write_bytes(bytes(100_000))
    SnapshotStore(tmp_path).close()
    assert not left.exists()


def test_a_half_written_file_of_a_killed_process_is_overwritten(snapshots: SnapshotStore) -> None:
    left = snapshots.directory / f"000000000001{SUFFIX}{WRITING}"
    left.write_bytes(bytes(100_000))
    left.chmod(0o666)
    assert newest(snapshots) is None
    path = snapshots.write(make_snapshot(1))
    assert path.stat().st_mode & 0o077 == 0
    assert newest(snapshots) == 1
    assert not left.exists()


def test_two_processes_cannot_have_one_directory(snapshots: SnapshotStore) -> None:
    with pytest.raises(StateError, match=f"in use by another streameval .process {os.getpid()}"):
        SnapshotStore(snapshots.directory)
    snapshots.close()
    SnapshotStore(snapshots.directory).close()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious, state = tmp_path / "precious", tmp_path / "state"
    precious.write_text("do not touch")
    state.mkdir()
    (state / "lock").symlink_to(precious)
    with pytest.raises(StreamevalError, match="cannot be used for snapshots"):
        SnapshotStore(state)
    (state / "lock").unlink()
    os.link(precious, state / "lock")
    SnapshotStore(state).close()
    assert precious.read_text() == "do not touch"


@pytest.mark.parametrize("is_locked", [True, False], ids=["locked by another daemon", "not locked"])
def test_a_directory_that_was_deleted_meanwhile_is_locked_again_before_a_write(tmp_path: Path, is_locked: bool) -> None:
    first = SnapshotStore(tmp_path / "state")
    first.write_last(lambda: make_snapshot(1))
    shutil.rmtree(tmp_path / "state")
    if is_locked:
        second = SnapshotStore(tmp_path / "state")
        second.write(make_snapshot(2))
    with capture_logs() as logs:
        first.write_last(lambda: make_snapshot(3))
    if not is_locked:
        assert [(entry["event"], entry["log_level"]) for entry in logs[:1]] == [("state_directory_missing", "warning")]
        assert "the next snapshot recreates it" in logs[0]["reason"]
        assert numbers(first) == [1]
    if is_locked:
        assert "in use by another streameval" in logs[0]["reason"]
        assert newest(second) == 2
        assert numbers(second) == [1]
        second.close()
        first.write_last(lambda: make_snapshot(4))
        assert numbers(first) == [1, 2], "no number is used twice"
    with pytest.raises(StateError, match="in use by another streameval"):
        SnapshotStore(tmp_path / "state")
    first.close()


def observe(patch: pytest.MonkeyPatch, reached: Callable[[str], None]) -> None:
    for name, call in observed_calls(reached).items():
        patch.setattr(os, name, call)


def test_on_a_full_disk_older_snapshots_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_while_many(at: str) -> None:
        if at == "opened" and len(snapshot_files(tmp_path)) + len(snapshot_files(tmp_path, DAMAGED)) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    snapshots = SnapshotStore(tmp_path)
    for number in range(4):
        path = snapshots.write(make_snapshot(number))
    path.write_bytes(b"")
    assert newest(snapshots) == 2
    observe(monkeypatch, fail_while_many)
    with capture_logs() as logs:
        snapshots.write(make_snapshot(4))
    assert numbers(snapshots) == [3, 5]
    assert numbers(snapshots, DAMAGED) == []
    assert [(entry["event"], entry["count"]) for entry in logs] == [("snapshots_deleted", 2)]


def test_a_disk_without_room_for_a_process_id_does_not_stop_the_start(
    snapshots: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.write(make_snapshot(1))
    snapshots.close()

    def full(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (snapshots.directory / "lock").write_bytes(b"")
    monkeypatch.setattr(os, "pwrite", full)
    store = SnapshotStore(snapshots.directory)
    assert newest(store) == 1
    with pytest.raises(StateError, match=r"in use by another streameval .process unknown"):
        SnapshotStore(snapshots.directory)
    store.close()


def test_a_directory_that_cannot_be_created_is_reported_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StreamevalError, match="cannot be used for snapshots") as error:
        SnapshotStore(tmp_path / "file" / "state")
    assert "state.dir" in error.value.hint


def test_a_reset_keeps_old_snapshots_under_other_names(snapshots: SnapshotStore) -> None:
    snapshots.write(make_snapshot(1))
    snapshots.set_aside()
    assert newest(snapshots) is None
    snapshots.write(make_snapshot(2))
    assert newest(snapshots) == 2
    assert numbers(snapshots) == [2]


def nothing_can_be_renamed(_path: Path, _target: Path) -> Path:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_damaged_snapshot_that_cannot_be_renamed_is_skipped_with_a_warning(
    snapshots: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.write(make_snapshot(1))
    path = snapshots.write(make_snapshot(2))
    path.write_bytes(torn(path.read_bytes()))
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Path, "rename", nothing_can_be_renamed)
        assert newest(snapshots) == 1
    assert [(entry["event"], entry["not_set_aside"]) for entry in logs] == [("snapshot_damaged", "Permission denied")]
    snapshots.write(make_snapshot(3))
    assert numbers(snapshots) == [1, 2, 3]
    assert newest(snapshots) == 3


def test_snapshots_that_cannot_be_set_aside_stop_a_reset(
    snapshots: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.write(make_snapshot(1))
    monkeypatch.setattr(Path, "rename", nothing_can_be_renamed)
    with pytest.raises(StreamevalError, match="cannot be used for snapshots: Permission denied") as error:
        snapshots.set_aside()
    assert "state.dir" in error.value.hint


def test_a_snapshot_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    store = SnapshotStore(tmp_path)
    for number in range(3):
        store.write(make_snapshot(number))
    observe(monkeypatch, order.append)
    store.write(make_snapshot(3))
    assert tuple(order) == STEPS


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_write_that_fails_at_any_step_leaves_the_snapshot_before_and_no_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(at: str) -> None:
        if at == step:
            raise OSError(28, "No space left on device")

    snapshots = SnapshotStore(tmp_path)
    snapshots.write(make_snapshot(1))
    with monkeypatch.context() as patch:
        observe(patch, fail)
        with pytest.raises(OSError, match="No space"):
            snapshots.write(make_snapshot(2))
    assert newest(snapshots) in ((1, 2) if step == "renamed" else (1,))
    assert list(snapshots.directory.glob(f"*{WRITING}")) == []
    snapshots.write(make_snapshot(3))
    assert newest(snapshots) == 3


def test_a_quota_of_the_file_system_leaves_the_snapshot_before(snapshots: SnapshotStore) -> None:
    snapshots.write(make_snapshot(1))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = make_snapshot(2, pipeline={"noise": os.urandom(1_000_000)})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        with pytest.raises(OSError, match="File too large"):
            snapshots.write(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert newest(snapshots) == 1
    assert not list(snapshots.directory.glob(f"*{WRITING}"))
    assert snapshots.write(make_snapshot(3)).name == "000000000002.snapshot"
    assert newest(snapshots) == 3


class Filled(SnapshotStore):
    """Fail as on a disk that is full for a while."""

    full = True

    def write(self, document: Any) -> Path:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(document)


def test_a_failed_write_is_counted_and_logged_and_the_next_interval_tries_again(tmp_path: Path) -> None:
    snapshots = Filled(tmp_path)
    kept: list[Snapshot] = []
    snapshots.after = kept.append
    with capture_logs() as logs:
        for _ in range(3):
            snapshots.write_last(lambda: make_snapshot(1))
        assert [entry["event"] for entry in logs] == ["snapshot_failed"] * 3
        assert (kept, snapshots.status.written_at, snapshots.status.failures) == ([], None, 3)
        snapshots.full = False
        snapshots.write_last(lambda: make_snapshot(2, written=50.0))
    snapshots.close()
    assert [(snapshot.evaluator["number"], snapshot.written) for snapshot in kept] == [(2, 50.0)]
    assert snapshots.status.written_at == 50.0
    assert snapshots.status.durations.count == 1
    assert numbers(snapshots) == [1]


def test_one_snapshot_is_written_at_a_time_and_not_before_its_interval(tmp_path: Path) -> None:
    at_once, at_work, made = 0, 0, 0
    released = threading.Event()

    class Slow(SnapshotStore):
        def write(self, document: Any) -> Path:
            nonlocal at_once, at_work
            at_work += 1
            at_once = max(at_once, at_work)
            released.wait(60.0)
            at_work -= 1
            return super().write(document)

    def take() -> Snapshot:
        nonlocal made
        made += 1
        return make_snapshot(made)

    writer = Slow(tmp_path)
    for _ in range(100):
        writer.maybe_write(take)
    wait_until(lambda: at_once == 1)
    assert (at_once, made) == (1, 1), "no state is taken while the last one is being written"
    released.set()
    wait_until(lambda: writer.status.written_at is not None)
    writer.maybe_write(take)
    writer.close()
    assert (at_once, made) == (1, 2)


def test_the_first_snapshot_is_written_at_once_and_the_next_after_the_interval(tmp_path: Path) -> None:
    asked = []

    def take(snapshot: Snapshot | None) -> Snapshot | None:
        asked.append(snapshot)
        return snapshot

    writer = SnapshotStore(tmp_path, interval=3600.0)
    first, second = make_snapshot(1), make_snapshot(2)
    for snapshot in (None, None, first, second):
        writer.maybe_write(lambda snapshot=snapshot: take(snapshot))
        time.sleep(0.05)
    writer.write_last(lambda: None)
    assert asked == [None, None, first]
    assert writer.status.durations.count == 1
    writer.close()


def test_a_bug_in_writing_is_not_swallowed(tmp_path: Path) -> None:
    writer = SnapshotStore(tmp_path)
    with pytest.raises(TypeError):
        writer.write_last(lambda: make_snapshot(pipeline={"a": object()}))
    writer.close()


def test_a_taken_state_does_not_change_while_it_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    changing = Evaluator.from_config(
        se.Evaluator(["a"], [se.IPS()], [se.Window(tau=1_000, resolution=1)], drift=None).config
    )
    released, kept = threading.Event(), []

    class Slow(SnapshotStore):
        def write(self, document: Any) -> Path:
            released.wait(10.0)
            return super().write(document)

    def batch() -> se.EventBatch:
        policies = {"a": rng.random(1_500)}
        return se.EventBatch.from_arrays(reward=rng.random(1_500), propensity=np.ones(1_500), policies=policies)

    writer = Slow(tmp_path)
    for _ in range(3):
        changing.update(batch())
        released.clear()
        writer.maybe_write(lambda: make_snapshot(evaluator=changing.state()))
        kept.append(msgspec.msgpack.encode(changing.state()))
        changing.update(batch())
        released.set()
        written = len(kept)
        wait_until(lambda written=written: writer.status.durations.count == written)
    writer.close()
    written = [read_snapshot(path).evaluator for path in snapshot_files(tmp_path)]
    assert [msgspec.msgpack.encode(state) for state in written] == kept
    assert len(set(kept)) == 3


def test_a_snapshot_may_be_read_by_its_owner_only(snapshots: SnapshotStore) -> None:
    assert snapshots.write(make_snapshot(1)).stat().st_mode & 0o077 == 0


def test_only_files_of_streameval_are_read_as_snapshots(snapshots: SnapshotStore) -> None:
    for name in ("notes.snapshot", "000000000009.snapshot.bak", "42.snapshot"):
        (snapshots.directory / name).write_bytes(io.BytesIO(b"mine").getvalue())
    assert newest(snapshots) is None
    assert len(list(snapshots.directory.glob("*"))) == 4
