"""The promotion monitor: it judges every candidate under every rule at the end of every block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.events.action_sets import Index
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion import hold, trust_checks
from streameval.ope.promotion import lift as lift_series
from streameval.ope.promotion.block_sums import BlockSums, differing
from streameval.ope.promotion.lift import LiftEstimate, LiftSeries
from streameval.ope.promotion.rules import PromotionRule, RuleContext
from streameval.ope.promotion.rules.base import nothing_known
from streameval.ope.promotion.settings import Promotion


@dataclass(frozen=True)
class PromotionMonitor:
    """Which of `policies` may replace the first of them, production.

    All decisions are made at block ends, from what is known then: reading them changes nothing. In the state,
    candidates (under `trust` and `memory`: policies) are axis 0 of every array.

    Args:
        ranks: [candidates], the order in which the candidates were first added, from 1.
        logged: whether production is the policy that took the logged actions.
        lifts: names of the lifts that may decide, the preferred one first.
    """

    promotion: Promotion
    policies: tuple[str, ...]
    ranks: tuple[int, ...]
    logged: bool
    reward_range: tuple[float, float]
    confidence: float
    block: int
    lifts: tuple[str, ...] = ("lift",)

    @cached_property
    def rules(self) -> Mapping[str, PromotionRule]:
        """The rules by label, in the order in which they are configured."""
        return {rule.label: rule for rule in self.promotion.rules}

    @cached_property
    def context(self) -> RuleContext:
        """The settings that hold for every rule and every block."""
        errors = self.promotion.errors(self.confidence, self.ranks)
        margin = self.promotion.margin
        return RuleContext(margin, self.confidence, errors, self.reward_range, self.block, self.logged)

    def start(self) -> State:
        """The state before the first event."""
        candidates = len(self.policies) - 1
        return {
            "events": 0,
            "newest": np.nan,
            "lifts": {name: lift_series.start(candidates) for name in self.lifts},
            "by": np.full(candidates, -1),
            "differs": np.zeros(candidates, dtype=bool),
            "trust": trust_checks.start(len(self.policies)),
            "rules": {label: self._start_rule(rule) for label, rule in self.rules.items()},
            "transitions": [],
        }

    def _start_rule(self, rule: PromotionRule) -> State:
        candidates = len(self.policies) - 1
        return {
            "memory": rule.start(candidates),
            "memory_key": rule.memory_key(self.context),
            "requirements": self._requirements(rule),
            "hold": hold.start(candidates),
            "last": nothing_known(candidates).last,
        }

    def _requirements(self, rule: PromotionRule) -> dict[str, Any]:
        """The settings that decide what a candidate must pass."""
        shared = {key: value for key, value in self.promotion.settings().items() if key not in ("rule", "trust")}
        return {**shared, **asdict(rule), "confidence": self.confidence}

    def fold(
        self, state: State, evidence: Evidence, lifts: Sequence[LiftSeries], timestamp: Array, propensity: Array
    ) -> State:
        """The state after some whole blocks.

        A rule that needs a lift must hold from zero again where another lift takes over: see `lift.choose`.

        Args:
            lifts: the lifts after each of these blocks, in the order of their names.
            timestamp, propensity: [events].
        """
        evidence = evidence.slates or evidence
        sums = BlockSums.of(evidence)
        trustworthy, trust = trust_checks.fold(state["trust"], evidence, sums, propensity, self.promotion.trust)
        differs = differing(evidence, state["differs"])
        believed = trustworthy[:, 1:] & trustworthy[:, :1] & differs
        lift, by, switched, followed = self._follow(state, lifts)
        numbers, times = self._block_ends(state, timestamp, evidence.blocks)
        rules, transitions = {}, list(state["transitions"])
        for label, rule in self.rules.items():
            before = state["rules"][label]
            judgement, memory = rule.judge(before["memory"], evidence, sums, lift, self.context)
            sound = (judgement.events >= self.promotion.min_events) & believed
            if rule.needs_lift:
                sound &= ~switched
            held, changes = hold.fold(
                before["hold"],
                judgement.enter & sound,
                judgement.stay & sound,
                judgement.lift,
                numbers,
                times,
                self.promotion.hold,
                self.block,
            )
            rules[label] = {**before, "memory": memory, "hold": held, "last": judgement.last}
            transitions += [
                [label, candidate, numbers[place], times[place], promotable, judgement.lift[place, candidate]]
                for candidate, place, promotable in changes
            ]
        transitions.sort(key=lambda transition: transition[2])
        return {
            "events": int(numbers[-1]),
            "newest": float(times[-1]),
            "lifts": followed,
            "by": by,
            "differs": differs[-1],
            "trust": trust,
            "rules": rules,
            "transitions": transitions[-hold.KEPT :],
        }

    def _follow(self, state: State, lifts: Sequence[LiftSeries]) -> tuple[LiftEstimate | None, Index, Mask, State]:
        """The lift that decides, the last choice, where another lift took over, and the state of all lifts."""
        if not lifts:
            return None, state["by"], np.zeros(len(state["by"]), dtype=bool), state["lifts"]
        pairs = zip(self.lifts, lifts, strict=True)
        every, recent, after = zip(
            *(lift_series.follow(lift, state["lifts"][name], self.block) for name, lift in pairs), strict=True
        )
        by, switched = lift_series.choose(np.stack(recent), state["by"])
        if (by == by[0, 0]).all():
            known = every[max(0, by[0, 0])]
        else:
            places = np.broadcast_to(np.maximum(by, 0), (1, *every[0].shape))
            known = np.take_along_axis(np.stack(every), places, axis=0)[0]
        return LiftEstimate(*known), by[-1], switched, dict(zip(self.lifts, after, strict=True))

    def _block_ends(self, state: State, timestamp: Array, blocks: int) -> tuple[Array, Array]:
        """Of each block the number of its last event, and the newest event time until then (NaN: unknown)."""
        newest = np.fmax.reduce(timestamp.reshape(blocks, -1), axis=1)
        times = np.fmax.accumulate(np.concatenate([[state["newest"]], newest]))[1:]
        return state["events"] + self.block * np.arange(1, blocks + 1), times

    def resume(self, state: State) -> State:
        """A state that may have been written under other settings, continued under these.

        New rules start from zero. A rule must hold from zero again where a requirement has changed, and its memory
        restarts where a setting has changed that it depends on.
        """
        rules = {}
        for label, rule in self.rules.items():
            fresh = self._start_rule(rule)
            kept = state["rules"].get(label, fresh)
            if kept["memory_key"] != fresh["memory_key"]:
                kept = fresh
            elif kept["requirements"] != fresh["requirements"]:
                kept = {**kept, "requirements": fresh["requirements"], "hold": fresh["hold"]}
            rules[label] = kept
        return {**state, "rules": rules}

    def select_candidates(self, state: State, candidates: Sequence[int]) -> State:
        """The state of a monitor of these candidates only, by their places."""
        policies = [0, *(1 + candidate for candidate in candidates)]
        rules = {
            label: {
                **kept,
                "memory": _select(kept["memory"], policies),
                "hold": _select(kept["hold"], candidates),
                "last": _select(kept["last"], candidates),
            }
            for label, kept in state["rules"].items()
        }
        transitions = [
            [label, candidates.index(candidate), *rest]
            for label, candidate, *rest in state["transitions"]
            if candidate in candidates
        ]
        by_candidate = _select({name: state[name] for name in ("lifts", "by", "differs")}, candidates)
        trust = _select(state["trust"], policies)
        return {**state, **by_candidate, "trust": trust, "rules": rules, "transitions": transitions}

    def with_lifts(self, state: State, before: Sequence[str]) -> State:
        """The state when the lifts were others `before`; those with the same name are the same.

        When the lift that decides is gone, the rules that need a lift start from zero. Evidence about
        the average lift stays: it does not depend on that lift.
        """
        if tuple(before) == self.lifts:
            return state
        fresh = self.start()
        names = [before[place] if place >= 0 else None for place in state["by"]]
        followed = {name: state["lifts"].get(name, begun) for name, begun in fresh["lifts"].items()}
        if all(name is None or name in self.lifts for name in names):
            by = np.array([-1 if name is None else self.lifts.index(name) for name in names], dtype=int)
            return {**state, "lifts": followed, "by": by}
        rules = {
            label: {**fresh["rules"][label], "memory": kept["memory"]} if self.rules[label].needs_lift else kept
            for label, kept in state["rules"].items()
        }
        return {**state, "lifts": followed, "by": fresh["by"], "rules": rules}


def _select(state: Any, rows: Sequence[int]) -> Any:
    """These rows of every array of a state."""
    if isinstance(state, dict):
        return {key: _select(value, rows) for key, value in state.items()}
    return state[list(rows)] if isinstance(state, np.ndarray) else state
