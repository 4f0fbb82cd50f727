"""Measure the daemon's loop on messages in memory (decode, evaluate, publish) against `orjson.loads` alone."""

from __future__ import annotations

from measuring import Benchmark, Ratio, updating
from memory_source import daemon, decoded, decoding, parsing
from messages import CANDIDATES, compact

from streameval import (
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    ClippedIPS,
    ControlVariate,
    Cumulative,
    Decay,
    Evaluator,
    Mixture,
    StratifiedIPS,
    Window,
)

PUBLISHED = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())
TIMES = 5
"""Number of times that the daemon reads all messages. With one, its first and last Reports take a fifth of the time."""
FOUR = (IPS(), SNIPS(), ClippedIPS(cap=10), ControlVariate())


def benchmark(events: int = 40_000) -> Benchmark:
    values = compact(events)
    default = Evaluator(CANDIDATES)
    decoder = default.config.decoder()
    four = Evaluator(CANDIDATES, FOUR, PUBLISHED, drift=None)
    every = Evaluator(CANDIDATES, [*FOUR, StratifiedIPS()], [*PUBLISHED, Mixture()])
    one = Evaluator(CANDIDATES, [IPS()], [Cumulative()], drift=None, promotion=None)
    works = {
        "ips on cumulative": daemon(values * TIMES, decoder, one),
        "four estimators, five averages": daemon(values * TIMES, decoder, four),
        "default": daemon(values * TIMES, decoder, default),
        "all estimators, all averages": daemon(values * TIMES, decoder, every),
        "default, decoded": updating(Evaluator(CANDIDATES), decoded(values, decoder.decode_batch)),
        "decoding": decoding(values, decoder),
        "orjson.loads": parsing(values),
    }
    wanted = {
        "ips on cumulative": None,
        "four estimators, five averages": 2.0,
        "default": 3.3,
        "all estimators, all averages": 5.0,
        "default, decoded": 1.55,
        "decoding": None,
    }
    ratios = [Ratio(name, "orjson.loads", most) for name, most in wanted.items()]
    return Benchmark(f"The daemon's loop in memory, compact events, {len(CANDIDATES)} candidates", works, ratios)
