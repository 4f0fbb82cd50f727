"""Hold what the averages of some estimators share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core import past
from streameval.ope.core.layout import Layout
from streameval.ope.core.past import Tables

__all__ = ["Bank"]


@dataclass(frozen=True, eq=False)
class Bank:
    """Hold what all averages of some estimators share: layout, tables, and numbers that do not change.

    Args:
        layout: the rows of block sums
        candidates: whether a policy is compared with others [P]
        block: events in a block
    """

    layout: Layout
    candidates: tuple[bool, ...]
    block: int

    @property
    def policies(self) -> int:
        """Return the number of policies."""
        return len(self.candidates)

    @property
    def columns(self) -> int:
        """Return the number of estimators."""
        return len(self.layout.columns)

    @cached_property
    def kept(self) -> Integers:
        """Return the rows of a block that moments are made of."""
        return np.unique(self.layout.moment_table)

    @cached_property
    def moment_table(self) -> Integers:
        """Return the place of each moment of each column among the rows that are kept, [E, rows]."""
        return np.searchsorted(self.kept, self.layout.moment_table)

    @cached_property
    def power(self) -> Integers:
        """Return how the rows that are kept are folded."""
        return self.layout.power[self.kept]

    @cached_property
    def shared(self) -> Tables:
        """Return the tables of variances when the columns of a policy fade alike."""
        return past.tables(self.layout, alike=True)

    @cached_property
    def apart(self) -> Tables:
        """Return the tables of variances when each column fades in its own way."""
        return past.tables(self.layout, alike=False)

    def moments(self, rows: Array) -> Array:
        """Return the moments of all columns from the rows that are kept, [P, rows] to [P * E, moments]."""
        moments = rows[:, self.moment_table]
        return np.asarray(moments.reshape(-1, moments.shape[-1]))
