"""Who may read: bearer tokens and users with passwords, each from a file, compared in constant time.

Passwords as they are kept in a users file: scrypt, slow on purpose, with a salt for each.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from streameval.errors import ConfigError, InputError

KIND = "scrypt"
COST, BLOCK, PARALLEL = 2**14, 8, 5  # 16 MB and about a fifth of a second, OWASP's cheat sheet on storing passwords
LARGEST_COST, LARGEST_BLOCK, LARGEST_PARALLEL = 2**17, 16, 16  # what a line in a file may make us spend
SALT_BYTES, KEY_BYTES = 16, 32


@dataclass(frozen=True)
class PasswordHash:
    """What is known of a password: `scrypt$COST$BLOCK$PARALLEL$SALT$KEY`, salt and key in base64.

    >>> PasswordHash.of("correct horse").fits("correct horse")
    True
    >>> PasswordHash.parse(str(PasswordHash.of("correct horse"))).fits("battery staple")
    False
    """

    cost: int
    block: int
    parallel: int
    salt: bytes
    key: bytes

    @classmethod
    def of(cls, password: str) -> Self:
        """The hash of a password, with a salt of its own; InputError for an empty one."""
        if not password:
            raise InputError("expected a password, found nothing", hint="write it on one line")
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(COST, BLOCK, PARALLEL, salt, _scrypt(password, COST, BLOCK, PARALLEL, salt))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; ValueError, which does not repeat the text, when it is none."""
        kind, *numbers, salt, key = text.split("$") if text.count("$") == 5 else ("", "", "")
        if kind != KIND or not all(number.isdecimal() for number in numbers):
            raise ValueError("expected scrypt$COST$BLOCK$PARALLEL$SALT$KEY")
        cost, block, parallel = map(int, numbers)
        if not (
            2 <= cost <= LARGEST_COST
            and cost.bit_count() == 1
            and 1 <= block <= LARGEST_BLOCK
            and 1 <= parallel <= LARGEST_PARALLEL
        ):
            raise ValueError("expected a hash of a cost that can be paid")
        try:
            return cls(cost, block, parallel, b64decode(salt, validate=True), b64decode(key, validate=True))
        except Error:
            raise ValueError("expected salt and key in base64") from None

    def __str__(self) -> str:
        parts = (KIND, self.cost, self.block, self.parallel, _text(self.salt), _text(self.key))
        return "$".join(map(str, parts))

    def fits(self, password: str) -> bool:
        """Whether it is the hash of `password`; takes as long for a wrong one as for the right one."""
        return hmac.compare_digest(self.key, _scrypt(password, self.cost, self.block, self.parallel, self.salt))


def checked_name(name: str) -> str:
    """The name of a user, if it can be one; InputError else."""
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise InputError(f"expected a name, found {name!r}", hint="a name is printable text without a colon")
    return name


def _scrypt(password: str, cost: int, block: int, parallel: int, salt: bytes) -> bytes:
    memory = 128 * block * (cost + parallel + 2)
    encoded = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(encoded, salt=salt, n=cost, r=block, p=parallel, maxmem=2 * memory, dklen=KEY_BYTES)


def _text(data: bytes) -> str:
    return b64encode(data).decode()


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
