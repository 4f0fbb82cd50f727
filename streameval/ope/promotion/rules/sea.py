"""Provide the rules `sea` and `bsea` of the literature, on all data since the start, for comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from msgspec import Struct
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, running_max, running_sum
from streameval.common.component import strict
from streameval.common.text import significant
from streameval.ope.core import Lift
from streameval.ope.promotion.rules.base import UNREACHABLE, Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.sums import RewardSums

SEA_SUMS = ("present", "q", "q_square", "term", "term_square")
SEA_MAXIMA = ("q_largest", "importance_largest")


class SeaState(Struct, frozen=True, eq=False):
    """Hold sums and maxima since the start [P], see `BlockSums`."""

    present: Array
    q: Array
    q_square: Array
    term: Array
    term_square: Array
    q_largest: Array
    importance_largest: Array


@dataclass(frozen=True, kw_only=True, config=strict)
class AllData(PromotionRule):
    """Require that the difference of mean weighted rewards, minus both half-widths, is at least the margin."""

    covers: ClassVar[Literal["period", "present", "average"]] = "average"

    def start(self, candidates: int) -> SeaState:
        return SeaState(**{name: np.zeros(candidates + 1) for name in (*SEA_SUMS, *SEA_MAXIMA)})

    def judge(self, memory: SeaState, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, SeaState]:
        paths = {name: running_sum(getattr(memory, name), getattr(sums.sums, name)) for name in SEA_SUMS}
        paths |= {name: running_max(getattr(memory, name), getattr(sums.sums, name)) for name in SEA_MAXIMA}
        with np.errstate(divide="ignore", invalid="ignore"):
            sampling, range_part = self.half_widths(paths, context)
            value = paths["term"] / paths["q"]
            difference = value[:, 1:] - value[:, :1]
            lower = difference - sampling - range_part
            times = _times(difference[-1] - context.margin, sampling[-1], range_part[-1])
            more = np.where(times < 0, UNREACHABLE, paths["present"][-1, 1:] * np.maximum(times - 1.0, 0.0))
        enter = lower >= context.margin
        judgement = Judgement(difference, lower, enter, enter, paths["present"][:, 1:], more)
        return judgement, SeaState(**{name: path[-1] for name, path in paths.items()})

    def half_widths(self, paths: Mapping[str, Array], context: RuleContext) -> tuple[Array, Array]:
        """Return the parts of both half-widths together that shrink like 1/sqrt(n) and like 1/n [blocks, candidates].

        Args:
            paths: the sums and maxima since the start, after each block [blocks, policies]
            context: the settings
        """
        nothing = np.zeros_like(paths["q"][:, 1:])
        return nothing, nothing


@dataclass(frozen=True, kw_only=True, config=strict)
class Bsea(AllData):
    """Require that the mean of all weighted rewards is at least production's plus the margin: `sea` without bounds.

    It promotes on noise and serves as a comparison.

    Source: Jagerman et al., TOIS 2020.
    """

    kind: Literal["bsea"] = field(default="bsea", repr=False)

    def lower(self, memory: SeaState, last: Mapping[str, Array], context: RuleContext) -> Array:
        return np.full(len(context.errors), np.nan)

    def reason(self, last: Mapping[str, float], margin: float) -> str:
        lift = last["lift"]
        if math.isnan(lift):
            return "the lift is not known yet"
        relation = "over" if lift > margin else "at" if lift == margin else "under"
        return f"lift {significant(lift)} {relation} margin {significant(margin)}"


@dataclass(frozen=True, kw_only=True, config=strict)
class Sea(AllData):
    """Require `LCB(candidate) - UCB(production) >= margin` with one-sided empirical Bernstein bounds on all data (SEA).

    The half-width is `sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0/Q - 1))` with `L = ln(2 / error)`, where `b` is the reward
    range times the largest weight. A candidate below the margin passes with a probability of at most twice the error at
    any one time. Nothing is promised for all times together. It averages everything since the start. In a world that
    moves it keeps recommending candidates that have become worse.

    Args:
        max_weight: the largest possible weight, None for the largest seen

    Source: Jagerman et al., TOIS 2020; Jagerman's thesis, algorithm 6 and theorem 4.4.1.
    """

    kind: Literal["sea"] = field(default="sea", repr=False)
    max_weight: float | None = Field(
        default=None,
        gt=0,
        description="the upper limit of the importance weights; null: the largest seen",
    )

    def half_widths(self, paths: Mapping[str, Array], context: RuleContext) -> tuple[Array, Array]:
        weight, (low, high) = paths["q"], context.reward_range
        largest_seen = paths["importance_largest"]
        largest = largest_seen.copy() if self.max_weight is None else np.full(largest_seen.shape, self.max_weight)
        if context.logged:
            largest[:, 0] = 1.0
        value = paths["term"] / weight
        is_ranking = context.largest_loss is not None  # for rankings a weight is a value
        size = largest * (1.0 if is_ranking else max(high, 0.0) - min(low, 0.0))
        events = weight**2 / paths["q_square"]
        variance = np.maximum(paths["term_square"] / weight - value**2, 0.0) * events / (events - 1.0)
        spread, others = np.sqrt(2.0 * variance / events), 7.0 * size / (3.0 * (weight / paths["q_largest"] - 1.0))
        log_term = np.log(2.0 / context.errors)
        return np.sqrt(log_term) * (spread[:, 1:] + spread[:, :1]), log_term * (others[:, 1:] + others[:, :1])


def _times(gap: Array, sampling: Array, range_part: Array) -> Array:
    """Return the multiple f of the current events with `gap f = sampling sqrt(f) + range_part`, or `UNREACHABLE`."""
    root = (sampling + np.sqrt(sampling**2 + 4.0 * np.maximum(gap, 0.0) * range_part)) / (2.0 * gap)
    return np.where(gap <= 0, UNREACHABLE, root**2)
