"""Messages that the fast decoder refused: decode what can be used of them, or find the reason for the rejection."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any, get_args

import msgspec

from streameval.events.validation import Fault

DECODE_ERRORS = (msgspec.DecodeError, ValueError, RecursionError, TypeError)
"""Errors of a bad message: a wrong type, invalid JSON, not UTF-8 (a ValueError), nested too deeply, or no value."""
MAX_MESSAGE_BYTES = 16 * 2**20
"""Longer messages are rejected unread. The default limit of a Kafka broker is a sixteenth of this."""
MAX_DIAGNOSED_BYTES = 4 * 2**20
"""Longer messages are only checked by the decoder, because a diagnosis takes a second for ten megabytes."""

TOMBSTONE = Fault("malformed", "a tombstone: the message has no value")
NOT_AN_OBJECT = Fault("malformed", "not a JSON object")

_DECODER_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at \$\.?(?P<field>.*))?")
_SLOT = re.compile(r"^slots\[(\d+)\]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_INTEGER_DIGITS = 300  # integers with more digits are read as floats, which may be infinite


class Diagnosis:
    """Decodes the usable part of a refused message, or explains the refusal.

    Null means absent. A policy's probability that is not a number or a list of numbers counts as missing for that
    policy, and the event is accepted.

    Args:
        event: the struct type of a plain event (or of any other message without slots)
        slate: the struct type of an event with slots
        policies: the names read inside `policies`; None = all
    """

    def __init__(
        self,
        event: type[msgspec.Struct],
        slate: type[msgspec.Struct] | None = None,
        policies: Collection[str] | None = None,
    ) -> None:
        self._event, self._slate, self._policies = event, slate or event, policies
        self._fields = {form: _readable_fields(form) for form in {self._event, self._slate}}

    def of_message(self, value: bytes | None) -> Any:
        """Return the decoded struct, or the `Fault` of a message that cannot be an event."""
        if value is None:
            return TOMBSTONE
        if len(value) > MAX_DIAGNOSED_BYTES:
            return Fault("malformed", self._decoder_error(value))
        try:
            tree, is_json = parse(value.decode())
        except DECODE_ERRORS as error:
            return Fault("malformed", explain(error))
        return self.of_tree(tree, is_json)

    def of_tree(self, tree: Any, is_json: bool = True) -> Any:
        """Return the struct made from parsed JSON or from a row of a table, or a `Fault`.

        `is_json`: False if NaN or Infinity was parsed, which is then looked for in ignored fields, too.
        """
        if not isinstance(tree, dict):
            return NOT_AN_OBJECT
        form = self._event if tree.get("slots") is None else self._slate
        try:
            fields = self._usable(tree, form)
            for fault in _bad_values(fields if is_json else tree):
                return fault
            return _absence(fields, self._fields[form]) or msgspec.convert(fields, form)
        except DECODE_ERRORS as error:
            return Fault("malformed", explain(error))

    def _usable(self, tree: dict[str, Any], form: type[msgspec.Struct]) -> dict[str, Any]:
        fields = self._without_nulls({field: tree[field] for field in self._fields[form] if field in tree})
        if isinstance(fields.get("slots"), list):
            fields["slots"] = [
                self._without_nulls(slot) if isinstance(slot, dict) else slot for slot in fields["slots"]
            ]
        return fields

    def _without_nulls(self, fields: dict[str, Any]) -> dict[str, Any]:
        given = {field: value for field, value in fields.items() if value is not None}
        if isinstance(given.get("policies"), dict):
            given["policies"] = {
                name: cell if _is_probability(cell) else None
                for name, cell in given["policies"].items()
                if self._policies is None or name in self._policies
            }
        return given

    def _decoder_error(self, value: bytes) -> str:
        if len(value) > MAX_MESSAGE_BYTES:
            return too_long(value)
        try:
            msgspec.json.decode(value, type=self._event)
            value.decode()
        except DECODE_ERRORS as error:
            return explain(error)
        return f"{len(value)} bytes, too long for a diagnosis"


def too_long(value: bytes) -> str:
    """Describe a message of more than `MAX_MESSAGE_BYTES`."""
    return f"{len(value)} bytes, more than the limit of {MAX_MESSAGE_BYTES}"


def parse(text: str) -> tuple[Any, bool]:
    """Parse JSON into Python values. The flag is False if the text has NaN or Infinity, which are not JSON."""
    literals: list[str] = []

    def constant(literal: str) -> float:
        literals.append(literal)
        return float(literal)

    def integer(digits: str) -> float:
        return int(digits) if len(digits) < _MAX_INTEGER_DIGITS else float(digits)

    return json.loads(text, parse_int=integer, parse_constant=constant), not literals


def non_finite(tree: Any) -> Fault | None:
    """Return the fault of the first number inside `tree` that is not finite."""
    return next((fault for fault in _bad_values(tree) if fault.reason == "not_finite"), None)


def explain(error: Exception) -> str:
    """Describe the error of a decoder as `field: problem`."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    message = _DECODER_MESSAGE.fullmatch(str(error).replace("`", "").replace(" | null", ""))
    problem, field = message.group("problem", "field") if message else (str(error), None)
    return f"{_path(field)}: {problem[0].lower()}{problem[1:]}" if field else problem


def _readable_fields(form: type[msgspec.Struct]) -> dict[str, bool]:
    """The fields of a type by name, and whether each is required; without those that are kept as raw JSON."""
    fields = msgspec.structs.fields(form)
    return {field.encode_name: field.required for field in fields if not _is_raw(field.type)}


def _is_raw(annotation: Any) -> bool:
    return annotation is msgspec.Raw or any(map(_is_raw, get_args(annotation)))


def _absence(fields: dict[str, Any], known: dict[str, bool]) -> Fault | None:
    for field, required in known.items():
        if required and field not in fields:
            return Fault("missing_field", f"{field}: missing")
    slots = fields.get("slots")
    if not isinstance(slots, list):
        return None
    for field in ("action", "propensity", "policies", "actions", "propensities", "features"):
        if field in fields:
            return Fault("malformed", f"{field}: not allowed beside `slots`")
    for number, slot in enumerate(slots):
        if isinstance(slot, dict) and "action" not in slot:
            return Fault("missing_field", f"slots.{number}.action: missing")
    return None


def _is_probability(cell: Any) -> bool:
    return type(cell) in (int, float) or (isinstance(cell, list) and all(type(item) in (int, float) for item in cell))


def _bad_values(tree: Any, where: str = "") -> Iterator[Fault]:
    """Faults of all values inside: numbers that are not finite, strings that are not Unicode text."""
    if isinstance(tree, float):
        if not math.isfinite(tree):
            yield Fault("not_finite", f"{_path(where)}: {tree} is not a finite number")
    elif isinstance(tree, str):
        if not tree.isascii() and _LONE_SURROGATE.search(tree):
            yield Fault("malformed", f"{_path(where)}: not UTF-8")
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from _bad_values(name, where or "names")
            yield from _bad_values(item, f"{where}.{name}" if where else name)
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _bad_values(item, f"{where}[{number}]")


def _path(where: str) -> str:
    """The path with slots by number alone: `slots.1.action`."""
    return _SLOT.sub(r"slots.\1", where)
