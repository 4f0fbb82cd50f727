"""The reference of the configuration: every key of the models, and the annotated file as example."""

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
    "name": "its label in metrics and Reports; two of one kind need different names; by default the kind",
}


@dataclass
class Annotated:
    """The annotated file: its paragraphs by section, and its comments by section, kind and key."""

    paragraphs: dict[str, list[str]] = field(default_factory=dict)
    comments: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Annotated:
        """The file; paragraphs before the first section are left out."""
        annotated = cls()
        for paragraph in text.split("\n\n"):
            if found := re.search(r"^#?([a-z_]+):", paragraph, re.MULTILINE):
                section = found[1]
                annotated.paragraphs.setdefault(section, []).append(paragraph.rstrip())
                annotated._note(section, paragraph)
        return annotated

    def _note(self, section: str, paragraph: str) -> None:
        """Keep the comments behind keys, with the lines that continue them."""
        kind, place = "", None
        for line in paragraph.splitlines():
            if item := ITEM.match(line):
                for key in re.findall(r"(\w+): ", item["keys"]):
                    self.comments.setdefault((section, item["kind"], key), item["comment"])
            if (key := KEY.match(line)) and not re.match(r"# \S", line):
                if key["key"] == "kind":
                    kind = key["value"].strip()
                place = (section, kind, key["key"]) if key["comment"] else None
                if place:
                    self.comments[place] = key["comment"]
            elif place and (more := MORE.match(line)):
                self.comments[place] += f" {more['comment']}"
            else:
                place = None

    def comment(self, section: str, key: str) -> str:
        """The comment behind a key of any kind in this section."""
        found = [text for (where, _, name), text in self.comments.items() if (where, name) == (section, key)]
        return found[0] if found else ""


@dataclass(frozen=True)
class Part:
    """A mapping of the configuration: the model of a section, or of one kind of a part."""

    path: tuple[str, ...]
    schema: dict[str, Any]

    @property
    def kind(self) -> str:
        """Its kind, if it is one of several."""
        return str(self.schema["properties"].get("kind", {}).get("const", ""))

    @property
    def title(self) -> str:
        """Its place, and its kind."""
        return ".".join(self.path) + (f": {self.kind}" if self.kind else "")

    @property
    def anchor(self) -> str:
        """The anchor of its heading."""
        return "-".join(filter(None, (*self.path, self.kind)))

    @property
    def link(self) -> str:
        """A link to it, for the types of keys."""
        return f"[{self.kind or self.path[-1]}](#{self.anchor})"

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring."""
        return str(self.schema.get("description", "")).partition("\n\n")[0]


def page(file: Path) -> str:
    """One section per key of the configuration, with tables of the keys below it and an example."""
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
    "`streameval init` writes a file with every option and its default; the examples below are its sections. An "
    "environment variable sets any option: `STREAMEVAL_SOURCE__TOPIC`, `STREAMEVAL_ESTIMATORS='[ips, snips]'`. "
    "Numbers count events; durations are `30s`, `5m` or `1h`. `streameval check` validates a file."
)
COLUMNS = ("key", "type", "default", "description")
WITHOUT_KEYS = {"DriftDetector"}
"""Models whose keys in YAML differ from their fields; their docstrings explain them."""


def collect(definitions: dict[str, Any], schema: Any, path: tuple[str, ...], parts: dict[str, Part]) -> None:
    """Add all definitions that a value may be or contain, each at the first place where it occurs."""
    for name in references(schema):
        if name not in parts:
            parts[name] = Part(path, {"properties": {}} | definitions[name])
            for key, value in parts[name].schema["properties"].items():
                collect(definitions, value, (*path, key), parts)


def references(schema: Any) -> Iterator[str]:
    """The definitions that a schema names itself."""
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
    """The heading, the explanation and the keys of a mapping; a section that has one form needs no further heading."""
    if part.title != part.path[0]:
        yield f"### {part.title} {{#{part.anchor}}}"
    yield prose(part.schema.get("description", ""))
    required = part.schema.get("required", ())
    if part.schema.get("title") not in WITHOUT_KEYS:
        properties = part.schema["properties"].items()
        yield table(COLUMNS, [key_row(key, each, key in required, annotated, parts, part) for key, each in properties])


def key_row(
    key: str,
    schema: dict[str, Any],
    required: bool,
    annotated: Annotated,
    parts: dict[str, Part],
    part: Part | None = None,
) -> list[str]:
    """The row of a key: its type with links to its parts, its default, and its description."""
    within = [parts[name] for name in references(schema)]
    default = schema.get("default")
    shown = "required" if required else "see below" if within and isinstance(default, dict) else literal(default)
    links = {name: each.link for name, each in parts.items()}
    description = schema.get("description") or explained(key, annotated, part) or (within[0].summary if within else "")
    return [
        f"`{key}`",
        described_type(schema, links),
        f'<span class="phone">default: </span>{shown}',
        markdown(description),
    ]


def explained(key: str, annotated: Annotated, part: Part | None) -> str:
    """The explanation of a key that its model does not describe: a comment, or a sentence of the docstring."""
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
