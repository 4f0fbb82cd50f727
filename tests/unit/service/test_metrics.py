from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from structlog.testing import capture_logs

from streameval.events import REASONS
from streameval.ingest.base import PartitionStatus, SourceStatus
from streameval.ingest.stages import BufferStatus, RewardCounts, RewardRepeats
from streameval.ope.answer import answers
from streameval.ope.report import DAY, WEEK, Contender, Estimate, EventCounts, Forecast, Profile, PropensityModel
from streameval.service.metrics import METRICS, OPENMETRICS, SECTIONS, TEXT, TEXT_1, families, metrics_text
from streameval.service.status import DaemonStatus, SnapshotStatus
from support.factories import (
    NOW,
    make_estimate,
    make_published,
    make_report,
    make_unknown,
    with_a_guardrail,
    with_segments,
)

PER_ESTIMATE = {"policy", "estimator", "average", "reward"}
PROMISED: dict[str, set[str]] = {
    "streameval_policy_value": PER_ESTIMATE,
    "streameval_policy_value_lower": PER_ESTIMATE,
    "streameval_policy_value_upper": PER_ESTIMATE,
    "streameval_policy_interval_info": PER_ESTIMATE - {"reward"} | {"kind", "anytime", "covers"},
    "streameval_policy_lift": PER_ESTIMATE,
    "streameval_policy_lift_lower": PER_ESTIMATE,
    "streameval_policy_lift_upper": PER_ESTIMATE,
    "streameval_policy_lift_ratio": PER_ESTIMATE,
    "streameval_policy_lift_ratio_lower": PER_ESTIMATE,
    "streameval_policy_lift_ratio_upper": PER_ESTIMATE,
    "streameval_policy_promotable": {"policy", "rule", "reward"},
    "streameval_policy_worse": {"policy", "rule", "reward"},
    "streameval_policy_deciding_info": PER_ESTIMATE,
    "streameval_policy_trust_check_ok": {"policy", "check"},
    "streameval_policy_effective_sample_size": PER_ESTIMATE,
    "streameval_policy_design_effect": PER_ESTIMATE,
    "streameval_policy_reward_effective_sample_size": PER_ESTIMATE,
    "streameval_policy_bias_bound": PER_ESTIMATE,
    **{
        f"streameval_policy_{name}{end}": {"policy", "average"}
        for name in ("onpolicy_value", "calibration_error")
        for end in ("", "_lower", "_upper")
    },
    "streameval_policy_importance_weight_mean": {"policy", "average"},
    "streameval_policy_importance_weight_max": {"policy", "average"},
    "streameval_policy_unsupported_probability": {"policy", "average"},
    "streameval_policy_window_events": PER_ESTIMATE,
    "streameval_policy_decay_alpha": PER_ESTIMATE,
    "streameval_policy_horizon_events": PER_ESTIMATE,
    "streameval_policy_cap": PER_ESTIMATE,
    "streameval_policy_click_window": PER_ESTIMATE,
    "streameval_policy_lipschitz_per_event": PER_ESTIMATE,
    "streameval_events_accepted_total": set(),
    "streameval_events_rejected_total": {"reason"},
    "streameval_events_since_start": set(),
    "streameval_rewards_clipped_total": {"reward", "side"},
    "streameval_rewards_clipped_share": {"reward"},
    "streameval_rewards_clipped_worth": {"reward"},
    "streameval_reward_limit": {"reward"},
    **{
        f"streameval_policy_unit_{name}{end}": {"policy", "reward"}
        for name in ("value", "lift", "lift_ratio")
        for end in ("", "_lower", "_upper")
    },
    **{f"streameval_policy_{name}": {"policy", "reward"} for name in ("units", "unit_window_end_seconds")},
    **{f"streameval_policy_reward_quantile{end}": {"policy", "reward", "level"} for end in ("", "_lower", "_upper")},
    "streameval_policy_events_since_start": {"policy"},
    "streameval_policy_events_missing_total": {"policy"},
    "streameval_policy_drift_detections_total": {"policy"},
    "streameval_last_event_timestamp_seconds": set(),
    "streameval_event_delay_seconds_count": set(),
    "streameval_event_delay_seconds_bucket": {"le"},
    "streameval_consumer_lag_events": {"topic", "partition"},
    "streameval_consumer_lag_seconds": {"topic", "partition"},
    "streameval_consumer_position_offset": {"topic", "partition"},
    "streameval_batch_duration_seconds_sum": set(),
    "streameval_snapshot_timestamp_seconds": set(),
    "streameval_snapshot_duration_seconds_bucket": {"le"},
    "streameval_snapshot_failures_total": set(),
    "streameval_ready": set(),
    "streameval_build_info": {"name", "version", "python"},
    "process_resident_memory_bytes": set(),
    "python_info": {"version", "implementation", "major", "minor", "patchlevel"},
}

