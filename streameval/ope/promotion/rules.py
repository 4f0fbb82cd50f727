"""Rules of promotion: small frozen values that say, at every block end, which candidates beat production.

The rule that may be watched all day: proof of a better average, and a bound that says it is still better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences import LiftTest
from streameval.ope.promotion import reasons
from streameval.ope.promotion.block_sums import BlockSums, running_max, running_sum
from streameval.ope.promotion.lift import HORIZON, LiftEstimate

WIDENING, STAYING = 2.05 / 1.96, 1.7 / 1.96
"""How many times the normal quantile wide the bound is that a candidate must pass, and the one that it must keep."""
NEVER = reasons.NEVER


class Facts(NamedTuple):
    """What rules may look at: some whole blocks, and what is asked of candidates.

    `lift` is None where no lift is averaged on a mixture. `errors` [candidates]: the error probability of each.
    `max_weight` [policies]: no importance weight is larger (NaN: not known, then it is the largest seen).
    """

    evidence: Evidence
    sums: BlockSums
    lift: LiftEstimate | None
    margin: float
    confidence: float
    errors: Array
    reward_range: tuple[float, float]
    max_weight: Array


class Judgement(NamedTuple):
    """What a rule says after each block, [blocks, candidates]; NaN is not known.

    `lift`: what the rule estimates; `lower`: what it holds against the margin; `passed`: whether that is enough;
    `kept`: whether it is enough for what is promotable already to stay so; `events` that the candidate had.
    `more` [candidates]: after the last block, how many more events `lower` would need to reach the margin if all stays
    as it is; `NEVER` where no number of events would do. `also` [candidates]: what else the rule will want to say, by
    name.
    """

    lift: Array
    lower: Array
    passed: Mask
    kept: Mask
    events: Array
    more: Array
    also: Mapping[str, Array] = MappingProxyType({})

    @property
    def last(self) -> State:
        """What is known of each candidate after the last block, [candidates] by name."""
        known = {"lift": self.lift[-1], "lower": self.lower[-1], "events": self.events[-1], "more": self.more}
        return {**known, **self.also}


@dataclass(frozen=True)
class PromotionRule:
    """A test of candidates against production, column 0 of the evidence. It sees blocks when they end."""

    name: ClassVar[str]
    proves: ClassVar[bool] = False  # of events that are independent given the past

    def start(self, candidates: int) -> State:
        """What the rule must remember between blocks."""
        return {}

    def judge(self, state: State, facts: Facts) -> tuple[Judgement, State]:
        """What it says after each of these blocks, and what it remembers after them."""
        raise NotImplementedError

    def lower(self, memory: State, last: State, errors: Array) -> Array:
        """What to show as lower bound of the lift of each candidate now."""
        return np.asarray(last["lower"])

    def says(self, last: Mapping[str, float], margin: float) -> str:
        """Why a candidate passes, or does not, from what is known after the last block."""
        return reasons.of_bound(last["lift"], last["lower"], margin, last["more"])

    def says_of_promotable(self, last: Mapping[str, float], margin: float) -> str:
        """Why a candidate that is promotable is so still."""
        return self.says(last, margin)


@dataclass(frozen=True)
class Paired(PromotionRule):
    """`D - (2.05 z / 1.96) sqrt(se^2 + (2 spread)^2 + (moved / 3)^2) > margin`: the present lift, on the mixture.

    `D` averages the difference of both policies' terms on the same events. `z` is the two-sided normal quantile of the
    confidence, `se^2` the sampling variance; `spread^2` and `moved^2`, means of the last 30,000 events, say how far the
    decays of the mixture disagree, and how far this lift was from its mean. (How fast all lifts have drifted, which
    `drift_aware` adds, says hardly anything about the error of this one.) What is promotable stays so while the same
    bound with the factor 1.7 is above the margin: a bound that wavers about the margin would else ring three times as
    often.

    All factors were found by simulation (examples/promotion), so that there is at most one false start in ten million
    candidate-events. Because it is calibrated and not proven, its error is not spread over the candidates.

    >>> lift = LiftEstimate(*(np.array([[value]]) for value in (0.05, 6e-5, 4e-5, 20_000.0)))
    >>> [float(paired_lower(lift, 0.95, widening)[0, 0].round(4)) for widening in (WIDENING, STAYING)]
    [0.0295, 0.033]
    """

    name: ClassVar[str] = "paired"

    def judge(self, state: State, facts: Facts) -> tuple[Judgement, State]:
        lift = facts.lift
        if lift is None:
            return nothing_known(len(facts.errors), facts.evidence.blocks), state
        lower, staying = (paired_lower(lift, facts.confidence, widening) for widening in (WIDENING, STAYING))
        more = paired_more(lift, facts.margin, facts.confidence)
        kept, also = staying > facts.margin, {"staying": staying[-1]}
        return Judgement(lift.value, lower, lower > facts.margin, kept, lift.events, more, also), state

    def says_of_promotable(self, last: Mapping[str, float], margin: float) -> str:
        if last["lower"] > margin:
            return self.says(last, margin)
        return reasons.of_staying(last["staying"], margin)


def paired_lower(lift: LiftEstimate, confidence: float, widening: float) -> Array:
    """The lower bound of the present lift after each block, [blocks, candidates]."""
    return np.asarray(lift.value - widening * _quantile(confidence) * np.sqrt(lift.error2 + lift.moving2))


def paired_more(lift: LiftEstimate, margin: float, confidence: float) -> Array:
    """After the last block, how many more events that bound needs to reach the margin, [candidates].

    Sampling variance falls with their number; what comes of a moving world stays what it is, once that is known: at
    first an estimate moves because there is so little to estimate from.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        lead = (lift.value[-1] - margin) / (WIDENING * _quantile(confidence))
        room = lead**2 - lift.moving2[-1]
        more = lift.events[-1] * np.maximum(lift.error2[-1] / room - 1.0, 0.0)
    known = (lift.events[-1] >= HORIZON) | ~(lead > 0)
    return np.where(np.isnan(lead) | ((lead > 0) & (room > 0)), more, np.where(known, NEVER, reasons.EARLY))


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def nothing_known(candidates: int, blocks: int = 1) -> Judgement:
    """Nothing is known of any candidate."""
    nothing = np.full((blocks, candidates), np.nan)
    unknown = np.zeros(nothing.shape, dtype=bool)
    return Judgement(nothing, nothing, unknown, unknown, np.zeros_like(nothing), nothing[-1])


