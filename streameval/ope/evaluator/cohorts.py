"""Candidates that come and go while events flow: evaluators side by side, each with a beginning of its own.

What plans estimate on what, and what two of them have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from msgspec.structs import replace as with_fields

from streameval.common.arrays import State
from streameval.errors import StateError
from streameval.events import EventBatch
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.cohort_changes import changed, left_with, with_new_production
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.evidence.requirements import Requirement
from streameval.ope.policies import AnyPolicy, Logged
from streameval.ope.report import Report
from streameval.ope.reward_models import AnyRewardModel

Cell: TypeAlias = tuple[str, str]
"""An estimator on an average, by their labels."""


def cells_of(plan: Plan) -> dict[Cell, tuple[Any, ...]]:
    """What is estimated on what, by labels; and all that decides the numbers."""
    return {
        (estimator.label, average.label): (estimator, average, plan.reward_model if needs_model(estimator) else None)
        for estimators, averages in plan.products()
        for estimator in estimators
        for average in averages
    }


def named_parts(plan: Plan) -> dict[str, dict[str, Any]]:
    """What a plan evaluates: policies, estimators and averages by name, each with all that decides what it is."""
    cells = cells_of(plan)
    return {
        "policies": {name: plan.coded.get(name) for name in plan.policies},
        "estimators": {name: (each, model) for (name, _), (each, _, model) in cells.items()},
        "averages": {name: each for (_, name), (_, each, _) in cells.items()},
    }


def needs_model(estimator: AnyEstimator) -> bool:
    """Whether an estimator's numbers depend on the reward model."""
    return Requirement.PREDICTION in estimator.needs


def common(before: Plan, after: Plan) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The products of a plan as far as another one has them, too: with the same parameters, and the same model."""
    same_model = before.reward_model == after.reward_model
    for estimators, averages in before.products():
        for others, on in after.products():
            kept = tuple(each for each in estimators if each in others and (same_model or not needs_model(each)))
            where = tuple(each for each in averages if each in on)
            if kept and where:
                yield kept, where


def products_of(plan: Plan, cells: frozenset[Cell]) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The estimators and averages of a plan that make these cells and no others, as products."""
    for estimators, averages in plan.products():
        by_averages: dict[tuple[Any, ...], list[Any]] = {}
        for estimator in estimators:
            lacking = tuple(average for average in averages if (estimator.label, average.label) in cells)
            if lacking:
                by_averages.setdefault(lacking, []).append(estimator)
        for lacking, alike in by_averages.items():
            yield tuple(alike), lacking


def of_some(plan: Plan, policies: tuple[str, ...]) -> Plan:
    """The plan for some of its policies; production is there in any case."""
    others = tuple(name for name in policies if name != plan.policies[0])
    coded = {name: policy for name, policy in plan.coded.items() if name in others}
    return replace(plan, policies=(plan.policies[0], *others), coded=coded)


STATE_SCHEMA = 3
DECIDED = ("promotion", "trust", "transitions")
"""The parts of a Report whose rows are about a policy as a whole, and stand on the lift on a mixture."""


