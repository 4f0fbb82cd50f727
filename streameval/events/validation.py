"""What must hold for every event, checked on whole columns: one place for messages and for arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.events.tolerances import NOISE, tolerance

if TYPE_CHECKING:
    from streameval.events.action_sets import ActionSets
    from streameval.events.batch import EventBatch
    from streameval.events.slates import ListedSlates, SlateColumns

LATEST = 1e12
"""Seconds since 1970, far beyond the year 9999: what is later is counted in smaller units."""
DISAGREEMENT = 1e-6
"""`propensity` may differ from the logged action's entry of `propensities` by this, relatively."""

Mask = NDArray[np.bool_]


class ValidationRule(NamedTuple):
    """Which events break it ([n]), the reason they are rejected with, and what is wrong with one of them."""

    reason: str
    broken: Mask
    detail: Callable[[int], str]


class Fault(NamedTuple):
    """Why one event is rejected."""

    reason: str
    detail: str


def faults(
    batch: EventBatch, reward_range: tuple[float, float] | None = None, *, rewarded: bool = True
) -> dict[int, Fault]:
    """The rows of `batch` that are not events, each with the first rule that it breaks.

    `rewarded`: they have their rewards, which do not come apart from the decisions.
    """
    found: dict[int, Fault] = {}
    with np.errstate(invalid="ignore", over="ignore"):  # NaN compares as false, and infinity as larger, as they should
        for rule in _rules(batch, reward_range, rewarded):
            for row in np.flatnonzero(rule.broken).tolist():
                if row not in found:
                    found[row] = Fault(rule.reason, rule.detail(row))
    return found


def _rules(batch: EventBatch, reward_range: tuple[float, float] | None, rewarded: bool) -> Iterator[ValidationRule]:
    if rewarded:
        yield _finite("reward", batch.reward, ~np.isfinite(batch.reward))
    yield _finite("timestamp", batch.timestamp, np.isinf(batch.timestamp))  # NaN: arrays without times
    yield ValidationRule(
        "malformed", np.abs(batch.timestamp) > LATEST, lambda row: f"timestamp: {_too_large(batch.timestamp[row])}"
    )
    yield _chance("sampling_probability", batch.sampling_probability)
    if batch.slates is not None:
        yield from _slate_rules(batch.slates, batch.policies)
    yield from _choice_rules(batch.policies, batch.probabilities, batch.propensity, batch.action_sets)
    if reward_range is not None and rewarded:
        yield within_range(batch.reward, *reward_range)


def _choice_rules(
    policies: Sequence[str], probabilities: Array, propensity: Array, sets: ActionSets | None
) -> Iterator[ValidationRule]:
    """What must hold where a choice was made: of events, and of slots alike."""
    if sets is not None:
        yield _known_action(sets)
    yield ValidationRule(
        "missing_field", np.isnan(propensity), lambda row: "propensity: missing, and so is `propensities`"
    )
    yield _chance("propensity", propensity)
    yield _probabilities(policies, probabilities)
    if sets is not None:
        yield from _set_rules(sets, policies, propensity)


def _set_rules(sets: ActionSets, policies: Sequence[str], propensity: Array) -> Iterator[ValidationRule]:
    if sets.features is not None:
        yield _entries("not_finite", sets, "features", sets.features, np.isinf(sets.features), "is not a finite number")
    broken = _improbable(sets.propensities, 1.0)
    yield _entries("propensity_range", sets, "propensities", sets.propensities[:, None], broken[:, None])
    yield _sums_to_one(sets, "propensities", sets.propensities)
    yield _consistent(sets, propensity)
    for policy, values in zip(policies, sets.probabilities.T, strict=True):
        broken = _improbable(values, 1.0 + NOISE)
        yield _entries("probability_range", sets, f"policies.{policy}", values[:, None], broken[:, None])
        yield _sums_to_one(sets, f"policies.{policy}", values)


def _too_large(timestamp: float) -> str:
    return f"{timestamp:.10g} is no time in seconds since 1970; is it in milliseconds?"


def _finite(field: str, column: Array, broken: Mask) -> ValidationRule:
    return ValidationRule("not_finite", broken, lambda row: f"{field}: {column[row]} is not a finite number")


def _chance(field: str, column: Array) -> ValidationRule:
    broken: Mask = ~((column > 0.0) & (column <= 1.0))
    return ValidationRule("propensity_range", broken, lambda row: f"{field}: {column[row]:.10g} is not in (0, 1]")


def _improbable(values: Array, most: float) -> Mask:
    improbable: Mask = (values < 0.0) | (values > most)
    return improbable


def _probabilities(policies: Sequence[str], probabilities: Array) -> ValidationRule:
    improbable = _improbable(probabilities, 1.0 + NOISE)

    def detail(row: int) -> str:
        policy = int(improbable[row].argmax())
        return f"policies.{policies[policy]}: {probabilities[row, policy]:.10g} is not in [0, 1]"

    return ValidationRule("probability_range", np.logical_or.reduce(improbable, axis=1), detail)


