"""Define candidates as code. streameval calls them, so the recommender and the log do not need them."""

from collections.abc import Callable, Sequence

import numpy as np

from streameval import Decisions

Policy = Callable[[Decisions], Sequence[Sequence[float]]]


def loyal(exploration: float = 0.1) -> Policy:
    """Show an item of the genre that the visitor saw last, or any item with probability `exploration`.

    The arguments are the `options` of the configuration.
    """

    def policy(decisions: Decisions) -> list[list[float]]:
        answers = []
        for context, items in zip(decisions.contexts, decisions.actions, strict=True):
            is_liked = np.array([item.startswith(context["recent"]) for item in items], dtype=float)
            answers.append(list((1 - exploration) * is_liked / is_liked.sum() + exploration / len(items)))
        return answers

    return policy
