"""Simulate ramps: production explores, a challenger gets a share of the traffic, and an arm is drawn per event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streameval import Evaluator, EventBatch
from streameval.ope.core.past import start_signs, unit_signs
from streameval.ope.evaluator import calibration
from streameval.ope.evaluator import ramp as arm_draws
from streameval.ope.evaluator.room import Blocks
from streameval.ope.evidence.evidence import Evidence

ACTIONS, EPSILON = 25, 0.2
ARMS = ("production", "challenger")


class Ramp(NamedTuple):
    """Hold the log of a ramp.

    Attributes:
        columns: Arguments of `EventBatch.from_arrays`.
        value: True value of the challenger.
    """

    columns: dict[str, Any]
    value: float


def ramp(seed: int, events: int = 10_000, share: float = 0.1) -> Ramp:
    """Simulate a ramp with five contexts.

    Production prefers another action in each context, and explores. The challenger prefers the next action, and does
    not explore. Mean rewards differ by context and action.
    """
    rng = np.random.default_rng(seed)
    contexts = 5
    means = np.random.default_rng(7).uniform(0.05, 0.5, (contexts, ACTIONS))
    context, arm = rng.integers(0, contexts, events), (rng.uniform(size=events) < share).astype(int)
    policies = np.full((2, contexts, ACTIONS), EPSILON / ACTIONS)
    indices = np.arange(contexts)
    policies[0, indices, indices] += 1 - EPSILON
    policies[1] = np.eye(ACTIONS)[indices + 1]
    chosen = policies[arm, context]
    action = (rng.uniform(size=(events, 1)) > chosen.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
    reward = (rng.uniform(size=events) < means[context, action]).astype(float)
    columns = {
        "reward": reward,
        "propensity": chosen[np.arange(events), action],
        "policies": {name: policies[index, context, action] for index, name in enumerate(ARMS)},
        "logging_policy": np.array(ARMS, dtype=object)[arm],
    }
    return Ramp(columns, float(means[indices, indices + 1].mean()))


THREE = np.array([0.3, 0.2, 0.1])
"""Mean rewards of three actions."""
POLICIES = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]])
"""Probabilities of three actions under production and the challenger."""


def three_actions(seed: int, events: int, share: float = 0.2, wrong: float = 1.0) -> dict[str, Any]:
    """Simulate a ramp with three actions.

    Args:
        seed: Seed of the random numbers.
        events: Number of events.
        share: Share of events of the challenger.
        wrong: Factor of error in the propensity of the second action.
    """
    rng = np.random.default_rng(seed)
    arm = (rng.uniform(size=events) < share).astype(int)
    return _logged(rng, arm, np.ones(events), wrong)


def sessions(seed: int, events: int, share: float = 0.2, wrong: float = 1.0, active: int = 20) -> dict[str, Any]:
    """Simulate a ramp with three actions in sessions of 10 to 50 events, each with its own arm and mean reward.

    The intra-class correlation of the rewards is about .05 to .1.

    Args:
        seed: Seed of the random numbers.
        events: Number of events.
        share: Share of sessions of the challenger.
        wrong: Factor of error in the propensity of the second action.
        active: Number of sessions at a time.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 51, (active, events // active // 10 + 1))
    names = np.arange(lengths.size).reshape(lengths.shape)
    lanes = [np.repeat(*lane)[: events // active] for lane in zip(names, lengths, strict=True)]
    session = np.stack(lanes, axis=1).ravel()
    arm = (rng.uniform(size=lengths.size) < share).astype(int)[session]
    level = rng.uniform(0, 2, lengths.size)[session]
    return {**_logged(rng, arm, level, wrong), "unit": session}


def _logged(rng: np.random.Generator, arm: Any, level: Any, wrong: float) -> dict[str, Any]:
    """Draw the log of these arms, with three actions.

    Args:
        rng: Random numbers.
        arm: Arm of each event [n].
        level: Factor of the mean rewards of each event [n].
        wrong: Factor of error in the propensity of the second action.
    """
    chosen = POLICIES[arm]
    action = (rng.uniform(size=(len(arm), 1)) > chosen.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    propensity = chosen[np.arange(len(arm)), action] * np.where(action == 1, wrong, 1.0)
    return {
        "reward": (rng.uniform(size=len(arm)) < THREE[action] * level).astype(float),
        "propensity": propensity,
        "policies": {name: POLICIES[index, action] for index, name in enumerate(ARMS)},
        "logging_policy": np.array(ARMS, dtype=object)[arm],
    }


def messages(seed: int, events: int, started: float, rate: float = 100.0) -> Iterator[bytes]:
    """Yield the log of `three_actions` as JSON, with two more rewards, a country, a position, and a second candidate.

    The arms are production and candidate-1. Clicks on candidate-1's favourite action do not count in fr.
    """
    columns, rng = three_actions(seed, events), np.random.default_rng(seed)
    production, challenger = columns["policies"].values()
    for row in range(events):
        action = POLICIES[0].tolist().index(production[row])
        country = ("de", "fr", "jp")[rng.choice(3, p=[0.6, 0.3, 0.1])]
        click = float(columns["reward"][row]) * (country != "fr" or action != 1)
        event = {
            "event_id": f"{seed}-{row}",
            "timestamp": started + row / rate,
            "action": f"item-{action}",
            "propensity": float(columns["propensity"][row]),
            "policies": {
                "production": float(production[row]),
                "candidate-1": float(challenger[row]),
                "candidate-2": (0.6, 0.3, 0.1)[action],
            },
            "logging_policy": "production" if columns["logging_policy"][row] == "production" else "candidate-1",
            "context": {"country": country},
            "position": int(rng.integers(1, 4)),
            "click": click,
            "revenue": click * float(rng.integers(1, 50)),
            "hide": -float(rng.uniform() < 0.02),
        }
        yield json.dumps(event).encode() + b"\n"


DECIDED: dict[str, Any] = {
    "policies": {"production": "production", "candidates": ["candidate-1", "candidate-2"]},
    "rewards": {"click": {}, "revenue": {"max": 50}, "hide": {"min": -1, "max": 0, "guardrail": {"max_loss": 0.005}}},
    "segments": {
        "country": {"field": "context.country", "values": ["de", "fr"], "other": True},
        "position": {"field": "position", "most": 3},
    },
    "logging": {"arms": {"production": 0.8, "candidate-1": 0.2}, "weights": "logged"},
    "promotion": "paired",  # the log is too short for whole days
}
"""Configuration of a daemon that reads `messages`, without its source."""

LOOK = 5_000
"""Events between two looks at the checks."""
PLAN = Evaluator(
    ["challenger"],
    ["ips"],
    ["cumulative"],
    production="production",
    logging={"arms": {"production": 0.8, "challenger": 0.2}, "weights": "logged"},
).config


def failed_checks(columns: dict[str, Any], until: str | None = None) -> set[str]:
    """Return the checks that failed at any look.

    Args:
        columns: Log as arguments of `EventBatch.from_arrays`.
        until: Check that ends the reading as soon as it has failed.
    """
    batch, units, failed = EventBatch.from_arrays(**columns), start_signs(), set()
    compared, drawn = None, arm_draws.start(PLAN)
    for first in range(0, len(batch), LOOK):
        part = batch[first : first + LOOK]
        signs, units = unit_signs(units, part.unit, len(part), PLAN.block)
        goal = replace(Evidence.from_batch(part, PLAN.policies, PLAN.block), signs=signs)
        blocks = Blocks(part, part, goal)
        compared = calibration.observe(PLAN, compared, blocks)
        assert drawn is not None
        sums = arm_draws.summarise(PLAN, drawn, blocks)
        assert sums is not None
        drawn = arm_draws.fold(PLAN, drawn, sums)
        seen = () if compared is None else calibration.checks(PLAN, compared, ())
        results = (*seen, *arm_draws.checks(PLAN, drawn, ()))
        failed |= {check.check for check in results if not check.ok}
        if until in failed:
            break
    return failed
