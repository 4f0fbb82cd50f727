"""Ask the HTTP server with and without a token."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from streameval.common.problems import problems_of
from streameval.config.model import Config, Http
from streameval.errors import ConfigError
from streameval.service.http.auth import Security, read_tokens
from streameval.service.http.server import HttpServer
from support.certificates import make_certificate
from support.factories import View, make_published, make_report

TOKEN, OTHER_TOKEN = "7f3a" * 16, "00ff" * 16
PROTECTED = ("/", "/metrics", "/api/v1/report")
OPEN = ("/healthz", "/readyz")
NO_TLS = ssl.create_default_context()  # made once: it takes longer than a request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    (folder / "tokens").write_text(f"# for Prometheus\n{TOKEN}\n\n{OTHER_TOKEN}\n")
    return folder


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[str, str]:
    return make_certificate(folder)


def closed(folder: Path) -> Http:
    return Http(port=0, token_file=str(folder / "tokens"))


@contextmanager
def served(http: Http, security: Security | None = None) -> Iterator[HttpServer]:
    view = View(make_published(make_report()))
    with HttpServer(view, http.host, http.port, security or Security(http)) as server:
        yield server


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[HttpServer]:
    with served(closed(folder)) as server:
        yield server


def ask(server: HttpServer, path: str, authorization: str | None = None) -> httpx.Response:
    headers = {} if authorization is None else {"authorization": authorization}
    with httpx.Client(base_url=server.url, verify=NO_TLS, trust_env=False, timeout=60.0) as client:
        return client.get(path, headers=headers)


@pytest.mark.parametrize("path", [*PROTECTED, "/nowhere"])
def test_without_a_token_nothing_but_the_scheme_is_shown(server: HttpServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status_code == 401
    assert answer.headers.get_list("www-authenticate") == ["Bearer"]
    assert answer.text == "authentication required"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("path", OPEN)
def test_probes_need_no_token(server: HttpServer, path: str) -> None:
    assert ask(server, path).status_code == 200


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {OTHER_TOKEN}"])
def test_each_of_the_tokens_gives_access(server: HttpServer, path: str, authorization: str) -> None:
    assert ask(server, path, authorization).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}0",
        "Bearer",
        f"Token {TOKEN}",
        TOKEN,
        f"Basic {TOKEN}",
    ],
)
def test_nearly_correct_tokens_are_refused(server: HttpServer, authorization: str) -> None:
    assert ask(server, "/metrics", authorization).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "//metrics",
        "/metrics/",
        "/%6detrics",
        "/metrics%00",
        "/healthz/../metrics",
        "/healthz%2f..%2fmetrics",
        "/healthz/%2e%2e/metrics",
        "/healthz?/metrics",
        "/healthz;/metrics",
        "/readyz/..;/api/v1/report",
        "/../../../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "http://127.0.0.1/metrics",
        "http://127.0.0.1/healthz/../metrics",
        "*",
        "/\\metrics",
    ],
)
def test_unusual_paths_do_not_bypass_the_token(server: HttpServer, path: str) -> None:
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = answer.split(b" ")[1] if answer else b"400"
    assert status in (b"401", b"400") or (status == b"200" and b'"healthy"' in answer)
    assert b"streameval_" not in answer
    assert b"root:" not in answer


def raw(server: HttpServer, request: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_reload_needs_a_token(server: HttpServer) -> None:
    assert httpx.post(f"{server.url}/-/reload", verify=NO_TLS, trust_env=False).status_code == 401


def test_only_a_token_in_the_header_counts(server: HttpServer) -> None:
    assert ask(server, f"/metrics?token={TOKEN}&access_token={TOKEN}").status_code == 401
    answer = httpx.get(
        server.url + "/metrics", cookies={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60.0
    )
    assert answer.status_code == 401


def test_a_file_of_secrets_that_every_user_can_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    for mode, reported in ((0o640, []), (0o644, [str(path)])):
        path.chmod(mode)
        with capture_logs() as logs:
            Security(Http(token_file=str(path)))
        assert [entry["path"] for entry in logs if entry["event"] == "secret_readable"] == reported


def status_for(server: HttpServer, host: str) -> int:
    answer = raw(server, f"GET /api/v1/report HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9108", "localhost:9108", "LOCALHOST", "[::1]:9108", "10.0.0.7"]
)
def test_addresses_and_localhost_may_ask_without_a_token(host: str) -> None:
    with served(Http(port=0)) as server:
        assert status_for(server, host) == 200


@pytest.mark.parametrize(
    "host", ["rebound.example.org", "127.0.0.1.example.org", "localhost.example.org:9108", "[::1", "x"]
)
def test_a_page_with_a_name_that_resolves_to_this_machine_reads_nothing(host: str) -> None:
    with served(Http(port=0)) as server:
        assert status_for(server, host) in (400, 403)


def test_only_allowed_names_may_ask_once_any_is_allowed(folder: Path) -> None:
    with served(Http(port=0, allowed_hosts=["Metrics.example.org"])) as server:
        assert status_for(server, "metrics.example.org:443") == 200
        assert status_for(server, "other.example.org") == 403
    names = Http(port=0, token_file=str(folder / "tokens"))
    with served(names) as server:
        assert status_for(server, "anything.example.org") == 401, "a token protects by itself"
    with served(names.model_copy(update={"allowed_hosts": ["metrics.example.org"]})) as server:
        assert status_for(server, "anything.example.org") == 403


def test_https_is_served_and_required(pair: tuple[str, str]) -> None:
    http = Http(port=0, tls_certfile=pair[0], tls_keyfile=pair[1])
    trusting = ssl.create_default_context(cafile=pair[0])
    with served(http) as server:
        assert server.url.startswith("https://")
        answer = httpx.get(server.url + "/metrics", verify=trusting, trust_env=False, timeout=60.0)
        assert answer.status_code == 200
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(server.url + "/metrics", trust_env=False, timeout=60.0)
        assert b"streameval" not in raw_or_reset(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert httpx.get(server.url + "/healthz", verify=trusting, trust_env=False, timeout=60.0).status_code == 200


def raw_or_reset(server: HttpServer, request: bytes) -> bytes:
    try:
        return raw(server, request)
    except ConnectionError:
        return b""


def test_without_https_no_redirect_to_it_is_sent(server: HttpServer) -> None:
    assert "strict-transport-security" not in ask(server, "/healthz").headers


def test_a_certificate_that_cannot_be_used_stops_the_start_with_a_hint(
    tmp_path: Path, pair: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    _, encrypted = make_certificate(tmp_path, "encrypted", "-passout", "pass:open-sesame")
    _, other = make_certificate(tmp_path, "other")
    (tmp_path / "empty").touch()
    for certificate, key in ((pair[0], other), (pair[0], encrypted), (str(tmp_path / "empty"), pair[1])):
        with pytest.raises(ConfigError) as caught:
            Security(Http(tls_certfile=certificate, tls_keyfile=key))
        assert "tls_keyfile" in caught.value.report()
    assert capfd.readouterr().err == "", "no password is asked for on the terminal"


def complaint(**http: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"policies": {"candidates": ["a"]}, "http": http})
    (problem,) = problems_of(caught.value, Config)
    return f"{problem.text()}\nhint: {problem.hint}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "recommender.example", ""])
def test_other_machines_need_a_token_unless_insecure_is_set(host: str, folder: Path) -> None:
    assert complaint(host=host) == (
        f"http.host: expected a loopback address, because no token is configured, found '{host}'\n"
        "hint: set http.token_file, or http.insecure: true to let everyone read"
    )
    assert Http(host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert Http(host=host).token_file is None


def test_a_certificate_without_its_key_is_refused(pair: tuple[str, str]) -> None:
    assert complaint(tls_certfile=pair[0]).startswith("http.tls_keyfile: expected a PEM file, found nothing\n")
    assert complaint(tls_keyfile=pair[1]).startswith("http.tls_certfile: expected a PEM file, found nothing\n")


def test_a_token_written_in_place_of_its_file_is_not_repeated() -> None:
    text = complaint(token_file=TOKEN)
    assert TOKEN not in text
    assert text.startswith("http.token_file: expected a file that exists, found a hidden value")


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("", "expected a token, found none"),
        ("# only this", "expected a token, found none"),
        ("0123456789\0abcdef-0123", "line 1: expected a token, found a NUL in it"),
        ("0123456789\x7fabcdef-0123", "line 1: expected a token, found a control character in it"),
        ("sesame-sesame", "line 1: expected a token"),
        (f"{TOKEN}\nopen sesame, if you please", "line 2: expected a token"),
        ("sésamesésamesésamesésame", "line 1: expected a token"),
    ],
)
def test_a_token_file_without_good_tokens_is_refused_and_not_repeated(tmp_path: Path, text: str, trouble: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match=trouble) as caught:
        read_tokens(tmp_path / "tokens")
    assert "openssl rand -hex 32" in caught.value.hint
    assert "sesame" not in caught.value.report()


def test_files_that_cannot_be_read_are_errors_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "latin", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=str(path)):
            read_tokens(path)
