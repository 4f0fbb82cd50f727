"""What every average is: a frozen value that folds blocks of terms into a state, and reads moments from it."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from streameval.arrays import Array, State
from streameval.averages.blocks import Blocks
from streameval.averages.lipschitz import Lipschitz, Pace
from streameval.averages.reading import Reading
from streameval.labels import Labelled, strict


@dataclass(frozen=True, kw_only=True, config=strict)
class Memory(Labelled):
    """What every way to remember over time can do, the mixture's too."""

    def check(self, block: int) -> None:
        """ValueError when it cannot work with blocks of so many events."""

    def to_state(self, state: State) -> State:
        """The state as it is kept in a file."""
        return state

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        return saved


@dataclass(frozen=True, kw_only=True, config=strict)
class Average(Memory):
    """How terms are averaged over time. It knows nothing of policies: a column is a column.

    `fold` takes whole blocks and owns the state it is given (large arrays are changed in place); `read` changes
    nothing and may be given the block that is not finished yet.
    """

    @property
    def drift(self) -> Lipschitz | None:
        """The measure of drift that `fold` and `read` are given; None: none is asked for."""
        return None

    @property
    def measures_drift(self) -> bool:
        """Whether its readings bound the bias from drift."""
        return self.drift is not None

    def start(self, columns: int, block: int) -> State:
        """The state before the first event; `block` is the number of events in a block."""
        raise NotImplementedError

    def fold(self, state: State, blocks: Blocks, pace: Pace) -> State:
        """The state after these whole blocks; `pace` is that of `drift` at the end of each."""
        raise NotImplementedError

    def read(self, state: State, tail: Blocks | None, rate: Array) -> Reading:
        """The moments now, the unfinished block included; `rate` is that of `drift` at the last block end."""
        raise NotImplementedError

    def merge(self, earlier: State, later: State) -> State:
        """The state of two parts of one stream that were folded apart; the earlier one must end where a bucket does.

        Only averages whose weights are fixed beforehand can do this; an adaptive one depends on the order of events.
        """
        raise TypeError(f"{self.kind} depends on the order of events: two of its states cannot be merged")
