"""Test the answer of a Report: a sentence for each candidate, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from streameval.ope.answer import answers, best_first, headline, recommended
from streameval.ope.report import (
    DAY,
    Contender,
    Decision,
    Estimate,
    EventCounts,
    Failure,
    GuardrailCheck,
    PolicyCounts,
    Profile,
    Report,
    SegmentEstimate,
    Transition,
    TrustCheck,
)
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
    known = {"policy": policy, "rule": "paired", "promotable": False, "reason": "a reason", "lift": 0.02, **PAIR}
    return Decision(**known | fields)


PROMOTABLE = {"promotable": True, "since_timestamp": NOON, "since_event": 12_300}


def report(
    *candidates: Candidate,
    decisions: Any = (),
    hours: float | None = 10.0,
    counts: tuple[int, int, tuple[Failure, ...]] = (10_000, 0, ()),
    **parts: Any,
) -> Report:
    names = ["logging", *(candidate.name for candidate in candidates)]
    first = None if hours is None else NOON - 3600 * hours
    return Report(
        confidence=0.95,
        production="logging",
        events=EventCounts(10_000, {}, None if hours is None else NOON, first),
        policies=tuple(PolicyCounts(name, name == "logging", *counts) for name in names),
        estimates=(
            make_estimate("logging", "snips", "mixture", 0.166),
            *(candidate.estimate() for candidate in candidates),
        ),
        promotion=tuple(decisions),
        **{name: tuple(rows) for name, rows in parts.items()},
    )


def failed(check: str, reason: str, policy: str = "challenger") -> TrustCheck:
    return TrustCheck(policy, check, False, reason)


def whole(**fields: Any) -> list[Decision]:
    """Return the decision over whole days, and the row beside it about this minute."""
    profile = Profile(DAY, 6.0, 0, (0.01,), (0.01,), (1.0,), (0.01,))
    now = decision(decides=False, reason="better at this minute: decision bound of lift 0.02 over margin 0")
    days = {"rule": "periodic", "worse": False, "lift": 0.0077, "lower": 0.0021, "profiles": (profile,)}
    return [decision(**{**days, **fields}), now]


def ended(minutes: float = 5.0, **fields: Any) -> Transition:
    timestamp = None if fields else NOON - 60 * minutes
    return Transition(
        **{"policy": "challenger", "rule": "paired", "event": 12_300, "timestamp": timestamp, **fields},
        promotable=False,
        lift=0.01,
    )


def guarded(**fields: Any) -> Decision:
    return decision(guardrails=(GuardrailCheck("stay", 0.001, False, "a reason", **fields),))


SEGMENT = SegmentEstimate(
    "challenger",
    "country",
    "fr",
    **PAIR,
    share=0.2,
    events=9.0,
    value=0.1,
    lower=None,
    upper=None,
    lift=-0.02,
    lift_lower=-0.03,
    lift_upper=-0.01,
    kind="normal",
)
UNDECIDED = Candidate(lift=0.002)
LATER = {"policy": "challenger", "rule": "paired", "event": 9, "timestamp": NOON, "promotable": True, "lift": 0.1}
FACTS: dict[str, tuple[Report, str, str]] = {
    "a promotable candidate": (
        report(Candidate(), decisions=[decision(**PROMOTABLE)]),
        "promotable",
        "Ship challenger: +15 % (95 %: +12 to +18)",
    ),
    "its interval, whatever bound the rule compares": (
        report(Candidate(), decisions=[decision(**PROMOTABLE, lift=0.02, lower=0.002)]),
        "promotable",
        "Ship challenger: +15 % (95 %: +12 to +18)",
    ),
    "a narrow interval": (
        report(Candidate(width=0.001), decisions=[decision(**PROMOTABLE)]),
        "promotable",
        "Ship challenger: +14.9 % (95 %: +14.3 to +15.5)",
    ),
    "no ratio": (
        report(Candidate(ratio=False), decisions=[decision(**PROMOTABLE)]),
        "promotable",
        "Ship challenger: +0.0247 per event (95 %: +0.0197 to +0.0297)",
    ),
    "an interval that includes 0 again": (
        report(Candidate(width=0.03), decisions=[decision(**PROMOTABLE)]),
        "promotable",
        "Wait with challenger: promotable since 12:00 UTC, but the interval now includes 0, +15 % (95 %: -3 to +33)",
    ),
    "the same without times": (
        report(Candidate(width=0.03), decisions=[decision(promotable=True, since_event=12_300)], hours=None),
        "promotable",
        "Wait with challenger: promotable since event 12,300, but the interval now includes 0, +15 % (95 %: -3 to +33)",
    ),
    "a rule on all data": (
        report(
            Candidate(lift=-0.02),
            decisions=[decision(rule="sea", estimator=None, lift=0.02, lower=0.004, **PROMOTABLE)],
        ),
        "promotable",
        "Ship challenger: +0.0200 per event (at least +0.0040)",
    ),
    "a rule without a bound": (
        report(Candidate(), decisions=[decision(rule="bsea", estimator=None, lift=0.02, **PROMOTABLE)]),
        "promotable",
        "Ship challenger: +0.0200 per event",
    ),
    "whole days, also if this minute is worse": (
        report(Candidate(lift=-0.02), decisions=whole(**PROMOTABLE)),
        "promotable",
        "Ship challenger: +0.0077 per event over a whole day (at least +0.0021)",
    ),
    "whole days that lose, also if this minute is better": (
        report(Candidate(), decisions=whole(worse=True, lift=-0.01, lower=-0.018)),
        "worse",
        "Do not ship challenger: it earns 0.0100 less per event over a whole day (at least 0.0020 less)",
    ),
    "whole days that are not known yet": (
        report(Candidate(), decisions=whole(lift=None, lower=None, reason="the lift of a whole day is known at 15:00")),
        "undecided",
        "Keep production over challenger: the lift of a whole day is known at 15:00",
    ),
    "whole days that may be worse": (
        report(Candidate(), decisions=whole(lower=-0.002)),
        "undecided",
        "Keep production over challenger: not proven better, +0.0077 per event over a whole day (at least -0.0020)",
    ),
    "a segment that loses": (
        report(Candidate(), decisions=[decision(**PROMOTABLE)], segments=[SEGMENT]),
        "promotable",
        "Ship challenger: +15 % (95 %: +12 to +18); it earns less in country fr",
    ),
    "too few events": (
        report(UNDECIDED, decisions=[decision(more=21_000.0)]),
        "undecided",
        "Keep production over challenger: too early, about 21,000 more events (21 hours)",
    ),
    "one more event, and no times": (
        report(Candidate(lift=None), decisions=[decision(more=1.0)], hours=None),
        "undecided",
        "Keep production over challenger: too early, about 1 more event",
    ),
    "an interval above 0, and a stricter rule": (
        report(Candidate(), decisions=[decision(more=500.0)]),
        "undecided",
        "Keep production over challenger: too early, about 500 more events (30 minutes)",
    ),
    "the same without a forecast": (
        report(Candidate(), decisions=[decision()]),
        "undecided",
        "Keep production over challenger: it looks better, +15 % (95 %: +12 to +18), but its rule does not hold",
    ),
    "an interval that includes 0": (
        report(UNDECIDED, decisions=[decision()]),
        "undecided",
        "Keep production over challenger: not proven better, +1 % (95 %: -2 to +4)",
    ),
    "the end of a promotion": (
        report(UNDECIDED, decisions=[decision(promotable_events=900)], transitions=[ended()]),
        "undecided",
        "Keep production over challenger: it was better until 11:55 UTC; the interval now includes 0, "
        "+1 % (95 %: -2 to +4)",
    ),
    "the end of a promotion on another day": (
        report(UNDECIDED, decisions=[decision(more=21_000.0)], transitions=[ended(minutes=1440)]),
        "undecided",
        "Keep production over challenger: it was better until 2019-11-29 12:00 UTC; the interval now includes 0, "
        "+1 % (95 %: -2 to +4); about 21,000 more events (21 hours)",
    ),
    "the end of a promotion in a log without times": (
        report(UNDECIDED, decisions=[decision()], transitions=[Transition(**LATER), ended(timestamp=None)], hours=None),
        "undecided",
        "Keep production over challenger: it was better until event 12,300; the interval now includes 0, "
        "+1 % (95 %: -2 to +4)",
    ),
    "a guardrail that more events will not help": (
        report(Candidate(), decisions=[guarded(lift=-0.004)]),
        "undecided",
        "Keep production over challenger: it loses 0.004 stay per event, and may lose 0.001",
    ),
    "a guardrail that more events may help": (
        report(UNDECIDED, decisions=[guarded(lift=0.001)]),
        "undecided",
        "Keep production over challenger: not proven better, +1 % (95 %: -2 to +4)",
    ),
    "an equal candidate": (
        report(Candidate(lift=0.0, width=0.0), decisions=[decision(reason="it has had the same weighted reward")]),
        "undecided",
        "Keep production over challenger: it has had the same weighted reward",
    ),
    "a rule without a lift": (
        report(Candidate(), decisions=[decision(lift=None, estimator=None, reason="no lift can decide: add mixture")]),
        "undecided",
        "Keep production over challenger: no lift can decide: add mixture",
    ),
    "a rule without a lift, and an interval below 0": (
        report(Candidate(lift=-0.0247), decisions=[decision(lift=None, estimator=None)]),
        "worse",
        "Do not ship challenger: it earns 15 % less (95 %: -18 to -12)",
    ),
    "no rule": (
        report(Candidate()),
        "undecided",
        "Keep production over challenger: no rule decides, +15 % (95 %: +12 to +18)",
    ),
    "no rule and no lift": (
        report(Candidate(lift=None)),
        "undecided",
        "Keep production over challenger: there are too few events with rewards",
    ),
    "an interval below 0": (
        report(Candidate(lift=-0.0247), decisions=[decision(more=9.0)]),
        "worse",
        "Do not ship challenger: it earns 15 % less (95 %: -18 to -12)",
    ),
    "an interval below 0 without a ratio": (
        report(Candidate(lift=-0.0247, ratio=False)),
        "worse",
        "Do not ship challenger: it earns 0.0247 less per event (95 %: -0.0297 to -0.0197)",
    ),
    "a failed check, whatever the rule says": (
        report(Candidate(), decisions=[decision(**PROMOTABLE)], trust=[failed("mean_weight", "mean weight 1.4")]),
        "untrusted",
        "Do not decide yet about challenger: mean weight 1.4",
    ),
    "a failed check of production": (
        report(Candidate(), trust=[failed("mean_weight", "mean weight 1.4", "logging")]),
        "untrusted",
        "Do not decide yet about challenger: production: mean weight 1.4",
    ),
    "little evidence": (
        report(UNDECIDED, trust=[failed("effective_sample_size", "effective sample size 40 under 100")]),
        "undecided",
        "Keep production over challenger: too little evidence, effective sample size 40 under 100",
    ),
    "a failed check of another candidate": (
        report(Candidate(), decisions=[decision(**PROMOTABLE)], trust=[failed("mean_weight", "off", "another")]),
        "promotable",
        "Ship challenger: +15 % (95 %: +12 to +18)",
    ),
    "a function that always raises": (
        report(Candidate(lift=None), counts=(0, 10_000, (Failure("raised", 10_000, "KeyError: 'country'"),))),
        "undecided",
        "No event counts for challenger: its function raised KeyError 'country' (10,000 of 10,000)",
    ),
    "a name that no event has": (
        report(Candidate(lift=None), decisions=[decision(more=9.0)], counts=(0, 10_000, ())),
        "undecided",
        "No event counts for challenger: none has its probability (10,000 of 10,000)",
    ),
    "a rule that does not decide": (
        report(Candidate(), decisions=[decision(rule="periodic", decides=False), decision(**PROMOTABLE)]),
        "promotable",
        "Ship challenger: +15 % (95 %: +12 to +18)",
    ),
}


@pytest.mark.parametrize("facts", FACTS)
def test_each_candidate_has_a_state_and_a_sentence(facts: str) -> None:
    made, state, sentence = FACTS[facts]
    (answer,) = answers(made)
    assert (answer.state, answer.sentence) == (state, sentence)
    assert answer.faded == ("now includes 0" in sentence)


def test_failed_checks_come_with_their_remedies_once() -> None:
    checks = [failed("stale", "old", policy) for policy in ("challenger", "logging")]
    (answer,) = answers(report(Candidate(), trust=[*checks, failed("clusters", "correlated")]))
    assert answer.remedy == "find out why no events arrive; log the user or session of each event as its `unit`"
    assert answers(report(Candidate()))[0].remedy == ""


def test_values_bounds_and_reasons_are_details() -> None:
    (answer,) = answers(report(Candidate(), decisions=whole(**PROMOTABLE, reason="bound +0.0021, above margin 0")))
    assert answer.details == (
        "0.1907 per event against 0.1660 of production, by snips on mixture",
        "periodic, promotable since 12:00 UTC: bound +0.0021, above margin 0",
        "paired, does not decide: better at this minute: decision bound of lift 0.02 over margin 0",
    )


def test_several_promotable_candidates_have_a_headline() -> None:
    names = ("a", "b")
    both = [decision(name, **PROMOTABLE) for name in names]
    wide = [Candidate("a"), Candidate("b", width=0.03)]
    made = [
        report(*map(Candidate, names), decisions=both),
        report(*map(Candidate, names), decisions=both[:1]),
        report(*wide, decisions=both),
    ]
    assert [headline(answers(each)) for each in made] == ["2 candidates beat production; best first", "", ""]


def test_the_headline_names_who_is_beaten() -> None:
    names = ("a", "b", "c")
    rows = [Contender(name, "c", name == "b", None if name == "c" else -0.01) for name in names]

    def title(rows: Sequence[Contender], **parts: Any) -> str:
        return headline(answers(report(*map(Candidate, names), contenders=rows, **parts)))

    assert title(rows) == "a and c are not beaten by another candidate; b is"
    assert title(rows[1:]) == "c beats b"
    assert title([rows[0], rows[2]]) == ""
    assert title(rows, decisions=[decision("b", worse=True)]) == ""
    promotable = [decision(name, **PROMOTABLE) for name in names]
    assert title(rows, decisions=promotable) == (
        "3 candidates beat production; best first. a and c are not beaten by another candidate; b is"
    )


def test_all_parts_of_a_report_follow_the_order_of_the_answers() -> None:
    candidates = [Candidate("worse", -0.02), Candidate("best", 0.02)]
    made = report(*candidates, decisions=[decision("worse"), decision("best", **PROMOTABLE)])
    ordered = best_first(made, answers(made))
    assert [row.policy for row in ordered.policies] == ["logging", "best", "worse"]
    assert [row.policy for row in ordered.estimates] == ["logging", "best", "worse"]
    assert [row.policy for row in ordered.promotion] == ["best", "worse"]


def test_candidates_are_ranked_by_state_and_then_by_the_lower_bound() -> None:
    candidates = [
        Candidate("worse", -0.02),
        Candidate("wide", 0.03, 0.02),
        Candidate("open", 0.0),
        Candidate("sure", 0.02),
    ]
    promoted = [decision(name, **PROMOTABLE) for name in ("wide", "sure")]
    actual = answers(report(*candidates, decisions=[*promoted, decision("worse"), decision("open")]))
    assert [answer.policy for answer in actual] == ["sure", "wide", "open", "worse"]
    assert [answer.state for answer in actual] == ["promotable", "promotable", "undecided", "worse"]


def test_the_estimate_that_decides_is_recommended() -> None:
    two = report(Candidate(), decisions=[decision(average="window")])
    other = make_estimate("challenger", "snips", "window", 0.17, lift=0.004)
    extended = Report(two.confidence, "logging", two.events, two.policies, (other, *two.estimates), two.promotion)
    assert recommended(extended, "challenger") == other
    undecided = Report(two.confidence, "logging", two.events, two.policies, (other, *two.estimates))
    assert recommended(undecided, "challenger") == two.estimates[-1]
    assert recommended(undecided, "logging") is None


def test_promotable_candidates_over_whole_periods_come_by_the_bound_that_decides() -> None:
    first, second = Candidate("first", lift=0.001), Candidate("second", lift=0.05)
    rows = [*whole(policy="first", **PROMOTABLE), *whole(policy="second", **PROMOTABLE, lower=0.001)]
    assert [answer.policy for answer in answers(report(second, first, decisions=rows))] == ["first", "second"]
