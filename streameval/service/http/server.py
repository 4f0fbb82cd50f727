"""Serve metrics, health, the Report as JSON and a status page from a thread."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import msgspec
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from streameval.config.model import Http
from streameval.errors import StreamevalError
from streameval.ope.answer import of_policies
from streameval.service.http.auth import Security
from streameval.service.http.history import answer
from streameval.service.http.negotiation import compressed, format_of
from streameval.service.http.openapi import document
from streameval.service.metrics import metrics_text
from streameval.service.shown import LEFT_OUT, MAX_REPORTED, shown_candidates
from streameval.service.status import DaemonStatus
from streameval.service.status_page.page import SCRIPT_HASH, STYLE_HASH, page

if TYPE_CHECKING:
    from streameval.service.daemon import DaemonLoop

log = structlog.get_logger("streameval.http")
access_log = structlog.get_logger("streameval.access")

MAX_CONNECTIONS, MAX_PER_ADDRESS = 2000, 200  # a further one takes the place of one that is silent
KEEP_ALIVE_SECONDS = 10
MAX_REQUEST_BYTES = 16 * 1024  # request line and headers
STOP_SECONDS = 2  # for requests that are open when the server stops
DESCRIPTORS = 8192
RELOAD_SECONDS = 30.0
"""Longest wait for the result of a reload."""
NO_TOKEN = "reloading over HTTP needs a token: set http.token_file"
OTHER_HOST = "this server does not accept that host name; add it to http.allowed_hosts\n"
OPEN = ("/livez", "/healthz", "/readyz")
"""Paths that need no token, for probes. They reveal only whether the process works."""
SCRAPE_DELAY_SECONDS = 0.01
"""Delay of each scrape, so that a client that scrapes without a pause leaves time for events."""
MAX_STREAMS = 64
STREAM_INTERVAL_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0  # a comment after silence lets both sides notice a lost connection
MAX_STREAM_SECONDS = 600.0  # then the browser connects again by itself
RECONNECT_MILLISECONDS = 2000
MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src '{STYLE_HASH}'; script-src '{SCRIPT_HASH}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
ONLY_HTTPS = {"strict-transport-security": f"max-age={365 * 24 * 3600}"}


class Pages:
    """Answer requests from the newest `view.published`. Setting `closing` ends open streams soon."""

    def __init__(self, view: DaemonLoop[Any], needs_token: bool = False) -> None:
        self._view, self._needs_token, self.streams, self.closing = view, needs_token, 0, False

    async def status(self, request: Request) -> Response:
        """Return the status page. `?estimator=...&average=...` choose what its top shows."""
        plain, packed = page(self._view.published, request.query_params)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return HTMLResponse(packed, headers={"content-encoding": "gzip", "vary": "accept-encoding"})
        return HTMLResponse(plain, headers={"vary": "accept-encoding"})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus, in the format and compression that it prefers.

        `?policy=...`, once or more often, leaves out all other policies. `?top=...` leaves all but the best.
        """
        await asyncio.sleep(SCRAPE_DELAY_SECONDS)
        form, wanted = format_of(request.headers.get("accept", "")), request.query_params
        text = metrics_text(self._view.published, form, wanted.getlist("policy"), wanted.get("top", ""))
        body, headers = compressed(text, request.headers.get("accept-encoding", ""))
        return Response(body, headers={"vary": "accept, accept-encoding", **headers}, media_type=form.content_type)

    async def health(self, _: Request) -> Response:
        """Return 200 while the loop turns, else 503."""
        healthy, seconds = self._view.healthy, round(self._view.stalled_for, 1)
        return JSONResponse({"healthy": healthy, "seconds_since_last_turn": seconds}, 200 if healthy else 503)

    async def alive(self, _: Request) -> Response:
        """Return 200 while the loop turns and the source is read, else 503: the process should be restarted."""
        seconds, reason = round(self._view.stalled_for, 1), self._view.source_stalled
        if not self._view.healthy:
            reason = f"the loop has not turned for {seconds} s"
        return JSONResponse({"live": not reason, "reason": reason}, 503 if reason else 200)

    async def ready(self, _: Request) -> Response:
        """Return 200 while the source answers and there is a Report, else 503 with the reason."""
        now = self._view.published
        return JSONResponse({"ready": now.ready, "reason": now.detail}, 200 if now.ready else 503)

    async def report(self, request: Request) -> Response:
        """Return the Report as JSON, or 503 before the first one. `?policy=...` and `?top=...` choose candidates."""
        now, wanted = self._view.published, request.query_params
        if now.report is None:
            return JSONResponse({"error": "there is no report yet", "reason": now.detail}, 503)
        shown = shown_candidates(now, wanted.getlist("policy"), wanted.get("top", ""), MAX_REPORTED)
        body = now.report if shown is None else of_policies(now.report, shown)
        headers = {} if shown is None else {LEFT_OUT: str(len(now.report.policies) - len(body.policies))}
        return Response(body.to_json(), headers=headers, media_type="application/json")

    async def history(self, request: Request) -> Response:
        """Return estimates and decisions of the last hours. `?policy=...&from=...&to=...` choose a part."""
        try:
            found = answer(self._view.published.history, request.query_params, request.query_params.getlist("policy"))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def openapi(self, _: Request) -> Response:
        """Return the description of these routes."""
        return Response(document(), media_type="application/json")

    async def reload(self, _: Request) -> Response:
        """Reload the configuration. Return 200, 409 if it is refused, or 202 if it takes longer than `RELOAD_SECONDS`.

        Without a token, every page that is open in a browser of this machine could ask for it: 403.
        """
        if not self._needs_token:
            return JSONResponse({"reloaded": False, "reason": NO_TOKEN}, 403)
        request, end = self._view.reload(), time.monotonic() + RELOAD_SECONDS
        while (result := self._view.published.reload).requests < request:
            if self.closing or time.monotonic() > end:
                return JSONResponse({"reloaded": False, "reason": "the reload has not ended; see the log"}, 202)
            await asyncio.sleep(0.05)
        return JSONResponse(
            {"reloaded": result.successful, "reason": result.problem}, 200 if result.successful else 409
        )

    async def live(self, request: Request) -> Response:
        """Stream a server-sent event `published` for each new `DaemonStatus`.

        Return 503 when `MAX_STREAMS` are open.
        """
        if request.method == "HEAD":
            return Response(media_type=MEDIA_TYPE)
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse("too many open status pages", 503, {"retry-after": "10"})
        # A proxy that buffers would delay the events.
        return StreamingResponse(self._messages(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})

    async def _messages(self) -> AsyncIterator[str]:
        last: DaemonStatus | None = None
        now = started = sent = time.monotonic()
        self.streams += 1
        try:
            yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
            while not self.closing and now - started < MAX_STREAM_SECONDS:
                status = self._view.published
                if status is not last:
                    last, sent = status, now
                    events = status.report.events.accepted if status.report else 0
                    data = msgspec.json.encode({"at": status.at, "events": events, "ready": status.ready}).decode()
                    yield f"event: published\ndata: {data}\n\n"
                elif now - sent >= HEARTBEAT_SECONDS:
                    sent = now
                    yield ": nothing new\n\n"
                await asyncio.sleep(STREAM_INTERVAL_SECONDS)
                now = time.monotonic()
        finally:
            self.streams -= 1


