"""The HTTP side: metrics, probes, the Report as JSON and a page for people, served from a thread of its own."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from streameval.config.model import Http
from streameval.errors import StreamevalError
from streameval.service.http.connections import KEPT_FOR, LARGEST_REQUEST, Connection, Loop, allow_descriptors
from streameval.service.http.events_stream import EventStream
from streameval.service.http.middleware import AnswerHeaders, Login, RateLimits
from streameval.service.http.tls import LOOKS_EVERY, Security
from streameval.service.metrics import CONTENT_TYPE, MetricsPage
from streameval.service.status import DaemonStatus
from streameval.service.status_page.page import SCRIPT_HASH, STYLE_HASH, StatusPage

log = structlog.get_logger("streameval.http")

STOPS_WITHIN = 2  # seconds that an open request may still take
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


class View(Protocol):
    """What is asked of the daemon; `streameval.service.daemon.Daemon` is one."""

    @property
    def published(self) -> DaemonStatus: ...

    @property
    def healthy(self) -> bool: ...

    @property
    def stalled_for(self) -> float: ...


class Pages:
    """The answers to all requests, each from one look at `view.published`."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._metrics = MetricsPage(lambda: view.published)
        self._status = StatusPage()
        self.live = EventStream(lambda: view.published)

    async def status(self, request: Request) -> Response:
        """The page for people; `?estimator=...&average=...` choose what its top shows."""
        page = self._status.page(self._view.published, request.query_params)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return HTMLResponse(page.packed, headers={"content-encoding": "gzip", "vary": "accept-encoding"})
        return HTMLResponse(page.plain, headers={"vary": "accept-encoding"})

    async def metrics(self, _: Request) -> Response:
        """The text that Prometheus scrapes."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    async def health(self, _: Request) -> Response:
        """200 while the loop turns: a process that answers 503 should be restarted."""
        healthy, seconds = self._view.healthy, round(self._view.stalled_for, 1)
        return JSONResponse({"healthy": healthy, "seconds_since_last_turn": seconds}, 200 if healthy else 503)

    async def ready(self, _: Request) -> Response:
        """200 while the source answers and there is a Report, else 503 and why not."""
        now = self._view.published
        return JSONResponse({"ready": now.ready, "reason": now.detail}, 200 if now.ready else 503)

    async def report(self, _: Request) -> Response:
        """The Report as JSON; 503 before the first."""
        now = self._view.published
        if now.report is None:
            return JSONResponse({"error": "there is no report yet", "reason": now.detail}, 503)
        return Response(now.report.to_json(), media_type="application/json")


def create_app(pages: Pages, security: Security) -> Starlette:
    """The ASGI application: `/`, `/live`, `/metrics`, `/healthz`, `/readyz`, `/api/v1/report`; nothing else."""
    routes = [
        Route("/", pages.status),
        Route("/live", pages.live, methods=["GET"]),
        Route("/metrics", pages.metrics),
        Route("/healthz", pages.health),
        Route("/readyz", pages.ready),
        Route("/api/v1/report", pages.report),
    ]
    guards = [
        Middleware(AnswerHeaders, headers=HEADERS | (ONLY_HTTPS if security.context else {})),
        Middleware(RateLimits),
        Middleware(Login, access=lambda: security.access),
    ]
    app = Starlette(routes=routes, middleware=guards)
    app.router.redirect_slashes = False  # `/metrics/` is not there, and says so
    return app


class HttpServer:
    """Serves `view` on `host:port` from a thread; port 0 takes a free one. The socket is bound at once.

    `address` is what was bound. `security`: login and encryption; without it there is neither. Use it as a context
    manager, or `start()` and `stop()`. Raises StreamevalError when the address cannot be had.
    """

    def __init__(self, view: View, host: str = "127.0.0.1", port: int = 9108, security: Security | None = None) -> None:
        self._security = security or Security(Http())
        self._socket = _listen(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._pages = Pages(view)
        config = uvicorn.Config(
            create_app(self._pages, self._security),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEPT_FOR,
            timeout_graceful_shutdown=STOPS_WITHIN,
            h11_max_incomplete_event_size=LARGEST_REQUEST,
            callback_notify=self._security.renew,
            timeout_notify=LOOKS_EVERY,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="streameval-http", daemon=True)

    @property
    def url(self) -> str:
        """Where to point a browser or a scrape."""
        host, port = self.address
        scheme = "http" if self._security.context is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Begin to answer; requests made before are answered then."""
        allow_descriptors()
        self._thread.start()
        log.info("serving", url=self.url)

    def stop(self) -> None:
        """Answer what is being asked, close everything, return when that is done."""
        self._pages.live.close()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.stop()

    def _serve(self) -> None:
        # Outside the main thread uvicorn leaves the signals alone; they belong to the daemon.
        with asyncio.Runner(loop_factory=partial(Loop, self._security.context)) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))


def _listen(host: str, port: int) -> socket.socket:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"another program, perhaps another streameval, has port {port}; stop it or set http.port (0: any)"
            raise StreamevalError(f"cannot serve on {host}:{port}: the port is in use", hint=hint) from error
        hint = "http.host must be an address of this machine, and ports below 1024 need a privilege"
        raise StreamevalError(f"cannot serve on {host}:{port}: {error.strerror or error}", hint=hint) from error
    # Clients inherit this. Else the second part of an answer waits 40 ms for the first one to be acknowledged.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
