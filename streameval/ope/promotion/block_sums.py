"""Sums and maxima over the events of each block, of weights and of weighted rewards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, per_block
from streameval.ope.evidence.evidence import Evidence

ROUNDED = 1e-6
"""The relative rounding error allowed in propensities: a logged one can differ from its distribution by this much."""


class BlockSums(NamedTuple):
    """Sums and maxima over each block, all [blocks, policies]; `q` is the averaging weight, 0 for missing events."""

    present: Array  # events with q > 0
    q: Array
    q_square: Array
    q_largest: Array
    weight: Array  # sum q w
    weight_square: Array  # sum (q w)^2
    weight_largest: Array  # max q |w|
    importance_largest: Array  # max |w|
    importance_smallest: Array  # min w, negative for slates only
    term: Array  # sum q w r
    term_square: Array  # sum q (w r)^2
    term_size: Array  # sum q |w r|
    term_largest: Array  # max q |w r|

    @classmethod
    def of(cls, evidence: Evidence) -> BlockSums:
        """The sums of whole blocks of evidence.

        >>> sums = BlockSums.of(Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, -1.0], block=2))
        >>> [float(each[0, 0]) for each in (sums.weight, sums.weight_largest, sums.term, sums.term_size)]
        [2.5, 2.0, 1.5, 2.5]
        """
        count = evidence.blocks
        q = per_block(evidence.sample_weight, count)
        w = per_block(evidence.importance_weight, count)
        wr = per_block(evidence.weighted_reward, count)
        each, ones = np.ones(q.shape[-1]), np.ones(q.shape[:2])
        if (q == 1.0).all():
            qw, qwr, present = w, wr, w
            count_of = sum_of = square_of = ones * q.shape[-1]
            most_of = ones
        else:
            qw, qwr, present = q * w, q * wr, w * (q > 0)
            count_of, sum_of = np.count_nonzero(q, axis=-1).astype(float), q @ each
            square_of, most_of = _products(q, q), q.max(axis=-1)
        lowest = present.min(axis=-1)
        largest = np.maximum(present.max(axis=-1), -lowest)
        size = np.abs(qwr) if qwr.size and qwr.min() < 0 else qwr
        total = qwr @ each
        return cls(
            count_of,
            sum_of,
            square_of,
            most_of,
            qw @ each,
            _products(qw, qw),
            largest if qw is w else np.abs(qw).max(axis=-1),
            largest,
            lowest,
            total,
            _products(qwr, wr),
            total if size is qwr else size @ each,
            size.max(axis=-1),
        )


def differing(evidence: Evidence, before: Mask) -> Mask:
    """Whether each candidate has differed from production by the end of each block, [blocks, candidates].

    A difference is one of the weighted reward of an event that both have, larger than rounding. `before` [candidates]:
    whether it differed before.
    """
    path = np.repeat(before[None], evidence.blocks, axis=0)
    new = np.flatnonzero(~before)
    if len(new):
        both = (evidence.sample_weight[:, :1] > 0) & (evidence.sample_weight[:, 1 + new] > 0)
        production, terms = evidence.weighted_reward[:, :1], evidence.weighted_reward[:, 1 + new]
        apart = both & (np.abs(terms - production) > ROUNDED * np.abs(production))
        path[:, new] = np.logical_or.accumulate(apart.reshape(evidence.blocks, -1, len(new)).any(axis=1), axis=0)
    return path


def _products(one: Array, other: Array) -> Array:
    """Sums over the last axis of the products of both."""
    return np.asarray(np.einsum("bpn,bpn->bp", one, other))


def running_sum(state: Array, steps: Array) -> Array:
    """`state` plus the steps so far, after each step; the result does not depend on how the steps are cut.

    >>> running_sum(np.array([10.0]), np.array([[1.0], [2.0]])).ravel()
    array([11., 13.])
    """
    return np.asarray(np.cumsum(np.concatenate([state[None], steps]), axis=0)[1:])


def running_max(state: Array, steps: Array) -> Array:
    """The largest of `state` and the steps so far, after each step."""
    return np.asarray(np.maximum.accumulate(np.concatenate([state[None], steps]))[1:])
