"""Make logs for the recorded Reports, equal on every processor: random integers and plain arithmetic only.

The generator makes the same integers everywhere. Probabilities are ratios of small integers, times are multiples of a
quarter of a second. Nothing here takes an exponential or a logarithm, because their last bits differ between
processors.
"""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Columns = dict[str, Any]

START = 1_700_000_000.0


def generator(seed: int) -> np.random.Generator:
    """Make the random number generator of a log."""
    return np.random.Generator(np.random.PCG64(seed))


def times(rng: np.random.Generator, events: int) -> Array:
    """Make times about 2 seconds apart, with a pause of an hour in the middle, and slightly out of order."""
    gaps = rng.integers(0, 17, events) / 4.0
    gaps[events // 2] = 3_600.0
    return np.asarray(START + np.cumsum(gaps) - rng.integers(0, 9, events) / 4.0)


def draws(rng: np.random.Generator, probabilities: Array) -> NDArray[np.int64]:
    """Draw an action for each row of `probabilities`, [n, actions]."""
    passed = np.cumsum(probabilities, axis=1) <= rng.random(len(probabilities))[:, None]
    return np.minimum(passed.sum(axis=1), probabilities.shape[1] - 1)


def distributions(rng: np.random.Generator, least: int, most: int, *shape: int) -> Array:
    """Draw distributions over the last axis of `shape`, as ratios of integers."""
    parts = rng.integers(least, most, shape)
    return np.asarray(parts / parts.sum(axis=-1, keepdims=True))


def plain(
    seed: int,
    events: int,
    low: float = 0.0,
    high: float = 1.0,
    rare: bool = False,
    percent: tuple[int, int] = (30, 45),
) -> Columns:
    """Make events with probabilities of the logged action only.

    `new` takes rewarded actions more often, `other` less often. Each policy lacks some events, the log was downsampled,
    and some events belong to a session.

    Args:
        seed: Seed of the random numbers.
        events: Number of events.
        low: Smallest reward.
        high: Largest reward.
        rare: Whether a few importance weights are large.
        percent: Percentage of rewarded actions in each half.
    """
    rng = generator(seed)
    chance = np.where(np.arange(events) < events // 2, *percent)
    rewarded = rng.integers(0, 100, events) < chance
    tilt = np.where(rewarded, 1.0, 0.0) - chance / 100.0
    propensity = rng.integers(2, 16, events) / 128.0 if rare else rng.integers(8, 64, events) / 128.0
    ratio = rng.integers(0, 257, (3, events)) / 128.0
    if rare:
        ratio = np.where(rng.integers(0, 16, (3, events)) == 0, 8.0, ratio * 0.53125)
    policies = {
        "now": propensity * ratio[0],
        "new": propensity * (ratio[1] / 4.0 + 0.75 + 0.5 * tilt),
        "other": propensity * (ratio[2] / 2.0 + 0.5 - 0.25 * tilt),
    }
    for column in policies.values():
        column[rng.integers(0, 20, events) == 0] = np.nan
    sessions = rng.integers(0, 4, events)
    return {
        "reward": np.where(rewarded, high, low)
        + (high - low) * rng.integers(0, 5, events) / 64.0 * (0.5 - rewarded) * 2,
        "propensity": propensity,
        "policies": policies,
        "sampling_probability": np.where(rng.integers(0, 3, events) == 0, 0.25, 1.0),
        "timestamp": times(rng, events),
        "unit": [None if sessions[event] == 0 else f"session-{event // 20}" for event in range(events)],
    }


def without(columns: Columns, *names: str) -> Columns:
    """Return the columns without these names."""
    return {name: column for name, column in columns.items() if name not in names}


def described(seed: int, events: int, actions: int = 4, width: int = 3) -> Columns:
    """Make events with full distributions and features. `partial` lacks some events."""
    rng = generator(seed)
    features = rng.integers(-16, 17, (events, actions, width)) / 16.0
    logging = distributions(rng, 4, 33, events, actions)
    good = np.where(features[:, :, 0] == features[:, :, 0].max(axis=1, keepdims=True), 24, 2) + rng.integers(
        1, 9, (events, actions)
    )
    policies: Columns = {
        "good": good / good.sum(axis=1, keepdims=True),
        "partial": distributions(rng, 1, 33, events, actions),
    }
    policies["partial"][rng.integers(0, 10, events) == 0] = np.nan
    action = draws(rng, logging)
    chosen = features[np.arange(events), action]
    earned = 96 + 64 * chosen[:, 0] - 24 * chosen[:, 1] + 16 * action - rng.integers(0, 64, events)
    return {
        "reward": np.clip(earned / 256.0, 0.0, 1.0),
        "action": action,
        "propensities": logging,
        "policies": policies,
        "features": features,
        "timestamp": times(rng, events),
        "sampling_probability": np.where(rng.integers(0, 4, events) == 0, 0.5, 1.0),
    }


def slots(seed: int, events: int, places: int = 3, choices: int = 3) -> Columns:
    """Make slates with independently filled slots. `tilted` prefers the last choice in each slot."""
    rng = generator(seed)
    logging = distributions(rng, 4, 17, events, places, choices)
    tilted = logging + np.where(np.arange(choices) == choices - 1, 0.5, 0.0)
    action = draws(rng, logging.reshape(-1, choices)).reshape(events, places)
    return {
        "reward": (2.0 * action.sum(axis=1) + rng.integers(0, 8, events)) / (2.0 * places * (choices - 1) + 8.0),
        "action": action,
        "propensities": logging,
        "policies": {
            "tilted": tilted / tilted.sum(axis=2, keepdims=True),
            "any": distributions(rng, 1, 17, events, places, choices),
        },
        "timestamp": times(rng, events),
    }


def shown(columns: Columns) -> Columns:
    """Return the slates with nothing but the probabilities of what each slot shows."""

    def shown_column(column: Array) -> Array:
        return np.take_along_axis(column, columns["action"][:, :, None], axis=2)[:, :, 0]

    return {
        "reward": columns["reward"],
        "propensity": shown_column(columns["propensities"]),
        "policies": {name: shown_column(column) for name, column in columns["policies"].items()},
        "timestamp": columns["timestamp"],
    }


def rankings(seed: int, events: int, places: int = 2, choices: int = 4) -> Columns:
    """Draw slates uniformly from all rankings. The candidate prefers the first action in the first slot."""
    rng = generator(seed)
    ranked = np.array(list(permutations(range(choices), places)))
    action = ranked[rng.integers(0, len(ranked), events)]
    marginals = np.full((events, places, choices), 1.0 / choices)
    target = np.tile(np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]), (events, 1, 1))
    return {
        "reward": (choices - action[:, 0] + rng.integers(0, 4, events)) / (choices + 4.0),
        "action": action,
        "propensities": marginals,
        "policies": {"top": target},
        "slate_logging": "uniform_ranking",
        "timestamp": times(rng, events),
    }


