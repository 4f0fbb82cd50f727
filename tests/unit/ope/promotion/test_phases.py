from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval.ope.promotion.rules import phases
from streameval.ope.promotion.rules.phases import Bucket, Limits, Period, Table

Array = NDArray[np.float64]
SHORT = Period(8.0, 8, 5.0, 2)
LIMITS = Limits(1.0, 0.0, 0.0, 2)


class Events(NamedTuple):
    """Hold the events of one bucket of one candidate."""

    number: float
    mean: float


class PlainTable:
    """Follow two candidates bucket by bucket, as in the formulas of the module, with numbers only."""

    def __init__(self, period: Period, limits: Limits, noise: float) -> None:
        self.period, self.limits, self.noise = period, limits, noise
        self.candidates = [PlainCandidate(period.phases) for _ in range(2)]

    def close(self, phase: int, buckets: Sequence[Events]) -> None:
        m, count = self.period.memory, self.period.phases
        lam = 1 - 1 / m
        for c, (n, y) in zip(self.candidates, buckets, strict=True):
            c.events[phase] = n
            c.store[phase] = None
            if n:
                total, squares = c.n[phase], c.q[phase]
                if total:
                    x = c.s[phase] / total
                    c.store[phase] = (n, y - x, self.noise * squares / total**2, x)
                c.n[phase], c.q[phase], c.s[phase] = lam * total + n, lam**2 * squares + n, lam * c.s[phase] + n * y
                c.w[phase], c.w2[phase] = lam * c.w[phase] + 1, lam**2 * c.w2[phase] + 1
            c.age += 1
        scored = [c for c in self.candidates if c.age % count == 0 and self._scores(c)]
        for c in scored:
            known = [other for other in self.candidates if other.k]
            k, f, product = (sum(getattr(other, name) for other in known) / len(known) for name in ("k", "f", "c"))
            excess = max(0.0, f / (k + 1))
            moving = min(max((product - math.sqrt(k / len(known))) / (k + 3), 0.0), excess)
            c.differing, c.moving = excess * c.variance, moving * c.variance
        for c in self.candidates:
            self._decide(c, phase)

    def _mean(self, c: PlainCandidate, window: Sequence[int]) -> tuple[float, float] | None:
        stored = [c.store[phase] for phase in window]
        residuals = [entry for entry in stored if entry is not None]
        total = sum(n for n, *_ in residuals)
        if not total or total < 0.5 * sum(c.events[phase] for phase in window):
            return None
        variance = self.noise / total + sum((n / total) ** 2 * u for n, _, u, _ in residuals)
        return sum(n * e for n, e, *_ in residuals) / total, variance

    def _scores(self, c: PlainCandidate) -> bool:
        found = self._mean(c, range(self.period.phases))
        if found is None or (c.alarm is not None and c.age - c.alarm < self.period.phases):
            c.z = 0.0
            return False
        mean, c.variance = found
        z, g = min(max(mean / math.sqrt(c.variance), -5.0), 5.0), 1 - 1 / 14
        c.k, c.f, c.c, c.z = g * c.k + 1, g * c.f + z * z - 1, g * c.c + z * c.z + 1 / (2 * self.period.memory), z
        return True

    def _decide(self, c: PlainCandidate, phase: int) -> None:
        count, k = self.period.phases, 2 * math.log(self.limits.candidates)
        found = []
        for span in self.period.spans:
            window = [(phase - back) % count for back in range(span)]
            mean = self._mean(c, window)
            if mean is not None:
                r, variance = mean
                found.append((r / math.sqrt(variance + c.differing), r, variance + c.differing, window))
        z, r, variance, window = max(found, key=lambda entry: abs(entry[0]), default=(0.0, 0.0, 1.0, []))
        down, alarm = z < -math.sqrt(3.5**2 + k), z < -math.sqrt(4**2 + k)
        if not alarm and found and len(found[-1][3]) == count and found[-1][0] > math.sqrt(4**2 + k) and c.k >= 3:
            alarm, (z, r, variance, window) = True, found[-1]
        if alarm:
            share = min(1.0, self._level(c)[1] / variance)
            for h in range(count):
                entry = c.store[h]
                x = entry[3] if h in window and entry is not None else c.s[h] / c.n[h] if c.n[h] else 0.0
                c.n[h], c.q[h], c.w[h], c.w2[h] = (share * column[h] for column in (c.n, c.q, c.w, c.w2))
                c.s[h] = c.n[h] * (x + r)
            c.store, c.alarm = [None] * count, c.age
            down = False
        c.lift, sampling, overlap = self._level(c)
        c.error = math.sqrt(sampling + (c.differing - c.moving) * overlap + c.moving)
        c.known = c.age >= self.period.least * count and sum(n > 0 for n in c.n) >= 0.95 * count
        c.known = c.known or c.age >= (self.period.least + 1) * count
        quiet = c.alarm is not None and c.age - c.alarm < count
        entering = math.sqrt(9 + k) * c.error
        if c.known:
            enters = c.lift - entering > 0 and not down and not quiet
            c.entered = enters or (c.entered and c.lift - 0.9 * c.error > 0)
            c.worse = (c.lift + entering < 0 and not quiet) or (c.worse and c.lift + 0.9 * c.error < 0)
            c.hurt = down and c.lift + r - 0.9 * c.error <= 0

    def _level(self, c: PlainCandidate) -> tuple[float, float, float]:
        seen = [h for h in range(self.period.phases) if c.n[h]]
        traffic = {h: c.n[h] / c.w[h] for h in seen}
        share = {h: traffic[h] / sum(traffic.values()) for h in seen}
        lift = sum(share[h] * c.s[h] / c.n[h] for h in seen)
        variance = self.noise * sum(share[h] ** 2 * c.q[h] / c.n[h] ** 2 for h in seen)
        return lift, variance, sum(share[h] * c.w2[h] / c.w[h] ** 2 for h in seen)


