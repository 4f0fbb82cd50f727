"""Problems in a configuration as text: place, expectation, finding and hint."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Tag, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from streameval.config.loading import Place
from streameval.errors import ConfigError

NOWHERE = "`streameval init my.yaml` writes a file that shows every option with its default"
CREDENTIALS = re.compile(r"//[^/@\s]*@")  # of an address, `//user:password@host`
EXPECTED: Mapping[str, str] = {
    "string_too_short": "text that is not empty",
    "too_short": "a list that is not empty",
    "finite_number": "a finite number",
    "invalid_key": "a key that is text",
    **dict.fromkeys(("string", "path"), "text"),
    **dict.fromkeys(("list", "tuple"), "a list"),
    "dict": "a mapping",
    **dict.fromkeys(("model", "dataclass"), "a mapping of options"),
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    **dict.fromkeys(("datetime", "timezone"), "a time with its zone, such as 2026-01-31T00:00:00Z"),
}
"""In words, by the kind of an error of pydantic, or by the type that its first word names."""


@dataclass(frozen=True)
class Problem:
    """A problem to solve: its place, a message, and a hint."""

    place: Place
    message: str
    hint: str

    def text(self, origin: str = "") -> str:
        """The problem without its hint; `origin`: where the value came from."""
        where = ".".join(map(str, self.place))
        return ": ".join(part for part in (f"{where} ({origin})" if origin else where, self.message) if part)


def refuse(problems: Iterable[Problem]) -> None:
    """Refuse a value for these problems, if any, in a pydantic validator.

    Raises:
        PydanticCustomError: There are problems; the error holds them.
    """
    found = list(problems)
    if found:
        raise PydanticCustomError("problems", "the parts do not fit together", {"problems": found})


def problems_of(error: ValidationError, root: type) -> Iterator[Problem]:
    """The problems that the validation of `root` found."""
    details = [
        detail
        for detail in error.errors(include_url=False)
        if detail["type"] != "too_short" or not detail["input"]  # a list is "empty" if none of its items is valid
    ]
    for place, group in groupby(details, key=lambda detail: _walk(root, detail["loc"])[0]):
        alternatives = list(group)  # a value that fits no member of a union has a detail for each of them
        if alternatives[0]["type"] == "problems":
            yield from alternatives[0]["ctx"]["problems"]
        else:
            yield _problem(place, alternatives, root)


def did_you_mean(word: object, known: Iterable[str]) -> str | None:
    """A hint with the known word that was probably meant, if any."""
    matches = difflib.get_close_matches(str(word).lower().replace("-", "_"), list(known), n=1)
    return f"did you mean '{matches[0]}'?" if matches else None


def one_of(names: Iterable[str]) -> str:
    """`one of a, b or c`, or the only name."""
    *most, last = names
    return f"one of {', '.join(most)} or {last}" if most else str(last)


def expecting(expected: str, found: str) -> str:
    """`expected a number, found 'x'`."""
    return f"expected {expected}, found {found}"


def shown(value: object) -> str:
    """A value as it would be written in a configuration, without credentials and cut at 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}" if value else "an empty mapping"
    text = CREDENTIALS.sub("//...@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _problem(place: Place, details: list[ErrorDetails], root: type) -> Problem:
    kind, value, shapes = details[0]["type"], details[0]["input"], _walk(root, details[0]["loc"])[1]
    shape, parent = shapes[-1], shapes[-2] if len(shapes) > 1 else root
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = tuple(_fields(parent))
        hint = did_you_mean(place[-1], known) or f"remove it; {NOWHERE}"
        return Problem(place, expecting(one_of(known), f"the unknown key '{place[-1]}'"), hint)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        kinds = tuple(map(str, _members(shape)))
        given = value.get("kind") if isinstance(value, Mapping) else value
        hint = did_you_mean(given, kinds) or (f"such as kind: {kinds[0]}; {NOWHERE}" if given is None else NOWHERE)
        return Problem((*place, "kind") if given is None else place, expecting(one_of(kinds), shown(given)), hint)
    secret = any(word in str(place[-1:]) for word in ("password", "token"))
    found, hint = "a hidden value" if secret else shown(value), _hint(parent, place)
    if kind == "value_error":
        message, whole = str(details[0]["ctx"]["error"]), isinstance(value, Mapping)
        found = "" if whole or not message.startswith("expected") else f", found {found}"
        return Problem(place, message + found, NOWHERE if whole else hint)
    if kind == "missing":
        details, found = _refusals(shape), "nothing"
    elif kind == "string_type" and isinstance(value, int | float):
        hint = "put it in quotes" if secret else f'put it in quotes: "{found}"'
    elif kind == "literal_error":
        hint = did_you_mean(value, re.findall("'(.*?)'", details[0]["ctx"]["expected"])) or hint
    expected = " or ".join(dict.fromkeys(map(_expected, details)))
    return Problem(place, expecting(expected, found), hint)


def _refusals(shape: Any) -> list[ErrorDetails]:
    """Why a value that no type allows is not of this one."""
    try:
        TypeAdapter(shape).validate_python(object())
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _expected(detail: ErrorDetails) -> str:
    kind, message = detail["type"], detail["msg"]
    if kind == "literal_error":
        known = detail["ctx"]["expected"].replace("'", "")
        return f"one of {known}" if " or " in known else str(known)
    if kind.startswith(("greater_than", "less_than")):
        return message.replace("Input should be", "a number")
    if kind == "too_short" and isinstance(detail["input"], Mapping):
        return "a mapping that is not empty"
    words = message.removeprefix("Input should be ").removeprefix("a valid ")
    return EXPECTED.get(kind) or EXPECTED.get(kind.partition("_")[0]) or words[:1].lower() + words[1:]


def _hint(parent: object, place: Place) -> str:
    """The description of the option, or the summary of the kind that it belongs to."""
    fields = _fields(parent)
    field = fields.get(str(place[-1])) if place else None
    if field is not None and field.description:
        words = str(field.description).removesuffix(".")
        return words if words[:2].isupper() else words[0].lower() + words[1:]
    if "kind" in fields:
        (kind, member), *_ = _members(parent).items()
        return f"{kind}: {(member.__doc__ or NOWHERE).strip().splitlines()[0]}"
    return NOWHERE


def _walk(root: object, location: tuple[int | str, ...]) -> tuple[Place, list[object]]:
    """The place in the file, and the type at each step; pydantic also names members of unions (`2.clipped_ips.cap`)."""
    place: Place = ()
    shapes = [root]
    for step in location:
        members = _members(shapes[-1])
        if step in members:
            shapes[-1] = members[step]
        elif (inner := _inner(shapes[-1], step)) is not None:
            place = (*place, step)
            shapes.append(inner)
    return place, shapes


def _peeled(shape: Any) -> Any:
    while get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    return shape


def _members(shape: Any) -> dict[str | int, type]:
    """The classes that a type allows, by kind, or by name for a class without a kind."""
    shape = _peeled(shape)
    if get_origin(shape) in (Union, types.UnionType):
        members: dict[str | int, type] = {}
        for part in get_args(shape):
            tags = [mark.tag for mark in getattr(part, "__metadata__", ()) if isinstance(mark, Tag)]
            members |= dict.fromkeys(tags, _peeled(part)) or _members(part)
        return members
    fields = getattr(shape, "__pydantic_fields__", None)
    if fields is None:
        return {}
    return {get_args(fields["kind"].annotation)[0] if "kind" in fields else shape.__name__: shape}


def _fields(shape: Any) -> dict[str, Any]:
    members = list(_members(shape).values())
    return dict(members[0].__pydantic_fields__) if len(members) == 1 else {}  # type: ignore[attr-defined]


def _inner(shape: Any, step: str | int) -> object:
    """The type one step further in; None for a branch of a union of plain types."""
    shape = _peeled(shape)
    if get_origin(shape) in (list, tuple):
        return get_args(shape)[0]
    if get_origin(shape) is dict:
        return get_args(shape)[1]
    fields = _fields(shape)
    return fields[str(step)].annotation if str(step) in fields else object if fields else None


def refusal(place: Place, check: Callable[[], object], hint: str = NOWHERE) -> Iterator[Problem]:
    """The objection of a check, if any."""
    try:
        check()
    except ConfigError as error:
        yield Problem(place, error.message, error.hint)
    except ValueError as error:
        yield Problem(place, str(error), hint)
