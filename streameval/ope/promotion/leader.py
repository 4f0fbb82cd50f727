"""Compare candidates with each other, and tell which of them the best one beats.

Lifts over production share its error, and candidates share events: two candidates can be compared long before either
is known to be better than production. So the difference of each pair of candidates is summed up over blocks, as

    term_i - term_k - m (weight_i - weight_k)

with sums of `q w r` and `q w` over a block, and the mean reward `m` of production before it. It has the mean of the
lift of i over k, as weights of both have mean 1, and a smaller variance. A block counts if both candidates have all of
its events: an event that one of them lacks would count as an average one, and the other would seem better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array
from streameval.ope.promotion.block_sums import BlockSums
from streameval.ope.report import Contender

MIXTURE = 100.0
"""Blocks after which the bound is tightest, apart from a factor: the variance of the mixture is its reciprocal."""
MOST_CANDIDATES = 100
"""Candidates that are compared. More of them would need much memory, as every pair has its sums."""
FEWEST_BLOCKS = 50.0
"""Blocks before the first comparison, so that their variance is known."""


class PairState(Struct, frozen=True, eq=False):
    """Hold the differences of candidates i and k over the blocks that both have [candidates i, candidates k].

    Attributes:
        production: sums of `q r` and `q` of production [2]
        blocks: the number of blocks
        events: sums of `q`
        total: sums of the differences of blocks
        square: sums of their squares
    """

    production: Array
    blocks: Array
    events: Array
    total: Array
    square: Array


def start(candidates: int) -> PairState | None:
    """Start before the first event, None with too many candidates."""
    if candidates > MOST_CANDIDATES:
        return None
    return PairState(np.zeros(2), *np.zeros((4, candidates, candidates)))


def fold(state: PairState, sums: BlockSums, centred: bool) -> PairState:
    """Return the state after some whole blocks. The first block only tells the mean of production.

    Args:
        state: the state before
        sums: the sums of the primary reward
        centred: whether weights have mean 1, so that `m` may be taken off
    """
    logged = np.column_stack([sums.term[:, 0], sums.q[:, 0]])
    production = np.cumsum(np.concatenate([state.production[None], logged]), axis=0)
    known = production[:-1, 1] > 0
    mean = production[:-1, 0] / np.where(known, production[:-1, 1], 1.0) * centred
    gain = sums.term[:, 1:] - mean[:, None] * sums.weight[:, 1:]
    has = (sums.present[:, 1:] > 0) & (sums.present[:, 1:] >= sums.present[:, :1]) & known[:, None]
    ones = has.astype(float)
    paths = np.empty((1 + len(gain), *state.total.shape))
    difference = np.subtract(gain[:, :, None], gain[:, None, :], out=paths[1:])
    if not has.all():
        difference *= has[:, :, None] & has[:, None, :]
    paths[0] = state.total
    total = paths.sum(axis=0)
    difference *= difference
    paths[0] = state.square
    events = state.events + (ones * sums.q[:, :1]).T @ ones
    return PairState(production[-1], state.blocks + ones.T @ ones, events, total, paths.sum(axis=0))


def select(state: PairState, candidates: Sequence[int]) -> PairState:
    """Return the state of these candidates only, by their indices. One alone has nothing to remember."""
    if len(candidates) < 2:
        return start(len(candidates)) or state
    pairs = (state.blocks, state.events, state.total, state.square)
    return PairState(state.production, *(values[np.ix_(candidates, candidates)] for values in pairs))


def join(state: PairState, late: PairState, new: int) -> PairState | None:
    """Add the last `new` candidates of a late state, None if they are too many. They meet the others from now on."""
    if len(state.total) + new > MOST_CANDIDATES:
        return None
    joined = []
    for name in ("blocks", "events", "total", "square"):
        values, late_values = getattr(state, name), getattr(late, name)
        values = np.pad(values, (0, new))
        first = len(late_values) - new
        values[len(values) - new :, len(values) - new :] = late_values[first:, first:]
        joined.append(values)
    return PairState(state.production, *joined)


def boundary(blocks: Array, error: float) -> Array:
    """Return how many standard deviations of a block a sum of blocks may ever exceed its mean.

    With a one-sided normal mixture, the probability that the sum is ever above is at most `error`, at all times at once
    (Howard et al., Annals of Statistics 2021, in closed form).

    >>> boundary(np.array([100.0, 10_000.0]), 0.01).round(1)
    array([ 41.3, 354.5])
    """
    with_prior = blocks + MIXTURE
    return np.asarray(np.sqrt(2 * with_prior * np.log1p(np.sqrt(with_prior / MIXTURE) / (2 * error))))


def contenders(
    state: PairState,
    candidates: Sequence[str],
    error: float,
    min_blocks: float,
    untrusted: Collection[str] = (),
    worse: Collection[str] = (),
) -> tuple[Contender, ...]:
    """Compare each candidate with the present leader, empty until two of them can be compared.

    The leader is the candidate with the largest lift over all others, in standard errors over the one that comes
    closest. A candidate that fails a trust check is not compared, and one that is worse than production does not lead.
    A late candidate waits until it has met the candidate that has been there for longest.

    A candidate is beaten if the upper bound of its lift over the leader is below 0. With probability `1 - error` no
    candidate is ever beaten by one that is not better, for all pairs and times at once, whoever leads and however often
    anyone looks. A pair gets an equal share of the error in each direction, so that changes of the leader cost nothing.
    This holds for the average lift over all events of the pair, also while the world moves, and then says little about
    the present. It is asymptotic, as the variance is estimated (Waudby-Smith et al., Annals of Statistics 2024), and
    needs blocks that are independent given the past.

    Args:
        state: the sums of pairs
        candidates: the names of the candidates
        error: the error probability of one pair in one direction
        min_blocks: the number of blocks before the first comparison of a pair
        untrusted: candidates that are not compared
        worse: candidates that cannot lead
    """
    sound = np.array([name not in untrusted for name in candidates], dtype=bool)
    met = (state.blocks >= max(min_blocks, FEWEST_BLOCKS)) & sound & sound[:, None] & ~np.eye(len(sound), dtype=bool)
    if not met.any():
        return ()
    oldest = int((state.blocks * met).sum(axis=1).argmax())
    blocks = np.where(met, state.blocks, 1.0)
    deviation = np.sqrt(np.maximum(state.square / blocks - (state.total / blocks) ** 2, 0.0))
    errors = np.divide(state.total, deviation * np.sqrt(blocks), out=np.zeros_like(blocks), where=met & (deviation > 0))
    may_lead = met[:, oldest] & [name not in worse for name in candidates]
    may_lead[oldest] = candidates[oldest] not in worse
    if not may_lead.any():
        return ()
    closest = np.where(met, errors, math.inf).min(axis=1)
    leader = int(np.where(may_lead, closest, -math.inf).argmax())
    events = np.where(met, state.events, 1.0)[:, leader]
    lift = state.total[:, leader] / events
    upper = lift + deviation[:, leader] * boundary(blocks[:, leader], error) / events
    rows = []
    for index, name in enumerate(candidates):
        if index == leader:
            rows.append(Contender(name, name, False))
        elif met[index, leader]:
            numbers = float(lift[index]), float(upper[index])
            rows.append(Contender(name, candidates[leader], bool(upper[index] < 0), *numbers))
    return tuple(rows)
