"""Show the lift of every reward, if there are several."""

from __future__ import annotations

import re

from msgspec.structs import replace

from streameval.ope.report import Report
from streameval.service.status_page.page import render
from support.factories import make_published, make_report, with_a_guardrail


def two_rewards() -> Report:
    report = make_report(candidates=2)
    further = tuple(replace(estimate, reward="revenue", value=7.25) for estimate in report.estimates)
    return replace(report, estimates=report.estimates + further)


def test_every_reward_of_a_candidate_has_a_row_and_the_goal_has_the_rest_of_the_page() -> None:
    report = two_rewards()
    page = render(make_published(report))
    assert "Lift of every reward; reward decides" in page
    assert page.count('<td class="text">revenue</td>') == 2
    alone = render(make_published(report.of_goal()))
    assert "Lift of every reward" not in alone
    assert page.count('class="chart"') == alone.count('class="chart"')


def test_an_unknown_interval_is_one_dash() -> None:
    report = two_rewards()
    unknown = tuple(replace(estimate, lift_lower=None, lift_upper=None) for estimate in report.estimates)
    assert "– to –" not in render(make_published(replace(report, estimates=unknown)))


def rows_of(report: Report) -> list[str]:
    """Return the texts of the rows about `stay`, as a screen reader reads them."""
    page = render(make_published(report))
    table = page.partition('<table id="rewards">')[2].partition("</table>")[0]
    spoken = re.sub(r'<span aria-hidden="true">.*?</span>', "", table)
    rows = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in spoken.split("<tr>")]
    return [row for row in rows if " stay " in row]


def test_a_guardrail_is_named_with_what_it_allows_and_whether_it_is_kept() -> None:
    report = with_a_guardrail(make_report(candidates=2), True, False)
    kept, failed = rows_of(report)
    assert " stay guardrail kept +0.00407 +0.00157 to +0.00657 0.9 " in kept, "the lift comes before the value"
    assert " stay guardrail not kept yet " in failed
    assert kept.endswith(" may lose 0.001, decision bound -0.002")
    (worse, _) = rows_of(with_a_guardrail(make_report(candidates=2), False, False, lower=-0.004))
    assert " stay guardrail not kept +0.00407 " in worse
    assert worse.endswith(" decision bound -0.004")


def test_a_guardrail_names_the_rule_if_there_are_several() -> None:
    report = with_a_guardrail(make_report(candidates=1), False)
    (decision,) = report.promotion
    several = replace(report, promotion=(decision, replace(decision, rule="sea")))
    (row,) = rows_of(several)
    assert "guardrail not kept yet by paired guardrail not kept yet by sea" in row
    assert "decision bound -0.002 by paired; " in row
    assert row.endswith("by sea")


def test_there_is_no_column_of_guardrails_without_one() -> None:
    assert "Guardrail" not in render(make_published(two_rewards()))


def test_quantiles_and_the_learned_limit_are_a_section() -> None:
    report = make_report(candidates=1)
    wide = replace(report.quantiles[1], upper=None)
    page = render(make_published(replace(report, quantiles=(report.quantiles[0], wide))))
    section = page.partition('<section aria-labelledby="quantiles">')[2].partition("</section>")[0]
    rows = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in section.split("<tr>")]
    assert rows[2] == "logging production reward 0.95 0.7 0.6 to 0.8"
    assert rows[3].startswith("challenger-a reward 0.95 0.7 0.6 to –")
    assert "<p>reward is clipped at 120, its 0.999 quantile until now.</p>" in section
    assert "Quantiles of rewards" not in render(make_published(replace(report, quantiles=(), limits=())))


def test_rewards_per_unit_are_a_section_that_says_what_it_does_not_tell() -> None:
    report = make_report(candidates=1)
    section = (
        render(make_published(report)).partition('<section aria-labelledby="units">')[2].partition("</section>")[0]
    )
    rows = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in section.split("<tr>")]
    assert rows[2].startswith("logging production reward 2023-11-15")
    assert rows[2].endswith("1,200 0.13 0.12 to 0.14 – –")
    assert "1,200 0.15 0.13 to 0.17 0.02 0.01 to 0.03" in rows[3]
    assert "how often units return under a candidate is unknown" in section
    assert "Rewards per unit" not in render(make_published(replace(report, per_unit=())))
