"""Throughput of the whole daemon loop against `orjson.loads` alone on the same messages, turn by turn in one run.

    make bench                                      # 4 estimators, 5 averages, 10 policies
    python tests/benchmarks/throughput.py --memory  # 5 million events: resident memory

The source lies in memory, so that what is measured is ours: decoding, evaluating, publishing. The two are timed in
turns and compared pair by pair, because a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import logging
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import structlog
from memory_source import MemorySource

from streameval import Evaluator
from streameval.events import JsonDecoder
from streameval.ope.averages import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Window
from streameval.ope.estimators import IPS, SNIPS, ClippedIPS, ControlVariate
from streameval.service.daemon import Daemon
from streameval.service.process import set_up_process

POLICIES = [f"cand-{number}" for number in range(10)]
MESSAGE_BYTES = 277
SHARE_OF_ORJSON = 1 / 3


def messages(count: int, seed: int = 20190211) -> list[bytes]:
    """Compact events of 277 bytes with the probabilities of ten policies."""
    rng = np.random.default_rng(seed)
    propensity = rng.uniform(0.02, 0.9, count).round(4)
    reward = (rng.random(count) < 0.1).astype(int)
    shares = np.minimum(rng.random((count, len(POLICIES))) * 2 * propensity[:, None], 1).round(5)
    return [
        padded(
            {
                "event_id": f"e-{number:08d}",
                "timestamp": round(1574553634.76 + number / 1000, 3),
                "action": str(number % 40),
                "propensity": propensity[number],
                "reward": int(reward[number]),
                "policies": dict(zip(POLICIES, shares[number].tolist(), strict=True)),
            }
        )
        for number in range(count)
    ]


def padded(event: dict[str, object]) -> bytes:
    """An event of `MESSAGE_BYTES` bytes, as a copy: orjson's own bytes would leave large holes in the memory."""
    line = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY)
    return line[:-1] + b" " * (MESSAGE_BYTES - len(line)) + b"}"


def evaluator() -> Evaluator:
    return Evaluator(
        candidates=POLICIES,
        estimators=[IPS(), SNIPS(), ClippedIPS(cap=10), ControlVariate()],
        averages=[Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay()],
        drift=None,
    )


def run_daemon(values: list[bytes], events: int, learner: Evaluator | None = None) -> None:
    source = MemorySource(values, events)
    Daemon(source, JsonDecoder(policies=POLICIES), learner or evaluator(), stop_when_exhausted=True).run()


def run_orjson(values: list[bytes], events: int) -> None:
    for _ in range(events // len(values)):
        for value in values:
            orjson.loads(value)


def seconds(task: object, *arguments: object) -> float:
    before = time.process_time()
    task(*arguments)  # type: ignore[operator]
    return time.process_time() - before


def pairs(values: list[bytes], events: int, rounds: int) -> Iterator[tuple[float, float]]:
    """Processor seconds per event of the daemon and of orjson, in turns."""
    learner = evaluator()
    run_daemon(values, events, learner)  # warm-up
    for _ in range(rounds):
        yield seconds(run_daemon, values, events, learner) / events, seconds(run_orjson, values, events) / events


def throughput(events: int, rounds: int) -> None:
    values = messages(min(events, 100_000))
    size = statistics.mean(map(len, values))
    measured = list(pairs(values, events, rounds))
    ratios = [yardstick / daemon for daemon, yardstick in measured]
    daemon, yardstick = (statistics.median(column) for column in zip(*measured, strict=True))
    print(f"{events:,} events of {size:.0f} bytes, {len(POLICIES)} policies, 4 estimators, 5 averages, {rounds} rounds")
    print(f"daemon        {daemon * 1e6:6.2f} us an event  {1 / daemon:12,.0f} events/s")
    print(f"orjson.loads  {yardstick * 1e6:6.2f} us an event  {1 / yardstick:12,.0f} events/s")
    print(f"rate of the daemon over that of orjson.loads alone: median {statistics.median(ratios):.3f}")
    print(f"  (min {min(ratios):.3f}, max {max(ratios):.3f}; wanted: at least {SHARE_OF_ORJSON:.3f})")


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def memory(events: int, steps: int) -> None:
    values = messages(100_000)
    learner = evaluator()
    print(f"{'events':>12}  resident MB")
    for step in range(1, steps + 1):
        run_daemon(values, events // steps, learner)
        print(f"{step * events // steps:12,}  {resident_megabytes():8.1f}")


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="5 million events, resident memory at ten points")
    options = parser.parse_args()
    set_up_process()
    if options.memory:
        memory(5_000_000, steps=10)
    else:
        throughput(options.events, options.rounds)


if __name__ == "__main__":
    main()
