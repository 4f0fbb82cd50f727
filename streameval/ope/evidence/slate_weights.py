"""Weigh slates slot by slot, for rewards that are sums of contributions of the slots.

Let `1_s` be the indicator of the slate s (one row for each action of each slot), `Gamma = E[1_s 1_s']` under the
logging policy, and `q` the policy's probabilities of these rows. The weight is `G = q' Gamma^+ 1_s`. It depends on the
policy only through its marginal distributions in the slots, and its mean is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.events.action_sets import Index, owned_rows
from streameval.events.plackett_luce import draws
from streameval.events.slates import LISTED, PLACKETT_LUCE, UNIFORM_RANKING, SlateColumns
from streameval.ope.policies.logged import LOGGING

SLOTS_SHOWN = 20
"""Number of slots with mean ratios."""
MAX_ENTRIES = 2_000_000
"""Number of entries of matrices `Gamma` that are held in memory together."""
MIN_EIGENVALUE = 1e-10
"""Smaller eigenvalues, relative to the largest, count as 0 when `Gamma` is inverted."""


def whole_weights(slates: SlateColumns, gains: Array) -> Array:
    """Return `G` of each slate from the parts of its slots, [S, P] to [n, P]. It is NaN if the event is not a slate."""
    return np.where((slates.sizes > 0)[:, None], 1.0 + slates.per_event(gains), np.nan)


def slot_gains(batch: EventBatch, policies: Sequence[str]) -> Array:
    """Return the part of `G - 1` that each slot contributes for each policy [S, P], NaN without the policy.

    With the logging policy's probabilities p of the rows it is `(q - p)' Gamma^+ 1_s` over the rows of the slot,
    because `p' Gamma^+ 1_s = 1`. It is 0 for the logging policy.
    """
    slates = batch.slates
    assert slates is not None
    with np.errstate(over="ignore"):
        gains = slates.probabilities / slates.propensity[:, None] - 1.0
    for logging, gains_of in (
        (UNIFORM_RANKING, _ranking_gains),
        (LISTED, lambda some: _dual_gains(some, _listed_duals)),
        (PLACKETT_LUCE, lambda some: _dual_gains(some, _drawn_duals)),
    ):
        events = np.flatnonzero(slates.logging == logging)
        if len(events):
            gains[owned_rows(slates.offsets, events)[0]] = gains_of(slates.take(events))
    nothing = np.zeros(len(gains))
    columns = [nothing if policy == LOGGING else gains[:, batch.policies.index(policy)] for policy in policies]
    return np.stack(columns).T


class SlotWeights(NamedTuple):
    """Hold slates with the weights of their slots [S, P]."""

    slates: SlateColumns
    weights: Array

    def take(self, events: Index) -> SlotWeights:
        """Return these events."""
        return SlotWeights(self.slates.take(events), self.weights[owned_rows(self.slates.offsets, events)[0]])

    def with_singles(self, weight: Array, reward: Array) -> tuple[Index, Index, Array, Array]:
        """Return event, position (below 20), weights and reward of each slot. Events that are no slates have one slot.

        Args:
            weight: the weights of the events [n, P]
            reward: the rewards of the events [n]
        """
        slates, single = self.slates, np.flatnonzero(self.slates.sizes == 0)
        event, first = np.concatenate([slates.owner, single]), np.zeros(len(single), dtype=np.int64)
        position = np.concatenate([np.minimum(slates.position, SLOTS_SHOWN - 1), first])
        weights = np.concatenate([self.weights, weight[single]])
        return event, position, weights, np.concatenate([slates.reward, reward[single]])


def slot_terms(
    batch: EventBatch, policies: Sequence[str], cascade: bool
) -> tuple[Array, Array, Array, SlotWeights | None]:
    """Return sums over slots, NaN if the event is not a slate, lacks the policy, or has no rewards of slots [n, P].

    The weight of a slot is `pi / pi0` of its action. With `cascade` it is the product of these ratios up to the slot.

    Returns:
        The sum of the weighted rewards of the slots, the mean weight of the slots, the largest weight, and all weights.
    """
    slates = batch.slates
    if slates is None:
        nothing = np.full((len(batch), len(policies)), np.nan)
        return nothing, nothing, nothing, None
    logged = slates.conditional_propensity if cascade else slates.propensity
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratios = slates.probabilities / logged[:, None]
    ones = np.ones(len(logged))
    columns = [ones if policy == LOGGING else ratios[:, batch.policies.index(policy)] for policy in policies]
    weights = np.stack(columns).T
    weights = slates.running_product(weights) if cascade else weights
    rewarded = slates.has_rewards[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = slates.per_event(weights * slates.reward[:, None])
        mean = slates.per_event(weights) / np.maximum(slates.sizes, 1)[:, None]
    weighted, mean, largest = (
        np.where(rewarded, values, np.nan) for values in (weighted, mean, slates.largest(weights))
    )
    return weighted, mean, largest, SlotWeights(slates, weights)


def modelled_rewards(batch: EventBatch, policies: Sequence[str], parts: Array) -> tuple[Array, Array]:
    """Return the reward that a model expects of each policy [n, P], NaN if not known, and of the slate shown [n].

    Args:
        batch: the events
        policies: their names. For the logging policy the expectation is NaN.
        parts: the part that each row of `slates.actions` has in the reward of its slate [rows]
    """
    slates = batch.slates
    assert slates is not None
    unknown = np.full(len(parts), np.nan)
    named = (
        unknown if policy == LOGGING else slates.actions.probabilities[:, batch.policies.index(policy)]
        for policy in policies
    )
    event = slates.events_of_rows
    sums = [np.bincount(event, column * parts, len(batch)) for column in (*named, slates.shown)]
    has_lists = slates.largest((slates.actions.sizes == 0).astype(float)[:, None])[:, 0] == 0
    return np.where(has_lists[:, None], np.stack(sums[:-1]).T, np.nan), sums[-1].astype(float)


def _ranking_gains(slates: SlateColumns) -> Array:
    slots = slates.sizes[slates.owner][:, None]
    actions = slates.actions.sizes[:, None]
    matches = np.where(slots == actions, 1.0, _expected_matches(slates))
    return _ranking_gain(slates.probabilities, matches, slots, actions, 1.0 / actions)


def ranking_weights(hit: Array, matches: Array, slots: Array | Index | int, actions: Array | Index | int) -> Array:
    """Return `G` in closed form for uniformly random rankings of l of m actions.

    As `Gamma` has the eigenvalues `l / m`, `(m - l) / (m (m - 1))` and `1 / (m - 1)`, it is `G = 1 + m (m - 1) / (m -
    l) (matches / l - l / m) + (m - 1) (hit - matches / l)`, without the second term if `l = m`.

    Args:
        hit: the sum over slots of the probability that the policy shows the logged action there
        matches: the expected number of shown actions that the policy shows in any slot
        slots: l
        actions: m

    >>> ranking_weights(np.array([2.0, 0.0]), np.array([2.0, 2.0]), slots=2, actions=2)
    array([2., 0.])
    """
    return 1.0 + _ranking_gain(hit, matches, slots, actions, np.divide(slots, actions))


def _ranking_gain(
    hit: Array, matches: Array, slots: Array | Index | int, actions: Array | Index | int, share: Array
) -> Array:
    """Return the part of `G - 1` of some slots, with the logging policy's `hit` as `share`."""
    others = np.where(np.equal(slots, actions), np.inf, np.subtract(actions, slots))
    between = np.multiply(actions, np.subtract(actions, 1)) / others * (matches / slots - share)
    return np.asarray(between + np.subtract(actions, 1) * (hit - matches / slots))


