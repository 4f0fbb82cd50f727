"""Run policies and models of the river library, by the names that they have there."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.common.foreign_code import CodeError, foreign_code
from streameval.errors import ConfigError
from streameval.events.action_sets import Index
from streameval.ope.policies.external import ExternalPolicy, LearnsToDecide
from streameval.ope.policies.own_choices import LearnsFrom, OwnLimit
from streameval.ope.policies.python import Decisions

Described: TypeAlias = tuple[Mapping[str, float], Mapping[str, float]]
"""Numbers, which may be scaled, and indicators of texts and names, which are 1."""
MAX_NUMBER = 1e30
"""Larger numbers of a context, infinities and NaN are left out."""
SEED = 1
"""Seed of random draws if the parameters have none, so that equal events teach equally."""
MAX_REPEATS = 100
"""A classifier learns an event at most this often."""
RIVER_POLICY = "write {kind: river, model: bandit.LinUCBDisjoint, parameters: {alpha: 1.0}, epsilon: 0.1}"


@dataclass(frozen=True, config=strict)
class RiverPolicy(ExternalPolicy):
    """Run a bandit or a classifier of the river library that learns.

    A bandit, e.g. `bandit.LinUCBDisjoint`, takes the action that it pulls. A classifier, e.g.
    `tree.HoeffdingTreeClassifier`, takes each action with the probability of its class. It learns logged actions as
    classes, each with the weight `reward / propensity`, and ignores negative rewards. `multiclass.OneVsRestClassifier`
    extends a classifier of two classes to several. The inputs are the numbers and texts of the event's `context`.

    It calls Python for each event, so it suits streams of some thousand events a second.

    Args:
        model: its name in river
        parameters: arguments of its constructor. A value `{model: NAME, parameters: {...}}` is made first.
        epsilon: the probability of a random action instead
        learns_from: `all` logged events, or `own` choices alone, as it would have made them: see `own_choices.fold`
        own_limit: with `own`, importance weights up to this one are replayed exactly

    Source: Montiel et al., River: machine learning for streaming data in Python, JMLR 2021. Weighted classification:
    Beygelzimer & Langford, The offset tree, KDD 2009.
    """

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$", description="its name in river")]
    parameters: Annotated[Mapping[str, Any], Field(description="those of its constructor")] = field(
        default_factory=dict
    )
    epsilon: Annotated[float, Field(ge=0, le=1, description="the probability of a random action")] = 0.0
    learns_from: LearnsFrom = "all"
    own_limit: OwnLimit = 10.0
    kind: Literal["river"] = field(default="river", kw_only=True, repr=False)

    def make(self) -> LearnsToDecide:
        from river.bandit.base import ContextualPolicy, Policy  # slow to import, and rarely used
        from river.base import Classifier
        from river.multiclass import OneVsRestClassifier

        made = river_object(self.model, self.parameters, RIVER_POLICY, SEED)
        if isinstance(made, Policy):
            return _Bandit(made, isinstance(made, ContextualPolicy), self.epsilon)
        if not isinstance(made, Classifier):
            raise ConfigError(f"river's {self.model} is neither a bandit nor a classifier", hint=RIVER_POLICY)
        return _Classes(made if made._multiclass else OneVsRestClassifier(made), self.epsilon)


class _Bandit:
    """Let a bandit of river decide many events at once."""

    def __init__(self, bandit: Any, reads_context: bool, epsilon: float) -> None:
        self.bandit, self.reads_context, self.epsilon = bandit, reads_context, epsilon

    def predict(self, decisions: Decisions) -> list[Array]:
        answers = []
        for context, actions in zip(decisions.contexts, decisions.actions, strict=True):
            pulled = self.bandit.pull(list(actions), *self._inputs(context))
            shares = np.array([action == pulled for action in actions], dtype=float)
            answers.append(_explored(shares, self.epsilon))
        return answers

    def learn(self, decisions: Decisions, action: Index, propensity: Array, reward: Array) -> None:
        for index, (logged, earned) in enumerate(zip(action.tolist(), reward.tolist(), strict=True)):
            arm, inputs = decisions.actions[index][logged], self._inputs(decisions.contexts[index])
            self.bandit.update(arm, *inputs, earned)

    def _inputs(self, context: Any) -> tuple[dict[str, float], ...]:
        return (_context_inputs(context),) if self.reads_context else ()


class _Classes:
    """Let a classifier of river decide, with actions as classes.

    It learns an event as often as its weight, rounded at random so that the mean number is the weight.
    """

    def __init__(self, classifier: Any, epsilon: float) -> None:
        self.classifier, self.epsilon, self.chance = classifier, epsilon, np.random.default_rng(SEED)

    def predict(self, decisions: Decisions) -> list[Array]:
        answers = []
        for context, actions in zip(decisions.contexts, decisions.actions, strict=True):
            probabilities = self._probabilities(_context_inputs(context))
            answers.append(_explored(np.array([probabilities.get(action) or 0.0 for action in actions]), self.epsilon))
        return answers

    def learn(self, decisions: Decisions, action: Index, propensity: Array, reward: Array) -> None:
        weights = np.clip(reward / propensity, 0.0, MAX_REPEATS).tolist()
        for index, (logged, weight) in enumerate(zip(action.tolist(), weights, strict=True)):
            for _ in range(int(weight + self.chance.random())):
                self.classifier.learn_one(_context_inputs(decisions.contexts[index]), decisions.actions[index][logged])

    def _probabilities(self, inputs: dict[str, float]) -> Mapping[Any, float]:
        try:
            probabilities: Mapping[Any, float] = self.classifier.predict_proba_one(inputs)
        except NotImplementedError:  # a classifier without probabilities
            probabilities = {self.classifier.predict_one(inputs): 1.0}
        return probabilities


def _explored(shares: Array, epsilon: float) -> Array:
    """Turn shares into a distribution with random actions. Without any shares it is uniform."""
    total = shares.sum()
    distribution = shares / total if total > 0 else np.full(len(shares), 1 / len(shares))
    return np.asarray(epsilon / len(shares) + (1 - epsilon) * distribution)


def _context_inputs(context: Any) -> dict[str, float]:
    numbers, marks = inputs_of_context(context)
    return {**numbers, **marks}


def river_object(name: str, parameters: Mapping[str, Any], example: str, seed: int | None = None) -> Any:
    """Make an object of river.

    Args:
        name: its name in river
        parameters: arguments of its constructor
        example: the hint of an error
        seed: the seed for constructors that take one, unless the parameters have one

    Raises:
        ConfigError: There is no such name, or it does not take these parameters.
    """
    module, _, attribute = name.rpartition(".")
    arguments = {
        key: river_object(value["model"], value.get("parameters", {}), example, seed)
        if isinstance(value, Mapping) and "model" in value
        else value
        for key, value in parameters.items()
    }
    try:
        with foreign_code():
            made = getattr(importlib.import_module(f"river.{module}"), attribute)
            if seed is not None and "seed" in inspect.signature(made).parameters:
                arguments = {"seed": seed, **arguments}
            return made(**arguments)
    except CodeError as error:
        problem = f"river's {name} cannot be made with the parameters {dict(parameters)}: {error}"
        raise ConfigError(problem, hint=example) from error


def inputs_of_context(context: Any) -> Described:
    """Return the numbers and texts of a context by their paths, and an intercept.

    >>> inputs_of_context({"hour": 9, "user": {"country": "NL", "new": True}})
    ({'context.hour': 9.0, 'context.user.new': 1.0}, {'intercept': 1.0, 'context.user.country=NL': 1.0})
    """
    leaves = dict(_leaves("context", context))
    numbers = {path: float(leaf) for path, leaf in leaves.items() if not isinstance(leaf, str)}
    texts = {f"{path}={leaf}": 1.0 for path, leaf in leaves.items() if isinstance(leaf, str)}
    return numbers, {"intercept": 1.0, **texts}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float | str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= MAX_NUMBER):
        yield path, value
