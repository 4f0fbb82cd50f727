"""Test tokens for OAUTHBEARER."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from http.server import HTTPServer
from socketserver import BaseRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kafka.errors import SaslAuthenticationFailedError
from pydantic import ValidationError

from streameval.errors import ConfigError
from streameval.ingest.kafka import confluent, kafka_python, oauth
from streameval.ingest.kafka.oauth import ClientCredentials, FunctionProvider, msk_region
from streameval.ingest.kafka.settings import KafkaSettings
from support.http_servers import serving
from support.identity import CLIENT, SECRET, identity_provider
from support.ports import free_port

SETTINGS = {
    "topic": "interactions",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_username": CLIENT,
    "sasl_password": SECRET,
    "sasl_oauth_url": "https://identity.example.com/token",
    "sasl_oauth_scope": "kafka",
}


def test_a_token_is_requested_once_and_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(oauth.time, "monotonic", lambda: now)
    with identity_provider(life=100) as provider:
        credentials = ClientCredentials(provider.url, CLIENT, SECRET, "kafka read")
        first = credentials.token()
        now += 79.0
        assert credentials.token() == first
        assert provider.requests == [{"grant_type": ["client_credentials"], "scope": ["kafka read"]}]
        now += 2.0
        assert credentials.token() != first
    assert len(provider.requests) == 2


def test_a_refusal_names_the_provider_and_its_reason_but_not_the_secret() -> None:
    with identity_provider() as provider, pytest.raises(SaslAuthenticationFailedError) as caught:
        ClientCredentials(provider.url, CLIENT, "wrong-secret").token()
    assert f'no token from {provider.url}: 401: {{"error": "invalid_client"}}' in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    assert "scope" not in provider.requests[0]


@pytest.mark.parametrize(("answer", "reason"), [(b"<html>", "JSON is malformed"), (b"{}", "access_token")])
def test_an_answer_without_a_token_is_refused(answer: bytes, reason: str) -> None:
    with identity_provider() as provider:
        provider.answer = answer
        with pytest.raises(SaslAuthenticationFailedError, match=reason):
            ClientCredentials(provider.url, CLIENT, SECRET).token()


@pytest.mark.parametrize(
    ("life", "seconds"), [(b'"3599"', 3599.0), (b"null", 60.0), (b'"inf"', 60.0), (b'"nan"', 60.0), (b"120", 120.0)]
)
def test_the_life_of_a_token_is_a_number_or_text(life: bytes, seconds: float) -> None:
    with identity_provider() as provider:
        provider.answer = b'{"access_token": "t", "expires_in": ' + life + b"}"
        token, end = ClientCredentials(provider.url, CLIENT, SECRET).token_and_end()
    assert token == "t"
    assert end - time.time() == pytest.approx(seconds, abs=10.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 401 no\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    ],
    ids=["status", "chunk", "chunk of a refusal", "header", "headers"],
)
def test_a_garbled_answer_is_refused_without_the_query_of_the_address(answer: bytes) -> None:
    class Garbled(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(answer)

    with serving(HTTPServer(("127.0.0.1", 0), Garbled)) as server:
        url = f"http://127.0.0.1:{server.server_port}/token"
        with pytest.raises(SaslAuthenticationFailedError, match=rf"no token from {url}\?\*\*\* ?") as caught:
            ClientCredentials(f"{url}?key=hidden", CLIENT, SECRET).token()
    assert "hidden" not in str(caught.value)


def test_a_provider_that_does_not_answer_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}/token"
    with pytest.raises(SaslAuthenticationFailedError, match=f"no token from {url}: .*refused"):
        ClientCredentials(url, CLIENT, SECRET).token()


def test_a_redirect_carries_the_secret_to_no_other_host() -> None:
    with identity_provider() as provider, identity_provider() as other:
        provider.redirect = other.url
        with pytest.raises(SaslAuthenticationFailedError, match=f"no token from {provider.url}: 302"):
            ClientCredentials(provider.url, CLIENT, SECRET).token()
    assert other.requests == []


def test_an_answer_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "TIMEOUT_SECONDS", 0.2)
    with identity_provider() as provider:
        provider.is_slow = True
        with pytest.raises(SaslAuthenticationFailedError, match="no whole answer"):
            ClientCredentials(provider.url, CLIENT, SECRET).token()


def test_an_answer_that_is_longer_than_any_token_is_given_up() -> None:
    with identity_provider() as provider:
        provider.answer = b" " * 2**21
        with pytest.raises(SaslAuthenticationFailedError, match="no whole answer"):
            ClientCredentials(provider.url, CLIENT, SECRET).token()


def test_both_clients_get_the_settings() -> None:
    settings = KafkaSettings.model_validate(SETTINGS)
    options = kafka_python.consumer_options(settings)
    assert options["sasl_mechanism"] == "OAUTHBEARER"
    assert isinstance(options["sasl_oauth_token_provider"], ClientCredentials)
    assert options["sasl_oauth_token_provider"] is kafka_python.consumer_options(settings)["sasl_oauth_token_provider"]
    assert not [name for name in options if "plain" in name or "oauth_url" in name]
    options = confluent.consumer_options(settings)
    assert options == options | {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": "https://identity.example.com/token",
        "sasl.oauthbearer.scope": "kafka",
    }
    assert not {"sasl.username", "sasl.password"} & options.keys()


# --- Functions that return tokens ---

PROVIDED = {
    "topic": "interactions",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_provider": "support.identity:short_lived_token",
}
MSK = {
    "topic": "interactions",
    "bootstrap_servers": "b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com:9098",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "AWS_MSK_IAM",
}


def test_a_token_of_a_function_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 1000.0, [0]
    monkeypatch.setattr(oauth.time, "monotonic", lambda: now)

    def token() -> tuple[str, float]:
        calls[0] += 1
        return f"token {calls[0]}", time.time() + 100.0

    provider = FunctionProvider(token, "mine:token")
    assert provider.token() == "token 1"
    now += 79.0
    assert provider.token_and_end() == ("token 1", pytest.approx(time.time() + 100.0, abs=5.0))
    now += 2.0
    assert provider.token() == "token 2"


def test_a_token_without_an_end_is_asked_for_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tokens = 0.0, iter(["one", "two"])
    monkeypatch.setattr(oauth.time, "monotonic", lambda: now)
    provider = FunctionProvider(lambda: next(tokens), "mine:token")
    assert (provider.token(), provider.token()) == ("one", "one")
    now += 60.0
    assert provider.token() == "two"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: None, "expected a token"),
        (lambda: ("token", "soon"), "expected a token, or a token and seconds since 1970"),
        (lambda: ("token", time.time() - 60.0), "expired 60 s ago"),
    ],
)
def test_a_function_without_a_token_is_named(function: Callable[[], Any], reason: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=f"no token from mine:token: .*{reason}"):
        FunctionProvider(function, "mine:token").token()


def test_both_clients_ask_the_function() -> None:
    settings = KafkaSettings.model_validate(PROVIDED)
    options = kafka_python.consumer_options(settings)
    assert isinstance(options["sasl_oauth_token_provider"], FunctionProvider)
    asked = confluent.consumer_options(settings)["oauth_cb"]("")
    assert asked[0] == options["sasl_oauth_token_provider"].token()
    assert time.time() < asked[1] <= time.time() + 5.0
    with pytest.raises(ConfigError, match="has no function nothing"):
        kafka_python.consumer_options(settings.model_copy(update={"sasl_oauth_provider": "support.identity:nothing"}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sasl_username": "reader"}, "sasl_oauth_provider gives the login"),
        ({"sasl_oauth_url": "https://identity/token"}, "sasl_oauth_provider gives the login"),
        ({"sasl_mechanism": "PLAIN"}, "needs sasl_mechanism OAUTHBEARER"),
        ({"sasl_oauth_provider": "module.function"}, "sasl_oauth_provider"),
        (MSK | {"sasl_oauth_provider": None, "sasl_password": "x"}, "AWS_MSK_IAM gives the login"),
        (
            MSK | {"sasl_oauth_provider": None, "security_protocol": "SASL_PLAINTEXT"},
            "needs security_protocol SASL_SSL",
        ),
        (MSK | {"sasl_oauth_provider": None, "security_protocol": "PLAINTEXT"}, "needs security_protocol SASL_SSL"),
    ],
)
def test_a_login_is_given_once(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        KafkaSettings.model_validate(PROVIDED | changes)


def test_msk_gets_a_signed_token_of_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form only: a request for `kafka-cluster:Connect`, signed with the credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    settings = KafkaSettings.model_validate(MSK)
    options, confluent_options = kafka_python.consumer_options(settings), confluent.consumer_options(settings)
    assert (options["sasl_mechanism"], confluent_options["sasl.mechanism"]) == ("OAUTHBEARER", "OAUTHBEARER")
    token, end = confluent_options["oauth_cb"]("")
    assert token == options["sasl_oauth_token_provider"].token()
    assert 800.0 < end - time.time() <= 900.0
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    query = parse_qs(url.query)
    assert (url.scheme, url.hostname) == ("https", "kafka.eu-west-1.amazonaws.com")
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("an-id/")
    assert query["X-Amz-Credential"][0].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert len(query["X-Amz-Signature"][0]) == 64
    assert "a-secret" not in url.query


def test_the_region_is_the_one_of_the_address_or_of_the_environment() -> None:
    serverless = "boot-x1.c2.kafka-serverless.us-east-2.amazonaws.com:9098"
    assert msk_region(serverless, {"AWS_REGION": "eu-west-1"}) == "us-east-2"
    assert msk_region("broker:9098", {"AWS_DEFAULT_REGION": "eu-west-1"}) == "eu-west-1"
    with pytest.raises(ConfigError, match="broker:9098 names no region"):
        msk_region("broker:9098", {})


def test_without_the_signer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.connection.find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"pip install 'streameval\[msk\]'"):
        KafkaSettings.model_validate(MSK)
