"""Test confidence sequences: published values, their parts, and how often they miss."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.common.arrays import to_plain
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import (
    CAB,
    DM,
    IPS,
    SNIPS,
    AnyEstimator,
    ClippedIPS,
    PseudoInverse,
    StaticBlend,
    StratifiedIPS,
    TermRange,
    Terms,
)
from streameval.ope.evidence import Evidence
from streameval.ope.intervals import ConfidenceSequence
from streameval.ope.intervals.sequences.observations import MAX_OBSERVATION, Observations
from streameval.ope.intervals.sequences.tracker import (
    LEVELS,
    LiftTest,
    Restarted,
    RestartSchedule,
    SequenceTracker,
    SinceStart,
    TrackedBounds,
)
from streameval.ope.intervals.sequences.wealth import (
    COUNT,
    EDGES,
    TOTAL,
    BernsteinWealth,
    HeavyTailed,
    WealthProcess,
    gamma_exponential_mixture,
    measure,
    normal_rho,
)
from support.paths import DATA

Array = NDArray[np.float64]

CASES = {case["id"]: case for case in json.loads((DATA / "estimators.json").read_text())["cases"]}
ENGINES: list[WealthProcess] = [HeavyTailed(), BernsteinWealth()]


def published(case: str, name: str) -> Any:
    return pytest.approx(CASES[case]["expected"][name], rel=CASES[case]["tolerance"], abs=CASES[case]["tolerance"])


def both_sides(weight: Any, reward: Any) -> Array:
    """Return the sums behind the lower and the upper bound of a value, for rewards from 0 to 1."""
    weight, reward = np.asarray(weight), np.asarray(reward)
    return np.stack([weight * reward, weight * (1 - reward)])


def sums_of(engine: WealthProcess, observed: Array, present: Any = None) -> Array:
    """Return the sums of whole streams as one block, [rows, width], with a centre of its own for every observation."""
    there = None if present is None else np.asarray(present)[None, :, None]
    rows = Observations(np.asarray(observed, dtype=float)[None, :, None], there)
    return measure(engine, rows, np.zeros((len(observed), 1, 2)), [1])[0][0, :, 0]


def own_centres(observed: Array, before: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Return the centre of each observation from those before it, [rows, events]."""
    count, total = before[0] + np.arange(observed.shape[1]), before[1] + np.cumsum(observed, axis=1) - observed
    centre: Array = np.minimum((total + 0.5) / (count + 1), 1.0)
    return centre


def costs_of(engine: WealthProcess, deviation: Array, shared: bool) -> Array:
    """Return the sum of costs of single deviations, [events]."""
    seen = Observations(np.zeros((1, 1, 1, len(deviation))), light=np.zeros((1, 1, 1, len(deviation)), dtype=bool))
    return engine.costs(seen, deviation[None, None, None].copy(), np.zeros(1, dtype=np.int64), shared)[0, 0, 0]


def interval(engine: WealthProcess, observed: Array, error: float) -> list[float]:
    lower = engine.lower(sums_of(engine, observed), np.full(2, error / 2))
    return [float(lower[0]), float(1 - lower[1])]


def exact_up_to_a_line(engine: WealthProcess, deviation: float) -> Array:
    """Return the cost of one deviation from the centre of a block."""
    if isinstance(engine, BernsteinWealth):
        return np.array([deviation**2])
    least, most = (end * engine.lambdas for end in (-1.0, 3.0))
    steep = [(staked - np.log1p(staked)) / end**2 for staked, end in ((least, -1.0), (most, 3.0))]
    line: Array = steep[0] + (steep[1] - steep[0]) * (deviation + 1) / 4
    return line * deviation**2 if deviation <= 3 else costs_of(engine, np.array([deviation]), shared=True)


def bound_of_blocks(engine: WealthProcess, observed: Array, present: Array | None = None, since: int = 0) -> Array:
    """Return the sums of one row of observations, block by block.

    A block uses the centre that is known at its start. If fewer than 100 observations came before it, every observation
    has its own centre.

    Args:
        since: Index of the first observation in the sums.
    """
    sums, count, total = np.zeros(engine.width), 0.0, 0.0
    there = np.ones(len(observed), dtype=bool) if present is None else present
    for first in range(0, len(observed), 100):
        some = observed[first : first + 100][there[first : first + 100]]
        added = np.zeros(engine.width)
        added[[COUNT, TOTAL]] = len(some), some.sum()
        if count < 100:
            added[2:] = costs_of(engine, some - own_centres(some[None], (count, total))[0], shared=False)
        else:
            centre = min(1.0, (total + 0.5) / (count + 1))
            added[2:] = sum(exact_up_to_a_line(engine, deviation) for deviation in some - centre)
        sums += added * (first >= since)
        count, total = count + len(some), total + some.sum()
    return sums


