"""Taking a hundred megabytes of state for a snapshot, which stops the loop, with a plain copy of as many bytes."""

from __future__ import annotations

import numpy as np
from measuring import Benchmark, Ratio, Work

from streameval import IPS, SNIPS, Cumulative, Evaluator, EventBatch, Window
from streameval.common.arrays import bytes_in

CANDIDATES, EVENTS, BATCHES = 110, 6_000, 4


def benchmark(_: int = 0) -> Benchmark:
    rng = np.random.default_rng(1)
    names = [f"candidate-{number}" for number in range(CANDIDATES)]
    averages = [Cumulative(), Window(tau=20_000, resolution=1)]
    evaluator = Evaluator(names, [IPS(), SNIPS()], averages, drift=None, promotion=None)
    for _ in range(BATCHES):
        policies = {name: rng.random(EVENTS) for name in names}
        reward, propensity = rng.random(EVENTS), np.ones(EVENTS)
        evaluator.update(EventBatch.from_arrays(reward=reward, propensity=propensity, policies=policies))
    content = np.ones(bytes_in(evaluator.state()), dtype=np.uint8)
    works = {"a state": Work(evaluator.state), "a copy": Work(content.copy)}
    return Benchmark("Taking 100 MB of state", works, [Ratio("a state", "a copy", 3)])
