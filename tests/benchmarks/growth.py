"""Cost of an event after decoding as a configuration grows: more rewards, more candidates, a longer window.

    make bench
    python tests/benchmarks/growth.py --rounds 5

All cases are measured in turns within one run, and compared round by round with the first one, the default
configuration with ten candidates and one reward. The state has the size of one whose windows are full.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple

import numpy as np
from memory_source import POLL

from streameval.service.process import set_up_process

set_up_process()

from streameval import Cumulative, Evaluator, EventBatch, Window  # noqa: E402


class Case(NamedTuple):
    """An evaluator and its events, in polls."""

    evaluator: Evaluator
    batches: list[EventBatch]

    def microseconds(self) -> float:
        """Processor time of an event."""
        before = time.process_time()
        for batch in self.batches:
            self.evaluator.update(batch)
        self.evaluator.fold_pending()
        return (time.process_time() - before) / sum(map(len, self.batches)) * 1e6


def case(events: int, candidates: int = 10, rewards: int = 1, tau: int | None = None, seed: int = 20190211) -> Case:
    """The default configuration; with `tau`, a window and the cumulative average alone. Every second reward is 0 or 1.

    An event has all rewards, and each candidate has a probability for its action.
    """
    rng = np.random.default_rng(seed)
    propensity, names = rng.uniform(0.02, 0.9, events), [f"cand-{number}" for number in range(candidates)]
    target = np.minimum(rng.random((candidates, events)) * 2 * propensity, 1.0)
    earned = (rng.random((rewards, events)) < 0.1) * np.where(np.arange(rewards) % 2, 0.5, 1.0)[:, None]
    earned[1::2] *= rng.random((rewards // 2, events)) + 1.0
    timestamp = 1574553634 + np.arange(events) / 1000
    further = [f"reward-{number}" for number in range(1, rewards)]
    batches = [
        EventBatch.from_arrays(
            reward=earned[0, part],
            propensity=propensity[part],
            policies=dict(zip(names, target[:, part], strict=True)),
            timestamp=timestamp[part],
            rewards=dict(zip(further, earned[1:, part], strict=True)),
        )
        for part in (slice(first, first + POLL) for first in range(0, events, POLL))
    ]
    averages = None if tau is None else [Cumulative(), Window(tau=tau)]
    if rewards == 1:
        return Case(Evaluator(names, averages=averages), batches)
    limits = {name: {"max": 1.0} for name in ("reward", *further)}
    return Case(Evaluator(names, averages=averages, rewards=limits), batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=24_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = {
        "10 candidates, 1 reward": case(options.events),
        "5 rewards": case(options.events, rewards=5),
        "100 candidates": case(options.events, candidates=100),
        "window of 1e4 events": case(options.events, tau=10_000),
        "window of 1e7 events": case(options.events, tau=10_000_000),
    }
    for each in cases.values():  # warm-up
        each.microseconds()
    rounds = [{name: each.microseconds() for name, each in cases.items()} for _ in range(options.rounds)]
    first = next(iter(cases))
    print(f"{'':26}{'us an event':>12}{'ratio to the first':>20}{'spread':>16}{'state, MB':>11}")
    for name, each in cases.items():
        median = statistics.median(measured[name] for measured in rounds)
        ratios = [measured[name] / measured[first] for measured in rounds]
        spread = f"{min(ratios):.2f} - {max(ratios):.2f}"
        size = each.evaluator.full_bytes / 1e6
        print(f"{name:26}{median:12.2f}{statistics.median(ratios):20.2f}{spread:>16}{size:11.1f}")


if __name__ == "__main__":
    main()
