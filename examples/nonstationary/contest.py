"""Compare estimators and averages, and an A/B test, on the same stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streameval import (
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    Cumulative,
    Decay,
    DriftAware,
    EmpiricalBernstein,
    Evaluator,
    EventBatch,
    Mixture,
    Normal,
    StratifiedDR,
    StratifiedIPS,
    Window,
)
from streameval.ope.core import AnyAverage
from streameval.ope.estimators import AnyEstimator
from streameval.ope.intervals import AnyInterval
from streameval.simulation import Moment, World

Floats = NDArray[np.float64]

AB_TEST = "A/B test"


@dataclass(frozen=True)
class Contestant:
    """Combine an estimator with an average and an interval.

    Args:
        estimator: Estimator.
        average: Average.
        bound: Interval. By default `drift_aware` on a mixture, otherwise `normal`.
    """

    estimator: AnyEstimator
    average: AnyAverage
    bound: AnyInterval | None = None

    @property
    def name(self) -> str:
        """Return the name in tables and results.

        >>> Contestant(IPS(), Decay()).name
        'ips / decay'
        """
        return f"{self.estimator.label} / {self.average.label}"


def _usual(average: AnyAverage) -> AnyInterval:
    return DriftAware() if isinstance(average, Mixture) else Normal()


class Answer(NamedTuple):
    """Hold estimates and the bounds of their intervals, one per candidate. NaN stands for an absent number."""

    value: Floats
    lower: Floats
    upper: Floats


class Team(Protocol):
    """Follow a stream with contestants that see the same events."""

    def watch(self, moments: Sequence[Moment]) -> None:
        """Process the next batches of the stream."""

    def answers(self) -> Mapping[str, Answer]:
        """Return the current estimates of each contestant by its name."""


class Estimators:
    """Run contestants in one evaluator, which computes each of their estimators on each of their averages."""

    def __init__(self, contestants: Iterable[Contestant], candidates: Sequence[str]) -> None:
        contestants = list(contestants)
        self._candidates = tuple(candidates)
        estimators = list(dict.fromkeys(contestant.estimator for contestant in contestants))
        self._actions = any(estimator.needs for estimator in estimators)
        self._evaluator = Evaluator(
            candidates=self._candidates,
            estimators=estimators,
            averages=list(dict.fromkeys(contestant.average for contestant in contestants)),
            intervals={
                contestant.average.label: contestant.bound or _usual(contestant.average) for contestant in contestants
            },
        )

    def watch(self, moments: Sequence[Moment]) -> None:
        events = EventBatch.concat([moment.events for moment in moments])
        self._evaluator.update(events if self._actions else replace(events, action_sets=None))

    def answers(self) -> Mapping[str, Answer]:
        answers: dict[str, Answer] = {}
        self._evaluator.fold_pending()
        for estimate in self._evaluator.report().estimates:
            if estimate.policy in self._candidates:
                name = f"{estimate.estimator} / {estimate.average}"
                answer = answers.setdefault(name, Answer(*np.full((3, len(self._candidates)), np.nan)))
                for column, number in zip(answer, (estimate.value, estimate.lower, estimate.upper), strict=True):
                    column[self._candidates.index(estimate.policy)] = np.nan if number is None else number
        return answers


class ABTest:
    """Simulate a test that deploys every candidate on as many events.

    Args:
        candidates: Names of the candidates.
        seed: Seed of the rewards.
        window: Number of latest events over which rewards are averaged.
    """

    def __init__(self, candidates: Sequence[str], seed: int, window: int = 10_000) -> None:
        self._random = np.random.default_rng([seed, window])
        self._batches = window // 100
        self._means: list[Floats] = []
        self._nothing = np.full(len(candidates), np.nan)

    def watch(self, moments: Sequence[Moment]) -> None:
        for moment in moments:
            events = len(moment.events)
            self._means.append(self._random.binomial(events, moment.drawn[1:]) / events)
        del self._means[: -self._batches]

    def answers(self) -> Mapping[str, Answer]:
        return {AB_TEST: Answer(np.mean(self._means, axis=0), self._nothing, self._nothing)}


PUBLISHED_WINDOW = partial(AdaptiveWindow, objective="published")
PUBLISHED_DECAY = partial(AdaptiveDecay, objective="published")
MIXTURE = Mixture()

IN_TABLE: tuple[Contestant, ...] = (
    *(
        Contestant(IPS(), average)
        for average in (
            Cumulative(),
            Window(),
            Decay(),
            PUBLISHED_WINDOW(name="adaptive_window, published"),
            PUBLISHED_DECAY(name="adaptive_decay, published"),
            AdaptiveWindow(bias_weight=0.5, name="adaptive_window, mse .5"),
            AdaptiveWindow(bias_weight=1.0, name="adaptive_window, mse 1"),
            AdaptiveDecay(bias_weight=0.5, name="adaptive_decay, mse .5"),
            AdaptiveDecay(bias_weight=1.0, name="adaptive_decay, mse 1"),
            PUBLISHED_WINDOW(growth="immediate", name="adaptive_window, published, immediate"),
            AdaptiveWindow(bias_weight=0.5, growth="immediate", name="adaptive_window, mse .5, immediate"),
        )
    ),
    *(Contestant(estimator, MIXTURE) for estimator in (IPS(), SNIPS(), StratifiedIPS(), StratifiedDR())),
    Contestant(IPS(), Window(name="window, Bernstein"), EmpiricalBernstein()),
    Contestant(IPS(), Window(name="window, normal with drift"), Normal(drift="include")),
)
"""Rows of the table, and the window of 10,000 events twice more for its other intervals."""

ALPHAS = (0.998, 0.999, 0.9995, 0.9998, 0.9999, 0.99995, 0.99998, 0.99999, 0.999995)
WINDOWS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)

FORGETTING: tuple[Contestant, ...] = (
    *(Contestant(IPS(), Decay(alpha=alpha, name=f"decay {alpha:g}")) for alpha in ALPHAS),
    *(Contestant(IPS(), Window(tau=tau, name=f"window {tau}")) for tau in WINDOWS),
)
"""One estimator with nine decays and nine windows."""


def teams(contestants: Sequence[Contestant], world: World, seed: int) -> list[Team]:
    """Distribute the contestants to as few evaluators as their estimators and averages allow, and add the A/B test."""
    average_groups: dict[AnyAverage, list[Contestant]] = {}
    for contestant in contestants:
        average_groups.setdefault(contestant.average, []).append(contestant)
    estimator_groups: dict[frozenset[AnyEstimator], list[Contestant]] = {}
    for group in average_groups.values():
        estimator_groups.setdefault(frozenset(contestant.estimator for contestant in group), []).extend(group)
    members = (Estimators(group, world.candidates) for group in estimator_groups.values())
    return [*members, ABTest(world.candidates, seed)]
