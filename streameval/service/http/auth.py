"""Access and encryption: tokens, users with passwords and a certificate, each from a file that may change."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import ssl
import stat
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import structlog

from streameval.config.model import Http
from streameval.errors import ConfigError, InputError

HASH_PREFIX = "scrypt$16384$8$5$"
COST = {"n": 2**14, "r": 8, "p": 5, "maxmem": 2**25, "dklen": 32}
"""16 MB and about a fifth of a second, as OWASP's cheat sheet on storing passwords recommends."""
SALT_BYTES = 16
HASH = re.compile(re.escape(HASH_PREFIX) + r"[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{43}=")
HASH_OF_NO_PASSWORD = HASH_PREFIX + "c3RyZWFtZXZhbC1ub2JvZA==$bm9ib2R5IGhhcyB0aGlzIHBhc3N3b3JkLCBub2JvZHktLS0="
"""The hash that is compared for an unknown user, so that the response time does not reveal which users exist."""
SHORTEST_TOKEN = 16  # characters
MOST_REMEMBERED = 256
TOKEN_HINT = "one token per line, each of 16 characters or more; `openssl rand -hex 32` creates one"
USERS_HINT = "one NAME:HASH per line; `streameval hash-password NAME` creates one"
TLS_HINT = (
    "http.tls_certfile and http.tls_keyfile are PEM files of one pair: the certificate (with its chain) and its key"
)
FILES_CHECKED_EVERY = 30  # seconds; certificates and tokens are renewed while the daemon runs

log = structlog.get_logger("streameval.security")


def hash_password(password: str, salt: bytes | None = None) -> str:
    """The scrypt hash of a password with its own salt, as a users file holds it.

    Raises:
        InputError: The password is empty.
    """
    if not password:
        raise InputError("expected a password, found nothing", hint="write it on one line")
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    key = hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, **COST)
    return f"{HASH_PREFIX}{b64encode(salt).decode()}${b64encode(key).decode()}"


def fits(hashed: str, password: str) -> bool:
    """Whether `hashed` is the hash of `password`; takes as long for a wrong one as for the right one.

    >>> fits(hash_password("correct horse"), "correct horse"), fits(hash_password("correct horse"), "battery staple")
    (True, False)
    """
    salt = b64decode(hashed.split("$")[4])
    return hmac.compare_digest(hashed, hash_password(password or "\0", salt))


def checked_name(name: str) -> str:
    """The name of a user.

    Raises:
        InputError: The name does not fit into a line of a users file.
    """
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise InputError(f"expected a name, found {name!r}", hint="a name is printable text without a colon")
    return name


@dataclass(frozen=True)
class Access:
    """The tokens (as digests) and users of two files.

    A login is checked in two steps, because a password takes a fifth of a second: `knows` is quick and accepts tokens
    and logins that were right before; `finds` computes the hash and remembers a right one, as a keyed digest.
    """

    tokens: frozenset[bytes]
    users: Mapping[str, str]
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _remembered: dict[bytes, None] = field(default_factory=dict, repr=False)

    @classmethod
    def of_files(cls, token_file: str | None, users_file: str | None) -> Self | None:
        """Read the files; None without files. ConfigError, which never repeats their text, when they are invalid."""
        if token_file is None and users_file is None:
            return None
        tokens = read_tokens(Path(token_file)) if token_file else frozenset()
        return cls(tokens, read_users(Path(users_file)) if users_file else {})

    @property
    def challenges(self) -> tuple[str, ...]:
        """The schemes of HTTP authentication that a refused client may use."""
        kinds = (("Bearer", self.tokens), ('Basic realm="streameval", charset="UTF-8"', self.users))
        return tuple(challenge for challenge, holders in kinds if holders)

    def knows(self, authorization: str) -> bool:
        """Whether the header bears a valid token, or a user and password that were right before."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            digest = _digest(given.strip())
            return sum(hmac.compare_digest(digest, each) for each in self.tokens) > 0  # all are compared
        return self._keyed(authorization) in self._remembered

    def finds(self, authorization: str) -> bool:
        """Whether the header of HTTP's Basic scheme holds a user and the right password; slow."""
        scheme, _, given = authorization.partition(" ")
        if not self.users or scheme.lower() != "basic":
            return False
        try:
            name, _, password = b64decode(given.strip(), validate=True).decode().partition(":")
        except (Error, ValueError):
            return False
        right = fits(self.users.get(name, HASH_OF_NO_PASSWORD), password) and name in self.users
        if right:
            while len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[self._keyed(authorization)] = None
        return right

    def _keyed(self, authorization: str) -> bytes:
        return hmac.digest(self._key, authorization.encode("utf-8", "surrogateescape"), "sha256")


