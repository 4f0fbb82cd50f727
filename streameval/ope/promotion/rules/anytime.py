"""The rule `anytime`: a proven average lift, and a present lift that is still above the margin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.common.text import significant
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.tracker import LiftTest, Restarted, SinceStart
from streameval.ope.promotion.lift import Lift
from streameval.ope.promotion.rules.base import (
    Judgement,
    PromotionRule,
    RuleContext,
    bound_reason,
    more_reason,
    staying_reason,
)
from streameval.ope.promotion.rules.paired import ENTERING, STAYING, events_missing, lower_bound

NO_EVIDENCE = -1e300
"""The log wealth where nothing can be proven."""


@dataclass(frozen=True, kw_only=True, config=strict)
class Anytime(PromotionRule):
    """A confidence sequence puts the average lift above the margin, and `paired` puts the present lift there.

    The first condition holds at all times at once: for a candidate whose average lift never exceeds the margin, the
    probability that it is ever promotable is at most its error, however often anyone looks, whatever the tails of the
    weights, and while the world moves. It needs correct propensities. It is about the *average* lift since the start,
    or over at most the last 2 tau events: a candidate that has become worse stays proven for long. Hence the second
    condition, the lower bound of the present lift at the confidence of `paired`, which is calibrated and not proven.

    The proof assumes events that are independent given the past. Events of one user or session are not; the reason
    given for a promotable candidate reports it where the log shows it, and where no event names its unit.

    Source: Mineiro 2022; Howard et al., Annals of Statistics 2021, for the kind of guarantee.
    """

    needs_lift: ClassVar[bool] = True
    assumes_independence: ClassVar[bool] = True
    kind: Literal["anytime"] = field(default="anytime", repr=False)
    tau: int | None = Field(default=None, ge=1)

    def start(self, candidates: int) -> State:
        return LiftTest((0.0, 1.0), 0.0, self._schedule(1)).start(candidates + 1)

    def memory_key(self, context: RuleContext) -> list[Any]:
        return [self.tau, context.margin]

    def check(self, block: int) -> None:
        if self.tau is not None and self.tau < block:
            raise ValueError(f"tau must be a block of {block} events or more, found {self.tau}")

    def judge(
        self, memory: State, evidence: Evidence, sums: State, lift: Lift, context: RuleContext
    ) -> tuple[Judgement, State]:
        wealth, after = self._test(context).fold(memory, evidence)
        wealth, needed = np.maximum(wealth[:, 1:], NO_EVIDENCE), np.log(1.0 / context.errors)
        present, staying = (lower_bound(lift, context.confidence, factor) for factor in (ENTERING, STAYING))
        proven = wealth >= needed
        enter, stay = proven & (present > context.margin), proven & (staying > context.margin)
        more = np.where(
            proven[-1],
            events_missing(lift, context.margin, context.confidence),
            _events_to_prove(wealth[-1], needed, lift.events[-1]),
        )
        also = {"wealth": wealth[-1], "needed": needed, "present": present[-1], "staying": staying[-1]}
        return Judgement(lift.value, present, enter, stay, lift.events, more, also), after

    def lower(self, memory: State, last: State, context: RuleContext) -> Array:
        """The lower bound of the average lift's confidence sequence."""
        return self._test(context).lower(memory, np.concatenate([[1.0], context.errors]))[1:]

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        average = f"lower bound of average lift {significant(last['lower'])}"
        if math.isnan(last["lift"]):
            return "no lift is known yet"
        if last["wealth"] == NO_EVIDENCE:
            return "nothing can be proven: events are sampled unevenly, or a weight was negative"
        if last["wealth"] < last["needed"]:
            missing = "" if math.isnan(last["more"]) else f"; {more_reason(last['more'])}"
            return f"{average} not above margin {significant(margin)}{missing}"
        present = bound_reason(last["lift"], last["present"], margin, last["more"], what="present lift")
        return f"{average} over margin {significant(margin)}, {present}"

    def reason_to_stay(self, last: Mapping[str, float], margin: float) -> str:
        if last["wealth"] < last["needed"] or last["present"] > margin:
            return self.reason(last, margin)
        average = f"lower bound of average lift {significant(last['lower'])} over margin {significant(margin)}"
        return f"{average}, present {staying_reason(last['staying'], margin)}"

    def _test(self, context: RuleContext) -> LiftTest:
        return LiftTest(context.reward_range, context.margin, self._schedule(context.block))

    def _schedule(self, block: int) -> SinceStart | Restarted:
        return SinceStart() if self.tau is None else Restarted(self.tau, block)


def _events_to_prove(wealth: Array, needed: Array, events: Array) -> Array:
    """How many more events the proof needs if evidence keeps growing at its rate; NaN while there is hardly any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wealth > 1.0, events * (needed / wealth - 1.0), np.nan)
