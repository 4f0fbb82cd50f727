"""Push metrics to a receiver of OTLP over HTTP."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from structlog.testing import capture_logs

from streameval.config.model import Config
from streameval.config.otlp import OtlpSettings
from streameval.errors import ConfigError
from streameval.service.metrics import metrics_text
from streameval.service.otlp import OtlpPush
from streameval.service.status import PushStatus
from support.factories import View, make_published, make_report, wait_until
from support.http_servers import QuietHandler, serving
from support.ports import free_port

CONFIG = "policies: {candidates: [challenger]}\n"
ACCEPTED = ("streameval_events_accepted_total",)


class Receiver(HTTPServer):
    """Take metrics as a collector does.

    Attributes:
        requests: Path, headers and content of each request.
        code: Status of the answers.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Taking)
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.code = 200

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Taking(QuietHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        is_packed = self.headers.get("content-encoding") == "gzip"
        request = ExportMetricsServiceRequest.FromString(gzip.decompress(body) if is_packed else body)
        headers = {key.lower(): value for key, value in self.headers.items()}
        server.requests.append((self.path, headers, request))
        self.answer(server.code, ExportMetricsServiceResponse().SerializeToString(), "application/x-protobuf")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as server:
        yield server


def push(endpoint: str, interval: float = 0.1, **options: Any) -> tuple[View, OtlpPush]:
    view = View(make_published(make_report()))
    return view, OtlpPush(view, OtlpSettings(endpoint=endpoint, interval=interval, **options), "clicks")  # type: ignore[arg-type]


def samples_of(request: ExportMetricsServiceRequest) -> dict[tuple[Any, ...], float]:
    """Return the values by name and labels, as Prometheus names them."""
    samples: dict[tuple[Any, ...], float] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = tuple(sorted((item.key, item.value.string_value) for item in point.attributes))
            if kind == "histogram":
                bounds, passed = [*map(str, point.explicit_bounds), "+Inf"], 0
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    passed += count
                    samples[f"{metric.name}_bucket", ("le", bound)] = passed
                samples[f"{metric.name}_count",], samples[f"{metric.name}_sum",] = point.count, point.sum
            else:
                samples[metric.name, *labels] = point.as_double
    return samples


def pushed_of(receiver: Receiver) -> dict[tuple[Any, ...], float]:
    """Return the newest values, none before the first push."""
    return samples_of(receiver.requests[-1][2]) if receiver.requests else {}


def test_the_metrics_that_are_served_are_pushed_under_their_names(receiver: Receiver) -> None:
    view, pusher = push(receiver.endpoint, headers={"authorization": "Bearer of-the-receiver"})
    with pusher:
        wait_until(lambda: len(receiver.requests) >= 2)
    path, headers, request = receiver.requests[0]
    assert path == "/v1/metrics"
    assert headers["authorization"] == "Bearer of-the-receiver"
    served = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text(view.published).decode())
        for sample in family.samples
    }
    pushed = samples_of(request)
    assert pushed.keys() == served.keys()
    assert {key: value for key, value in pushed.items() if key[0].startswith("streameval_")} == {
        key: value for key, value in served.items() if key[0].startswith("streameval_")
    }
    metrics = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    accepted = metrics["streameval_events_accepted_total"].sum
    assert accepted.is_monotonic
    assert accepted.data_points[0].start_time_unix_nano <= accepted.data_points[0].time_unix_nano
    assert not metrics["streameval_event_delay_seconds"].histogram.data_points[0].HasField("max")
    assert view.pushes == PushStatus(done=len(receiver.requests))


def test_the_name_of_the_daemon_is_the_name_of_the_service(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with push(f"{receiver.endpoint}/v1/metrics")[1]:
        pass
    path, _, request = receiver.requests[-1]
    assert path == "/v1/metrics", "also if the endpoint names it"
    resource = {item.key: item.value.string_value for item in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["deployment.environment"]) == ("clicks", "test")


def test_failures_are_counted_and_logged_once_until_the_receiver_is_back() -> None:
    port = free_port()
    with capture_logs() as logs:
        view, pusher = push(f"http://127.0.0.1:{port}")
        with pusher:
            wait_until(lambda: view.pushes.failures >= 2)
            with serving(Receiver(port)) as receiver:
                wait_until(lambda: view.pushes.done >= 1)
                receiver.code = 400
                failures = view.pushes.failures
                wait_until(lambda: view.pushes.failures > failures)
    events = [entry["event"] for entry in logs if entry["event"] != "otlp_started"]
    assert events == ["otlp_push_failed", "otlp_resumed", "otlp_push_failed"]


def test_a_receiver_that_does_not_answer_holds_up_neither_the_daemon_nor_its_end() -> None:
    with serving(Silent(("127.0.0.1", 0), Silence)) as server:
        began = time.monotonic()
        _, pusher = push(f"http://127.0.0.1:{server.server_port}", interval=60.0)
        with pusher:
            assert time.monotonic() - began < 5.0
        assert time.monotonic() - began < 10.0
        server.released.set()


class Silent(HTTPServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.released = threading.Event()


class Silence(QuietHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Silent)
        self.server.released.wait(30.0)


def test_the_counts_of_pushes_are_metrics() -> None:
    text = metrics_text(make_published(pushes=PushStatus(done=7, failures=2))).decode()
    assert "streameval_otlp_pushes_total 7.0" in text
    assert "streameval_otlp_push_failures_total 2.0" in text
    assert "streameval_otlp" not in metrics_text(make_published()).decode()


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(f"{CONFIG}otlp: {{endpoint: 'http://localhost:4318'}}\n")
    assert Config.load(tmp_path / "c.yaml", {}).otlp is not None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"pip install 'streameval\[otlp\]'"):
        Config.load(tmp_path / "c.yaml", {})


def test_a_daemon_pushes_from_its_start_to_its_end(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        f"{CONFIG}name: clicks\nsource: {{kind: simulated, events: 2000}}\nhttp: {{port: 0}}\nstate: off\n"
        f"otlp: {{endpoint: '{receiver.endpoint}', interval: 0.2s}}\n"
    )
    command = [sys.executable, "-c", "from streameval.cli.app import main; main()", "run", "c.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: pushed_of(receiver).get(ACCEPTED) == 2000, seconds=60.0)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert pushed_of(receiver)[ACCEPTED] == 2000
    assert pushed_of(receiver)["streameval_otlp_pushes_total",] >= 1


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("http://h/otlp?token=x", "a query or a fragment"),
        ("http://h/v1/metrics#a", "a query or a fragment"),
        ("https://", "no host"),
        ("https:///v1/metrics", "no host"),
        ("https://:4318", "no host"),
    ],
)
def test_an_address_that_metrics_cannot_be_sent_to_is_refused(endpoint: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        OtlpSettings(endpoint=endpoint)  # type: ignore[call-arg]
