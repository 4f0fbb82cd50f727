"""Decode what can be used of messages that the fast decoder refused, or find the reason of their rejection."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np

from streameval.events.validation import Fault

DECODE_ERRORS = (msgspec.DecodeError, ValueError, RecursionError, TypeError)
"""Errors of a bad message: a wrong type, invalid JSON, not UTF-8 (a ValueError), nested too deeply, no value."""
MAX_MESSAGE_BYTES = 16 * 2**20  # longer messages are rejected unread; a Kafka broker accepts a sixteenth by default
EXCERPT_BYTES = 1024  # that are kept of a message which is cut before it is in memory as a whole
MAX_DEPTH = 100  # of values of any type: code that reads them, and snapshots, visit them by recursion
MAX_DIAGNOSED_BYTES = 4 * 2**20  # longer messages are only decoded: a diagnosis takes a second for ten megabytes
MAX_TEXT = 40
"""Characters of text in place of a number that the detail of a rejection shows."""

_DECODER_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at \$\.?(?P<field>.*))?")
_MISSING = re.compile("Object missing required field (.*)")
_SLOT = re.compile(r"^slots\[(\d+)\]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_CUT = re.compile(rb"\.\.\. \(cut: (a (?:line|message) of \d+ bytes)\)$")
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_MAX_INTEGER_DIGITS = 300  # integers with more digits are read as floats, which may be infinite


def cut(start: bytes, size: int, kind: Literal["line", "message"]) -> bytes:
    """Return an excerpt of a message that is too long, and a remark. No decoder accepts it as an event.

    >>> message = cut(b"{" * 2000, 9000, "line")
    >>> len(message), cut_fault(message)
    (1055, Fault(reason='malformed', detail='a line of 9000 bytes, more than the limit'))
    """
    return start[:EXCERPT_BYTES] + b"... (cut: a %s of %d bytes)" % (kind.encode(), size)


def cut_fault(message: bytes) -> Fault | None:
    """Return the fault of a message that was cut, None for others. Call it if the message cannot be decoded."""
    remark = _CUT.search(message, max(0, len(message) - 100)) if message.endswith(b" bytes)") else None
    return None if remark is None else Fault("malformed", f"{remark[1].decode()}, more than the limit")


class Diagnosis:
    """Decode the usable part of a refused message, or explain the refusal.

    Null means absent. A policy's probability that is not a number or a list of numbers counts as missing for that
    policy, and the event is accepted.

    Args:
        form: the struct type of the message
        policies: the names read inside `policies`, or None for all
        is_cell: tells whether a policy can have a value. Other values count as missing. None = probabilities
        event_of: return the fields of a message that names them otherwise
    """

    def __init__(
        self,
        form: type[msgspec.Struct],
        policies: Collection[str] | None = None,
        is_cell: Callable[[Any], bool] | None = None,
        event_of: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self._form, self._policies, self._event_of = form, policies, event_of
        self._is_cell = is_cell or _is_probability
        self._fields, self._slot_fields = read_fields(form), _fields_of_slots(form)

    def decode_message(self, value: bytes, error: Exception) -> Any:
        """Return the decoded struct, or the `Fault` of a message that the decoder refused with `error`."""
        if len(value) > MAX_DIAGNOSED_BYTES or isinstance(error, RecursionError):
            return refusal(error)
        try:
            tree, is_json = parse(value.decode())
        except DECODE_ERRORS as reason:
            return refusal(reason)
        if is_json and self._event_of is not None and isinstance(tree, dict):
            tree = self._event_of(tree)
        return self.decode_tree(tree, is_json)

    def decode_tree(self, tree: Any, is_json: bool = True) -> Any:
        """Return the struct made from parsed JSON or from a row of a table, or a `Fault`.

        Args:
            tree: the parsed message
            is_json: False if NaN or Infinity was parsed, which is then looked for in ignored fields, too
        """
        if not isinstance(tree, dict):
            return Fault("malformed", "not a JSON object")
        try:
            fields = self._without_nulls({field: tree[field] for field in self._fields if field in tree})
            slots, scored = fields.get("slots"), fields.get("scored")
            if isinstance(slots, list):
                kept = self._slot_fields
                fields["slots"] = [
                    self._without_nulls({name: slot[name] for name in kept if name in slot})
                    if isinstance(slot, dict)
                    else slot
                    for slot in slots
                ]
            if isinstance(scored, dict):
                fields["scored"] = self._without_nulls(scored)
            for fault in _bad_values(fields if is_json else tree):
                return fault
            return msgspec.convert(fields, self._form)
        except DECODE_ERRORS as error:
            return _with_text(refusal(error), tree)

    def _without_nulls(self, fields: dict[str, Any]) -> dict[str, Any]:
        present = {field: value for field, value in fields.items() if value is not None}
        if isinstance(present.get("policies"), list):
            present["policies"] = [cell if self._is_cell(cell) else None for cell in present["policies"]]
        if isinstance(present.get("policies"), dict):
            present["policies"] = {
                name: cell if self._is_cell(cell) else None
                for name, cell in present["policies"].items()
                if self._policies is None or name in self._policies
            }
        return present


def _with_text(fault: Fault, tree: Mapping[str, Any]) -> Fault:
    """Add the text that a message has in place of a number."""
    field, _, problem = fault.detail.partition(": ")
    is_text = problem.endswith("float, got str") and isinstance(tree.get(field), str)
    return fault._replace(detail=f"{fault.detail}: {tree[field][:MAX_TEXT]!r}") if is_text else fault


def require_shallow(text: bytes) -> None:
    """Check how deeply the lists and objects of a JSON text are nested, without a recursion.

    Raises:
        RecursionError: Deeper than `MAX_DEPTH`.

    >>> require_shallow(b"[" * 100 + b'"[{"' + b"]" * 100)
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    depth = _STEPS[np.frombuffer(_TEXT.sub(b"", text), dtype=np.uint8)].cumsum(dtype=np.int32)
    if depth.max(initial=0) > MAX_DEPTH:
        raise RecursionError(f"nested deeper than {MAX_DEPTH} levels")


