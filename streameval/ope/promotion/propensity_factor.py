"""Tell how wrong logged propensities may be before a candidate is not known to be better any more.

The factor is about the worst case. What given wrong propensities do is known exactly. Let `p` be the true propensity of
an action and `p^` the one in use. The expectation of the estimate minus the true value is for `ips`

    E[sum over actions a of  pi(a) r(a) (p(a) / p^(a) - 1)]

and for `scored_ips` the mean of `r (P / P^ - 1)` over all outcomes of value r. With a largest absolute reward of R, its
size is at most R times the mean of `|1 - P / P^|`. If no weight is wrong by more than a factor g, then
`|1 - p / p^| <= g - 1`. So with rewards from 0 on the bias is at most `g - 1` times the true value, and the true value
is at least the estimated one over g. This is the first bound of `propensity_factor`.

Sources: Swaminathan's thesis 2017, Lemma 2 and Theorem 3. They are Lemma 5.1 and Theorem 5.2 of Schnabel et al.,
Recommendations as treatments, ICML 2016. The factors are derived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from streameval.common.arrays import Array
from streameval.ope.promotion.rules import RuleContext
from streameval.ope.report import Decision, Estimate

WEIGHTED = ("ips", "snips", "stratified_ips")
"""Kinds of estimators that average weighted rewards alone. A model of rewards would need another argument."""
CLICKS = ("click_ips", "click_snips")
"""Kinds that average the gains of clicks, each with a full weight."""
LARGEST = 10.0
STEPS = 40


def propensity_factor(lower: float, production: float, context: RuleContext) -> float | None:
    """Return the largest factor by which all propensities may be wrong while the lift stays above the margin.

    Each importance weight may be too small or too large by up to this factor, in the least favourable way. Let `v` be
    the value at the lower bound of the lift, with rewards scaled to [0, 1]. Then the true value is at least

        min(v / g, v / (v + g^2 (1 - v)))

    with the factor g, as rewarded events have weights g times too large and all others g times too small. The first
    bound needs no mean of the weights, the second holds for self-normalised estimates. A production that is not the
    logging policy is worth at most as much as the same argument allows upwards.

    Args:
        lower: the lower bound of the lift
        production: the estimated value of production
        context: the settings for every rule

    Returns:
        The factor, at most 10, or None if the lift is not above the margin even with right propensities.

    >>> import numpy as np
    >>> context = RuleContext(0.0, 0.95, np.array([0.05]), (0.0, 1.0), 100, logged=True)
    >>> round(propensity_factor(0.1, 0.5, context), 3)  # the root of the odds ratio, sqrt(1.5), but at most .6 / .5
    1.2
    >>> round(propensity_factor(0.04, 0.1, context), 3)
    1.21
    """
    low, high = context.reward_range
    width = high - low
    base, margin = (production - low) / width, context.margin / width
    value = min(base + lower / width, 1.0)
    if not lower > context.margin or not 0 <= base <= 1:
        return None

    def worst(factor: float) -> float:
        least = min(value / factor, _with_odds(value, factor**-2))
        return least - (base if context.logged else max(base * factor, _with_odds(base, factor**2)))

    return _largest(lambda factor: worst(factor) >= margin)


def clicks_factor(lower: float, moved_gains: float, margin: float, is_ratio: bool = False) -> float | None:
    """Return how far all examination probabilities may be wrong, as a factor, while the lift stays above the margin.

    Each click on an item that the candidate ranks higher adds `(lambda - lambda_0) / theta` to the lift, and each click
    on an item that it ranks lower takes as much away. With the mean sums G and L of both, the lift is `G - L`, and with
    theta wrong by up to a factor g it is at least `G / g - g L`. Let `S = G + L` be the sum over all moved items, and
    `l` the lower bound of the lift. Then this is

        l (g + 1 / g) / 2 - S (g - 1 / g) / 2

    It is reached if every gain is at a rank that users see more often than assumed, and every loss at a rank that they
    see less often. A rank with both gains and losses cannot do so, so the factor is a careful one. An error that all
    ranks share counts, too, although it cancels out. `click_snips` has the margin times the mean weight of clicks on
    the other side, which is wrong by at most g.

    Args:
        lower: the lower bound of the lift
        moved_gains: the estimated sum S
        margin: the lift that a candidate must exceed
        is_ratio: whether the estimator is self-normalised

    Returns:
        The factor, at most 10, or None if the lift is not above the margin even with right probabilities.

    >>> round(clicks_factor(0.1, 0.5, 0.0), 3)  # gains of .3 and losses of .2: the root of their ratio
    1.225
    """
    if not lower > margin:
        return None
    total = max(moved_gains, abs(lower))

    def worst(factor: float) -> float:
        least = (lower * (factor + 1.0 / factor) - total * (factor - 1.0 / factor)) / 2.0
        return least - margin * ((factor if margin > 0 else 1.0 / factor) if is_ratio else 1.0)

    return _largest(lambda factor: worst(factor) >= 0.0)


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest factor between 1 and 10 up to which something holds, by bisection."""
    right, wrong = 1.0, LARGEST
    for _ in range(STEPS):
        factor = (right * wrong) ** 0.5
        right, wrong = (factor, wrong) if holds(factor) else (right, factor)
    return right


def _with_odds(value: float, factor: float) -> float:
    """Return the value with odds that are this factor times as large."""
    return value * factor / (value * factor + 1.0 - value)


def with_factor(
    decision: Decision,
    pair: tuple[str, str] | None,
    estimates: Sequence[Estimate],
    context: RuleContext,
    moved_gains: Array | None = None,
) -> Decision:
    """Return a decision with the factor in its basis, unless it has none.

    Args:
        decision: the decision
        pair: the estimator and average of the deciding lift
        estimates: the estimates of the candidate
        context: the settings for every rule
        moved_gains: recent sums of `Clicks.moved_gains` of the candidate, None for other events than rankings [2]
    """
    row = next((row for row in estimates if (row.estimator, row.average) == pair), None)
    if row is None or decision.lower is None or context.is_ratio:
        return decision
    value, production = (row.details.get(name) for name in ("lift_value", "lift_production_value"))
    if value is None or production is None:
        return decision
    kind, factor = row.estimator.partition("(")[0], None
    if moved_gains is not None and moved_gains[1] > 0 and kind in CLICKS:
        total = float(moved_gains[0] / moved_gains[1]) * (abs(value) + abs(production))
        factor = clicks_factor(decision.lower, total, context.margin, kind == "click_snips")
    elif context.weights_average_1 and kind in WEIGHTED:
        factor = propensity_factor(decision.lower, production, context)
    return structs.replace(decision, basis=structs.replace(decision.basis, propensity_factor=factor))
