"""Provide the rule `periodic`: the lift of a whole day or week, for the days to come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import cached_property, partial
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, decayed_path, ratio, running_max
from streameval.common.component import strict
from streameval.common.text import counted, duration_text, format_duration, parse_duration, significant
from streameval.ope.core import BlockLift, Lift
from streameval.ope.promotion.rules import phases
from streameval.ope.promotion.rules.base import Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.rules.phases import DAY_PHASES, Bucket, Limits, Period, Table, Verdict
from streameval.ope.promotion.rules.ratio_blocks import COLUMNS, linearised
from streameval.ope.promotion.sums import RewardSums
from streameval.ope.report import DAY, WEEK, Profile

AUTO = "auto"
WEEK_PHASES = 168
DAY_MEMORY, WEEK_MEMORY = 14, 8
"""Periods that sums remember."""
DAY_LEAST, WEEK_LEAST = 2, 1
"""Periods before the first decision. Two days protect against days that differ: 5 % of losers start, not 15 %."""
MISSING_MEMORY, MAX_UNTIMED = 100_000.0, 0.05
"""Horizon in events of the share of events without a timestamp, and its largest value at which the rule decides."""
NAMES = {DAY: "day", WEEK: "week"}
MONDAY = 4
"""Days from the start of 1970, a Thursday, to the first Monday."""


def _period(text: str) -> str:
    try:
        is_valid = text == AUTO or parse_duration(text) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("expected auto, or a duration longer than 0 such as 24h or 7d")
    return text


PeriodText = Annotated[str, AfterValidator(_period)]
"""Accept `auto` or a positive duration string (a pydantic type)."""


class PeriodicState(Struct, frozen=True, eq=False):
    """Hold the memory of `periodic`, with policies on axis 0.

    Attributes:
        clock: the newest time that a block has reached, NaN before the first [P]
        candidates: the largest number of candidates ever added [P]
        missing: fading numbers of blocks, and of blocks without timestamps [P, 2]
        number: the number of the unfinished bucket since 1970, NaN before the first event of a policy [P]
        bucket: the numbers of the unfinished bucket, see `Bucket` [P, 5]
        tables: the table of each period
        parts: for a ratio of rewards, the sums of both rewards, see `ratio_blocks` [P, 11]
    """

    clock: Array
    candidates: Array
    missing: Array
    number: Array
    bucket: Array
    tables: list[Table]
    parts: Array | None = None


@dataclass(frozen=True, kw_only=True, config=strict)
class Periodic(PromotionRule):
    """Require that the lift of a whole period exceeds the margin: of a day, and of a week once a week is known.

    `L - Q e > margin`, with the lift L of a whole period and its error e. Both come from a table of the hours of the
    day or of the week (`phases`), so that L means the same at any time of the day. With the two-sided normal quantile z
    of the confidence and the number K of all candidates ever added, or `family_size`, `Q = z / 1.96 sqrt(9 + 2 ln K)`.
    A promotable candidate stays so while `L - .9 z / 1.96 e > margin`. A change for the worse that would not pass if it
    went on suspends it. After a large change, the level moves, and for one period nothing starts.

    A candidate is `worse` if `L + Q e` is below the margin, or below 0 if that is less.

    The rule looks at the end of each bucket, an hour of a day or week, by the times of the events. A bucket ends when a
    block of a later one arrives. A block belongs to the bucket of the time that a tenth of its events have reached.

    With `auto` the day decides until one whole week is known, and then the week. The first week is judged by its days
    alone: take `7d` if weekends are known to differ. How much weeks differ is not known before the second one. Until
    then, the days of the first week tell it, by how much those of Monday to Friday and those of the weekend differ.

    Of a ratio of two rewards, L is the difference of the ratios of a whole period. The first day of a candidate, or the
    first `period`, sets what ratios are compared around and does not count, so decisions come a day later
    (`ratio_blocks`).

    The constants were found by simulation (`phases`). The rule is calibrated and not proven.

    Args:
        period: the length of a period, or `auto`, the default
        min_periods: the number of periods before the first decision. By default 2, and 1 from a week on.
        memory: the number of periods to remember. By default 14, and 8 from a week on. A lift as small as the standard
            error of two days needs 28.
    """

    needs_lift: ClassVar[bool] = True
    judges_by_lift: ClassVar[bool] = True
    needs_time: ClassVar[bool] = True
    needs_hold: ClassVar[bool] = False
    remembers_lift: ClassVar[bool] = True
    covers: ClassVar[Literal["period", "present", "average"]] = "period"
    kind: Literal["periodic"] = field(default="periodic", repr=False)
    period: PeriodText | None = Field(
        default=None, description="auto (days, and weeks once one is known), 24h, 7d or another duration; null: auto"
    )
    min_periods: int | None = Field(
        default=None, ge=1, description="periods before the first decision; null: 2, and 1 from a week on"
    )
    memory: int | None = Field(default=None, ge=2, description="periods to remember; null: 14, and 8 from a week on")

    @cached_property
    def periods(self) -> list[Period]:
        """Return the periods of the tables, the shorter one first.

        >>> [(period.seconds, period.phases, period.least) for period in Periodic().periods]
        [(86400.0, 24, 2), (604800.0, 168, 1)]
        """
        period = self.period or AUTO
        lengths = [DAY, WEEK] if period == AUTO else [parse_duration(period)]
        return [
            Period(
                seconds,
                WEEK_PHASES if seconds >= WEEK else DAY_PHASES,
                self.memory or (WEEK_MEMORY if seconds >= WEEK else DAY_MEMORY),
                self.min_periods or (WEEK_LEAST if seconds >= WEEK else DAY_LEAST),
            )
            for seconds in lengths
        ]

    def start(self, candidates: int) -> PeriodicState:
        policies = candidates + 1
        unknown = np.full(policies, np.nan)
        tables = [phases.start((policies,), period.phases) for period in self.periods]
        missing, bucket = np.zeros((policies, 2)), np.zeros((policies, 5))
        return PeriodicState(unknown, np.ones(policies), missing, unknown.copy(), bucket, tables)

    def memory_key(self, context: RuleContext) -> list[Any]:
        periods = [[period.seconds, period.memory, period.least] for period in self.periods]
        return [periods, context.margin, context.confidence]

    def judge(
        self, memory: PeriodicState, sums: RewardSums, lift: Lift, context: RuleContext
    ) -> tuple[Judgement, PeriodicState]:
        path = _Path(self.periods, memory, context, len(lift.value))
        if sums.times is not None:
            path.count_missing(sums.times.missing, math.exp(-context.block / MISSING_MEMORY))
            if lift.block is not None and lift.divisor is not None:
                path.follow_ratio(lift.block, lift.divisor, sums.times.reached, lift.switched)
            elif lift.block is not None:
                path.follow(lift.block, sums.times.reached, lift.switched)
        numbers = path.numbers
        promotable = numbers["promotable"] > 0
        unknown = np.full(len(context.errors), np.nan)
        judgement = Judgement(
            numbers["lift"], numbers["lower"], promotable, promotable, lift.events, unknown, paths=numbers
        )
        return judgement, path.memory

    def standard_errors(self, last: Mapping[str, float], context: RuleContext) -> float:
        limits = Limits(_scale(context), context.margin, context.floor, context.candidates)
        error = (last["lift"] - last.get("staying", math.nan)) / limits.staying
        return last["lift"] / error if error else math.nan

    def profiles(self, memory: PeriodicState) -> Sequence[tuple[Profile, ...]]:
        found: list[list[Profile]] = [[] for _ in memory.number[1:]]
        for period, table in zip(self.periods, memory.tables, strict=True):
            columns, numbers = _rows(table, slice(1, None)), memory.number[1:]
            days = period.phases // DAY_PHASES
            if days == 1:
                views = [(period.seconds, phases.profile(columns, DAY_PHASES, 1), numbers, 0)]
            else:
                by_day = phases.profile(columns, days, DAY_PHASES)
                start = MONDAY if period.seconds == WEEK else 0
                views = [(period.seconds, by_day, numbers // DAY_PHASES, start)]
                if period.seconds == WEEK and len(self.periods) == 1:
                    by_hour = phases.profile(columns, days, DAY_PHASES, by_group=False)
                    views.insert(0, (DAY, by_hour, numbers, 0))
            for index, profiles in enumerate(found):
                if columns.age[index] >= period.phases:
                    seen = float(columns.age[index] + 1) * period.width
                    profiles += [_profile(*view, index, seen) for view in views]
        return [tuple(profiles) for profiles in found]

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        if last.get("untimed", 0.0) > MAX_UNTIMED:
            share = f"{100 * last['untimed']:.0f} % of events have no timestamp"
            return f"whole periods are unknown: {share}; the rule `paired` says whether the candidate is better now"
        if math.isnan(last["lift"]):
            return self._waiting(last)
        if last["worse"]:
            return self.reason_of_loss(last, min(margin, 0.0))
        doubts = ""
        if last["entered"] and last["dip"] > 0:
            doubts = f"suspended: {self._dip(last)}; "
        elif not last["entered"] and last["again"] > last["clock"]:
            changed, again = (self._time(last[name]) for name in ("alarm", "again"))
            doubts = f"level changed at {changed}; decides again at {again}; "
        return f"{doubts}{self._bound(last, last['lower'], margin)}"

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        if last["lower"] > margin or math.isnan(last["lift"]):
            return self.reason(last, margin)
        return f"{self._bound(last, last['staying'], margin)} in the narrower interval for promotable candidates"

    def reason_of_loss(self, numbers: Mapping[str, float], floor: float) -> str:
        upper = f"upper bound {significant(numbers['upper'])} {self._since(numbers)}"
        return f"worse than production: {self._lift(numbers)}, {upper}, below {significant(floor)}"

    def reason_of_change(self, numbers: Mapping[str, float], margin: float) -> str:
        is_promotable = numbers["promotable"] > 0
        return self.reason_to_stay(numbers, margin) if is_promotable else self.reason(numbers, margin)

    def _bound(self, last: Mapping[str, float], bound: float, margin: float) -> str:
        relation = "above" if bound > margin else "not above"
        compared = f"bound {_signed(bound)} {self._since(last)}, {relation} margin {significant(margin)}"
        return f"{self._lift(last)}, {compared}"

    def _lift(self, last: Mapping[str, float]) -> str:
        return f"lift of {_whole(last['period'])} {_signed(last['lift'])}"

    def _since(self, last: Mapping[str, float]) -> str:
        return f"over {counted(last['periods'], NAMES.get(last['period'], 'period'))}"

    def _dip(self, last: Mapping[str, float]) -> str:
        before = "the same hours before" if last["period"] in NAMES else "the same phases before"
        return f"the last {duration_text(last['dip'])} are {significant(-last['residual'])} below {before}"

    def _waiting(self, last: Mapping[str, float]) -> str:
        """Say when the lift of a whole period is known."""
        whole = _whole(self.periods[0].seconds)
        known = last.get("known", math.nan)
        if math.isnan(known):
            return f"the lift of {whole} is not known yet"
        left = known - last["clock"]
        when = f" (in {duration_text(left)})" if left > 0 else ""
        first = ""
        if last.get("sets", 0.0) > 0:
            first = f"the first {whole.removeprefix('a whole ')} sets what ratios are compared around; "
        return f"{first}the lift of {whole} is known at {self._time(known)}{when}"

    def _time(self, seconds: float) -> str:
        form = "%Y-%m-%d %H:%M" if self.periods[0].width >= 60 else "%Y-%m-%d %H:%M:%S"
        return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _whole(seconds: float) -> str:
    """Name a whole period.

    >>> [_whole(seconds) for seconds in (86_400.0, 604_800.0, 240.0)]
    ['a whole day', 'a whole week', 'a whole period of 4m']
    """
    return f"a whole {NAMES.get(seconds, f'period of {format_duration(seconds)}')}"


def _profile(seconds: float, view: phases.Profile, numbers: Array, start: int, index: int, seen: float) -> Profile:
    """Return the profile of one candidate.

    Args:
        seconds: the length of the period
        view: the profiles of all candidates
        numbers: the numbers of their present phases since 1970
        start: the phase at which the period starts for a reader
        index: the candidate
        seen: the seconds since its start
    """
    columns = {
        name: tuple(None if value != value else value for value in np.roll(column[index], -start).tolist())
        for name, column in view._asdict().items()
    }
    phase = int(numbers[index] - start) % len(columns["lift"])
    return Profile(seconds, seen / seconds, phase, **columns)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{significant(value)}"


NUMBERS = (
    *("lift", "lower", "staying", "upper", "promotable", "entered", "worse", "dip", "residual"),
    *("alarm", "again", "known", "periods", "period", "clock", "untimed", "sets"),
)


class _Path:
    """Follow the tables of all candidates through some blocks.

    Attributes:
        numbers: the numbers after each block by name [blocks, candidates]

    Args:
        periods: the periods of the tables, the shorter one first
        memory: the memory before
        context: the settings of the rule
        blocks: the number of blocks
    """

    def __init__(self, periods: list[Period], memory: PeriodicState, context: RuleContext, blocks: int) -> None:
        self._periods, self._before = periods, memory
        known = max(context.candidates, int(memory.candidates.max(initial=1)))
        self._limits = Limits(_scale(context), context.margin, min(context.margin, 0.0), known)
        self._clock, self._number, self._bucket = memory.clock[1:], memory.number[1:], memory.bucket[1:]
        self._missing, self._parts = memory.missing, memory.parts
        self._tables = [_rows(table, slice(1, None)) for table in memory.tables]
        self.numbers = {name: np.full((blocks, len(context.errors)), np.nan) for name in NUMBERS}
        self._write(slice(0, blocks))

    @property
    def memory(self) -> PeriodicState:
        """Return the memory after the blocks, in which production keeps its row."""
        before = self._before
        counts = np.full(len(self._clock), float(self._limits.candidates))
        own = {"clock": self._clock, "candidates": counts, "number": self._number, "bucket": self._bucket}
        columns = {name: _after_production(getattr(before, name), column) for name, column in own.items()}
        tables = [_paired(_after_production, *pair) for pair in zip(before.tables, self._tables, strict=True)]
        return PeriodicState(**columns, missing=self._missing, tables=tables, parts=self._parts)

    def count_missing(self, missing: Array, fading: float) -> None:
        """Count the events without timestamps, given their share in each block [blocks]."""
        steps = np.repeat(np.column_stack([np.ones_like(missing), missing])[:, None], len(self._missing), axis=1)
        path = decayed_path(self._missing, steps, fading)
        self._missing = path[-1]
        self.numbers["untimed"] = ratio(path[..., 1], path[..., 0])[:, 1:]

    def follow_ratio(self, above: BlockLift, below: BlockLift, clock: Array, switched: Mask | None) -> None:
        """Follow blocks of a ratio, linearised around the past periods of the first table.

        Args:
            above: the numerator, with the noise of the ratio
            below: the denominator
            clock: as in `follow`
            switched: as in `follow`
        """
        before = np.zeros((1 + len(self._clock), COLUMNS)) if self._parts is None else self._parts
        times = running_max(np.fmax.reduce(self._clock, initial=-np.inf), clock)
        block, sums = linearised(above, below, before[1:], times, self._periods[0])
        self._parts = _after_production(before, sums)
        self.follow(block, clock, switched)
        is_first = np.isnan(self._number) & (sums[:, 0] == 0) & (sums[:, -1] > 0)
        period = self._periods[0]
        end = np.floor(sums[is_first, -1] / period.width) * period.width
        self.numbers["known"][-1, is_first] = end + period.least * period.seconds
        self.numbers["sets"][-1] = is_first

    def follow(self, block: BlockLift, clock: Array, switched: Mask | None) -> None:
        """Follow the blocks.

        Args:
            block: the lift of each block alone [blocks, candidates]
            clock: the time that each block has reached, minus infinity if unknown [blocks]
            switched: whether another lift decides from a block on [blocks, candidates]
        """
        width = self._periods[0].width
        numbers = np.where(np.isfinite(clock), np.floor(clock / width), -np.inf)
        before = np.floor(np.fmax.reduce(self._clock, initial=-np.inf) / width)
        front = np.maximum.accumulate(np.concatenate([[before], numbers]))
        restarts = np.zeros(block.weight.shape, dtype=bool) if switched is None else switched
        is_edge = (front[1:] > front[:-1]) | restarts.any(axis=1) | self._firsts(block, numbers, front, restarts)
        edges = np.unique([0, *np.flatnonzero(is_edge).tolist(), len(clock)])
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            self._restart(restarts[first])
            self._advance(front[first + 1])
            part = slice(first, last)
            self._add(BlockLift(*(column[part] for column in block)), numbers[part], front[first + 1])
            if is_edge[first]:
                self._write(slice(first, len(clock)))
        known = np.where(np.isfinite(clock), clock, np.nan)[:, None]
        path = np.fmax.accumulate(np.concatenate([self._clock[None], np.tile(known, (1, len(self._clock)))]), axis=0)
        self._clock, self.numbers["clock"] = path[-1], path[1:]

    @staticmethod
    def _firsts(block: BlockLift, numbers: Array, front: Array, restarts: Mask) -> Mask:
        """Return the blocks with the first events of a candidate, here or since it restarted [blocks]."""
        counts = (np.isfinite(numbers) & (numbers == front[1:]))[:, None] & (block.weight > 0)
        seen = np.cumsum(counts, axis=0)
        before = np.maximum.accumulate(np.where(restarts, seen - counts, 0), axis=0)
        return np.asarray((counts & (seen - before == 1)).any(axis=1))

    def _restart(self, candidates: Mask) -> None:
        """Forget what is known about the lift of some candidates."""
        if candidates.any():
            fresh = [phases.start(candidates.shape, period.phases) for period in self._periods]
            self._tables = [_chosen(candidates, *pair) for pair in zip(fresh, self._tables, strict=True)]
            self._number = np.where(candidates, np.nan, self._number)
            self._bucket = np.where(candidates[:, None], 0.0, self._bucket)

    def _advance(self, front: float) -> None:
        """End the buckets before the newest one."""
        ends = self._number < front
        for number in np.unique(self._number[ends]).tolist():
            rows = self._number == number
            bucket, empty = Bucket(*self._bucket[rows].T), int(front - number) - 1
            for index, (table, period) in enumerate(zip(self._tables, self._periods, strict=True)):
                limits = self._limits._replace(differing=self._tables[0].excess[rows, 0]) if index else self._limits
                change = partial(
                    self._closed, number=int(number), bucket=bucket, empty=empty, period=period, limits=limits
                )
                self._tables[index] = _changed(table, rows, change)
        self._number = np.where(ends, front, self._number)
        self._bucket = np.where(ends[:, None], 0.0, self._bucket)

    @staticmethod
    def _closed(table: Table, number: int, bucket: Bucket, empty: int, period: Period, limits: Limits) -> Table:
        """End a bucket, and the empty ones after it."""
        phase = number % period.phases
        if (bucket.weight > 0).any():
            table = phases.close(table, phase, bucket, period, limits)
        else:
            empty, phase = empty + 1, phase - 1
        return phases.skip(table, (phase + 1) % period.phases, empty, period, limits) if empty else table

    def _add(self, block: BlockLift, numbers: Array, front: float) -> None:
        """Add blocks to the unfinished bucket, and late ones to the buckets that they belong to."""
        is_timed, is_late = np.isfinite(numbers), numbers < front
        present = np.where((is_timed & ~is_late)[:, None], 1.0, 0.0)
        sums = np.stack([present * part for part in block[:3]], axis=-1)
        has_noise = (present * block.weight > 0) & ~np.isnan(block.noise)
        newest = len(numbers) - 1 - np.argmax(has_noise[::-1], axis=0)
        noises = [np.take_along_axis(column, newest[None], axis=0)[0] for column in (block.noise, block.shared)]
        noise = np.where(has_noise.any(axis=0), noises, self._bucket[:, 3:].T)
        sums = np.cumsum(np.concatenate([self._bucket[None, :, :3], sums]), axis=0)[-1]
        self._bucket = np.column_stack([sums, *noise])
        starts = np.isnan(self._number) & (self._bucket[:, 0] > 0)
        self._number = np.where(starts, front, self._number)
        for index in np.flatnonzero(is_timed & is_late).tolist():
            late = Bucket(*(np.where(np.isnan(self._number), 0.0, column[index]) for column in block[:5]))
            self._tables = [
                phases.add_late(table, int(numbers[index] % period.phases), late)
                for table, period in zip(self._tables, self._periods, strict=True)
            ]

    def _write(self, blocks: slice) -> None:
        """Set the numbers after these blocks."""
        for name, values in self._current():
            self.numbers[name][blocks] = values

    def _current(self) -> Iterator[tuple[str, Array]]:
        """Yield the present numbers of candidates by name."""
        limits, periods, tables = self._limits, self._periods, self._tables
        verdicts = [phases.verdict(table, limits) for table in tables]
        found = verdicts[0]
        for longer in verdicts[1:]:
            found = phases.preferred(found, longer)
        is_longer = np.zeros(len(self._number), dtype=bool) if len(tables) < 2 else ~np.isnan(verdicts[1].lift)
        decider = is_longer.astype(int)
        yield "lift", found.lift
        yield "lower", found.lift - limits.entering * found.error
        yield "staying", found.lift - limits.staying * found.error
        yield "upper", found.lift + limits.entering * found.error
        yield "promotable", found.promotable.astype(float)
        yield "entered", found.entered.astype(float)
        yield "worse", found.worse.astype(float)
        yield from self._dips(verdicts)
        ages = np.stack([table.age for table in tables])
        alarms = np.stack([table.alarm for table in tables])
        lengths, widths = (np.array([getattr(period, name) for period in periods]) for name in ("phases", "width"))
        age, alarm = (np.take_along_axis(column, decider[None], axis=0)[0] for column in (ages, alarms))
        length, width = lengths[decider], widths[decider]
        yield "alarm", (self._number - age + alarm) * width
        yield "again", (self._number - age + alarm + length) * width
        yield "known", self._known_at()
        yield "periods", np.floor(age / length)
        yield "period", length * width
        yield "clock", self._clock

    def _dips(self, verdicts: list[Verdict]) -> Iterator[tuple[str, Array]]:
        """Yield the length in seconds of the change that suspends a candidate, 0 for none, and its mean residual."""
        seconds, residual = np.zeros(len(self._number)), np.zeros(len(self._number))
        for table, period, verdict in zip(self._tables, self._periods, verdicts, strict=True):
            takes = verdict.hurt & (seconds == 0)
            residual = np.where(takes, table.dip[:, 0], residual)
            seconds = np.where(takes, table.dip[:, 1] * period.width, seconds)
        yield "dip", seconds
        yield "residual", residual

    def _known_at(self) -> Array:
        """Return the time at which the lift of the shortest period is known, NaN before the first event."""
        period, age = self._periods[0], self._tables[0].age
        least = period.least * period.phases
        return np.asarray((self._number - age + np.where(age < least, least, least + period.phases)) * period.width)


def _rows(table: Table, rows: slice | Mask) -> Table:
    """Return the table of some candidates."""
    return _paired(lambda column, _: column[rows], table, table)


def _paired(combine: Callable[[Any, Any], Any], one: Table, other: Table) -> Table:
    """Combine the columns of two tables."""
    names = Table.__struct_fields__
    columns: dict[str, Any] = {name: combine(getattr(one, name), getattr(other, name)) for name in names}
    return Table(**columns)


def _scale(context: RuleContext) -> float:
    return NormalDist().inv_cdf(0.5 + context.confidence / 2) / 1.96


def _after_production(old: Array, new: Array) -> Array:
    return np.concatenate([old[:1], new])


def _chosen(candidates: Mask, one: Table, other: Table) -> Table:
    """Return the rows of one table for these candidates, and of the other for the rest."""
    return _paired(lambda own, rest: np.where(candidates.reshape(-1, *[1] * (own.ndim - 1)), own, rest), one, other)


def _changed(table: Table, candidates: Mask, change: Callable[[Table], Table]) -> Table:
    """Change the rows of some candidates."""
    if candidates.all():
        return change(table)

    def with_rows(column: Any, part: Any) -> Any:
        whole = column.copy()
        whole[candidates] = part
        return whole

    return _paired(with_rows, table, change(_rows(table, candidates)))
