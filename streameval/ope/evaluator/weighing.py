"""Weigh events: compute their evidence for each reward, with curves and reward models that learn from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array, Mask
from streameval.events import ActionSets, EventBatch
from streameval.ope.core.past import start_signs, unit_signs
from streameval.ope.evaluator import rooms
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.grid import Grid, Pair
from streameval.ope.evaluator.report_rows import COUNTS
from streameval.ope.evaluator.rewards import clipped_check, fold
from streameval.ope.evaluator.room import Incomplete
from streameval.ope.evaluator.state import EvaluatorState, EventState
from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.actions import FORMS, MODELLED_SLATES, Form, Requirement
from streameval.ope.evidence.evidence import LARGEST_WEIGHT, Evidence, SlateSums, start_recent, start_slates
from streameval.ope.evidence.examination import ExaminationState, LearnedCurve, LearnedExamination, variances
from streameval.ope.policies.coded import Faults
from streameval.ope.policies.logged import LOGGING
from streameval.ope.promotion import Lift, PromotionMonitor, repeat_for_policies
from streameval.ope.report import TrustCheck
from streameval.ope.reward_models import online
from streameval.ope.reward_models.base import LoggedActions
from streameval.ope.reward_models.online import ModelState, Predicted


def start(config: EvaluatorConfig, grids: Sequence[Grid], monitor: PromotionMonitor | None) -> EvaluatorState:
    """Start before the first event."""
    policies, rewards, learned = len(config.policies), range(len(config.rewards)), examination(config)
    return EvaluatorState(
        events=EventState(),
        failures={},
        counts={name: np.zeros(policies) for name in COUNTS},
        recent=[start_recent(policies) for _ in rewards],
        slates=[start_slates(policies) for _ in rewards],
        units=start_signs(),
        weights=largest_weights.start(policies),
        predictions=[online.start(config.reward_model) for _ in rewards],
        examination=None if learned is None else learned.start(),
        by_rank=np.zeros((policies, 0)) if learned is None else learned.start_by_rank(policies),
        drift=None if config.drift is None else config.drift.start(policies),
        promotion=None if monitor is None else monitor.start(),
        rooms=rooms.start(config),
        grids=[grid.start() for grid in grids],
        added=policies - 1,
        waiting=[],
        copies=[],
    )


def examination(config: EvaluatorConfig) -> LearnedExamination | None:
    """Return the examination if it is learned from the stream, or None."""
    model = None if config.ranking is None else config.ranking.examination
    return model if isinstance(model, LearnedExamination) else None


FoldedCurve: TypeAlias = tuple[LearnedCurve | None, ExaminationState | None]


class Completed(NamedTuple):
    """Hold events with what their log lacks, learned from the blocks before their own.

    Args:
        faults: events for which a policy has no distribution
        after: state with the rooms after these events
        goal: prediction of the goal by the reward model, and the state of the model after it, if a policy needs them
        curve: see `_curve`, None if no policy ranks
    """

    events: EventBatch
    faults: Faults
    after: EvaluatorState
    goal: Predicted | None
    curve: FoldedCurve | None


def completed(config: EvaluatorConfig, state: EvaluatorState, events: EventBatch) -> Completed:
    """Return the events with estimated propensities, and with distributions of policies that learn."""
    events, derived, clips = rooms.derive(config, state.rooms, events)
    if clips:
        counts = structs.replace(state.events, clipped=fold(state.events.clipped, clips))
        state = structs.replace(state, events=counts)
    goal = _predict(config, state, events, 0) if config.policies_need_prediction else None
    curve = _curve(config, state, events) if config.learned_policies and events.rankings is not None else None
    known = Incomplete(events, None if goal is None else goal[0], {}, *_looks(config, events, curve))
    incomplete, after = rooms.complete(config, derived, known)
    weighable = incomplete.events if config.propensity is None else _weighable(incomplete.events)
    return Completed(weighable, incomplete.faults, structs.replace(state, rooms=after), goal, curve)


def _looks(
    config: EvaluatorConfig, events: EventBatch, folded: FoldedCurve | None
) -> tuple[Array | None, Array | None]:
    """Return the probability of a look at each item, NaN on pages that do not count, and the signal of its click."""
    if config.ranking is None or events.rankings is None or folded is None:
        return None, None
    clicks = config.ranking.clicks(events, (LOGGING,), _before_blocks(folded[0]))
    looks = np.where(clicks.present[events.rankings.owner, 0], clicks.probability, np.nan)
    return looks, clicks.signal.astype(float)


def _curve(config: EvaluatorConfig, before: EvaluatorState, events: EventBatch) -> FoldedCurve:
    """Return the learned curve before each block and after the last one, and the state that it comes from."""
    learned = examination(config)
    if learned is None or before.examination is None:
        return None, before.examination
    return learned.fold(before.examination, learned.summarise(events, config.block))


def _before_blocks(curve: LearnedCurve | None) -> Array | None:
    """Return the probability of a look at each rank [blocks, ranks], from before each block."""
    return None if curve is None else curve.probability[:-1]


def _weighable(events: EventBatch) -> EventBatch:
    """Return the events with a propensity of 1 and without candidates if the propensity is unknown.

    Production does not need a propensity if it is `logging`.
    """
    unknown = np.isnan(events.propensity)
    return replace(
        events,
        propensity=np.where(unknown, 1.0, events.propensity),
        probabilities=np.where(unknown, np.nan, events.probabilities.T).T,
    )


def require_propensities(config: EvaluatorConfig, events: EventBatch) -> None:
    """Require events that have propensities, unless propensities are estimated.

    Raises:
        ValueError: They have none.
    """
    if config.propensity is None and events.scored is None and np.isnan(events.propensity).any():
        raise ValueError(
            'the events have no propensities: log them, or give the evaluator propensity={"kind": "estimated"}'
        )


def predicts(config: EvaluatorConfig, grids: Sequence[Grid]) -> bool:
    """Return whether a policy or an estimator needs the predictions of the reward model."""
    return config.policies_need_prediction or needs(grids, "prediction")


def _predict(
    config: EvaluatorConfig, before: EvaluatorState, events: EventBatch, index: int, kept: Mask | None = None
) -> Predicted:
    """Return the reward that the model expects of each action, and the state of the model after these events.

    Args:
        config: what is evaluated
        before: state before the events
        events: the events
        index: index of the reward
        kept: [blocks]. Blocks to learn from, all by default, as in `online.fold`.
    """
    if events.action_sets is None and not models_slates(config):
        return Predicted(np.zeros(0), before.predictions[index])
    reward = _reward_of(config, events, index)
    is_known, usable = ~np.isnan(reward), events.sampling_probability >= 1 / LARGEST_WEIGHT
    weight = np.where(is_known & usable, 1 / np.where(usable, events.sampling_probability, 1.0), 0.0)
    limits = config.rewards[index].range
    log = LoggedActions(
        events.action_sets or ActionSets.none(len(events), len(events.policies)),
        *(np.where(is_known, reward, 0.0), weight, config.block, limits, events.raw_fields),
    )
    model, own = config.reward_model, before.predictions[index]
    if models_slates(config):
        return online.fold_slots(model, own, log, events.slates)
    every = np.ones(log.blocks, dtype=bool)
    return Predicted(*online.fold(model, own, log, every if kept is None else kept))


def models_slates(config: EvaluatorConfig) -> bool:
    """Return whether the reward model learns from the slots of slates."""
    return any(estimator.needs >= MODELLED_SLATES for estimator in config.estimators.values())


def keeps_raw_fields(config: EvaluatorConfig, grids: Sequence[Grid]) -> bool:
    """Return whether a model or a policy that learns reads contexts and names of actions."""
    keeps_model = any(policy.keeps_model for policy in config.learned_policies.values())
    model_needs = (predicts(config, grids) or keeps_model) and config.reward_model.needs_raw_fields
    policies_need = any(policy.needs_raw_fields for policy in config.learned_policies.values())
    return model_needs or policies_need or config.propensity is not None


def needs(grids: Sequence[Grid], need: Requirement) -> bool:
    """Return whether an estimator needs this."""
    return any(need in grid.needs for grid in grids)


def forms(grids: Sequence[Grid]) -> list[Form]:
    """Return the forms of slot weights of slates that an estimator needs."""
    return [form for form in FORMS if needs(grids, form)]


class Weighed(NamedTuple):
    """Hold events as the evaluator weighs them. No reward of their own block enters the weights.

    Args:
        events: events with all propensities and distributions
        whole: their evidence, events without the goal included
        every: evidence for each reward, without recent means
        slates: sums of slates slot by slot, for each reward
        curve: learned curve before each block and after the last one
        after: state of whatever learns how to weigh the next blocks
    """

    events: EventBatch
    whole: Evidence
    every: list[Evidence]
    slates: list[SlateSums | None]
    curve: LearnedCurve | None
    after: EvaluatorState


def weighed(
    config: EvaluatorConfig,
    grids: Sequence[Grid],
    before: EvaluatorState,
    events: EventBatch,
    goal: Predicted | None = None,
    folded: FoldedCurve | None = None,
) -> Weighed:
    """Return the evidence of these events for each reward. `Completed` describes `goal`, and `folded` as `curve`."""
    shared, curve, after = _weights(config, grids, before, events, folded)
    every = [shared]
    if len(config.rewards) > 1:
        every = [shared.with_reward(_reward_of(config, events, index)) for index in range(len(config.rewards))]
    rewards, slates, learned = [], [], []
    for index, evidence in enumerate(every):
        seen, predictions, parts = _with_predictions(
            config, grids, evidence, index, before, events, None if index else goal
        )
        learned.append(predictions)
        sums = None
        if forms(grids):
            reward_events = (
                events if not index or events.slates is None else events.of_reward(config.rewards[index].name)
            )
            seen, sums = seen.with_forms(reward_events, config.policies, forms(grids), parts)
        rewards.append(seen)
        slates.append(sums)
    whole = replace(rewards[0], sample_weight=shared.sample_weight)
    return Weighed(events, whole, rewards, slates, curve, structs.replace(after, predictions=learned))


def _reward_of(config: EvaluatorConfig, events: EventBatch, index: int) -> Array:
    """Return the column of the reward with this index. The goal is the first."""
    if not index:
        return events.reward
    return events.of_reward(config.rewards[index].name).reward


def _weights(
    config: EvaluatorConfig,
    grids: Sequence[Grid],
    before: EvaluatorState,
    events: EventBatch,
    folded: FoldedCurve | None,
) -> tuple[Evidence, LearnedCurve | None, EvaluatorState]:
    """Return the importance weights of these events, the curve, and the state that both come from."""
    signs, units = unit_signs(before.units, events.unit, len(events), config.block)
    after = structs.replace(before, units=units)
    if config.ranking is None:
        from_events = Evidence.from_batch if len(config.rewards) == 1 else Evidence.without_rewards
        return replace(from_events(events, config.policies, config.block), signs=signs), None, after
    curve, after.examination = folded or _curve(config, before, events)
    windows = needs(grids, "window")
    evidence = Evidence.from_rankings(
        events, config.policies, config.ranking, config.block, _before_blocks(curve), windows
    )
    return replace(evidence, signs=signs), curve, after


def _with_predictions(
    config: EvaluatorConfig,
    grids: Sequence[Grid],
    evidence: Evidence,
    index: int,
    before: EvaluatorState,
    events: EventBatch,
    predicted: Predicted | None,
) -> tuple[Evidence, ModelState, Array | None]:
    """Return the evidence of one reward with its predictions, the state of the reward model, and parts of slots."""
    own = before.predictions[index]
    if needs(grids, "prediction") and events.rankings is not None:
        return *online.fold_relevance(config.reward_model, own, evidence, events.rankings, events.raw_fields), None
    if predicted is not None or needs(grids, "prediction"):
        if predicted is None:
            predicted = _predict(config, before, events, index, _predicted_blocks(grids, evidence))
        return evidence.with_predictions(predicted.actions), predicted.state, predicted.slots
    return evidence, own, None


def _predicted_blocks(grids: Sequence[Grid], evidence: Evidence) -> Mask:
    """Return the blocks that the reward model sees, [blocks]: all, or the ones that a default estimator can use."""
    using = [grid for grid in grids if "prediction" in grid.needs]
    if evidence.actions is None or not all(grid.optional for grid in using):
        return np.ones(evidence.blocks, dtype=bool)
    return np.asarray(np.logical_or.reduce([evidence.restricted_to(grid.needs).used_blocks for grid in using]))


def with_error_of_curve(
    config: EvaluatorConfig, lifts: Mapping[Pair, Sequence[Lift]], curve: LearnedCurve, by_rank: Array
) -> dict[Pair, list[Lift]]:
    """Add the error of a learned curve to the variance of the lifts of rankings.

    Args:
        config: what is evaluated
        lifts: lifts by pair
        curve: curve after each block, see `variances`
        by_rank: clicks by rank after each block
    """
    widened = {}
    for (estimator, average), (lift,) in lifts.items():
        _, lift_variance = variances(curve, by_rank, config.estimators[estimator].ratio)
        shared = lift_variance[:, 1:]
        block = lift.block and lift.block._replace(shared=shared)
        wider = lift._replace(sampling_variance=lift.sampling_variance + shared, block=block)
        widened[estimator, average] = [wider]
    return widened


def further_checks(
    config: EvaluatorConfig, state: EvaluatorState, policy_checks: Sequence[TrustCheck]
) -> Iterator[TrustCheck]:
    """Yield the trust checks that promotion does not do: of a learned curve, of clipped rewards and of rooms.

    Args:
        config: what is evaluated
        state: state of the evaluator
        policy_checks: other checks, of the policies that have events
    """
    curve = examination(config)
    if curve is not None and state.examination is not None:
        yield from repeat_for_policies(policy_checks, "examination", *curve.check(state.examination))
    if state.events.clipped and config.promotion is not None:
        check = clipped_check(state.events.clipped, config.promotion.trust.clipped_share)
        yield from repeat_for_policies(policy_checks, *check)
    yield from rooms.checks(config, state.rooms, policy_checks)
