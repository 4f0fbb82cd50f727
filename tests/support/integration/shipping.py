"""Run a daemon for a policy that is promoted, shipped, and becomes worse then, as Prometheus sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from numpy.typing import NDArray

from support.factories import wait_until
from support.integration.monitoring import query
from support.integration.recommenders import Recommender
from support.integration.running import daemon
from support.ports import free_port

POLICIES = {"former": (0.8, 0.1, 0.1), "shipped": (0.1, 0.8, 0.1), "waiting": (0.1, 0.1, 0.8)}
BEFORE, AFTER = (0.1, 0.5, 0.9), (0.9, 0.5, 0.1)
"""Mean rewards of the actions, before and after users change their minds."""
PATIENCE = 240.0


class Shipping:
    """Ship one of two promotable candidates, and make both worse then.

    `former` is production by name at first. The daemon is restarted for the shipped production policy, and continues
    from its snapshot.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self._folder, self._port = folder, free_port()
        self._earned = BEFORE
        self._recommender = Recommender(folder / "log.ndjson", POLICIES, self._chances, seed)

    @property
    def instance(self) -> str:
        """Return its name in Prometheus."""
        return f"127.0.0.1:{self._port}"

    def run(self, monitor: httpx.Client, notified: Callable[[], bool]) -> None:
        """Run the scenario until `notified()`, when all expected notifications have arrived."""
        try:
            self._recommender.start()
            with self._life("former", "shipped", "waiting"):
                wait_until(lambda: self._promotable(monitor) == {"shipped", "waiting"}, PATIENCE)
            with self._life("shipped", "former", "waiting"):
                wait_until(lambda: self._promotable(monitor) == {"waiting"}, PATIENCE)
                self._earned = AFTER
                wait_until(notified, PATIENCE)
        finally:
            self._recommender.stop()

    def _life(self, production: str, *candidates: str) -> Any:
        config = {
            "source": {"kind": "file", "path": str(self._folder / "log.ndjson"), "follow": True},
            "policies": {"production": production, "candidates": list(candidates)},
            "promotion": {"rule": "paired", "min_events": 1000},
            "http": {"port": self._port},
            "state": {"dir": str(self._folder / "state")},
        }
        (self._folder / "streameval.yaml").write_text(yaml.safe_dump(config))
        return daemon(self._folder / "streameval.yaml", self._folder / f"{production}.log")

    def _promotable(self, monitor: httpx.Client) -> set[str]:
        series = query(monitor, f'streameval_policy_promotable{{instance="{self.instance}"}} == 1')
        return {labels["policy"] for labels, _ in series}

    def _chances(self, events: NDArray[np.int_]) -> NDArray[np.float64]:
        return np.tile(self._earned, (len(events), 1))
