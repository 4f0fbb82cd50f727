from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

import streameval as se
from streameval.ope.core import BlockLift, Lift
from streameval.ope.promotion.rules import Periodic, RuleContext
from streameval.ope.promotion.sums import RewardSums, Times
from support.changes import adopt
from support.promotion import LENIENT

Array = NDArray[np.float64]
HOUR, MIDNIGHT = 3600.0, 1_795_737_600.0  # 2026-11-27 00:00
NOISE, BLOCK = 1.0, 100
CONTEXT = RuleContext(0.0, 0.95, np.full(2, 0.025), (0.0, 1.0), BLOCK, True, candidates=2)


class Blocks:
    """Hold blocks of events of two candidates: their times, numbers of events and mean lifts."""

    def __init__(self, times: Array, lifts: Array) -> None:
        self.times, self.lifts = times, lifts
        self.missing = np.where(np.isnan(times), 1.0, 0.0)
        self.switched = np.zeros(lifts.shape, dtype=bool)
        self.events = np.full(lifts.shape, float(BLOCK))

    def __getitem__(self, part: slice) -> Blocks:
        some = Blocks(self.times[part], self.lifts[part])
        some.missing, some.switched, some.events = self.missing[part], self.switched[part], self.events[part]
        return some

    def judged(self, rule: Periodic, memory: Any = None, context: RuleContext = CONTEXT) -> tuple[Any, Any]:
        weight, shape = self.events, self.lifts.shape
        block = BlockLift(weight, weight, weight * self.lifts, np.full(shape, NOISE), *np.zeros((2, *shape)))
        events = np.cumsum(weight, axis=0)
        lift = Lift(self.lifts, np.ones(shape), np.zeros(shape), events, block, self.switched)
        times = Times(np.where(np.isnan(self.times), -np.inf, self.times), self.missing)
        memory = rule.start(shape[1]) if memory is None else memory
        return rule.judge(memory, RewardSums(None, times=times), lift, context)  # type: ignore[arg-type]


def steady(hours: int, lifts: Sequence[float], first: float = MIDNIGHT, per_hour: int = 2) -> Blocks:
    """Return blocks with these lifts and little noise."""
    rng, count = np.random.default_rng(1), hours * per_hour
    times = first + HOUR * (np.arange(count) + 0.5) / per_hour
    return Blocks(times, np.array(lifts) + rng.normal(0.0, 0.05, (count, len(lifts))))


def sentence(judgement: Any, candidate: int, rule: Periodic, margin: float = 0.0) -> str:
    return rule.reason({name: float(column[candidate]) for name, column in judgement.last.items()}, margin)


DAILY = Periodic(period="24h")


def judged_ratio(clicks: Array, paid: Array, hours: Array, parts: int = 1) -> Any:
    """Return the judgement of blocks with these means of production and a candidate [2, blocks], in a few parts."""
    zeros, weight, memory, found = (
        np.zeros((len(hours), 1)),
        np.full((len(hours), 1), float(BLOCK)),
        DAILY.start(1),
        None,
    )
    above, below = (
        BlockLift(weight, weight, BLOCK * (own - base)[:, None], zeros + NOISE, zeros, BLOCK * own[:, None])
        for base, own in (paid, clicks)
    )
    context = CONTEXT._replace(errors=np.full(1, 0.05))
    for part in np.array_split(np.arange(len(hours)), parts):
        some = [BlockLift(*(column[part] for column in block)) for block in (above, below)]
        lift = Lift(*zeros[None, part].repeat(4, axis=0), some[0], zeros[part] > 0, some[1])
        times = Times(MIDNIGHT + HOUR * hours[part], np.zeros(len(part)))
        found, memory = DAILY.judge(memory, RewardSums(None, times=times), lift, context)  # type: ignore[arg-type]
    return found


