"""Sums over buckets of time, which are the same however a stream is cut, and the averages that they make.

Where several processes fold a stream, there is no order of all events, and so no block of 100 consecutive ones. A
bucket of time takes the place of the block: the events of a second, whatever partition they come from. Sums over a
bucket add up, and maxima compare, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, Mask, State
from streameval.ope.averages import AnyAverage
from streameval.ope.averages.adaptive import Adaptive
from streameval.ope.averages.moments import (
    MAXIMA,
    NONZERO,
    OWN_TOTALS,
    PAIRS,
    ROWS,
    TERM_SUMS,
    TERMS,
    MomentRow,
    PairRow,
    fade,
    merge,
    nothing,
    sum_of_squares,
    total,
)
from streameval.ope.averages.variance import SIGNS

NO_TIME = int(np.iinfo(np.int64).min)
"""The bucket of events without a timestamp."""
LONGEST_BUCKET, LONGEST_BLOCK, SHORTEST_BUCKET = Fraction(1), Fraction(1, 8), Fraction(1, 100)
"""Seconds of a bucket, and of one that may be a block of a mixture, which is little worse with blocks of 1,000 events.
"""
FOLDED_AT_ONCE = 100
"""Blocks of one size that an average folds at once."""
WINDOW_PARTS = 100
"""The parts of a window of time, of which the oldest is dropped as a whole."""
ALIKE = "alike"
"""The name of moments in which all events of a bucket count alike."""


@dataclass(frozen=True)
class Buckets:
    """Sums and maxima of some events by bucket of time, [buckets, ...] each.

    `numbers` [buckets]: in ascending order, `NO_TIME` first. `moments` by name: [buckets, columns, rows]; `sums` by
    name are plain sums, but maxima where the name starts with `largest`. A name that a table lacks has sums of 0.
    """

    numbers: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    moments: Mapping[str, Array] = field(default_factory=dict)
    sums: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @classmethod
    def of_blocks(cls, numbers: Integers, moments: Mapping[str, Array], sums: Mapping[str, Array]) -> Buckets:
        """From numbers per block, [blocks, ...]; `numbers` [blocks]: the bucket of each, in ascending order."""
        if not len(numbers):
            return cls()
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        return cls(
            numbers[starts],
            {name: _grouped(rows, starts) for name, rows in moments.items()},
            {name: _adding(name).reduceat(rows, starts, axis=0) for name, rows in sums.items()},
        )

    def merge(self, other: Buckets) -> Buckets:
        """The sums of the events of both, which are disjoint."""
        if not len(other) or not len(self):
            return self if len(self) else other
        numbers = np.union1d(self.numbers, other.numbers)
        places = [np.searchsorted(numbers, each.numbers) for each in (self, other)]

        def joined(parts: Sequence[Array | None], add: Callable[[Array, Array], Array]) -> Array:
            shape = next(part.shape[1:] for part in parts if part is not None)
            whole = np.zeros((len(numbers), *shape))
            for place, part in zip(places, parts, strict=True):
                if part is not None:
                    whole[place] = add(whole[place], part)
            return whole

        return Buckets(
            numbers,
            {
                name: joined([each.moments.get(name) for each in (self, other)], merge)
                for name in _names(self, other, 0)
            },
            {
                name: joined([each.sums.get(name) for each in (self, other)], _adding(name))
                for name in _names(self, other, 1)
            },
        )

    def where(self, kept: Mask) -> Buckets:
        """Some of the buckets; `kept` [buckets]."""
        return Buckets(
            self.numbers[kept],
            {name: rows[kept] for name, rows in self.moments.items()},
            {name: rows[kept] for name, rows in self.sums.items()},
        )

    def numbered(self, numbers: Integers) -> Buckets:
        """The sums by other numbers, in ascending order; those with the same number become one bucket."""
        return Buckets.of_blocks(numbers, self.moments, self.sums)

    def to_state(self) -> State:
        return {"numbers": self.numbers, "moments": dict(self.moments), "sums": dict(self.sums)}

    @classmethod
    def from_state(cls, state: State) -> Buckets:
        return cls(state["numbers"], state["moments"], state["sums"])


def _names(one: Buckets, other: Buckets, place: int) -> list[str]:
    first, second = ((each.moments, each.sums)[place] for each in (one, other))
    return list(dict.fromkeys([*first, *second]))


def _adding(name: str) -> np.ufunc:
    """How numbers of this name add up: of those that are called `largest`, the larger one counts."""
    return np.maximum if name.startswith("largest") else np.add


def _grouped(rows: Array, starts: Integers) -> Array:
    """Moments by block as moments by bucket."""
    added = np.add.reduceat(rows, starts, axis=0)
    added[..., MAXIMA] = np.maximum(np.maximum.reduceat(rows[..., MAXIMA], starts, axis=0), 0.0)
    return added


@dataclass(frozen=True)
class SummedBlocks:
    """Blocks of which the sums are known, and no event: whole buckets of time in order, as averages read `Blocks`.

    `events` [blocks]. `moments` [blocks, columns, rows] with pair sums, and what `variance` reads of them: `spread` and
    `compared`, empty for components. `parts`: the components of all terms, where an average mixes them. `prior`,
    `prior_square`: of components. `ratio` [columns of a policy]: whether the term has a denominator. Of candidates
    alone, [blocks, columns]: `events_of_both`; `differ`, the events with another term than production;
    `distance_square`, the second moment assumed for a lift. `ones` [blocks, columns, signs]: the signed sums of the
    events of both; None without units.
    """

    events: Integers
    moments: Array
    spread: Array
    compared: dict[str, Array]
    ratio: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))
    parts: SummedBlocks | None = None
    prior: Array = field(default_factory=lambda: np.zeros((0, 0)))
    prior_square: Array = field(default_factory=lambda: np.zeros((0, 0)))
    events_of_both: Array = field(default_factory=lambda: np.zeros((0, 0)))
    differ: Array = field(default_factory=lambda: np.zeros((0, 0)))
    distance_square: Array = field(default_factory=lambda: np.zeros((0, 0)))
    ones: Array | None = None

    def __len__(self) -> int:
        return len(self.events)

    @property
    def components(self) -> SummedBlocks:
        assert self.parts is not None
        return self.parts

    @property
    def unpaired(self) -> SummedBlocks:
        """The same terms without pair sums: see `Blocks.unpaired`."""
        compared = {"totals": self.spread[..., OWN_TOTALS]}
        if "signed" in self.compared:
            signed = self.compared["signed"]
            compared["signed"] = np.concatenate([signed[..., :1], signed[..., 2 + len(TERMS) * SIGNS :]], axis=-1)
        return replace(self, spread=self.spread[..., : NONZERO + 1], compared=compared)

    @cached_property
    def variance_steps(self) -> list[object]:
        return []

    def lifts(self, centres: Array, denominators: Array, components: Sequence[int], rewards: int) -> SummedBlocks:
        """The differences of all terms to those of production, and of their components: see `Blocks.lifts`.

        A difference is a linear form of 1 and of both policies' numerators and denominators. So its sums follow from
        the pair sums.
        """
        parts, blocks = sum(components), len(self)
        around = centres.reshape(blocks, -1, parts), denominators.reshape(blocks, -1, parts)
        form = _difference(around[0], around[1], self.components.ratio)
        known = np.isfinite(form).all(axis=-1).reshape(blocks, -1, rewards, parts // rewards)
        known = np.repeat(known.all(axis=-1), parts // rewards, axis=-1)
        form = np.where(known[..., None], form, 0.0)
        first = np.cumsum([0, *components[:-1]])
        whole = self._lifts(form[:, :, first], known[:, :, first])
        return replace(whole, parts=self.components._lifts(form, known))

    def _lifts(self, form: Array, known: Mask) -> SummedBlocks:
        """The blocks of the differences with this form [blocks, candidates, columns, 5]."""

        def of_candidates(rows: Array) -> Array:
            by_policy = rows.reshape(len(self), -1, form.shape[2], rows.shape[-1])
            return by_policy[:, -form.shape[1] :] * known[..., None]

        def by_column(rows: Array) -> Array:
            return rows.reshape(len(self), -1, rows.shape[-1])

        every, pairs = of_candidates(self.moments), of_candidates(self.moments[..., PAIRS])
        weight, parts = pairs[..., PairRow.WEIGHT], form * pairs[..., : PairRow.FIRST_PRODUCT]
        total, size = parts.sum(axis=-1), np.abs(parts).sum(axis=-1)
        total = np.where(np.abs(total) <= ROUNDING * size, 0.0, total)
        square = sum_of_squares(form, pairs[..., : PairRow.WEIGHT_SQUARE])
        moments = np.zeros((*weight.shape, ROWS))
        terms = (weight, total, weight, square, total, weight)
        moments[..., TERM_SUMS] = np.stack(terms, axis=-1)
        for row in ("IMPORTANCE", "IMPORTANCE_SQUARE", "WEIGHT_SQUARE"):
            moments[..., MomentRow[row]] = pairs[..., PairRow[row]]
        moments[..., MomentRow.LARGEST_IMPORTANCE] = every[..., MomentRow.LARGEST_IMPORTANCE]
        differ = self.differ.reshape(weight.shape) if self.differ.size else np.zeros_like(weight)
        others = (pairs[..., PairRow.WEIGHT_SQUARE], weight > 0, np.where(square > 0, differ, 0.0))
        spread = by_column(np.stack([*terms, *others], axis=-1))
        compared = {"totals": spread[..., OWN_TOTALS]}
        if self.ones is not None:
            rows = of_candidates(self.compared["signed"])
            ones = of_candidates(self.ones)
            of_terms = rows[..., 2 : 2 + len(TERMS) * SIGNS].reshape(*rows.shape[:-1], len(TERMS), SIGNS)
            signed = np.einsum("bpct,bpcts->bpcs", form, np.concatenate([ones[..., None, :], of_terms], axis=-2))
            compared["signed"] = by_column(np.concatenate([rows[..., 1:2], signed, ones], axis=-1))
        return SummedBlocks(
            self.events,
            by_column(moments),
            spread,
            compared,
            prior=np.zeros_like(self.distance_square),
            prior_square=self.distance_square,
        )


def _difference(centre: Array, denominator: Array, ratio: Mask) -> Array:
    """The difference to production of each column as a linear form, [blocks, candidates, columns, 5].

    Of 1 and of TERMS. A ratio is linearised around the centres.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        own, slope = 1.0 / denominator, -centre / denominator
    every = np.broadcast_to
    shape = centre[:, 1:].shape
    linear = (
        centre[:, 1:] - centre[:, :1],
        own[:, 1:],
        slope[:, 1:],
        every(-own[:, :1], shape),
        every(-slope[:, :1], shape),
    )
    plain = np.array([0.0, 1.0, 0.0, -1.0, 0.0])
    return np.where(ratio[:, None], np.stack(linear, axis=-1), plain)


