"""Make streams of events for the tests: plain columns, random ones, and ways to cut them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch

Array = NDArray[np.float64]

CANDIDATE = "challenger"


def close(expected: float | None, rel: float = 1e-9, abs: float = 1e-12) -> Any:
    """Return a value that equals numbers near `expected`. None equals only None."""
    return None if expected is None else pytest.approx(expected, rel=rel, abs=abs)


@dataclass(frozen=True)
class Stream:
    """Hold events with one candidate.

    Attributes:
        reward: Rewards.
        propensity: Propensities of the logged actions.
        target: Probabilities of the candidate, NaN if the event lacks it.
        sampling: Sampling probabilities, 1 if the log is complete.
    """

    reward: Array
    propensity: Array
    target: Array
    sampling: Array

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, part: slice | Array) -> Stream:
        return Stream(*[getattr(self, field.name)[part] for field in fields(self)])

    def with_(self, **columns: Array) -> Stream:
        """Return the stream with other columns."""
        return Stream(**{field.name: columns.get(field.name, getattr(self, field.name)) for field in fields(self)})

    @property
    def weight(self) -> Array:
        """Return importance weights of the candidate, 0 if it is missing."""
        return np.nan_to_num(self.target / self.propensity)

    @property
    def present(self) -> Array:
        """Return averaging weights of the candidate: the inverse sampling probability, 0 if it is missing."""
        return np.where(np.isnan(self.target), 0.0, 1 / self.sampling)

    def batch(self) -> EventBatch:
        """Return the batch that the evaluator takes."""
        return EventBatch.from_arrays(
            reward=self.reward,
            propensity=self.propensity,
            policies={CANDIDATE: self.target},
            sampling_probability=self.sampling,
        )


def from_weights(weight: Iterable[float], reward: Iterable[float]) -> Stream:
    """Make a stream with these importance weights."""
    w = np.array(list(weight), dtype=float)
    propensity = np.full(len(w), 1 / max(1.0, w.max(initial=1.0)))
    return Stream(np.array(list(reward), dtype=float), propensity, propensity * w, np.ones(len(w)))


def random_stream(
    seed: int,
    n: int,
    *,
    missing: float = 0.0,
    downsampled: bool = False,
    rewards: str = "click",
    range_: tuple[float, float] = (0.0, 1.0),
) -> Stream:
    """Draw independent events with weights between 0 and 20, and a drifting mean reward.

    Args:
        seed: Seed of the random numbers.
        n: Number of events.
        missing: Share of events that lack the candidate.
        downsampled: Whether sampling probabilities differ from 1.
        rewards: "click" for two values, "real" for any.
        range_: Smallest and largest reward.
    """
    rng = np.random.default_rng(seed)
    low, high = range_
    propensity = rng.uniform(0.05, 1.0, n)
    target = rng.uniform(0.0, 1.0, n)
    mean = 0.5 + 0.4 * np.sin(np.arange(n) / 300 + seed)
    unit = (rng.uniform(size=n) < mean) * 1.0 if rewards == "click" else np.clip(rng.normal(mean, 0.2, n), 0, 1)
    target[rng.uniform(size=n) < missing] = np.nan
    sampling = rng.choice([0.25, 0.5, 1.0], n) if downsampled else np.ones(n)
    return Stream(low + (high - low) * unit, propensity, target, sampling)


def streams(most: int = 600, **fixed: Any) -> st.SearchStrategy[Stream]:
    """Draw random streams of up to `most` events. Small ones are tried first."""
    settings: dict[str, Any] = {
        "seed": st.integers(0, 2**32 - 1),
        "n": st.integers(0, most),
        "missing": st.sampled_from([0.0, 0.3, 0.97]),
        "downsampled": st.booleans(),
        "rewards": st.sampled_from(["click", "real"]),
    }
    return st.builds(random_stream, **settings | fixed)


def cuttings(most: int = 12) -> st.SearchStrategy[list[float]]:
    """Draw fractions of a stream's length to cut it at. A repeated one makes an empty piece."""
    return st.lists(st.floats(0, 1), max_size=most).map(sorted)


def pieces(stream: Stream, cutting: Iterable[float]) -> Iterator[Stream]:
    """Yield the consecutive pieces of a stream, which may be empty."""
    indices = [0, *[round(cut * len(stream)) for cut in cutting], len(stream)]
    for first, last in pairwise(indices):
        yield stream[first:last]


def evaluated(events: Stream | EventBatch, *, every: int | None = None, **settings: Any) -> Evaluator:
    """Return an evaluator, by default of `CANDIDATE`, that has received the events.

    Args:
        events: Events to evaluate.
        every: Number of events of an update, by default all.
        settings: Arguments of the evaluator.
    """
    evaluator = Evaluator(**{"candidates": [CANDIDATE], **settings})
    batch = events.batch() if isinstance(events, Stream) else events
    for first in range(0, len(batch), every or max(1, len(batch))):
        evaluator.update(batch[first : first + (every or len(batch))])
    return evaluator
