"""Trust checks in words: each says of a policy whether its numbers can be believed, and what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from streameval.common.text import counted, format_duration
from streameval.ope.promotion.arrivals import Arrivals
from streameval.ope.promotion.reasons import number
from streameval.ope.promotion.settings import Trust
from streameval.ope.promotion.trust_checks import RecentTotals
from streameval.ope.report import Estimate, TrustCheck

OF_THE_STREAM = ("rejected_share", "stale")
"""Checks that say the same of every policy."""


class TrustFigures(NamedTuple):
    """What is known at the moment of a Report beside the blocks.

    `newest`, `now`: epoch seconds, None: not known. `has_lift`: whether a lift is averaged on a mixture.
    """

    arrivals: Arrivals
    newest: float | None
    estimates: Sequence[Estimate]
    now: float | None = None
    has_lift: bool = True


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
    said = f"mean weight {number(mean)} over {counted(recent.events[place], 'event')}, expected 1"
    return TrustCheck(policy, "mean_weight", ok, said if ok else f"{said}: propensities or support are wrong")


def _sample_size(policy: str, place: int, recent: RecentTotals, limits: Trust) -> TrustCheck:
    size, least = float(recent.effective_sample_size[place]), limits.effective_sample_size
    ok = bool(recent.size_sound(limits)[place])
    said = f"effective sample size {number(size)} of {counted(recent.events[place], 'event')}"
    return TrustCheck(policy, "effective_sample_size", ok, said if ok else f"{said}, under {number(least)}")


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
    ok, said = age <= limits.stale_after, f"the newest event is {_span(age)} old"
    said = said if ok else f"{said}, over {format_duration(limits.stale_after)}"
    yield TrustCheck(policy, "stale", ok, said)


def _span(seconds: float) -> str:
    """A duration in one unit.

    >>> [_span(seconds) for seconds in (-3.0, 1.0, 42.4, 5400.0, 200_000.0)]
    ['0 seconds', '1 second', '42 seconds', '90 minutes', '56 hours']
    """
    if seconds < 300:
        return counted(max(seconds, 0.0), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 18_000 else f"{seconds / 3600:,.0f} hours"


def _reward_range(policy: str, seen: TrustFigures, reward_range: tuple[float, float]) -> TrustCheck:
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    for each in seen.estimates:
        if each.policy != policy:
            continue
        where = f"of {each.estimator} on {each.average}"
        if each.lower is not None and each.upper is not None:
            found = f"the interval {where}, {number(each.lower)} to {number(each.upper)}"
            if each.lower > high + rounding or each.upper < low - rounding:
                said = f"{found}, lies outside the rewards, {low:g} to {high:g}"
                return TrustCheck(policy, "reward_range", False, said)
            if each.lower > each.upper + rounding:
                return TrustCheck(policy, "reward_range", False, f"{found}, is empty: no value agrees with the events")
        if each.lift_lower is not None and each.lift_upper is not None and each.lift_lower > each.lift_upper + rounding:
            found = f"the interval of the lift {where}, {number(each.lift_lower)} to {number(each.lift_upper)}"
            return TrustCheck(policy, "reward_range", False, f"{found}, is empty: no lift agrees with the events")
    return TrustCheck(policy, "reward_range", True, f"all intervals meet the rewards, {low:g} to {high:g}")
