"""Evaluators side by side: candidates, estimators and averages that are added later start from zero on their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace as with_fields
from pydantic import TypeAdapter

from streameval.common.arrays import State, from_plain, require_fit
from streameval.events import EventBatch
from streameval.ope.candidates.versions import FrozenPolicy, VersionsOf
from streameval.ope.core.state import STATE_SCHEMA, migrated, require_schema
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.grid import Pair
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.policies.base import LearningPolicy
from streameval.ope.report import Estimate, Learner, NewVersion, Report, Transition
from streameval.ope.reward_models import AnyRewardModel

KEPT_VERSIONS = 200
"""New frozen copies that are kept until they are taken, the newest ones."""
_FROZEN: TypeAdapter[FrozenPolicy] = TypeAdapter(FrozenPolicy)
_REWARD_MODEL: TypeAdapter[AnyRewardModel] = TypeAdapter(AnyRewardModel)


class ReportingEvaluator(Protocol):
    """An evaluator to those that publish its numbers, wherever it takes its events from."""

    @property
    def plan(self) -> Plan:
        """The plan of everything that it evaluates."""

    def fold_pending(self) -> bool:
        """Fold the whole blocks that are pending, before a Report, and return whether there were any."""

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """Everything known now: see `Evaluator.report`."""

    def take_transitions(self) -> list[Transition]:
        """The transitions of candidates since the last call."""

    def state(self) -> State:
        """Everything needed to continue, as a plain value."""


@dataclass(frozen=True)
class Cohort:
    """An evaluator of the parts added at one time, and the policies whose rows come from it.

    Every evaluator has production, which lifts compare with; its rows come from the first one.
    """

    evaluator: Evaluator
    policies: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        return self.evaluator.plan

    def has(self, name: str, plan: Plan) -> bool:
        """Whether this policy of a plan has rows from here, and is still computed in the same way."""
        return name in self.policies and name in plan.policies and self.plan.policy(name) == plan.policy(name)

    def names_in(self, plan: Plan) -> tuple[str, ...]:
        """The policies of this cohort that the plan has."""
        return tuple(name for name in self.policies if self.has(name, plan))

    @property
    def versions(self) -> dict[str, FrozenPolicy]:
        """The frozen copies that have rows from here, by name."""
        computed = self.plan.computed_policies
        named = {name: computed.get(name) for name in self.policies}
        return {name: policy for name, policy in named.items() if isinstance(policy, FrozenPolicy)}

    def showing(self, names: Iterable[str], plan: Plan | None = None) -> Cohort:
        """The cohort with the rows of some of its policies; other candidates are no longer evaluated.

        `plan`: has the frozen copies to make from now on, if they change.
        """
        kept, versions = tuple(names), self.plan.versions if plan is None else plan.versions
        return Cohort(self.evaluator.continued(replace(self.plan.for_policies(kept), versions=versions)), kept)

    def restricted_to(self, plan: Plan) -> Cohort:
        """The cohort with the parts that the plan still has, and its intervals, drift detector and promotion rules."""
        names, pairs = self.names_in(plan), plan.pairs
        same = self.plan.for_pairs([pair for pair, parts in self.plan.pairs.items() if pairs.get(pair) == parts])
        return Cohort(self.evaluator.continued(plan.for_policies(names).with_products(same.products)), names)

    def report(self, now: float | None, unmatched_share: float | None) -> Report:
        report = self.evaluator.report(now, unmatched_share)
        return with_fields(report, estimates=tuple(row for row in report.estimates if row.policy in self.policies))

    @staticmethod
    def without_code(
        state: State,
        reward_model: AnyRewardModel | None,
        candidates: Candidates,
        propensity: EstimatedPropensity | None,
    ) -> State:
        """A part of `CohortEvaluator.state` without the code that the caller does not name."""
        evaluator, before, plan = Evaluator.without_code(state["evaluator"], reward_model, candidates, propensity)
        lost = {name for name in before.policies if candidates and before.policy(name) != plan.policy(name)}
        state = {"policies": [name for name in state["policies"] if name not in lost], "evaluator": evaluator}
        if plan.reward_model != before.reward_model:
            state["pairs"] = [list(pair) for pair, (_, _, model) in plan.pairs.items() if model is None]
        return state

    @classmethod
    def from_state(
        cls,
        state: State,
        reward_model: AnyRewardModel | None,
        candidates: Candidates,
        propensity: EstimatedPropensity | None,
    ) -> Cohort:
        """From a part of `CohortEvaluator.state`, which may also name the `pairs` to keep of all that it holds."""
        evaluator = Evaluator.from_state(state["evaluator"], reward_model, candidates, propensity)
        if state.get("pairs") is not None:
            pairs = [(estimator, average) for estimator, average in state["pairs"]]
            evaluator = evaluator.continued(evaluator.plan.for_pairs(pairs))
        return cls(evaluator, tuple(state["policies"])).showing(state["policies"])


class CohortEvaluator:
    """Evaluates a plan that changes while events flow.

    Candidates, estimators and averages that are added start from zero in their own evaluator, with its own reward
    model; their rows are those of a stream that starts when they are added. Estimated propensities continue, as they
    depend on the log alone. Removed parts are forgotten. Parts that stay do not change. Numbers of events are those of
    the first evaluator. Frozen copies of policies that learn (`VersionsOf`) are added and removed after exact numbers
    of events, wherever batches end.

    >>> plan = Evaluator(candidates=["early"]).plan
    >>> batch = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"early": [0.5], "late": [0.25]})
    >>> evaluator = CohortEvaluator(plan)
    >>> evaluator.update(batch)
    >>> late = evaluator.change_candidates(Evaluator(candidates=["early", "late"]).plan)
    >>> evaluator.activate(late)
    >>> evaluator.update(batch)
    >>> [(policy.policy, policy.events) for policy in evaluator.report().policies]
    [('logging', 2), ('early', 2), ('late', 1)]
    """

    def __init__(self, plan: Plan) -> None:
        self._cohorts = [Cohort(Evaluator.from_plan(plan), plan.policies)]
        self._pending: list[Cohort] = []
        self._replacement: Evaluator | None = None
        self._added = len(plan.policies) - 1
        self._waiting: list[Transition] = []
        self._made: list[NewVersion] = []

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates in the order they were added."""
        return tuple(dict.fromkeys(name for cohort in self._cohorts for name in cohort.policies))

    @property
    def plan(self) -> Plan:
        """The plan of the first evaluator, whose settings all evaluators share."""
        return self._cohorts[0].plan

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The policies, estimators and averages that are evaluated: see `Plan.parts`."""
        merged: dict[str, dict[str, Any]] = {"policies": {}, "estimators": {}, "averages": {}}
        for cohort in self._cohorts:
            for kind, parts in cohort.plan.parts.items():
                shown = cohort.policies if kind == "policies" else parts
                merged[kind] |= {name: parts[name] for name in shown}
        return merged

    def change_candidates(self, plan: Plan) -> Evaluator | None:
        """Remove the candidates that the plan does not have; return an evaluator of those that it adds, if any.

        The plan differs from the present one in its candidates only; a candidate that is computed in another way counts
        as another one. The new evaluator gets no events, and has no rows, until `activate`: the caller may give it
        earlier events before.

        Raises:
            ConfigError: A candidate cannot be created; nothing has changed.
        """
        plan = self._with_versions(plan)
        known = [*self._cohorts, *self._pending]
        new = [name for name in plan.policies if not any(cohort.has(name, plan) for cohort in known)]
        late = Evaluator.from_plan(self._numbered(plan.for_policies(new))) if new else None
        self._cohorts = _with_rows(cohort.showing(cohort.names_in(plan), plan) for cohort in self._cohorts)
        pending = (replace(cohort, policies=cohort.names_in(plan)) for cohort in self._pending)
        self._pending = [cohort for cohort in pending if cohort.policies]
        if late is not None:
            self._pending.append(Cohort(late, tuple(new)))
        return late

    def apply_plan(self, plan: Plan, buffered: int = 0) -> list[Evaluator]:
        """Continue under another plan. Parts of both plans keep their numbers; parts only of the old one are forgotten.

        An estimator or average with other parameters counts as another one; so does an estimator that uses another
        reward model. Everything starts from zero where `restarts` is true. Returns the evaluators of what is new; each
        is pending until `activate`, as in `change_candidates`. `buffered`: how many events that will count were decoded
        without the new candidates, which another reading of the log is to give them.
        """
        first = self._cohorts[0]
        if not first.evaluator.accepted and not buffered:
            self._cohorts = [Cohort(first.evaluator.replaced(plan), plan.policies)]
            self._added = len(plan.policies) - 1
            return []
        if self.restarts(plan):
            numbered = self._numbered(plan)
            self._cohorts = [Cohort(Evaluator.from_plan(numbered), plan.policies)]
            self._replacement = Evaluator.from_plan(numbered)
            self._pending = [Cohort(self._replacement, plan.policies)]
            return [self._replacement]
        plan = self._with_versions(plan)
        known = [name for name in plan.policies if any(cohort.has(name, plan) for cohort in self._cohorts)]
        numbered = self._numbered(plan.for_policies(known))
        self._cohorts = _with_rows(cohort.restricted_to(numbered) for cohort in self._cohorts)
        self._pending = [Cohort(Evaluator.from_plan(part), names) for part, names in self._lacking(numbered)]
        late = [cohort.evaluator for cohort in self._pending]
        candidates = self.change_candidates(plan)
        return late if candidates is None else [*late, candidates]

    def restarts(self, plan: Plan) -> bool:
        """Whether the plan has another production policy, or other propensities, which every lift depends on."""
        if self.plan.propensity != plan.propensity:
            return True
        return not self._cohorts[0].has(plan.policies[0], plan) or self._cohorts[0].plan.policies[0] != plan.policies[0]

    def reset_policy(self, name: str) -> None:
        """Forget a policy, which starts from zero when a plan with it is applied; with production everything does.

        Its frozen copies are forgotten too.
        """
        copies = {each for each, versions in self.plan.versions.items() if versions.policy == name}
        self._drop(
            {name, *(each for part in self._cohorts for each, made in part.versions.items() if made.of in copies)}
        )

    def _drop(self, names: Collection[str]) -> None:
        """Forget some policies."""
        self._cohorts = _with_rows(
            cohort.showing(kept for kept in cohort.policies if kept not in names) for cohort in self._cohorts
        )

    def is_pending(self, late: Evaluator) -> bool:
        """Whether an evaluator has not been activated yet, and has a policy that is still in the plan."""
        return any(cohort.evaluator is late for cohort in self._pending)

    def activate(self, late: Evaluator, *, from_zero: bool = False) -> None:
        """Give the evaluator the next events, and show its rows; `from_zero`: without the events it has been given."""
        found = [cohort for cohort in self._pending if cohort.evaluator is late]
        self._pending = [cohort for cohort in self._pending if cohort.evaluator is not late]
        for cohort in found:
            fresh = Evaluator.from_plan(late.plan) if from_zero else late
            if not fresh.accepted:
                cohort = Cohort(self._started(fresh), cohort.policies)
            if late is not self._replacement:
                self._cohorts.append(cohort.showing(cohort.policies))
            elif not from_zero:
                self._cohorts[0] = cohort.showing(cohort.policies)

    def _started(self, fresh: Evaluator) -> Evaluator:
        """The evaluator with what the first one has learned about propensities, if they are estimated."""
        plan = fresh.plan
        if plan.propensity is None:
            return fresh
        self._cohorts[0].evaluator.fold_pending()
        known = self._cohorts[0].evaluator.state()["rooms"]["propensities"]
        code = {
            name: each.policy if isinstance(each, FrozenPolicy) else each
            for name, each in plan.computed_policies.items()
        }
        state = fresh.state()
        state["rooms"]["propensities"] = known
        return Evaluator.from_state(state, plan.reward_model, code, plan.propensity)

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream, up to each event after which a frozen copy is made."""
        rest: EventBatch | None = batch
        while rest is not None:
            due = min((of.every - part.evaluator.accepted % of.every for _, of, part in self._learners()), default=None)
            part, rest = (rest, None) if due is None or due >= len(rest) else (rest[:due], rest[due:])
            for cohort in self._cohorts:
                cohort.evaluator.update(part)
            self._make_versions(part)

    def _learners(self) -> list[tuple[str, VersionsOf, Cohort]]:
        """The frozen copies that are made: their name, and the cohort of the policy that is copied."""
        by_name = self._sources(range(len(self._cohorts)))
        return [
            (name, versions, self._cohorts[by_name[versions.policy]])
            for name, versions in self.plan.versions.items()
            if versions.policy in by_name
        ]

    def _make_versions(self, events: EventBatch) -> None:
        """Add the frozen copies that are due after these events, and forget those that they replace."""
        for name, versions, cohort in self._learners():
            number, since = divmod(cohort.evaluator.accepted, versions.every)
            policy = cohort.plan.computed_policies[versions.policy]
            assert isinstance(policy, LearningPolicy)
            made = FrozenPolicy(name, number, cohort.evaluator.accepted, policy)
            if since or not number or made.name in self.policies:
                continue
            learned = {made.name: cohort.evaluator.learned(versions.policy)}
            plan = replace(self._plan_of(versions.policy), computed_policies={made.name: made})
            plan = self._numbered(replace(plan, policies=(plan.policies[0], made.name)))
            self._cohorts.append(Cohort(self._started(Evaluator.from_plan(plan, {"learning": learned})), (made.name,)))
            retired = [
                each
                for each, old in self._versions().items()
                if old.of == name and old.number <= number - versions.keep
            ]
            self._retire(retired)
            place = None if events.origin is None or not len(events) else events.origin.place(len(events) - 1)
            newest = cohort.evaluator.newest
            content = made.written(learned[made.name], plan.reward_model.coefficients, plan.rewards[0].range)
            file = None if content is None else made.file
            self._made.append(NewVersion(made.name, versions.policy, made.events, newest, tuple(retired), place, file))
            del self._made[:-KEPT_VERSIONS]

    def _plan_of(self, policy: str) -> Plan:
        """The plan of the first evaluator of a policy, with all estimators on all averages that it is evaluated by."""
        plans = [cohort.plan for cohort in self._cohorts if policy in cohort.policies]
        products = [product for plan in plans for product in plan.products]
        intervals = {label: each for plan in plans for label, each in plan.intervals.items()}
        return replace(plans[0], intervals=intervals).with_products(products)

    def _versions(self) -> dict[str, FrozenPolicy]:
        """All frozen copies that are candidates, by name."""
        return {name: made for cohort in self._cohorts for name, made in cohort.versions.items()}

    def _with_versions(self, plan: Plan) -> Plan:
        """The plan with the frozen copies that it keeps: the last ones of policies that it still has."""
        made = sorted(self._versions().values(), key=lambda version: version.number)
        same_model = plan.reward_model == self.plan.reward_model
        kept: dict[str, FrozenPolicy] = {}
        for name, versions in plan.versions.items():
            policy = plan.computed_policies[versions.policy]
            due = [each for each in made if each.of == name and each.events == each.number * versions.every]
            same = [each for each in due if each.policy == policy and (same_model or not each.keeps_model)]
            kept |= {each.name: each for each in same[-versions.keep :]}
        return replace(
            plan,
            policies=(*plan.policies, *kept),
            computed_policies={**plan.computed_policies, **kept},
            candidate_order={**plan.candidate_order, **dict.fromkeys(kept, 0)},  # `_numbered` knows their numbers
        )

    def _retire(self, names: Sequence[str]) -> None:
        """Forget frozen copies, but for the transitions that were not taken yet."""
        for cohort in self._cohorts:
            if not set(names).isdisjoint(cohort.policies):
                cohort.evaluator.fold_pending()
        if names:
            self._waiting = self.take_transitions()
            self._drop(names)

    def missing_fields(self, batch: EventBatch) -> list[MissingField]:
        """The fields that estimators need and events of `batch` lack."""
        found = {field.field: field for cohort in self._cohorts for field in cohort.evaluator.missing_fields(batch)}
        return list(found.values())

    def fold_pending(self, least: int = 1) -> bool:
        """Fold the whole blocks that are pending; see `Evaluator.fold_pending`."""
        folded = [cohort.evaluator.fold_pending(least) for cohort in self._cohorts]
        return any(folded)

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """One Report: of each policy and estimate the rows of its evaluator; see `Evaluator.report`."""
        reports = [cohort.report(now, unmatched_share) for cohort in self._cohorts]
        counting, deciding = self._sources(range(len(reports))), self._deciding

        def rows(part: str, source: Mapping[str, int]) -> tuple[Any, ...]:
            """The rows of a part, those of a policy from its cohort."""
            return tuple(
                row
                for place, report in enumerate(reports)
                for row in getattr(report, part)
                if source.get(row.policy) == place
            )

        return with_fields(
            reports[0],
            estimates=tuple(row for report in reports for row in report.estimates),
            reward_model=next((report.reward_model for report in reports if report.reward_model), None),
            policies=rows("policies", counting),
            calibration=rows("calibration", counting),
            segments=rows("segments", counting),
            learners=tuple(self._with_version(learner) for learner in rows("learners", counting)),
            promotion=rows("promotion", deciding),
            trust=rows("trust", deciding),
            transitions=rows("transitions", deciding),
        )

    def _with_version(self, learner: Learner) -> Learner:
        """The row with the number of the newest frozen copy of this policy."""
        made = {name for name, versions in self.plan.versions.items() if versions.policy == learner.policy}
        numbers = [version.number for version in self._versions().values() if version.of in made]
        return with_fields(learner, version=max(numbers)) if numbers else learner

    @property
    def accepted(self) -> int:
        """The number of accepted events."""
        return self._cohorts[0].evaluator.accepted

    @property
    def newest(self) -> float | None:
        """The time of the newest accepted event, in epoch seconds; None if none has a time."""
        return self._cohorts[0].evaluator.newest

    def estimates(self, pairs: Collection[Pair]) -> tuple[Estimate, ...]:
        """The rows of a Report for these pairs: see `Evaluator.estimates`."""
        return tuple(
            row for each in self._cohorts for row in each.evaluator.estimates(pairs) if row.policy in each.policies
        )

    def take_transitions(self) -> list[Transition]:
        """The transitions of candidates since the last call, in their order: see `Evaluator.take_transitions`."""
        taken = [
            (place, each) for place, part in enumerate(self._cohorts) for each in part.evaluator.take_transitions()
        ]
        new = [each for place, each in taken if self._deciding.get(each.policy) == place]
        waiting, self._waiting = self._waiting, []
        return [*waiting, *sorted(new, key=lambda each: each.event)]

    @property
    def _deciding(self) -> dict[str, int]:
        """By policy the place of the cohort that decides about it: the first one that has lifts to decide by."""
        places = range(len(self._cohorts))
        return self._sources(sorted(places, key=lambda place: not self._cohorts[place].evaluator.promotion_lifts))

    def _sources(self, order: Iterable[int]) -> dict[str, int]:
        """By policy the first cohort in this order that has it, by its place."""
        return {name: place for place in reversed(list(order)) for name in self._cohorts[place].policies}

    def take_versions(self) -> list[NewVersion]:
        """The frozen copies that were made since the last call, at most 200."""
        made, self._made = self._made, []
        return made

    @staticmethod
    def versions_in(state: State) -> Iterator[tuple[FrozenPolicy, State, bytes | None]]:
        """The frozen copies in a state, with what each has learned and the content of its file, if it has one."""
        for cohort in _migrated(state)["cohorts"]:
            evaluator, settings = cohort["evaluator"], cohort["evaluator"]["settings"]
            model, goal = _REWARD_MODEL.validate_python(settings["reward_model"]), settings["rewards"][0]
            for name, policy in settings["computed_policies"].items():
                if policy["kind"] == "frozen":
                    version, learned = _FROZEN.validate_python(policy), from_plain(evaluator["rooms"]["learning"][name])
                    yield version, learned, version.written(learned, model.coefficients, (goal["low"], goal["high"]))

    def state(self) -> State:
        """Everything needed to continue, as a plain value; without evaluators that are not activated."""
        cohorts = [{"policies": list(each.policies), "evaluator": each.evaluator.state()} for each in self._cohorts]
        untaken = {"transitions": self._waiting, "versions": self._made}
        return {"schema": STATE_SCHEMA, "cohorts": cohorts, "added": self._added, **msgspec.to_builtins(untaken)}

    @staticmethod
    def describe(state: State) -> list[State]:
        """Of each evaluator in a state: its policies, with `Evaluator.describe`."""
        return [
            {"policies": list(cohort["policies"]), **Evaluator.describe(cohort["evaluator"])}
            for cohort in _migrated(state)["cohorts"]
        ]

    @classmethod
    def from_state_without_code(
        cls,
        state: State,
        reward_model: AnyRewardModel | None = None,
        candidates: Candidates = (),
        propensity: EstimatedPropensity | None = None,
    ) -> CohortEvaluator:
        """Continue from a state without the code that the caller does not name, which is not run.

        A policy in code that is not among `candidates` loses its rows; without any `candidates`, which is for looking
        at a state only, it keeps them. Estimators lose their rows where their reward model is foreign code other than
        `reward_model`.

        Raises:
            StateError: The state cannot be read.
        """
        state = _migrated(state)
        cohorts = [Cohort.without_code(cohort, reward_model, candidates, propensity) for cohort in state["cohorts"]]
        return cls.from_state({**state, "cohorts": cohorts}, reward_model, candidates, propensity)

    @classmethod
    def from_state(
        cls,
        state: State,
        reward_model: AnyRewardModel | None = None,
        candidates: Candidates = (),
        propensity: EstimatedPropensity | None = None,
    ) -> CohortEvaluator:
        """Continue from a state. The arguments are those of `Evaluator.from_state`.

        Raises:
            StateError: The state cannot be read.
        """
        state = _migrated(state)
        evaluator = cls.__new__(cls)
        evaluator._pending, evaluator._replacement = [], None
        evaluator._added = state["added"]
        evaluator._waiting = msgspec.convert(state["transitions"], list[Transition])
        evaluator._made = msgspec.convert(state["versions"], list[NewVersion])
        evaluator._cohorts = [
            Cohort.from_state(cohort, reward_model, candidates, propensity) for cohort in state["cohorts"]
        ]
        return evaluator

    def _lacking(self, plan: Plan) -> Iterator[tuple[Plan, tuple[str, ...]]]:
        """Plans for the pairs that policies lack, and these policies."""
        by_pairs: dict[frozenset[Pair], list[str]] = {}
        for name in plan.policies:
            known = [pair for cohort in self._cohorts if cohort.has(name, plan) for pair in cohort.plan.pairs]
            by_pairs.setdefault(frozenset(plan.pairs) - frozenset(known), []).append(name)
        for pairs, names in by_pairs.items():
            if pairs:
                yield plan.for_policies(names).for_pairs(pairs), tuple(names)

    def _numbered(self, plan: Plan) -> Plan:
        """The plan with the number of each candidate among all that were ever added; new ones get the next numbers."""
        order: dict[str, int] = {}
        for cohort in (*self._cohorts, *self._pending):
            known = cohort.plan.candidate_order
            order |= {name: known[name] for name in cohort.policies if name in known}
        for name in plan.policies[1:]:
            if name not in order:
                self._added += 1
                order[name] = self._added
        return replace(plan, candidate_order={name: order[name] for name in plan.policies[1:]})


def _migrated(state: State) -> State:
    """Return a state with all evaluators in the schema of this version.

    Raises:
        StateError: A schema cannot be read.
        DamagedError: The state has other contents.
    """
    require_schema(state)
    require_fit(state, {"cohorts": []})
    for cohort in state["cohorts"]:
        require_fit(cohort, {"policies": [], "evaluator": {"settings": {}}})
    cohorts = [{**cohort, "evaluator": migrated(cohort["evaluator"])} for cohort in state["cohorts"]]
    return {**state, "schema": STATE_SCHEMA, "cohorts": cohorts}


def _with_rows(cohorts: Iterable[Cohort]) -> list[Cohort]:
    """The first cohort, which counts events, and the others that have rows."""
    first, *others = cohorts
    return [first, *(cohort for cohort in others if cohort.policies and cohort.plan.products)]
