"""Wishes: the lifts that people ask for, in units of the reward or as a part of what production earns."""

from __future__ import annotations

import math
from typing import NamedTuple


class Wish(NamedTuple):
    """A lift: `size` in units of the reward, or, where it is `relative`, times production's value."""

    size: float
    relative: bool = False

    @classmethod
    def read(cls, text: str) -> Wish:
        """A wish as it is written; ValueError if it is none.

        >>> Wish.read("0.01"), Wish.read("5%")
        (Wish(size=0.01, relative=False), Wish(size=0.05, relative=True))
        """
        relative = text.strip().endswith("%")
        try:
            size = float(text.strip().removesuffix("%")) / (100 if relative else 1)
        except ValueError:
            size = math.nan
        if not 0 < size < math.inf:
            raise ValueError(f"expected a number above 0, or a percentage; found {text!r}")
        return cls(size, relative)

    def absolute(self, production: float | None) -> float | None:
        """The lift in units of the reward; None where production's value must be known and is not above 0."""
        if not self.relative:
            return self.size
        return self.size * production if production is not None and production > 0 else None

    def of_range(self, width: float) -> Wish:
        """The same part of the width of the reward range, where production's value cannot be the measure."""
        return Wish(self.size * width) if self.relative else self


USUAL = tuple(Wish(size, relative=True) for size in (0.02, 0.05, 0.1, 0.2))
"""What is asked for when nothing is said."""
