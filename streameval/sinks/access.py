"""Who may read: bearer tokens and users with passwords, each from a file, compared in constant time."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from streameval.errors import ConfigError
from streameval.sinks.passwords import PasswordHash

SHORTEST_TOKEN = 16  # characters
MOST_REMEMBERED = 256
TOKEN_HINT = "one token a line, each of 16 characters or more; `openssl rand -hex 32` makes one"
USERS_HINT = "one NAME:HASH a line; `streameval hash-password NAME` makes one"
NOBODY = PasswordHash.parse("scrypt$16384$8$5$c3RyZWFtZXZhbA==$bm9ib2R5IGhhcyB0aGlzIHBhc3N3b3JkLCBub2JvZHk=")
"""Compared with when there is no such user, so that the time does not tell which users there are."""


@dataclass(frozen=True)
class Access:
    """The tokens (as digests) and users of two files; `of_files` reads them.

    Its answers are in two steps, because a password takes a fifth of a second: `knows` is quick and says yes to tokens
    and to what was found right before; `finds` computes the hash and remembers what is right. Of what it remembers
    only a keyed digest is kept.
    """

    tokens: frozenset[bytes]
    users: Mapping[str, PasswordHash]
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _remembered: dict[bytes, None] = field(default_factory=dict, repr=False)

    @classmethod
    def of_files(cls, token_file: str | None, users_file: str | None) -> Self | None:
        """What the files say; None without files. ConfigError, which never repeats their text, when they are wrong."""
        if token_file is None and users_file is None:
            return None
        tokens = read_tokens(Path(token_file)) if token_file else frozenset()
        return cls(tokens, read_users(Path(users_file)) if users_file else {})

    @property
    def challenges(self) -> tuple[str, ...]:
        """What a refused client is told to come with."""
        kinds = (("Bearer", self.tokens), ('Basic realm="streameval", charset="UTF-8"', self.users))
        return tuple(challenge for challenge, holders in kinds if holders)

    def knows(self, authorization: str) -> bool:
        """Whether the header bears a valid token, or a user and password that were right before."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            digest = _digest(given.strip())
            return sum(hmac.compare_digest(digest, each) for each in self.tokens) > 0  # all are looked at
        return self._remark(authorization) in self._remembered

    def finds(self, authorization: str) -> bool:
        """Whether the header holds a user and the right password; slow."""
        if not self.users or not (given := _user_and_password(authorization)):
            return False
        name, password = given
        known = self.users.get(name)
        right = (known or NOBODY).fits(password) and known is not None
        if right:
            while len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[self._remark(authorization)] = None
        return right

    def _remark(self, authorization: str) -> bytes:
        return hmac.digest(self._key, authorization.encode("utf-8", "surrogateescape"), "sha256")


def read_tokens(path: Path) -> frozenset[bytes]:
    """The digests of the tokens in a file; several, so that one can be replaced without a gap."""
    lines = dict(_lines(path, TOKEN_HINT))
    for number, line in lines.items():
        if len(line) < SHORTEST_TOKEN or not line.isascii() or " " in line:
            raise ConfigError(f"{path}, line {number}: expected a token, found none", hint=TOKEN_HINT)
    if not lines:
        raise ConfigError(f"{path}: expected a token, found none", hint=TOKEN_HINT)
    return frozenset(map(_digest, lines.values()))


def read_users(path: Path) -> dict[str, PasswordHash]:
    """The users in a file with the hashes of their passwords."""
    users: dict[str, PasswordHash] = {}
    for number, line in _lines(path, USERS_HINT):
        name, _, hashed = line.partition(":")
        try:
            parsed = PasswordHash.parse(hashed)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}, after the name: {error}", hint=USERS_HINT) from None
        if not name or name in users:
            raise ConfigError(f"{path}, line {number}: expected another name than before", hint=USERS_HINT)
        users[name] = parsed
    if not users:
        raise ConfigError(f"{path}: expected a user, found none", hint=USERS_HINT)
    return users


def _lines(path: Path, hint: str) -> Iterable[tuple[int, str]]:
    """The lines with their numbers; empty ones and those that begin with `#` say nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _user_and_password(authorization: str) -> tuple[str, str] | None:
    """What a header of HTTP's Basic scheme holds; None when it is none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = b64decode(given.strip(), validate=True).decode().partition(":")
    except (Error, ValueError):
        return None
    return name, password


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
