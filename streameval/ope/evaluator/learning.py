"""Candidates that learn: their distributions, each from the blocks before its own, and what they know."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array, State, to_plain
from streameval.events import ActionSets, EventBatch, Fault, RawFields
from streameval.ope.evaluator import propensities
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.evaluator.weighing import predict
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.policies import policy_file
from streameval.ope.policies.base import Answer, LearningPolicy, Log
from streameval.ope.policies.coded import Faults, fill
from streameval.ope.policies.learned import Learned
from streameval.ope.policies.of_reward_model import OfRewardModel
from streameval.ope.policies.versions import FrozenPolicy
from streameval.ope.reward_models import AnyRewardModel
from streameval.ope.reward_models.base import LoggedActions
from streameval.ope.reward_models.online import ModelState


def to_state(plan: Plan, learned: State) -> State:
    """The state of all policies that learn, as a plain value."""

    def saved(policy: LearningPolicy, own: State) -> State:
        return {"model": plan.reward_model.to_state(own["model"])} if policy.keeps_model else policy.to_state(own)

    return {name: to_plain(saved(policy, learned[name])) for name, policy in plan.learned_policies.items()}


def resume(plan: Plan, saved: State) -> State:
    """The inverse of `to_state`: it loads the code of others, which the plan has if the caller names it."""

    def loaded(policy: LearningPolicy, own: State) -> State:
        return {"model": plan.reward_model.from_state(own["model"])} if policy.keeps_model else policy.from_state(own)

    return {name: loaded(policy, saved[name]) for name, policy in plan.learned_policies.items()}


def learned(plan: Plan, state: EvaluatorState, name: str) -> State:
    """The knowledge of a policy that learns: its own, or that of the reward model, which it follows."""
    if isinstance(plan.learned_policies[name], OfRewardModel):
        return {"model": state.predictions[0].model}
    return state.learned_policies[name]


def file_content(
    version: FrozenPolicy, own: State, model: AnyRewardModel, reward_range: tuple[float, float]
) -> bytes | None:
    """The content of the file of a frozen copy that is in this state, live or saved; None where it has no file.

    `model`: the reward model, which a copy may have copied.
    """
    policy = version.policy
    if isinstance(policy, Learned):
        return policy_file.to_bytes(policy, own["weights"], version.events)
    if isinstance(policy, OfRewardModel):
        coefficients = model.coefficients(own["model"])
        if coefficients is None:
            return None
        return policy_file.of_model(policy, coefficients, reward_range, version.events)
    return own["content"] if "content" in own else policy.content(own)


class Predicted(NamedTuple):
    """Events with the distributions of the policies that learn, each from the blocks before its own.

    `faults`: the events without a distribution. `after`: the state with the parts that learn from these events. `goal`:
    where a policy needs it, the prediction of the goal by the reward model, and the state of the model after it.
    """

    events: EventBatch
    faults: Faults
    after: EvaluatorState
    goal: tuple[Array, ModelState] | None


def predicted(plan: Plan, state: EvaluatorState, events: EventBatch) -> Predicted:
    """The events as they are weighed: with the propensities that are estimated, and the policies that learn."""
    if plan.propensity is None or state.propensities is None:
        return predict_policies(plan, state, events)
    events, learned = plan.propensity.fold(state.propensities, events, plan.block)
    found = predict_policies(plan, structs.replace(state, propensities=learned), events)
    return found._replace(events=propensities.weighable(found.events))


def predict_policies(plan: Plan, before: EvaluatorState, events: EventBatch) -> Predicted:
    """The events as the policies that learn predict them: the reward model first, where a policy needs it."""
    if not plan.learned_policies:
        return Predicted(events, {}, before, None)
    sets = events.action_sets or ActionSets.none(len(events), len(events.policies))
    usable = np.minimum(events.propensity, events.sampling_probability) >= 1 / LARGEST_WEIGHT
    propensity, sampling = (
        np.where(usable, column, 1.0) for column in (events.propensity, events.sampling_probability)
    )
    reward = np.where(usable, events.reward, np.nan)
    log = Log(sets, propensity, reward, 1 / sampling, plan.block, raw_fields=events.raw_fields)
    goal = None
    if plan.policies_need_prediction:
        goal = predict(plan, before, events, 0)
        log = _with_prediction(plan, log, goal[0])
    answers, after = {}, {}
    for name, policy in plan.learned_policies.items():
        own = before.learned_policies[name]
        asked = _with_prediction(plan, log, _predict_by(plan, own["model"], events)) if policy.keeps_model else log
        answers[name], after[name] = policy.fold(own, asked)
    filled, faults = fill(events, {name: partial(_answered, sets, answer) for name, answer in answers.items()})
    return Predicted(filled, faults, structs.replace(before, learned_policies=after), goal)


def _with_prediction(plan: Plan, log: Log, prediction: Array) -> Log:
    """The log with the predictions of rewards; NaN where the model lacks features."""
    can = np.repeat(log.sets.widths > 0, log.sets.sizes) | ("features" not in plan.reward_model.needs)
    return log._replace(prediction=np.where(can, prediction, np.nan))


def _predict_by(plan: Plan, model: State, events: EventBatch) -> Array:
    """The goal that the reward model expects of each action, in this state, which stays as it is."""
    if events.action_sets is None:
        return np.zeros(0)
    nothing, limits = np.zeros(len(events)), plan.rewards[0].range
    log = LoggedActions(events.action_sets, nothing, nothing, len(events) + 1, limits, events.raw_fields)
    return plan.reward_model.fold(model, log)[0]


def _answered(known: ActionSets, answer: Answer, sets: ActionSets, _raw_fields: RawFields) -> Answer:
    """The answer for these action sets; none for the slots of slates, which are other sets."""
    if len(sets.index) == len(known.index) and np.array_equal(sets.offsets, known.offsets):
        return answer
    fault = Fault("missing_field", "actions: a policy that learns chooses single actions, and this is a slate")
    return np.full(len(sets.propensities), np.nan), dict.fromkeys(range(len(sets.index)), fault)
