"""Sums over blocks of the events of one reward, by which promotion judges."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, per_block
from streameval.events.action_sets import Index
from streameval.events.validation import PROPENSITY_TOLERANCE
from streameval.ope.evidence.evidence import Evidence

SURE = 2.0
"""Sums that differ by this many times the tolerance cannot differ by rounding alone."""


class BlockSums(Struct, frozen=True, eq=False):
    """Sums and maxima over whole blocks of evidence, all [blocks, policies].

    With the averaging weight `q`, 0 for missing events, and the importance weight `w`: the number of events
    (`present`); sums of `q`, `q^2`, `q w` (`weight`), `(q w)^2`, `q w r` (`term`), `q (w r)^2` (`term_square`),
    `q |w r|` (`term_size`) and, of rankings, of `q` times the unsupported share (`unsupported`); the largest `q`,
    `q |w|` (`weight_largest`), `|w|` or `heaviest` (`importance_largest`) and `q |w r|`; the smallest `w`
    (`importance_smallest`), which is negative for slates only.
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
    def nothing(cls, policies: int) -> BlockSums:
        """Of no blocks."""
        return cls(*[np.zeros((0, policies)) for _ in cls.__struct_fields__])

    @classmethod
    def of(cls, evidence: Evidence) -> BlockSums:
        """From whole blocks.

        >>> sums = BlockSums.of(Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, -1.0], block=2))
        >>> [float(each[0, 0]) for each in (sums.weight, sums.weight_largest, sums.term, sums.term_size)]
        [2.5, 2.0, 1.5, 2.5]
        """
        count = evidence.blocks
        q = per_block(evidence.sample_weight, count)
        w = per_block(evidence.importance_weight, count)
        wr = per_block(evidence.weighted_reward, count)
        each = np.ones(q.shape[-1])
        if evidence.counts_once:
            qw, qwr, present = w, wr, w
            events = np.full(q.shape[:2], float(q.shape[-1]))
            of_q = events, events, events, np.ones(q.shape[:2])
        else:
            qw, qwr, present = q * w, q * wr, w * (q > 0)
            of_q = np.count_nonzero(q, axis=-1).astype(float), q @ each, _products(q, q), q.max(axis=-1)
        lowest = present.min(axis=-1)
        largest = np.maximum(present.max(axis=-1), -lowest)
        heaviest = largest if evidence.heaviest is None else per_block(evidence.heaviest, count).max(axis=-1)
        size = np.abs(qwr) if qwr.size and qwr.min() < 0 else qwr
        total = qwr @ each
        unsupported = np.zeros(q.shape[:2])
        if evidence.clicks is not None:
            unsupported = _products(q, per_block(evidence.clicks.unsupported_gain, count))
        return cls(
            *of_q,
            unsupported=unsupported,
            weight=qw @ each,
            weight_square=_products(qw, qw),
            weight_largest=largest if qw is w else np.abs(qw).max(axis=-1),
            importance_largest=heaviest,
            importance_smallest=lowest,
            term=total,
            term_square=_products(qwr, wr),
            term_size=total if size is qwr else size @ each,
            term_largest=size.max(axis=-1),
        )


def differing(evidence: Evidence, sums: BlockSums) -> Mask:
    """Whether each candidate differs from production in each block, [blocks, candidates].

    A difference is one of the weighted reward of an event that both have, larger than rounding. `sums`: of the
    evidence. Where both have all events, the sums of most blocks show it already.
    """
    term, size, present = sums.term, sums.term_size[:, :1], sums.present
    found = np.abs(term[:, 1:] - term[:, :1]) > SURE * PROPENSITY_TOLERANCE * size
    found &= (present[:, 1:] == evidence.block) & (present[:, :1] == evidence.block)
    blocks, candidates = np.nonzero(~found)
    if len(blocks):
        found[blocks, candidates] = _differ(evidence, blocks, 1 + candidates)
    return found


def _differ(evidence: Evidence, blocks: Index, policies: Index) -> Mask:
    """Whether these policies differ from production in these blocks, [pairs of a block and a policy]."""
    weight, term = (per_block(each, evidence.blocks) for each in (evidence.sample_weight, evidence.weighted_reward))
    production = term[blocks, 0]
    both = (weight[blocks, 0] > 0) & (weight[blocks, policies] > 0)
    apart = both & (np.abs(term[blocks, policies] - production) > PROPENSITY_TOLERANCE * np.abs(production))
    return np.asarray(apart.any(axis=1))


def _products(one: Array, other: Array) -> Array:
    """Sums over the last axis of the products of both."""
    return np.asarray(np.einsum("bpn,bpn->bp", one, other))
