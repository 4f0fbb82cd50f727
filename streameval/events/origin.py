"""Where events come from, and what identifies them, as columns: for who drops duplicates, orders and joins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Mask
from streameval.events.action_sets import Index
from streameval.events.schema import Identifier

Identity = NDArray[np.uint64]

NOBODY = np.uint64(0)
"""The identity of an event whose `event_id` is empty: equal to no other."""

_LONGEST_WORD_BY_WORD = 64  # bytes; what is longer goes through a cryptographic hash first
_SALTS = np.arange(1, _LONGEST_WORD_BY_WORD // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The places of n messages of one topic, and the fingerprints of the events that they hold.

    partition, offset: [n]
    identity: [n] `fingerprints` of the event ids; None where nobody asked for them
    """

    topic: str
    partition: Index
    offset: Index
    identity: Identity | None = None

    @classmethod
    def of(cls, topic: str, parts: Iterable[tuple[int, Sequence[int]]]) -> Origin:
        """Those of messages that came as partitions and their offsets, one part after the other.

        >>> origin = Origin.of("clicks", [(0, [7, 8]), (3, [5])])
        >>> origin.partition, origin.offset
        (array([0, 0, 3]), array([7, 8, 5]))
        """
        given = list(parts)
        sizes = [len(offsets) for _, offsets in given]
        partition = np.repeat(np.array([number for number, _ in given], dtype=np.int64), sizes)
        offsets = [np.asarray(offsets, dtype=np.int64) for _, offsets in given]
        return cls(topic, partition, np.concatenate([np.empty(0, dtype=np.int64), *offsets]))

    def __len__(self) -> int:
        return len(self.offset)

    def __bool__(self) -> bool:
        return True  # an origin of no messages is one, too

    def take(self, rows: slice | Index | Mask) -> Origin:
        """Those of these rows, in this order."""
        identity = None if self.identity is None else self.identity[rows]
        return Origin(self.topic, self.partition[rows], self.offset[rows], identity)

    @property
    def nbytes(self) -> int:
        """Memory that the columns take."""
        return self.partition.nbytes + self.offset.nbytes + (0 if self.identity is None else self.identity.nbytes)

    def place(self, row: int) -> tuple[str, int, int]:
        """Topic, partition and offset of one of them."""
        return self.topic, int(self.partition[row]), int(self.offset[row])

    @classmethod
    def concat(cls, parts: Sequence[Origin]) -> Origin:
        """Those of all parts, which are of one topic; without fingerprints if one part has none."""
        identities = [part.identity for part in parts if part.identity is not None]
        return cls(
            parts[0].topic,
            np.concatenate([part.partition for part in parts]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate(identities) if len(identities) == len(parts) else None,
        )

    def to_state(self) -> dict[str, Any]:
        """The columns by name."""
        return {name: getattr(self, name) for name in ("topic", "partition", "offset", "identity")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Origin:
        """The inverse of `to_state`."""
        return cls(**state)


def fingerprints(identifiers: Sequence[Identifier]) -> Identity:
    """64 bits for each event id, the same in every process; a number has those of its digits, "" has `NOBODY`.

    Among a million ids, a new one is taken for one of them by accident with probability 5e-14. The sum, over the words
    of 8 bytes of an id, of the finaliser of splitmix64 (Steele, Lea & Flood, 2014) of the word and its place.

    >>> one, other, number, text, nobody = fingerprints(["e-1", "e-2", 17, "17", ""])
    >>> bool(one != other), bool(number == text), int(nobody)
    (True, True, 0)
    """
    texts = _texts(identifiers)
    sizes = np.array(list(map(len, texts)), dtype=np.uint64)
    width = -(-max(map(len, texts), default=1) // 8) or 1
    words = np.array(texts, dtype=f"S{8 * width}").view("<u8").reshape(len(texts), width)
    summed = mixed(sizes)
    for place, salt in enumerate(_SALTS[:width]):
        summed += np.where(sizes > np.uint64(8 * place), mixed(words[:, place] + salt), NOBODY)
    return np.where(sizes > 0, np.maximum(mixed(summed), np.uint64(1)), NOBODY)


def units_of(given: Sequence[Identifier | None]) -> Identity | None:
    """The fingerprints of the units that events belong to, `NOBODY` where one names none; None where none does."""
    if given.count(None) == len(given):
        return None
    return fingerprints(["" if unit is None else unit for unit in given])


def _texts(identifiers: Sequence[Any]) -> list[bytes]:
    try:
        texts = list(map(str.encode, identifiers))
    except (TypeError, UnicodeEncodeError):  # a number, or half of a surrogate pair
        texts = [str(identifier).encode("utf-8", "surrogatepass") for identifier in identifiers]
    if max(map(len, texts), default=0) > _LONGEST_WORD_BY_WORD:
        return [text if len(text) <= _LONGEST_WORD_BY_WORD else _digest(text) for text in texts]
    return texts


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=32).digest()


def mixed(words: Identity) -> Identity:
    """The finaliser of splitmix64: 64 bits each of which depends on all 64 of a word."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))
