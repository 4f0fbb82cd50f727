"""Trust checks: whether the numbers of a policy can be believed at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.common.text import counted, format_duration, in_words, significant
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion import mean_weight_test
from streameval.ope.promotion.block_sums import BlockSums, running_max, running_sum
from streameval.ope.promotion.settings import Trust
from streameval.ope.report import Estimate, TrustCheck

SPAN = 200_000
"""Events after which a new run starts. The checks are about the run before it: the last 200,000 to 400,000 events."""


ARRIVALS_HORIZON = 100_000.0
"""Horizon in events of the share of rejected events."""
NOT_COUNTED = "duplicate"
"""The reject reason of events that were counted before."""


class Arrivals(NamedTuple):
    """Decayed numbers of accepted and rejected events, without duplicates.

    A burst of rejected events blocks promotion while it lasts and for some time after.
    """

    accepted: float = 0.0
    rejected: float = 0.0

    def after(self, accepted: int, reasons: Mapping[str, int]) -> Arrivals:
        """The numbers after some more events, which count as evenly mixed because their order is unknown.

        >>> early = Arrivals().after(90, {"malformed": 10, "duplicate": 500})
        >>> burst = {"malformed": 10_000}
        >>> now, long_ago = early.after(5_000_000, {}).after(0, burst), early.after(0, burst).after(500_000, {})
        >>> [f"{each.share:.2%}" for each in (early, now, long_ago)]
        ['10.00%', '9.52%', '0.06%']
        """
        rejected = sum(count for reason, count in reasons.items() if reason != NOT_COUNTED)
        if not accepted + rejected:
            return self
        fading = math.exp(-(accepted + rejected) / ARRIVALS_HORIZON)
        kept = ARRIVALS_HORIZON * (1.0 - fading) / (accepted + rejected)
        return Arrivals(self.accepted * fading + kept * accepted, self.rejected * fading + kept * rejected)

    @property
    def share(self) -> float:
        """The share of rejected events; 0 before the first event."""
        return self.rejected / (self.accepted + self.rejected) if self.rejected else 0.0


OF_THE_STREAM = ("rejected_share", "stale")
"""Checks of the stream, whose result is the same for every policy."""


class TrustFigures(NamedTuple):
    """The facts that checks and decisions read at the moment of a Report.

    `newest`, `now`: epoch seconds, None if unknown. `has_lift`: whether a lift is averaged on a mixture.
    """

    arrivals: Arrivals
    newest: float | None
    estimates: Sequence[Estimate]
    now: float | None = None
    has_lift: bool = True


class RunTotal(IntEnum):
    """Places among the sums of a run."""

    PRESENT = 0
    Q = 1
    WEIGHT = 2  # sum q w
    WEIGHT_SQUARE = 3  # sum (q w)^2
    TERM_SIZE = 4  # sum q |w r|
    GAIN = 5  # logarithm of the wealth of bets against a mean weight of 1


class RunPeak(IntEnum):
    """Places among the maxima of a run."""

    WEIGHT = 0  # max q w
    TERM = 1  # max q |w r|


@dataclass(frozen=True)
class RecentTotals:
    """The totals of the longer run at some moments, [..., policies].

    `wealth`: the logarithm of the wealth of both runs together; `design_effect` of the weights.
    """

    totals: Array
    peaks: Array
    wealth: Array
    design_effect: Array

    @property
    def events(self) -> Array:
        """Events of the run that the policy has."""
        return np.asarray(self.totals[..., RunTotal.PRESENT, :])

    @property
    def mean_weight(self) -> Array:
        """Mean importance weight; NaN without events."""
        return _ratio(self.totals[..., RunTotal.WEIGHT, :], self.totals[..., RunTotal.Q, :])

    @property
    def effective_sample_size(self) -> Array:
        """`(sum q w)^2 / sum (q w)^2` (Kish)."""
        return np.nan_to_num(
            _ratio(self.totals[..., RunTotal.WEIGHT, :] ** 2, self.totals[..., RunTotal.WEIGHT_SQUARE, :])
        )

    @property
    def weight_share(self) -> Array:
        """The share of all weights that one event carries; NaN without any."""
        return _ratio(self.peaks[..., RunPeak.WEIGHT, :], self.totals[..., RunTotal.WEIGHT, :])

    @property
    def term_share(self) -> Array:
        """The share of the value (of all `|w r|`) that one event carries; NaN while there is none."""
        return _ratio(self.peaks[..., RunPeak.TERM, :], self.totals[..., RunTotal.TERM_SIZE, :])

    def sound(self, limits: Trust) -> Mask:
        """Whether each policy passes the checks of its weights, [..., policies]."""
        return np.asarray(self.mean_sound(limits) & self.size_sound(limits) & self.shares_sound(limits))

    def mean_sound(self, limits: Trust) -> Mask:
        """Whether the mean weight may be 1."""
        return np.asarray(self.wealth / self.design_effect < math.log(1.0 / limits.error))

    def size_sound(self, limits: Trust) -> Mask:
        """Whether there are enough effective events."""
        return np.asarray(self.effective_sample_size >= limits.effective_sample_size)

    def shares_sound(self, limits: Trust) -> Mask:
        """Whether no single event carries too much."""
        return np.fmax(self.weight_share, self.term_share) <= limits.largest_share


def start(policies: int) -> State:
    """The state before the first event; policies are axis 0. Of two runs, the second will replace the first."""
    return {
        "blocks": 0,
        "weights": mean_weight_test.start(policies),
        "totals": np.zeros((policies, 2, len(RunTotal))),
        "peaks": np.zeros((policies, 2, len(RunPeak))),
    }


def fold(state: State, evidence: Evidence, sums: BlockSums, propensity: Array, limits: Trust) -> tuple[Mask, State]:
    """Whether each policy passes after each of these blocks, [blocks, policies], and the next state."""
    gain, effects, memory = mean_weight_test.fold(state["weights"], evidence, sums, propensity)
    present, q, weight, square, size = sums.present, sums.q, sums.weight, sums.weight_square, sums.term_size
    steps = np.stack([present, q, weight, square, size, gain], axis=1)
    tops = np.stack([sums.weight_largest, sums.term_largest], axis=1)
    blocks, totals, peaks = state["blocks"], _policies_last(state["totals"]), _policies_last(state["peaks"])
    span, sound, first = max(1, SPAN // evidence.block), [], 0
    while first < len(steps):
        part = slice(first, first + span - blocks % span)
        total_path = running_sum(totals, np.repeat(steps[part, None], 2, axis=1))
        peak_path = running_max(peaks, np.repeat(tops[part, None], 2, axis=1))
        sound.append(_recent(total_path, peak_path, effects[part], blocks // span).sound(limits))
        blocks += len(total_path)
        first += len(total_path)
        totals, peaks = _turned(total_path[-1], peak_path[-1], blocks, span)
    after = {"blocks": blocks, "weights": memory, "totals": _policies_first(totals), "peaks": _policies_first(peaks)}
    return np.concatenate(sound), after


def _policies_first(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, -1, 0))


def _policies_last(array: Array) -> Array:
    return np.moveaxis(array, 0, -1)


def _turned(totals: Array, peaks: Array, blocks: int, span: int) -> tuple[Array, Array]:
    """The runs after these blocks: where a span is full, the second replaces the first and a new one starts."""
    if blocks % span:
        return totals, peaks
    kept = 0 if blocks == span else 1
    return (
        np.stack([totals[kept], np.zeros_like(totals[kept])]),
        np.stack([peaks[kept], np.zeros_like(peaks[kept])]),
    )


def recent(state: State, block: int) -> RecentTotals:
    """The totals after the last block."""
    effects = mean_weight_test.design_effect(state["weights"]["units"])
    totals, peaks = _policies_last(state["totals"]), _policies_last(state["peaks"])
    return _recent(totals, peaks, effects, state["blocks"] // max(1, SPAN // block))


def _recent(totals: Array, peaks: Array, effects: Array, started: int) -> RecentTotals:
    """The totals of both runs; the j-th run counts `1/(j (j + 1))` of the wealth, so all runs are one bet."""
    older, newer = totals[..., 0, RunTotal.GAIN, :], totals[..., 1, RunTotal.GAIN, :]
    wealth = older + _share_of_run(max(1, started))
    if started:
        wealth = np.logaddexp(wealth, newer + _share_of_run(started + 1))
    return RecentTotals(totals[..., 0, :, :], peaks[..., 0, :, :], wealth, effects)


def _share_of_run(number: int) -> float:
    return -math.log(number * (number + 1))


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(denominator > 0, numerator / denominator, np.nan))


def checks(
    policies: Sequence[str], recent: RecentTotals, seen: TrustFigures, limits: Trust, reward_range: tuple[float, float]
) -> Iterator[TrustCheck]:
    """All checks of all policies that have events."""
    for place, policy in enumerate(policies):
        if recent.events[place]:
            yield _mean_weight(policy, place, recent, limits)
            yield _sample_size(policy, place, recent, limits)
            yield _largest_share(policy, place, recent, limits)
            yield _rejected(policy, seen, limits)
            yield from _stale(policy, seen, limits)
            yield _reward_range(policy, seen, reward_range)


def _mean_weight(policy: str, place: int, recent: RecentTotals, limits: Trust) -> TrustCheck:
    mean, ok = float(recent.mean_weight[place]), bool(recent.mean_sound(limits)[place])
    said = f"mean weight {significant(mean)} over {counted(recent.events[place], 'event')}, expected 1"
    return TrustCheck(policy, "mean_weight", ok, said if ok else f"{said}: propensities or support are wrong")


def _sample_size(policy: str, place: int, recent: RecentTotals, limits: Trust) -> TrustCheck:
    size, least = float(recent.effective_sample_size[place]), limits.effective_sample_size
    ok = bool(recent.size_sound(limits)[place])
    said = f"effective sample size {significant(size)} of {counted(recent.events[place], 'event')}"
    return TrustCheck(policy, "effective_sample_size", ok, said if ok else f"{said}, under {significant(least)}")


def _largest_share(policy: str, place: int, recent: RecentTotals, limits: Trust) -> TrustCheck:
    of_weights, of_value = float(recent.weight_share[place]), float(recent.term_share[place])
    ok = bool(recent.shares_sound(limits)[place])
    share, what = max((of_weights, "all weights"), (np.nan_to_num(of_value), "the value"))
    said = f"one event carries {share:.1%} of {what}"
    if np.isnan(share):
        said = "no event has a weight above 0"
    return TrustCheck(policy, "largest_share", ok, said if ok else f"{said}, over {limits.largest_share:.0%}")


def _rejected(policy: str, seen: TrustFigures, limits: Trust) -> TrustCheck:
    share = seen.arrivals.share
    ok, said = share <= limits.rejected_share, f"{share:.1%} of events were rejected lately"
    return TrustCheck(policy, "rejected_share", ok, said if ok else f"{said}, over {limits.rejected_share:.0%}")


def _stale(policy: str, seen: TrustFigures, limits: Trust) -> Iterator[TrustCheck]:
    if limits.stale_after is None or seen.now is None or seen.newest is None:
        return
    age = seen.now - seen.newest
    ok, said = age <= limits.stale_after, f"the newest event is {in_words(age)} old"
    said = said if ok else f"{said}, over {format_duration(limits.stale_after)}"
    yield TrustCheck(policy, "stale", ok, said)


def _reward_range(policy: str, seen: TrustFigures, reward_range: tuple[float, float]) -> TrustCheck:
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    for each in seen.estimates:
        if each.policy != policy:
            continue
        where = f"of {each.estimator} on {each.average}"
        if each.lower is not None and each.upper is not None:
            found = f"the interval {where}, {significant(each.lower)} to {significant(each.upper)}"
            if each.lower > high + rounding or each.upper < low - rounding:
                said = f"{found}, lies outside the rewards, {low:g} to {high:g}"
                return TrustCheck(policy, "reward_range", False, said)
            if each.lower > each.upper + rounding:
                return TrustCheck(policy, "reward_range", False, f"{found}, is empty: no value agrees with the events")
        if each.lift_lower is not None and each.lift_upper is not None and each.lift_lower > each.lift_upper + rounding:
            found = (
                f"the interval of the lift {where}, {significant(each.lift_lower)} to {significant(each.lift_upper)}"
            )
            return TrustCheck(policy, "reward_range", False, f"{found}, is empty: no lift agrees with the events")
    return TrustCheck(policy, "reward_range", True, f"all intervals meet the rewards, {low:g} to {high:g}")
