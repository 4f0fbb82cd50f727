"""Plant secrets wherever a person may write one, and find none of them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from streameval.config.model import Config
from streameval.errors import ConfigError
from support.commands import command
from support.planted_secrets import ENVIRONMENT, MARK, TOKEN, WITH_SECRETS

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
    "a header that is a list": "otlp: {endpoint: 'http://localhost:4318', headers: {authorization: [s3cr3t]}}",
    "headers that are text": "otlp: {endpoint: 'http://localhost:4318', headers: s3cr3t}",
    "a header under another name": "otlp: {endpoint: 'http://localhost:4318', header: s3cr3t}",
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


LOGIN = "security_protocol: SASL_SSL, sasl_mechanism: PLAIN"


@pytest.mark.parametrize(
    "source",
    [
        f'{{topic: x, {LOGIN}, sasl_username: me, sasl_password: "s3cr3t\\0more"}}',
        f'{{topic: x, {LOGIN}, sasl_username: "me\\0", sasl_password: s3cr3t}}',
        '{topic: x, format: {kind: avro, registry: "http://r:8081", username: me, password: "s3cr3t\\0"}}',
        '{topic: "x\\0y"}',
        '{topic: x, group_id: "\\0"}',
    ],
)
@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_text_with_a_nul_is_refused_and_a_secret_is_not_shown(tmp_path: Path, source: str, client: str) -> None:
    """The C library of a client would end it there, or raise an error that names nothing."""
    text = f"policies: {{candidates: [a]}}\nsource: {source[:-1]}, client: {client}}}\n"
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "c.yaml", {})
    assert "found a NUL character in it" in caught.value.report()
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


def test_check_shows_a_good_configuration_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "me.pem").write_text("no certificate")
    (tmp_path / "c.yaml").write_text(WITH_SECRETS)
    monkeypatch.chdir(tmp_path)
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    outcome = command(capfd, "check", "--no-broker", "c.yaml")
    assert outcome.code == 0
    assert "with a token" in outcome.out
    assert MARK not in outcome.out + outcome.err