PUBLISHED = """
policy_onpolicy_value policy_onpolicy_value_lower policy_onpolicy_value_upper
policy_calibration_error policy_calibration_error_lower policy_calibration_error_upper
policy_clicks_below_cut examination examination_lower examination_upper
backfill_read_events backfill_waiting_events batch_duration_seconds build_info policy_deciding_info consumer_gaps_total
consumer_lag_events consumer_lag_seconds consumer_lost_events_total consumer_position_offset consumer_rebuilds_total
decisions_sent_total decisions_waiting otlp_push_failures_total otlp_pushes_total
dead_letters_dropped_total dead_letters_waiting dead_letters_written_total event_delay_seconds
engine_age_seconds engine_batch_duration_seconds engine_batch_events engine_executors_lost_total
events_accepted_total events_held events_hurried_total events_late_total events_ahead_total
events_clipped_total events_repeated_total source_lateness_seconds source_spanning_rows_total
events_rejected_total events_since_start
policy_bias_bound policy_guardrail_kept policy_guardrail_lift_bound policy_guardrail_max_loss
last_event_timestamp_seconds policy_cap policy_decay_alpha policy_design_effect policy_drift_detections_total
policy_effective_sample_size policy_events_missing_total policy_events_since_start policy_failures_total
policy_horizon_events policy_importance_weight_max policy_importance_weight_mean policy_interval_info
policy_accepted_effective policy_accepted_share policy_accepted_value
policy_learning_failures policy_learning_rate policy_learning_steps policy_learns policy_regret
policy_step_norm policy_version policy_worse
policy_lift policy_lift_lower policy_lift_upper
policy_lift_ratio policy_lift_ratio_lower policy_lift_ratio_upper policy_lipschitz_per_event policy_promotable
policy_reward_effective_sample_size
policy_trust_check_ok policy_unsupported_probability policy_value policy_value_lower policy_value_upper
policy_value_forecast policy_value_forecast_lower policy_value_forecast_upper
policy_window_events
segment_policy_value segment_policy_value_lower segment_policy_value_upper segment_policy_share segment_policy_events
segment_policy_lift segment_policy_lift_lower segment_policy_lift_upper
ready reward_model_baseline_squared_error reward_model_failures_total
slot_lift
propensity_info propensity_log_loss propensity_baseline_log_loss propensity_unknown_total
reward_model_squared_error rewards_late_share rewards_repeated_total rewards_suspicious_total
rewards_total rewards_unmatched_share rewards_window_seconds
scores_late_share scores_total scores_unmatched_share
snapshot_duration_seconds
snapshot_failures_total snapshot_timestamp_seconds snapshots_damaged_total watermark_timestamp_seconds
candidates_left_out
"""
"""Names of metrics without `streameval_`. Dashboards and alerts of users query them. A release adds new ones."""


def scrape(published: DaemonStatus) -> dict[str, list[Sample]]:
    text = metrics_text(published).decode()
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def one(samples: dict[str, list[Sample]], name: str, **labels: str) -> float:
    values = [sample.value for sample in samples[name] if labels.items() <= sample.labels.items()]
    assert len(values) == 1, f"{len(values)} series of {name} with {labels}"
    return values[0]


def samples_with(**fields: Any) -> dict[str, list[Sample]]:
    """Return the metrics of a single estimate with these fields."""
    return samples_from(make_estimate("a", "ips", "window", **fields))


