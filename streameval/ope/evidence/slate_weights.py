"""Slates slot by slot: the weight of a reward for a policy when the contributions of slots add up.

With `1_s` the indicator of the slate s (one row for each action of each slot), `Gamma = E[1_s 1_s']` under the logging
policy, and `q` the policy's probabilities of these rows, the weight is `G = q' Gamma^+ 1_s`. It depends on the policy
through its marginal distributions in the slots only, and its mean is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.slates import LISTED, UNIFORM_RANKING, SlateColumns
from streameval.ope.policies.logged import LOGGING

SLOTS_SHOWN = 20
"""The number of slots whose mean ratios are kept."""
ENTRIES_AT_ONCE = 2_000_000
"""The number of entries of matrices `Gamma` that are held in memory together."""
SMALLEST_EIGENVALUE = 1e-10
"""Relative to the largest: smaller eigenvalues count as 0 when `Gamma` is inverted."""


def slate_weights(batch: EventBatch, policies: Sequence[str]) -> Array:
    """`G` of each slate for each policy, [n, P]; NaN where the event is not a slate, or lacks the policy.

    The logging policy's is 1.
    """
    slates = batch.slates
    if slates is None:
        return np.full((len(batch), len(policies)), np.nan)
    with np.errstate(over="ignore"):
        ratios = slates.probabilities / slates.propensity[:, None]
    known = slates.per_event(ratios) - (slates.sizes[:, None] - 1.0)
    for logging, weights_of in ((UNIFORM_RANKING, _of_rankings), (LISTED, _of_listed)):
        events = np.flatnonzero(slates.logging == logging)
        if len(events):
            known[events] = weights_of(slates.take(events))
    weights = [
        np.ones(len(batch)) if policy == LOGGING else known[:, batch.policies.index(policy)] for policy in policies
    ]
    return np.where(slates.sizes > 0, np.stack(weights), np.nan).T


def slot_terms(batch: EventBatch, policies: Sequence[str], cascade: bool) -> tuple[Array, Array, Array]:
    """The weighted rewards of the slots of each slate, summed; the mean weight of its slots; the largest one.

    All [n, P], NaN where the event is not a slate, lacks the policy, or its slots have no rewards. The weight of a slot
    is `pi / pi0` of its action; with `cascade`, the product of these ratios up to the slot.
    """
    slates = batch.slates
    if slates is None:
        nothing = np.full((len(batch), len(policies)), np.nan)
        return nothing, nothing, nothing
    logged = slates.conditional_propensity if cascade else slates.propensity
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratios = slates.probabilities / logged[:, None]
    every = np.ones(len(logged))
    columns = [every if policy == LOGGING else ratios[:, batch.policies.index(policy)] for policy in policies]
    weights = np.stack(columns).T
    weights = slates.running_product(weights) if cascade else weights
    rewarded = slates.has_rewards[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = slates.per_event(weights * slates.reward[:, None])
        mean = slates.per_event(weights) / np.maximum(slates.sizes, 1)[:, None]
    weighted, mean, largest = (np.where(rewarded, each, np.nan) for each in (weighted, mean, slates.largest(weights)))
    return weighted, mean, largest


def _of_rankings(slates: SlateColumns) -> Array:
    slots = slates.sizes[:, None]
    actions = slates.actions.sizes[slates.offsets[:-1]][:, None]
    hit = slates.per_event(slates.probabilities)
    return ranking_weights(hit, np.where(slots == actions, slots, _expected_matches(slates)), slots, actions)


def ranking_weights(hit: Array, matches: Array, slots: Array | Index | int, actions: Array | Index | int) -> Array:
    """`G` where l of m actions (`slots` of `actions`) were ranked uniformly at random, in closed form.

    `hit`: the sum over slots of the probability that the policy shows the same action there. `matches`: the expected
    number of shown actions that it shows in any slot. As `Gamma` has the eigenvalues `l / m`, `(m - l) / (m (m - 1))`
    and `1 / (m - 1)`: `G = 1 + m (m - 1) / (m - l) (matches / l - l / m) + (m - 1) (hit - matches / l)`, for `l = m`
    without the second term.

    >>> ranking_weights(np.array([2.0, 0.0]), np.array([2.0, 2.0]), slots=2, actions=2)
    array([2., 0.])
    """
    others = np.where(np.equal(slots, actions), np.inf, np.subtract(actions, slots))
    between = np.multiply(actions, np.subtract(actions, 1)) / others * (matches / slots - np.divide(slots, actions))
    return np.asarray(1.0 + between + np.subtract(actions, 1) * (hit - matches / slots))


def _expected_matches(slates: SlateColumns) -> Array:
    """Expected number of the actions shown that each policy would show in any slot, [n, P]."""
    owner = slates.owner[slates.actions.owner]
    items = slates.actions.items
    assert items is not None
    keys = owner * (items.max(initial=0) + 1) + items
    shown = np.flatnonzero(np.isin(keys, keys[slates.actions.logged[1]]))
    columns = [
        np.bincount(owner[shown], weights=column[shown], minlength=len(slates.logging))
        for column in slates.actions.probabilities.T
    ]
    return np.array(columns, dtype=np.float64).reshape(-1, len(slates.logging)).T


def _of_listed(slates: SlateColumns) -> Array:
    """`G` where the logging policy's slates are listed; events of one shape at once."""
    rows_of_event = np.diff(slates.actions.offsets[slates.offsets])
    weights = np.empty((len(slates.logging), slates.probabilities.shape[1]))
    shapes = np.stack([rows_of_event, slates.sizes], axis=1)
    for shape in np.unique(shapes, axis=0):
        same = np.flatnonzero((shapes == shape).all(axis=1))
        at_once = max(1, ENTRIES_AT_ONCE // int(shape[0]) ** 2)
        for some in np.split(same, np.arange(at_once, len(same), at_once)):
            part = slates.take(some)
            target = part.actions.probabilities.T.reshape(-1, len(some), shape[0])
            shown = np.zeros(len(part.actions.propensities))
            shown[part.actions.logged[1]] = 1.0
            inverse = np.linalg.pinv(_covariance(part, *shape), rcond=SMALLEST_EIGENVALUE, hermitian=True)
            dual = np.einsum("nrs,ns->nr", inverse, shown.reshape(-1, shape[0]))
            weights[some] = np.einsum("pnr,nr->np", target, dual)
    return weights


def _covariance(slates: SlateColumns, rows: int, slots: int) -> Array:
    """`Gamma` of events with these numbers of rows and slots, [n, rows, rows]."""
    shown, _ = slates.listed_rows()
    owner = slates.listed.owner
    local = shown.reshape(-1, slots) - slates.actions.offsets[slates.offsets[:-1]][owner, None]
    gamma = np.zeros((len(slates.logging), rows, rows))
    places = (owner[:, None, None], local[:, :, None], local[:, None, :])
    np.add.at(gamma, places, slates.listed.probability[:, None, None])
    return gamma


def start_ratios(policies: int) -> Array:
    """No ratios yet, [P, slots, sums of q and of q times the ratio]."""
    return np.zeros((policies, SLOTS_SHOWN, 2))


def fold_ratios(
    sums: Array, batch: EventBatch, policies: Sequence[str], sampling: Array, block: int, fading: float
) -> Array:
    """The sums after these blocks of the ratios `pi / pi0` in each slot, which decay by `fading` within a block."""
    blocks = max(1, len(batch) // block)
    faded = sums * fading**blocks
    slates = batch.slates
    if slates is None:
        return faded
    owner, position = slates.owner, slates.position
    age = blocks - 1 - np.minimum(owner // block, blocks - 1)
    weight = np.where(position < SLOTS_SHOWN, sampling[owner] * fading**age, 0.0)
    for row, policy in enumerate(policies):
        target = slates.propensity if policy == LOGGING else slates.probabilities[:, batch.policies.index(policy)]
        ratio = target / slates.propensity
        present = weight * np.isfinite(ratio)
        used = np.minimum(position, SLOTS_SHOWN - 1)
        faded[row, :, 0] += np.bincount(used, present, SLOTS_SHOWN)
        faded[row, :, 1] += np.bincount(used, present * np.nan_to_num(ratio, posinf=0.0), SLOTS_SHOWN)
    return faded


def mean_ratios(sums: Array) -> list[float]:
    """Of one policy, the mean ratio in each slot as far as any was seen; 1 is expected."""
    seen = sums[: 1 + np.flatnonzero(sums[:, 0]).max(initial=-1)]
    return [float(mean) for mean in seen[:, 1] / np.where(seen[:, 0] > 0, seen[:, 0], np.nan)]
