"""Run an embedded broker, a simulated recommender with changing users, and the daemon in one process."""

from __future__ import annotations

import threading
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import Column, new_table
from streameval.common.text import counted, decimal, duration_text
from streameval.errors import StreamevalError
from streameval.events import JsonDecoder, RankingDecoder
from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.simulated import LIST_WORLD, CycleSettings, SimulatedSettings, SimulatedSource
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evidence.clicks import DCG, Ranking
from streameval.ope.evidence.examination import Swaps
from streameval.ope.promotion import Promotion
from streameval.ope.report import Report
from streameval.service.daemon import Daemon
from streameval.service.http.server import HttpServer
from streameval.service.logging import configure_logging, warn_if_uncompiled
from streameval.service.process import make_responsive, return_large_arrays, stop_on_signals
from streameval.simulation.lists import LENGTH

DemoWorld: TypeAlias = Literal["actions", "rankings"]
TOPIC = "interactions"
CANDIDATES = ["for-rock-fans", "for-jazz-fans", "for-metal-fans"]
DAY = "2m"
"""Length of a simulated day: short, so that a person sees what is decided after it."""
CYCLE = CycleSettings(period=DAY, amplitude=0.3, peak="100s")
SPAN_EVENTS = 2_400_000
"""Events until users have other preferences: ten days at the default rate, so that a day says something of the next."""
EXPLORATION = 0.5
"""Probability of a random action: high, so that the drift stands out from the noise."""
AVERAGES = (
    Cumulative(),
    Window(tau=5_000),
    Decay(half_life=3_500),
    AdaptiveWindow(drift_span=10_000),
    AdaptiveDecay(drift_span=20_000),
    Mixture(),
)
PROMOTION = Promotion(period=DAY, min_periods=1)
"""The default rule, with the days of this world. They differ by drift alone, so the first one decides."""
STATUS_AVERAGES = ("cumulative", "mixture")
"""Averages in the status line: one that lags behind the drift, and one that follows it."""
MIN_EVENTS = 5_000
"""Events before the error of an average counts."""
POLL_SECONDS = 0.25
PUBLISH_SECONDS = 0.2
MAX_WAITING = 8_000
"""Events in the broker that the daemon has not read: the broker deletes what exceeds 5 MB."""


def run_demo(events: int | None, port: int, seed: int, rate: float, world: DemoWorld = "actions") -> None:
    """Run the demonstration, then print the estimates next to the true values.

    Args:
        events: stop after this many events. None runs until Ctrl-C
        port: port of the status page, or a free one if it is taken
        seed: random seed
        rate: events per second, or 0 for as fast as possible
        world: whether the recommender shows one item or a list

    Raises:
        InputError: The embedded broker is not installed.
    """
    return_large_arrays()
    make_responsive()
    console = Console(highlight=False)
    configure_logging("warning")
    warn_if_uncompiled()
    settings = settings_of(world, events=events, rate=rate, seed=seed)
    with EmbeddedBroker({TOPIC: 1}) as broker:
        topic = KafkaSettings.model_validate({**broker.connection.model_dump(), "topic": TOPIC})
        decoder, evaluator = decoder_and_evaluator(settings.world)
        daemon = Daemon(KafkaSource(topic), decoder, evaluator, publish_interval=PUBLISH_SECONDS, name=topic.name)
        demonstration = Demonstration(daemon, settings, broker.bootstrap)
        try:
            server = HttpServer(daemon, port=port)
        except StreamevalError as error:
            console.print(f"{error.message}; taking a free port", style="yellow", markup=False)
            server = HttpServer(daemon, port=0)
        with server:
            console.print(_addresses(server.url, broker.bootstrap, settings), markup=False, soft_wrap=True)
            with Live(get_renderable=demonstration.line, console=console, transient=True), demonstration:
                daemon.run()
    console.print(demonstration.outcome())


def run_broker() -> None:
    """Run the embedded broker alone until Ctrl-C, and print the configuration of a source that reads from it.

    Raises:
        InputError: The embedded broker is not installed.
    """
    stopping = threading.Event()
    with stop_on_signals(stopping.set), EmbeddedBroker({TOPIC: 1}) as broker:
        version = ".".join(map(str, broker.connection.api_version or ()))
        address = f'bootstrap_servers: "{broker.bootstrap}", api_version: "{version}", topic: {TOPIC}'
        print(f"the broker listens at {broker.bootstrap} until Ctrl-C; the source for a configuration:")
        print(f"source: {{kind: kafka, {address}}}", flush=True)
        stopping.wait()


def settings_of(world: DemoWorld, **options: Any) -> SimulatedSettings:
    """Describe the recommender of the demonstration.

    Args:
        world: whether the recommender shows one item or a list
        options: other settings
    """
    return SimulatedSettings(
        span=SPAN_EVENTS,
        exploration=EXPLORATION,
        candidates=CANDIDATES,
        cycle=CYCLE,
        world=LIST_WORLD if world == "rankings" else None,
        **options,
    )


