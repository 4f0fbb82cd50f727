"""Reading a configuration: strict YAML with a line number for every place, and environment variables over it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from streameval.errors import ConfigError

PREFIX = "STREAMEVAL_"
Place = tuple[str | int, ...]
"""The keys of mappings and indices of lists that lead to a value, from the top."""
TYPES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (r"~|null|", lambda _: None),
    (r"true|false", lambda text: text == "true"),
    (r"[-+]?[0-9]+", int),
    (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    ),
)
"""Plain values have the first type whose pattern fits, else they are text: `no`, `1:30` and `2026-01-31` are text."""


@dataclass(frozen=True)
class Document:
    """The values of a YAML file, and the line (from 1) of each place."""

    values: dict[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """The line of a place, or of the nearest one around it (None for the whole document)."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def read_yaml(path: Path) -> Document:
    """The mapping in a YAML file. Raises ConfigError with line and column."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(
            f"the configuration {path} does not exist",
            hint="name it as in `streameval run my.yaml`; deploy/streameval.yaml shows every option",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text (byte {error.start})", hint="save the configuration as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error.strerror}", hint="give a readable file"
        ) from None


def parse_yaml(text: str, name: str) -> Document:
    """The mapping in YAML text; `name` stands for the file in errors."""
    parser = _Parser(text)
    try:
        values = parser.document()
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        if isinstance(error, NotSupported):
            raise ConfigError(f"{where}: {error.problem}", hint=error.hint) from None
        raise ConfigError(
            f"{where}: invalid YAML: {error.problem}",
            hint="check indentation, brackets and quotes around that place; tabs cannot indent",
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not YAML: {error}", hint="write a mapping of options as plain text") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{name}: expected a mapping of options, found a {type(values).__name__}",
            hint="start with `policies: {candidates: [NAME]}`",
        )
    return Document(values, parser.lines)


class NotSupported(yaml.MarkedYAMLError):
    """Valid YAML that a configuration must not use."""

    def __init__(self, event: Any, problem: str, hint: str = "write plain text, numbers, lists and mappings"):
        super().__init__(problem=problem, problem_mark=event.start_mark)
        self.hint = hint


class _Parser:
    """Builds plain values from the events of the YAML parser: no aliases, no tags, no repeated keys."""

    def __init__(self, text: str) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.BaseLoader)
        self.lines: dict[Place, int] = {}

    def document(self) -> Any:
        _, start = next(self.events), next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            return {}
        value = self.value(next(self.events), ())
        _, end = next(self.events), next(self.events)
        if not isinstance(end, yaml.StreamEndEvent):
            raise NotSupported(end, "a second document starts here", "write one document")
        return value

    def value(self, event: Any, place: Place) -> Any:
        if isinstance(event, yaml.AliasEvent):  # an alias can contain itself, or make a short file very large
            raise NotSupported(event, "aliases (*name) are not supported")
        if event.tag is not None:
            raise NotSupported(event, "tags (!name) are not supported")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(place)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(place)
        return _typed(event.value) if event.implicit[0] else event.value

    def set_line(self, place: Place, event: Any) -> None:
        self.lines[place] = event.start_mark.line + 1

    def sequence(self, place: Place) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            inner = (*place, len(items))
            self.set_line(inner, event)
            items.append(self.value(event, inner))
        return items

    def mapping(self, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(key := next(self.events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise NotSupported(key, "a key must be plain text")
            inner = (*place, key.value)
            if key.value in values:
                raise NotSupported(
                    key, f"the key '{key.value}' is also in line {self.lines[inner]}", "keep one of the two"
                )
            self.set_line(inner, key)
            values[key.value] = self.value(next(self.events), inner)
        return values


def _typed(text: str) -> Any:
    return next((convert(text) for pattern, convert in TYPES if re.fullmatch(pattern, text)), text)


class Override(NamedTuple):
    """A value from the environment, and its variable."""

    variable: str
    value: Any


Overrides = Mapping[Place, Override]


def overrides_in(environment: Mapping[str, str], sections: Collection[str]) -> Overrides:
    """The variables that set options, by place; `sections` are the keys at the top of a configuration.

    A double underscore goes one level in. Variables without one are ignored unless they name a section: Kubernetes
    sets STREAMEVAL_PORT and STREAMEVAL_SERVICE_HOST for a service called streameval.

    >>> overrides_in({"STREAMEVAL_HTTP__PORT": "80", "STREAMEVAL_PORT": "tcp://10.0.0.1:80"}, ["http"])
    {('http', 'port'): Override(variable='STREAMEVAL_HTTP__PORT', value='80')}
    """
    found: dict[Place, Override] = {}
    for variable, text in sorted(environment.items()):
        place = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if variable.startswith(PREFIX) and (len(place) > 1 or place[0] in sections):
            found[place] = Override(variable, _value_of(place[-1], text))
    return found


def overlaid(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A copy of `values` with the overrides."""
    result = dict(values)
    for place, override in overrides.items():
        inner = result
        for step in map(str, place[:-1]):
            below = inner.get(step)
            inner[step] = dict(below) if isinstance(below, dict) else {}
            inner = inner[step]
        inner[str(place[-1])] = override.value
    return result


def _value_of(key: str, text: str) -> Any:
    """Lists and mappings as in YAML; other values, and all passwords, as text."""
    if "password" in key or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return _Parser(text).document()
    except yaml.YAMLError:
        return text
