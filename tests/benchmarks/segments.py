"""Processor time of an event with segments over that without, in the whole daemon and after decoding, in turns.

    make bench                          # 3 segments of 10 values in the context, 10 candidates
    python tests/benchmarks/segments.py --rounds 9

The same messages are read with and without segments. The fastest turns of both are compared.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import orjson
import structlog
from rankings import microseconds as of_daemon
from throughput import POLICIES, seconds
from throughput import messages as compact

from streameval import Evaluator
from streameval.service.process import set_up_process

SEGMENTS: dict[str, dict[str, Any]] = {
    name: {"field": f"context.{name}", "least": 0, "most": 8, "other": True}
    for name in ("country", "position", "device")
}
MOST = 2.5
"""How many times as long an event may take with segments."""


def messages(count: int, seed: int = 20190211) -> list[bytes]:
    """Compact events with a context of three small numbers."""
    values = np.random.default_rng(seed).integers(0, 10, (count, len(SEGMENTS))).tolist()
    return [
        orjson.dumps({**orjson.loads(each), "context": dict(zip(SEGMENTS, numbers, strict=True))})
        for each, numbers in zip(compact(count), values, strict=True)
    ]


def microseconds(values: list[bytes], segments: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Processor time per event: of the whole daemon, and of the evaluator alone."""
    learner = Evaluator(POLICIES, segments=segments)
    whole = of_daemon(values, learner.plan.decoder(), learner)
    batch, learner = learner.plan.decoder().decode_batch(values), Evaluator(POLICIES, segments=segments)
    alone = seconds(learner.update, batch) + seconds(learner.fold_pending)
    return whole, alone / len(values) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    set_up_process()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the daemon's log is not the subject
    values = messages(options.events)
    turns = [(*microseconds(values, SEGMENTS), *microseconds(values, {})) for _ in range(options.rounds + 1)]
    split, split_alone, plain, plain_alone = map(min, zip(*turns[1:], strict=True))  # without the warm-up
    print(f"3 segments of 10 values, {len(POLICIES)} candidates: {split:.2f} us an event, {split_alone:.2f} decoded")
    print(f"without segments: {plain:.2f} us an event, {plain_alone:.2f} decoded")
    print(f"ratio: {split / plain:.2f}, after decoding {split_alone / plain_alone:.2f} (wanted: at most {MOST})")


if __name__ == "__main__":
    main()
