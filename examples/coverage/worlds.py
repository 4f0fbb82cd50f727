"""Define the worlds of the study: logging policies, candidates, drifting and clustered rewards, and true values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.events import EventBatch

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Shape = Literal["still", "drifting", "sessions", "crowd", "learning", "waves"]
Weights = Literal["mild", "heavy"]

LOGGING, DEPLOYED, CANDIDATES = "logging", "deployed", ("one", "two")
SESSION = 20
"""Events per session."""
CROWD = 50
"""Simultaneous sessions in a `crowd`. In `sessions` they come one after the other."""
CORRELATION = 0.2
"""Correlation of two rewards of one session for the same action."""
SWING = 0.6
"""Relative amplitude of drifting rewards, each action with its own phase."""
PERIOD = 24_000
"""Period of the drift in events."""
WAVE = 25_000
"""Period of `waves`, in which all mean rewards swing between 0 and twice their level together."""
LESSON, DRAWS = 100, 200
"""A learning policy updates after this many events, and takes this many draws from its posterior."""


class Stage(NamedTuple):
    """Hold equally likely contexts, actions and policies.

    Args:
        effect: Mean reward of each action in each context as a multiple of the level, [contexts, actions].
        policies: Probabilities of each policy, [contexts, actions]. A logging policy that learns starts with these.
        floor: Share of its events that a logging policy that learns spreads evenly over the actions.
    """

    effect: Floats
    policies: Mapping[str, Floats]
    floor: float = 1.0


def _mild() -> Stage:
    """Return four actions that are logged evenly. Importance weights are .5 and 1.5."""
    policies = {
        LOGGING: np.full((1, 4), 0.25),
        DEPLOYED: np.array([[0.125, 0.125, 0.375, 0.375]]),
        "one": np.array([[0.375, 0.375, 0.125, 0.125]]),
        "two": np.array([[0.375, 0.125, 0.375, 0.125]]),
    }
    return Stage(np.array([[1.3, 1.0, 0.8, 0.9]]), policies, floor=0.4)


def _heavy() -> Stage:
    """Return ten contexts and five actions. The favourite is logged with .92, every other action with .02.

    The other policies are greedy and differ from the favourite in one or two contexts. Weights are 0, 1.087 and 50.
    """
    logging = np.full((10, 5), 0.02)
    logging[:, 0] = 0.92
    effect = np.full((10, 5), 0.8)
    effect[:, 0], effect[0, 1], effect[1:3, 2], effect[3, 3] = 1.0, 1.4, 0.7, 1.3
    greedy = {name: np.zeros(10, dtype=np.int64) for name in (DEPLOYED, *CANDIDATES)}
    greedy[DEPLOYED][3], greedy["one"][0], greedy["two"][1:3] = 3, 1, 2
    return Stage(effect, {LOGGING: logging} | {name: np.eye(5)[actions] for name, actions in greedy.items()})


def _heavy_to_learn() -> Stage:
    """Return four actions for a policy that learns with 8 % exploration.

    An action that it has abandoned has a weight of 50.
    """
    policies = {
        LOGGING: np.full((1, 4), 0.25),
        DEPLOYED: np.array([[0.5, 0.5, 0.0, 0.0]]),
        "one": np.array([[1.0, 0.0, 0.0, 0.0]]),
        "two": np.array([[0.0, 0.0, 0.0, 1.0]]),
    }
    return Stage(np.array([[1.3, 1.0, 0.8, 0.9]]), policies, floor=0.08)


@dataclass(frozen=True)
class World:
    """Describe a kind of stream.

    Args:
        number: Determines the seeds.
        weights: Size of the importance weights.
        level: Mean reward, before the effect of the action.
        shape: How rewards drift, or are clustered, and whether the logging policy learns.
        named: Whether events log their session as `unit`.
    """

    number: int
    weights: Weights
    level: float
    shape: Shape
    named: bool = False

    @property
    def name(self) -> str:
        """Return the name, which is also the name of its file of results."""
        shape = f"{self.shape}-named" if self.named else self.shape
        return f"{shape}-{self.weights}-{self.level:g}"

    @property
    def stage(self) -> Stage:
        """Return the logging policy and the candidates."""
        if self.weights == "mild":
            return _mild()
        return _heavy_to_learn() if self.shape == "learning" else _heavy()

    @property
    def largest_weight(self) -> float:
        """Return an upper limit of the importance weights."""
        stage = self.stage
        least = stage.policies[LOGGING] if self.shape != "learning" else np.array(stage.floor / 4)
        return float(max((policy / least).max() for policy in stage.policies.values()))


def _worlds() -> dict[str, World]:
    """Return all worlds by name. Worlds that differ only in `named` have the same number, so the same events."""
    shapes: tuple[Shape, ...] = ("still", "drifting", "sessions", "crowd", "learning")
    worlds = []
    for number, (shape, weights, level) in enumerate(
        (shape, weights, level) for shape in shapes for weights in ("mild", "heavy") for level in (0.3, 0.03)
    ):
        for named in (False, True) if shape in ("sessions", "crowd") else (False,):
            worlds.append(World(number, weights, level, shape, named))  # type: ignore[arg-type]
    return {world.name: world for world in worlds}


WORLDS = _worlds()
WAVES = World(20, "mild", 0.2, "waves")
"""For design effects only."""
SEED = 20_261_121
"""Fixed, like the worlds, before the first run."""


class Stream(NamedTuple):
    """Hold the events of one run, and the value of each policy at each event, [events]."""

    batch: EventBatch
    truth: Mapping[str, Floats]


def draw(world: World, run: int, events: int) -> Stream:
    """Draw the events of a run, with the true values at each event."""
    rng = np.random.default_rng([SEED, world.number, run])
    stage = world.stage
    context = rng.integers(len(stage.effect), size=events)
    mood, session = _moods(world.shape, rng, events)
    wave = _waves(world.shape, stage.effect.shape[1], events)
    if world.shape == "learning":
        action, logged, reward = _learn(stage, world.level, mood, rng)
        pi0 = logged
    else:
        pi0 = stage.policies[LOGGING][context]
        action = (rng.random((events, 1)) > np.cumsum(pi0, axis=1)[:, :-1]).sum(axis=1)
        mean = world.level * stage.effect[context, action] * wave[np.arange(events), action]
        reward = (mood < mean).astype(float)
    batch = EventBatch.from_arrays(
        reward=reward,
        propensity=pi0[np.arange(events), action],
        policies={name: stage.policies[name][context, action] for name in (DEPLOYED, *CANDIDATES)},
        unit=session if world.named else None,
    )
    values = {name: _value(policy, stage.effect) @ wave.T * world.level for name, policy in stage.policies.items()}
    if world.shape == "learning":
        values[LOGGING] = world.level * (pi0 * stage.effect[0] * wave).sum(axis=1)
    return Stream(batch, values)


def _value(policy: Floats, effect: Floats) -> Floats:
    """Return the contribution of each action to the value of a policy, [actions]."""
    return np.asarray((policy * effect).mean(axis=0))


def _waves(shape: Shape, actions: int, events: int) -> Floats:
    """Return the factor of the mean reward of each action at each event, [events, actions]."""
    if shape == "waves":
        return np.repeat(1 + np.sin(2 * np.pi / WAVE * np.arange(events))[:, None], actions, axis=1)
    if shape != "drifting":
        return np.ones((events, actions))
    time = 2 * np.pi / PERIOD * np.arange(events)[:, None]
    return np.asarray(1 + SWING * np.sin(time + np.arange(actions) * np.pi / 4))


def _moods(shape: Shape, rng: np.random.Generator, events: int) -> tuple[Floats, Integers]:
    """Draw a uniform number for each event, which is rewarded if the number is below the mean reward, and its session.

    An event takes the number of its session with probability `sqrt(correlation)`. Two events of a session share their
    number in a fraction `correlation` of all pairs, which correlates their rewards for any means.
    """
    index = np.arange(events)
    session = index // SESSION
    if shape == "crowd":
        session = index // (SESSION * CROWD) * CROWD + rng.integers(CROWD, size=events)
    own = rng.random(events)
    if shape not in ("sessions", "crowd"):
        return own, session
    shared = rng.random(int(session.max()) + 1)[session]
    return np.where(rng.random(events) < CORRELATION**0.5, shared, own), session


def _learn(stage: Stage, level: float, mood: Floats, rng: np.random.Generator) -> tuple[Integers, Floats, Floats]:
    """Return actions, propensities [events, actions] and rewards of Thompson sampling.

    The probability of an action, apart from the floor, is the share of draws from the posterior that it wins.
    """
    mean, actions = level * stage.effect[0], stage.effect.shape[1]
    won, lost = np.ones(actions), np.ones(actions)
    action, logged, reward = np.empty(len(mood), dtype=np.int64), np.empty((len(mood), actions)), np.empty(len(mood))
    for first in range(0, len(mood), LESSON):
        lesson = slice(first, first + LESSON)
        best = rng.beta(won, lost, size=(DRAWS, actions)).argmax(axis=1)
        wins = np.bincount(best, minlength=actions) / DRAWS
        logged[lesson] = (1 - stage.floor) * wins + stage.floor / actions
        action[lesson] = rng.choice(actions, size=len(mood[lesson]), p=logged[first])
        reward[lesson] = mood[lesson] < mean[action[lesson]]
        won += np.bincount(action[lesson], reward[lesson], actions)
        lost += np.bincount(action[lesson], 1 - reward[lesson], actions)
    return action, logged, reward
