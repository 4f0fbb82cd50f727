"""Scrape and query a running daemon, also by a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Timestamp

import streameval as se
from streameval.config.model import Http
from streameval.events import JsonDecoder
from streameval.ingest.base import Records, Source, SourceStatus
from streameval.ingest.pipeline import EventPipeline
from streameval.service.daemon import Daemon
from streameval.service.http.auth import Security
from streameval.service.http.server import HttpServer
from support.asking import asking
from support.certificates import make_certificate
from support.factories import (
    ListSource,
    View,
    crowding,
    make_published,
    make_report,
    quickest,
    records,
    running,
    wait_until,
)
from support.messages import message
from support.ports import free_port

CANDIDATES = tuple(f"challenger-{number}" for number in range(10))
ESTIMATORS = (se.IPS(), se.SNIPS(), se.ClippedIPS(cap=10.0), se.ControlVariate())
AVERAGES = (se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay())


def messages(count: int) -> list[bytes]:
    """Return events of a uniform logging policy over ten actions, with random probabilities of candidates."""
    rng = np.random.default_rng(3)
    rewards, chances = rng.random(count) < 0.1, np.round(0.2 * rng.random((count, len(CANDIDATES))), 5)
    return [
        message(
            number,
            event_id=str(number),
            timestamp=1_700_000_000 + number,
            propensity=0.1,
            reward=int(rewards[number]),
            policies=dict(zip(CANDIDATES, chances[number].tolist(), strict=True)),
        )
        for number in range(count)
    ]


def make_daemon(source: Source) -> Daemon:
    evaluator = se.Evaluator(CANDIDATES, ESTIMATORS, AVERAGES)
    return Daemon(source, JsonDecoder(policies=CANDIDATES), evaluator)


@contextmanager
def serving(daemon: Daemon) -> Iterator[httpx.Client]:
    with HttpServer(daemon, port=0) as server, running(daemon), asking(server.url) as client:
        yield client


class Endless:
    """Repeat events as fast as they are taken."""

    def __init__(self, values: list[bytes]) -> None:
        self._values = values

    def poll(self, timeout: float) -> list[Records]:
        return [records(*self._values)]

    def status(self) -> SourceStatus:
        return SourceStatus(reached=True)

    def close(self) -> None:
        pass


def test_a_scrape_of_220_estimates_takes_less_than_50_ms_while_events_flow() -> None:
    daemon = make_daemon(Endless(messages(2000)))
    with serving(daemon) as client:
        wait_until(lambda: daemon.published.accepted > 6_000)
        before = daemon.published.accepted
        took = [scrape_time(client) / crowding() for _ in range(4)]
        answer = client.get("/metrics")
        wait_until(lambda: daemon.published.accepted > before)
    assert answer.text.count("\nstreameval_policy_value{") == (1 + len(CANDIDATES)) * len(ESTIMATORS) * len(AVERAGES)
    assert min(took) < 0.050, took


def scrape_time(client: httpx.Client) -> float:
    """Return the median duration of some scrapes."""
    return statistics.median(quickest(lambda: client.get("/metrics"), times=1) for _ in range(15))


def test_http_serves_the_report_of_the_events() -> None:
    values = messages(3000)
    daemon = make_daemon(ListSource([[records(*values[:1234])], [records(*values[1234:], b"not an event")]]))
    expected = se.Evaluator(CANDIDATES, ESTIMATORS, AVERAGES)
    expected.update(JsonDecoder(policies=CANDIDATES).decode_batch([*values, b"not an event"]))
    with serving(daemon) as client:
        wait_until(lambda: daemon.published.source.exhausted)
        assert client.get("/readyz").status_code == 200
        assert client.get("/healthz").status_code == 200
        served, page = client.get("/api/v1/report").json(), client.get("/").text
    wanted = json.loads(expected.report().to_json())
    assert served["events"] == wanted["events"]
    assert served["events"]["rejected"] == {"malformed": 1}
    for mine, theirs in zip(served["estimates"], wanted["estimates"], strict=True):
        assert mine["value"] == pytest.approx(theirs["value"], rel=1e-9)
        assert mine["policy"] in page


def located_daemon(evaluator: se.Evaluator, *polls: tuple[int, list[bytes]], topic: str = "clicks") -> Daemon:
    """Make a daemon that reads these messages of partition 3 from an offset, one poll after the other."""
    parts = [[Records(topic, 3, range(first, first + len(values)), values)] for first, values in polls]
    return Daemon(ListSource(parts), EventPipeline(JsonDecoder(policies=["a", "b"])), evaluator)


def scraped_exemplars(daemon: Daemon) -> dict[str, Exemplar | None]:
    """Return the exemplar of each policy after all polls, by a scrape in OpenMetrics."""
    with serving(daemon) as client:
        wait_until(lambda: daemon.published.source.exhausted and daemon.published.report is not None)
        text = client.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
        assert " # {" not in client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["streameval_policy_events_missing"].samples
    return {sample.labels["policy"]: sample.exemplar for sample in samples}


def weighing(**weights: tuple[int, float]) -> list[bytes]:
    """Return 250 events with a weight of 1, except for one event of each policy."""
    chances = {name: np.full(250, 0.125) for name in ("a", "b")}
    for name, (event, weight) in weights.items():
        chances[name][event] = weight / 8
    return [
        message(number, propensity=0.125, policies={name: float(column[number]) for name, column in chances.items()})
        for number in range(250)
    ]


def test_an_exemplar_names_the_event_with_the_largest_weight_since_the_start_of_the_process() -> None:
    evaluator = se.Evaluator(["a", "b"])
    polls = (1_000, weighing(a=(7, 5), b=(199, 2))), (2_000, weighing(a=(30, 4), b=(120, 8))), (5_000, weighing())
    exemplars = scraped_exemplars(located_daemon(evaluator, *polls))
    assert exemplars == {
        "logging": None,
        "a": Exemplar({"topic": "clicks", "partition": "3", "offset": "1007"}, 5.0, Timestamp(7, 0)),
        "b": Exemplar({"topic": "clicks", "partition": "3", "offset": "2120"}, 8.0, Timestamp(120, 0)),
    }
    restarted = se.Evaluator.from_state(evaluator.state())
    assert set(scraped_exemplars(located_daemon(restarted)).values()) == {None}
    after = scraped_exemplars(located_daemon(restarted, (6_000, weighing(a=(9, 3)))))
    assert after["a"] == Exemplar({"topic": "clicks", "partition": "3", "offset": "6009"}, 3.0, Timestamp(9, 0))


def test_an_exemplar_hides_the_query_of_an_address_and_keeps_the_limit_of_labels() -> None:
    topic = f"https://store/{'folder/' * 30}log.jsonl?sig=s3cret"
    exemplar = scraped_exemplars(located_daemon(se.Evaluator(["a", "b"]), (0, weighing(a=(7, 5))), topic=topic))["a"]
    assert exemplar is not None
    assert exemplar.labels["topic"].endswith("folder/log.jsonl?***")
    assert sum(map(len, (*exemplar.labels, *exemplar.labels.values()))) == 128


def test_events_without_offsets_have_no_exemplar() -> None:
    evaluator = se.Evaluator(["a", "b"])
    evaluator.update(JsonDecoder(policies=["a", "b"]).decode_batch(weighing(a=(7, 5))))
    assert evaluator.report().events.accepted == 250
    assert set(scraped_exemplars(located_daemon(evaluator)).values()) == {None}


@contextmanager
def prometheus(target: str, folder: Path, **options_of_job: Any) -> Iterator[httpx.Client]:
    """Run a Prometheus that scrapes `target` every second, with its data below `folder`."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus is missing; with CI set this test may not be left out (Debian package: prometheus)")
        pytest.skip("prometheus is not installed (Debian package: prometheus)")
    port = free_port()
    config = folder / "prometheus.yml"
    job = {"job_name": "streameval", "static_configs": [{"targets": [target]}], **options_of_job}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))  # YAML, too
    options = [
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen([program, *options], stdout=log, stderr=log) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60.0) as client:
                yield client
        finally:
            process.terminate()


