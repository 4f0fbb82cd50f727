"""Make the reference of the configuration from every key of the models, with the annotated file as example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from values import described_type, literal, markdown, prose, table

from streameval.config.model import Config
from streameval.config.removed import without_removed

KEY = re.compile(r"^#?(?P<indent> *)(?P<item>- )?(?P<key>[a-z_]+): *(?P<value>[^#]*?)(?: +# (?P<comment>.+))?$")
ITEM = re.compile(r"^#? *- \{kind: (?P<kind>\w+), (?P<keys>.+)\} +# (?P<comment>.+)$")
MORE = re.compile(r"^#? {20,}# ?(?P<comment>.+)$")
GENERAL = {
    "kind": "the kind of this part",
    "name": "its label in metrics and Reports, by default the kind. Two of one kind need different names",
}


@dataclass
class Annotated:
    """Hold the annotated file: its paragraphs by section, and its comments by section, kind and key."""

    paragraphs: dict[str, list[str]] = field(default_factory=dict)
    comments: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Annotated:
        """Read the file. Paragraphs before the first section are left out."""
        annotated = cls()
        for paragraph in text.split("\n\n"):
            if match := re.search(r"^#?([a-z_]+):", paragraph, re.MULTILINE):
                section = match[1]
                annotated.paragraphs.setdefault(section, []).append(paragraph.rstrip())
                annotated._note(section, paragraph)
        return annotated

    def _note(self, section: str, paragraph: str) -> None:
        """Keep the comments behind keys, with the lines that continue them."""
        kind, position = "", None
        for line in paragraph.splitlines():
            if item := ITEM.match(line):
                for key in re.findall(r"(\w+): ", item["keys"]):
                    self.comments.setdefault((section, item["kind"], key), item["comment"])
            if (key := KEY.match(line)) and not re.match(r"# \S", line):
                if key["key"] == "kind":
                    kind = key["value"].strip()
                position = (section, kind, key["key"]) if key["comment"] else None
                if position:
                    self.comments[position] = key["comment"]
            elif position and (more := MORE.match(line)):
                self.comments[position] += f" {more['comment']}"
            else:
                position = None

    def comment(self, section: str, key: str) -> str:
        """Return the comment behind a key of any kind in this section."""
        comments = [text for (home, _, name), text in self.comments.items() if (home, name) == (section, key)]
        return comments[0] if comments else ""


@dataclass(frozen=True)
class Part:
    """Represent a mapping of the configuration: the model of a section, or of one kind of a part."""

    path: tuple[str, ...]
    schema: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the kind, if it is one of several."""
        return str(self.schema["properties"].get("kind", {}).get("const", ""))

    @property
    def title(self) -> str:
        """Return the path and the kind."""
        return ".".join(self.path) + (f": {self.kind}" if self.kind else "")

    @property
    def anchor(self) -> str:
        """Return the anchor of the heading."""
        return "-".join(filter(None, (*self.path, self.kind)))

    @property
    def link(self) -> str:
        """Return a link to the heading, for the types of keys."""
        return f"[{self.kind or self.path[-1]}](#{self.anchor})"

    @property
    def summary(self) -> str:
        """Return the first paragraph of the docstring."""
        return str(self.schema.get("description", "")).partition("\n\n")[0]


def page(file: Path) -> str:
    """Make one section per key of the configuration, with tables of the keys below it and an example."""
    annotated = Annotated.read(file.read_text(encoding="utf-8"))
    schema = without_removed(Config.model_json_schema())
    names = sorted(Config.model_fields, key=list(annotated.paragraphs).index)
    parts: dict[str, Part] = {}
    for name in names:
        collect(schema["$defs"], schema["properties"][name], (name,), parts)
    text = ["# Configuration", HEAD]
    for name in names:
        row = key_row(name, schema["properties"][name], name in schema["required"], annotated, parts)
        text += [f"## {name}", table(COLUMNS, [row]), "```yaml\n" + "\n\n".join(annotated.paragraphs[name]) + "\n```"]
        for part in parts.values():
            if part.path[0] == name:
                text += section(part, annotated, parts)
    return "\n\n".join(text) + "\n"


HEAD = (
    "`streameval init --all` writes a file with every option and its default. The examples below are its sections. An "
    "environment variable sets any option: `STREAMEVAL_SOURCE__TOPIC`, `STREAMEVAL_ESTIMATORS='[ips, snips]'`. "
    "Numbers count events. Durations are `30s`, `5m` or `1h`. `streameval check` validates a file."
)
COLUMNS = ("key", "type", "default", "description")
WITHOUT_KEYS = {"DriftDetector"}
"""Models with keys in YAML that differ from their fields. Their docstrings explain the keys."""


def collect(definitions: dict[str, Any], schema: Any, path: tuple[str, ...], parts: dict[str, Part]) -> None:
    """Add all definitions that a value may be or contain, each at the first path with it."""
    for name in references(schema):
        if name not in parts:
            parts[name] = Part(path, {"properties": {}} | definitions[name])
            for key, value in parts[name].schema["properties"].items():
                collect(definitions, value, (*path, key), parts)


def references(schema: Any) -> Iterator[str]:
    """Yield the definitions that a schema itself names."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for key, value in schema.items():
            if key not in ("discriminator", "default"):
                yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def section(part: Part, annotated: Annotated, parts: dict[str, Part]) -> Iterator[str]:
    """Yield the heading, the explanation and the keys of a mapping.

    A section with a single form needs no further heading.
    """
    if part.title != part.path[0]:
        yield f"### {part.title} {{#{part.anchor}}}"
    yield prose(part.schema.get("description", ""))
    required = part.schema.get("required", ())
    if part.schema.get("title") not in WITHOUT_KEYS:
        properties = part.schema["properties"].items()
        yield table(
            COLUMNS,
            [key_row(key, value, key in required, annotated, parts, part) for key, value in properties],
        )


def key_row(
    key: str,
    schema: dict[str, Any],
    required: bool,
    annotated: Annotated,
    parts: dict[str, Part],
    part: Part | None = None,
) -> list[str]:
    """Return the row of a key: its type with links to its parts, its default, and its description."""
    within = [parts[name] for name in references(schema)]
    default = schema.get("default")
    shown = "required" if required else "see below" if within and isinstance(default, dict) else literal(default)
    links = {name: linked_part.link for name, linked_part in parts.items()}
    description = schema.get("description") or explained(key, annotated, part) or (within[0].summary if within else "")
    return [
        f"`{key}`",
        described_type(schema, links),
        f'<span class="phone">default: </span>{shown}',
        markdown(description),
    ]


def explained(key: str, annotated: Annotated, part: Part | None) -> str:
    """Explain a key that its model does not describe, by a comment or a sentence of the docstring."""
    if part is None:
        return ""
    section = part.path[0]
    sentence = re.search(rf"`{key}`: (.+?)(?=\.\s+`|\.?\n\n|\.?$)", part.schema.get("description", ""), re.DOTALL)
    return (
        annotated.comments.get((section, part.kind, key), "")
        or (sentence[1] if sentence else "")
        or annotated.comment(section, key)
        or GENERAL.get(key, "")
    )
