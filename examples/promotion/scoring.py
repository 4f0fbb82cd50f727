"""Scores of a rule in one run: false starts, power and delays, against the true lead of every candidate."""

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
    """The score of a rule in one run. The lead is the true value minus that of the deployed logging policy.

    `false_starts`: the candidate, event and lead of each start at a lead below 0, exact to the block. Checks, one per
    candidate and 1,000 events: `worse`, `much_worse`: promotable at a lead below 0, and below -.01; `within`: at leads
    of .02 to .05, and `found`: promotable among these. `delays`: for each lead that turned positive and remained so for
    20,000 events, the events until the candidate was promotable; None: never. `stretches`: candidate, start and end
    of all promotable periods.
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
    """World, setting and seed of a run."""

    world: str
    setting: DriftKind
    seed: int
    events: int


def score(run: Run, rule: str, stretches: Sequence[Stretch], world: World, drift: Drift) -> Score:
    """The score of one rule from all stretches of a run."""
    own = [each for each in stretches if each.rule == rule]
    checks = np.arange(EVERY, run.events + 1, EVERY)
    lead = leads(world, drift, checks)
    on = promotable_at(own, checks, lead.shape[1])
    started = leads(world, drift, np.array([each.start for each in own], dtype=np.int64))
    at_start = [float(row[each.candidate]) for row, each in zip(started, own, strict=True)]
    within = (lead >= WORTH_FINDING[0]) & (lead <= WORTH_FINDING[1])
    return Score(
        run.world,
        run.setting,
        run.seed,
        run.events,
        rule,
        starts=len(own),
        false_starts=tuple(
            (each.candidate, each.start, float(f"{lead:.3g}"))
            for each, lead in zip(own, at_start, strict=True)
            if lead < 0
        ),
        checks=on.size,
        promotable=int(on.sum()),
        worse=int((on & (lead < 0)).sum()),
        much_worse=int((on & (lead < MUCH_WORSE)).sum()),
        lowest_lead=float(f"{lead[on].min():.3g}") if on.any() else None,
        within=int(within.sum()),
        found=int((on & within).sum()),
        delays=tuple(delays(on, lead)),
        stretches=tuple((each.candidate, each.start, each.end) for each in own),
    )


def promotable_at(stretches: Sequence[Stretch], moments: NDArray[np.int64], candidates: int) -> Masks:
    """Whether each candidate is promotable, by number of events, [moments, candidates].

    >>> promotable_at([Stretch("paired", 0, 200, 400)], np.array([100, 200, 300, 400]), 1).ravel()
    array([False,  True,  True, False])
    """
    on = np.zeros((len(moments), candidates), dtype=bool)
    for each in stretches:
        on[(moments >= each.start) & (moments < (np.inf if each.end is None else each.end)), each.candidate] = True
    return on


def episodes(lead: Floats) -> Iterator[tuple[int, int, int]]:
    """Candidate, first check, and end of each period of a positive lead that lasted long enough.

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


def delays(on: Masks, lead: Floats) -> Iterator[int | None]:
    """Events from the first check of each episode until the candidate was promotable; None: never."""
    for candidate, first, end in episodes(lead):
        found = np.flatnonzero(on[first:end, candidate])
        yield EVERY * int(found[0]) if len(found) else None
