"""Test what units (users, sessions) do to variances, against arithmetic by unit and by simulation."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import (
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    Cumulative,
    Decay,
    Estimate,
    Evaluator,
    EventBatch,
    Mixture,
    StratifiedIPS,
    Window,
)
from streameval.events import JsonDecoder, fingerprints
from streameval.ope.core import AnyAverage
from streameval.ope.core.past import SIGNS, UnitState, signs_of, start_signs, unit_signs
from support.reference import brute_force
from support.reference.brute_force import Terms
from support.streams import close, evaluated

Array = NDArray[np.float64]
Units = NDArray[np.int64]

BLOCK = 50
AVERAGES: tuple[AnyAverage, ...] = (
    Cumulative(),
    Window(),
    Decay(),
    AdaptiveWindow(drift_span=500),
    AdaptiveDecay(drift_span=500),
    Mixture(),
)


def consecutive(rng: np.random.Generator, count: int, size: int = 20) -> Units:
    """Return sessions one after the other."""
    return np.arange(count) // size


def side_by_side(rng: np.random.Generator, count: int, size: int = 20, open_sessions: int = 50) -> Units:
    """Return sessions of `size` events, this many of them open at a time."""
    left, names = rng.integers(1, size + 1, open_sessions), np.arange(open_sessions)
    units, new = np.empty(count, dtype=np.int64), open_sessions
    for event, index in enumerate(rng.integers(0, open_sessions, count)):
        units[event] = names[index]
        left[index] -= 1
        if not left[index]:
            left[index], names[index], new = size, new, new + 1
    return units


class Log:
    """Draw events of two candidates and rewards of mean 1/2, with an intra-class correlation within units."""

    def __init__(self, seed: int, units: Units, correlation: float = 0.2, missing: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        count = len(units)
        shared = rng.normal(0, math.sqrt(correlation), units.max() + 1)[units]
        self.units = units
        self.reward = 0.5 + 0.1 * (shared + rng.normal(0, math.sqrt(1 - correlation), count))
        self.propensity = np.full(count, 0.5)
        self.target = {name: rng.choice([0.25, 0.75], count) for name in ("a", "b")}
        for target in self.target.values():
            target[rng.random(count) < missing] = np.nan
        self.salt = ""

    def __len__(self) -> int:
        return len(self.units)

    def names(self) -> list[str]:
        return [f"{self.salt}{unit}" for unit in self.units]

    def batch(self, first: int = 0, last: int | None = None, units: Sequence[Any] | None = None) -> EventBatch:
        rows = slice(first, last)
        named = None if units is None else list(units[rows])
        return EventBatch.from_arrays(
            reward=self.reward[rows],
            propensity=self.propensity[rows],
            policies={name: target[rows] for name, target in self.target.items()},
            timestamp=np.arange(len(self))[rows],
            unit=named,
        )

    def terms(self, estimator: str, policy: str) -> Terms:
        target = self.propensity if policy == "logging" else self.target[policy]
        present, weight = (~np.isnan(target)) * 1.0, np.nan_to_num(target / self.propensity)
        return brute_force.terms(estimator, present, weight, self.reward, cap=2.5, block=BLOCK)


def evaluated_units(
    log: Log, units: Sequence[Any] | None, *, every: int = 0, production: str = "logging", **wanted: Any
) -> Evaluator:
    candidates = [name for name in ("a", "b") if name != production]
    settings: dict[str, Any] = {
        "candidates": candidates,
        "production": production,
        "estimators": [IPS(), SNIPS()],
        "averages": [Cumulative()],
        "reward_range": (-10, 10),
        "block": BLOCK,
        "drift": None,
    }
    return evaluated(log.batch(0, None, units), every=every, **settings | wanted)


def effect(log: Log, units: Sequence[Any] | None, policy: str, estimator: str, **wanted: Any) -> Estimate:
    average = wanted.get("averages", [Cumulative()])[0]
    actual: Estimate = evaluated_units(log, units, **wanted).report().get(policy, estimator, average.label)
    return actual


def residual_of(terms: Terms, q: Array) -> Array:
    """Return the linearised residual of each event times its weight."""
    value = np.average(terms.u, weights=q) / np.average(terms.v, weights=q)
    return q * (terms.u - value * terms.v) / float(np.average(terms.v, weights=q))


def lift_residual(own: Terms, other: Terms) -> tuple[Array, Array]:
    q = np.where(other.q > 0, own.q, 0.0)
    return residual_of(own, q) - residual_of(other, q), q


def block_sums(values: Array) -> Array:
    return values.reshape(-1, BLOCK, *values.shape[1:]).sum(axis=1)


def fading(count: int, factor: float) -> Array:
    """Return the fading factor of each block."""
    return factor ** np.arange(count // BLOCK - 1, -1, -1.0)


def contrasts(values: Array, width: int, *signs: float) -> Array:
    """Add up `width` blocks times each of these signs, side by side, with squares of factors that sum to 1."""
    kernel = np.repeat(signs, width) / math.sqrt(width * np.square(signs).sum())
    return np.lib.stride_tricks.sliding_window_view(values, len(kernel), axis=0) @ kernel


def expected_effect(residual: Array, q: Array, signs: Array, faded: Array) -> float:
    """Return the design effect by definition: blocks plus units less units inside of blocks, or ten blocks against
    others.
    """
    independent = (np.repeat(faded, BLOCK) * residual**2).sum() / (np.repeat(faded, BLOCK) * q).sum()
    weight, totals, signed = block_sums(q**2), block_sums(residual), block_sums(signs * residual[:, None])

    def relative(squares: Array) -> float:
        recent = faded[-len(squares) :]
        return float((recent * squares).sum() / ((recent * weight[-len(squares) :]).sum() * independent))

    near, far = contrasts(totals, 1, -1, 1) ** 2, contrasts(totals, 10, 1, -2, 1) ** 2
    inside = (contrasts(signed, 1, -1, 1) ** 2).mean(axis=1)
    units = ((np.sqrt(faded)[:, None] * signed).sum(axis=0) ** 2).mean() / ((faded * weight).sum() * independent)
    kernel = np.repeat([1, -2, 1], 10) / math.sqrt(60)
    overlap = np.square(np.correlate(kernel, kernel, mode="full")).sum()
    windows = (faded * weight)[-len(far) :].sum() / (faded * weight).sum() * faded.sum()
    distant = relative(far) / (1 + math.sqrt(2 * overlap / windows))
    return max(relative(near) + float(units) - relative(inside), distant)


# The identity that holds with the signs of units.


@pytest.mark.parametrize("estimator", ["ips", "snips"])
@pytest.mark.parametrize("policy", ["logging", "a"])
def test_the_design_effect_counts_blocks_and_units_once(policy: str, estimator: str) -> None:
    log = Log(1, side_by_side(np.random.default_rng(1), 3_000), missing=0.2)
    terms, signs = log.terms(estimator, policy), signs_of(fingerprints(log.names()))
    expected = expected_effect(residual_of(terms, terms.q), terms.q, signs, fading(len(log), 1.0))
    actual = effect(log, log.names(), policy, estimator)
    assert actual.details["design_effect"] == pytest.approx(expected, rel=1e-9)
    assert actual.details["design_effect_of"] == "units"


def test_the_design_effect_fades_as_squares_do() -> None:
    log = Log(2, side_by_side(np.random.default_rng(2), 3_000))
    signs = signs_of(fingerprints(log.names()))
    faded = fading(len(log), math.exp(-BLOCK / (10 * 80)))
    q = np.ones(len(log))
    kernel = np.repeat(faded, BLOCK)
    residual = log.reward - np.average(log.reward, weights=kernel)
    expected = expected_effect(residual, q, signs, faded)
    actual = effect(log, log.names(), "logging", "ips", averages=[Window(tau=80, resolution=1)])
    assert actual.details["design_effect"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("estimator", ["ips", "snips"])
@pytest.mark.parametrize(("production", "missing"), [("logging", 0.0), ("b", 0.0), ("b", 0.2), ("logging", 0.2)])
def test_a_lift_has_the_design_effect_of_its_paired_differences(
    production: str, missing: float, estimator: str
) -> None:
    log = Log(3, side_by_side(np.random.default_rng(3), 3_000), missing=missing)
    residual, q = lift_residual(log.terms(estimator, "a"), log.terms(estimator, production))
    signs = signs_of(fingerprints(log.names()))
    expected = expected_effect(residual, q, signs, fading(len(log), 1.0))
    actual = effect(log, log.names(), "a", estimator, production=production)
    assert actual.details["lift_design_effect"] == pytest.approx(expected, rel=1e-9)


def test_the_design_effect_over_all_hashes_is_the_sum_of_squares_by_unit() -> None:
    log = Log(4, side_by_side(np.random.default_rng(4), 2_000))
    terms = log.terms("ips", "a")
    residual = residual_of(terms, terms.q)
    squares = (np.bincount(log.units, residual) ** 2).sum()
    unit_sums = np.zeros((len(log) // BLOCK, log.units.max() + 1))
    np.add.at(unit_sums, (np.arange(len(log)) // BLOCK, log.units), residual)
    between, inside = ((contrasts(sums, 1, -1, 1) ** 2).sum() for sums in (block_sums(residual), unit_sums))
    blocks = len(log) // BLOCK
    exact = ((between - inside) * blocks / (blocks - 1) + squares) / (residual**2).sum()
    results = []
    for seed in range(30):
        log.salt = f"{seed}/"
        results.append(effect(log, log.names(), "a", "ips", estimators=[IPS()]).details["design_effect"])
    noise = np.std(results)
    assert abs(np.mean(results) - exact) < 4 * noise / math.sqrt(len(results))
    assert noise < 1.2 * math.sqrt(2 / SIGNS) * squares / (residual**2).sum()


def test_units_inside_of_blocks_add_nothing_to_blocks() -> None:
    log = Log(5, consecutive(np.random.default_rng(5), 20_000, size=25))
    blocks = effect(log, None, "logging", "ips").details["design_effect"]
    units = effect(log, log.names(), "logging", "ips").details["design_effect"]
    assert blocks == pytest.approx(1 + 24 * 0.2, rel=0.15)
    assert units == pytest.approx(blocks, rel=4 * math.sqrt(2 / SIGNS))


# Drift and sessions, 50,000 events in blocks of 100. The seeds were written down before the first run.

WAVE = 0.2 * np.sin(2 * np.pi * np.arange(50_000) / 25_000)
"""Wave that is added to rewards with a standard deviation of .4."""


def long_effects(seed: int, arrange: Any, correlation: float, wave: Array) -> list[float]:
    """Return the design effects of the mean reward, of a candidate's value and of its lift."""
    log = Log(seed, arrange(np.random.default_rng(seed), len(WAVE)), correlation)
    log.reward = 0.2 + 4 * (log.reward - 0.5) + wave
    report = evaluated_units(log, None, estimators=[IPS()], block=100).report()
    candidate = report.get("a", "ips", "cumulative").details
    mean = report.get("logging", "ips", "cumulative").details["design_effect"]
    return [mean, candidate["design_effect"], candidate["lift_design_effect"]]


