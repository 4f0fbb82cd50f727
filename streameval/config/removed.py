"""Refuse the options that earlier versions had, each with the reason why it is gone and what happens instead."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

from streameval.common.problems import KeyPath, Problem

REMOVED: Mapping[str, Mapping[str, str]] = tomllib.loads(
    files("streameval.config").joinpath("removed.toml").read_text(encoding="utf-8")
)
"""The reason and what happens instead, by path, in which `*` stands for any name or index."""


def removed_options(document: object, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield the removed options in a document of mappings, lists and plain values."""
    options = dict(enumerate(document)) if isinstance(document, list) else document
    for step, value in options.items() if isinstance(options, Mapping) else ():
        inner = (*path, step)
        for pattern, option in REMOVED.items():
            if _matches(pattern, inner):
                yield Problem(inner, f"this option was removed: {option['reason']}", f"remove it: {option['instead']}")
        yield from removed_options(value, inner)


def without_removed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a configuration without the removed options, which Python may still have."""
    pruned = deepcopy(schema)
    _prune(pruned, pruned["$defs"], ())
    return pruned


def _prune(schema: Any, definitions: dict[str, Any], path: KeyPath) -> None:
    if not isinstance(schema, dict):
        return
    members = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
    if "$ref" in schema:
        members.append(definitions[schema["$ref"].rpartition("/")[2]])
    for member in members:
        _prune(member, definitions, path)
    for inner in ("items", "additionalProperties"):
        _prune(schema.get(inner), definitions, (*path, "*"))
    properties = schema.get("properties", {})
    for key in list(properties):
        if any(_matches(pattern, (*path, key)) for pattern in REMOVED):
            del properties[key]
        else:
            _prune(properties[key], definitions, (*path, key))


def _matches(pattern: str, path: KeyPath) -> bool:
    steps = pattern.split(".")
    return len(steps) == len(path) and all(step in ("*", str(key)) for step, key in zip(steps, path, strict=True))
