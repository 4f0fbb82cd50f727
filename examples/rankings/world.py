"""Simulate queries with graded documents, users who click, and rankers, one of them in production."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from streameval import EventBatch

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

DATA = Path(__file__).parent / "data"
FEATURES, CUT = 300, 10
CLICKS = {
    "perfect": (0.0, 0.2, 0.4, 0.8, 1.0),
    "position-biased": (0.1, 0.1, 0.1, 1.0, 1.0),
    "near random": (0.4, 0.45, 0.5, 0.55, 0.6),
}
"""Probability of a click on a document of each grade if the user looks at it: Jagerman's thesis, Table 4.3."""


@dataclass(frozen=True)
class Queries:
    """Hold the documents of queries, laid end to end.

    Args:
        features: Features of the documents, [documents, 300].
        grade: Grades from 0 to 4, [documents].
        start: Query i owns the documents `start[i]:start[i + 1]`, [queries + 1].
    """

    features: Array
    grade: Integers
    start: Integers

    @classmethod
    def read(cls, folder: Path = DATA) -> Queries:
        """Read the data, or other data in the same form.

        Args:
            folder: Has `rank.train.gz` in svmlight form, and the numbers of documents in `rank.train.query`.
        """
        with gzip.open(folder / "rank.train.gz", "rt") as lines:
            documents = [line.split() for line in lines]
        features = np.zeros((len(documents), FEATURES))
        for row, (_, *cells) in enumerate(documents):
            for cell in cells:
                column, number = cell.split(":")
                features[row, int(column) - 1] = float(number)
        sizes = np.loadtxt(folder / "rank.train.query", dtype=np.int64)
        return cls(features, np.array([int(grade) for grade, *_ in documents]), np.concatenate([[0], np.cumsum(sizes)]))

    def part(self, first: int, step: int) -> Queries:
        """Return every `step`-th query, beginning with `first`."""
        return self.only(np.isin(self.owner, np.arange(first, self.count, step)))

    def only(self, kept: NDArray[np.bool_]) -> Queries:
        """Return these documents, and the queries that have any."""
        sizes = np.bincount(self.owner[kept], minlength=self.count)
        start = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        return Queries(self.features[kept], self.grade[kept], start)

    @property
    def count(self) -> int:
        """Return the number of queries."""
        return len(self.start) - 1

    @cached_property
    def owner(self) -> Integers:
        """Return the query of each document."""
        return np.repeat(np.arange(self.count), np.diff(self.start))

    def ranks(self, weights: Array) -> Integers:
        """Return the rank of each document in the order of a linear ranker, from 1."""
        order = np.lexsort((-(self.features @ weights), self.owner))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order)) - self.start[self.owner] + 1
        return ranks

    def value(self, ranks: Integers, attractive: Array) -> float:
        """Return the expected DCG at 10 of a page if users looked at every rank, averaged over queries."""
        return float((attractive * np.where(ranks <= CUT, 1 / np.log2(1.0 + ranks), 0.0)).sum()) / self.count


@dataclass(frozen=True)
class Traffic:
    """Simulate users of production. They look at rank k with probability `k ** -eta`, and click by grade.

    Args:
        queries: Queries that users ask.
        production: Ranks of the documents in production.
        attractive: Probability of a click on each document if a user looks at it.
        eta: Exponent of the probability of a look.
    """

    queries: Queries
    production: Integers
    attractive: Array
    eta: float = 1.0

    def clicks(self, pages: int, random: np.random.Generator) -> tuple[Integers, Array]:
        """Return the query of each page, and its clicks by rank of production, [pages, longest].

        NaN stands after the last document of a page.
        """
        asked = random.integers(self.queries.count, size=pages)
        shown = ~np.isnan(self._attractive_ranks[asked])
        clicked = random.random(shown.shape) < self._attractive_ranks[asked] * self._looks
        return asked, np.where(shown, clicked, np.nan)

    @cached_property
    def _looks(self) -> Array:
        return np.asarray(np.arange(1.0, np.diff(self.queries.start).max() + 1) ** -self.eta)

    @cached_property
    def _attractive_ranks(self) -> Array:
        return self.rank_table(self.attractive)

    def rank_table(self, values: Array) -> Array:
        """Return values of documents by query and rank of production, [queries, longest].

        NaN stands after the last document of a query.
        """
        table = np.full((self.queries.count, int(np.diff(self.queries.start).max())), np.nan)
        table[self.queries.owner, self.production - 1] = values
        return table

    def batch(self, asked: Integers, clicked: Array, candidates: Mapping[str, Integers]) -> EventBatch:
        """Return the pages as events, with the ranks of candidates."""
        ranks = {
            name: self.rank_table(candidate_ranks.astype(float))[asked] for name, candidate_ranks in candidates.items()
        }
        return EventBatch.from_rankings(clicks=clicked, ranks=ranks)


def trained(queries: Queries, gains: Array, chosen: Sequence[int] | Integers, strength: float = 0.01) -> Array:
    """Train a linear ranker by logistic regression on pairs of documents, and return its weights.

    In each pair of documents of a query with different gains, the first has the larger one. The pair counts as much as
    they differ. If gains are clicks divided by the probabilities of looks, this is the propensity-weighted training of
    Joachims, Swaminathan & Schnabel (WSDM 2017).

    Args:
        queries: Queries with their documents.
        gains: Gain of each document, [documents].
        chosen: Queries to train on.
        strength: Inverse strength of the regularization.
    """
    pairs, weight = [], []
    for query in chosen:
        rows = np.arange(queries.start[query], queries.start[query + 1])
        above, below = np.nonzero(gains[rows][:, None] > gains[rows][None, :])
        pairs.append(queries.features[rows[above]] - queries.features[rows[below]])
        weight.append(gains[rows[above]] - gains[rows[below]])
    difference, counted = np.concatenate(pairs), np.concatenate(weight)
    counted = counted / counted.mean()
    both, label = np.concatenate([difference, -difference]), np.repeat([1, 0], len(difference))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=300)
    model.fit(both, label, sample_weight=np.concatenate([counted, counted]))
    return np.asarray(model.coef_[0])