def interval_of_blocks(engine: WealthProcess, observed: Array, error: float, **more: Any) -> list[float]:
    lower = engine.lower(np.stack([bound_of_blocks(engine, row, **more) for row in observed]), np.full(2, error / 2))
    return [float(lower[0]), float(1 - lower[1])]


# published values


def test_the_gamma_exponential_boundary_equals_the_published_one() -> None:
    case = "confseq_boundaries"
    inputs = CASES[case]["inputs"]
    v, error, v_opt, c = inputs["v"], inputs["alpha"], inputs["v_opt"], inputs["c_gamma"]
    assert normal_rho(v_opt, error / 2) == published(case, "normal_rho_two_sided")
    boundary = c * float(gamma_exponential_mixture(v / c**2, error, normal_rho(v_opt, error) / c**2))
    assert boundary == published(case, "gamma_exponential")


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
    observed = PUBLISHED_STREAMS[case]  # published code allows products above 1, and cuts the result
    square = ((observed - own_centres(observed)) ** 2).sum(axis=1)
    reach = gamma_exponential_mixture(square, 0.025, rho=1.0)
    lower = (observed.sum(axis=1) - reach) / observed.shape[1]
    assert np.clip([lower[0], 1 - lower[1]], 0, 1).tolist() == published(case, name)


def test_the_empirical_bernstein_sequence_equals_the_published_one() -> None:
    bounds = interval(BernsteinWealth(rho=1.0), PUBLISHED_STREAMS["vw_cs_4000"], 0.05)
    assert bounds == published("vw_cs_4000", "gamma_exponential")


UNINVESTED = 0.5 * (1 + 1.4406337970700393 / (0.95 * np.pi**2 / 6))
"""Share of the wealth that the published mixture invests: the dilogarithm of .95 over .95 zeta(2), and 1, averaged."""


@pytest.mark.parametrize("name", ["robust", "robust_run_here"])
def test_the_robust_sequence_equals_the_published_one(name: str) -> None:
    case = CASES["vw_cs_robust_88"]
    weights = tuple(0.6 * 1.6 ** -(1.0 + np.arange(60)))
    engine = HeavyTailed(largest=0.5, ratio=1.6, count=60, weights=weights)
    observed = both_sides(case["inputs"]["w"], case["inputs"]["r"])
    assert interval(engine, observed, UNINVESTED * case["inputs"]["alpha"]) == published("vw_cs_robust_88", name)


# their parts


def heavy_tailed(rng: np.random.Generator, rows: int, events: int, largest: float = 50.0) -> Array:
    """Draw weights of mean 1 of a deterministic policy under an exploring one: 0, a little above 1, and `largest`."""
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
    staked = engine.lambdas * (observed - own_centres(observed))[..., None]
    exact = (staked - np.log1p(staked)).sum(axis=1)
    bound = sums_of(engine, observed)[:, 2:]
    assert (bound > exact * (1 - 1e-9)).all()
    assert (bound < exact * 1.1).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_the_evidence_against_the_lower_bound_is_exactly_enough(engine: WealthProcess) -> None:
    sums = sums_of(engine, stream(2) / 50)
    error = np.array([0.5, 0.1, 0.05, 0.025, 1e-3, 1e-6])
    lower = engine.lower(sums, error)
    assert engine.log_wealth(sums, lower) == pytest.approx(-np.log(error), rel=1e-8)
    assert (engine.log_wealth(sums, lower - 0.001) > -np.log(error)).all()
    assert (engine.log_wealth(sums, lower + 0.001) < -np.log(error)).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_a_smaller_error_gives_a_lower_bound(engine: WealthProcess) -> None:
    sums = np.repeat(sums_of(engine, stream(3, rows=1) / 50), 4, axis=0)
    lower = engine.lower(sums, np.array([0.5, 0.05, 1e-3, 1e-9]))
    assert (np.diff(lower) < 0).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_sums_of_two_stretches_add_up_to_the_sums_of_both(engine: WealthProcess) -> None:
    observed = stream(4).reshape(6, 1, 9, 100).transpose(2, 0, 1, 3) / 50
    whole, end = measure(engine, Observations(observed), np.zeros((6, 1, 2)), [3, 6])
    first, middle = measure(engine, Observations(observed[:3]), np.zeros((6, 1, 2)), [3])
    second, last = measure(engine, Observations(observed[3:]), middle, [6])
    assert np.concatenate([first, second]) == pytest.approx(whole, rel=1e-9)
    assert (last == end).all()


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_absent_observations_change_nothing(engine: WealthProcess) -> None:
    observed = stream(5, rows=1) / 50
    present = np.random.default_rng(6).random(observed.shape) < 0.7
    expected = sums_of(engine, observed[present][None])
    assert sums_of(engine, np.where(present, observed, 0.0), present) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES, ids=["heavy", "bernstein"])
