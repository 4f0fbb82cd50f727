"""Build the main dashboard, from top to bottom: decisions, values, adaptation, trust, health of the pipeline."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as models

from streameval_dashboards import selection
from streameval_dashboards.parts import (
    About,
    AnyPanel,
    Bounded,
    Placed,
    Query,
    by_number,
    columns,
    intervals,
    lines,
    marked,
    number,
    repeated,
    states,
)
from streameval_dashboards.promql import age, hourly_increase, or_none, quantile, rate, total
from streameval_dashboards.selection import ALL_ESTIMATES, ALL_ON_AVERAGE, ESTIMATE, INSTANCE, POLICY

PRODUCTION = f"unless on (job, instance, policy) streameval_policy_lift{{{INSTANCE}}}"
"""Selects production: candidates have a lift over production, and production has none."""
BOUND_SERIES = (("min", "_lower", ", lower"), ("avg", "", ""), ("max", "_upper", ", upper"))
"""For a number and its bounds: how to combine instances, and the ends of the metric's name and of the legend."""


def dashboard() -> models.Dashboard:
    """Build the main dashboard."""
    return selection.board(
        "streameval: which candidate to ship",
        "streameval",
        "Off-policy estimates of candidates compared with the production policy. Read it from top to bottom.",
        other=("Pipeline", "streameval-pipeline"),
        variables=(*selection.instance_variables(), *selection.estimate_variables()),
        rows={
            "Which candidate to ship?": _ship(),
            "How does each compare with production?": _worth(),
            "What is adaptation doing?": _adaptation(),
            "Can the numbers be trusted?": _trust(),
            "Is the pipeline healthy?": _health(),
        },
        policy_marks=True,
    )


def _ship() -> Placed:
    queries = [
        Query(f"max by (policy) (streameval_policy_promotable{{{POLICY}}})", "promotable"),
        Query(f"min by (policy) (streameval_policy_lift_ratio_lower{{{ESTIMATE}}})", "relative lift, at least"),
        Query(f"avg by (policy) (streameval_policy_lift_ratio{{{ESTIMATE}}})", "relative lift"),
        Query(f"max by (policy) (streameval_policy_lift_ratio_upper{{{ESTIMATE}}})", "relative lift, at most"),
        Query(f"min by (policy) (streameval_policy_lift_lower{{{ESTIMATE}}})", "lift, at least"),
        Query(f"avg by (policy) (streameval_policy_lift{{{ESTIMATE}}})", "lift"),
        Query(f"max by (policy) (streameval_policy_lift_upper{{{ESTIMATE}}})", "lift, at most"),
        Query(f"avg by (policy) (streameval_policy_value{{{ESTIMATE}}})", "value"),
        Query(f"min by (policy) (streameval_policy_effective_sample_size{{{ESTIMATE}}})", "effective sample size"),
        Query(f"min by (policy) (streameval_policy_trust_check_ok{{{POLICY}}})", "all checks passed"),
        Query(f"max by (policy) (streameval_policy_beaten_by_leader{{{POLICY}}})", "beaten by the best"),
    ]
    table = columns(
        About(
            "Candidates now",
            "One row per candidate, the highest lower bound first. Lift is the extra reward per event over production, "
            "with the bounds of its interval. Relative lift is the lift over production's value. Promotable: the "
            "promotion rule holds. An interval that reaches slightly below 0 does not end it. All checks passed: the "
            "estimates can be trusted. With two instances, a candidate is promotable if one of them reports it, and "
            "the numbers are the more cautious of the two. Beaten by the best: another candidate earns more, which is "
            "known however often you look.",
            "short",
        ),
        "policy",
        queries,
        sorted_by="lift, at least",
        yes_or_no={
            "promotable": ("green", "text"),
            "all checks passed": ("green", "red"),
            "beaten by the best": ("orange", "text"),
        },
        percent=("relative lift, at least", "relative lift", "relative lift, at most"),
    )
    promoted = f"and on (job, instance, policy, rule) (streameval_policy_promotable{{{POLICY}}} == 1)"
    answer = number(
        About(
            "Which candidate earns more than production, and how much at least?",
            "Each promotable candidate with the decision bound of its lift, in reward per event: over whole days and "
            "weeks by the rule periodic, at this minute by paired. A candidate stays promotable while this is slightly "
            "below the margin. Not known: no candidate is promotable yet, and the status page gives the reason.",
            "short",
        ),
        Query(
            f"min by (policy) (streameval_policy_decision_lift_lower{{{POLICY}}} {promoted})",
            "{{policy}}, lift at least",
        ),
        named=("policy", "no candidate"),
    )
    promotable = states(
        About(
            "Promotable",
            "Times at which the promotion rule recommended the candidate over production. The status page and "
            "/api/v1/report give the reason if it does not.",
            "bool_yes_no",
        ),
        Query(f"max by (policy, rule) (streameval_policy_promotable{{{POLICY}}})", "{{policy}} ({{rule}})"),
        texts={"0": ("no", "text"), "1": ("promotable", "green")},
    )
    lift = Bounded(
        "lift",
        "blue",
        f"avg(streameval_policy_lift{{{ESTIMATE}}})",
        f"min(streameval_policy_lift_lower{{{ESTIMATE}}})",
        f"max(streameval_policy_lift_upper{{{ESTIMATE}}})",
    )
    against_zero = intervals(
        About(
            "Lift of $policy over production",
            "Extra reward per event over production, estimated on the same events, with its interval. The whole "
            "interval above 0: better. The whole interval below 0: worse. An interval that includes 0: not known yet.",
            "short",
        ),
        lift,
    )
    return [
        (24, 4, answer),
        (24, 6, table),
        (24, 4, promotable),
        (8, 9, repeated(marked(against_zero, threshold=0.0), "policy")),
        (8, 9, repeated(_phases(), "policy")),
        (24, 6, _rewards()),
        (24, 8, _segments()),
    ]


