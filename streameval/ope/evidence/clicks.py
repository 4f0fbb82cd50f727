"""Value clicks on rankings under each policy, as if the user had looked at every rank.

A user looks at rank k with probability `theta_k`, and clicks an examined item with a probability that depends on the
item alone: its attractiveness. For a metric that is a sum over items, a click counts the gain of the item's rank under
the policy, divided by the probability of a look at the rank that production gave it. The expectation of that sum is the
metric of the policy, whatever the attractive items are.

The mean of these weights is not 1, so nothing may rely on it.

Source: Joachims, Swaminathan & Schnabel, WSDM 2017; Swaminathan's thesis 2017, ch. 4; Jagerman's thesis, ch. 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask
from streameval.common.component import Component, Configurable, kind_as_mapping, strict
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.rankings import MAX_ITEMS, MAX_RANK, Rankings
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.examination import AnyExamination, PowerCurve
from streameval.ope.evidence.windows import Windows
from streameval.ope.policies.logged import LOGGING

MAX_RANKS = 10_000
"""Largest rank with a gain of its own. Later ranks count as this one when gains are added up."""

Cut: TypeAlias = Annotated[int, Field(ge=1, le=MAX_RANKS, description="the number of ranks that count")]


@dataclass(frozen=True, kw_only=True, config=strict)
class RankingMetric(Component):
    """Sum over the attractive items a gain that depends on the rank.

    Attributes:
        less_is_better: whether gains are negative, so that a lift is positive if a policy is better than production.
            Reports show values without the sign.
    """

    less_is_better: ClassVar[bool] = False

    def gain(self, rank: Array) -> Array:
        """Return the gain of a rank, counted from 1. An infinite rank is below the cut."""
        raise NotImplementedError

    @property
    def last(self) -> int:
        """Return the last rank with another gain than an item that is not shown."""
        return MAX_RANKS

    @property
    def least(self) -> float:
        """Return the gain of an item that is not shown."""
        return float(self.gain(np.array(np.inf)))

    @property
    def gains(self) -> Array:
        """Return the gain of each rank minus the gain of an item that is not shown [last]."""
        return self.gain(np.arange(1.0, self.last + 1)) - self.least

    @property
    def largest(self) -> float:
        """Return the largest absolute value of a page."""
        return float(self.gains.sum())

    @property
    def value_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value of a page."""
        return (-self.largest, 0.0) if self.less_is_better else (0.0, self.largest)


@dataclass(frozen=True, config=strict)
class DCG(RankingMetric):
    """Sum discounted gains, `1 / log2(1 + rank)` up to the rank `at` (discounted cumulative gain).

    >>> DCG(at=3).gain(np.array([1.0, 3.0, 4.0])), round(DCG(at=3).largest, 3)
    (array([1. , 0.5, 0. ]), 2.131)

    Source: Jarvelin & Kekalainen, TOIS 2002.
    """

    at: Cut = 10
    kind: Literal["dcg"] = field(default="dcg", kw_only=True, repr=False)

    @property
    def last(self) -> int:
        return self.at

    def gain(self, rank: Array) -> Array:
        return np.where(rank <= self.at, 1.0 / np.log2(1.0 + rank), 0.0)


@dataclass(frozen=True, config=strict)
class Precision(RankingMetric):
    """Measure the share of attractive items among the first `at` ones: `1 / at` up to that rank.

    >>> Precision(at=4).gain(np.array([1.0, 4.0, 5.0]))
    array([0.25, 0.25, 0.  ])
    """

    at: Cut = 10
    kind: Literal["precision"] = field(default="precision", kw_only=True, repr=False)

    @property
    def last(self) -> int:
        return self.at

    def gain(self, rank: Array) -> Array:
        return np.where(rank <= self.at, 1.0 / self.at, 0.0)