def samples_from(*estimates: Estimate) -> dict[str, list[Sample]]:
    return scrape(make_published(replace(make_report(), estimates=estimates)))


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Sample]]:
    """Return the metrics of a daemon with a Report."""
    return scrape(make_published(make_report()))


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_name_is_exported_with_its_labels(samples: dict[str, list[Sample]], name: str) -> None:
    assert name in samples, f"no series of {name}: fill it in `make_report` of tests/support/factories.py"
    assert set(samples[name][0].labels) == PROMISED[name]


def test_no_published_name_of_a_metric_changes_or_disappears() -> None:
    names = {name for section in METRICS.values() for name in section}
    assert names >= {f"streameval_{name}" for name in PUBLISHED.split()}


def test_the_lift_of_each_slot_is_a_series() -> None:
    samples = samples_with(details={"slot_lifts": [0.25, None, -0.125]})["streameval_slot_lift"]
    assert {(sample.labels["policy"], sample.labels["slot"]): sample.value for sample in samples} == {
        ("a", "1"): 0.25,
        ("a", "3"): -0.125,
    }


def test_estimated_propensities_mark_every_number_that_follows_from_them() -> None:
    report = make_report()
    logged = scrape(make_published(report))
    assert one(logged, "streameval_propensity_info", kind="logged") == 1
    assert "streameval_propensity_log_loss" not in logged
    model = PropensityModel("tabular", events=5_000, unknown=1_000, log_loss=1.25, baseline_log_loss=1.5)
    rows = tuple(replace(estimate, propensity="estimated") for estimate in report.estimates)
    samples = scrape(make_published(replace(report, estimates=rows, propensity_model=model)))
    assert one(samples, "streameval_propensity_info", kind="estimated") == 1
    assert one(samples, "streameval_propensity_log_loss", model="tabular") == 1.25
    assert one(samples, "streameval_propensity_unknown_total", model="tabular") == 1_000
    marked = {name for name, (first, *_) in samples.items() if first.labels.get("propensity") == "estimated"}
    assert not [name for name, (first, *_) in logged.items() if "propensity" in first.labels]
    for name in ("value", "lift_lower", "importance_weight_mean", "promotable"):
        assert f"streameval_policy_{name}" in marked
    for name in ("deciding_info", "events_missing_total"):
        assert f"streameval_policy_{name}" not in marked
    for name in marked:
        assert samples[name][0].labels.keys() - logged[name][0].labels.keys() == {"propensity"}


def test_each_value_of_a_segment_is_a_series_of_each_policy() -> None:
    samples = scrape(make_published(with_segments(make_report())))
    labels = {"segment": "country", "value": "fr", "policy": "challenger-a"}
    assert one(samples, "streameval_segment_policy_lift_upper", **labels) == -0.01
    assert one(samples, "streameval_segment_policy_share", **labels) == 0.2
    assert set(samples["streameval_segment_policy_lift"][0].labels) == PER_ESTIMATE - {"reward"} | {"segment", "value"}
    assert not any(sample.labels["policy"] == "logging" for sample in samples["streameval_segment_policy_lift"])
    assert one(samples, "streameval_segment_policy_value", **{**labels, "policy": "logging"}) == 0.05
    assert "streameval_segment_policy_value" not in scrape(make_published(make_report()))


def test_every_section_of_the_table_is_read() -> None:
    assert METRICS.keys() == SECTIONS.keys()


def test_the_pair_that_decides_promotion_is_a_label_of_each_candidate_that_has_one() -> None:
    decision = make_report().promotion[0]
    decided = replace(decision, policy="a", estimator="stratified_ips", average="mixture")
    rules = (decided, replace(decided, rule="anytime"), replace(decided, policy="b", estimator=None, average=None))
    samples = scrape(make_published(replace(make_report(), promotion=rules)))
    (sample,) = samples["streameval_policy_deciding_info"]
    assert sample.labels == {
        "policy": "a",
        "estimator": "stratified_ips",
        "average": "mixture",
        "reward": "reward",
    }
    assert "streameval_policy_deciding_info" not in scrape(make_published(replace(make_report(), promotion=rules[2:])))


