"""Read a configuration: strict YAML with the line of every option, and environment variables that replace options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from streameval.common.problems import KeyPath
from streameval.errors import ConfigError
from streameval.ingest.files.suffixes import LOG_SUFFIXES

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
"""Types of plain values. The first pattern that fits decides. `no`, `1:30` and `2026-01-31` fit none, and are text."""


@dataclass(frozen=True)
class Document:
    """Hold the values of a configuration, and where they come from.

    Args:
        values: mappings, lists and plain values
        origins: `line 3`, or the name of an environment variable, by path
    """

    values: dict[str, Any]
    origins: dict[KeyPath, str]

    def origin(self, path: KeyPath) -> str:
        """Return where the value at a path comes from, or else the value around it, if any."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, "")


def read_yaml(path: Path) -> Document:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: The file cannot be read, or holds no mapping. The message names the line and the column.
    """
    if path.suffix in LOG_SUFFIXES:
        raise ConfigError(
            f"{path} is a log, not a configuration", hint="name the configuration first: streameval replay CONFIG FILE"
        )
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(
            f"the configuration {path} does not exist",
            hint="name it as in `streameval run my.yaml`; `streameval init` writes one to start from",
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
    """Return the mapping in YAML text.

    Args:
        text: the content of a file
        name: what errors call the file

    Raises:
        ConfigError: The text is not a mapping. The message names the line and the column.
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
    """Refuse valid YAML that a configuration must not use."""

    def __init__(self, where: Any, problem: str, hint: str = "write plain text, numbers, lists and mappings"):
        super().__init__(problem=problem, problem_mark=where.start_mark)
        self.hint = hint


class _Loader(yaml.BaseLoader):
    """Refuse tags, and aliases, which can contain themselves or make a short file very large."""

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


def _value(node: Any, path: KeyPath, origins: dict[KeyPath, str]) -> Any:
    """Return the plain value of a node, and add the line of each option below it to `origins`."""
    if isinstance(node, yaml.ScalarNode):
        types = TYPES if node.style is None else ()  # others are in quotes
        return next(
            (convert(node.value) for pattern, convert in types if re.fullmatch(pattern, node.value)), node.value
        )
    if isinstance(node, yaml.SequenceNode):
        items: list[Any] = []
        for item in node.value:
            inner = (*path, len(items))
            origins[inner] = f"line {item.start_mark.line + 1}"
            items.append(_value(item, inner, origins))
        return items
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise NotSupported(key, "a key must be plain text")
        inner = (*path, key.value)
        if key.value in values:
            raise NotSupported(key, f"the key '{key.value}' is also in {origins[inner]}", "keep one of the two")
        origins[inner] = f"line {key.start_mark.line + 1}"
        values[key.value] = _value(value, inner, origins)
    return values


def with_environment(document: Document, environment: Mapping[str, str], sections: Collection[str]) -> Document:
    """Return the document with the options that variables set.

    A double underscore goes one level in. Variables without one are ignored unless they name a section: Kubernetes
    sets STREAMEVAL_PORT and STREAMEVAL_SERVICE_HOST for a service called streameval.

    Args:
        document: the file
        environment: variables by name
        sections: the keys at the top of a configuration

    >>> variables = {"STREAMEVAL_HTTP__PORT": "80", "STREAMEVAL_PORT": "tcp://10.0.0.1:80"}
    >>> with_environment(Document({}, {}), variables, ["http"]).values
    {'http': {'port': '80'}}
    """
    values, origins = dict(document.values), dict(document.origins)
    for variable, text in sorted(environment.items()):
        path = tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if not variable.startswith(ENVIRONMENT_PREFIX) or (len(path) == 1 and path[0] not in sections):
            continue
        section = values
        for depth, step in enumerate(path[:-1], start=1):
            below = section.get(step)
            section[step] = dict(below) if isinstance(below, dict) else {}
            section = section[step]
            origins.setdefault(path[:depth], variable)
        section[path[-1]] = _value_of(path[-1], text)
        origins = {other: origin for other, origin in origins.items() if other[: len(path)] != path}
        origins[path] = variable
    return Document(values, origins)


def _value_of(key: str, text: str) -> Any:
    """Return lists and mappings as in YAML, and other values and all passwords as text."""
    if "password" in key or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return _parse(text)[0]
    except yaml.YAMLError:
        return text