def test_no_centre_knows_its_own_block_or_a_later_one(engine: WealthProcess) -> None:
    """Change later observations. Neither the cost of earlier blocks nor the centre of the block between changes."""
    observed = stream(8).reshape(6, 1, 9, 100).transpose(2, 0, 1, 3) / 50
    changed = observed.copy()
    changed[5:] = 1.0
    costs = [
        measure(engine, Observations(values), np.zeros((6, 1, 2)), [1] * 9)[0][..., 2:]
        for values in (observed, changed)
    ]
    assert (costs[0][:5] == costs[1][:5]).all()
    if isinstance(engine, BernsteinWealth):
        total = observed[:5].sum(axis=(0, -1))
        expected = 100 * (1.0 - (total + 0.5) / 501) ** 2
        assert costs[1][5, ..., 0] == pytest.approx(expected, rel=1e-9)


def test_an_observation_beyond_the_last_edge_costs_finitely_much() -> None:
    sums = sums_of(HeavyTailed(), np.array([[MAX_OBSERVATION, 0.0, 1.0]]))
    assert EDGES[-1] == MAX_OBSERVATION
    assert np.isfinite(sums).all()


def test_without_observations_there_is_no_bound() -> None:
    for engine in ENGINES:
        assert np.isnan(engine.lower(np.zeros((1, engine.width)), np.array([0.05]))).all()


def test_an_observation_above_its_promised_limit_withholds_the_empirical_bernstein_bound() -> None:
    engine = BernsteinWealth()
    sums = sums_of(engine, np.array([[0.5, 1.2, 0.5], [0.5, 1.0, 0.5]]))
    assert np.isnan(engine.lower(sums, np.array([0.05, 0.05]))).tolist() == [True, False]


# values and lifts


def evidence(
    seed: int, events: int = 900, policies: int = 4, low: float = 0.0, high: float = 1.0, named: bool = False
) -> Evidence:
    """Draw evidence of several policies.

    Args:
        low: Smaller of the two rewards.
        high: Larger of the two rewards.
        named: Whether production is one of the drawn policies. Otherwise the first policy took the logged actions.
    """
    rng = np.random.default_rng(seed)
    weight = heavy_tailed(rng, policies, events)
    if not named:
        weight[0] = 1.0
    reward = np.where(rng.random(events) < 0.3, high, low)
    return Evidence.from_numbers(np.asfortranarray(weight.T), reward)


def select_part(whole: Evidence, rows: slice) -> Evidence:
    return Evidence.from_numbers(
        whole.importance_weight[rows], whole.reward[rows], sample_weight=whole.sample_weight[rows]
    )


ESTIMATORS: list[AnyEstimator] = [IPS(), ClippedIPS(cap=5.0), SNIPS(), StratifiedIPS()]


Tracked = tuple[SequenceTracker, list[AnyEstimator]]


def watching(
    average: AnyAverage | None = None,
    bound: ConfidenceSequence | None = None,
    estimators: list[AnyEstimator] | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    logging: bool = True,
) -> Tracked:
    chosen = ESTIMATORS if estimators is None else estimators
    average = average or Cumulative()
    return (bound or ConfidenceSequence()).tracker(average, chosen, reward_range, 100, logging), chosen


def terms_of(estimators: list[AnyEstimator], events: Evidence) -> list[Terms]:
    """Return terms of estimators at the start of a stream. Terms of biased ones do not depend on the past here."""
    policies = events.importance_weight.shape[1]
    return [estimator.terms(events, estimator.start(policies))[0] for estimator in estimators]


def folded(
    watching: Tracked,
    whole: Evidence,
    cuts: tuple[int, ...] = (),
    state: Any = None,
) -> Any:
    """Return the state after these events, cut at these indices."""
    sequences, estimators = watching
    policies = whole.importance_weight.shape[1]
    state = sequences.start(policies) if state is None else state
    for first, last in pairwise((0, *cuts, len(whole.reward))):
        piece = select_part(whole, slice(first, last))
        state = sequences.fold(state, piece, terms_of(estimators, piece))
    return state


def seen(watching: Tracked, whole: Evidence, error: float = 0.05) -> TrackedBounds:
    """Return the intervals after these events by policy and estimator. An unfinished block is the tail."""
    sequences, estimators = watching
    full = len(whole.reward) // whole.block * whole.block
    state = folded(watching, select_part(whole, slice(0, full)))
    rest = select_part(whole, slice(full, None))
    tail = (rest, terms_of(estimators, rest)) if full < len(whole.reward) else None
    actual = sequences.read(state, tail, np.full(whole.importance_weight.shape[1], error))
    shape = (-1, len(estimators))
    value, lift = (bounds.reshape(4, *shape) for bounds in actual[:2])
    return TrackedBounds(value, lift, {name: column.reshape(shape) for name, column in actual.details.items()})


