"""Reading a configuration: strict YAML with a line number for every place, and environment variables over it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from streameval.common.problems import KeyPath
from streameval.errors import ConfigError

ENVIRONMENT_PREFIX = "STREAMEVAL_"
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


LOGS = (".ndjson", ".jsonl", ".csv", ".parquet", ".gz", ".zst")
"""Endings of the names of files of events."""


@dataclass(frozen=True)
class Document:
    """The values of a configuration, and where each place comes from: `line 3`, or an environment variable."""

    values: dict[str, Any]
    origins: dict[KeyPath, str]

    def origin(self, place: KeyPath) -> str:
        """The origin of a place, or of the nearest one around it; empty for the whole document."""
        while place and place not in self.origins:
            place = place[:-1]
        return self.origins.get(place, "")


def read_yaml(path: Path) -> Document:
    """The mapping in a YAML file.

    Raises:
        ConfigError: The file cannot be read, or holds no mapping; the message names the line and the column.
    """
    if path.suffix in LOGS:
        raise ConfigError(
            f"{path} is a log, not a configuration", hint="name the configuration first: streameval replay CONFIG FILE"
        )
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(
            f"the configuration {path} does not exist",
            hint="name it as in `streameval run my.yaml`; `streameval init` writes one that shows every option",
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
    """The mapping in YAML text; `name` stands for the file in errors.

    Raises:
        ConfigError: The text is not a mapping; the message names the line and the column.
    """
    try:
        values, origins = _parse(text)
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
    return Document(values, origins)


class NotSupported(yaml.MarkedYAMLError):
    """Valid YAML that a configuration must not use."""

    def __init__(self, where: Any, problem: str, hint: str = "write plain text, numbers, lists and mappings"):
        super().__init__(problem=problem, problem_mark=where.start_mark)
        self.hint = hint


class _Loader(yaml.BaseLoader):
    """Refuses tags, and aliases, which can contain themselves or make a short file very large."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise NotSupported(event, "aliases (*name) are not supported")
        if event.tag is not None:
            raise NotSupported(event, "tags (!name) are not supported")
        return super().compose_node(parent, index)


def _parse(text: str) -> tuple[Any, dict[KeyPath, str]]:
    loader: Any = _Loader(text)
    origins: dict[KeyPath, str] = {}
    value = _value(loader.get_node(), (), origins) if loader.check_node() else {}
    if loader.check_node():
        raise NotSupported(loader.peek_event(), "a second document starts here", "write one document")
    return value, origins


def _value(node: Any, place: KeyPath, origins: dict[KeyPath, str]) -> Any:
    """The plain value of a node of YAML; adds the line of each place in it to `origins`."""
    if isinstance(node, yaml.ScalarNode):
        types = TYPES if node.style is None else ()  # others are in quotes
        return next(
            (convert(node.value) for pattern, convert in types if re.fullmatch(pattern, node.value)), node.value
        )
    if isinstance(node, yaml.SequenceNode):
        items: list[Any] = []
        for item in node.value:
            inner = (*place, len(items))
            origins[inner] = f"line {item.start_mark.line + 1}"
            items.append(_value(item, inner, origins))
        return items
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise NotSupported(key, "a key must be plain text")
        inner = (*place, key.value)
        if key.value in values:
            raise NotSupported(key, f"the key '{key.value}' is also in {origins[inner]}", "keep one of the two")
        origins[inner] = f"line {key.start_mark.line + 1}"
        values[key.value] = _value(value, inner, origins)
    return values


def with_environment(document: Document, environment: Mapping[str, str], sections: Collection[str]) -> Document:
    """The document with the options that variables set; `sections` are the keys at the top of a configuration.

    A double underscore goes one level in. Variables without one are ignored unless they name a section: Kubernetes
    sets STREAMEVAL_PORT and STREAMEVAL_SERVICE_HOST for a service called streameval.

    >>> variables = {"STREAMEVAL_HTTP__PORT": "80", "STREAMEVAL_PORT": "tcp://10.0.0.1:80"}
    >>> with_environment(Document({}, {}), variables, ["http"]).values
    {'http': {'port': '80'}}
    """
    values, origins = dict(document.values), dict(document.origins)
    for variable, text in sorted(environment.items()):
        place = tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if not variable.startswith(ENVIRONMENT_PREFIX) or (len(place) == 1 and place[0] not in sections):
            continue
        section = values
        for depth, step in enumerate(place[:-1], start=1):
            below = section.get(step)
            section[step] = dict(below) if isinstance(below, dict) else {}
            section = section[step]
            origins.setdefault(place[:depth], variable)
        section[place[-1]] = _value_of(place[-1], text)
        origins = {known: origin for known, origin in origins.items() if known[: len(place)] != place}
        origins[place] = variable
    return Document(values, origins)


def _value_of(key: str, text: str) -> Any:
    """Lists and mappings as in YAML; other values, and all passwords, as text."""
    if "password" in key or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return _parse(text)[0]
    except yaml.YAMLError:
        return text
