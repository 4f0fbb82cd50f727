"""Write the whole state with its offsets to a file that is complete or absent, and read the newest one.

A file is one zstd frame with its checksum around a msgpack document. The last three files are kept. One process owns
the directory.
"""

from __future__ import annotations

import errno
import fcntl
import io
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
import structlog
import zstandard

from streameval.common.arrays import State, from_plain, to_plain
from streameval.errors import DamagedError, StateError, StreamevalError
from streameval.events.origin import NO_IDENTITY
from streameval.ingest.base import Offsets
from streameval.ingest.stages import RewardRepeats
from streameval.service.status import NO_HISTORY, History, SnapshotStatus

__all__ = ["Snapshot", "SnapshotStore", "complete_file", "read_newest", "read_snapshot", "require_usable"]
__all__ += ["snapshot_files", "write_snapshot"]

MAX_SNAPSHOTS = 3
SUFFIX, DAMAGED, BEFORE_RESET, WRITING = ".snapshot", ".damaged", ".before-reset", ".writing"
FIRST_SCHEMA = 13
"""The oldest layout that can be read."""
OLD_FORMAT = b"streameval snapshot 1\n"
"""First bytes of the files of development versions."""
PROCESS_ID_BYTES = 20
WRONG_CONTENT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""Errors of restoring a snapshot with other keys, types or values than this version writes."""
OLDER = "use an older snapshot"
WAYS_OUT = "--reset starts from zero and sets the old snapshots aside; another state.dir keeps both"

LOST = (
    "every snapshot is damaged: all numbers start from zero, and the source is read from its configured start; "
    "with `start: latest`, events since the last snapshot are not counted"
)

T = TypeVar("T")

log = structlog.get_logger("streameval.snapshots")


def _with_ids_of_rewards(document: State) -> State:
    """Add the ids of rewards that wait, which have none, and the counts of repeated ones."""
    order = document["pipeline"].get("order", {})
    rewards = order.get("rewards")
    if rewards is None:
        return document
    waiting = from_plain(rewards["waiting"]["runs"])
    runs = [run | {"reward_id": np.full(len(run["identity"]), NO_IDENTITY)} for run in waiting]
    more = {"waiting": {"runs": to_plain(runs)}, "repeats": asdict(RewardRepeats())}
    return document | {"pipeline": document["pipeline"] | {"order": order | {"rewards": rewards | more}}}


MIGRATIONS: list[Callable[[State], State]] = [_with_ids_of_rewards]
"""Number n takes a document from schema `FIRST_SCHEMA + n` to the next. None is ever removed."""
SCHEMA = FIRST_SCHEMA + len(MIGRATIONS)


class Snapshot(msgspec.Struct, kw_only=True):
    """Hold a state and where to continue reading.

    Args:
        schema: Number of this layout.
        version: Version of streameval that wrote the snapshot.
        written: Time at which the state was taken, in epoch seconds.
        fingerprint: Settings that must not differ when the state is resumed.
        decisions: Messages about decisions that are not confirmed.
        offsets: Offsets of the next messages, by topic.
        pipeline: State of the stages before the evaluator.
        evaluator: State of the evaluator.
        history: Estimates and decisions of the last hours.
    """

    schema: int = SCHEMA
    version: str
    written: float
    fingerprint: dict[str, Any]
    decisions: list[State]
    offsets: dict[str, State]
    pipeline: State
    evaluator: State
    history: State = {}

    @property
    def source_offsets(self) -> dict[str, Offsets]:
        """Return where to continue reading each topic.

        Raises:
            ValueError: There are no offsets, or impossible ones. All events would count again.
        """
        offsets = {topic: Offsets.from_state(state) for topic, state in self.offsets.items()}
        if not any(log.positions for log in offsets.values()):
            raise ValueError("expected the offsets of a log, found none")
        return offsets


def write_snapshot(file: BinaryIO, snapshot: object) -> None:
    """Write a snapshot.

    Encoding holds the interpreter for about 80 ms per 100 MB. Compression and the disk let other threads run.

    Raises:
        OSError: The file cannot be written.
    """
    content = msgspec.msgpack.encode(snapshot)
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    compressor.copy_stream(io.BytesIO(content), file, size=len(content))


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot of this version, or of an earlier one from `FIRST_SCHEMA` on.

    Raises:
        DamagedError: The content differs from what was written, or lacks a part.
        StateError: Another version wrote the file.
    """
    frame = path.read_bytes()
    if frame.startswith(OLD_FORMAT):
        raise StateError(f"{path} was written by an older development version", hint=f"start from zero: {WAYS_OUT}")
    if not frame.startswith(zstandard.FRAME_HEADER):
        raise DamagedError("it is not a snapshot", hint=OLDER)
    try:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        content = decompressor.decompress(frame)
        if not decompressor.eof or decompressor.unused_data:
            raise DamagedError("it is not one complete zstd frame", hint=OLDER)
        document = msgspec.msgpack.decode(content, type=dict[str, Any])
        schema = document.get("schema")
        if not isinstance(schema, int) or not FIRST_SCHEMA <= schema <= SCHEMA:
            raise StateError(
                f"{path} has schema {schema}, this version reads {SCHEMA}, and earlier ones from {FIRST_SCHEMA} on",
                hint=f"use the version that wrote it, or start from zero: {WAYS_OUT}",
            )
        for migrate in MIGRATIONS[schema - FIRST_SCHEMA :]:
            document = migrate(document)
        return msgspec.convert(document | {"schema": SCHEMA}, Snapshot)
    except (zstandard.ZstdError, *WRONG_CONTENT) as error:
        raise DamagedError(f"wrong content: {error}", hint=OLDER) from error