def test_slow_waves_are_not_clusters() -> None:
    for seed in (20261122, 20261123):
        assert long_effects(seed, consecutive, 0.0, WAVE) == [pytest.approx(1, abs=0.3)] * 3


@pytest.mark.parametrize("wave", [WAVE, 0.0 * WAVE], ids=["wave", "still"])
def test_sessions_are_found_in_slow_waves(wave: Array) -> None:
    mean, *_ = long_effects(20261124, consecutive, 0.2, wave)
    assert mean * (1 + wave.var() / 0.4**2) == pytest.approx(1 + 19 * 0.2, rel=0.2)


def test_sessions_side_by_side_are_found_without_their_names() -> None:
    for seed in (20261125, 20261126, 20261127):
        assert long_effects(seed, side_by_side, 0.2, WAVE)[0] > 1.4
        assert long_effects(seed, side_by_side, 0.0, WAVE)[0] < 1.2


# Kinds of streams.


@pytest.mark.slow
def test_without_units_there_is_nothing_to_keep() -> None:
    log = Log(6, consecutive(np.random.default_rng(6), 1_000))
    plain, nameless = (evaluated_units(log, units, averages=AVERAGES).state() for units in (None, [None] * len(log)))
    assert plain == nameless
    assert not plain["units"]["seen"]


