"""Measure pieces of work in turns within one run, and compare their processor times.

A machine's speed drifts, and other programs share its cache, so only ratios of the same round are compared.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from streameval import Evaluator, EventBatch


class Work(NamedTuple):
    """Describe something to measure.

    Args:
        run: Does the work. It may return the seconds of processor time that count, by default all of the process.
        events: Number of events, or other units, in the work.
    """

    run: Callable[[], object]
    events: float = 1


class Ratio(NamedTuple):
    """Compare the processor times of an event in two works.

    Args:
        numerator: Work in the numerator.
        denominator: Work in the denominator.
        wanted: Largest ratio that is wanted.
    """

    numerator: str
    denominator: str
    wanted: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """Describe works that are measured in turns, and the ratios that are reported.

    Args:
        title: Title of the tables.
        works: Works by name.
        ratios: Ratios to report.
        megabytes: Sizes by name, each with the largest one that is wanted.
    """

    title: str
    works: Mapping[str, Work]
    ratios: Sequence[Ratio]
    megabytes: Mapping[str, tuple[Callable[[], float], float | None]] = field(default_factory=dict)


class Spread(msgspec.Struct, frozen=True):
    """Hold the median, lowest and highest value of a ratio over the rounds.

    A size in megabytes has three equal values.
    """

    median: float
    lowest: float
    highest: float
    wanted: float | None = None


class Result(msgspec.Struct, frozen=True):
    """Hold the results of a benchmark.

    Args:
        microseconds: Processor time of an event, by work.
        ratios: Ratios of processor times.
        megabytes: Sizes.
    """

    microseconds: dict[str, float]
    ratios: dict[str, Spread]
    megabytes: dict[str, Spread]


def processor_seconds() -> float:
    """Return the processor time of this process, all its threads, and its children that have ended."""
    both = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def microseconds(work: Work) -> float:
    """Return the processor time of an event."""
    before = processor_seconds()
    measured = work.run()
    seconds = measured if isinstance(measured, float) else processor_seconds() - before
    return seconds / work.events * 1e6


def measure(benchmark: Benchmark, rounds: int, advance: Callable[[], object] = lambda: None) -> Result:
    """Measure all works once to warm up, and then in turns.

    Args:
        benchmark: What to measure.
        rounds: Number of rounds after the first one.
        advance: Called after each work.
    """
    turns: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        turns.append({})
        for name, work in benchmark.works.items():
            turns[-1][name] = microseconds(work)
            advance()
    return Result(
        {name: rounded(statistics.median(turn[name] for turn in turns[1:])) for name in benchmark.works},
        {f"{ratio.numerator} / {ratio.denominator}": _spread(ratio, turns[1:]) for ratio in benchmark.ratios},
        {name: Spread(*[rounded(size())] * 3, wanted=most) for name, (size, most) in benchmark.megabytes.items()},
    )


def _spread(ratio: Ratio, turns: Sequence[Mapping[str, float]]) -> Spread:
    values = [turn[ratio.numerator] / turn[ratio.denominator] for turn in turns]
    return Spread(*map(rounded, (statistics.median(values), min(values), max(values))), wanted=ratio.wanted)


def rounded(value: float) -> float:
    """Round to three significant digits."""
    return float(f"{value:.3g}")


def updating(evaluator: Evaluator, batches: Sequence[EventBatch]) -> Work:
    """Return the work of updating an evaluator with these decoded events once more."""

    def update() -> None:
        for batch in batches:
            evaluator.update(batch)
        evaluator.fold_pending()

    return Work(update, sum(map(len, batches)))