def _phases() -> AnyPanel:
    phase = f'{POLICY}, period="$period"'
    lift, error = (f"streameval_policy_phase_lift{end}{{{phase}}}" for end in ("", "_error"))
    usual = Bounded(
        "usual lift",
        "blue",
        f"avg by (phase) ({lift})",
        f"min by (phase) ({lift} - 2 * {error})",
        f"max by (phase) ({lift} + 2 * {error})",
    )
    return by_number(
        About(
            "Lift of $policy by phase of $period",
            "Lift that each phase used to have, with two standard errors; its newest lift; and its share of the "
            "traffic. The rule periodic compares whole periods with it. 1d: the hours of the day in UTC. 7d: the days "
            "of the week, 0 is Monday. Empty until one whole period has been seen.",
            "short",
        ),
        "phase",
        usual,
        Query(f"avg by (phase) (streameval_policy_phase_lift_latest{{{phase}}})", "newest lift"),
        Query(f"avg by (phase) (streameval_policy_phase_share{{{phase}}})", "share of traffic"),
    )


def _rewards() -> AnyPanel:
    selected = f'{POLICY}, estimator="$estimator", average="$average"'

    def reward_query(operation: str, metric: str, selector: str = selected) -> str:
        row = '"policy", ", ", "policy", "reward"'
        return f"{operation} by (policy) (label_join(streameval_policy_{metric}{{{selector}}}, {row}))"

    queries = [
        Query(reward_query("avg", "value"), "value of the policy"),
        Query(reward_query("min", "lift_lower"), "lift, at least"),
        Query(reward_query("avg", "lift"), "lift"),
        Query(reward_query("max", "lift_upper"), "lift, at most"),
        Query(reward_query("avg", "lift_ratio"), "relative lift"),
        *(
            Query(reward_query(operation, f"guardrail_{metric}", POLICY), name)
            for operation, metric, name in (
                ("min", "max_loss", "may lose"),
                ("min", "lift_bound", "decision bound"),
                ("min", "kept", "guardrail kept"),
            )
        ),
    ]
    return columns(
        About(
            "Lift of every reward",
            "One row per candidate and reward, by the chosen estimator and average, the lowest lower bound of the lift "
            "first. A guardrail is kept while the decision bound of its lift is above minus the loss that is allowed. "
            "Rewards without these numbers are not guardrails. A candidate is promotable only while it keeps all of "
            "them.",
            "short",
        ),
        "policy",
        queries,
        sorted_by="lift, at least",
        yes_or_no={"guardrail kept": ("green", "red")},
        percent=("relative lift",),
        descending=False,
    )