class PlainCandidate:
    """Hold the numbers of one candidate."""

    def __init__(self, count: int) -> None:
        self.n, self.q, self.w, self.w2, self.s = ([0.0] * count for _ in range(5))
        self.events = [0.0] * count
        self.store: list[tuple[float, float, float, float] | None] = [None] * count
        self.k = self.f = self.c = self.z = self.differing = self.moving = self.variance = 0.0
        self.age, self.alarm = 0, None
        self.lift = self.error = math.nan
        self.known = self.entered = self.worse = self.hurt = False


def bucket(numbers: Array, means: Array, noise: float) -> Bucket:
    return Bucket(numbers, numbers, numbers * means, np.full(numbers.shape, noise), np.zeros(numbers.shape))


def still(rng: np.random.Generator, hours: int) -> Array:
    return rng.normal(0.3, 0.3, (hours, 2)) + np.sin(np.arange(hours) * np.pi / 4)[:, None]


def falling(rng: np.random.Generator, hours: int) -> Array:
    return still(rng, hours) - np.where(np.arange(hours) > hours / 2, 1.5, 0.0)[:, None] * [1, 0]


def rising(rng: np.random.Generator, hours: int) -> Array:
    return still(rng, hours) + np.where(np.arange(hours) > hours / 2, 2.0, 0.0)[:, None] * [0, 1]


