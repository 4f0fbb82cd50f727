"""Processor time of a page with clicks over that of a compact event, in the whole daemon with its defaults, in turns.

    make bench                          # pages of 20 items with 2 clicks, 10 candidates
    python tests/benchmarks/rankings.py --rounds 9

Candidates give the ranks of the clicked items. The fastest turns of both are compared.
"""

from __future__ import annotations

import argparse

import numpy as np
import orjson
import structlog
from memory_source import MemorySource
from throughput import POLICIES, seconds
from throughput import messages as compact

from streameval import Evaluator
from streameval.events import JsonDecoder, RankingDecoder
from streameval.service.daemon import Daemon
from streameval.service.process import set_up_process

ITEMS, CLICKS = 20, 2
MOST = 2.0
"""How many times as long a page may take."""


def pages(count: int, seed: int = 20190211) -> list[bytes]:
    """Pages of items out of a thousand, with the ranks of the clicked ones by each candidate."""
    rng = np.random.default_rng(seed)
    values = []
    for number in range(count):
        shown = [f"item-{item}" for item in rng.choice(1_000, ITEMS, replace=False)]
        clicked = [shown[place] for place in sorted(rng.choice(ITEMS, CLICKS, replace=False))]
        ranks = [(1 + rng.choice(ITEMS, CLICKS, replace=False)).tolist() for _ in POLICIES]
        event = {
            "event_id": f"e-{number:08d}",
            "timestamp": round(1574553634.76 + number / 1000, 3),
            "ranking": {"shown": shown, "clicked": clicked},
            "policies": {
                name: {"ranks": dict(zip(clicked, each, strict=True))}
                for name, each in zip(POLICIES, ranks, strict=True)
            },
        }
        values.append(orjson.dumps(event))
    return values


def microseconds(values: list[bytes], decoder: JsonDecoder, learner: Evaluator) -> float:
    """Processor time of the whole daemon, per message."""
    daemon = Daemon(MemorySource(values), decoder, learner, stop_when_exhausted=True)
    return seconds(daemon.run) / len(values) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    set_up_process()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the daemon's log is not the subject
    shown, events = pages(options.events), compact(options.events)
    ranking = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": 1}}
    turns = [
        (
            microseconds(shown, RankingDecoder(POLICIES), Evaluator(POLICIES, ranking=ranking)),
            microseconds(events, JsonDecoder(POLICIES), Evaluator(POLICIES)),
        )
        for _ in range(options.rounds + 1)
    ]
    page, event = map(min, zip(*turns[1:], strict=True))  # without the warm-up
    print(
        f"{options.events:,} pages of {ITEMS} items, {CLICKS} clicks, {len(POLICIES)} candidates: {page:.2f} us a page"
    )
    print(f"compact events: {event:.2f} us an event")
    print(f"ratio: {page / event:.2f} (wanted: at most {MOST})")


if __name__ == "__main__":
    main()
