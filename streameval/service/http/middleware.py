"""What a request meets before it is answered: limits, the login, and the headers that every answer carries.

How often a client may ask: a bucket of tokens for each, of which only so many are kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streameval.service.http.auth import Access

MOST_CLIENTS = 4096


class TokenBuckets:
    """Lets each client through `rate` times a second, after `burst` times at once.

    >>> buckets = TokenBuckets(rate=1.0, burst=2, clock=lambda: 0.0)
    >>> [buckets.take("10.0.0.1") for _ in range(3)], buckets.take("10.0.0.2")
    ([True, True, False], True)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, client: Hashable) -> bool:
        """Whether there is a token for this client; it is taken."""
        now = self._clock()
        level, then = self._levels.pop(client, (float(self._burst), now))
        level = min(level + (now - then) * self._rate, self._burst)
        allowed = level >= 1.0
        self._levels[client] = (level - allowed, now)
        if len(self._levels) > MOST_CLIENTS:
            self._levels.popitem(last=False)  # who asked longest ago has most likely a full bucket
        return allowed


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 that one customer gets of IPv6.

    >>> network_of("192.0.2.1"), network_of("2001:db8::1:2:3"), network_of("?")
    ('192.0.2.1', '2001:db8::/64', '?')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped or ipaddress.IPv6Network((parsed, 64), strict=False))
    return address


log = structlog.get_logger("streameval.access")

OPEN = ("/healthz", "/readyz")
"""Probes say whether the process lives, and nothing else; who probes has no password."""
SCRAPED = "/metrics"
REQUESTS_PER_SECOND, REQUESTS_AT_ONCE = 50.0, 200
FAILURES_PER_SECOND, FAILURES_AT_ONCE = 1.0, 20


class AnswerHeaders:
    """Adds `headers` to every answer."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, add the headers to the answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class RateLimits:
    """Refuses who asks too often (429) or sends a body (413), which no route here has a use for.

    Scrapes are counted apart from everything else, so that no page open in a browser can use up what they need.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests = TokenBuckets(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if not self._requests.take((client_of(scope), scope["path"] == SCRAPED)):
            await _too_often(scope, receive, send)
        elif _has_body(scope):
            headers = {"connection": "close"}  # what is left of the body is not read
            await PlainTextResponse("send no body", 413, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Login:
    """Lets through who `access` knows, and everybody to `OPEN`; all other paths, also those that are none, are shut.

    `access` is asked for each request anew, so that its files may change.
    """

    def __init__(self, app: ASGIApp, access: Callable[[], Access | None]) -> None:
        self._app, self._access = app, access
        self._failures = TokenBuckets(FAILURES_PER_SECOND, FAILURES_AT_ONCE)
        self._one_at_a_time = asyncio.Semaphore(1)  # a hash takes time and memory, of which events need more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401; 429 to who has been wrong too often."""
        access = self._access()
        authorization = Headers(scope=scope).get("authorization", "")
        if access is None or scope["path"] in OPEN or (authorization and access.knows(authorization)):
            await self._app(scope, receive, send)
        elif authorization and not self._failures.take(client_of(scope)):
            await _too_often(scope, receive, send)
        elif authorization and await self._finds(access, authorization):
            await self._app(scope, receive, send)
        else:
            if authorization:
                log.warning("login_refused", client=client_of(scope))  # never what was tried: it may be a near miss
            response = PlainTextResponse("log in first", 401)
            for challenge in access.challenges:
                response.headers.append("www-authenticate", challenge)
            await response(scope, receive, send)

    async def _finds(self, access: Access, authorization: str) -> bool:
        async with self._one_at_a_time:
            return await asyncio.to_thread(access.finds, authorization)


def client_of(scope: Scope) -> str:
    """The client as limits count them."""
    return network_of(scope["client"][0]) if scope.get("client") else ""


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


async def _too_often(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("too many requests", 429, {"retry-after": "1"})(scope, receive, send)