@dataclass(frozen=True, config=strict)
class RankBiasedPrecision(RankingMetric):
    """Sum gains `(1 - persistence) persistence^(rank - 1)`, for a user who continues with this probability.

    >>> RankBiasedPrecision(persistence=0.5).gain(np.array([1.0, 2.0, np.inf]))
    array([0.5 , 0.25, 0.  ])

    Source: Moffat & Zobel, TOIS 2008.
    """

    persistence: Annotated[float, Field(gt=0, lt=1, description="the probability of a look at the next rank")] = 0.8
    kind: Literal["rank_biased_precision"] = field(default="rank_biased_precision", kw_only=True, repr=False)

    def gain(self, rank: Array) -> Array:
        return np.asarray((1.0 - self.persistence) * self.persistence ** (rank - 1.0))


@dataclass(frozen=True, config=strict)
class AverageRelevancePosition(RankingMetric):
    """Sum the ranks of the attractive items. Lower is better. `click_snips` estimates their mean.

    Items below the rank `at` count as `at + 1`. Reports show values as positive numbers, and a positive lift if a
    policy ranks attractive items higher than production.

    >>> AverageRelevancePosition(at=20).gain(np.array([1.0, 7.0, np.inf]))
    array([ -1.,  -7., -21.])
    """

    less_is_better: ClassVar[bool] = True
    at: Cut = 100
    kind: Literal["average_relevance_position"] = field(default="average_relevance_position", kw_only=True, repr=False)

    @property
    def last(self) -> int:
        return self.at

    @property
    def largest(self) -> float:
        return float(self.at * (self.at + 1))

    def gain(self, rank: Array) -> Array:
        return np.asarray(-np.minimum(rank, self.at + 1.0))


@dataclass(frozen=True, config=strict)
class ClickedReciprocalRank(RankingMetric):
    """Sum `1 / rank` over all attractive items up to the rank `at`. `click_snips` estimates their mean.

    With one attractive item on each page it is the mean reciprocal rank. With several, it is not: that one counts the
    first item alone.

    >>> ClickedReciprocalRank(at=3).gain(np.array([1.0, 3.0, 4.0])).round(3)
    array([1.   , 0.333, 0.   ])

    Source: Jagerman's thesis, section 6.5.2.
    """

    at: Cut = 100
    kind: Literal["clicked_reciprocal_rank"] = field(default="clicked_reciprocal_rank", kw_only=True, repr=False)

    @property
    def last(self) -> int:
        return self.at

    def gain(self, rank: Array) -> Array:
        return np.where(rank <= self.at, 1.0 / rank, 0.0)


NO_SUMS = {
    "mrr": "the reciprocal rank of the first attractive item depends on all items above it. "
    "clicked_reciprocal_rank adds up all clicked items",
    "err": "the gain of an item depends on all items above it",
    "map": "the precision at the rank of an item depends on all items above it",
    "ndcg": "the ideal order of a page is known only if the attractiveness of all its items is",
}


