"""Snapshots: the whole state with its offsets in one file, written whole or not at all; the last three are kept.

A file is one msgpack document, compressed, between a first line and a checksum. One process owns the directory.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

import msgspec
import numpy as np
import structlog
import zstandard

from streameval.common.arrays import State, require_fit
from streameval.errors import DamagedError, StateError, StreamevalError
from streameval.ingest.background import Background
from streameval.service.status import SnapshotStatus

__all__ = ["NoSnapshots", "SnapshotStore", "SnapshotWriter", "found_in", "newest_whole"]
__all__ += ["read_document", "require_document", "require_usable"]

KEPT_SNAPSHOTS = 3
SUFFIX, DAMAGED, BEFORE_RESET, WRITING = ".snapshot", ".damaged", ".before-reset", ".writing"
STEPS = ("taken", "opened", "header_written", "written", "synced", "renamed", "directory_synced", "pruned", "committed")
"""Steps of a snapshot, in order. A process may end between any two of them, and resumes from a whole snapshot."""
MAGIC = b"streameval snapshot"
FORMAT = b" 1\n"
CHECKSUM = 32
"""Bytes of the BLAKE2b at the end, over everything before it."""
COMPRESSED_AT_ONCE = 1 << 20
OWNER = 20
"""Bytes of the number of the process in the file `lock`."""
UNREADABLE = (zstandard.ZstdError, msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors of unpacking and decoding a body that `write_document` did not write."""
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
"""Errors of reading a document with other keys, types or values than those of a snapshot."""
OLDER = "use an older snapshot"
SCHEMA = 13
PARTS: State = {
    "version": "",
    "written": 0.0,
    "fingerprint": {},
    "decisions": [],
    "offsets": {},
    "pipeline": {},
    "evaluator": {},
}
"""Parts of a document with this schema."""
WAYS_OUT = "--reset starts from zero and sets the old snapshots aside; another state.dir keeps both"

T = TypeVar("T")

log = structlog.get_logger("streameval.snapshots")


def write_document(file: BinaryIO, document: State, header_written: Callable[[], None] = lambda: None) -> None:
    """Write a plain value. `header_written` is called after the first line.

    Encoding holds the interpreter for about 80 ms per 100 MB; compression, checksum and the disk let others run.

    Raises:
        OSError: The file cannot take it.
    """
    checksum, compressor = blake2b(digest_size=CHECKSUM), zstandard.ZstdCompressor(level=1).compressobj()

    def put(data: bytes) -> None:
        checksum.update(data)
        file.write(data)

    put(MAGIC + FORMAT)
    header_written()
    content = memoryview(msgspec.msgpack.encode(document))
    for first in range(0, len(content), COMPRESSED_AT_ONCE):
        put(compressor.compress(content[first : first + COMPRESSED_AT_ONCE]))
    put(compressor.flush())
    file.write(checksum.digest())


def read_document(path: Path) -> State:
    """The document that `write_document` wrote.

    Raises:
        DamagedError: The content is not what was written.
        StateError: A later version wrote the file.
    """
    content = memoryview(path.read_bytes())
    if not content[: len(MAGIC)] == MAGIC:
        raise DamagedError("its first bytes are not those of a snapshot", hint=OLDER)
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if blake2b(body, digest_size=CHECKSUM).digest() != checksum:
        raise DamagedError("its checksum does not match its content", hint=OLDER)
    if body[len(MAGIC) : len(MAGIC + FORMAT)] != FORMAT:
        raise StateError(f"{path} was written by a later version", hint="use that version, or another state.dir")
    compressed = body[len(MAGIC + FORMAT) :]
    try:
        document = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompressobj().decompress(compressed))
    except UNREADABLE as error:
        raise DamagedError(f"its content cannot be decoded: {error}", hint=OLDER) from error
    if not isinstance(document, dict):
        raise DamagedError(f"its content is of type {type(document).__name__}, expected a table", hint=OLDER)
    return document


def require_document(path: Path, document: State) -> None:
    """Require the parts of a snapshot of this version.

    Raises:
        StateError: The document has another schema.
        DamagedError: A part is missing, or has another type.
    """
    if document.get("schema") != SCHEMA:
        raise StateError(
            f"{path} has schema {document.get('schema')}, this version reads {SCHEMA}",
            hint=f"use the version that wrote it, or start from zero: {WAYS_OUT}",
        )
    require_fit(document, PARTS)


def reached(step: str) -> None:
    """Called after each of `STEPS`, and does nothing: tests end the process here."""


DELETED = "it was deleted while the daemon ran, with all snapshots; the next snapshot recreates it"