def _segments() -> AnyPanel:
    def value_query(operation: str, metric: str) -> str:
        series, row = f"streameval_segment_policy_{metric}{{{POLICY}}}", '"policy", ", ", "policy", "segment", "value"'
        return or_none(f"{operation} by (policy) (label_join({series}, {row}))", "policy")

    queries = [
        Query(value_query("max", "share"), "share"),
        Query(value_query("min", "events"), "effective events"),
        Query(value_query("min", "value_lower"), "value, at least"),
        Query(value_query("avg", "value"), "value of the policy"),
        Query(value_query("max", "value_upper"), "value, at most"),
        Query(value_query("min", "lift_lower"), "lift, at least"),
        Query(value_query("avg", "lift"), "lift"),
        Query(value_query("max", "lift_upper"), "lift, at most"),
    ]
    return columns(
        About(
            "Lift by segment",
            "One row per candidate and value of a segment, the lowest upper bound of the lift first. If it is below 0, "
            "the candidate is worse than production on these events. Lifts times shares add up to the overall lift. "
            "The intervals of a candidate hold together. Empty unless segments are configured.",
            "short",
        ),
        "policy",
        queries,
        sorted_by="lift, at most",
        yes_or_no={},
        percent=("share",),
        descending=False,
    )


def _worth() -> Placed:
    candidate = Bounded(
        "candidate",
        "blue",
        f"avg(streameval_policy_value{{{ESTIMATE}}})",
        f"min(streameval_policy_value_lower{{{ESTIMATE}}})",
        f"max(streameval_policy_value_upper{{{ESTIMATE}}})",
    )
    production = Bounded(
        "production",
        "orange",
        f"avg(streameval_policy_value{{{ALL_ESTIMATES}}} {PRODUCTION})",
        f"min(streameval_policy_value_lower{{{ALL_ESTIMATES}}} {PRODUCTION})",
        f"max(streameval_policy_value_upper{{{ALL_ESTIMATES}}} {PRODUCTION})",
    )
    about = About(
        "Value of $policy and of production",
        "Mean reward per event if the policy had chosen the actions, with its interval. Overlapping intervals do not "
        "mean that the difference is unknown: the lift, estimated on the same events, is far more precise.",
        "short",
    )
    return [
        (8, 9, repeated(intervals(about, candidate, production), "policy")),
        (16, 8, _quantiles()),
        (8, 8, _limits()),
        (24, 8, _per_unit()),
    ]


def _quantiles() -> AnyPanel:
    def quantile_query(operation: str, end: str) -> str:
        series = f"streameval_policy_reward_quantile{end}{{{INSTANCE}}}"
        row = '"policy", ", ", "reward", "level", "policy"'
        return or_none(f"{operation} by (policy) (label_join({series}, {row}))", "policy")

    return columns(
        About(
            "Quantiles of rewards",
            "One row per reward, level and policy, production included, since the state started. A bound is missing if "
            "too few events lie beyond the quantile. Empty unless a reward has quantiles.",
            "short",
        ),
        "policy",
        [
            Query(quantile_query("avg", ""), "quantile"),
            Query(quantile_query("min", "_lower"), "at least"),
            Query(quantile_query("max", "_upper"), "at most"),
        ],
        sorted_by="policy",
        yes_or_no={},
        descending=False,
    )


def _per_unit() -> AnyPanel:
    def unit_query(name: str) -> str:
        row = '"policy", ", ", "reward", "policy"'
        return or_none(f"avg by (policy) (label_join(streameval_policy_{name}{{{INSTANCE}}}, {row}))", "policy")

    shown = {
        "units": "units",
        "unit_value": "per unit",
        "unit_value_lower": "at least",
        "unit_value_upper": "at most",
        "unit_lift": "lift",
        "unit_lift_lower": "lift at least",
        "unit_lift_upper": "lift at most",
    }
    return columns(
        About(
            "Rewards per unit",
            "Reward per user or session in the last whole window, and its lift over production, at the visits that "
            "production brought: how often units return under a candidate is unknown. Empty without `per_unit`.",
            "short",
        ),
        "policy",
        [Query(unit_query(name), title) for name, title in shown.items()],
        sorted_by="policy",
        yes_or_no={},
        descending=False,
    )


def _limits() -> AnyPanel:
    return lines(
        About(
            "Limits of rewards",
            "Quantile of earlier rewards that the next rewards are clipped at, with max: auto. A limit that rises "
            "means that large rewards grow. 0 unless a limit is learned.",
            "short",
        ),
        Query(or_none(f"max by (reward) (streameval_reward_limit{{{INSTANCE}}})", "reward"), "{{reward}}"),
        zero=True,
    )


