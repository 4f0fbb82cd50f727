"""Compare with other software, and with code that one would write by hand, on equal events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from estimators.bandits import cressieread, gaussian, ips, snips
from growth import batches, names_of
from measuring import Benchmark, Ratio, Work, updating

from streameval import IPS, SNIPS, Cumulative, Evaluator, EventBatch, Window
from streameval.common.arrays import Array

TAU = 100_000
RESAMPLES = 10_000
"""Resamples of a bootstrap over a million events. Only a few are measured."""
MEASURED_RESAMPLES = 5
FEW = 1_000
"""Events for peers that take milliseconds an event."""


def columns(batches: Sequence[EventBatch]) -> tuple[Array, Array, Array]:
    """Return propensities [n], rewards [n], and the candidates' probabilities [candidates, n]."""
    whole = EventBatch.concat(batches)
    return whole.propensity, whole.reward, whole.probabilities.T


def vw_estimators(propensity: Array, reward: Array, targets: Array, *kinds: type) -> None:
    """Run each estimator and interval of vw-estimators, event by event."""
    logged = list(zip(propensity.tolist(), reward.tolist(), strict=True))
    for target in targets.tolist():
        estimators = [kind() for kind in kinds]
        for (logging, earned), probability in zip(logged, target, strict=True):
            for estimator in estimators:
                estimator.add_example(logging, earned, probability)
        for estimator in estimators:
            estimator.get()


def published_window(terms: Array, tau: int) -> None:
    """Average a window again at every event, as the code published with the windowed estimators does."""
    window: deque[float] = deque(terms[:tau].tolist(), maxlen=tau)
    for term in terms[tau:].tolist():
        window.append(term)
        sum(window) / len(window)


def benchmark(events: int = 24_000) -> Benchmark:
    decoded = batches(events)
    propensity, reward, targets = columns(decoded)
    few, terms = slice(FEW), reward * targets[0] / propensity
    long = np.resize(terms, TAU + FEW // 10)
    rng = np.random.default_rng(0)
    million = np.resize(terms, 1_000_000)
    watched = Evaluator(names_of(10))
    updating(watched, decoded).run()

    def evaluator(interval: str) -> Evaluator:
        return Evaluator(names_of(10), [IPS(), SNIPS()], [Cumulative()], intervals={"cumulative": interval}, drift=None)

    def bootstrap() -> None:
        for _ in range(MEASURED_RESAMPLES):
            million[rng.integers(len(million), size=len(million))].mean()

    works = {
        "ips and snips, normal": updating(evaluator("normal"), decoded),
        "vw-estimators, Gaussian": Work(
            lambda: vw_estimators(propensity, reward, targets, ips.Estimator, snips.Estimator, gaussian.Interval),
            events,
        ),
        "ips and snips, empirical likelihood": updating(evaluator("empirical_likelihood"), decoded),
        "vw-estimators, Cressie-Read": Work(
            lambda: vw_estimators(
                propensity[few], reward[few], targets[:, few], cressieread.Estimator, cressieread.Interval
            ),
            FEW,
        ),
        f"window of {TAU:,} events": updating(
            Evaluator(names_of(10), [IPS()], [Cumulative(), Window(tau=TAU)], drift=None), decoded
        ),
        "published window, 10 candidates": Work(lambda: [published_window(long, TAU) for _ in range(10)], FEW // 10),
        "interval of a Report": Work(watched.report, len(watched.report().estimates)),
        f"interval by {RESAMPLES:,} resamples": Work(bootstrap, MEASURED_RESAMPLES / RESAMPLES),
    }
    ratios = [
        Ratio("ips and snips, normal", "vw-estimators, Gaussian", 0.01),
        Ratio("ips and snips, empirical likelihood", "vw-estimators, Cressie-Read", 0.01),
        Ratio(f"window of {TAU:,} events", "published window, 10 candidates", 0.001),
        Ratio("interval of a Report", f"interval by {RESAMPLES:,} resamples", 1e-4),
    ]
    return Benchmark("Peers on the same events, 10 candidates, after decoding", works, ratios)
