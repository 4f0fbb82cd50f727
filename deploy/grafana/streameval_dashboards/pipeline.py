"""Build the dashboard for operators: whether the pipeline runs and keeps up, its rejections, and its cost."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from streameval_dashboards import selection
from streameval_dashboards.parts import About, Placed, Query, lines, marked, number, states
from streameval_dashboards.promql import age, hourly_increase, or_none, quantile, rate, total
from streameval_dashboards.selection import INSTANCE


def dashboard() -> models.Dashboard:
    """Build the pipeline dashboard."""
    return selection.board(
        "streameval: pipeline",
        "streameval-pipeline",
        "The pipeline from the log to the metrics: whether events arrive, are read, are accepted, and are saved.",
        other=("Candidates", "streameval"),
        variables=selection.instance_variables(),
        rows={
            "Does it run?": _running(),
            "Does it keep up?": _keeping_up(),
            "What does it reject?": _refused(),
            "What does it cost?": _cost(),
            "Does the engine keep up?": _engine(),
        },
        policy_marks=False,
    )


def _running() -> Placed:
    ready = states(
        About(
            "Ready",
            "Whether each instance has reached its source and has a Report. If not, /readyz gives the reason.",
            "bool_yes_no",
        ),
        Query(f"streameval_ready{{{INSTANCE}}}", "{{instance}}"),
        texts={"0": ("not ready", "red"), "1": ("ready", "green")},
    )
    firing = 'ALERTS{alertname=~"Streameval.*", alertstate="firing"'
    alerts = states(
        About(
            "Alerts",
            "Alerts of $name that fired, over time, and StreamevalAbsent. Each has a runbook in deploy/runbooks/.",
            "bool_yes_no",
        ),
        Query(
            or_none(f'max by (alertname) ({firing}, name="$name"}} or {firing}, name=""}})', "alertname"),
            "{{alertname}}",
        ),
        texts={"0": ("quiet", "green"), "1": ("firing", "red")},
    )
    started = number(
        About("Uptime", "Time since the last start of the instance that started most recently.", "s"),
        Query(f"min({age('process_start_time_seconds')})", "running"),
    )
    state = number(
        About(
            "Events in the state",
            "Events that the estimates use, across restarts, of the instance with the fewest.",
            "short",
        ),
        Query(f"min(streameval_events_since_start{{{INSTANCE}}})", "events"),
    )
    return [(12, 5, ready), (6, 5, started), (6, 5, state), (24, 6, alerts)]


def _keeping_up() -> Placed:
    events = lines(
        About("Events per second", "Accepted events, and events rejected for any reason.", "eps"),
        Query(
            rate("streameval_events_accepted_total", "instance"),
            "{{instance}}",
        ),
        Query(
            rate("streameval_events_rejected_total", "instance"),
            "{{instance}}, rejected",
        ),
        zero=True,
    )
    lag = lines(
        About("Lag by partition", "Unread events of the partition.", "short"),
        Query(
            total("streameval_consumer_lag_events", "instance", "topic", "partition"),
            "{{instance}} {{topic}}/{{partition}}",
        ),
        zero=True,
    )
    newest = lines(
        About("Age of the newest event", "Time since the newest event, by its own timestamp.", "s"),
        Query(age("streameval_last_event_timestamp_seconds"), "{{instance}}"),
        zero=True,
    )
    delay = lines(
        About("Delay", "Time from the timestamp of an event until it is counted.", "s"),
        *(_faster("streameval_event_delay_seconds", share) for share in (0.5, 0.9, 0.99)),
        log_scale=True,
    )
    waiting = lines(
        About(
            "Backfill",
            "Past events that a new candidate has yet to read. `none` if no backfill runs.",
            "short",
        ),
        Query(or_none(total("streameval_backfill_waiting_events", "policy"), "policy"), "{{policy}}"),
        zero=True,
    )
    held = lines(
        About(
            "Held back",
            "Events buffered for event-time order or for delayed rewards and scores. `none` if the daemon buffers no "
            "events.",
            "short",
        ),
        Query(or_none(total("streameval_events_held", "instance"), "instance"), "{{instance}}"),
        zero=True,
    )
    rewards, scores = (
        lines(
            About(title, f"{text} `none` if {parts} are part of the events.", "eps"),
            Query(or_none(rate(f"streameval_{parts}_total", "outcome"), "outcome"), "{{outcome}}"),
            zero=True,
        )
        for parts, title, text in (
            (
                "rewards",
                "Rewards that come later",
                "Rewards per second that were joined to their decision, arrived after its window (late), or have no "
                "decision (unmatched).",
            ),
            (
                "scores",
                "Scores that come later",
                "Separate probabilities of candidates per second, by the same outcomes.",
            ),
        )
    )
    connection = lines(
        About(
            "Source problems",
            "Since the process started: events deleted before they were read, reconnects, and gaps by kind (deleted, "
            "cut, replaced). Losses during downtime are included from the start.",
            "short",
        ),
        Query(total("streameval_consumer_lost_events_total", "instance"), "{{instance}}, lost"),
        Query(total("streameval_consumer_rebuilds_total", "instance"), "{{instance}}, rebuilt"),
        Query(total("streameval_consumer_gaps_total", "instance", "kind"), "{{instance}}, gap: {{kind}}"),
        zero=True,
    )
    panels = (events, lag, newest, delay, held, rewards, scores, waiting, connection)
    return [(8, 8, panel) for panel in panels]


def _refused() -> Placed:
    rejected = lines(
        About(
            "Rejected by reason",
            "Rejected events per second. The runbook StreamevalRejectsHigh explains the reasons.",
            "eps",
        ),
        Query(rate("streameval_events_rejected_total", "reason"), "{{reason}}"),
        zero=True,
    )
    missing = lines(
        About(
            "Missing by policy",
            "Events per second without a usable probability of the policy. Its estimates exclude them.",
            "eps",
        ),
        Query(
            rate("streameval_policy_events_missing_total", "policy"),
            "{{policy}}",
        ),
        zero=True,
    )
    dead_letters = lines(
        About(
            "Dead letters",
            "Rejected messages per second that were stored or dropped, and the number that waits to be stored. 0 if "
            "they are not kept.",
            "short",
        ),
        Query(or_none(rate("streameval_dead_letters_written_total")), "stored"),
        Query(or_none(rate("streameval_dead_letters_dropped_total")), "dropped"),
        Query(or_none(total("streameval_dead_letters_waiting")), "waiting"),
        zero=True,
    )
    decisions = lines(
        About(
            "Decision messages",
            "Messages about transitions of promotion rules that were sent in an hour, and messages that wait. 0 if "
            "they are not configured.",
            "short",
        ),
        Query(or_none(hourly_increase("streameval_decisions_sent_total")), "sent"),
        Query(or_none(total("streameval_decisions_waiting")), "waiting"),
        zero=True,
    )
    return [(6, 8, rejected), (6, 8, missing), (6, 8, dead_letters), (6, 8, decisions)]


def _cost() -> Placed:
    busy = lines(
        About(
            "Busy",
            "Share of the time that the loop spends decoding and computing. Near 1, it is at full capacity.",
            "percentunit",
        ),
        Query(
            rate("streameval_batch_duration_seconds_sum", "instance"),
            "{{instance}}",
        ),
        zero=True,
    )
    batches = lines(
        About("Time for a batch", "Time to decode the events of one poll and update every estimate.", "s"),
        *(_faster("streameval_batch_duration_seconds", share) for share in (0.5, 0.99)),
        log_scale=True,
    )
    snapshots = lines(
        About(
            "Age of the newest snapshot",
            "Time since the newest snapshot. After a crash, all later events are read again.",
            "s",
        ),
        Query(age("streameval_snapshot_timestamp_seconds"), "{{instance}}"),
        zero=True,
    )
    written = lines(
        About("Snapshots", "Time to write a snapshot, and number of failures, over the last hour.", "s"),
        Query(
            f"histogram_quantile(0.9, {hourly_increase('streameval_snapshot_duration_seconds_bucket', 'le')})",
            "90% are faster",
        ),
        Query(
            hourly_increase("streameval_snapshot_failures_total", "instance"),
            "{{instance}}, failures",
        ),
        zero=True,
    ).override_by_regexp(".*failures", [models.DynamicConfigValue(id_val="unit", value="short")])
    memory = lines(
        About("Memory", "Resident memory of the process. It does not grow with the number of events.", "bytes"),
        Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "{{instance}}"),
        zero=True,
    )
    processor = lines(
        About("Processor", "CPU cores in use by the process. The loop can use one.", "short"),
        Query(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval])", "{{instance}}"),
        zero=True,
    )
    model = lines(
        About(
            "Reward model",
            "Mean squared error of the reward model's predictions before it learns from each event, and of the mean "
            "reward as a prediction. A model that does not beat the mean has no value.",
            "sci",
        ),
        Query(f"avg by (model) (streameval_reward_model_squared_error{{{INSTANCE}}})", "{{model}}"),
        Query(
            or_none(f"avg by (model) (streameval_reward_model_baseline_squared_error{{{INSTANCE}}})", "model"),
            "{{model}}, mean reward",
        ),
    )
    marked(busy, threshold=1.0).axis_soft_max(1.0)
    panels = (busy, batches, snapshots, written, memory, processor, model)
    return [(8, 8, panel) for panel in panels]


def _engine() -> Placed:
    batches = lines(
        About(
            "Batch on the engine",
            "Time from the start of a batch until all its results have come. Above `engine.trigger`, the engine is at "
            "full capacity. 0 without an engine.",
            "s",
        ),
        *(
            Query(or_none(quantile("streameval_engine_batch_duration_seconds", share)), f"{share:.0%} are faster")
            for share in (0.5, 0.99)
        ),
        zero=True,
    )
    events = lines(
        About("Events of a batch", "Accepted events of the last batch. `none` without an engine.", "short"),
        Query(or_none(total("streameval_engine_batch_events", "instance"), "instance"), "{{instance}}"),
        zero=True,
    )
    old = lines(
        About(
            "Age of the estimates",
            "Time since the daemon asked for the end of the log that the estimates include. `none` without an engine.",
            "s",
        ),
        Query(or_none(total("streameval_engine_age_seconds", "instance"), "instance"), "{{instance}}"),
        zero=True,
    )
    lost = lines(
        About(
            "Executors lost",
            "Executors that ended unasked in an hour. Others repeat their ranges. `none` without an engine.",
            "short",
        ),
        Query(
            or_none(hourly_increase("streameval_engine_executors_lost_total", "instance"), "instance"),
            "{{instance}}",
        ),
        zero=True,
    )
    return [(6, 8, panel) for panel in (batches, events, old, lost)]


def _faster(histogram: str, share: float) -> Query:
    return Query(quantile(histogram, share), f"{share:.0%} are faster")
