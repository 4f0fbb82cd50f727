"""Take the state of some policies and estimators out of a larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core.bank import Bank
from streameval.ope.core.past import SIGNS, History, Past


@dataclass(frozen=True, eq=False)
class Selection:
    """Select the policies and columns of a bank that another bank has.

    Args:
        whole: the larger bank
        part: the smaller bank, with the same needs and block
        policies: the places of its policies in the larger one
    """

    whole: Bank
    part: Bank
    policies: Sequence[int]

    @cached_property
    def columns(self) -> list[int]:
        """Return the places of the columns of the smaller bank."""
        return [self.whole.layout.columns.index(column) for column in self.part.layout.columns]

    @cached_property
    def components(self) -> list[int]:
        """Return the places of their components."""
        first = np.cumsum([0, *map(len, self.whole.layout.components)]).tolist()
        return [index for column in self.columns for index in range(first[column], first[column + 1])]

    @cached_property
    def kept(self) -> Integers:
        """Return the places of the rows that moments are made of."""
        return self._rows(self.whole.kept, self.part.kept)

    def _rows(self, whole: Integers, part: Integers) -> Integers:
        indices = {self.whole.layout.names[row]: index for index, row in enumerate(whole)}
        return np.array([indices[self.part.layout.names[row]] for row in part], dtype=np.int64)

    @cached_property
    def totals(self) -> list[int]:
        """Return the places of the totals by which blocks are compared."""
        names = self.whole.layout.total_names
        return [names.index(name) for name in self.part.layout.total_names]

    @cached_property
    def _squares(self) -> list[int]:
        """Return the places of the squares of contrasts."""
        first, second, apart, _ = self.whole.layout.compared
        indices = {key: index for index, key in enumerate(zip(first, second, apart, strict=True))}
        own, other, both, _ = self.part.layout.compared
        kept = [
            indices[self.totals[one], self.totals[another], kind]
            for one, another, kind in zip(own, other, both, strict=True)
        ]
        return [0, 1, *(2 + index for index in kept)]

    def past(self, state: Past, alike: bool) -> Past:
        """Return the past of some columns."""
        if not alike:
            return _mapped(state, lambda name, rows: rows[:, self.columns])
        rows = self._rows(self.whole.shared.sums[0], self.part.shared.sums[0])

        def taken(name: str, values: Array) -> Array:
            if name == "sums":
                return values[..., rows]
            if name == "signed":
                return _signed(values, self.totals)
            return values if name == "covered" else values[..., self._squares]

        return _mapped(state, taken)

    def past_of_lifts(self, state: Past) -> Past:
        """Return the past of the lifts of some columns."""

        def taken(name: str, values: Array) -> Array:
            if name == "sums":
                return values[..., [9 * column + row for column in self.columns for row in range(9)]]
            if name == "signed":
                return _signed(values, [0, *(1 + column for column in self.columns)])
            if name == "covered":
                return values
            return values[..., [0, 1, *(2 + 3 * column + row for column in self.columns for row in range(3))]]

        return _mapped(state, taken)

    def history(self, state: History, totals: Sequence[int] | None = None) -> History:
        """Return the last blocks of some columns."""
        indices = self.totals if totals is None else totals
        signed = None if state.signed is None else _signed(state.signed, indices)
        return History(np.ascontiguousarray(state.totals[..., list(indices)]), state.squares, signed, state.covered)


def _mapped(state: Past, change: Callable[[str, Array], Array]) -> Past:
    fields: dict[str, Any] = {}
    for name in state.__struct_fields__:
        rows = getattr(state, name)
        fields[name] = None if rows is None else np.ascontiguousarray(change(name, rows))
    return Past(**fields)


def _signed(values: Array, indices: Sequence[int]) -> Array:
    """Return the signed sums of some totals, with the signs of each side by side."""
    by_total = values.reshape(*values.shape[:-1], values.shape[-1] // SIGNS, SIGNS)[..., list(indices), :]
    return np.ascontiguousarray(by_total.reshape(*values.shape[:-1], len(indices) * SIGNS))