def test_units_count_from_their_first_event() -> None:
    log = Log(9, side_by_side(np.random.default_rng(9), 12_000))
    first = 6_000
    units = [None] * first + log.names()[first:]
    details = effect(log, units, "logging", "ips").details["design_effect"]
    later = Log(9, log.units[first:])
    later.reward = log.reward[first:]
    expected = effect(later, later.names(), "logging", "ips").details["design_effect"]
    assert details == pytest.approx(expected, rel=0.1)
    assert details > 3


def test_events_without_a_unit_are_independent() -> None:
    log = Log(10, np.arange(20_000), correlation=0.0)
    units = [str(unit) if unit < BLOCK else None for unit in log.units]
    details = effect(log, units, "logging", "ips").details["design_effect"]
    assert details == pytest.approx(1.0, abs=4 * math.sqrt(2 / SIGNS))
    state = start_signs()
    signs, state = unit_signs(state, None, 10, 5)
    assert signs is None
    signs, state = unit_signs(state, fingerprints([""] * 7 + ["u", "", "u"]), 10, 5)
    assert signs is not None
    assert not signs[:5].any()
    assert (np.abs(signs[5:]) == 1).all()
    assert (signs[7] == signs[9]).all()
    assert (signs[5] != signs[6]).any()
    assert state == UnitState(events=20, seen=True)


