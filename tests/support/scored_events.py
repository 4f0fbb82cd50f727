"""Define messages and batches of scored events."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval import (
    Cumulative,
    Evaluator,
    EventBatch,
    ScoredIPS,
    ScoredSNIPS,
)
from streameval.events import JsonDecoder
from support.messages import message

POLICIES = ["production", "challenger"]
BOTH = [ScoredIPS(), ScoredSNIPS()]
PLAIN = {"action": ..., "propensity": ..., "reward": ...}


def scored(propensity: float | None, production: Any = None, challenger: Any = None, **fields: Any) -> bytes:
    columns = {"propensity": propensity, "values": {"production": production, "challenger": challenger}}
    return message(1, **PLAIN | {"scored": {**columns, **fields.pop("scored", {})}} | fields)


def hidden() -> bytes:
    return message(1, **PLAIN | {"scored": {"revealed": False}})


def batch_of(*messages: bytes, policies: Any = tuple(POLICIES)) -> EventBatch:
    batch = JsonDecoder(policies).decode_batch(messages)
    assert not batch.rejected, batch.rejected
    return batch


def evaluator(**options: Any) -> Evaluator:
    settings: dict[str, Any] = {"estimators": BOTH, "averages": [Cumulative()]}
    return Evaluator(["challenger"], production="production", **(settings | options))


def log(n: int, seed: int = 1, complete: bool = True) -> list[bytes]:
    """Draw outcomes that are revealed more often if the error is small. The mean errors are .6 and .4."""
    rng = np.random.default_rng(seed)
    error = rng.uniform(0.2, 1.0, n)
    other = error * rng.uniform(1 / 3, 1.0, n)
    propensity = np.where(error > 0.6, 0.2, 0.8)
    shown = rng.random(n) < propensity
    rows = zip(propensity.tolist(), (-error).tolist(), (-other).tolist(), shown.tolist(), strict=True)
    messages = [scored(p, *both) if is_shown else hidden() for p, *both, is_shown in rows]
    return messages if complete else [text for text in messages if b"revealed" not in text]
