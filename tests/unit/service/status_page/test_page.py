"""Show which candidate gains how much, since when, and whether the numbers can be trusted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace as with_fields
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from streameval.ingest.background import WorkerStatus
from streameval.ingest.stages import BufferStatus, RewardCounts
from streameval.ope.answer import answers
from streameval.ope.report import DAY, WEEK, Decision, Profile, Report, Transition, TrustCheck
from streameval.service.shown import SHOWN
from streameval.service.status import BackfillStatus, History, SnapshotStatus
from streameval.service.status_page.charts import (
    FRAME_HEIGHT,
    FRAME_WIDTH,
    ChartScale,
    lift_of,
    make_chart,
    make_phase_charts,
    make_timelines,
)
from streameval.service.status_page.page import (
    MANY_CANDIDATES,
    OUTSIDE,
    chosen,
    is_suspect,
    make_overview,
    meanings,
    news,
    outside,
    render,
)
from support.factories import NOW, make_estimate, make_published, make_report, make_unknown


def page(report: Report | None, wanted: dict[str, str] | None = None, **fields: Any) -> str:
    return render(make_published(report, **fields), wanted or {})


def hours(report: Report, points: int = 100) -> History:
    history = History()
    for step in range(points):
        history = history.after(NOW - 3600.0 * (1 - step / points), report)
    return history


def test_the_title_and_the_heading_name_the_daemon() -> None:
    named = page(make_report(), name="home <1>")
    assert "<title>home &lt;1&gt; · streameval</title>" in named
    assert "<h1>streameval · home &lt;1&gt;</h1>" in named


def test_the_top_shows_the_last_average_and_its_last_estimator_unless_another_is_chosen() -> None:
    report = make_report()
    assert chosen(report, {}) == ("control_variate", "mixture")
    assert chosen(report, {"average": "window"}) == ("control_variate", "window")
    assert chosen(report, {"estimator": "ips"}) == ("ips", "mixture")
    assert chosen(report, {"average": "window", "estimator": "snips"}) == ("snips", "window")
    assert chosen(report, {"average": "<script>", "estimator": "nothing"}) == ("control_variate", "mixture")


def test_the_top_prefers_known_values() -> None:
    report = make_report(1, ("ips",), ("cumulative", "mixture"))
    unknown = tuple(
        make_unknown(estimate.policy, "ips", "mixture") if estimate.average == "mixture" else estimate
        for estimate in report.estimates
    )
    assert chosen(replace(report, estimates=unknown), {}) == ("ips", "cumulative")
    assert chosen(replace(report, estimates=()), {}) is None


def test_a_page_of_many_candidates_shows_the_best_and_the_way_to_the_others() -> None:
    report = make_report(SHOWN + 5, ("ips",), ("cumulative",))
    best = [each.policy for each in answers(report)]

    def candidates(shown: str) -> set[str]:
        return set(re.findall(r"<th scope=.row.>(challenger-\w+) <small>", shown))

    many = page(report)
    assert candidates(many) == set(best[:SHOWN])
    assert f"Shown: {SHOWN} of {SHOWN + 5} candidates" in many
    link = re.findall(r'id="show-all" href="(.*?)"', page(report, {"average": "cumulative", "last": "4 h"}))[0]
    assert link == "?average=cumulative&amp;estimator=ips&amp;last=4+h&amp;top=all"
    every, one = page(report, {"top": "all"}), page(report, {"policy": best[-1]})
    assert candidates(every) == set(best)
    assert "left-out" not in every
    assert candidates(one) == {best[-1]}
    assert f"policy={best[-1]}" in re.findall(r'id="average-choice-1" href="([^"]*)"', one)[0]
    assert candidates(page(report, {"top": "7"})) == set(best[:7])
    assert "left-out" not in page(make_report())


def test_links_lead_to_every_choice_and_mark_the_present_one() -> None:
    shown = page(make_report(), {"average": "window", "estimator": "snips"})
    assert re.findall(r'aria-current="true">(\w+)<', shown) == ["window", "snips"]
    assert re.findall(r'id="estimator-choice-\d" href="([^"]*)"', shown)[:2] == [
        "?average=window&amp;estimator=ips&amp;last=12+h",
        "?average=window&amp;estimator=snips&amp;last=12+h",
    ]
    strange = replace(make_report(1), estimates=(make_estimate("challenger-a", "a&b=<c>", "d e"),))
    assert 'href="?average=d+e&amp;estimator=a%26b%3D%3Cc%3E&amp;last=12+h"' in page(strange)


def test_a_lift_is_drawn_against_zero() -> None:
    estimates = [
        make_estimate("a", "ips", "window", lift=0.004, lift_lower=0.002, lift_upper=0.006),
        make_estimate("b", "ips", "window", lift=-0.001, lift_lower=-0.003, lift_upper=0.001),
        make_estimate("c", "ips", "window", lift=0.001, lift_lower=None, lift_upper=None),
        make_estimate("d", "ips", "window"),
    ]
    chart = make_chart(estimates, "logging", ChartScale.from_estimates(estimates, lift_of), lift_of)
    assert chart.reference is not None
    assert [row.verdict for row in chart.rows] == ["better", "open", "", ""]
    assert [(row.value, row.interval) for row in chart.rows] == [
        ("+0.00400", "+0.00200 to +0.00600"),
        ("-0.00100", "-0.00300 to +0.00100"),
        ("+0.00100", "–"),
        ("–", "–"),
    ]
    better, undecided, *_ = chart.rows
    assert better.bounds is not None
    assert undecided.bounds is not None
    assert chart.reference < better.bounds[0]
    assert undecided.bounds[0] < chart.reference < undecided.bounds[1]


def test_without_lifts_the_rows_show_that_nothing_is_known() -> None:
    report = make_report()
    none = tuple(replace(estimate, lift=None, lift_lower=None, lift_upper=None) for estimate in report.estimates)
    overview = make_overview(make_published(report), replace(report, estimates=none), {})
    assert overview is not None
    assert [row.value for row in overview["lifts"].rows] == ["–"] * 3


def test_states_and_reasons_of_all_rules_are_folded_in_the_order_of_the_answers() -> None:
    decisions = (
        Decision("challenger-a", "sea", False, "only 3,200 of 10,000 events", promotable_events=900),
        Decision("challenger-b", "paired", True, "decision bound of lift 0.002 over margin 0", since_timestamp=NOW),
    )
    shown = page(replace(make_report(2), promotion=decisions), margin=0.5)
    section = shown.partition('<details id="why">')[2].partition("</details>")[0]
    text = " ".join(re.sub(r"<[^>]*>", " ", section).split())
    first, second = text.index("challenger-b promotable"), text.index("challenger-a undecided")
    assert first < text.index("paired, promotable since 22:13 UTC: decision bound of lift 0.002 over margin 0") < second
    assert text.index("sea, was promotable for 900 events: only 3,200 of 10,000 events") > second
    assert "with the margin, 0.5." in text


def test_failed_checks_give_their_reason() -> None:
    checks = (
        TrustCheck("challenger-a", "mean_weight", False, "mean weight 1.31, expected 1"),
        TrustCheck("challenger-a", "stale", True, "the newest event is 2 seconds old"),
    )
    shown = page(replace(make_report(), trust=checks))
    assert '<span class="warn">✗ mean weight 1.31, expected 1</span>' in shown
    assert "challenger-a fails 1 check</b>: mean weight." in shown
    assert "✗ mean weight: mean weight 1.31, expected 1; ✓ freshness: the newest event is 2 seconds old" in shown


def test_checks_that_all_pass_are_one_line() -> None:
    checks = tuple(TrustCheck(name, "stale", True, "the newest event is 2 seconds old") for name in ("a", "logging"))
    report = make_report(1)
    policies = tuple(
        replace(policy, policy=name) for policy, name in zip(report.policies, ("logging", "a"), strict=True)
    )
    shown = page(replace(report, trust=checks, policies=policies))
    assert "All 2 policies pass all checks</b>: freshness." in shown
    assert "Checks that failed" not in shown


def test_intervals_are_explained_in_words() -> None:
    report = make_report(1, ("ips",), ("cumulative", "mixture"))
    kinds = {"cumulative": ("empirical_likelihood", "average"), "mixture": ("drift_aware", "current")}
    estimates = tuple(
        replace(estimate, kind=kinds[estimate.average][0], covers=kinds[estimate.average][1])
        for estimate in report.estimates
    )
    explained = replace(report, estimates=estimates)
    overview = make_overview(make_published(explained), explained, {})
    assert overview is not None
    (text,) = overview["meanings"]
    assert text.startswith("95 % intervals (drift aware) for the present value. They allow for chance, ")
    assert text.endswith("Each interval is valid for a single look; do not scan many of them.")
    shown = page(explained)
    assert shown.count(text) == 2, "at the top, and with the numbers of that average"
    assert "95 % intervals (empirical likelihood) for the mean over the events of the average. " in shown


def test_intervals_of_a_candidate_that_still_learns_point_to_frozen_copies() -> None:
    report = make_report()
    still = [replace(learner, learns=False, accepted_share=0.0312) for learner in report.learners]
    shown = [page(replace(report, learners=tuple(rows))) for rows in (report.learners, still)]
    assert ["versions_of makes copies that do not change" in text for text in shown] == [True, False]
    assert ["<td>3.1 %</td>" in text for text in shown] == [False, True], "the share of its own choices"


def test_intervals_of_several_kinds_are_distinguished_by_their_estimators() -> None:
    estimates = [
        make_estimate("a", "ips", "window"),
        make_estimate("a", "snips", "window"),
        make_estimate("a", "dm", "window", covers="estimand"),
    ]
    value, own = meanings(estimates, 0.9)
    assert value.startswith("ips, snips: 90 % intervals (normal) for the mean over the events ")
    assert own.startswith("dm: 90 % intervals (normal) for the limit of the estimator, which differs from the value. ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"value": 1.02, "lower": 0.98, "upper": 1.0}, OUTSIDE),
        ({"value": 0.9, "lower": 0.98, "upper": 1.0}, OUTSIDE),
        ({"lift": 0.02, "lift_lower": -0.01, "lift_upper": 0.01}, OUTSIDE),
        ({"value": 1 - 1e-15, "lower": 1.0, "upper": 1.0}, ""),
        ({"value": None, "lower": 0.98, "upper": 1.0}, ""),
        ({"value": 0.9, "lower": None, "upper": None}, ""),
    ],
)
def test_a_value_outside_its_interval_is_explained(fields: dict[str, Any], expected: str) -> None:
    near, far = (make_estimate(policy, "ips", "window") for policy in ("a", "b"))
    assert outside([near, replace(far, **fields)]) == expected


def test_the_page_explains_a_value_outside_its_interval() -> None:
    report = make_report(1, ("ips",), ("cumulative", "mixture"))
    far = tuple(
        replace(estimate, value=estimate.upper + 0.01)
        if (estimate.policy, estimate.average) == ("challenger-a", "mixture")
        else estimate
        for estimate in report.estimates
        if estimate.upper is not None
    )
    shown, hidden = replace(report, estimates=far), page(report, history=hours(report))
    assert OUTSIDE not in hidden
    assert page(shown, history=hours(shown)).count(OUTSIDE) == 3, "at its lift, its last hours, and its numbers"
    assert page(shown, {"average": "cumulative"}).count(OUTSIDE) == 1, "with its numbers"


def test_a_page_with_many_candidates_has_a_table_of_contents() -> None:
    assert "Parts of this page" not in page(make_report(MANY_CANDIDATES))
    shown = page(make_report(MANY_CANDIDATES + 1))
    links = re.findall(r'<a id="go-(\w+)" href="#(\w+)">', shown)
    assert links == [
        (part, part)
        for part in ("answer", "standing", "quantiles", "units", "hours", "adaptation", "trust", "pipeline", "marks")
    ]
    assert all(f'id="{part}"' in shown for part, _ in links)


def test_marks_are_named_by_average_if_averages_differ_in_estimators() -> None:
    report = make_report(1, ("ips", "snips"), ("window", "mixture"))
    assert "One mark for each estimator (ips, snips):" in page(report)
    some = tuple(
        estimate for estimate in report.estimates if (estimate.estimator, estimate.average) != ("ips", "mixture")
    )
    assert "(ips, snips on window; snips on mixture):" in page(replace(report, estimates=some))


def test_adaptation_is_exported_for_every_policy_and_forgetting_average() -> None:
    overview = make_overview(make_published(make_report()), make_report(), {})
    assert overview is not None
    assert list(overview["adapting"]) == ["window", "decay", "adaptive_window", "adaptive_decay", "mixture"]
    for column in overview["adapting"].values():
        assert column.keys() == {"logging", "challenger-a", "challenger-b", "challenger-c"}
    (table,) = re.findall(r"Events in each average at present(.*?)</table>", page(make_report()), re.DOTALL)
    row = re.findall(r"<td>(.*?)</td>", table[table.index("challenger-a") :])
    assert row[2] == "4,200 events"


def test_lines_run_from_the_first_report_to_now() -> None:
    report = make_report(1, ("ips",), ("window",))
    production, candidate = report.estimates
    drawn = make_timelines(hours(report), NOW, [candidate], production)
    assert drawn is not None
    (picture,) = drawn.pictures
    assert drawn.seconds == pytest.approx(3600.0)
    (line,) = picture.lines
    points = np.array([point.split(",") for point in line.split()], dtype=float)
    assert len(points) == 101
    assert (points[0, 0], points[-1, 0]) == (0, FRAME_WIDTH)
    assert np.all((points[:, 1] >= 0) & (points[:, 1] <= FRAME_HEIGHT))
    (area,) = picture.areas
    assert len(area.split()) == 2 * 101
    assert picture.last == drawn_text(candidate.value, picture.last)


def drawn_text(value: float | None, like: str) -> str:
    """Return a value with as many decimals as `like`."""
    assert value is not None
    return f"{value:.{len(like.partition('.')[2])}f}"


def test_the_wild_first_estimates_do_not_flatten_the_rest() -> None:
    report = make_report(1, ("ips",), ("window",))
    candidate = report.estimates[1]
    wild = replace(candidate, value=40.0, lower=-100.0, upper=200.0)
    history = History().after(NOW - 4000.0, replace(report, estimates=(wild,)))
    for point in hours(report).points:
        history = history.after(point.at, report)
    drawn = make_timelines(history, NOW, [candidate], None)
    assert drawn is not None
    heights = np.array([point.split(",")[1] for point in drawn.pictures[0].areas[0].split()], dtype=float)
    assert heights.max() - heights.min() > FRAME_HEIGHT / 2
    assert drawn.pictures[0].highest.startswith("40.")


def test_a_line_has_a_gap_while_nothing_was_known() -> None:
    report, nothing = make_report(0, ("ips",), ("window",)), replace(make_report(0), estimates=())
    history = History()
    for step in range(30):
        history = history.after(NOW - 60 + step, report if step < 10 or step >= 20 else nothing)
    drawn = make_timelines(history, NOW, [report.estimates[0]], None)
    assert drawn is not None
    assert len(drawn.pictures[0].lines) == 2
    assert len(drawn.pictures[0].areas) == 2


def test_without_a_history_or_numbers_there_is_no_picture() -> None:
    report = make_report(1, ("ips",), ("window",))
    assert make_timelines(History(), NOW, list(report.estimates), None) is None
    unknown = [make_unknown("a", "ips", "window")]
    past = History().after(NOW - 9, replace(report, estimates=tuple(unknown)))
    assert make_timelines(past, NOW, unknown, None) is None
    assert "not known yet" in page(report)


def test_a_picture_describes_itself_in_words() -> None:
    report = make_report(1, ("ips",), ("window",))
    shown = page(report, history=hours(report))
    assert re.search(r'role="img" aria-label="challenger-a: [\d.]+ 1\.0 h ago, [\d.]+ now, between [\d.]+ and', shown)


def test_the_pipeline_section_shows_snapshots_decisions_and_backfills() -> None:
    assert '<th scope="row">newest snapshot</th><td>off</td>' in page(make_report(), snapshots=None)
    sent = page(make_report(), decisions=WorkerStatus(done=3, waiting=2, trouble="no broker"))
    assert '<th scope="row">decisions sent</th><td class="warn">3, 2 waiting: no broker</td>' in sent
    assert "decisions sent" not in page(make_report())
    assert "none yet" in page(make_report(), snapshots=SnapshotStatus())
    snapshots = with_fields(SnapshotStatus(NOW - 90.0), failures=2)
    shown = page(make_report(), snapshots=snapshots, backfills=(BackfillStatus(("late",), 1_234, None),))
    assert "1.5 min ago" in shown
    assert "failed snapshots" in shown
    assert "backfill of late" in shown


def test_screen_readers_hear_readiness_and_promotions() -> None:
    report = make_report()
    assert [decision.promotable for decision in report.promotion] == [True, False, False]
    assert news(make_published(report)) == "Ready. Promotable: challenger-a."
    none = tuple(replace(decision, promotable=False) for decision in report.promotion)
    assert news(make_published(replace(report, promotion=none))) == "Ready. No candidate is promotable."
    assert news(make_published(None, detail="no broker answers")) == "Not ready: no broker answers."


def test_a_mean_weight_that_chance_does_not_explain_is_flagged() -> None:
    def suspect(mean: float | None, size: float | None) -> bool:
        return is_suspect(make_estimate("a", "ips", "window", importance_weight_mean=mean, effective_sample_size=size))

    assert suspect(0.8, 10_000.0)
    assert not suspect(0.8, 100.0), "with a hundred effective events it may be chance"
    assert not suspect(1.01, 1e9), "a hundredth changes no decision"
    assert not suspect(None, None)


def answers_of(shown: str) -> list[str]:
    """Return the texts of the section at the top of the page."""
    section = shown.partition('<section aria-labelledby="answer"')[2].partition("</section>")[0]
    return [" ".join(re.sub(r"<[^>]*>", " ", item).split()) for item in section.split("<li")[1:]]


def test_the_page_starts_with_an_answer_for_each_candidate() -> None:
    shown = page(make_report())
    assert shown.index('aria-labelledby="answer"') < shown.index("Lift over production")
    first, *_ = answers_of(shown)
    assert "▲ Ship challenger-a: +" in first
    assert len(answers_of(shown)) == 3


def test_sentences_chart_and_tables_have_one_order() -> None:
    shown = page(make_report())
    assert [re.findall(r"challenger-\w", text)[0] for text in answers_of(shown)] == [
        f"challenger-{suffix}" for suffix in "acb"
    ]
    chart = shown.partition("Lift over production")[2]
    assert list(dict.fromkeys(re.findall(r"challenger-\w", chart))) == [f"challenger-{suffix}" for suffix in "acb"]


def test_an_interval_that_includes_0_again_is_not_bold() -> None:
    report = make_report(1, ("ips",), ("mixture",))
    wide = tuple(replace(row, lift_lower=None if row.lift is None else -0.01) for row in report.estimates)
    assert '<li class="promotable">' in page(report)
    assert '<li class="promotable faded">' in page(replace(report, estimates=wide))


def test_events_that_wait_for_their_rewards_are_beside_the_newest_event() -> None:
    waiting = BufferStatus(1_234, rewards=RewardCounts())
    header = page(make_report(), buffered=waiting).partition("<header>")[2].partition("</header>")[0]
    assert "<dt>Wait for rewards</dt><dd>1,234</dd>" in header
    assert header.index("Newest event") < header.index("Wait for rewards")
    assert "Wait for rewards" not in page(make_report(), buffered=BufferStatus(1_234))
    assert "<dt>Wait for scores</dt>" in page(make_report(), buffered=BufferStatus(1_234, scores=RewardCounts()))


def test_the_answer_warns_if_a_check_fails() -> None:
    report = make_report(1)
    failed = TrustCheck("logging", "mean_weight", False, "mean weight 1.31, expected 1")
    (text,) = answers_of(page(replace(report, trust=(failed,))))
    assert "✗ Do not decide yet about challenger-a: production: mean weight 1.31, expected 1." in text
    assert "expected 1. log the probability with which the shown action was chosen, and give every action" in text


def test_checks_that_fail_are_listed_by_policy() -> None:
    checks = (
        TrustCheck("logging", "mean_weight", True, "mean weight 1"),
        TrustCheck("challenger-a", "mean_weight", False, "mean weight 1.31, expected 1"),
        TrustCheck("challenger-a", "largest_share", False, "one event carries 43 %"),
    )
    text = " ".join(re.sub(r"<[^>]*>", " ", page(replace(make_report(1), trust=checks))).split())
    assert "challenger-a fails 2 checks : mean weight, largest share." in text
    assert "logging: passes all checks." in text


def test_weights_belong_to_the_deciding_estimate() -> None:
    report = make_report(1)
    marked = tuple(
        replace(estimate, effective_sample_size=4_321.0)
        if (estimate.estimator, estimate.average) == ("ips", "mixture")
        else estimate
        for estimate in report.estimates
    )
    shown = page(replace(report, estimates=marked))
    trust = shown.partition('id="trust-table"')[2].partition("</section>")[0]
    assert trust.count("4,321") == 2
    assert "belong to the deciding estimate: ips on mixture." in trust


def promoted(policy: str, seconds_ago: float, promotable: bool = True) -> Transition:
    return Transition(policy, "paired", 100, NOW - seconds_ago, promotable, 0.004)


def test_lifts_over_time_have_zero_on_their_axis_and_the_moments_of_promotion() -> None:
    report = make_report(1, ("ips",), ("mixture",))
    (candidate,) = (estimate for estimate in report.estimates if estimate.policy == "challenger-a")
    changes = [promoted("challenger-a", 1800), promoted("challenger-a", 900, False), promoted("another", 900)]
    drawn = make_timelines(hours(report), NOW, [candidate], None, lift_of, [*changes, promoted("challenger-a", 9000)])
    assert drawn is not None
    assert drawn.zero is not None
    assert 0 <= drawn.zero <= 100
    (picture,) = drawn.pictures
    assert picture.marks == ((50.0, True), (75.0, False))
    assert len(picture.lines) == len(picture.areas) == 1
    assert make_timelines(History(), NOW, [candidate], None, lift_of, changes) is None
    unknown = make_unknown("challenger-a", "ips", "mixture", lift=None, lift_lower=None, lift_upper=None)
    nothing = replace(report, estimates=(unknown,))
    assert make_timelines(hours(nothing), NOW, [unknown], None, lift_of, changes) is None


def test_lifts_over_time_show_the_margin_of_promotion() -> None:
    report = make_report(1, ("ips",), ("mixture",))
    (candidate,) = (estimate for estimate in report.estimates if estimate.policy == "challenger-a")
    drawn = make_timelines(hours(report), NOW, [candidate], None, lift_of, margin=0.5)
    assert drawn is not None
    assert drawn.zero is not None
    assert drawn.margin is not None
    assert 0 <= drawn.margin < drawn.zero <= 100
    shown = page(report, history=hours(report), margin=0.5)
    assert shown.count('class="margin"') == len(report.policies) - 1
    assert "margin of promotion, 0.5" in shown
    same = page(report, history=hours(report), margin=0.0)
    assert 'class="margin"' not in same
    assert "no lift, which is the margin of promotion" in same
    assert "margin of promotion" not in page(report, history=hours(report))


def test_the_pictures_show_the_chosen_hours() -> None:
    report = make_report(1)
    long = with_fields(
        hours(report), points=tuple(with_fields(p, at=NOW - 8 * (NOW - p.at)) for p in hours(report).points)
    )

    def axis(**wanted: str) -> str:
        return (
            page(report, wanted, history=long)
            .partition('<p class="axis" aria-hidden="true"><span>')[2]
            .partition("<")[0]
        )

    assert [axis(), axis(last="4 h"), axis(last="1 h"), axis(last="<b>")] == [
        "8.0 h ago",
        "4.0 h ago",
        "57.6 min ago",
        "8.0 h ago",
    ]
    assert 'id="last-choice-2" href="?average=mixture&amp;estimator=snips&amp;last=4+h" aria-current="true"' in page(
        report, {"last": "4 h", "estimator": "snips"}, history=long
    )


def test_the_page_shows_lifts_over_time_with_their_marks_in_words() -> None:
    report = make_report(1)
    shown = page(replace(report, transitions=(promoted("challenger-a", 1800),)), history=hours(report))
    assert "Lift over the last hours" in shown
    section = shown.partition('<section aria-labelledby="lifts">')[2].partition("</section>")[0]
    assert section.count('class="began"') == 1
    assert 'aria-label="lift of challenger-a: ' in section
    assert "; promotable 30.0 min ago" in section


def profile(period: float, lift: Sequence[float | None], phase: int = 2) -> Profile:
    count = len(lift)
    latest = (None, *lift[1:])
    return Profile(period, 8.0, phase, tuple(lift), (0.01,) * count, (1 / count,) * count, latest)


HOURS = [0.1 * np.sin(hour / 4) for hour in range(24)]


def decided(*profiles: Profile, policy: str = "challenger-a", **fields: Any) -> Decision:
    return Decision(policy, "periodic", False, "why", profiles=profiles, **fields)


def test_lifts_by_hour_are_drawn_with_traffic_and_the_newest_hours() -> None:
    rows = (decided(profile(DAY, HOURS)), decided(profile(DAY, [0.02] * 24), policy="challenger-b"))
    (chart,) = make_phase_charts(replace(make_report(), promotion=rows))
    assert [name for _, name in chart.names] == ["00", "03", "06", "09", "12", "15", "18", "21"]
    assert chart.now == pytest.approx(FRAME_WIDTH * 2.5 / 24, abs=0.1)
    first, second = chart.pictures
    assert (len(first.bars), len(first.dots)) == (24, 23)
    assert first.words == "lowest -0.100 at 19, highest 0.100 at 06"
    assert all(y < chart.zero for _, y in second.dots)
    assert max(height for _, height in second.bars) == pytest.approx(FRAME_HEIGHT / 3, abs=0.1)


def test_hours_without_a_lift_leave_a_gap() -> None:
    gap = [*HOURS[:10], None, *HOURS[11:]]
    (chart,) = make_phase_charts(replace(make_report(), promotion=(decided(profile(DAY, gap)),)))
    assert [len(line.split()) for line in chart.pictures[0].line.lines] == [10, 13]


def test_days_of_the_week_follow_the_hours_of_the_day() -> None:
    row = decided(profile(DAY, HOURS), profile(WEEK, [0.02] * 7), worse=True)
    shown = page(replace(make_report(), promotion=(row,)))
    section = shown[shown.index('id="phases"') :]
    assert "Lift by hour and day" in section
    assert re.findall(r'aria-label="lift of challenger-a by ([^:]*):', section) == [
        "hour of the day (UTC)",
        "day of the week (UTC)",
    ]
    assert section.count('<figure class="worse">') >= 2
    assert ">Mon</text>" in section
    assert 'id="phases"' not in page(make_report())


def test_the_page_shows_the_estimated_and_the_observed_lift_of_an_arm() -> None:
    report = make_report(2)
    shown = page(report)
    assert "<td>estimated +0.0120, seen +0.0100 ± 0.0040</td>" in shown
    assert shown.count("caption>Ramp") == 1
    assert "<td>too few events yet</td>" in shown
    wrong = TrustCheck("challenger-a", "calibration", ok=False, reason="the propensities are wrong")
    assert ">✗ the propensities are wrong</td>" in page(replace(report, trust=(wrong,)))
    assert "<td>✓ they differ by no more than chance explains</td>" in page(
        replace(report, trust=(replace(wrong, ok=True),))
    )
    assert "caption>Ramp" not in page(replace(report, calibration=()))
