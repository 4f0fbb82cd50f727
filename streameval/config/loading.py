"""Reading YAML strictly: no key twice, no surprising types, and a line number for every path.

Environment variables that lie over the configuration file: STREAMEVAL_HTTP__PORT is `http.port`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from streameval.errors import ConfigError

Place = tuple[str | int, ...]
"""Where a value lies: keys of mappings and indices of lists, from the top."""


class RepeatedKey(ConstructorError):
    """A mapping names the same key twice, of which plain YAML would silently keep the last."""


class StrictLoader(yaml.SafeLoader):
    """YAML 1.2's idea of plain values: `no` and `on` are strings, `1:30` is no number, `1e-5` is one."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        # An alias can contain itself, or grow a short file beyond all memory; a configuration needs none.
        if self.check_event(yaml.events.AliasEvent):
            raise ComposerError(None, None, "aliases (*name) are not supported", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _refuse_repeated_keys(node)
        return super().construct_mapping(node, deep=deep)


def _construct_int(loader: StrictLoader, node: ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _construct_float(loader: StrictLoader, node: ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace(".inf", "inf").replace(".nan", "nan"))


StrictLoader.yaml_implicit_resolvers = {}
# A plain value has the first type whose pattern fits, so whole numbers come before the others.
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
):
    StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
StrictLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def _refuse_repeated_keys(node: MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise ConstructorError(None, None, "a key must be plain text", key.start_mark)
        if key.value in lines:
            problem = f"the key '{key.value}' stands here and in line {lines[key.value]}"
            raise RepeatedKey(None, None, problem, key.start_mark)
        lines[key.value] = key.start_mark.line + 1


@dataclass(frozen=True)
class Document:
    """What a YAML file holds: plain values, and the line (from 1) at which each place begins."""

    values: dict[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """The line of a place, or of the nearest one around it (None for the whole document)."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def read_yaml(path: Path) -> Document:
    """The mapping that a YAML file holds; ConfigError with line and column when it is not one."""
    return parse_yaml(_read(path), str(path))


def parse_yaml(text: str, name: str) -> Document:
    """As `read_yaml`, from text; `name` stands for it in errors."""
    try:
        loader = StrictLoader(text)
        node = loader.get_single_node()
        values = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(name, error) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no YAML: {error}", hint="write a mapping of options as plain text") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{name}: expected a mapping of options, found a {type(values).__name__}",
            hint="begin with `policies: {candidates: [NAME]}`",
        )
    return Document(values, dict(_lines(node, ())))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"the configuration {path} does not exist",
            hint="name it as in `streameval run my.yaml`; deploy/streameval.yaml shows every option",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no UTF-8 text (byte {error.start})", hint="save the configuration as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error.strerror}", hint="give a readable file"
        ) from None


def _syntax_error(name: str, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    if isinstance(error, RepeatedKey):
        return ConfigError(f"{where}: {error.problem}", hint="keep one of the two")
    if isinstance(error, ComposerError | ConstructorError):
        return ConfigError(f"{where}: {error.problem}", hint="write plain values: text, numbers, lists and mappings")
    return ConfigError(
        f"{where}: no valid YAML: {error.problem}",
        hint="check indentation, brackets and quotes around that place; tabs cannot indent",
    )


def _lines(node: Node | None, place: Place) -> Iterator[tuple[Place, int]]:
    for inner, head, value in _children(node, place):
        yield inner, head.start_mark.line + 1
        yield from _lines(value, inner)


def _children(node: Node | None, place: Place) -> list[tuple[Place, Node, Node]]:
    if isinstance(node, MappingNode):
        return [((*place, key.value), key, value) for key, value in node.value]
    if isinstance(node, SequenceNode):
        return [((*place, index), value, value) for index, value in enumerate(node.value)]
    return []


PREFIX = "STREAMEVAL_"


class Override(NamedTuple):
    """A value, and the variable that it came from."""

    variable: str
    value: Any


Overrides = Mapping[Place, Override]


def overrides_in(environment: Mapping[str, str], parts: Collection[str]) -> Overrides:
    """The variables that speak of the configuration, by their place; `parts` are its keys at the top.

    A double underscore goes one level in. Other variables with the prefix are left alone unless they contain one:
    Kubernetes sets STREAMEVAL_PORT and STREAMEVAL_SERVICE_HOST beside a service called streameval.

    >>> overrides_in({"STREAMEVAL_HTTP__PORT": "80", "STREAMEVAL_PORT": "tcp://10.0.0.1:80"}, ["http"])
    {('http', 'port'): Override(variable='STREAMEVAL_HTTP__PORT', value='80')}
    """
    found: dict[Place, Override] = {}
    for variable, text in sorted(environment.items()):
        place = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if variable.startswith(PREFIX) and (len(place) > 1 or place[0] in parts):
            found[place] = Override(variable, _value(place[-1], text))
    return found


def overlaid(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """`values` with the overrides in their places; neither argument is changed."""
    result = dict(values)
    for place, override in overrides.items():
        inner = result
        for step in map(str, place[:-1]):
            below = inner.get(step)
            inner[step] = dict(below) if isinstance(below, dict) else {}
            inner = inner[step]
        inner[str(place[-1])] = override.value
    return result


def _value(key: str, text: str) -> Any:
    """Lists and mappings are written as in YAML. All else is text, and so is every password."""
    if "password" in key or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return yaml.load(text, StrictLoader)
    except yaml.YAMLError:
        return text
