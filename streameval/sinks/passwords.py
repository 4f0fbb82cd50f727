"""Passwords as they are kept in a users file: scrypt, slow on purpose, with a salt for each."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error
from dataclasses import dataclass
from typing import Self

from streameval.errors import InputError

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
