"""Plant secrets wherever a person may write one, and find none of them again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from streameval.config.model import Config
from streameval.errors import ConfigError
from support.factories import wait_until

STREAMEVAL = str(Path(sys.executable).parent / "streameval")
MARK = "s3cr3t"
"""Text that occurs in every secret here, and nowhere else."""
TOKEN, PASSWORD = f"{MARK}-token-0123456789abcdef", f"{MARK}-of-ada"
ENVIRONMENT = {
    "STREAMEVAL_SOURCE__SASL_PASSWORD": f"{MARK}-of-kafka",
    "STREAMEVAL_SOURCE__SSL_PASSWORD": f"{MARK}-of-the-key",
    "STREAMEVAL_TOKEN": f"{MARK}-of-another-program",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}-of-the-cloud",
}
CONFIG = """
source:
  topic: interactions
  bootstrap_servers: "127.0.0.1:1"
  security_protocol: SASL_SSL
  sasl_mechanism: SCRAM-SHA-512
  sasl_username: reader
  ssl_certfile: {folder}/me.pem
policies: {{candidates: [challenger]}}
http: {{port: 0, token_file: {folder}/tokens}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "me.pem").write_text("no certificate")
    (tmp_path / "c.yaml").write_text(CONFIG.format(folder=tmp_path))
    return tmp_path


def basic(password: str) -> str:
    return "Basic " + b64encode(f"ada:{password}".encode()).decode()


@pytest.mark.parametrize("format", ["console", "json"])
def test_debug_logs_of_a_failing_daemon_contain_no_secret(folder: Path, format: str) -> None:
    command = [STREAMEVAL, "run", str(folder / "c.yaml"), "--log-level", "debug", "--log-format", format]
    options: dict[str, Any] = {"cwd": folder, "env": os.environ | ENVIRONMENT}  # where its state is kept, too
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stderr=log, stdout=log, **options) as process,
    ):
        try:
            pages = ask_everything(address(folder / "log", process))
            wait_until(lambda: "ECONNREFUSED" in (folder / "log").read_text())  # why the broker is not reached
        finally:
            process.terminate()
            process.wait(60)
    written = (folder / "log").read_text()
    assert "token_refused" in written
    assert "127.0.0.1:1" in written, "the trouble with the broker is in the log"
    assert MARK not in written
    assert b64encode(MARK.encode()).decode()[:-2] not in written
    assert not [page for page in pages if MARK in page]


def address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"http://127\.0\.0\.1:\d+(?=\D)", log.read_text()):
            return found[0]
        time.sleep(0.05)
    pytest.fail(f"nothing is served:\n{log.read_text()}")


def ask_everything(url: str) -> list[str]:
    """Return responses to all kinds of logins, on all routes, with secrets in the request as well."""
    pages = []
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        for login in (f"Bearer {TOKEN}", basic(PASSWORD), f"Bearer {MARK}-guessed", MARK):
            for path in ("/", "/metrics", "/api/v1/report", "/readyz", f"/{MARK}", f"/?token={MARK}&password={MARK}"):
                answer = client.get(path, headers={"authorization": login, "cookie": f"session={MARK}"})
                pages.append(f"{answer.headers}\n{answer.text}")
    logged_in = [page for page in pages if "streameval_ready" in page]
    assert len(logged_in) == 1
    return pages


WRONG: Mapping[str, str] = {
    "a password that is a list": "source: {topic: x, sasl_password: [s3cr3t]}",
    "a password that is a mapping": "source: {topic: x, sasl_password: {a: s3cr3t}}",
    "a password without its protocol": "source: {topic: x, sasl_password: s3cr3t}",
    "a password under another name": "source: {topic: x, sasl_pasword: s3cr3t}",
    "a password at the top": "sasl_password: s3cr3t",
    "a password in the address of a broker": "source: {topic: x, bootstrap_servers: 'me:s3cr3t@broker:9092'}",
    "a password in a URL for a source": "source: kafka://me:s3cr3t@broker:9092",
    "a token for its file": "http: {token_file: s3cr3t-0123456789}",
    "two tokens for their file": "http: {token_file: [s3cr3t-0123456789]}",
    "a token under another name": "http: {token: s3cr3t-0123456789}",
    "a password in broken YAML": "source: {topic: x, sasl_password: s3cr3t",
    "a password with a colon": "source:\n  topic: x\n  sasl_password: s3cr3t: more",
    "a password twice": "source:\n  topic: x\n  sasl_password: s3cr3t\n  sasl_password: s3cr3t-2",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_wrong_configuration_is_explained_without_its_secrets(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(f"policies: {{candidates: [a]}}\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "c.yaml", {})
    assert MARK not in caught.value.report()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STREAMEVAL_SOURCE__SASL_PASWORD", f"{MARK}"),
        ("STREAMEVAL_HTTP__TOKEN_FILE", f"{MARK}-0123456789"),
        ("STREAMEVAL_HTTP__TOKEN", f"{MARK}-0123456789"),
        ("STREAMEVAL_SOURCE__SASL_PASSWORD__X", MARK),
    ],
)
def test_a_wrong_variable_is_explained_without_its_secret(tmp_path: Path, variable: str, value: str) -> None:
    (tmp_path / "c.yaml").write_text("policies: {candidates: [a]}\nsource: {topic: x}\n")
    with pytest.raises(ConfigError, match=variable) as caught:
        Config.load(tmp_path / "c.yaml", {variable: value})
    assert MARK not in caught.value.report()


def test_check_shows_a_good_configuration_without_its_secrets(folder: Path) -> None:
    (folder / "me.pem").write_text("still no certificate")
    command = [STREAMEVAL, "check", "--no-broker", str(folder / "c.yaml")]
    outcome = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "with a token" in outcome.stdout
    assert MARK not in outcome.stdout + outcome.stderr
