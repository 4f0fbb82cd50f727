"""Run real Prometheus and Alertmanager with what deploy/ has for them, at the addresses and intervals of a test."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from support.deployed import ALERTMANAGER, PROMETHEUS, RULES
from support.ports import free_port
from support.programs import program

PATIENCE = 120.0
Samples = list[tuple[dict[str, str], float]]


@contextmanager
def server(command: list[str], port: int, folder: Path) -> Iterator[httpx.Client]:
    """Run a program that serves HTTP on `port`, and wait until it is ready. Its log is below `folder`."""
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE) as client:
                deadline = time.monotonic() + PATIENCE
                while not is_ready(client):
                    if process.poll() is not None or time.monotonic() > deadline:
                        pytest.fail(f"{command[0]} is not ready:\n{log.read_text()}")
                    time.sleep(0.1)
                yield client
        finally:
            process.terminate()


def is_ready(client: httpx.Client) -> bool:
    """Return whether `/-/ready` answers with 200."""
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def prometheus(
    targets: list[str],
    folder: Path,
    *,
    apart: Sequence[str] = (),
    alertmanager: str | None = None,
    token: Path | None = None,
    holds: Mapping[str, str] | None = None,
) -> Iterator[httpx.Client]:
    """Run Prometheus with the deployed configuration and rules, with intervals of one second.

    Args:
        targets: Addresses to scrape.
        folder: Directory for its files.
        apart: Targets of another job. Their alerts do not come in one message with alerts of the others.
        alertmanager: Address for alerts.
        token: File of the bearer token that it shows.
        holds: Hold times of alerts that differ from the deployed ones, by name.
    """
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    folder.mkdir()
    config["rule_files"] = [str(path) for path in rule_files(folder, holds or {})]
    (deployed,) = (job for job in config["scrape_configs"] if job["job_name"] == "streameval")
    login = {"authorization": {"credentials_file": str(token)}} if token else {}
    jobs = {"streameval": targets} | ({"streameval-apart": [*apart]} if apart else {})
    config["scrape_configs"] = [
        deployed | login | {"job_name": name, "static_configs": [{"targets": there}]} for name, there in jobs.items()
    ]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with server([program("prometheus", "prometheus"), *options], port, folder) as client:
        yield client


def rule_files(folder: Path, holds: Mapping[str, str]) -> Iterator[Path]:
    """Write the deployed rules to `folder` without their own intervals and with the hold times of `holds`."""
    for path in RULES:
        content = yaml.safe_load(path.read_text())
        for group in content["groups"]:
            group.pop("interval", None)
        for rule in (rule for group in content["groups"] for rule in group["rules"]):
            if rule.get("alert") in holds:
                rule["for"] = holds[rule["alert"]]
        (folder / path.name).write_text(yaml.safe_dump(content))
        yield folder / path.name


@contextmanager
def alertmanager(folder: Path, webhook: str = "http://127.0.0.1:9") -> Iterator[httpx.Client]:
    """Run Alertmanager with the deployed configuration, and with its webhooks at the address `webhook`."""
    config = yaml.safe_load(ALERTMANAGER.read_text())
    for receiver in config["receivers"]:
        for hook in receiver.get("webhook_configs", []):
            hook["url"] = webhook + httpx.URL(hook["url"]).path
    folder.mkdir()
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = [
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.path={folder / 'data'}",
        "--cluster.listen-address=",
    ]
    with server([program("prometheus-alertmanager", "prometheus-alertmanager"), *options], port, folder) as client:
        yield client


def query(client: httpx.Client, expression: str) -> Samples:
    """Return the series that the expression gives now."""
    answer = client.get("/api/v1/query", params={"query": expression}).raise_for_status()
    return [(series["metric"], float(series["value"][1])) for series in answer.json()["data"]["result"]]


class Call(NamedTuple):
    """Represent an alert that came through a webhook.

    Attributes:
        at: Monotonic time.
        path: Path of the request.
        alert: The alert.
    """

    at: float
    path: str
    alert: dict[str, Any]


class Webhook:
    """Receive what Alertmanager sends."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        """Return the address to send to."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def calls(self) -> list[Call]:
        """Return the alerts received until now."""
        return self._calls[:]

    def __enter__(self) -> Webhook:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        calls = self._calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                calls.extend(Call(time.monotonic(), self.path, alert) for alert in body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
