"""Benchmarks: pieces of work that are measured in turns within one run, and the ratios between their processor times.

A machine's speed drifts, and other programs share its cache: so only ratios of the same round are compared.
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
    """Something to measure, and how many events, or other units, it goes through.

    `run` may return the seconds of processor time that count; by default they are all of the process.
    """

    run: Callable[[], object]
    events: float = 1


class Ratio(NamedTuple):
    """The processor time of an event in one work over that in another; `wanted`: at most this."""

    of: str
    over: str
    wanted: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """Works that are measured in turns, and the ratios that are reported.

    `megabytes`: sizes by name, each with the largest one that is wanted.
    """

    title: str
    works: Mapping[str, Work]
    ratios: Sequence[Ratio]
    megabytes: Mapping[str, tuple[Callable[[], float], float | None]] = field(default_factory=dict)


class Found(msgspec.Struct, frozen=True):
    """A ratio: its median, lowest and highest value over the rounds; or a size in megabytes, always the same."""

    median: float
    lowest: float
    highest: float
    wanted: float | None = None


class Result(msgspec.Struct, frozen=True):
    """The findings of a benchmark: microseconds of processor time of an event by work, ratios, and sizes."""

    microseconds: dict[str, float]
    ratios: dict[str, Found]
    megabytes: dict[str, Found]


def processor_seconds() -> float:
    """Processor time of this process, all its threads, and its children that have ended."""
    both = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def microseconds(work: Work) -> float:
    """Processor time of an event."""
    before = processor_seconds()
    measured = work.run()
    seconds = measured if isinstance(measured, float) else processor_seconds() - before
    return seconds / work.events * 1e6


def measure(benchmark: Benchmark, rounds: int, advance: Callable[[], object] = lambda: None) -> Result:
    """Measure all works once to warm up, and then in turns; `advance` is called after each one."""
    turns: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        turns.append({})
        for name, work in benchmark.works.items():
            turns[-1][name] = microseconds(work)
            advance()
    return Result(
        {name: rounded(statistics.median(turn[name] for turn in turns[1:])) for name in benchmark.works},
        {f"{each.of} / {each.over}": _found(each, turns[1:]) for each in benchmark.ratios},
        {name: Found(*[rounded(size())] * 3, wanted=most) for name, (size, most) in benchmark.megabytes.items()},
    )


def _found(ratio: Ratio, turns: Sequence[Mapping[str, float]]) -> Found:
    values = [turn[ratio.of] / turn[ratio.over] for turn in turns]
    return Found(*map(rounded, (statistics.median(values), min(values), max(values))), wanted=ratio.wanted)


def rounded(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def updating(evaluator: Evaluator, batches: Sequence[EventBatch]) -> Work:
    """An evaluator that gets the same decoded events once more."""

    def update() -> None:
        for batch in batches:
            evaluator.update(batch)
        evaluator.fold_pending()

    return Work(update, sum(map(len, batches)))
