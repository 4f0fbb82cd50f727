"""The actions each event could choose from, as ragged columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ActionSets:
    """What n events could choose from, laid end to end: `total` rows, one per action of an event.

    index: [n] place of the logged action in its event's set; -1 = the event came without one
    offsets: [n + 1] event i owns the rows `offsets[i]:offsets[i + 1]`
    propensities: [total] the logging policy's distribution; NaN = not logged
    features: [total, d], NaN = this event has none, or fewer than d; None = no event has any
    probabilities: [total, P] the policies' distributions, contiguous over rows; NaN = missing. Of a policy known by its
        probability of the logged action alone, the other rows are NaN.
    """

    index: Index
    offsets: Index
    propensities: Array
    features: Array | None
    probabilities: Array

    @property
    def sizes(self) -> Index:
        """[n] number of actions of each event, 0 without a set."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Index:
        """[total] the event that owns each row."""
        return np.repeat(np.arange(len(self.index)), self.sizes)

    @property
    def logged(self) -> tuple[Index, Index]:
        """The events whose logged action is in their set, and its row for each of them."""
        events = np.flatnonzero(self.index >= 0)
        return events, self.offsets[events] + self.index[events]

    @property
    def nbytes(self) -> int:
        """Memory that the columns take."""
        return sum(getattr(self, field.name).nbytes for field in fields(self) if getattr(self, field.name) is not None)

    def part(self, start: int, stop: int) -> ActionSets:
        """The sets of the events start to stop; nothing is copied."""
        offsets = self.offsets[start : stop + 1]
        return self._rows(slice(offsets[0], offsets[-1]), self.index[start:stop], offsets - offsets[0])

    def take(self, events: Index) -> ActionSets:
        """The sets of these events, in this order."""
        sizes = self.sizes[events]
        offsets = offsets_of(sizes)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[events] - offsets[:-1], sizes)
        return self._rows(rows, self.index[events], offsets)

    def _rows(self, rows: slice | Index, index: Index, offsets: Index) -> ActionSets:
        features = None if self.features is None else self.features[rows]
        return ActionSets(index, offsets, self.propensities[rows], features, self.probabilities.T[:, rows].T)

    @classmethod
    def none(cls, events: int, policies: int) -> ActionSets:
        """So many events without a set."""
        nothing = np.empty((policies, 0)).T
        return cls(np.full(events, -1), np.zeros(events + 1, dtype=np.int64), np.empty(0), None, nothing)

    @classmethod
    def concat(cls, parts: Sequence[ActionSets]) -> ActionSets:
        """The sets of all events, one part after the other; all parts have the same policies."""
        return cls(
            index=np.concatenate([part.index for part in parts]),
            offsets=offsets_of(np.concatenate([part.sizes for part in parts])),
            propensities=np.concatenate([part.propensities for part in parts]),
            features=_stacked([part.features for part in parts], [len(part.propensities) for part in parts]),
            probabilities=np.concatenate([part.probabilities.T for part in parts], axis=1).T,
        )

    def to_state(self) -> dict[str, Array | Index | None]:
        """The columns by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return columns | {"probabilities": self.probabilities.T}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ActionSets:
        """The sets that gave this state."""
        return cls(**{**state, "probabilities": state["probabilities"].T})


def offsets_of(sizes: Index) -> Index:
    """Where each of consecutive runs of these sizes begins, and where the last one ends.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def named_columns(values: Array, present: tuple[str, ...], wanted: tuple[str, ...]) -> Array:
    """The columns of the wanted policies, of those that are present; NaN for others."""
    columns = np.full((len(wanted), len(values)), np.nan)
    for row, policy in enumerate(wanted):
        if policy in present:
            columns[row] = values[:, present.index(policy)]
    return columns.T


def reconcile(sets: ActionSets, per_event: Array, per_action: Array) -> None:
    """Let [n, ...] and [total, ...] learn from each other what only one knows of the logged actions (in place)."""
    events, rows = sets.logged
    here, there = per_event[events], per_action[rows]
    per_event[events] = np.where(np.isnan(here), there, here)
    per_action[rows] = np.where(np.isnan(there), here, there)


def _stacked(features: Sequence[Array | None], rows: Sequence[int]) -> Array | None:
    widths = [0 if part is None else part.shape[1] for part in features]
    if not any(widths):
        return None
    stacked = np.full((sum(rows), max(widths)), np.nan)
    ends = offsets_of(np.array(rows))
    for part, width, start, stop in zip(features, widths, ends, ends[1:], strict=False):
        if part is not None:
            stacked[start:stop, :width] = part
    return stacked