class SnapshotStore:
    """A directory of snapshots, locked until `close` or the end of the process; `damaged` ones were set aside.

    Raises:
        StateError: Another process has locked the directory.
        StreamevalError: The directory cannot be written to.
    """

    def __init__(self, directory: Path, step: Callable[[str], None] | None = None) -> None:
        self.directory = directory
        self.step = step or reached
        self.damaged = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory / "lock")
        except OSError as error:
            raise _unusable(directory, error) from error
        with suppress(OSError):  # a file that stays does no harm; a read-only directory fails at the first write
            for unfinished in directory.glob(f"*{WRITING}"):
                unfinished.unlink()
        self._next = self._unused()

    def newest(self, read: Callable[[Path, State], T]) -> T | None:
        """`read` of the newest snapshot that is whole, as `newest_whole`; damaged ones are set aside with a warning."""
        return newest_whole(self.directory, read, self._set_damaged_aside)

    def _set_damaged_aside(self, path: Path, damage: str) -> None:
        """Rename a damaged file. If that fails, it stays where it is; later snapshots use other names."""
        self.damaged += 1
        aside = path.with_suffix(DAMAGED)
        try:
            path.rename(aside)
            self._prune(DAMAGED)
            log.warning("snapshot_damaged", path=str(path), reason=damage, set_aside_as=str(aside))
        except OSError as error:
            log.warning("snapshot_damaged", path=str(path), reason=damage, not_set_aside=error.strerror)

    def write(self, document: State) -> Path:
        """Write a document to disk before returning.

        On a full disk, older snapshots than the newest make room.

        Raises:
            OSError: Writing fails; the newest snapshot before it stays.
            StateError: The directory was replaced by one that another process has locked.
        """
        self._keep_locked()
        try:
            return self._write(document)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._make_room():
                raise
            return self._write(document)

    def _keep_locked(self) -> None:
        """Lock the directory again if it was deleted or replaced: another process may have locked the new one."""
        path = self.directory / "lock"
        try:
            if os.path.samestat(os.fstat(self._lock), os.lstat(path)):
                return
        except FileNotFoundError:
            log.warning("state_directory_missing", directory=str(self.directory), reason=DELETED)
            self.directory.mkdir(parents=True, exist_ok=True)
        lock, before = _locked(path), self._lock
        self._lock, self._next = lock, max(self._next, self._unused())
        os.close(before)

    def _unused(self) -> int:
        """A number above those of all snapshots in the directory."""
        paths = [path for suffix in (SUFFIX, DAMAGED, BEFORE_RESET) for path in found_in(self.directory, suffix)]
        return max((int(path.stem) for path in paths), default=0) + 1

    def _make_room(self) -> bool:
        """Delete the snapshots that are not needed, and return whether there were any."""
        unneeded = [*found_in(self.directory, DAMAGED), *found_in(self.directory)[:-1]]
        for path in unneeded:
            path.unlink(missing_ok=True)
        if unneeded:
            log.warning(
                "snapshots_deleted", reason="the disk is full", directory=str(self.directory), count=len(unneeded)
            )
        return bool(unneeded)

    def _write(self, document: State) -> Path:
        path = self.directory / f"{self._next:012d}{SUFFIX}"
        unfinished = path.with_suffix(WRITING)
        try:
            # Readable by its owner only: contexts of events may be in it.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(unfinished, flags, 0o600), "wb") as file:
                self.step("opened")
                write_document(file, document, header_written=lambda: self.step("header_written"))
                file.flush()
                self.step("written")
                os.fsync(file.fileno())
            self.step("synced")
            unfinished.rename(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
        self._next += 1
        self.step("renamed")
        _sync_directory(self.directory)
        self.step("directory_synced")
        self._prune(SUFFIX)
        self.step("pruned")
        return path

    def set_aside(self) -> None:
        """Rename all snapshots, so that they are not read again.

        Raises:
            StreamevalError: A snapshot cannot be renamed.
        """
        try:
            for path in reversed(found_in(self.directory)):  # if one fails, the oldest stay
                path.rename(path.with_suffix(BEFORE_RESET))
            self._prune(BEFORE_RESET)
        except OSError as error:
            hint = "make the directory one that streameval may write to, or name another state.dir"
            raise StreamevalError(
                f"the snapshots in {self.directory} cannot be set aside: {error.strerror}", hint=hint
            ) from error

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)

    def _prune(self, suffix: str) -> None:
        for path in found_in(self.directory, suffix)[:-KEPT_SNAPSHOTS]:
            path.unlink(missing_ok=True)


def newest_whole(
    directory: Path, read: Callable[[Path, State], T], damaged: Callable[[Path, str], None] = lambda path, damage: None
) -> T | None:
    """`read` of the newest snapshot that is whole; None without one.

    `damaged` is called with each newer one, and its damage. One in which `read` finds wrong content counts as damaged
    if `read` succeeds with an older one. Otherwise the error may be ours.

    Raises:
        StateError: `read` finds wrong content in every snapshot.
        StreamevalError: A snapshot cannot be read from the disk.
    """
    failed: dict[Path, Exception] = {}
    for path in reversed(found_in(directory)):
        try:
            found = read(path, read_document(path))
        except DamagedError as error:
            damaged(path, str(error))
        except WRONG_CONTENT as error:
            failed[path] = error
        except OSError as error:
            hint = "check its permissions and the disk; without this file, the snapshot before it is used"
            raise StreamevalError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
        else:
            for wrong, cause in failed.items():
                damaged(wrong, f"wrong content, {type(cause).__name__}: {cause}")
            return found
    for path, cause in failed.items():
        raise StateError(
            f"no snapshot in {directory} can be restored; {path.name}: {type(cause).__name__}: {cause}",
            hint=f"{WAYS_OUT}; if this version wrote them, please report it",
        ) from cause
    return None


