"""Slates slot by slot: the weight of a reward for a policy when the contributions of slots add up.

With `1_s` the indicator of the slate s (one row for each action of each slot), `Gamma = E[1_s 1_s']` under the logging
policy, and `q` the policy's probabilities of these rows, the weight is `G = q' Gamma^+ 1_s`. It depends on the policy
through its marginal distributions in the slots only, and its mean is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.events.action_sets import Index, owned_rows
from streameval.events.slates import LISTED, PLACKETT_LUCE, UNIFORM_RANKING, SlateColumns, draws
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
    if batch.slates is None:
        return np.full((len(batch), len(policies)), np.nan)
    return whole_weights(batch.slates, slot_gains(batch, policies))


def whole_weights(slates: SlateColumns, gains: Array) -> Array:
    """`G` of each slate from the parts of its slots [S, P], [n, P]; NaN where the event is not a slate."""
    return np.where((slates.sizes > 0)[:, None], 1.0 + slates.per_event(gains), np.nan)


def slot_gains(batch: EventBatch, policies: Sequence[str]) -> Array:
    """The part of `G - 1` that each slot of the slates contributes for each policy, [S, P]; NaN without the policy.

    With p the logging policy's probabilities of the rows: `(q - p)' Gamma^+ 1_s` over the rows of the slot, as
    `p' Gamma^+ 1_s = 1`. The logging policy's are 0.
    """
    slates = batch.slates
    assert slates is not None
    with np.errstate(over="ignore"):
        gains = slates.probabilities / slates.propensity[:, None] - 1.0
    for logging, gains_of in ((UNIFORM_RANKING, _of_rankings), (LISTED, _of_listed), (PLACKETT_LUCE, _of_drawn)):
        events = np.flatnonzero(slates.logging == logging)
        if len(events):
            gains[owned_rows(slates.offsets, events)[0]] = gains_of(slates.take(events))
    nothing = np.zeros(len(gains))
    columns = [nothing if policy == LOGGING else gains[:, batch.policies.index(policy)] for policy in policies]
    return np.stack(columns).T


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
    slots = slates.sizes[slates.owner][:, None]
    actions = slates.actions.sizes[:, None]
    matches = np.where(slots == actions, 1.0, _expected_matches(slates))
    return _ranking_gain(slates.probabilities, matches, slots, actions, 1.0 / actions)


def ranking_weights(hit: Array, matches: Array, slots: Array | Index | int, actions: Array | Index | int) -> Array:
    """`G` where l of m actions (`slots` of `actions`) were ranked uniformly at random, in closed form.

    `hit`: the sum over slots of the probability that the policy shows the same action there. `matches`: the expected
    number of shown actions that it shows in any slot. As `Gamma` has the eigenvalues `l / m`, `(m - l) / (m (m - 1))`
    and `1 / (m - 1)`: `G = 1 + m (m - 1) / (m - l) (matches / l - l / m) + (m - 1) (hit - matches / l)`, for `l = m`
    without the second term.

    >>> ranking_weights(np.array([2.0, 0.0]), np.array([2.0, 2.0]), slots=2, actions=2)
    array([2., 0.])
    """
    return 1.0 + _ranking_gain(hit, matches, slots, actions, np.divide(slots, actions))


def _ranking_gain(
    hit: Array, matches: Array, slots: Array | Index | int, actions: Array | Index | int, share: Array
) -> Array:
    """The part of `G - 1` of some slots; `share`: the logging policy's `hit`."""
    others = np.where(np.equal(slots, actions), np.inf, np.subtract(actions, slots))
    between = np.multiply(actions, np.subtract(actions, 1)) / others * (matches / slots - share)
    return np.asarray(between + np.subtract(actions, 1) * (hit - matches / slots))


def _expected_matches(slates: SlateColumns) -> Array:
    """For each slot, the probability that each policy shows any of the slate's actions there, [S, P]."""
    owner = slates.owner[slates.actions.owner]
    items = slates.actions.items
    assert items is not None
    keys = owner * (items.max(initial=0) + 1) + items
    shown = np.flatnonzero(np.isin(keys, keys[slates.actions.logged[1]]))
    slot, count = slates.actions.owner[shown], len(slates.propensity)
    columns = [np.bincount(slot, weights=column[shown], minlength=count) for column in slates.actions.probabilities.T]
    return np.array(columns, dtype=np.float64).reshape(-1, count).T