def rewarded_slots(seed: int, events: int) -> Columns:
    """Make slates with a reward for each slot."""
    columns = slots(seed, events)
    rewards = (columns["action"] + generator(seed + 1).integers(0, 3, columns["action"].shape)) / 16.0
    return columns | {"reward": rewards}


def with_gaps(columns: Columns, gaps: dict[str, tuple[int, int]]) -> Columns:
    """Remove the probabilities of some policies from the events of one long gap each."""
    policies = {name: column.copy() for name, column in columns["policies"].items()}
    for name, (first, last) in gaps.items():
        policies[name][first:last] = np.nan
    return columns | {"policies": policies}


def with_units(columns: Columns, seed: int, first: int = 0, size: int = 20) -> Columns:
    """Add sessions of `size` consecutive events from event `first` on. One event in four is independent."""
    events = len(columns["reward"])
    alone = generator(seed).integers(0, 4, events) == 0
    units = [None if alone[event] or event < first else f"session-{event // size}" for event in range(events)]
    return columns | {"unit": units}


def with_rewards(columns: Columns, seed: int) -> Columns:
    """Add the rewards `revenue` and `stay`. Some events lack one of the three rewards."""
    rng, events = generator(seed), len(columns["reward"])
    revenue = np.maximum(columns["reward"], 0.0) * rng.integers(0, 51, columns["reward"].shape)
    stay = 1.0 - (rng.integers(0, 8, columns["reward"].shape) == 0)
    lacks = rng.integers(0, 12, events)
    reward = columns["reward"].copy()
    for number, column in enumerate((reward, revenue, stay)):
        column[lacks == number] = np.nan
    return columns | {"reward": reward, "rewards": {"revenue": revenue, "stay": stay}}


