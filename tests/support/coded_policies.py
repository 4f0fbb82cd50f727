"""Define policies of users, good ones and bad ones, for `target: support.coded_policies:...`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streameval import Decisions

Distributions = Sequence[Any]


def favourite(share: float = 0.5) -> Callable[[Decisions], Distributions]:
    """Give `share` to the action that the context names, and the rest to the others.

    The policy raises if the context names none.
    """

    def policy(decisions: Decisions) -> Distributions:
        answers = []
        for context, actions in zip(decisions.contexts, decisions.actions, strict=True):
            rest = (1 - share) / (len(actions) - 1)
            answers.append([share if action == context["likes"] else rest for action in actions])
        return answers

    return policy


def linear(weights: Sequence[float]) -> Callable[[Decisions], Distributions]:
    """Choose the action with the largest product of features and weights."""
    return lambda decisions: [
        np.eye(len(features))[np.argmax(features @ np.array(weights))]
        for features in decisions.features
        if features is not None
    ]


def constant(answer: Any) -> Callable[[Decisions], Distributions]:
    """Give the same answer for every event."""
    return lambda decisions: [answer] * len(decisions.actions)


def too_few() -> Callable[[Decisions], Distributions]:
    """Return one distribution less than there are events."""
    return lambda decisions: [[1.0]] * (len(decisions.actions) - 1)


def no_policy() -> int:
    """Return a number instead of a policy."""
    return 7


def broken() -> None:
    """Raise instead of returning a policy."""
    raise RuntimeError("no model file")


class Counting:
    """Learn the mean reward of each action by inverse propensities, and take the best one with probability `share`."""

    def __init__(self, share: float = 0.9) -> None:
        self.share, self.sums = share, dict[Any, list[float]]()

    def predict(self, decisions: Decisions) -> Distributions:
        return [self._answer(actions) for actions in decisions.actions]

    def _answer(self, actions: Sequence[Any]) -> Any:
        means = [earned / seen if seen else 0.5 for earned, seen in (self.sums.get(a, (0.0, 0.0)) for a in actions)]
        best = np.eye(len(actions))[int(np.argmax(means))]
        return self.share * best + (1 - self.share) / len(actions)

    def learn(self, decisions: Decisions, action: Any, propensity: Any, reward: Any) -> None:
        logged = (actions[index] for actions, index in zip(decisions.actions, action.tolist(), strict=True))
        for name, weight, earned in zip(logged, (1 / propensity).tolist(), reward.tolist(), strict=True):
            before = self.sums.get(name, [0.0, 0.0])
            self.sums[name] = [before[0] + weight * earned, before[1] + weight]


class Served(Counting):
    """Give the content of a file for a recommender."""

    def to_bytes(self) -> bytes:
        return json.dumps({name: earned / seen for name, (earned, seen) in self.sums.items()}).encode()


class Unwritable(Counting):
    """Give text in place of bytes."""

    def to_bytes(self) -> str:
        return "sums"


class Forgetful(Counting):
    """Raise while learning."""

    def learn(self, decisions: Decisions, action: Any, propensity: Any, reward: Any) -> None:
        raise RuntimeError("no memory")


class Unsaved(Counting):
    """Hold a lambda, so that pickling fails."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = lambda: None

    def __deepcopy__(self, memo: Any) -> Any:
        return self