SUMS = ("present", "q", "q_square", "term", "term_square")
MAXIMA = ("q_largest", "importance_largest")


@dataclass(frozen=True)
class Sea(PromotionRule):
    """`LCB(candidate) - UCB(production) >= margin`, both one-sided empirical Bernstein bounds on all data (SEA).

    Half-width `sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0/Q - 1))` with `L = ln(2 / error)`, where `b` is the reward range
    times the largest weight seen, or `max_weight`. It averages everything since the start: in a world that moves it
    goes on recommending candidates that have become worse.

    Source: Jagerman et al., TOIS 2020; Jagerman's thesis, algorithm 6.
    """

    name: ClassVar[str] = "sea"

    def start(self, candidates: int) -> State:
        return {name: np.zeros(candidates + 1) for name in (*SUMS, *MAXIMA)}

    def judge(self, state: State, facts: Facts) -> tuple[Judgement, State]:
        paths = {name: running_sum(state[name], getattr(facts.sums, name)) for name in SUMS}
        paths |= {name: running_max(state[name], getattr(facts.sums, name)) for name in MAXIMA}
        after = {name: path[-1] for name, path in paths.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            value = paths["term"] / paths["q"]
            lift = value[:, 1:] - value[:, :1]
            sampling, range_part = self._widths(paths, value, facts)
            lower = lift - sampling - range_part
            times = _times(lift[-1] - facts.margin, sampling[-1], range_part[-1])
            more = np.where(times < 0, NEVER, paths["present"][-1, 1:] * np.maximum(times - 1.0, 0.0))
        passed = lower >= facts.margin
        return Judgement(lift, lower, passed, passed, paths["present"][:, 1:], more), after

    def _widths(self, paths: State, value: Array, facts: Facts) -> tuple[Array, Array]:
        """The parts of both half-widths together that shrink like 1/sqrt(n) and like 1/n, [blocks, candidates]."""
        weight, (low, high) = paths["q"], facts.reward_range
        largest = np.where(np.isnan(facts.max_weight), paths["importance_largest"], facts.max_weight)
        size = largest * (max(high, 0.0) - min(low, 0.0))
        count = weight**2 / paths["q_square"]
        variance = np.maximum(paths["term_square"] / weight - value**2, 0.0) * count / (count - 1.0)
        spread, others = np.sqrt(2.0 * variance / count), 7.0 * size / (3.0 * (weight / paths["q_largest"] - 1.0))
        log_term = np.log(2.0 / facts.errors)
        return np.sqrt(log_term) * (spread[:, 1:] + spread[:, :1]), log_term * (others[:, 1:] + others[:, :1])


@dataclass(frozen=True)
class Bsea(Sea):
    """`sea` without bounds: the mean of all weighted rewards is at least production's, plus the margin.

    It promotes on noise, and is there for comparison.

    Source: Jagerman et al., TOIS 2020.
    """

    name: ClassVar[str] = "bsea"

    def lower(self, memory: State, last: State, errors: Array) -> Array:
        return np.full(len(errors), np.nan)

    def says(self, last: Mapping[str, float], margin: float) -> str:
        return reasons.of_lift(last["lift"], margin)

    def _widths(self, paths: State, value: Array, facts: Facts) -> tuple[Array, Array]:
        nothing = np.zeros((len(value), len(facts.errors)))
        return nothing, nothing


def _times(gap: Array, sampling: Array, range_part: Array) -> Array:
    """With how many times the present events a gap is reached: `gap f = sampling sqrt(f) + range_part`; or `NEVER`."""
    root = (sampling + np.sqrt(sampling**2 + 4.0 * np.maximum(gap, 0.0) * range_part)) / (2.0 * gap)
    return np.where(gap <= 0, NEVER, root**2)


NOTHING = -1e300
"""Evidence where nothing can be proven."""


@dataclass(frozen=True)
class Anytime(PromotionRule):
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

    proof: LiftTest
    name: ClassVar[str] = "anytime"
    proves: ClassVar[bool] = True

    def start(self, candidates: int) -> State:
        return self.proof.start(candidates + 1)

    def judge(self, state: State, facts: Facts) -> tuple[Judgement, State]:
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
        return Judgement(facts.lift.value, present, passed, kept, events, more, also), after

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
