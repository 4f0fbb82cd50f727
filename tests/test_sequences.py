"""Confidence sequences: published values, what they are made of, and how often they miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval.sequences import boundaries
from streameval.sequences.bernstein import EmpiricalBernstein
from streameval.sequences.engine import COUNT, TOTAL, Engine, running_centre
from streameval.sequences.heavy import EDGES, LARGEST_OBSERVATION, HeavyTailed

Array = NDArray[np.float64]

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parent / "data" / "estimators.json").read_text())["cases"]
}
ENGINES: list[Engine] = [HeavyTailed(), EmpiricalBernstein()]


def published(case: str, name: str) -> Any:
    return pytest.approx(CASES[case]["expected"][name], rel=CASES[case]["tolerance"], abs=CASES[case]["tolerance"])


def both_sides(weight: Any, reward: Any) -> Array:
    """What the lower and the upper bound of a value are made of, for rewards from 0 to 1."""
    weight, reward = np.asarray(weight), np.asarray(reward)
    return np.stack([weight * reward, weight * (1 - reward)])


def sums_of(engine: Engine, observed: Array, present: Any = None) -> Array:
    """The sums of whole streams, [rows, width]."""
    centre, _ = running_centre(observed, present, np.zeros((len(observed), 2)))
    return engine.sums(observed, centre, present)


def interval(engine: Engine, observed: Array, error: float) -> list[float]:
    lower = engine.lower(sums_of(engine, observed), np.full(2, error / 2))
    return [float(lower[0]), float(1 - lower[1])]


# published values


def test_mixture_boundaries_are_the_published_ones() -> None:
    case = "confseq_boundaries"
    given = CASES[case]["inputs"]
    v, error, v_opt, c = given["v"], given["alpha"], given["v_opt"], given["c_gamma"]
    two, one = boundaries.normal_rho(v_opt, error), boundaries.normal_rho(v_opt, error, sides=1)
    assert two == published(case, "normal_rho_two_sided")
    assert float(boundaries.normal_mixture(v, error, two)) == published(case, "normal_mixture_two_sided")
    assert float(boundaries.normal_mixture_one_sided(v, error, one)) == published(case, "normal_mixture_one_sided")
    assert float(boundaries.gamma_exponential_mixture(v, error, one, c)) == published(case, "gamma_exponential")
    assert float(boundaries.gamma_poisson_mixture(v, error, one, c)) == published(case, "gamma_poisson")


def test_stitched_boundaries_are_the_published_ones() -> None:
    case = "confseq_boundaries"
    given = CASES[case]["inputs"]
    positive = boundaries.polynomial_stitching(given["v"], given["alpha"], **given["poly_stitching"])
    negative = boundaries.polynomial_stitching(given["v"], given["alpha"], **given["negative_c"])
    assert float(positive) == published(case, "poly_stitching")
    assert float(negative) == published(case, "poly_stitching_negative_c")


CYCLE = np.tile(CASES["vw_cs_4000"]["inputs"]["w_and_r_cycle"], CASES["vw_cs_4000"]["inputs"]["repeats"])
FOUR = CASES["vw_four"]["inputs"]
PUBLISHED_STREAMS = {
    "vw_cs_4000": both_sides(CYCLE, CYCLE),
    "vw_alternating_1000": both_sides([0.4, 1.6] * 500, [1.0, 0.0] * 500),
    "vw_four": both_sides(np.divide(FOUR["p_target"], FOUR["p_log"]), FOUR["reward"]),
}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("vw_cs_4000", "gamma_exponential"),
        ("vw_alternating_1000", "cs_gamma_exponential"),
        ("vw_four", "cs_gamma_exponential"),
    ],
)
def test_the_gamma_exponential_boundary_gives_the_published_sequences(case: str, name: str) -> None:
    observed = PUBLISHED_STREAMS[case]  # the published ones let products above 1 through, and cut what comes of them
    square = ((observed - running_centre(observed, None, np.zeros((2, 2)))[0]) ** 2).sum(axis=1)
    reach = boundaries.gamma_exponential_mixture(square, 0.025, rho=1.0)
    lower = (observed.sum(axis=1) - reach) / observed.shape[1]
    assert np.clip([lower[0], 1 - lower[1]], 0, 1).tolist() == published(case, name)


def test_the_empirical_bernstein_sequence_is_the_published_one() -> None:
    found = interval(EmpiricalBernstein(rho=1.0), PUBLISHED_STREAMS["vw_cs_4000"], 0.05)
    assert found == published("vw_cs_4000", "gamma_exponential")


def test_the_stitched_sequence_is_the_published_one() -> None:
    sums = sums_of(EmpiricalBernstein(), PUBLISHED_STREAMS["vw_cs_4000"])
    reach = boundaries.polynomial_stitching(np.maximum(sums[:, 2], 1.0), 0.025, v_min=1 / 1.1, c=1.0, s=1.1, eta=1.1)
    lower = (sums[:, TOTAL] - reach) / sums[:, COUNT]
    assert [lower[0], 1 - lower[1]] == published("vw_cs_4000", "stitched")


UNINVESTED = 0.5 * (1 + 1.4406337970700393 / (0.95 * np.pi**2 / 6))
"""Share of the wealth that the published mixture invests: the dilogarithm of .95 over .95 zeta(2), and 1, averaged."""


@pytest.mark.parametrize("name", ["robust", "robust_run_here"])
def test_the_robust_sequence_is_the_published_one(name: str) -> None:
    case = CASES["vw_cs_robust_88"]
    weights = tuple(0.6 * 1.6 ** -(1.0 + np.arange(60)))
    engine = HeavyTailed(largest=0.5, ratio=1.6, count=60, weights=weights)
    observed = both_sides(case["inputs"]["w"], case["inputs"]["r"])
    assert interval(engine, observed, UNINVESTED * case["inputs"]["alpha"]) == published("vw_cs_robust_88", name)


# what they are made of


def heavy_tailed(rng: np.random.Generator, rows: int, events: int, largest: float = 50.0) -> Array:
    """Weights of mean 1 of a deterministic policy under an exploring one: 0, a little above 1, and `largest`."""
    rare = 0.1 / largest
    common = (1 - rare * largest) / 1.11
    drawn = rng.random((rows, events))
    return np.where(drawn < rare, largest, np.where(drawn < rare + common, 1.11, 0.0))


def stream(seed: int, rows: int = 6, events: int = 900) -> Array:
    rng = np.random.default_rng(seed)
    return heavy_tailed(rng, rows, events) * (rng.random((rows, events)) < 0.3)


def test_the_cost_of_a_bet_is_never_below_the_exact_one_and_near_it() -> None:
    engine = HeavyTailed()
    observed = np.abs(np.random.default_rng(1).standard_cauchy((3, 2000)))
    centre, _ = running_centre(observed, None, np.zeros((3, 2)))
    staked = engine.lambdas * (observed - centre)[..., None]
    exact = (staked - np.log1p(staked)).sum(axis=1)
    bound = engine.sums(observed, centre, None)[:, 2:]
    assert (bound > exact * (1 - 1e-9)).all()
    assert (bound < exact * 1.1).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_the_evidence_against_the_lower_bound_is_exactly_enough(engine: Engine) -> None:
    sums = sums_of(engine, stream(2) / 50)
    error = np.array([0.5, 0.1, 0.05, 0.025, 1e-3, 1e-6])
    lower = engine.lower(sums, error)
    assert engine.log_wealth(sums, lower) == pytest.approx(-np.log(error), rel=1e-8)
    assert (engine.log_wealth(sums, lower - 0.001) > -np.log(error)).all()
    assert (engine.log_wealth(sums, lower + 0.001) < -np.log(error)).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_a_smaller_error_gives_a_lower_bound(engine: Engine) -> None:
    sums = np.repeat(sums_of(engine, stream(3, rows=1) / 50), 4, axis=0)
    lower = engine.lower(sums, np.array([0.5, 0.05, 1e-3, 1e-9]))
    assert (np.diff(lower) < 0).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_sums_of_two_stretches_add_up_to_those_of_both(engine: Engine) -> None:
    observed = stream(4) / 50
    centre, _ = running_centre(observed, None, np.zeros((6, 2)))
    parts = [engine.sums(observed[:, part], centre[:, part], None) for part in (slice(0, 300), slice(300, None))]
    assert parts[0] + parts[1] == pytest.approx(engine.sums(observed, centre, None), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_absent_observations_are_as_if_they_had_never_been(engine: Engine) -> None:
    observed = stream(5, rows=1) / 50
    present = np.random.default_rng(6).random(observed.shape) < 0.7
    expected = sums_of(engine, observed[present][None])
    assert sums_of(engine, np.where(present, observed, 0.0), present) == pytest.approx(expected, rel=1e-9)


def test_centres_are_the_same_bits_however_the_stream_is_cut() -> None:
    observed = stream(7)
    whole, end = running_centre(observed, None, np.zeros((6, 2)))
    pieces, state = [], np.zeros((6, 2))
    for first, last in ((0, 1), (1, 100), (100, 101), (101, 900)):
        piece, state = running_centre(observed[:, first:last], None, state)
        pieces.append(piece)
    assert (np.concatenate(pieces, axis=1) == whole).all()
    assert (state == end).all()


def test_no_centre_knows_its_own_observation_or_a_later_one() -> None:
    observed = stream(8)
    changed = observed.copy()
    changed[:, 500:] = 99.0
    centres = [running_centre(each, None, np.zeros((6, 2)))[0] for each in (observed, changed)]
    assert (centres[0][:, :501] == centres[1][:, :501]).all()


def test_an_observation_beyond_the_last_edge_costs_finitely_much() -> None:
    sums = sums_of(HeavyTailed(), np.array([[LARGEST_OBSERVATION, 0.0, 1.0]]))
    assert EDGES[-1] == LARGEST_OBSERVATION
    assert np.isfinite(sums).all()


def test_without_observations_there_is_no_bound() -> None:
    for engine in ENGINES:
        assert np.isnan(engine.lower(np.zeros((1, engine.width)), np.array([0.05]))).all()


def test_an_observation_above_its_promised_limit_withholds_the_empirical_bernstein_bound() -> None:
    engine = EmpiricalBernstein()
    sums = sums_of(engine, np.array([[0.5, 1.2, 0.5], [0.5, 1.0, 0.5]]))
    assert np.isnan(engine.lower(sums, np.array([0.05, 0.05]))).tolist() == [True, False]
