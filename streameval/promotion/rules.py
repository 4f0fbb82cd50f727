"""Rules of promotion: small frozen values that say, at every block end, which candidates beat production."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from streameval.arrays import Array, Mask, State
from streameval.evidence import Evidence
from streameval.promotion.sums import BlockSums, LiftPath, running_max, running_sum

WIDENING = 3.0 / 1.96


class Facts(NamedTuple):
    """What rules may look at: some whole blocks, and what is asked of candidates.

    `path` is None where no lift is averaged on a mixture. `errors` [candidates]: the error probability of each.
    `max_weight` [policies]: no importance weight is larger (NaN: not known, then it is the largest seen).
    """

    evidence: Evidence
    sums: BlockSums
    path: LiftPath | None
    margin: float
    confidence: float
    errors: Array
    reward_range: tuple[float, float]
    max_weight: Array


class Judged(NamedTuple):
    """What a rule says after each block, [blocks, candidates]; NaN is not known.

    `lift`: what the rule estimates; `lower`: what it holds against the margin; `passed`: whether that is enough;
    `events` that the candidate had. `more` [candidates]: after the last block, how many more events `lower` would need
    to reach the margin if all stays as it is; infinite where no number of events would do.
    """

    lift: Array
    lower: Array
    passed: Mask
    events: Array
    more: Array


@dataclass(frozen=True)
class Rule:
    """A test of candidates against production, column 0 of the evidence. It sees blocks when they end."""

    name: ClassVar[str]
    bounded: ClassVar[bool] = True
    """Whether it holds a bound against the margin, and not the mere estimate."""

    def start(self, candidates: int) -> State:
        """What the rule must remember between blocks."""
        return {}

    def judge(self, state: State, facts: Facts) -> tuple[Judged, State]:
        """What it says after each of these blocks, and what it remembers after them."""
        raise NotImplementedError


@dataclass(frozen=True)
class Paired(Rule):
    """`D - (3 z / 1.96) sqrt(se^2 + spread^2 + drift^2) > margin`: the present lift, on the mixture.

    `D` averages the difference of both policies' terms on the same events. `z` is the two-sided normal quantile of the
    confidence; the factor 3 was found by simulation: one false start in ten million candidate-events. Because it is
    calibrated and not proven, its error is not spread over the candidates. Drift is left out while it is not known
    (50,000 events).

    >>> path = LiftPath(*(np.array([[value]]) for value in (0.05, 1e-4, 0.0, np.nan, 20_000.0)))
    >>> [float(each[0, 0].round(3)) for each in (paired_lower(path, confidence=0.95), path.value)]
    [0.02, 0.05]
    """

    name: ClassVar[str] = "paired"

    def judge(self, state: State, facts: Facts) -> tuple[Judged, State]:
        path = facts.path
        if path is None:
            return unknown(facts), state
        lower = paired_lower(path, facts.confidence)
        with np.errstate(divide="ignore", invalid="ignore"):
            lead = (path.value[-1] - facts.margin) / _widening(facts.confidence)
            room = lead**2 - path.spread2[-1] - np.nan_to_num(path.drift2[-1])
            times = np.where((lead > 0) & (room > 0), path.se2[-1] / room, np.inf)
        more = path.events[-1] * np.maximum(times - 1.0, 0.0)
        return Judged(path.value, lower, lower > facts.margin, path.events, more), state


def paired_lower(path: LiftPath, confidence: float) -> Array:
    """The lower bound of the present lift after each block, [blocks, candidates]."""
    return np.asarray(
        path.value - _widening(confidence) * np.sqrt(path.se2 + path.spread2 + np.nan_to_num(path.drift2))
    )


def _widening(confidence: float) -> float:
    return WIDENING * NormalDist().inv_cdf(0.5 + confidence / 2)


def unknown(facts: Facts) -> Judged:
    """Nothing is known of any candidate."""
    nothing = np.full((facts.evidence.blocks, len(facts.errors)), np.nan)
    return Judged(nothing, nothing, nothing > 0, np.zeros_like(nothing), nothing[-1])


SUMS = ("present", "q", "q_square", "term", "term_square")
MAXIMA = ("q_largest", "importance_largest")


@dataclass(frozen=True)
class Sea(Rule):
    """`LCB(candidate) - UCB(production) >= margin`, both one-sided empirical Bernstein bounds on all data (SEA).

    Half-width `sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0/Q - 1))` with `L = ln(2 / error)`, where `b` is the reward range
    times the largest weight seen, or `max_weight`. It averages everything since the start: in a world that moves it
    goes on recommending candidates that have become worse.

    Source: Jagerman et al., TOIS 2020; Jagerman's thesis, algorithm 6.
    """

    name: ClassVar[str] = "sea"

    def start(self, candidates: int) -> State:
        return {name: np.zeros(candidates + 1) for name in (*SUMS, *MAXIMA)}

    def judge(self, state: State, facts: Facts) -> tuple[Judged, State]:
        paths = {name: running_sum(state[name], getattr(facts.sums, name)) for name in SUMS}
        paths |= {name: running_max(state[name], getattr(facts.sums, name)) for name in MAXIMA}
        after = {name: path[-1] for name, path in paths.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            value = paths["term"] / paths["q"]
            lift = value[:, 1:] - value[:, :1]
            sampling, range_part = self._widths(paths, value, facts)
            lower = lift - sampling - range_part
            more = _more(lift[-1] - facts.margin, sampling[-1], range_part[-1]) * paths["present"][-1, 1:]
        return Judged(lift, lower, lower >= facts.margin, paths["present"][:, 1:], more), after

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
    bounded: ClassVar[bool] = False

    def _widths(self, paths: State, value: Array, facts: Facts) -> tuple[Array, Array]:
        nothing = np.zeros((len(value), len(facts.errors)))
        return nothing, nothing


def _more(gap: Array, sampling: Array, range_part: Array) -> Array:
    """By how many times the present events a gap is reached, less 1: `gap f = sampling sqrt(f) + range_part`."""
    root = (sampling + np.sqrt(sampling**2 + 4.0 * np.maximum(gap, 0.0) * range_part)) / (2.0 * gap)
    return np.where(gap > 0, np.maximum(root**2 - 1.0, 0.0), np.inf)