def test_values_equal_the_report() -> None:
    report = make_report()
    samples = scrape(make_published(report))
    for estimate in report.estimates:
        labels = {"policy": estimate.policy, "estimator": estimate.estimator, "average": estimate.average}
        assert one(samples, "streameval_policy_value", **labels) == estimate.value
        assert one(samples, "streameval_policy_value_lower", **labels) == estimate.lower
        assert one(samples, "streameval_policy_value_upper", **labels) == estimate.upper
    assert (
        one(samples, "streameval_policy_window_events", policy="challenger-a", estimator="ips", average="window") == 1e4
    )
    assert one(samples, "streameval_policy_decay_alpha", policy="logging", estimator="snips", average="decay") == 0.9999
    assert (
        one(samples, "streameval_policy_horizon_events", policy="logging", estimator="ips", average="mixture") == 3.1e4
    )
    assert one(samples, "streameval_policy_drift_detections_total", policy="challenger-a") == 2
    assert one(samples, "streameval_events_since_start") == 120_000
    assert one(samples, "streameval_policy_events_missing_total", policy="challenger-b") == 1_000
    assert one(samples, "streameval_consumer_lag_events", topic="interactions", partition="0") == 12


def test_unknown_values_are_not_exported() -> None:
    details = {"window_events": None, "alpha": float("nan")}
    estimates = (make_unknown("a", "ips", "window", details=details),)
    unknown = replace(make_report(), estimates=estimates, promotion=(), calibration=())
    samples = scrape(make_published(unknown))
    assert [name for name in samples if name in PROMISED and PROMISED[name] >= {"policy", "average"}] == []


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf"), None])
def test_numbers_that_are_not_evidence_make_no_series(odd: float | None) -> None:
    samples = samples_with(lower=odd, details={"horizon_events": odd, "design_effect": odd})
    assert "streameval_policy_value" in samples
    assert "streameval_policy_value_lower" not in samples
    assert "streameval_policy_horizon_events" not in samples
    assert "streameval_policy_design_effect" not in samples


def test_the_interval_describes_itself() -> None:
    (sample,) = samples_with(kind="empirical_bernstein", anytime=True, covers="current")[
        "streameval_policy_interval_info"
    ]
    assert sample.value == 1
    assert sample.labels["kind"] == "empirical_bernstein"
    assert sample.labels["anytime"] == "true"
    assert sample.labels["covers"] == "current"


def test_weights_come_from_the_first_estimator() -> None:
    samples = samples_from(
        make_estimate("a", "ips", "window", importance_weight_mean=1.5),
        make_estimate("a", "clipped_ips", "window", importance_weight_mean=0.5),
    )
    assert one(samples, "streameval_policy_importance_weight_mean", policy="a", average="window") == 1.5


def test_before_the_first_report_only_metrics_of_the_process_are_exported() -> None:
    samples = scrape(make_published(None))
    assert [name for name in samples if name.startswith("streameval_policy")] == []
    assert "streameval_last_event_timestamp_seconds" not in samples
    assert one(samples, "streameval_ready") == 0
    assert one(samples, "streameval_events_accepted_total") == 2000


def test_a_log_without_events_has_no_newest_event() -> None:
    samples = scrape(make_published(replace(make_report(), events=EventCounts(0, {}, None))))
    assert "streameval_last_event_timestamp_seconds" not in samples
    assert one(samples, "streameval_events_since_start") == 0


def test_every_reason_for_a_rejection_counts_from_zero() -> None:
    samples = scrape(DaemonStatus(source=SourceStatus(reached=False), at=0.0))
    assert {
        sample.labels["reason"]: sample.value for sample in samples["streameval_events_rejected_total"]
    } == dict.fromkeys(REASONS, 0.0)


def test_unknown_lag_is_absent_for_its_partition_only() -> None:
    samples = scrape(make_published(make_report()))
    assert [sample.labels["partition"] for sample in samples["streameval_consumer_lag_events"]] == ["0"]
    assert len(samples["streameval_consumer_position_offset"]) == 2


