"""What every average is: a frozen value that folds blocks of terms into a state, and reads moments from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import ClassVar

from pydantic.dataclasses import dataclass

from streameval.arrays import Array, State
from streameval.averages.blocks import Blocks
from streameval.averages.moments import Moments
from streameval.labels import Labelled, strict


@plain_dataclass(frozen=True, slots=True)
class Reading:
    """What an average knows at one moment, one entry a column.

    `moments` make the estimate. `horizon` gives its variance: the same moments over a past ten times longer, because
    few large weights make an estimate and its own variance fail together. `nonzero`: events in that horizon whose
    numerator is not zero. `bias`: bound on the bias from drift (NaN = not known). `details`: what the average has to
    say of itself (NaN = not known).
    """

    moments: Moments
    horizon: Moments
    nonzero: Array
    design_effect: Array
    bias: Array
    details: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=strict)
class Average(Labelled):
    """How terms are averaged over time. It knows nothing of policies: a column is a column.

    `fold` takes whole blocks and owns the state it is given (large arrays are changed in place); `read` changes
    nothing and may be given the block that is not finished yet. `measures_drift`: its readings bound the bias from
    drift.
    """

    measures_drift: ClassVar[bool] = True

    def start(self, columns: int, block: int) -> State:
        """The state before the first event; `block` is the number of events in a block."""
        raise NotImplementedError

    def fold(self, state: State, blocks: Blocks) -> State:
        """The state after these whole blocks."""
        raise NotImplementedError

    def read(self, state: State, tail: Blocks | None) -> Reading:
        """The moments now, the unfinished block included."""
        raise NotImplementedError

    def merge(self, earlier: State, later: State) -> State:
        """The state of two parts of one stream that were folded apart; the earlier one must end where a bucket does.

        Only averages whose weights are fixed beforehand can do this; an adaptive one depends on the order of events.
        What is known of the drift is what the later part knows.
        """
        raise TypeError(f"{self.kind} depends on the order of events: two of its states cannot be merged")

    def to_state(self, state: State) -> State:
        """The state as it is kept in a file."""
        return state

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        return saved
