"""Act between the calls of the file system that write a snapshot."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = ("opened", "written", "synced", "renamed", "directory_synced", "pruned")
"""States of a snapshot after each call. A process may end after any of them."""


def observed_calls(reached: Callable[[str], None]) -> dict[str, Callable[..., Any]]:
    """Return functions in place of functions of `os`, by name, that tell which of `STEPS` was reached."""
    make, sync, replace, unlink = os.open, os.fsync, os.replace, os.unlink

    def observed_open(path: Any, *arguments: Any, **options: Any) -> int:
        descriptor = make(path, *arguments, **options)
        if str(path).endswith(".snapshot.writing"):
            try:
                reached("opened")
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def observed_sync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not is_directory:
            reached("written")
        sync(descriptor)
        reached("directory_synced" if is_directory else "synced")

    def observed_replace(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(target).suffix == ".snapshot":
            reached("renamed")

    def observed_unlink(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if Path(path).suffix == ".snapshot":
            reached("pruned")

    return {"open": observed_open, "fsync": observed_sync, "replace": observed_replace, "unlink": observed_unlink}
