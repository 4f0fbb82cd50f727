from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from streameval.ingest.appended import open_to_append


@pytest.mark.parametrize(("before", "after"), [(None, ""), ("", ""), ("one\n", "one\n"), ("one\ntw", "one\ntw\n")])
def test_a_file_that_is_appended_to_ends_with_a_newline(tmp_path: Path, before: str | None, after: str) -> None:
    path = tmp_path / "log"
    if before is not None:
        path.write_text(before)
    for line in (b"x\n", b"y\n"):
        descriptor = open_to_append(path)
        os.write(descriptor, line)
        os.close(descriptor)
    assert path.read_text() == f"{after}x\ny\n"


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    descriptor = open_to_append(path)
    os.write(descriptor, b"x\n")
    os.close(descriptor)
    reader.join()
    assert received == [b"x\n"]


def test_a_disk_that_is_full_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("half")
    opened = len(os.listdir("/proc/self/fd"))
    with (
        patch("streameval.ingest.appended.os.write", side_effect=OSError(28, "full")),
        pytest.raises(OSError, match="full"),
    ):
        open_to_append(path)
    assert len(os.listdir("/proc/self/fd")) == opened
