"""Compare three segments of ten values in the context with none, in the daemon's loop and after decoding."""

from __future__ import annotations

from typing import Any

from measuring import Benchmark, Ratio, updating
from memory_source import daemon, decoded
from messages import CANDIDATES, events_with_context

from streameval import Evaluator

FIELDS = ("country", "position", "device")
SEGMENTS: dict[str, dict[str, Any]] = {
    name: {"field": f"context.{name}", "least": 0, "most": 8, "other": True} for name in FIELDS
}


def benchmark(events: int = 12_000) -> Benchmark:
    values = events_with_context(events, FIELDS)
    works = {}
    for name, segments in {"30 segments": SEGMENTS, "none": None}.items():
        decoder = Evaluator(CANDIDATES, segments=segments).config.decoder()
        works[name] = daemon(values, decoder, Evaluator(CANDIDATES, segments=segments))
        batches = decoded(values, decoder.decode_batch)
        works[f"{name}, decoded"] = updating(Evaluator(CANDIDATES, segments=segments), batches)
    ratios = [Ratio("30 segments", "none"), Ratio("30 segments, decoded", "none, decoded", 2.5)]
    return Benchmark("Segments: 3 fields of 10 values, 10 candidates", works, ratios)
