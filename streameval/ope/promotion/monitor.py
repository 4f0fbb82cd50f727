"""The contest: candidates against production under all rules, folded over blocks, and read into decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.common.state_columns import transplanted
from streameval.events.action_sets import Index
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences import LiftTest, Restarted, SinceStart
from streameval.ope.promotion import hold, trust_checks
from streameval.ope.promotion import lift as lift_series
from streameval.ope.promotion.block_sums import BlockSums, differing
from streameval.ope.promotion.hold import BlockClock
from streameval.ope.promotion.lift import LiftEstimate, LiftSeries
from streameval.ope.promotion.rules import Anytime, Bsea, Facts, Paired, PromotionRule, Sea, nothing_known
from streameval.ope.promotion.settings import NEEDS_LIFT, Promotion


@dataclass(frozen=True)
class PromotionMonitor:
    """Which of `policies` may replace the first of them, production.

    `ranks` [candidates]: the how many-th each is that was ever added. `logged`: production is the policy that took the
    logged actions. `lifts`: names of the lifts that may be decided by, the preferred one first. Everything is decided
    at block ends, from what is known then: when it is asked for changes nothing.
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
    def errors(self) -> Array:
        """The error probability of each candidate."""
        return self.promotion.errors(self.confidence, self.ranks)

    @cached_property
    def rules(self) -> Mapping[str, PromotionRule]:
        """The rules by name, in the order in which they are configured."""
        span = SinceStart() if self.promotion.tau is None else Restarted(self.promotion.tau, self.block)
        known: tuple[PromotionRule, ...] = (
            Paired(),
            Sea(),
            Bsea(),
            Anytime(LiftTest(self.reward_range, self.promotion.margin, span)),
        )
        by_name = {rule.name: rule for rule in known}
        return {name: by_name[name] for name in self.promotion.rules}

    def start(self) -> State:
        """The state before the first event."""
        candidates = len(self.policies) - 1
        return {
            "asked": self._asked(),
            "events": 0,
            "newest": np.nan,
            "lifts": {name: lift_series.start(candidates) for name in self.lifts},
            "by": np.full(candidates, -1),
            "differs": np.zeros(candidates, dtype=bool),
            "trust": trust_checks.start(len(self.policies)),
            "rules": {
                name: {
                    "memory": rule.start(candidates),
                    "holding": hold.start(candidates),
                    "last": nothing_known(candidates).last,
                }
                for name, rule in self.rules.items()
            },
            "transitions": [],
        }

    def fold(
        self, state: State, evidence: Evidence, lifts: Sequence[LiftSeries], timestamp: Array, propensity: Array
    ) -> State:
        """The state after some whole blocks.

        `lifts`: the lifts after each of them, in the order of their names. `timestamp`, `propensity` [n]: of the
        events. A rule that looks at a lift must hold from zero again where another lift takes over: see `path.choose`.
        """
        evidence = evidence.slates or evidence
        sums = BlockSums.of(evidence)
        trustworthy, trusted = trust_checks.fold(state["trust"], evidence, sums, propensity, self.promotion.trust)
        differs = differing(evidence, state["differs"])
        believed = trustworthy[:, 1:] & trustworthy[:, :1] & differs
        known, by, switched, followed = self._followed(state, lifts)
        facts = self._facts(evidence, sums, known)
        clock = self._clock(state, timestamp, evidence.blocks)
        rules, transitions = {}, list(state["transitions"])
        for name, rule in self.rules.items():
            before = state["rules"][name]
            judged, memory = rule.judge(before["memory"], facts)
            sound = (judged.events >= self.promotion.min_events) & believed
            if name in NEEDS_LIFT:
                sound &= ~switched
            passed, kept = judged.passed & sound, judged.kept & sound
            held, changes = hold.fold(
                before["holding"], passed, kept, judged.lift, clock, self.promotion.hold, self.block
            )
            rules[name] = {"memory": memory, "holding": held, "last": judged.last}
            transitions += [
                [name, candidate, clock.events[place], clock.times[place], begins, judged.lift[place, candidate]]
                for candidate, place, begins in changes
            ]
        transitions.sort(key=lambda transition: transition[2])
        return {
            "asked": state["asked"],
            "events": int(clock.events[-1]),
            "newest": float(clock.times[-1]),
            "lifts": followed,
            "by": by,
            "differs": differs[-1],
            "trust": trusted,
            "rules": rules,
            "transitions": transitions[-hold.KEPT :],
        }

    def _followed(self, state: State, lifts: Sequence[LiftSeries]) -> tuple[LiftEstimate | None, Index, Mask, State]:
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

    def going_on(self, state: State) -> State:
        """A state that was written under other settings, perhaps: what they do not concern is kept.

        Rules that were not there begin now; where what is asked for has changed, all must hold anew. What sequences
        remember depends on `tau`, and what they prove on `margin`.
        """
        asked, fresh = self._asked(), self.start()
        before, rules = state["asked"], {}
        for name in self.rules:
            kept = state["rules"].get(name, fresh["rules"][name])
            if before != asked:
                kept = {**kept, "holding": fresh["rules"][name]["holding"]}
            if name == "anytime" and any(before[key] != asked[key] for key in ("tau", "margin")):
                kept = fresh["rules"][name]
            rules[name] = kept
        return {**{name: state.get(name, begun) for name, begun in fresh.items()}, "asked": asked, "rules": rules}

    def of_some(self, state: State, candidates: Sequence[int]) -> State:
        """The state of a contest that is the same, but of some of these candidates only."""
        bare = {name: {**kept, "last": {}} for name, kept in state["rules"].items()}
        places = [0, *(1 + candidate for candidate in candidates)]
        some: State = transplanted({**state, "rules": bare, "transitions": []}, self._fresh, len(self.policies), places)
        for name, kept in state["rules"].items():
            some["rules"][name]["last"] = {said: column[list(candidates)] for said, column in kept["last"].items()}
        some["transitions"] = [
            [name, candidates.index(candidate), *told]
            for name, candidate, *told in state["transitions"]
            if candidate in candidates
        ]
        return some

    def _fresh(self, policies: int) -> State:
        """The state before the first event of so many policies."""
        names = tuple(map(str, range(policies)))
        return replace(self, policies=names, ranks=tuple(range(1, policies))).start()

    def with_lifts(self, state: State, before: Sequence[str]) -> State:
        """The state when the lifts were others `before`; those with the same name are the same.

        When one is gone that decides, the rules that look at a lift start from zero, but for what they have proven of
        averages, which does not depend on it.
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
            name: {**fresh["rules"][name], "memory": kept["memory"]} if name in NEEDS_LIFT else kept
            for name, kept in state["rules"].items()
        }
        return {**state, "lifts": followed, "by": fresh["by"], "rules": rules}

    def _asked(self) -> State:
        """The settings that decide what a rule must pass."""
        given = self.promotion.settings()
        asked = {key: given[key] for key in ("min_events", "margin", "hold", "family_size", "max_weight", "tau")}
        return {**asked, "confidence": self.confidence}

    def _facts(self, evidence: Evidence, sums: BlockSums, lift: LiftEstimate | None) -> Facts:
        configured = self.promotion.max_weight
        largest = np.full(len(self.policies), np.nan if configured is None else configured)
        if self.logged:
            largest[0] = 1.0
        return Facts(
            evidence, sums, lift, self.promotion.margin, self.confidence, self.errors, self.reward_range, largest
        )

    def _clock(self, state: State, timestamp: Array, blocks: int) -> BlockClock:
        newest = np.fmax.reduce(timestamp.reshape(blocks, -1), axis=1)
        times = np.fmax.accumulate(np.concatenate([[state["newest"]], newest]))[1:]
        return BlockClock(state["events"] + self.block * np.arange(1, blocks + 1), times)
