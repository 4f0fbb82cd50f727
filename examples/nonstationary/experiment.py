"""Measure the error and the coverage of every contestant in one run of a world, a kind of drift and a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from baselines import Baselines, Entrant
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
"""The authors score after 100 events, and then every 10,000 events."""


class Track(NamedTuple):
    """Hold all estimates at some times of one run.

    Args:
        events: Number of events so far, [moments].
        truth: True values, [moments, candidates].
        answers: Estimates by contestant, [moments, candidates] each.
    """

    events: NDArray[np.int64]
    truth: Floats
    answers: dict[str, Answer]


class Score(msgspec.Struct, frozen=True):
    """Hold the scores of a contestant in one run, averaged over times and candidates.

    Args:
        world: Name of the world.
        setting: Kind of drift.
        seed: Seed of the run.
        events: Events of the run.
        contestant: Name of the contestant.
        mse: Mean squared error on the scoring grid.
        coverage: Coverage of the current value on the scoring grid, None without an interval.
        half_width: Half-width on the scoring grid, None without an interval.
        early_coverage: Coverage after each number of events in EARLY_MOMENTS, before the grid.
        early_half_width: Half-width after each number of events in EARLY_MOMENTS.
        coverage_from: Mean coverage over all batches from each number of events in EARLY_FROM to 10,000.
        phase_mse: Error on the grid, for each tenth of the time between two jumps.
        phase_coverage: Coverage on the grid, for each tenth of the time between two jumps.
        published_mse: Error on the grid of the authors, None if it was not measured.
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
    """Return the batches after which a run of this many events is scored.

    These are 100, 110, ..., so a run is scored after 10,100, 11,100, ... events.
    """
    return range(100, events // BATCH, 10)


def follow(contestants: Sequence[Entrant], world: World, drift: Drift, events: int, seed: int) -> Track:
    """Feed a stream to the contestants, and read them after every batch at first, then on the scoring grid."""
    scored = {*range(EARLY // BATCH), *scored_batches(events)}
    own = [contestant for contestant in contestants if isinstance(contestant, Contestant)]
    watching, waiting = teams(own, world, seed), []
    if len(own) < len(contestants):
        watching.append(Baselines(world.item_features.shape[1], len(world.candidates), drift))
    count, truth, answers_by_moment = [], [], []
    describe = len(own) < len(contestants) or any(contestant.estimator.needs for contestant in own)
    for batch, moment in enumerate(simulate(world, drift, events, seed, action_sets=describe)):
        waiting.append(moment)
        if batch in scored:
            for team in watching:
                team.watch(waiting)
            waiting = []
            count.append(BATCH * (batch + 1))
            truth.append(moment.truth[1:])
            answers_by_moment.append({name: answer for team in watching for name, answer in team.answers().items()})
    answers = {
        name: Answer(*np.array([answers[name] for answers in answers_by_moment]).swapaxes(0, 1))
        for name in answers_by_moment[0]
    }
    wanted = [AB_TEST, *(contestant.name for contestant in contestants)]
    return Track(np.array(count), np.array(truth), {name: answers[name] for name in wanted})


def scores(track: Track, world: str, drift: Drift, events: int, seed: int) -> Iterable[Score]:
    """Yield the scores of all contestants."""
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
            phase_mse=tuple(_mean(error[late][phase == number]) for number in range(PHASES)),
            phase_coverage=tuple(_mean(covered[late][phase == number]) for number in range(PHASES)),
            published_mse=_mean(error[published]),
        )


def _covered(answer: Answer, truth: Floats) -> Floats:
    """Return 1 if the interval covers the truth, 0 if it does not, and NaN if there is no interval."""
    inside = (answer.lower <= truth) & (truth <= answer.upper)
    return np.where(np.isnan(answer.lower), np.nan, inside)


def _mean(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(f"{present.mean():.4g}") if len(present) else None
