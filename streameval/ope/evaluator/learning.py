"""The evidence of events for each reward, the parts of the state that learn from the log, and their trust checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.events import ActionSets, EventBatch, Fault, RawFields
from streameval.ope.averages.variance import start_signs, unit_signs
from streameval.ope.evaluator import ramp
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence import frequencies, largest_weights
from streameval.ope.evidence.actions import FORMS, Form, Requirement
from streameval.ope.evidence.evidence import LARGEST_WEIGHT, Evidence, start_recent, start_slates
from streameval.ope.evidence.examination import LearnedExamination
from streameval.ope.policies.base import Answer
from streameval.ope.policies.coded import Faults, fill
from streameval.ope.policies.learned import Log
from streameval.ope.promotion import of_every_policy
from streameval.ope.report import TrustCheck
from streameval.ope.reward_models import online

OF_REWARDS = ("recent", "slates", "predictions")
"""Parts of the state that learn about each reward."""


def start(plan: Plan) -> State:
    """The parts of the state that learn, before the first event."""
    policies, rewards, learned = len(plan.policies), range(len(plan.rewards)), examination(plan)
    return {
        "learned_policies": {name: policy.start() for name, policy in plan.learned_policies.items()},
        "frequencies": frequencies.start(),
        "ramp": ramp.start(plan),
        "recent": [start_recent(policies) for _ in rewards],
        "slates": [start_slates(policies) for _ in rewards],
        "units": start_signs(),
        "weights": largest_weights.start(policies),
        "predictions": [online.start(plan.reward_model) for _ in rewards],
        "examination": {} if learned is None else learned.start(),
        "by_rank": np.zeros((policies, 0)) if learned is None else learned.start_by_rank(policies),
    }


def examination(plan: Plan) -> LearnedExamination | None:
    """The examination, if it is learned from the stream."""
    found = None if plan.ranking is None else plan.ranking.examination
    return found if isinstance(found, LearnedExamination) else None


def predict_policies(plan: Plan, state: State, events: EventBatch) -> tuple[EventBatch, Faults, State]:
    """The events with the distributions of the policies that learn, each from the blocks before its own.

    `state`: that of each policy by name. Returned are also the events without a distribution, and the state after the
    whole blocks.
    """
    if not plan.learned_policies:
        return events, {}, {}
    sets = events.action_sets or ActionSets.none(len(events), len(events.policies))
    usable = np.minimum(events.propensity, events.sampling_probability) >= 1 / LARGEST_WEIGHT
    propensity, sampling = (
        np.where(usable, column, 1.0) for column in (events.propensity, events.sampling_probability)
    )
    log = Log(sets, propensity, np.where(usable, events.reward, np.nan), 1 / sampling, plan.block)
    answers, after = {}, {}
    for name, policy in plan.learned_policies.items():
        answers[name], after[name] = policy.fold(state[name], log)
    filled, faults = fill(events, {name: partial(_answered, sets, answer) for name, answer in answers.items()})
    return filled, faults, after


def _answered(known: ActionSets, answer: Answer, sets: ActionSets, _raw_fields: RawFields) -> Answer:
    """The answer for these action sets; none for the slots of slates, which are other sets."""
    if len(sets.index) == len(known.index) and np.array_equal(sets.offsets, known.offsets):
        return answer
    fault = Fault("missing_field", "actions: a policy that learns chooses single actions, and this is a slate")
    return np.full(len(sets.propensities), np.nan), dict.fromkeys(range(len(sets.index)), fault)


def needs(grids: Sequence[Grid], need: Requirement) -> bool:
    """Whether an estimator needs this."""
    return any(need in grid.needs for grid in grids)


def forms(grids: Sequence[Grid]) -> list[Form]:
    """The forms of slates slot by slot that an estimator needs."""
    return [form for form in FORMS if needs(grids, form)]


def evidence(
    plan: Plan, grids: Sequence[Grid], before: State, events: EventBatch
) -> tuple[Evidence, list[Evidence], State]:
    """The evidence of these events for the goal and for each reward, and the parts of the state that learn, after them.

    The first one has all events, also those that lack the goal; the others have those with their reward.
    """
    shared, after = _weights(plan, before, events)
    every = [shared]
    if len(plan.rewards) > 1:
        every = [shared.of_reward(reward) for reward in _rewards_of(plan, events)]
    learned = [_with_learned(plan, grids, each, place, before, events) for place, each in enumerate(every)]
    every = [each for each, _ in learned]
    for name in OF_REWARDS:
        after[name] = [own.get(name, before[name][place]) for place, (_, own) in enumerate(learned)]
    after["weights"] = largest_weights.fold(before["weights"], every[0], events)
    return replace(every[0], sample_weight=shared.sample_weight), every, after


def _rewards_of(plan: Plan, events: EventBatch) -> Iterator[Array]:
    """The columns of all rewards, the goal first."""
    yield events.reward
    for reward in plan.rewards[1:]:
        yield np.full(len(events), np.nan) if events.further is None else events.further.of(reward.name)


def _weights(plan: Plan, before: State, events: EventBatch) -> tuple[Evidence, State]:
    """The importance weights of these events, and the parts of the state that learn from all of them."""
    after: State = {}
    signs, after["units"] = unit_signs(before["units"], events.unit, len(events), plan.block)
    if plan.ranking is None:
        of_events = Evidence.from_batch if len(plan.rewards) == 1 else Evidence.without_rewards
        found = of_events(events, plan.policies, plan.block)
    else:
        learned, curves = examination(plan), None
        if learned is not None:
            curve, after["examination"] = learned.fold(before["examination"], events, plan.block)
            curves = curve.probability[:-1]
        found = Evidence.of_rankings(events, plan.policies, plan.ranking, plan.block, curves)
        if learned is not None:
            found, after["by_rank"] = found.with_curve(curve, before["by_rank"])
    return replace(found, signs=signs), after


def _with_learned(
    plan: Plan, grids: Sequence[Grid], known: Evidence, place: int, before: State, events: EventBatch
) -> tuple[Evidence, State]:
    """The evidence of the reward at this place with all that is learned about it, and the parts that learn."""
    own, after = {name: before[name][place] for name in OF_REWARDS}, State()
    if any(grid.mixes_components for grid in grids):
        known, after["recent"] = known.with_recent_means(own["recent"])
    if needs(grids, "prediction") and events.rankings is not None:
        known, after["predictions"] = online.fold_relevance(
            plan.reward_model, own["predictions"], known, events.rankings, events.raw_fields
        )
    elif needs(grids, "prediction"):
        blocks, limits = _predicted_blocks(grids, known), plan.rewards[place].range
        known, after["predictions"] = online.fold(
            plan.reward_model, own["predictions"], known, events.raw_fields, limits, blocks
        )
    if forms(grids):
        known, after["slates"] = known.with_forms(events, plan.policies, forms(grids), own["slates"])
    return known, after


def _predicted_blocks(grids: Sequence[Grid], known: Evidence) -> Mask:
    """The blocks that the reward model sees: all, or those that an estimator of the default can use, [blocks]."""
    using = [grid for grid in grids if "prediction" in grid.needs]
    if known.actions is None or not all(grid.optional for grid in using):
        return np.ones(known.blocks, dtype=bool)
    return np.asarray(np.logical_or.reduce([known.restricted_to(grid.needs).used_blocks for grid in using]))


def further_checks(plan: Plan, state: State, known: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """The trust checks that promotion does not know: of a learned curve, of a ramp and of logged propensities.

    `known`: the other checks, of the policies that have events.
    """
    curve = examination(plan)
    if curve is not None:
        ok, finding = curve.moved(state["examination"])
        yield from of_every_policy(
            known, "examination", ok, finding if ok else f"{finding}: the layout may have changed"
        )
    yield from ramp.checks(plan, state["ramp"])
    found = frequencies.judge(state["frequencies"], plan.trust_error)
    if found is not None:
        yield from of_every_policy(known, "propensities", *found)
