"""Tell how wrong logged propensities may be before a candidate is not known to be better any more."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from streameval.ope.promotion.rules import RuleContext
from streameval.ope.report import Decision, Estimate

WEIGHTED = ("ips", "snips", "stratified_ips")
"""Kinds of estimators that average weighted rewards alone. A model of rewards would need another argument."""
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
    right, wrong = 1.0, LARGEST
    for _ in range(STEPS):
        factor = (right * wrong) ** 0.5
        least = min(value / factor, _with_odds(value, factor**-2))
        most = base if context.logged else max(base * factor, _with_odds(base, factor**2))
        right, wrong = (factor, wrong) if least - most >= margin else (right, factor)
    return right


def _with_odds(value: float, factor: float) -> float:
    """Return the value with odds that are this factor times as large."""
    return value * factor / (value * factor + 1.0 - value)


def with_factor(
    decision: Decision, pair: tuple[str, str] | None, estimates: Sequence[Estimate], context: RuleContext
) -> Decision:
    """Return a decision with the factor in its basis, unless it has none.

    Args:
        decision: the decision
        pair: the estimator and average of the deciding lift
        estimates: the estimates of the candidate
        context: the settings for every rule
    """
    row = next((row for row in estimates if (row.estimator, row.average) == pair), None)
    production = row.details.get("lift_production_value") if row else None
    if (
        row is None
        or production is None
        or decision.lower is None
        or not context.weights_average_1
        or context.is_ratio
        or row.estimator.partition("(")[0] not in WEIGHTED
    ):
        return decision
    factor = propensity_factor(decision.lower, production, context)
    return structs.replace(decision, basis=structs.replace(decision.basis, propensity_factor=factor))
