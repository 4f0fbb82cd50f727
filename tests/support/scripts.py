"""Import the modules of a folder of scripts outside any package, an example or one of deploy/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let tests import the modules of a folder, and forget modules of other folders with these names."""
    _forget(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget(folder)


def _forget(folder: Path) -> None:
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)
