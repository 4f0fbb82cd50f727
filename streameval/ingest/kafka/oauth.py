"""Get tokens for the SASL mechanism OAUTHBEARER from an identity provider (OpenID Connect, client credentials)."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from base64 import b64encode
from functools import cache
from threading import Lock
from urllib.parse import quote, urlencode

import msgspec
from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

TIMEOUT_SECONDS = 10.0
RENEWAL_SHARE = 0.8  # of the life of a token, after which the next one is requested
DEFAULT_LIFE_SECONDS = 60.0  # of a token if the provider does not state it
MAX_ANSWER_BYTES = 2**20
MAX_REASON = 200  # characters of a refusal that are reported


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the library would send the login to any host that the answer names."""

    def redirect_request(self, *answer: object) -> None:
        """Return no request."""


_OPENER = urllib.request.build_opener(_NoRedirects)


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # the library ships no types
    """Request a token with the id and secret of a client, and the next one before it expires.

    Connections of several threads share one token.
    """

    def __init__(self, url: str, client_id: str, secret: str, scope: str | None = None) -> None:
        super().__init__()
        form = {"grant_type": "client_credentials"} | ({} if scope is None else {"scope": scope})
        login = b64encode(f"{quote(client_id, safe='')}:{quote(secret, safe='')}".encode()).decode()
        self._request = urllib.request.Request(
            url,
            data=urlencode(form).encode(),
            headers={"Authorization": f"Basic {login}", "Accept": "application/json"},
        )
        self._lock = Lock()
        self._token, self._renew_at = "", -float("inf")

    def token(self) -> str:
        """Return a token that has not expired.

        Raises:
            SaslAuthenticationFailedError: The identity provider refuses or does not answer.
        """
        with self._lock:
            if time.monotonic() >= self._renew_at:
                granted = self._ask()
                self._token = granted.access_token
                self._renew_at = time.monotonic() + RENEWAL_SHARE * granted.expires_in
            return self._token

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
                return msgspec.json.decode(body, type=_Granted)
        except urllib.error.HTTPError as error:
            with error:
                said: bytes = error.fp.read1(MAX_REASON)  # type: ignore[attr-defined]
                reason = f"{error.code}: {said.decode(errors='replace')}"
        except (OSError, msgspec.DecodeError) as error:
            reason = str(error)
        raise SaslAuthenticationFailedError(f"no token from {self._request.full_url}: {reason}")


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float = DEFAULT_LIFE_SECONDS


@cache
def shared_credentials(url: str, client_id: str, secret: str, scope: str | None) -> ClientCredentials:
    """Return the provider that all connections with these credentials share."""
    return ClientCredentials(url, client_id, secret, scope)
