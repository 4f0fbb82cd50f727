"""Learn rankers from clicks: each block of pages is ranked first, and then learned from."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.events import Fault
from streameval.events.action_sets import Index
from streameval.events.rankings import Rankings
from streameval.ope.learning.adam import LinearPolicy, drawn
from streameval.ope.policies.base import Answer, Log

Loss: TypeAlias = Literal["hinge", "dcg"]
NO_FEATURES = Fault("missing_field", "features: missing, or another number of them")


class ClickedPages(NamedTuple):
    """Hold the items of pages, laid end to end.

    Attributes:
        features: [rows, d]
        starts: the first row of each page [pages]
        sizes: the number of items of each page [pages]
        click: the weight of the click on the item, 0 without one. With noise items without a click have one too [rows]
        weight: the weight of each page [pages]
    """

    features: Array
    starts: Index
    sizes: Index
    click: Array
    weight: Array

    def select(self, first: int, last: int) -> ClickedPages:
        """Return the pages from `first` to before `last`, one or more."""
        pages, start = slice(first, last), self.starts[first]
        rows = slice(start, self.starts[last - 1] + self.sizes[last - 1])
        starts = self.starts[pages] - start
        return ClickedPages(self.features[rows], starts, self.sizes[pages], self.click[rows], self.weight[pages])

    def scores(self, weights: Array) -> Array:
        """Return the scores [rows], each by its features alone, so that equal items have equal scores."""
        return np.asarray((self.features * weights).sum(axis=1))

    def ranks(self, scores: Array) -> Array:
        """Return the ranks by score on each page, from 1. Equal scores keep the order of production."""
        order, ranks = np.lexsort((-scores, self.owner)), np.empty(len(scores))
        ranks[order] = np.arange(1.0, len(scores) + 1) - np.repeat(self.starts, self.sizes)
        return ranks

    @property
    def owner(self) -> Index:
        """Return the page of each row."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


