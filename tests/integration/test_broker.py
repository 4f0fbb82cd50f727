"""Test the brokers that other tests use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.integration.broker import LEASH, NoBrokerError, kafka_libraries
from support.integration.which_broker import expected_broker

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def leashed_program() -> subprocess.Popen[bytes]:
    """Start a program that runs for ten minutes."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEASH, *SLEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize("word", [b"", b"stop\n"])
def test_a_broker_ends_on_request_or_with_the_tests(word: bytes) -> None:
    with leashed_program() as process:
        process.communicate(word, timeout=60)
        assert process.returncode != 0


def test_without_java_the_header_reports_that_the_mock_cluster_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMEVAL_TEST_KAFKA", raising=False)
    monkeypatch.setattr("shutil.which", lambda program: None if program == "java" else f"/bin/{program}")
    assert expected_broker() == "librdkafka's mock cluster, because java cannot be found"


def test_the_header_names_an_external_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMEVAL_TEST_KAFKA", "kafka:9092")
    assert "kafka:9092" in expected_broker()


def test_without_maven_and_without_fetched_jars_there_is_no_real_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(NoBrokerError, match="mvn"):
        kafka_libraries()
