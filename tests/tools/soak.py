"""Run a daemon under load for a long time, with a fault every minute, and check its memory, its lag and every event.

make soak                                    20 minutes at 20,000 events a second, 20 candidates
make soak ARGS="--minutes 5 --rate 5000"     shorter, at a rate that the machine sustains next to other work
make soak-engine                             20 minutes on Spark, as fast as possible, with a fault every two minutes

Needs a Kafka broker as the integration tests do. Prints a line for each minute, and at the end the results and a
verdict. Exits with 1 unless all criteria hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
from confluent_kafka import Producer

from streameval.ingest.kafka.settings import KafkaSettings
from support.integration.broker import Broker, real_broker
from support.integration.daemon_runs import DaemonRuns

CANDIDATES = [f"candidate-{number:02}" for number in range(20)]
PARTITIONS = 4
CLIENTS = get_args(KafkaSettings.model_fields["client"].annotation)
POOL = 2000
"""Number of different events. Each is sent many times, with its own id and time."""
GARBAGE = [b"", b"{", b"null", b'{"event_id": 1}', b"\xff\xfe", b"[" * 5000]
FAULTS = [
    "garbage",
    "standstill",
    "reload",
    "kill",
    "outage",
    "garbage",
    "standstill",
    "reload",
    "garbage",
    "standstill",
]
"""All kinds, and then quieter ones for as long, to tell growth from noise. An outage comes soon after a start, because
catching up after the first outage enlarges the memory by some MiB, once."""
FAULTS_OF_ENGINE = [
    "garbage",
    "kill",
    "outage",
    "executor",
    "standstill",
    "garbage",
    "reload",
    "standstill",
    "garbage",
]
"""All kinds, and then kinds that start no process, because the memory of a new executor rises for minutes."""
WARM_UP, WARM_UP_OF_ENGINE = 120.0, 200.0
"""Seconds of each run in which memory may rise. After a kill and after the outage that follows it, the daemon catches
up in large portions, and the allocator keeps their memory."""
MANY = 500
"""Scrapes that are enough for a 99th percentile. If there are fewer, the median is used."""
LEAKED = 3
"""Open descriptors that a daemon may gain without a leak, because connections come and go."""
SETTLING = 60.0
"""Seconds within which a daemon has closed what it opened for the last fault."""
GROWN = 2.0
"""MiB that memory may grow: two steps, because the interpreter takes memory for small objects by the MiB."""
AVERAGES_OF_ENGINE = ["cumulative", {"kind": "window", "span": "1m"}, {"kind": "decay", "half_life": "1m"}]
SLOWER_ON_SPARK = 2.0
"""A scrape may take this many times longer, because all executors want the same processors at once in each batch."""
AHEAD = 100_000
"""Events that wait in the log if they are sent as fast as the daemon takes them."""


@dataclass
class Sample:
    """Hold measurements at a time of a run.

    Args:
        at: Seconds since the start of the soak.
        age: Seconds since the start of the run.
        run: Number of the run.
        resident: Bytes of the daemon's process.
        below: Bytes of the processes that it has started.
        descriptors: Open descriptors of the daemon's process.
        scrape: Seconds that a scrape took.
        lag: Events that waited in the log.
        load: Programs that wanted a processor, per processor.
    """

    at: float
    age: float
    run: int
    resident: float
    below: float
    descriptors: int
    scrape: float
    lag: float
    load: float


@dataclass
class Soak:
    """Send events to a daemon, with faults, and measure it.

    Args:
        broker: Broker of the events.
        folder: Where the daemon runs.
        seconds: Duration, counted while the daemon serves.
        rate: Events a second, None for as many as the daemon takes.
        fault_every: Seconds between two faults.
        warm_up: Seconds of each run in which memory may rise.
        client: Kafka client of the daemon.
        engine: See `Config.engine`.
    """

    broker: Broker
    folder: Path
    seconds: float
    rate: int | None
    fault_every: float
    warm_up: float
    client: str = "kafka-python"
    engine: dict[str, Any] | None = None
    samples: list[Sample] = field(default_factory=list)
    sent: int = 0
    garbage: int = 0
    faults: list[str] = field(default_factory=list)

    def run(self, show: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Run, and return the results (see `complaints`)."""
        topic = f"soak-{time.time_ns()}"
        self.broker.create_topic(topic, PARTITIONS)
        self.runs = DaemonRuns(self.folder, self._config(topic))
        self._stopping, self._started = threading.Event(), time.monotonic()
        self.runs.start()
        self._read = 0.0
        self._starts = [self._now]
        sending = threading.Thread(target=self._send, args=(topic,))
        sending.start()
        with httpx.Client(trust_env=False, timeout=10.0) as self._client:
            try:
                for kind in self._moments(show):
                    self._fault(kind)
            finally:
                self._sent_for = self._now
                self._stopping.set()
                sending.join()
            report = self.runs.report_of(self.sent)
            self._settle()
        self.runs.end()
        return self._results(report)

    @property
    def _much(self) -> int:
        """Return how many events may wait if the daemon keeps up."""
        return self.rate or 2 * AHEAD

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    def _config(self, topic: str) -> dict[str, Any]:
        source = {"kind": "kafka", "bootstrap_servers": self.broker.bootstrap, "topic": topic, "client": self.client}
        return {
            "source": source,
            "policies": {"candidates": CANDIDATES},
            "estimators": ["ips", "snips"],
            "averages": ["cumulative", "window", "decay"],
            "http": {"port": 0},
            "state": {"interval": f"{max(2, self.fault_every / 6):.0f}s"},
            **({} if self.engine is None else {"averages": AVERAGES_OF_ENGINE, "engine": self.engine}),
        }

    def _moments(self, show: Callable[[str], None]) -> Iterator[str]:
        """Measure twice a second, and yield the kind of each fault when it is due. The last moments have none.

        Only time in which the daemon serves counts, and one pass counts as a second at most. A busy machine makes the
        run longer, and no fault is left out.
        """
        kinds = cycle(FAULTS if self.engine is None else FAULTS_OF_ENGINE)
        due, reported_at, served = self.fault_every, 0.0, 0.0
        while served < self.seconds:
            looked_at = self._now
            measured = self._measure()
            if measured and served >= reported_at + 60:
                reported_at = served
                show(self._line())
            if served >= due and served < self.seconds - self.fault_every / 2:
                due += self.fault_every
                kind = next(kinds)
                self.faults.append(kind)
                yield kind
            time.sleep(0.5)
            served += measured * min(self._now - looked_at, 1.0)

    def _settle(self) -> None:
        """Measure until the descriptors that the last fault took are closed. Leaked descriptors never are."""
        ends = self._now + SETTLING
        while max(self._descriptors(), default=0) > LEAKED and self._now < ends:
            self._measure()
            time.sleep(0.5)

    def _fault(self, kind: str) -> None:
        if kind == "garbage":
            self.garbage += 1000
        elif kind == "standstill":
            self.runs.sleep(2.0)
        elif kind == "reload":
            assert self.runs.process is not None
            self.runs.process.send_signal(1)
        elif kind == "kill":
            self.runs.kill()
            self.runs.start()
            self._starts.append(self._now)
        elif kind == "executor":
            os.kill(self.runs.java("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
            self._starts.append(self._now)
        else:
            self.broker.stop()
            time.sleep(3.0)
            self.broker.start()

    def _measure(self) -> bool:
        """Scrape, and look at the process. Return False if it does not serve yet."""
        assert self.runs.process is not None
        assert self.runs.process.poll() is None, self.runs.log.read_text()[-3000:]
        served = self.runs.logged("serving")
        if len(served) <= self.faults.count("kill"):
            return False
        started = time.monotonic()
        with suppress(httpx.TransportError):
            text = self._client.get(f"{served[-1]['url']}/metrics").text
            scrape = time.monotonic() - started
            descriptors = len(list(Path(f"/proc/{self.runs.process.pid}/fd").iterdir()))
            own, *below = map(_resident, self.runs.processes())
            age = self._now - self._starts[-1]
            lag = _sum_of(text, "streameval_consumer_lag")
            self._read = _sum_of(text, "streameval_events_since_start")
            run, load = len(self._starts), os.getloadavg()[0] / (os.cpu_count() or 1)
            self.samples.append(Sample(self._now, age, run, own, sum(below), descriptors, scrape, lag, load))
            return True
        return False

    def _send(self, topic: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "enable.idempotence": True,  # else the outage makes it send some messages twice
                "linger.ms": 20,
                "queue.buffering.max.messages": 2_000_000,  # what waits for the broker during an outage
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        rest, bad = cycle(_pool()), cycle(GARBAGE)
        thrown = 0
        while not self._stopping.wait(0.02):
            due = self._due()
            now = time.time()
            for number in range(self.sent, due):
                producer.produce(topic, b'{"event_id":%d,"timestamp":%.4f,%s' % (number, now, next(rest)))
                if number % 500 == 0:
                    producer.poll(0)
            self.sent = due
            for _ in range(self.garbage - thrown):
                producer.produce(topic, next(bad))
            thrown = self.garbage
            producer.poll(0)
        producer.flush(120)

    def _due(self) -> int:
        """Return how many events should have been sent by now.

        A daemon that has just started has not read its snapshot, so the number never decreases.
        """
        due = self._read + AHEAD if self.rate is None else self._now * self.rate
        return max(self.sent, int(due))

    def _line(self) -> str:
        last = self.samples[-1]
        size = last.resident / 2**20
        return (
            f"{self._now / 60:5.1f} min  {self.sent:>12,} events  lag {last.lag:>9,.0f}  {size:6.1f} MiB  "
            f"{last.descriptors} descriptors  scrape {last.scrape * 1e3:.0f} ms  faults: {', '.join(self.faults[-1:])}"
        )

    def _results(self, report: dict[str, Any]) -> dict[str, Any]:
        steady = self._steady() or self._warm()
        slope, error = _slope(steady, lambda sample: sample.resident)
        below, growth_error = _slope(steady, lambda sample: sample.below)
        seen = [sample for run in steady for sample in run]
        scrapes = [sample.scrape for sample in self.samples]
        return {
            "events": self.sent,
            "events_per_second": round(self.sent / self._sent_for),
            "accepted": report["events"]["accepted"],
            "rejected": report["events"]["rejected"],
            "garbage": self.garbage,
            "faults": self.faults,
            "runs": len(self._starts),
            "resident_mib": round(self.samples[-1].resident / 2**20, 1),
            "resident_mib_per_hour": round(slope * 3600 / 2**20, 2),
            "resident_mib_per_hour_error": round(error * 3600 / 2**20, 2),
            "below_mib": round(self.samples[-1].below / 2**20, 1),
            "below_mib_per_hour": round(below * 3600 / 2**20, 2),
            "below_mib_per_hour_error": round(growth_error * 3600 / 2**20, 2),
            "descriptors": self._descriptors(),
            "scrapes": len(scrapes),
            "load": round(float(np.mean([sample.load for sample in self.samples])), 2),
            "scrape_seconds": round(float(np.quantile(scrapes, 0.99 if len(scrapes) >= MANY else 0.5)), 4),
            "hours": round(len(seen) * float(np.median(np.diff([sample.at for sample in seen]))) / 3600, 4)
            if seen
            else 0.0,
            "kept_up": round(float(np.mean([sample.lag <= self._much for sample in self.samples])), 3),
        }

    def _warm(self) -> list[list[Sample]]:
        """Return the samples of each run after its warm-up, if there are enough."""
        runs = [[sample for sample in self.samples if sample.run == run + 1] for run in range(len(self._starts))]
        warm = [[sample for sample in run if sample.age > self.warm_up] for run in runs]
        return [run for run in warm if len(run) >= 8]

    def _steady(self) -> list[list[Sample]]:
        """Return the warm samples in which the daemon kept up. Events delayed in the log are also delayed in memory."""
        steady = [[sample for sample in run if sample.lag <= self._much] for run in self._warm()]
        return [run for run in steady if len(run) >= 8]

    def _descriptors(self) -> list[int]:
        """Return the growth of open descriptors from the first half of the first run to the second half of each run.

        It compares medians, because an outage closes connections, and after it a daemon tries several at once for some
        seconds.
        """
        counts = [[sample.descriptors for sample in run] for run in self._warm()]
        return [int(np.median(run[len(run) // 2 :]) - np.median(counts[0][: len(counts[0]) // 2])) for run in counts]


def _sum_of(text: str, metric: str) -> float:
    """Return the sum of the samples of a metric."""
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(metric))


def _resident(process: int) -> float:
    """Return the bytes of memory of a process, 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return 4096.0 * int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return 0.0


def _slope(runs: list[list[Sample]], memory: Callable[[Sample], float]) -> tuple[float, float]:
    """Return the growth of the memory in bytes a second over all runs, and its standard error."""
    ages, sizes = [], []
    for run in runs:
        age, size = np.array([sample.age for sample in run]), np.array([memory(sample) for sample in run])
        ages.append(age - age.mean())
        sizes.append(size - size.mean())
    if not runs:
        return np.nan, np.nan
    age, size = np.concatenate(ages), np.concatenate(sizes)
    slope = float(age @ size / (age @ age))
    groups = [float(one @ (other - slope * one)) for one, other in zip(ages, sizes, strict=True)]
    spread = max(float(np.square(groups).sum()), float(np.square(size - slope * age) @ np.square(age)) * 20)
    return slope, spread**0.5 / float(age @ age)


def complaints(results: dict[str, Any], grown: float = GROWN, slower: float = 1.0) -> list[str]:
    """Return the failed criteria of the results.

    Memory may grow within the noise (three standard errors) and by some MiB in the measured time. If others work on the
    same processors, everything may take longer.

    Args:
        results: Results of `Soak.run`.
        grown: Growth of memory in MiB that is allowed.
        slower: How many times longer everything takes than on an idle machine, if the load does not show it.
    """
    grows = {
        name: (results[f"{name}_mib_per_hour"] - 3 * results[f"{name}_mib_per_hour_error"]) * results["hours"] > grown
        for name in ("resident", "below")
    }
    checks = {
        "every event is counted once": results["accepted"] == results["events"],
        "what is not an event is rejected once": sum(results["rejected"].values()) == results["garbage"],
        "memory was looked at": results["hours"] > 0,
        "memory does not grow": not grows["resident"],
        "memory of the processes that it has started does not grow": not grows["below"],
        "no descriptor leaks": max(results["descriptors"], default=0) <= LEAKED,
        "scrapes take less than 0.1 s": results["scrape_seconds"] < 0.1 * max(slower, results["load"]),
    }
    return [f"not true: {check}" for check, good in checks.items() if not good]


def spark_engine() -> dict[str, Any]:
    """Return an engine with two executors. Their heaps are taken at the start, so only other memory grows."""
    java = "-Xms512m -XX:+AlwaysPreTouch"
    return {
        "kind": "spark",
        "master": "local-cluster[2,1,1024]",
        "trigger": "1s",
        "options": {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
    }


def _pool() -> list[bytes]:
    """Return events without their first part."""
    rng = np.random.default_rng(11)
    chances = rng.uniform(0.02, 0.3, (POOL, len(CANDIDATES))).round(4)
    rewards = rng.random(POOL) < 0.1
    return [
        json.dumps(
            {
                "action": "a",
                "propensity": 0.1,
                "reward": int(reward),
                "policies": dict(zip(CANDIDATES, chance.tolist(), strict=True)),
            }
        ).encode()[1:]
        for chance, reward in zip(chances, rewards, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--engine", action="store_true", help="on Spark with two executors, as fast as possible")
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0])
    arguments = parser.parse_args()
    with real_broker() as broker, tempfile.TemporaryDirectory() as folder:
        if arguments.engine:
            options: dict[str, Any] = {"rate": None, "fault_every": 120.0, "warm_up": WARM_UP_OF_ENGINE}
            options |= {"client": "confluent", "engine": spark_engine()}
        else:
            options = {"rate": arguments.rate, "fault_every": 60.0, "warm_up": WARM_UP, "client": arguments.client}
        soak = Soak(broker, Path(folder), 60 * arguments.minutes, **options)
        results = soak.run(show=lambda line: print(line, flush=True))
    print(json.dumps(results, indent=2))
    failed = complaints(results, slower=SLOWER_ON_SPARK if arguments.engine else 1.0)
    print("\n".join([*failed, "FAILED" if failed else "PASSED: every criterion holds"]))
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
