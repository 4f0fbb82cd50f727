"""Make the messages of the benchmarks. They are equal in every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from streameval.common.arrays import Array
from streameval.events.arrow_messages import arrow_message

CANDIDATES = tuple(f"cand-{number}" for number in range(10))
MESSAGE_BYTES = 277
START = 1574553634.76


def compact(count: int, candidates: Sequence[str] = CANDIDATES, seed: int = 20190211) -> list[bytes]:
    """Make compact events with the probabilities of candidates. With ten candidates, an event has 277 bytes."""
    rng = np.random.default_rng(seed)
    propensity = rng.uniform(0.02, 0.9, count).round(4)
    reward = (rng.random(count) < 0.1).astype(int)
    shares = np.minimum(rng.random((count, len(candidates))) * 2 * propensity[:, None], 1).round(5)
    return [
        padded(
            {
                "event_id": f"e-{number:08d}",
                "timestamp": round(START + number / 1000, 3),
                "action": str(number % 40),
                "propensity": propensity[number],
                "reward": int(reward[number]),
                "policies": dict(zip(candidates, shares[number].tolist(), strict=True)),
            }
        )
        for number in range(count)
    ]


def batched(values: Sequence[bytes], size: int) -> list[bytes]:
    """Put so many events of JSON into each message of Arrow."""
    events = list(map(orjson.loads, values))
    return [arrow_message(events[first : first + size]) for first in range(0, len(events), size)]


def padded(event: dict[str, object]) -> bytes:
    """Encode an event in `MESSAGE_BYTES` bytes or more.

    It is a copy, because orjson's own bytes leave large holes in memory.
    """
    line = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY)
    return line[:-1] + b" " * (MESSAGE_BYTES - len(line)) + b"}"


def events_with_context(count: int, fields: tuple[str, ...], seed: int = 20190211) -> list[bytes]:
    """Make compact events with a context of small numbers."""
    values = np.random.default_rng(seed).integers(0, 10, (count, len(fields))).tolist()
    return [
        orjson.dumps({**orjson.loads(value), "context": dict(zip(fields, numbers, strict=True))})
        for value, numbers in zip(compact(count), values, strict=True)
    ]


def events_with_actions(
    count: int, actions: int, features: int, greedy: bool = False, seed: int = 20190211
) -> list[bytes]:
    """Make events with the features of all actions and eleven distributions over them.

    Args:
        count: Number of events.
        actions: Number of actions.
        features: Features of an action.
        greedy: Whether candidates always take one action.
        seed: Seed of the events.
    """
    rng = np.random.default_rng(seed)
    names = [f"item-{number}" for number in range(actions)]

    def event(number: int) -> dict[str, object]:
        logging, *targets = _distributions(rng, actions, greedy)
        return {
            "event_id": f"e-{number:08d}",
            "timestamp": round(START + number / 1000, 3),
            "actions": names,
            "features": rng.normal(size=(actions, features)).round(4).tolist(),
            "propensities": logging.tolist(),
            "action": names[rng.integers(actions)],
            "reward": int(rng.random() < 0.1),
            "policies": {name: target.tolist() for name, target in zip(CANDIDATES, targets, strict=True)},
        }

    return [orjson.dumps(event(number)) for number in range(count)]


def _distributions(rng: np.random.Generator, actions: int, greedy: bool) -> Array:
    """Draw distributions of the logging policy and of all candidates."""
    if not greedy:
        return rng.dirichlet(np.ones(actions), size=len(CANDIDATES) + 1)
    chosen = np.eye(actions)[rng.integers(actions, size=len(CANDIDATES) + 1)]
    chosen[0] = 0.2 / actions + 0.8 * chosen[0]
    return np.asarray(chosen)


def pages(count: int, items: int, clicks: int, seed: int = 20190211) -> list[bytes]:
    """Make pages of items out of a thousand, with the ranks of the clicked items by each candidate."""
    rng = np.random.default_rng(seed)

    def page(number: int) -> dict[str, object]:
        shown = [f"item-{item}" for item in rng.choice(1_000, items, replace=False)]
        clicked = [shown[index] for index in sorted(rng.choice(items, clicks, replace=False))]
        ranks = [(1 + rng.choice(items, clicks, replace=False)).tolist() for _ in CANDIDATES]
        return {
            "event_id": f"e-{number:08d}",
            "timestamp": round(START + number / 1000, 3),
            "ranking": {"shown": shown, "clicked": clicked},
            "policies": {
                name: {"ranks": dict(zip(clicked, candidate_ranks, strict=True))}
                for name, candidate_ranks in zip(CANDIDATES, ranks, strict=True)
            },
        }

    return [orjson.dumps(page(number)) for number in range(count)]