def within_range(reward: Array, low: float, high: float) -> ValidationRule:
    """Rewards [n] lie in [low, high]."""
    broken = (reward < low) | (reward > high)
    return ValidationRule(
        "reward_range", broken, lambda row: f"reward: {reward[row]:.10g} is not in [{low:.10g}, {high:.10g}]"
    )


def _known_action(sets: ActionSets) -> ValidationRule:
    broken = (sets.index < 0) & (sets.sizes > 0)
    return ValidationRule("unknown_action", broken, lambda row: f"action: not one of the {sets.sizes[row]} `actions`")


def _consistent(sets: ActionSets, propensity: Array) -> ValidationRule:
    events, rows = sets.logged
    listed = np.full(len(propensity), np.nan)
    listed[events] = sets.propensities[rows]
    broken: Mask = np.abs(propensity - listed) > DISAGREEMENT * np.maximum(propensity, listed)

    def detail(row: int) -> str:
        return f"propensity: {propensity[row]:.10g}, but `propensities` has {listed[row]:.10g} for the action"

    return ValidationRule("inconsistent_propensity", broken, detail)


def _entries(
    reason: str, sets: ActionSets, field: str, values: Array, broken: Mask, problem: str = "is not in [0, 1]"
) -> ValidationRule:
    """A rule for each entry of a list over actions: `values` and `broken` are [total, any]."""

    def detail(event: int) -> str:
        start, stop = sets.offsets[event : event + 2]
        action, column = np.argwhere(broken[start:stop])[0]
        return f"{field}[{action}]: {values[start + action, column]:.10g} {problem}"

    rows = np.flatnonzero(broken.any(axis=1))
    return ValidationRule(reason, np.bincount(sets.owner[rows], minlength=len(sets.index)) > 0, detail)


def _sums_to_one(sets: ActionSets, field: str, values: Array) -> ValidationRule:
    sums = np.bincount(sets.owner, weights=values, minlength=len(sets.index))
    broken: Mask = (np.abs(sums - 1.0) > tolerance(sets.sizes)) & (sets.sizes > 0)
    return ValidationRule("distribution_sum", broken, lambda row: f"{field}: sums to {sums[row]:.10g}, not to 1")


def _slate_rules(slates: SlateColumns, policies: Sequence[str]) -> Iterator[ValidationRule]:
    if slates.listed is not None:
        yield from _list_rules(slates.listed, slates)
    for rule in _choice_rules(policies, slates.probabilities, slates.propensity, slates.actions):
        yield _of_slots(rule, slates)
    yield _of_slots(_follows(slates), slates)


def _of_slots(rule: ValidationRule, slates: SlateColumns) -> ValidationRule:
    """A rule about slots as one about events: the first slot that breaks it is named."""

    def detail(event: int) -> str:
        start, stop = slates.offsets[event : event + 2]
        slot = int(rule.broken[start:stop].argmax())
        return f"slots.{slot}.{rule.detail(start + slot)}"

    events = np.bincount(slates.owner[rule.broken], minlength=len(slates.logging)) > 0
    return ValidationRule(rule.reason, events, detail)


def _follows(slates: SlateColumns) -> ValidationRule:
    slots, rows = slates.actions.logged
    follows = np.full(len(slates.propensity), np.nan)
    follows[slots] = slates.marginals[rows]
    given = slates.propensity
    broken: Mask = np.abs(given - follows) > DISAGREEMENT * np.maximum(given, follows)

    def detail(slot: int) -> str:
        return f"propensity: {given[slot]:.10g}, but how the slate was made gives {follows[slot]:.10g}"

    return ValidationRule("inconsistent_propensity", broken, detail)


def _list_rules(listed: ListedSlates, slates: SlateColumns) -> Iterator[ValidationRule]:
    events, sizes = len(slates.logging), np.diff(listed.offsets)
    owner = np.repeat(np.arange(events), sizes)
    broken = _improbable(listed.probability, 1.0)

    def detail(event: int) -> str:
        start, stop = listed.offsets[event : event + 2]
        slate = int(broken[start:stop].argmax())
        return f"slate_propensities[{slate}]: {listed.probability[start + slate]:.10g} is not in [0, 1]"

    yield ValidationRule("propensity_range", np.bincount(owner[broken], minlength=events) > 0, detail)
    sums = np.bincount(owner, weights=listed.probability, minlength=events)
    uneven: Mask = (np.abs(sums - 1.0) > tolerance(sizes)) & (sizes > 0)
    yield ValidationRule(
        "distribution_sum", uneven, lambda row: f"slate_propensities: sums to {sums[row]:.10g}, not to 1"
    )
    unlisted = (sizes > 0) & (listed.logged < 0)
    yield ValidationRule("unknown_action", unlisted, lambda row: f"slots: not one of the {sizes[row]} `slates`")
