"""Hold partition, offset and identity of events, for deduplication, event-time order and reward joins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streameval.events.action_sets import Columns, Index
from streameval.events.schema import Identifier

Identity = NDArray[np.uint64]

NO_IDENTITY = np.uint64(0)
"""Identity of an event with an empty `event_id`. It equals no other identity, not even another `NO_IDENTITY`."""

_MAX_WORDWISE_BYTES = 64  # longer identifiers are shortened by a cryptographic hash first
_SALTS = np.arange(1, _MAX_WORDWISE_BYTES // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, eq=False)
class Origin(Columns):
    """Hold the positions of n messages of one topic, and the identities of their events.

    Attributes:
        topic: name of the topic
        partition: [n] partition of each message
        offset: [n] offset of each message in its partition
        identity: [n] `fingerprints` of the event ids, None if not requested
        row: [n] index of each event in its message, None if messages have one event each
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"partition": None, "offset": None, "identity": None, "row": 0}

    topic: str
    partition: Index
    offset: Index
    identity: Identity | None = None
    row: Index | None = None

    @classmethod
    def from_parts(cls, topic: str, parts: Iterable[tuple[int, Sequence[int]]]) -> Origin:
        """Build from pairs of a partition and its offsets, one pair after the other."""
        pairs = list(parts)
        sizes = [len(offsets) for _, offsets in pairs]
        partition = np.repeat(np.array([number for number, _ in pairs], dtype=np.int64), sizes)
        offsets = [np.asarray(offsets, dtype=np.int64) for _, offsets in pairs]
        return cls(topic, partition, np.concatenate([np.empty(0, dtype=np.int64), *offsets]))

    def position(self, row: int) -> tuple[str, int, int]:
        """Return topic, partition and offset of a row."""
        return self.topic, int(self.partition[row]), int(self.offset[row])


def fingerprints(identifiers: Sequence[Identifier]) -> Identity:
    """Return a 64-bit hash of each identifier, equal in every process.

    A number has the hash of its digits, and "" has `NO_IDENTITY`. The hash sums the splitmix64 finaliser (Steele, Lea &
    Flood, 2014) of the 8-byte words of an identifier and their positions. A new identifier collides with one of a
    million others with probability 5e-14.

    >>> one, other, number, text, nothing = fingerprints(["e-1", "e-2", 17, "17", ""])
    >>> bool(one != other), bool(number == text), int(nothing)
    (True, True, 0)
    """
    texts = _texts(identifiers)
    sizes = np.array(list(map(len, texts)), dtype=np.uint64)
    width = -(-max(map(len, texts), default=1) // 8) or 1
    words = np.array(texts, dtype=f"S{8 * width}").view("<u8").reshape(len(texts), width)
    summed = mix64(sizes)
    for position, salt in enumerate(_SALTS[:width]):
        summed += np.where(sizes > np.uint64(8 * position), mix64(words[:, position] + salt), NO_IDENTITY)
    return np.where(sizes > 0, np.maximum(mix64(summed), np.uint64(1)), NO_IDENTITY)


def name_fingerprints(names: Sequence[Identifier | None]) -> Identity | None:
    """Return the hash of each unit or logging policy, `NO_IDENTITY` for None. Return None if there are no others."""
    if names.count(None) == len(names):
        return None
    distinct = list(dict.fromkeys(names))
    codes = dict(zip(distinct, fingerprints(["" if name is None else name for name in distinct]).tolist(), strict=True))
    return np.array([codes[name] for name in names], dtype=np.uint64)


def _texts(identifiers: Sequence[Any]) -> list[bytes]:
    try:
        texts = list(map(str.encode, identifiers))
    except (TypeError, UnicodeEncodeError):  # a number, or half of a surrogate pair
        texts = [str(identifier).encode("utf-8", "surrogatepass") for identifier in identifiers]
    if max(map(len, texts), default=0) > _MAX_WORDWISE_BYTES:
        return [
            text if len(text) <= _MAX_WORDWISE_BYTES else hashlib.blake2b(text, digest_size=32).digest()
            for text in texts
        ]
    return texts


def mix64(words: Identity) -> Identity:
    """Apply the finaliser of splitmix64, so that each of the 64 bits depends on all bits of the word."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))
