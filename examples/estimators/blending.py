"""Measure the error of each estimator against its parameter, and with unsupported actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from digits import CANDIDATE, Digits
from numpy.typing import NDArray

from streameval import CAB, CABDR, DM, DR, IPS, ClippedIPS, Cumulative, Evaluator, Ridge, StaticBlend, Switch
from streameval.ope.estimators import AnyEstimator

Array = NDArray[np.float64]

CAPS = tuple(np.geomspace(0.1, 100, 19).tolist())
TAUS = tuple(np.linspace(0, 1, 11).tolist())
CAPPED = {"clipped_ips": ClippedIPS, "switch": Switch, "cab": CAB, "cab_dr": CABDR}
FIXED = (DM(), DR(), IPS())
SUPPORTED = (1, 2, 3, 4, 5, 6, 8, 10)
"""Number of actions, of ten, that the logging policy takes for an image."""
MODEL = Ridge(horizon=100_000, penalty=1.0)


def estimators(caps: Sequence[float] = CAPS, taus: Sequence[float] = TAUS) -> list[AnyEstimator]:
    """Return every estimator with every value of its parameter, which is part of its name."""
    capped = [kind(cap=cap, name=f"{label} {cap:g}") for label, kind in CAPPED.items() for cap in caps]
    return [*FIXED, *capped, *(StaticBlend(tau=tau, name=f"static_blend {tau:g}") for tau in taus)]


def estimates(
    digits: Digits, logs: int, events: int, caps: Sequence[float] = CAPS, taus: Sequence[float] = TAUS
) -> Mapping[str, Array]:
    """Return the estimates of each estimator on many logs, [logs]."""
    samples: dict[str, list[float]] = {}
    for seed in range(logs):
        evaluator = Evaluator(
            [CANDIDATE], estimators=estimators(caps, taus), averages=[Cumulative()], reward_model=MODEL, drift="off"
        )
        evaluator.update(digits.log(events, seed))
        for estimate in evaluator.report().estimates:
            if estimate.policy == CANDIDATE:
                samples.setdefault(estimate.estimator, []).append(estimate.value)
    return {label: np.array(values) for label, values in samples.items()}


def mean_squared_errors(estimates: Mapping[str, Array], truth: float) -> dict[str, float]:
    """Return the errors by estimator."""
    return {label: float(np.mean((values - truth) ** 2)) for label, values in estimates.items()}


def estimates_with_support(supported: int, logs: int, events: int, cap: float) -> tuple[Digits, Mapping[str, Array]]:
    """Return digits with a logging policy that takes only the likeliest actions, and estimates on their logs.

    Args:
        supported: Number of actions that the logging policy takes for an image.
        logs: Number of logs.
        events: Events of a log.
        cap: Cap of the capped estimators.
    """
    digits = Digits.prepared(exploration=0.1, supported=supported)
    return digits, estimates(digits, logs, events, caps=(cap,), taus=())
