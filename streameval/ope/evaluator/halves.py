"""Sum up weighed events (half 1) and fold the sums into the state (half 2), except for what averages keep.

Half 1, `summarise`, is a pure function of weighed events, and may run in another process. Half 2, `fold`, has the state
and reads the sums alone. Events are weighed with what was learned before their block: propensities, distributions,
rewards, shares of arms and examination curves (`weighing.weighed`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field, structs

from streameval.common.arrays import Array, decayed_path
from streameval.events import EventBatch
from streameval.ope.evaluator import rooms
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.drift_detection import block_means
from streameval.ope.evaluator.grid import Grid, GridSums
from streameval.ope.evaluator.report_rows import policy_totals, support_known
from streameval.ope.evaluator.rewards import ClippedSums
from streameval.ope.evaluator.room import Blocks
from streameval.ope.evaluator.rooms import RoomSums
from streameval.ope.evaluator.state import EvaluatorState, EventState
from streameval.ope.evaluator.weighing import Weighed
from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.actions import Form
from streameval.ope.evidence.evidence import Evidence, RecentMoments, RecentSums, SlateSums, fading_of
from streameval.ope.promotion import MonitorSums, PromotionMonitor, fold_arrivals


class EventSums(NamedTuple):
    """Hold what a batch adds to the counts of events.

    Args:
        accepted: number of accepted events
        rejected: number of rejected events by reason
        newest: newest time, NaN if no event has one
        oldest: oldest time
        clipped: what clipping did, by reward, if it is not folded event by event
    """

    accepted: int
    rejected: dict[str, int]
    newest: float
    oldest: float
    clipped: dict[str, ClippedSums]

    @classmethod
    def from_batch(cls, batch: EventBatch) -> EventSums:
        """Count a batch with its rejected events."""
        newest, oldest = (float(extreme.reduce(batch.timestamp, initial=np.nan)) for extreme in (np.fmax, np.fmin))
        return cls(len(batch), dict(Counter(rejected.reason for rejected in batch.rejected)), newest, oldest, {})

    def fold(self, events: EventState) -> EventState:
        """Return the counts after the batch."""
        rejected = dict(events.rejected)
        for reason, number in self.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + number
        return EventState(
            accepted=events.accepted + self.accepted,
            rejected=rejected,
            newest=_extreme(events.newest, self.newest, max),
            oldest=_extreme(events.oldest, self.oldest, min),
            arrivals=fold_arrivals(events.arrivals, self.accepted, self.rejected),
            clipped=events.clipped
            | {name: events.clipped.get(name, ClippedSums()).with_later(sums) for name, sums in self.clipped.items()},
        )


def _extreme(before: float | None, new: float, extreme: Callable[[float, float], float]) -> float | None:
    """Return the earlier or later one of two times. None and NaN are unknown."""
    if math.isnan(new):
        return before
    return new if before is None else extreme(before, new)


def counted(weighed: Weighed, before: EvaluatorState) -> EvaluatorState:
    """Return the state with the counts and the largest weights after these events, which need not be in order."""
    events, whole, weights = weighed.events, weighed.whole, before.weights
    least = largest_weights.floor(weights)
    largest = largest_weights.summarise(weighed.every[0], events, weights.events, least)
    counts = policy_totals(before.counts, whole, support_known(whole, events))
    return structs.replace(before, counts=counts, weights=largest_weights.fold(weights, largest))


class Sums(Struct, frozen=True, eq=False):
    """Hold what some whole blocks, or the unfinished one, add to the state in half 1.

    Axis 0 of all arrays counts blocks, except for the pieces of a `View`.

    Args:
        recent: sums behind the recent means of each reward, empty if no average needs them
        slates: sums of each reward slot by slot, None without slates
        grids: sums of each grid, empty for the unfinished block
        by_rank: clicks at each rank, None without a learned curve
        means: clipped rewards for the drift detector, None without one
        promotion: sums of the monitor, None without promotion
        rooms: sums by name of the room, for the rooms that have some
    """

    recent: tuple[RecentSums, ...]
    slates: tuple[SlateSums | None, ...]
    grids: tuple[GridSums, ...] = ()
    by_rank: Array | None = None
    means: Array | None = None
    promotion: MonitorSums | None = None
    rooms: RoomSums = field(default_factory=RoomSums)


def summarise(weighed: Weighed, mixes: bool) -> Sums:
    """Return the sums of whole blocks, or of the unfinished one, that a reading needs.

    Args:
        weighed: the events
        mixes: whether an average mixes components, and so needs recent means
    """
    by_rank, whole = None, weighed.whole
    if weighed.curve is not None and whole.clicks is not None:
        by_rank = whole.clicks.by_rank(weighed.curve.logarithm.shape[1], whole.sample_weight, whole.blocks)
    recent = tuple(evidence.recent_steps() for evidence in weighed.every if mixes)
    return Sums(recent, tuple(weighed.slates), by_rank=by_rank)


def summarise_blocks(
    config: EvaluatorConfig,
    grids: Sequence[Grid],
    knowledge: EvaluatorState,
    weighed: Weighed,
    logged: EventBatch,
    monitor: PromotionMonitor | None,
) -> Sums:
    """Return the sums of whole blocks.

    Args:
        config: what is evaluated
        grids: grids of the config
        knowledge: state of the evaluator at some time before, which decides about learned coefficients
        weighed: the events as they are weighed
        logged: the events with their logged propensities
        monitor: promotion, if there is any
    """
    goal, *further = weighed.every
    events, sums = weighed.events, summarise(weighed, any(grid.mixes_components for grid in grids))
    promotion = monitor and monitor.summarise(goal, events.timestamp, events.propensity, events.origin, further)
    return structs.replace(
        sums,
        grids=tuple(
            grid.summarise(grid_state, weighed.every) for grid, grid_state in zip(grids, knowledge.grids, strict=True)
        ),
        means=None if config.drift is None else block_means(goal, config.reward_range),
        promotion=promotion,
        rooms=rooms.summarise(config, knowledge.rooms, Blocks(logged, events, goal)),
    )


class Folded(NamedTuple):
    """Hold the state after some blocks, without grids and promotion, and what averages read of each block.

    Args:
        state: the state after the blocks
        recent: recent means for each reward
        slates: recent means for each reward, in each form that grids read
        by_rank: recent clicks at each rank
    """

    state: EvaluatorState
    recent: list[RecentMoments]
    slates: list[Mapping[Form, RecentMoments]]
    by_rank: Array | None

    def grid_means(self, grid: Grid) -> list[RecentMoments]:
        """Return the means of each reward in the form that a grid reads, or none if no average needs them."""
        if grid.form is None:
            return self.recent
        return [forms.get(grid.form, plain) for forms, plain in zip(self.slates, self.recent, strict=False)]

    def with_means(self, every: Sequence[Evidence]) -> list[Evidence]:
        """Return the evidence of each reward with these means."""
        moments = zip(every, self.recent or repeat(None, len(every)), self.slates, strict=True)
        return [evidence.with_recent(recent, by_form) for evidence, recent, by_form in moments]


def fold(config: EvaluatorConfig, before: EvaluatorState, sums: Sums) -> Folded:
    """Return the state after some blocks, except for grids and promotion."""
    state = structs.replace(before, slates=list(before.slates))
    fading, recent, slates, path = fading_of(config.block), [], [], None
    if sums.recent:
        pairs = zip(before.recent, sums.recent, strict=True)
        recent, state.recent = map(list, zip(*(RecentMoments.folded(*pair, fading) for pair in pairs), strict=True))
    for index, added in enumerate(sums.slates):
        means: Mapping[Form, RecentMoments] = {}
        if added is not None:
            means, state.slates[index] = added.fold(before.slates[index], config.block)
        slates.append(means)
    if sums.by_rank is not None:
        path = decayed_path(before.by_rank, sums.by_rank, fading)
        state.by_rank = path[-1]
    if sums.means is not None and config.drift is not None and before.drift is not None:
        config.drift.update(before.drift, sums.means)
    state.rooms = rooms.fold(config, before.rooms, sums.rooms)
    return Folded(state, recent, slates, path)
