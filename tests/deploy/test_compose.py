"""Check that deploy/compose.yaml fits its schema, is closed to the network and pinned, and mounts files that exist."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import yaml

from streameval.config.model import Config
from support.deployed import ALERTMANAGER, DEPLOY, PROMETHEUS
from support.http_servers import serving
from support.programs import output, program
from support.scripts import importable

COMPOSE = DEPLOY / "compose.yaml"
CONTENT: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = CONTENT["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("streameval:")}
GIVEN = DEPLOY / "compose"

Scripts = Callable[[str], ModuleType]

services = pytest.mark.parametrize("name", SERVICES)
ours = pytest.mark.parametrize("name", OURS)


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Return source, target, and whether it is only read, for each mount."""
    for text in service.get("volumes", ()):
        source, target, *mode = text.split(":")
        yield source, target, mode == ["ro"]


def test_the_file_is_of_the_published_schema() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert "ok" in output(*check, str(COMPOSE))


@services
def test_every_image_is_pinned_to_a_version(name: str) -> None:
    assert re.fullmatch(r"(?:[\w-]+/)?[\w-]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


@ours
def test_our_own_image_has_the_version_of_the_package(name: str) -> None:
    assert OURS[name]["image"] == f"streameval:{version('streameval')}"


def test_one_service_builds_the_image_and_none_pulls_it() -> None:
    """Several that build the same name at once fail each other if it does not exist yet."""
    assert [name for name, service in SERVICES.items() if "build" in service] == ["secrets"]
    assert (DEPLOY / OURS["secrets"]["build"]["context"] / OURS["secrets"]["build"]["dockerfile"]).samefile(
        DEPLOY / "Dockerfile"
    )
    assert {name: service["pull_policy"] for name, service in OURS.items()} == {
        name: "build" if name == "secrets" else "never" for name in OURS
    }


@services
def test_nothing_is_reachable_from_other_machines(name: str) -> None:
    service = SERVICES[name]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert not {"network_mode", "privileged", "pid", "cap_add"} & set(service)


@services
def test_no_service_can_become_more_than_it_is(name: str) -> None:
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]
    assert SERVICES[name]["restart"] == ("no" if name == "secrets" else "unless-stopped")


@ours
def test_our_services_have_a_read_only_root_and_no_capability(name: str) -> None:
    service = OURS[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert not {"user"} & set(service), "they run as the image says"


@services
def test_mounts_exist_and_only_volumes_are_writable(name: str) -> None:
    for source, _, only_read in mounts(SERVICES[name]):
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert only_read, source
        else:
            assert source in CONTENT["volumes"]


def test_every_volume_is_used_and_only_one_service_writes_each() -> None:
    writers = [source for service in SERVICES.values() for source, _, only_read in mounts(service) if not only_read]
    assert sorted(writers) == sorted(CONTENT["volumes"])


@services
def test_the_awaited_partition_is_named_when_it_is_ready(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        healthcheck = SERVICES[other].get("healthcheck", {})
        if how["condition"] == "service_healthy":
            assert "test" in healthcheck
        elif how["condition"] == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"


@services
def test_every_service_that_stays_has_a_health_check_or_says_that_it_has_none(name: str) -> None:
    healthcheck = SERVICES[name].get("healthcheck")
    is_in_image = healthcheck is None and name == "streameval"
    assert is_in_image or healthcheck == {"disable": True} or "test" in (healthcheck or {})


def test_addresses_lead_to_services() -> None:
    named = [
        *Config.load(GIVEN / "streameval.yaml", {}).source.bootstrap_servers,  # type: ignore[union-attr]
        *(
            target
            for job in prometheus()["scrape_configs"]
            for static_config in job["static_configs"]
            for target in static_config["targets"]
        ),
        *(
            target
            for static_config in prometheus()["alerting"]["alertmanagers"]
            for target in static_config["static_configs"][0]["targets"]
        ),
        *re.findall(r"http://([\w-]+:\d+)", ALERTMANAGER.read_text()),
        *re.findall(r"http://([\w-]+:\d+)", (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()),
        SERVICES["recommender"]["command"][1],
    ]
    assert {address.partition(":")[0] for address in named} - {"localhost"} <= set(SERVICES)
    listening = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"://{named[0]}," in listening


def test_the_daemon_reads_what_the_recommender_writes() -> None:
    config = Config.load(GIVEN / "streameval.yaml", {})
    command = SERVICES["recommender"]["command"]
    assert config.source.topic == command[command.index("--topic") + 1]  # type: ignore[union-attr]
    with importable(DEPLOY.parent / "examples" / "recommender"):
        assert config.policies.candidates == list(import_module("recommender").CANDIDATES)


def test_only_this_machine_and_the_project_read_the_page() -> None:
    assert SERVICES["streameval"]["ports"] == ["127.0.0.1:9108:9108"]
    (job,) = [job for job in prometheus()["scrape_configs"] if job["job_name"] == "streameval"]
    names = [target.partition(":")[0] for config in job["static_configs"] for target in config["targets"]]
    http = Config.load(GIVEN / "streameval.yaml", {}).http
    assert http.checks_host, "a page from the internet cannot read the answers by a name of its own"
    assert http.allowed_hosts == names


def test_the_daemon_writes_to_its_volume_alone() -> None:
    config = yaml.safe_load((GIVEN / "streameval.yaml").read_text())
    (state,) = [target for source, target, _ in mounts(SERVICES["streameval"]) if source == "state"]
    assert config["state"]["dir"].startswith(f"{state}/")


def prometheus() -> dict[str, Any]:
    content = yaml.safe_load((GIVEN / "prometheus.yml").read_text())
    assert isinstance(content, dict)
    return content


def test_prometheus_has_the_deployed_configuration() -> None:
    expected = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    expected["rule_files"] = [f"/etc/prometheus/{path}" for path in expected["rule_files"]]
    assert prometheus() == expected
    seen = {target: source for source, target, _ in mounts(SERVICES["prometheus"])}
    assert seen["/etc/prometheus"] == "./prometheus"


def test_prometheus_accepts_it(tmp_path: Path) -> None:
    text = (GIVEN / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus", str(PROMETHEUS))
    (tmp_path / "prometheus.yml").write_text(text)
    message = output(program("promtool", "prometheus"), "check", "config", str(tmp_path / "prometheus.yml"))
    assert "2 rule files found" in message


@pytest.fixture
def scripts() -> Iterator[Scripts]:
    """Imports a script of deploy/compose by its name."""
    with importable(GIVEN):
        yield import_module


def test_a_password_is_made_once(scripts: Scripts, tmp_path: Path) -> None:
    made = scripts("make_secrets")
    password = made.make(tmp_path)
    assert made.make(tmp_path) == password == (tmp_path / "password").read_text()


def test_the_webhook_prints_what_alertmanager_sends(scripts: Scripts, capsys: pytest.CaptureFixture[str]) -> None:
    alert = {
        "status": "firing",
        "labels": {"alertname": "A"},
        "annotations": {"summary": "Ship personal: it earns at least 0.012 more per event"},
    }
    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), scripts("webhook").Printing)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False, timeout=60.0) as client,
    ):
        assert client.post("/ticket", content=json.dumps({"alerts": [alert]})).status_code == 200
        assert client.post("/page", content=b"\xff").status_code == 200
    message = capsys.readouterr().out
    assert "/ticket firing: Ship personal: it earns at least 0.012 more per event\n" in message
    assert "/page is not a message of Alertmanager" in message
