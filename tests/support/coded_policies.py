"""Policies of users, good ones and bad ones: what `target: support.coded_policies:...` finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streameval import Decisions

Distributions = Sequence[Any]


def favourite(share: float = 0.5) -> Callable[[Decisions], Distributions]:
    """The action that the context names gets `share`, the others the rest; raises where the context names none."""

    def policy(decisions: Decisions) -> Distributions:
        answers = []
        for context, actions in zip(decisions.contexts, decisions.actions, strict=True):
            rest = (1 - share) / (len(actions) - 1)
            answers.append([share if action == context["likes"] else rest for action in actions])
        return answers

    return policy


def linear(weights: Sequence[float]) -> Callable[[Decisions], Distributions]:
    """All on the action with the largest product of features and weights."""
    return lambda decisions: [
        np.eye(len(features))[np.argmax(features @ np.array(weights))]
        for features in decisions.features
        if features is not None
    ]


def constant(answer: Any) -> Callable[[Decisions], Distributions]:
    """The same answer for every event, whatever it is."""
    return lambda decisions: [answer] * len(decisions.actions)


def too_few() -> Callable[[Decisions], Distributions]:
    """Forgets an event."""
    return lambda decisions: [[1.0]] * (len(decisions.actions) - 1)


def no_policy() -> int:
    """A factory that makes nothing of use."""
    return 7


def broken() -> None:
    """A factory that cannot make anything."""
    raise RuntimeError("no model file")
