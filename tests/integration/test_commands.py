"""Run the installed command: pipes that close, signals, and the logs of a daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path

import httpx
import pytest

from support.asking import asking, report_of
from support.factories import wait_until
from support.integration.running import served_at
from support.planted_secrets import ENVIRONMENT, MARK, TOKEN, WITH_SECRETS

STREAMEVAL = str(Path(sys.executable).parent / "streameval")
CONFIG = "policies: {candidates: [challenger]}\nestimators: [ips]\naverages: [cumulative]\n"
EVENT = (
    '{"event_id": "e", "timestamp": 1574553634.5, "action": "a", "propensity": 0.25, "reward": 1, '
    '"policies": {"challenger": 0.5}}\n'
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a configuration and an event."""
    (tmp_path / "c.yaml").write_text(
        "policies: {candidates: [challenger]}\nestimators: [ips]\naverages: [cumulative]\n"
    )
    (tmp_path / "one.ndjson").write_text(EVENT)
    return tmp_path


def test_a_reader_that_leaves_is_not_an_error(files: Path) -> None:
    command = f"{STREAMEVAL} simulate --events 200000 | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('{"event_id":"e-0"')


def test_a_failing_command_keeps_its_exit_code_if_the_reader_leaves(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it, the command itself meets the closed pipe
    with (files / "c.yaml").open("a") as config:
        config.write("http: {port: 0}\nsource: {kind: file, path: bad.ndjson}\n")
    (files / "bad.ndjson").write_text("{oops\n")
    command = f"{STREAMEVAL} check c.yaml --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=files, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupted_replay_reports_it(files: Path) -> None:
    command = [STREAMEVAL, "replay", "c.yaml", "-"]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=files, preexec_fn=hearing_interrupts, **pipes) as process:
        assert process.stdin is not None
        process.stdin.write(EVENT)
        process.stdin.flush()
        wait_until_it_reads(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == "interrupted\nhint: what was written so far is incomplete\n"


def hearing_interrupts() -> None:
    """Undo the shell's default for background processes, which ignore Ctrl-C, as do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_it_reads(pid: int) -> None:
    """Wait until the process reads its standard input, after its imports."""
    status = Path(f"/proc/{pid}/wchan")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(word in status.read_text() for word in ("poll", "select", "pipe")):
            return
        time.sleep(0.05)
    pytest.fail("the process never read its standard input")


def test_a_daemon_heeds_a_hangup_at_its_start_serves_its_report_and_stops_on_sigterm(files: Path) -> None:
    """Use a pipe as the configuration: a process that reads it is past its imports, and waits."""
    pipe, log = files / "pipe.yaml", files / "log"
    os.mkfifo(pipe)
    config = (files / "c.yaml").read_text() + "source: {kind: file, path: one.ndjson}\nhttp: {port: 0}\n"
    command = [STREAMEVAL, "run", "pipe.yaml", "--log-format", "json"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, cwd=files, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            with pipe.open("w") as read:
                process.send_signal(signal.SIGHUP)
                pipe.unlink()
                pipe.write_text(config)  # what is read the second time
                read.write(config)
            with asking(served_at(log, process)) as client:
                wait_until(lambda: (report_of(client) or {}).get("events", {}).get("accepted") == 1)
            wait_until(lambda: '"event": "reloaded"' in log.read_text())
        finally:
            process.terminate()
            out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"")
    events = {json.loads(line)["event"] for line in log.read_text().splitlines()}
    assert {"started", "first_event", "reloaded", "stopped"} <= events


def test_a_supervised_daemon_reloads_by_request_and_when_its_file_changes(files: Path) -> None:
    """Receive what systemd would, from the start to the end."""
    told, log, config = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), files / "log", files / "c.yaml"
    told.bind(str(files / "notify"))
    messages: list[str] = []
    reader = threading.Thread(target=lambda: messages.extend(map(bytes.decode, iter(lambda: told.recv(1000), b"end"))))
    reader.start()
    (files / "tokens").write_text(TOKEN)
    source = "source: {kind: file, path: one.ndjson}\nhttp: {port: 0, token_file: tokens}\n"
    config.write_text(CONFIG + source)
    environment = os.environ | {"NOTIFY_SOCKET": str(files / "notify"), "WATCHDOG_USEC": "200000"}
    command = [STREAMEVAL, "run", "c.yaml", "--watch-config", "--log-format", "json"]

    def wait_for(*wanted: str) -> None:
        wait_until(lambda: all(any(message.startswith(word) for message in messages) for word in wanted))

    with log.open("w") as stderr, subprocess.Popen(command, cwd=files, env=environment, stderr=stderr) as process:
        try:
            wait_for("READY=1", "WATCHDOG=1")
            with asking(served_at(log, process)) as client:
                client.headers["authorization"] = f"Bearer {TOKEN}"
                messages.clear()
                assert client.post("/-/reload").json() == {"reloaded": True, "reason": ""}
                wait_for("RELOADING=1\nMONOTONIC_USEC=", "READY=1")
                config.write_text("polices: {}\n")
                refused = client.post("/-/reload")
                assert (refused.status_code, refused.json()["reloaded"]) == (409, False)
                assert "did you mean 'policies'?" in refused.json()["reason"]
                config.write_text(CONFIG.replace("challenger", "challenger, late") + source)
                wait_until(lambda: "late" in client.get("/api/v1/report").text)
                assert "streameval_config_last_reload_successful 1.0" in client.get("/metrics").text
        finally:
            process.terminate()
            wait_for("STOPPING=1")
            process.wait(timeout=60)
            told.sendto(b"end", told.getsockname())
            reader.join()
            told.close()
    assert process.returncode == 0


@pytest.mark.parametrize("format", ["console", "json"])
def test_debug_logs_and_pages_of_a_failing_daemon_contain_no_secret(files: Path, format: str) -> None:
    (files / "tokens").write_text(TOKEN)
    (files / "me.pem").write_text("no certificate")
    (files / "c.yaml").write_text(WITH_SECRETS)
    log = files / "log"
    command = [STREAMEVAL, "run", "c.yaml", "--log-level", "debug", "--log-format", format]
    with (
        log.open("w") as stream,
        subprocess.Popen(command, cwd=files, env=os.environ | ENVIRONMENT, stderr=stream, stdout=stream) as process,
    ):
        try:
            pages = ask_everything(served_at(log, process))
            wait_until(lambda: "ECONNREFUSED" in log.read_text())  # why the broker is not reached
        finally:
            process.terminate()
            process.wait(60)
    written = log.read_text()
    assert "token_refused" in written
    assert "127.0.0.1:1" in written, "the trouble with the broker is in the log"
    assert MARK not in written
    assert b64encode(MARK.encode()).decode()[:-2] not in written
    assert not [page for page in pages if MARK in page]


def ask_everything(url: str) -> list[str]:
    """Return responses to all kinds of logins, on all routes, with secrets in the request as well."""
    basic = "Basic " + b64encode(f"ada:{MARK}-of-ada".encode()).decode()
    pages = []
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        for login in (f"Bearer {TOKEN}", basic, f"Bearer {MARK}-guessed", MARK):
            for path in ("/", "/metrics", "/api/v1/report", "/readyz", f"/{MARK}", f"/?token={MARK}&password={MARK}"):
                answer = client.get(path, headers={"authorization": login, "cookie": f"session={MARK}"})
                pages.append(f"{answer.headers}\n{answer.text}")
    logged_in = [page for page in pages if "streameval_ready" in page]
    assert len(logged_in) == 1
    return pages