def decoder_and_evaluator(world: str | None) -> tuple[JsonDecoder, Evaluator]:
    """Return what reads and evaluates the events of a world, by the name in its settings."""
    if world is None:
        decoder = JsonDecoder(CANDIDATES, reward_range=(0.0, 1.0))
        evaluator = Evaluator(CANDIDATES, [IPS(), SNIPS()], AVERAGES, promotion=PROMOTION)
        return decoder, evaluator
    ranking = Ranking(metric=DCG(at=LENGTH), examination=Swaps(ranks=LENGTH))
    evaluator = Evaluator(CANDIDATES, ["click_ips", "click_snips"], AVERAGES, ranking=ranking, promotion=PROMOTION)
    return RankingDecoder(CANDIDATES), evaluator


def _addresses(url: str, bootstrap: str, settings: SimulatedSettings) -> str:
    rate = f"{counted(settings.rate, 'event')} per second" if settings.rate else "events as fast as possible"
    end = f"after {counted(settings.events, 'event')}" if settings.events else "with Ctrl-C"
    return (
        f"A simulated recommender sends {rate}; its users keep changing their preferences. The demo ends {end}.\n"
        f"A simulated day lasts {duration_text(CYCLE.cycle.period)}. The first decisions come after one.\n"
        f"  status page  {url}/\n"
        f"  metrics      {url}/metrics\n"
        f"  report       {url}/api/v1/report\n"
        f"  broker       {bootstrap}, topic {TOPIC}"
    )


class Demonstration:
    """Send events to the broker in a thread, compare reports with the truth, and stop the daemon at the end."""

    def __init__(self, daemon: Daemon, settings: SimulatedSettings, bootstrap: str) -> None:
        self.daemon, self.settings, self.bootstrap = daemon, settings, bootstrap
        self._source = SimulatedSource(settings)
        self.recommender = self._source.recommender  # with the times of the events, which the true values depend on
        self.estimator = "snips" if settings.world is None else "click_ips"
        self._errors = np.zeros((len(AVERAGES), 2))  # sums of squared errors, and their numbers
        self._compared = MIN_EVENTS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recommender")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def read(self) -> int:
        """Return the events that the daemon has read, or that the broker had deleted before."""
        published = self.daemon.published
        return published.accepted + sum(published.rejected.values()) + published.source.lost

    def line(self) -> Text:
        """Return a status line."""
        published = self.daemon.published
        truth = self.recommender.truth(published.accepted)
        best = max(CANDIDATES, key=truth.__getitem__)
        estimates = [f"{label} {decimal(self._value(published.report, best, label), 3)}" for label in STATUS_AVERAGES]
        parts = [counted(published.accepted, "event"), f"{best} is best: truth {truth[best]:.3f}", *estimates]
        return Text("  " + " · ".join(parts), overflow="ellipsis", no_wrap=True)

    def outcome(self) -> Table:
        """Show the last estimates of each policy next to the true values, and the typical error of each average."""
        report = self.daemon.published.report
        truth = self.recommender.truth(report.events.accepted if report else 0)
        columns: list[Column] = [
            ("policy", str),
            (">truth", lambda policy: f"{truth[policy]:.3f}"),
            *(self._column(report, average.label) for average in AVERAGES),
        ]
        table = new_table(f"After {counted(self.read, 'event')}, by {self.estimator}", columns, truth)
        table.show_edge, table.padding = False, (0, 0, 0, 1)  # all columns fit into a terminal of 80 characters
        table.columns[0].style, table.columns[0].no_wrap = "bold", True
        table.caption_justify = "left"
        if self._errors.all():
            errors = np.sqrt(self._errors[:, 0] / self._errors[:, 1])
            table.add_section()
            table.add_row("typical error", "", *(f"{error:.3f}" for error in errors))
            table.caption = "Typical error: root mean square of estimate - truth, over the run and the candidates."
        return table

    def _column(self, report: Report | None, average: str) -> Column:
        return ">" + average.replace("_", "\n"), lambda policy: decimal(self._value(report, policy, average), 3)

    def _work(self) -> None:
        from confluent_kafka import Producer  # an extra; without it there is no embedded broker either

        source = self._source
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "log_level": 0})
        while not self._stopping.is_set():
            if source.status().exhausted or source.position - self.read > MAX_WAITING:
                self._stopping.wait(PUBLISH_SECONDS / 4)
            else:
                for records in source.poll(POLL_SECONDS):
                    for value in records.values:
                        producer.produce(TOPIC, value)
                producer.flush(POLL_SECONDS)
            self._compare(self.daemon.published.report)
            if self.settings.events and self.read >= self.settings.events:
                self.daemon.stop()

    def _compare(self, report: Report | None) -> None:
        if report is None or report.events.accepted <= self._compared:
            return
        self._compared = report.events.accepted
        truth = self.recommender.truth(self._compared)
        for index, average in enumerate(AVERAGES):
            for policy in CANDIDATES:
                value = self._value(report, policy, average.label)
                if value is not None:
                    self._errors[index] += (value - truth[policy]) ** 2, 1

    def _value(self, report: Report | None, policy: str, average: str) -> float | None:
        try:
            return report.get(policy, self.estimator, average).value if report else None
        except KeyError:  # no ranking counts yet
            return None
