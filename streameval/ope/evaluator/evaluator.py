"""Evaluate policies by estimators on averages, over a stream of events in blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from msgspec import structs

from streameval.common.arrays import Mask, State, require_fit
from streameval.common.foreign_code import CodeError, foreign_code
from streameval.common.problems import Problem, hints_of_python, refuse, validated
from streameval.common.text import counted
from streameval.errors import InputError, StateError
from streameval.events import EventBatch, Fault
from streameval.events.batch import way_to_a_batch
from streameval.events.defects import UnusableLog
from streameval.events.segments import Segment
from streameval.ope.basis import with_basis
from streameval.ope.candidates.versions import FrozenPolicy
from streameval.ope.core import AnyAverage, Mixture
from streameval.ope.core.ring import full_bytes
from streameval.ope.core.state import STATE_SCHEMA, decode, encode, migrated
from streameval.ope.estimators import AnyEstimator
from streameval.ope.estimators.function import TermFunction
from streameval.ope.evaluator import changes, copies, drift_detection, halves, ratios, rewards, rooms, weighing
from streameval.ope.evaluator.config import EvaluatorConfig, Product
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.grid import Pair
from streameval.ope.evaluator.heaviest import HeaviestEvent, heaviest
from streameval.ope.evaluator.missing_fields import MissingField, missing_fields
from streameval.ope.evaluator.options import Candidates, EvaluatorArguments, KindOrOptions
from streameval.ope.evaluator.report_rows import (
    examination_rows,
    policy_counts,
    report_rows,
    with_notes,
    with_signs,
)
from streameval.ope.evaluator.room import Blocks, Present
from streameval.ope.evaluator.state import EvaluatorState, EventState
from streameval.ope.evaluator.weighing import Weighed
from streameval.ope.evidence import arms
from streameval.ope.evidence.clicks import Ranking
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.examination import LearnedCurve
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies.base import Ask
from streameval.ope.policies.coded import Faults, fill, prepared
from streameval.ope.policies.logged import LOGGING
from streameval.ope.promotion import (
    Lift,
    Promotion,
    add_checks,
    decide,
)
from streameval.ope.report import Estimate, EventCounts, NewVersion, Report, Transition
from streameval.ope.reward_models import AnyRewardModel, online

BLOCKS_AT_ONCE, FEWEST_AT_ONCE = 240, 2
"""Whole blocks folded together, at most and at least: enough to keep numpy busy."""
MOST_READ = 60
"""Whole blocks folded together at most, if a rule judges a ratio, which needs memory for each of them."""
PARTS_AT_ONCE = 6_000
"""Blocks times policies folded together, within these limits: few enough to fit the cache of the processor."""


class _Late(NamedTuple):
    """Hold an evaluator of new candidates, estimators or averages that wait for `activate`.

    Args:
        evaluator: evaluates the new ones alone
        policies: new policies that are still in the configuration
        replaces: the waiting evaluator that this one takes the place of
    """

    evaluator: Evaluator
    policies: tuple[str, ...]
    replaces: bool

    def has(self, new: Sequence[str], products: Sequence[Product], config: EvaluatorConfig) -> bool:
        """Return whether the evaluator has these policies and products, so that no other one is needed."""
        own = self.evaluator.config
        kept = set(changes.same_policies(own, config))
        if self.replaces:
            return kept == set(own.policies) == set(config.policies)
        return kept.issuperset(new) and set(own.products).issuperset(products)


_Present: TypeAlias = tuple[EventBatch | None, Sequence[Evidence] | None, EvaluatorState, LearnedCurve | None]


class Evaluator:
    """Estimate the value of every policy by every estimator on every average, with intervals, over a stream.

    Estimators, averages, intervals and the reward model are values, names (`"ips"`), or mappings as in the
    configuration (`{"kind": "window", "tau": 5000}`). The numbers do not depend on how the stream is cut into batches.

    Args:
        candidates: names under which events carry the probabilities of the candidates, or policies or functions by
            name, e.g. `{"challenger": Logged(), "even": Uniform(), "geo": function}`. A function takes `Decisions` and
            returns, for each event, one probability for each of its actions.
        estimators: two of one kind need names. A function of importance weights [n, P] and rewards [n, 1] that returns
            numerators, or numerators and denominators, is an estimator under its own name. The default, if `averages`
            is not set either, is `ips` and `snips` on the five published averages, and on `mixture` `stratified_ips`,
            and `stratified_dr` for events with distributions and features.
        averages: every estimator is evaluated on every average. Two of one kind need names.
        reward_range: smallest and largest possible reward. Events outside are rejected and counted, or clipped and
            counted by `{"max": 200, "above": "clip"}`, or by `{"max": "auto", "quantile": 0.999}` clipped at that
            quantile of the rewards before them.
        production: `logging` (the policy that took the logged actions), or the name of a policy in the events.
        intervals: kind of interval by label of an average, e.g. `{"window": "normal"}`. The default is `drift_aware`
            for `mixture`, and `empirical_likelihood`, which holds for heavy-tailed weights, for all others.
        confidence: coverage of the two-sided intervals, in (0, 1)
        block: number of events in a block. Everything adaptive changes at the end of a block.
        reward_model: predicts rewards for the estimators that need them
        drift: drift detector, a name or `{"detector": name, ...}`, or None. No estimate depends on it.
        promotion: when a candidate may replace production: a rule, several, or `Promotion(...)`. None for no decisions.
        ranking: how to judge rankings by clicks. The evaluator then takes rankings only, the metric sets the reward
            range, and the default estimators are `click_ips` and `click_snips`.
        logging: arms of a ramp, e.g. `{"arms": {"production": 0.9, "challenger": 0.1}}`, for balanced weights
        rewards: several rewards by name, in place of `reward_range`, e.g. `{"click": {"max": 1}, "hide": {"guardrail":
            {"max_loss": 0.001}}}`. The first is the goal, the `reward` of a batch. The others are its `rewards`, and an
            event may lack some. A candidate is promotable only while it passes all guardrails.
        segments: closed lists of field values that split one estimate of the goal, e.g. `{"country": {"values": ["de",
            "fr"], "other": True}}`. They are the `segments` of a batch and of a Report.
        propensity: for logs without propensities, e.g. `{"kind": "estimated", "model": {"kind": "tabular", "by":
            ["country"]}}`, if `by` names `segments` of a batch. The default estimators are then `snips` and `dr`.

    Raises:
        ProblemsError: Arguments are wrong, or do not fit together. It is a ValueError with a path and a hint for each.

    Two events, the candidate twice as likely as the logging policy to take the rewarded action:

    >>> evaluator = Evaluator(candidates=["challenger"])
    >>> policies = {"challenger": [0.5, 0.5]}
    >>> evaluator.update(EventBatch.from_arrays(reward=[1, 0], propensity=[0.25, 0.5], policies=policies))
    >>> report = evaluator.report()
    >>> report.get("challenger", "ips", "cumulative").value, report.get("logging", "ips", "cumulative").value
    (1.0, 0.5)
    """

    _log: UnusableLog | None = None  # what Python code is warned of; parts of the program warn by themselves

    on_fold: Callable[[], None] | None = None  # called between folds, which may take long

    def __init__(
        self,
        candidates: Candidates,
        estimators: Sequence[AnyEstimator | KindOrOptions | TermFunction] | None = None,
        averages: Sequence[AnyAverage | KindOrOptions] | None = None,
        reward_range: tuple[float, float] | Mapping[str, Any] = (0.0, 1.0),
        production: str = LOGGING,
        intervals: Mapping[str, AnyInterval | KindOrOptions] | None = None,
        confidence: float = 0.95,
        block: int = 100,
        reward_model: AnyRewardModel | KindOrOptions | None = None,
        drift: DriftDetector | Mapping[str, Any] | str | None = "ADWIN",
        promotion: Promotion | Mapping[str, Any] | Sequence[str] | str | None = "periodic",
        ranking: Ranking | Mapping[str, Any] | None = None,
        logging: arms.Arms | Mapping[str, Any] | None = None,
        rewards: Mapping[str, Mapping[str, Any]] | None = None,
        segments: Mapping[str, Segment | Mapping[str, Any]] | None = None,
        propensity: EstimatedPropensity | Mapping[str, Any] | str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        given |= {name: "off" for name, value in (("drift", drift), ("promotion", promotion)) if value is None}
        with hints_of_python("streameval.Evaluator"):
            arguments = validated(EvaluatorArguments, given)
            self.config = EvaluatorConfig.from_options(
                arguments, arguments.candidates, arguments.production, arguments.all_rewards, arguments.block
            )
            rooms.require(self.config)
            refuse(self.config.code_problems())
        self._log = UnusableLog()
        for problem in arguments.doubts():
            warnings.warn(problem.report(), stacklevel=2)
        self._start()

    @classmethod
    def from_config(
        cls, config: EvaluatorConfig, room_states: State | None = None, computed: Mapping[str, Ask] | None = None
    ) -> Self:
        """Return an evaluator before its first event.

        Args:
            config: what to evaluate
            room_states: states of rooms that start with knowledge from before
            computed: functions of policies in code, None to make them
        """
        evaluator = cls.__new__(cls)
        evaluator.config = config
        evaluator._start(computed)
        evaluator._state.rooms |= room_states or {}
        return evaluator

    def learned(self, policy: str) -> State:
        """Return a copy of what a policy has learned, or the reward model that it follows, after all whole blocks.

        Raises:
            StateError: The policy is code that cannot be copied.
        """
        self.fold_pending()
        learner = self.config.learned_policies[policy]
        if learner.follows_model:
            return {"model": deepcopy(self._state.predictions[0].model)}
        return learner.copied(self._state.rooms["learning"][policy])

    @property
    def full_bytes(self) -> int:
        """Return the bytes of the state once all windows are full."""
        return full_bytes(self._state)

    def _start(self, computed: Mapping[str, Ask] | None = None) -> None:
        self._use_config(computed)
        self._late: _Late | None = None
        self._starts_again = False
        self._pending: list[EventBatch] = []
        self._pending_events = 0
        self.heaviest: dict[str, HeaviestEvent] = {}  # not in the state: a restart forgets it
        self._state = weighing.start(self.config, self._grids, self._monitor)

    def _use_config(self, computed: Mapping[str, Ask] | None = None) -> None:
        """Derive what the config computes. `computed` has the functions of policies in code, None to make them."""
        self._computed = prepared(self.config.computed_policies) if computed is None else computed
        self._grids = self.config.grids()
        self.promotion_lifts = self.config.promotion_lifts
        self._monitor = self.config.monitor()
        judged = self.config.judged_ratios if self.promotion_lifts else []
        self._read_rewards = {part for index in judged for part in self._parts_of(index)}  # parts of judged ratios

    @property
    def policies(self) -> tuple[str, ...]:
        """Return the policies with rows in the Report: production first, then the candidates."""
        return self.config.policies

    @property
    def accepted(self) -> int:
        """Return the number of accepted events."""
        return self._state.events.accepted

    @property
    def newest(self) -> float | None:
        """Return the time of the newest accepted event in epoch seconds, or None if no event has a time."""
        return self._state.events.newest

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Return the policies, estimators and averages that are evaluated, as `EvaluatorConfig.parts` does."""
        return self.config.parts

    def change_candidates(self, config: EvaluatorConfig) -> Evaluator | None:
        """Remove the candidates that the config lacks, and return an evaluator of those that it adds, if any.

        A candidate that is computed in another way counts as another one. The new evaluator has no rows here until
        `activate`. Before that, the caller may update it with earlier events. It replaces an evaluator that still
        waits.

        Args:
            config: differs from the present one in its candidates only

        Raises:
            ConfigError: A candidate cannot be created. Nothing has changed.

        >>> batch = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"early": [0.5], "late": [0.25]})
        >>> evaluator = Evaluator(candidates=["early"])
        >>> evaluator.update(batch)
        >>> late = evaluator.change_candidates(Evaluator(candidates=["early", "late"]).config)
        >>> evaluator.activate(late)
        >>> evaluator.update(batch)
        >>> [(policy.policy, policy.events) for policy in evaluator.report().policies]
        [('logging', 2), ('early', 2), ('late', 1)]
        """
        config = copies.with_copies(config, self.config)
        kept = changes.same_policies(self.config, config)
        numbered = self._numbered(config)
        present = numbered.for_policies(kept).with_products(changes.same_products(self.config, config).products)
        new, awaited = [name for name in config.policies if name not in kept], self._late
        lacking = config.for_pairs([pair for pair in config.pairs if pair not in present.pairs]).products
        late = None
        if awaited is not None and awaited.has(new, lacking, config):
            self._late = awaited._replace(policies=tuple(new)) if new or lacking or awaited.replaces else None
        else:
            replaces = awaited is not None and awaited.replaces
            if new or lacking or replaces:
                products = (*present.products, *lacking) if new else lacking
                part = numbered.for_policies(config.policies if lacking else new).with_products(products)
                late = Evaluator.from_config(numbered if replaces else part)
            self._late = None if late is None else _Late(late, tuple(new), replaces)
        self._restrict(present)
        self._state.added = max(self._state.added, *numbered.candidate_order.values(), 0)
        return late

    def apply_config(self, config: EvaluatorConfig, buffered: int = 0) -> Evaluator | None:
        """Continue under another config, and return an evaluator of what is new, as `change_candidates` does.

        An estimator or average with other parameters counts as another one, and so does an estimator that uses another
        reward model. What the new config lacks is forgotten. Everything starts from zero if `restarts` is true.

        Args:
            config: the config from now on
            buffered: number of events that will count but were decoded without the new candidates. The candidates must
                get them from another reading of the log.
        """
        events = self._state.events
        if not events.accepted and not buffered:
            self._adopt(config, None)
            self._state.events = EventState(rejected=events.rejected, arrivals=events.arrivals)
            return None
        if not self.restarts(config):
            return self.change_candidates(config)
        numbered = self._numbered(config)
        self._adopt(numbered, None)
        self._state.added = max(self._state.added, *numbered.candidate_order.values(), 0)
        late = Evaluator.from_config(numbered)
        self._late = _Late(late, config.policies, replaces=True)
        return late

    def restarts(self, config: EvaluatorConfig) -> bool:
        """Return whether the config has another production policy or other propensities. Every lift depends on them."""
        production = config.policies[0]
        if (self.config.propensity, self.policies[0]) != (config.propensity, production) or self._starts_again:
            return True
        return self.config.policy(production) != config.policy(production)

    def reset_policy(self, name: str) -> None:
        """Forget a policy and its frozen copies. It starts from zero when a config with it is applied.

        If it is production, everything starts from zero.
        """
        self._starts_again |= name == self.policies[0]
        made = {label for label, versions in self.config.versions.items() if versions.policy == name}
        self._forget([name, *(copy_name for copy_name, copy in copies.made(self.config).items() if copy.of in made)])

    def is_pending(self, late: Evaluator) -> bool:
        """Return whether an evaluator still waits for `activate`, and has something that is still in the config."""
        return self._late is not None and self._late.evaluator is late

    def activate(self, late: Evaluator, *, from_zero: bool = False) -> None:
        """Evaluate from now on what another evaluator was made for.

        Its unfinished block is filled with events that do not count.

        Args:
            late: an evaluator that `change_candidates` or `apply_config` returned
            from_zero: leave out the events that it was updated with
        """
        if self._late is None or not self.is_pending(late):
            return
        _, new, replaces = self._late
        self._late = None
        if replaces:
            if not from_zero:
                late._state.added = self._state.added
                self.config, self._state, self._pending = late.config, late._state, late._pending
                self._pending_events, self.heaviest = late._pending_events, late.heaviest
                self._use_config(late._computed)
            return
        late = Evaluator.from_config(late.config, computed=late._computed) if from_zero else late
        late.fold_pending()
        late._end_block()
        kept = [name for name in late.policies if name in (*self.policies, *new)]
        late._restrict(late.config.for_policies(kept))
        extends = not set(late.config.products) <= set(self.config.products)
        if extends:  # all policies have the new estimators or averages
            missing = [name for name in self.policies if name not in late.policies]
            if missing:
                lacking = self.config.for_policies(missing).with_products(late.config.products)
                late._join(Evaluator.from_config(lacking, computed=self._made(lacking)))
            late._restrict(replace(late.config, policies=tuple(dict.fromkeys((*self.policies, *late.policies)))))
        self.fold_pending()
        if late.accepted and (extends or any(name in late.config.learned_policies for name in new)):
            self._end_block()  # new estimators, and policies that learn, would get its events again
        self._join(late)

    def _numbered(self, config: EvaluatorConfig) -> EvaluatorConfig:
        """Return the config with the number of each candidate among all that were ever added."""
        awaited = self._late.evaluator.config.candidate_order if self._late is not None else {}
        numbers = {**awaited, **self.config.candidate_order}
        kept = set(changes.same_policies(self.config, config))
        if self._late is not None:
            kept.update(changes.same_policies(self._late.evaluator.config, config))
        if self.restarts(config):
            kept = set(config.policies)
        last, order = max(self._state.added, *numbers.values(), 0), {}
        for name in config.policies[1:]:
            if name in numbers and name in kept:
                order[name] = numbers[name]
            else:
                order[name] = last = last + 1
        return replace(config, candidate_order=order)

    def _restrict(self, config: EvaluatorConfig) -> None:
        """Continue with some of the policies and products. Transitions that were not taken are kept."""
        if config != self.config:
            self.fold_pending()
            self._state.waiting = self.take_transitions()
            self._adopt(config, changes.continued(self.config, self._state, config))

    def _forget(self, names: Collection[str]) -> None:
        self._restrict(self.config.for_policies([name for name in self.policies if name not in names]))

    def _join(self, late: Evaluator) -> None:
        """Take over the new policies and products of another evaluator, which must not be used any more.

        No whole block may be pending.
        """
        transitions = [
            *self._state.waiting,
            *(transition for transition in late.take_transitions() if transition.policy not in self.policies),
        ]
        state = changes.state_of_both(self.config, self._state, late.config, late._state, self._pending_events)
        state.waiting = transitions
        self._adopt(changes.config_of_both(self.config, late.config), state, late)

    def _adopt(self, config: EvaluatorConfig, state: EvaluatorState | None, late: Evaluator | None = None) -> None:
        """Continue under a config with its state, or from zero if there is none.

        Policies in code that this evaluator or `late` has are not made again: their factories could fail halfway.
        """
        computed = self._made(config) | (late or self)._made(config)
        lacking = {name: policy for name, policy in config.computed_policies.items() if name not in computed}
        computed |= prepared(lacking)
        self.config = config
        if state is None:
            self._start(computed)
        else:
            self._use_config(computed)
            self._state = state
            both = (late or self).heaviest | self.heaviest
            self.heaviest = {name: both[name] for name in config.policies if name in both}
            self._pending = [batch.with_policies(config.columns) for batch in self._pending]

    def _made(self, config: EvaluatorConfig) -> dict[str, Ask]:
        """Return the functions of policies in code that a config also has."""
        before, after = self.config.computed_policies, config.computed_policies
        return {name: ask for name, ask in self._computed.items() if before[name] == after.get(name)}

    def _end_block(self) -> None:
        """Fold the unfinished block, filled with events that do not count."""
        rest = self._pending_events % self.config.block
        if rest:
            last = EventBatch.concat(self._pending)[-1:].with_policies([])
            none = replace(last.with_policies(self.config.columns), sampling_probability=np.full(1, np.inf))
            self._pending += [none] * (self.config.block - rest)
            self._pending_events += self.config.block - rest
            self.fold_pending()

    def __repr__(self) -> str:
        events, config = counted(self.accepted, "event"), self.config
        parts = (
            f"policies={list(config.policies)}, estimators={list(config.estimators)}, averages={list(config.averages)}"
        )
        return f"Evaluator({events}, {parts})"

    def update_one(self, event: Mapping[str, Any]) -> None:
        """Update with one event, a dictionary with the fields of its JSON. `event_id` and `timestamp` may be absent.

        Raises:
            TypeError: The argument is not a mapping.
            ValueError: A field is missing or wrong. The evaluator does not change.

        >>> evaluator = Evaluator(candidates=["challenger"], estimators=["ips"], averages=["cumulative"])
        >>> evaluator.update_one({"action": "a", "propensity": 0.25, "reward": 1, "policies": {"challenger": 0.5}})
        >>> evaluator.report().get("challenger", "ips", "cumulative").value
        2.0
        """
        if not isinstance(event, Mapping):
            raise TypeError(f"update_one takes one event as a dictionary, found {type(event).__name__}")
        misplaced = [name for name in self.config.logged_policies if name in event and "policies" not in event]
        if misplaced:
            hint = f'write {{"policies": {{"{misplaced[0]}": ...}}}}'
            refuse([Problem((misplaced[0],), "expected the probability of this policy inside of `policies`", hint)])
        batch = self.config.decoder().decode_rows([{"event_id": "", "timestamp": 0.0, **event}])
        for rejected in batch.rejected:
            raise ValueError(f"{rejected.reason}: {rejected.detail}")
        self.update(batch if "timestamp" in event else replace(batch, timestamp=np.full(1, np.nan)))

    def update(self, batch: EventBatch) -> None:
        """Update with the next events of the stream. Rejected events are counted by reason.

        Frozen copies of policies that learn become candidates after exact numbers of events, however batches end.

        Raises:
            TypeError: The argument is not an `EventBatch`. The message names the way to one.
            ValueError: The events are rankings but the evaluator has no `ranking`, or the reverse.
            InputError: The batch lacks the column of a segment.
        """
        if not isinstance(batch, EventBatch):
            raise TypeError(f"update takes an EventBatch, found {type(batch).__name__}: {way_to_a_batch(batch)}")
        if len(batch) and (batch.rankings is None) != (self.config.ranking is None):
            actual, wanted = ("rankings", "decisions") if self.config.ranking is None else ("decisions", "rankings")
            raise ValueError(f"the events are {actual}, and this evaluator takes {wanted}: see its argument `ranking`")
        weighing.require_propensities(self.config, batch)
        self._require_segments(batch)
        if self._log is not None:
            self._log.add(batch)
        rest: EventBatch | None = batch
        while rest is not None:
            due = copies.due(self.config, self._state)
            part, rest = (rest, None) if due is None or due >= len(rest) else (rest[:due], rest[due:])
            self._take(part)
            self._make_copies(part)

    def _make_copies(self, events: EventBatch) -> None:
        """Add the frozen copies that are due after these events, and forget the copies that they replace."""
        for made, retired in copies.after(self.config, self._state):
            policy, file = self.config.versions[made.of].policy, None
            try:
                learned = {made.name: self.learned(policy)}
            except StateError as error:
                self._count_failures({policy: {0: Fault("not_copied", error.message)}})
                continue
            try:
                file = copies.file_of(made, learned[made.name], self.config)
            except StateError as error:
                self._count_failures({policy: {0: Fault("not_written", error.message)}})
            config = replace(self.config, policies=(self.policies[0], made.name), computed_policies={made.name: made})
            self._join(Evaluator.from_config(self._numbered(config), {"learning": learned}))
            self._state.added = max(self.config.candidate_order.values())
            self._forget(retired)
            new = copies.announced(made, policy, file, self._state, retired, events)
            self._state.copies = [*self._state.copies, new][-copies.KEPT :]

    def take_versions(self) -> list[NewVersion]:
        """Return the frozen copies that were made since the last call, at most 200."""
        made, self._state.copies = self._state.copies, []
        return made

    def _take(self, batch: EventBatch) -> None:
        batch, clips = self.config.resolved(batch)
        events = halves.EventSums.from_batch(batch).fold(self._state.events)
        self._state.events = structs.replace(events, clipped=rewards.fold(events.clipped, clips)) if clips else events
        if not len(batch):
            return
        batch, faults = fill(batch.with_policies(self.config.columns), self._computed)
        self._count_failures(faults, self.accepted - len(batch) + 1)
        kept = batch.raw_fields if weighing.keeps_raw_fields(self.config, self._grids) else None
        split = self.config.columns_of(batch)
        self._pending.append(replace(batch, raw_fields=kept and kept.read(), segments=split, rejected=()))
        self._pending_events += len(batch)
        if self._pending_events >= self._batch_events:
            self._process_pending(self._batch_events)

    def _require_segments(self, batch: EventBatch) -> None:
        """Check that a batch has the columns of segments.

        Raises:
            InputError: It lacks one.
        """
        found = () if batch.segments is None else batch.segments.names
        missing = [field.name for field in self.config.fields if field.name not in found]
        if missing and len(batch):
            hint = "read it with segments={...}, as `read_events`, `from_frame` and `from_arrays` take them"
            raise InputError(f"the batch has no column of the segment {missing[0]!r}", hint=hint)

    @property
    def _batch_events(self) -> int:
        """Return the number of events that `update` folds together, one block if a rule judges a ratio by a season."""
        averages = [self.config.averages[average] for _, average in self.promotion_lifts] if self._read_rewards else []
        if any(isinstance(average, Mixture) and average.season for average in averages):
            return self.config.block
        most = MOST_READ if averages else BLOCKS_AT_ONCE
        return max(FEWEST_AT_ONCE, min(most, PARTS_AT_ONCE // len(self.policies))) * self.config.block

    def fold_pending(self, least: int = 1) -> bool:
        """Fold the pending whole blocks if there are at least `least`, and return whether there were.

        `report` then needs no copy. The number of blocks folded together changes the state by rounding only.
        """
        if self._pending_events < least * self.config.block:
            return False
        self._process_pending(self.config.block)
        return True

    def _process_pending(self, unit: int) -> None:
        """Fold the pending events in multiples of `unit` events. The rest stays pending."""
        events = EventBatch.concat(self._pending)
        whole, at_once = len(events) // unit * unit, self._batch_events
        if events.slates is not None and events.slates.are_drawn_by_scores.any():  # an event may take a second
            at_once = self.config.block
        for first in range(0, whole, at_once):
            self._fold(events[first : min(first + at_once, whole)])
            if self.on_fold is not None:
                self.on_fold()
        self._pending = [events[whole:]] if whole < len(events) else []
        self._pending_events = len(events) - whole

    def missing_fields(self, batch: EventBatch) -> list[MissingField]:
        """Return the fields that estimators need and that events of `batch` lack."""
        computed, _ = fill(batch.with_policies(self.config.columns), self._computed)
        config = replace(self.config, propensity=None)  # estimates need more events
        fresh = weighing.start(config, (), None)  # a reward model that is an object learns what it is given
        return missing_fields(config, weighing.completed(config, fresh, computed).events)

    def _count_failures(self, faults: Faults, first: int | None = None) -> None:
        """Count failures of policies in code. An example names its event if `first` is the number of the first one."""
        for policy, by_event in faults.items():
            failures = self._state.failures.setdefault(policy, {})
            for event, (reason, detail) in sorted(by_event.items()):
                named = detail if first is None else f"{detail}, first at event {first + event:,}"
                number, example = failures.get(reason, (0, named))
                failures[reason] = (number + 1, example)

    def _fold(self, events: EventBatch) -> None:
        """Fold whole blocks: weigh them by what came before, sum them up (half 1), and fold the sums (half 2)."""
        logged, weighed, sums, after = self._summarise(events)
        after.rooms = rooms.observe(self.config, after.rooms, Blocks(logged, weighed.events, weighed.every[0]))
        self._state = after
        self.heaviest = heaviest(self.heaviest, self.policies[1:], weighed)
        self._fold_sums(sums, weighed.curve)

    def _fold_sums(self, sums: halves.Sums, curve: LearnedCurve | None = None) -> None:
        """Fold the sums of whole blocks.

        Args:
            sums: what half 1 returned
            curve: the learned examination curve that the blocks were weighed with, see `Weighed`
        """
        folded = halves.fold(self.config, self._state, sums)
        lifts = self._fold_averages(sums, folded, curve)
        state, monitor = folded.state, self._monitor
        if monitor is not None and sums.promotion is not None and state.promotion is not None:
            state.promotion = monitor.fold(state.promotion, sums.promotion, lifts)
        self._state = state

    def _summarise(self, events: EventBatch) -> tuple[EventBatch, Weighed, halves.Sums, EvaluatorState]:
        """Return whole blocks as logged and as weighed, their sums, and the state that weighs the next blocks."""
        logged, faults, after, goal, curve = weighing.completed(self.config, self._state, events)
        self._count_failures(faults)
        events, prepared = rooms.prepare(self.config, after.rooms, logged)
        after = structs.replace(after, rooms=prepared)
        weighed = weighing.weighed(self.config, self._grids, after, events, goal, curve)
        sums = halves.summarise_blocks(self.config, self._grids, self._state, weighed, logged, self._monitor)
        return logged, weighed, sums, halves.counted(weighed, weighed.after)

    def _fold_averages(self, sums: halves.Sums, folded: halves.Folded, curve: LearnedCurve | None) -> list[list[Lift]]:
        """Fold whole blocks into the states of all grids, and return the lifts that promotion reads for each reward."""
        lifts: dict[Pair, list[Lift]] = {}
        for grid, state, added in zip(self._grids, self._state.grids, sums.grids, strict=True):
            lifts |= grid.fold_sums(state, added, folded.grid_means(grid), self.promotion_lifts, self._read_rewards)
        if curve is not None and folded.by_rank is not None:
            after_blocks = LearnedCurve(*(part[1:] for part in curve))
            lifts = weighing.with_error_of_curve(self.config, lifts, after_blocks, folded.by_rank)
        judged = self.config.judged_ratios
        return [
            [
                self._ratio_lift(index, pair, lifts[pair]) if index in judged else lifts[pair][index]
                for pair in self.promotion_lifts
            ]
            for index in range(len(self.config.rewards))
        ]

    def _ratio_lift(self, index: int, pair: Pair, paths: Sequence[Lift]) -> Lift:
        """Return the lift of a ratio after each block, from its parts and their sum.

        Args:
            index: the ratio
            pair: the estimator and the average
            paths: the lift of each reward
        """
        columns = next([column.label for column in grid.columns] for grid in self._grids if pair in grid.pairs)
        _, weight = self.config.rewards[index].of.values()
        return ratios.lift_after([paths[part] for part in self._parts_of(index)], weight, columns, pair[0])

    def _parts_of(self, index: int) -> list[int]:
        """Return the indices of the numerator, the denominator and the weighted sum of a ratio."""
        names = [reward.name for reward in self.config.rewards]
        return [*(names.index(part) for part in self.config.rewards[index].of), index]

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """Return the Report, the unfinished block included. The evaluator does not change.

        If whole blocks are pending, they are folded in a copy of the state. A loop that reports often calls
        `fold_pending` before, which is faster. An evaluator that Python code has made warns (`warnings.warn`), once, of
        events that were all rejected, and of a candidate that no event has a probability of.

        Args:
            now: epoch seconds. Promotion judges by it whether the newest event is stale.
            unmatched_share: share of separate rewards without a decision, which promotion judges too

        Raises:
            StateError: Whole blocks are pending, and a reward model or a policy is an object that cannot be copied.
        """
        if self._pending_events >= self.config.block:
            return self._warned(self._folded().report(now, unmatched_share))
        state, events = self._state, self._state.events
        config = rooms.ranged(self.config, state.rooms)
        present = rest, tail, learned, curve = self._present()
        late = None if tail is None or rest is None else Blocks(rest, rest, tail[0])
        estimates = list(self._rows(present))
        goal_estimates = [row for row in estimates if row.reward == config.rewards[0].name]
        shown, estimators = {row.estimator for row in estimates}, config.estimators
        predicts = config.policies_need_prediction or any("prediction" in estimators[label].needs for label in shown)
        detections = None if state.drift is None else state.drift.detections
        counts = tuple(policy_counts(config, events.accepted, learned.counts, state.failures, detections))
        promoted: dict[str, Any] = {}
        if self._monitor is not None and state.promotion is not None:
            moments, lifts = (events.newest, now, unmatched_share), self.promotion_lifts
            decisions, checks, transitions = decide(
                self._monitor, state.promotion, goal_estimates, events.arrivals, *moments, lifts, counts
            )
            further = list(weighing.further_checks(config, learned, checks)) if checks else []
            checks, decisions = add_checks(checks, decisions, further, config.policies[0])
            promoted = {
                "promotion": with_notes(config, decisions),
                "trust": checks,
                "transitions": transitions,
                "contenders": self._monitor.contenders(state.promotion, decisions, checks),
            }
        report = Report(
            confidence=config.confidence,
            production=self.policies[0],
            events=EventCounts(events.accepted, dict(events.rejected), events.newest, events.oldest),
            policies=counts,
            estimates=with_signs(config, estimates),
            examination=examination_rows(curve, config.confidence),
            clipped=tuple(rewards.clipped_rows(config.rewards, events.clipped)),
            reward_model=online.read(config.reward_model, state.predictions[0]) if predicts else None,
            **promoted,
            **rooms.rows(config, state.rooms, Present(late, learned.counts, learned.weights, goal_estimates)),
        )
        return self._warned(with_basis(report))

    def _warned(self, report: Report) -> Report:
        """Warn the caller of `report`, once, if nothing can be estimated."""
        if self._log is not None:
            logged = set(self.config.logged_policies)
            absent = [row.policy for row in report.policies if row.policy in logged and not row.events]
            for message in self._log.warnings(absent):
                warnings.warn(message, stacklevel=3)
        return report

    def estimates(self, pairs: Collection[Pair]) -> tuple[Estimate, ...]:
        """Return the rows of a Report for these pairs of an estimator and an average, at the cost of these alone."""
        if self._pending_events >= self.config.block:
            return self._folded().estimates(pairs)
        rows = with_signs(self.config, self._rows(self._present(), pairs))
        return tuple(row for row in rows if (row.estimator, row.average) in pairs)

    def _rows(self, present: _Present, pairs: Collection[Pair] | None = None) -> Iterator[Estimate]:
        """Yield the rows of all rewards, or the rows of the goal in grids and averages that have one of `pairs`."""
        _, tail, learned, curve = present
        averages = None if pairs is None else {average for _, average in pairs}
        whole_config = rooms.ranged(self.config, self._state.rooms)
        for index in range(len(self.config.rewards) if pairs is None else 1):
            config = whole_config.for_reward(index)
            if config.rewards[0].is_ratio:
                yield from self._ratio_rows(index, tail, learned.counts["since"] > 0)
                continue
            slates, last = learned.slates[index], None if tail is None else tail[index]
            for whole, before in zip(self._grids, self._state.grids, strict=True):
                if pairs is None or not set(whole.pairs).isdisjoint(pairs):
                    grid, state = whole.select_reward(before, index)
                    yield from report_rows(config, grid, state, last, learned, slates, curve, averages)

    def _ratio_rows(self, index: int, tail: Sequence[Evidence] | None, late: Mask) -> Iterator[Estimate]:
        """Yield the rows of a ratio, from the states of its parts and of their sum."""
        indices = self._parts_of(index)
        for whole, state in zip(self._grids, self._state.grids, strict=True):
            parts = [(*whole.select_reward(state, part), None if tail is None else tail[part]) for part in indices]
            yield from ratios.estimates(self.config.for_reward(index), parts, late)

    def _present(self) -> _Present:
        """Return the events of the unfinished block and their evidence, and the counts, models and curve after them."""
        config, rest, tail, learned = self.config, None, None, self._state
        if self._pending:
            rest, _, _, goal, folded_curve = weighing.completed(config, learned, EventBatch.concat(self._pending))
            rest, _ = rooms.prepare(config, learned.rooms, rest)
            weighed = weighing.weighed(config, self._grids, learned, rest, goal, folded_curve)
            mixes = any(grid.mixes_components for grid in self._grids)
            folded = halves.fold(config, weighed.after, halves.summarise(weighed, mixes))
            learned = halves.counted(weighed, folded.state)
            tail = folded.with_means(weighed.every)
        curve, examination = None, weighing.examination(config)
        if examination is not None and learned.examination is not None:
            curve = examination.now(learned.examination)
        return rest, tail, learned, curve

    def take_transitions(self) -> list[Transition]:
        """Return the transitions of candidates in folded blocks since the last call, at most 200.

        Starts and ends of `promotable` have `worse=None`. The others are starts and ends of `worse`.
        """
        monitor, state = self._monitor, self._state.promotion
        waiting, self._state.waiting = self._state.waiting, []
        return waiting if monitor is None or state is None else [*waiting, *monitor.take_transitions(state)]

    def _folded(self) -> Evaluator:
        """Return a copy in which no whole block is pending."""
        folded = copy(self)
        folded._log = None
        try:
            with foreign_code():
                folded._state = deepcopy(self._state)  # some parts change in place
        except CodeError as error:
            raise StateError(
                f"a reward model or a policy in code cannot be copied: {error}",
                hint="call fold_pending() before report()",
            ) from error
        folded.fold_pending()
        return folded

    def state(self) -> State:
        """Return everything that is needed to continue, as a plain value that msgpack can hold.

        A policy in code that cannot be saved is counted as failed, and starts to learn again from this state.

        Raises:
            StateError: A reward model or a classifier of propensities is code that cannot be saved.
        """
        faults = Faults()
        saved = self._saved(faults)
        self._count_failures(faults)
        return {
            "schema": STATE_SCHEMA,
            "settings": self.config.settings(),
            **encode(structs.replace(saved, failures=self._state.failures)),
            "pending": EventBatch.concat(self._pending).to_state() if self._pending else None,
        }

    def _saved(self, faults: Faults) -> EvaluatorState:
        """Return the state with models, rooms and detectors as plain values, and add what fails to the faults."""
        config, state = self.config, self._state
        return structs.replace(
            state,
            predictions=[online.to_state(config.reward_model, prediction) for prediction in state.predictions],
            drift=drift_detection.saved(state.drift),
            rooms=rooms.save(config, state.rooms, faults),
        )

    @staticmethod
    def versions_in(state: State) -> Iterator[tuple[FrozenPolicy, State, bytes | None]]:
        """Yield the frozen copies in a state, what each has learned, and the content of its file if it has one."""
        state = migrated(state)
        return copies.frozen_copies(EvaluatorConfig.without_code(state["settings"], None, ())[0], state)

    @staticmethod
    def describe(state: State) -> State:
        """Return the policies, products, settings and numbers of events of a state, as values that JSON has."""
        state = migrated(state)
        policies = list(state["settings"]["policies"])
        return {"policies": policies, **EvaluatorConfig.describe(state["settings"]), "events": state["events"]}

    @classmethod
    def from_state(
        cls,
        state: State,
        reward_model: AnyRewardModel | None = None,
        candidates: Candidates = (),
        propensity: EstimatedPropensity | None = None,
        *,
        without_code: bool = False,
    ) -> Self:
        """Continue from a state, to the last bit as without an interruption.

        Args:
            state: what `state()` returned
            reward_model: must name the foreign code of a model in the state, if there is any
            candidates: must name the foreign code of policies in the state, if there is any
            propensity: must name the classifier in the state, if there is any
            without_code: drop code that is not named, without running it. A policy in such code loses its rows. Without
                any `candidates` it keeps them, to look at a state only. Estimators lose their rows if their reward
                model is such code.

        Raises:
            StateError: The state is of another version, or holds code that the caller does not name.
            DamagedError: A key, type or shape does not fit the settings in the state.
        """
        state = migrated(state)
        require_fit(state, {"settings": {}, "rooms": {}, "pending": None})
        before, config = EvaluatorConfig.without_code(state["settings"], reward_model, candidates)
        if without_code:
            changed: State = {"settings": config.settings()}
            if config.reward_model != before.reward_model:
                fresh = encode(online.to_state(config.reward_model, online.start(config.reward_model)))
                changed["predictions"] = [fresh for _ in config.rewards]
            changed["rooms"] = rooms.without_code(before, state["rooms"], propensity)
            state = state | changed
        evaluator = cls.from_config(EvaluatorConfig.from_settings(state["settings"], candidates))
        evaluator._continue(state, reward_model, propensity)
        names = [name for name in config.policies if not candidates or before.policy(name) == config.policy(name)]
        if without_code and (names != list(config.policies) or config.reward_model != before.reward_model):
            models = (None, before.reward_model)
            evaluator._starts_again = config.policies[0] not in names
            pairs = [pair for pair, (*_, model) in config.pairs.items() if model in models]
            evaluator._restrict(config.for_policies(names).for_pairs(pairs))
        return evaluator

    def _continue(
        self, state: State, reward_model: AnyRewardModel | None, propensity: EstimatedPropensity | None
    ) -> None:
        """Take over a plain state of this config."""
        faults = Faults()
        self._state = self._decoded(state, reward_model, propensity, faults)
        self._count_failures(faults)
        self._pending = [] if state["pending"] is None else [EventBatch.from_state(state["pending"])]
        self._pending_events = sum(map(len, self._pending))

    def _decoded(
        self, plain: State, reward_model: AnyRewardModel | None, propensity: EstimatedPropensity | None, faults: Faults
    ) -> EvaluatorState:
        """Return a state of this config. Models that are foreign code are loaded only if they are named."""
        config, fresh = self.config, self._saved({})
        plain = {**plain, "rooms": {**dict.fromkeys(fresh.rooms), **plain["rooms"]}}  # older states lack new rooms
        state = decode(plain, structs.replace(fresh, rooms=rooms.fresh(config, plain["rooms"])))
        return structs.replace(
            state,
            predictions=[
                online.from_state(config.reward_model, prediction, reward_model) for prediction in state.predictions
            ],
            rooms=rooms.load(config, state.rooms, propensity, faults),
        )
