"""Test promotion: rules against plain loops over events, holding, and trust."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import IPS, Cumulative, Evaluator, read_events
from streameval.events import EventBatch, Rejected
from streameval.ope.evidence import Evidence
from streameval.ope.promotion import ArrivalState, Lift, Promotion, PromotionMonitor, Trust, decide, fold_arrivals
from streameval.ope.promotion.monitor import held
from streameval.ope.promotion.rules.lifts import entering_bound
from streameval.ope.promotion.trust_checks import WeightFigures
from support.factories import make_estimate
from support.paths import ROOT
from support.promotion import BLOCK, LENIENT, make_monitor, monitor_of, smooth_weights, trust_figures
from support.strategies import examples

Array = NDArray[np.float64]

OPEN_BANDIT = ROOT / "examples" / "open_bandit" / "data" / "bts_men.ndjson.gz"


class Log:
    """Draw random events of some policies, production first, and make up a path of the lift."""

    def __init__(self, blocks: int, candidates: int = 2, seed: int = 1, missing: float = 0.1) -> None:
        rng = np.random.default_rng(seed)
        n = blocks * BLOCK
        self.propensity = rng.uniform(0.1, 1.0, n)
        self.weight = rng.uniform(0.0, 2.0, (n, candidates + 1))
        self.weight[:, 0] = 1.0
        self.reward = (rng.uniform(size=n) < 0.3) * 1.0
        self.present = 1.0 * (rng.uniform(size=self.weight.shape) >= missing)
        self.present[:, 0] = 1.0
        self.timestamp = 1000.0 + np.arange(n)
        self.value = rng.normal(0.02, 0.02, (blocks, candidates))
        self.variance = rng.uniform(0, 1e-4, (2, blocks, candidates))
        self.variance[1] /= 4.0

    def folded(self, monitor: PromotionMonitor, state: Any = None, first: int = 0, last: int | None = None) -> Any:
        """Return the promotion state after the blocks from `first` to `last`."""
        blocks = slice(first, len(self.value) if last is None else last)
        events = slice(blocks.start * BLOCK, blocks.stop * BLOCK)
        counts = self.present[:, 1:].reshape(len(self.value), BLOCK, -1).sum(axis=1)
        path = Lift(self.value[blocks], *self.variance[:, blocks], counts[blocks])
        evidence = Evidence.from_numbers(self.weight[events], self.reward[events], BLOCK, self.present[events])
        state = monitor.start() if state is None else state
        sums = monitor.summarise(evidence, self.timestamp[events], self.propensity[events])
        return monitor.fold(state, sums, [[path]])


def decided(monitor: PromotionMonitor, state: Any, **more: Any) -> dict[tuple[str, str], Any]:
    """Return the decisions by candidate and rule."""
    decisions = decide(monitor, state, **trust_figures(**more))[0]
    return {(decision.policy, decision.rule): decision for decision in decisions}


def history(monitor: PromotionMonitor, log: Log, step: int = 7) -> list[tuple[Any, ...]]:
    """Return all transitions of a log that is folded `step` blocks at a time."""
    state = None
    for first in range(0, len(log.value), step):
        state = log.folded(monitor, state, first, min(first + step, len(log.value)))
    return [msgspec.structs.astuple(transition) for transition in state.transitions]


def bernstein_by_hand(terms: list[float], largest: float, error: float) -> tuple[float, float]:
    """Return the mean and half-width of the one-sided empirical Bernstein bound, from the events themselves."""
    n = len(terms)
    mean = math.fsum(terms) / n
    variance = math.fsum((term - mean) ** 2 for term in terms) / (n - 1)
    log_term = math.log(2 / error)
    return mean, math.sqrt(2 * variance * log_term / n) + 7 * largest * log_term / (3 * (n - 1))


def sea_by_hand(log: Log, candidate: int, error: float, bounded: bool) -> list[float]:
    """Return the lower bound of the candidate minus the upper bound of production at every block end."""
    lowers = []
    for end in range(BLOCK, len(log.reward) + 1, BLOCK):
        ends = []
        for column in (candidate, 0):
            rows = [i for i in range(end) if log.present[i, column]]
            terms = [log.weight[i, column] * log.reward[i] for i in rows]
            mean, width = bernstein_by_hand(terms, max(log.weight[i, column] for i in rows), error)
            ends.append((mean, width if bounded else 0.0))
        lowers.append(ends[0][0] - ends[0][1] - ends[1][0] - ends[1][1])
    return lowers


def spans_by_hand(passed: list[bool], hold: int, kept: list[bool] | None = None) -> list[tuple[int, bool]]:
    """Return the block ends at which a candidate became promotable, or ceased to be."""
    changes, run, promotable = [], 0, False
    for index, ok in enumerate(passed, start=1):
        run = run + 1 if ok else 0
        stays = promotable and (kept or passed)[index - 1]
        if (run >= hold or stays) != promotable:
            promotable = not promotable
            changes.append((index * BLOCK, promotable))
    return changes


@pytest.mark.parametrize("rule", ["sea", "bsea"])
def test_sea_and_bsea_equal_loops_over_the_events(rule: str) -> None:
    log = Log(blocks=30, seed=3)
    log.weight[:, 1] = np.where(log.reward > 0, 1.9, 0.6)
    monitor = make_monitor(rule=rule, hold=3)
    state = log.folded(monitor)
    for candidate, error in ((1, 0.05 * 6 / math.pi**2), (2, 0.05 * 6 / (4 * math.pi**2))):
        lowers = sea_by_hand(log, candidate, error, bounded=rule == "sea")
        assert state.rules[rule].last["lower"][candidate - 1] == pytest.approx(lowers[-1], rel=1e-9)
        changes = [(t.event, t.starts) for t in state.transitions if t.candidate == candidate - 1]
        assert changes == spans_by_hand([lower >= 0.0 for lower in lowers], hold=3)


def test_a_bound_that_wavers_around_the_margin_makes_one_transition() -> None:
    """Pass three block ends, then every other one. The narrower interval stays above the margin."""
    log, monitor = Log(blocks=20, seed=2), make_monitor(rule="paired", hold=3, min_events=0)
    log.variance[:] = np.array([1e-4, 0.0])[:, None, None]
    log.value[:] = 0.031
    log.value[:3] = log.value[3::2] = 0.0335
    changes = [(t.event, t.starts) for t in log.folded(monitor).transitions if t.candidate == 0]
    assert changes == [(3 * BLOCK, True)]
    decision = decided(monitor, log.folded(monitor, last=19))["candidate-1", "paired"]
    assert decision.promotable
    log.value[18] = 0.031
    still = decided(monitor, log.folded(monitor, last=19))["candidate-1", "paired"]
    assert still.promotable
    assert "0.022 over margin 0 in the narrower interval" in still.reason
    log.value[18] = 0.008
    assert not decided(monitor, log.folded(monitor, last=19))["candidate-1", "paired"].promotable


def test_sea_finds_a_much_better_candidate_and_bsea_is_sooner() -> None:
    log = Log(blocks=60, seed=4)
    log.weight[:, 1] = np.where(log.reward > 0, 1.9, 0.6)
    changes = history(make_monitor(), log)
    first = {rule: min(t[2] for t in changes if t[0] == rule and t[1] == 0) for rule in ("sea", "bsea")}
    assert first["bsea"] < first["sea"] < 6000


def recent(values: Sequence[float] | Array) -> float:
    """Return the mean over blocks, with more weight for later ones."""
    weights = [math.exp(-age * BLOCK / 30_000) for age in range(len(values))]
    return sum(value * weight for value, weight in zip(reversed(values), weights, strict=True)) / sum(weights)


def moved(lifts: Array) -> float:
    """Return the mean squared distance of a recent path from its own mean."""
    return recent([(lift - recent(lifts[: index + 1])) ** 2 for index, lift in enumerate(lifts)])


def test_paired_equals_a_loop_over_the_path() -> None:
    log = Log(blocks=40, seed=5)
    log.value[15:25] += 0.1
    monitor = make_monitor(rule="paired", margin=0.001, hold=2, min_events=900)
    state = log.folded(monitor)
    passed: list[list[list[bool]]] = [[[], []], [[], []]]
    for block in range(40):
        before = slice(block + 1)
        for candidate in (0, 1):
            spread = recent(log.variance[1, before, candidate])
            drift = 4 * spread + moved(log.value[before, candidate]) / 9 + 0.3 * moved(log.value[before].mean(axis=1))
            sampling = log.variance[0, block, candidate]
            enough = log.present[: (block + 1) * BLOCK, candidate + 1].sum() >= 900
            lead = (log.value[block, candidate] - 0.001) / (1.959963984540054 / 1.96)
            squares = ((9 + 2 * math.log(2)) * sampling + 2.3**2 * drift, 0.9**2 * (sampling + drift))
            for square, outcomes in zip(squares, passed[candidate], strict=True):
                outcomes.append(bool(lead > math.sqrt(square) and enough))
    for candidate, (enters, stays) in enumerate(passed):
        changes = [(t.event, t.starts) for t in state.transitions if t.candidate == candidate]
        assert changes == spans_by_hand(enters, 2, stays)
        assert changes, "the test needs a path that crosses the margin"


@pytest.mark.parametrize(("candidates", "errors"), [(1, 3.0), (5, 3.609), (20, 4.061)])
def test_the_best_of_many_needs_a_larger_lift(candidates: int, errors: float) -> None:
    lift = np.array([[errors * 0.999, errors * 1.001]])
    path = Lift(lift, np.ones_like(lift), np.zeros_like(lift), np.full_like(lift, 20_000.0))
    below, above = entering_bound(path, 0.95, candidates)[0]
    assert below < 0 < above


def test_a_moving_world_asks_the_same_lead_of_one_candidate_and_of_many() -> None:
    lift = np.array([[2.299, 2.301]])
    path = Lift(lift, np.zeros_like(lift), np.ones_like(lift), np.full_like(lift, 20_000.0))
    for candidates in (1, 20):
        below, above = entering_bound(path, 0.95, candidates)[0]
        assert below < 0 < above


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_few_of_many_candidates_that_equal_production_ever_pass(correlation: float) -> None:
    rng = np.random.default_rng(20261122)
    shared, own = rng.normal(size=(20_000, 1)), rng.normal(size=(20_000, 20))
    lift = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    path = Lift(lift, np.ones_like(lift), np.zeros_like(lift), np.full_like(lift, 20_000.0))
    assert (entering_bound(path, 0.95, 20) > 0).any(axis=1).mean() < 0.002


@given(seed=st.integers(0, 10_000), step=st.integers(1, 40), hold=st.integers(1, 5))
@examples(25)
def test_decisions_do_not_depend_on_how_many_blocks_are_folded_at_once(seed: int, step: int, hold: int) -> None:
    log, monitor = Log(blocks=40, seed=seed), make_monitor(hold=hold, min_events=500)
    whole, cut = history(monitor, log, step=40), history(monitor, log, step=step)
    assert [t[:5] for t in cut] == [t[:5] for t in whole]
    assert [t[5] for t in cut] == pytest.approx([t[5] for t in whole], rel=1e-9)


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 20))
def test_holding_counts_block_ends_in_a_row(passed: list[bool], before: int) -> None:
    outcome = np.array(passed, dtype=bool).reshape(-1, 1)
    path = held(outcome, outcome, np.array([float(before)]), hold=5)
    run, expected = before, []
    for ok in passed:
        run = run + 1 if ok else 0
        expected.append(float(run))
    assert path.ravel().tolist() == expected


def constant_path(lowers: list[float], candidates: int = 1) -> Log:
    """Make a log of candidates with exactly known lifts after each block."""
    log = Log(blocks=len(lowers), candidates=candidates)
    log.value = np.tile(np.array(lowers)[:, None], (1, candidates))
    log.variance = np.zeros((2, len(lowers), candidates))
    return log


def test_a_candidate_that_falls_must_hold_again() -> None:
    monitor = make_monitor(candidates=1, rule="paired", hold=3)
    log = constant_path([0.1, 0.1, 0.1, 0.1, -0.1, 0.1, 0.1, 0.1, 0.1])
    changes = [(t[2], t[4]) for t in history(monitor, log)]
    assert changes == [(300, True), (500, False), (800, True)]
    state = log.folded(monitor)
    decision = decided(monitor, state)["candidate-1", "paired"]
    assert (decision.promotable, decision.held, decision.times) == (True, 4, 2)
    assert (decision.first_event, decision.since_event, decision.promotable_events) == (300, 800, 400)
    assert decision.first_lift == 0.1
    assert decision.lift_since == pytest.approx((5 * 0.1 - 0.1) / 6)
    assert decision.first_timestamp == 1000.0 + 299
    assert decision.since_timestamp == 1000.0 + 799
    assert decision.reason == "decision bound of lift 0.0568 over margin 0 since event 800"


@pytest.mark.parametrize("logged", [True, False])
def test_a_candidate_that_is_production_is_promotable_by_no_rule(logged: bool) -> None:
    """Allow a lift of 0, and let only missing events distinguish the policies."""
    log = Log(blocks=40, candidates=2, seed=23, missing=0.3)
    log.present[:, 2] = 1.0
    log.weight[:, 0] = 1.0 if logged else log.weight[:, 0]
    log.weight[:, 1:] = log.weight[:, :1] * (1.0 + 1e-9)
    log.weight[log.reward == 0.0, 2] += 0.5
    log.value[:], log.variance[:] = 0.0, 0.0
    monitor = make_monitor(logged=logged, rule=("paired", "anytime", "sea", "bsea"), margin=-0.1)
    state = log.folded(monitor)
    assert not state.transitions
    assert {decision.reason for decision in decided(monitor, state).values()} == {
        "it has had the same weighted reward as production on every event"
    }
    log.weight[np.flatnonzero(log.reward * log.present[:, 1])[-1], 1] *= 1.01
    then = decided(monitor, log.folded(monitor))
    assert {key for key, decision in then.items() if decision.promotable} >= {
        ("candidate-1", "paired"),
        ("candidate-1", "bsea"),
    }
    assert not any(decision.promotable for (candidate, _), decision in then.items() if candidate == "candidate-2")


def test_before_it_has_held_long_enough_the_reason_gives_the_remaining_blocks() -> None:
    monitor = make_monitor(candidates=1, rule="paired", hold=10)
    decision = decided(monitor, constant_path([-0.1, 0.2, 0.2, 0.2, 0.2]).folded(monitor))["candidate-1", "paired"]
    assert not decision.promotable
    assert decision.reason == "decision bound of lift 0.13 over margin 0, held for 4 of 10 block ends"


def test_too_few_events_are_reported_before_anything_else() -> None:
    monitor = make_monitor(candidates=1, rule="paired", min_events=10_000, trust=Trust())
    log = constant_path([0.2] * 5)
    log.present[:] = 1.0
    decision = decided(monitor, log.folded(monitor))["candidate-1", "paired"]
    assert not decision.promotable
    assert decision.reason == "only 500 of 10,000 events"


def test_the_transitions_that_are_kept_are_the_newest_two_hundred() -> None:
    monitor = make_monitor(candidates=1, rule="paired")
    changes = history(monitor, constant_path([0.1, 0.0] * 150))
    assert len(changes) == 200
    assert changes[-1][2] == 30_000
    assert changes[0][2] == 10_100


def test_paired_gives_the_number_of_missing_events() -> None:
    monitor = make_monitor(candidates=1, rule="paired")
    log = constant_path([0.01] * 10)
    log.present[:] = 1.0
    log.variance[0] = 4.1 * 1e-4 / 9  # 4.1 times the events make the lift three times its error
    decision = decided(monitor, log.folded(monitor))["candidate-1", "paired"]
    assert decision.reason.startswith("decision bound of lift -0.0102 under margin 0; needs about 3,100 more events")


@pytest.mark.parametrize(
    ("lift", "spread2", "text"),
    [
        (-0.01, 0.0, "the lift, -0.01, is not above it either"),
        (0.01, 1e-3, "more events alone will not help: the lift, 0.01, varies too much"),
        (math.nan, 0.0, "the lift is not known yet"),
    ],
)
def test_paired_reports_when_more_events_do_not_help(lift: float, spread2: float, text: str) -> None:
    monitor = make_monitor(candidates=1, rule="paired")
    log = constant_path([lift] * 10)
    log.variance[0], log.variance[1] = 1e-4, spread2
    state = monitor.start()
    state.lifts["lift"].sums[:, 0] = 30_000  # events
    assert text in decided(monitor, log.folded(monitor, state))["candidate-1", "paired"].reason


def test_early_on_paired_does_not_report_more_events_as_useless() -> None:
    monitor = make_monitor(candidates=1, rule="paired")
    log = constant_path([0.01] * 10)
    log.variance[:] = 1e-3
    reason = decided(monitor, log.folded(monitor))["candidate-1", "paired"].reason
    assert reason.endswith("under margin 0; too early to know how much the lift, 0.01, varies over time")


def test_sea_needs_about_as_many_events_as_it_predicts() -> None:
    monitor = make_monitor(candidates=1, rule="sea")
    log = Log(blocks=400, candidates=1, seed=8, missing=0.0)
    rng = np.random.default_rng(9)
    log.weight[:, 1] = np.where(log.reward > 0, 1.15, 0.92) * rng.uniform(0.5, 1.5, len(log.reward))
    early = monitor.start()
    early = log.folded(monitor, early, last=60)
    promised = 6000 + float(early.rules["sea"].last["more"][0])
    fired = min(t[2] for t in history(monitor, log, step=60))
    assert fired == pytest.approx(promised, rel=0.35)


def test_without_a_mixture_paired_reports_that_no_lift_is_known() -> None:
    monitor, log = make_monitor(candidates=1, rule="paired"), Log(blocks=3, candidates=1)
    evidence = Evidence.from_numbers(log.weight, log.reward, BLOCK)
    state = monitor.fold(monitor.start(), monitor.summarise(evidence, log.timestamp, log.propensity), [[]])
    decision = decided(monitor, state)["candidate-1", "paired"]
    assert not decision.promotable
    assert decision.lift is None
    assert "lift is not known" in decision.reason


def test_anytime_equals_its_confidence_sequence() -> None:
    log = Log(blocks=60, candidates=2, seed=18)
    log.weight[:, 1] = np.where(log.reward > 0, 1.9, 0.6)
    log.variance[:] = 0.0
    monitor = make_monitor(rule="anytime", margin=0.01)
    log.value[:] = 0.05
    state, passed = None, []
    for block in range(60):
        state = log.folded(monitor, state, block, block + 1)
        passed.append([(decision.lower or -1.0) > 0.01 for decision in decided(monitor, state).values()])
    for candidate in (0, 1):
        changes = [(t.event, t.starts) for t in state.transitions if t.candidate == candidate]
        assert changes == spans_by_hand([ok[candidate] for ok in passed], hold=1)
        assert bool(changes) == (candidate == 0)
    decisions = decided(monitor, state)
    assert decisions["candidate-1", "anytime"].promotable
    assert "over margin 0.01, decision bound of present lift 0.05 over margin 0.01" in (
        decisions["candidate-1", "anytime"].reason
    )
    assert "decision bound of average lift -0." in decisions["candidate-2", "anytime"].reason


def test_anytime_drops_a_candidate_once_its_present_lift_has_gone() -> None:
    log = Log(blocks=60, candidates=1, seed=19)
    log.weight[:, 1] = np.where(log.reward > 0, 1.9, 0.6)
    log.variance[:] = 0.0
    log.value[:40], log.value[40:] = 0.05, -0.01
    monitor = make_monitor(candidates=1, rule="anytime")
    last = history(monitor, log)[-1]
    assert last[2:5] == (4100, last[3], False)
    decision = decided(monitor, log.folded(monitor))["candidate-1", "anytime"]
    assert "decision bound of present lift -0.0318 under margin 0; the present lift, -0.01, is not above it either" in (
        decision.reason
    )


def test_anytime_over_recent_events_forgets_an_earlier_lift() -> None:
    log = Log(blocks=200, candidates=1, seed=20, missing=0.0)
    better = np.where(log.reward > 0, 1.9, 0.6)
    log.weight[:, 1] = np.where(np.arange(len(log.reward)) < 10_000, better, 2.0 - better)
    log.value[:], log.variance[:] = 0.05, 0.0
    held_for = {}
    for tau in (None, 2_000):
        monitor = make_monitor(candidates=1, rule="anytime", tau=tau)
        decision = decided(monitor, log.folded(monitor))["candidate-1", "anytime"]
        held_for[tau] = decision.promotable_events
    assert held_for[2_000] < 14_000 < held_for[None]


def test_anytime_over_recent_events_needs_of_the_present_lift_what_a_promotable_candidate_must_keep() -> None:
    log = Log(blocks=60, candidates=1, seed=19)
    log.weight[:, 1] = np.where(log.reward > 0, 1.9, 0.6)
    promotable = {}
    for errors in (0.8, 2.0, 3.1):
        log.value[:], log.variance[0], log.variance[1] = 0.05, (0.05 / errors) ** 2, 0.0
        for tau in (None, 2_000):
            monitor = make_monitor(candidates=1, rule=("paired", "anytime"), tau=tau)
            decisions = decided(monitor, log.folded(monitor))
            promotable[errors, tau] = [decisions["candidate-1", rule].promotable for rule in ("paired", "anytime")]
    assert promotable == {
        (0.8, None): [False, False], (0.8, 2_000): [False, False],
        (2.0, None): [False, False], (2.0, 2_000): [False, True],
        (3.1, None): [True, True], (3.1, 2_000): [True, True],
    }  # fmt: skip


def test_all_candidates_ever_added_share_one_error() -> None:
    errors = make_monitor(candidates=100_000).context.errors
    assert 0.0499 < errors.sum() < 0.05
    assert errors[2] == pytest.approx(0.05 * 6 / math.pi**2 / 9)
    assert make_monitor(family_size=20).context.errors == pytest.approx([0.0025, 0.0025])


def checks_of(monitor: PromotionMonitor, state: Any, policy: str = "candidate-1", **more: Any) -> dict[str, Any]:
    """Return the trust checks of a policy by name."""
    return {
        check.check: check for check in decide(monitor, state, **trust_figures(**more))[1] if check.policy == policy
    }


def test_a_sound_log_passes_every_check() -> None:
    monitor = make_monitor(trust=Trust())
    log = Log(blocks=60, seed=10)
    checks = checks_of(monitor, log.folded(monitor), newest=100.0, now=160.0)
    assert {name: check.ok for name, check in checks.items()} == dict.fromkeys(
        ["mean_weight", "effective_sample_size", "largest_share", "rejected_share", "stale", "reward_range"], True
    )


def test_wrong_propensities_block_promotion_with_a_reason() -> None:
    monitor = make_monitor(rule="paired", trust=Trust())
    log = Log(blocks=60, seed=11)
    log.value[:], log.variance[:] = 0.1, 0.0
    log.weight[:, 1] *= 1.31
    state = log.folded(monitor)
    wrong, right = decided(monitor, state)["candidate-1", "paired"], decided(monitor, state)["candidate-2", "paired"]
    assert right.promotable
    assert not wrong.promotable
    assert wrong.reason.startswith("mean weight 1.3")
    assert wrong.reason.endswith("propensities or support are wrong")


def test_a_failed_check_of_production_blocks_all_candidates() -> None:
    monitor = make_monitor(rule="paired", trust=Trust(), logged=False)
    log = Log(blocks=60, seed=12)
    log.value[:], log.variance[:] = 0.1, 0.0
    log.weight[:, 0] = 0.72 * log.weight[:, 2]
    decision = decided(monitor, log.folded(monitor))["candidate-1", "paired"]
    assert not decision.promotable
    assert decision.reason.startswith("production: mean weight 0.7")


def test_one_event_with_much_of_all_weight_blocks_promotion() -> None:
    monitor = make_monitor(rule="paired", trust=Trust(error=1e-9))
    log = Log(blocks=60, seed=13)
    log.weight[1234, 1], log.reward[1234] = 5_000.0, 0.0
    state = log.folded(monitor)
    check = checks_of(monitor, state)["largest_share"]
    assert not check.ok
    assert "of all weights, over 10%" in check.reason
    log.weight[1234, 1], log.reward[1234] = 500.0, 1.0
    check = checks_of(monitor, log.folded(monitor))["largest_share"]
    assert not check.ok
    assert "of the value, over 10%" in check.reason


def test_one_reward_is_enough_if_one_event_may_have_all_weight() -> None:
    monitor, log = make_monitor(candidates=1, rule="paired", trust=replace(LENIENT, largest_share=1.0)), Log(20, 1)
    log.value[:], log.variance[:], log.present[:] = 0.1, 0.0, 1.0
    log.reward = 1.0 * (np.arange(2_000) == 70)
    assert decided(monitor, log.folded(monitor))["candidate-1", "paired"].promotable


def test_present_checks_block_promotion_that_the_blocks_allow() -> None:
    monitor = make_monitor(candidates=1, rule="paired", trust=Trust(effective_sample_size=0))
    state = constant_path([0.1] * 20).folded(monitor)
    outside = make_estimate("candidate-1", "ips", "window", 1.3, lower=1.2, upper=1.4)
    seen = fold_arrivals(ArrivalState(), 80, {"malformed": 20})
    sentences = {
        "20.0% of the latest events were rejected, over 5%": {"arrivals": seen},
        "the newest event is 6 hours old, over 1h": {"newest": 0.0, "now": 21_600.0},
        "the interval of ips on window, 1.2 to 1.4, lies outside": {"estimates": (outside,)},
    }
    assert decided(monitor, state)["candidate-1", "paired"].promotable
    seen_before = fold_arrivals(ArrivalState(), 80, {"duplicate": 90_000})
    assert decided(monitor, state, arrivals=seen_before)["candidate-1", "paired"].promotable
    assert decided(monitor, state, newest=0.0, now=3_599.0)["candidate-1", "paired"].promotable
    for sentence, moment in sentences.items():
        decision = decided(monitor, state, **moment)["candidate-1", "paired"]
        assert not decision.promotable
        assert decision.held == 20
        assert sentence in decision.reason


def test_an_interval_that_holds_no_value_at_all_blocks_promotion() -> None:
    rng, events = np.random.default_rng(22), 20_000
    batch = EventBatch.from_arrays(
        reward=(rng.random(events) < 0.3).astype(float),
        propensity=np.full(events, 0.5),
        policies={"a": rng.choice([0.35, 0.85], events)},  # 1.2 times what could be true
    )
    evaluator = Evaluator(["a"], [IPS()], [Cumulative()], intervals={"cumulative": "confidence_sequence"}, drift=None)
    evaluator.update(batch)
    report = evaluator.report()
    estimate = report.get("a", "ips", "cumulative")
    assert estimate.lower is not None
    assert estimate.upper is not None
    assert 0 < estimate.upper < estimate.lower < 1
    check = next(check for check in report.trust if (check.policy, check.check) == ("a", "reward_range"))
    assert not check.ok
    assert "is empty: its lower bound is above its upper bound" in check.reason
    crossed = make_estimate("candidate-1", "ips", "window", 0.5, lift=0.1, lift_lower=0.2, lift_upper=0.1)
    monitor = make_monitor(candidates=1, rule="paired")
    check = checks_of(monitor, constant_path([0.1] * 20).folded(monitor), estimates=(crossed,))["reward_range"]
    assert "the interval of the lift of ips on window, 0.2 to 0.1, is empty" in check.reason


def rejected_check(evaluator: Evaluator) -> Any:
    """Return the check of rejected events of the logging policy."""
    return next(check for check in evaluator.report().trust if check.check == "rejected_share")


def test_old_rejections_are_forgotten_and_a_burst_is_seen_at_once() -> None:
    ones = np.ones(20_000)
    batch = EventBatch.from_arrays(reward=ones, propensity=ones, policies={"a": ones})
    burst = replace(batch[:100], rejected=(Rejected("malformed", "not JSON", b""),) * 20_000)
    evaluator = Evaluator(["a"], [IPS()], [Cumulative()], drift=None)
    evaluator.update(burst)
    assert not rejected_check(evaluator).ok
    for _ in range(20):
        evaluator.update(batch)
    assert rejected_check(evaluator).reason == "0.3% of the latest events were rejected"
    evaluator.update(burst)
    resumed = Evaluator.from_state(evaluator.state())
    assert rejected_check(resumed) == rejected_check(evaluator)
    assert rejected_check(resumed).reason == "18.6% of the latest events were rejected, over 5%"
    assert evaluator.report().events.rejected == {"malformed": 40_000}


def test_any_rejection_for_its_reward_fails_until_it_is_long_ago() -> None:
    ones = np.ones(20_000)
    batch = EventBatch.from_arrays(reward=ones, propensity=ones, policies={"a": ones})
    evaluator = Evaluator(["a"], [IPS()], [Cumulative()], drift=None)
    evaluator.update(batch)
    evaluator.update(replace(batch, reward=np.where(np.arange(20_000) < 2, 1.1, 1.0)))
    check = rejected_check(Evaluator.from_state(evaluator.state()))
    assert not check.ok
    assert check.reason == (
        "0.0055 % of the latest events were rejected for their reward, and the others are no fair sample"
    )
    for _ in range(9):
        evaluator.update(batch)
    assert rejected_check(evaluator).ok


def test_a_figure_at_its_limit_passes_whatever_rounding_does() -> None:
    weight = np.full(100, 0.1)
    effective = weight.sum() ** 2 / (weight**2).sum()
    figures = WeightFigures(*np.array([100.0, 1.0, effective, 1 - 0.9, 1 - 0.9, 0.0, 1 - 0.9])[:, None])
    limits = Trust(effective_sample_size=100.0, largest_share=0.3 - 0.2, unsupported_share=0.3 - 0.2)
    assert figures.sound(limits).all()


def test_rewards_without_a_decision_block_promotion_with_a_reason() -> None:
    monitor = make_monitor(trust=Trust())
    folded = Log(blocks=60, seed=10).folded(monitor)
    for share, ok, reason in (
        (0.05, True, "5.0% of rewards have no decision"),
        (0.2, False, "20.0% of rewards have no decision, over 5%"),
    ):
        check = checks_of(monitor, folded, unmatched_share=share)["unmatched_share"]
        assert (check.ok, check.reason) == (ok, reason)
    assert "unmatched_share" not in checks_of(monitor, folded)


def test_an_effective_sample_that_is_too_small_blocks_promotion() -> None:
    monitor = make_monitor(candidates=1, rule="paired", trust=Trust(largest_share=1.0, effective_sample_size=9_000))
    decision = decided(monitor, constant_path([0.1] * 60).folded(monitor))["candidate-1", "paired"]
    assert not decision.promotable
    assert decision.reason.startswith("effective sample size 4,0")
    assert decision.reason.endswith("under 9,000")


def open_bandit_checks(planted: float | None) -> dict[str, Any]:
    """Return the checks of the uniform policy on a real log (men).

    Args:
        planted: Propensity that replaces one in the log, or None.
    """
    batch = EventBatch.concat(list(read_events(OPEN_BANDIT)))
    propensity = batch.propensity.copy()
    if planted is not None:
        propensity[5000] = planted
    batch = replace(batch, propensity=propensity).with_policies(["random"])
    policies = ("logging", "random")
    monitor = monitor_of(Promotion(), policies)
    evidence = Evidence.from_batch(batch, policies, BLOCK)
    state = monitor.fold(monitor.start(), monitor.summarise(evidence, batch.timestamp, batch.propensity), [[]])
    return checks_of(monitor, state, "random")


def test_one_propensity_of_a_millionth_in_a_real_log_is_pointed_out() -> None:
    sound, planted = open_bandit_checks(None), open_bandit_checks(1e-6)
    assert sound["effective_sample_size"].reason == "effective sample size 656 of 10,000 events"
    assert sound["mean_weight"].ok
    assert sound["largest_share"].reason == "one event carries 15.7% of the value, over 10%"
    assert planted["largest_share"].reason == "one event carries 75.7% of all weights, over 10%"
    assert planted["effective_sample_size"].reason == "effective sample size 1.74 of 10,000 events, under 100"
    assert planted["mean_weight"].ok  # that one event is unlikely, not impossible


def test_trust_depends_on_the_last_two_spans_and_returns_after_a_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streameval.ope.promotion.trust_checks.SPAN", 2_000)
    monitor, rng = make_monitor(candidates=1, rule="bsea", trust=Trust()), np.random.default_rng(21)
    state, passed, events = monitor.start(), [], []
    for span in range(40):
        wrong = 0.8 if 20 <= span < 24 else 1.0
        weight, propensity = smooth_weights(rng, 1_000, 2)
        evidence = Evidence.from_numbers(weight / [1.0, wrong], np.ones(1_000), BLOCK)
        state = monitor.fold(state, monitor.summarise(evidence, np.full(1_000, np.nan), propensity), [[]])
        check = checks_of(monitor, state)["mean_weight"]
        passed.append(check.ok)
        events.append(int(check.reason.partition(" over ")[2].partition(" events")[0].replace(",", "")))
    assert max(events) == 3_000
    assert min(events[4:]) == 2_000
    assert all(passed[:20])
    assert not all(passed[20:24]), "propensities wrong by a fifth are found within a span or two"
    assert all(passed[30:])


def test_a_rule_uses_shared_parameters_unless_it_has_its_own() -> None:
    rules = Promotion.of(
        {"rule": ["paired", {"kind": "anytime", "tau": 500}, {"kind": "anytime", "name": "long"}], "tau": 9_000}
    ).rules
    assert [rule.label for rule in rules] == ["paired", "anytime", "long"]
    assert [getattr(rule, "tau", None) for rule in rules] == [None, 500, 9_000]


def test_a_rule_with_its_own_parameters_decides_as_with_the_shared_ones() -> None:
    log = [(name, {"rule": rule, "tau": tau}) for name, rule, tau in (
        ("own", {"kind": "anytime", "tau": 3_000}, None), ("shared", "anytime", 3_000), ("none", "anytime", None)
    )]  # fmt: skip
    promotions = {name: Promotion(**options) for name, options in log}
    assert promotions["own"].rules == promotions["shared"].rules != promotions["none"].rules
    settings = asdict(promotions["own"])
    assert Promotion.of(settings).rules == promotions["own"].rules
