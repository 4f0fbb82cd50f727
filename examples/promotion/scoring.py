"""Score a rule in one run by false starts, power and delays, against the true lead of every candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from experiment import Stretch
from numpy.typing import NDArray
from worlds import leads

from streameval.simulation import Drift, DriftKind, World

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]

EVERY = 1_000
"""Events between two checks."""
MUCH_WORSE = -0.01
WORTH_FINDING = (0.02, 0.05)
"""Range of leads for power."""
EPISODE = 20_000
"""Minimum number of events of a lead for its delay to count."""


class Score(msgspec.Struct, frozen=True):
    """Hold the score of a rule in one run. A lead is the true value minus the value of the deployed logging policy.

    A check is made for every candidate every 1,000 events.

    Args:
        world: Name of the world.
        setting: Kind of drift.
        seed: Seed of the run.
        events: Events of the run.
        rule: Name of the rule.
        starts: Number of times that a candidate became promotable.
        false_starts: Candidate, event and lead of each start at a lead below 0, exact to the block.
        checks: Number of checks.
        promotable: Checks with a promotable candidate.
        worse: Checks with a promotable candidate at a lead below 0.
        much_worse: Checks with a promotable candidate at a lead below -.01.
        lowest_lead: Lowest lead of a promotable candidate.
        within: Checks at leads of .02 to .05.
        found: Checks with a promotable candidate at leads of .02 to .05.
        delays: Events until a candidate was promotable, None for never. One number for each lead that turned positive
            and remained so for 20,000 events.
        stretches: Candidate, start and end of all promotable periods.
    """

    world: str
    setting: DriftKind
    seed: int
    events: int
    rule: str
    starts: int
    false_starts: tuple[tuple[int, int, float], ...]
    checks: int
    promotable: int
    worse: int
    much_worse: int
    lowest_lead: float | None
    within: int
    found: int
    delays: tuple[int | None, ...]
    stretches: tuple[tuple[int, int, int | None], ...]


class Run(msgspec.Struct, frozen=True):
    """Identify a run."""

    world: str
    setting: DriftKind
    seed: int
    events: int


def score(run: Run, rule: str, stretches: Sequence[Stretch], world: World, drift: Drift) -> Score:
    """Score one rule from all stretches of a run."""
    own_stretches = [stretch for stretch in stretches if stretch.rule == rule]
    checks = np.arange(EVERY, run.events + 1, EVERY)
    lead = leads(world, drift, checks)
    promotable = promotable_at(own_stretches, checks, lead.shape[1])
    started = leads(world, drift, np.array([stretch.start for stretch in own_stretches], dtype=np.int64))
    start_leads = [float(row[stretch.candidate]) for row, stretch in zip(started, own_stretches, strict=True)]
    within = (lead >= WORTH_FINDING[0]) & (lead <= WORTH_FINDING[1])
    return Score(
        run.world,
        run.setting,
        run.seed,
        run.events,
        rule,
        starts=len(own_stretches),
        false_starts=tuple(
            (stretch.candidate, stretch.start, float(f"{lead:.3g}"))
            for stretch, lead in zip(own_stretches, start_leads, strict=True)
            if lead < 0
        ),
        checks=promotable.size,
        promotable=int(promotable.sum()),
        worse=int((promotable & (lead < 0)).sum()),
        much_worse=int((promotable & (lead < MUCH_WORSE)).sum()),
        lowest_lead=float(f"{lead[promotable].min():.3g}") if promotable.any() else None,
        within=int(within.sum()),
        found=int((promotable & within).sum()),
        delays=tuple(delays(promotable, lead)),
        stretches=tuple((stretch.candidate, stretch.start, stretch.end) for stretch in own_stretches),
    )


def promotable_at(stretches: Sequence[Stretch], moments: NDArray[np.int64], candidates: int) -> Masks:
    """Return whether each candidate is promotable, by number of events, [moments, candidates].

    >>> promotable_at([Stretch("paired", 0, 200, 400)], np.array([100, 200, 300, 400]), 1).ravel()
    array([False,  True,  True, False])
    """
    promotable = np.zeros((len(moments), candidates), dtype=bool)
    for stretch in stretches:
        promotable[
            (moments >= stretch.start) & (moments < (np.inf if stretch.end is None else stretch.end)), stretch.candidate
        ] = True
    return promotable


def episodes(lead: Floats) -> Iterator[tuple[int, int, int]]:
    """Yield candidate, first check, and end of each period of a positive lead that lasted long enough.

    >>> lead = np.full((60, 1), -1.0)
    >>> lead[5:20] = lead[30:50] = 1.0
    >>> list(episodes(lead))
    [(0, 30, 50)]
    """
    for candidate, column in enumerate((lead > 0).T):
        turns = np.flatnonzero(np.diff(column)) + 1
        for first, end in pairwise([*turns.tolist(), len(column)]):
            if column[first] and (end - first) * EVERY >= EPISODE:
                yield candidate, first, end


def delays(promotable: Masks, lead: Floats) -> Iterator[int | None]:
    """Yield the events from the first check of each episode until the candidate was promotable, or None for never."""
    for candidate, first, end in episodes(lead):
        hits = np.flatnonzero(promotable[first:end, candidate])
        yield EVERY * int(hits[0]) if len(hits) else None
