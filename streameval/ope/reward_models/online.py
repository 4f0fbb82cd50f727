"""Run the reward model: predict every action of every event, learn, and score the predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask, decayed_path, from_plain, ratio, to_plain
from streameval.errors import StateError
from streameval.events import ActionSets, RawFields
from streameval.events.action_sets import Features, Index, cumulative_offsets
from streameval.events.rankings import Rankings
from streameval.events.slates import SlateColumns
from streameval.ope.evidence.evidence import Evidence, fading_of
from streameval.ope.reward_models import AnyRewardModel
from streameval.ope.reward_models.base import LoggedActions


class RewardModelAccuracy(msgspec.Struct, frozen=True):
    """Measure how well the reward model predicts the rewards of logged actions, each before it learned from it.

    Attributes:
        model: the label of the model
        squared_error: the mean over the last 100,000 events
        baseline_squared_error: the mean error of the mean reward of the blocks before, on these events. A useful model
            is below it.
        failures: how often an external model failed, by reason
    """

    model: str
    squared_error: float | None
    baseline_squared_error: float | None
    failures: Mapping[str, int] = {}


class Predicted(NamedTuple):
    """Hold predictions of rewards.

    Attributes:
        actions: of each row of the action sets [rows]
        state: the state of the model after these events
        slots: the part that each row of `slates.actions` has in the reward of a slate [rows], None if not predicted
    """

    actions: Array
    state: ModelState
    slots: Array | None = None


class ModelState(msgspec.Struct, frozen=True, eq=False):
    """Hold what a reward model has learned, and its errors.

    Attributes:
        model: in a form of the model
        errors: sums of `1, r` of all predicted events, and of `1` and both squared errors if a mean was known [5]
    """

    model: Any
    errors: Array


def start(model: AnyRewardModel) -> ModelState:
    """Start before the first event."""
    return ModelState(model.start(), np.zeros(5))


def fold(model: AnyRewardModel, state: ModelState, log: LoggedActions, is_selected: Mask) -> tuple[Array, ModelState]:
    """Predict all rows of actions, each from the blocks before its own, and return the state after these events.

    Blocks that are not in `is_selected` [blocks] are left out, and have predictions of 0.
    """
    prediction = np.zeros(len(log.sets.propensities))
    if not is_selected.any():
        return prediction, state
    if not is_selected.all():
        rows = np.repeat(is_selected, log.block)[log.sets.owner]
        prediction[rows], after = fold(model, state, log.select_blocks(is_selected), is_selected[is_selected])
        return prediction, after
    prediction, learned = model.fold(state.model, log)
    errors = _fold_errors(state.errors, log.logged_values(prediction), log.reward, _weights(model, log), log.block)
    return prediction, ModelState(learned, errors)


def _weights(model: AnyRewardModel, log: LoggedActions) -> Array:
    """Return the weights of events, 0 without the inputs of the model [n]."""
    has_inputs: Mask = log.sets.index >= 0
    if "features" in model.needs:
        has_inputs = has_inputs & (log.sets.widths > 0)
    return np.where(has_inputs, log.weight, 0.0)


SLOTS = 20
"""Number of slots of a slate, the first ones, that a model learns from and predicts."""


def fold_slots(model: AnyRewardModel, state: ModelState, log: LoggedActions, slates: SlateColumns | None) -> Predicted:
    """Predict events that may be slates, and return the state after them.

    Each slot of a slate is an event with the reward of the slate, so that the model m learns `E[r | the slot shows a]`.
    The part of the action in the reward of a slate with l slots is `m(a) - (1 - 1 / l) R`, with the mean reward R of
    the blocks before, if slots are filled independently and rewards are sums over slots.

    Args:
        model: the reward model
        state: its state before the events
        log: the events, with the action sets of the ones that are no slates
        slates: the slates among them, None without any
    """
    events, blocks = len(log.reward), log.blocks
    source, pick, kept = [log.sets], np.full((events, SLOTS), events), np.zeros(0, dtype=np.int64)
    pick[:, 0] = np.arange(events)
    if slates is not None:
        kept = np.flatnonzero(slates.position < SLOTS)
        pick = np.where(pick == events, events + len(slates.reward), pick)
        pick[slates.owner[kept], slates.position[kept]] = events + kept
        source.append(slates.actions)
    source.append(ActionSets.none(1, log.sets.probabilities.shape[1]))
    sets = ActionSets.joined(source, [len(part.index) for part in source]).take(pick.ravel())
    reward, weight = np.repeat(log.reward, SLOTS), np.where(sets.index >= 0, np.repeat(log.weight, SLOTS), 0.0)
    sizes = [0] * events if slates is None else slates.sizes.tolist()
    names = None if log.raw_fields is None else _names_of_slots(log.raw_fields, sizes)
    slots = LoggedActions(sets, reward, weight, log.block * SLOTS, log.reward_range, names)
    prediction, after = fold(model, state, slots, np.ones(blocks, dtype=bool))
    is_slot = pick.ravel()[sets.owner] >= events
    if slates is None:
        return Predicted(prediction, after, np.zeros(0))
    parts = np.zeros(len(slates.actions.propensities))
    rows = slates.position[slates.actions.owner] < SLOTS
    path = _mean_path(state.errors, reward, _weights(model, slots), slots.block)
    mean = np.nan_to_num(ratio(path[:-1, 1], path[:-1, 0]))[np.arange(events) * blocks // events]
    parts[rows] = prediction[is_slot]
    parts -= ((1 - 1 / np.maximum(slates.sizes, 1)) * mean)[slates.events_of_rows] * rows
    return Predicted(prediction[~is_slot], after, parts)


def _names_of_slots(raw_fields: RawFields, sizes: Sequence[int]) -> RawFields:
    """Return the fields of each slot, for events with these numbers of slots, 0 for other events."""
    values: list[Mapping[str, Any]] = []
    for fields, size in zip(raw_fields.values, sizes, strict=True):
        lists = fields.get("slots") or [None] * size
        own = [{**fields, "actions": names} for names in lists[:SLOTS]] if size else [fields]
        values += own + [{}] * (SLOTS - len(own))
    return RawFields(values)


ITEMS = 50
"""Number of items of a page, at the first ranks, that a model of attractiveness learns from and predicts."""


def fold_relevance(
    model: AnyRewardModel, state: ModelState, evidence: Evidence, rankings: Rankings, raw_fields: RawFields | None
) -> tuple[Evidence, ModelState]:
    """Add the model's predictions of the attractiveness of items to pages, and return the state after them.

    An item that users look at with probability `theta` is an event of weight `theta`. Its reward is `1 / theta` for a
    click and 0 otherwise, both minus noise, with the attractiveness as expectation. Pages that do not list all items
    teach nothing.
    """
    clicks, pages = evidence.clicks, len(evidence.reward)
    assert clicks is not None
    whole = (rankings.sizes == rankings.shown)[rankings.owner]
    rows = np.flatnonzero(whole & (rankings.rank <= ITEMS) & (clicks.probability > 0))
    index = rankings.owner[rows] * ITEMS + rankings.rank[rows].astype(np.int64) - 1
    reward, weight = np.zeros(pages * ITEMS), np.zeros(pages * ITEMS)
    reward[index] = clicks.signal[rows] / clicks.probability[rows]
    weight[index] = clicks.probability[rows] * evidence.event_weight[rankings.owner[rows]]
    sets = _item_sets(rankings, rows, index, pages * ITEMS)
    names = None if raw_fields is None else _names_of_items(raw_fields, rankings, rows, index, pages * ITEMS)
    log = LoggedActions(sets, reward, weight, evidence.block * ITEMS, (0.0, 1.0), names)
    relevance = np.zeros(len(rankings.rank))
    relevance[rows], after = fold(model, state, log, np.ones(log.blocks, dtype=bool))
    return replace(evidence, clicks=replace(clicks, relevance=relevance)), after


def _item_sets(rankings: Rankings, rows: Index, index: Index, events: int) -> ActionSets:
    """Make items the only actions of the events with these indices. All other events have none."""
    sizes, features = np.zeros(events, dtype=np.int64), None
    sizes[index] = 1
    if rankings.features is not None:
        widths = (rankings.features.sizes // np.maximum(rankings.shown, 1))[rankings.owner]
        taken = Features(cumulative_offsets(widths), rankings.features.values).take(rows)
        by_event = np.zeros(events, dtype=np.int64)
        by_event[index] = taken.sizes
        features = Features(cumulative_offsets(by_event), taken.values)
    return ActionSets(
        offsets=cumulative_offsets(sizes),
        index=sizes - 1,
        propensities=np.ones(len(rows)),
        features=features,
        probabilities=np.empty((0, len(rows))).T,
    )


def _names_of_items(raw_fields: RawFields, rankings: Rankings, rows: Index, index: Index, events: int) -> RawFields:
    values: list[Mapping[str, Any]] = [{}] * events
    owners, ranks = rankings.owner[rows].tolist(), rankings.rank[rows].astype(int).tolist()
    for event, owner, rank in zip(index.tolist(), owners, ranks, strict=True):
        page = raw_fields.values[owner]
        values[event] = {**page, "actions": page["actions"][rank - 1 : rank]}
    return RawFields(values)


def delta(model: AnyRewardModel, before: ModelState, after: ModelState, events: int) -> ModelState:
    """Return what one block of this many events alone adds to a state, see `RewardModel.delta`."""
    model_delta = model.delta(before.model, after.model, events)
    return ModelState(model_delta, after.errors - fading_of(events) * before.errors)


def apply_delta(model: AnyRewardModel, state: ModelState, delta: ModelState, events: int) -> ModelState:
    """Return a state faded by `events`, plus what these events add to it."""
    learned = model.apply_delta(state.model, delta.model, events)
    return ModelState(learned, fading_of(events) * state.errors + delta.errors)


def _fold_errors(sums: Array, predicted: Array, reward: Array, weight: Array, block: int) -> Array:
    """Return the sums of errors after these events [n], with a weight of 0 if the model had no prediction."""
    blocks, fading = max(1, len(reward) // block), fading_of(block)
    path = _mean_path(sums, reward, weight, block)
    mean = np.repeat(ratio(path[:-1, 1], path[:-1, 0]), len(reward) // blocks)
    compared = np.where(np.isnan(mean), 0.0, weight)
    errors = np.stack([np.ones_like(reward), (reward - predicted) ** 2, (reward - np.nan_to_num(mean)) ** 2], axis=1)
    added = (compared[:, None] * errors).reshape(blocks, -1, 3).sum(axis=1)
    return np.concatenate([path[-1], decayed_path(sums[2:], added, fading)[-1]])


def _mean_path(sums: Array, reward: Array, weight: Array, block: int) -> Array:
    """Return decayed sums of 1 and of the reward before the first block and after each block [1 + blocks, 2]."""
    logged = np.stack([weight, weight * reward], axis=1).reshape(max(1, len(reward) // block), -1, 2).sum(axis=1)
    return np.concatenate([sums[None, :2], decayed_path(sums[:2], logged, fading_of(block))])


def read(model: AnyRewardModel, state: ModelState) -> RewardModelAccuracy:
    """Return the accuracy of the model so far."""
    errors = ratio(state.errors[3:], state.errors[2]).tolist()
    squared_error, baseline = (error if math.isfinite(error) else None for error in errors)
    return RewardModelAccuracy(model.label, squared_error, baseline, model.failures(state.model))


def to_state(model: AnyRewardModel, state: ModelState) -> ModelState:
    """Return the state with the model as a plain value."""
    return msgspec.structs.replace(state, model=to_plain(model.to_state(state.model)))


def from_state(model: AnyRewardModel, saved: ModelState, trusted: AnyRewardModel | None) -> ModelState:
    """Invert `to_state`.

    An external model was pickled, and loading it runs code from the state. So the caller must name the model as
    `trusted`.

    Raises:
        StateError: The model is external, and the caller does not name it.
    """
    if model.is_external and trusted != model:
        raise StateError(
            f"the state holds the reward model {model.label!r}, which is code: it loads only if the caller names it",
            hint="give from_state the reward_model that the configuration names",
        )
    return msgspec.structs.replace(saved, model=model.from_state(from_plain(saved.model)))
