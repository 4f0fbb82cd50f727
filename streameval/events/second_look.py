"""A second look at a message that the decoder refused: why it is rejected, or what of it counts all the same.

Slow and thorough, for the few. What concerns one candidate only does not cost the event: a probability of no use
(text, an object, a list with something else than numbers in it) becomes null, and that candidate is missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from streameval.events.rejections import Rejected

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, TypeError)
"""What a bad message may raise: wrong types, no JSON, not UTF-8 (a ValueError), too deep, no message at all."""

_REQUIRED = ("event_id", "timestamp", "action")
_DECODER_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at \$\.?(?P<field>.*))?")
_LONGEST_INTEGER = 300  # digits; longer ones go through float, which knows infinity


class _Refused(Exception):
    """Not an event, for this reason and with this detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def second_look(
    value: bytes | None,
    decode: Callable[[bytes], Any],
    fields: Collection[str],
    policies: Collection[str] | None,
    reward_field: str,
) -> Any:
    """The event that `decode` makes of the mended message, or `Rejected`.

    `fields` are the names read at the top level, `policies` those read inside `policies` (None = all of them).
    """
    if value is None:
        return Rejected("malformed", "a tombstone: the message has no value", b"")
    try:
        return decode(_mended(value, fields, policies, reward_field))
    except _Refused as refused:
        return Rejected(refused.reason, refused.detail, value)
    except UNREADABLE as error:
        return Rejected("malformed", _explained(error), value)


def _mended(value: bytes, fields: Collection[str], policies: Collection[str] | None, reward_field: str) -> bytes:
    tree, is_json = _parse(value)
    if not isinstance(tree, dict):
        raise _Refused("malformed", "not a JSON object")
    read = {field: tree[field] for field in fields if tree.get(field) is not None}
    if isinstance(read.get("policies"), dict):
        read["policies"] = {
            name: cell if _is_usable(cell) else None
            for name, cell in read["policies"].items()
            if policies is None or name in policies
        }
    for where, number in _non_finite(read if is_json else tree):
        raise _Refused("not_finite", f"{where}: {number} is not a finite number")
    for field in (*_REQUIRED, reward_field):
        if field not in read:
            raise _Refused("missing_field", f"{field}: missing")
    return json.dumps(read).encode()


def _parse(value: bytes) -> tuple[Any, bool]:
    """The message as Python values, and whether it is JSON: NaN and Infinity are read, but are not JSON."""
    literals: list[str] = []

    def remember(literal: str) -> float:
        literals.append(literal)
        return float(literal)

    return json.loads(value.decode(), parse_int=_integer, parse_constant=remember), not literals


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < _LONGEST_INTEGER else float(digits)


def _is_usable(cell: Any) -> bool:
    return type(cell) in (int, float) or (isinstance(cell, list) and all(type(item) in (int, float) for item in cell))


def _non_finite(tree: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Places and values of all numbers inside that are not finite."""
    if isinstance(tree, float) and not math.isfinite(tree):
        yield where, tree
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from _non_finite(item, f"{where}.{name}" if where else name)
    elif isinstance(tree, list):
        for place, item in enumerate(tree):
            yield from _non_finite(item, f"{where}[{place}]")


def _explained(error: Exception) -> str:
    """What a decoder's error says, as `field: problem`."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    message = _DECODER_MESSAGE.fullmatch(str(error).replace("`", "").replace(" | null", ""))
    problem, field = message.group("problem", "field") if message else (str(error), None)
    return f"{field}: {problem[0].lower()}{problem[1:]}" if field else problem
