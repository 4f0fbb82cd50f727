"""Clients that mean no good, or mean nothing: they cost little, hold up nobody, and the server outlives them."""

from __future__ import annotations

import random
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from streameval.config.model import Http
from streameval.service.http import connections
from streameval.service.http.server import HttpServer
from streameval.service.http.tls import Security
from support.certificates import make_certificate
from support.factories import View, make_published, make_report, quickest, wait_until

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def served(http: Http | None = None, candidates: int = 3) -> Iterator[HttpServer]:
    security = Security(http) if http else None
    with HttpServer(View(make_published(make_report(candidates))), port=0, security=security) as server:
        yield server


@contextmanager
def connected(server: HttpServer) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=30) as connection:
        yield connection


def ended(connection: socket.socket) -> bool:
    """Whether the server closes the connection, after whatever it still has to say, within the socket's time-out."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def still_answers(server: HttpServer) -> bool:
    return httpx.get(server.url + "/metrics", trust_env=False, timeout=60.0).status_code == 200


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

        assert quickest(scrape) < 1.0


def test_the_oldest_connection_that_asked_nothing_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    with served() as server, ExitStack() as stack, closing(HTTPConnection(*server.address)) as scraper:
        scrape(scraper)
        first = scraper.sock
        idle = [stack.enter_context(connected(server)) for _ in range(4)]
        assert [ended(each) for each in idle[:2]] == [True, True]
        idle[3].sendall(REQUEST)
        assert idle[3].recv(12) == b"HTTP/1.1 200"
        scrape(scraper)
        assert scraper.sock is first, "who has asked before is let go last"


def scrape(client: HTTPConnection) -> None:
    client.request("GET", "/metrics")
    assert b"streameval_ready" in client.getresponse().read()


def test_the_parts_of_an_answer_do_not_wait_for_each_other() -> None:
    with served() as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60.0) as client:

        def quarter() -> float:
            took = [quickest(lambda: client.get("/healthz"), times=1) for _ in range(21)]
            return statistics.quantiles(took)[0]

        assert min(quarter() for _ in range(5)) < 0.02, "each would wait for 40 ms, by Nagle's rule"


def test_a_request_that_does_not_come_to_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_WITHIN", 0.4)
    with served() as server:
        with connected(server) as silent, connected(server) as slow:
            started = time.monotonic()
            with suppress(ConnectionError):
                for letter in REQUEST:
                    slow.sendall(bytes([letter]))
                    time.sleep(0.2)
            assert ended(slow)
            assert ended(silent)
            assert time.monotonic() - started < len(REQUEST) * 0.2
        monkeypatch.undo()  # who asks from a busy machine is slow, too
        assert still_answers(server)


def test_the_second_request_of_a_connection_must_be_as_quick_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server, connected(server) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr(connections, "REQUEST_WITHIN", 0.4)
        time.sleep(0.8)
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")  # between two requests there is more time
        assert ended(slow)


def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_MOVES_WITHIN", 0.4)
    with served(candidates=25) as server, socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(server.address)
        greedy.sendall(REQUEST * 40)
        wait_until(lambda: not server._server.server_state.connections)
        monkeypatch.undo()
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
    "body",
    [b"Content-Length: 5000000\r\n\r\n" + b"x" * 100_000, b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\nx"],
    ids=["of a length", "in chunks"],
)
def test_bodies_are_refused_and_not_read(body: bytes) -> None:
    with served() as server, connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + body)
        assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 413"
        assert ended(client)
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
        for request in [*GARBAGE, *noise, *bent]:
            with connected(server) as client:
                with suppress(OSError):  # it may have been given up before we are done
                    client.sendall(request)
                    client.shutdown(socket.SHUT_WR)
                assert ended(client), request
        assert still_answers(server)
        wait_until(lambda: not server._server.server_state.connections)


def test_connections_that_are_torn_off_leave_nothing_behind() -> None:
    with served(candidates=25) as server:
        for cut in (0, 3, len(REQUEST)):
            for _ in range(20):
                client = socket.create_connection(server.address)
                client.sendall(REQUEST[:cut])
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
                client.close()
        wait_until(lambda: not server._server.server_state.connections)
        wait_until(lambda: not server._server.server_state.tasks)
        assert still_answers(server)


def test_an_unfinished_handshake_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_WITHIN", 60.0)  # nor does this one end it
    monkeypatch.setattr(connections, "HANDSHAKE_WITHIN", 0.3)
    certificate, key = make_certificate(tmp_path)
    with served(Http(tls_certfile=certificate, tls_keyfile=key)) as server, connected(server) as client:
        started = time.monotonic()
        assert ended(client)
        assert time.monotonic() - started < 20.0
