"""Compute the distributions of candidates that learn, and of their frozen copies, from the blocks before each block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from streameval.common.arrays import Array, State, from_plain, to_plain
from streameval.errors import StateError
from streameval.events import ActionSets, EventBatch, Fault, RawFields
from streameval.events.rankings import Rankings
from streameval.ope.candidates.versions import FrozenPolicy
from streameval.ope.core.state import Company
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.room import Incomplete, Owned, Present, Room
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.evidence.slate_weights import with_duals
from streameval.ope.learning.adam import LinearPolicy
from streameval.ope.policies import own_choices
from streameval.ope.policies.base import Answer, LearningPolicy, Log
from streameval.ope.policies.coded import Faults, fill
from streameval.ope.report import Learner
from streameval.ope.reward_models.base import LoggedActions


def start(config: EvaluatorConfig) -> State | None:
    """Return the state of each policy by name before the first event, or None if none learns."""
    if not config.learned_policies:
        return None
    return {name: _started(config, policy) for name, policy in config.learned_policies.items()}


def _started(config: EvaluatorConfig, policy: LearningPolicy) -> State:
    if policy.keeps_model:
        return {"model": config.reward_model.start()}
    return {**policy.start(), "own": own_choices.start()} if policy.learns_from == "own" else policy.start()


def resume(config: EvaluatorConfig, _before: EvaluatorConfig, state: State | None) -> State | None:
    """Return the state under another config. New policies start from zero."""
    fresh, before = start(config), state or {}
    return fresh and {name: before.get(name, own) for name, own in fresh.items()}


def join(_both: EvaluatorConfig, own: Owned, late: Owned, _company: Company) -> State | None:
    """Return the state of a config that joins two others."""
    return {**(late.state or {}), **(own.state or {})} or None


def complete(config: EvaluatorConfig, state: State, incomplete: Incomplete) -> tuple[Incomplete, State]:
    """Return events with the distributions of the policies, and the state after the whole blocks."""
    events = incomplete.events
    sets = events.action_sets or ActionSets.none(len(events), len(events.policies))
    usable = np.minimum(events.propensity, events.sampling_probability) >= 1 / LARGEST_WEIGHT
    propensity, sampling = (
        np.where(usable, column, 1.0) for column in (events.propensity, events.sampling_probability)
    )
    reward = np.where(usable, events.reward, np.nan)
    limits = config.rewards[0].range
    pages = events.rankings, incomplete.looks, incomplete.signal
    fillers = [policy for policy in config.learned_policies.values() if policy.fills_slots]
    if events.slates is not None and any(policy.keeps_learning for policy in fillers):
        events = replace(events, slates=with_duals(events.slates))  # for the weights as well
    slates = events.slates if fillers else None
    log = Log(sets, propensity, reward, 1 / sampling, config.block, None, events.raw_fields, limits, *pages, slates)
    if incomplete.prediction is not None:
        log = _with_prediction(config, log, incomplete.prediction)
    answers, after, unlearned = {}, {}, Faults()
    for name, policy in config.learned_policies.items():
        asked = _with_prediction(config, log, _predicted_by(config, state[name], events)) if policy.keeps_model else log
        if policy.learns_from == "own":
            answers[name], after[name] = own_choices.fold(policy, state[name], asked)
        else:
            answers[name], after[name] = policy.fold(state[name], asked)
        reasons = after[name].pop("unlearned", ())
        unlearned[name] = {len(events) + block: Fault("not_learned", reason) for block, reason in enumerate(reasons)}
    if events.rankings is not None:
        filled, faults = _ranked(events, events.rankings, answers)
    else:
        slots = None if events.slates is None else events.slates.actions
        answered = {
            name: slots if slots is not None and policy.fills_slots else sets
            for name, policy in config.learned_policies.items()
        }
        filled, faults = fill(
            events, {name: partial(_answered, answered[name], answer) for name, answer in answers.items()}
        )
    faults = {name: by_event | unlearned[name] for name, by_event in faults.items()}
    return incomplete._replace(events=filled, faults=incomplete.faults | faults), after


def _with_prediction(config: EvaluatorConfig, log: Log, prediction: Array) -> Log:
    """Return the log with the predictions of rewards, NaN if the model lacks features."""
    can = np.repeat(log.sets.widths > 0, log.sets.sizes) | ("features" not in config.reward_model.needs)
    return log._replace(prediction=np.where(can, prediction, np.nan))


def _predicted_by(config: EvaluatorConfig, own: State, events: EventBatch) -> Array:
    """Return the reward that a policy's own reward model expects of each action. The model does not change."""
    if events.action_sets is None:
        return np.zeros(0)
    nothing, limits = np.zeros(len(events)), config.rewards[0].range
    log = LoggedActions(events.action_sets, nothing, nothing, len(events) + 1, limits, events.raw_fields)
    return config.reward_model.fold(own["model"], log)[0]