def _refuse(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else value
    if kind in NO_SUMS:
        raise ValueError(f"{kind} is not a sum over items, so that clicks cannot estimate it: {NO_SUMS[kind]}")
    return kind_as_mapping(value)


AnyMetric: TypeAlias = Annotated[
    Annotated[
        DCG | Precision | RankBiasedPrecision | AverageRelevancePosition | ClickedReciprocalRank,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_refuse),
]


@plain_dataclass(frozen=True)
class Clicks:
    """Hold the items of n pages for P policies, as rows laid end to end: the clicked ones, or all that were shown.

    Attributes:
        offsets: page i owns the rows `offsets[i]:offsets[i + 1]` [n + 1]
        rank: the rank at which production showed the item [rows]
        clicked: whether the item was clicked [rows]
        probability: the probability of a look at that rank [rows]. With noise, the probability of a click on an
            attractive item there, minus the noise
        noise: the probability that an item that is not attractive is clicked at that rank [rows], or 0
        gain: the gain of the rank under the policy, 0 if unknown [P, rows]
        below: whether the policy shows the item below the cut of the metric [P, rows]
        present: whether a page has the policy, and the probabilities of looks at its clicks are known [n, P]
        whole: whether the policy gives its whole list [n, P]
        unsupported: the share of its gain at ranks with items that production did not show, NaN if unknown [n, P]
        relevance: the reward model's prediction of the attractiveness, 0 without one [rows]
        windows: how often production shows the items near the ranks of the policies, None unless an estimator needs it
    """

    offsets: Index
    rank: Array
    clicked: Mask
    probability: Array
    noise: Array | float
    gain: Array
    below: Mask
    present: Mask
    whole: Mask
    unsupported: Array
    relevance: Array
    windows: Windows | None = None

    @cached_property
    def unsupported_gain(self) -> Array:
        """Return `unsupported`, 0 if it is unknown."""
        return np.nan_to_num(self.unsupported)

    @cached_property
    def signal(self) -> Array | Mask:
        """Return 1 for a click and 0 without one, minus the noise [rows]."""
        return self.clicked if isinstance(self.noise, float) else self.clicked - self.noise

    @cached_property
    def weight(self) -> Array:
        """Return `1 / theta` [rows], infinite if nobody looks."""
        with np.errstate(divide="ignore"):
            return 1.0 / self.probability

    def clicked_gain(self, beta: Array | float = 1.0) -> Array:
        """Return the sum over clicked items of their gains, each times `beta / theta` [n, P]."""
        return self.sum(self.gain * self._weight(beta))

    def gain_size(self) -> Array:
        """Return a limit of the absolute `clicked_gain`, which noise may make negative, and of any window's [n, P]."""
        size = self.sum(np.abs(self.gain * self._weight()))
        if self.windows is None:
            return size
        return np.maximum(size, self.sum(np.abs(self._counted(self.windows.largest_weight()))))

    def window_gain(self, window: float) -> Array:
        """Return the sum over clicked items of their gains, each times its weight in `Windows` [n, P]."""
        assert self.windows is not None
        return self.sum(self._counted(self.windows.weight(window)))

    def _counted(self, weight: Array) -> Array:
        counts = (self.gain != 0) & (self.signal != 0) & np.isfinite(weight)
        return np.where(counts, self.gain * self.signal * np.where(counts, weight, 0.0), 0.0)

    def completeness(self, needs: Requirements) -> Mask:
        """Tell whether a page has all that is required, for each policy [n, P]."""
        is_complete = np.ones_like(self.whole) if needs == {"window"} else self.whole
        if "window" in needs and self.windows is not None:
            is_complete = is_complete & self.windows.known[:, None]
        return is_complete & ("window" not in needs or self.windows is not None)

    def clicked_weight(self) -> Array:
        """Return the sum over clicked items of `1 / theta` [n, P]."""
        return self.sum(np.broadcast_to(self._weight(), self.gain.shape))

    def modelled_gain(self, alpha: Array | float) -> Array:
        """Return the sum over all shown items of their gains, each times `alpha relevance` [n, P]."""
        return self.sum(self.gain * (alpha * self.relevance))

    def _weight(self, beta: Array | float = 1.0) -> Array:
        with np.errstate(invalid="ignore"):
            weight = self.signal * (beta * self.weight)
        return np.where((self.signal != 0) & np.isfinite(weight), weight, 0.0)

    def by_rank(self, ranks: int, sample_weight: Array, blocks: int) -> Array:
        """Return sums of gains and of weights over the clicks of each block at each rank [blocks, P, 2 ranks + 1].

        Ranks beyond the last count as the last. The last sum adds up the sample weights [n, P].
        """
        owner = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        block = np.arange(len(sample_weight)) * blocks // max(1, len(sample_weight))
        index = block[owner] * ranks + np.minimum(self.rank, ranks).astype(np.int64) - 1
        columns = []
        for policy, sample in enumerate(sample_weight.T):
            weight = self._weight() * sample[owner]
            sums = [np.bincount(index, column, blocks * ranks) for column in (weight * self.gain[policy], weight)]
            count = np.bincount(block, sample, blocks)[:, None]
            columns.append(np.concatenate([column.reshape(blocks, ranks) for column in sums] + [count], axis=1))
        return np.stack(columns, axis=1)

    def moved_gains(self, sample_weight: Array, blocks: int) -> Array:
        """Return sums over the clicks of each block, 0 with noise [blocks, P - 1, 2].

        Let `g` be the gain of a clicked item under a policy, and `g_0` under production. The sums are of
        `|g - g_0| / theta` and of `(|g| + |g_0|) / theta`, on the pages that both have.
        """
        rows = np.flatnonzero(self.clicked & np.isfinite(self.weight) & (np.ndim(self.noise) == 0))
        page = np.searchsorted(self.offsets, rows, side="right") - 1
        block = page * blocks // max(1, len(sample_weight))
        own, production = self.gain[1:, rows], self.gain[0, rows]
        weight = self.weight[rows] * sample_weight[page, 1:].T * (sample_weight[page, 0] > 0)
        sizes = weight * np.stack([np.abs(own - production), np.abs(own) + np.abs(production)])
        index = np.arange(2 * len(own))[:, None] * blocks + block
        sums = np.asarray(np.bincount(index.ravel(), sizes.ravel(), 2 * len(own) * blocks), dtype=float)
        return sums.reshape(2, len(own), blocks).T

    def counts(self, rows: Mask, sample_weight: Array) -> Array:
        """Return the number of clicks among these rows [P, rows] or [rows], given the weights of pages [n, P]."""
        clicks = np.atleast_2d(rows & self.clicked)
        if not clicks.any():
            return np.zeros(self.present.shape[1])
        return np.asarray((self.sum(clicks.astype(float)) * sample_weight).sum(axis=0))

    def sum(self, values: Array) -> Array:
        """Sum over the items of each page, [P, rows] to [n, P], contiguous over pages."""
        filled = np.flatnonzero(np.diff(self.offsets))
        sums = np.zeros((len(values), len(self.offsets) - 1))
        if len(filled):
            sums[:, filled] = np.add.reduceat(values, self.offsets[filled], axis=1)
        return sums.T


@dataclass(frozen=True, kw_only=True, config=strict)
class Ranking(metaclass=Configurable):
    """Judge rankings by clicks: with a metric, and the probability that users look at each rank.

    Args:
        metric: the value of a page, by the attractiveness of its items
        examination: how often users look at each rank
        max_items: the number of items that a page may show. Pages with more are rejected as malformed
    """

    metric: Annotated[AnyMetric, Field(description="the value of a page, by the attractiveness of its items")] = DCG()
    examination: Annotated[AnyExamination, Field(description="how often users look at each rank")] = PowerCurve()
    max_items: Annotated[
        int, Field(ge=1, le=MAX_RANK, description="the number of items that a page may show; others are malformed")
    ] = field(default=MAX_ITEMS, repr=False)

    @property
    def largest_loss(self) -> float:
        """Return the largest amount by which production's sum over the clicks of a page can exceed another policy's.

        It is infinite if the probabilities of looks are not fixed beforehand. With noise n, an item without a click
        counts `-n / (1 - n)` times its gain, which adds the most at the candidate's ranks.
        """
        curve, gains = self.examination.curve(self.metric.last), self.metric.gains
        if curve is None:
            return np.inf
        noise = self.examination.noise_at(np.arange(1.0, MAX_RANKS + 1))
        if noise is None:
            return float((gains / curve).sum())
        odds, below = (noise / (1.0 - noise)).max(), noise[: self.metric.last]
        return float((gains * ((1.0 / curve - below) / (1.0 - below) + odds)).sum())

    @property
    def value_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value of a page. With noise, terms may have both signs."""
        low, high = self.metric.value_range
        is_noisy = self.examination.noise_at(np.ones(1)) is not None
        return (min(low, -high), max(high, -low)) if is_noisy else (low, high)

    def clicks(
        self, batch: EventBatch, policies: Sequence[str], curves: Array | None = None, with_windows: bool = False
    ) -> Clicks:
        """Return the evidence of these pages for these policies.

        `curves` are learned before each block [blocks, ranks].
        """
        rankings = batch.rankings
        assert rankings is not None
        columns = [None if policy == LOGGING else batch.policies.index(policy) for policy in policies]
        ranks = np.array([rankings.rank if column is None else rankings.ranks[:, column] for column in columns])
        ones = np.ones(len(batch))
        presence = np.array([ones if column is None else batch.probabilities[:, column] for column in columns])
        lists = np.array([ones if column is None else rankings.list_length[:, column] for column in columns])
        probability = self.examination.probability(rankings)
        clicked = rankings.clicked > 0
        if curves is None:
            lost = np.bincount(rankings.owner[clicked & ~(probability > 0)], minlength=len(batch)) > 0
        else:  # whether a page counts must not depend on its clicks
            blocks, last = np.arange(len(batch)) * len(curves) // max(1, len(batch)), curves.shape[1]
            probability = curves[blocks[rankings.owner], np.minimum(rankings.rank, last).astype(np.int64) - 1]
            unknown = np.concatenate([np.zeros((len(curves), 1)), np.cumsum(np.isnan(curves), axis=1)], axis=1)
            lost = unknown[blocks, np.minimum(rankings.shown, last)] > 0
        whole = (~np.isnan(lists) & (rankings.sizes == rankings.shown)).T
        present, chance = (~np.isnan(presence) & ~lost).T, self.examination.noise_at(rankings.rank)
        noise: Array | float = 0.0
        if chance is not None:  # items without a click count too
            noise, probability, present = probability * chance, probability * (1.0 - chance), present & whole
        windows = None
        if with_windows and rankings.rank_probabilities is not None:
            windows = self._windows(rankings, ranks, columns, probability, curves)
        with np.errstate(invalid="ignore"):
            gain, below = self.metric.gain(ranks), ranks > self.metric.last
        return Clicks(
            offsets=rankings.offsets,
            rank=rankings.rank,
            clicked=clicked,
            probability=probability,
            noise=noise,
            gain=np.where(np.isnan(ranks), 0.0, gain),
            below=below & clicked,
            present=present,
            whole=whole,
            unsupported=self._unsupported(rankings, ranks, columns),
            relevance=np.zeros(len(rankings.rank)),
            windows=windows,
        )

    def _windows(
        self,
        rankings: Rankings,
        ranks: Array,
        columns: Sequence[int | None],
        probability: Array,
        curves: Array | None,
    ) -> Windows | None:
        """Return the windows of these pages, None if the events give the probabilities of looks."""
        pages, tables = len(rankings.shown), rankings.rank_probabilities
        assert tables is not None
        if curves is None:
            widest = int((tables.sizes // np.maximum(rankings.sizes, 1)).max(initial=1))
            curve = self.examination.curve(widest)
            if curve is None:
                return None
            noise = self.examination.noise_at(np.arange(1.0, widest + 1))
            curves = (curve if noise is None else curve * (1.0 - noise))[None]
        curves = curves[np.arange(pages) * len(curves) // max(1, pages)]
        own = np.array([column is None for column in columns])
        return Windows.from_rankings(rankings, np.where(own[:, None], np.nan, ranks), probability, curves)

    def _unsupported(self, rankings: Rankings, ranks: Array, columns: Sequence[int | None]) -> Array:
        """Return the share of each policy's gain at ranks of items that production did not show [n, P].

        It is NaN if unknown.
        """
        reached, shares = np.concatenate([[0.0], np.cumsum(self.metric.gains)]), []
        for row, column in zip(ranks, columns, strict=True):
            if column is None:
                shares.append(np.zeros(len(rankings.shown)))
                continue
            share, listed = 1.0 - rankings.support[:, column], rankings.list_length[:, column]
            if not np.isnan(listed).all():
                gains = np.where(row <= self.metric.last, self.metric.gain(row) - self.metric.least, 0.0)
                supported = np.bincount(rankings.owner, gains, len(rankings.shown))
                largest = reached[np.minimum(np.nan_to_num(listed), self.metric.last).astype(np.int64)]
                with np.errstate(divide="ignore", invalid="ignore"):
                    missing = np.where(largest > 0, 1.0 - supported / largest, 0.0)
                share = np.where(np.isnan(listed), share, np.clip(missing, 0.0, 1.0))
            shares.append(share)
        return np.array(shares).T