class Gate:
    """Pass on requests that `Security` admits. The paths in `OPEN` need no token.

    A request that is too large gets 431, a host name of another site 403, and a missing token 401.
    """

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app, self._security = app, security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        # The HTTP parser limits only headers that come in pieces.
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(map(len, chain(*headers.raw)))
        if size > MAX_REQUEST_BYTES:
            return PlainTextResponse("the request is too large", 431)
        if not self._security.admits_host(headers.get("host", "")):
            return PlainTextResponse(OTHER_HOST, 403)
        authorization = headers.get("authorization", "")
        if scope["path"] in OPEN or self._security.admits(authorization):
            return None
        if authorization:  # never what was tried: it may be a near miss
            access_log.warning("token_refused", client=scope["client"][0] if scope.get("client") else "")
        return PlainTextResponse("authentication required", 401, {"www-authenticate": "Bearer"})


def create_app(pages: Pages, security: Security) -> Starlette:
    """Return the ASGI application with its routes."""
    routes = [
        Route("/", pages.status),
        Route("/live", pages.live),
        Route("/metrics", pages.metrics),
        Route("/livez", pages.alive),
        Route("/healthz", pages.health),
        Route("/readyz", pages.ready),
        Route("/api/v1/report", pages.report),
        Route("/api/v1/history", pages.history),
        Route("/openapi.json", pages.openapi),
        Route("/-/reload", pages.reload, methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Gate, security=security)])
    app.router.redirect_slashes = False  # `/metrics/` is 404
    return app