def read_tokens(path: Path) -> frozenset[bytes]:
    """The digests of the tokens in a file; several, so that one can be replaced without a gap.

    Raises:
        ConfigError: A line is not a token, or there is none.
    """
    lines = dict(_lines(path, TOKEN_HINT))
    for number, line in lines.items():
        if len(line) < SHORTEST_TOKEN or not line.isascii() or " " in line:
            raise ConfigError(f"{path}, line {number}: expected a token, found none", hint=TOKEN_HINT)
    if not lines:
        raise ConfigError(f"{path}: expected a token, found none", hint=TOKEN_HINT)
    return frozenset(map(_digest, lines.values()))


def read_users(path: Path) -> dict[str, str]:
    """The users in a file with the hashes of their passwords.

    Raises:
        ConfigError: A line is not a user with a hash, a name is repeated, or there is none.
    """
    users: dict[str, str] = {}
    for number, line in _lines(path, USERS_HINT):
        name, _, hashed = line.partition(":")
        if not HASH.fullmatch(hashed):
            raise ConfigError(f"{path}, line {number}: expected {HASH_PREFIX}SALT$KEY after the name", hint=USERS_HINT)
        if not name or name in users:
            raise ConfigError(f"{path}, line {number}: expected a user name that no earlier line has", hint=USERS_HINT)
        users[name] = hashed
    if not users:
        raise ConfigError(f"{path}: expected a user, found none", hint=USERS_HINT)
    return users


def _lines(path: Path, hint: str) -> Iterable[tuple[int, str]]:
    """The lines with their numbers, without empty ones and those that start with `#`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


class Security:
    """Access (`access`, None admits everyone) and TLS (`context`, None is unencrypted).

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.access = Access.of_files(http.token_file, http.users_file)
        for path in readable_by_others(http):
            log.warning("secret_readable", path=path, hint="chmod o-r: every user of this machine can read it")
        self.context = make_context(http.tls_certfile, http.tls_keyfile)
        self._stamps = self._look()

    def admits(self, host: str) -> bool:
        """Whether a `Host` header names this server: by an address, as localhost, or by one of `http.allowed_hosts`."""
        if not self._http.checks_host or not host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in ("localhost", *map(str.lower, self._http.allowed_hosts)) or bool(ip_address(name))
        except ValueError:
            return False

    async def renew(self) -> None:
        """Read files that have changed; one that cannot be used is logged, and changes nothing."""
        before, self._stamps = self._stamps, self._look()
        if before == self._stamps:
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


def readable_by_others(http: Http) -> list[str]:
    """The files of secrets that every user of this machine can read."""
    paths = [path for path in (http.token_file, http.users_file, http.tls_keyfile) if path]
    return [path for path in paths if Path(path).stat().st_mode & stat.S_IROTH]


def make_context(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with this certificate; None without one."""
    if certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certfile, keyfile)
    return context


def load_certificate(context: ssl.SSLContext, certfile: str | None, keyfile: str | None) -> None:
    """Use this certificate from the next connection on.

    Raises:
        ConfigError: The files are not a pair.
    """
    try:
        context.load_cert_chain(str(certfile), keyfile, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or "they cannot be read"
        raise ConfigError(f"no TLS with {certfile} and {keyfile}: {reason}", hint=TLS_HINT) from None


def _no_password() -> str:
    # Without this OpenSSL asks on the terminal, and a daemon hangs.
    raise ConfigError("http.tls_keyfile is encrypted", hint="decrypt it: openssl pkey -in KEY -out NEW_KEY")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)
