"""The contest: candidates against production under all rules, folded over blocks, and read into decisions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streameval.arrays import Array, State
from streameval.evidence import Evidence
from streameval.promotion import holding, trust
from streameval.promotion.holding import Clock
from streameval.promotion.rules import Bsea, Facts, Judged, Paired, Rule, Sea
from streameval.promotion.settings import Promotion, RuleName
from streameval.promotion.sums import BlockSums, LiftPath

RULES: dict[RuleName, Rule] = {"paired": Paired(), "sea": Sea(), "bsea": Bsea()}


@dataclass(frozen=True)
class Contest:
    """Which of `policies` may replace the first of them, production.

    `ranks` [candidates]: the how many-th each is that was ever added. `logged`: production is the policy that took the
    logged actions. Everything is decided at block ends, from what is known then: when it is asked for changes nothing.
    """

    promotion: Promotion
    policies: tuple[str, ...]
    ranks: tuple[int, ...]
    logged: bool
    reward_range: tuple[float, float]
    confidence: float
    block: int

    @cached_property
    def errors(self) -> Array:
        """The error probability of each candidate."""
        return self.promotion.errors(self.confidence, self.ranks)

    def start(self) -> State:
        """The state before the first event."""
        candidates = len(self.policies) - 1
        nothing = np.full(candidates, np.nan)
        last = {"lift": nothing, "lower": nothing, "events": np.zeros(candidates), "more": nothing}
        return {
            "events": 0,
            "newest": np.nan,
            "trust": trust.start(len(self.policies)),
            "rules": {
                name: {
                    "memory": RULES[name].start(candidates),
                    "holding": holding.start(candidates),
                    "last": dict(last),
                }
                for name in self.promotion.rules
            },
            "transitions": [],
        }

    def fold(
        self, state: State, evidence: Evidence, path: LiftPath | None, timestamp: Array, propensity: Array
    ) -> State:
        """The state after some whole blocks.

        `path`: the lift after each of them, None where none is averaged on a mixture. `timestamp`, `propensity` [n]:
        of the events.
        """
        evidence = evidence.slates or evidence
        sums = BlockSums.of(evidence)
        believed, trusted = trust.fold(state["trust"], evidence, sums, propensity, self.promotion.trust)
        facts = self._facts(evidence, sums, path)
        clock = self._clock(state, timestamp, evidence.blocks)
        rules, transitions = {}, list(state["transitions"])
        for name in self.promotion.rules:
            before = state["rules"][name]
            judged, memory = RULES[name].judge(before["memory"], facts)
            passed = judged.passed & (judged.events >= self.promotion.min_events) & believed[:, 1:] & believed[:, :1]
            held, changes = holding.fold(before["holding"], passed, judged.lift, clock, self.promotion.hold, self.block)
            rules[name] = {"memory": memory, "holding": held, "last": _last(judged)}
            transitions += [
                [name, candidate, clock.events[place], clock.times[place], begins, judged.lift[place, candidate]]
                for candidate, place, begins in changes
            ]
        transitions.sort(key=lambda transition: transition[2])
        return {
            "events": int(clock.events[-1]),
            "newest": float(clock.times[-1]),
            "trust": trusted,
            "rules": rules,
            "transitions": transitions[-holding.KEPT :],
        }

    def _facts(self, evidence: Evidence, sums: BlockSums, path: LiftPath | None) -> Facts:
        configured = self.promotion.max_weight
        largest = np.full(len(self.policies), np.nan if configured is None else configured)
        if self.logged:
            largest[0] = 1.0
        return Facts(
            evidence, sums, path, self.promotion.margin, self.confidence, self.errors, self.reward_range, largest
        )

    def _clock(self, state: State, timestamp: Array, blocks: int) -> Clock:
        newest = np.fmax.reduce(timestamp.reshape(blocks, -1), axis=1)
        times = np.fmax.accumulate(np.concatenate([[state["newest"]], newest]))[1:]
        return Clock(state["events"] + self.block * np.arange(1, blocks + 1), times)


def _last(judged: Judged) -> State:
    return {
        "lift": judged.lift[-1],
        "lower": judged.lower[-1],
        "events": judged.events[-1],
        "more": judged.more,
    }
