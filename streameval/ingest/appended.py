"""Append lines to files, after what a full disk or a kill may have left of the last one."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

__all__ = ["open_to_append"]


def open_to_append(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Open a file for appended lines, create it if it is not there, and end a last line that is not whole.

    The first line would otherwise become a part of that line, and be lost.

    Args:
        path: a file, pipe or device
        mode: the permissions of a new file

    Returns:
        The descriptor.

    Raises:
        OSError: The file cannot be opened or written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size and _last_byte(path, status.st_size) != b"\n":
            os.write(descriptor, b"\n")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _last_byte(path: str | os.PathLike[str], size: int) -> bytes:
    """Return the last byte of a file, none if it cannot be read: an empty line more does no harm."""
    with suppress(OSError), open(path, "rb") as file:
        return os.pread(file.fileno(), 1, size - 1)
    return b""
