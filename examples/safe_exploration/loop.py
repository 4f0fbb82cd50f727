"""Explore safely: a challenger learns from production's log, and replaces production when a rule says so."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from digits import EXPLORATION, PRODUCTION, Array, Digits

from streameval import Evaluator, Learned

CHALLENGER = "challenger"
NEVER = "never"
"""Stands for no rule. The challenger learns from the baseline's log alone."""
RULES = ("bsea", "sea", "anytime", "paired", NEVER)
TAU = 10_000
"""`anytime` proves the lift over at most the last 20,000 events: a challenger is bad when it starts to learn."""
LOOK = 1_000
"""Events between two looks at the decision. Deployment takes no time."""
EVENTS = 100_000


class Deployment(NamedTuple):
    """Hold a deployment of the challenger.

    Args:
        event: Number of events before it.
        value: True value of the challenger.
        replaced: True value of the policy that it replaced.
    """

    event: int
    value: float
    replaced: float

    @property
    def lift(self) -> float:
        """Return the true lift of the challenger over the policy that it replaced."""
        return self.value - self.replaced


class Run(msgspec.Struct, frozen=True):
    """Hold one run of a rule, in true values.

    Args:
        rule: Name of the rule.
        seed: Seed of the run.
        events: Events of the run.
        baseline: Value of the baseline.
        learned: Value of the challenger after the last event, whether deployed or not.
        reward: Mean reward per event, with exploration.
        deployments: Deployments in their order.
    """

    rule: str
    seed: int
    events: int
    baseline: float
    learned: float
    reward: float
    deployments: list[Deployment]

    @property
    def served(self) -> float:
        """Return the true value of the last deployed policy, or of the baseline."""
        return self.deployments[-1].value if self.deployments else self.baseline

    def served_after(self, looks: Array) -> Array:
        """Return the true value of the policy that is served after each of these numbers of events."""
        indices = np.searchsorted([deployment.event for deployment in self.deployments], looks, side="right")
        return np.array([self.baseline, *(deployment.value for deployment in self.deployments)])[indices]


def run(rule: str, seed: int, events: int = EVENTS, dataset: Path | None = None, warm: bool = False) -> Run:
    """Run the loop once.

    Args:
        rule: Name of the rule.
        seed: Seed of the run.
        events: Events of the run.
        dataset: As in `Digits.prepared`.
        warm: Whether the first challenger starts from the weights of the baseline, as published, not from zero.
    """
    digits, rng = Digits.prepared(seed, dataset), np.random.default_rng([seed, 1])
    served, earned = digits.baseline, 0.0
    evaluator = challenged(rule, digits.actions, digits.weights if warm else None)
    deployments = list[Deployment]()
    for event in range(LOOK, events + 1, LOOK):
        evaluator.update(digits.log(served, LOOK, rng))
        earned += LOOK * ((1 - EXPLORATION) * digits.value(served) + EXPLORATION / digits.actions)
        evaluator.fold_pending()
        if any(transition.promotable for transition in evaluator.take_transitions()):
            weights = evaluator.learned(CHALLENGER)["weights"]
            challenger = digits.chosen_by(weights)
            deployments.append(Deployment(event, digits.value(challenger), digits.value(served)))
            served, evaluator = challenger, challenged(rule, digits.actions, weights)
    learned = digits.value(digits.chosen_by(evaluator.learned(CHALLENGER)["weights"]))
    return Run(rule, seed, events, digits.value(digits.baseline), learned, earned / events, deployments)


def challenged(rule: str, actions: int, weights: Array | None = None) -> Evaluator:
    """Return an evaluator of a challenger that starts from weights, or from zero.

    After a deployment, these are the weights of the deployed policy. Production has changed, so estimates start anew.
    """
    start = () if weights is None else tuple(map(tuple, weights.tolist()))
    return Evaluator(
        {CHALLENGER: Learned(objective="snips", per_action=True, weights=start)},
        estimators=["stratified_ips"],
        averages=["mixture"],
        production=PRODUCTION,
        drift=None,
        promotion=None
        if rule == NEVER
        else {"rule": rule, "min_events": 2_000, "max_weight": actions / EXPLORATION, "tau": TAU},
    )