def _answered(logged: ActionSets, answer: Answer, sets: ActionSets, _raw_fields: RawFields) -> Answer:
    """Return the answer for these action sets, or none for others: of slots, or of events that are no slates."""
    if len(sets.index) == len(logged.index) and np.array_equal(sets.offsets, logged.offsets):
        return answer
    fault = Fault("missing_field", "actions: this policy learns to choose others, either single actions or slates")
    return np.full(len(sets.propensities), np.nan), dict.fromkeys(range(len(sets.index)), fault)


def _ranked(events: EventBatch, rankings: Rankings, answers: Mapping[str, Answer]) -> tuple[EventBatch, Faults]:
    """Fill in the ranks of these policies, which order all items shown. A page without ranks lacks only the policy."""
    ranks, lengths, placed = (
        column.T.copy() for column in (rankings.ranks, rankings.list_length, events.probabilities)
    )
    for name, (own, faults) in answers.items():
        column, lost = events.policies.index(name), np.zeros(len(events), dtype=bool)
        lost[list(faults)] = True
        ranks[column] = own
        lengths[column], placed[column] = (np.where(lost, np.nan, values) for values in (rankings.shown, 1.0))
    filled = replace(rankings, ranks=ranks.T, list_length=lengths.T)
    return replace(events, rankings=filled, probabilities=placed.T), {name: dict(a[1]) for name, a in answers.items()}


def rows(config: EvaluatorConfig, state: State, present: Present) -> dict[str, tuple[Learner, ...]]:
    """Return a row for each policy that learns, and for each frozen copy."""
    return {"learners": tuple(_rows(config, state, present))}


def _rows(config: EvaluatorConfig, state: State, present: Present) -> Iterator[Learner]:
    cumulative = {label for label, average in config.averages.items() if average.kind == "cumulative"}
    estimates = [row for row in reversed(present.estimates) if row.average in cumulative]
    regrets = {row.policy: -row.lift for row in estimates if row.lift is not None}
    copies = [copy for copy in config.learned_policies.values() if isinstance(copy, FrozenPolicy)]
    for name, policy in config.learned_policies.items():
        made = {label for label, versions in config.versions.items() if versions.policy == name}
        own, version = state[name], max((copy.number for copy in copies if copy.of in made), default=None)
        scale = (0.0, 1.0) if policy.ranks_pages else config.rewards[0].range
        if isinstance(policy, FrozenPolicy):
            version = policy.number
        yield Learner(
            policy=name,
            learns=policy.keeps_learning,
            steps=own.get("steps", 0),
            version=version,
            regret=regrets.get(name),
            step_norm=policy.step_norm(own, scale) if isinstance(policy, LinearPolicy) else None,
            failures=own.get("failures", 0),
            learning_rate=policy.step if isinstance(policy, LinearPolicy) else None,
            **(own_choices.reported(own["own"]) if policy.learns_from == "own" else {}),
        )


def save(config: EvaluatorConfig, state: State, faults: Faults) -> State:
    """Return the state of each policy as a plain value. Code that cannot be saved starts to learn again when loaded."""

    def saved(name: str, policy: LearningPolicy, own: State) -> State:
        if policy.keeps_model:
            return {"model": config.reward_model.to_state(own["model"])}
        try:
            return policy.to_state(own)
        except StateError as error:
            faults[name] = {0: Fault("not_saved", error.message)}
            return {**own, **policy.to_state(policy.start())}

    return {name: to_plain(saved(name, policy, state[name])) for name, policy in config.learned_policies.items()}


def load(config: EvaluatorConfig, saved: State, _trusted: object, faults: Faults) -> State | None:
    """Return the inverse of `save`. It loads foreign code, which the config has if the caller names it."""

    def loaded(name: str, policy: LearningPolicy, own: State) -> State:
        if policy.keeps_model:
            return {"model": config.reward_model.from_state(own["model"])}
        try:
            return policy.from_state(own)
        except StateError as error:
            faults[name] = {0: Fault("not_loaded", error.message)}
            return _started(config, policy)

    policies = config.learned_policies.items()
    return {name: loaded(name, policy, from_plain(saved[name])) for name, policy in policies} or None


ROOM = Room("learning", start, resume, join, complete=complete, rows=rows, save=save, load=load)
