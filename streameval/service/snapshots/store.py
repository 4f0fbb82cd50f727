"""Snapshots on disk: written whole or not at all, the last three kept, in a directory that one process owns."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from streameval.common.arrays import State
from streameval.errors import StateError, StreamevalError
from streameval.service.snapshots.file_format import DamagedError, read_document, write_document

KEPT = 3
SUFFIX, DAMAGED, BEFORE_RESET, WRITING = ".snapshot", ".damaged", ".before-reset", ".writing"
STEPS = ("taken", "opened", "begun", "written", "synced", "renamed", "directory_synced", "pruned", "committed")
"""What is done for a snapshot, in order. A process may end between any two of them, and go on from a whole one."""

log = structlog.get_logger("streameval.snapshots")


def reached(step: str) -> None:
    """Called after each of `STEPS`, and does nothing: where tests end the process."""


class SnapshotStore:
    """A directory of snapshots, locked until `close` or the end of the process.

    StateError when another process has it, StreamevalError when it cannot be written to.
    """

    def __init__(self, directory: Path, step: Callable[[str], None] | None = None) -> None:
        self.directory = directory
        self.step = step or reached
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory / "lock")
        except OSError as error:
            hint = "state.dir must be a directory that streameval may write to; `state: off` does without"
            raise StreamevalError(f"{directory} cannot be used for snapshots: {error.strerror}", hint=hint) from error
        with suppress(OSError):  # who cannot be removed is in nobody's way; that nothing can be written is told later
            for left in directory.glob(f"*{WRITING}"):
                left.unlink()
        self._next = max(map(_number, self._all()), default=0) + 1

    def newest(self) -> tuple[Path, State] | None:
        """The newest snapshot that is whole. Others that are newer are set aside, with a warning."""
        for path in reversed(found_in(self.directory)):
            try:
                return path, read_document(path)
            except DamagedError as damage:
                self._set_damaged_aside(path, damage)
            except OSError as error:
                hint = "check its permissions and the disk; moved elsewhere, the one before it is used"
                raise StreamevalError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
        return None

    def _set_damaged_aside(self, path: Path, damage: DamagedError) -> None:
        """Where that cannot be, it stays: it will be found damaged again, and none that is written takes its place."""
        aside = path.with_suffix(DAMAGED)
        try:
            path.rename(aside)
            self._prune(DAMAGED, KEPT)
            log.warning("snapshot_damaged", path=str(path), reason=str(damage), set_aside_as=str(aside))
        except OSError as error:
            log.warning("snapshot_damaged", path=str(path), reason=str(damage), not_set_aside=error.strerror)

    def write(self, document: State) -> Path:
        """Keep a document: it is on disk when this returns. OSError when it cannot be written; nothing is lost then."""
        path = self.directory / f"{self._next:012d}{SUFFIX}"
        unfinished = path.with_suffix(WRITING)
        try:
            with _new_file(unfinished) as file:
                self.step("opened")
                write_document(file, document, begun=lambda: self.step("begun"))
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
        self._prune(SUFFIX, KEPT)
        self.step("pruned")
        return path

    def set_aside(self) -> None:
        """Begin anew: what there is remains under other names, and is not read again; StreamevalError if it cannot."""
        try:
            for path in reversed(found_in(self.directory)):  # what stays, if one fails, are the oldest
                path.rename(path.with_suffix(BEFORE_RESET))
            self._prune(BEFORE_RESET, KEPT)
        except OSError as error:
            hint = "make the directory one that streameval may write to, or name another state.dir"
            raise StreamevalError(
                f"the snapshots in {self.directory} cannot be set aside: {error.strerror}", hint=hint
            ) from error

    def close(self) -> None:
        """Let others have the directory."""
        os.close(self._lock)

    def _prune(self, suffix: str, kept: int) -> None:
        for path in found_in(self.directory, suffix)[:-kept]:
            path.unlink(missing_ok=True)

    def _all(self) -> Iterator[Path]:
        for suffix in (SUFFIX, DAMAGED, BEFORE_RESET):
            yield from found_in(self.directory, suffix)


def found_in(directory: Path, suffix: str = SUFFIX) -> list[Path]:
    """The snapshots of a directory, the oldest first."""
    return sorted(path for path in directory.glob(f"*{suffix}") if re.fullmatch(r"\d{12}", path.stem))


def _number(path: Path) -> int:
    return int(path.stem)


def _locked(path: Path) -> int:
    """The descriptor of a file that no other process has locked; the lock goes with the process, however that ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(descriptor, 20).decode(errors="replace").strip()
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise StateError(
            f"{path.parent} is in use by another streameval (process {owner or 'unknown'})",
            hint="stop it, or give each daemon a state.dir of its own",
        ) from None
    with suppress(OSError):  # only told to people; a daemon must come up again on a disk that has become full
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that nobody else may read: contexts of events may be in it."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        yield file


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
