"""The main dashboard, from top to bottom: whom to ship, what they earn, what adapts, what to trust, is it healthy."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from streameval_dashboards import selection
from streameval_dashboards.parts import (
    About,
    AnyPanel,
    Band,
    Placed,
    Query,
    bands,
    columns,
    lines,
    marked,
    number,
    repeated,
    states,
)
from streameval_dashboards.promql import age, in_an_hour, or_none, quantile, rate, total
from streameval_dashboards.selection import ESTIMATE, INSTANCE, OF_ALL, POLICY

PRODUCTION = f"unless on (job, instance, policy) streameval_policy_lift{{{INSTANCE}}}"
"""Candidates have a lift over production; production has none over itself."""


def dashboard() -> models.Dashboard:
    """Which candidate to ship, and why one may believe it."""
    return selection.board(
        "streameval: which candidate to ship",
        "streameval",
        "Off-policy estimates of candidates against the policy in production, read from the top to the bottom.",
        other=("Pipeline", "streameval-pipeline"),
        variables=(*selection.of_instance(), *selection.of_estimate()),
        rows={
            "Which candidate to ship?": _ship(),
            "What is each worth, against production?": _worth(),
            "What is adaptation doing?": _adaptation(),
            "Can the numbers be trusted?": _trust(),
            "Is the pipeline healthy?": _health(),
        },
        of_policies=True,
    )


def _ship() -> Placed:
    queries = [
        Query(f"max by (policy) (streameval_policy_promotable{{{POLICY}}})", "promotable"),
        Query(f"min by (policy) (streameval_policy_lift_lower{{{ESTIMATE}}})", "lift, at least"),
        Query(f"avg by (policy) (streameval_policy_lift{{{ESTIMATE}}})", "lift"),
        Query(f"max by (policy) (streameval_policy_lift_upper{{{ESTIMATE}}})", "lift, at most"),
        Query(f"avg by (policy) (streameval_policy_value{{{ESTIMATE}}})", "value"),
        Query(f"min by (policy) (streameval_policy_effective_sample_size{{{ESTIMATE}}})", "effective sample size"),
        Query(f"min by (policy) (streameval_policy_trust_check_ok{{{POLICY}}})", "all checks passed"),
    ]
    table = columns(
        About(
            "Candidates now",
            "One line a candidate, the surest first. Lift is reward per event above production, with the ends of its "
            "interval. Promotable: the promotion rule holds; once it does, it takes more than an interval that reaches "
            "a little below 0 to end it. All checks passed: the numbers can be trusted. With two instances, it is "
            "promotable where one says so; of the numbers these are the more careful ones.",
            "short",
        ),
        "policy",
        queries,
        sorted_by="lift, at least",
        yes_or_no={"promotable": ("green", "text"), "all checks passed": ("green", "red")},
    )
    promotable = states(
        About(
            "Promotable",
            "When the promotion rule recommended a candidate in place of production. Why not is told by the status "
            "page and by /api/v1/report.",
            "bool_yes_no",
        ),
        Query(f"max by (policy, rule) (streameval_policy_promotable{{{POLICY}}})", "{{policy}} ({{rule}})"),
        texts={"0": ("no", "text"), "1": ("promotable", "green")},
    )
    lift = Band(
        "lift",
        "blue",
        f"avg(streameval_policy_lift{{{ESTIMATE}}})",
        f"min(streameval_policy_lift_lower{{{ESTIMATE}}})",
        f"max(streameval_policy_lift_upper{{{ESTIMATE}}})",
    )
    against_zero = bands(
        About(
            "Lift of $policy over production",
            "Reward per event that the candidate gains over production, from both on the same events, with its "
            "interval. The whole band above 0: better. The whole band below 0: worse. Across 0: not known yet.",
            "short",
        ),
        lift,
    )
    return [(24, 6, table), (24, 4, promotable), (8, 9, repeated(marked(against_zero, at=0.0), "policy"))]


def _worth() -> Placed:
    candidate = Band(
        "candidate",
        "blue",
        f"avg(streameval_policy_value{{{ESTIMATE}}})",
        f"min(streameval_policy_value_lower{{{ESTIMATE}}})",
        f"max(streameval_policy_value_upper{{{ESTIMATE}}})",
    )
    production = Band(
        "production",
        "orange",
        f"avg(streameval_policy_value{{{OF_ALL}}} {PRODUCTION})",
        f"min(streameval_policy_value_lower{{{OF_ALL}}} {PRODUCTION})",
        f"max(streameval_policy_value_upper{{{OF_ALL}}} {PRODUCTION})",
    )
    about = About(
        "Value of $policy and of production",
        "Mean reward per event if the policy had chosen the actions, with its interval. Bands that overlap do not "
        "mean that the difference is unknown: the lift, from both on the same events, is known far better.",
        "short",
    )
    return [(8, 9, repeated(bands(about, candidate, production), "policy"))]


def _adaptation() -> Placed:
    def of_averages(
        metric: str, title: str, description: str, unit: str, log_scale: bool = False, decimals: int | None = None
    ) -> AnyPanel:
        query = Query(f"avg by (policy, average) ({metric}{{{POLICY}}})", "{{policy}} {{average}}")
        panel = lines(About(title, description, unit), query, log_scale=log_scale, names_beside=True)
        return panel if decimals is None else panel.decimals(decimals)

    horizon = of_averages(
        "streameval_policy_horizon_events",
        "Horizon",
        "Number of latest events that decaying averages look back over; of the mixture, the mean of its decays. It "
        "falls when users change, and grows while they do not.",
        "short",
        log_scale=True,
    )
    window = of_averages(
        "streameval_policy_window_events",
        "Window",
        "Number of latest events that windows look back over; adaptive ones are short while values move.",
        "short",
        log_scale=True,
    )
    alpha = of_averages(
        "streameval_policy_decay_alpha",
        "Decay (alpha)",
        "Factor by which the weight of an event falls with each event after it; nearer to 1 remembers more.",
        "none",
        decimals=6,
    )
    drift = of_averages(
        "streameval_policy_lipschitz_per_event",
        "Drift per event (k)",
        "Measured bound on the change of the value with one event, which adaptive averages follow.",
        "sci",
    )
    detections = lines(
        About(
            "Drift detections in an hour",
            "Changes in what a policy earns, by the drift detector. An annotation: no estimate depends on it.",
            "short",
        ),
        Query(in_an_hour("streameval_policy_drift_detections_total", "policy"), "{{policy}}"),
        zero=True,
    )
    return [(12, 8, horizon), (12, 8, window), (12, 8, alpha), (12, 8, drift), (24, 6, detections)]


def _trust() -> Placed:
    checks = states(
        About(
            "Trust checks",
            "Whether the numbers of each policy pass all checks, and under its name each check that has failed in the "
            "time that is shown. While one fails, nothing is promotable.",
            "bool_yes_no",
        ),
        Query(_checks(), "{{policy}}: {{check}}"),
        texts={"0": ("failed", "red"), "1": ("passed", "green")},
    )
    size = lines(
        About(
            "Effective sample size",
            "Number of equally weighted events that would carry as much evidence as the chosen average has. The fewer, "
            "the wider the interval; the check among those above asks for 100 within a few hundred thousand events.",
            "short",
        ),
        Query(f"min by (policy) (streameval_policy_effective_sample_size{{{OF_ALL}}})", "{{policy}}"),
        log_scale=True,
    )
    mean_weight = lines(
        About(
            "Mean importance weight, against 1",
            "Mean of policy probability over logged propensity, by the average that has most evidence. A few per cent "
            "are chance. Further from 1 propensities, probabilities or the support are wrong, and values as much.",
            "short",
        ),
        Query(_mean_weight(), "{{policy}}"),
    )
    mean_weight.axis_soft_min(0.9).axis_soft_max(1.1)
    largest = lines(
        About(
            "Largest importance weight",
            "Largest ratio of policy probability to logged propensity; a few large ones make estimates unsteady.",
            "short",
        ),
        Query(f"max by (policy) (streameval_policy_importance_weight_max{{{POLICY}}})", "{{policy}}"),
        log_scale=True,
    )
    design = lines(
        About(
            "Design effect",
            "How many times larger the variance is than if events were independent, by blocks of consecutive events "
            "and, where events name their unit (a user, a session), by clusters of those far apart. Intervals are "
            "widened by it where it is above 1.",
            "short",
        ),
        Query(f"max by (policy) (streameval_policy_design_effect{{{OF_ALL}}})", "{{policy}}"),
    )
    unsupported = lines(
        About(
            "What production never does",
            "Mean probability that the candidate gives to actions that were never tried; nothing is known of them, and "
            "no estimate can make up for it. Only where events carry whole distributions.",
            "percentunit",
        ),
        Query(f"max by (policy) (streameval_policy_unsupported_probability{{{POLICY}}})", "{{policy}}"),
        zero=True,
    )
    left_out = lines(
        About(
            "Events left out",
            "Share of events that were rejected (repeated deliveries not counted), or that said nothing usable about "
            "a policy. Estimates stand on the others.",
            "percentunit",
        ),
        Query(_rejected_share(), "rejected"),
        Query(_missing_share(), "without {{policy}}"),
        zero=True,
    )
    return [
        (24, 7, checks),
        (8, 8, size),
        (8, 8, marked(mean_weight, at=1.0)),
        (8, 8, largest),
        (8, 8, marked(design, at=1.0)),
        (8, 8, unsupported),
        (8, 8, left_out),
    ]


def _checks() -> str:
    """All checks of a policy in one, and one by one those that have failed in the time shown."""
    checks = f"streameval_policy_trust_check_ok{{{INSTANCE}}}"
    together = f'label_replace(min by (policy) ({checks}), "check", "all checks", "", "")'
    failed = f"min by (policy, check) (min_over_time({checks}[$__range] @ end())) == 0"
    return f"{together} or (min by (policy, check) ({checks}) and on (policy, check) ({failed}))"


def _mean_weight() -> str:
    """The mean weight over the average with the largest effective sample size: those of short ones are mostly noise."""
    sizes = f"min by (policy, average) (streameval_policy_effective_sample_size{{{POLICY}}})"
    most = f"{sizes} == on (policy) group_left () max by (policy) ({sizes})"
    weights = f"avg by (policy, average) (streameval_policy_importance_weight_mean{{{POLICY}}})"
    return f"avg by (policy) ({weights} and on (policy, average) ({most}))"


def _rejected_share() -> str:
    rejected = f'sum(rate(streameval_events_rejected_total{{{INSTANCE}, reason!="duplicate"}}[$__rate_interval]))'
    accepted = rate("streameval_events_accepted_total")
    return f"{rejected} / ({rejected} + {accepted})"


def _missing_share() -> str:
    missing = rate("streameval_policy_events_missing_total", "policy", of=POLICY)
    accepted = rate("streameval_events_accepted_total")
    return f"{missing} / on () group_left () {accepted}"


def _health() -> Placed:
    ready = number(
        About("Ready instances", "Instances that have reached their source and have a Report.", "none"),
        Query(or_none(total("streameval_ready")), "ready"),
        (1.0, "green"),
        first="red",
    )
    events = number(
        About("Events", "Events used per second, all instances together.", "eps"),
        Query(rate("streameval_events_accepted_total"), "accepted"),
    )
    lag = number(
        About("Lag", "Events that wait to be read, of the instance that has most.", "short"),
        Query(f"max(sum by (job, instance) (streameval_consumer_lag_events{{{INSTANCE}}}))", "lag"),
        (10_000.0, "orange"),
        (100_000.0, "red"),
    )
    newest = number(
        About("Newest event", "How long ago the newest event happened, of the instance that is behind most.", "s"),
        Query(f"max({age('streameval_last_event_timestamp_seconds')})", "age"),
        (300.0, "orange"),
        (900.0, "red"),
    )
    delay = number(
        About("Delay", "From the time of an event to the moment it is counted: 99 of 100 are faster.", "s"),
        Query(quantile("streameval_event_delay_seconds", 0.99), "delay"),
        (60.0, "orange"),
        (900.0, "red"),
    )
    snapshot = number(
        About("Newest snapshot", "How long ago the state was written; after a crash it is read again from there.", "s"),
        Query(f"max({age('streameval_snapshot_timestamp_seconds')})", "age"),
        (120.0, "orange"),
        (300.0, "red"),
    )
    return [(4, 5, panel) for panel in (ready, events, lag, newest, delay, snapshot)]
