"""Connect hostile or idle clients, which must cost little and delay no other client."""

from __future__ import annotations

import random
import socket
import ssl
import statistics
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from streameval.config.model import Http
from streameval.service.http import server as http_server
from streameval.service.http.auth import Security
from streameval.service.http.server import HttpServer
from support.certificates import make_certificate
from support.factories import View, crowding, make_published, make_report, quickest, wait_until
from support.ports import open_sockets

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def served(http: Http | None = None, candidates: int = 3) -> Iterator[HttpServer]:
    security = Security(http) if http else None
    with HttpServer(View(make_published(make_report(candidates))), port=0, security=security) as server:
        yield server


@contextmanager
def connected(server: HttpServer) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=60) as connection:
        yield connection


def ended(connection: socket.socket) -> bool:
    """Return whether the server closes the connection within the timeout of the socket."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def answered(connection: socket.socket) -> bool:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}") and (part := connection.recv(65536)):
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


def still_answers(server: HttpServer) -> bool:
    return httpx.get(server.url + "/metrics", trust_env=False, timeout=60.0).status_code == 200


def ask_without_reading(greedy: socket.socket, server: HttpServer) -> None:
    """Ask for more than the buffers of a connection hold, and read none of it."""
    greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    greedy.connect(server.address)
    greedy.sendall(REQUEST * 40)


@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
def test_a_thousand_idle_connections_do_not_hold_up_a_scrape(tmp_path: Path, encrypted: bool) -> None:
    pair = make_certificate(tmp_path) if encrypted else (None, None)
    http = Http(tls_certfile=pair[0], tls_keyfile=pair[1])
    trusting = ssl.create_default_context(cafile=pair[0])
    with (
        served(http) as server,
        ExitStack() as idle,
        httpx.Client(verify=trusting, trust_env=False, timeout=60.0) as client,
    ):
        for _ in range(1000):
            idle.enter_context(connected(server))

        def scrape() -> None:
            assert client.get(server.url + "/metrics", headers={"connection": "close"}).status_code == 200

        assert quickest(scrape) < crowding()


@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_PER_ADDRESS"])
def test_of_too_many_connections_the_one_that_is_silent_for_longest_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, encrypted: bool
) -> None:
    monkeypatch.setattr(http_server, limit, 4)
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 600)
    pair = make_certificate(tmp_path) if encrypted else (None, None)
    trusting = ssl.create_default_context(cafile=pair[0])
    with served(Http(tls_certfile=pair[0], tls_keyfile=pair[1])) as server, ExitStack() as stack:

        def client() -> socket.socket:
            plain = stack.enter_context(connected(server))
            return trusting.wrap_socket(plain, server_hostname="localhost") if encrypted else plain

        asking, silent, *others = [client() for _ in range(4)]
        assert all(answered(connection) for connection in (silent, *others, asking))
        with httpx.Client(verify=trusting, trust_env=False, timeout=60.0) as scraper:
            for path in ("/metrics", "/livez", "/readyz"):
                assert scraper.get(server.url + path, headers={"connection": "close"}).status_code == 200
        assert ended(silent)
        assert answered(asking)


def test_connections_of_one_address_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 6)
    with served() as server, ExitStack() as stack:
        other = stack.enter_context(socket.create_connection(server.address, 60, source_address=("127.0.0.2", 0)))
        flood = [stack.enter_context(connected(server)) for _ in range(12)]
        assert all(ended(connection) for connection in flood[:7])  # five have room next to the other
        assert answered(other)


def test_slow_readers_make_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_PER_ADDRESS", 5)
    with served(candidates=100) as server, ExitStack() as stack:
        for _ in range(5):
            ask_without_reading(stack.enter_context(socket.socket()), server)
        assert still_answers(server)


def test_the_parts_of_an_answer_do_not_wait_for_each_other() -> None:
    with served() as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60.0) as client:

        def quarter() -> float:
            took = [quickest(lambda: client.get("/healthz"), times=1) for _ in range(21)]
            return statistics.quantiles(took)[0]

        assert min(quarter() for _ in range(5)) < 0.02, "each would wait for 40 ms, by Nagle's rule"


def test_a_connection_that_asks_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 1)
    with served() as server:
        with connected(server) as silent, connected(server) as active, connected(server) as slow:
            active.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert active.recv(12) == b"HTTP/1.1 200"
            slow.sendall(b"GET /healthz HTTP/1.1\r\n")
            assert ended(silent)
            assert ended(active)
            assert ended(slow)
        assert still_answers(server)


def test_a_connection_that_never_encrypts_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 1)
    certificate, key = make_certificate(tmp_path)
    with served(Http(tls_certfile=certificate, tls_keyfile=key)) as server, connected(server) as silent:
        assert ended(silent)


def test_slow_clients_delay_no_others() -> None:
    with served(candidates=25) as server, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(server)).sendall(REQUEST[:20])
        for _ in range(10):
            ask_without_reading(stack.enter_context(socket.socket()), server)
        assert still_answers(server)


def test_headers_without_end_are_refused() -> None:
    with served() as server, connected(server) as endless:
        try:
            endless.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Filler: " + b"x" * 200_000)
            answer = endless.recv(12)
        except ConnectionError:
            answer = b""
        assert answer in (b"HTTP/1.1 400", b"")
        assert still_answers(server)


@pytest.mark.parametrize(
    "large",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X-%d: y\r\n" % number for number in range(4000))
        + b"\r\n",
        b"GET /?" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["one header", "many headers", "the query"],
)
def test_a_large_request_in_one_piece_is_refused(large: bytes) -> None:
    with served() as server, connected(server) as client:
        client.sendall(large)
        assert client.recv(12, socket.MSG_WAITALL) in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        assert still_answers(server)


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 5000000\r\n\r\n" + b"x" * 100_000, b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\nx"],
    ids=["of a length", "in chunks"],
)
def test_a_missing_body_is_not_waited_for(body: bytes) -> None:
    with served() as server, connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + body)
        assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
        assert still_answers(server)


GARBAGE = [
    b"\r\n\r\n\r\n",
    b"\x00" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the hello of TLS
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
    b"GET / HTTP/1.1\r\nHost: x\r\n folded: yes\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: \xff\xfe\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%fe%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic \xe9\r\n\r\n",
    REQUEST + b"garbage that follows",
    REQUEST * 50,
]


def test_garbage_does_not_kill_the_server() -> None:
    chance = random.Random(5)
    noise = [chance.randbytes(chance.randrange(1, 400)) for _ in range(60)]
    bent = [bytes(chance.choice([byte, chance.randrange(256)]) for byte in REQUEST) for _ in range(60)]
    with served() as server:
        assert still_answers(server)
        before = open_sockets()  # with those of the server's event loop, and perhaps that of the answer
        for request in [*GARBAGE, *noise, *bent]:
            with connected(server) as client:
                with suppress(OSError):  # it may have been given up before we are done
                    client.sendall(request)
                    client.shutdown(socket.SHUT_WR)
                assert ended(client), request
        assert still_answers(server)
        wait_until(lambda: open_sockets() <= before)


def test_connections_that_are_torn_off_leave_nothing_behind() -> None:
    with served(candidates=25) as server:
        assert still_answers(server)
        before = open_sockets()  # with those of the server's event loop, and perhaps that of the answer
        for cut in (0, 3, len(REQUEST)):
            for _ in range(20):
                client = socket.create_connection(server.address)
                client.sendall(REQUEST[:cut])
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
                client.close()
        wait_until(lambda: open_sockets() <= before)
        assert still_answers(server)
