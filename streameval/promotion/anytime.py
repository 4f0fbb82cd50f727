"""The rule that may be watched all day: proof of a better average, and a bound that says it is still better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streameval.arrays import Array, State
from streameval.promotion import reasons
from streameval.promotion.rules import STAYING, WIDENING, Facts, Judged, Rule, nothing_known, paired_lower, paired_more
from streameval.sequences.proof import LiftProof

NOTHING = -1e300
"""Evidence where nothing can be proven."""


@dataclass(frozen=True)
class Anytime(Rule):
    """A confidence sequence puts the average lift above the margin, and `paired` puts the present lift there.

    The first holds at all times at once: for a candidate whose average lift never exceeds the margin, the chance that
    it is ever promotable is at most its error, however often anyone looks, whatever the tails of the weights, and while
    the world moves. It needs right propensities. But it is about the *average* lift since the start (with `tau`, over
    at most the last 2 tau events): a candidate that has become worse stays proven for long. Hence the second condition,
    the lower bound of the present lift at the confidence of `paired`, which is calibrated and not proven.

    Events are taken to be independent given the past. Those of a user or session are not: the evidence then grows
    by more than its bets allow for, and nothing is proven any more, whatever the second condition makes of it. Who is
    promotable is told so, where events show it (`reasons.of_dependence`), and where none names its unit.

    Source: Mineiro 2022; Howard et al., Annals of Statistics 2021, for the kind of guarantee.
    """

    proof: LiftProof
    name: ClassVar[str] = "anytime"
    proves: ClassVar[bool] = True

    def start(self, candidates: int) -> State:
        return self.proof.start(candidates + 1)

    def judge(self, state: State, facts: Facts) -> tuple[Judged, State]:
        wealth, after = self.proof.fold(state, facts.evidence)
        wealth, needed = np.maximum(wealth[:, 1:], NOTHING), np.log(1.0 / facts.errors)
        proven = wealth[-1] >= needed
        also = {"wealth": wealth[-1], "needed": needed}
        if facts.lift is None:
            judged = nothing_known(len(facts.errors), facts.evidence.blocks)
            unknown = judged.lower[-1]
            return judged._replace(also={**also, "present": unknown, "staying": unknown}), after
        present, staying = (paired_lower(facts.lift, facts.confidence, widening) for widening in (WIDENING, STAYING))
        passed = (wealth >= needed) & (present > facts.margin)
        kept = (wealth >= needed) & (staying > facts.margin)
        events = facts.lift.events
        more = np.where(
            proven, paired_more(facts.lift, facts.margin, facts.confidence), _more(wealth[-1], needed, events[-1])
        )
        also |= {"present": present[-1], "staying": staying[-1]}
        return Judged(facts.lift.value, present, passed, kept, events, more, also), after

    def lower(self, memory: State, last: State, errors: Array) -> Array:
        """The lower end of the average lift's confidence sequence."""
        return self.proof.lower(memory, np.concatenate([[1.0], errors]))[1:]

    def says(self, last: Mapping[str, float], margin: float) -> str:
        average = f"lower bound of average lift {reasons.number(last['lower'])}"
        if math.isnan(last["lift"]):
            return "no lift is known yet"
        if last["wealth"] == NOTHING:
            return "nothing can be proven: events are sampled unevenly, or a weight was negative"
        if last["wealth"] < last["needed"]:
            short = "" if math.isnan(last["more"]) else f"; {reasons.of_more(last['more'])}"
            return f"{average} not above margin {reasons.number(margin)}{short}"
        present = reasons.of_bound(last["lift"], last["present"], margin, last["more"], what="present lift")
        return f"{average} over margin {reasons.number(margin)}, {present}"

    def says_of_promotable(self, last: Mapping[str, float], margin: float) -> str:
        if last["wealth"] < last["needed"] or last["present"] > margin:
            return self.says(last, margin)
        average = f"lower bound of average lift {reasons.number(last['lower'])} over margin {reasons.number(margin)}"
        return f"{average}, present {reasons.of_staying(last['staying'], margin)}"


def _more(wealth: Array, needed: Array, events: Array) -> Array:
    """How many more events the proof needs if evidence goes on growing as it did; NaN while there is hardly any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wealth > 1.0, events * (needed / wealth - 1.0), np.nan)