def query(client: httpx.Client, expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the series of an expression, none while Prometheus is not up yet."""
    try:
        answer = client.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []
    if answer.status_code == 503:
        return []
    return [
        (series["metric"], float(series["value"][1])) for series in answer.raise_for_status().json()["data"]["result"]
    ]


def awaited_series(client: httpx.Client, expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the series of an expression once there are some."""
    series: list[tuple[dict[str, str], float]] = []

    def any_there() -> bool:
        series[:] = query(client, expression)
        return bool(series)

    wait_until(any_there)
    return series


def test_a_real_prometheus_scrapes_the_daemon_and_knows_its_values(tmp_path: Path) -> None:
    daemon = make_daemon(ListSource([[records(*messages(5000))]]))
    with HttpServer(daemon, port=0) as server, running(daemon):
        host, port = server.address
        wait_until(lambda: daemon.published.source.exhausted)
        report = daemon.published.report
        assert report is not None
        with prometheus(f"{host}:{port}", tmp_path) as client:
            wait_until(lambda: bool(query(client, "streameval_ready")), seconds=60.0)
            values = awaited_series(client, "streameval_policy_value")
            wait_until(lambda: [up for _, up in query(client, 'up{job="streameval"}')] == [1.0])
            families = {row["metric"] for row in client.get("/api/v1/targets/metadata").json()["data"]}
            assert "streameval_events_accepted" in families, "it asks for OpenMetrics, where names lack _total"
            widest = "max by (policy) (streameval_policy_value_upper - streameval_policy_value_lower) > 0"
            assert len(awaited_series(client, widest)) == 1 + len(CANDIDATES)
            assert (
                awaited_series(client, "histogram_quantile(0.9, streameval_event_delay_seconds_bucket)")[0][1]
                == 86400.0
            )
    assert len(values) == len(report.estimates)
    for labels, value in values:
        assert value == report.get(labels["policy"], labels["estimator"], labels["average"]).value


@pytest.mark.parametrize("is_authorised", [True, False], ids=["with the token", "with another token"])
def test_a_real_prometheus_scrapes_over_tls_with_a_token(tmp_path: Path, is_authorised: bool) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "tokens").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef" if is_authorised else "another-0123456789abcdef")
    http = Http(port=0, tls_certfile=certificate, tls_keyfile=key, token_file=str(tmp_path / "tokens"))
    job = {
        "scheme": "https",
        "tls_config": {"ca_file": certificate},
        "authorization": {"credentials_file": str(tmp_path / "token")},
    }
    with HttpServer(View(make_published(make_report())), http.host, http.port, Security(http)) as server:
        host, port = server.address
        with prometheus(f"{host}:{port}", tmp_path, **job) as client:
            wait_until(lambda: [value for _, value in query(client, "up")] == [float(is_authorised)], seconds=60.0)
            if is_authorised:
                awaited_series(client, "streameval_ready")
            else:
                assert query(client, "streameval_ready") == []