def test_the_lift_of_a_ratio_is_the_one_of_its_whole_day() -> None:
    hours = np.arange(97)
    rate, price = 0.3 + 0.2 * np.sin(hours * np.pi / 12), 20.0 + 8.0 * np.cos((hours - 5) * np.pi / 12)
    clicks = np.stack([rate, rate * (1.2 + 0.4 * np.sin(hours * np.pi / 12))])
    paid = clicks * price
    days = paid[:, :24].sum(axis=1) / clicks[:, :24].sum(axis=1)
    assert days[1] - days[0] > 0.5  # in each hour both policies earn the same per click
    found = [judged_ratio(clicks, paid, hours + 0.5, parts) for parts in (1, 7)]
    assert found[0].lift[-1, 0] == pytest.approx(days[1] - days[0], abs=0.05)
    for name, column in found[0].last.items():
        assert np.array_equal(column, found[1].last[name], equal_nan=True)


@pytest.mark.parametrize("start", [0, 6])
@pytest.mark.parametrize("swing", [-6.0, 6.0])
def test_a_ratio_that_is_equal_over_whole_days_is_never_worse(start: int, swing: float) -> None:
    hours = start + (np.arange(24 * 6 * 8) + 0.5) / 6
    hours = hours[(hours < start + 80) | (hours > start + 130)]  # no events for two days
    is_night = hours % 24 < 12
    clicks = np.tile(np.where(is_night, 0.15, 0.45), (2, 1))
    paid = clicks * np.stack([np.full(len(hours), 20.0), 20.0 + np.where(is_night, swing, -swing / 3)])
    judgement = judged_ratio(clicks, paid, hours)
    known = judgement.lift[~np.isnan(judgement.lift)]
    assert known == pytest.approx(0.0, abs=0.03)
    assert len(known) > 24 * 6 * 2
    assert not (judgement.paths["worse"] > 0).any()
    assert not judgement.enter.any()


def test_a_candidate_is_promotable_after_two_whole_days() -> None:
    blocks = steady(50, [0.1, 0.0])
    judgement, _ = blocks.judged(DAILY)
    first = int(np.argmax(judgement.enter[:, 0]))
    assert blocks.times[first] == MIDNIGHT + 48 * HOUR + HOUR / 4
    assert judgement.enter[first:, 0].all()
    assert not judgement.enter[:, 1].any()
    assert np.isnan(judgement.lift[first - 1, 0])
    assert sentence(judgement, 0, DAILY).startswith("lift of a whole day +0.0")
    assert ", bound +0.0" in sentence(judgement, 0, DAILY)
    assert sentence(judgement, 0, DAILY).endswith("over 2 days, above margin 0")
    assert sentence(judgement, 1, DAILY).endswith("over 2 days, not above margin 0")


def test_before_that_the_reason_says_when_the_lift_is_known() -> None:
    judgement, _ = steady(24, [0.1, 0.0], first=MIDNIGHT - 9 * HOUR).judged(DAILY)
    assert sentence(judgement, 0, DAILY) == "the lift of a whole day is known at 2026-11-28 15:00 (in 24 hours)"
    every = Periodic(period="4m")
    blocks = steady(1, [0.1, 0.0])
    blocks.times[:] = MIDNIGHT + np.array([1.0, 120.0])
    judgement, _ = blocks.judged(every)
    assert sentence(judgement, 0, every) == (
        "the lift of a whole period of 4m is known at 2026-11-27 00:08:00 (in 6 minutes)"
    )


def test_a_candidate_that_loses_over_the_day_is_worse() -> None:
    judgement, _ = steady(50, [-0.1, 0.1]).judged(DAILY)
    assert judgement.last["worse"].tolist() == [1.0, 0.0]
    reason = sentence(judgement, 0, DAILY)
    assert reason.startswith("worse than production: lift of a whole day -0.")
    assert "upper bound -0." in reason
    assert reason.endswith("over 2 days, below 0")


def test_a_fall_that_would_not_pass_suspends_and_a_large_one_moves_the_level() -> None:
    blocks = steady(7 * 24, [0.1, 0.1])
    blocks.lifts[2 * 6 * 24 :, 0] -= 0.2
    judgement, _ = blocks.judged(DAILY)
    path = judgement.enter[:, 0]
    fall = 2 * 6 * 24
    assert path[fall]
    assert not path[-1]
    stopped = fall + int(np.argmin(path[fall:]))
    assert blocks.times[stopped] - blocks.times[fall] <= 12 * HOUR
    moved = int(np.argmax(~np.isnan(judgement.paths["alarm"][:, 0])))
    numbers = {name: float(column[moved, 0]) for name, column in judgement.paths.items()}
    reason = DAILY.reason(numbers, 0.0)
    assert reason.startswith("level changed at 2026-12-03 0")
    assert "; decides again at 2026-12-04 0" in reason
    assert judgement.enter[2 * 2 * 24 + 1 :, 1].all()


