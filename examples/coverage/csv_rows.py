"""Store named tuples as rows of a CSV file with their field names as its header."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

Row = TypeVar("Row", bound=NamedTuple)


def write_rows(kind: type[Row], rows: Iterable[Row], path: Path) -> None:
    """Write rows of this type."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([kind._fields, *rows])


def read_rows(kind: type[Row], path: Path) -> list[Row]:
    """Read the rows that `write_rows` wrote."""
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return msgspec.convert(lines, list[kind], strict=False)  # type: ignore[valid-type]
