"""Candidates that come and go while events flow: evaluators side by side, each with a beginning of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import replace as with_fields

from streameval.arrays import State
from streameval.errors import StateError
from streameval.evaluator import Evaluator
from streameval.events import EventBatch
from streameval.plan import Candidates, Plan
from streameval.report import Report
from streameval.rewards import AnyRewardModel
from streameval.shortfalls import Shortfall

STATE_SCHEMA = 1


@dataclass(frozen=True)
class Member:
    """An evaluator, and those of its candidates that are still wanted."""

    evaluator: Evaluator
    candidates: tuple[str, ...]

    def has(self, name: str, plan: Plan) -> bool:
        """Whether this candidate of the plan is evaluated here, as the policy that the plan says it is."""
        here = name in self.candidates and name in plan.policies
        return here and self.evaluator.plan.coded.get(name) == plan.coded.get(name)

    def without_others_than(self, plan: Plan) -> Member:
        """The member with those candidates only that the plan has."""
        return replace(self, candidates=tuple(name for name in self.candidates if self.has(name, plan)))

    def report(self, *more: str) -> Report:
        """The Report of the evaluator, with the rows of these candidates, and of the policies in `more`."""
        report, shown = self.evaluator.report(), {*self.candidates, *more}
        return with_fields(
            report,
            policies=tuple(each for each in report.policies if each.policy in shown),
            estimates=tuple(each for each in report.estimates if each.policy in shown),
            promotion=tuple(each for each in report.promotion if each.policy in shown),
        )


class Roster:
    """Evaluates a plan whose candidates change: what is new begins at its own n = 0, and disturbs nothing that runs.

    Production and all counts of events are those of the first evaluator, which begins with the roster. A candidate that
    comes later has an evaluator of its own, with the same estimators and averages and with a reward model of its own;
    its rows are the same as if the stream had begun when it came.

    >>> plan = Evaluator(candidates=["early"]).plan
    >>> batch = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"early": [0.5], "late": [0.25]})
    >>> roster = Roster(plan)
    >>> roster.update(batch)
    >>> late = roster.change(Evaluator(candidates=["early", "late"]).plan)
    >>> roster.join(late)
    >>> roster.update(batch)
    >>> [(each.policy, each.events) for each in roster.report().policies]
    [('logging', 2), ('early', 2), ('late', 1)]
    """

    def __init__(self, plan: Plan) -> None:
        self._members = [Member(Evaluator.of(plan), plan.policies[1:])]
        self._waiting: list[Member] = []

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates in the order of their coming."""
        candidates = (name for member in self._members for name in member.candidates)
        return (self._members[0].evaluator.policies[0], *candidates)

    def change(self, plan: Plan) -> Evaluator | None:
        """Keep those candidates that the plan has; an evaluator of all others that it has, None if there are none.

        A candidate that is another policy now than it was is a new one. The evaluator gets no events and has no rows
        until it is told to `join`: who has its history may give it that before. The plan must differ in nothing but its
        candidates. ConfigError when one of them cannot be made; nothing has changed then.
        """
        known = [*self._members, *self._waiting]
        new = tuple(name for name in plan.policies[1:] if not any(member.has(name, plan) for member in known))
        late = Evaluator.of(_of_some(plan, new)) if new else None
        first, *others = (member.without_others_than(plan) for member in self._members)
        self._members = [first, *(member for member in others if member.candidates)]
        kept = (member.without_others_than(plan) for member in self._waiting)
        self._waiting = [member for member in kept if member.candidates]
        if late is not None:
            self._waiting.append(Member(late, new))
        return late

    def forget(self, policy: str) -> None:
        """What is known of a candidate; a later `change` to a plan that has it begins it anew."""
        self._members = [
            replace(member, candidates=tuple(name for name in member.candidates if name != policy))
            for member in self._members
        ]

    def awaits(self, late: Evaluator) -> bool:
        """Whether this evaluator has not joined yet, and has a candidate that is still wanted."""
        return any(member.evaluator is late for member in self._waiting)

    def join(self, late: Evaluator, *, anew: bool = False) -> None:
        """Give it all events from now on, and show its rows; `anew`: forget what it has seen so far."""
        for member in self._waiting:
            if member.evaluator is late:
                self._members.append(replace(member, evaluator=Evaluator.of(late.plan)) if anew else member)
        self._waiting = [member for member in self._waiting if member.evaluator is not late]

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream."""
        for member in self._members:
            member.evaluator.update(batch)

    def shortfalls(self, batch: EventBatch) -> list[Shortfall]:
        """What these events lack that the estimators need, for those who were there from the beginning."""
        return self._members[0].evaluator.shortfalls(batch)

    def report(self) -> Report:
        """Everything known now. Each policy has its own number of events; `missing` counts from its beginning."""
        first = self._members[0].report(self.policies[0])
        reports = [first, *(member.report() for member in self._members[1:])]
        return with_fields(
            first,
            policies=tuple(_joined(reports, "policies")),
            estimates=tuple(_joined(reports, "estimates")),
            promotion=tuple(_joined(reports, "promotion")),
        )

    def state(self) -> State:
        """Everything needed to go on, as a plain value; who has not joined is not part of it."""
        members = [
            {"candidates": list(member.candidates), "evaluator": member.evaluator.state()} for member in self._members
        ]
        return {"schema": STATE_SCHEMA, "members": members}

    @classmethod
    def from_state(
        cls, state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
    ) -> Roster:
        """Go on from a state; StateError if it cannot be read. The other arguments are those of an Evaluator."""
        if state.get("schema") != STATE_SCHEMA or not state.get("members"):
            raise StateError(
                f"the state of a roster has schema {state.get('schema')}, this version reads {STATE_SCHEMA}",
                hint="use the version that wrote it, or start anew",
            )
        roster = cls.__new__(cls)
        roster._waiting = []
        roster._members = [
            Member(Evaluator.from_state(member["evaluator"], reward_model, candidates), tuple(member["candidates"]))
            for member in state["members"]
        ]
        return roster


def _of_some(plan: Plan, candidates: tuple[str, ...]) -> Plan:
    """The plan for some of its candidates."""
    coded = {name: policy for name, policy in plan.coded.items() if name in candidates}
    return replace(plan, policies=(plan.policies[0], *candidates), coded=coded)


def _joined(reports: list[Report], part: str) -> Iterator[Any]:
    for report in reports:
        yield from getattr(report, part)
