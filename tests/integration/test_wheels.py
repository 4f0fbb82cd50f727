"""Build the sdist and the wheels as `make wheels` does, and run them in empty environments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.messages import message
from support.paths import ROOT
from support.programs import output
from support.pyproject import pinned

LOCKS = ROOT / "requirements"
TOOLS = ROOT / ".venv-release" / "bin"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = os.environ.get("PYTHONS", OWN).split()
"""All of them take four minutes and more: `make wheels-check`."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not LOCKS.exists(), reason="needs a checkout"),
]


def build(directory: Path, *versions: str) -> Path:
    """Build the sdist, and the wheels from nothing but the sdist."""
    output(str(LOCKS / "wheels.sh"), str(directory), *versions, seconds=1200)
    return directory


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (TOOLS / "uv").exists():
        missing = f"{TOOLS} is missing; `make test-all` installs it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return build(tmp_path_factory.mktemp("wheels") / "built", *VERSIONS)


def install(package: Path, version: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a file with the extra `demo` into an empty environment without a compiler, and return its programs."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if shutil.which("pyenv"):
        monkeypatch.setenv("PYENV_VERSION", ":".join(output("pyenv", "versions", "--bare").split()))
    uv, environment = str(TOOLS / "uv"), directory / "environment"
    output(uv, "venv", "--quiet", "--no-python-downloads", "--python", version, str(environment))
    monkeypatch.setenv("PATH", str(environment / "bin"))
    install = [uv, "pip", "install", "--quiet", "--python", str(environment), "--only-binary", ":all:"]
    output(
        *install, "--constraints", str(LOCKS / "runtime.lock"), f"streameval[demo] @ {package.as_uri()}", seconds=600
    )
    return environment / "bin"


def require_working(programs: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the demo and a replay, with compiled kernels."""
    monkeypatch.chdir(directory)
    where = output(
        str(programs / "python"), "-c", "from streameval.ope.core import kernel; print(kernel.__file__, end='')"
    )
    assert where.startswith(str(programs.parent))
    assert where.endswith(".so")
    streameval = str(programs / "streameval")
    assert "After 3,000 events" in output(streameval, "demo", "--events", "3000", "--rate", "0", "--port", "0")
    lines = [message(number, event_id=str(number), policies={"challenger": 0.5}) for number in range(200)]
    (directory / "log.ndjson").write_bytes(b"\n".join(lines))
    replay = [streameval, "replay", "log.ndjson", "--candidates", "challenger", "--json"]
    report = subprocess.run(replay, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    assert json.loads(report)["events"]["accepted"] == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wheel_works_where_nothing_can_be_compiled(
    built: Path, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel,) = built.glob(f"*-cp{version.replace('.', '')}-*.whl")
    assert "manylinux" in wheel.name
    require_working(install(wheel, version, tmp_path, monkeypatch), tmp_path, monkeypatch)


def test_two_builds_have_equal_bytes(built: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again", OWN)
    files = sorted(path.name for path in again.iterdir())
    assert len(files) == 3, "sdist, wheel and components"
    assert [name for name in files if (again / name).read_bytes() != (built / name).read_bytes()] == []


def test_the_list_of_components_has_every_dependency_with_its_version(built: Path) -> None:
    components = json.loads((built / "sbom.json").read_text())
    assert components["metadata"]["component"]["name"] == "streameval"
    listed = {(component["name"], component["version"]) for component in components["components"]}
    assert listed == {(name, version) for name, versions in pinned("runtime.lock").items() for version in versions}


def test_other_platforms_have_a_configuration() -> None:
    platforms = ("linux", "macos")
    names = [output(str(TOOLS / "cibuildwheel"), "--print-build-identifiers", "--platform", name) for name in platforms]
    for platform in ("manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64", "macosx_arm64"):
        assert f"cp313-{platform}" in "\n".join(names).split()