def test_the_state_does_not_grow_with_the_number_of_units() -> None:
    sizes = set()
    for count in (2_000, 8_000):
        log = Log(11, np.arange(count) // 3)
        evaluator = evaluated_units(log, log.names(), averages=[Cumulative(), Mixture()])
        assert evaluator.report().estimates
        evaluator.fold_pending()
        sizes.add(len(msgspec.msgpack.encode(evaluator.state()["grids"])) // 1_000)
    assert len(sizes) == 1


def test_the_lift_on_a_mixture_does_not_depend_on_the_other_averages() -> None:
    log = Log(15, side_by_side(np.random.default_rng(15), 3_000), missing=0.2)
    estimators = [IPS(), SNIPS(), StratifiedIPS()]
    for production in ("logging", "b"):
        alone, among = (
            evaluated_units(log, log.names(), averages=averages, estimators=estimators, production=production).report()
            for averages in ([Mixture()], [Cumulative(), Mixture()])
        )
        for estimator in estimators:
            one, other = (report.get("a", estimator.label, "mixture") for report in (alone, among))
            assert one.details["lift_design_effect"] == close(other.details["lift_design_effect"])
            assert (one.lift, one.lift_lower, one.lift_upper) == tuple(
                close(number) for number in (other.lift, other.lift_lower, other.lift_upper)
            )


@pytest.mark.parametrize("kind", ["normal", "confidence_sequence"])
def test_the_root_of_the_design_effect_widens_intervals_of_every_kind(kind: str) -> None:
    log = Log(16, side_by_side(np.random.default_rng(16), 6_000))
    wide, narrow = (
        effect(log, units, "logging", "ips", intervals={"cumulative": kind}) for units in (log.names(), None)
    )
    widths = [float(np.subtract(estimate.upper, estimate.lower)) for estimate in (wide, narrow)]
    effects = [estimate.details["design_effect"] for estimate in (wide, narrow)]
    assert effects[0] > 1.5 * max(1, effects[1])
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(effects[0] / max(1, effects[1])), rel=1e-9)


def test_the_design_effect_widens_the_sampling_error_of_lifts_in_decisions() -> None:
    log = Log(17, side_by_side(np.random.default_rng(17), 6_000), correlation=0.8)
    for target in log.target.values():  # events of one unit have equal targets, so that their lifts are alike
        target[:] = np.random.default_rng(17).choice([0.25, 0.75], log.units.max() + 1)[log.units]
    results = []
    for units in (log.names(), None):
        report = evaluated_units(log, units, averages=[Mixture()], promotion={"rule": "paired"}).report()
        results.append(np.array([decision.lift - decision.lower for decision in report.promotion], dtype=float) ** 2)
    assert (results[0] > 1.5 * results[1]).all()


# Names of units.


def line(**fields: Any) -> bytes:
    event = {"event_id": 1, "timestamp": 0, "action": 1, "propensity": 0.5, "reward": 1, "policies": {"a": 0.5}}
    return json.dumps(event | fields).encode()


def test_events_carry_the_fingerprint_of_their_unit() -> None:
    messages = [line(unit="u-1"), line(), line(unit=17), line(unit="17"), line(unit=None), line(unit="")]
    batch = JsonDecoder(["a"]).decode_batch(messages)
    assert batch.unit is not None
    assert batch.unit.tolist() == [*fingerprints(["u-1"]), 0, *fingerprints([17, 17]), 0, 0]
    arrays = EventBatch.from_arrays(
        reward=np.ones(6), propensity=np.full(6, 0.5), unit=["u-1", None, 17, np.int64(17), None, ""]
    )
    assert arrays.unit is not None
    assert arrays.unit.tolist() == batch.unit.tolist()
    assert JsonDecoder(["a"]).decode_batch([line(), line(unit=None)]).unit is None
    actions = line(unit="u-1", actions=[1, 2], propensities=[0.5, 0.5])
    assert JsonDecoder(["a"]).decode_batch([actions, line()]).unit.tolist() == [*fingerprints(["u-1"]), 0]


def test_a_unit_of_the_wrong_type_is_refused() -> None:
    batch = JsonDecoder(["a"]).decode_batch([line(unit=1.5), line(unit=["u"]), line(unit="u")])
    assert [rejected.reason for rejected in batch.rejected] == ["malformed", "malformed"]
    assert len(batch) == 1
    with pytest.raises(ValueError, match=r"row 1: unit: expected a string or an integer, found 0\.5"):
        EventBatch.from_arrays(reward=[1, 1], propensity=[1, 1], unit=["u", 0.5])
    with pytest.raises(ValueError, match=r"unit: expected the shape \[2\], found \[1\]"):
        EventBatch.from_arrays(reward=[1, 1], propensity=[1, 1], unit=["u"])


def test_batches_that_are_cut_and_joined_keep_units_next_to_their_events() -> None:
    log = Log(14, np.arange(30) // 4)
    batch = log.batch(0, 20, log.names())
    assert batch.unit is not None
    nameless = log.batch(20, 30)
    joined = EventBatch.concat([nameless, batch, nameless])
    assert joined.unit is not None
    assert joined.unit.tolist() == [0] * 10 + batch.unit.tolist() + [0] * 10
    assert EventBatch.concat([nameless, nameless]).unit is None
    assert batch[3:9].unit.tolist() == batch.unit[3:9].tolist()
    assert batch.take(np.array([5, 1])).unit.tolist() == batch.unit[[5, 1]].tolist()
    restored = EventBatch.from_state(joined.to_state())
    assert restored.unit.tolist() == joined.unit.tolist()
    assert batch.nbytes == log.batch(0, 20).nbytes + 8 * 20
    assert EventBatch.from_state(nameless.to_state()).unit is None


def test_signs_are_the_same_in_every_process() -> None:
    program = "from streameval.ope.core.past import signs_of\n"
    program += "from streameval.events import fingerprints\n"
    program += "print(signs_of(fingerprints(['user-7', 12])).astype(int).tolist())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert json.loads(printed) == signs_of(fingerprints(["user-7", 12])).tolist()


def test_signs_are_fair_and_independent_between_units() -> None:
    signs = signs_of(fingerprints(list(range(20_000))))
    assert np.abs(signs.mean(axis=0)).max() < 5 / math.sqrt(20_000)
    together = signs.T @ signs / 20_000 - np.eye(SIGNS)
    assert np.abs(together).max() < 5.5 / math.sqrt(20_000)
    assert abs((signs[1:] * signs[:-1]).mean()) < 5 / math.sqrt(SIGNS * 20_000)


# Coverage: sessions of 20 events with an intra-class correlation of .2. The seeds were written down before the first
# run.

RUNS = 300


class Course:
    """Hold intervals of one policy from many runs: their widths relative to errors, and their coverage."""

    def __init__(self, arrange: Any, named: bool, seed: int, average: AnyAverage) -> None:
        rng = np.random.default_rng(seed)
        results = []
        for run in range(RUNS):
            log = Log(seed + run, arrange(rng, 6_000))
            report = evaluated_units(
                log,
                log.names() if named else None,
                estimators=[IPS()],
                averages=[average],
                intervals={average.label: "normal"},
                block=100,
            ).report()
            for policy in ("logging", "a"):
                results.append(report.get(policy, "ips", average.label))
        self.of = {"logging": results[::2], "a": results[1::2]}

    def value(self, policy: str) -> tuple[float, float]:
        ends = np.array([(estimate.value, estimate.lower, estimate.upper) for estimate in self.of[policy]], dtype=float)
        return _kept(ends, 0.5)

    def lift(self) -> tuple[float, float]:
        ends = np.array(
            [(estimate.lift, estimate.lift_lower, estimate.lift_upper) for estimate in self.of["a"]], dtype=float
        )
        return _kept(ends, 0.0)


def _kept(ends: Array, truth: float) -> tuple[float, float]:
    """Return the mean estimated standard error over the true one, and the coverage."""
    value, lower, upper = ends.T
    ratio = (upper - lower).mean() / (2 * 1.959964) / value.std()
    return float(ratio), float(np.mean((lower <= truth) & (truth <= upper)))


@pytest.mark.slow
@pytest.mark.parametrize("average", [Cumulative(), Decay(alpha=0.9995)], ids=["cumulative", "decay"])
@pytest.mark.parametrize("arrange", [consecutive, side_by_side])
def test_with_units_intervals_are_as_wide_as_they_must_be(arrange: Any, average: AnyAverage) -> None:
    course = Course(arrange, True, 20240701, average)
    for ratio, covered in (course.value("logging"), course.value("a"), course.lift()):
        assert 0.9 <= ratio <= 1.1
        assert 0.91 <= covered <= 0.98


@pytest.mark.slow
def test_without_units_intervals_of_sessions_side_by_side_are_too_narrow() -> None:
    course = Course(side_by_side, False, 20240702, Cumulative())
    ratio, covered = course.value("logging")
    assert ratio < 0.65
    assert covered < 0.8