def test_an_interval_of_a_value_is_made_of_weighted_rewards_and_losses() -> None:
    whole = evidence(10, events=937)
    actual = seen(watching(), whole)
    for policy in range(4):
        observed = both_sides(whole.importance_weight[:, policy], whole.reward)
        expected = interval_of_blocks(HeavyTailed(), observed, 0.05)
        assert [actual.value[0, policy, 0], actual.value[1, policy, 0]] == pytest.approx(expected, rel=1e-9)


def test_estimators_of_the_value_share_one_interval_and_biased_ones_have_their_own() -> None:
    actual = seen(watching(), evidence(11))
    for end in (*actual.value[:2], *actual.lift[:2]):
        assert (end[1:, 0] == end[1:, 2]).all()
        assert (end[1:, 0] == end[1:, 3]).all()
        assert (end[1:, 0] != end[1:, 1]).all()


def test_the_interval_of_a_biased_estimator_is_made_of_its_own_terms() -> None:
    whole = evidence(12, events=1000)
    actual = seen(watching(), whole)
    terms = np.minimum(whole.importance_weight[:, 1], 5.0) * whole.reward / 5.0
    expected = 5.0 * np.array(interval_of_blocks(BernsteinWealth(), np.stack([terms, 1 - terms]), 0.05))
    assert [actual.value[0, 1, 1], actual.value[1, 1, 1]] == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.parametrize("named", [False, True], ids=["logging", "named"])
def test_the_interval_of_a_lift_is_around_the_paired_difference_and_has_the_sign_of_its_roles(named: bool) -> None:
    whole = evidence(13, events=5000, named=named)
    actual = seen(watching(logging=not named), whole)
    difference = (whole.importance_weight - whole.importance_weight[:, :1]) * whole.reward[:, None]
    slack = np.abs(whole.importance_weight.mean(axis=0) - whole.importance_weight[:, 0].mean())
    for policy in (1, 2, 3):
        assert actual.lift[0, policy, 0] < difference[:, policy].mean() + slack[policy]
        assert actual.lift[1, policy, 0] > difference[:, policy].mean() - slack[policy]
        assert actual.lift[1, policy, 0] - actual.lift[0, policy, 0] < 0.5


def test_production_has_no_lift_and_a_candidate_that_is_production_nearly_none() -> None:
    whole = evidence(14, events=5000)
    whole = Evidence.from_numbers(np.asfortranarray(np.ones((5000, 2))), whole.reward)
    actual = seen(watching(), whole)
    assert np.isnan(actual.lift[0, 0]).all()
    assert np.isnan(actual.lift[1, 0]).all()
    assert -0.02 < actual.lift[0, 1, 0] < 0 < actual.lift[1, 1, 0] < 0.02


def test_the_lift_over_a_named_production_is_narrower_than_the_difference_of_two_intervals() -> None:
    whole = evidence(15, events=20_000, named=True)
    actual, halved = (seen(watching(logging=False), whole, error) for error in (0.05, 0.025))
    paired = actual.lift[1, 1, 0] - actual.lift[0, 1, 0]
    apart = halved.value[1, :2, 0] - halved.value[0, :2, 0]
    assert paired < 0.9 * apart.sum()


def test_a_reward_of_another_range_moves_and_stretches_the_intervals() -> None:
    plain = seen(watching(), evidence(16))
    other = seen(watching(reward_range=(-3.0, 5.0)), evidence(16, low=-3.0, high=5.0))
    column = 0
    assert other.value[0, :, column] == pytest.approx(8 * plain.value[0, :, column] - 3, rel=1e-9)
    assert other.value[1, :, column] == pytest.approx(8 * plain.value[1, :, column] - 3, rel=1e-9)
    assert other.lift[0, 1:, column] == pytest.approx(8 * plain.lift[0, 1:, column], rel=1e-9)
    assert other.lift[1, 1:, column] == pytest.approx(8 * plain.lift[1, 1:, column], rel=1e-9)


def test_empirical_bernstein_is_withheld_for_weights_above_a_limit() -> None:
    bound = ConfidenceSequence(method="empirical_bernstein", max_weight=50.0)
    whole = evidence(17, events=20_000)
    actual = seen(watching(bound=bound), whole)
    assert (actual.value[0, :, 0] < 0.3).all()
    assert (actual.value[1, :, 0] > 0.3).all()
    low = seen(watching(bound=ConfidenceSequence(method="empirical_bernstein", max_weight=2.0)), whole)
    assert np.isnan(low.value[0, :, 0]).tolist() == [False, True, True, True]


