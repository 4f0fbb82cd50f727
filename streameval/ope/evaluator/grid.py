"""A grid: some estimators, each on some averages, over the same events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain
from streameval.common.state_columns import transplanted
from streameval.ope.averages import AnyAverage, Average, Mixture, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRate, DriftRateEstimator
from streameval.ope.averages.mixture import MixturePath
from streameval.ope.averages.mixture_bank import ColumnLayout, ComponentBlocks
from streameval.ope.averages.mixture_lift import fold_lifts, lift_layout
from streameval.ope.averages.restart import without_pairs
from streameval.ope.estimators import AnyEstimator, Terms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import Requirements
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences import SequenceTracker, TrackedBounds


class GridReading(NamedTuple):
    """What an average knows: of all policies, and of the lift of all but production; and the bound for both.

    `watched`: the intervals that have been kept all along, where the bound is a confidence sequence.
    """

    average: AnyAverage
    bound: AnyInterval
    reading: Reading
    lift: Reading
    watched: TrackedBounds | None


class Folded(NamedTuple):
    """A grid after some whole blocks.

    `courses`: how the lifts on each mixture, by its label, fared over the blocks that were folded; `kept` [blocks]:
    which ones these are.
    """

    state: State
    courses: dict[str, MixturePath]
    kept: Mask


UNKNOWN_PACE = DriftRate(np.array(np.nan), np.array(np.nan))


@dataclass(frozen=True)
class Grid:
    """Every one of `estimators` on every one of `averages`, whose interval is the bound at the same place.

    All estimators of a grid have the same `needs`: events that do not tell what is needed are missing. `candidates`
    [policies]: whether a policy is one whose behaviour is compared with that of others. `watches`: what keeps the
    confidence sequences of each average, where its bound is one.

    `optional`: nobody has asked for these estimators by name. They cost nothing, and have no rows, while no event has
    what they need: blocks before the first event that has it are left out, and so are all blocks without such an event
    where every average is a mixture, whose clock stands still meanwhile. (An average that forgets by a window must see
    the blocks that push the evidence out.)
    """

    estimators: tuple[AnyEstimator, ...]
    averages: tuple[AnyAverage, ...]
    bounds: tuple[AnyInterval, ...]
    candidates: tuple[bool, ...]
    needs: Requirements
    watches: tuple[SequenceTracker | None, ...]
    optional: bool = False

    @property
    def layout(self) -> ColumnLayout:
        """How the component columns belong together."""
        return ColumnLayout(tuple(estimator.parts for estimator in self.estimators), self.candidates)

    @property
    def measures(self) -> list[DriftRateEstimator]:
        """The measures of drift that the averages ask for, each once."""
        return list(dict.fromkeys(average.drift for average in self._plain if average.drift is not None))

    @property
    def _plain(self) -> list[Average]:
        return [average for average in self.averages if isinstance(average, Average)]

    @property
    def mixes(self) -> bool:
        """Whether an average keeps components apart, and begins with what recent events were like."""
        return any(isinstance(average, Mixture) for average in self.averages)

    def start(self, block: int) -> State:
        """The state before the first event."""
        policies = len(self.candidates)
        columns = policies * len(self.estimators)
        return {
            "seen": np.zeros(policies, dtype=bool),
            "estimators": [estimator.start(policies) for estimator in self.estimators],
            "drift": [measure.start(columns, block) for measure in self.measures],
            "averages": [
                average.start(self.layout, block) if isinstance(average, Mixture) else average.start(columns, block)
                for average in self.averages
            ],
            "lifts": [
                average.start(lift_layout(self.layout), block) if isinstance(average, Mixture) else None
                for average in self.averages
            ],
            "watched": [_start_watch(watch, policies) for watch in self.watches],
        }

    def fold(self, state: State, evidence: Evidence) -> Folded:
        """The state after these whole blocks, and how the lifts on each mixture fared meanwhile."""
        if self._is_idle(state, evidence):
            return Folded(state, {}, np.zeros(evidence.blocks, dtype=bool))
        visible = evidence.of_events_with(self.needs)
        kept = self._kept(state, visible)
        if not kept.any():
            return Folded(state, {}, kept)
        visible = visible.of_blocks(kept)
        terms, remembered, blocks = self._weigh(state, visible)
        parts = _parts(terms, visible) if self.mixes else None
        paces: dict[DriftRateEstimator | None, DriftRate] = {None: UNKNOWN_PACE}
        measured = []
        for measure, before in zip(self.measures, state["drift"], strict=True):
            paces[measure], after = measure.fold(before, blocks)
            measured.append(after)
        averaged, lifts, courses = [], [], {}
        for average, before, lift in zip(self.averages, state["averages"], state["lifts"], strict=True):
            if isinstance(average, Mixture):
                assert parts is not None
                after, course = average.fold(before, blocks, parts, self.layout)
                if len(self.candidates) > 1:
                    lift, courses[average.label] = fold_lifts(average, lift, terms, visible, course, self.layout)
            else:
                after = average.fold(before, blocks, paces[average.drift])
            averaged.append(after)
            lifts.append(lift)
        watched = [
            None if watch is None else watch.fold(before, visible, terms)
            for watch, before in zip(self.watches, state["watched"], strict=True)
        ]
        after = {
            "seen": _seen(state, visible),
            "estimators": remembered,
            "drift": measured,
            "averages": averaged,
            "lifts": lifts,
            "watched": watched,
        }
        return Folded(after, courses, kept)

    def _is_idle(self, state: State, evidence: Evidence) -> bool:
        """Whether no block is folded, as no event has a set of actions: seen without a look at the events."""
        return self.optional and evidence.actions is None and (not self._plain or not state["seen"].any())

    def _kept(self, state: State, visible: Evidence) -> Mask:
        """Which of these blocks are folded, [blocks]."""
        if not self.optional:
            return np.ones(visible.blocks, dtype=bool)
        used = visible.used_blocks
        if len(self._plain) == 0:
            return used
        return np.asarray(np.logical_or.accumulate(used | state["seen"].any()))

    def seen(self, state: State, tail: Evidence | None) -> Mask:
        """Whether a policy has had an event with what is needed, the unfinished block included, [policies]."""
        return np.asarray(state["seen"]) if tail is None else _seen(state, tail.of_events_with(self.needs))

    def read(self, state: State, tail: Evidence | None, errors: Array) -> Iterator[GridReading]:
        """What each average knows now, with the bound for its intervals; the unfinished block included.

        `errors` [policies]: the chance that an interval which may be watched ever misses.
        """
        blocks, late = None, None
        if tail is not None:
            visible = tail.of_events_with(self.needs)
            if self._kept(state, visible).any():
                terms, _, blocks = self._weigh(state, visible)
                late = (visible, terms)
        rates: dict[DriftRateEstimator | None, Array] = {None: UNKNOWN_PACE.rate}
        for measure, measured in zip(self.measures, state["drift"], strict=True):
            rates[measure] = measure.rate(measured)
        watched = [
            None if watch is None else watch.read(seen, late, errors)
            for watch, seen in zip(self.watches, state["watched"], strict=True)
        ]
        every = zip(self.averages, self.bounds, state["averages"], state["lifts"], watched, strict=True)
        for average, bound, averaged, lift, sequence in every:
            if isinstance(average, Mixture):
                reading, gap = average.read(averaged, self.layout), average.read(lift, lift_layout(self.layout))
            else:
                reading = average.read(averaged, blocks, rates[average.drift])
                gap = reading.lift(len(self.estimators))
            yield GridReading(average, bound, reading, gap, sequence)

    def _weigh(self, state: State, evidence: Evidence) -> tuple[list[Terms], list[State], Blocks]:
        """The terms of all estimators, what these remember after them, and the terms side by side as blocks."""
        pairs = zip(self.estimators, state["estimators"], strict=True)
        terms, remembered = zip(*[estimator.terms(evidence, before) for estimator, before in pairs], strict=True)
        return list(terms), list(remembered), _blocks(evidence, [(term.u, term.v) for term in terms])

    def to_state(self, state: State) -> State:
        """The state as a plain value."""
        pairs = zip(self.averages, state["averages"], strict=True)
        averages = [average.to_state(saved) for average, saved in pairs]
        plain: State = to_plain({**state, "averages": averages, "kinds": list(map(repr, self.watches))})
        return plain

    def from_state(self, saved: State, block: int) -> State:
        """The inverse of `to_state`. A confidence sequence that was not kept, or as another kind, begins now."""
        state = from_plain(saved)
        pairs = zip(self.averages, state["averages"], strict=True)
        kept = zip(self.watches, state["watched"], state.pop("kinds"), strict=True)
        watched = [
            _start_watch(watch, len(self.candidates)) if kind != repr(watch) else before for watch, before, kind in kept
        ]
        return {**state, "averages": [average.from_state(kept) for average, kept in pairs], "watched": watched}

    def select_policies(self, state: State, index: Sequence[int | None], block: int) -> State:
        """The state for other policies, production first; `index`: their places here, None for a new one.

        Lifts, and what else compares policies with production, are kept where production stays the first policy, and
        start from zero otherwise.
        """
        lifts_stay = index[0] == 0

        def values(grid: Grid, state: State) -> State:
            return state if lifts_stay else grid._without_lifts(state)

        def start(policies: int) -> State:
            grid = replace(self, candidates=(True,) * policies)
            return values(grid, grid.start(block))

        selected: State = transplanted(values(self, state), start, len(self.candidates), index)
        return (
            selected
            if lifts_stay
            else {**selected, "lifts": replace(self, candidates=(True,) * len(index)).start(block)["lifts"]}
        )

    def _without_lifts(self, state: State) -> State:
        """What the state says of values."""
        watched = [
            None if watch is None else watch.without_lifts(before)
            for watch, before in zip(self.watches, state["watched"], strict=True)
        ]
        averages = [without_pairs(average) for average in state["averages"]]
        kept = {name: state[name] for name in ("seen", "estimators", "drift")}
        return {**kept, "averages": averages, "watched": watched}

    def restrict(self, state: State, part: Grid, block: int) -> State:
        """The state of `part`, a grid of some of these estimators on some of these averages."""
        averages = [self.averages.index(each) for each in part.averages]
        kept = [self.estimators.index(each) for each in part.estimators]
        wide = replace(part, estimators=self.estimators, watches=tuple(self.watches[place] for place in averages))
        measures = [self.measures.index(each) for each in part.measures]
        some = {name: [state[name][place] for place in averages] for name in ("averages", "lifts", "watched")}
        some["drift"] = [state["drift"][place] for place in measures]
        fresh, fewer = wide.start(block), part.start(block)
        policies = {"averages": len(self.candidates), "lifts": len(self.candidates) - 1, "drift": len(self.candidates)}
        cut = {
            name: _cut(some[name], fresh[name], fewer[name], _Columns(count, wide.layout, kept))
            for name, count in policies.items()
        }
        watches = zip(part.watches, some["watched"], strict=True)
        return {
            **cut,
            "seen": state["seen"],
            "estimators": [state["estimators"][place] for place in kept],
            "watched": [None if watch is None else watch.of_some(seen) for watch, seen in watches],
        }


def _seen(state: State, visible: Evidence) -> Mask:
    seen: Mask = state["seen"]
    return seen if seen.all() else np.asarray(seen | (visible.averaging_weight != 0).any(axis=0))


def _start_watch(watch: SequenceTracker | None, policies: int) -> State | None:
    return None if watch is None else watch.start(policies)


def _parts(terms: Sequence[Terms], evidence: Evidence) -> ComponentBlocks:
    """The components of all terms side by side, with what each begins with."""
    recent = evidence.recent
    components = [component for term in terms for component in term.parts(recent.reward)]
    nothing = np.full_like(recent.weight_square, np.nan)
    priors = [nothing if component.prior is None else component.prior for component in components]
    square = recent.weight_square * recent.reward_square[:, None]
    return ComponentBlocks(
        _blocks(evidence, [(component.u, component.v) for component in components], paired=False),
        np.stack(priors, axis=-1).reshape(len(square), -1),
        np.repeat(square, len(components), axis=1),
    )


def _blocks(evidence: Evidence, terms: Sequence[tuple[Array, Array | None]], paired: bool = True) -> Blocks:
    return Blocks.of(
        evidence.blocks,
        evidence.averaging_weight,
        evidence.importance_weight,
        evidence.unsupported,
        terms,
        paired,
        signs=evidence.signs if paired else None,
    ).at(evidence.timestamp)


class _Columns(NamedTuple):
    """Which columns stay of so many `policies` and all estimators of a layout, when these of its estimators stay.

    >>> _Columns(2, ColumnLayout((1, 2, 1), (True, True)), [1]).of(6).tolist()
    [1, 4]
    >>> _Columns(2, ColumnLayout((1, 2, 1), (True, True)), [1]).of(8).tolist()
    [1, 2, 5, 6]
    """

    policies: int
    layout: ColumnLayout
    kept: Sequence[int]

    def of(self, columns: int) -> NDArray[np.intp]:
        """Their places, where there is a column for each estimator, or one for each of its components."""
        per_policy = columns // self.policies
        estimators = np.arange(len(self.layout.components))
        owner = estimators if per_policy == len(estimators) else np.repeat(estimators, self.layout.components)
        return np.flatnonzero(np.tile(np.isin(owner, self.kept), self.policies))


def _cut(state: Any, wide: Any, narrow: Any, columns: _Columns) -> Any:
    """The columns that stay; `wide` and `narrow` are fresh states, which differ in the axis that counts columns."""
    if isinstance(state, dict):
        return {key: _cut(state[key], wide[key], narrow[key], columns) for key in state}
    if isinstance(state, list):
        return [_cut(*each, columns) for each in zip(state, wide, narrow, strict=True)]
    if not isinstance(state, np.ndarray):
        return state
    shapes = zip(wide.shape, narrow.shape, strict=True)
    axis = next((axis for axis, (one, other) in enumerate(shapes) if one != other), None)
    return state if axis is None else np.take(state, columns.of(state.shape[axis]), axis=axis)
