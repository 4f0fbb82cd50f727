"""Report problems of a configuration: the path of an option, what was expected, what was found, and a hint."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from itertools import groupby
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from streameval.common.text import counted
from streameval.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys of mappings and indices of lists that lead to an option, from the top."""

NO_HINT = "`streameval init --all my.yaml` writes a file that shows every option with its default"
CREDENTIALS = re.compile(r"//[^/@\s]*@")  # in an address, `//user:password@host`
MAX_SHOWN = 60
EXPECTED: Mapping[str, str] = {
    "string_too_short": "text that is not empty",
    "finite_number": "a finite number",
    "invalid_key": "a key that is text",
    "path_not_directory": "a folder that exists",
    **dict.fromkeys(("string", "path"), "text"),
    **dict.fromkeys(("list", "tuple"), "a list"),
    "dict": "a mapping",
    **dict.fromkeys(("model", "dataclass"), "a mapping of options"),
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    **dict.fromkeys(("datetime", "timezone"), "a time with its zone, such as 2026-01-31T00:00:00Z"),
}
"""What pydantic expected, by the type of its error, or by the first word of that type."""


@dataclass(frozen=True)
class Problem:
    """Hold one problem of a configuration.

    Args:
        path: where the problem is, or () for the whole configuration
        message: what was expected and what was found
        hint: what to do about it
    """

    path: KeyPath
    message: str
    hint: str = NO_HINT

    def below(self, *path: str | int) -> Problem:
        """Return the problem of the same option in a larger configuration, which has the option's parent at `path`."""
        return replace(self, path=(*path, *self.path))

    def text(self, origin: str = "") -> str:
        """Return the path and the message.

        Args:
            origin: where the value came from, such as `line 3`
        """
        where = ".".join(map(str, self.path))
        return ": ".join(filter(None, (f"{where} ({origin})" if origin else where, self.message)))

    def report(self, origin: str = "") -> str:
        """Return the path, the message and the hint."""
        return f"{self.text(origin)}\nhint: {self.hint}"


class ProblemsError(ConfigError, ValueError):
    """Refuse a configuration, with all of its problems.

    It is a `ValueError` too, as wrong arguments of Python functions usually are.

    Args:
        problems: at least one
        heading: a first line, such as the name of a file
        origin: returns where the value at a path came from
    """

    def __init__(
        self, problems: Iterable[Problem], heading: str = "", origin: Callable[[KeyPath], str] = lambda _: ""
    ) -> None:
        self.problems = tuple(problems)
        count = counted(len(self.problems), "problem")
        first = f"{heading}: {count}" if heading else count if len(self.problems) > 1 else ""
        texts = [problem.report(origin(problem.path)) for problem in self.problems]
        message, _, hint = "\n\n".join(filter(None, (first, *texts))).rpartition("\nhint: ")
        super().__init__(message, hint=hint)


def refuse(problems: Iterable[Problem]) -> None:
    """Raise an error if there are problems.

    Raises:
        ProblemsError: There are problems.
    """
    listed = tuple(problems)
    if listed:
        raise ProblemsError(listed)


def objections(check: Callable[[], object], *path: str | int, hint: str = NO_HINT) -> Iterator[Problem]:
    """Run a check, and yield what it objects to as problems at `path`.

    Args:
        check: raises a ValueError or a ConfigError if it objects
        path: where the checked option is
        hint: what to do if the error has no hint of its own
    """
    try:
        check()
    except ProblemsError as error:
        yield from (problem.below(*path) for problem in error.problems)
    except ConfigError as error:
        yield Problem(path, error.message, error.hint)
    except ValueError as error:
        yield Problem(path, str(error), hint)