def _of_listed(slates: SlateColumns) -> Array:
    """The parts of slots where the logging policy's slates are listed; events of one shape at once."""
    rows_of_event = np.diff(slates.actions.offsets[slates.offsets])
    gains = np.empty_like(slates.probabilities)
    shapes = np.stack([rows_of_event, slates.sizes], axis=1)
    for shape in np.unique(shapes, axis=0):
        same = np.flatnonzero((shapes == shape).all(axis=1))
        at_once = max(1, ENTRIES_AT_ONCE // int(shape[0]) ** 2)
        for some in np.split(same, np.arange(at_once, len(same), at_once)):
            part = slates.take(some)
            gains[owned_rows(slates.offsets, some)[0]] = _by_covariance(part, _covariance(part, *shape))
    return gains


def _of_drawn(slates: SlateColumns) -> Array:
    """The parts of slots of rankings that were drawn by scores; events of one shape at once."""
    gains = np.empty_like(slates.probabilities)
    for events, rows, weights, slots in slates.drawn_by_scores():
        single, joint = draws(weights, slots, pairs=True)
        assert joint is not None
        size = rows.shape[1]
        gamma = joint.reshape(-1, size, size)
        gamma = gamma + gamma.swapaxes(1, 2)
        gamma[:, np.arange(size), np.arange(size)] = single.reshape(-1, size)
        order = slates.canonical(rows)
        gamma = np.take_along_axis(np.take_along_axis(gamma, order[:, :, None], axis=1), order[:, None, :], axis=2)
        gains[owned_rows(slates.offsets, events)[0]] = _by_covariance(slates.take(events), gamma)
    return gains


def _by_covariance(slates: SlateColumns, gamma: Array) -> Array:
    """The parts of the slots of events with `Gamma` [n, rows, rows], [S, P]."""
    shown = np.zeros(len(slates.actions.propensities))
    shown[slates.actions.logged[1]] = 1.0
    inverse = np.linalg.pinv(gamma, rcond=SMALLEST_EIGENVALUE, hermitian=True)
    dual = np.einsum("nrs,ns->nr", inverse, shown.reshape(len(gamma), -1)).ravel()
    differences = np.ascontiguousarray(slates.actions.probabilities.T) - slates.marginals
    return np.asarray(np.add.reduceat(differences * dual, slates.actions.offsets[:-1], axis=1).T)


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


def ratio_sums(batch: EventBatch, policies: Sequence[str], sampling: Array, block: int) -> Array:
    """The sums of each block of the ratios `pi / pi0` in each slot, [blocks, P, slots, sums]: see `start_ratios`."""
    blocks = max(1, len(batch) // block)
    sums, slates = np.zeros((blocks, *start_ratios(len(policies)).shape)), batch.slates
    if slates is None:
        return sums
    owner, position = slates.owner, slates.position
    weight = np.where(position < SLOTS_SHOWN, sampling[owner], 0.0)
    places = _places(owner // block, position, blocks)
    for row, policy in enumerate(policies):
        target = slates.propensity if policy == LOGGING else slates.probabilities[:, batch.policies.index(policy)]
        ratio = target / slates.propensity
        present = weight * np.isfinite(ratio)
        for column, values in enumerate((present, present * np.nan_to_num(ratio, posinf=0.0))):
            sums[:, row, :, column] = np.bincount(places, values, blocks * SLOTS_SHOWN).reshape(blocks, -1)
    return sums


def _places(block: Index, position: Index, blocks: int) -> Index:
    """The places of slots among those of all blocks; a slot after the last one shown counts as that one."""
    return np.asarray(np.minimum(block, blocks - 1) * SLOTS_SHOWN + np.minimum(position, SLOTS_SHOWN - 1))


class SlotLiftState(Struct, frozen=True, eq=False):
    """Hold the sums of the lifts of each slot [P, slots], and of the averaging weights [P], since the first event."""

    slots: Array
    weight: Array


def start_lifts(policies: int) -> SlotLiftState:
    """Start before the first event."""
    return SlotLiftState(np.zeros((policies, SLOTS_SHOWN)), np.zeros(policies))


class SlotLifts(NamedTuple):
    """The sums of each block of the lifts of slots, [blocks, P, slots], and of the averaging weights, [blocks, P]."""

    slots: Array
    weight: Array

    def fold(self, state: SlotLiftState) -> SlotLiftState:
        """Return the state after these blocks."""
        return SlotLiftState(state.slots + self.slots.sum(axis=0), state.weight + self.weight.sum(axis=0))


def lift_sums(
    slates: SlateColumns | None, gains: Array | None, weighted: Array, sample_weight: Array, reward: Array, blocks: int
) -> SlotLifts:
    """The sums of each block; production is the first policy, and `gains` [S, P] those of `slot_gains`.

    `weighted` [n, P]: `r G`. A plain event counts as one slot.
    """
    both = np.where(sample_weight[:, :1] > 0, sample_weight, 0.0)
    single = np.ones(len(reward), dtype=bool) if slates is None else slates.sizes == 0
    lifts = np.zeros((blocks, both.shape[1], SLOTS_SHOWN))
    whole = np.where(both > 0, weighted - weighted[:, :1], 0.0) * both * single[:, None]
    lifts[:, :, 0] = whole.reshape(blocks, -1, both.shape[1]).sum(axis=1)
    if slates is not None and gains is not None:
        owner = slates.owner
        places = _places(owner * blocks // len(reward), slates.position, blocks)
        weight = both[owner] * reward[owner, None]
        parts = np.where(both[owner] > 0, gains - gains[:, :1], 0.0) * weight
        columns = [np.bincount(places, column, blocks * SLOTS_SHOWN).reshape(blocks, -1) for column in parts.T]
        lifts += np.stack(columns, axis=1)
    return SlotLifts(lifts, both.reshape(blocks, -1, both.shape[1]).sum(axis=1))


def mean_lifts(lifts: SlotLiftState, ratios: Array, policy: int) -> list[float]:
    """The lift of each slot as far as any was seen, whose sum is the lift; `policy`: its place."""
    seen = max(1, len(mean_ratios(ratios[policy])))
    return [float(lift) for lift in lifts.slots[policy, :seen] / (lifts.weight[policy] or np.nan)]


def mean_ratios(sums: Array) -> list[float]:
    """Of one policy, the mean ratio in each slot as far as any was seen; 1 is expected."""
    seen = sums[: 1 + np.flatnonzero(sums[:, 0]).max(initial=-1)]
    return [float(mean) for mean in seen[:, 1] / np.where(seen[:, 0] > 0, seen[:, 0], np.nan)]