def _expected_matches(slates: SlateColumns) -> Array:
    """Return for each slot the probability that each policy shows any of the slate's actions there [S, P]."""
    shown = _rows_of_shown(slates)
    slot, count = slates.actions.owner[shown], len(slates.propensity)
    columns = [np.bincount(slot, weights=column[shown], minlength=count) for column in slates.actions.probabilities.T]
    return np.array(columns, dtype=np.float64).reshape(-1, count).T


def _rows_of_shown(slates: SlateColumns) -> Index:
    """Return the rows of `actions`, in all slots, of actions that the slate shows in any slot."""
    keys = slates.keys_of_rows
    return np.flatnonzero(np.isin(keys, keys[slates.actions.logged[1]]))


def _listed_duals(slates: SlateColumns) -> Array:
    """Return `Gamma^+ 1_s` of slates with a listed distribution, computing events of one shape at once [rows]."""
    starts, rows_of_event = slates.actions.offsets[slates.offsets[:-1]], np.diff(slates.actions.offsets[slates.offsets])
    duals = np.empty(len(slates.actions.propensities))
    shapes = np.stack([rows_of_event, slates.sizes], axis=1)
    for shape in np.unique(shapes, axis=0):
        events = np.flatnonzero((shapes == shape).all(axis=1))
        chunk_size = max(1, MAX_ENTRIES // int(shape[0]) ** 2)
        for chunk in np.split(events, np.arange(chunk_size, len(events), chunk_size)):
            some = slates.take(chunk)
            dual = _dual(_covariance(some, *shape), some.shown.reshape(len(chunk), -1, 1))
            duals[starts[chunk][:, None] + np.arange(shape[0])] = dual[..., 0]
    return duals


def with_duals(slates: SlateColumns) -> SlateColumns:
    """Return the slates with `actions.duals`, `Gamma^+ 1_s` of each row, so that `G` is the policy's sum of it."""
    sets, shown, event = slates.actions, slates.shown, slates.events_of_rows
    slots, actions = slates.sizes[event], sets.sizes[sets.owner]
    duals = shown / slates.propensity[sets.owner] - 1.0 + 1.0 / slots
    ranked = (slates.logging == UNIFORM_RANKING)[event]
    if ranked.any():
        others = np.where(slots == actions, np.inf, actions - slots)
        is_shown = np.zeros(len(shown))
        is_shown[_rows_of_shown(slates)] = 1.0
        any_slot = actions * (actions - 1) / (slots * others) - (actions - 1) / slots
        constant = (1.0 - slots * (actions - 1) / others) / slots
        duals[ranked] = ((actions - 1) * shown + any_slot * is_shown + constant)[ranked]
    for logging, duals_of in ((LISTED, _listed_duals), (PLACKETT_LUCE, _drawn_duals)):
        events = np.flatnonzero(slates.logging == logging)
        if len(events):
            duals[np.isin(event, events)] = duals_of(slates.take(events))
    return replace(slates, actions=replace(sets, duals=duals))


def _drawn_duals(slates: SlateColumns) -> Array:
    """Return `Gamma^+ 1_s` of rankings that were drawn by scores, with one `Gamma` for equal scores [rows]."""
    duals = np.empty(len(slates.actions.propensities))
    for events, rows, weights, which, slots in slates.drawn_by_scores():
        single, joint = draws(weights, slots, pairs=True)
        assert joint is not None
        size = rows.shape[1]
        gamma = joint.reshape(-1, size, size)
        gamma = gamma + gamma.swapaxes(1, 2)
        gamma[:, np.arange(size), np.arange(size)] = single.reshape(-1, size)
        some = slates.take(events)
        order, shown = slates.canonical(rows), np.zeros((len(events), size))
        np.put_along_axis(shown, order, some.shown.reshape(shown.shape), axis=1)
        if 2 * len(gamma) > len(events):
            shown = _dual(gamma[which], shown[..., None])[..., 0]
        else:
            by_scores = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
            for one, equal in zip(gamma, by_scores, strict=True):
                shown[equal] = _dual(one, shown[equal].T).T
        duals[rows] = np.take_along_axis(shown, order, axis=1)
    return duals


def _dual(gamma: Array, shown: Array) -> Array:
    """Return `Gamma^+ 1_s` of slates in columns, for `Gamma` or several of them [.., rows, rows], [.., rows, slates].

    Steps of iterated Tikhonov regularisation approach the pseudo-inverse, and are faster than its decomposition.
    Eigenvalues below `MIN_EIGENVALUE` count as 0.
    """
    shift = MIN_EIGENVALUE * np.linalg.norm(gamma, axis=(-2, -1), keepdims=True)
    inverse = np.linalg.inv(gamma + shift * np.eye(gamma.shape[-1]))
    dual = inverse @ shown
    for _ in range(3):
        dual += inverse @ (shown - gamma @ dual)
    return np.asarray(dual)


def _dual_gains(slates: SlateColumns, duals_of: Callable[[SlateColumns], Array]) -> Array:
    """Return the parts of slots from `Gamma^+ 1_s`, which is solved if no policy has needed it [S, P]."""
    duals = duals_of(slates) if slates.actions.duals is None else slates.actions.duals
    differences = np.ascontiguousarray(slates.actions.probabilities.T) - slates.marginals
    return np.asarray(np.add.reduceat(differences * duals, slates.actions.offsets[:-1], axis=1).T)


def _covariance(slates: SlateColumns, rows: int, slots: int) -> Array:
    """Return `Gamma` of events with these numbers of rows and slots [n, rows, rows]."""
    shown, _ = slates.listed_rows()
    owner = slates.listed.owner
    local = shown.reshape(-1, slots) - slates.actions.offsets[slates.offsets[:-1]][owner, None]
    gamma = np.zeros((len(slates.logging), rows, rows))
    indices = (owner[:, None, None], local[:, :, None], local[:, None, :])
    np.add.at(gamma, indices, slates.listed.probability[:, None, None])
    return gamma


def start_ratios(policies: int) -> Array:
    """Start without ratios: sums of q and of q times the ratio [P, slots, 2]."""
    return np.zeros((policies, SLOTS_SHOWN, 2))


def ratio_sums(batch: EventBatch, policies: Sequence[str], sampling: Array, block: int) -> Array:
    """Return the sums of each block of the ratios `pi / pi0` in each slot [blocks, P, slots, 2], see `start_ratios`."""
    blocks = max(1, len(batch) // block)
    sums, slates = np.zeros((blocks, *start_ratios(len(policies)).shape)), batch.slates
    if slates is None:
        return sums
    owner, position = slates.owner, slates.position
    weight = np.where(position < SLOTS_SHOWN, sampling[owner], 0.0)
    indices = _slot_indices(owner // block, position, blocks)
    for row, policy in enumerate(policies):
        target = slates.propensity if policy == LOGGING else slates.probabilities[:, batch.policies.index(policy)]
        ratio = target / slates.propensity
        present = weight * np.isfinite(ratio)
        for column, values in enumerate((present, present * np.nan_to_num(ratio, posinf=0.0))):
            sums[:, row, :, column] = np.bincount(indices, values, blocks * SLOTS_SHOWN).reshape(blocks, -1)
    return sums


def _slot_indices(block: Index, position: Index, blocks: int) -> Index:
    """Return the indices of slots over all blocks. A slot after the last one shown counts as that one."""
    return np.asarray(np.minimum(block, blocks - 1) * SLOTS_SHOWN + np.minimum(position, SLOTS_SHOWN - 1))


class SlotLiftState(Struct, frozen=True, eq=False):
    """Hold the sums of the lifts of each slot [P, slots], and of the averaging weights [P], since the first event."""

    slots: Array
    weight: Array


def start_lifts(policies: int) -> SlotLiftState:
    """Start before the first event."""
    return SlotLiftState(np.zeros((policies, SLOTS_SHOWN)), np.zeros(policies))


class SlotLifts(NamedTuple):
    """Hold sums over each block: the lifts of slots [blocks, P, slots], and the averaging weights [blocks, P]."""

    slots: Array
    weight: Array

    def fold(self, state: SlotLiftState) -> SlotLiftState:
        """Return the state after these blocks."""
        return SlotLiftState(state.slots + self.slots.sum(axis=0), state.weight + self.weight.sum(axis=0))


def lift_sums(
    slates: SlateColumns | None, gains: Array | None, weighted: Array, sample_weight: Array, reward: Array, blocks: int
) -> SlotLifts:
    """Return the sums of each block. Production is the first policy, and a plain event counts as one slot.

    Args:
        slates: the slates, None without any
        gains: see `slot_gains` [S, P]
        weighted: `r G` [n, P]
        sample_weight: [n, P]
        reward: [n]
        blocks: the number of blocks
    """
    both = np.where(sample_weight[:, :1] > 0, sample_weight, 0.0)
    single = np.ones(len(reward), dtype=bool) if slates is None else slates.sizes == 0
    lifts = np.zeros((blocks, both.shape[1], SLOTS_SHOWN))
    whole = np.where(both > 0, weighted - weighted[:, :1], 0.0) * both * single[:, None]
    lifts[:, :, 0] = whole.reshape(blocks, -1, both.shape[1]).sum(axis=1)
    if slates is not None and gains is not None:
        owner = slates.owner
        indices = _slot_indices(owner * blocks // len(reward), slates.position, blocks)
        weight = both[owner] * reward[owner, None]
        parts = np.where(both[owner] > 0, gains - gains[:, :1], 0.0) * weight
        columns = [np.bincount(indices, column, blocks * SLOTS_SHOWN).reshape(blocks, -1) for column in parts.T]
        lifts += np.stack(columns, axis=1)
    return SlotLifts(lifts, both.reshape(blocks, -1, both.shape[1]).sum(axis=1))


def mean_lifts(lifts: SlotLiftState, ratios: Array, policy: int) -> list[float]:
    """Return the lift of each slot seen so far. They sum to the lift of the policy with this index."""
    slots = max(1, len(mean_ratios(ratios[policy])))
    return [float(lift) for lift in lifts.slots[policy, :slots] / (lifts.weight[policy] or np.nan)]


def mean_ratios(sums: Array) -> list[float]:
    """Return the mean ratio of one policy in each slot seen so far. 1 is expected."""
    rows = sums[: 1 + np.flatnonzero(sums[:, 0]).max(initial=-1)]
    return [float(mean) for mean in rows[:, 1] / np.where(rows[:, 0] > 0, rows[:, 0], np.nan)]
