"""Monitor promotion: judge every candidate under every rule at the end of every block.

A rule must pass at some block ends in a row, the hold period, before a candidate is promotable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, Integers, Mask, decayed_path
from streameval.common.text import counted
from streameval.events.action_sets import Index
from streameval.events.origin import Origin
from streameval.ope.core import BlockLift, Lift
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.evidence.evidence import Evidence, fading_of
from streameval.ope.promotion import clusters, leader, lift, mean_weight, trust_checks
from streameval.ope.promotion.block_sums import BlockSums, differing
from streameval.ope.promotion.clusters import ClusterState
from streameval.ope.promotion.guardrails import (
    Guardrail,
    GuardrailState,
    Reward,
    RuleState,
    align_numbers,
    resume_rules,
    select_rules,
    start_rule,
)
from streameval.ope.promotion.leader import PairState
from streameval.ope.promotion.lift import LiftState
from streameval.ope.promotion.rules import Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.rules.periodic import MAX_UNTIMED
from streameval.ope.promotion.settings import Promotion
from streameval.ope.promotion.sums import MonitorSums, RewardSums, Times
from streameval.ope.promotion.trust_checks import TrustState
from streameval.ope.report import Basis, Contender, Decision, State, Transition, TrustCheck

NOT_SHARED = ("rule", "trust", "period", "min_periods", "memory")
"""Settings that are not requirements of every rule."""
MAX_TRANSITIONS = 200
"""Number of newest transitions that are kept."""


class HoldState(Struct, frozen=True, eq=False):
    """Hold for how long a rule has passed, with candidates on axis 0.

    Attributes:
        held: the number of block ends in a row at which it passed [K]
        times: how often a candidate became promotable [K]
        total: for how many events it was promotable [K]
        since: event, time and lift at the start of the current stretch, NaN if there is none [K, 3]
        first: likewise at the start of the first stretch [K, 3]
        later: sum of the lift, and number of block ends, after that first start [K, 2]
    """

    held: Array
    times: Array
    total: Array
    since: Array
    first: Array
    later: Array


class GoalState(RuleState, frozen=True, eq=False, kw_only=True):
    """Hold what a rule knows about the primary reward.

    Attributes:
        requirements: the settings that decide what a candidate must pass
        hold: for how long the rule has passed
    """

    requirements: dict[str, Any]
    hold: HoldState


class Change(Struct, frozen=True):
    """Hold a transition of a candidate by its index, see `Transition`. NaN is unknown.

    `basis` has the effective events, the largest share of an event, and the lift in standard errors.
    """

    rule: str
    candidate: int
    event: int
    time: float
    starts: bool
    lift: float
    lower: float
    reason: str
    place: tuple[str, int, int] | None
    worse: bool | None = None
    state: State | None = None
    basis: tuple[float, float, float] | None = None


class MonitorState(Struct, eq=False):
    """Hold the state of a monitor, with candidates on axis 0, under `trust` and in memories of rules policies.

    Attributes:
        events: the number of events so far
        newest: the time of the newest event, NaN if unknown
        lifts: the state of each lift by name
        by: the deciding lift, -1 for none [candidates]
        differs: whether a candidate has differed from production [candidates]
        trust: the checks of weights
        clusters: the check of clusters
        rules: the state of each rule by label
        guardrails: the state of each guardrail by reward
        transitions: the newest transitions, the oldest first
        taken: the number of events up to which transitions were taken
        pairs: the candidates compared with each other
        moved_gains: recent sums of `Clicks.moved_gains`, None for other events [candidates, 2]
    """

    events: int
    newest: float
    lifts: dict[str, LiftState]
    by: Integers
    differs: Mask
    trust: TrustState
    clusters: ClusterState
    rules: dict[str, GoalState]
    guardrails: dict[str, GuardrailState]
    transitions: list[Change]
    taken: int = 0
    pairs: PairState | None = None
    moved_gains: Array | None = None


@dataclass(frozen=True)
class PromotionMonitor:
    """Decide which of `policies` may replace the first of them, production.

    All decisions are made at block ends, from what is known then. Reading them changes nothing.

    Attributes:
        promotion: the settings
        policies: production first
        context: the settings for every rule
        lifts: names of the lifts that may decide, the preferred one first
        guardrails: rewards after the primary one that a candidate must not lose
        goal: the name of the primary reward
    """

    promotion: Promotion
    policies: tuple[str, ...]
    context: RuleContext
    lifts: tuple[str, ...] = ("lift",)
    guardrails: tuple[Guardrail, ...] = ()
    goal: str = "reward"

    @classmethod
    def from_settings(
        cls,
        promotion: Promotion,
        policies: Sequence[str],
        lifts: Sequence[str] = ("lift",),
        *,
        confidence: float,
        errors: Array,
        block: int,
        logged: bool,
        rewards: Sequence[Reward] = (Reward(),),
        weights_average_1: bool = True,
        largest_loss: float | None = None,
        ever_added: int | None = None,
    ) -> PromotionMonitor:
        """Build a monitor. The rules read the other arguments as `RuleContext`.

        Args:
            promotion: the settings
            policies: production first
            lifts: names of the lifts that may decide, the preferred one first
            rewards: the primary reward first
            ever_added: the number of candidates ever added, by default the number of candidates
        """
        goal = rewards[0]
        number = promotion.family_size or ever_added or len(policies) - 1
        judged = sum(reward.max_loss is not None for reward in rewards) + 1
        settings = promotion.margin, confidence, errors, goal.range, block, logged, weights_average_1, largest_loss
        context = RuleContext(*settings, number, judged, goal.is_ratio)
        guardrails = tuple(
            Guardrail(
                reward.name,
                index,
                context._replace(margin=-reward.max_loss, reward_range=reward.range, is_ratio=reward.is_ratio),
            )
            for index, reward in enumerate(rewards)
            if reward.max_loss is not None
        )
        return cls(promotion, tuple(policies), context, tuple(lifts), guardrails, goal.name)

    @cached_property
    def rules(self) -> Mapping[str, PromotionRule]:
        """Return the rules by label, in the order of the configuration, and the companion of `periodic` last."""
        return {rule.label: rule for rule in (*self.promotion.rules, self.promotion.companion) if rule is not None}

    def is_idle(self, rule: PromotionRule, untimed: Any) -> Any:
        """Return whether a rule leaves the decision to others, given the share of events without timestamps.

        A rule that needs timestamps does if too many are missing, and its companion does otherwise.
        """
        lacks_time = np.asarray(untimed) > MAX_UNTIMED
        if rule.needs_time:
            return lacks_time
        return ~lacks_time if rule == self.promotion.companion else np.zeros_like(lacks_time)

    def hold_of(self, rule: PromotionRule) -> int:
        """Return for how many block ends in a row a candidate must pass a rule."""
        return self.promotion.hold if rule.needs_hold else 1

    def start(self) -> MonitorState:
        """Start before the first event."""
        candidates = len(self.policies) - 1
        return MonitorState(
            events=0,
            newest=math.nan,
            lifts={name: lift.start(candidates) for name in self.lifts},
            by=np.full(candidates, -1),
            differs=np.zeros(candidates, dtype=bool),
            trust=trust_checks.start(len(self.policies)),
            clusters=clusters.start(),
            rules={label: self._start_rule(rule) for label, rule in self.rules.items()},
            guardrails={guardrail.name: self._start_guardrail(guardrail) for guardrail in self.guardrails},
            transitions=[],
            pairs=leader.start(candidates),
            moved_gains=None if self.context.largest_loss is None else np.zeros((candidates, 2)),
        )

    def _start_guardrail(self, guardrail: Guardrail) -> GuardrailState:
        candidates = len(self.policies) - 1
        lifts = {name: lift.start(candidates) for name in self.lifts}
        rules = {label: guardrail.start(rule) for label, rule in self.rules.items()}
        return GuardrailState(lifts, np.full(candidates, -1), rules)

    def _start_rule(self, rule: PromotionRule) -> GoalState:
        candidates = len(self.policies) - 1
        shared = {key: value for key, value in asdict(self.promotion).items() if key not in NOT_SHARED}
        held = {name: np.zeros(candidates) for name in ("held", "times", "total")}
        moments = {name: np.full((candidates, 3), np.nan) for name in ("since", "first")}
        return GoalState(
            **structs.asdict(start_rule(rule, self.context)),
            requirements={**shared, **asdict(rule), "confidence": self.context.confidence},
            hold=HoldState(**held, **moments, later=np.zeros((candidates, 2))),
        )

    def summarise(
        self,
        evidence: Evidence,
        timestamp: Array,
        propensity: Array,
        origin: Origin | None = None,
        further: Sequence[Evidence] = (),
    ) -> MonitorSums:
        """Return what `fold` reads of some whole blocks, which depends on nothing but their events (half 1).

        Args:
            evidence: the evidence of the primary reward
            timestamp: [events]
            propensity: [events]
            origin: the offsets of the events, if known
            further: evidence of each reward after the primary one
        """
        deciding, blocks = evidence.deciding, evidence.blocks
        ends = np.arange(1, blocks + 1) * evidence.block - 1
        times = Times.from_timestamps(timestamp, evidence.block)
        goal = self._reward_sums(deciding, self.context, times)
        return MonitorSums(
            evidence.block,
            np.fmax.reduce(timestamp.reshape(blocks, -1), axis=1),
            None if origin is None else Origin(origin.topic, origin.partition[ends], origin.offset[ends]),
            clusters.mean_rewards(evidence),
            evidence.signs is not None,
            mean_weight.Bets.from_evidence(deciding, propensity) if self.context.weights_average_1 else None,
            differing(deciding, goal.sums),
            goal,
            {
                guardrail.name: self._reward_sums(further[guardrail.index - 1].deciding, guardrail.context, times)
                for guardrail in self.guardrails
            },
            None if evidence.clicks is None else evidence.clicks.moved_gains(evidence.sample_weight, blocks),
        )

    def _reward_sums(self, evidence: Evidence, context: RuleContext, times: Times) -> RewardSums:
        tests = (rule.lift_test(context) for rule in self.rules.values())
        test = next((lift_test for lift_test in tests if lift_test is not None), None)
        return RewardSums(BlockSums.from_evidence(evidence), None if test is None else test.observed(evidence), times)

    def fold(self, state: MonitorState, sums: MonitorSums, lifts: Sequence[Sequence[Lift]]) -> MonitorState:
        """Return the state after some whole blocks (half 2).

        A rule that needs a lift must hold from zero again if another lift takes over, see `lift.choose`.

        Args:
            state: the state before
            sums: the sums of the blocks
            lifts: for each reward, the primary one first, the lifts after each of these blocks, in the order of their
                names
        """
        trustworthy, evidence, trust = trust_checks.fold(state.trust, sums, self.promotion.trust)
        differs = np.logical_or.accumulate(np.concatenate([state.differs[None], sums.differ]))[1:]
        shared = clusters.fold(state.clusters, sums.rewards, sums.block, sums.named)
        sizes = np.full(len(sums), sums.block)
        reward_sums = [sums.goal, *sums.guardrails.values()]
        judged = self._judge(state, reward_sums, lifts, sizes, sums.times, trustworthy, evidence, differs, sums.ends)
        pairs, moved_gains = state.pairs, state.moved_gains
        if sums.moved_gains is not None:
            before = np.zeros(sums.moved_gains.shape[1:]) if moved_gains is None else moved_gains
            moved_gains = decayed_path(before, sums.moved_gains, fading_of(sums.block))[-1]
        if pairs is not None and len(self.policies) > 2 and not self.context.is_ratio:
            pairs = leader.fold(pairs, sums.goal.sums, self.context.weights_average_1)
        return structs.replace(
            judged, differs=differs[-1], trust=trust, clusters=shared, pairs=pairs, moved_gains=moved_gains
        )

    def _judge(
        self,
        state: MonitorState,
        sums: Sequence[RewardSums],
        lifts: Sequence[Sequence[Lift]],
        sizes: Integers,
        times: Array,
        trustworthy: Mask,
        evidence: Array,
        differs: Mask,
        ends: Origin | None = None,
    ) -> MonitorState:
        """Return the state after some blocks, with the lifts and rules moved on.

        Args:
            state: the state before
            sums: the sums of the primary reward and of each guardrail
            lifts: as in `fold`
            sizes: the number of events in each block
            times: the newest event time of each block
            trustworthy: whether weights pass the trust checks [blocks, policies]
            evidence: see `trust_checks.fold` [blocks, policies, 3]
            differs: whether a candidate has differed from production [blocks, candidates]
            ends: the offsets of the last events
        """
        deciding, by, switched, followed = self._follow(state, lifts[0], sizes)
        numbers = state.events + np.cumsum(sizes)  # of the last event
        times = np.fmax.accumulate(np.concatenate([[state.newest], times]))[1:]  # NaN if unknown
        guarded, guardrails = self._judge_guardrails(state.guardrails, sums[1:], lifts, sizes)
        believed = trustworthy[:, 1:] & trustworthy[:, :1] & differs
        rules, transitions = {}, list(state.transitions)
        untimed, errors = np.ones(believed.shape), np.sqrt(deciding.sampling_variance + deciding.drift_square)
        for label, rule in self.rules.items():
            before = state.rules[label]
            judgement, memory = rule.judge(before.memory, sums[0], deciding, self.context)
            for kept in guarded[label].values():
                judgement = judgement._replace(enter=judgement.enter & kept.enter, stay=judgement.stay & kept.stay)
            sound = (judgement.events >= self.promotion.min_events) & believed
            if rule.needs_lift and not rule.remembers_lift:
                sound &= ~switched
            if rule.needs_time:
                untimed = judgement.paths["untimed"]
            is_idle = self.is_idle(rule, untimed)
            sound &= ~is_idle
            hold, promotable = self._fold_hold(before.hold, judgement, sound, self.hold_of(rule), numbers, times, sizes)
            judgements = {self.goal: judgement, **guarded[label]}
            losing = self._fold_losing(rule, judgements, before, state.guardrails, sound & ~promotable[1:])
            last = {**judgement.last, "losing": losing[self.goal][-1], "error": errors[-1]}
            rules[label] = structs.replace(before, memory=memory, hold=hold, last=last)
            for name, guardrail in guardrails.items():
                known = guardrail.rules[label]
                guardrail.rules[label] = structs.replace(known, last={**known.last, "losing": losing[name][-1]})
            is_worse = np.any([path >= self.hold_of(rule) for path in losing.values()], axis=0)
            for index, candidate, is_loss, starts in _changes(promotable, is_worse):
                doubts = [name for name, kept in guarded[label].items() if not kept.stay[index, candidate]]
                verdict = starts, trustworthy[index], switched[index, candidate], doubts
                reason = self._why(rule, judgement, index, candidate, *verdict)
                if is_loss and starts:
                    losses = (name for name, path in losing.items() if path[1 + index, candidate] >= self.hold_of(rule))
                    reason = self._why_worse(rule, next(losses), judgements, index, candidate)
                elif is_idle[index, candidate]:
                    reason = f"too {'many' if rule.needs_time else 'few'} events lack timestamps for this rule"
                moment = int(numbers[index]), float(times[index])
                bounds = float(judgement.lift[index, candidate]), float(judgement.lower[index, candidate])
                log = None if ends is None else ends.position(index)
                named: State = "untrusted" if evidence[index, [0, 1 + candidate], -1].any() else "undecided"
                if promotable[1 + index, candidate] or is_worse[1 + index, candidate]:
                    named = "promotable" if promotable[1 + index, candidate] else "worse"
                change = Change(label, candidate, *moment, starts and not is_loss, *bounds, reason, log)
                rests_on = judgement.after(index, candidate) | {"error": float(errors[index, candidate])}
                basis = *evidence[index, 1 + candidate, :2].tolist(), rule.standard_errors(rests_on, self.context)
                state_after = {"worse": starts if is_loss else None, "state": named, "basis": basis}
                transitions.append(structs.replace(change, **state_after))
        transitions.sort(key=lambda transition: transition.event)
        return structs.replace(
            state,
            events=int(numbers[-1]),
            newest=float(times[-1]),
            lifts=followed,
            by=by,
            rules=rules,
            guardrails=guardrails,
            transitions=transitions[-MAX_TRANSITIONS:],
        )

    def _judge_guardrails(
        self,
        state: Mapping[str, GuardrailState],
        sums: Sequence[RewardSums],
        lifts: Sequence[Sequence[Lift]],
        sizes: Integers,
    ) -> tuple[Mapping[str, dict[str, Judgement]], dict[str, GuardrailState]]:
        """Return the judgement of each rule about each guardrail, and the state of all guardrails."""
        judged: dict[str, dict[str, Judgement]] = {label: {} for label in self.rules}
        after = {}
        for guardrail, guardrail_sums in zip(self.guardrails, sums, strict=True):
            before, rules = state[guardrail.name], {}
            deciding, by, _, followed = self._follow(before, lifts[guardrail.index], sizes)
            for label, rule in self.rules.items():
                judged[label][guardrail.name], rules[label] = guardrail.judge(
                    rule, before.rules[label], guardrail_sums, deciding, self.promotion.min_events
                )
            after[guardrail.name] = GuardrailState(followed, by, rules)
        return judged, after

    def _fold_hold(
        self,
        state: HoldState,
        judgement: Judgement,
        sound: Mask,
        hold: int,
        numbers: Integers,
        times: Array,
        sizes: Integers,
    ) -> tuple[HoldState, Mask]:
        """Return the hold state of a rule, and who is promotable before and after each block [1 + blocks, K]."""
        path = held(judgement.enter & sound, judgement.stay & sound, state.held, hold)
        promotable = np.concatenate([state.held[None], path]) >= hold
        since, first = state.since.copy(), state.first.copy()
        for index, candidate in np.argwhere(promotable[:-1] != promotable[1:]).tolist():
            starts = bool(promotable[index + 1, candidate])
            event, time, value = numbers[index], times[index], judgement.lift[index, candidate]
            since[candidate] = (event, time, value) if starts else np.nan
            if starts and np.isnan(first[candidate, 0]):
                first[candidate] = event, time, value
        later = (numbers[:, None] > first[:, 0]) & ~np.isnan(judgement.lift)
        lifts = np.where(later, judgement.lift, 0.0).sum(axis=0)
        after = HoldState(
            held=path[-1],
            times=state.times + np.count_nonzero(~promotable[:-1] & promotable[1:], axis=0),
            total=state.total + sizes @ promotable[1:],
            since=since,
            first=first,
            later=state.later + np.column_stack([lifts, np.count_nonzero(later, axis=0)]),
        )
        return after, promotable

    def _fold_losing(
        self,
        rule: PromotionRule,
        judgements: Mapping[str, Judgement],
        goal: RuleState,
        guardrails: Mapping[str, GuardrailState],
        sound: Mask,
    ) -> dict[str, Array]:
        """Count for how many block ends in a row a candidate is worse by each reward, before and after each block.

        Args:
            rule: the rule
            judgements: its judgement about each reward
            goal: what it knew before about the primary reward
            guardrails: what was known before about guardrails
            sound: whether a candidate may be worse, which one that is promotable may not [blocks, candidates]
        """
        losing = {}
        for name, judgement in judgements.items():
            state = goal if name == self.goal else guardrails[name].rules[rule.label]
            before = np.nan_to_num(state.last.get("losing", np.zeros(sound.shape[1])))
            allowed = sound & (judgement.events >= self.promotion.min_events)
            worse, stays = judgement.losing()
            path = held(worse & allowed, stays & allowed, before, self.hold_of(rule))
            losing[name] = np.concatenate([before[None], path])
        return losing

    def _why_worse(
        self, rule: PromotionRule, name: str, judgements: Mapping[str, Judgement], index: int, candidate: int
    ) -> str:
        """Say by which reward a candidate is worse after a block, and why."""
        floors = {guardrail.name: guardrail.context.floor for guardrail in self.guardrails}
        floor = floors.get(name, self.context.floor)
        reason = rule.reason_of_loss(judgements[name].after(index, candidate), floor)
        held_for = f", held for {counted(self.hold_of(rule), 'block end')}" if rule.needs_hold else ""
        return f"{f'guardrail {name}: ' if name in floors else ''}{reason}{held_for}"

    def _why(
        self,
        rule: PromotionRule,
        judgement: Judgement,
        index: int,
        candidate: int,
        starts: bool,
        trustworthy: Mask,
        switched: bool,
        doubts: Sequence[str],
    ) -> str:
        """Return the reason of a transition after a block.

        Args:
            rule: the rule
            judgement: its judgement
            index: the index of the block
            candidate: the index of the candidate
            starts: whether the candidate becomes promotable
            trustworthy: whether weights pass the trust checks [policies]
            switched: whether another lift took over
            doubts: the failed guardrails
        """
        compared = rule.reason_of_change(judgement.after(index, candidate), self.context.margin)
        if starts:
            hold = self.hold_of(rule)
            return f"{compared}, held for {counted(hold, 'block end')}" if rule.needs_hold else compared
        for policy in (0, 1 + candidate):
            if not trustworthy[policy]:
                return f"the weights of {self.policies[policy]} fail a trust check"
        if switched:
            return "another estimate of the lift decides from now on"
        return f"the candidate fails the guardrail {' and '.join(doubts)}" if doubts else compared

    def contenders(
        self, state: MonitorState, decisions: Sequence[Decision], checks: Sequence[TrustCheck]
    ) -> tuple[Contender, ...]:
        """Compare candidates with their leader, see `leader.contenders`.

        The error probability is one minus the confidence, for all pairs of the candidates ever added. Candidates that
        are added later make the shares of all pairs smaller from then on, unless `family_size` counts them before.

        Args:
            state: the state
            decisions: the decisions, which tell who is worse than production
            checks: the trust checks. A candidate that fails one is not compared.
        """
        candidates, number = self.policies[1:], max(self.context.candidates, len(self.policies) - 1)
        if state.pairs is None or number < 2 or self.context.is_ratio:
            return ()
        return leader.contenders(
            state.pairs,
            candidates,
            error=(1 - self.context.confidence) / (number * (number - 1)),
            min_blocks=self.promotion.min_events / self.context.block,
            untrusted={check.policy for check in checks if not check.ok},
            worse={decision.policy for decision in decisions if decision.state == "worse"},
        )

    def take_transitions(self, state: MonitorState) -> list[Transition]:
        """Return the transitions that were not taken before, and mark them as taken in the state."""
        before, state.taken = state.taken, state.events
        return [transition for transition in transitions(self, state) if transition.event > before]

    def _follow(
        self, state: MonitorState | GuardrailState, lifts: Sequence[Lift], sizes: Integers
    ) -> tuple[Lift, Index, Mask, dict[str, LiftState]]:
        """Return the deciding lift, the last choice, when another lift took over, and the state of all lifts."""
        if not lifts:
            shape = len(sizes), len(self.policies) - 1
            unknown, never = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
            return Lift(unknown, unknown, unknown, np.zeros(shape)), state.by, never, state.lifts
        pairs = zip(self.lifts, lifts, strict=True)
        followed, recent, after = zip(
            *(lift.follow(path, state.lifts[name], sizes) for name, path in pairs), strict=True
        )
        by, switched = lift.choose(np.stack(recent), state.by)
        value, variance, drift, events = _chosen(followed, by)
        block, divisor = (_chosen_block([getattr(path, name) for path in lifts], by) for name in ("block", "divisor"))
        deciding = Lift(value, variance, drift, events, block, switched, divisor)
        return deciding, by[-1], switched, dict(zip(self.lifts, after, strict=True))

    def resume(self, state: MonitorState) -> MonitorState:
        """Continue a state that may have been written under other settings.

        New rules start from zero. A rule must hold from zero again if a requirement has changed. Its memory restarts if
        a setting has changed that it depends on.
        """
        fresh, guardrails = self.start(), {}
        rules = resume_rules(state.rules, fresh.rules)
        for label, new in fresh.rules.items():
            saved = rules[label]
            if saved.requirements != new.requirements:
                last = {name: numbers for name, numbers in saved.last.items() if name != "losing"}
                rules[label] = structs.replace(saved, requirements=new.requirements, hold=new.hold, last=last)
        for name, fresh_guardrail in fresh.guardrails.items():
            before = state.guardrails.get(name, fresh_guardrail)
            guardrails[name] = structs.replace(before, rules=resume_rules(before.rules, fresh_guardrail.rules))
        return structs.replace(state, rules=rules, guardrails=guardrails)

    def select_candidates(self, state: MonitorState, candidates: Sequence[int]) -> MonitorState:
        """Return the state of a monitor of these candidates only, by their indices."""
        policies = [0, *(1 + candidate for candidate in candidates)]
        guardrails = {
            name: structs.replace(known, **_judged(known, policies)) for name, known in state.guardrails.items()
        }
        return structs.replace(
            state,
            **_judged(state, policies),
            differs=select_policies(state.differs, candidates),
            trust=select_policies(state.trust, policies),
            moved_gains=select_policies(state.moved_gains, candidates),
            guardrails=guardrails,
            transitions=[
                structs.replace(change, candidate=candidates.index(change.candidate))
                for change in state.transitions
                if change.candidate in candidates
            ],
            pairs=leader.start(len(candidates)) if state.pairs is None else leader.select(state.pairs, candidates),
        )

    def join(self, state: MonitorState, late: MonitorState, company: Company) -> MonitorState:
        """Add the new candidates of a late state, in which later events have larger numbers.

        What the late state knows of the whole stream is forgotten, including its transitions.
        """
        shift = np.array([state.events - late.events, 0.0, 0.0])
        rules = {}
        for label, rule_state in late.rules.items():
            hold = structs.replace(
                rule_state.hold, since=rule_state.hold.since + shift, first=rule_state.hold.first + shift
            )
            rules[label] = structs.replace(rule_state, hold=hold)
        shared = {name: getattr(state, name) for name in ("clusters", "transitions", "pairs")}
        early, added = state.pairs, late.pairs
        shared["pairs"] = None if early is None or added is None else leader.join(early, added, company.new)
        none: dict[str, Any] = dict.fromkeys(shared)
        first_state, second_state = structs.replace(state, **none), structs.replace(late, **none, rules=rules)
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [(first_state.rules, second_state.rules)]
        pairs += [
            (first_state.guardrails[name].rules, second_state.guardrails[name].rules) for name in first_state.guardrails
        ]
        for first, second in pairs:
            for label in first:
                first[label], second[label] = align_numbers(first[label], second[label])
        joined_state: MonitorState = joined(first_state, second_state, company)
        return structs.replace(joined_state, **shared)

    def with_lifts(self, state: MonitorState, before: Sequence[str]) -> MonitorState:
        """Carry a state over from other lifts `before`. Lifts with equal names continue.

        When the deciding lift is gone, the rules that need a lift start from zero. Evidence about the average lift
        stays, because it does not depend on that lift.
        """
        if tuple(before) == self.lifts:
            return state
        fresh = self.start()
        names = [before[index] if index >= 0 else None for index in state.by]
        followed = {name: state.lifts.get(name, start) for name, start in fresh.lifts.items()}
        state = structs.replace(state, lifts=followed, guardrails=fresh.guardrails)
        if all(name is None or name in self.lifts for name in names):
            by = np.array([-1 if name is None else self.lifts.index(name) for name in names], dtype=int)
            return structs.replace(state, by=by)
        rules = {
            label: fresh.rules[label]
            if self.rules[label].remembers_lift
            else structs.replace(fresh.rules[label], memory=rule_state.memory)
            if self.rules[label].needs_lift
            else rule_state
            for label, rule_state in state.rules.items()
        }
        return structs.replace(state, by=fresh.by, rules=rules)


def _judged(state: MonitorState | GuardrailState, policies: Sequence[int]) -> dict[str, Any]:
    """Return what is known about the lifts of one reward, for some policies, production first."""
    lifts, by = select_policies([state.lifts, state.by], [policy - 1 for policy in policies[1:]])
    return {"lifts": lifts, "by": by, "rules": select_rules(state.rules, policies)}


def _changes(promotable: Mask, worse: Mask) -> list[tuple[int, int, bool, bool]]:
    """Return the changes of states [1 + blocks, candidates], what ends before what starts.

    Returns:
        For each change the block, the candidate, whether it is about `worse`, and whether it starts.
    """
    found = [
        (index, candidate, is_loss, bool(path[1 + index, candidate]))
        for is_loss, path in ((False, promotable), (True, worse))
        for index, candidate in np.argwhere(path[:-1] != path[1:]).tolist()
    ]
    return sorted(found, key=lambda change: (change[0], change[3]))


def _chosen(paths: Sequence[Array], by: Integers) -> Array:
    """Return the numbers of the deciding lift of each candidate after each block, [numbers, blocks, candidates].

    Args:
        paths: the numbers of each lift [lifts, numbers, blocks, candidates]
        by: the deciding lift, -1 for none [blocks, candidates]
    """
    indices = np.broadcast_to(np.maximum(by, 0), (1, *paths[0].shape))
    return np.asarray(np.take_along_axis(np.stack(paths), indices, axis=0)[0])


def _chosen_block(blocks: Sequence[BlockLift | None], by: Integers) -> BlockLift | None:
    """Return the blocks of the deciding lift, None if a lift has none."""
    known = [np.stack(block) for block in blocks if block is not None]
    return BlockLift(*_chosen(known, by)) if len(known) == len(blocks) else None


def transitions(monitor: PromotionMonitor, state: MonitorState) -> tuple[Transition, ...]:
    """Return the newest transitions of a state, the oldest first."""
    return tuple(
        Transition(
            policy=monitor.policies[1 + change.candidate],
            rule=change.rule,
            event=change.event,
            timestamp=number_or_none(change.time),
            promotable=change.starts,
            lift=number_or_none(change.lift),
            lift_lower=number_or_none(change.lower) if change.lower < change.lift else None,
            lift_upper=number_or_none(2 * change.lift - change.lower) if change.lower < change.lift else None,
            reason=change.reason,
            place=change.place,
            worse=change.worse,
            state=change.state,
            basis=_basis(change.basis),
        )
        for change in state.transitions
    )


def _basis(numbers: tuple[float, float, float] | None) -> Basis | None:
    """Return the basis of a change, see `Change`."""
    if numbers is None:
        return None
    effective, largest, errors = map(number_or_none, numbers)
    return Basis(effective, largest, errors)


def number_or_none(value: Any) -> float | None:
    """Return the number, or None for NaN."""
    return None if value != value else float(value)


def held(enter: Mask, stay: Mask, before: Array, hold: int) -> Array:
    """Count for how many block ends in a row each rule has passed, after each block [blocks, candidates].

    A rule that fails counts from zero. Once it has passed `hold` times, the weaker condition `stay` keeps the count, so
    that a bound that wavers about its limit does not alert at every crossing.

    >>> enter, stay = np.array([[True], [False], [False], [True]]), np.array([[True], [True], [False], [True]])
    >>> held(enter, stay, before=np.array([5.0]), hold=3).ravel(), held(enter, stay, np.array([0.0]), 3).ravel()
    (array([6., 6., 0., 1.]), array([1., 0., 0., 1.]))
    """
    if not enter.any() and (before < hold).all():
        return np.zeros(enter.shape)
    path, now = np.empty(enter.shape), before
    for index, (enters, stays) in enumerate(zip(enter, stay, strict=True)):
        path[index] = now = np.where(enters, now + 1, np.where(stays & (now >= hold), now, 0.0))
    return path
