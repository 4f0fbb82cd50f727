"""Test that kernels are compiled if they can be, and that the program gives the same numbers if they are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import streameval
from streameval.ope.core.kernel import compiled
from support.compiler import quick_compiler
from support.paths import ROOT

MAIN = "import sys; sys.argv[0] = 'streameval'; from streameval.cli.app import main; main()"
KERNELS = ("common/fading", "ope/core/adwin", "ope/core/kernel", "ope/estimators/kernel", "ope/promotion/kernel")
FORM = "from streameval.ope.core.kernel import compiled; print(compiled())"


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that imports the package from a directory."""
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=120
    )


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory with the package as a pure wheel installs it."""
    directory = tmp_path_factory.mktemp("pure")
    shutil.copytree(Path(*streameval.__path__), directory / "streameval", ignore=shutil.ignore_patterns("*.so"))
    return directory


def test_the_kernels_under_test_are_compiled() -> None:
    if not compiled() and not os.environ.get("CI"):
        pytest.skip("the package was installed without a C compiler (Debian packages: gcc, python3-dev)")
    assert compiled()


def test_an_uncompiled_package_gives_the_same_report(pure: Path, tmp_path: Path) -> None:
    installed, log = Path(*streameval.__path__).parent, str(tmp_path / "log.ndjson")
    run(installed, "-c", MAIN, "simulate", log, "--events", "1200", "--candidates", "2", "--action-sets")
    replay = ("-c", MAIN, "replay", log, "--candidates", "candidate-1,candidate-2", "--json")
    own, others = (json.loads(run(path, *replay).stdout) for path in (installed, pure))
    assert run(pure, "-c", FORM).stdout == "False\n"
    assert others == own
    assert others["events"]["accepted"] == 1200


def test_check_and_run_say_that_the_kernels_are_not_compiled(pure: Path, tmp_path: Path) -> None:
    path = tmp_path / "streameval.yaml"
    path.write_text("source: {kind: simulated}\npolicies: {candidates: [candidate-1]}\n")
    checked = run(pure, "-c", MAIN, "check", "--no-broker", str(path)).stderr
    assert "warning: the kernels are not compiled" in checked
    assert "python3-dev" in checked
    logging = "import streameval.service.logging as to; to.configure_logging(); to.warn_if_uncompiled()"
    (entry,) = map(json.loads, run(pure, "-c", logging).stderr.splitlines())
    assert (entry["event"], entry["level"]) == ("kernels_not_compiled", "warning")


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"STREAMEVAL_PURE": "1"}, {"CC": "false"}, {}], ids=["pure", "no cc", "as is"])
def test_the_wheel_is_pure_only_if_nothing_can_be_compiled(variables: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    environment = os.environ | {"CC": quick_compiler(tmp_path)} | variables
    subprocess.run([*command, str(ROOT)], env=environment, check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "streameval/ope/core/kernel.py" in names
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    pure = bool(variables)
    assert wheel.stem.endswith("-py3-none-any") == pure
    assert sorted(name for name in names if name.endswith((".so", ".c"))) == (
        [] if pure else [f"streameval/{kernel}{suffix}" for kernel in KERNELS]
    )


@pytest.mark.slow
def test_a_build_that_must_compile_fails_if_it_cannot(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    variables = os.environ | {"STREAMEVAL_PURE": "0", "CC": "false"}
    done = subprocess.run([*command, str(ROOT)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "the kernels cannot be compiled: no C compiler" in done.stdout + done.stderr
