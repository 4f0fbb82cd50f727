"""What watches a stream for a confidence sequence: it folds blocks, and reads intervals that hold at all times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from streameval.arrays import Array, State
from streameval.sequences.looking import Look


class Watched(NamedTuple):
    """The intervals of values and of lifts over production, [columns], NaN where withheld; not cut to any range.

    Column `policy * E + estimator`; policy 0 is production, which has no lift. `details`: what else is to be said.
    `estimates` [4, columns]: what each of the four bounds lies below, or above. They are not the same for both ends:
    the lower one is about weighted rewards, the upper one about weighted losses.
    """

    lower: Array
    upper: Array
    lift_lower: Array
    lift_upper: Array
    details: Mapping[str, Array]
    estimates: Array | None = None


class Watch(Protocol):
    """A frozen value; what it remembers is handed in and comes back as plain values."""

    def start(self, policies: int, block: int) -> State:
        """The state before the first event."""
        ...

    def fold(self, state: State, look: Look) -> State:
        """The state after these whole blocks."""
        ...

    def without_lifts(self, state: State) -> State:
        """The state when production changes: values go on, lifts begin anew."""
        ...

    def of_some(self, state: State, whole: Any, kept: Sequence[int]) -> State:
        """The state of this watch, of that of one of more estimators: of those at these places there."""
        ...

    def read(self, state: State, tail: Look | None, error: Array) -> Watched:
        """The intervals now, the unfinished block included. `error` [policies]: that an interval of this policy,
        two-sided, ever misses."""
        ...
