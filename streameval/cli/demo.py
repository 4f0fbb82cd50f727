"""The verb `demo`: an embedded broker, a simulated recommender with changing users, and the daemon, in one process."""

from __future__ import annotations

import threading
from typing import Literal, Self, TypeAlias

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import new_table
from streameval.common.text import counted, decimal
from streameval.errors import StreamevalError
from streameval.events import JsonDecoder, RankingDecoder
from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.simulated import LIST_WORLD, SimulatedRecommender, SimulatedSettings, SimulatedSource
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evidence.clicks import DCG, Ranking
from streameval.ope.evidence.examination import Swaps
from streameval.ope.report import Report
from streameval.service.daemon import Daemon
from streameval.service.http.server import HttpServer
from streameval.service.logging import configure_logging, warn_if_uncompiled
from streameval.simulation.lists import LENGTH

DEMO_TOPIC = "interactions"
DEMO_CANDIDATES = ["for-rock-fans", "for-jazz-fans", "for-metal-fans"]
DEMO_SPAN = 30_000  # events in which the users move from one preference to the next: few, so that a person sees it
EXPLORATION = 0.5  # high, so that the drift is visible over the noise; see SimulatedSettings.exploration
DemoWorld: TypeAlias = Literal["actions", "rankings"]
AVERAGES = (
    Cumulative(),
    Window(tau=5_000),
    Decay(half_life=3_500),
    AdaptiveWindow(drift_span=10_000),
    AdaptiveDecay(drift_span=20_000),
    Mixture(),
)
FOLLOWED = ("cumulative", "mixture")  # averages in the status line: one that lags and one that follows
SETTLED_EVENTS = 5_000  # events before the error of an average is judged
LOOK_EVERY = 0.25  # seconds
PUBLISH_EVERY = 0.2  # seconds
MOST_WAITING = 8_000  # events in the broker that the daemon has not reported; the broker deletes what exceeds 5 MB


def run_demo(events: int | None, port: int, seed: int, rate: float, world: DemoWorld = "actions") -> None:
    """Run until Ctrl-C, or until `events` events were read; then print the estimates next to the true values.

    `rate`: events per second; 0 is as fast as possible. `port`: of the status page; if it is taken, a free one.
    `world`: of a recommender that shows one item, or of one that shows lists.

    Raises:
        InputError: The embedded broker is not installed.
    """
    console = Console(highlight=False)
    configure_logging("warning")
    warn_if_uncompiled()
    settings = SimulatedSettings(
        events=events,
        rate=rate,
        seed=seed,
        span=DEMO_SPAN,
        exploration=EXPLORATION,
        candidates=DEMO_CANDIDATES,
        world=LIST_WORLD if world == "rankings" else None,
    )
    with EmbeddedBroker({DEMO_TOPIC: 1}) as broker:
        topic = KafkaSettings.model_validate({**broker.connection.model_dump(), "topic": DEMO_TOPIC})
        decoder, evaluator = _parts(settings.world)
        daemon = Daemon(KafkaSource(topic), decoder, evaluator, publish_interval=PUBLISH_EVERY)
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


def _parts(world: str | None) -> tuple[JsonDecoder, Evaluator]:
    """The decoder and the evaluator of the events of a world."""
    if world is None:
        decoder = JsonDecoder(DEMO_CANDIDATES, reward_range=(0.0, 1.0))
        return decoder, Evaluator(candidates=DEMO_CANDIDATES, estimators=[IPS(), SNIPS()], averages=AVERAGES)
    ranking = Ranking(metric=DCG(at=LENGTH), examination=Swaps(ranks=LENGTH))
    evaluator = Evaluator(DEMO_CANDIDATES, ["click_ips", "click_snips"], AVERAGES, ranking=ranking)
    return RankingDecoder(DEMO_CANDIDATES), evaluator