@dataclass(frozen=True)
class EvenBlocks:
    """Blocks of one size, made of sums of larger ones, as averages that choose their own memory read `Blocks`.

    All events of a larger block count as alike: its sums are spread evenly over them. `moments` [blocks, columns,
    rows]. `size`: events in each block.
    """

    moments: Array
    size: int

    def __len__(self) -> int:
        return len(self.moments)

    @property
    def spread(self) -> Array:
        """The sums of terms, which are the first rows of moments as of a variance."""
        return self.moments


def start_rest(columns: int, block: int) -> State:
    """The events behind the last of the blocks of this size before the first event: see `evenly`."""
    return {"block": block, "events": 0, "moments": nothing(columns)}


def evenly(rest: State, blocks: SummedBlocks) -> tuple[Iterator[EvenBlocks], State]:
    """These blocks in blocks of one size, a few at a time, and the rest of events after them.

    `rest`: that of the blocks before. Each of `blocks` has as many events as a block of the one size, or more.
    """
    size, moments = rest["block"], np.concatenate([rest["moments"][None], blocks.moments])
    events = np.concatenate([[rest["events"]], blocks.events])
    ends = np.cumsum(events)
    count, left = divmod(int(ends[-1]), size)

    def cut(start: int) -> EvenBlocks:
        edges = size * np.arange(start, min(start + FOLDED_AT_ONCE, count))
        first, last = (np.searchsorted(ends, edges + inside, side="right") for inside in (0, size - 1))
        in_last = edges + size - np.maximum(edges, ends[last] - events[last])
        shares = (size - in_last) / events[first], in_last / events[last]
        parts = [moments[place] for place in (first, last)]
        even = sum(part * share[:, None, None] for part, share in zip(parts, shares, strict=True))
        even[..., MAXIMA] = np.maximum(*(part[..., MAXIMA] for part in parts))
        return EvenBlocks(even, size)

    after = moments[-1] * (left / max(int(events[-1]), 1))
    after[..., MAXIMA] = moments[-1][..., MAXIMA]
    return map(cut, range(0, count, FOLDED_AT_ONCE)), {"block": size, "events": left, "moments": after}


