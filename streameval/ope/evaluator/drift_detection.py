"""Detect changes in the reward under each policy. No estimate depends on it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core import adwin
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.evidence.evidence import Evidence

CLIPPED_AT = 5.0
"""Larger importance weights are clipped: the tests do not allow for heavy tails, and drift shows in the many events
with small weights."""
LONGEST_WINDOW, KEPT_VALUES = 4_000, 1_000
"""After this many block means, a detector restarts from the last ones, which bounds its state."""
FEWEST = 30
"""Detections in the first block means are not counted; short logs do not need river, which loads slowly."""
ADWIN = {"delta": 0.002, "clock": 32, "max_buckets": 5, "min_window_length": 5, "grace_period": 10}
"""The parameters of ADWIN with their defaults, as in river."""
MIN_ADWIN = {"delta": 5e-324, "clock": 1, "max_buckets": 1, "min_window_length": -(2**31), "grace_period": -(2**31)}
"""The smallest value of each."""


class AdwinState(msgspec.Struct, frozen=True, eq=False):
    """Hold the windows of ADWIN, which change in place.

    Attributes:
        detections: [policies]. Number of changes.
        seen: see `core.adwin.Windows`
        ticks, totals, sizes, sums, deviations: [policies, 2, ...]. See `core.adwin.Windows`, by policy and window.
    """

    detections: Integers
    seen: Integers
    ticks: Integers
    totals: Array
    sizes: Integers
    sums: Array
    deviations: Array

    @classmethod
    def start(cls, policies: int, max_buckets: int) -> AdwinState:
        """Return the state before the first event."""
        windows = policies, 2
        buckets = (*windows, LONGEST_WINDOW.bit_length(), min(max_buckets, LONGEST_WINDOW) + 1)
        detections, seen = np.zeros((2, policies), dtype=np.int64)
        ticks, sizes = np.zeros(windows, dtype=np.int64), np.zeros(buckets[:3], dtype=np.int64)
        return cls(detections, seen, ticks, np.zeros((*windows, 3)), sizes, np.zeros(buckets), np.zeros(buckets))


class RiverState(msgspec.Struct, frozen=True, eq=False):
    """Hold detectors of river. They cannot be saved, and are rebuilt from block means to the last bit.

    Attributes:
        detections: [policies]. Number of changes.
        seen: at most 4,000 block means of each policy
        detectors: a detector for each policy, None before it is needed
    """

    detections: Integers
    seen: list[list[float]]
    detectors: list[Any]

    @classmethod
    def start(cls, policies: int) -> RiverState:
        """Return the state before the first event."""
        return cls(np.zeros(policies, dtype=np.int64), [[] for _ in range(policies)], [None] * policies)


DriftState = AdwinState | RiverState


@dataclass(frozen=True)
class DriftDetector:
    """Name a drift detector of river with its parameters: `ADWIN`, `PageHinkley`, `KSWIN`.

    It sees the block means of `min(w, 5) r`, in units of the reward range. A detector that draws at random gets a seed.
    ADWIN is computed without river, with the same results.

    >>> DriftDetector.from_option({"detector": "ADWIN", "delta": 0.01})
    DriftDetector(name='ADWIN', parameters={'delta': 0.01})

    Source: for ADWIN, Bifet & Gavalda, SIAM Data Mining 2007.
    """

    name: str = "ADWIN"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_option(cls, value: DriftDetector | Mapping[str, Any] | str | None) -> DriftDetector | None:
        """Return the detector of this name, or of a mapping with the `detector` and its parameters. None for `off`.

        Raises:
            ValueError: The value is not a detector.
        """
        if value is None or value == "off" or isinstance(value, DriftDetector):
            return value if isinstance(value, DriftDetector) else None
        if not isinstance(value, str | Mapping):
            raise ValueError(f"the drift detector must be a name or a mapping of options, found {value!r}")
        parameters = {"detector": value} if isinstance(value, str) else dict(value)
        detector = cls(parameters.pop("detector", cls.name), parameters)
        if detector.needs_river:
            detector.make()
        else:
            detector._check_adwin()
        return detector

    @property
    def needs_river(self) -> bool:
        """Return whether river, which takes a second to import, runs this detector."""
        return self.name != "ADWIN"

    def make(self) -> Any:
        """Return a new river detector.

        Raises:
            ValueError: River has no detector of this name, or refuses the parameters.
        """
        kinds = _kinds()
        if self.name not in kinds:
            raise ValueError(f"there is no drift detector {self.name!r}; there are {', '.join(sorted(kinds))}")
        allowed = inspect.signature(kinds[self.name]).parameters
        self._check_names(allowed)
        seeded = {"seed": 1} if "seed" in allowed else {}
        try:
            return kinds[self.name](**{**seeded, **self.parameters})
        except TypeError as error:
            raise ValueError(f"{self.name} cannot be made with {dict(self.parameters)}: {error}") from None

    def _check_names(self, allowed: Collection[str]) -> None:
        unknown = sorted(set(self.parameters) - set(allowed))
        if unknown:
            raise ValueError(f"{self.name} has no parameter {', '.join(unknown)}; it has {', '.join(allowed)}")

    def _check_adwin(self) -> None:
        """Raise ValueError for parameters that ADWIN does not have."""
        self._check_names(ADWIN)
        for name, value in self.parameters.items():
            kinds = (int, float) if name == "delta" else (int,)
            if type(value) not in kinds or not MIN_ADWIN[name] <= value < 2**31:
                kind = "a number above 0" if name == "delta" else f"an integer from {MIN_ADWIN[name]}"
                problem = f"{name} must be {kind}, found {value!r}"
                raise ValueError(f"{self.name} cannot be made with {dict(self.parameters)}: {problem}")

    def start(self, policies: int) -> DriftState:
        """Return the state before the first event."""
        if self.needs_river:
            return RiverState.start(policies)
        return AdwinState.start(policies, {**ADWIN, **self.parameters}["max_buckets"])

    def update(self, state: DriftState, means: Array) -> None:
        """Update the state with the next block means, [blocks, policies], NaN if a policy has no events in a block."""
        if isinstance(state, RiverState):
            self._update_river(state, means)
            return
        names = ("ticks", "totals", "sizes", "sums", "deviations")
        arrays = (getattr(state, name) for name in names)
        by_window = {name: array.reshape(-1, *array.shape[2:]) for name, array in zip(names, arrays, strict=True)}
        windows = adwin.Windows(**{**ADWIN, **self.parameters}, seen=state.seen, **by_window)
        windows.update(np.ascontiguousarray(means), state.detections, LONGEST_WINDOW, KEPT_VALUES, FEWEST)

    def _update_river(self, state: RiverState, means: Array) -> None:
        for policy, column in enumerate(means.T.tolist()):
            seen, detector, detections = state.seen[policy], state.detectors[policy], 0
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
            state.detectors[policy] = detector
            state.detections[policy] += detections

    def _after(self, means: list[float]) -> Any:
        """Return a new river detector that has seen these block means."""
        detector = self.make()
        for mean in means:
            detector.update(mean)
        return detector

    def take(self, state: DriftState, index: Sequence[int]) -> DriftState:
        """Return the state of some of the policies."""
        if isinstance(state, RiverState):
            lists = ([values[policy] for policy in index] for values in (state.seen, state.detectors))
            return RiverState(state.detections[list(index)], *lists)
        taken: AdwinState = select_policies(state, index)
        return taken


def joined_detectors(state: DriftState | None, late: DriftState | None, company: Company) -> DriftState | None:
    """Return the state with the new policies of a late one, or None without a detector."""
    if isinstance(state, RiverState) and isinstance(late, RiverState):
        first = company.late - company.new
        detections = joined(state.detections, late.detections, company)
        return RiverState(detections, state.seen + late.seen[first:], state.detectors + late.detectors[first:])
    merged: DriftState | None = joined(state, late, company)
    return merged


def saved(state: DriftState | None) -> DriftState | None:
    """Return the state without detectors of river, which are rebuilt when they are needed."""
    if not isinstance(state, RiverState):
        return state
    return msgspec.structs.replace(state, detectors=[None] * len(state.detectors))


def _kinds() -> dict[str, type[Any]]:
    """Return river's detectors of changes in a stream of numbers. River takes seconds to import."""
    from river import base, drift

    kinds = {name: kind for name, kind in vars(drift).items() if inspect.isclass(kind)}
    unusable = ("DummyDriftDetector", "NoDrift")
    return {name: kind for name, kind in kinds.items() if issubclass(kind, base.DriftDetector) and name not in unusable}


def block_means(evidence: Evidence, reward_range: tuple[float, float]) -> Array:
    """Return means of `min(w, 5) r` of each block in units of the reward range, [blocks, policies], NaN without events.

    >>> evidence = Evidence.from_numbers(importance_weight=[[125.0], [1.0]], reward=[1.0, 1.0], block=2)
    >>> block_means(evidence, (0.0, 1.0))
    array([[3.]])
    """
    low, high = reward_range
    clipped = np.minimum(evidence.importance_weight, CLIPPED_AT) * (evidence.reward / (high - low))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return evidence.block_sums(clipped) / evidence.block_sums(None)