def test_lag_in_seconds_is_the_age_of_the_last_message_read_while_others_are_unread() -> None:
    parts = (
        PartitionStatus("clicks", 0, 60, 12, None, NOW - 90.0),
        PartitionStatus("clicks", 1, 60, 0, NOW, NOW - 90.0),
        PartitionStatus("clicks", 2, 60, 12),
        PartitionStatus("clicks", 3, 60, None, None, NOW - 90.0),
        PartitionStatus("clicks", 4, 60, 1, None, NOW + 5.0),
    )
    samples = scrape(make_published(source=SourceStatus(reached=True, partitions=parts)))
    ages = {sample.labels["partition"]: sample.value for sample in samples["streameval_consumer_lag_seconds"]}
    assert ages == {"0": 90.0, "1": 0.0, "4": 0.0}


def test_the_query_of_an_address_is_no_label() -> None:
    parts = (PartitionStatus("https://store/log?sig=s3cret", 0, 60, 12),)
    text = metrics_text(make_published(source=SourceStatus(reached=True, partitions=parts))).decode()
    assert 'topic="https://store/log?***"' in text
    assert "s3cret" not in text


def test_histograms_end_with_a_bucket_of_all_values() -> None:
    samples = scrape(make_published(make_report()))
    buckets = samples["streameval_event_delay_seconds_bucket"]
    assert buckets[-1].labels["le"] == "+Inf"
    assert buckets[-1].value == one(samples, "streameval_event_delay_seconds_count") == 2
    assert one(samples, "streameval_event_delay_seconds_sum") == pytest.approx(3.2)


def test_there_is_no_created_series() -> None:
    assert not [name for name in scrape(make_published(make_report())) if name.endswith("_created")]


def test_a_metric_family_that_fails_is_logged_and_the_others_are_exported() -> None:
    broken = make_published(make_report(), source=None)
    with capture_logs() as logs:
        samples = scrape(broken)
    assert "streameval_policy_value" in samples
    assert "streameval_ready" in samples
    assert {entry["event"] for entry in logs} == {"metrics_failed"}
    assert len(logs) == sum("consumer" in entry["family"] for entry in logs) > 0


def test_all_formats_have_the_same_samples() -> None:
    published = make_published(make_report())
    texts = [metrics_text(published, form).decode() for form in (TEXT, TEXT_1, OPENMETRICS)]
    parsers = [text_string_to_metric_families, text_string_to_metric_families, openmetrics_families]
    plain, plain_1, openmetrics = (
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in parse(text)
            for sample in family.samples
            if sample.name.startswith("streameval_")
        }
        for parse, text in zip(parsers, texts, strict=True)
    )
    assert plain == plain_1 == openmetrics
    assert len(plain) > 200
    assert texts[-1].count("# EOF") == 1


def test_scrapes_of_one_status_read_it_once() -> None:
    broken = make_published(make_report(), source=None)
    with capture_logs() as first:
        metrics_text(broken)
    with capture_logs() as second:
        metrics_text(broken)
    assert first
    assert not second


def test_every_scrape_shows_the_present_status_and_process() -> None:
    texts = [metrics_text(make_published(make_report(), accepted=count)).decode() for count in (1, 2)]
    assert [f"streameval_events_accepted_total {count}.0" in text for count, text in enumerate(texts, 1)] == [True] * 2
    assert all("process_cpu_seconds_total" in text for text in texts)


def test_label_values_are_escaped() -> None:
    odd = 'a "quoted" \\ name\nof two lines'
    samples = samples_from(make_estimate(odd, "ips", "window", 0.5))
    assert one(samples, "streameval_policy_value", policy=odd) == 0.5


def test_promtool_accepts_the_metrics() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is missing; with CI set this check may not be left out (Debian package: prometheus)")
        pytest.skip("promtool is not installed (Debian package: prometheus)")
    text = metrics_text(make_published(make_report()))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_every_metric_is_explained_in_a_sentence() -> None:
    text = metrics_text(make_published(make_report())).decode()
    ours = re.findall(r"^# HELP (streameval_\w+) (.*)$", text, re.MULTILINE)
    assert len(ours) > 25
    assert [name for name, sentence in ours if len(sentence) < 20 or not sentence.endswith(".")] == []


def test_without_a_drift_detector_no_detections_are_counted() -> None:
    report = make_report()
    policies = tuple(replace(policy, drift_detections=None) for policy in report.policies)
    assert "streameval_policy_drift_detections_total" not in scrape(make_published(replace(report, policies=policies)))


