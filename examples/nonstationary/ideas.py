"""Try ideas to make `stratified_dr` on a mixture, the default, more accurate on the same streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from contest import Floats
from experiment import SETTINGS, scored_batches
from worlds import scene

from streameval import DM, DR, Evaluator, EventBatch, Mixture, StratifiedDR
from streameval.ope.estimators import AnyEstimator
from streameval.ope.report import Report
from streameval.simulation import DriftKind, simulate

DEFAULT = "stratified_dr"
THRESHOLDS = {2: "threshold 2", 5: DEFAULT, 20: "threshold 20"}
"""The estimators with strata by their threshold of the weight."""
ESTIMATORS: Sequence[AnyEstimator] = (
    *(StratifiedDR(threshold=weight, name=name) for weight, name in THRESHOLDS.items()),
    DR(),
    DM(),
)


class Look(NamedTuple):
    """Hold the numbers of all estimators at one time.

    Args:
        value: Values by estimator, [candidates].
        lift: Lifts by estimator, [candidates].
        error: Estimated squared errors of the values by estimator, [candidates].
        production: Value of production according to the default.
    """

    value: Mapping[str, Floats]
    lift: Mapping[str, Floats]
    error: Mapping[str, Floats]
    production: float

    @classmethod
    def from_report(cls, report: Report, candidates: Sequence[str], production: str) -> Look:
        """Read the numbers on the mixture.

        A squared error is the sampling variance plus the squared disagreement of the decays.
        """
        value, lift, error = dict[str, Floats](), dict[str, Floats](), dict[str, Floats]()
        for label in (estimator.label for estimator in ESTIMATORS):
            rows = [report.get(name, label, "mixture") for name in candidates]
            numbers = [(row.value, row.lift, row.details["se"], row.details["spread"]) for row in rows]
            value[label], lift[label], sampling, disagreement = np.array(numbers, dtype=float).T
            error[label] = sampling**2 + disagreement**2
        return cls(value, lift, error, float(report.get(production, DEFAULT, "mixture").value or 0.0))


def shrunk(value: Floats, model: Floats, error: Floats) -> Floats:
    """Shrink the corrections of the model towards their mean, as far as chance explains their differences.

    This is the estimator of James and Stein.

    Args:
        value: Values of the candidates, [candidates].
        model: Values according to the reward model alone, [candidates].
        error: Squared errors of the values, [candidates].

    >>> shrunk(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.zeros(5), np.full(5, 0.1))
    array([0.3, 0.3, 0.3, 0.3, 0.3])
    """
    correction = value - model
    mean, between = correction.mean(), correction.var() * len(correction)
    kept = max(0.0, 1 - (len(correction) - 3) * error.mean() / between) if between > 0 else 0.0
    return np.asarray(model + mean + kept * (correction - mean))


def _least_error(look: Look) -> Floats:
    values, errors = (np.stack([columns[name] for name in THRESHOLDS.values()]) for columns in (look.value, look.error))
    return np.asarray(np.take_along_axis(values, errors.argmin(axis=0)[None], axis=0)[0])


IDEAS: Mapping[str, Callable[[Look], Floats]] = {
    "the default": lambda look: look.value[DEFAULT],
    "strata divided at a weight of 2 in place of 5": lambda look: look.value["threshold 2"],
    "strata divided at a weight of 20": lambda look: look.value["threshold 20"],
    "a smooth division: the mean of all three": lambda look: np.mean(
        [look.value[name] for name in THRESHOLDS.values()], axis=0
    ),
    "for each candidate, the division with the least estimated error": _least_error,
    "no strata: `dr`": lambda look: look.value["dr"],
    "production's value plus the lift, whose decays are weighted by their loss on the difference": lambda look: (
        look.production + look.lift[DEFAULT]
    ),
    "corrections of the reward model shrunk towards their mean over the candidates": lambda look: shrunk(
        look.value[DEFAULT], look.value["dm"], look.error[DEFAULT]
    ),
}


def errors_of_ideas(world: str, setting: DriftKind, events: int, seed: int) -> Floats:
    """Return the mean squared errors of all candidates over the times of the study, [ideas, candidates]."""
    stage = scene(world)
    made = stage.make()
    candidates, production = tuple(made.candidates), "logging"
    evaluator = Evaluator(candidates, ESTIMATORS, [Mixture()], production=production, promotion=None, drift=None)
    asked, waiting, errors = set(scored_batches(events)), list[EventBatch](), list[list[Floats]]()
    for batch, moment in enumerate(simulate(made, stage.drift(setting, made), events, seed, action_sets=True)):
        waiting.append(moment.events)
        if batch in asked:
            evaluator.update(EventBatch.concat(waiting))
            evaluator.fold_pending()
            waiting = []
            look = Look.from_report(evaluator.report(), candidates, production)
            errors.append([(idea(look) - moment.truth[1:]) ** 2 for idea in IDEAS.values()])
    return np.asarray(np.mean(errors, axis=0))


def rows_of_ideas(world: str, events: int, seeds: Sequence[int]) -> Iterator[list[str]]:
    """Yield rows of a table: the world, the idea, and for each setting the error in thousandths.

    The error of the worst candidate follows in brackets. Both are means over the seeds.
    """
    errors_by_setting = [[errors_of_ideas(world, setting, events, seed) for seed in seeds] for setting in SETTINGS]
    for index, idea in enumerate(IDEAS):
        errors = [1e3 * np.array([values[index] for values in runs]) for runs in errors_by_setting]
        cells = [f"{values.mean():.3f} ({values.max(axis=1).mean():.3f})" for values in errors]
        yield [scene(world).name, idea, *(re.sub(r"\b0\.", ".", cell) for cell in cells)]