def snapshot_files(directory: Path, suffix: str = SUFFIX) -> list[Path]:
    """Return the snapshots of a directory, oldest first."""
    return sorted(path for path in directory.glob(f"*{suffix}") if re.fullmatch(r"\d{12}", path.stem))


def read_newest(directory: Path, read: Callable[[Path, Snapshot], T]) -> tuple[T | None, dict[Path, Exception]]:
    """Return `read` of the newest complete snapshot, None without one, and the damaged snapshots with their errors.

    A snapshot with content that `read` cannot restore counts as damaged only if an older one can be restored.
    Otherwise the error may be in this program.

    Raises:
        StateError: No snapshot can be restored, or another version wrote it.
        StreamevalError: A snapshot cannot be read from the disk.
    """
    damaged: dict[Path, Exception] = {}
    for path in reversed(snapshot_files(directory)):
        try:
            return read(path, read_snapshot(path)), damaged
        except (DamagedError, *WRONG_CONTENT) as error:
            damaged[path] = error
        except OSError as error:
            hint = "check its permissions and the disk; without this file, the snapshot before it is used"
            raise StreamevalError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    for path, cause in damaged.items():
        if not isinstance(cause, DamagedError):
            raise StateError(
                f"no snapshot in {directory} can be restored; {path.name}: {type(cause).__name__}: {cause}",
                hint=f"{WAYS_OUT}; if this version wrote them, please report it",
            ) from cause
    return None, damaged