def test_a_suspended_candidate_names_the_hours_and_returns() -> None:
    blocks = steady(8 * 24, [0.1, 0.1])
    dip = slice(2 * 6 * 24, 2 * (6 * 24 + 6))
    blocks.lifts[dip, 0] -= 0.16
    judgement, _ = blocks.judged(DAILY)
    suspended = np.flatnonzero(judgement.paths["dip"][:, 0])
    assert suspended.size
    numbers = {name: float(column[suspended[0], 0]) for name, column in judgement.paths.items()}
    assert DAILY.reason(numbers, 0.0).startswith("suspended: the last ")
    assert " below the same hours before; lift of a whole day +" in DAILY.reason(numbers, 0.0)
    assert not judgement.enter[suspended, 0].any()
    assert judgement.enter[-1, 0]


def mixed(seed: int) -> Blocks:
    """Return blocks with late ones, gaps, unknown times, and another lift from some block on."""
    rng = np.random.default_rng(seed)
    blocks = steady(4 * 24, [0.05, -0.02])
    blocks.times += rng.normal(0, 0.7 * HOUR, len(blocks.times))
    blocks.times[100:] += 30 * HOUR
    blocks.times[150:] += 40 * 24 * HOUR
    blocks.times[rng.random(len(blocks.times)) < 0.02] = np.nan
    blocks.missing = np.where(np.isnan(blocks.times), 1.0, 0.0)
    blocks.switched[70, 1] = blocks.switched[160, 0] = True
    return blocks


def arrays(memory: Any) -> list[Array]:
    columns = [memory.clock, memory.candidates, memory.missing, memory.number, memory.bucket]
    return [*columns, *(getattr(table, name) for table in memory.tables for name in table.__struct_fields__)]


def lacking(seed: int) -> Blocks:
    """Return blocks. No candidate has the first ones, nor the ones after another lift has taken over."""
    blocks = mixed(seed)
    blocks.times[[4, 6, 72, 162]] -= 5 * HOUR
    blocks.events[:6] = blocks.events[:12, 0] = blocks.events[70:75] = blocks.events[160:164] = 0.0
    blocks.switched[70] = blocks.switched[160] = True
    return blocks