def _learner_lines(title: str, text: str, metric: str) -> timeseries.Panel:
    """Draw a metric of the candidates that learn."""
    query = Query(or_none(f"max by (policy) ({metric}{{{POLICY}}})", "policy"), "{{policy}}")
    return lines(About(title, text, "short"), query)


def _adaptation() -> Placed:
    def average_lines(
        metric: str, title: str, description: str, unit: str, log_scale: bool = False, decimals: int | None = None
    ) -> AnyPanel:
        query = Query(f"avg by (policy, average) ({metric}{{{POLICY}}})", "{{policy}} {{average}}")
        panel = lines(About(title, description, unit), query, log_scale=log_scale, names_on_the_right=True)
        return panel if decimals is None else panel.decimals(decimals)

    horizon = average_lines(
        "streameval_policy_horizon_events",
        "Horizon",
        "Number of latest events that a decaying average looks back over. For the mixture, it is the mean of its "
        "decays. It falls when users change, and grows while they do not.",
        "short",
        log_scale=True,
    )
    window = average_lines(
        "streameval_policy_window_events",
        "Window",
        "Number of latest events in a window. Adaptive windows are short while values change.",
        "short",
        log_scale=True,
    )
    alpha = average_lines(
        "streameval_policy_decay_alpha",
        "Decay (alpha)",
        "Factor by which the weight of an event falls with each later event. Nearer to 1 looks back further.",
        "none",
        decimals=6,
    )
    drift = average_lines(
        "streameval_policy_lipschitz_per_event",
        "Drift per event (k)",
        "Measured bound on the change of the value per event, used by adaptive averages.",
        "sci",
    )
    bias = average_lines(
        "streameval_policy_bias_bound",
        "Bound on the bias from drift",
        "How far an average may be from the present value, because it looks back while values change. Adaptive "
        "averages keep it about as small as the noise.",
        "short",
    )
    detections = lines(
        About(
            "Drift detections in an hour",
            "Changes of a policy's reward found by the drift detector. No estimate depends on them.",
            "short",
        ),
        Query(hourly_increase("streameval_policy_drift_detections_total", "policy"), "{{policy}}"),
        zero=True,
    )
    regret = _learner_lines(
        "Regret of candidates that learn",
        "Cumulative value of production minus the value of a candidate that learns, or of its frozen copy. Below 0, "
        "the candidate is better. 0 without candidates that learn.",
        "streameval_policy_regret",
    )
    steps = _learner_lines(
        "Steps of candidates that learn",
        "Length of the last step in the space of the weights. It falls while a policy settles, and rises when users "
        "change. 0 without candidates that learn.",
        "streameval_policy_step_norm",
    )
    version = _learner_lines(
        "Newest frozen copy",
        "Number of the newest frozen copy of a candidate that learns (`versions_of`). 0 without one.",
        "streameval_policy_version",
    )
    failures = _learner_lines(
        "Events not learned from",
        "Events since the start that the code of a candidate could not learn from. StreamevalLearningStopped fires "
        "if they are more than half. 0 without candidates that learn.",
        "streameval_policy_learning_failures",
    )
    return [
        *((12, 8, panel) for panel in (horizon, window, alpha, drift)),
        *((12, 6, panel) for panel in (bias, detections)),
        *((6, 7, panel) for panel in (marked(regret, threshold=0.0), steps, failures, version)),
    ]