@dataclass(frozen=True)
class Cohort:
    """An evaluator, and those of its policies whose rows are shown: all, or all but production."""

    evaluator: Evaluator
    policies: tuple[str, ...]

    def has(self, name: str, plan: Plan) -> bool:
        """Whether this policy of the plan is evaluated here, as the policy that the plan says it is."""
        here = name in self.policies and name in plan.policies
        return here and self.evaluator.plan.coded.get(name) == plan.coded.get(name)

    def named(self, plan: Plan) -> Cohort:
        """The member with the names of those policies only that the plan has."""
        return replace(self, policies=tuple(name for name in self.policies if self.has(name, plan)))

    def freed(self) -> Cohort:
        """The member without what it evaluates of policies that it does not name, production excepted."""
        production, *candidates = self.evaluator.policies
        names = (production, *(name for name in candidates if name in self.policies))
        if names == self.evaluator.policies:
            return self
        return replace(self, evaluator=changed(self.evaluator, of_some(self.evaluator.plan, names)))

    def under(self, plan: Plan) -> Cohort:
        """The member going on under another plan: with what is the same in both."""
        kept = self.named(plan)
        products = list(common(self.evaluator.plan, plan))
        evaluator = left_with(self.evaluator, products)
        return replace(kept, evaluator=_changed(evaluator, _also_under(evaluator.plan, plan, kept.policies)))

    def cells(self) -> frozenset[Cell]:
        """What it estimates on what."""
        return frozenset(cells_of(self.evaluator.plan))

    def report(self, now: float | None = None) -> Report:
        """The Report of the evaluator, with the rows that are shown."""
        report, shown = self.evaluator.report(now), set(self.policies)
        return with_fields(report, estimates=tuple(each for each in report.estimates if each.policy in shown))

    @property
    def decides(self) -> bool:
        """Whether it has a lift to decide by."""
        return bool(self.evaluator.decides_by)

    def to_state(self) -> State:
        """The member as a plain value."""
        return {"policies": list(self.policies), "evaluator": self.evaluator.state()}

    @classmethod
    def from_state(cls, state: State, reward_model: AnyRewardModel | None, candidates: Candidates) -> Cohort:
        """The inverse of `to_state`. `cells`, if there are any: what to keep of all that it estimates."""
        evaluator = Evaluator.from_state(state["evaluator"], reward_model, candidates)
        if state.get("cells") is not None:
            cells = frozenset((estimator, average) for estimator, average in state["cells"])
            evaluator = left_with(evaluator, list(products_of(evaluator.plan, cells)))
        return cls(evaluator, tuple(state["policies"])).freed()