@pytest.mark.parametrize("blocks", [mixed(3), lacking(3)], ids=["mixed", "lacking"])
@pytest.mark.parametrize("cuts", [[1], [7], [1, 2, 50], [200, 3]])
def test_the_result_does_not_depend_on_how_the_stream_is_cut(cuts: list[int], blocks: Blocks) -> None:
    rule = Periodic()
    whole, expected = blocks.judged(rule)
    memory, first, parts = None, 0, []
    while first < len(blocks.times):
        last = first + cuts[len(parts) % len(cuts)]
        judgement, memory = blocks[first:last].judged(rule, memory)
        parts.append(judgement)
        first = last
    for one, other in zip(arrays(memory), arrays(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    for name, path in whole.paths.items():
        np.testing.assert_array_equal(np.concatenate([part.paths[name] for part in parts]), path)


def test_late_blocks_count_in_the_hour_that_they_belong_to() -> None:
    blocks = steady(60, [0.1, 0.1])
    on_time, _ = blocks.judged(DAILY)
    order = np.argsort(np.where(np.arange(120) % 30 == 7, np.arange(120) + 5, np.arange(120)), kind="stable")
    late = Blocks(blocks.times[order], blocks.lifts[order])
    judgement, _ = late.judged(DAILY)
    assert judgement.last["lift"] == pytest.approx(on_time.last["lift"], rel=0.02)
    assert judgement.enter[-1].all()


def test_one_wrong_clock_does_not_end_the_bucket_of_a_block() -> None:
    timestamp = np.full(200, MIDNIGHT)
    timestamp[[3, 150]] = MIDNIGHT + 1e8, np.nan
    times = Times.from_timestamps(timestamp, BLOCK)
    assert times.reached.tolist() == [MIDNIGHT, MIDNIGHT]
    assert times.missing.tolist() == [0.0, 0.01]


def test_another_lift_starts_from_zero() -> None:
    blocks = steady(80, [0.1, 0.1])
    blocks.switched[100, 0] = True
    judgement, _ = blocks.judged(DAILY)
    assert judgement.enter[99].all()
    assert judgement.enter[100:].tolist() == [[False, True]] * 60
    assert sentence(judgement, 0, DAILY).startswith("the lift of a whole day is known at 2026-12-01 02:00")


def test_the_bound_widens_with_all_candidates_ever_added() -> None:
    blocks = steady(50, [0.1, 0.1])
    two, _ = blocks.judged(DAILY)
    many, wider = blocks.judged(DAILY, context=CONTEXT._replace(candidates=20))
    distances = [judgement.lift[-1, 0] - judgement.lower[-1, 0] for judgement in (two, many)]
    assert distances[1] / distances[0] == pytest.approx(np.sqrt((9 + 2 * np.log(20)) / (9 + 2 * np.log(2))))
    after = steady(3, [0.1, 0.1], first=MIDNIGHT + 50 * HOUR)
    still, _ = after.judged(DAILY, wider)
    assert still.lift[-1, 0] - still.lower[-1, 0] == pytest.approx(distances[1], rel=0.05)


def test_an_event_without_a_timestamp_in_ten_leaves_the_decision_to_the_other_rule() -> None:
    blocks = steady(50, [0.1, 0.1])
    blocks.missing[:] = 0.1
    judgement, _ = blocks.judged(DAILY)
    assert sentence(judgement, 0, DAILY) == (
        "whole periods are unknown: 10 % of events have no timestamp; "
        "the rule `paired` says whether the candidate is better now"
    )


@pytest.mark.parametrize(
    ("period", "seconds", "phases"),
    [
        ("24h", [86_400.0], [24]),
        ("7d", [604_800.0], [168]),
        ("4m", [240.0], [24]),
        (None, [86_400.0, 604_800.0], [24, 168]),
        ("auto", [86_400.0, 604_800.0], [24, 168]),
    ],
)
def test_periods_have_the_phases_of_a_day_or_a_week(
    period: str | None, seconds: list[float], phases: list[int]
) -> None:
    periods = Periodic(period=period).periods
    assert [one.seconds for one in periods] == seconds
    assert [one.phases for one in periods] == phases


@pytest.mark.parametrize("period", ["soon", "0s", "-24h"])
def test_a_period_is_auto_or_a_duration(period: str) -> None:
    with pytest.raises(ValueError, match="expected auto, or a duration longer than 0 such as 24h or 7d"):
        Periodic(period=period)


LOG_BLOCK = 20


def log(hours: range, pays: Callable[[int], float], timed: bool = True, complaints: bool = False) -> se.EventBatch:
    """Return 120 events an hour in which the first of two actions pays more than the other by a number of the hour."""
    rng, n = np.random.default_rng([0, hours.start]), 120
    hour = np.repeat(np.array(hours), n)
    action = rng.random(len(hour)) < 0.5
    gain = np.array([pays(number) for number in hours])[hour - hours.start]
    reward = (rng.random(len(hour)) < 0.5 + np.where(action, gain / 2, -gain / 2)).astype(float)
    first = np.where(action, 0.9, 0.1)
    return se.EventBatch.from_arrays(
        reward=reward,
        propensity=np.full(len(hour), 0.5),
        policies={"first": first, "second": 1.0 - first},
        timestamp=MIDNIGHT + hour * HOUR + np.tile(np.arange(n) * 30.0, len(hours)) if timed else None,
        rewards={"complaint": 1.0 - reward} if complaints else None,
    )


def evaluator(**promotion: Any) -> se.Evaluator:
    options = {"rule": "periodic", "min_events": 0, "trust": LENIENT, **promotion}
    return se.Evaluator(
        ["first", "second"], ["ips"], ["mixture"], block=LOG_BLOCK, drift=None, promotion=se.Promotion(**options)
    )


def decisions(found: se.Evaluator) -> dict[tuple[str, str], Any]:
    return {(decision.policy, decision.rule): decision for decision in found.report().promotion}


def day(hour: int) -> float:
    """Return a gain that is positive in the evening, and negative over the day."""
    return float(-0.2 + 0.8 * np.sin(2 * np.pi * (hour - 12) / 24))


def test_the_rule_sees_the_whole_day() -> None:
    found = evaluator()
    found.update(log(range(2 * 24 + 21), day))
    rows = decisions(found)
    first, second = rows["first", "periodic"], rows["second", "periodic"]
    assert (first.promotable, second.promotable) == (False, True)
    assert (first.worse, second.worse) == (True, False)
    assert first.reason.startswith("worse than production: lift of a whole day -0.")
    assert second.reason.startswith("lift of a whole day +0.")
    changes = {(change.policy, change.promotable, change.worse) for change in found.report().transitions}
    assert changes == {("first", False, True), ("second", True, None)}
    assert (first.state, second.state) == ("worse", "promotable")


def test_the_companion_says_what_is_better_at_this_minute_and_never_promotes() -> None:
    found = evaluator()
    found.update(log(range(20), lambda hour: 0.6))
    rows = decisions(found)
    now = rows["first", "paired"]
    assert (now.decides, now.promotable, now.times, now.worse) == (False, False, 0, None)
    assert now.reason.startswith("better at this minute: decision bound of lift 0.")
    assert rows["second", "paired"].reason.startswith("not known to be better at this minute: ")
    assert [decision.rule for decision in found.report().promotion] == ["periodic", "paired"] * 2
    assert not found.report().transitions


def test_without_timestamps_the_companion_decides_as_if_it_were_alone() -> None:
    found, alone = evaluator(), evaluator(rule="paired")
    batch = log(range(36), lambda hour: 0.6, timed=False)
    found.update(batch)
    alone.update(batch)
    rows, expected = decisions(found), decisions(alone)
    note = "; about this minute, as 100 % of events have no timestamp"
    for policy in ("first", "second"):
        lone = expected[policy, "paired"]
        assert rows[policy, "paired"] == structs.replace(lone, reason=lone.reason + note)
    assert rows["first", "paired"].promotable
    assert set(rows) == set(expected)
    assert found.report().transitions == alone.report().transitions


def test_if_some_events_have_timestamps_both_rules_say_which_decides() -> None:
    found = evaluator()
    for hours in range(0, 40, 4):
        found.update(log(range(hours, hours + 4), lambda hour: 0.6, timed=hours % 8 == 0))
    rows = [decision for decision in found.report().promotion if decision.policy == "first"]
    assert [(row.rule, row.decides, row.promotable) for row in rows] == [
        ("paired", True, True),
        ("periodic", False, False),
    ]
    assert rows[0].reason.endswith("; about this minute, as 50 % of events have no timestamp")
    assert rows[1].reason.startswith("whole periods are unknown: 50 % of events have no timestamp")
    assert rows[1].worse is None


def test_both_rules_in_a_list_decide_side_by_side() -> None:
    found = evaluator(rule=["periodic", "paired"])
    found.update(log(range(20), lambda hour: 0.6))
    rows = decisions(found)
    assert rows["first", "paired"].promotable
    assert all(decision.decides for decision in rows.values())


def test_decisions_have_the_lift_by_hour_after_a_whole_day() -> None:
    found = evaluator()
    found.update(log(range(24), day))
    assert decisions(found)["first", "periodic"].profiles == ()
    found.update(log(range(24, 2 * 24 + 6), day))
    (profile,) = decisions(found)["first", "periodic"].profiles
    assert (profile.period, profile.periods, profile.phase) == (86_400.0, 54 / 24, 5)
    assert profile.names[:2] == ["00", "01"]
    expected = [0.4 * day(hour) for hour in range(24)]
    np.testing.assert_allclose(profile.lift, expected, atol=0.25)
    assert np.corrcoef(profile.lift, expected)[0, 1] > 0.95
    assert profile.share == pytest.approx([1 / 24] * 24)
    assert decisions(found)["first", "paired"].profiles == ()


def weekday(hour: int) -> float:
    """Return a gain on Sundays, the third day of the log, which starts on a Friday."""
    return 0.8 if hour // 24 % 7 == 2 else -0.2


@pytest.mark.parametrize(("period", "titles"), [("auto", ["hour", "day"]), ("7d", ["hour", "day"]), ("24h", ["hour"])])
def test_a_week_has_the_lift_by_day_from_monday_on(period: str, titles: list[str]) -> None:
    found = evaluator(period=period)
    found.update(log(range(8 * 24), weekday))
    profiles = decisions(found)["first", "periodic"].profiles
    assert [profile.title.split()[0] for profile in profiles] == titles
    assert len(profiles[0].lift) == 24
    for week in profiles[1:]:
        assert week.names == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
        assert week.phase == 4
        assert [round(lift, 1) > 0 for lift in week.lift] == [False] * 6 + [True]
        assert week.lift[-1] == pytest.approx(0.32, abs=0.05)


def test_other_periods_have_the_time_since_their_start() -> None:
    found = evaluator(period="48h")
    found.update(log(range(3 * 24), day))
    (profile,) = decisions(found)["first", "periodic"].profiles
    assert profile.names[:3] == ["0s", "2h", "4h"]
    assert profile.title == "phase of the period of 2d"


def test_events_without_timestamps_have_no_profile() -> None:
    found = evaluator()
    for hours in range(0, 60, 4):
        found.update(log(range(hours, hours + 4), day, timed=hours % 8 == 0))
    assert all(decision.profiles == () for decision in found.report().promotion)


def test_new_candidates_start_their_own_periods() -> None:
    found = evaluator()
    config = found.config
    found = se.Evaluator.from_config(config.for_policies(["first"]))
    found.update(log(range(30), lambda hour: 0.6))
    adopt(found, config)
    found.update(log(range(30, 60), lambda hour: 0.6))
    rows = decisions(found)
    assert rows["first", "periodic"].promotable
    assert rows["second", "periodic"].reason == "the lift of a whole day is known at 2026-11-30 06:00 (in 18 hours)"
    found.update(log(range(60, 80), lambda hour: 0.6))
    assert decisions(found)["second", "periodic"].worse


def test_backfilled_candidates_know_the_days_before() -> None:
    whole, config = evaluator(), evaluator().config
    found = se.Evaluator.from_config(config.for_policies(["first"]))
    batch = log(range(60), day)
    found.update(batch)
    late = found.change_candidates(config)
    assert late is not None
    late.update(batch)
    found.activate(late)
    whole.update(batch)
    rest = log(range(60, 70), day)
    found.update(rest)
    whole.update(rest)
    assert decisions(found)["second", "periodic"].promotable
    one, other = (decisions(each)["second", "periodic"].lift for each in (found, whole))
    assert one == pytest.approx(other)


def test_a_candidate_that_leaves_takes_its_periods_along() -> None:
    found = evaluator()
    found.update(log(range(60), day))
    before = decisions(found)["second", "periodic"]
    found.change_candidates(found.config.for_policies(["second"]))
    after = decisions(found)["second", "periodic"]
    assert (after.lift, after.lower, after.promotable) == (before.lift, before.lower, before.promotable)


def test_a_restored_state_continues_to_the_last_bit() -> None:
    found = evaluator()
    found.update(log(range(55), day))
    again = se.Evaluator.from_state(found.state())
    for each in (found, again):
        each.update(log(range(55, 70), day))
    assert again.report().promotion == found.report().promotion


def test_a_changed_margin_restarts_the_periods_and_a_changed_hold_does_not() -> None:
    found = evaluator()
    found.update(log(range(55), day))
    found.apply_config(evaluator(hold=3).config)
    assert decisions(found)["second", "periodic"].lift is not None


def test_guardrails_are_judged_over_whole_periods() -> None:
    def guarded(loss: float) -> se.Evaluator:
        promotion = se.Promotion(rule="periodic", min_events=0, trust=LENIENT)
        rewards = {"click": {}, "complaint": {"guardrail": {"max_loss": loss}}}
        return se.Evaluator(["first"], ["ips"], ["mixture"], block=LOG_BLOCK, promotion=promotion, rewards=rewards)

    strict, lenient = guarded(0.01), guarded(0.9)
    batch = log(range(50), lambda hour: 0.6, complaints=True)
    strict.update(batch)
    lenient.update(batch)
    blocked, passed = decisions(strict)["first", "periodic"], decisions(lenient)["first", "periodic"]
    assert (blocked.promotable, passed.promotable) == (False, True)
    assert "guardrail complaint: worse than production: lift of a whole day -0." in blocked.reason


def prices(hours: range, untimed: int = 0) -> se.EventBatch:
    """Return clicks that earn more after the first of two actions, without times in one of `untimed` hours."""
    rng, n = np.random.default_rng([1, hours.start]), 40
    hour = np.repeat(np.array(hours), n)
    action = rng.random(len(hour)) < 0.5
    click = (rng.random(len(hour)) < np.where(hour % 24 < 12, 0.4, 0.8)).astype(float)
    paid = click * rng.uniform(15.0, 20.0, len(hour)) * np.where(action, 3.0, 1.0) * np.where(hour % 24 < 8, 0.5, 1.0)
    times = MIDNIGHT + hour * HOUR + np.tile(np.arange(n) * HOUR / n, len(hours))
    return se.EventBatch.from_arrays(
        reward=np.full(len(hour), np.nan),
        propensity=np.full(len(hour), 0.5),
        policies={"first": np.where(action, 0.9, 0.1), "second": np.where(action, 0.1, 0.9)},
        timestamp=np.where(untimed and hour % max(untimed, 1) == untimed // 2, np.nan, times),
        rewards={"click": click, "paid": paid},
    )


def priced(rule: Periodic) -> se.Evaluator:
    rewards: dict[str, Any] = {"price": {"of": ["paid", "click"]}, "click": {}, "paid": {"max": 60}}
    promotion = se.Promotion(rule=rule, min_events=0, trust=LENIENT)  # type: ignore[arg-type]
    return se.Evaluator(
        ["first", "second"], ["ips"], ["mixture"], block=40, drift=None, rewards=rewards, promotion=promotion
    )


def test_the_first_day_of_a_candidate_sets_a_ratio_whenever_it_comes() -> None:
    config = priced(Periodic(min_periods=1)).config
    found = se.Evaluator.from_config(config.for_policies(["first"]))
    first = "the first day sets what ratios are compared around; the lift of a whole day is known at 2026-"
    found.update(prices(range(3), untimed=25))
    assert decisions(found)["first", "periodic"].reason.startswith(f"{first}11-29 00:00 (in ")
    found.update(prices(range(3, 48), untimed=25))
    assert decisions(found)["first", "periodic"].lift is None
    found.update(prices(range(48, 49), untimed=25))
    assert decisions(found)["first", "periodic"].promotable
    adopt(found, config)
    found.update(prices(range(49, 52), untimed=25))
    late = decisions(found)["second", "periodic"]
    assert (late.promotable, late.worse) == (False, False)
    assert late.reason.startswith(f"{first}12-01 01:00 (in ")
    found.update(prices(range(52, 99), untimed=25))
    rows = decisions(found)
    assert (rows["first", "periodic"].promotable, rows["second", "periodic"].worse) == (True, True)


def test_a_ratio_without_times_says_that_whole_periods_are_unknown() -> None:
    found = priced(Periodic())
    found.update(prices(range(1)))
    assert "; the lift of a whole day is known at 2026-11-30 00:00" in decisions(found)["first", "periodic"].reason
    found.update(prices(range(1, 6), untimed=2))
    row = decisions(found)["first", "periodic"]
    assert (row.decides, row.promotable) == (False, False)
    assert row.reason.startswith("whole periods are unknown: 50 % of events have no timestamp")


def test_the_memory_takes_at_most_20_kb_a_candidate() -> None:
    sizes = [sum(column.nbytes for column in arrays(Periodic().start(candidates))) for candidates in (1, 11)]
    assert (sizes[1] - sizes[0]) / 10 <= 20_000