LATENESS = {("interactions", 0): 0.0, ("interactions", 1): 2.5}


def test_buffered_and_late_events_are_shown_only_if_events_are_buffered() -> None:
    rewards = RewardCounts(joined=90, late=10, unmatched=3)
    samples = scrape(
        make_published(
            buffered=BufferStatus(
                42,
                NOW,
                5,
                7,
                LATENESS,
                rewards,
                RewardRepeats(4, 2),
                window=600.0,
                unmatched_share=0.03,
                scores=RewardCounts(joined=3, late=1, unmatched=2),
                unmatched_scores=0.4,
            )
        )
    )
    assert one(samples, "streameval_events_held") == 42
    assert one(samples, "streameval_watermark_timestamp_seconds") == NOW
    assert one(samples, "streameval_events_late_total") == 5
    assert one(samples, "streameval_source_lateness_seconds", partition="1") == 2.5
    assert one(samples, "streameval_events_hurried_total") == 7
    assert one(samples, "streameval_rewards_total", outcome="unmatched") == 3
    assert one(samples, "streameval_rewards_late_share") == 0.1
    assert one(samples, "streameval_rewards_repeated_total") == 4
    assert one(samples, "streameval_rewards_suspicious_total") == 2
    assert one(samples, "streameval_rewards_unmatched_share") == 0.03
    assert one(samples, "streameval_rewards_window_seconds") == 600
    assert one(samples, "streameval_scores_total", outcome="late") == 1
    assert one(samples, "streameval_scores_late_share") == 0.25
    assert one(samples, "streameval_scores_unmatched_share") == 0.4
    early = scrape(make_published(buffered=BufferStatus(0, watermark=float("-inf"))))
    assert "streameval_watermark_timestamp_seconds" not in early
    assert "streameval_rewards_total" not in early
    assert "streameval_events_held" not in scrape(make_published())


def test_without_a_state_there_are_no_metrics_of_snapshots() -> None:
    samples = scrape(make_published(snapshots=SnapshotStatus(failures=1)))
    assert one(samples, "streameval_snapshot_failures_total") == 1
    assert "streameval_snapshot_timestamp_seconds" not in samples, "none has been written yet"
    assert not [name for name in scrape(make_published(snapshots=None)) if "snapshot" in name]


def test_further_rewards_have_values_and_lifts_and_the_goal_has_the_rest() -> None:
    report = make_report(candidates=1)
    further = tuple(replace(estimate, reward="revenue", importance_weight_mean=7.0) for estimate in report.estimates)
    both = replace(report, estimates=report.estimates + further)
    alone, samples = (scrape(make_published(reported)) for reported in (report, both))
    for name in ("streameval_policy_value", "streameval_policy_lift_lower"):
        assert len(samples[name]) == 2 * len(alone[name])
        assert {sample.labels["reward"] for sample in samples[name]} == {"reward", "revenue"}
    for name in ("streameval_policy_interval_info", "streameval_policy_importance_weight_mean"):
        assert samples[name] == alone[name]
    assert {sample.labels["reward"] for sample in samples["streameval_policy_promotable"]} == {"reward"}


def test_guardrails_have_their_bound_and_whether_they_are_kept() -> None:
    samples = scrape(make_published(with_a_guardrail(make_report(candidates=2), True, False)))
    (name,) = {sample.labels["reward"] for sample in samples["streameval_policy_guardrail_kept"]}
    assert name == "stay"
    labels = {"policy": "challenger-b", "rule": "paired"}
    assert one(samples, "streameval_policy_guardrail_kept", **labels) == 0
    assert one(samples, "streameval_policy_guardrail_kept", policy="challenger-a") == 1
    assert one(samples, "streameval_policy_guardrail_lift_bound", **labels) == -0.002
    assert one(samples, "streameval_policy_guardrail_max_loss", **labels) == 0.001


