"""Messages that were gone before they were read: which kind of gap it is, how many are missing, and what then."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import structlog

from streameval.errors import SourceError

log = structlog.get_logger(__name__)

WHAT_HAPPENED = {
    "deleted": "messages of {log} were deleted before they were read",
    "cut": "{log} was cut behind us: it ends before what was read of it",
    "replaced": "{log} was made anew: what has its name now is another one",
}
WHAT_TO_DO = {
    "deleted": "keep messages longer (retention.ms, retention.bytes)",
    "cut": "find out why the log lost its end (an unclean leader election, a restored disk)",
    "replaced": "find out who made it anew",
}


class Gaps:
    """Counts gaps of a log, by kind, and what they cost; says so once each, and stops the source where it is told to.

    `on_lost`: `fail` raises SourceError at the first gap; `continue` goes on behind it.
    """

    def __init__(self, name: str, on_lost: Literal["continue", "fail"]) -> None:
        self._name, self._on_lost = name, on_lost
        self.lost = 0
        self.kinds: Counter[str] = Counter()

    def found(self, kind: str, lost: int, **numbers: object) -> None:
        """A gap of one of `GAPS`, in which so many messages are known to be missing; `numbers` tell where it is."""
        self.kinds[kind] += 1
        self.lost += lost
        happened = WHAT_HAPPENED[kind].format(log=self._name)
        if self._on_lost == "fail":
            told = ", ".join(f"{name} {value}" for name, value in numbers.items())
            raise SourceError(
                f"{happened}; known to be lost: {lost} ({told})",
                hint=f"{WHAT_TO_DO[kind]}; to go on without them, set source.on_lost_offsets to continue",
            )
        log.warning("messages_lost", kind=kind, log=self._name, lost=lost, reason=happened, **numbers)


class Gap(NamedTuple):
    """What became of the messages from a position on, how many are known to be lost, and where to go on."""

    kind: str
    lost: int
    place: int


def going_on(position: int, place: int | None, first: int, end: int, *, same_log: bool) -> Gap:
    """How to go on in a log of the offsets `first` to `end` (exclusive) that no longer has `position`.

    `place`: where the client says that the log was cut; None = it does not know. A log that ends before `position` was
    cut there; unless it is known to be the same one, take it for a successor, all of which is new. Where it was cut,
    nothing is known to be lost: what the log lost had been read. What came since may reach back before its end, but
    that cannot be told from what was read.

    >>> going_on(3, None, first=10, end=20, same_log=True)
    Gap(kind='deleted', lost=7, place=10)
    >>> going_on(30, None, first=10, end=20, same_log=True)
    Gap(kind='cut', lost=0, place=20)
    >>> going_on(30, None, first=10, end=20, same_log=False)
    Gap(kind='replaced', lost=0, place=10)
    """
    if place is not None:
        return Gap("cut" if place < position else "deleted", max(0, place - position), place)
    if position <= end:
        return Gap("deleted", max(0, first - position), max(position, first))
    return Gap("cut", 0, end) if same_log else Gap("replaced", 0, first)
