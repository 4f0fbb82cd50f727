"""Rows that are found by a 64-bit key, many at once, and leave by their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain
from streameval.events.action_sets import Index
from streameval.events.origin import Identity

Column: TypeAlias = NDArray[Any]
Run: TypeAlias = dict[str, Column]
"""Columns by name, sorted by the column `identity`."""

GROWTH = 4
"""A run is merged with the one before it unless that is so many times larger: there are few, and rows move seldom."""


class SortedRuns:
    """Rows with the columns `identity` (the key, which need not be unique), `timestamp`, and others.

    Kept as sorted runs that grow by merging, all of it by numpy: a row costs 50 ns or so each time it moves, which is
    the logarithm of their number times, and to look a key up costs a binary search in each run.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return sum(len(run["identity"]) for run in self._runs)

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(column.nbytes for run in self._runs for column in run.values())

    def add(self, rows: Mapping[str, Column]) -> None:
        """Keep these rows, too."""
        if not len(rows["identity"]):
            return
        self._runs.append(_sorted(dict(rows)))
        while len(self._runs) > 1 and len(self._runs[-2]["identity"]) < GROWTH * len(self._runs[-1]["identity"]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(_sorted({name: np.concatenate([before[name], last[name]]) for name in before}))

    def find(self, identity: Identity) -> Iterator[tuple[Index, Run, Index]]:
        """All rows with one of these keys, run by run: which key, the run (it may be changed in place), and its row."""
        for run in self._runs:
            first = run["identity"].searchsorted(identity, side="left")
            count = run["identity"].searchsorted(identity, side="right") - first
            keys = np.repeat(np.arange(len(identity)), count)
            if len(keys):
                place = np.arange(len(keys)) - np.repeat(np.cumsum(count) - count, count)
                yield keys, run, first[keys] + place

    def take(self, where: Callable[[Run], Mask]) -> Run:
        """The rows that are asked for, which are then no longer kept, in the order of their time."""
        taken, kept = [], []
        for run in self._runs:
            wanted = where(run)
            taken.append({name: column[wanted] for name, column in run.items()} if wanted.any() else None)
            kept.append({name: column[~wanted] for name, column in run.items()} if wanted.any() else run)
        found = [rows for rows in taken if rows is not None]
        self._runs = [run for run in kept if len(run["identity"])]
        if not found:
            return {}
        rows = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        order = np.argsort(rows["timestamp"], kind="stable")
        return {name: column[order] for name, column in rows.items()}

    def times(self) -> Array:
        """The times of all rows."""
        return np.concatenate([np.empty(0), *[run["timestamp"] for run in self._runs]])

    def state(self) -> State:
        """All rows as a plain value."""
        state: State = to_plain({"runs": self._runs})
        return state

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self._runs = from_plain(state)["runs"]


def _sorted(run: Run) -> Run:
    order = np.argsort(run["identity"], kind="stable")
    return {name: column[order] for name, column in run.items()}
