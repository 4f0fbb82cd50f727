"""Test tokens for OAUTHBEARER."""

from __future__ import annotations

import pytest
from kafka.errors import SaslAuthenticationFailedError

from streameval.ingest.kafka import confluent, kafka_python, oauth
from streameval.ingest.kafka.oauth import ClientCredentials
from streameval.ingest.kafka.settings import KafkaSettings
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