class CohortEvaluator:
    """Evaluates a plan that changes: what is new begins at its own n = 0, and disturbs nothing that runs.

    All counts of events are those of the first evaluator, which begins with the roster. A candidate that comes later
    has an evaluator of its own, with the same estimators and averages and with a reward model of its own; its rows are
    the same as if the stream had begun when it came. So it is with estimators and averages that come later.

    >>> plan = Evaluator(candidates=["early"]).plan
    >>> batch = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"early": [0.5], "late": [0.25]})
    >>> roster = CohortEvaluator(plan)
    >>> roster.update(batch)
    >>> late = roster.change(Evaluator(candidates=["early", "late"]).plan)
    >>> roster.join(late)
    >>> roster.update(batch)
    >>> [(each.policy, each.events) for each in roster.report().policies]
    [('logging', 2), ('early', 2), ('late', 1)]
    """

    def __init__(self, plan: Plan) -> None:
        self._members = [Cohort(Evaluator.of(plan), plan.policies)]
        self._waiting: list[Cohort] = []
        self._added = len(plan.policies) - 1

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates in the order of their coming."""
        production = self._members[0].evaluator.policies[0]
        return tuple(dict.fromkeys([production, *(name for member in self._members for name in member.policies)]))

    @property
    def named_parts(self) -> dict[str, dict[str, Any]]:
        """The policies, estimators and averages that are evaluated: see the function of this name."""
        parts: dict[str, dict[str, Any]] = {"policies": {}, "estimators": {}, "averages": {}}
        for member in self._members:
            for kind, named in named_parts(member.evaluator.plan).items():
                shown = {name: each for name, each in named.items() if kind != "policies" or name in member.policies}
                parts[kind] |= shown
        return parts

    def change(self, plan: Plan) -> Evaluator | None:
        """Keep those candidates that the plan has; an evaluator of all others that it has, None if there are none.

        A candidate that is another policy now than it was is a new one. The evaluator gets no events and has no rows
        until it is told to `join`: who has its history may give it that before. The plan must differ in nothing but its
        candidates. ConfigError when one of them cannot be made; nothing has changed then.
        """
        known = [*self._members, *self._waiting]
        new = tuple(name for name in plan.policies if not any(member.has(name, plan) for member in known))
        late = Evaluator.of(self._ranked(of_some(plan, new))) if new else None
        first, *others = (member.named(plan) for member in self._members)
        self._members = [first.freed(), *(member.freed() for member in others if member.policies)]
        kept = (member.named(plan) for member in self._waiting)
        self._waiting = [member for member in kept if member.policies]
        if late is not None:
            self._waiting.append(Cohort(late, new))
        return late

    def adopt(self, plan: Plan) -> list[Evaluator]:
        """Go on under another plan: what is the same in both keeps its numbers, what is gone is dropped.

        Evaluators of what is new are returned, and wait to `join` as those of `change` do. Estimators and averages with
        other parameters are new ones, and so are estimators that use another reward model. Another production policy
        changes no value; lifts, and decisions about them, begin anew. Nobody may be waiting.
        """
        if not self._members[
            0
        ].evaluator.accepted:  # no event has come: nothing has begun, but some may have been rejected
            self._members = [Cohort(changed(self._members[0].evaluator, plan), plan.policies)]
            self._added = len(plan.policies) - 1
            return []
        ranked = self._ranked(replace(plan, policies=(plan.policies[0], *self._here(plan))))
        first, *others = (member.under(replace(plan, ranks=ranked.ranks)) for member in self._members)
        if not any(member.has(plan.policies[0], plan) for member in (first, *others)):
            first = replace(first, policies=(plan.policies[0], *first.policies))  # a production that nobody knew
        self._members = [first, *(member for member in others if member.policies and member.cells())]
        self._waiting = [Cohort(Evaluator.of(part), policies) for part, policies in self._lacking(plan)]
        late = [member.evaluator for member in self._waiting]
        newcomers = self.change(plan)
        return late if newcomers is None else [*late, newcomers]

    def _lacking(self, plan: Plan) -> Iterator[tuple[Plan, tuple[str, ...]]]:
        """Plans for the cells that policies have not, though they are here; and which policies these are."""
        by_cells: dict[frozenset[Cell], list[str]] = {}
        for name in plan.policies:
            here = [member.cells() for member in self._members if member.has(name, plan)]
            if here:
                by_cells.setdefault(frozenset(cells_of(plan)) - frozenset().union(*here), []).append(name)
        for cells, names in by_cells.items():
            for estimators, averages in products_of(plan, cells):
                part = of_some(plan, tuple(names)).with_products([(estimators, averages)])
                yield self._ranked(part), tuple(names)

    def _here(self, plan: Plan) -> list[str]:
        """The candidates of the plan that somebody here evaluates; one may have been production until now."""
        return [name for name in plan.policies[1:] if any(member.has(name, plan) for member in self._members)]

    def _ranked(self, plan: Plan) -> Plan:
        """The plan with the how many-th each candidate is that was ever added; those that are new are the next ones."""
        ranks = {
            name: member.evaluator.plan.ranks[name]
            for member in (*self._members, *self._waiting)
            for name in member.policies
            if name in member.evaluator.plan.ranks
        }
        for name in plan.policies[1:]:
            if name not in ranks:
                self._added += 1
                ranks[name] = self._added
        return replace(plan, ranks={name: ranks[name] for name in plan.policies[1:]})

    def forget(self, policy: str) -> None:
        """What is known of a policy, which begins anew: production at once, a candidate when a plan with it is adopted.

        Lifts over production begin anew with it.
        """
        if policy == self._members[0].evaluator.policies[0]:
            self._members = [replace(each, evaluator=with_new_production(each.evaluator)) for each in self._members]
            return
        self._members = [
            replace(member, policies=tuple(name for name in member.policies if name != policy)).freed()
            for member in self._members
        ]

    def awaits(self, late: Evaluator) -> bool:
        """Whether this evaluator has not joined yet, and has a candidate that is still wanted."""
        return any(member.evaluator is late for member in self._waiting)

    def join(self, late: Evaluator, *, anew: bool = False) -> None:
        """From now on, give it the events of the stream, and show its rows; `anew`: forget what it has seen so far."""
        for member in self._waiting:
            if member.evaluator is late:
                joining = replace(member, evaluator=Evaluator.of(late.plan)) if anew else member
                self._members.append(joining.freed())
        self._waiting = [member for member in self._waiting if member.evaluator is not late]

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream."""
        for member in self._members:
            member.evaluator.update(batch)

    def shortfalls(self, batch: EventBatch) -> list[MissingField]:
        """What these events lack that the estimators need, for those who were there from the beginning."""
        return self._members[0].evaluator.shortfalls(batch)

    def report(self, now: float | None = None) -> Report:
        """Everything known now. Each policy has its own number of events; `missing` counts from its beginning.

        What is said of a policy as a whole is said by the member that has had it for longest; of decisions, by the one
        that has had for longest what they stand on.
        """
        reports = [member.report(now) for member in self._members]
        longest = self._spokesmen(range(len(reports)))
        deciding = self._spokesmen(sorted(range(len(reports)), key=lambda place: not self._members[place].decides))

        def joined(part: str, told: dict[str, int]) -> tuple[Any, ...]:
            rows = ((place, row) for place, report in enumerate(reports) for row in getattr(report, part))
            return tuple(row for place, row in rows if told.get(row.policy) == place)

        return with_fields(
            reports[0],
            estimates=tuple(row for report in reports for row in report.estimates),
            reward_model=next((report.reward_model for report in reports if report.reward_model), None),
            policies=joined("policies", longest),
            **{part: joined(part, deciding) for part in DECIDED},
        )

    def _spokesmen(self, places: Iterable[int]) -> dict[str, int]:
        """For each policy the first of these members that has it."""
        told: dict[str, int] = {}
        for place in places:
            for name in self._members[place].policies:
                told.setdefault(name, place)
        return told

    def state(self) -> State:
        """Everything needed to go on, as a plain value; who has not joined is not part of it."""
        members = [member.to_state() for member in self._members]
        return {"schema": STATE_SCHEMA, "members": members, "added": self._added}

    @classmethod
    def from_state(
        cls, state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
    ) -> CohortEvaluator:
        """Go on from a state; StateError if it cannot be read. The other arguments are those of an Evaluator."""
        require_schema(state)
        roster = cls.__new__(cls)
        roster._waiting = []
        roster._added = state.get("added", sum(len(member["policies"]) for member in state["members"]))
        roster._members = [Cohort.from_state(member, reward_model, candidates) for member in state["members"]]
        return roster


