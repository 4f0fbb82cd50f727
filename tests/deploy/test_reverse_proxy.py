"""People log in at a reverse proxy, which reaches a server that wants a token."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from streameval.config.model import Http
from streameval.service.http.auth import Security
from streameval.service.http.server import HttpServer
from support.certificates import make_certificate
from support.deployed import DEPLOY
from support.factories import View, make_published, make_report, wait_until
from support.http_servers import QuietHandler, serving
from support.ports import free_port
from support.programs import output, program

RECIPES = DEPLOY / "reverse_proxy"
TOKEN, LOGIN = "7f3a" * 16, ("ada", "correct horse")


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[str]:
    """Serve a daemon that wants a token, and return its address."""
    (tmp_path / "tokens").write_text(TOKEN)
    security = Security(Http(port=0, token_file=str(tmp_path / "tokens")))
    with HttpServer(View(make_published(make_report())), port=0, security=security) as server:
        yield f"127.0.0.1:{server.address[1]}"


@contextmanager
def running(
    *command: str, url: str, verify: ssl.SSLContext | bool = True, **environment: str
) -> Iterator[httpx.Client]:
    """Run a proxy, and yield a client when it answers."""
    with subprocess.Popen(command, env=environment or None) as process:
        try:
            with httpx.Client(base_url=url, verify=verify, trust_env=False, timeout=60.0) as client:
                wait_until(lambda: process.poll() is not None or answers(client))
                assert process.poll() is None
                yield client
        finally:
            process.terminate()
            process.wait(60)


def answers(client: httpx.Client) -> bool:
    try:
        client.get("/")
    except httpx.TransportError:
        return False
    return True


def require_wall(client: httpx.Client) -> None:
    """Require that a login opens everything, and that nothing else does."""
    for path in ("/", "/metrics", "/api/v1/report", "/live"):
        refused = client.get(path)
        assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        assert "streameval_ready" not in refused.text
    assert client.get("/", auth=("ada", "wrong")).status_code == 401
    assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
    assert "streameval_ready 1.0" in client.get("/metrics", auth=LOGIN).text
    assert "<title>streameval</title>" in client.get("/", auth=LOGIN).text
    require_stream(client, auth=LOGIN)


def require_stream(client: httpx.Client, **options: object) -> None:
    """Require that the proxy passes on updates without a delay."""
    with client.stream("GET", "/live", **options) as stream:  # type: ignore[arg-type]
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line == "event: published":
                return
    pytest.fail("no update")


def nginx_with(recipe: str, folder: Path, port: int, upstream: str, oauth: str = "") -> list[str]:
    """Return the command of nginx with a recipe after paths and addresses are replaced."""
    text = (RECIPES / recipe).read_text().replace("/etc/nginx/streameval", str(folder))
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("streameval.example.org", "_")
    text = text.replace("127.0.0.1:9108", upstream).replace("127.0.0.1:4180", oauth)
    paths = "\n".join(
        f"    {name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nuser root;\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{paths}\n    include {folder}/site.conf;\n}}\n"
    )
    (folder / "token.conf").write_text(f'proxy_set_header Authorization "Bearer {TOKEN}";\n')
    command = [program("nginx", "nginx-light"), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    assert "test is successful" in output(*command, "-t")
    return command


@pytest.fixture
def trusting(tmp_path: Path) -> ssl.SSLContext:
    """Write a certificate for nginx, and return a context that trusts it."""
    certificate, key = make_certificate(tmp_path, "tls")
    (tmp_path / "tls.crt").write_text(Path(certificate).read_text())
    assert key == str(tmp_path / "tls.key")
    return ssl.create_default_context(cafile=certificate)


def test_nginx_asks_for_a_password_and_sends_the_token(upstream: str, tmp_path: Path, trusting: ssl.SSLContext) -> None:
    port = free_port()
    name, password = LOGIN
    (tmp_path / "users").write_text(f"{name}:{output('openssl', 'passwd', '-6', password)}")
    command = nginx_with("nginx.conf", tmp_path, port, upstream=upstream)
    with running(*command, url=f"https://127.0.0.1:{port}", verify=trusting) as client:
        require_wall(client)


class StandIn(QuietHandler):
    """Answer as oauth2-proxy does: 202 with a cookie, else 401, and a page to sign in."""

    def do_GET(self) -> None:
        is_known = "_oauth2_proxy=known" in self.headers.get("cookie", "")
        self.send_response((202 if is_known else 401) if self.path == "/oauth2/auth" else 200)
        self.end_headers()


def test_nginx_lets_oauth2_proxy_decide_and_sends_the_token(
    upstream: str, tmp_path: Path, trusting: ssl.SSLContext
) -> None:
    port = free_port()
    cookie = {"cookie": "_oauth2_proxy=known"}
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), StandIn)) as oauth:
        oauth_address = f"127.0.0.1:{oauth.server_port}"
        command = nginx_with("nginx-oauth2.conf", tmp_path, port, upstream=upstream, oauth=oauth_address)
        with running(*command, url=f"https://127.0.0.1:{port}", verify=trusting) as client:
            refused = client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            assert refused.status_code == 302
            assert refused.headers["location"].endswith("/oauth2/sign_in?rd=/metrics")
            assert client.get("/oauth2/sign_in").status_code == 200
            assert "streameval_ready 1.0" in client.get("/metrics", headers=cookie).text
            require_stream(client, headers=cookie)


def test_caddy_asks_for_a_password_and_sends_the_token(upstream: str, tmp_path: Path) -> None:
    caddy, port = program("caddy", "caddy"), free_port()
    hashed = output(caddy, "hash-password", "--plaintext", LOGIN[1]).strip()
    environment = {
        "HOME": str(tmp_path),
        "STREAMEVAL_SITE": f"http://127.0.0.1:{port}",
        "STREAMEVAL_USER": LOGIN[0],
        "STREAMEVAL_PASSWORD_HASH": hashed,
        "STREAMEVAL_UPSTREAM": upstream,
        "STREAMEVAL_TOKEN": TOKEN,
    }
    (tmp_path / "Caddyfile").write_text("{\n\tadmin off\n}\n" + (RECIPES / "Caddyfile").read_text())
    command = [caddy, "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    with running(*command, url=f"http://127.0.0.1:{port}", **environment) as client:
        require_wall(client)


def test_compose_gives_caddy_what_its_file_needs() -> None:
    text = (RECIPES / "Caddyfile").read_text()
    (caddy,) = yaml.safe_load((RECIPES / "compose.yaml").read_text())["services"].values()
    for name in caddy["environment"]:
        assert name in text