@dataclass(frozen=True, config=strict)
class LearnedRanker(LinearPolicy):
    """Rank items by linear scores `s = w . features`, and learn w from clicks by descending a loss block by block.

    Each block of pages is ranked with the weights from before it. Then one step of Adam follows. The clicked item i of
    a page has a rank of at most

    `b(i) = 1 + sum over the other items j shown on the page of max(0, 1 - (s(i) - s(j)))`

    A click counts `c(i) = min(1 / theta, clip)`, with the probability theta of a look at the rank that production gave
    the item. With a learned examination it is what was known before the block. With `noise` each item counts
    `c(i) = (click - beta) min(1 / alpha, clip)`, also without a click, as in `FixedCurve`. The loss of a block of n
    pages is

    * `hinge`: `sum over clicks of c(i) b(i) / n`, for low ranks on average
    * `dcg`: `-sum over clicks of c(i) / log2(1 + b(i)) / n`, for a high DCG. First ranks count most.

    Pages need features for each item shown. Equal scores keep the order of production, so the first block is ranked as
    production ranks it. Without `weights` the first page with features decides their number.

    Args:
        loss: what it descends
        clip: larger weights of clicks count as this one
        l2: mu of the penalty `mu |w|^2` on the weights
        step: the learning rate, in [0, 1]. With 0 the policy stays as it is.
        counter_sample: whether steps use n clicks drawn with probability proportional to the size of `c(i)`, all with
            equal weight, so that no single click makes a long step
        horizon: weights fade by `exp(-pages / horizon)` before each step, so that the policy forgets a world that has
            changed
        weights: the weights to start from, as a policy file has them [1, features]
        average: whether the ranker has the mean of the weights after each step, see `LinearPolicy`

    Source: Joachims, Swaminathan & Schnabel, WSDM 2017, for the hinge loss; Agarwal et al., SIGIR 2019, for the bound
    of DCG; Jagerman's thesis, ch. 2 and 3, for clipping and for the sampling.
    """

    loss: Annotated[Loss, Field(description="what it descends: the bound of the rank, or of DCG")] = "hinge"
    clip: Annotated[PositiveFloat | None, Field(description="the largest weight of a click")] = None
    l2: Annotated[NonNegativeFloat, Field(description="the penalty on the squares of the weights")] = 0.0
    step: Annotated[float, Field(ge=0, le=1, description="the learning rate; 0 stays as it is")] = 0.005
    counter_sample: Annotated[bool, Field(description="steps use sampled clicks in place of weighted ones")] = False
    horizon: Annotated[
        Annotated[float, Field(ge=100)] | None, Field(description="pages after which weights have faded; null: never")
    ] = None
    weights: Annotated[
        tuple[tuple[float, ...], ...], Field(description="the weights to start from; `file` reads them")
    ] = field(default=(), repr=False)
    average: Annotated[bool, Field(description="the mean of the weights after each step")] = False
    kind: Literal["learned_ranker"] = field(default="learned_ranker", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if len(self.weights) > 1 or self.weights == ((),):
            raise ValueError("weights must be one row, of one or more features")

    @property
    def ranks_pages(self) -> bool:
        return True

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """Return the ranks, each with the weights before its block, and the state after the whole blocks."""
        rankings = log.rankings
        assert rankings is not None
        state = self.opened(state, 1, rankings.first_width)
        chosen = rankings.of_width(state["weights"].shape[1])
        pages = self._pages(log, rankings, chosen, state["weights"].shape[1])
        places, ranks = np.append(0, np.cumsum(chosen)), [np.empty(0)]
        for first in range(0, len(chosen), log.block):
            start, end = places[first], places[min(first + log.block, len(chosen))]
            if start < end:
                block_pages = pages.select(start, end)
                scores = block_pages.scores(self.weights_of(state))
                ranks.append(block_pages.ranks(scores))
                if first + log.block <= len(chosen) and self.step:
                    own = block_pages.scores(state["weights"]) if self.average else scores
                    state = self._learn(state, block_pages, own)
        rows = np.full(len(rankings.rank), np.nan)
        rows[np.repeat(chosen, rankings.sizes)] = np.concatenate(ranks)
        return (rows, dict.fromkeys(np.flatnonzero(~chosen).tolist(), NO_FEATURES)), state

    def _pages(self, log: Log, rankings: Rankings, chosen: Mask, width: int) -> ClickedPages:
        """Return the pages that can be ranked."""
        sizes = rankings.sizes[chosen]
        click = self._click(rankings, log)[np.repeat(chosen, rankings.sizes)]
        features = rankings.features_of(chosen, width)
        return ClickedPages(features, np.cumsum(sizes) - sizes, sizes, click, log.weight[chosen])

    def _click(self, rankings: Rankings, log: Log) -> Array:
        """Return the weight of the click on each item, 0 if nothing is known about looks at it [rows]."""
        if log.looks is None or log.signal is None:
            return np.zeros(len(rankings.rank))
        is_known = log.looks > 0
        weight = np.minimum(1 / np.where(is_known, log.looks, 1.0), self.clip or math.inf)
        return np.where(is_known, log.signal * weight, 0.0)

    def _learn(self, state: State, pages: ClickedPages, scores: Array) -> State:
        """Return the state after one step of Adam on these pages."""
        if self.counter_sample and pages.click.any():
            rows = np.flatnonzero(pages.click)
            click = pages.click.copy()
            click[rows] *= drawn(state["steps"] + 1, np.abs(click[rows]) * pages.weight[pages.owner[rows]])
            pages = pages._replace(click=click)
        _, by_score = self.loss_of(pages, scores)
        gradient = -(by_score @ pages.features) - 2.0 * self.l2 * state["weights"]
        return self.climbed(state, gradient, len(pages.sizes), (0.0, 1.0))

    def loss_of(self, pages: ClickedPages, scores: Array) -> tuple[float, Array]:
        """Return the loss of these scores, and its derivative by them [rows]."""
        clicks, owner = np.flatnonzero(pages.click), pages.owner
        if not len(clicks):
            return 0.0, np.zeros(len(scores))
        page = owner[clicks]
        sizes, ends = pages.sizes[page], np.cumsum(pages.sizes[page])
        others = np.arange(ends[-1]) + np.repeat(pages.starts[page] - (ends - sizes), sizes)
        margins = 1.0 - np.repeat(scores[clicks], sizes) + scores[others]  # of the item and itself: the 1 of the bound
        bound = np.maximum(np.add.reduceat(np.maximum(margins, 0.0), ends - sizes), 1.0)
        weight = pages.click[clicks] * pages.weight[page] / pages.weight.sum()
        loss, by_bound = weight * bound, weight
        if self.loss == "dcg":
            logarithm = np.log2(1.0 + bound)
            loss, by_bound = -weight / logarithm, weight / (math.log(2.0) * (1.0 + bound) * logarithm**2)
        by_pair = np.where(margins > 0, np.repeat(by_bound, sizes), 0.0)
        by_score = np.bincount(others, by_pair, len(scores)).astype(float)
        by_score[clicks] -= np.add.reduceat(by_pair, ends - sizes)
        return float(loss.sum()), by_score