def with_segments(columns: Columns, seed: int) -> Columns:
    """Add a country, which some events lack, and a position."""
    rng, events = generator(seed), len(columns["reward"])
    countries = np.array(["de", "fr", "jp", None], dtype=object)[rng.integers(0, 4, events)]
    return columns | {"segments": {"country": countries.tolist(), "position": rng.integers(1, 5, events).tolist()}}


def ramp(seed: int, events: int) -> Columns:
    """Make the log of a ramp: `new` takes a fifth of the events, and both arms explore among three actions."""
    rng = generator(seed)
    chances = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.25, 0.25, 0.5]])
    arm = (rng.integers(0, 5, events) == 0).astype(int)
    action = draws(rng, chances[arm])
    policies = {name: chances[row, action] for row, name in enumerate(("now", "new", "other"))}
    policies["other"][rng.integers(0, 20, events) == 0] = np.nan
    names = np.array(["now", "new"], dtype=object)[arm]
    names[rng.integers(0, 30, events) == 0] = None
    return {
        "reward": (rng.integers(0, 100, events) < 20 + 15 * action).astype(float),
        "propensity": chances[arm, action],
        "policies": policies,
        "logging_policy": names.tolist(),
        "timestamp": times(rng, events),
        "sampling_probability": np.where(rng.integers(0, 4, events) == 0, 0.5, 1.0),
    }


def choices(seed: int, events: int, listed: bool) -> Columns:
    """Make choices without propensities by a policy that depends on the country.

    Args:
        seed: Seed of the random numbers.
        events: Number of events.
        listed: Whether choices come with lists of described actions.
    """
    rng, actions = generator(seed), 4
    country = rng.integers(0, 3, events)
    logging = np.array([[5, 1, 1, 1], [1, 4, 2, 1], [2, 2, 2, 2]])[country] / 8.0
    action = draws(rng, logging)
    target = distributions(rng, 1, 9, events, actions)
    features = np.broadcast_to(np.eye(actions), (events, actions, actions))
    sets: Columns = {"action": action, "features": features, "policies": {"new": target}}
    names: Columns = {
        "action": [f"item-{index}" for index in action],
        "policies": {"new": target[np.arange(events), action]},
    }
    return {
        "reward": (rng.integers(0, 100, events) < 10 + 15 * action + 10 * country).astype(float),
        "segments": {"country": np.array(["de", "fr", "jp"], dtype=object)[country].tolist()},
        "timestamp": times(rng, events),
        "sampling_probability": np.where(rng.integers(0, 4, events) == 0, 0.5, 1.0),
        **(sets if listed else names),
    }


