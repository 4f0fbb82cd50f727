"""Run an identity provider that grants unsigned tokens to one client. Kafka accepts them without further settings."""

from __future__ import annotations

import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs

from support.http_servers import QuietHandler, serving

CLIENT, SECRET = "reader", "a-secret"


class IdentityProvider(ThreadingHTTPServer):
    """Grant tokens over HTTP.

    Attributes:
        life: Seconds until a token expires.
        answer: Bytes to send in place of a token, if not empty.
        redirect: Where to redirect requests, if not empty.
        is_slow: Whether an answer comes byte by byte, without an end.
        requests: Forms of all requests.
    """

    daemon_threads = True

    def __init__(self, life: int = 3600) -> None:
        super().__init__(("127.0.0.1", 0), _Endpoint)
        self.life, self.answer, self.redirect, self.is_slow = life, b"", "", False
        self.requests: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"


def unsigned_token(life: int, number: int) -> str:
    """Return a token that expires after some seconds. Its number is its identifier."""
    now = int(time.time())
    claims = {"sub": CLIENT, "iat": now, "exp": now + life, "jti": str(number)}
    parts = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims))
    return ".".join(parts) + "."


GRANTED: list[int] = []
"""When `short_lived_token` was called, in epoch seconds."""
SHORT_LIFE = 5


def short_lived_token() -> tuple[str, float]:
    """Return a token that expires soon, as a provider of the user does."""
    now = int(time.time())
    GRANTED.append(now)
    return unsigned_token(SHORT_LIFE, len(GRANTED)), now + SHORT_LIFE


class _Endpoint(QuietHandler):
    server: IdentityProvider

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = f"Basic {b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}"
        granted = self.headers["Authorization"] == login and form["grant_type"] == ["client_credentials"]
        reply = self._token() if granted else {"error": "invalid_client"}
        self.server.requests.append(form)
        if self.server.redirect:
            self.send_response(302)
            self.send_header("Location", self.server.redirect)
            self.end_headers()
            return
        if self.server.is_slow:
            self.answer_slowly(200)
            return
        self.answer(200 if granted else 401, self.server.answer or reply)

    def _token(self) -> dict[str, object]:
        token = unsigned_token(self.server.life, len(self.server.requests))
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.server.life}


@contextmanager
def identity_provider(life: int = 3600) -> Iterator[IdentityProvider]:
    with serving(IdentityProvider(life)) as provider:
        yield provider
