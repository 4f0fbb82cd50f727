"""Define the base of averages: a frozen value that folds the sums of blocks into a state, and reads moments from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Integers
from streameval.common.component import Component, strict
from streameval.ope.core import kernel, past
from streameval.ope.core.bank import Bank
from streameval.ope.core.drift_rate import DriftRateEstimator
from streameval.ope.core.layout import Layout
from streameval.ope.core.moments import MomentRow
from streameval.ope.core.past import LONGER, Past, Steps, Tables
from streameval.ope.core.reading import Lift, Reading
from streameval.ope.core.selection import Selection
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.core.summary import BlockSeries, BlockSums, View


class Path(NamedTuple):
    """Hold what is known about the terms of some blocks, at the end of each.

    Attributes:
        sums: the sums of the blocks
        steps: what they add to variances
        rate: the drift rate, if the average needs it [B, P, E]
        reads: whether lifts need a reading after each block, which a season gives for one block only
    """

    sums: BlockSums
    steps: Steps
    rate: Array | None
    reads: bool = False


class Step(NamedTuple):
    """Say how an average takes in a block: `moments = factor moments + share block`.

    Each is one number, or one a block, or [B, P, E].

    Attributes:
        factor: the weight of everything before the block
        share: the weight of an event of the block
        memory: the horizon of the average in events, a tenth of the horizon of its variance
    """

    factor: Array | float
    share: Array | float
    memory: Array | float


@dataclass(frozen=True, kw_only=True, config=strict)
class Average(Component):
    """Average terms over time, without knowing what the columns stand for.

    Attributes:
        default_interval: the kind of interval that the coverage study recommends
        mixes_components: whether the average keeps the components of a term apart, starts from recent evidence, and
            reports lifts that promotion can use
        drift_on_request: whether the drift rate is measured only if an interval includes it
        preference: plots show the average with the lowest number
        weighting: how events are weighted if `last_events` is unknown, as the predicate of a sentence about the average
    """

    default_interval: ClassVar[str] = "empirical_likelihood"
    mixes_components: ClassVar[bool] = False
    drift_on_request: ClassVar[bool] = False
    preference: ClassVar[int] = 3
    weighting: ClassVar[str] = "forgets gradually"
    alike: ClassVar[bool] = True

    @property
    def drift(self) -> DriftRateEstimator | None:
        """Return the estimator of the drift rate that the average needs, if any."""
        return None

    @property
    def last_events(self) -> float | None:
        """Return the number of newest events that count alike, if it is fixed. Infinite if all of them do."""
        return None

    @property
    def factor(self) -> float | None:
        """Return the weight of an event relative to the next one, if it is fixed. It is 1 if events count alike."""
        return None

    @property
    def time_span(self) -> float | None:
        """Return the seconds of the newest events that count alike, if they are fixed."""
        return None

    @property
    def time_half_life(self) -> float | None:
        """Return the seconds in which the weight of an event halves, if they are fixed."""
        return None

    @property
    def effective_events(self) -> float | None:
        """Return the number of equally weighted events with the same variance, if it is fixed and finite."""
        return None

    def check(self, block: int) -> None:
        """Check that the average can work with blocks of this many events.

        Raises:
            ValueError: The average cannot work with such blocks.
        """

    def view(self, events: BlockSeries, state: Any) -> View | None:
        """Sum up what the average needs of events besides the sums of blocks, None for nothing."""
        return None

    def start(self, bank: Bank) -> Any:
        """Start before the first event."""
        raise NotImplementedError

    def fold(self, state: Any, path: Path, bank: Bank) -> Lift | None:
        """Fold whole blocks into the state, which changes, and return lifts if the average mixes components."""
        raise NotImplementedError

    def read(self, state: Any, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        """Read the moments now, the unfinished block included. `rate`: at the end of the last block [P, E]."""
        raise NotImplementedError

    def select(self, state: Any, selection: Selection) -> Any:
        """Return the state for some of the estimators. The policies are selected before."""
        raise NotImplementedError

    def select_policies(self, state: Any, index: Sequence[int]) -> Any:
        """Return the state for some of the policies, production first."""
        return select_policies(state, index)

    def join(self, state: Any, late: Any, company: Company, bank: Bank) -> Any:
        """Return the state with the new policies of a late one, which may change. `bank`: of the first one."""
        return joined(state, late, company)


class Sums(msgspec.Struct):
    """Hold the state of an average that fades.

    Attributes:
        moments: [P, E or 1, rows]
        past: the sums behind its variance
        events: the number of events since each policy was added [P]
    """

    moments: Array
    past: Past
    events: Integers


@dataclass(frozen=True, kw_only=True, config=strict)
class Fading(Average):
    """Average with weights that fade from block to block. A subclass must only define `step`.

    Attributes:
        alike: whether all estimators of a policy fade alike, and share their moments
    """

    def step(self, path: Path, state: Any, bank: Bank) -> Step:
        """Return how each of these blocks is taken in. `state.events`: how many events came before them [P]."""
        raise NotImplementedError

    def tail_step(self, state: Any, tail: BlockSums, bank: Bank) -> Step:
        """Return how the unfinished block is taken in: by default as a whole block of fewer events.

        An average that follows the drift rate has its own: `step` gets no rate here.
        """
        nothing = tail.rows[..., :0]
        return self.step(Path(tail, Steps(tail.rows, nothing, nothing), None), deepcopy(state), bank)

    def diagnose(self, state: Any, rate: Array | None, events: Array) -> tuple[Array | None, Mapping[str, Array]]:
        """Return a bound on the bias from drift, and details, [columns] each. `events`: since the start [columns]."""
        return None, {}

    def rows(self, sums: BlockSums) -> Array:
        """Return the rows of blocks that are folded."""
        return sums.rows

    def start(self, bank: Bank) -> Sums:
        table = self._tables(bank)
        shape = bank.kept[None].shape if self.alike else bank.layout.moment_table.shape
        events = np.zeros(bank.policies, dtype=np.int64)
        return Sums(np.zeros((bank.policies, *shape)), past.start(bank.policies, table), events)

    def fold(self, state: Any, path: Path, bank: Bank) -> Lift | None:
        step, blocks = self.step(path, state, bank), len(path.sums)
        self._accumulate(state.moments, self.rows(path.sums), step, bank, self.lost(state))
        fading = np.exp(-path.sums.size / (LONGER * _by_column(step.memory, blocks)))
        past.fold(state.past, path.steps, self._tables(bank), fading)
        state.events = state.events + blocks * path.sums.size
        return None

    def read(self, state: Any, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        moments, events = state.moments, state.events
        if tail is not None:
            moments, events = moments.copy(), events + tail.size
            late = self.tail_step(state, tail, bank)
            self._accumulate(moments, self.rows(tail), late, bank, self.lost(state).copy())
        estimator_moments = bank.moments(moments[:, 0]) if self.alike else moments.reshape(-1, moments.shape[-1])
        columns = np.repeat(events.astype(float), bank.columns)
        bias, details = self.diagnose(state, None if rate is None else rate.ravel(), columns)
        return reading(state.past, self._tables(bank), estimator_moments, tail, bias, details, bank)

    def select(self, state: Any, selection: Selection) -> Any:
        state.moments = state.moments[..., selection.kept] if self.alike else state.moments[:, selection.columns]
        state.moments = np.ascontiguousarray(state.moments)
        state.past = selection.past(state.past, self.alike)
        return state

    def _tables(self, bank: Bank) -> Tables:
        return bank.shared if self.alike else bank.apart

    def lost(self, state: Any) -> Array:
        """Return what rounding has added to the moments, or empty if the average forgets it anyway."""
        return kernel.NOTHING

    def _accumulate(self, moments: Array, rows: Array, step: Step, bank: Bank, lost: Array) -> None:
        take = bank.kept[None] if self.alike else bank.layout.moment_table
        power = bank.power if self.alike else bank.layout.power[bank.layout.moment_table[0]]
        factor, share = (_by_column(factors, len(rows)) for factors in (step.factor, step.share))
        kernel.accumulate(moments, rows, take, power, factor, np.broadcast_to(share, factor.shape).copy(), lost)


def reading(
    before: Past,
    tables: Tables,
    moments: Array,
    tail: BlockSums | None,
    bias: Array | None,
    details: Mapping[str, Array],
    bank: Bank,
) -> Reading:
    """Make a reading with the variances of a past."""
    late = None if tail is None else past.tail_rows(tail, bank.layout)
    return Reading(moments, past.expanded(before, tables), late, bias, details)


def _by_column(values: Array | float, blocks: int) -> Array:
    """Return numbers as [B, P or 1, E or 1]."""
    columns = np.asarray(values, dtype=float)
    if columns.ndim < 3:
        columns = np.broadcast_to(columns, (blocks,))[:, None, None]
    return np.ascontiguousarray(columns)


def terms_of(sums: BlockSums, layout: Layout) -> Array:
    """Return the sums of weights, numerators and denominators of each column, [B, P, E, 3]."""
    table = layout.moment_table[:, MomentRow.WEIGHT : MomentRow.V + 1]
    return np.ascontiguousarray(sums.rows[..., table])


__all__ = ["Average", "Fading", "Path", "Step", "Sums", "reading", "terms_of"]