@pytest.mark.parametrize("logging", [True, False])
def test_the_largest_observation_of_a_lift_is_the_heavier_of_both_weights(logging: bool) -> None:
    bound = ConfidenceSequence(method="empirical_bernstein", max_weight=50.0)
    (group,) = bound.tracker(Cumulative(), [IPS()], (0.0, 1.0), 100, logging).groups
    weight = np.array([[1.0 if logging else 50.0, 50.0]]).repeat(2, axis=0)
    whole = Evidence.from_numbers(np.asfortranarray(weight), np.array([0.0, 1.0]))
    assert group.scale.lift == 50.0
    assert group.observed(whole, []).values[0, 1].max(axis=-1).tolist() == [1.0] * 4


def test_events_that_lack_a_policy_change_nothing_for_it() -> None:
    whole = evidence(18)
    present = np.random.default_rng(19).random((900, 4)) < 0.8
    present[:, 0] = True
    weight = np.where(present, whole.importance_weight, 0.0)
    sparse = Evidence.from_numbers(
        np.asfortranarray(weight), whole.reward, sample_weight=np.asfortranarray(present * 1.0)
    )
    actual = seen(watching(), sparse)
    for policy in range(4):
        observed = both_sides(whole.importance_weight[:, policy], whole.reward)
        there = present[:, policy]
        expected = interval_of_blocks(HeavyTailed(), observed, 0.05, present=there)
        assert [actual.value[0, policy, 0], actual.value[1, policy, 0]] == pytest.approx(expected, rel=1e-9)
        lift = observed + np.stack([1 - whole.reward, whole.reward])
        if policy:
            lower, upper = interval_of_blocks(HeavyTailed(), lift, 0.05, present=there)
            ends = [actual.lift[0, policy, 0], actual.lift[1, policy, 0]]
            assert ends == pytest.approx([lower - 1, upper], rel=1e-9)


def test_a_log_sampled_evenly_has_the_intervals_of_its_events_and_one_sampled_unevenly_none() -> None:
    whole = evidence(20)
    even, uneven = np.full((900, 4), 4.0), np.full((900, 4), 4.0)
    uneven[300:, 1] = 2.0
    plain = seen(watching(), whole)
    weighed = [
        Evidence.from_numbers(whole.importance_weight, whole.reward, sample_weight=weights)
        for weights in (even, uneven)
    ]
    same, withheld = (seen(watching(), sample) for sample in weighed)
    assert same.value[0].tolist() == plain.value[0].tolist()
    assert "uneven_sampling" not in same.details
    assert np.isnan(withheld.value[0]).all(axis=1).tolist() == [False, True, False, False]
    assert np.isnan(withheld.lift[0]).all(axis=1).tolist() == [True, True, False, False]
    assert withheld.details["uneven_sampling"][1].tolist() == [1.0] * 4


def test_a_lift_over_a_production_that_was_sampled_unevenly_has_no_interval() -> None:
    whole = evidence(20)
    sampled = np.full((900, 4), 4.0)
    sampled[300:, 0] = 2.0
    actual = seen(watching(), Evidence.from_numbers(whole.importance_weight, whole.reward, sample_weight=sampled))
    assert np.isnan(actual.value[0]).all(axis=1).tolist() == [True, False, False, False]
    assert np.isnan(actual.lift[0]).all()


def test_the_interval_is_withheld_if_terms_have_no_limit() -> None:
    modelled: list[AnyEstimator] = [DM(), StaticBlend(tau=0.5), ClippedIPS(cap=np.inf), CAB(cap=3.0), PseudoInverse()]
    sequences, _ = watching(estimators=modelled)
    assert [(group.term, group.scale[:2]) for group in sequences.groups] == [(0, (0.0, 1.0)), (3, (0.0, 4.0))]
    limited, _ = watching(estimators=modelled, bound=ConfidenceSequence(max_weight=10.0))
    assert [group.term for group in limited.groups] == [0, 1, 2, 3]


def test_folding_changes_nothing_in_the_state_it_is_given() -> None:
    state = folded(watching(Window(tau=300)), evidence(24, events=500))
    before = to_plain(state)
    folded(watching(Window(tau=300)), evidence(25, events=500), state=state)
    assert to_plain(state) == before


def flat(state: Any) -> list[Array]:
    """List all arrays and numbers in a state, in order."""
    if isinstance(state, msgspec.Struct):
        state = msgspec.structs.asdict(state)
    if isinstance(state, dict):
        state = [value for value in state.values() if value is not None]
    if isinstance(state, list):
        return [leaf for value in state for leaf in flat(value)]
    return [np.asarray(state, dtype=float)]


