"""Test the mixture against a plain reimplementation, its guarantees on any stream, and how it follows a drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Cumulative, Decay, Mixture
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, StratifiedIPS
from streameval.ope.intervals import DriftAware
from streameval.ope.report import Report
from support.reference.slow_mixture import Answer, Part, SlowMixture, decayed_mean, slope_before
from support.streams import evaluated

Array = NDArray[np.float64]
THRESHOLD = 3.0
DETAILS = {"horizon": "horizon_events", "se": "se", "spread": "spread", "drift": "drift"}


class Log:
    """Draw a log of random weights up to 20 in a drifting world, with candidates that some events lack."""

    def __init__(self, seed: int, n: int, candidates: int, *, gaps: bool = True) -> None:
        random = np.random.default_rng(seed)
        self.names = [f"c{number}" for number in range(candidates)]
        self.propensity = random.uniform(0.05, 1.0, n)
        mean = 0.4 + 0.3 * np.sin(np.arange(n) / 3_000)
        self.reward = (random.random(n) < mean).astype(float)
        self.sampling = random.choice([0.5, 1.0], n) if gaps else np.ones(n)
        self.target = np.minimum(random.uniform(0.0, 1.0, (candidates, n)), 1.0)
        if gaps:
            self.target[random.random((candidates, n)) < 0.2] = np.nan
            self.target[0, n // 3 : n // 3 + 350] = np.nan  # whole blocks without the first candidate

    def batch(self, rows: slice = slice(None)) -> EventBatch:
        policies = {name: target[rows] for name, target in zip(self.names, self.target, strict=True)}
        return EventBatch.from_arrays(
            reward=self.reward[rows],
            propensity=self.propensity[rows],
            policies=policies,
            sampling_probability=self.sampling[rows],
        )

    def upto(self, n: int) -> Log:
        log = object.__new__(Log)
        log.names, log.propensity, log.reward = self.names, self.propensity[:n], self.reward[:n]
        log.sampling, log.target = self.sampling[:n], self.target[:, :n]
        return log

    def weights(self) -> list[tuple[Array, Array]]:
        """Yield the importance weight and averaging weight of the logging policy and each candidate."""
        inverse = 1 / self.sampling
        candidates = [(np.nan_to_num(t / self.propensity), np.where(np.isnan(t), 0.0, inverse)) for t in self.target]
        return [(np.ones_like(self.reward), inverse), *candidates]

    def slow(self, kind: str, block: int) -> list[Answer]:
        """Return the answers of the slow mixture to this log."""
        inverse = 1 / self.sampling
        reward = decayed_mean(self.reward, inverse, block)
        reward_square = decayed_mean(self.reward**2, inverse, block)
        policies = []
        for w, q in self.weights():
            square = decayed_mean(w**2, q, block) * reward_square
            wr = w * self.reward
            if kind == "ips":
                policies.append([Part(wr, q, reward, square)])
            elif kind == "snips":
                ratio = not (w == 1).all()  # snips is ips if the denominator is always 1
                policies.append([Part(wr, q, reward, square, v=w if ratio else None)])
            else:
                share = np.clip(decayed_mean(w * (w <= THRESHOLD), q, block), 0, 1)
                low, high = self.components(kind, w, q, block)
                policies.append([Part(low, q, share * reward, square), Part(high, q, (1 - share) * reward, square)])
        return SlowMixture(policies, [False] + [True] * len(self.names), block).answers()

    def slow_lifts(self, kind: str, block: int, production: str) -> dict[str, Answer]:
        """Return the answers of the slow mixture to the differences of all terms to production."""
        weights = dict(zip(["logging", *self.names], self.weights(), strict=True))
        reward_square = decayed_mean(self.reward**2, 1 / self.sampling, block)
        base, present = weights[production]
        names, policies = [name for name in self.names if name != production], []
        for w, q in (weights[name] for name in names):
            square = decayed_mean(distances(w, q, base, present, block), q, block) * reward_square
            pairs = zip(self.components(kind, w, q, block), self.components(kind, base, present, block), strict=True)
            both, nothing = np.where(present > 0, q, 0.0), np.zeros_like(square)
            policies.append([Part(own - other, both, nothing, square) for own, other in pairs])
        return dict(zip(names, SlowMixture(policies, [True] * len(names), block).answers(), strict=True))

    def components(self, kind: str, w: Array, q: Array, block: int) -> list[Array]:
        """Return the components of a term of a policy: all of it, or below and above the threshold."""
        wr, small = w * self.reward, w <= THRESHOLD
        if kind == "ips":
            return [wr]
        return [wr * small, wr * ~small - slope_before(wr * ~small, w, q, block) * (w - 1)]


def distances(w: Array, q: Array, base: Array, present: Array, block: int) -> Array:
    """Return the mean squared distance of weights in the block of each event, on events that both policies have."""
    results = np.empty_like(w)
    for first in range(0, len(w), block):
        rows = slice(first, first + block)
        both = np.where(present[rows] > 0, q[rows], 0.0)
        alone = np.average(w[rows] ** 2, weights=q[rows]) if q[rows].sum() else 0.0
        results[rows] = np.average((w[rows] - base[rows]) ** 2, weights=both) if both.sum() else alone
    return results


def mixture_evaluator(log: Log, block: int = 100, **options: Any) -> Evaluator:
    """Return an evaluator of the log on a mixture with these options."""
    estimators = [IPS(), SNIPS(), StratifiedIPS(threshold=THRESHOLD)]
    settings = {"estimators": estimators, "averages": [Mixture(**options)], "block": block, "drift": None}
    return evaluated(log.batch(), candidates=log.names, **settings)


def assert_equal(report: Report, kind: str, policies: list[str], slow: list[Answer]) -> None:
    for policy, answer in zip(policies, slow, strict=True):
        estimate = report.get(policy, kind, "mixture")
        reported = {"value": estimate.value, **{name: estimate.details[key] for name, key in DETAILS.items()}}
        for name, number in reported.items():
            expected = getattr(answer, name)
            if number is None:
                assert np.isnan(expected), (policy, name)
            else:
                assert number == pytest.approx(expected, rel=1e-6, abs=1e-10), (policy, name)


@pytest.mark.parametrize(("kinds", "candidates"), [(["ips"], 1), (["ips", "snips", "stratified_ips"], 3)])
@pytest.mark.parametrize(("block", "blocks"), [(100, 1), (100, 2), (100, 7), (50, 24)])
def test_a_mixture_equals_a_plain_reimplementation(kinds: list[str], candidates: int, block: int, blocks: int) -> None:
    log = Log(seed=blocks, n=block * blocks, candidates=candidates)
    report = mixture_evaluator(log, block).report()
    for kind in kinds:
        assert_equal(report, kind, ["logging", *log.names], log.slow(kind, block))


@pytest.mark.parametrize("production", ["logging", "c0"])
@pytest.mark.parametrize(("block", "blocks"), [(100, 7), (50, 24)])
def test_the_lift_equals_a_plain_reimplementation(production: str, block: int, blocks: int) -> None:
    log = Log(seed=blocks, n=block * blocks, candidates=3)
    candidates = [name for name in log.names if name != production]
    estimators = [IPS(), StratifiedIPS(threshold=THRESHOLD)]
    evaluator = Evaluator(candidates, estimators, [Mixture()], production=production, block=block, drift=None)
    evaluator.update(log.batch())
    report = evaluator.report()
    for kind in ("ips", "stratified_ips"):
        slow = log.slow_lifts(kind, block, production)
        assert list(slow) == candidates
        for policy, answer in slow.items():
            row = report.get(policy, kind, "mixture")
            assert row.lift == pytest.approx(answer.value, rel=1e-9, abs=1e-12)
            assert row.details["lift_se"] == pytest.approx(answer.se, rel=1e-9)
            assert row.details["lift_spread"] == pytest.approx(answer.spread, rel=1e-6, abs=1e-10)


def test_over_40_blocks_with_gaps_a_mixture_equals_a_plain_reimplementation() -> None:
    log = Log(seed=61, n=4_100, candidates=3)
    evaluator = Evaluator(log.names, [StratifiedIPS(threshold=THRESHOLD)], [Mixture()], block=100, drift=None)
    evaluator.update(log.batch())
    report = evaluator.report()
    assert_equal(report, "stratified_ips", ["logging", *log.names], log.slow("stratified_ips", 100))
    for policy, answer in log.slow_lifts("stratified_ips", 100, "logging").items():
        assert report.get(policy, "stratified_ips", "mixture").lift == pytest.approx(answer.value, rel=1e-9)


def test_a_ratio_is_known_from_its_first_weight_on_and_its_lift_soon_after() -> None:
    log = Log(seed=8, n=30_000, candidates=1, gaps=False)
    log.target[0, :250] = 0.0  # two blocks and a half without any weight
    log.target[0, 250:] *= np.random.default_rng(8).random(len(log.reward) - 250) < 0.02
    evaluator = Evaluator(log.names, [SNIPS(), IPS()], [Mixture(), Cumulative()], drift=None)
    evaluator.update(log.batch(slice(0, 200)))
    assert evaluator.report().get("c0", "snips", "mixture").value is None
    evaluator.update(log.batch(slice(200, None)))
    for estimator in ("snips", "ips"):
        mixed, plain = (evaluator.report().get("c0", estimator, average) for average in ("mixture", "cumulative"))
        assert mixed.value == pytest.approx(plain.value, abs=0.15)
        assert mixed.lift == pytest.approx(plain.lift, abs=0.15)
        assert mixed.lift_lower is not None


def test_the_drift_part_equals_a_plain_reimplementation_from_50_000_events_on() -> None:
    log = Log(seed=5, n=53_000, candidates=1)
    slow = log.slow("stratified_ips", block=1_000)
    assert all(answer.drift >= 0 for answer in slow)
    assert max(answer.drift for answer in slow) > 1e-3
    assert_equal(mixture_evaluator(log, block=1_000).report(), "stratified_ips", ["logging", *log.names], slow)


def test_a_mixture_sees_a_block_when_it_ends() -> None:
    log = Log(seed=1, n=1_099, candidates=2)
    before = mixture_evaluator(log.upto(1_000)).report()
    after = mixture_evaluator(log).report()
    for policy in ("logging", *log.names):
        assert after.get(policy, "ips", "mixture").value == before.get(policy, "ips", "mixture").value


def test_losses_are_pooled_over_three_candidates_or_more() -> None:
    log = Log(seed=2, n=4_000, candidates=3, gaps=False)
    three = mixture_evaluator(log).report()
    horizons = {three.get(name, "ips", "mixture").details["horizon_events"] for name in log.names}
    assert len(horizons) == 1
    assert three.get("logging", "ips", "mixture").details["horizon_events"] not in horizons
    log.names, log.target = log.names[:2], log.target[:2]
    two = mixture_evaluator(log).report()
    assert len({two.get(name, "ips", "mixture").details["horizon_events"] for name in log.names}) == 2


def test_the_rate_can_be_set() -> None:
    log = Log(seed=2, n=4_000, candidates=1)
    usual, same, other = (mixture_evaluator(log, rate=rate).report() for rate in (None, 1.0, 0.01))
    assert usual == same
    assert other.get("c0", "ips", "mixture").value != usual.get("c0", "ips", "mixture").value


def test_the_initial_value_is_near_the_mean_reward_of_the_logging_policy() -> None:
    reward = np.tile([1.0, 0.0], 50)
    batch = EventBatch.from_arrays(reward=reward, propensity=np.full(100, 0.1), policies={"a": np.full(100, 0.9)})
    evaluator = Evaluator(["a"], estimators=[IPS()], averages=[Mixture()])
    evaluator.update(batch)
    # 500 pseudo-events at 0.5, faded a little, against 100 events at 4.5
    assert evaluator.report().get("a", "ips", "mixture").value == pytest.approx((500 * 0.5 + 100 * 4.5) / 600, rel=0.02)


def test_interval_parts_add_up_to_the_half_width() -> None:
    log = Log(seed=3, n=9_000, candidates=3)
    for estimate in mixture_evaluator(log).report().estimates:
        parts = {name: estimate.details[name] or 0.0 for name in ("se", "spread", "drift")}
        sampling = parts["se"] ** 2 * max(1.0, estimate.details["design_effect"] or 1.0)
        width = 2.4 * np.sqrt(sampling + parts["spread"] ** 2 + parts["drift"] ** 2)
        assert estimate.value is not None
        assert estimate.upper == pytest.approx(min(estimate.value + width, 1.0), rel=1e-3)
        assert (estimate.kind, estimate.covers) == ("drift_aware", "current")


def test_values_without_evidence_on_a_mixture_are_unknown() -> None:
    estimate = mixture_evaluator(Log(seed=3, n=9_000, candidates=1)).report().get("c0", "ips", "mixture")
    assert estimate.details["largest_term_share"] is None
    assert estimate.details["bias_bound"] is None
    first_block = mixture_evaluator(Log(seed=3, n=100, candidates=1)).report().get("c0", "ips", "mixture")
    assert first_block.details["drift"] is None


def test_one_event_of_a_candidate_is_enough_for_an_estimate() -> None:
    log = Log(seed=3, n=300, candidates=1, gaps=False)
    log.target[0, np.arange(300) != 150] = np.nan
    assert mixture_evaluator(log).report().get("c0", "ips", "mixture").value is not None
    log.target[:] = np.nan
    assert mixture_evaluator(log).report().get("c0", "ips", "mixture").value is None


def lucky_start(events: int) -> Log:
    """Draw a still world with the candidate in 5 % of the events. Those in the first block all earn 1."""
    log = Log(seed=4, n=events, candidates=1, gaps=False)
    random = np.random.default_rng(5)
    log.propensity, log.reward = np.full(events, 0.5), (random.random(events) < 0.2).astype(float)
    log.target[0] = np.where(random.random(events) < 0.05, 0.5, np.nan)
    log.reward[:100][~np.isnan(log.target[0, :100])] = 1.0
    return log


def test_a_few_lucky_events_at_the_start_do_not_make_it_forget() -> None:
    estimate = mixture_evaluator(lucky_start(20_000)).report().get("c0", "ips", "mixture")
    assert estimate.details["horizon_events"] > 10_000
    assert estimate.value == pytest.approx(0.2, abs=0.05)
    assert estimate.upper - estimate.lower < 0.2


def test_after_a_lucky_start_it_equals_a_plain_reimplementation() -> None:
    log = lucky_start(1_000)
    assert_equal(mixture_evaluator(log).report(), "ips", ["logging", *log.names], log.slow("ips", 100))


def test_the_largest_weight_of_a_mixture_is_the_largest_of_the_whole_log() -> None:
    log = Log(seed=3, n=2_000, candidates=2)
    evaluator = Evaluator(log.names, [IPS()], [Mixture()])
    evaluator.update(log.batch())
    for index, name in enumerate(log.names):
        estimate = evaluator.report().get(name, "ips", "mixture")
        assert estimate.importance_weight_max == pytest.approx(np.nanmax(log.target[index] / log.propensity))


@pytest.mark.parametrize("interval", ["drift_aware", "empirical_likelihood"])
def test_the_report_on_an_estimator_does_not_depend_on_the_others(interval: str) -> None:
    log = Log(seed=3, n=3_000, candidates=2)
    estimators = [IPS(), StratifiedIPS(threshold=THRESHOLD), StratifiedIPS(threshold=1.0, name="other")]
    together = Evaluator(log.names, estimators, [Mixture()], intervals={"mixture": interval})
    together.update(log.batch())
    for estimator in estimators:
        alone = Evaluator(log.names, [estimator], [Mixture()], intervals={"mixture": interval})
        alone.update(log.batch())
        for name in log.names:
            one, other = (evaluator.report().get(name, estimator.label, "mixture") for evaluator in (together, alone))
            for number in ("value", "lower", "upper", "effective_sample_size", "lift", "lift_lower", "lift_upper"):
                assert getattr(one, number) == pytest.approx(getattr(other, number), rel=1e-9)


def test_the_unsupported_mass_of_a_mixture_equals_the_one_of_a_decay() -> None:
    n = 2_000
    batch = EventBatch.from_arrays(
        reward=np.ones(n),
        action=np.zeros(n, dtype=int),
        propensities=np.tile([1.0, 0.0], (n, 1)),
        policies={"a": np.tile([0.6, 0.4], (n, 1))},
    )
    evaluator = Evaluator(["a"], estimators=[IPS()], averages=[Decay(), Mixture()])
    evaluator.update(batch)
    for average in ("decay", "mixture"):
        details = evaluator.report().get("a", "ips", average).details
        assert details["unsupported_probability"] == pytest.approx(0.4)


@pytest.mark.parametrize(("kind", "estimator"), [("drift_aware", IPS()), ("empirical_likelihood", SNIPS())], ids=str)
def test_no_interval_is_shown_while_no_event_supports_the_policy(kind: str, estimator: AnyEstimator) -> None:
    never = EventBatch.from_arrays(reward=np.ones(300), propensity=np.full(300, 0.5), policies={"a": np.zeros(300)})
    evaluator = Evaluator(["a"], estimators=[estimator], averages=[Mixture()], intervals={"mixture": kind})
    evaluator.update(never)
    estimate = evaluator.report().get("a", estimator.label, "mixture")
    assert (estimate.lower, estimate.upper) == (None, None)


def test_no_interval_is_shown_before_the_first_reward() -> None:
    rng, n = np.random.default_rng(5), 1_000
    columns = {"propensity": np.full(n, 0.5), "policies": {"a": rng.choice([0.25, 0.75], n), "same": np.full(n, 0.5)}}
    evaluator = Evaluator(["a", "same"], estimators=[StratifiedIPS()], averages=[Mixture()])
    evaluator.update(EventBatch.from_arrays(reward=np.zeros(n), **columns))
    for estimate in evaluator.report().estimates:
        assert (estimate.lower, estimate.upper) == (None, None)
        assert (estimate.lift_lower, estimate.lift_upper) == (None, None)
    evaluator.update(EventBatch.from_arrays(reward=np.arange(n) == 500, **columns))
    for estimate in evaluator.report().estimates:
        assert estimate.lower is not None
        assert estimate.policy == "logging" or estimate.lift_lower is not None


def test_missing_events_of_one_candidate_change_nothing_for_itself_but_age_when_alone() -> None:
    log = Log(seed=8, n=3_000, candidates=1, gaps=False)
    evaluator = mixture_evaluator(log)
    before = evaluator.report().get("c0", "ips", "mixture")
    absent = Log(seed=9, n=1_000, candidates=1, gaps=False)
    absent.target[:] = np.nan
    evaluator.update(absent.batch())
    after = evaluator.report().get("c0", "ips", "mixture")
    assert before.value is not None
    assert after.value == pytest.approx(before.value, abs=0.05)
    assert after.details["horizon_events"] >= before.details["horizon_events"]


def test_the_interval_depends_on_the_mixture_alone() -> None:
    with pytest.raises(ValueError, match="drift_aware is the interval of a mixture; 'decay' is of another kind"):
        Evaluator(["a"], averages=[Decay()], intervals={"decay": DriftAware()})
    with pytest.raises(ValueError, match="has no largest term: empirical_bernstein needs one"):
        Evaluator(["a"], averages=[Mixture()], intervals={"mixture": "empirical_bernstein"})


def test_without_candidates_production_alone_is_estimated() -> None:
    evaluator = Evaluator([], ["ips"], ["mixture", "cumulative"])
    assert [estimate.value for estimate in evaluator.report().estimates] == [None, None]
    evaluator.update(EventBatch.from_arrays(reward=np.full(500, 0.5), propensity=np.ones(500)))
    assert [estimate.value for estimate in evaluator.report().estimates] == pytest.approx([0.5, 0.5])
