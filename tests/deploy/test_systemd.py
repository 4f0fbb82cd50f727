"""Check that systemd accepts the unit, that it is hardened, and that it fits the program and its configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from streameval.config.model import Config
from streameval.service.http.server import DESCRIPTORS
from support.commands import command
from support.deployed import DEPLOY
from support.programs import output, program

UNIT = DEPLOY / "systemd" / "streameval@.service"
MOST_EXPOSED = 2.0
"""Of 10, by systemd's own count; most services of a distribution are above 9."""

HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "ProtectClock": "yes",
    "ProtectHostname": "yes",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


def directives() -> dict[str, list[str]]:
    """Return all values of each directive."""
    values = defaultdict(list)
    for line in UNIT.read_text().splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            values[name].append(value)
    return dict(values)


FOUND = directives()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "streameval@home.service"
    unit.write_text(
        UNIT.read_text().replace("/opt/streameval/bin/streameval", "/bin/true")
    )  # which is not installed here
    assert output(program("systemd-analyze", "systemd"), "verify", "--man=no", str(unit)) == ""


def test_systemd_finds_little_exposure() -> None:
    limit = f"--threshold={MOST_EXPOSED * 10:.0f}"
    text = output(program("systemd-analyze", "systemd"), "security", "--offline=true", "--no-pager", limit, str(UNIT))
    exposure = re.search(r"Overall exposure level for streameval@.*: ([\d.]+)", text)
    assert exposure
    assert float(exposure[1]) <= MOST_EXPOSED


@pytest.mark.parametrize(("name", "value"), HARDENED.items(), ids=HARDENED)
def test_it_may_do_nothing_that_it_does_not_need(name: str, value: str) -> None:
    assert FOUND[name] == [value]


def test_it_has_its_own_user_and_writes_only_its_state() -> None:
    assert FOUND["DynamicUser"] == ["yes"]
    assert FOUND["WorkingDirectory"] == [f"/var/lib/{FOUND['StateDirectory'][0]}"]
    assert FOUND["StateDirectory"] == ["streameval/%i"], "two daemons must not share their state"
    assert not {"User", "Group", "ReadWritePaths", "ReadWriteDirectories"} & set(FOUND)


def test_restrictions_forbid_nothing_that_the_program_needs() -> None:
    assert "@resources" not in " ".join(FOUND["SystemCallFilter"]), "the program raises its limit of open files"
    assert int(FOUND["LimitNOFILE"][0]) >= DESCRIPTORS
    assert "ProcSubset" not in FOUND, "the metrics of the process need /proc/stat"
    assert {"AF_INET", "AF_INET6", "AF_UNIX"} == set(FOUND["RestrictAddressFamilies"][0].split())


def test_secrets_come_as_credentials_and_files_not_in_the_unit() -> None:
    environment = dict(value.split("=", 1) for value in FOUND["Environment"])
    assert FOUND["LoadCredential"] == ["token:/etc/streameval/token"]
    assert environment["STREAMEVAL_HTTP__TOKEN_FILE"] == "/run/credentials/%n/token"
    assert all(value.startswith("-") for value in FOUND["EnvironmentFile"]), "it may be missing"
    assert not re.search(r"(?im)^environment=.*password", UNIT.read_text())
    assert environment["OPENBLAS_NUM_THREADS"] == "1"


def test_its_environment_is_understood_by_the_configuration(tmp_path: Path) -> None:
    environment = dict(value.split("=", 1) for value in FOUND["Environment"])
    files = {name: str(Path(__file__)) for name in environment if name.endswith("_FILE")}
    (tmp_path / "streameval.yaml").write_text("source: {topic: a}\npolicies: {candidates: [b]}\n")
    assert Config.load(tmp_path / "streameval.yaml", environment | files).http.token_file


def test_it_runs_the_daemon_with_options_that_exist(capfd: pytest.CaptureFixture[str]) -> None:
    words = FOUND["ExecStart"][0].split()
    assert words[1:3] == ["run", "/etc/streameval/%i.yaml"]
    helped = command(capfd, "run", "--help").out
    assert all(word in helped for word in words[3:] if word.startswith("--"))


def test_it_is_reloaded_by_a_hangup_and_started_again_unless_its_configuration_is_wrong() -> None:
    assert FOUND["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert FOUND["Restart"] == ["on-failure"]
    assert FOUND["RestartPreventExitStatus"] == ["2"]
    assert (FOUND["Type"], FOUND["WatchdogSec"]) == (["notify"], ["90s"])