@pytest.mark.parametrize("named", [False, True], ids=["logging", "named"])
@pytest.mark.parametrize("present", [1.0, 0.8], ids=["all", "some"])
def test_observations_of_blocks_equal_the_observations_of_each_event(named: bool, present: float) -> None:
    rng = np.random.default_rng(31)
    weight, reward = np.abs(rng.standard_cauchy((4, 600))), rng.random(600)
    if not named:
        weight[0] = 1.0
    there = (rng.random((600, 4)) <= present).T
    whole = Evidence.from_numbers(np.asfortranarray(weight.T), reward, sample_weight=np.asfortranarray(there.T * 1.0))
    group = watching(logging=not named)[0].groups[0]
    actual = group.observed(whole, [], slice(2, 6))
    for block, policy in np.ndindex(4, 4):
        events = slice(100 * (block + 2), 100 * (block + 3))
        w, w0, s = weight[policy, events], weight[0, events], reward[events]
        own, both = there[policy, events], (there[policy] & there[0])[events]
        sides = [(own, w * s), (own, w * (1 - s)), (both, w * s + w0 * (1 - s)), (both, w0 * s + w * (1 - s))]
        for side, (mask, expected) in enumerate(sides):
            assert actual.values[block, policy, side] == pytest.approx(np.where(mask, expected, 0.0), rel=1e-12)
            assert actual.counts[block, policy, side] == mask.sum()
            assert actual.light is not None
            light = (w <= 3) if side < 2 else (w <= 3) & (w0 <= 3)
            assert (actual.light[block, policy, side] == light).all()


def test_a_block_never_costs_less_than_its_bets() -> None:
    engine = HeavyTailed()
    for centre in (0.0, 0.03, 0.5, 1.0):
        for deviation in np.linspace(-centre, 3.0, 200):
            staked = engine.lambdas * deviation
            light = Observations(np.zeros((1, 1, 1, 1)))
            cost = engine.costs(light, np.full((1, 1, 1, 1), deviation), np.zeros(1, dtype=np.int64), shared=True)[
                0, 0, 0
            ]
            exact = staked - np.log1p(staked)
            assert (cost >= exact - 1e-12 * deviation**2).all()
            assert (cost[engine.lambdas < 0.15] <= 1.04 * exact[engine.lambdas < 0.15] + 1e-12).all()


# sequences that restart


@pytest.mark.parametrize("tau", [250, 3333])
def test_a_window_is_bounded_by_at_most_twice_its_events_and_by_more_than_half_once_there_are_enough(tau: int) -> None:
    sequences, estimators = watching(Window(tau=tau), estimators=[IPS()])
    state = sequences.start(4)
    whole = evidence(26, events=9000)
    for block in range(90):
        piece = select_part(whole, slice(100 * block, 100 * block + 100))
        state = sequences.fold(state, piece, terms_of(estimators, piece))
        tail = select_part(whole, slice(100 * block, 100 * block + 99))
        done = 100 * (block + 1)
        events = sequences.read(state, None, np.full(4, 0.05)).details["interval_events"]
        later = sequences.read(state, (tail, terms_of(estimators, tail)), np.full(4, 0.05))
        more = later.details["interval_events"]
        assert (events > min(done, tau / 2) - 1).all()
        assert (more < 2 * tau).all()
        assert (more == events + 99).all()


def test_a_restarted_interval_equals_the_one_of_its_last_events_at_its_share_of_the_error() -> None:
    whole = evidence(27, events=2700)
    actual = seen(watching(Window(tau=400), estimators=[IPS()]), whole)
    events = int(actual.details["interval_events"][1, 0])
    assert events == 700
    observed = both_sides(whole.importance_weight[:, 1], whole.reward)
    sums = np.stack([bound_of_blocks(HeavyTailed(), row, since=2700 - events) for row in observed])
    restart = 6  # started after five epochs of 400 events
    lower = HeavyTailed().lower(sums, np.full(2, 0.025 / (LEVELS * restart * (restart + 1))))
    assert [actual.value[0, 1, 0], actual.value[1, 1, 0]] == pytest.approx([lower[0], 1 - lower[1]], rel=1e-9)


def test_the_shares_of_all_restarts_add_up_to_no_more_than_the_error() -> None:
    schedule = Restarted(tau=250, block=100)
    state, shares = schedule.start(np.zeros(1)), dict[int, float]()
    for block in range(4_000):
        sums, running = schedule.running(state)
        for started, share in zip(block - sums[:, 0], running, strict=True):
            if share > 0:
                assert shares.setdefault(int(started), float(share)) == share, "one sequence, two shares"
        assert LEVELS * schedule.share(state) == pytest.approx(running[0])
        assert (schedule.sums(state) == sums[0]).all()
        state = schedule.add(state, np.ones(1), 1)
    assert list(shares) == list(range(0, 4_000, 2))
    assert 0.999 < sum(shares.values()) < 1