@contextmanager
def complete_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file that is complete or absent, and on disk at the end. A file with this name is replaced.

    Args:
        path: The file.
        mode: Permissions, less the ones that the umask refuses.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = path.with_name(f"{path.name}{WRITING}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    unfinished.unlink(missing_ok=True)  # a leftover of a killed process, perhaps with other permissions
    try:
        with open(os.open(unfinished, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class SnapshotStore:
    """Own a directory of snapshots, which is locked until `close` or the end of the process.

    A thread writes one snapshot at a time. The daemon continues if one fails.

    Args:
        directory: Directory of the snapshots.
        interval: Seconds between two snapshots.
        fingerprint: Settings that must not differ when the state is resumed.

    Attributes:
        status: Status of the snapshots, which any thread may read.
        history: Estimates of the last hours in the newest snapshot when the process started.
        after: Called by the writing thread with each snapshot that is on disk.

    Raises:
        StateError: Another process has locked the directory.
        StreamevalError: The directory cannot be written to.
    """

    def __init__(self, directory: Path, interval: float = 0.0, fingerprint: State | None = None) -> None:
        self.directory, self.fingerprint, self._interval = directory, fingerprint or {}, interval
        self.status, self.history = SnapshotStatus(), NO_HISTORY
        self.after: Callable[[Snapshot], None] = lambda _: None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(directory / "lock")
            for leftover in directory.glob(f"*{WRITING}"):  # of a process that was killed
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(directory, error) from error
        self._due, self._is_reset = -math.inf, False
        self._thread = ThreadPoolExecutor(1, "streameval-snapshot")
        self._writing: Future[None] = Future()
        self._writing.set_result(None)

    def newest(self, read: Callable[[Path, Snapshot], T]) -> T | None:
        """Return `read` of the newest complete snapshot. Damaged ones are renamed, with a warning in the log.

        Raises:
            StateError: No snapshot can be restored, or another version wrote it.
            StreamevalError: A snapshot cannot be read from the disk.
        """

        def read_and_note(path: Path, snapshot: Snapshot) -> T:
            result = read(path, snapshot)
            self.status = replace(self.status, written_at=snapshot.written)
            self.history = History.from_state(snapshot.history)
            return result

        result, damaged = read_newest(self.directory, read_and_note)
        for path, error in damaged.items():
            kind = "" if isinstance(error, DamagedError) else f"wrong content, {type(error).__name__}: "
            reason = f"{kind}{error}"
            aside = path.with_suffix(DAMAGED)
            try:
                path.rename(aside)
                self._prune(DAMAGED)
                log.warning("snapshot_damaged", path=str(path), reason=reason, set_aside_as=str(aside))
            except OSError as failure:  # it stays, and later snapshots get other names
                log.warning("snapshot_damaged", path=str(path), reason=reason, not_set_aside=failure.strerror)
        self.status = replace(self.status, damaged=len(damaged))
        if result is None and not self._is_reset and snapshot_files(self.directory, DAMAGED):  # at every start
            log.error("state_lost", reason=LOST, directory=str(self.directory), damaged=len(damaged))
        return result

    def set_aside(self) -> None:
        """Rename all snapshots, so that they are not read again.

        Raises:
            StreamevalError: A snapshot cannot be renamed.
        """
        self._is_reset = True
        try:
            for path in reversed(snapshot_files(self.directory)):  # if one fails, the oldest stay
                path.rename(path.with_suffix(BEFORE_RESET))
            self._prune(BEFORE_RESET)
        except OSError as error:
            raise _unusable(self.directory, error) from error

    def write(self, snapshot: object) -> Path:
        """Write a snapshot, and return when it is on disk. Older snapshots are deleted if the disk is full.

        Raises:
            OSError: Writing fails. The newest snapshot before it stays.
            StateError: The directory was replaced by one that another process has locked.
        """
        self._keep_locked()
        path = self._unused_path()
        try:
            self._write(path, snapshot)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._make_room():
                raise
            self._write(path, snapshot)
        return path

    def maybe_write(self, take: Callable[[], Snapshot | None]) -> None:
        """Start to write a snapshot if the interval is over and none is being written.

        Args:
            take: Returns a snapshot that does not change any more, or None if there is nothing to write yet.
        """
        if self._writing.done():
            self._writing.result()  # raises what went wrong inside the program
            if time.monotonic() >= self._due:
                self._start(take)

    def write_last(self, take: Callable[[], Snapshot | None]) -> None:
        """Write a last snapshot after the one that is being written, and wait for it."""
        self._writing.result()
        self._start(take)
        self._writing.result()

    def close(self) -> None:
        """Unlock the directory when no snapshot is being written any more."""
        self._thread.shutdown()
        os.close(self._lock)

    def _start(self, take: Callable[[], Snapshot | None]) -> None:
        try:
            snapshot = take()
        except StateError as error:  # a part of the state cannot be saved
            self._due = time.monotonic() + self._interval
            self._fail(error)
            return
        if snapshot is not None:
            self._due = time.monotonic() + self._interval
            self._writing = self._thread.submit(self._write_and_count, snapshot)

    def _write_and_count(self, snapshot: Snapshot) -> None:
        started = time.perf_counter()
        try:
            path = self.write(snapshot)
        except (OSError, MemoryError, StateError) as error:
            self._fail(error)
            return
        seconds = time.perf_counter() - started
        durations = self.status.durations.add(np.array([seconds]))
        self.status = replace(self.status, written_at=snapshot.written, durations=durations)
        log.debug("snapshot_written", path=str(path), seconds=round(seconds, 3))
        self.after(snapshot)

    def _fail(self, error: OSError | MemoryError | StateError) -> None:
        self.status = replace(self.status, failures=self.status.failures + 1)
        reason = getattr(error, "strerror", None) or str(error)
        log.error("snapshot_failed", directory=str(self.directory), reason=reason, failures=self.status.failures)

    def _write(self, path: Path, snapshot: object) -> None:
        with complete_file(path, mode=0o600) as file:  # it can hold contexts of events
            write_snapshot(file, snapshot)
        self._prune(SUFFIX)

    def _make_room(self) -> bool:
        """Delete damaged snapshots and all but the newest one. Return False if there are none."""
        count = self._prune(DAMAGED, keep=0) + self._prune(SUFFIX, keep=1)
        if count:
            log.warning("snapshots_deleted", reason="the disk is full", directory=str(self.directory), count=count)
        return count > 0

    def _keep_locked(self) -> None:
        """Lock the directory again if it was deleted or replaced. Another process may have locked the new one."""
        path = self.directory / "lock"
        try:
            if os.path.samestat(os.fstat(self._lock), os.lstat(path)):
                return
        except FileNotFoundError:
            reason = "it was deleted while the daemon ran, with all snapshots; the next snapshot recreates it"
            log.warning("state_directory_missing", directory=str(self.directory), reason=reason)
            self.directory.mkdir(parents=True, exist_ok=True)
        before, self._lock = self._lock, _lock(path)
        os.close(before)

    def _unused_path(self) -> Path:
        """Return a name after all others, so that no snapshot ever has the name of one that was set aside."""
        paths = [path for suffix in (SUFFIX, DAMAGED, BEFORE_RESET) for path in snapshot_files(self.directory, suffix)]
        return self.directory / f"{max((int(path.stem) for path in paths), default=0) + 1:012d}{SUFFIX}"

    def _prune(self, suffix: str, keep: int = MAX_SNAPSHOTS) -> int:
        """Delete all but the newest files with a suffix, and return how many were deleted."""
        paths = snapshot_files(self.directory, suffix)
        old = paths[: max(0, len(paths) - keep)]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


def require_usable(directory: Path) -> None:
    """Check that a `SnapshotStore` can use a directory, and create nothing.

    Raises:
        StateError: Another process has locked the directory.
        StreamevalError: The directory cannot be written to.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    lock = directory / "lock"
    try:
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"{existing} is not a directory that this user may write to")
        if lock.exists():
            os.close(_lock(lock))
    except OSError as error:
        raise _unusable(directory, error) from error


def _unusable(directory: Path, error: OSError) -> StreamevalError:
    hint = "state.dir must be a directory that streameval may write to; `state: off` keeps no state"
    return StreamevalError(f"{directory} cannot be used for snapshots: {error.strerror}", hint=hint)


def _lock(path: Path) -> int:
    """Lock a file, and return its descriptor. The lock ends with the process, however that ends.

    Links are not followed, and content other than a process id is not changed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    owner = os.pread(descriptor, PROCESS_ID_BYTES, 0).decode(errors="replace").strip()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise StateError(
            f"{path.parent} is in use by another streameval (process {owner or 'unknown'})",
            hint="stop that process, or give each daemon its own state.dir",
        ) from None
    if not owner or owner.isdecimal():
        with suppress(OSError):  # informational; a daemon must start again on a disk that is full
            os.pwrite(descriptor, f"{os.getpid():<{PROCESS_ID_BYTES - 1}}\n".encode(), 0)
    return descriptor
