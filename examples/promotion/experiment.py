"""One run: a stream, evaluated by every promotion rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streameval import Evaluator, EventBatch, Mixture, Report, StratifiedDR
from streameval.simulation import Drift, World, simulate

RULES: tuple[str, ...] = ("paired", "anytime", "sea", "bsea")
AT_ONCE = 60
"""Batches between two Reports. Rules see every block; Reports only show the results."""


class Stretch(NamedTuple):
    """A candidate (0-based) is promotable by a rule from block end `start` to `end` (None: the end of the run)."""

    rule: str
    candidate: int
    start: int
    end: int | None


Change = tuple[str, str, int]
"""A rule, a policy, and the event of a change."""


def watch(
    world: World, drift: Drift, events: int, seed: int, look: Callable[[Report], object] | None = None
) -> list[Stretch]:
    """Times at which each candidate was promotable by each rule, exact to the block, with default settings.

    `look` is called with a Report every 6,000 events.
    """
    evaluator = Evaluator(world.candidates, [StratifiedDR()], [Mixture()], promotion=RULES, drift=None)
    changes: dict[Change, bool] = {}
    batches: list[EventBatch] = []
    for number, moment in enumerate(simulate(world, drift, events, seed, action_sets=True), start=1):
        batches.append(moment.events)
        if number % AT_ONCE == 0:
            evaluator.update(EventBatch.concat(batches))
            batches, report = [], evaluator.report()
            changes.update(_changes(report))
            if look is not None:
                look(report)
    if batches:
        evaluator.update(EventBatch.concat(batches))
    report = evaluator.report()
    stretches = stretches_of({**changes, **dict(_changes(report))}, world.candidates)
    _check(stretches, report, world.candidates)
    return stretches


def _changes(report: Report) -> Iterator[tuple[Change, bool]]:
    for each in report.transitions:
        yield (each.rule, each.policy, each.event), each.promotable


def stretches_of(changes: Mapping[Change, bool], candidates: Sequence[str]) -> list[Stretch]:
    """Stretches from changes (True: became promotable), in the order of rules and candidates.

    >>> stretches_of({("sea", "a", 300): True, ("sea", "a", 900): False, ("sea", "a", 1000): True}, ["a"])
    [Stretch(rule='sea', candidate=0, start=300, end=900), Stretch(rule='sea', candidate=0, start=1000, end=None)]
    """
    stretches = []
    for rule in RULES:
        for place, candidate in enumerate(candidates):
            own = {event: is_start for (by, of, event), is_start in changes.items() if (by, of) == (rule, candidate)}
            starts = sorted(event for event, is_start in own.items() if is_start)
            ends = sorted(event for event, is_start in own.items() if not is_start)
            stretches += [
                Stretch(rule, place, start, ends[number] if number < len(ends) else None)
                for number, start in enumerate(starts)
            ]
    return stretches


def _check(stretches: Sequence[Stretch], report: Report, candidates: Sequence[str]) -> None:
    """Check that no change was missed: a Report keeps the newest 200, decisions count all."""
    for decision in report.promotion:
        place = candidates.index(decision.policy)
        found = sum((each.rule, each.candidate) == (decision.rule, place) for each in stretches)
        if found != decision.times:
            raise RuntimeError(
                f"{decision.times - found} starts of {decision.rule} were forgotten before they were read"
            )
