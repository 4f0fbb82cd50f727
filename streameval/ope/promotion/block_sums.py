"""Sum up blocks of the events of one reward for promotion."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, split_blocks
from streameval.events.action_sets import Index
from streameval.events.validation import PROPENSITY_TOLERANCE
from streameval.ope.evidence.evidence import Evidence

ROUNDING_FACTOR = 2.0
"""Factor of the tolerance beyond which a difference of sums cannot be rounding alone."""


class BlockSums(Struct, frozen=True, eq=False):
    """Hold sums and maxima over whole blocks of evidence, all [blocks, policies].

    `q` is the averaging weight, 0 for missing events, `w` the importance weight and `r` the reward.

    Attributes:
        present: the number of events
        q: sums of `q`
        q_square: sums of `q^2`
        q_largest: the largest `q`
        unsupported: for rankings, sums of `q` times the unsupported share
        weight: sums of `q w`
        weight_square: sums of `(q w)^2`
        weight_largest: the largest `q |w|`
        importance_largest: the largest `|w|` or `heaviest`
        importance_smallest: the smallest `w`, negative for slates only
        term: sums of `q w r`
        term_square: sums of `q (w r)^2`
        term_size: sums of `q |w r|`
        term_largest: the largest `q |w r|`
    """

    present: Array
    q: Array
    q_square: Array
    q_largest: Array
    unsupported: Array
    weight: Array
    weight_square: Array
    weight_largest: Array
    importance_largest: Array
    importance_smallest: Array
    term: Array
    term_square: Array
    term_size: Array
    term_largest: Array

    @classmethod
    def from_evidence(cls, evidence: Evidence) -> BlockSums:
        """Sum up whole blocks.

        >>> evidence = Evidence.from_numbers(importance_weight=[[2.0], [0.5]], reward=[1.0, -1.0], block=2)
        >>> sums = BlockSums.from_evidence(evidence)
        >>> [float(column[0, 0]) for column in (sums.weight, sums.weight_largest, sums.term, sums.term_size)]
        [2.5, 2.0, 1.5, 2.5]
        """
        count = evidence.blocks
        q = split_blocks(evidence.sample_weight, count)
        w = split_blocks(evidence.importance_weight, count)
        wr = split_blocks(evidence.weighted_reward, count)
        ones = np.ones(q.shape[-1])
        if evidence.counts_once:
            qw, qwr, present = w, wr, w
            events = np.full(q.shape[:2], float(q.shape[-1]))
            q_columns = events, events, events, np.ones(q.shape[:2])
        else:
            qw, qwr, present = q * w, q * wr, w * (q > 0)
            q_columns = np.count_nonzero(q, axis=-1).astype(float), q @ ones, _products(q, q), q.max(axis=-1)
        lowest = present.min(axis=-1)
        largest = np.maximum(present.max(axis=-1), -lowest)
        heaviest = largest if evidence.heaviest is None else split_blocks(evidence.heaviest, count).max(axis=-1)
        size = np.abs(qwr) if qwr.size and qwr.min() < 0 else qwr
        total = qwr @ ones
        unsupported = np.zeros(q.shape[:2])
        if evidence.clicks is not None:
            unsupported = _products(q, split_blocks(evidence.clicks.unsupported_gain, count))
        return cls(
            *q_columns,
            unsupported=unsupported,
            weight=qw @ ones,
            weight_square=_products(qw, qw),
            weight_largest=largest if qw is w else np.abs(qw).max(axis=-1),
            importance_largest=heaviest,
            importance_smallest=lowest,
            term=total,
            term_square=_products(qwr, wr),
            term_size=total if size is qwr else size @ ones,
            term_largest=size.max(axis=-1),
        )


def differing(evidence: Evidence, sums: BlockSums) -> Mask:
    """Tell whether each candidate differs from production in each block [blocks, candidates].

    A difference is one of the weighted reward of an event that both have, larger than rounding. If both have all
    events, the sums of most blocks show it already.
    """
    term, size, present = sums.term, sums.term_size[:, :1], sums.present
    differs = np.abs(term[:, 1:] - term[:, :1]) > ROUNDING_FACTOR * PROPENSITY_TOLERANCE * size
    differs &= (present[:, 1:] == evidence.block) & (present[:, :1] == evidence.block)
    blocks, candidates = np.nonzero(~differs)
    if len(blocks):
        differs[blocks, candidates] = _differ(evidence, blocks, 1 + candidates)
    return differs


def _differ(evidence: Evidence, blocks: Index, policies: Index) -> Mask:
    """Tell whether these policies differ from production in these blocks [pairs of a block and a policy]."""
    weight, term = (
        split_blocks(column, evidence.blocks) for column in (evidence.sample_weight, evidence.weighted_reward)
    )
    production = term[blocks, 0]
    both = (weight[blocks, 0] > 0) & (weight[blocks, policies] > 0)
    is_different = both & (np.abs(term[blocks, policies] - production) > PROPENSITY_TOLERANCE * np.abs(production))
    return np.asarray(is_different.any(axis=1))


def _products(one: Array, other: Array) -> Array:
    """Sum products over the last axis."""
    return np.asarray(np.einsum("bpn,bpn->bp", one, other))
