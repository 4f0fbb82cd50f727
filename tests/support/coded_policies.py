"""Define policies of users, good ones and bad ones, for `target: support.coded_policies:...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from threading import Lock
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


class Locked(Counting):
    """Hold a lock from the start, or `later`: since it has learned. It cannot be copied then."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.lock = None if later else Lock()

    def learn(self, decisions: Decisions, action: Any, propensity: Any, reward: Any) -> None:
        super().learn(decisions, action, propensity, reward)
        self.lock = Lock()


class Unloadable(Counting):
    """End the process when it is loaded, unless it has learned nothing."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if self.sums:
            sys.exit("no licence")


class Panic(BaseException):
    """Stand for a panic of an extension in Rust, which is no `Exception`."""


class Exiting(Counting):
    """End the process in place of learning, and refuse to write a file."""

    def learn(self, decisions: Decisions, action: Any, propensity: Any, reward: Any) -> None:
        sys.exit(3)

    def to_bytes(self) -> bytes:
        raise Panic("index out of bounds")


def exiting() -> Callable[[Decisions], Distributions]:
    """End the process in place of an answer."""
    return lambda decisions: sys.exit(3)


def panicking() -> Callable[[Decisions], Distributions]:
    """Raise something that is no `Exception`, and has no text."""

    class Silent(Panic):
        def __str__(self) -> str:
            raise ValueError

    def policy(decisions: Decisions) -> Distributions:
        raise Silent

    return policy


def endless() -> Callable[[Decisions], Any]:
    """Return distributions without an end."""
    return lambda decisions: repeat([1.0, 0.0, 0.0])


MADE = [0]
"""How often `once` was called."""


def once() -> Callable[[Decisions], Distributions]:
    """Return a policy at the first call only, like code that opens a file for itself."""
    MADE[0] += 1
    if MADE[0] > 1:
        raise OSError("the model file is locked")
    return lambda decisions: [np.full(len(actions), 1 / len(actions)) for actions in decisions.actions]
