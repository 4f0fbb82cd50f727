"""Measure the daemon in service: scraped without a pause, fed by a live stream, and with a thousand candidates."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from growth import names_of
from measuring import Benchmark, Ratio, Work
from memory_source import POLL, MemorySource, daemon, parsing
from messages import CANDIDATES, compact

from streameval import Evaluator
from streameval.events import JsonDecoder
from streameval.ingest.base import Records
from streameval.service.daemon import Daemon
from streameval.service.http.server import HttpServer

MANY = 1_000
TIMES = 4
"""Number of times that a daemon reads all messages, so that its first and last Reports matter little."""
EVENTS_PER_SECOND = 20_000
ARRIVAL = 0.005
"""Seconds between two polls of a stream."""
SCRAPE = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
while True:
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    print("scraped", flush=True)
    sys.stdout = open("/dev/null", "w")
"""


class Stream(MemorySource):
    """Deliver messages as they come.

    Attributes:
        longest: Seconds of processor time of the longest turn of the loop.
    """

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(values)
        self.longest, self._left, self._started = 0.0, time.thread_time(), time.monotonic()

    def poll(self, timeout: float) -> list[Records]:
        self.longest = max(self.longest, time.thread_time() - self._left)
        time.sleep(ARRIVAL)
        arrived = int((time.monotonic() - self._started) * EVENTS_PER_SECOND)
        values = list(self.values[self.offset : min(arrived, self.offset + POLL)])
        offsets = range(self.offset, self.offset + len(values))
        self.offset += len(values)
        self._left = time.thread_time()
        return [Records("memory", 0, offsets, values)] if values else []


def longest_turn(values: Sequence[bytes], decoder: JsonDecoder, evaluator: Evaluator) -> Work:
    """Return the work of the longest turn of the loop. If the loop has a processor to itself, it pauses that long."""

    def run() -> float:
        evaluator.fold_pending()  # events that the previous run has left
        stream = Stream(values)
        Daemon(stream, decoder, evaluator, stop_when_exhausted=True).run()
        return stream.longest

    return Work(run)


def scraped(values: Sequence[bytes], decoder: JsonDecoder, evaluator: Evaluator) -> Work:
    """Return the work of the daemon's loop and its answers to scrapes, one after the other from another process."""

    def run() -> float:
        running = Daemon(MemorySource(values), decoder, evaluator, stop_when_exhausted=True)
        with HttpServer(running, port=0) as server:
            command = [sys.executable, "-c", SCRAPE, str(server.address[1])]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
                assert client.stdout is not None
                client.stdout.readline()
                before = time.process_time()
                running.run()
                seconds = time.process_time() - before
                client.kill()
        return seconds

    return Work(run, len(values))


def benchmark(events: int = 60_000) -> Benchmark:
    values, names = compact(events), names_of(MANY)
    thousand = compact(events // 15, names)
    default, quiet, many = Evaluator(CANDIDATES), Evaluator(CANDIDATES), Evaluator(names)
    decoder = default.config.decoder()
    works = {
        "without scrapes": daemon(values * TIMES, decoder, quiet),
        "scraped without a pause": scraped(values * TIMES, decoder, default),
        "longest turn": longest_turn(values, decoder, Evaluator(CANDIDATES)),
        "1,000 candidates": daemon(thousand * TIMES, many.config.decoder(), many),
        "orjson.loads": parsing(values),
    }
    ratios = [
        Ratio("scraped without a pause", "without scrapes", 1.43),
        Ratio("longest turn", "orjson.loads", 20_000),
        Ratio("1,000 candidates", "orjson.loads", 100),
    ]
    title = f"The daemon in service: scrapes, turns at {EVENTS_PER_SECOND:,} events a second, {MANY:,} candidates"
    return Benchmark(title, works, ratios)
