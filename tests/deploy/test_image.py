"""Check that the Dockerfile keeps the rules, and that its steps make a daemon that runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.asking import asking, report_of
from support.dockerfiles import Instruction, Stage, build, instructions, let_through, stages
from support.factories import wait_until
from support.paths import ROOT
from support.programs import output
from support.pyproject import PYPROJECT, pinned

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORED = (ROOT / ".dockerignore").read_text()
STAGES = stages(DOCKERFILE.read_text())
FINAL = STAGES[-1]
BUILD_TOOLS = {"pip", "hatchling", "setuptools", "wheel", "build"}


def texts(name: str, instructions: list[Instruction] = FINAL) -> list[str]:
    return [instruction.text for instruction in instructions if instruction.name == name]


def test_base_images_are_pinned_to_a_patch_release_and_are_the_same() -> None:
    *building, final = (texts("FROM", stage)[0].partition(" AS ")[0] for stage in STAGES)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", final)
    compiler_image = final.replace("-slim", "")
    assert set(building) == {compiler_image}, "a virtual environment fits the Python that it was made with"


def test_the_image_runs_a_python_that_the_package_supports() -> None:
    version = re.search(r"python:(3\.\d+)", texts("FROM")[0])
    assert version
    assert f"Programming Language :: Python :: {version[1]}" in PYPROJECT["project"]["classifiers"]


def test_it_runs_as_a_user_without_a_name_that_owns_the_state() -> None:
    (user,) = texts("USER")
    assert re.fullmatch(r"[1-9]\d{4,}:[1-9]\d{4,}", user), (
        "a number: Kubernetes asks for one to see that it is not root"
    )
    assert any(f"--chown={user}" in text and text.endswith(" /var/lib/streameval") for text in texts("COPY"))
    assert texts("VOLUME") == texts("WORKDIR") == ["/var/lib/streameval"]


@pytest.mark.parametrize("name", ["CMD", "ENTRYPOINT"])
def test_it_starts_without_a_shell_so_that_signals_arrive(name: str) -> None:
    (text,) = texts(name)
    assert all(isinstance(word, str) for word in json.loads(text))
    assert texts("STOPSIGNAL") == ["SIGTERM"]


def test_everything_is_installed_from_locks_with_hashes_and_only_the_kernels_are_compiled() -> None:
    runs = [text for stage in STAGES for text in texts("RUN", stage)]
    installing = [step for text in runs for step in text.split("&&") if re.search(r"pip\b.* install", step)]
    assert len(installing) == 3
    for step in installing:
        assert {"--require-hashes", "--no-index"} & set(step.split())
        assert "--only-binary :all:" in step or "--no-deps" in step
    assert not [text for text in runs if re.search(r"\b(apt|apt-get|curl|wget|sudo|ADD)\b", text)]


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    hadolint = str(Path(sys.executable).with_name("hadolint"))
    assert output(hadolint, "--no-color", str(DOCKERFILE)) == ""
    (tmp_path / "Dockerfile").write_text(
        DOCKERFILE.read_text().replace("-slim-bookworm", "-slim-bookworm\nRUN cd /", 1)
    )
    assert "DL3003" in output(hadolint, "--no-color", str(tmp_path / "Dockerfile"), code=1)


def test_no_instruction_is_one_that_linters_warn_of() -> None:
    everything = instructions(DOCKERFILE.read_text())
    assert not {"ADD", "MAINTAINER", "ONBUILD", "SHELL"} & {instruction.name for instruction in everything}
    assert all(text.startswith("/") for stage in STAGES for text in texts("WORKDIR", stage))
    assert not [text for text in texts("ENV") if re.search(r"(?i)password|token|secret", text)]
    assert not [text for stage in STAGES for text in texts("RUN", stage) if re.search(r"\bcd\b|\|\s", text)]


def test_the_numerical_library_starts_no_threads() -> None:
    assert "OPENBLAS_NUM_THREADS=1" in " ".join(texts("ENV")).split()


def test_labels_name_the_version_and_the_licence_of_the_package() -> None:
    labels = dict(re.findall(r'(\S+)="([^"]*)"', " ".join(texts("LABEL"))))
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}version"] == version("streameval")
    assert labels[f"{prefix}licenses"] == PYPROJECT["project"]["license"]


def test_the_locks_of_the_image_have_the_dependencies_one_extra_and_the_build_backend() -> None:
    image, tools = pinned("image.lock"), pinned("build.lock")
    project = PYPROJECT["project"]
    wanted = [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["confluent"]]
    assert {canonicalize_name(requirement.name) for requirement in wanted} <= set(image)
    assert not {"matplotlib", "pyarrow"} & set(image)
    assert {canonicalize_name(Requirement(line).name) for line in PYPROJECT["build-system"]["requires"]} <= set(tools)
    assert not BUILD_TOOLS & set(image)


@pytest.mark.parametrize("path", ["compose/streameval.yaml", "kubernetes/streameval.yaml"])
def test_the_configurations_of_the_image_name_its_kafka_client(path: str) -> None:
    assert yaml.safe_load((ROOT / "deploy" / path).read_text())["source"]["client"] == "confluent"


def test_the_context_is_what_is_copied_and_no_more() -> None:
    sources = {
        word for text in texts("COPY", STAGES[0]) + texts("COPY") if "--from" not in text for word in text.split()[:-1]
    }
    assert {path for path in sources if let_through(path, IGNORED)} == sources
    unneeded = [
        ".git/config",
        ".venv/bin/python",
        "deploy/compose.yaml",
        "tests/conftest.py",
        "streameval/__pycache__/a.pyc",
        "streameval/ope/core/kernel.cpython-313-x86_64-linux-gnu.so",
    ]
    assert not [path for path in unneeded if let_through(path, IGNORED)]


class Health(BaseHTTPRequestHandler):
    """Answers every GET with the status of the server."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_agrees_with_the_daemon(status: int | None, code: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        server.status = status  # type: ignore[attr-defined]
        url = f"http://127.0.0.1:{server.server_port}/healthz"
        thread = threading.Thread(target=server.serve_forever)
        if status:
            thread.start()
        else:
            server.server_close()
        command = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
        health_check = subprocess.run(
            command, env={**os.environ, "HEALTHZ_URL": url}, capture_output=True, check=False, timeout=60
        )
        if status:
            server.shutdown()
            thread.join()
    assert health_check.returncode == code, health_check.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Make the image of the Dockerfile in a directory."""
    return build(DOCKERFILE, ROOT, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def running(image: Stage) -> Iterator[subprocess.Popen[str]]:
    """Run the image's program with a simulated source, in a home that cannot be written, until SIGTERM."""
    config = image.place("/etc/streameval/streameval.yaml")
    config.parent.mkdir(parents=True)
    state = image.place("/var/lib/streameval/state")
    config.write_text(
        "source: {kind: simulated, events: 5000, rate: 0}\npolicies: {candidates: [candidate-1]}\n"
        f"state: {{dir: {state}}}\nhttp: {{port: 0}}\n"
    )
    home = image.place("/home/nobody")
    home.mkdir(parents=True, mode=0o500)
    with subprocess.Popen(
        [*image.entrypoint, *image.command],
        cwd=image.place("."),
        env={**image.variables(), "HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_steps_of_the_image_make_the_program(image: Stage) -> None:
    outcome = subprocess.run(
        [*image.entrypoint, "--version"], env=image.variables(), capture_output=True, text=True, check=True, timeout=60
    )
    assert outcome.stdout == f"streameval {version('streameval')}\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_build_tool_is_left_in_the_image(image: Stage) -> None:
    distributions = {path.name.partition("-")[0] for path in image.place("/opt/streameval").rglob("*.dist-info")}
    assert "streameval" in distributions
    assert not distributions & BUILD_TOOLS
    assert not list(image.place("/opt").rglob("tests")), "nor the tests of libraries"
    assert not list(image.root.rglob("bin/pip*")), "nor in what stands in for the base image"
    assert not image.place("/build").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_image_runs_answers_its_health_check_and_stops_on_request(
    image: Stage, running: subprocess.Popen[str]
) -> None:
    before = {path for path in image.root.rglob("*") if "/var/lib/streameval/" not in str(path)}
    assert running.stderr
    lines: list[dict[str, object]] = []
    for line in running.stderr:
        lines.append(json.loads(line))
        if lines[-1]["event"] == "source_reached":
            break
    url = next(f"{line['url']}/healthz" for line in lines if line["event"] == "serving")
    health = subprocess.run(
        image.healthcheck,
        env={**image.variables(), "HEALTHZ_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(health.stdout)["healthy"]
    with asking(url.removesuffix("/healthz")) as client:
        wait_until(lambda: (report_of(client) or {"events": {}})["events"].get("accepted") == 5000)
    running.terminate()
    lines += map(json.loads, running.stderr.read().splitlines())
    assert running.wait(timeout=60) == 0
    assert lines[-1]["event"] == "stopped"
    assert lines[-1]["accepted"] == 5000
    assert list(image.place("/var/lib/streameval/state").iterdir()), "its last snapshot"
    assert {path for path in image.root.rglob("*") if "/var/lib/streameval/" not in str(path)} == before