def _addresses(url: str, bootstrap: str, settings: SimulatedSettings) -> str:
    rate = f"{counted(settings.rate, 'event')} per second" if settings.rate else "events as fast as possible"
    end = f"after {counted(settings.events, 'event')}" if settings.events else "with Ctrl-C"
    return (
        f"A simulated recommender sends {rate}; its users keep changing their preferences. The demo ends {end}.\n"
        f"  status page  {url}/\n"
        f"  metrics      {url}/metrics\n"
        f"  report       {url}/api/v1/report\n"
        f"  broker       {bootstrap}, topic {DEMO_TOPIC}"
    )


class Demonstration:
    """While entered, sends events to the broker, compares reports with the truth, and at the end stops the daemon."""

    def __init__(self, daemon: Daemon, settings: SimulatedSettings, bootstrap: str) -> None:
        self.daemon, self.settings, self.bootstrap = daemon, settings, bootstrap
        self.recommender = SimulatedRecommender(settings)
        self.estimator = "snips" if settings.world is None else "click_ips"
        self._errors = np.zeros((len(AVERAGES), 2))  # the sum of the squared errors, and their number
        self._judged = SETTLED_EVENTS
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recommender")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    @property
    def read(self) -> int:
        """Events that the daemon has read, or that the broker had deleted before."""
        published = self.daemon.published
        return published.accepted + sum(published.rejected.values()) + published.source.lost

    def line(self) -> Text:
        """A status line."""
        published = self.daemon.published
        truth = self.recommender.truth(published.accepted)
        best = max(DEMO_CANDIDATES, key=truth.__getitem__)
        estimates = [f"{label} {decimal(self._value(published.report, best, label), 3)}" for label in FOLLOWED]
        parts = [counted(published.accepted, "event"), f"{best} is best: truth {truth[best]:.3f}", *estimates]
        return Text("  " + " · ".join(parts), overflow="ellipsis", no_wrap=True)

    def outcome(self) -> Table:
        """The last estimates of each policy next to the true values, and the typical error of each average."""
        report = self.daemon.published.report
        truth = self.recommender.truth(report.events.accepted if report else 0)
        headings = [f">{average.label.replace('_', ' ')}" for average in AVERAGES]
        table = new_table(f"After {counted(self.read, 'event')}, by {self.estimator}", "policy", ">truth", *headings)
        table.show_edge, table.padding = False, (0, 0, 0, 1)  # all columns fit into a terminal of 80 characters
        table.columns[0].style, table.columns[0].no_wrap = "bold", True
        table.caption_justify = "left"
        for policy, value in truth.items():
            estimates = [decimal(self._value(report, policy, average.label), 3) for average in AVERAGES]
            table.add_row(policy, f"{value:.3f}", *estimates)
        if self._errors.all():
            errors = np.sqrt(self._errors[:, 0] / self._errors[:, 1])
            table.add_section()
            table.add_row("typical error", "", *(f"{error:.3f}" for error in errors))
            table.caption = "Typical error: root mean square of estimate - truth, over the run and the candidates."
        return table

    def _work(self) -> None:
        from confluent_kafka import Producer  # an extra; without it there is no embedded broker either

        source = SimulatedSource(self.settings)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "log_level": 0})
        while not self._leaving.is_set():
            if source.status().exhausted or source.position - self.read > MOST_WAITING:
                self._leaving.wait(PUBLISH_EVERY / 4)
            else:
                for records in source.poll(LOOK_EVERY):
                    for value in records.values:
                        producer.produce(DEMO_TOPIC, value)
                producer.flush(LOOK_EVERY)
            self._judge(self.daemon.published.report)
            if self.settings.events and self.read >= self.settings.events:
                self.daemon.stop()

    def _judge(self, report: Report | None) -> None:
        if report is None or report.events.accepted <= self._judged:
            return
        self._judged = report.events.accepted
        truth = self.recommender.truth(self._judged)
        for place, average in enumerate(AVERAGES):
            for policy in DEMO_CANDIDATES:
                value = self._value(report, policy, average.label)
                if value is not None:
                    self._errors[place] += (value - truth[policy]) ** 2, 1

    def _value(self, report: Report | None, policy: str, average: str) -> float | None:
        try:
            return report.get(policy, self.estimator, average).value if report else None
        except KeyError:  # no page counts yet
            return None
