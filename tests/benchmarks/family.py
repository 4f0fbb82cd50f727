"""Cost of an event under the whole family: 12 estimators, 6 averages, 10 candidates, 20 actions; and its parts.

make bench
python tests/benchmarks/family.py --rounds 5
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable

import numpy as np
import orjson
import structlog
from memory_source import POLL, MemorySource

import streameval as se
from streameval.events import JsonDecoder
from streameval.ope.estimators import AnyEstimator
from streameval.service.daemon import Daemon
from streameval.service.process import set_up_process

ACTIONS, FEATURES = 20, 5
POLICIES = [f"cand-{number}" for number in range(10)]


def messages(count: int, seed: int = 20190211) -> list[bytes]:
    """Events with twenty actions of five features each, and eleven distributions over them."""
    rng = np.random.default_rng(seed)
    names = [f"item-{number}" for number in range(ACTIONS)]
    distributions = rng.dirichlet(np.ones(ACTIONS), size=(count, len(POLICIES) + 1))
    chosen = rng.integers(ACTIONS, size=count)
    return [
        orjson.dumps(
            {
                "event_id": number,
                "timestamp": 1574553634 + number,
                "actions": names,
                "features": rng.normal(size=(ACTIONS, FEATURES)).round(4).tolist(),
                "propensities": distributions[number, 0].tolist(),
                "action": names[chosen[number]],
                "reward": int(rng.random() < 0.1),
                "policies": dict(zip(POLICIES, distributions[number, 1:].tolist(), strict=True)),
            }
        )
        for number in range(count)
    ]


def evaluator(estimators: list[AnyEstimator]) -> se.Evaluator:
    averages = [se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay(), se.Mixture()]
    return se.Evaluator(POLICIES, estimators=estimators, averages=averages, drift=None)


def whole_family() -> se.Evaluator:
    weighted: list[AnyEstimator] = [se.IPS(), se.SNIPS(), se.ClippedIPS(cap=5), se.ControlVariate(), se.StratifiedIPS()]
    modelled: list[AnyEstimator] = [se.StratifiedDR(), se.DM(), se.DR(), se.StaticBlend(tau=0.5)]
    capped: list[AnyEstimator] = [se.Switch(cap=5), se.CAB(cap=5), se.CABDR(cap=5)]
    return evaluator([*weighted, *modelled, *capped])


def microseconds(task: Callable[[], object], events: int) -> float:
    """Processor time of a task per event."""
    before = time.process_time()
    task()
    return (time.process_time() - before) / events * 1e6


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    set_up_process()
    values, events = messages(options.events), JsonDecoder(POLICIES)
    family, plain = whole_family(), evaluator([se.IPS()])

    def decode() -> None:
        for first in range(0, len(values), POLL):
            events.decode_batch(values[first : first + POLL])

    def daemon(learner: se.Evaluator) -> Callable[[], None]:
        return lambda: Daemon(MemorySource(values), events, learner, stop_when_exhausted=True).run()

    tasks = {"decoding alone": decode, "daemon, ips": daemon(plain), "daemon, whole family": daemon(family)}
    for task in tasks.values():
        task()  # warm-up
    rounds = [{name: microseconds(task, len(values)) for name, task in tasks.items()} for _ in range(options.rounds)]
    size = statistics.mean(map(len, values))
    print(f"{len(values):,} events of {size:,.0f} bytes, {ACTIONS} actions, {len(POLICIES)} candidates, 6 averages")
    for name in tasks:
        print(f"{name:22s} {statistics.median(one[name] for one in rounds):8.1f} us an event")
    shares = [one["decoding alone"] / one["daemon, whole family"] for one in rounds]
    print(f"share of decoding in the whole: median {statistics.median(shares):.2f}")


if __name__ == "__main__":
    main()
