"""Notify open pages of new numbers and of the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from streameval.service.http import server as http
from streameval.service.http.server import HttpServer
from support.factories import NOW, View, make_published, make_report, wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAM_INTERVAL_SECONDS", 0.02)


@pytest.fixture
def view() -> View:
    return View(make_published(make_report()))


@pytest.fixture
def server(view: View) -> Iterator[HttpServer]:
    with HttpServer(view, port=0) as server:
        yield server


def client(server: HttpServer) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=60.0)


def messages(answer: httpx.Response) -> Iterator[str]:
    message: list[str] = []
    for line in answer.iter_lines():
        if line:
            message.append(line)
        else:
            yield "\n".join(message)
            message = []


def test_every_new_report_is_sent_once(server: HttpServer, view: View) -> None:
    with client(server) as asking, asking.stream("GET", "/live") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        heard = messages(answer)
        assert next(heard) == "retry: 2000"
        assert reported(next(heard)) == {"at": NOW, "events": 120_000, "ready": True}
        time.sleep(0.1)
        view.published = make_published(make_report(), at=NOW + 1)
        assert reported(next(heard))["at"] == NOW + 1
        view.published = make_published(None, at=NOW + 2)
        assert reported(next(heard)) == {"at": NOW + 2, "events": 0, "ready": False}


def reported(message: str) -> dict[str, object]:
    kind, data = message.splitlines()
    assert kind == "event: published"
    parsed: dict[str, object] = json.loads(data.removeprefix("data: "))
    return parsed


def test_heartbeats_keep_a_silent_stream_open(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEARTBEAT_SECONDS", 0.1)
    with client(server) as asking, asking.stream("GET", "/live") as answer:
        heard = messages(answer)
        assert [next(heard) for _ in range(4)][2:] == [": nothing new"] * 2


def test_a_stream_ends_some_time_so_that_the_browser_connects_again(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_STREAM_SECONDS", 0.1)
    with client(server) as asking, asking.stream("GET", "/live") as answer:
        assert len(list(messages(answer))) == 2


def test_streams_are_limited_and_released_when_their_clients_leave(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_STREAMS", 5)
    for _ in range(3):
        clients = [client(server) for _ in range(5)]
        for page in clients:
            wait_until(lambda page=page: opens_stream(page))
        with client(server) as late:
            refused = late.get("/live")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            assert late.get("/").status_code == 200
            assert late.get("/metrics").status_code == 200
        for page in clients:
            page.close()


def opens_stream(asking: httpx.Client) -> bool:
    """Return whether the server accepts another stream, which it does after earlier ones have closed."""
    return asking.send(asking.build_request("GET", "/live"), stream=True).status_code == 200


def test_open_streams_do_not_hold_up_the_stop(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STOP_SECONDS", 60)  # what an open request may take, and these would
    ended = threading.Event()

    def listen() -> None:
        with client(server) as asking, asking.stream("GET", "/live") as answer:
            for _ in messages(answer):
                opened.set()
        ended.set()

    opened = threading.Event()
    with HttpServer(view, port=0) as server:
        thread = threading.Thread(target=listen)
        thread.start()
        assert opened.wait(60)
        started = time.monotonic()
    assert time.monotonic() - started < 30
    thread.join(60)
    assert ended.is_set(), "the client saw an orderly end"


def test_head_gives_the_headers_of_get(server: HttpServer) -> None:
    with client(server) as asking:
        answer = asking.head("/live")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert asking.post("/live").status_code == 405