def require_schema(state: State) -> None:
    """StateError for the state of a roster that another version wrote."""
    if state.get("schema") != STATE_SCHEMA or not state.get("members"):
        raise StateError(
            f"the state of a roster has schema {state.get('schema')}, this version reads {STATE_SCHEMA}",
            hint="use the version that wrote it, or start from zero",
        )


def _named(plan: Plan) -> dict[str, AnyPolicy]:
    return dict.fromkeys(plan.policies[1:], Logged()) | dict(plan.coded)


def _changed(evaluator: Evaluator, plan: Plan) -> Evaluator:
    """The evaluator going on under a plan that computes the same; lifts begin anew over another production."""
    if evaluator.plan == plan:
        return evaluator
    before = evaluator.plan
    policies, coded, ranks = before.policies, before.coded, before.ranks
    state = evaluator.state()
    kept = replace(plan, policies=policies, coded=coded, ranks=ranks)
    state["settings"] = kept.settings()
    if plan.drift != before.drift:  # another detector has seen nothing yet
        state["drift"] = Evaluator.of(kept).state()["drift"]
    going_on = Evaluator.from_state(state, plan.reward_model, _named(before))
    if plan.policies == policies and plan.coded == coded:
        return going_on
    return changed(going_on, plan)


def _also_under(before: Plan, after: Plan, policies: tuple[str, ...]) -> Plan:
    """The plan of an evaluator that goes on with these policies: what it computes, with what is said of it now."""
    known = {average.label for _, averages in before.products() for average in averages}
    intervals = {label: bound for label, bound in after.intervals.items() if label in known}
    some = of_some(after, policies)
    return replace(
        some,
        estimators=before.estimators,
        averages=before.averages,
        left=before.left,
        reward_model=before.reward_model,
        intervals=intervals,
        ranks={name: after.ranks[name] for name in some.policies[1:]},
    )
