"""Get tokens for OAUTHBEARER: from an identity provider (OpenID Connect), AWS MSK or a function of the user."""

from __future__ import annotations

import math
import os
import re
import time
import urllib.error
import urllib.request
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from http.client import HTTPException
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from streameval.common.foreign_code import CodeError, foreign_code
from streameval.errors import ConfigError, without_secrets
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ope.policies.python import find

TIMEOUT_SECONDS = 10.0
RENEWAL_SHARE = 0.8  # of the life of a token, after which the next one is requested
DEFAULT_LIFE_SECONDS = 60.0  # of a token if the provider does not state it
MILLISECONDS_FROM = 1e11  # a larger time is in milliseconds, as of the signer of MSK
MAX_ANSWER_BYTES = 2**20
MAX_REASON = 200  # characters of a refusal that are reported


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the library would send the login to any host that the answer names."""

    def redirect_request(self, *answer: object) -> None:
        """Return no request."""


_OPENER = urllib.request.build_opener(_NoRedirects)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # the library ships no types
    """Keep a token, and get the next one before it expires. Connections of several threads share it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._token, self._renew_at, self._expires_at = "", -float("inf"), 0.0

    def token(self) -> str:
        """Return a token that has not expired.

        Raises:
            SaslAuthenticationFailedError: There is none.
        """
        return self.token_and_end()[0]

    def token_and_end(self) -> tuple[str, float]:
        """Return a token and when it expires, in epoch seconds. Raise what `token` raises."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._token, life = self._granted()
                self._renew_at, self._expires_at = time.monotonic() + RENEWAL_SHARE * life, time.time() + life
            return self._token, self._expires_at

    @abstractmethod
    def _granted(self) -> tuple[str, float]:
        """Return a new token and its life in seconds. Raise what `token` raises."""


class ClientCredentials(TokenProvider):
    """Request a token with the id and secret of a client."""

    def __init__(self, url: str, client_id: str, secret: str, scope: str | None = None) -> None:
        super().__init__()
        form = {"grant_type": "client_credentials"} | ({} if scope is None else {"scope": scope})
        login = b64encode(f"{quote(client_id, safe='')}:{quote(secret, safe='')}".encode()).decode()
        self._request = urllib.request.Request(
            url,
            data=urlencode(form).encode(),
            headers={"Authorization": f"Basic {login}", "Accept": "application/json"},
        )

    def _granted(self) -> tuple[str, float]:
        granted = self._ask()
        life = granted.expires_in
        return granted.access_token, DEFAULT_LIFE_SECONDS if life is None or not math.isfinite(life) else life

    def _ask(self) -> _Granted:
        deadline, body = time.monotonic() + TIMEOUT_SECONDS, b""
        try:
            with _OPENER.open(self._request, timeout=TIMEOUT_SECONDS) as answer:
                while part := answer.read1(MAX_ANSWER_BYTES):  # what has come
                    body += part
                    if time.monotonic() > deadline or len(body) > MAX_ANSWER_BYTES:
                        raise TimeoutError(
                            f"no whole answer within {TIMEOUT_SECONDS:.0f} s and {MAX_ANSWER_BYTES} bytes"
                        )
                return msgspec.json.decode(body, type=_Granted, strict=False)  # numbers may be text
        except urllib.error.HTTPError as error:
            said = b""
            with error, suppress(OSError, HTTPException):
                said = error.fp.read1(MAX_REASON)  # type: ignore[attr-defined]
            reason = f"{error.code}: {said.decode(errors='replace')}"
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            reason = str(error) or type(error).__name__
        raise SaslAuthenticationFailedError(without_secrets(f"no token from {self._request.full_url}: {reason}"))


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


class FunctionProvider(TokenProvider):
    """Get tokens from a function.

    Args:
        function: Returns a token, or a token and when it expires, in seconds (or milliseconds) since 1970.
        name: Names the function in messages.
    """

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        super().__init__()
        self._function, self._name = function, name

    def _granted(self) -> tuple[str, float]:
        try:
            with foreign_code():
                answer = self._function()
        except CodeError as error:
            raise SaslAuthenticationFailedError(f"no token from {self._name}: {error}") from error
        token, end = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        is_time = end is None or (isinstance(end, int | float) and not isinstance(end, bool))
        if not (isinstance(token, str) and token and is_time):
            expected = "expected a token, or a token and seconds since 1970"
            raise SaslAuthenticationFailedError(f"no token from {self._name}: {expected}")
        if end is None:
            return token, DEFAULT_LIFE_SECONDS
        life = (end / 1000.0 if end > MILLISECONDS_FROM else end) - time.time()
        if life <= 0.0:
            raise SaslAuthenticationFailedError(f"no token from {self._name}: its token expired {-life:.0f} s ago")
        return token, life


def provider_of(connection: KafkaConnection) -> FunctionProvider | None:
    """Return the provider that all connections with these settings share, None if no function gives tokens.

    Raises:
        ConfigError: The function, or the region of MSK, is missing.
    """
    if connection.sasl_mechanism == "AWS_MSK_IAM":
        return _msk_provider(msk_region(connection.address, os.environ))
    return None if connection.sasl_oauth_provider is None else _function_provider(connection.sasl_oauth_provider)


@cache
def _function_provider(target: str) -> FunctionProvider:
    return FunctionProvider(find(target), target)


@cache
def _msk_provider(region: str) -> FunctionProvider:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # an extra

    return FunctionProvider(lambda: MSKAuthTokenProvider.generate_auth_token(region), f"AWS for MSK in {region}")


def msk_region(address: str, environment: Mapping[str, str]) -> str:
    """Return the region of a cluster: the one in its address, else in the environment.

    Raises:
        ConfigError: Neither has one.

    >>> msk_region("b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com:9098", {})
    'eu-west-1'
    """
    named = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", address)
    region = named[1] if named else environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region is None:
        raise ConfigError(f"AWS_MSK_IAM: {address} names no region of AWS", hint="set AWS_REGION in the environment")
    return region


@cache
def shared_credentials(url: str, client_id: str, secret: str, scope: str | None) -> ClientCredentials:
    """Return the provider that all connections with these credentials share."""
    return ClientCredentials(url, client_id, secret, scope)