def _trust() -> Placed:
    checks = states(
        About(
            "Trust checks",
            "Whether the estimates of each policy pass all checks, followed by each check that has failed in the "
            "displayed time range. While one fails, nothing is promotable.",
            "bool_yes_no",
        ),
        Query(_checks(), "{{policy}}: {{check}}"),
        texts={"0": ("failed", "red"), "1": ("passed", "green")},
    )
    propensities = states(
        About(
            "Propensities",
            "Whether the propensities of all estimates are logged, or estimated by a model because the log lacks them. "
            "Intervals do not include the error of estimated propensities.",
            "short",
        ),
        Query(or_none(f'max(streameval_propensity_info{{{INSTANCE}, kind="estimated"}})'), "propensities"),
        texts={"0": ("logged", "green"), "1": ("estimated", "orange")},
    )
    losses = lines(
        About(
            "Loss of the propensity model",
            "Mean of -ln p of the logged actions over recent events, by the model of propensities and by the shares of "
            "the actions alone. If the fields of the model help, it is below the shares. 0 if propensities are logged.",
            "short",
        ),
        Query(or_none(f"max by (model) (streameval_propensity_log_loss{{{INSTANCE}}})", "model"), "{{model}}"),
        Query(
            or_none(f"max by (model) (streameval_propensity_baseline_log_loss{{{INSTANCE}}})", "model"),
            "{{model}}, shares alone",
        ),
        zero=True,
    )
    size = lines(
        About(
            "Effective sample size",
            "Number of equally weighted events with as much evidence as the chosen average. Fewer events give a wider "
            "interval. The trust check requires 100 within a few hundred thousand events.",
            "short",
        ),
        Query(f"min by (policy) (streameval_policy_effective_sample_size{{{ALL_ESTIMATES}}})", "{{policy}}"),
        log_scale=True,
    )
    rewarded = lines(
        About(
            "Effective number of rewarded events",
            "Number of equally weighted rewarded events that would carry as much of the value on the chosen average. "
            "If it is small, a few events decide the value, even if the effective sample size is large.",
            "short",
        ),
        Query(f"min by (policy) (streameval_policy_reward_effective_sample_size{{{ALL_ESTIMATES}}})", "{{policy}}"),
        log_scale=True,
    )
    mean_weight = lines(
        About(
            "Mean importance weight, against 1",
            "Mean of policy probability divided by logged propensity, on the average with the most evidence. "
            "Deviations of a few per cent are chance. Larger ones mean that propensities, probabilities or the support "
            "are wrong, and values are wrong by as much.",
            "short",
        ),
        Query(_mean_weight(), "{{policy}}"),
    )
    mean_weight.axis_soft_min(0.9).axis_soft_max(1.1)
    largest = lines(
        About(
            "Largest importance weight",
            "Largest ratio of policy probability to logged propensity. A few large weights make estimates noisy.",
            "short",
        ),
        Query(f"max by (policy) (streameval_policy_importance_weight_max{{{POLICY}}})", "{{policy}}"),
        log_scale=True,
    )
    design = lines(
        About(
            "Design effect",
            "Ratio of the variance to the variance of independent events, measured on blocks of consecutive events. "
            "If events have a unit (the id of a user or session), it is also measured on clusters: all events of one "
            "unit, however far apart. Above 1, it widens the intervals.",
            "short",
        ),
        Query(f"max by (policy) (streameval_policy_design_effect{{{ALL_ESTIMATES}}})", "{{policy}}"),
    )
    unsupported = lines(
        About(
            "Unsupported probability",
            "Mean probability of the candidate for actions that production never takes. The log has no evidence about "
            "them, and no estimator can replace it. Only known if events carry full distributions.",
            "percentunit",
        ),
        Query(f"max by (policy) (streameval_policy_unsupported_probability{{{POLICY}}})", "{{policy}}"),
        zero=True,
    )
    left_out = lines(
        About(
            "Excluded events",
            "Share of events that were rejected (excluding repeated deliveries), or that had no usable probability of "
            "a policy. Estimates use the other events only.",
            "percentunit",
        ),
        Query(_rejected_share(), "rejected"),
        Query(_missing_share(), "without {{policy}}"),
        zero=True,
    )
    looks = lines(
        About(
            "Looks at ranks",
            "How often users look at each rank, relative to rank 1, as learned from swaps or random rankings. "
            "Empty unless events are rankings and the examination is learned. A jump means a new layout.",
            "percentunit",
        ),
        Query(f"max by (rank) (streameval_examination{{{INSTANCE}}})", "rank {{rank}}"),
        zero=True,
    )
    calibration = lines(
        About(
            "Estimated less seen, during a ramp",
            "For each policy that events name as logging_policy: the estimate from the events of the others minus the "
            "mean reward of its own events, on the chosen average, with the interval. If it stays away from 0, then "
            "propensities are wrong, and the trust check calibration fails. 0 while no event names a candidate.",
            "short",
        ),
        *(
            Query(
                or_none(
                    f"{operation} by (policy) (streameval_policy_calibration_error{end}{{{ALL_ON_AVERAGE}}})", "policy"
                ),
                f"{{{{policy}}}}{bound}",
            )
            for operation, end, bound in BOUND_SERIES
        ),
    )
    seen = lines(
        About(
            "Estimated and seen, during a ramp",
            "For each policy that events name as logging_policy: the mean reward of its own events with its interval, "
            "and the estimate from the events of the others, both for the first reward on the chosen average. "
            "0 while no event names a candidate.",
            "short",
        ),
        Query(or_none(f"avg by (policy) ({_estimated()})", "policy"), "{{policy}}, estimated"),
        *(
            Query(
                or_none(
                    f"{operation} by (policy) (streameval_policy_onpolicy_value{end}{{{ALL_ON_AVERAGE}}})", "policy"
                ),
                f"{{{{policy}}}}, seen{bound}",
            )
            for operation, end, bound in BOUND_SERIES
        ),
    )
    return [
        (24, 7, checks),
        (12, 5, propensities),
        (12, 5, losses),
        (8, 8, size),
        (8, 8, rewarded),
        (8, 8, marked(mean_weight, threshold=1.0)),
        (8, 8, largest),
        (8, 8, marked(design, threshold=1.0)),
        (8, 8, unsupported),
        (8, 8, left_out),
        (8, 8, looks),
        (8, 8, seen),
        (8, 8, marked(calibration, threshold=0.0)),
    ]