def parse(text: str) -> tuple[Any, bool]:
    """Parse JSON into Python values.

    Returns:
        The values, and whether the text is JSON: False if it has NaN or Infinity.
    """
    literals: list[str] = []

    def constant(literal: str) -> float:
        literals.append(literal)
        return float(literal)

    def integer(digits: str) -> float:
        return int(digits) if len(digits) < _MAX_INTEGER_DIGITS else float(digits)

    return json.loads(text, parse_int=integer, parse_constant=constant), not literals


def refusal(error: Exception) -> Fault:
    """Return the fault of a message that a decoder refused with this error."""
    detail = explain(error)
    return Fault("missing_field" if detail.endswith(": missing") else "malformed", detail)


def explain(error: Exception) -> str:
    """Describe the error of a decoder as `field: problem`."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(error, msgspec.DecodeError):
        return f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error) or type(error).__name__
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    message = _DECODER_MESSAGE.fullmatch(str(error).replace("`", "").replace(" | null", ""))
    problem, field = message.group("problem", "field") if message else (str(error), None)
    if missing := _MISSING.fullmatch(problem):
        return f"{_shown(f'{field}.{missing[1]}' if field else missing[1])}: missing"
    return f"{_shown(field)}: {problem[0].lower()}{problem[1:]}" if field else problem


@lru_cache(maxsize=32)
def read_fields(form: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields of a struct type, without the ones that stay raw JSON."""
    return tuple(field.encode_name for field in msgspec.structs.fields(form) if not _is_raw(field.type))


def _fields_of_slots(form: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields of slots, as `read_fields`, empty for forms without slots."""
    annotations = [field.type for field in msgspec.structs.fields(form) if field.encode_name == "slots"]
    while annotations:
        annotation = annotations.pop()
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            return read_fields(annotation)
        annotations += get_args(annotation)
    return ()


def _is_raw(annotation: Any) -> bool:
    return annotation is msgspec.Raw or any(map(_is_raw, get_args(annotation)))


def _is_probability(cell: Any) -> bool:
    return type(cell) in (int, float) or (isinstance(cell, list) and all(type(item) in (int, float) for item in cell))


Path: TypeAlias = "tuple[Path, str | int] | None"
"""The path to a value in a tree: the path to the value around it, and the name or number of this value in that."""


def _bad_values(tree: Any, path: Path = None) -> Iterator[Fault]:
    """Yield faults for the numbers inside that are not finite, and the strings that are not Unicode text."""
    if isinstance(tree, float):
        if not math.isfinite(tree):
            yield Fault("not_finite", f"{_written(path)}: {tree} is not a finite number")
    elif isinstance(tree, str):
        if not tree.isascii() and _LONE_SURROGATE.search(tree):
            yield Fault("malformed", f"{_written(path)}: not UTF-8")
    elif isinstance(tree, dict):
        for name, item in tree.items():
            yield from _bad_values(name, path or (None, "names"))
            yield from _bad_values(item, (path, name))
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _bad_values(item, (path, number))


def _written(path: Path) -> str:
    """Write a path as `context.items[2]`. A path is written once, as the paths to all values may be long together."""
    steps = list[str]()
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return _shown("".join(reversed(steps)).removeprefix("."))


def _shown(path: str) -> str:
    """Write slots as `slots.1.action`, as all rules do."""
    return _SLOT.sub(r"slots.\1", path)