def require_usable(directory: Path) -> None:
    """Check that a `SnapshotStore` can use this directory, and create nothing.

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
            os.close(_locked(lock))
    except OSError as error:
        raise _unusable(directory, error) from error


def _unusable(directory: Path, error: OSError) -> StreamevalError:
    hint = "state.dir must be a directory that streameval may write to; `state: off` keeps no state"
    return StreamevalError(f"{directory} cannot be used for snapshots: {error.strerror}", hint=hint)


def found_in(directory: Path, suffix: str = SUFFIX) -> list[Path]:
    """The snapshots of a directory, the oldest first."""
    return sorted(path for path in directory.glob(f"*{suffix}") if re.fullmatch(r"\d{12}", path.stem))


def _locked(path: Path) -> int:
    """The descriptor of a file that no other process has locked; the lock goes with the process, however that ends.

    A link is not followed, and content that is not the number of a process is not changed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    owner = os.pread(descriptor, OWNER, 0).decode(errors="replace").strip()
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
            os.pwrite(descriptor, f"{os.getpid():<{OWNER - 1}}\n".encode(), 0)
    return descriptor


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SnapshotWriter:
    """Writes snapshots to a store outside the loop, one at a time; the daemon continues after a failure.

    Args:
        store: Takes the documents.
        interval: Seconds between two snapshots.
        header: Entries that are the same in all documents.
        written_at: Time of the newest snapshot in the store, in epoch seconds.
        after: Called by the writing thread with each document that is on disk.
        clock: Returns epoch seconds.
    """

    def __init__(
        self,
        store: SnapshotStore,
        interval: float,
        header: State | None = None,
        written_at: float | None = None,
        after: Callable[[State], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.status = SnapshotStatus(written_at, damaged=store.damaged)
        self._store, self._interval, self.after, self._clock = store, interval, after, clock
        self._header = header or {}
        self._due = -math.inf
        self._writing: Background[bool] | None = None

    def maybe_write(self, document: Callable[[], State | None]) -> None:
        """Start to write `document()` when the interval is over and no snapshot is being written.

        The document must not change any more. None: there is nothing to write yet; the next call asks again.
        """
        self.settle(timeout=0.0)
        if self._writing is None and time.monotonic() >= self._due:
            self._start(document)

    def write_last(self, document: Callable[[], State | None]) -> None:
        """Write a last snapshot, after the one that is being written, and wait for it."""
        self.settle()
        self._start(document)
        self.settle()

    def settle(self, timeout: float = threading.TIMEOUT_MAX) -> None:
        """Wait up to `timeout` seconds for the snapshot that is being written; a bug in writing is raised here."""
        if self._writing is not None and self._writing.result(timeout):
            self._writing = None

    def close(self) -> None:
        """Unlock the directory, as soon as no snapshot is being written any more."""
        self.settle()
        self._store.close()

    def _start(self, document: Callable[[], State | None]) -> None:
        try:
            state = document()
        except StateError as error:  # a part of the state cannot be saved
            self._due = time.monotonic() + self._interval
            self._failed(error)
            return
        if state is None:
            return
        self._due = time.monotonic() + self._interval
        written = self._header | {"written": self._clock()} | state
        self._store.step("taken")
        self._writing = Background(lambda: self._write(written))

    def _write(self, document: State) -> bool:
        started = time.perf_counter()
        try:
            path = self._store.write(document)
        except (OSError, MemoryError, StateError) as error:
            self._failed(error)
            return True
        seconds = time.perf_counter() - started
        durations = self.status.durations.add(np.array([seconds]))
        self.status = replace(self.status, written_at=document["written"], durations=durations)
        log.debug("snapshot_written", path=str(path), seconds=round(seconds, 3))
        self.after(document)
        self._store.step("committed")
        return True

    def _failed(self, error: OSError | MemoryError | StateError) -> None:
        self.status = replace(self.status, failures=self.status.failures + 1)
        reason = getattr(error, "strerror", None) or str(error)
        log.error("snapshot_failed", directory=str(self._store.directory), reason=reason, failures=self.status.failures)


class NoSnapshots:
    """Writes no snapshot: a restart starts from zero."""

    status: ClassVar[None] = None

    def maybe_write(self, document: Callable[[], State | None]) -> None:
        """Do nothing."""

    def write_last(self, document: Callable[[], State | None]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
