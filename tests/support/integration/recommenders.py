"""Run recommenders that append events to a log for daemons to follow."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

AT_ONCE, PAUSE = 250, 0.1  # events, seconds
Chances = Callable[[NDArray[np.int_]], NDArray[np.float64]]


class Recommender(threading.Thread):
    """Append events to a log until it is stopped, with each action equally often.

    Args:
        log: File of the log.
        policies: Probabilities of the actions under each policy.
        chances: Function from event numbers to probabilities of a reward [events, actions].
        seed: Seed of the random numbers.
    """

    def __init__(self, log: Path, policies: Mapping[str, Sequence[float]], chances: Chances, seed: int) -> None:
        super().__init__(daemon=True)
        self._log, self._policies, self._chances = log, policies, chances
        self._random = np.random.default_rng(seed)
        self._stopped = threading.Event()
        log.touch()

    def run(self) -> None:
        """Write some events, wait, write the next."""
        written = 0
        with self._log.open("ab", buffering=0) as file:
            while not self._stopped.wait(PAUSE):
                file.write(b"".join(self._events(written)))
                written += AT_ONCE

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        if self.is_alive():
            self.join()

    def _events(self, first: int) -> Iterator[bytes]:
        numbers = np.arange(first, first + AT_ONCE)
        chances = self._chances(numbers)
        actions = (chances.shape[1] * (1.0 - self._random.random(AT_ONCE))).astype(int) % chances.shape[1]
        rewarded = self._random.random(AT_ONCE) < chances[np.arange(AT_ONCE), actions]
        for number, action, reward in zip(numbers.tolist(), actions.tolist(), rewarded.tolist(), strict=True):
            event = {
                "event_id": str(number),
                "timestamp": time.time(),
                "action": str(action),
                "propensity": 1 / chances.shape[1],
                "reward": int(reward),
                "policies": {name: chosen[action] for name, chosen in self._policies.items()},
            }
            yield json.dumps(event).encode() + b"\n"
