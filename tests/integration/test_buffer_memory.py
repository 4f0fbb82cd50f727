"""Test that buffered events leave no memory when they go."""

from __future__ import annotations

import subprocess
import sys

PEAK = """
import resource
from dataclasses import replace
from pathlib import Path
import numpy as np
from streameval.service.process import keep_freed_memory
from streameval.events import EventBatch, JsonDecoder
from streameval.events.origin import Origin
from streameval.ingest.stages import EventOrder

POLICIES, EVENTS, POLLS = [f"candidate-{number}" for number in range(20)], 1000, 200

def events(poll, partition):
    batch = EventBatch.from_arrays(
        reward=np.zeros(EVENTS),
        propensity=np.full(EVENTS, 0.5),
        policies=dict.fromkeys(POLICIES, np.full(EVENTS, 0.25)),
        timestamp=poll + np.arange(EVENTS) / EVENTS,
    )
    origin = Origin.from_parts("clicks", [(partition, range(poll * EVENTS, (poll + 1) * EVENTS))])
    return replace(batch, origin=origin)

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

keep_freed_memory()
ordering, kept, taken = EventOrder("clicks", max_lateness=5.0, idle_timeout=10.0, max_bytes=1 << 30), [], 0
ordering.expect([("clicks", 0), ("clicks", 1)])
before = megabytes()
for poll in range(POLLS):
    ordering.take(events(poll, 0))
    kept.append(np.ones(500))
full = megabytes()
for poll in range(POLLS):
    taken += len(ordering.take(events(poll, 1)))
print(taken, full - before, megabytes() - before)
"""


def test_memory_of_buffered_events_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    taken, full, left = map(float, done.stdout.split())
    assert taken > 380_000
    assert full > 35
    assert left < full / 2
