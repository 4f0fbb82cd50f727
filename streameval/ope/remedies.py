"""Say what to do about failed trust checks."""

from __future__ import annotations

from collections.abc import Iterable

from streameval.common.text import counted
from streameval.events.defects import REWARD_HINT
from streameval.ope.report import Report, TrustCheck

__all__ = ["causes_first", "remedy_of"]

PERCENT_RANGE = (50.0, 200.0)
"""Mean weights, or their inverses, that show that one of two probabilities is in percent."""

REMEDIES = {
    "mean_weight": "log the probability with which the shown action was chosen, and give every action some probability",
    "effective_sample_size": "log more events, explore more, or choose a candidate closer to production",
    "largest_share": "log more events, or give rarely shown actions a larger probability",
    "rejected_share": f"correct the events that are rejected; for rewards, {REWARD_HINT}",
    "missing_share": "log the candidate's probability with every event, or allow more in promotion.trust.missing_share",
    "reward_range": REWARD_HINT,
    "clipped_share": "raise reward.max, or allow more in promotion.trust.clipped_share: no number knows what is cut",
    "examination": "wait until the learned curve has followed a new layout, or shorten ranking.examination.horizon",
    "unsupported": "show some of the items that the candidate would show, or choose a candidate closer to production",
    "clusters": "log the user or session of each event as its `unit`",
    "calibration": "log the probability that was used in the draw, and the arm that chose as `logging_policy`",
    "arm_shares": "correct logging.arms, or find out why one arm loses events",
    "propensities": "log the probability that was used in the draw; `streameval check --propensities` names actions",
    "unmatched_share": "lengthen source.rewards.window, and log decisions and rewards with the same event_id",
    "repeated_events": "read each event once: leave out copies of files or frames, and give each decision an event_id",
    "stale": "find out why no events arrive",
}
"""Remedies by the trust check that fails."""


def causes_first(checks: Iterable[TrustCheck]) -> list[TrustCheck]:
    """Order failed checks: rejected events come first, as they may be why other checks fail."""
    return sorted(checks, key=lambda check: check.check != "rejected_share")


def remedy_of(report: Report, check: str, policy: str) -> str:
    """Return what to do if a policy fails a trust check, or nothing if the check is unknown."""
    if check == "mean_weight":
        mean = next((row.importance_weight_mean for row in report.estimates if row.policy == policy), None) or 1.0
        if PERCENT_RANGE[0] < max(mean, 1.0 / mean) < PERCENT_RANGE[1]:
            return "write the propensity and the candidate's probability in the same unit: one looks like percent"
    model = report.propensity_model
    if check == "missing_share" and model is not None and model.unknown:
        first = counted(model.unknown, "event")
        return f"give more events, or log the propensities: {first} have none, the first ones and rare actions"
    return REMEDIES.get(check, "")
