"""Test rewards per unit in windows of event time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import t as student_t

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summariser
from streameval.ope.report import UnitEstimate
from support.changes import adopt

DAY, EVENTS = 86_400.0, 5_000
DAYS: dict[str, Any] = {"max": 100, "per_unit": "24h"}


def columns_of(seed: int, events: int = EVENTS, days: float = 3.5, units: int = 400) -> dict[str, Any]:
    """Return a log in which units come often or seldom."""
    rng = np.random.default_rng(seed)
    first = rng.random(events) < 0.5
    unit = (units * rng.random(events) ** 2).astype(int)
    return {
        "reward": rng.exponential(1.0, events) * np.where(first, 2.0, 1.0) * (1 + unit % 3),
        "propensity": np.full(events, 0.5),
        "policies": {"new": np.where(first, 0.8, 0.2), "old": np.where(first, 0.3, 0.7)},
        "timestamp": 20_000 * DAY + np.linspace(0.0, days * DAY, events),
        "unit": [f"user {number}" for number in unit],
    }


def evaluator_of(reward_range: dict[str, Any] | None = None, candidates: tuple[str, ...] = ("new", "old")) -> Evaluator:
    """Return an evaluator with little else to compute."""
    limits = DAYS if reward_range is None else reward_range
    return Evaluator(list(candidates), ["ips"], ["cumulative"], reward_range=limits, drift=None, promotion=None)


def rows_of(columns: dict[str, Any], **options: Any) -> dict[str, UnitEstimate]:
    """Return the rows by policy."""
    evaluator = evaluator_of(**options)
    evaluator.update(EventBatch.from_arrays(**columns))
    return {row.policy: row for row in evaluator.report().per_unit}


def assert_near(evaluator: Evaluator, expected: dict[str, UnitEstimate]) -> None:
    """Compare rows up to the last digits, as rewards may be added up in another order."""
    rows = evaluator.report().per_unit
    assert [row.policy for row in rows] == list(expected)
    for row in rows:
        assert msgspec.structs.astuple(row)[2:] == pytest.approx(msgspec.structs.astuple(expected[row.policy])[2:])


def sums_by_unit(columns: dict[str, Any], policy: str, day: int) -> Array:
    """Return the weighted rewards of the units of a day."""
    whole = EVENTS // 100 * 100
    own = (np.floor(columns["timestamp"] / DAY) == 20_000 + day)[:whole]
    weight = 1.0 if policy == "logging" else columns["policies"][policy][:whole] / 0.5
    totals: dict[str, float] = {}
    for name, earned in zip(
        np.array(columns["unit"])[:whole][own], (weight * columns["reward"][:whole])[own], strict=True
    ):
        totals[name] = totals.get(name, 0.0) + earned
    return np.array([totals[name] for name in sorted(totals)])


@pytest.mark.parametrize("units", [12, 400])
def test_a_reward_per_unit_is_the_mean_over_the_units_of_the_last_whole_window(units: int) -> None:
    columns = columns_of(1, units=units)
    rows = rows_of(columns)
    base = sums_by_unit(columns, "logging", 2)
    for policy, row in rows.items():
        own = sums_by_unit(columns, policy, 2)
        assert (row.units, row.start, row.end) == (len(own), 20_002 * DAY, 20_003 * DAY)
        quantile = student_t.ppf(0.975, len(own) - 1)
        width = quantile * own.std(ddof=1) / np.sqrt(len(own))
        assert (row.value, row.lower, row.upper) == pytest.approx((own.mean(), own.mean() - width, own.mean() + width))
        if policy != "logging":
            lift = own - base
            width = quantile * lift.std(ddof=1) / np.sqrt(len(lift))
            bounds = lift.mean(), lift.mean() - width, lift.mean() + width
            assert (row.lift, row.lift_lower, row.lift_upper) == pytest.approx(bounds)
            assert row.lift_ratio == pytest.approx(lift.mean() / base.mean())
            assert row.lift_ratio_lower < row.lift_ratio < row.lift_ratio_upper
    assert rows["logging"].lift is None


def test_intervals_of_rewards_far_from_0_are_as_wide_as_near_it() -> None:
    columns = columns_of(1)
    columns["unit"] = [f"visit {number}" for number in range(EVENTS)]
    columns["policies"] = {"new": np.full(EVENTS, 0.5), "old": np.full(EVENTS, 0.5)}
    near = rows_of(columns, reward_range={**DAYS, "max": 1e9})
    far = rows_of({**columns, "reward": columns["reward"] + 1e8}, reward_range={**DAYS, "max": 1e9})
    for policy, row in far.items():
        assert (row.upper - row.lower) == pytest.approx(near[policy].upper - near[policy].lower, rel=1e-6)


def test_the_first_and_the_unfinished_window_have_no_rows() -> None:
    assert not rows_of(columns_of(1, days=1.9))
    assert rows_of(columns_of(1, days=2.2))


def test_numbers_are_the_same_however_the_stream_is_cut_and_resumed() -> None:
    columns = columns_of(2)
    batch, cut = EventBatch.from_arrays(**columns), evaluator_of()
    for first in range(0, EVENTS, 377):
        cut.update(batch[first : first + 377])
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(cut.state()))
        cut = Evaluator.from_state(plain)
    assert {row.policy: row for row in cut.report().per_unit} == rows_of(columns)


def test_an_engine_gives_the_same_numbers() -> None:
    columns = columns_of(3)
    batch, driver = EventBatch.from_arrays(**columns), PartitionedEvaluator.from_config(evaluator_of().config)
    for first in range(0, EVENTS, 1_250):
        rest = driver.rests().get(0)
        summariser = Summariser(driver.config, 0, first, driver.knowledge(), rest)
        summariser.update(batch[first : first + 1_250])
        driver.fold([summariser.summary(first + 1_250)])
    assert {row.policy: row for row in driver.report().per_unit} == rows_of(columns)


def test_candidates_that_come_late_have_numbers_after_a_whole_window() -> None:
    columns = columns_of(4)
    batch, evaluator = EventBatch.from_arrays(**columns), evaluator_of(candidates=("new",))
    evaluator.update(batch[:2_000])  # in the second day
    adopt(evaluator, evaluator_of().config)
    evaluator.update(batch[2_000:3_600])
    rows = {row.policy: row for row in evaluator.report().per_unit}
    assert (rows["old"].value, rows["old"].units) == (None, rows["new"].units)
    assert rows["new"].value is not None
    evaluator.update(batch[3_600:])
    assert {row.policy: row for row in evaluator.report().per_unit} == rows_of(columns)


def test_candidates_whose_past_is_known_have_numbers_at_once() -> None:
    columns = columns_of(4)
    batch, evaluator = EventBatch.from_arrays(**columns), evaluator_of(candidates=("new",))
    evaluator.update(batch[:4_000])
    late = evaluator.change_candidates(evaluator_of().config)
    assert late is not None
    late.update(batch[:4_000])
    evaluator.activate(late)
    evaluator.update(batch[4_000:])
    assert_near(evaluator, rows_of(columns))


def test_policies_that_leave_take_their_sums_along() -> None:
    columns = columns_of(5)
    batch, evaluator = EventBatch.from_arrays(**columns), evaluator_of()
    evaluator.update(batch[:2_000])
    assert evaluator.change_candidates(evaluator_of(candidates=("old",)).config) is None
    evaluator.update(batch[2_000:])
    assert evaluator.report().per_unit == tuple(rows_of(columns, candidates=("old",)).values())


@pytest.mark.parametrize("missing", ["unit", "timestamp", "sampling_probability"])
def test_a_window_that_leaves_out_many_events_has_no_value(missing: str) -> None:
    columns = columns_of(6)
    for event in range(0, EVENTS, 100):
        if missing == "unit":
            columns["unit"][event] = None
        else:
            columns.setdefault(missing, np.ones(EVENTS))
            columns[missing][event] = {"sampling_probability": 0.5}.get(missing, np.nan)
    rows = rows_of(columns).values()
    assert rows
    assert {(row.value, row.lower, row.lift) for row in rows} == {(None, None, None)}


@pytest.mark.parametrize(
    ("lacking", "field"),
    [({"unit": None}, "unit"), ({"timestamp": None}, "timestamp"), ({"sampling_probability": 0.5}, "sampling_")],
)
def test_the_field_that_events_lack_is_named(lacking: dict[str, float | None], field: str) -> None:
    columns = columns_of(6)
    assert not evaluator_of().missing_fields(EventBatch.from_arrays(**columns))
    columns |= {name: None if value is None else np.full(EVENTS, value) for name, value in lacking.items()}
    (missing,) = evaluator_of().missing_fields(EventBatch.from_arrays(**columns))
    assert str(missing).startswith(f"none of the first 5,000 events has {field}")
    assert str(missing).endswith(": no value for per_unit")
    assert "per_unit" in missing.hint
    assert not evaluator_of({"max": 100}).missing_fields(EventBatch.from_arrays(**columns))


def test_a_policy_that_many_events_lack_has_no_value_alone() -> None:
    columns = columns_of(6)
    columns["policies"]["old"][::100] = np.nan
    rows = rows_of(columns)
    assert rows["old"].value is None
    assert rows["new"].value is not None


def test_events_count_in_their_window_if_they_come_a_little_late() -> None:
    columns = columns_of(7)
    order = np.argsort(columns["timestamp"] + np.random.default_rng(1).uniform(0.0, 1_500.0, EVENTS), kind="stable")
    shuffled = {name: np.array(column)[order] for name, column in columns.items() if name != "policies"}
    shuffled["policies"] = {name: column[order] for name, column in columns["policies"].items()}
    rows, expected = rows_of({**shuffled, "unit": shuffled["unit"].tolist()}), rows_of(columns)
    assert rows["new"].value == pytest.approx(expected["new"].value)
    assert rows["new"].units == expected["new"].units


@pytest.mark.parametrize(("until", "values"), [(2.5, 0), (3.5, 3)])
def test_events_after_the_end_of_their_window_count_against_it_alone(until: float, values: int) -> None:
    columns = columns_of(7)
    days = columns["timestamp"] / DAY - 20_000
    columns["timestamp"][(days > 2.2) & (days < 2.3) & (np.arange(EVENTS) % 4 == 0)] -= 0.8 * DAY
    part = days < until
    cut = {name: np.array(column)[part] for name, column in columns.items() if name != "policies"}
    cut["policies"] = {name: column[part] for name, column in columns["policies"].items()}
    rows = rows_of({**cut, "unit": cut["unit"].tolist()}).values()
    assert {row.start for row in rows} == {(20_001 if until < 3 else 20_002) * DAY}
    assert sum(row.value is not None for row in rows) == values


def test_one_event_with_a_wrong_time_does_not_end_a_window() -> None:
    columns = columns_of(8)
    expected = rows_of(columns)["new"].value
    columns["timestamp"][1_700] += 1_000 * DAY
    assert rows_of(columns)["new"].value == expected


def test_windows_of_wrong_times_do_not_stay_open_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of(8)
    columns["timestamp"][::10] += np.random.default_rng(1).integers(1, 100_000, EVENTS // 10) * DAY
    expected = rows_of(columns)
    monkeypatch.setattr("streameval.ope.evaluator.per_unit.MOST_WINDOWS", 20)
    evaluator = evaluator_of()
    evaluator.update(EventBatch.from_arrays(**columns))
    evaluator.fold_pending()
    assert_near(evaluator, expected)
    assert 2 <= len(evaluator.state()["rooms"]["per_unit"]["reward"]["windows"]) <= 20


def test_windows_that_were_dropped_while_a_partition_was_ahead_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of(8)
    order = np.argsort(np.arange(EVENTS) * np.where(np.arange(EVENTS) % 5 == 0, 0.5, 1.0), kind="stable")
    monkeypatch.setattr("streameval.ope.evaluator.per_unit.MOST_WINDOWS", 20)
    evaluator, rows = evaluator_of({"max": 100, "per_unit": "1h"}), {}
    batch = EventBatch.from_arrays(**columns).take(order)
    for first in range(0, EVENTS, 200):
        evaluator.update(batch[first : first + 200])
        evaluator = Evaluator.from_state(evaluator.state()) if first % 1_000 == 0 else evaluator
        rows |= {row.start: row for row in evaluator.report().per_unit if row.policy == "new"}
    known = [row for row in rows.values() if row.value is not None]
    hours, events = np.unique(columns["timestamp"] // 3600, return_counts=True)
    assert 0 < len(known) < len(rows) - 5
    assert [row.events for row in known] == [events[hours * 3600 == row.start] for row in known]


@pytest.mark.parametrize("window", ["mixture", "10000", 10_000, "0s"])
def test_other_windows_than_of_time_are_refused(window: Any) -> None:
    with pytest.raises(ValueError, match=r"reward_range.per_unit: expected the length of windows of time, such as 24h"):
        evaluator_of({"per_unit": window})


def test_a_ratio_has_no_reward_per_unit() -> None:
    with pytest.raises(ValueError, match=r"rewards.r.per_unit: expected no per_unit of a ratio"):
        Evaluator(["new"], rewards={"a": {}, "b": {}, "r": {"of": ["a", "b"], "per_unit": "24h"}})


def test_several_rewards_have_windows_of_their_own() -> None:
    columns = columns_of(9)
    columns["rewards"] = {"click": (columns["reward"] > 3).astype(float)}
    rewards = {"revenue": DAYS, "click": {"per_unit": "6h"}}
    evaluator = Evaluator(["new"], ["ips"], ["cumulative"], rewards=rewards, drift=None, promotion=None)
    evaluator.update(EventBatch.from_arrays(**columns))
    rows = [(row.reward, row.policy, row.end - row.start) for row in evaluator.report().per_unit]
    assert rows == [
        (name, policy, length)
        for name, length in (("revenue", DAY), ("click", DAY / 4))
        for policy in ("logging", "new")
    ]


RUNS, USERS = 400, 500
MORE, DEAR = np.array([1.0, 5.0]), np.array([1.0, 3.0])
"""How often users come beyond the first visit, and how much they pay, by kind of user."""


def misses(seed: int) -> list[list[bool]]:
    """Return whether the intervals of the value, lift and relative lift lie below and above the truth.

    Users who come often pay high prices, and what a user pays at one visit tells what he pays at others.
    """
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=USERS)
    visits = 1 + rng.poisson(MORE[kind])
    user, spread = np.repeat(np.arange(USERS), visits), rng.exponential(1.0, USERS)
    events = len(user)
    first = rng.random(events) < 0.5
    paid = DEAR[kind[user]] * spread[user] * np.where(first, 1.2, 1.0) * (rng.random(events) < 0.5)
    edge, order = np.zeros(200), rng.permutation(events)
    times = np.concatenate([edge, 1.0 + np.sort(rng.random(events)), edge + 2.5])
    joined = {"reward": paid[order], "propensity": np.full(events, 0.5), "new": np.where(first, 0.8, 0.2)[order]}
    columns = {name: np.concatenate([edge + 0.5, column, edge + 0.5]) for name, column in joined.items()}
    log = EventBatch.from_arrays(
        policies={"new": columns.pop("new")},
        timestamp=1e9 + times,
        unit=["edge"] * 200 + [str(one) for one in user[order]] + ["edge"] * 200,
        **columns,
    )
    options: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": None, "promotion": None}
    evaluator = Evaluator(["new"], reward_range={"max": 1_000, "per_unit": "1s"}, **options)
    evaluator.update(log)
    row = next(row for row in evaluator.report().per_unit if row.policy == "new")
    assert row.units == USERS
    usual, best = (0.5 * float(((1 + MORE) * DEAR).mean()) * mean for mean in (1.1, 1.16))
    bounds = [(best, row.lower, row.upper), (best - usual, row.lift_lower, row.lift_upper)]
    bounds.append((best / usual - 1, row.lift_ratio_lower, row.lift_ratio_upper))
    return [[upper < true, true < lower] for true, lower, upper in bounds if lower is not None and upper is not None]


@pytest.mark.slow
def test_intervals_cover_if_frequent_users_earn_more() -> None:
    shares = np.mean([np.sum(misses(seed), axis=1) for seed in range(RUNS)], axis=0)
    assert shares.shape == (3,)
    assert np.all(np.abs(shares - 0.05) < 3 * np.sqrt(0.05 * 0.95 / RUNS)), shares


def test_a_table_with_too_many_units_is_dropped_and_its_windows_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of(10)
    expected = rows_of(columns)
    crowded = {**columns, "unit": [f"{one} {number % 3}" for number, one in enumerate(columns["unit"])]}
    monkeypatch.setattr("streameval.ope.evaluator.per_unit.MOST_ROWS", 600)  # 400 units fit, and 1,200 do not
    assert {row.value for row in rows_of(crowded).values()} == {None}
    assert rows_of(columns) == expected
