"""The reward model at work: it predicts every action of every event, learns, and is judged by what it predicted."""

from __future__ import annotations

import math

import numpy as np

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain
from streameval.errors import StateError
from streameval.events import RawFields
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import Requirement
from streameval.ope.reward_models import AnyRewardModel, accuracy
from streameval.ope.reward_models.accuracy import RewardModelAccuracy


def start(model: AnyRewardModel) -> State:
    """Before the first event."""
    return {"model": model.start(), "errors": accuracy.start()}


def fold(
    model: AnyRewardModel,
    state: State,
    evidence: Evidence,
    raw_fields: RawFields | None,
    reward_range: tuple[float, float],
    kept: Mask,
) -> tuple[Evidence, State]:
    """The evidence with predictions, each from the blocks before its own, and the state after these events.

    `kept` [blocks]: the others are left out, and have predictions of 0.
    """
    if evidence.actions is None or not kept.any():
        return evidence, state
    if not kept.all():
        events = np.repeat(kept, evidence.block)
        some = raw_fields and raw_fields.take(np.flatnonzero(events).tolist())
        learned, after = fold(model, state, evidence.of_blocks(kept), some, reward_range, kept[kept])
        assert learned.actions is not None
        prediction = np.zeros_like(evidence.actions.prediction)
        prediction[events[evidence.actions.sets.owner]] = learned.actions.prediction
        return evidence.with_predictions(prediction), after
    actions = evidence.actions
    reward, weight, block = evidence.reward, evidence.sampling_weight, evidence.block
    prediction, after = model.fold(state["model"], actions.sets, reward, weight, block, reward_range, raw_fields)
    known: Mask = actions.sets.index >= 0
    if Requirement.FEATURES in model.needs:
        known = known & actions.described
    predicted = actions.of_logged(prediction)
    errors: Array = accuracy.fold(state["errors"], predicted, reward, weight, known, block)
    return evidence.with_predictions(prediction), {"model": after, "errors": errors}


def read(model: AnyRewardModel, state: State) -> RewardModelAccuracy:
    """How good the model is so far."""
    error, baseline = accuracy.read(state["errors"])
    known = [number if math.isfinite(number) else None for number in (error, baseline)]
    return RewardModelAccuracy(model.label, known[0], known[1], model.failures(state["model"]))


def to_state(model: AnyRewardModel, state: State) -> State:
    """The state as a plain value."""
    return {"model": model.to_state(state["model"]), "errors": to_plain(state["errors"])}


def from_state(model: AnyRewardModel, saved: State, trusted: AnyRewardModel | None) -> State:
    """The inverse of `to_state`.

    A model that is code of others was pickled, and loading it runs what the state says: that takes a caller who
    `trusted` this model by naming it, else StateError.
    """
    if model.is_external and trusted != model:
        raise StateError(
            f"the state holds the reward model {model.label!r}, which is code: it is loaded only for who names it",
            hint="give from_state the reward_model that the configuration names",
        )
    return {"model": model.from_state(saved["model"]), "errors": from_plain(saved["errors"])}
