"""Check by simulation that confidence sequences ever miss no more often than they promise.

A run is a row: whole streams are drawn side by side, and looked at 60 times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from streameval import IPS, Cumulative, Evaluator, EventBatch, Promotion, Window
from streameval.ope.intervals.sequences.observations import LIGHT, Observations
from streameval.ope.intervals.sequences.tracker import Restarted, RestartSchedule, SinceStart
from streameval.ope.intervals.sequences.wealth import BernsteinWealth, HeavyTailed, WealthProcess, measure

Array = NDArray[np.float64]

LOOKS = 60
BLOCK = 100
EVENTS = 18_000
ERROR = 0.05


class Weights(NamedTuple):
    """Hold the importance weights that occur, their probabilities, and the factors of their rewards."""

    weight: Array
    probability: Array
    better: Array

    def draw(self, rng: np.random.Generator, runs: int, events: int) -> tuple[Array, Array]:
        index = np.searchsorted(np.cumsum(self.probability)[:-1], rng.random((runs, events)), side="right")
        return self.weight[index], self.better[index]

    @property
    def value(self) -> float:
        """Return the value of the candidate if the mean reward before the factors is 1."""
        return float(self.probability @ (self.weight * self.better))

    @property
    def logged(self) -> float:
        """Return the value of the logging policy."""
        return float(self.probability @ self.better)


MILD = Weights(np.array([0.4, 1.6]), np.array([0.5, 0.5]), np.array([0.6, 1.2]))
HEAVY = Weights(
    np.array([50.0, 1.11, 0.0]), np.array([0.002, 0.9 / 1.11, 0.998 - 0.9 / 1.11]), np.array([1.2, 0.9, 1.1])
)


def still(value: float) -> Array:
    return np.full(EVENTS, value)


def drifting(value: float) -> Array:
    """Half a wave above the value and half a wave below it."""
    return value * (1 + 0.6 * np.sin(np.linspace(0, 2 * np.pi, EVENTS)))


def observations(weight: Array, reward: Array) -> Array:
    """Draw observations for the lower and upper bounds of the value and of the lift, [4, runs, events]."""
    gained, lost = weight * reward, weight * (1 - reward)
    return np.stack([gained, lost, gained + 1 - reward, lost + reward])


def ever_missed(
    engine: WealthProcess, span: RestartSchedule, weights: Weights, mean: Array, runs: int, scale: float = 1.0
) -> tuple[Array, float]:
    """Return in how many runs the bounds of value and lift ever miss, [4], and the last width of the interval."""
    rng = np.random.default_rng(20_261_121)
    step = len(mean) // LOOKS
    before, state = np.zeros((4 * runs, 1, 2)), span.start(np.zeros((4 * runs, engine.width)))
    missed = np.zeros((4, runs), dtype=bool)
    for end in range(step, len(mean) + 1, step):
        weight, better = weights.draw(rng, runs, step)
        reward = (rng.random((runs, step)) < mean[end - step : end] * better).astype(float)
        observed = observations(weight, reward) / scale
        light = np.broadcast_to(weight / scale <= LIGHT, observed.shape)
        seen = Observations(_blocks(observed), light=_blocks(light))
        parts = list(span.parts(state, step // BLOCK))
        added, before = measure(engine, seen, before, parts)
        for part, some in zip(parts, added[:, :, 0], strict=True):
            state = span.add(state, some, part)
        sums = span.sums(state)
        level = mean[end - int(sums[0, 0]) : end].mean()
        value, lift = weights.value * level, (weights.value - weights.logged) * level
        lower = engine.lower(sums, np.full(4 * runs, ERROR / 2 * span.share(state))).reshape(4, runs) * scale
        missed |= lower > np.array([value, 1 - value, 1 + lift, 1 - lift])[:, None]
    return missed.sum(axis=1), float((1 - lower[1] - lower[0]).mean())


def _blocks(values: Array) -> Array:
    """Reshape [4, runs, events] to [blocks, rows, 1, events of a block]."""
    rows = values.reshape(4 * values.shape[1], -1, BLOCK)
    return np.ascontiguousarray(rows.swapaxes(0, 1)[:, :, None])


def is_promised_error(missed: Array, runs: int) -> bool:
    """Return whether no bound missed too often for half the error, at a level of one in a thousand each."""
    return bool((missed <= binom.ppf(0.999, runs, ERROR / 2)).all())


CASES = [
    pytest.param(weights, mean, id=f"{name}, {value}, {world.__name__}")
    for name, weights in (("mild", MILD), ("heavy", HEAVY))
    for value in (0.3, 0.03)
    for world in (still, drifting)
    for mean in (world(value),)
]


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "mean"), CASES)
def test_the_robust_sequence_seldom_ever_misses_the_mean_since_the_start(weights: Weights, mean: Array) -> None:
    missed, _ = ever_missed(HeavyTailed(), SinceStart(), weights, mean, runs=200)
    assert is_promised_error(missed, 200)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "mean"), CASES)
def test_the_restarted_sequence_seldom_ever_misses_the_mean_of_its_window(weights: Weights, mean: Array) -> None:
    missed, _ = ever_missed(HeavyTailed(), Restarted(1000, BLOCK), weights, mean, runs=200)
    assert is_promised_error(missed, 200)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "mean"), CASES[::2])
def test_the_empirical_bernstein_sequence_seldom_ever_misses(weights: Weights, mean: Array) -> None:
    missed, _ = ever_missed(BernsteinWealth(), SinceStart(), weights, mean, runs=200, scale=weights.weight.max() + 1)
    assert is_promised_error(missed, 200)


@pytest.mark.slow
@pytest.mark.parametrize("span", [SinceStart(), Restarted(1000, BLOCK)], ids=["since start", "restarted"])
@pytest.mark.parametrize(("weights", "mean"), CASES[3::4])
def test_in_a_thousand_runs_no_sequence_misses_too_often(weights: Weights, mean: Array, span: RestartSchedule) -> None:
    missed, _ = ever_missed(HeavyTailed(), span, weights, mean, runs=1000)
    assert is_promised_error(missed, 1000)


def test_the_simulation_finds_bounds_that_promise_too_much() -> None:
    class Greedy(HeavyTailed):
        """Takes every look for the only one: the Gaussian bound."""

        def lower(self, sums: Array, error: Array) -> Array:
            variance = 0.6 * (sums[:, 1] / sums[:, 0])
            return np.asarray(sums[:, 1] / sums[:, 0] + norm.ppf(error) * np.sqrt(variance / sums[:, 0]))

    missed, _ = ever_missed(Greedy(), SinceStart(), MILD, still(0.3), runs=200)
    assert not is_promised_error(missed, 200)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "times"), [(MILD, 2.2), (HEAVY, 3.0)], ids=["mild", "heavy"])
def test_being_watched_costs_about_twice_the_width(weights: Weights, times: float) -> None:
    mean = 0.3
    second = weights.probability @ (weights.weight**2 * weights.better * mean)
    gaussian = 2 * norm.ppf(1 - ERROR / 2) * np.sqrt((second - (weights.value * mean) ** 2) / EVENTS)
    _, width = ever_missed(HeavyTailed(), SinceStart(), weights, still(mean), runs=50)
    assert gaussian < width < times * gaussian


STREAMS, CANDIDATES, LOOKS, BETWEEN = 10, 40, 60, 100


def missed_on_the_way(seed: int, weights: tuple[float, ...], chances: tuple[float, ...]) -> dict[str, float]:
    """Return the shares of candidates with intervals of an evaluator that ever miss, by average and covered value.

    Rewards drift and do not depend on the action: every candidate is worth what production is.
    """
    rng = np.random.default_rng(seed)
    events, propensity = LOOKS * BETWEEN, 1 / max(weights)
    mean = 0.3 + 0.1 * np.sin(np.arange(events) / 1500)
    reward = (rng.random(events) < mean).astype(float)
    names = [f"candidate-{index}" for index in range(CANDIDATES)]
    weight = rng.choice(weights, p=chances, size=(events, CANDIDATES))
    kinds = {"cumulative": "confidence_sequence", "window": "confidence_sequence"}
    averages = [Cumulative(), Window(tau=1000)]
    evaluator = Evaluator(names, [IPS()], averages, intervals=kinds, promotion=Promotion(family_size=1), drift=None)
    missed = {f"{average} {about}": set() for average in kinds for about in ("value", "lift")}
    for first in range(0, events, BETWEEN):
        rows = slice(first, first + BETWEEN)
        policies = {name: weight[rows, index] * propensity for index, name in enumerate(names)}
        evaluator.update(
            EventBatch.from_arrays(reward=reward[rows], propensity=np.full(BETWEEN, propensity), policies=policies)
        )
        evaluator.fold_pending()
        for estimate in evaluator.report().estimates:
            if estimate.policy not in policies or estimate.lower is None or estimate.lift_lower is None:
                continue
            about = mean[rows.stop - int(estimate.details["interval_events"]) : rows.stop].mean()
            if not estimate.lower <= about <= estimate.upper:
                missed[f"{estimate.average} value"].add(estimate.policy)
            if not estimate.lift_lower <= 0 <= estimate.lift_upper:
                missed[f"{estimate.average} lift"].add(estimate.policy)
    return {name: len(policies) / CANDIDATES for name, policies in missed.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "chances"), [((0.5, 1.5), (0.5, 0.5)), ((0.0, 1.11, 50.0), (0.1872, 0.8108, 0.002))]
)
def test_in_an_evaluator_watched_intervals_seldom_ever_miss(
    weights: tuple[float, ...], chances: tuple[float, ...]
) -> None:
    """Count streams apart, not the 400 candidates: the candidates of one stream share its rewards."""
    streams = [missed_on_the_way(seed, weights, chances) for seed in range(STREAMS)]
    for name in streams[0]:
        shares = np.array([stream[name] for stream in streams])
        assert shares.mean() - 3 * shares.std(ddof=1) / np.sqrt(STREAMS) <= 0.05, name
        assert shares.mean() <= 0.06, name
