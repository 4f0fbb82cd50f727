"""The modules of a folder of scripts, an example or one of deploy/, which lie in no package: they import each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Lets tests import the modules of a folder; modules of other folders with these names are forgotten."""
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
