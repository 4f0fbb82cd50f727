"""Format types, values, texts and tables as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc
from typing import Any

LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "ge": "≥"}


def described_type(schema: dict[str, Any], names: Mapping[str, str]) -> str:
    """Describe the type of a value of a JSON Schema in words, with its limits.

    Args:
        schema: Schema of the value.
        names: Name of each definition.
    """
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(described_type(option, names) for option in schema[union]))
    if "$ref" in schema:
        return names[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema or "const" in schema:
        return " or ".join(map(literal, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"list of {described_type(schema.get('items') or {}, names)}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"mapping to {described_type(schema['additionalProperties'], names)}"
    return " ".join([str(kind), *(f"{sign} {schema[key]}" for key, sign in LIMITS.items() if key in schema)])


def literal(value: object) -> str:
    """Format a value as code."""
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def markdown(text: str) -> str:
    """Format plain text as one line of Markdown. Code in backticks stays."""
    pieces = " ".join(text.split()).split("`")
    pieces[::2] = [re.sub(r"([<>*_\[\]])", r"\\\1", piece).replace("{", "&#123;") for piece in pieces[::2]]
    return "`".join(pieces)


def prose(docstring: str) -> str:
    """Format a docstring as Markdown, with doctests as blocks of code."""
    blocks = cleandoc(docstring).split("\n\n")
    return "\n\n".join(f"```pycon\n{block}\n```" if block.startswith(">>>") else plain(block) for block in blocks)


def plain(block: str) -> str:
    """Format a paragraph or a list."""
    lines = block.splitlines()
    if not lines or not lines[0].startswith("* "):
        return markdown(block)
    return "\n".join(f"* {markdown(line[2:])}" if line.startswith("* ") else markdown(line) for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table. Bars inside cells are escaped."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines]) if lines else ""
