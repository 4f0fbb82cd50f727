"""Tell systemd what it expects."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from streameval.service.supervisor import Supervisor


@pytest.mark.parametrize(
    ("usec", "process", "is_watched"),
    [
        ("200000", None, True),
        ("200000", "own", True),
        ("200000", "other", False),
        ("soon", None, False),
        (None, None, False),
    ],
)
def test_only_the_watched_process_tells_that_it_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usec: str | None, process: str | None, is_watched: bool
) -> None:
    pid = {"own": os.getpid(), "other": os.getppid(), None: None}[process]
    for name, value in {"NOTIFY_SOCKET": tmp_path / "notify", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, str(value))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        supervisor = Supervisor()
        supervisor.turned()
        supervisor.tell("STOPPING=1")
        messages = [told.recv(1000)]
        while messages[-1] != b"STOPPING=1":
            messages.append(told.recv(1000))
    assert (b"WATCHDOG=1" in messages) == is_watched
