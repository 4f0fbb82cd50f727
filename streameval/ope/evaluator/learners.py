"""Rows of a Report about the candidates that learn and their frozen copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streameval.ope.evaluator.plan import Plan
from streameval.ope.policies.base import LearningPolicy
from streameval.ope.policies.learned import Learned
from streameval.ope.policies.versions import FrozenPolicy
from streameval.ope.report import Decision, Estimate, Learner

STILL_LEARNS = (
    "; but it still learns, and this is about its past versions: `versions_of` makes copies that do not change"
)


def learner_rows(plan: Plan, learned: Mapping[str, dict[str, Any]], of_goal: Sequence[Estimate]) -> Iterator[Learner]:
    """A row of each policy that learns and of each frozen copy; `of_goal`: the estimates of the goal."""
    cumulative = {label for label, average in plan.averages.items() if average.kind == "cumulative"}
    regrets = {row.policy: -row.lift for row in reversed(of_goal) if row.average in cumulative and row.lift is not None}
    copies = [each for each in plan.learned_policies.values() if isinstance(each, FrozenPolicy)]
    for name, policy in plan.learned_policies.items():
        made = {each for each, versions in plan.versions.items() if versions.policy == name}
        own, version = learned[name], max((copy.number for copy in copies if copy.of in made), default=None)
        if isinstance(policy, FrozenPolicy):
            version = policy.number
        yield Learner(
            policy=name,
            learns=keeps_learning(policy),
            steps=own.get("steps", 0),
            version=version,
            regret=regrets.get(name),
            step_norm=policy.step_norm(own) if isinstance(policy, Learned) else None,
            failures=own.get("failures", 0),
            learning_rate=policy.step if isinstance(policy, Learned) else None,
        )


def with_notes(plan: Plan, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """The decisions, with the origin of the propensities, and with a note where a policy with a bound still learns.

    A bound promises what it was, on average.
    """
    learning = {name for name, policy in plan.learned_policies.items() if keeps_learning(policy)}
    return tuple(
        replace(
            each,
            reason=each.reason + STILL_LEARNS if states_bound(each) and each.policy in learning else each.reason,
            propensity=plan.origin_of_propensities,
        )
        for each in decisions
    )


def keeps_learning(policy: LearningPolicy) -> bool:
    """Whether the policy keeps learning: neither a frozen copy nor one whose steps have no length."""
    return not isinstance(policy, FrozenPolicy) and not (isinstance(policy, Learned) and policy.step == 0)


def states_bound(decision: Decision) -> bool:
    """Whether a decision rests on a bound, or states one."""
    return decision.promotable or decision.lower is not None
