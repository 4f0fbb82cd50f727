"""Read files from object stores and web servers, such as `s3://bucket/log.parquet`, by the drivers of fsspec."""

from __future__ import annotations

import glob
import io
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast
from urllib.parse import unquote

from streameval.common.foreign_code import CodeError, foreign_code
from streameval.errors import InputError
from streameval.ingest.files.suffixes import ARROW_SUFFIXES, PARQUET_SUFFIXES

__all__ = ["RemoteFile", "expand", "is_remote", "open_remote", "partition_values", "remote_size"]

INSTALL = "pip install 'streameval[cloud]'"
DRIVERS = {
    **dict.fromkeys(("http", "https"), INSTALL),
    **dict.fromkeys(("s3", "s3a"), f"{INSTALL} s3fs"),
    **dict.fromkeys(("gs", "gcs"), f"{INSTALL} gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), f"{INSTALL} adlfs"),
}
"""Commands that install the driver of a protocol."""
CREDENTIALS = "check the credentials in the environment: deploy/files.md says which variables each store reads"
VERSIONS = ("ETag", "Last-Modified", "Content-MD5", "LastModified", "etag", "generation", "updated", "created", "mtime")
"""Fields of a store's answer about a file that differ as soon as another file has its name."""
CHECK_SECONDS = 1.0  # of reading, after which the store is asked whether the file is still the same
READ_AHEAD_BYTES = 4 * 2**20  # of a file that is read from its start to its end, with one request
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows without a value


def is_remote(path: str) -> bool:
    """Return whether fsspec reads a path.

    >>> is_remote("gs://bucket/log.csv"), is_remote("log.csv")
    (True, False)
    """
    return "://" in path


def expand(paths: Iterable[str]) -> list[str]:
    """Replace patterns by the files that match, and folders by the files in them, in the order of their names.

    Files in folders are left out if their name, or the name of a folder above, starts with `_` or `.`. Local folders
    without Parquet or Arrow files stay as they are.

    Args:
        paths: local paths and addresses

    Raises:
        InputError: Nothing matches, a driver is not installed, or the store refuses.
    """
    return [file for path in paths for file in (_remote_files(path) if is_remote(path) else _local_files(path))]


def _local_files(path: str) -> list[str]:
    found = []
    if os.path.isdir(path):
        below = sorted(Path(path).rglob("*"))
        if any(file.suffix in PARQUET_SUFFIXES + ARROW_SUFFIXES for file in below):
            found = [str(file) for file in below if file.is_file() and _counts(str(file.relative_to(path)))]
    elif "*" in path and not os.path.exists(path):
        found = sorted(glob.glob(path, recursive=True))
    return found or [path]


def _remote_files(url: str) -> list[str]:
    is_web = url.startswith("http")  # a listing there is a page with links, and `?` starts a query
    pattern = re.search(r"[^/]*[*]" if is_web else r"[^/]*[*?\[]", url)
    root = url[: pattern.start()] if pattern else url
    files, top = _filesystem(root)
    with _named(url):
        files.invalidate_cache()  # of an earlier look at the store
        if pattern:
            matches = files.glob(_filesystem(url)[1], detail=True)
        elif url.endswith("/") if is_web else files.isdir(top):
            matches = {top: {"type": "directory"}}
        else:
            return [url]
        found = set[str]()
        for name, entry in matches.items():
            start = len(top if "**" in url else name)  # `**` matches folders that nobody has named, such as _temporary
            inside = files.find(name, detail=True) if entry["type"] == "directory" else {name: entry}
            found |= {
                file for file, each in inside.items() if _counts(file[start:]) and (file == name or each["size"] != 0)
            }
    if not found:
        raise InputError(f"no file matches {url}", hint="check the pattern; ** also matches in folders below")
    top, root = top.rstrip("/"), root if root.endswith("://") else root.rstrip("/")
    return [root + name[len(top) :] if name.startswith(top) else name for name in sorted(found)]


def _counts(name: str) -> bool:
    """Return whether a file in a folder is one of events, not of the program that wrote the folder."""
    return not any(part.startswith((".", "_")) for part in name.strip("/").split("/"))


def partition_values(path: str) -> dict[str, str | int | None]:
    """Return the columns that stand in the names of folders, as Hive and Spark write them.

    >>> partition_values("s3://logs/country=de/hour=12/zip=007/part-0.parquet")
    {'country': 'de', 'hour': 12, 'zip': '007'}
    """
    pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
    return {unquote(name): _value(unquote(text)) for name, _, text in pairs}


def _value(text: str) -> str | int | None:
    """Return a whole number if it is written as usual, None for a missing value, else the text."""
    if text == NO_VALUE:
        return None
    return int(text) if text == "0" or re.fullmatch("-?[1-9][0-9]{0,17}", text) else text


def remote_size(url: str) -> int | None:
    """Return the size of a file in bytes, None if the server does not tell it.

    Raises:
        InputError: There is no such file, or it may not be read.
    """
    files, path = _filesystem(url)
    with _named(url):
        size: int | None = files.info(path).get("size")
    return size


def open_remote(url: str, *, read_ahead: bool = True) -> BinaryIO:
    """Open a file, which is read in parts.

    A file of a web server that sends no parts is stored on the disk first, without a name.

    Args:
        url: the address of the file
        read_ahead: whether the file is read from its start to its end

    Raises:
        InputError: The file cannot be opened.
    """
    files, path = _filesystem(url)
    options = {"block_size": READ_AHEAD_BYTES, "cache_type": "readahead"} if read_ahead else {"cache_type": "none"}
    with _named(url):
        stream = files.open(path, "rb", **options)
        if _reads_parts(stream, url):
            return cast(BinaryIO, RemoteFile(files, path, stream))
        stream.close()
        with tempfile.NamedTemporaryFile() as copy:
            files.get_file(path, copy.name)
            return open(copy.name, "rb")


def _reads_parts(stream: Any, url: str) -> bool:
    """Return whether a store sends a part of a file. Only a web server may be unable to."""
    if stream.size is None or not url.startswith("http"):
        return stream.size is not None
    try:
        stream.seek(max(0, stream.size - 1))
        stream.read(1)
        stream.seek(0)
    except ValueError:
        return False
    return True


class RemoteFile(io.RawIOBase):
    """Read a file of a store. All failures are OSErrors, as for a local file.

    A file that is replaced meanwhile is a failure, as its parts would come from both. The store is asked at times, at
    the end of the file, and when it is closed, which then raises an InputError.

    Args:
        files: the filesystem of fsspec
        path: the name of the file in it
        stream: the open file

    Attributes:
        size: in bytes
    """

    def __init__(self, files: Any, path: str, stream: Any) -> None:
        self._files, self._path, self._stream = files, path, stream
        self.size: int = stream.size
        self._version: dict[str, Any] = {}
        self._version = self._newest_version() | {"size": stream.size}
        self._checked_at, self._is_checked = time.monotonic(), True

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def read(self, most: int = -1, /) -> bytes:
        """Read bytes at the position, as many as there are up to `most`."""
        with _as_os_error():
            content: bytes = self._stream.read(most)
        self._is_checked = False
        if (not content and most) or time.monotonic() > self._checked_at + CHECK_SECONDS:
            self._require_same()
        return content

    def _newest_version(self) -> dict[str, Any]:
        """Return what the store says now. Without an answer, the file counts as the same, and reading it fails."""
        try:
            with foreign_code():
                self._files.invalidate_cache()  # a driver may answer from an earlier listing
                info = self._files.info(self._path)
        except CodeError:
            return dict(self._version)
        return {name: info[name] for name in (*VERSIONS, "size") if info.get(name) is not None}

    def _require_same(self) -> None:
        """Raise OSError if another file has the name now."""
        newest = self._newest_version()
        self._checked_at, self._is_checked = time.monotonic(), True
        if any(newest.get(name, value) != value for name, value in self._version.items()):
            raise OSError("the file was replaced while it was read")

    read1 = read

    def seek(self, position: int, whence: int = 0, /) -> int:
        """Move the position."""
        with _as_os_error():
            moved: int = self._stream.seek(position, whence)
            return moved

    def tell(self) -> int:
        """Return the position."""
        position: int = self._stream.tell()
        return position

    def sample(self, start: int, stop: int) -> bytes:
        """Read some bytes without a change of the position.

        Raises:
            InputError: The store refuses.
        """
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        with _named(self._path):
            content: bytes = self._files.cat_file(self._path, start=start, end=stop)
            return content

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            with closing(self._stream):
                super().close()
            try:
                if not self._is_checked:
                    self._require_same()
            except OSError as error:
                raise InputError(
                    f"{self._path} cannot be used: {error}", hint="read the new file from its start"
                ) from error


def _filesystem(url: str) -> tuple[Any, str]:
    """Return the filesystem of an address, and the name of the file in it.

    Raises:
        InputError: fsspec or the driver of the protocol is not installed.
    """
    protocol = url.partition("://")[0].rpartition("::")[2]
    try:
        import fsspec.core
    except ImportError as error:
        raise InputError(f"{url} needs fsspec, which is not installed", hint=INSTALL) from error
    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        hint = DRIVERS.get(protocol, "install the package that the message names")
        raise InputError(f"{protocol}:// needs a driver that is not installed: {error}", hint=hint) from error
    except ValueError as error:
        hint = "addresses start with s3://, gs://, abfs:// or https://, or another protocol of fsspec"
        raise InputError(f"{url} cannot be opened: {error}", hint=hint) from error
    return files, path


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        with foreign_code():
            yield
    except CodeError as error:
        raise OSError(str(error)) from error


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Turn the failures of a driver into errors with the address and a hint.

    Raises:
        InputError: The block has failed.
    """
    try:
        with foreign_code():
            yield
    except CodeError as error:
        _refuse(url, error)


def _refuse(url: str, error: CodeError) -> NoReturn:
    causes: list[BaseException] = []
    cause: BaseException | None = error.__cause__
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    if isinstance(causes[0], InputError):
        raise causes[0]
    answers = (getattr(cause, name, None) for cause in causes for name in ("status", "status_code", "code"))
    status = next((int(str(answer)) for answer in answers if str(answer).isdecimal()), 0)
    is_denied = any(isinstance(cause, PermissionError) or "Credential" in type(cause).__name__ for cause in causes)
    if is_denied or status in (401, 403):
        raise InputError(f"no permission to read {url}", hint=CREDENTIALS) from error
    failures = [cause for cause in causes if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)]
    if isinstance(causes[0], FileNotFoundError) and (status == 404 or not (status or failures)):
        raise InputError(f"{url} does not exist", hint="check the address") from error
    reason = f"the server answers with {status}" if status else failures[-1] if failures else error
    raise InputError(f"{url} cannot be read: {reason}", hint="check the address, and the network") from error
