"""Login and certificate as their files say, read again when the files change."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from streameval.config.model import Http
from streameval.errors import ConfigError
from streameval.service.http.auth import Access

log = structlog.get_logger("streameval.security")

LOOKS_EVERY = 30  # seconds; certificates and tokens are renewed while the daemon runs
TLS_HINT = (
    "http.tls_certfile and http.tls_keyfile are PEM files of one pair: the certificate (with its chain) and its key"
)


class Security:
    """Who may read (`access`, None is everybody) and how it is encrypted (`context`, None is not).

    Raises ConfigError when a file cannot be used.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.access = Access.of_files(http.token_file, http.users_file)
        self.context = make_context(http.tls_certfile, http.tls_keyfile)
        self._seen = self._look()

    async def renew(self) -> None:
        """Read files that have changed; what cannot be used is logged, and changes nothing."""
        before, self._seen = self._seen, self._look()
        if before == self._seen:
            return
        try:
            access = Access.of_files(self._http.token_file, self._http.users_file)
            make_context(self._http.tls_certfile, self._http.tls_keyfile)  # half of a pair would spoil the one in use
            if self.context is not None:
                load_certificate(self.context, self._http.tls_certfile, self._http.tls_keyfile)
        except ConfigError as error:
            log.error("security_not_renewed", error=error.message, hint=error.hint)
        else:
            self.access = access
            log.info("security_renewed")

    def _look(self) -> list[tuple[int, int]]:
        http = self._http
        paths = (http.tls_certfile, http.tls_keyfile, http.token_file, http.users_file)
        return [_stamp(Path(path)) for path in paths if path]


def make_context(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with this certificate; None without one."""
    if certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certfile, keyfile)
    return context


def load_certificate(context: ssl.SSLContext, certfile: str | None, keyfile: str | None) -> None:
    """Show this certificate from the next connection on; ConfigError when the files are no pair."""
    try:
        context.load_cert_chain(str(certfile), keyfile, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        what = getattr(error, "reason", None) or error.strerror or "they cannot be read"
        raise ConfigError(f"no TLS with {certfile} and {keyfile}: {what}", hint=TLS_HINT) from None


def _no_password() -> str:
    # Without this OpenSSL asks on the terminal, and a daemon hangs.
    raise ConfigError("http.tls_keyfile is encrypted", hint="decrypt it: openssl pkey -in KEY -out NEW_KEY")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)
