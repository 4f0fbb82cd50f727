"""Drift detection: tests for a change in the reward under each policy. No estimate depends on them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streameval.common.arrays import Array, State, from_plain, to_plain
from streameval.ope.evidence.evidence import Evidence

CLIPPED_AT = 5.0
"""Larger importance weights are clipped: the tests do not allow for heavy tails, and drift shows in the many events
with small weights."""
LONGEST_WINDOW, KEPT_VALUES = 4_000, 1_000
"""After this many block means, a detector restarts from the last ones: its history is bounded, and saved. To see the
kept ones again takes a third of the time of all others."""
FEWEST = 30
"""Detections in the first block means are not counted; short logs do not need river, which loads slowly."""


@dataclass(frozen=True)
class DriftDetector:
    """A drift detector of river, by its name there, with its parameters: `ADWIN`, `PageHinkley`, `KSWIN`.

    It sees the block means of `min(w, 5) r`, in units of the reward range. A detector that draws at random gets a seed.

    >>> DriftDetector.of({"detector": "ADWIN", "delta": 0.01})
    DriftDetector(name='ADWIN', parameters={'delta': 0.01})

    Source: for ADWIN, Bifet & Gavalda, SIAM Data Mining 2007.
    """

    name: str = "ADWIN"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: DriftDetector | Mapping[str, Any] | str | None) -> DriftDetector | None:
        """From a name, or a mapping with the `detector` and its parameters; None for `off`.

        Raises:
            ValueError: The value is not a detector.
        """
        if value is None or value == "off" or isinstance(value, DriftDetector):
            return value if isinstance(value, DriftDetector) else None
        if not isinstance(value, str | Mapping):
            raise ValueError(f"the drift detector must be a name or a mapping of options, found {value!r}")
        parameters = {"detector": value} if isinstance(value, str) else dict(value)
        detector = cls(parameters.pop("detector", cls.name), parameters)
        if detector != cls():
            detector.make()
        return detector

    def make(self) -> Any:
        """A new river detector.

        Raises:
            ValueError: River has no detector of this name, or refuses the parameters.
        """
        kinds = _kinds()
        if self.name not in kinds:
            raise ValueError(f"there is no drift detector {self.name!r}; there are {', '.join(sorted(kinds))}")
        allowed = inspect.signature(kinds[self.name]).parameters
        unknown = sorted(set(self.parameters) - set(allowed))
        if unknown:
            raise ValueError(f"{self.name} has no parameter {', '.join(unknown)}; it has {', '.join(allowed)}")
        seeded = {"seed": 1} if "seed" in allowed else {}
        try:
            return kinds[self.name](**{**seeded, **self.parameters})
        except TypeError as error:
            raise ValueError(f"{self.name} cannot be made with {dict(self.parameters)}: {error}") from None

    def start(self, policies: int) -> State:
        """The state before the first event: the number of changes found of each policy, and what the tests have seen.

        River's detectors cannot be saved as plain values. They are rebuilt to the last bit from `seen`, at most 4,000
        block means of each policy.
        """
        return {"detections": [0] * policies, "seen": [[] for _ in range(policies)], "detectors": [None] * policies}

    def update(self, state: State, means: Array) -> None:
        """Take the next block means, [blocks, policies]; NaN where a policy has no events in a block."""
        for policy, column in enumerate(means.T.tolist()):
            seen, detector, detections = state["seen"][policy], state["detectors"][policy], 0
            for mean in filter(math.isfinite, column):
                if len(seen) == LONGEST_WINDOW:
                    del seen[: LONGEST_WINDOW - KEPT_VALUES]
                    detector = None
                seen.append(mean)
                if len(seen) > FEWEST:
                    if detector is None:
                        detector = self._after(seen[:-1])
                    detector.update(mean)
                    detections += detector.drift_detected
            state["detectors"][policy] = detector
            state["detections"][policy] += detections

    def _after(self, means: list[float]) -> Any:
        """A new river detector that has seen these block means."""
        detector = self.make()
        for mean in means:
            detector.update(mean)
        return detector

    def to_state(self, state: State) -> State:
        """The state as a plain value."""
        seen = [np.array(means) for means in state["seen"]]
        plain: State = to_plain({"detector": repr(self), "detections": list(state["detections"]), "seen": seen})
        return plain

    def from_state(self, saved: State | None, fresh: State) -> State:
        """The inverse of `to_state`; `fresh`, the state before the first event, after that of another detector."""
        if saved is None or saved["detector"] != repr(self):
            return fresh
        seen = [means.tolist() for means in from_plain(saved["seen"])]
        return {**fresh, "detections": list(saved["detections"]), "seen": seen}


def _kinds() -> dict[str, type[Any]]:
    """river's detectors of changes in a stream of numbers; river takes seconds to import."""
    from river import base, drift

    kinds = {name: kind for name, kind in vars(drift).items() if inspect.isclass(kind)}
    unusable = ("DummyDriftDetector", "NoDrift")
    return {name: kind for name, kind in kinds.items() if issubclass(kind, base.DriftDetector) and name not in unusable}


def block_means(evidence: Evidence, reward_range: tuple[float, float]) -> Array:
    """Means of `min(w, 5) r` of each block in units of the reward range, [blocks, policies]; NaN without events.

    >>> evidence = Evidence.of(importance_weight=[[125.0], [1.0]], reward=[1.0, 1.0], block=2)
    >>> block_means(evidence, (0.0, 1.0))
    array([[3.]])
    """
    low, high = reward_range
    clipped = np.minimum(evidence.importance_weight, CLIPPED_AT) * (evidence.reward / (high - low))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return evidence.block_sums(clipped) / evidence.block_sums(None)