def test_phases_have_the_usual_lift_its_error_the_newest_lift_and_the_traffic() -> None:
    week = Profile(WEEK, 2.0, 1, (0.01, None, *(0.02,) * 5), (0.001,) * 7, (1 / 7,) * 7, (0.03, *(None,) * 6))
    day = replace(week, period=DAY)
    (decision,) = make_report(candidates=1).promotion
    periodic = replace(decision, rule="periodic", profiles=(day, week))
    samples = scrape(make_published(replace(make_report(), promotion=(periodic, decision))))
    monday = {"policy": decision.policy, "rule": "periodic", "period": "7d", "phase": "0"}
    lifts = samples["streameval_policy_phase_lift"]
    assert [sample.labels["phase"] for sample in lifts if sample.labels["period"] == "7d"] == list("023456")
    assert {sample.labels["period"] for sample in lifts} == {"1d", "7d"}
    numbers = [
        one(samples, f"streameval_policy_phase_{name}", **monday)
        for name in ("lift", "lift_error", "lift_latest", "share")
    ]
    assert numbers == [0.01, 0.001, 0.03, 1 / 7]


def test_candidates_that_are_compared_are_beaten_or_not() -> None:
    rows = (
        Contender("challenger-a", "challenger-a", False),
        Contender("challenger-b", "challenger-a", True, -0.1, -0.05),
    )
    samples = scrape(make_published(replace(make_report(candidates=3), contenders=rows)))
    beaten = {sample.labels["policy"]: sample.value for sample in samples["streameval_policy_beaten_by_leader"]}
    assert beaten == {"challenger-a": 0, "challenger-b": 1}


def test_each_hour_of_a_forecast_is_a_series() -> None:
    forecast = (Forecast("1h", 0.05, 0.04, 0.06), Forecast("2h", 0.07))
    samples = samples_with(forecast=forecast)
    name = "streameval_policy_value_forecast"
    assert set(samples[name][0].labels) == PER_ESTIMATE | {"ahead"}
    assert [one(samples, name, ahead=ahead) for ahead in ("1h", "2h")] == [0.05, 0.07]
    assert [one(samples, f"{name}{end}", ahead="1h") for end in ("_lower", "_upper")] == [0.04, 0.06]
    assert len(samples[f"{name}_lower"]) == 1
    assert name not in samples_with()


def test_a_rule_that_only_tells_what_is_better_now_is_never_promotable_and_has_no_guardrails() -> None:
    report = with_a_guardrail(make_report(candidates=1), True)
    (now,) = (replace(decision, promotable=False, decides=False, worse=None) for decision in report.promotion)
    whole = replace(now, rule="periodic", decides=True, worse=True, lift=-0.003, lower=-0.005)
    samples = scrape(make_published(replace(report, promotion=(whole, now))))
    assert one(samples, "streameval_policy_promotable", rule="paired") == 0
    assert {sample.labels["rule"] for sample in samples["streameval_policy_worse"]} == {"periodic"}
    assert one(samples, "streameval_policy_worse", policy="challenger-a") == 1
    assert one(samples, "streameval_policy_decision_lift", rule="periodic") == -0.003
    assert one(samples, "streameval_policy_decision_lift_lower", rule="periodic") == -0.005
    assert one(samples, "streameval_policy_decision_of_period", rule="periodic") == 1
    assert one(samples, "streameval_policy_decision_of_period", rule="paired") == 0
    assert {sample.labels["rule"] for sample in samples["streameval_policy_guardrail_kept"]} == {"periodic"}


def test_metrics_are_of_the_first_thousand_candidates_by_default_or_of_the_best() -> None:
    status = make_published(make_report(1001, ("ips",), ("cumulative",)))
    production, *candidates = (counts.policy for counts in status.reported.policies)

    def shown(**choice: Any) -> tuple[set[str], float]:
        samples = {family.name: family.samples for family in families(status, **choice)}
        policies = {sample.labels["policy"] for sample in samples["streameval_policy_value"]}
        return policies, samples["streameval_candidates_left_out"][0].value

    best = [each.policy for each in answers(status.reported)]
    assert shown() == ({production, *candidates[:1000]}, 1)
    assert shown(top="2") == ({production, *best[:2]}, 999)
    assert shown(policies=candidates[-1:]) == (set(candidates[-1:]), 1000)
    assert shown(top="all") == ({production, *candidates}, 0)
