"""Decode extreme messages in a separate process, and print the time and memory that this takes.

    python extreme_messages.py FORMAT

prints `[case, verdict, seconds, megabytes, size]` for each case: the growth of the process at its peak without the
message, and the megabytes of the message.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from streameval.events import DsjsonDecoder, JsonDecoder

START = b'{"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1, '
MILLION = 10**6


def policies(count: int) -> bytes:
    return START + b'"policies": {' + b", ".join(b'"p%d": 0.5' % number for number in range(count)) + b"}}"


def actions(count: int, chance: bytes | None = None) -> bytes:
    names = b", ".join(b'"a%d"' % number for number in range(count))
    probability = chance or b"%.17g" % (1 / count)
    logged = b", ".join([probability] * count)
    first = START.replace(b'"a"', b'"a7"').replace(b'"propensity": 0.5, ', b"")
    return first + b'"actions": [' + names + b'], "propensities": [' + logged + b"]}"


def slots(count: int) -> bytes:
    block = b'{"action": "a", "propensity": 0.5, "policies": {"p": 0.5}}'
    return b'{"event_id": 1, "timestamp": 0, "reward": 1, "slots": [' + b", ".join([block] * count) + b"]}"


CASES: dict[str, Callable[[], bytes]] = {
    "a string of 100 MB in an ignored field": lambda: START + b'"context": "' + b"x" * (100 * MILLION) + b'"}',
    "an id of 100 MB": lambda: START.replace(b"1,", b'"' + b"x" * (100 * MILLION) + b'",', 1) + b'"unit": 1}',
    "an unknown action of 100 MB": lambda: (
        START.replace(b'"a"', b'"' + b"x" * (100 * MILLION) + b'"') + b'"actions": ["a"], "propensities": [1.0]}'
    ),
    "100 MB that are not JSON": lambda: b"x" * (100 * MILLION),
    "100 MB that end in the middle": lambda: START + b'"context": [' + b"1.5," * (25 * MILLION),
    "100 MB of zeros": lambda: bytes(100 * MILLION),
    "100 MB of objects in an ignored field": lambda: START + b'"context": [' + b'{"a":1},' * (12 * MILLION) + b"0]}",
    "100 MB of wrong type": lambda: START + b'"features": [' + b'"x",' * (25 * MILLION) + b"0]}",
    "100 MB with a number that is none at the end": lambda: (
        START + b'"unit": "' + b"x" * (100 * MILLION) + b'", "reward": NaN}'
    ),
    "16 MB of objects in a context": lambda: START + b'"context": [' + b'{"a":1},' * (2 * MILLION) + b"0]}",
    "16 MB of wrong type": lambda: START + b'"features": [' + b'"x",' * (4 * MILLION) + b"0]}",
    "4 MB that end in the middle": lambda: START + b'"context": [' + b"1.5," * MILLION,
    "4 MB of wrong type": lambda: START + b'"features": [' + b'"x",' * MILLION + b"0]}",
    "4 MB of wrong policies": lambda: START + b'"policies": {"p": [' + b'"x",' * (MILLION - 100) + b"0]}}",
    "a number of 10 million digits": lambda: START + b'"timestamp": ' + b"1" * (10 * MILLION) + b"}",
    "brackets, ten million deep": lambda: START + b'"context": ' + b"[" * (10 * MILLION) + b"]" * (10 * MILLION) + b"}",
    "objects, a million deep": lambda: START + b'"context": ' + b'{"a":' * MILLION + b"0" + b"}" * MILLION + b"}",
    "features, 900 deep": lambda: START + b'"features": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a million policies": lambda: policies(MILLION),
    "a million actions": lambda: actions(MILLION),
    "a million actions that do not sum to 1": lambda: actions(MILLION, b"0.5"),
    "the same action a million times": lambda: (
        START
        + b'"actions": ['
        + b'"a", ' * (MILLION - 1)
        + b'"a"], "propensities": ['
        + b"0, " * (MILLION - 1)
        + b"1]}"
    ),
    "100,000 slots": lambda: slots(MILLION // 10),
    "a million keys, all the same": lambda: START + b'"unit": 1, ' * MILLION + b'"unit": 2}',
    "a million policies, all the same": lambda: START + b'"policies": {' + b'"p": 0.5, ' * MILLION + b'"p": 0.25}}',
    "a million keys that are not fields": lambda: (
        START + b", ".join(b'"k%d": 0' % number for number in range(MILLION)) + b"}"
    ),
    "50 MB that are not UTF-8": lambda: START + b'"context": "' + b"\xff" * (50 * MILLION) + b'"}',
    "half a surrogate pair, a million times": lambda: START + b'"unit": "' + b"\\ud800" * MILLION + b'"}',
}


def peak() -> float:
    """Return the megabytes of memory at the peak since `forget_peak`."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    formats = {
        "open": lambda: JsonDecoder(),
        "scored": lambda: JsonDecoder(["p"], scores=["unit"]),
        "dsjson": lambda: DsjsonDecoder(["baseline"], scores=["c"]),
    }
    form = formats[sys.argv[1]]()
    for case, make in CASES.items():
        message = make()
        gc.collect()
        forget_peak()
        before, started_at = peak(), time.monotonic()
        batch = form.decode_batch([None, message, None])
        seconds = time.monotonic() - started_at
        reasons = [rejection.reason for rejection in batch.rejected if rejection.place == 1] or ["accepted"]
        print(
            json.dumps([case, reasons[0], round(seconds, 3), round(peak() - before, 1), len(message) / 1e6]), flush=True
        )


if __name__ == "__main__":
    main()
