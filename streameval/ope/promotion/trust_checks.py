"""Check whether the numbers of a policy can be trusted at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, ratio, running_max, running_sum
from streameval.common.text import counted, duration_text, format_duration, significant
from streameval.ope.promotion import mean_weight
from streameval.ope.promotion.mean_weight import BetState
from streameval.ope.promotion.settings import Trust
from streameval.ope.promotion.sums import MonitorSums
from streameval.ope.report import Estimate, PolicyCounts

SPAN = 200_000
"""Events after which a new run starts. The checks are about the run before it: the last 200,000 to 400,000 events."""

ARRIVALS_HORIZON = 100_000.0
"""Horizon in events of the share of rejected events."""
REWARD_REASONS = ("reward_range",)
"""Reasons of rejections that depend on the reward: without these events, every value is wrong by an unknown amount."""
FORGOTTEN = math.exp(-1.0)
"""Decayed number below which rejections are not among the latest events: one is for `ARRIVALS_HORIZON` events."""
EDGE = 1e-9
"""Relative difference to a limit that is rounding: 100 events of one weight are 100 effective ones."""
MEAN_AS_EXPECTED = 0.05
"""Difference of a mean weight to 1 that does not show itself why the check fails."""


class ArrivalState(Struct, frozen=True):
    """Hold the decayed numbers of accepted and of rejected events, without duplicates. It starts with none.

    Attributes:
        accepted: accepted events
        rejected: rejected events
        by_reward: how many of the rejected events were rejected for their reward
    """

    accepted: float = 0.0
    rejected: float = 0.0
    by_reward: float = 0.0


def fold_arrivals(state: ArrivalState, accepted: int, reasons: Mapping[str, int]) -> ArrivalState:
    """Return the numbers after some more events, which count as evenly mixed because their order is unknown.

    A burst of rejected events blocks promotion while it lasts and for some time after.

    >>> burst = {"malformed": 10_000}
    >>> early = fold_arrivals(ArrivalState(), 90, {"malformed": 10, "duplicate": 500})
    >>> now = fold_arrivals(fold_arrivals(early, 5_000_000, {}), 0, burst)
    >>> long_ago = fold_arrivals(fold_arrivals(early, 0, burst), 500_000, {})
    >>> [f"{rejected_share(state):.2%}" for state in (early, now, long_ago)]
    ['10.00%', '9.52%', '0.06%']
    """
    rejected = sum(count for reason, count in reasons.items() if reason != "duplicate")
    if not accepted + rejected:
        return state
    fading = math.exp(-(accepted + rejected) / ARRIVALS_HORIZON)
    kept = ARRIVALS_HORIZON * (1.0 - fading) / (accepted + rejected)
    new = accepted, rejected, sum(reasons.get(reason, 0) for reason in REWARD_REASONS)
    before = state.accepted, state.rejected, state.by_reward
    return ArrivalState(*(old * fading + kept * number for old, number in zip(before, new, strict=True)))


def rejected_share(arrivals: ArrivalState) -> float:
    """Return the share of rejected events, 0 before the first event."""
    accepted, rejected = arrivals.accepted, arrivals.rejected
    return rejected / (accepted + rejected) if rejected else 0.0


TOTALS = ("present", "q", "weight", "weight_square", "term_size", "unsupported")
"""Block sums that a run adds up. The log wealth gained by bets against a mean weight of 1 follows."""
PEAKS = ("weight_largest", "term_largest")
EVIDENCE = 1
"""Index of the verdict about the effective sample size, see `WeightFigures.sound`."""


class WeightFigures(NamedTuple):
    """Hold the figures behind the checks of weights, from the longer run, NaN without events [..., policies].

    Attributes:
        events: the number of events that the policy has
        mean_weight: 1 is expected
        effective_sample_size: `(sum q w)^2 / sum (q w)^2` (Kish)
        weight_share: the share of all weights that one event carries
        term_share: the share of the value (of all `|w r|`) that one event carries
        surprise: the log wealth of bets against a mean weight of 1, of both runs, over the design effect of the weights
        unsupported: for rankings, the share of the gain at ranks with items that production did not show, if known
    """

    events: Array
    mean_weight: Array
    effective_sample_size: Array
    weight_share: Array
    term_share: Array
    surprise: Array
    unsupported: Array

    @classmethod
    def from_paths(cls, totals: Array, peaks: Array, effects: Array, started: int) -> WeightFigures:
        """Compute the figures from both runs.

        The j-th run counts `1/(j (j + 1))` of the wealth, so all runs are one bet.

        Args:
            totals: the sums [..., runs, 7, policies]
            peaks: the maxima [..., runs, 2, policies]
            effects: the design effects of the weights
            started: the number of complete spans
        """
        sums, gains = totals[..., 0, : len(TOTALS), :], totals[..., len(TOTALS), :]
        events, q, weight, weight_square, term_size, unsupported = np.moveaxis(sums, -2, 0)
        largest_weight, largest_term = np.moveaxis(peaks[..., 0, :, :], -2, 0)
        run = max(1, started)
        wealth = gains[..., 0, :] - math.log(run * (run + 1))
        if started:
            wealth = np.logaddexp(wealth, gains[..., 1, :] - math.log((run + 1) * (run + 2)))
        return cls(
            events,
            ratio(weight, q),
            np.nan_to_num(ratio(weight**2, weight_square)),
            ratio(largest_weight, np.maximum(weight, 0.0)),
            ratio(largest_term, term_size),
            wealth / effects,
            ratio(unsupported, q),
        )

    @property
    def largest_share(self) -> Array:
        """Return the share of all weights, or of the value, that one event carries."""
        return np.asarray(np.fmax(self.weight_share, self.term_share))

    def sound(self, limits: Trust) -> Mask:
        """Return the verdicts of four checks [4, ..., policies].

        They are: the mean weight may be 1, there are enough effective events, no event carries too much, and enough of
        a ranking's gain is supported.
        """
        return np.stack(
            [
                self.surprise < math.log(1.0 / limits.error),
                self.effective_sample_size >= limits.effective_sample_size * (1 - EDGE),
                self.largest_share <= limits.largest_share * (1 + EDGE),
                ~(self.unsupported > limits.unsupported_share * (1 + EDGE)),
            ]
        )


class TrustState(Struct, frozen=True, eq=False):
    """Hold the sums behind the checks of weights in two runs. The second run will replace the first.

    Attributes:
        blocks: the number of blocks so far
        weights: the bets against a mean weight of 1
        totals: sums by `TOTALS`, and the log wealth of the bets [P, 2, 7]
        peaks: maxima by `PEAKS` [P, 2, 2]
    """

    blocks: int
    weights: BetState
    totals: Array
    peaks: Array


def start(policies: int) -> TrustState:
    """Start before the first event."""
    totals = np.zeros((policies, 2, len(TOTALS) + 1))
    return TrustState(0, mean_weight.start(policies), totals, np.zeros((policies, 2, len(PEAKS))))


def fold(state: TrustState, monitor_sums: MonitorSums, limits: Trust) -> tuple[Mask, Array, TrustState]:
    """Return whether each policy passes after each of these blocks [blocks, policies], and the next state.

    Between both stand the effective sample size, the largest share of an event, and whether a policy fails a check for
    another reason than a lack of evidence [blocks, policies, 3].
    """
    sums, memory = monitor_sums.goal.sums, state.weights
    blocks, totals, peaks = state.blocks, *_policies_last(state)
    gains, effects = np.zeros(sums.weight.shape), np.ones(sums.weight.shape)
    if monitor_sums.bets is not None:
        gains, effects, memory = mean_weight.fold(memory, monitor_sums.bets, sums, monitor_sums.block)
    steps = np.stack([*(getattr(sums, name) for name in TOTALS), gains], axis=1)
    tops = np.stack([getattr(sums, name) for name in PEAKS], axis=1)
    span, sound, evidence, first = max(1, SPAN // monitor_sums.block), [], [], 0
    while first < len(steps):
        stretch = slice(first, first + span - blocks % span)
        total_path = running_sum(totals, np.repeat(steps[stretch, None], 2, axis=1))
        peak_path = running_max(peaks, np.repeat(tops[stretch, None], 2, axis=1))
        figures = WeightFigures.from_paths(total_path, peak_path, effects[stretch], blocks // span)
        verdicts = figures.sound(limits)
        sound.append(verdicts.all(axis=0))
        doubted = ~np.delete(verdicts, EVIDENCE, axis=0).all(axis=0)
        evidence.append(np.stack([figures.effective_sample_size, figures.largest_share, doubted], axis=-1))
        blocks += len(total_path)
        first += len(total_path)
        totals, peaks = total_path[-1], peak_path[-1]
        if blocks % span == 0:  # the second run replaces the first, and a new one starts
            run = 0 if blocks == span else 1
            totals, peaks = (np.stack([array[run], np.zeros_like(array[run])]) for array in (totals, peaks))
    totals, peaks = (np.ascontiguousarray(np.moveaxis(array, -1, 0)) for array in (totals, peaks))
    return np.concatenate(sound), np.concatenate(evidence), TrustState(blocks, memory, totals, peaks)


def recent(state: TrustState, block: int) -> WeightFigures:
    """Return the figures after the last block."""
    effects = mean_weight.design_effect(state.weights.units)
    return WeightFigures.from_paths(*_policies_last(state), effects, state.blocks // max(1, SPAN // block))


def _policies_last(state: TrustState) -> tuple[Array, Array]:
    """Return the sums and the maxima of a state [runs, numbers, policies]."""
    return np.moveaxis(state.totals, 0, -1), np.moveaxis(state.peaks, 0, -1)


def share_check(name: str, share: float, limit: float, finding: str) -> tuple[str, bool, str]:
    """Check whether a share is within its limit. The finding says what it is."""
    ok = share <= limit * (1 + EDGE)
    return name, ok, finding if ok else f"{finding}, over {limit:.0%}"


def stream_checks(
    arrivals: ArrivalState, newest: float | None, now: float | None, unmatched_share: float | None, limits: Trust
) -> Iterator[tuple[str, bool, str]]:
    """Yield the checks of the stream for every policy: their names, whether they pass, and why."""
    share = rejected_share(arrivals)
    if arrivals.by_reward >= FORGOTTEN:
        share = arrivals.by_reward / (arrivals.accepted + arrivals.rejected)
        finding = f"{100 * share:.2g} % of the latest events were rejected for their reward"
        yield "rejected_share", False, f"{finding}, and the others are no fair sample"
    else:
        finding = f"{share:.1%} of the latest events were rejected"
        yield share_check("rejected_share", share, limits.rejected_share, finding)
    if unmatched_share is not None:
        finding = f"{unmatched_share:.1%} of rewards have no decision"
        yield share_check("unmatched_share", unmatched_share, limits.unmatched_share, finding)
    if limits.stale_after is not None and now is not None and newest is not None:
        ok, finding = now - newest <= limits.stale_after, f"the newest event is {duration_text(now - newest)} old"
        yield "stale", ok, finding if ok else f"{finding}, over {format_duration(limits.stale_after)}"


def weight_checks(
    figures: Sequence[float], sound: Sequence[bool], limits: Trust, weights_average_1: bool
) -> Iterator[tuple[str, bool, str]]:
    """Check the weights of one policy.

    Args:
        figures: the `WeightFigures` of the policy
        sound: its verdicts, in the order of `WeightFigures.sound`
        limits: the limits behind the verdicts
        weights_average_1: see `RuleContext`
    """
    events, mean, size, weight_share, value_share, _, _ = figures
    mean_ok, size_ok, shares_ok, _ = sound
    finding = f"mean weight {significant(mean)} over {counted(events, 'event')}, expected 1"
    if weights_average_1:
        cause = "propensities or support are wrong"
        if abs(mean - 1.0) < MEAN_AS_EXPECTED:
            cause = "it is far from 1 in parts of the log, which is sorted by action, or propensities are wrong there"
        yield "mean_weight", mean_ok, finding if mean_ok else f"{finding}: {cause}"
    finding = f"effective sample size {significant(size)} of {counted(events, 'event')}"
    least = significant(limits.effective_sample_size)
    yield "effective_sample_size", size_ok, finding if size_ok else f"{finding}, under {least}"
    share, what = max((weight_share, "all weights"), (0.0 if math.isnan(value_share) else value_share, "the value"))
    finding = "no event has a weight above 0" if math.isnan(share) else f"one event carries {share:.1%} of {what}"
    yield "largest_share", shares_ok, finding if shares_ok else f"{finding}, over {limits.largest_share:.0%}"


def support_check(share: float, supported: bool, limits: Trust, is_known: bool) -> Iterator[tuple[str, bool, str]]:
    """Check whether production shows the items of a ranking policy.

    Args:
        share: the share of the gain at ranks with items that production did not show
        supported: whether the share is within the limits
        limits: the limits behind the verdict
        is_known: whether all pages show the share of the gain
    """
    finding = f"{share:.1%} of the gain is at ranks whose items production did not show"
    if not is_known:
        finding = "not known: log the whole lists of the policy, or their `support`"
    elif not supported:
        finding = f"{finding}, over {limits.unsupported_share:.0%}"
    yield "unsupported", supported, finding


def missing_check(
    counts: PolicyCounts, unknown: int, estimates: Iterable[Estimate], limits: Trust
) -> tuple[str, bool, str]:
    """Check whether a policy has most events, on each of its averages. Events that it lacks may be of another kind.

    Args:
        counts: the numbers of events of the policy, used if no average knows the share
        unknown: the number of events that all policies lack, for example before a curve or a propensity is learned
        estimates: its estimates
        limits: the limit
    """
    shares = [(row.details.get("missing_share"), f" of {row.average}") for row in estimates]
    known = [(share, where) for share, where in shares if share is not None]
    own = max(0, counts.missing - unknown)
    share, where = max(known, default=(own / max(1, counts.events + own), ""))
    finding = f"{share:.1%} of the events{where} lack its probability"
    return share_check("missing_share", share, limits.missing_share, finding)


def reward_range_check(estimates: Iterable[Estimate], reward_range: tuple[float, float]) -> tuple[str, bool, str]:
    """Check whether the intervals of these estimates of one policy agree with the range of the rewards."""
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    for row in estimates:
        for of_lift, lower, upper in (("", row.lower, row.upper), ("the lift of ", row.lift_lower, row.lift_upper)):
            if lower is None or upper is None:
                continue
            problem = ""
            if not of_lift and (lower > high + rounding or upper < low - rounding):
                problem = f"lies outside the reward range, {low:g} to {high:g}"
            elif lower > upper + rounding:
                problem = "is empty: its lower bound is above its upper bound"
            if problem:
                which = f"{of_lift}{row.estimator} on {row.average}, {significant(lower)} to {significant(upper)}"
                return "reward_range", False, f"the interval of {which}, {problem}"
    return "reward_range", True, f"all intervals overlap the reward range, {low:g} to {high:g}"