@contextmanager
def hints_of_python(name: str) -> Iterator[None]:
    """Name the help of a Python function in place of a command, in hints of problems.

    Args:
        name: what the caller has called, such as `streameval.compare`
    """
    try:
        yield
    except ProblemsError as error:
        hint = f"help({name}) describes the arguments"
        problems = [replace(problem, hint=problem.hint.replace(NO_HINT, hint)) for problem in error.problems]
        raise ProblemsError(problems) from error.__cause__


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], options: Mapping[str, Any]) -> Model:
    """Return the model with these options.

    Raises:
        ProblemsError: An option is unknown, or has a value that the model does not take.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise ProblemsError(problems_of(error, model)) from None


def problems_of(error: ValidationError, root: type) -> Iterator[Problem]:
    """Yield the problems that the validation of a type found.

    Args:
        error: what pydantic raised
        root: the type that was validated
    """
    details = [
        detail
        for detail in error.errors(include_url=False)
        if detail["type"] != "too_short" or len(detail["input"]) < detail["ctx"]["min_length"]  # not if items are wrong
    ]
    for path, group in groupby(details, key=lambda detail: _walk(root, detail["loc"])[0]):
        alternatives = list(group)  # a value that fits no member of a union has a detail for each of them
        raised = alternatives[0].get("ctx", {}).get("error")
        if isinstance(raised, ProblemsError):
            yield from (problem.below(*path) for problem in raised.problems)
        else:
            yield _problem(path, alternatives, root)


def did_you_mean(word: object, words: Iterable[str]) -> str | None:
    """Return a hint with the word that was probably meant, if any.

    >>> did_you_mean("SNPIS", ["ips", "snips"])
    "did you mean 'snips'?"
    """
    matches = difflib.get_close_matches(str(word).lower().replace("-", "_"), list(words), n=1)
    return f"did you mean '{matches[0]}'?" if matches else None


def one_of(names: Iterable[str]) -> str:
    """Return `one of a, b or c`, or the only name."""
    *most, last = names
    return f"one of {', '.join(most)} or {last}" if most else str(last)


def expecting(expected: str, actual: str) -> str:
    """Return `expected a number, found 'x'`."""
    return f"expected {expected}, found {actual}"


def shown(value: object) -> str:
    """Return a value as it would be written in a configuration, without credentials and cut at 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}" if value else "an empty mapping"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', value)}"
    text = CREDENTIALS.sub("//...@", repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


# --- Errors of pydantic in words ---


def _problem(path: KeyPath, details: list[ErrorDetails], root: type) -> Problem:
    kind, value, shapes = details[0]["type"], details[0]["input"], _walk(root, details[0]["loc"])[1]
    shape, parent = shapes[-1], shapes[-2] if len(shapes) > 1 else root
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        keys = tuple(_fields(parent))
        hint = did_you_mean(path[-1], keys) or f"remove it; {NO_HINT}"
        return Problem(path, expecting(one_of(keys), f"the unknown key '{path[-1]}'"), hint)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        kinds = tuple(map(str, _members(shape)))
        tag = value.get("kind") if isinstance(value, Mapping) else value
        hint = did_you_mean(tag, kinds) or (f"such as kind: {kinds[0]}; {NO_HINT}" if tag is None else NO_HINT)
        return Problem((*path, "kind") if tag is None else path, expecting(one_of(kinds), shown(tag)), hint)
    secret = "headers" in path or any(word in str(path[-1:]) for word in ("password", "token"))
    actual, hint = "a hidden value" if secret else shown(value), _hint(parent, path)
    if kind == "value_error":
        message, whole = str(details[0]["ctx"]["error"]), isinstance(value, Mapping)
        actual = "" if whole or not message.startswith("expected") else f", found {actual}"
        return Problem(path, message + actual, NO_HINT if whole else hint)
    if kind == "missing":
        return Problem(path, "missing", hint)
    if isinstance(value, type):
        hint = f"write {value.__name__}()"
    elif kind == "string_type" and isinstance(value, int | float):
        hint = "put it in quotes" if secret else f'put it in quotes: "{actual}"'
    elif kind == "literal_error":
        hint = did_you_mean(value, re.findall("'(.*?)'", details[0]["ctx"]["expected"])) or hint
    expected = " or ".join(dict.fromkeys(map(_expected, details)))
    return Problem(path, expecting(expected, actual), hint)


def _expected(detail: ErrorDetails) -> str:
    kind, message = detail["type"], detail["msg"]
    if kind == "literal_error":
        words = detail["ctx"]["expected"].replace("'", "")
        return f"one of {words}" if " or " in words else str(words)
    if kind.startswith(("greater_than", "less_than")):
        return message.replace("Input should be", "a number")
    if kind == "too_short":
        shape, least = "mapping" if isinstance(detail["input"], Mapping) else "list", detail["ctx"]["min_length"]
        return f"a {shape} that is not empty" if least == 1 else f"a {shape} of at least {least}"
    words = message.removeprefix("Input should be ").removeprefix("a valid ")
    return EXPECTED.get(kind) or EXPECTED.get(kind.partition("_")[0]) or words[:1].lower() + words[1:]


def _hint(parent: object, path: KeyPath) -> str:
    """Return the description of the option, or the summary of the kind that it belongs to."""
    fields = _fields(parent)
    field = fields.get(str(path[-1])) if path else None
    if field is not None and field.description:
        words = str(field.description).removesuffix(".")
        return words if words[:2].isupper() else words[0].lower() + words[1:]
    if "kind" in fields:
        (kind, member), *_ = _members(parent).items()
        return f"{kind}: {(member.__doc__ or NO_HINT).strip().splitlines()[0]}"
    return NO_HINT


def _walk(root: object, location: tuple[int | str, ...]) -> tuple[KeyPath, list[object]]:
    """Return the path in the file, and the type at each step.

    Args:
        root: the type at the top
        location: pydantic's path, which also names members of unions (`2.clipped_ips.cap`)
    """
    path: KeyPath = ()
    shapes = [root]
    for step in location:
        if isinstance(step, int) and isinstance(root, type) and shapes == [root]:
            step = list(signature(root).parameters)[step]  # an argument without its name
        members = _members(shapes[-1])
        if step in members:
            shapes[-1] = members[step]
        elif (inner := _inner(shapes[-1], step)) is not None:
            path = (*path, step)
            shapes.append(inner)
    return path, shapes


def _peeled(shape: Any) -> Any:
    while get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    return shape


def _members(shape: Any) -> dict[str | int, type]:
    """Return the classes that a type allows, by kind, or by name for a class without a kind."""
    shape = _peeled(shape)
    if get_origin(shape) in (Union, types.UnionType):
        members: dict[str | int, type] = {}
        for member in get_args(shape):
            tags = [mark.tag for mark in getattr(member, "__metadata__", ()) if isinstance(mark, Tag)]
            members |= dict.fromkeys(tags, _peeled(member)) or _members(member)
        return members
    fields = getattr(shape, "__pydantic_fields__", None)
    if fields is None:
        return {}
    return {get_args(fields["kind"].annotation)[0] if "kind" in fields else shape.__name__: shape}


def _fields(shape: Any) -> dict[str, Any]:
    members = list(_members(shape).values())
    return dict(members[0].__pydantic_fields__) if len(members) == 1 else {}  # type: ignore[attr-defined]


def _inner(shape: Any, step: str | int) -> object:
    """Return the type one step further in, None for a branch of a union of plain types."""
    shape = _peeled(shape)
    if get_origin(shape) in (list, tuple):
        return get_args(shape)[0]
    if get_origin(shape) is dict:
        return get_args(shape)[1]
    fields = _fields(shape)
    return fields[str(step)].annotation if str(step) in fields else object if fields else None
