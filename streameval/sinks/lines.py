"""Lines of bytes into a file, compressed by its ending, or onto standard output."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from streameval.errors import InputError


def write_lines(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write each line and a line end; `.gz` compresses, None is standard output. InputError if it cannot be done."""
    try:
        with _opened(path) as stream:
            for line in lines:
                stream.write(line + b"\n")
    except OSError as error:
        if path is None:
            raise
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="choose another place") from error


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif path.suffix == ".gz":
        # No name and no time in it: equal events make equal files.
        with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as stream:
            yield cast(BinaryIO, stream)
    else:
        with path.open("wb") as plain:
            yield plain
