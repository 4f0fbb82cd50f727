"""Test the answer of a Report: a sentence for each candidate, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streameval.ope.answer import answers, recommended
from streameval.ope.report import Decision, Estimate, EventCounts, PolicyCounts, Report, TrustCheck
from support.factories import make_estimate

NOON = 1_575_115_200.0
PAIR = {"estimator": "snips", "average": "mixture"}


@dataclass
class Candidate:
    """Hold a candidate with this lift over a production that is worth .166."""

    name: str = "challenger"
    lift: float | None = 0.0247
    width: float = 0.005
    ratio: bool = True

    def estimate(self) -> Estimate:
        if self.lift is None:
            return make_estimate(self.name, "snips", "mixture", 0.166)
        bounds = {"": self.lift, "_lower": self.lift - self.width, "_upper": self.lift + self.width}
        ratios = {f"lift_ratio{end}": bound / 0.166 for end, bound in bounds.items()} if self.ratio else {}
        lifts = {f"lift{end}": bound for end, bound in bounds.items()}
        return make_estimate(self.name, "snips", "mixture", 0.166 + self.lift, **lifts, **ratios)


def decision(policy: str = "challenger", **fields: Any) -> Decision:
    return Decision(**{"policy": policy, "rule": "paired", "promotable": False, "reason": "a reason", **PAIR, **fields})


PROMOTABLE = {"promotable": True, "since_timestamp": NOON, "since_event": 12_300}


def report(*candidates: Candidate, decisions: Any = (), trust: Any = (), hours: float | None = 10.0) -> Report:
    names = ["logging", *(candidate.name for candidate in candidates)]
    first = None if hours is None else NOON - 3600 * hours
    return Report(
        confidence=0.95,
        production="logging",
        events=EventCounts(10_000, {}, None if hours is None else NOON, first),
        policies=tuple(PolicyCounts(name, name == "logging", 10_000, 0) for name in names),
        estimates=(
            make_estimate("logging", "snips", "mixture", 0.166),
            *(candidate.estimate() for candidate in candidates),
        ),
        promotion=tuple(decisions),
        trust=tuple(trust),
    )


def only(*args: Any, **options: Any) -> tuple[str, str]:
    (actual,) = answers(report(*args, **options))
    return actual.verdict, actual.sentence


def test_the_sentence_of_a_promotable_candidate_has_its_lift_and_since_when() -> None:
    assert only(Candidate(), decisions=[decision(**PROMOTABLE)]) == (
        "promotable",
        "challenger earns +14.9 % [12, 18] more than production (0.1907 against 0.1660), "
        "promotable since 2019-11-30 12:00:00 UTC",
    )


@pytest.mark.parametrize(("width", "bound_named"), [(0.03, True), (0.005, False)])
def test_a_promotable_candidate_with_an_interval_below_0_names_the_bound_that_decides(
    width: float, bound_named: bool
) -> None:
    reason = "decision bound of lift 0.002 over margin 0"
    decided = decision(promotable=True, since_event=12_300, lower=0.002, reason=f"{reason} since event 12,300")
    _, sentence = only(Candidate(width=width), decisions=[decided])
    end = f" (not by the interval, but by the rule paired: {reason})" if bound_named else ""
    assert sentence.endswith(f"promotable since event 12,300{end}")


def test_a_rule_without_a_bound_is_named_if_the_interval_reaches_below_0() -> None:
    decided = decision(promotable=True, since_event=12_300, rule="sea", reason="lift 0.02 over margin 0")
    _, sentence = only(Candidate(width=0.03), decisions=[decided])
    assert sentence.endswith("(not by the interval, but by the rule sea: lift 0.02 over margin 0)")


def test_without_times_it_is_promotable_since_an_event() -> None:
    _, sentence = only(Candidate(), decisions=[decision(promotable=True, since_event=12_300)])
    assert sentence.endswith("promotable since event 12,300")


def test_the_sentence_gives_the_missing_events_and_their_time() -> None:
    assert only(Candidate(lift=0.002), decisions=[decision(more=21_000.0)]) == (
        "unknown",
        "not known yet whether challenger earns more than production: needs about 21,000 more events (21 hours); "
        "so far +1.2 % [-2, 4]",
    )
    _, sentence = only(Candidate(lift=None), decisions=[decision(more=1.0)], hours=None)
    assert sentence.endswith(": needs about 1 more event")


def test_the_reason_of_the_rule_is_given_if_no_number_of_events_is_known() -> None:
    _, sentence = only(Candidate(lift=0.002), decisions=[decision(reason="the lift varies too much")])
    assert "more than production: the lift varies too much; so far" in sentence


def test_a_lift_above_zero_is_not_yet_promotable() -> None:
    verdict, sentence = only(Candidate(), decisions=[decision(more=500.0)])
    assert verdict == "better"
    assert sentence.endswith(
        "(0.1907 against 0.1660), but it is not promotable: needs about 500 more events (30 minutes)"
    )


def test_without_promotion_the_interval_decides() -> None:
    assert only(Candidate())[1] == "challenger earns +14.9 % [12, 18] more than production (0.1907 against 0.1660)"
    assert only(Candidate(lift=0.001))[1].endswith(": the interval of its lift includes 0; so far +0.6 % [-2, 4]")


def test_a_worse_candidate_earns_less() -> None:
    assert only(Candidate(lift=-0.0247), decisions=[decision(more=9.0)]) == (
        "worse",
        "challenger earns 14.9 % [12, 18] less than production (0.1413 against 0.1660)",
    )


def test_without_a_ratio_the_lift_itself_is_given() -> None:
    _, sentence = only(Candidate(ratio=False))
    assert sentence == "challenger earns 0.0247 [0.0197, 0.0297] more per event than production (0.1907 against 0.1660)"
    _, sentence = only(Candidate(lift=-0.0247, ratio=False))
    assert sentence == "challenger earns 0.0247 [0.0197, 0.0297] less per event than production (0.1413 against 0.1660)"
    assert only(Candidate(lift=0.001, ratio=False))[1].endswith("so far +0.001000 [-0.004000, 0.006000] per event")


@pytest.mark.parametrize("policy", ["challenger", "logging"])
def test_a_trust_check_that_fails_comes_before_any_number(policy: str) -> None:
    failed = TrustCheck(policy, "mean_weight", False, "mean weight 1.4 is not 1")
    actual = only(Candidate(), decisions=[decision(**PROMOTABLE)], trust=[failed])
    whose = "production: " if policy == "logging" else ""
    assert actual == ("untrusted", f"do not trust the numbers of challenger: {whose}mean weight 1.4 is not 1")


def test_numbers_with_little_evidence_are_trusted() -> None:
    little = TrustCheck("challenger", "effective_sample_size", False, "effective sample size 40 under 100")
    assert only(Candidate(lift=0.002), trust=[little]) == (
        "unknown",
        "not known yet whether challenger earns more than production: effective sample size 40 under 100; "
        "so far +1.2 % [-2, 4]",
    )


def test_the_check_of_another_candidate_does_not_matter() -> None:
    failed = TrustCheck("other", "mean_weight", False, "mean weight 1.4 is not 1")
    actual = answers(report(Candidate(), Candidate("other"), trust=[failed]))
    assert [answer.verdict for answer in actual] == ["better", "untrusted"]


def test_candidates_are_ranked_by_verdict_and_then_by_the_lower_bound() -> None:
    candidates = [
        Candidate("worse", -0.02),
        Candidate("wide", 0.03, 0.02),
        Candidate("open", 0.0),
        Candidate("sure", 0.02),
    ]
    promoted = [decision(name, **PROMOTABLE) for name in ("wide", "sure")]
    actual = answers(report(*candidates, decisions=[*promoted, decision("worse"), decision("open")]))
    assert [answer.policy for answer in actual] == ["sure", "wide", "open", "worse"]
    assert [answer.verdict for answer in actual] == ["promotable", "promotable", "unknown", "worse"]


def test_the_estimate_that_decides_is_recommended() -> None:
    two = report(Candidate(), decisions=[decision(average="window")])
    other = make_estimate("challenger", "snips", "window", 0.17, lift=0.004)
    extended = Report(two.confidence, "logging", two.events, two.policies, (other, *two.estimates), two.promotion)
    assert recommended(extended, "challenger") == other
    undecided = Report(two.confidence, "logging", two.events, two.policies, (other, *two.estimates))
    assert recommended(undecided, "challenger") == two.estimates[-1]
    assert recommended(undecided, "logging") is None


def periodic(policy: str = "challenger", worse: bool = False, **fields: Any) -> list[Decision]:
    """Return the decision over whole periods, and the row beside it about this minute."""
    now = decision(policy, decides=False, reason="better at this minute: decision bound of lift 0.02 over margin 0")
    return [decision(policy, rule="periodic", worse=worse, lift=0.0077, lower=0.0021, **fields), now]


BOUND = "lift of a whole day +0.0077, bound +0.0021 over 6 days, above margin 0"


def test_a_decision_over_whole_periods_speaks_of_them_and_not_of_this_minute() -> None:
    rows = periodic(**PROMOTABLE, reason=f"{BOUND} since event 12,300")
    for lift in (0.0247, -0.0247):
        assert only(Candidate(lift=lift), decisions=rows) == (
            "promotable",
            f"challenger is promotable since 2019-11-30 12:00:00 UTC: {BOUND}",
        )


def test_a_candidate_that_loses_over_whole_periods_is_worse_however_good_this_minute_is() -> None:
    reason = "worse than production: lift of a whole day -0.01, upper bound -0.002 over 6 days, below 0"
    assert only(Candidate(), decisions=periodic(worse=True, reason=reason)) == ("worse", f"challenger is {reason}")


@pytest.mark.parametrize(
    ("lift", "now"),
    [
        (0.0247, "; at this minute, challenger earns +14.9 % [12, 18] more than production (0.1907 against 0.1660)"),
        (-0.0247, "; at this minute, challenger earns 14.9 % [12, 18] less than production (0.1413 against 0.1660)"),
        (0.002, ""),
    ],
)
def test_before_whole_periods_are_known_the_interval_of_this_minute_is_no_answer(lift: float, now: str) -> None:
    reason = "the lift of a whole day is known at 2026-11-27 15:00 (in 9 hours)"
    verdict, sentence = only(Candidate(lift=lift), decisions=periodic(reason=reason))
    assert verdict == "unknown"
    assert sentence == f"not known yet whether challenger earns more than production: {reason}{now}"


def test_promotable_candidates_over_whole_periods_come_by_the_bound_that_decides() -> None:
    first, second = Candidate("first", lift=0.001), Candidate("second", lift=0.05)
    rows = [
        *periodic("first", **PROMOTABLE, reason=BOUND),
        decision("second", rule="periodic", worse=False, lift=0.002, lower=0.001, **PROMOTABLE),
    ]
    assert [answer.policy for answer in answers(report(second, first, decisions=rows))] == ["first", "second"]


def test_a_rule_that_does_not_decide_gives_no_answer() -> None:
    idle = decision(rule="periodic", decides=False, reason="whole periods are unknown")
    verdict, sentence = only(Candidate(), decisions=[idle, decision(**PROMOTABLE)])
    assert verdict == "promotable"
    assert "challenger earns +14.9 %" in sentence
