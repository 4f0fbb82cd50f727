"""Bound the importance weight that a policy can have, as far as the logged propensities tell.

An event limits the weights of a policy with the probability `pi` for its action, which was taken with propensity `p`:

* With full distributions, the limit is the largest `pi(a) / p(a)` of its actions.
* Otherwise it is `1 / p`, or `P / p` with the largest probability `P` of the policy. The other actions share `1 - p`
  and `1 - pi`, so one of them has a weight of `(1 - pi) / (1 - p)` or more.

The ten largest of each of these numbers are kept. A floor of the propensities is soon seen by ten events, while the
largest number of a heavy-tailed log far exceeds the tenth. The limit is therefore the largest number times its ratio to
the tenth. So a smaller propensity counts at once, and for more than its value until ten events confirm it.

Numbers of the last 200,000 to 400,000 events are kept separately, for averages that forget older ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import ROUNDING_UNITS, Array
from streameval.events import EventBatch
from streameval.events.slates import LISTED, PLACKETT_LUCE
from streameval.ope.evidence.actions import Actions
from streameval.ope.evidence.evidence import LARGEST_WEIGHT, Evidence
from streameval.ope.policies.logged import LOGGING

__all__ = ["NEARLY_SURE", "WEIGHTS_KEPT", "Kind", "LargestNumbers", "LargestState"]
__all__ += ["floor", "fold", "limits", "start", "summarise"]

WEIGHTS_KEPT = 10
SPAN = 200_000
"""Events after which a generation ends. Averages that forget are limited by this generation and the one before."""
NEARLY_SURE = 0.99
"""Propensity above which other actions are too rare to be seen soon themselves."""
SURE = 1 - ROUNDING_UNITS * np.finfo(float).eps
"""Propensity above which the rest to 1 is rounding."""
FORGETTING = 40_000
"""Effective number of events up to which an average has nearly no weight on events before these generations."""


class Kind(IntEnum):
    """Enumerate the numbers of an event that limit weights."""

    RARITY = 0  # 1 / p
    PROBABILITY = 1  # pi
    OTHERS = 2  # (1 - pi) / (1 - p)
    WHOLE = 3  # the largest pi(a) / p(a)
    SLOTS = 4  # of a slate by its slots, sum of 1 / p - slots + 1


class LargestState(Struct, frozen=True, eq=False):
    """Hold the largest numbers of all events, of the generation before, and of this one.

    Attributes:
        events: the number of events so far
        largest: in ascending order [policies, 3, kinds, 10]
    """

    events: int
    largest: Array


def start(policies: int) -> LargestState:
    """Start before the first event."""
    return LargestState(0, np.zeros((policies, 3, len(Kind), WEIGHTS_KEPT)))


class LargestNumbers(NamedTuple):
    """Hold the largest numbers of some events, in stretches within which no generation ends.

    Attributes:
        events: the number of events in each stretch
        numbers: in any order, 0 if there are fewer [stretches, policies, kinds, 10]
    """

    events: list[int]
    numbers: Array


def floor(state: LargestState) -> Array:
    """Return the number that new ones must exceed to be kept [policies, kinds]."""
    return np.asarray(state.largest[:, ::2, :, 0].min(axis=1))


def summarise(evidence: Evidence, batch: EventBatch, before: int = 0, least: Array | None = None) -> LargestNumbers:
    """Find the largest numbers of these events (half 1).

    Args:
        evidence: the weights of the events
        batch: the events
        before: the number of earlier events of the stream, which decides when a generation ends
        least: a `floor` from some time before. Smaller numbers may be left out, without effect on the state.
    """
    policies, events, maxima, first = evidence.importance_weight.shape[1], [], [], 0
    least_kept = np.zeros((policies, len(Kind))) if least is None else least
    while first < len(batch):
        if before and before % SPAN == 0:
            least_kept = np.zeros_like(least_kept)
        stretch = slice(first, min(first + SPAN - before % SPAN, len(batch)))
        largest = np.zeros((policies, len(Kind), WEIGHTS_KEPT))
        for kind, numbers in _numbers(evidence, batch, stretch):
            new = np.flatnonzero(numbers.max(axis=1, initial=0.0) > least_kept[:, kind])
            if len(new):
                top = _largest(numbers[new] if len(numbers) > 1 else numbers)
                largest[new, kind, : top.shape[1]] = top
        events.append(stretch.stop - first)
        maxima.append(largest)
        before, first = before + stretch.stop - first, stretch.stop
    return LargestNumbers(events, np.stack(maxima) if maxima else np.zeros((0, policies, len(Kind), WEIGHTS_KEPT)))


def fold(state: LargestState, added: LargestNumbers) -> LargestState:
    """Return the state after some events (half 2)."""
    events, largest = state.events, state.largest.copy()
    for count, numbers in zip(added.events, added.numbers, strict=True):
        if events and events % SPAN == 0:
            largest[:, 1], largest[:, 2] = largest[:, 2], 0.0
        new = numbers.max(axis=-1) > largest[:, ::2, :, 0].min(axis=1)
        for generation in (0, 2) if new.any() else ():
            candidates = np.concatenate([largest[:, generation][new], numbers[new]], axis=-1)
            largest[:, generation][new] = np.sort(_largest(candidates), axis=-1)
        events += count
    return LargestState(events, largest)


def rarity(propensity: Array) -> Array:
    """Return `1 / p`, or 1 without a propensity."""
    return np.asarray(np.minimum(1.0 / np.where(propensity > 1e-300, propensity, 1.0), LARGEST_WEIGHT))


def limits(
    state: LargestState, policies: Sequence[str], effective_events: float | None = None, by_slot: bool = False
) -> Array:
    """Return the largest weights, with a policy's largest probability seen and with a probability of 1 [2, policies].

    If fewer than ten events have a number, the tenth counts as 1, or as a probability of 0. The limits of the logging
    policy are 1.

    Args:
        state: the largest numbers
        policies: the names of the policies
        effective_events: the number of events of the average that the limits are for, None if it is not fixed
        by_slot: whether to limit the weights of slates by their slots

    >>> log = EventBatch.from_arrays(reward=[0] * 20, propensity=[0.5, 0.1] * 10, policies={"new": [0.1, 0.9] * 10})
    >>> state = fold(start(1), summarise(Evidence.from_batch(log, ["new"], 10), log))
    >>> limits(state, ["new"]).ravel()
    array([ 9., 10.])
    """
    forgets = effective_events is not None and effective_events <= FORGETTING
    generations = state.largest[:, 1:] if forgets else state.largest[:, :1]
    numbers = np.sort(np.concatenate(np.moveaxis(generations, 1, 0), axis=-1), axis=-1)[..., -WEIGHTS_KEPT:]
    tenth, largest = numbers[..., 0], numbers[..., -1]
    with np.errstate(invalid="ignore", over="ignore"):  # listed slates give infinite over infinite
        ratios = largest / np.maximum(tenth, np.where(np.arange(len(Kind)) == Kind.PROBABILITY, 1e-300, 1.0))
        reached = np.where(np.isinf(largest), np.inf, largest * ratios)
    beyond = np.maximum(reached[:, Kind.OTHERS], reached[:, Kind.WHOLE])
    rarest, probability = reached[:, Kind.RARITY], np.minimum(reached[:, Kind.PROBABILITY], 1.0)
    confirmed = np.where(probability > 0, rarest, 0.0) * probability
    bounds = np.maximum([confirmed, rarest], beyond)
    if by_slot:
        bounds = np.stack([reached[:, Kind.SLOTS]] * 2)
    logged = np.array([policy == LOGGING for policy in policies])
    return np.where(logged, 1.0, np.maximum(bounds, 1.0))


def _numbers(evidence: Evidence, batch: EventBatch, stretch: slice) -> Iterator[tuple[Kind, Array]]:
    """Yield numbers of these events by kind [policies or 1, events], 0 if an event has none."""
    propensity, actions = np.nan_to_num(batch.propensity[stretch], nan=1.0), evidence.actions  # NaN: a scored event
    if "slots" in evidence.forms:
        yield Kind.SLOTS, _slot_limits(batch)[None, stretch]
    plain = np.ones((1, 1))
    if actions is not None:
        whole = (actions.targets_known & actions.logging_known[:, None]).T[:, stretch]
        yield Kind.WHOLE, whole * _largest_of_actions(actions)[:, stretch]
        if whole.all():
            return
        plain = np.where(whole, 0.0, 1.0)
    probability = evidence.importance_weight.T[:, stretch] * propensity  # 0 where an event lacks the policy
    yield Kind.RARITY, plain * rarity(propensity)[None]
    yield Kind.PROBABILITY, probability if actions is None else probability * plain
    sure = np.flatnonzero((propensity > NEARLY_SURE) & (propensity < SURE))
    if len(sure):
        others = (
            (1 - probability[:, sure]) / (1 - propensity[sure]) * (evidence.sample_weight.T[:, stretch][:, sure] > 0)
        )
        yield Kind.OTHERS, others if actions is None else others * plain[:, sure]


def _largest_of_actions(actions: Actions) -> Array:
    """Return the largest finite weight of the actions of each event [policies, events], 0 without actions."""
    weight = actions.importance_weight.T
    if not np.isfinite(weight).all():
        weight = np.where(np.isfinite(weight), weight, 0.0)
    filled = np.flatnonzero(actions.sets.sizes)
    largest = np.zeros((len(weight), len(actions.sets.sizes)))
    if len(filled):
        largest[:, filled] = np.maximum.reduceat(weight, actions.sets.offsets[filled], axis=1)
    return largest


def _slot_limits(batch: EventBatch) -> Array:
    """Return `sum of 1 / p - slots + 1` of slates, which no weight by slots exceeds.

    It is infinite for listed slates.
    """
    slates, whole = batch.slates, rarity(batch.propensity)
    if slates is None:
        return whole
    slots = slates.per_event(1.0 / slates.propensity[:, None])[:, 0] - slates.sizes + 1.0
    return np.where(slates.sizes == 0, whole, np.where(np.isin(slates.logging, (LISTED, PLACKETT_LUCE)), np.inf, slots))


def _largest(numbers: Array) -> Array:
    """Return the largest numbers along the last axis in any order, as many as are kept, or all."""
    if numbers.shape[1] <= WEIGHTS_KEPT:
        return numbers
    return np.partition(numbers, -WEIGHTS_KEPT, axis=1)[:, -WEIGHTS_KEPT:]
