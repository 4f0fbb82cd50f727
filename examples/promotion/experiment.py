"""Evaluate every promotion rule on one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streameval import Evaluator, EventBatch, Mixture, Report, StratifiedDR
from streameval.simulation import Drift, World, simulate

RULES: tuple[str, ...] = ("paired", "anytime", "sea", "bsea")
AT_ONCE = 60
"""Batches between two Reports. Rules see every block. Reports only show the results."""


class Stretch(NamedTuple):
    """Hold a period in which a rule called a candidate promotable.

    Args:
        rule: Name of the rule.
        candidate: Index of the candidate.
        start: Event at which the period starts, the end of a block.
        end: Event at which the period ends, None for the end of the run.
    """

    rule: str
    candidate: int
    start: int
    end: int | None


Change = tuple[str, str, int]
"""A rule, a policy, and the event of a change."""


def watch(
    world: World, drift: Drift, events: int, seed: int, look: Callable[[Report], object] | None = None
) -> list[Stretch]:
    """Return the times at which each candidate was promotable by each rule, exact to the block, with default settings.

    Args:
        world: The world.
        drift: Its drift.
        events: Events of the run.
        seed: Seed of the run.
        look: Called with a Report every 6,000 events.
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
    for transition in (each for each in report.transitions if each.worse is None):
        yield (transition.rule, transition.policy, transition.event), transition.promotable


def stretches_of(changes: Mapping[Change, bool], candidates: Sequence[str]) -> list[Stretch]:
    """Return stretches from changes, in the order of rules and candidates.

    Args:
        changes: Whether a policy became promotable, otherwise it ceased to be.
        candidates: Names of the candidates.

    >>> stretches_of({("sea", "a", 300): True, ("sea", "a", 900): False, ("sea", "a", 1000): True}, ["a"])
    [Stretch(rule='sea', candidate=0, start=300, end=900), Stretch(rule='sea', candidate=0, start=1000, end=None)]
    """
    stretches = []
    for rule in RULES:
        for index, candidate in enumerate(candidates):
            own = {
                event: is_start
                for (changed_rule, policy, event), is_start in changes.items()
                if (changed_rule, policy) == (rule, candidate)
            }
            starts = sorted(event for event, is_start in own.items() if is_start)
            ends = sorted(event for event, is_start in own.items() if not is_start)
            stretches += [
                Stretch(rule, index, start, ends[number] if number < len(ends) else None)
                for number, start in enumerate(starts)
            ]
    return stretches


def _check(stretches: Sequence[Stretch], report: Report, candidates: Sequence[str]) -> None:
    """Check that no change was missed. A Report keeps the newest 200 changes, but decisions count all of them."""
    for decision in report.promotion:
        index = candidates.index(decision.policy)
        starts = sum((stretch.rule, stretch.candidate) == (decision.rule, index) for stretch in stretches)
        if starts != decision.times:
            raise RuntimeError(
                f"{decision.times - starts} starts of {decision.rule} were forgotten before they were read"
            )
