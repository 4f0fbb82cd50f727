"""Connections that cannot hold up others: bounded in number, and in the time for a login, a request and an answer.

uvicorn speaks HTTP; what it lets a client take forever is ended here.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from asyncio.base_events import Server
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 500
HANDSHAKE_WITHIN = 5.0  # seconds for TLS
REQUEST_WITHIN = 10.0  # seconds for a request to be complete, from the first connection or its first byte
ANSWER_MOVES_WITHIN = 20.0  # seconds that a client may take nothing of an answer
KEPT_FOR = 75  # seconds between two requests; longer than a scrape interval
LARGEST_REQUEST = 16 * 1024  # bytes of the request line and headers
DESCRIPTORS = 8192


class Connection(H11Protocol):
    """One client. When there are too many, one that has not asked for anything makes room, the oldest first."""

    _request_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the request must come soon."""
        self.idle_since = self.loop.time()
        super().connection_made(transport)
        self._request_timer = self.loop.call_later(REQUEST_WITHIN, self._give_up)
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a request that has begun must be complete soon."""
        super().data_received(data)
        if not self.idle:
            _cancel(self._request_timer)
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_WITHIN, self._give_up)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read: it has some time to begin."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(ANSWER_MOVES_WITHIN, self._give_up)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        _cancel(self._answer_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; nothing of it stays."""
        _cancel(self._request_timer)
        _cancel(self._answer_timer)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self and each.idle]
        victim = min(others, key=lambda each: (each.cycle is not None, each.idle_since), default=self)
        victim._give_up()

    def _give_up(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers speak TLS with `context`, to those who are done with the handshake in time."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._context = context

    async def create_server(self, *args: Any, **options: Any) -> Server:
        """As ever, with TLS."""
        if self._context is not None:
            options |= {"ssl": self._context, "ssl_handshake_timeout": HANDSHAKE_WITHIN, "ssl_shutdown_timeout": 2.0}
        return await super().create_server(*args, **options)


def allow_descriptors() -> None:
    """Raise the soft limit of open files, often 1,024, so that a flood of connections leaves some for the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
