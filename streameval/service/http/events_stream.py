"""Server-sent events: an open page hears when there are new numbers, and asks for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from streameval.service.status import DaemonStatus

MOST_STREAMS = 64
LOOKS_EVERY = 0.5  # seconds
BEATS_EVERY = 15.0  # seconds of silence after which something is sent, so that both sides know of the other
LASTS = 600.0  # seconds; the browser comes back by itself, and shows again that it may
COMES_BACK = 2000  # milliseconds
MEDIA_TYPE = "text/event-stream"


class EventStream:
    """`GET /live` as an ASGI application: an event `published` for each new `DaemonStatus`, of at most so many streams.

    `close` ends all of them soon.
    """

    def __init__(self, published: Callable[[], DaemonStatus]) -> None:
        self._published = published
        self._closed = False
        self.streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a stream; 503 when there are too many."""
        if scope["method"] == "HEAD":
            await Response(media_type=MEDIA_TYPE)(scope, receive, send)
            return
        if self.streams >= MOST_STREAMS:
            too_many = PlainTextResponse("too many pages are open", 503, {"retry-after": "10"})
            await too_many(scope, receive, send)
            return
        self.streams += 1
        try:
            # no proxy may collect what is meant for this moment
            stream = StreamingResponse(self._messages(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})
            await stream(scope, receive, send)
        finally:
            self.streams -= 1

    def close(self) -> None:
        """Let all streams end."""
        self._closed = True

    async def _messages(self) -> AsyncIterator[str]:
        last: DaemonStatus | None = None
        now = begun = spoken = time.monotonic()
        yield f"retry: {COMES_BACK}\n\n"
        while not self._closed and now - begun < LASTS:
            published = self._published()
            if published is not last:
                last, spoken = published, now
                yield _message(published)
            elif now - spoken >= BEATS_EVERY:
                spoken = now
                yield ": nothing new\n\n"
            await asyncio.sleep(LOOKS_EVERY)
            now = time.monotonic()


def _message(published: DaemonStatus) -> str:
    events = published.report.events.accepted if published.report else 0
    data = msgspec.json.encode({"at": published.at, "events": events, "ready": published.ready}).decode()
    return f"event: published\ndata: {data}\n\n"
