"""Estimate rewards per unit, such as revenue per user and day (`revenue: {max: 200, per_unit: 24h}`).

A unit is a user or a session in the log. For each window of event time, such as a day in UTC, the weighted rewards of a
unit are summed up to `Y_u`. The reward per unit of a policy is the mean of `Y_u` over the distinct units of the window,
with the variance of this mean, so units are the independent observations. A lift is the mean over units of `Y_u` minus
the `Y_u` of production. Intervals are Student's.

Weights correct the actions of each event. They do not correct which units come and how often, which is as in the log.
So this is what units earn at the visits that production brought. A lift relative to production is the relative lift per
event of the window.

A table has a row for each unit of an open window. Windows do not overlap, because a count of distinct units in a moving
window needs all times of all units. The rows are in chunks that are sorted, and merged as soon as the last one is half
as long as the one before, so an event is merged a logarithmic number of times.

Source: Deng, Knoblich & Lu, Applying the delta method in metric analytics, KDD 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, Integers, Mask
from streameval.common.text import parse_duration
from streameval.events.origin import NO_IDENTITY, Identity
from streameval.ope.core.state import Company, select_policies
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.ratios import MOST_LACKING
from streameval.ope.evaluator.room import Blocks, Owned, Present, Room
from streameval.ope.intervals.base import is_enough, ratio_bounds
from streameval.ope.report import UnitEstimate

MOST_ROWS = 2_000_000
"""Rows of a table before it is dropped. Rows of a unit are merged in time, so half as many units always fit."""
MOST_WINDOWS = 500
"""Open windows before only half of them are kept. Windows of wrong times in the future are never over, and have few
events."""
MOST_DROPPED = 10_000
"""Dropped windows that are remembered, the earliest ones, so that they have no value if they come back."""
GRACE = 0.1, 3600.0
"""A window waits for late events for this share of its length, and at most for this many seconds."""


class Units(Struct, frozen=True, eq=False):
    """Hold sums of units, sorted by window and unit.

    Attributes:
        window: number of the window since 1970 [rows]
        unit: fingerprint of the unit [rows]
        earned: weighted rewards [rows, policies]
    """

    window: Integers
    unit: Identity
    earned: Array

    @classmethod
    def merged(cls, window: Integers, unit: Identity, earned: Array) -> Units:
        """Sort rows, and add up rows of one unit."""
        order = np.lexsort((unit, window))
        window, unit = window[order], unit[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (window[1:] != window[:-1]) | (unit[1:] != unit[:-1])
        starts = np.flatnonzero(is_first)
        sums = np.add.reduceat(earned[order], starts, axis=0) if len(starts) else earned
        return cls(window[starts], unit[starts], np.ascontiguousarray(sums))

    @classmethod
    def joined(cls, chunks: Sequence[Units]) -> Units:
        """Merge chunks."""
        names = cls.__struct_fields__
        return cls.merged(*(np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in names))

    def rows(self, kept: Mask) -> Units:
        """Return some of the rows."""
        return Units(self.window[kept], self.unit[kept], self.earned[kept])


class Window(Struct, frozen=True, eq=False):
    """Count the events of a window, and hold the sums of its units once it is over.

    Attributes:
        number: number of the window since 1970
        events: number of its events that have a unit
        left: number of events that are left out for all policies
        lacking: number of events that lack a policy [policies]
        units: number of units
        moments: sums over units of Y, of its squared distance to the mean, of the product of this distance and
            production's, and how many are not 0 [policies, 4]
    """

    number: int
    events: int
    left: int
    lacking: Integers
    units: int
    moments: Array

    @classmethod
    def start(cls, number: int, policies: int) -> Window:
        """Start a window without events."""
        return cls(number, 0, 0, np.zeros(policies, dtype=np.int64), 0, np.zeros((policies, 4)))

    def over(self, earned: Array) -> Window:
        """Return the window with the sums of its units [units, policies]."""
        distance = earned - earned.sum(axis=0) / max(len(earned), 1)  # squares of large rewards would cancel
        products = earned, distance**2, distance * distance[:, :1], (earned != 0).astype(np.float64)
        moments = np.stack([product.sum(axis=0) for product in products], axis=1)
        return structs.replace(self, units=len(earned), moments=moments)

    def is_known(self) -> Mask:
        """Return whether nearly all events of the window count [policies]."""
        return np.asarray(self.left + self.lacking <= MOST_LACKING * (self.events + self.left)) & (self.units > 0)


class UnitState(Struct, frozen=True, eq=False):
    """Hold what is known about one reward.

    Attributes:
        chunks: sums of the units of open windows
        windows: the open windows, in order
        first: number of the window of the first event, which may have begun before it
        passed: number of the first window that is still open
        last: the last whole window that is over
        dropped: numbers of later windows that were dropped, and of their events [windows, 2]
    """

    chunks: list[Units]
    windows: list[Window]
    first: int | None = None
    passed: int | None = None
    last: Window | None = None
    dropped: Integers | None = None

    def after(self, seconds: float, times: Array, units: Identity, earned: Array) -> UnitState:
        """Return the state after a block.

        Args:
            seconds: the length of a window
            times: times of the events
            units: units of the events, `NO_IDENTITY` for events that are left out
            earned: weighted rewards, NaN for events that lack a policy [events, policies]
        """
        is_timed = np.isfinite(times)
        if not is_timed.any():
            return self
        median = float(np.median(times[is_timed]))
        number = np.floor(np.where(is_timed, times, median) / seconds).astype(np.int64)
        first = math.floor(median / seconds) if self.first is None else self.first
        passed = first if self.passed is None else self.passed
        is_open, last = number >= passed, self.last
        if last is not None:  # events of windows before it change no number
            last = structs.replace(last, left=last.left + int((~is_open & (number == last.number)).sum()))
        counts = is_timed & is_open & (units != NO_IDENTITY) & np.isfinite(earned[:, 0])
        open_windows = {window.number: window for window in self.windows}
        for one in np.unique(number[is_open]).tolist():
            own = number == one
            lacking = np.isnan(earned[own & counts]).sum(axis=0)
            window = open_windows.get(one) or self._started(one, earned.shape[1])
            open_windows[one] = structs.replace(
                window,
                events=window.events + int((own & counts).sum()),
                left=window.left + int((own & ~counts).sum()),
                lacking=window.lacking + lacking,
            )
        added = Units.merged(number[counts], units[counts], np.nan_to_num(earned[counts]))
        chunks = [*self.chunks, *([added] if len(added.unit) else [])]
        while len(chunks) > 1 and 2 * len(chunks[-1].unit) >= len(chunks[-2].unit):
            chunks[-2:] = [Units.joined(chunks[-2:])]
        windows = [open_windows[one] for one in sorted(open_windows)]
        if sum(len(chunk.unit) for chunk in chunks) > MOST_ROWS:
            windows = [structs.replace(window, left=window.left + window.events) for window in windows]
            chunks = []
        until = math.floor((median - min(GRACE[0] * seconds, GRACE[1])) / seconds)
        state = structs.replace(self, chunks=chunks, windows=windows, first=first, last=last).closed(until)
        return state if len(state.windows) <= MOST_WINDOWS else state.crowded(math.floor(median / seconds))

    def _started(self, number: int, policies: int) -> Window:
        """Start a window, which leaves out the events that it had when it was dropped."""
        left = 0 if self.dropped is None else int(self.dropped[self.dropped[:, 0] == number, 1].sum())
        return structs.replace(Window.start(number, policies), left=left)

    def crowded(self, now: int) -> UnitState:
        """Return the state without the later windows that have the fewest events, and of these without the latest."""
        by_use = sorted(self.windows, key=lambda one: (one.number > now, -one.events - one.left, one.number))
        numbers = {window.number for window in by_use[: MOST_WINDOWS // 2]}
        chunks = [chunk.rows(np.isin(chunk.window, list(numbers))) for chunk in self.chunks]
        windows = [window for window in self.windows if window.number in numbers]
        known = {} if self.dropped is None else {number: left for number, left in self.dropped.tolist() if number > now}
        known |= {one.number: one.events + one.left for one in self.windows if one.number not in numbers}
        dropped = np.array(sorted(known.items())[:MOST_DROPPED], dtype=np.int64)
        chunks = [chunk for chunk in chunks if len(chunk.unit)]
        return structs.replace(self, chunks=chunks, windows=windows, dropped=dropped)

    def closed(self, until: int) -> UnitState:
        """Return the state in which windows before this number are over."""
        if not self.windows or self.windows[0].number >= until:
            return self
        rows = Units.joined(self.chunks) if self.chunks else None
        last, is_open = self.last, [window for window in self.windows if window.number >= until]
        for window in self.windows:
            if window.number < until and self.first is not None and window.number > self.first:
                last = window if rows is None else window.over(rows.earned[rows.window == window.number])
        kept = None if rows is None else rows.rows(rows.window >= until)
        chunks = [] if kept is None or not len(kept.unit) else [kept]
        return structs.replace(self, chunks=chunks, windows=is_open, passed=until, last=last)


class UnitSums(Struct, frozen=True, eq=False):
    """Hold what blocks add.

    Attributes:
        times: times of events [blocks, events]
        units: units of events, `NO_IDENTITY` for events that are left out [blocks, events]
        earned: weighted rewards by name, NaN for events that lack a policy [blocks, events, policies]
    """

    times: Array
    units: Identity
    earned: dict[str, Array]


States = dict[str, UnitState]
"""States by name of the reward."""


def start(config: EvaluatorConfig) -> States | None:
    """Start before the first event, with None if no reward per unit is asked for."""
    return {reward.name: UnitState([], []) for reward in config.rewards if reward.per_unit} or None


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: States | None) -> States | None:
    """Return the state of the config `before` under another one, which has the same rewards."""
    kept = [before.policies.index(name) for name in config.policies]
    return None if state is None else {name: _selected(known, kept) for name, known in state.items()}


def _selected(state: UnitState, kept: Sequence[int]) -> UnitState:
    chunks = [structs.replace(chunk, earned=chunk.earned[:, kept]) for chunk in state.chunks]
    windows, last = select_policies(state.windows, kept), state.last and select_policies(state.last, kept)
    return structs.replace(state, chunks=chunks, windows=windows, last=last)


def join(_both: EvaluatorConfig, own: Owned, late: Owned, company: Company) -> States | None:
    """Return the state of a config that joins two others. A new policy lacks the windows that it has not seen whole."""
    if own.state is None:
        return None
    return {name: _joined(known, late.state[name], company) for name, known in own.state.items()}


def _joined(state: UnitState, late: UnitState, company: Company) -> UnitState:
    others = {window.number: window for window in late.windows}
    if late.last is not None:
        others[late.last.number] = late.last

    def both(window: Window) -> Window:
        other = others.get(window.number)
        if other is None or (other.events, other.left, other.units) != (window.events, window.left, window.units):
            other = Window.start(window.number, company.late)
            other = structs.replace(other, lacking=other.lacking + window.events)
        new = slice(company.late - company.new, None)
        lacking = np.concatenate([window.lacking, other.lacking[new]])
        return structs.replace(window, lacking=lacking, moments=np.concatenate([window.moments, other.moments[new]]))

    chunks = [(chunk, 0) for chunk in state.chunks] + [(chunk, company.before) for chunk in late.chunks]
    padded = []
    for chunk, first in chunks:
        earned = np.zeros((len(chunk.unit), company.before + company.new))
        new = chunk.earned[:, len(chunk.earned[0]) - company.new :] if first else chunk.earned
        earned[:, first : first + new.shape[1]] = new
        padded.append(structs.replace(chunk, earned=earned))
    numbers = [window.number for window in state.windows]
    rows = Units.joined(padded) if padded else None
    kept = [] if rows is None else [rows.rows(np.isin(rows.window, numbers))]
    windows, last = [both(window) for window in state.windows], state.last and both(state.last)
    return structs.replace(state, chunks=kept, windows=windows, last=last)


def summarise(config: EvaluatorConfig, state: States, blocks: Blocks) -> UnitSums:
    """Return times, units and weighted rewards of the events of whole blocks (half 1)."""
    events, weight = blocks.events, np.where(blocks.goal.sample_weight > 0, blocks.goal.importance_weight, np.nan)
    units = np.full(len(events), NO_IDENTITY) if events.unit is None else events.unit
    units = np.where(events.sampling_probability == 1.0, units, NO_IDENTITY)  # units without a kept event are unknown
    rows, earned = len(events) // config.block, {}
    for reward in config.rewards:
        if reward.name in state:
            values = (events if reward is config.rewards[0] else events.of_reward(reward.name)).reward
            earned[reward.name] = (weight * values[:, None]).reshape(rows, config.block, -1)
    times = events.timestamp.reshape(rows, config.block)
    return UnitSums(times, units.reshape(rows, config.block), earned)


def fold(config: EvaluatorConfig, state: States, sums: UnitSums) -> States:
    """Return the state after these sums, to the last bit the same however many blocks they have (half 2)."""
    after = dict(state)
    for reward in config.rewards:
        if reward.per_unit:
            seconds = parse_duration(reward.per_unit)
            for block in zip(sums.times, sums.units, sums.earned[reward.name], strict=True):
                after[reward.name] = after[reward.name].after(seconds, *block)
    return after


def rows(config: EvaluatorConfig, state: States, _present: Present) -> dict[str, tuple[UnitEstimate, ...]]:
    """Return the rewards per unit of the last whole window for the Report."""
    return {"per_unit": tuple(_rows(config, state))}


def _rows(config: EvaluatorConfig, state: States) -> Iterator[UnitEstimate]:
    for reward in config.rewards:
        window = state[reward.name].last if reward.per_unit else None
        if window is not None and reward.per_unit:
            seconds, numbers = parse_duration(reward.per_unit), _numbers(window, config.confidence)
            span = window.number * seconds, (window.number + 1) * seconds
            for index, policy in enumerate(config.policies):
                row = {name: float(column[index]) for name, column in numbers.items()}
                known: dict[str, Any] = {
                    name: number if math.isfinite(number) else None for name, number in row.items()
                }
                yield UnitEstimate(policy, reward.name, *span, window.units, window.events, **known)


def _numbers(window: Window, confidence: float) -> dict[str, Array]:
    """Return the numbers of the policies by name, NaN if they are unknown."""
    from scipy.special import stdtrit  # slow to import

    count = max(window.units, 1)
    total, square, product, nonzero = window.moments.T
    mean, base = total / count, np.full(len(total), total[0] / count)
    squares = np.stack([square, np.full(len(total), square[0]), square - 2 * product + square[0]])
    freedom = max(count - 1, 1)
    quantile = stdtrit(freedom, (1 + confidence) / 2)
    width, of_base, of_lift = quantile * np.sqrt(np.maximum(squares, 0.0) / (freedom * count))
    lift = mean - base
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (width**2 - of_base**2 - of_lift**2) / (2 * of_base * of_lift)
        sign = np.where(base < 0, -1.0, 1.0)
        bases = (sign * base, sign * base - of_base, sign * base + of_base)
        relative = ratio_bounds((lift, lift - of_lift, lift + of_lift), bases, sign * np.nan_to_num(correlation))
        ratios = np.where(np.isnan(relative[0]), np.nan, lift / np.abs(base))
    numbers = {"value": mean, "lower": mean - width, "upper": mean + width}
    lifts = {"lift": lift, "lift_lower": lift - of_lift, "lift_upper": lift + of_lift}
    lifts |= {"lift_ratio": ratios, "lift_ratio_lower": relative[0], "lift_ratio_upper": relative[1]}
    known, enough = window.is_known(), is_enough(nonzero)
    is_candidate = np.arange(len(total)) > 0
    return {
        name: np.where(
            known & (enough | (name in ("value", "lift"))) & (is_candidate | (name in numbers)), column, np.nan
        )
        for name, column in (numbers | lifts).items()
    }


ROOM = Room("per_unit", start, resume, join, summarise=summarise, sums=UnitSums, fold=fold, rows=rows)
