"""One run: a world, a kind of drift and a seed give the error and the coverage of every contestant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from contest import AB_TEST, Answer, Contestant, Floats, teams
from numpy.typing import NDArray

from streameval.simulation import BATCH, Drift, DriftKind, World, simulate

SETTINGS: tuple[DriftKind, ...] = ("smooth", "abrupt", "stationary")
EARLY = 10_000
"""Number of events before the scoring grid, during which every batch is scored."""
EARLY_MOMENTS = (100, 200, 300, 500, 700, 1_000, 2_000, 3_000, 5_000, 7_000, 10_000)
EARLY_FROM = (100, 500)
PHASES = 10
PUBLISHED_FIRST, PUBLISHED_EVERY = 100, 10_000
"""The authors score after 100 events, and every 10,000 from then on."""


class Track(NamedTuple):
    """All estimates at some times of one run.

    `events` [moments]: number of events so far. `truth` [moments, candidates]. `answers`: by contestant, each
    [moments, candidates].
    """

    events: NDArray[np.int64]
    truth: Floats
    answers: dict[str, Answer]


class Score(msgspec.Struct, frozen=True):
    """The scores of a contestant in one run, averaged over times and candidates.

    `mse`, `coverage` of the current value and `half_width` are on the scoring grid; None without an interval.
    Before the grid: `early_coverage` and `early_half_width` after 100, 200, ... 10,000 events (EARLY_MOMENTS),
    and `coverage_from`: the mean over all batches from 100 and from 500 to 10,000 events. `phase_*`: on the grid, at
    each tenth of the time between two jumps. `published_mse`: on the grid of the authors, None where not measured.
    """

    world: str
    setting: DriftKind
    seed: int
    events: int
    contestant: str
    mse: float
    coverage: float | None
    half_width: float | None
    early_coverage: tuple[float | None, ...]
    early_half_width: tuple[float | None, ...]
    coverage_from: tuple[float | None, ...]
    phase_mse: tuple[float | None, ...]
    phase_coverage: tuple[float | None, ...]
    published_mse: float | None = None


def scored_batches(events: int) -> range:
    """The batches after which a run of this many events is scored: 100, 110, ... (after 10,100, 11,100, ... events)."""
    return range(100, events // BATCH, 10)


def follow(contestants: Sequence[Contestant], world: World, drift: Drift, events: int, seed: int) -> Track:
    """Feed a stream to the contestants, and read them after every batch at first, later on the scoring grid."""
    asked = {*range(EARLY // BATCH), *scored_batches(events)}
    watching, waiting = teams(contestants, world, seed), []
    count, truth, given = [], [], []
    describe = any(contestant.estimator.needs for contestant in contestants)
    for batch, moment in enumerate(simulate(world, drift, events, seed, action_sets=describe)):
        waiting.append(moment)
        if batch in asked:
            for team in watching:
                team.watch(waiting)
            waiting = []
            count.append(BATCH * (batch + 1))
            truth.append(moment.truth[1:])
            given.append({name: answer for team in watching for name, answer in team.answers().items()})
    answers = {name: Answer(*np.array([answers[name] for answers in given]).swapaxes(0, 1)) for name in given[0]}
    wanted = [AB_TEST, *(contestant.name for contestant in contestants)]
    return Track(np.array(count), np.array(truth), {name: answers[name] for name in wanted})


def scores(track: Track, world: str, drift: Drift, events: int, seed: int) -> Iterable[Score]:
    """The scores of all contestants."""
    late, early = track.events > EARLY, np.isin(track.events, EARLY_MOMENTS)
    published = track.events % PUBLISHED_EVERY == PUBLISHED_FIRST
    phase = track.events[late] % drift.span * PHASES // drift.span
    for name, answer in track.answers.items():
        error = ((answer.value - track.truth) ** 2).mean(axis=1)
        covered, width = _covered(answer, track.truth), (answer.upper - answer.lower) / 2
        yield Score(
            world,
            drift.kind,
            seed,
            events,
            name,
            mse=float(f"{error[late].mean():.4g}"),
            coverage=_mean(covered[late]),
            half_width=_mean(width[late]),
            early_coverage=tuple(map(_mean, covered[early])),
            early_half_width=tuple(map(_mean, width[early])),
            coverage_from=tuple(_mean(covered[~late & (track.events >= first)]) for first in EARLY_FROM),
            phase_mse=tuple(_mean(error[late][phase == part]) for part in range(PHASES)),
            phase_coverage=tuple(_mean(covered[late][phase == part]) for part in range(PHASES)),
            published_mse=_mean(error[published]),
        )


def _covered(answer: Answer, truth: Floats) -> Floats:
    """1 if the interval covers the truth, 0 if it does not, NaN if there is none."""
    inside = (answer.lower <= truth) & (truth <= answer.upper)
    return np.where(np.isnan(answer.lower), np.nan, inside)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(f"{known.mean():.4g}") if len(known) else None
