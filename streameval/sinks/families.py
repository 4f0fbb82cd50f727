"""Which gauges are read off an Estimate: their names and what they mean. A new one is one entry."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from streameval.report import Estimate

Read = Callable[[Estimate], Any]


def in_details(key: str) -> Read:
    """Reads one of the numbers that an average or interval may have put into `Estimate.details`."""
    return lambda estimate: estimate.details.get(key)


class Family(NamedTuple):
    """A gauge read off every Estimate that knows it."""

    name: str
    help: str
    read: Read


PER_ESTIMATE = (
    Family(
        "streameval_policy_value",
        "Estimated mean reward per event if this policy had chosen the actions, by this estimator over this average.",
        attrgetter("value"),
    ),
    Family(
        "streameval_policy_value_lower",
        "Lower end of the interval of streameval_policy_value; absent while there is too little evidence for one. The "
        "value of ips may lie outside: the interval is cut to the rewards, and may know that the mean weight is 1.",
        attrgetter("lower"),
    ),
    Family(
        "streameval_policy_value_upper",
        "Upper end of the interval of streameval_policy_value; absent while there is too little evidence for one. The "
        "value of ips may lie outside: the interval is cut to the rewards, and may know that the mean weight is 1.",
        attrgetter("upper"),
    ),
    Family(
        "streameval_policy_lift",
        "Mean reward per event that this policy gains over the production policy, from both on the same events.",
        attrgetter("lift"),
    ),
    Family(
        "streameval_policy_lift_lower",
        "Lower end of the interval around streameval_policy_lift; above 0 the policy is better than production.",
        attrgetter("lift_lower"),
    ),
    Family(
        "streameval_policy_lift_upper",
        "Upper end of the interval around streameval_policy_lift; below 0 the policy is worse than production.",
        attrgetter("lift_upper"),
    ),
    Family(
        "streameval_policy_effective_sample_size",
        "Number of equally weighted events that would carry as much evidence; small means few events decide the value.",
        attrgetter("effective_sample_size"),
    ),
    Family(
        "streameval_policy_design_effect",
        "Variance over that of independent events, by blocks and by named units; above 1, intervals are widened by it.",
        in_details("design_effect"),
    ),
    Family(
        "streameval_policy_window_events",
        "Number of latest events that the window looks back over now; adaptive windows shrink when values drift.",
        in_details("window_events"),
    ),
    Family(
        "streameval_policy_decay_alpha",
        "Factor by which the weight of an event falls with each event after it.",
        in_details("alpha"),
    ),
    Family(
        "streameval_policy_horizon_events",
        "Number of events that a decaying average looks back over now, 1 / (1 - alpha); of a mixture, the mean of it.",
        in_details("horizon_events"),
    ),
    Family(
        "streameval_policy_lipschitz_per_event",
        "How fast the value drifts: the measured bound on its change per event, which the adaptive averages follow.",
        in_details("lipschitz_per_event"),
    ),
)

PER_AVERAGE = (
    Family(
        "streameval_policy_importance_weight_mean",
        "Mean of policy probability over logged propensity; away from 1 the propensities or the support are wrong.",
        attrgetter("importance_weight_mean"),
    ),
    Family(
        "streameval_policy_importance_weight_max",
        "Largest ratio of policy probability to logged propensity; a few large ones make every estimate unsteady.",
        attrgetter("importance_weight_max"),
    ),
    Family(
        "streameval_policy_unsupported_probability",
        "Mean probability that the policy gives to actions that were never tried; nothing is known of them.",
        in_details("unsupported_probability"),
    ),
)