def pages(seed: int, events: int, shown: int = 5) -> Columns:
    """Make pages of described items with clicks. `new` reverses the order, `other` is random and drops some items."""
    rng = generator(seed)
    rank = np.arange(1, shown + 1)
    features = rng.integers(0, 9, (events, shown, 2)) / 8.0
    chance = (24 + 48 * features[:, :, 0]) // rank
    clicks = (rng.integers(0, 96, (events, shown)) < chance).astype(float)
    other = rng.permuted(np.tile(np.arange(1.0, shown + 3), (events, 1)), axis=1)[:, :shown]
    ranks = {"new": np.tile(rank[::-1].astype(float), (events, 1)), "other": np.where(other > shown, np.inf, other)}
    for column in ranks.values():
        column[rng.integers(0, 20, events) == 0] = np.nan
    ranks["other"][events // 2 : events // 2 + 400] = np.nan
    sessions = rng.integers(0, 4, events)
    return {
        "clicks": clicks,
        "ranks": ranks,
        "features": features,
        "list_length": shown,
        "timestamp": times(rng, events),
        "sampling_probability": np.where(rng.integers(0, 4, events) == 0, 0.5, 1.0),
        "unit": [None if sessions[event] == 0 else f"session-{event // 20}" for event in range(events)],
    }


def write_lines(path: Path, messages: list[Any]) -> None:
    """Write the messages as lines of JSON. Strings are written as they are."""
    path.write_text(
        "".join(f"{message if isinstance(message, str) else json.dumps(message)}\n" for message in messages)
    )


def listed_messages(seed: int, events: int) -> list[Any]:
    """Make slates with a list of all possible ones, and some plain slates and plain events among them."""
    rng = generator(seed)
    slates = [list(slate) for slate in permutations("abc", 2)]
    messages: list[Any] = []
    for event in range(events):
        shares = distributions(rng, 2, 17, 1, len(slates))
        slate = slates[int(draws(rng, shares)[0])]
        reward = ((slate[0] == "a") * 4 + (slate[1] == "b") * 2 + int(rng.integers(0, 3))) / 8.0
        common: Columns = {"event_id": f"e-{event}", "timestamp": START + 2.0 * event, "reward": reward}
        target = distributions(rng, 1, 9, 2, 3).tolist()
        if event % 7 == 3:
            sides = rng.integers(0, 2, 2)
            coins = [{"action": int(side), "propensity": 0.5, "policies": {"top": 0.25 + 0.5 * side}} for side in sides]
            messages.append(common | {"slots": coins})
        elif event % 11 == 5:
            side = int(rng.integers(0, 2))
            messages.append(common | {"action": side, "propensity": 0.5, "policies": {"top": 0.75 - 0.5 * side}})
        else:
            places = [
                {"action": action, "actions": ["a", "b", "c"], "policies": {"top": chosen}}
                for action, chosen in zip(slate, target, strict=True)
            ]
            messages.append(common | {"slots": places, "slates": slates, "slate_propensities": shares[0].tolist()})
    return messages


def scored_messages(seed: int, events: int) -> list[Any]:
    """Make events with named actions, scores and features for policies in code, and some lines that are not events.

    The number of actions varies. Some events lack scores, features, or the probabilities of `shadow`.
    """
    rng = generator(seed)
    names = ["news", "sport", "music", "film", "games"]
    messages: list[Any] = []
    for event in range(events):
        count = int(rng.integers(2, 6))
        logging = distributions(rng, 4, 17, 1, count)
        action = int(draws(rng, logging)[0])
        scores = rng.integers(-8, 9, count) / 8.0
        features = np.stack([scores, rng.integers(0, 17, count) / 16.0], axis=1)
        earned = 0.375 + 0.25 * scores[action] + 0.0625 * action - int(rng.integers(0, 17)) / 128.0
        message: Columns = {
            "event_id": event,
            "timestamp": START + 1.5 * event,
            "action": names[action],
            "actions": names[:count],
            "propensities": logging[0].tolist(),
            "reward": float(np.clip(earned, 0.0, 1.0)),
            "policies": {"shadow": distributions(rng, 1, 33, 1, count)[0].tolist()},
            "scores": scores.tolist(),
            "features": features.tolist(),
            "unit": f"user-{event // 5}",
            "context": {"hour": event % 24},
        }
        if event % 41 == 7:
            del message["scores"]
        if event % 43 == 9:
            del message["features"]
        if event % 13 == 4:
            del message["policies"]
        messages.append(message)
        if event % 500 == 250:
            messages += ["no json", message | {"reward": 7}, message | {"propensities": [2.0] * count}]
    return messages


def compact_messages(seed: int, events: int) -> list[Any]:
    """Make the plain log as messages."""
    columns = plain(seed, events)
    messages: list[Any] = []
    for event in range(events):
        policies = {name: float(column[event]) for name, column in columns["policies"].items()}
        message: Columns = {
            "event_id": event,
            "timestamp": float(columns["timestamp"][event]),
            "action": event % 7,
            "propensity": float(columns["propensity"][event]),
            "gain": float(np.clip(columns["reward"][event], 0.0, 1.0)),
            "sampling_probability": float(columns["sampling_probability"][event]),
            "policies": {name: share for name, share in policies.items() if share == share},
        }
        unit = columns["unit"][event]
        messages.append(message if unit is None else message | {"unit": unit})
    return messages


def revealed_messages(seed: int, events: int) -> list[Any]:
    """Make outcomes that were revealed with a known probability, outcomes that were not, and some plain events."""
    rng = generator(seed)
    messages: list[Any] = []
    for event in range(events):
        common: Columns = {"event_id": f"e-{event}", "timestamp": START + 1.5 * event, "unit": f"user-{event // 7}"}
        propensity, production, challenger = (int(integer) for integer in rng.integers(1, 33, 3))
        values = {"production": production / 33.0, "challenger": (production + 2 * challenger) / 100.0}
        if event % 23 == 5 or 900 <= event < 1_150:
            del values["challenger"]
        if event % 17 == 3:
            targets = {"production": propensity / 33.0, "challenger": challenger / 33.0}
            common |= {"action": 1, "propensity": propensity / 33.0, "reward": production / 33.0, "policies": targets}
        elif rng.integers(0, 33) >= propensity:
            common |= {"scored": {"revealed": False}}
        else:
            common |= {"scored": {"propensity": propensity / 33.0, "values": values}}
        messages.append(common)
    return messages