class Room:
    """Make room for each new connection, so that no number of silent ones holds up a probe or a scrape.

    Args:
        most: connections in all
        most_per_address: connections of one client address
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address, self._count = most, most_per_address, 0
        self._open: dict[str, dict[Connection, None]] = {}  # of each address, in the order of their last words

    def enter(self, connection: Connection) -> None:
        """Add a connection. If there are too many, close one of its address, or of the address that has most."""
        own = self._open.setdefault(connection.address, {})
        if len(own) >= self._most_per_address:
            self._close_one(own)
        elif self._count >= self._most:
            self._close_one(max(self._open.values(), key=len))
        self._open.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def heard(self, connection: Connection) -> None:
        """Note that a connection is not silent."""
        own = self._open.get(connection.address, {})
        if connection in own:
            own[connection] = own.pop(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a connection."""
        own = self._open.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._open[connection.address]

    def _close_one(self, connections: dict[Connection, None]) -> None:
        """Close the connection that is silent for longest, if possible one that waits for no answer."""
        closed = next((connection for connection in connections if not connection.answering), next(iter(connections)))
        self.leave(closed)
        closed.transport.abort()


class Connection(H11Protocol):
    """Close a connection without a whole request after `KEEP_ALIVE_SECONDS`, also before the first request."""

    def __init__(self, room: Room, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._room = room

    @property
    def address(self) -> str:
        """Return the address of the client, without its port."""
        return self.client[0] if self.client else ""

    @property
    def answering(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._room.enter(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Read on. Only a whole request ends the wait for it, and not its first byte."""
        self._room.heard(self)
        self.conn.receive_data(data)
        self.handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave room for others."""
        self._room.leave(self)
        super().connection_lost(exc)


class Loop(asyncio.SelectorEventLoop):
    """Give up clients that do not finish the handshake of TLS."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Return a server with a limit for the handshake."""
        limit = float(KEEP_ALIVE_SECONDS) if options.get("ssl") else None
        return await super().create_server(*arguments, ssl_handshake_timeout=limit, **options)


class HttpServer:
    """Serve a daemon from a thread while the context is open. The socket is bound before.

    Args:
        view: The daemon.
        host: Address to bind.
        port: Port to bind, 0 for any free one.
        security: Token and encryption, None for neither.

    Attributes:
        address: The bound address.

    Raises:
        StreamevalError: The address cannot be bound.
    """

    def __init__(
        self, view: DaemonLoop[Any], host: str = "127.0.0.1", port: int = 9108, security: Security | None = None
    ) -> None:
        self._security = security or Security(Http())
        self._socket = listen(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._pages = Pages(view, self._security.needs_token)
        most = min(MAX_CONNECTIONS, _allow_descriptors() // 2)
        config = uvicorn.Config(
            create_app(self._pages, self._security),
            http=partial(Connection, Room(most, MAX_PER_ADDRESS)),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            headers=list((HEADERS | (ONLY_HTTPS if self._security.context else {})).items()),
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        )
        config.load()
        config.ssl = self._security.context  # uvicorn's own would ask for the password of a key
        self._server = uvicorn.Server(config)
        # Outside the main thread uvicorn leaves the signals alone; they belong to the daemon.
        self._thread = threading.Thread(target=self._run, name="streameval-http", daemon=True)

    @property
    def url(self) -> str:
        """Return the address for a browser or a scrape."""
        host, port = self.address
        scheme = "http" if self._security.context is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        await self._server.serve([self._socket])
        for connection in tuple(self._server.server_state.connections):  # clients that do not read what they asked for
            connection.transport.abort()
        await asyncio.sleep(0)  # closes their sockets

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("serving", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        """Answer open requests, and close everything."""
        self._pages.closing = True
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _allow_descriptors() -> int:
    """Raise the soft limit of open files, often 1,024, so that many connections leave some for snapshots and logs.

    Returns:
        The limit from now on.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        StreamevalError: The address is in use or cannot be bound.
    """
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"another program, perhaps another streameval, has port {port}; stop it or set http.port (0: any)"
            raise StreamevalError(f"cannot serve on {host}:{port}: the port is in use", hint=hint) from error
        hint = "http.host must be an address of this machine, and ports below 1024 need a privilege"
        raise StreamevalError(f"cannot serve on {host}:{port}: {error.strerror or error}", hint=hint) from error
    # Connections inherit this. Otherwise the second part of an answer waits 40 ms for the first to be acknowledged.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