def _estimated() -> str:
    """Return the estimate from the events of others: the sum of what the policy earned itself and the difference."""
    own, error = "streameval_policy_onpolicy_value", "streameval_policy_calibration_error"
    return f"{own}{{{ALL_ON_AVERAGE}}} + {error}{{{ALL_ON_AVERAGE}}}"


def _checks() -> str:
    """Return all checks of a policy combined, and each check that has failed in the displayed time range."""
    checks = f"streameval_policy_trust_check_ok{{{INSTANCE}}}"
    together = f'label_replace(min by (policy) ({checks}), "check", "all checks", "", "")'
    failed = f"min by (policy, check) (min_over_time({checks}[$__range] @ end())) == 0"
    return f"{together} or (min by (policy, check) ({checks}) and on (policy, check) ({failed}))"


def _mean_weight() -> str:
    """Return the mean weight on the average with the largest effective sample size. Short averages are mostly noise."""
    sizes = f"min by (policy, average) (streameval_policy_effective_sample_size{{{POLICY}}})"
    most = f"{sizes} == on (policy) group_left () max by (policy) ({sizes})"
    weights = f"avg by (policy, average) (streameval_policy_importance_weight_mean{{{POLICY}}})"
    return f"avg by (policy) ({weights} and on (policy, average) ({most}))"


def _rejected_share() -> str:
    rejected = f'sum(rate(streameval_events_rejected_total{{{INSTANCE}, reason!="duplicate"}}[$__rate_interval]))'
    accepted = rate("streameval_events_accepted_total")
    return f"{rejected} / ({rejected} + {accepted})"


def _missing_share() -> str:
    missing = rate("streameval_policy_events_missing_total", "policy", selector=POLICY)
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
        About("Events", "Accepted events per second, summed over all instances.", "eps"),
        Query(rate("streameval_events_accepted_total"), "accepted"),
    )
    lag = number(
        About("Lag", "Unread events of the instance with the most.", "short"),
        Query(f"max(sum by (job, instance) (streameval_consumer_lag_events{{{INSTANCE}}}))", "lag"),
        (10_000.0, "orange"),
        (100_000.0, "red"),
    )
    newest = number(
        About("Newest event", "Age of the newest event of the instance that is furthest behind.", "s"),
        Query(f"max({age('streameval_last_event_timestamp_seconds')})", "age"),
        (300.0, "orange"),
        (900.0, "red"),
    )
    delay = number(
        About("Delay", "Time from the timestamp of an event until it is counted. 99 of 100 are faster.", "s"),
        Query(quantile("streameval_event_delay_seconds", 0.99), "delay"),
        (60.0, "orange"),
        (900.0, "red"),
    )
    snapshot = number(
        About("Newest snapshot", "Age of the newest snapshot. After a crash, all later events are read again.", "s"),
        Query(f"max({age('streameval_snapshot_timestamp_seconds')})", "age"),
        (120.0, "orange"),
        (300.0, "red"),
    )
    return [(4, 5, panel) for panel in (ready, events, lag, newest, delay, snapshot)]
