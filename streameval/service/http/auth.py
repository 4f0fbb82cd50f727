"""Check the tokens and host names of requests, and load the certificate."""

from __future__ import annotations

import hmac
import ssl
import stat
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from streameval.config.model import Http
from streameval.errors import ConfigError

MIN_TOKEN_LENGTH = 16
TOKEN_HINT = "one token per line, each of 16 characters or more; `openssl rand -hex 32` creates one"
TLS_HINT = (
    "http.tls_certfile and http.tls_keyfile are PEM files of one pair: the certificate (with its chain) and its key"
)

log = structlog.get_logger("streameval.security")


class Security:
    """Decide which requests are answered, and hold the TLS context.

    Files are read once. After a token or a certificate was replaced, restart the daemon: it resumes from its state.
    A file with two tokens lets clients change from one to the other.

    Attributes:
        needs_token: Whether requests must bear a token.
        context: TLS context, None without encryption.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self._digests = read_tokens(Path(http.token_file)) if http.token_file else frozenset()
        self.needs_token = bool(self._digests)
        for path in readable_by_others(http):
            log.warning("secret_readable", path=path, hint="chmod o-r: every user of this machine can read it")
        self.context = load_certificate(http.tls_certfile, http.tls_keyfile) if http.tls_certfile else None

    def admits_host(self, host: str) -> bool:
        """Return whether a `Host` header names this server.

        An address, localhost and `http.allowed_hosts` do.
        """
        if not self._http.checks_host or not host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in ("localhost", *map(str.lower, self._http.allowed_hosts)) or bool(ip_address(name))
        except ValueError:
            return False

    def admits(self, authorization: str) -> bool:
        """Return whether an `Authorization` header bears a token, if one is needed."""
        if not self.needs_token:
            return True
        scheme, _, token = authorization.partition(" ")
        digest = _digest(token.strip())
        matches = sum(hmac.compare_digest(digest, expected) for expected in self._digests)  # compares all of them
        return scheme.lower() == "bearer" and matches > 0


def read_tokens(path: Path) -> frozenset[bytes]:
    """Read the digests of the tokens in a file. Empty lines and lines that start with `#` are skipped.

    Raises:
        ConfigError: A line is not a token, or there is none. The message never repeats the text of the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8", hint=TOKEN_HINT) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=TOKEN_HINT) from None
    tokens = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        if len(line) < MIN_TOKEN_LENGTH or not line.isascii() or " " in line:
            raise ConfigError(f"{path}, line {number}: expected a token, found none", hint=TOKEN_HINT)
        if not line.isprintable():
            found = "a NUL" if "\0" in line else "a control character"
            raise ConfigError(f"{path}, line {number}: expected a token, found {found} in it", hint=TOKEN_HINT)
        tokens.append(_digest(line))
    if not tokens:
        raise ConfigError(f"{path}: expected a token, found none", hint=TOKEN_HINT)
    return frozenset(tokens)


def readable_by_others(http: Http) -> list[str]:
    """Return the files of secrets that every user of this machine can read."""
    paths = [path for path in (http.token_file, http.tls_keyfile) if path]
    return [path for path in paths if Path(path).stat().st_mode & stat.S_IROTH]


def load_certificate(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer with a certificate.

    Raises:
        ConfigError: The files are not a pair.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_password)
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or "they cannot be read"
        raise ConfigError(f"no TLS with {certfile} and {keyfile}: {reason}", hint=TLS_HINT) from None
    return context


def _refuse_password() -> str:
    # Without this function, OpenSSL asks on the terminal and a daemon hangs.
    raise ConfigError("http.tls_keyfile is encrypted", hint="decrypt it: openssl pkey -in KEY -out NEW_KEY")


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
