"""A second look at a message that the decoder refused: why it is rejected, or what of it counts all the same.

Slow and thorough, for the few. What concerns one candidate only does not cost the event: a probability of no use
(text, an object, a list with something else than numbers in it) becomes null, and that candidate is missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from streameval.events.rejection import Rejected, rejection

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, TypeError)
"""What a bad message may raise: wrong types, no JSON, not UTF-8 (a ValueError), too deep, no message at all."""

_DECODER_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at \$\.?(?P<field>.*))?")
_SLOT = re.compile(r"^slots\[(\d+)\]")
LONGEST_MESSAGE = 16 * 2**20
"""Bytes; longer messages are not read at all. A broker takes a sixteenth of that unless it is told otherwise."""
LONGEST_LOOKED_AT = 4 * 2**20
"""Bytes; what is wrong with longer ones is told by the decoder alone, since this takes a second for ten megabytes."""
_LONGEST_INTEGER = 300  # digits; longer ones go through float, which knows infinity


class _Refused(Exception):
    """Not an event, for this reason and with this detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Form(NamedTuple):
    """One of the two forms of an event: what decodes it, the fields read at its top level, and those it must have."""

    decode: Callable[[bytes], Any]
    fields: Collection[str]
    required: Collection[str]


def second_look(value: bytes | None, event: Form, slate: Form, policies: Collection[str] | None) -> Any:
    """The event, plain or a slate, that is made of the mended message, or `Rejected`.

    `policies` are the names read inside `policies` (None = all of them).
    """
    if value is None:
        return Rejected("malformed", "a tombstone: the message has no value", b"")
    if len(value) > LONGEST_LOOKED_AT:
        return rejection("malformed", first_trouble(value, event), value)
    try:
        tree, is_json = parsed(value)
        if not isinstance(tree, dict):
            raise _Refused("malformed", "not a JSON object")
        form = event if tree.get("slots") is None else slate
        return form.decode(_mended(tree, is_json, form, policies))
    except _Refused as refused:
        return rejection(refused.reason, refused.detail, value)
    except UNREADABLE as error:
        return rejection("malformed", explained(error), value)


def first_trouble(value: bytes, form: Form) -> str:
    """What a decoder has against a message that is too long for a second look, or to be read at all."""
    if len(value) > LONGEST_MESSAGE:
        return f"{len(value)} bytes, more than the {LONGEST_MESSAGE} that are read"
    try:
        form.decode(value)
        value.decode()
    except UNREADABLE as error:
        return explained(error)
    return f"{len(value)} bytes, too many to find out what is wrong"


def _mended(tree: dict[str, Any], is_json: bool, form: Form, policies: Collection[str] | None) -> bytes:
    read = _block({field: tree[field] for field in form.fields if field in tree}, policies)
    slots = read.get("slots")
    if isinstance(slots, list):
        read["slots"] = [_block(slot, policies) if isinstance(slot, dict) else slot for slot in slots]
    for where, number in non_finite(read if is_json else tree):
        raise _Refused("not_finite", f"{_place(where)}: {number} is not a finite number")
    for field in form.required:
        if field not in read:
            raise _Refused("missing_field", f"{field}: missing")
    if isinstance(slots, list):
        _refuse_slots(read, slots)
    return json.dumps(read).encode()


def _block(fields: dict[str, Any], policies: Collection[str] | None) -> dict[str, Any]:
    """What an event or a slot says: nothing for null, and null for a candidate's probability that is of no use."""
    said = {field: value for field, value in fields.items() if value is not None}
    if isinstance(said.get("policies"), dict):
        said["policies"] = {
            name: cell if _is_usable(cell) else None
            for name, cell in said["policies"].items()
            if policies is None or name in policies
        }
    return said


def _refuse_slots(read: dict[str, Any], slots: list[Any]) -> None:
    for field in ("action", "propensity", "policies", "actions", "propensities", "features"):
        if field in read:
            raise _Refused("malformed", f"{field}: beside `slots`, which have their own")
    for place, slot in enumerate(slots):
        if isinstance(slot, dict) and slot.get("action") is None:
            raise _Refused("missing_field", f"slots.{place}.action: missing")


def parsed(value: bytes) -> tuple[Any, bool]:
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


def non_finite(tree: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Places and values of all numbers inside that are not finite."""
    if isinstance(tree, float) and not math.isfinite(tree):
        yield where, tree
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from non_finite(item, f"{where}.{name}" if where else name)
    elif isinstance(tree, list):
        for place, item in enumerate(tree):
            yield from non_finite(item, f"{where}[{place}]")


def explained(error: Exception) -> str:
    """What a decoder's error says, as `field: problem`."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    message = _DECODER_MESSAGE.fullmatch(str(error).replace("`", "").replace(" | null", ""))
    problem, field = message.group("problem", "field") if message else (str(error), None)
    return f"{_place(field)}: {problem[0].lower()}{problem[1:]}" if field else problem


def _place(where: str) -> str:
    """Slots are told by their number alone: `slots.1.action`."""
    return _SLOT.sub(r"slots.\1", where)
