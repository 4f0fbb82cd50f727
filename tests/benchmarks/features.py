"""Events with features: the whole road of `stratified_dr` on `mixture` against that of `ips` on `decay`, turn by turn.

    make bench                          # 25 actions x 25 features, 10 candidates
    python tests/benchmarks/features.py --profile

Both decode the same messages: full distributions of all policies and the features of all actions. The two are timed in
turns and compared pair by pair, because a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time

import numpy as np
import orjson
import structlog
from memory_source import POLL, MemorySource

from streameval import Evaluator
from streameval.events import JsonDecoder
from streameval.ope.averages import AnyAverage, Decay, Mixture
from streameval.ope.estimators import IPS, AnyEstimator, StratifiedDR
from streameval.service.daemon import Daemon
from streameval.service.process import set_up_process

ACTIONS, FEATURES = 25, 25
POLICIES = [f"cand-{number}" for number in range(10)]
MOST = 1.5
"""How many times as long the better estimate may take."""


def messages(count: int, seed: int = 20190211) -> list[bytes]:
    """Events with 25 actions of 25 features each, and eleven distributions over them."""
    rng = np.random.default_rng(seed)
    names = [f"item-{number}" for number in range(ACTIONS)]
    values = []
    for number in range(count):
        chosen = int(rng.integers(ACTIONS))
        propensities = (0.2 / ACTIONS + 0.8 * np.eye(ACTIONS)[rng.integers(ACTIONS)]).tolist()
        event = {
            "event_id": f"e-{number:08d}",
            "timestamp": round(1574553634.76 + number / 1000, 3),
            "actions": names,
            "features": rng.normal(size=(ACTIONS, FEATURES)).round(4).tolist(),
            "propensities": propensities,
            "action": names[chosen],
            "reward": int(rng.random() < 0.1),
            "policies": {name: np.eye(ACTIONS)[rng.integers(ACTIONS)].tolist() for name in POLICIES},
        }
        values.append(orjson.dumps(event))
    return values


def evaluator(estimator: AnyEstimator, average: AnyAverage) -> Evaluator:
    return Evaluator(POLICIES, estimators=[estimator], averages=[average])


def seconds(values: list[bytes], learner: Evaluator) -> float:
    """Processor time of the whole daemon over these messages."""
    daemon = Daemon(MemorySource(values), JsonDecoder(POLICIES), learner, stop_when_exhausted=True)
    before = time.process_time()
    daemon.run()
    return time.process_time() - before


def decoding(values: list[bytes]) -> float:
    """Processor time of the decoding alone."""
    events = JsonDecoder(POLICIES)
    before = time.process_time()
    for first in range(0, len(values), POLL):
        events.decode_batch(values[first : first + POLL])
    return time.process_time() - before


def compare(events: int, rounds: int) -> None:
    values = messages(events)
    plain, better = evaluator(IPS(), Decay()), evaluator(StratifiedDR(), Mixture())
    seconds(values, plain), seconds(values, better)  # warm-up
    pairs = [(seconds(values, better), seconds(values, plain)) for _ in range(rounds)]
    ratios = [long / short for long, short in pairs]
    one, other = (statistics.median(column) / events * 1e6 for column in zip(*pairs, strict=True))
    size = statistics.mean(map(len, values))
    print(
        f"{events:,} events of {size:,.0f} bytes, {ACTIONS} actions x {FEATURES} features, {len(POLICIES)} candidates"
    )
    print(f"stratified_dr on mixture  {one:7.2f} us an event")
    print(
        f"ips on decay              {other:7.2f} us an event, of which decoding {decoding(values) / events * 1e6:.2f}"
    )
    print(f"ratio: median {statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f}; ", end="")
    print(f"wanted: at most {MOST})")


def profile(events: int) -> None:
    values, learner = messages(events), evaluator(StratifiedDR(), Mixture())
    seconds(values, learner)
    with cProfile.Profile() as profiler:
        seconds(values, learner)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    set_up_process()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the daemon's log is not the subject
    if options.profile:
        profile(options.events)
    else:
        compare(options.events, options.rounds)


if __name__ == "__main__":
    main()
