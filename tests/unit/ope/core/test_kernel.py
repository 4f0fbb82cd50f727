"""Test the kernels, compiled and uncompiled, against numpy: to the bit if the order of a sum is defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval.ope.core import kernel as imported
from support.kernels import uncompiled
from support.reference import brute_force

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FORMS = {"as imported": imported, "uncompiled": uncompiled(imported)}
assert not FORMS["uncompiled"].compiled()


@pytest.fixture(params=FORMS)
def kernel(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


def numbers(*values: int) -> Integers:
    return np.array(values, dtype=np.int64)


def unknown(*shape: int) -> Array:
    return np.full(shape, np.nan)


def test_numbers_are_interpolated_between_the_edges_of_their_row(kernel: Any) -> None:
    edges = np.array([[0.0, 1.0, 1.0, 3.0, 4.0], [-2.0, 0.0, 5.0, np.inf, np.inf]])
    points, values = np.array([[-1.0, 0.0, 0.25, 1.0, 2.5, 4.0, 9.0, np.nan]] * 2), np.array([1.0, 2.0, 4.0, 5.0, 7.0])
    actual = unknown(*points.shape)
    kernel.interpolate(points, edges, values, actual)
    wanted = [np.interp(row, edge, values) for row, edge in zip(points, edges, strict=True)]
    assert actual == pytest.approx(np.array(wanted), nan_ok=True)


# -- sums over pieces of the events ------------------------------------------------------------------------------------

SERIES, POLICIES = 3, 3
PAIRS = list(combinations_with_replacement(range(-1, 2 * SERIES), 2))


class Events:
    """Hold series of a few policies and their weights, some of them 0, cut into pieces."""

    def __init__(self, *edges: int, plain: bool = False) -> None:
        rng, count = np.random.default_rng(edges[-1]), edges[-1]
        self.edges, self.plain = numbers(*edges), plain
        self.series = rng.normal(size=(SERIES, POLICIES, count)) * np.exp(rng.normal(0, 3, (SERIES, POLICIES, count)))
        self.series[0] = np.abs(self.series[0])
        self.series[1:, :, ::5] = 0.0
        weight = rng.exponential(size=(POLICIES, count)) * (rng.random((POLICIES, count)) < 0.7)
        self.weight = np.ones_like(weight) if plain else weight
        self.both = np.where(self.weight[:1] > 0, self.weight, 0.0)

    def pieces(self) -> list[slice]:
        return [slice(first, last) for first, last in pairwise(self.edges.tolist())]

    def view(self, number: int, policy: int) -> Array:
        """Return the series with this number, as a policy sees it."""
        if number < 0:
            return np.ones(self.series.shape[-1])
        return self.series[number - SERIES, 0] if number >= SERIES else self.series[number, policy]

    def weights(self, apart: int) -> Array:
        return self.both if apart else self.weight


def sum_in_four_parts(terms: Array) -> float:
    """Add up every fourth term, the last few to the first sum, and then the four sums."""
    whole = len(terms) // 4 * 4
    parts = terms[:whole].reshape(-1, 4).cumsum(axis=0)[-1] if whole else np.zeros(4)
    first = np.cumsum([parts[0], *terms[whole:]])[-1]
    return float((first + parts[1]) + (parts[2] + parts[3]))


EDGES = [(0, 1), (0, 3), (0, 4), (0, 5, 10, 15, 23), (0, 0, 7, 7, 250)]


@pytest.mark.parametrize("plain", [False, True], ids=["weighted", "plain"])
@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_products_are_sums_in_four_parts_to_the_bit(kernel: Any, edges: tuple[int, ...], plain: bool) -> None:
    events = Events(*edges, plain=plain)
    wanted = [(*pair, apart) for pair in PAIRS for apart in (0, 1)]
    first, second, apart = map(np.ascontiguousarray, np.array(wanted).T)
    out = unknown(len(edges) - 1, POLICIES, len(wanted) + 2)
    columns = first, second, apart, len(wanted) - 1
    kernel.products(events.series, events.weight, events.both, plain, events.edges, *columns, out)
    for index, piece in enumerate(events.pieces()):
        for policy in range(POLICIES):
            for pair, (one, other, both) in enumerate(wanted[:-1]):
                terms = (events.weights(both)[policy] * events.view(one, policy) * events.view(other, policy))[piece]
                actual = out[index, policy, pair]
                assert actual == sum_in_four_parts(terms)
                assert actual == pytest.approx(math.fsum(terms), rel=0, abs=1e-12 * np.abs(terms).sum())
    assert np.isnan(out[..., len(wanted) - 1 :]).all()  # only the first `count` pairs were wanted


@pytest.mark.parametrize("plain", [False, True], ids=["weighted", "plain"])
@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_extremes_are_the_largest_numbers_and_the_numbers_of_events(
    kernel: Any, edges: tuple[int, ...], plain: bool
) -> None:
    events, terms, apart = Events(*edges, plain=plain), numbers(1, 2, 1), numbers(0, 0, 1)
    largest, counts = unknown(2, len(edges) - 1, POLICIES, 2 + len(terms))
    squares = unknown(len(edges) - 1, POLICIES, 2)
    columns = events.edges, terms, apart
    kernel.extremes(events.series, events.weight, events.both, plain, *columns, largest, counts, squares)
    for index, piece in enumerate(events.pieces()):
        for policy in range(POLICIES):
            q, both = events.weight[policy, piece], events.both[policy, piece]
            weighted = [
                np.abs(events.weights(kind)[policy, piece] * events.series[term, policy, piece])
                for term, kind in zip(terms, apart, strict=True)
            ]
            numbers_of = [q, events.series[0, policy, piece], *weighted]
            assert largest[index, policy].tolist() == [numbers.max(initial=0.0) for numbers in numbers_of]
            assert counts[index, policy].tolist() == [np.count_nonzero(numbers) for numbers in (q, both, *weighted)]
            assert squares[index, policy].tolist() == [np.cumsum([0.0, *numbers**2])[-1] for numbers in (q, both)]
    uncounted = np.empty_like(largest)
    kernel.extremes(events.series, events.weight, events.both, plain, *columns, uncounted, counts[:0], squares)
    assert uncounted.tolist() == largest.tolist()


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_signed_sums_are_sums_in_the_order_of_the_events_to_the_bit(kernel: Any, edges: tuple[int, ...]) -> None:
    events = Events(*edges)
    terms, apart = numbers(-1, 0, 2, SERIES + 1, -1, 1, 2 * SERIES - 1), numbers(0, 0, 0, 0, 1, 1, 1)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (edges[-1], 8))
    out = unknown(len(edges) - 1, POLICIES, len(terms), 8)
    kernel.signed_sums(events.series, events.weight, events.both, events.edges, terms, apart, signs, out)
    for index, piece in enumerate(events.pieces()):
        for policy in range(POLICIES):
            for row, (term, kind) in enumerate(zip(terms.tolist(), apart, strict=True)):
                weighted = (events.weights(kind)[policy] * events.view(term, policy))[piece, None] * signs[piece]
                expected = np.concatenate([np.zeros((1, 8)), weighted]).cumsum(axis=0)[-1]
                np.testing.assert_array_equal(out[index, policy, row], expected)


@pytest.mark.parametrize(
    ("near", "form"), [(True, [-1.0, 1.0]), (False, np.repeat([1.0, -2.0, 1.0], 10))], ids=["near", "far"]
)
@pytest.mark.parametrize("signs", [1, 4])
def test_contrasts_are_products_of_differences_of_sums_over_blocks(
    kernel: Any, near: bool, form: Any, signs: int
) -> None:
    rng, blocks, terms, history = np.random.default_rng(signs), 40, 3, 1 if near else 29
    totals = rng.normal(size=(history + blocks, POLICIES, terms * signs))
    weights = rng.random((history + blocks, POLICIES, 2)) * (rng.random((history + blocks, POLICIES, 2)) < 0.7)
    first, second, apart = numbers(0, 0, 1, 2), numbers(0, 1, 2, 2), numbers(0, 1, 0, 1)
    out = unknown(blocks, POLICIES, 2 + 4)
    kernel.contrasts(totals, weights, near, first, second, apart, signs, history, np.empty(terms * signs), out)
    reach = len(form) - 1
    actual = np.lib.stride_tricks.sliding_window_view(totals[history - reach :], reach + 1, axis=0) @ form
    products = actual.reshape(blocks, POLICIES, terms, signs)
    kept = np.where(weights[history - reach : history - reach + blocks] > 0, weights[history:], 0.0)
    np.testing.assert_array_equal(out[..., :2], kept)
    for index, (one, other, kind) in enumerate(zip(first, second, apart, strict=True)):
        mean = (products[:, :, one] * products[:, :, other]).mean(axis=-1) / np.square(form).sum()
        expected = np.where(kept[..., kind] > 0, mean, 0.0)
        np.testing.assert_allclose(out[..., 2 + index], expected, rtol=1e-12, atol=1e-12)


# -- state from block to block -----------------------------------------------------------------------------------------

BLOCKS, ESTIMATORS, ROWS = 7, 2, 4
CUT = (slice(0, 3), slice(3, None))
"""Two parts of seven blocks."""


def fold_parts(fold: Callable[[slice], None], cut: bool) -> None:
    for blocks in CUT if cut else (slice(None),):
        fold(blocks)


def taken(seed: int) -> tuple[Array, Array, Integers]:
    """Draw a state, the rows of blocks, and the indices of rows that the state sums."""
    rng = np.random.default_rng(seed)
    state, rows = rng.random((POLICIES, ESTIMATORS, ROWS)), rng.random((BLOCKS, POLICIES, 6))
    return state, rows, rng.integers(0, 6, (ESTIMATORS, ROWS))


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two parts"])
@pytest.mark.parametrize("shape", [(1, 1), (POLICIES, 1), (1, ESTIMATORS), (POLICIES, ESTIMATORS)], ids=str)
def test_accumulate_fades_sums_squares_and_maxima_each_in_its_way(
    kernel: Any, shape: tuple[int, int], cut: bool
) -> None:
    state, rows, take = taken(1)
    factor, share = np.random.default_rng(2).random((2, BLOCKS, *shape))
    expected = state.copy()
    for index in range(BLOCKS):
        block, f, s = rows[index][:, take], factor[index], share[index]
        expected[..., 0] = f * expected[..., 0] + s * block[..., 0]
        expected[..., 1] = f * f * expected[..., 1] + s * s * block[..., 1]
        expected[..., 2] = np.maximum(f * expected[..., 2], s * block[..., 2])
        expected[..., 3] = np.maximum(expected[..., 3], block[..., 3])
    power = numbers(1, 2, 3, 0)
    none = np.zeros((0, 0, 0))
    fold_parts(
        lambda blocks: kernel.accumulate(state, rows[blocks], take, power, factor[blocks], share[blocks], none), cut
    )
    np.testing.assert_array_equal(state, expected)


def test_accumulate_takes_back_what_rounding_added(kernel: Any) -> None:
    rows = np.random.default_rng(5).uniform(0.1, 100.0, (2_000, 1, 1))
    state, lost, one = np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.ones((2_000, 1, 1))
    kernel.accumulate(state, rows, numbers(0)[None], numbers(1), one, one, lost)
    assert state.item() == math.fsum(rows.ravel())


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two parts"])
def test_trace_keeps_the_fading_sums_after_each_block(kernel: Any, cut: bool) -> None:
    state, rows, take = taken(3)
    expected, path, out = state.copy(), [], unknown(BLOCKS, *state.shape)
    for block in rows:
        expected = 0.9 * expected + block[:, take]
        path.append(expected)
    fold_parts(lambda blocks: kernel.trace(state, rows[blocks], take, 0.9, out[blocks]), cut)
    np.testing.assert_array_equal(out, path)
    np.testing.assert_array_equal(state, expected)


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two parts"])
def test_fade_fades_the_same_rows_with_each_horizon(kernel: Any, cut: bool) -> None:
    rng, fading = np.random.default_rng(4), np.array([0.1, 0.9, 1.0])
    state, rows = rng.random((POLICIES, ROWS, 3)), rng.random((BLOCKS, POLICIES, ROWS))
    expected = state.copy()
    for block in rows:
        expected = fading * expected + block[..., None]
    fold_parts(lambda blocks: kernel.fade(state, rows[blocks], fading), cut)
    np.testing.assert_array_equal(state, expected)


LATEST, LAG, SPAN = 5, 3, 300.0


def rates(sums: Array, window: int, fading: float, least: int) -> Array:
    """Return the mean rate after each block, [B, P, E]."""
    blocks = len(sums)
    has_value = np.where(np.arange(blocks) >= least, 1.0, np.nan)
    weights = [
        fading ** np.arange(end, -1, -1.0) if fading else (np.arange(end, -1, -1) < window) * 1.0
        for end in range(blocks)
    ]
    smoothed = np.stack([np.tensordot(weight, sums[: len(weight), ..., 1:], 1) for weight in weights])
    with np.errstate(invalid="ignore"):
        values = smoothed[..., 0] / smoothed[..., 1] * has_value[:, None, None]
    moved = np.full(values.shape, np.nan)
    moved[LAG:] = np.abs(values[LAG:] - values[:-LAG]) / SPAN
    means, mean = [], np.full(values.shape[1:], np.nan)
    for end in range(blocks):
        recent = moved[max(0, end - LATEST + 1) : end + 1]
        count = (~np.isnan(recent)).sum(axis=0)
        fresh = np.where(count > 0, np.nansum(recent, axis=0) / np.maximum(count, 1), np.nan)
        mean = np.where(sums[end, ..., 0] > 0, fresh, mean)
        means.append(mean)
    return np.stack(means)


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two parts"])
@pytest.mark.parametrize(("window", "fading", "least"), [(4, 0.0, 0), (4, 0.0, 3), (1, 0.8, 0)], ids=str)
def test_the_rate_equals_how_far_values_have_moved(
    kernel: Any, window: int, fading: float, least: int, cut: bool
) -> None:
    sums = np.random.default_rng(5).uniform(0.1, 1.0, (4 * BLOCKS, POLICIES, ESTIMATORS, 3))
    sums[:6, 0], sums[10:13, 1], sums[14:, 2, 1] = 0.0, 0.0, 0.0  # late events, a gap, and none from some block on
    shape = (POLICIES, ESTIMATORS)
    smoothed = np.zeros((*shape, window, 2))
    state = [smoothed, unknown(*shape, LAG), unknown(*shape, LATEST), unknown(*shape)]
    out = unknown(*sums.shape[:3])

    def follow(blocks: slice) -> None:
        kernel.follow_values(
            sums[blocks], *state, np.full(POLICIES, blocks.start or 0), fading, least, SPAN, out[blocks]
        )

    fold_parts(follow, cut)
    np.testing.assert_allclose(out, rates(sums, window, fading, least), rtol=1e-12)
    np.testing.assert_array_equal(state[-1], out[-1])
    assert np.isnan(out[:LAG]).all()
    assert np.isfinite(out[-1]).all()


def test_values_that_move_by_rounding_only_have_no_rate(kernel: Any) -> None:
    sums = np.random.default_rng(6).uniform(0.1, 1.0, (40, 1, 1, 3))
    sums[..., 1] = 0.3 * sums[..., 2]
    state = [np.zeros((1, 1, 4, 2)), unknown(1, 1, LAG), unknown(1, 1, LATEST), unknown(1, 1)]
    out = unknown(40, 1, 1)
    kernel.follow_values(sums, *state, np.zeros(len(sums[0]), dtype=np.int64), 0.0, 0, SPAN, out)
    assert (out[LAG:] == 0.0).all()


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "in two parts"])
def test_the_rate_over_short_spans_equals_its_definition(kernel: Any, cut: bool) -> None:
    blocks, window, spans = 8 * BLOCKS, 4, numbers(1, 3, 6)
    rng = np.random.default_rng(7)
    sums = rng.uniform(0.1, 1.0, (blocks, POLICIES, ESTIMATORS, 3))
    sums[..., 1] = sums[..., 2] * (0.5 + np.sin(np.arange(blocks) / 4)[:, None, None]) + rng.normal(
        0, 0.05, sums.shape[:3]
    )
    sums[:6, 0], sums[10:13, 1], sums[14:40, 2, 1], sums[-3:, 0] = 0.0, 0.0, 0.0, 0.0
    shape = (POLICIES, ESTIMATORS)
    state = [np.zeros((*shape, window, 2)), unknown(*shape, 6), np.zeros((*shape, 3, 2)), np.zeros((*shape, 2))]
    rate, out = unknown(*shape), unknown(*sums.shape[:3])

    def follow(part: slice) -> None:
        before = np.full(POLICIES, part.start or 0)
        kernel.follow_spans(sums[part], *state, rate, before, spans, math.exp(-1 / 200_000), 1.0, out[part])

    fold_parts(follow, cut)
    for policy, estimator in np.ndindex(*shape):
        weight, numerator, denominator = sums[:, policy, estimator].T
        present = np.where(weight > 0, weight, 1.0)
        stream = brute_force.Terms(weight, numerator / present, denominator / present, weight)
        wanted = brute_force.short_rates(stream, 1, 12, window)
        np.testing.assert_allclose(out[:, policy, estimator], wanted, rtol=1e-9)
    np.testing.assert_array_equal(rate, out[-1])
    assert (out[-1] > 0).all()


# -- the mixture -------------------------------------------------------------------------------------------------------

HORIZONS = np.array([300.0, 1_000.0, 5_000.0, np.inf])
DECAYS = len(HORIZONS)
SIZE = 50.0
PSEUDO_EVENTS, NOISE_EVENTS, SMALLEST, MEMORY, SHORT, LONG = 40.0, 100.0, 1e-6, 3_000.0, 400.0, 2_000.0
CONSTANTS = np.array([PSEUDO_EVENTS, NOISE_EVENTS, SMALLEST, MEMORY, math.exp(-SIZE / MEMORY), SHORT, LONG])
FADING = np.exp(-SIZE / HORIZONS)
LOSS_FADING = np.exp(-SIZE / np.array([2_000.0, 10_000.0, 20_000.0, 20_000.0]))
POOLS, RATES = numbers(1, 0, 0), np.array([0.4, 1.0])


class Mixed:
    """Draw blocks for a mixture of four decays, for three policies with two components.

    Args:
        ratio: Whether the second component is a ratio.
        alike: Whether all blocks have equal weights.
    """

    def __init__(self, blocks: int, ratio: bool = False, alike: bool = False) -> None:
        rng, shape = np.random.default_rng(blocks), (blocks, POLICIES, 2)
        q = rng.uniform(20, 60, (blocks, POLICIES))
        if alike:
            q[:] = 50.0
        else:
            q[blocks // 3 : blocks // 2, 1] = 0.0  # a policy that many blocks lack
        u, v = rng.normal(0.3, 0.2, shape), np.ones(shape)
        if ratio:
            v[..., 1] = rng.uniform(0.5, 1.5, shape[:2])
            v[:4, 2, 1] = u[:4, 2, 1] = 0.0  # events without any weight at first
        moments = [np.ones(shape), u, v, u**2 + 0.1, u * v + 0.01, v**2 + 0.01 * ratio]
        self.terms = q[:, :, None, None] * np.stack(moments, axis=-1)
        self.squares = q**2 / SIZE
        self.priors = rng.uniform(0.2, 0.4, (blocks, POLICIES, 3))
        self.priors[..., 1] = np.nan if ratio else self.priors[..., 1]  # a component without an initial value
        self.ratios = numbers(0, int(ratio))

    def fold(self, kernel: Any, cut: bool = False, errors: bool = True) -> list[Array]:
        """Fold all blocks, and return the path and the state."""
        decays, overlap = np.zeros((POLICIES, 2, 4, DECAYS)), np.zeros((POLICIES, DECAYS, DECAYS))
        columns, path = np.zeros((POLICIES, 2, 10)), unknown(len(self.terms), POLICIES, 2, 5)
        columns[..., 6:8] = np.nan

        def fold(piece: slice) -> None:
            blocks = self.terms[piece], self.squares[piece], self.priors[piece]
            numbers_of = self.ratios, POOLS, RATES, np.stack([HORIZONS, FADING, LOSS_FADING]), CONSTANTS
            room = [np.empty((6, DECAYS)), np.empty((POLICIES, 2, DECAYS)), np.empty((2, 2, DECAYS))]
            room.append(np.empty((2, POLICIES, 2)))
            events = np.full(POLICIES, SIZE * (piece.start or 0))
            kernel.mix(decays, columns, overlap, events, SIZE, *blocks, *numbers_of, *room, errors, path[piece])

        fold_parts(fold, cut)
        return [path, decays, columns, overlap]

    def expected(self) -> list[Array]:
        """Compute the mixture in numpy."""
        shape = (POLICIES, 2, DECAYS)
        weight, total, age, excess = np.zeros((4, *shape))
        recent, learned = np.zeros((POLICIES, 2, 6)), np.zeros((POLICIES, 2, 2))
        prior, square = np.full((2, POLICIES, 2), np.nan)
        overlap, path, events = np.zeros((POLICIES, DECAYS, DECAYS)), [], 0.0

        def mixed() -> tuple[Array, Array, Array, Array]:
            left = np.where(np.isnan(prior), 0.0, PSEUDO_EVENTS)[..., None] * np.exp(-events / HORIZONS)
            estimates = (total + left * np.nan_to_num(prior)[..., None]) / (weight + left)
            shares = np.empty(shape)
            for pool, rate in enumerate(RATES):
                loss = excess[pool == POOLS].sum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]
                grown = np.sqrt(np.clip(np.minimum(HORIZONS, events), SHORT, LONG))
                share = grown * np.exp(-rate * (loss - loss.min(axis=1, keepdims=True)))
                shares[pool == POOLS] = share / share.sum(axis=1, keepdims=True)
            fresh = NOISE_EVENTS * np.exp(-events / MEMORY)
            q, u, v, uu, uv, vv = np.moveaxis(recent, -1, 0)
            shrunken = (u + fresh * np.nan_to_num(prior)) / (q + fresh)
            second = (uu + fresh * square) / (q + fresh)
            plain = np.fmax(second - (u / q) ** 2, (second - shrunken**2) / 4)
            variance = (uu - 2 * u / v * uv + (u / v) ** 2 * vv) * q / v**2
            linear = (q * variance + fresh * square) / (q + fresh)
            noise = np.maximum(np.where(np.abs(v - q) <= 1e-12 * q, plain, linear), SMALLEST)
            return estimates, shares, (shares * estimates).sum(axis=-1), np.where(q > 0, noise, np.nan)

        with np.errstate(all="ignore"):
            estimates, shares, value, noise = mixed()
            for terms, squares, priors in zip(self.terms, self.squares, self.priors, strict=True):
                q, u, v = np.moveaxis(terms[..., :3], -1, 0)
                denominator = recent[..., 2] / recent[..., 0]
                linear = value + (u - value * v) / (q * denominator)
                mean = np.where((self.ratios == 1) & np.isfinite(linear), linear, u / v)
                has_value = (q > 0) & np.isfinite(mean)
                w, x = np.where(has_value, q, 0.0)[..., None], np.where(has_value, mean, 0.0)[..., None]
                losses = np.nan_to_num((estimates - x) ** 2 * w / (2 * noise[..., None]), posinf=0.0)
                excess = LOSS_FADING * excess + np.append(losses[..., :-1] - losses[..., 1:], np.zeros_like(x), axis=-1)
                age = FADING * (age + SIZE * weight) + w * (SIZE - 1) / 2
                weight, total = FADING * weight + w, FADING * total + w * x
                recent = CONSTANTS[4] * recent + terms
                prior, square = priors[:, :2], np.repeat(priors[:, 2:], 2, axis=1)
                overlap = np.outer(FADING, FADING) * overlap + squares[:, None, None]
                events += SIZE
                before = value, denominator
                estimates, shares, value, noise = mixed()
                shorter, longer = (np.zeros(shape) for _ in range(2))
                shorter[..., :-1], longer[..., 1:] = shares[..., 1:], shares[..., :-1]
                shorter[..., 0] += shares[..., 0]
                longer[..., -1] += shares[..., -1]
                trend, alone = (shorter - longer) / weight, shares / weight
                noises = [np.einsum("pij,pci,pcj->pc", overlap, component, component) for component in (trend, alone)]
                span = -(trend * age).sum(axis=-1)
                slope = np.where(
                    span > 1e-12 * np.abs(trend * age).sum(axis=-1), (trend * total).sum(axis=-1) / span, np.nan
                )
                error = noise * noises[0] / span**2
                usual = np.stack([slope**2 / error - 1, 1 / error], axis=-1)
                learned = CONSTANTS[4] * learned + np.where(np.isfinite(usual).all(axis=-1, keepdims=True), usual, 0.0)
                moved = value - (alone * total).sum(axis=-1)
                spread = (shares * (estimates - value[..., None]) ** 2).sum(axis=-1)
                path.append(np.stack([*before, value, noise * noises[1] + moved**2, spread], axis=-1))
        columns = np.concatenate([recent, prior[..., None], square[..., None], learned], axis=-1)
        return [np.stack(path), np.stack([weight, total, age, excess], axis=2), columns, overlap]


MIXTURES = {"plain": Mixed(30), "alike": Mixed(31, alike=True), "ratio": Mixed(32, ratio=True), "first": Mixed(1)}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_a_mixture_equals_its_definition(kernel: Any, mixture: Mixed) -> None:
    for actual, expected in zip(mixture.fold(kernel), mixture.expected(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_a_mixture_does_not_depend_on_how_blocks_are_cut(kernel: Any, mixture: Mixed) -> None:
    for one, other in zip(mixture.fold(kernel), mixture.fold(kernel, cut=True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mixture_without_events_of_a_policy_knows_only_the_others(kernel: Any) -> None:
    mixture, whole = Mixed(30), Mixed(30)
    mixture.terms[:, 0] = mixture.squares[:, 0] = 0.0
    mixture.priors[:, 0] = np.nan
    path, decays, columns, _ = mixture.fold(kernel)
    assert np.isnan(path[:, 0]).all()
    assert not decays[0].any()
    assert not columns[0, :, [0, 1, 2, 3, 4, 5, 8, 9]].any()
    others, *_ = whole.fold(kernel)
    np.testing.assert_array_equal(path[:, 1:], others[:, 1:])  # losses of another pool do not change


# -- both forms --------------------------------------------------------------------------------------------------------


def test_both_forms_give_the_same_bits_for_a_mixture_with_its_exponentials() -> None:
    for mixture in MIXTURES.values():
        for one, other in zip(*(mixture.fold(form) for form in FORMS.values()), strict=True):
            np.testing.assert_array_equal(one, other)