# evidence for promotion


@pytest.mark.parametrize("margin", [0.0, -0.2, 0.05])
def test_the_evidence_is_enough_exactly_if_the_lower_bound_of_the_lift_is_above_the_margin(margin: float) -> None:
    whole = evidence(28, events=6000)
    sequences, estimators = watching(Cumulative(), estimators=[IPS()])
    proof = LiftTest((0.0, 1.0), margin)
    evidences, _ = proof.fold(proof.start(4), proof.observed(whole))
    state, agreed = sequences.start(4), 0
    for block in range(60):
        piece = select_part(whole, slice(100 * block, 100 * block + 100))
        state = sequences.fold(state, piece, terms_of(estimators, piece))
        lower = sequences.read(state, None, np.full(4, 0.5)).lift[0]
        assert ((evidences[block] >= -np.log(0.25)) == (lower > margin)).all()
        agreed += int((lower[1:] > margin).sum())
    assert agreed > 0 or margin >= 0


@pytest.mark.parametrize("span", [SinceStart(), Restarted(tau=400, block=100)], ids=["since start", "restarted"])
@pytest.mark.parametrize("margin", [0.0, -0.2])
def test_the_bound_of_the_proof_is_above_the_margin_exactly_if_its_evidence_is_enough(
    span: RestartSchedule, margin: float
) -> None:
    whole, proof = evidence(28, events=6000), LiftTest((0.0, 1.0), margin, span)
    state, enough = proof.start(4), 0
    for block in range(60):
        seen, state = proof.fold(state, proof.observed(select_part(whole, slice(100 * block, 100 * block + 100))))
        above = np.nan_to_num(proof.bound(state, np.full(4, 0.4)), nan=-1.0) > margin
        assert ((seen[0] >= -np.log(0.4)) == above).all()
        enough += int(above.sum())
    assert enough > 0 or margin == 0


def test_restarted_evidence_adds_up_the_wealth_of_both_sequences_that_run() -> None:
    whole = evidence(31, events=2700)
    proof = LiftTest((0.0, 1.0), -0.1, Restarted(tau=400, block=100))
    actual, _ = proof.fold(proof.start(4), proof.observed(whole))
    observed = whole.importance_weight[:, 2] * whole.reward + whole.importance_weight[:, 0] * (1 - whole.reward)
    older, younger = (
        np.exp(HeavyTailed().log_wealth(bound_of_blocks(HeavyTailed(), observed, since=since), np.array(0.9)))
        for since in (2000, 2400)  # the sixth and seventh start
    )
    assert actual[-1, 2] == pytest.approx(np.log(older / (6 * 7) + younger / (7 * 8)), rel=1e-9)
    first = np.exp(HeavyTailed().log_wealth(bound_of_blocks(HeavyTailed(), observed[:300]), np.array(0.9)))
    assert actual[2, 2] == pytest.approx(np.log(first / 2), rel=1e-9)


def test_the_evidence_after_each_block_does_not_depend_on_how_many_come_at_once() -> None:
    whole = evidence(29, events=3000)
    proof = LiftTest((0.0, 1.0), span=Restarted(tau=400, block=100))
    evidences, end = proof.fold(proof.start(4), proof.observed(whole))
    state, path = proof.start(4), []
    for first, last in ((0, 100), (100, 1200), (1200, 3000)):
        some, state = proof.fold(state, proof.observed(select_part(whole, slice(first, last))))
        path.append(some)
    assert np.concatenate(path) == pytest.approx(evidences, rel=1e-9)
    assert proof.bound(state, np.full(4, 0.05)) == pytest.approx(proof.bound(end, np.full(4, 0.05)), nan_ok=True)
    assert np.isneginf(evidences[:, 0]).all()


def test_a_negative_weight_ends_all_evidence() -> None:
    whole = evidence(30, events=300)
    whole.importance_weight[150, 1] = -1.0
    proof = LiftTest((0.0, 1.0))
    evidences, state = proof.fold(proof.start(4), proof.observed(whole))
    assert np.isneginf(evidences[:, 1]).tolist() == [False, True, True]
    assert np.isnan(proof.bound(state, np.full(4, 0.05))).tolist() == [True, True, False, False]


