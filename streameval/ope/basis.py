"""Tell what each decision rests on, from the other parts of a Report."""

from __future__ import annotations

from msgspec import structs

from streameval.ope.report import Basis, Decision, Estimate, Report, grouped


def with_basis(report: Report) -> Report:
    """Return a Report with the basis of all decisions, as far as it is known.

    A decision keeps its lift in standard errors, and the largest share of an event.
    """
    goal = report.of_goal()
    rows, failed = grouped(goal.estimates, "policy"), grouped((row for row in report.trust if not row.ok), "policy")
    clipped = {row.reward: row.recent_share for row in report.clipped}

    def basis(decision: Decision) -> Basis:
        estimate = _estimate(decision, rows.get(decision.policy, []))
        checks = [*failed.get(decision.policy, ()), *failed.get(report.production, ())]
        known = decision.basis
        return structs.replace(
            known,
            effective_events=known.effective_events if estimate is None else estimate.effective_sample_size,
            missing_share=None if estimate is None else estimate.details.get("missing_share"),
            clipped_share=clipped.get(decision.reward),
            failed=tuple(dict.fromkeys(check.check for check in checks)),
        )

    return structs.replace(
        report, promotion=tuple(structs.replace(decision, basis=basis(decision)) for decision in report.promotion)
    )


def _estimate(decision: Decision, rows: list[Estimate]) -> Estimate | None:
    pair = decision.estimator, decision.average
    return next((row for row in rows if (row.estimator, row.average) == pair), None)