@dataclass(frozen=True)
class TimeKernel:
    """An average whose weights depend on the age of a bucket alone; this one weighs all events alike.

    `name`: that of the moments of a bucket that it reads, and of the sums with the number of its events. `memory`: the
    mean age of the averaged events, in buckets, as far as a variance must know it.
    """

    name: str = ALIKE
    memory: float = math.inf

    def start(self, columns: int) -> State:
        """The state before the first event."""
        return {"events": 0.0, "moments": nothing(columns)}

    def add(self, state: State, numbers: Integers, moments: Array, events: Array) -> State:
        """The state with some buckets, [buckets, columns, rows], and the number of events in each."""
        return {
            "events": state["events"] + float(events.sum()),
            "moments": merge(state["moments"], total(moments)) if len(numbers) else state["moments"],
        }

    def read(self, state: State, number: int, ahead: float) -> tuple[Array, dict[str, Array]]:
        """The moments when the clock is in bucket `number`, `ahead` buckets before its end; and details."""
        return state["moments"], {}

    def weights(self, seconds: Array) -> Array:
        """The weight of events within their bucket, from the seconds until its end."""
        return np.ones_like(seconds)


@dataclass(frozen=True)
class WindowKernel(TimeKernel):
    """The events of the last 99 to 100 parts of a window count alike; `per_part`: buckets of a part."""

    per_part: int = 1

    def start(self, columns: int) -> State:
        moments = np.zeros((0, *nothing(columns).shape))
        return {"numbers": np.zeros(0, dtype=np.int64), "events": np.zeros(0), "moments": moments}

    def add(self, state: State, numbers: Integers, moments: Array, events: Array) -> State:
        known = numbers != NO_TIME
        if not known.any():
            return state
        before = Buckets(state["numbers"], {ALIKE: state["moments"]}, {ALIKE: state["events"]})
        new = Buckets.of_blocks(numbers[known] // self.per_part, {ALIKE: moments[known]}, {ALIKE: events[known]})
        after = before.merge(new)
        after = after.where(after.numbers > after.numbers[-1] - WINDOW_PARTS)
        return {"numbers": after.numbers, "events": after.sums[ALIKE], "moments": after.moments[ALIKE]}

    def read(self, state: State, number: int, ahead: float) -> tuple[Array, dict[str, Array]]:
        within = state["numbers"] > (number // self.per_part - WINDOW_PARTS if number != NO_TIME else NO_TIME)
        moments = total(state["moments"][within])
        return moments, {"window_events": np.full(len(moments), float(state["events"][within].sum()))}


@dataclass(frozen=True)
class DecayKernel(TimeKernel):
    """An event that is `age` seconds old counts `0.5^(age / half_life)`, seen from the end of the newest bucket.

    `width`: seconds of a bucket.
    """

    half_life: float = 1.0
    width: float = 1.0

    def start(self, columns: int) -> State:
        return {"number": NO_TIME, **super().start(columns)}

    def add(self, state: State, numbers: Integers, moments: Array, events: Array) -> State:
        known = numbers != NO_TIME
        if not known.any():
            return state
        newest = max(state["number"], int(numbers[-1]))
        before = 0.0 if state["number"] == NO_TIME else float(self.weights((newest - state["number"]) * self.width))
        factors = self.weights((newest - numbers[known]) * self.width)
        added = total(fade(moments[known], np.broadcast_to(factors[:, None], moments[known].shape[:2])))
        return {
            "number": newest,
            "events": state["events"] * before + float(events[known] @ factors),
            "moments": merge(fade(state["moments"], before), added),
        }

    def read(self, state: State, number: int, ahead: float) -> tuple[Array, dict[str, Array]]:
        moments, passed = state["moments"], 0.0
        if state["number"] != NO_TIME:
            passed = number - state["number"] - ahead
        factor = float(self.weights(np.array(passed * self.width)))
        return fade(moments, factor), {"horizon_events": np.full(len(moments), state["events"] * factor)}

    def weights(self, seconds: Array) -> Array:
        return np.asarray(0.5 ** (np.asarray(seconds) / self.half_life))


Kernels: TypeAlias = Mapping[str, TimeKernel]
"""The kernel of each average, by its label."""


def folds_blocks(average: AnyAverage) -> bool:
    """Whether an average chooses its memory by blocks in order; others are over all events, or go by the clock."""
    return average.mixes_components or isinstance(average, Adaptive)


def kernels_of(averages: Sequence[AnyAverage]) -> Kernels:
    """The kernels of averages over all events, or by the clock."""
    width = width_of(averages)
    return {average.label: _kernel(average, width) for average in averages if not folds_blocks(average)}


def _kernel(average: AnyAverage, width: float) -> TimeKernel:
    if average.time_span is not None:
        return WindowKernel(memory=average.time_span / width, per_part=round(average.time_span / WINDOW_PARTS / width))
    if average.time_half_life is not None:
        half_life = average.time_half_life
        return DecayKernel(f"half_life {half_life!r}", half_life / math.log(2.0) / width, half_life, width)
    return TimeKernel()


def width_of(averages: Sequence[AnyAverage]) -> float:
    """Seconds of a bucket: a second, or the longest fraction that divides the hundredths of all windows of time.

    It is an eighth of a second, or less, if an average folds blocks.

    >>> from streameval.ope.averages import Mixture, Window
    >>> width_of([Window(span="1h")]), width_of([Window(span="1m"), Window(span="90s")]), width_of([])
    (1.0, 0.3, 1.0)
    >>> width_of([Mixture()]), width_of([Mixture(), Window(span="90s")])
    (0.125, 0.1125)

    Raises:
        ValueError: There is no such fraction of .01 seconds or more.
    """
    windows = (Fraction(each.time_span).limit_denominator(10_000) for each in averages if each.time_span is not None)
    common = Fraction(0)
    for part in (window / WINDOW_PARTS for window in windows):
        numerator = math.gcd(common.numerator * part.denominator, part.numerator * common.denominator)
        common = Fraction(numerator, common.denominator * part.denominator)
    longest = LONGEST_BLOCK if any(map(folds_blocks, averages)) else LONGEST_BUCKET
    width = common / math.ceil(common / longest) if common else longest
    if width < SHORTEST_BUCKET:
        raise ValueError("the spans of windows have no common part of .01 seconds: take multiples of 100 seconds")
    return float(width)