def test_large_weights_may_follow_a_negative_one() -> None:
    """Weigh as among slates. Nothing can be proven of that policy any more, and the others continue."""
    whole = evidence(30, events=400)
    proof = LiftTest((0.0, 1.0))
    alone, _ = proof.fold(proof.start(4), proof.observed(whole))
    whole.importance_weight[150, 1] = -1.0
    whole.importance_weight[[160, 250, 350], 1] = [7.0, 2.5, 1e6]
    evidences, _ = proof.fold(proof.start(4), proof.observed(whole))
    assert np.isneginf(evidences[:, 1]).tolist() == [False, True, True, True]
    assert evidences[:, 2:] == pytest.approx(alone[:, 2:], rel=1e-9)


# the kind of interval


@pytest.mark.parametrize(
    ("tracked", "by_effect"),
    [
        ([0.1, 0.5, 0.3, 0.3], {4.0: (-0.1, 0.7), 0.5: (0.1, 0.5), np.nan: (0.1, 0.5)}),
        ([0.3, 0.2, 0.35, 0.1], {9.0: (0.2, 0.4), 1.0: (0.3, 0.2)}),  # each end has an estimate of its own
    ],
)
def test_dependent_events_move_each_end_away_from_its_estimate(
    tracked: list[float], by_effect: dict[float, tuple[float, float]]
) -> None:
    limits = TermRange.between((0.0, 0.0), (0.0, 1.0), np.full(1, np.inf), np.ones(1))
    for effect, expected in by_effect.items():
        reading: Any = SimpleNamespace(design_effect=np.array([effect]))
        bounds = ConfidenceSequence().bounds(reading, limits, 0.95, np.array(tracked)[:, None])
        assert np.concatenate(bounds) == pytest.approx(expected)


def test_sessions_with_equal_weights_do_not_make_a_sequence_miss() -> None:
    rng, events, names = np.random.default_rng(32), 6_000, [f"c{index}" for index in range(20)]
    session = np.arange(events) // 1_000 * 50 + rng.integers(0, 50, events)  # 50 sessions of 20 events at a time
    weights = {name: rng.choice([0.5, 1.5], 300)[session] for name in names}
    batch = EventBatch.from_arrays(
        reward=(rng.random(events) < 0.3).astype(float),
        propensity=np.full(events, 0.5),
        policies={name: 0.5 * weight for name, weight in weights.items()},
        unit=[str(number) for number in session],
    )
    evaluator = Evaluator(names, [IPS()], [Cumulative()], intervals={"cumulative": "confidence_sequence"}, drift=None)
    missed = set()
    for first in range(0, events, 500):
        evaluator.update(batch[first : first + 500])
        evaluator.fold_pending()
        for estimate in evaluator.report().estimates:
            assert estimate.lower is not None
            assert estimate.upper is not None
            lift = (estimate.lift_lower or 0.0, estimate.lift_upper or 0.0)
            if estimate.upper < 0.3 or estimate.lower > 0.3 or lift[0] > 0 or lift[1] < 0:
                missed.add(estimate.policy)
    assert len(missed) <= 3


@pytest.mark.parametrize(
    ("average", "words"),
    [
        (Decay(), "forgets gradually: confidence_sequence fits cumulative and window only"),
        (AdaptiveWindow(), "chooses its length by the data: confidence_sequence fits cumulative"),
        (Mixture(), "fits cumulative and window only"),
        (Window(tau=99), "cannot restart within a block"),
    ],
    ids=["decay", "adaptive window", "mixture", "short window"],
)
def test_a_confidence_sequence_is_refused_if_none_exists(average: AnyAverage, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Evaluator(["a"], averages=[average], intervals={average.label: "confidence_sequence"})


@pytest.mark.parametrize("wrong", [{"drift": "include"}, {"method": "empirical_bernstein"}, {"max_weight": 0.0}])
def test_a_confidence_sequence_refuses_what_it_cannot_promise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"drift cannot be included|needs a max_weight|greater than 0"):
        ConfidenceSequence(**wrong)


def test_evidence_is_proof_until_sampling_becomes_uneven() -> None:
    rng = np.random.default_rng(8)
    weight, reward = rng.uniform(0, 2, (1_000, 2)), rng.uniform(size=1_000)
    weight[:, 0] = 1.0
    sampling = np.ones((1_000, 2))
    sampling[430:, 1] = rng.choice([1.0, 2.0], 570)
    proof = LiftTest((0.0, 1.0))

    def wealth(step: int) -> list[list[float]]:
        state, path = proof.start(2), []
        for first in range(0, 1_000, step):
            rows = slice(first, first + step)
            seen = Evidence.from_numbers(weight[rows], reward[rows], 100, sampling[rows])
            some, state = proof.fold(state, proof.observed(seen))
            path += some[:, 1:].tolist()
        return path

    assert np.isfinite(wealth(1_000)[:4]).all()
    assert np.isneginf(wealth(1_000)[4:]).all()
    assert np.array(wealth(1_000)) == pytest.approx(np.array(wealth(100)), rel=1e-9)