def differing(rng: np.random.Generator, hours: int) -> Array:
    return still(rng, hours) + rng.normal(0, 0.5, (hours // 8 + 1, 2))[np.arange(hours) // 8]


@pytest.mark.parametrize("world", [still, falling, rising, differing])
@pytest.mark.parametrize("quiet", [0.0, 0.2])
def test_tables_follow_the_formulas_bucket_by_bucket(
    world: Callable[[np.random.Generator, int], Array], quiet: float
) -> None:
    rng, hours = np.random.default_rng(5), 160
    means = world(rng, hours)
    numbers = rng.integers(5, 60, (hours, 1)) * (rng.random((hours, 1)) >= quiet) * np.ones(2)
    plain, table = PlainTable(SHORT, LIMITS, noise=4.0), phases.start((2,), SHORT.phases)
    for hour in range(hours):
        row = [Events(float(n), float(y)) for n, y in zip(numbers[hour], means[hour], strict=True)]
        plain.close(hour % 8, row)
        if numbers[hour].any():
            table = phases.close(table, hour % 8, bucket(numbers[hour], means[hour], 4.0), SHORT, LIMITS)
        else:
            table = phases.skip(table, hour % 8, 1, SHORT, LIMITS)
        found = phases.verdict(table, LIMITS)
        for index, c in enumerate(plain.candidates):
            if c.known:
                assert found.lift[index] == pytest.approx(c.lift, abs=1e-12)
                assert found.error[index] == pytest.approx(c.error)
                verdicts = [bool(found.entered[index]), bool(found.worse[index]), bool(found.hurt[index])]
                assert verdicts == [c.entered, c.worse, c.hurt], hour
            else:
                assert np.isnan(found.lift[index])
            assert table.excess[index].tolist() == pytest.approx([c.differing, c.moving])
    alarms = [c.alarm is not None for c in plain.candidates]
    assert (not np.isnan(table.alarm).all()) == any(alarms)


def followed(means: Array, numbers: Array, period: Period = SHORT) -> Iterator[Table]:
    table = phases.start(means.shape[1:], period.phases)
    for hour, (row, count) in enumerate(zip(means, numbers, strict=True)):
        phase, every = hour % period.phases, np.full(means.shape[1:], float(count))
        if count:
            table = phases.close(table, phase, bucket(every, row, 4.0), period, LIMITS)
        else:
            table = phases.skip(table, phase, 1, period, LIMITS)
        yield table


@pytest.mark.parametrize("traffic", [[20] * 8, [1, 50, 20, 3, 7, 7, 30, 2]])
def test_a_profile_that_repeats_does_not_change_the_lift_of_a_period(traffic: list[int]) -> None:
    rng = np.random.default_rng(8)
    means, numbers = rng.normal(0.1, 0.2, (64, 2)), np.tile(np.array(traffic, dtype=float), 8)
    profile = rng.normal(0, 3, 8)
    profile -= (profile * traffic).sum() / sum(traffic)
    plain = list(followed(means, numbers))
    cyclic = list(followed(means + np.tile(profile, 8)[:, None], numbers))
    for one, other in list(zip(plain, cyclic, strict=True))[16:]:
        np.testing.assert_allclose(other.level, one.level, atol=1e-9)
        assert other.entered.tolist() == one.entered.tolist()


@pytest.mark.parametrize("quiet", [1, 7, 20])
def test_a_bucket_without_events_changes_no_sum(quiet: int) -> None:
    rng = np.random.default_rng(9)
    *_, table = followed(rng.normal(0.1, 0.2, (40, 2)), np.full(40, 20.0))
    after = phases.skip(table, 0, quiet, SHORT, LIMITS)
    np.testing.assert_array_equal(after.sums, table.sums)
    np.testing.assert_allclose(after.level, table.level)


def test_empty_buckets_together_are_those_one_by_one() -> None:
    rng = np.random.default_rng(2)
    *_, table = followed(rng.normal(0.1, 0.2, (43, 2)), np.full(43, 20.0))
    for count in (1, 5, 8, 30):
        together, single = phases.skip(table, 3, count, SHORT, LIMITS), table
        for index in range(count):
            single = phases.skip(single, (3 + index) % 8, 1, SHORT, LIMITS)
        for name in ("sums", "buckets", "scores", "age", "level"):
            np.testing.assert_array_equal(getattr(together, name), getattr(single, name))


def test_late_events_count_in_their_phase_without_a_residual() -> None:
    rng = np.random.default_rng(3)
    means, numbers = rng.normal(0.1, 0.2, (40, 2)), np.full(40, 20.0)
    *_, table = followed(means, numbers)
    late = phases.add_late(table, 5, bucket(np.full(2, 10.0), np.array([3.0, -1.0]), 4.0))
    added = late.sums - table.sums
    assert added[0, :, 5].tolist() == pytest.approx([10, 10, 0, 0, 30])
    assert added[1, :, 5].tolist() == pytest.approx([10, 10, 0, 0, -10])
    assert not added[..., [0, 1, 2, 3, 4, 6, 7]].any()
    np.testing.assert_array_equal(late.buckets, table.buckets)


def test_late_events_of_an_hour_that_had_none_count_as_one_period() -> None:
    *_, table = followed(np.full((8, 2), 0.5), np.array([20.0] * 7 + [0.0]))
    late = phases.add_late(table, 7, bucket(np.full(2, 20.0), np.full(2, 1.5), 4.0))
    lift, _, _ = phases.level(late)
    assert lift.tolist() == pytest.approx([(7 * 0.5 + 1.5) / 8] * 2)


def test_an_error_that_all_buckets_share_widens_the_error_of_the_lift() -> None:
    *_, table = followed(np.full((23, 2), 0.5), np.full(23, 20.0))
    last = bucket(np.full(2, 20.0), np.full(2, 0.5), 4.0)
    alone, wider = (
        phases.close(table, 7, last._replace(shared=np.full(2, shared)), SHORT, LIMITS).level for shared in (0.0, 0.3)
    )
    np.testing.assert_allclose(wider[:, 0], alone[:, 0])
    np.testing.assert_allclose(wider[:, 1] ** 2, alone[:, 1] ** 2 + 0.3)


def test_hours_that_never_have_events_delay_the_lift_by_one_period_only() -> None:
    numbers = np.tile([20.0] * 6 + [0.0] * 2, 4)
    tables = list(followed(np.full((32, 2), 0.5), numbers))
    known = [bool(~np.isnan(table.level[0, 0])) for table in tables]
    assert known.index(True) == 3 * 8 - 1


def test_a_longer_period_decides_as_soon_as_it_knows_the_lift() -> None:
    no, yes, unknown = np.array([False]), np.array([True]), np.array([np.nan])
    day = phases.Verdict(np.array([0.5]), np.array([0.1]), yes, no, no)
    assert phases.preferred(day, phases.Verdict(unknown, unknown, no, no, no)).promotable.tolist() == [True]
    week = phases.Verdict(np.array([0.1]), np.array([0.2]), no, no, no)
    assert phases.preferred(day, week).promotable.tolist() == [False]
    assert phases.preferred(day, week).lift.tolist() == [0.1]
    hurt = phases.Verdict(np.array([0.5]), np.array([0.1]), yes, yes, yes)
    both = phases.preferred(hurt, day)
    assert (both.promotable.tolist(), both.worse.tolist()) == ([False], [True])


WEEKS = Period(1_008.0, 168, 5.0, 1)


def test_a_profile_has_the_weighted_means_of_hours_and_their_newest_lifts() -> None:
    rng = np.random.default_rng(5)
    means, numbers = rng.normal(0.1, 0.2, (21, 2)), rng.integers(1, 30, 21).astype(float)
    *_, table = followed(means, numbers)
    profile = phases.profile(table, 8, 1)
    weights = numbers[[0, 8, 16]] * 0.8 ** np.array([2, 1, 0])
    expected = weights @ means[[0, 8, 16], 1] / weights.sum()
    assert profile.lift[1, 0] == pytest.approx(expected)
    squares = (numbers[[0, 8, 16]] * 0.8 ** np.array([4, 2, 0])).sum()
    differing, moving = table.excess[1]
    between = (differing - moving) * (1 + 0.8**2 + 0.8**4) / (1 + 0.8 + 0.8**2) ** 2 + moving
    assert profile.error[1, 0] ** 2 == pytest.approx(4.0 * squares / weights.sum() ** 2 + between)
    np.testing.assert_allclose(profile.latest[1], means[[16, 17, 18, 19, 20, 13, 14, 15], 1])
    np.testing.assert_allclose((profile.share * profile.lift).sum(axis=-1), table.level[..., 0])


def test_parts_of_a_profile_average_to_the_lift_of_the_whole_period() -> None:
    rng = np.random.default_rng(6)
    means, numbers = rng.normal(0.1, 0.2, (400, 2)), rng.integers(1, 30, 400).astype(float)
    *_, table = followed(means, numbers, WEEKS)
    for by_group, count in ((True, 7), (False, 24)):
        profile = phases.profile(table, 7, 24, by_group=by_group)
        assert profile.lift.shape == (2, count)
        np.testing.assert_allclose(profile.share.sum(axis=-1), 1.0)
        np.testing.assert_allclose((profile.share * profile.lift).sum(axis=-1), table.level[..., 0])
        assert (profile.error > table.level[..., 1:]).all()


@pytest.mark.parametrize(("weekend", "day"), [(0.0, 0.0), (5.0, 0.0), (5.0, 1.0)])
def test_the_days_of_the_first_week_show_how_much_weeks_differ_but_for_weekends(weekend: float, day: float) -> None:
    week, hours = Period(604_800.0, 168, 8.0, 1), np.sin(np.arange(24) * np.pi / 12)
    lifts = day * np.array([1.0, -1.0, 1.0, -1.0, 2.0, 0.0, -2.0]) + weekend * np.array([0, 0, 1, 1, 0, 0, 0])
    table = phases.start((2,), 168)
    for phase, mean in enumerate((lifts[:, None] + hours).ravel()):
        assert (table.excess == 0).all()
        table = phases.close(table, phase, bucket(np.full(2, 50.0), np.full(2, mean), 4.0), week, LIMITS)
    of_days = (4 * 2.5 + 2.0) / 5 * day**2 - 4.0 / (24 * 50)
    assert table.excess.tolist() == [pytest.approx([max(0.0, of_days / 7), 0.0])] * 2
    errors = [math.sqrt(4.0 / (168 * 50) + max(0.0, of_days / 7))] * 2
    assert table.level[:, 1].tolist() == pytest.approx(errors)


def test_days_that_differ_make_no_change_of_a_week() -> None:
    rng, week = np.random.default_rng(6), Period(604_800.0, 168, 8.0, 1)
    means = np.where(np.arange(200) < 180, 0.5, -0.5)[:, None] + rng.normal(0.0, 0.1, (200, 2))
    dips = []
    for differing in (None, np.zeros(2), np.ones(2)):
        table = phases.start((2,), 168)
        for hour, row in enumerate(means):
            limits = LIMITS._replace(differing=differing)
            table = phases.close(table, hour % 168, bucket(np.full(2, 100.0), row, 1.0), week, limits)
        dips.append(bool((table.dip[:, 1] > 0).any() or not np.isnan(table.alarm).all()))
    assert dips == [True, True, False]


def test_hours_without_events_are_unknown_in_a_profile() -> None:
    *_, table = followed(np.full((16, 2), 0.5), np.tile([20.0] * 7 + [0.0], 2))
    later = phases.skip(table, 0, 1, SHORT, LIMITS)
    profile = phases.profile(later, 8, 1)
    assert np.isnan(profile.lift[0]).tolist() == np.isnan(profile.error[0]).tolist() == [False] * 7 + [True]
    assert np.isnan(profile.latest[0]).tolist() == [True] + [False] * 6 + [True]
    assert profile.share[0].tolist() == pytest.approx([1 / 7] * 7 + [0.0])
