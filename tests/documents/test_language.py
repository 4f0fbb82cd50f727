"""The texts of the project avoid the words and phrases of language.toml.

Checked are Markdown outside of code; the docstrings, string literals, comments, and names of functions, classes,
arguments and variables of Python files; and the comments and texts of YAML, TOML, shell and other configuration files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("language.toml").read_text())
PHRASES: list[dict[str, Any]] = TABLE["phrase"]
EXEMPT: list[dict[str, str]] = TABLE.get("exempt", [])
HIDDEN = {".git", ".venv", ".venv-demo", ".venv-test", "node_modules", "__pycache__", "build", "dist"}
HIDDEN |= {".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
CONFIGURATION = {".yaml", ".yml", ".toml", ".sh", ".service", ".cfg"}
NAMES = {"Makefile", "Dockerfile", "run"}
CODE = "¤"
SENTENCE = r"(?:\A|(?<=[.!?] ))"


@dataclass(frozen=True)
class Passage:
    """A stretch of text that starts in a line of its file; `step` is 0 if its line breaks are none of the file."""

    source: str
    line: int
    step: int = 1

    @cached_property
    def text(self) -> str:
        """The text, in which white space is a single blank."""
        return " ".join(self.source.split())

    def line_of(self, position: int) -> int:
        """The line of a character of `text`, which is not a blank."""
        before = len(self.text[:position].replace(" ", ""))
        start = next(islice(re.finditer(r"\S", self.source), before, None)).start()
        return self.line + self.step * self.source.count("\n", 0, start)


@dataclass(frozen=True)
class Finding:
    """A phrase to avoid, in a line of a file."""

    path: str
    line: int
    phrase: str
    better: str

    def __str__(self) -> str:
        shown = self.phrase if len(self.phrase) < 60 else f"{self.phrase[:57]}..."
        return f"{self.path}:{self.line}: {shown!r}; better: {self.better}"


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """The compiled patterns, each with the better wording."""
    return [(compiled(phrase["pattern"]), phrase["better"]) for phrase in PHRASES]


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with `^` as the start of a sentence."""
    return re.compile(re.sub(r"^\^", lambda _: SENTENCE, pattern), re.IGNORECASE)


def of_markdown(text: str) -> Iterator[Passage]:
    """Paragraphs, list items, headings and table cells, without code and addresses."""
    text = re.sub(r"^```.*?^```$", _blank, text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`", lambda code: CODE * len(code[0]), text)
    text = re.sub(r"(?<=\])\([^)\s]*\)|<https?:[^>]*>|https?:\S+", _blank, text)
    text = re.sub(r"(?<!\w)[*_>\[!]+(?=\S)|(?<=\S)[*_\]]+(?!\w)", " ", text)
    paragraph, start = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or re.match(r"\s*(?:[*+-]|\d+\.|#+) |\s*\||<!--", line):
            yield Passage(paragraph, start)
            paragraph, start = "", number
        if line.lstrip().startswith("|"):
            yield from (Passage(cell.strip(), number) for cell in line.split("|"))
        else:
            paragraph += re.sub(r"^\s*(?:[*+-]|\d+\.|#+) ", "", line) + "\n"
    yield Passage(paragraph, start)


def of_python(text: str) -> Iterator[Passage]:
    """Docstrings, string literals of several words, and comments."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant | ast.JoinedStr)]
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else CODE for part in node.values)
            words = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            words = node.value
        else:
            continue
        if " " in words.strip():
            several_lines = node.end_lineno is not None and node.end_lineno - node.lineno >= words.count("\n") > 0
            for start, paragraph in _paragraphs(re.sub(r"`[^`\n]+`", lambda code: CODE * len(code[0]), words)):
                yield Passage(paragraph, node.lineno + (start if several_lines else 0), int(several_lines))
    comments = tokenize.generate_tokens(io.StringIO(text).readline) if "#" in text else ()
    yield from _joined({token.start[0]: token.string for token in comments if token.type == tokenize.COMMENT}, text)


def of_configuration(text: str) -> Iterator[Passage]:
    """Comments, joined where they fill lines of their own, and all other text by paragraphs."""
    comments = {
        number: found[0].lstrip()
        for number, line in enumerate(text.split("\n"), start=1)
        if (found := re.search(r"(?:^|\s)#(?!!).*$", line))
    }
    yield from _joined(comments, text)
    rest = re.sub(r"(?:^|(?<=\s))#.*$", "", text, flags=re.M)
    yield from (Passage(paragraph, start + 1) for start, paragraph in _paragraphs(rest))


def _joined(comments: dict[int, str], text: str) -> Iterator[Passage]:
    """Passages of comments by line; comments that fill successive lines are one passage."""
    source = text.split("\n")
    paragraph, start, last = "", 0, -1
    for number, comment in sorted(comments.items()):
        alone = source[number - 1].lstrip().startswith("#")
        if not (alone and last == number - 1):
            yield Passage(paragraph, start)
            paragraph, start = "", number
        paragraph += re.sub(r"`[^`]+`", CODE, comment.lstrip("# ")) + "\n"
        last = number if alone else -1
    yield Passage(paragraph, start)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, separated by empty lines, each with the number of lines before it."""
    start = 0
    for paragraph in re.split(r"(\n\s*\n)", text):
        yield start, paragraph
        start += paragraph.count("\n")


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def passages(path: Path) -> Iterator[Passage]:
    """The texts of a file, by its kind."""
    if path.suffix == ".md":
        yield from of_markdown(path.read_text())
    elif path.suffix == ".py":
        yield from of_python(path.read_text())
    elif path.suffix in CONFIGURATION or path.name in NAMES:
        yield from of_configuration(path.read_text())


def findings(path: Path) -> Iterator[Finding]:
    """The phrases to avoid in a file, without those that language.toml exempts."""
    name = path.relative_to(ROOT).as_posix()
    exempt = [each["text"] for each in EXEMPT if each["path"] == name]
    for passage in passages(path):
        for pattern, better in patterns():
            for found in pattern.finditer(passage.text):
                if not any(_covers(text, passage.text, found) for text in exempt):
                    yield Finding(name, passage.line_of(found.start()), found[0], better)


def _covers(exempted: str, text: str, found: re.Match[str]) -> bool:
    places = (place.span() for place in re.finditer(re.escape(exempted), text))
    return any(start <= found.start() and found.end() <= end for start, end in places)


def files() -> list[Path]:
    """All files of the repository, without hidden and ignored ones."""
    places = [each for each in ROOT.iterdir() if each.name not in HIDDEN]
    found = [each for place in places for each in ([place] if place.is_file() else place.rglob("*")) if each.is_file()]
    shown = [each for each in sorted(found) if not HIDDEN & set(each.relative_to(ROOT).parts)]
    return [each for each in shown if _name(each) not in TABLE["ignored"]]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_texts_avoid_the_phrases_of_the_table() -> None:
    found = [str(finding) for path in files() for finding in findings(path)]
    assert not found, f"{len(found)} phrases to replace (see language.toml):\n" + "\n".join(found)


def in_words(identifier: str) -> str:
    """A name as a sentence; `test_` is left out."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).removeprefix("test_").split("_")
    return f"{' '.join(part.lower() for part in parts if part)}."


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a file defines, with their lines: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


@cache
def phrases_in(name: str) -> list[tuple[str, str]]:
    """The phrases to avoid in a name, each with the better wording."""
    sentence = in_words(name)
    return [(found[0], better) for pattern, better in patterns() if (found := pattern.search(sentence))]


def test_names_avoid_the_phrases_of_the_table() -> None:
    found = [
        str(Finding(_name(path), line, f"{phrase} in {name}", better))
        for path in files()
        if path.suffix == ".py"
        for name, line in names(ast.parse(path.read_text()))
        for phrase, better in phrases_in(name)
    ]
    assert not found, f"{len(found)} names to replace (see language.toml):\n" + "\n".join(found)


def test_names_of_functions_classes_arguments_variables_and_attributes_are_checked() -> None:
    code = "class A:\n def b(self, c, *, d):\n  self.e = f = d\n  for g in c: print(f, g)"
    assert {name for name, _ in names(ast.parse(code))} == {"A", "b", "self", "c", "d", "e", "f", "g"}


@pytest.mark.parametrize(
    ("name", "phrase"),
    [("test_what_waits_is_told", "What waits is told."), ("LettersOfYours", "letters"), ("wait_until", None)],
)
def test_names_are_read_as_sentences(name: str, phrase: str | None) -> None:
    found = [match[0] for pattern, _ in patterns() if (match := pattern.search(in_words(name)))]
    assert (phrase is None) == (not found)
    assert phrase is None or phrase.lower() in map(str.lower, found)


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase["pattern"])
def test_a_pattern_finds_its_example_and_nothing_fine(phrase: dict[str, Any]) -> None:
    assert phrase.keys() - {"fine"} == {"pattern", "better", "reason", "example"}
    pattern = compiled(phrase["pattern"])
    assert pattern.search(phrase["example"])
    assert not [sentence for sentence in phrase.get("fine", ()) if pattern.search(sentence)]


def test_every_exemption_has_a_reason_and_is_needed() -> None:
    for exempt in EXEMPT:
        assert exempt["reason"]
        assert any(exempt["text"] in passage.text for passage in passages(ROOT / exempt["path"]))
        assert any(pattern.search(exempt["text"]) for pattern, _ in patterns())


def test_a_finding_names_the_file_the_line_the_phrase_and_the_better_wording() -> None:
    python = '"""Summary.\n\nThe file is written\nanew.\n"""\n\nname = f"it goes on with {1}"  # and begins\n'
    assert lines_of(of_python(python)) == [(4, "anew"), (7, "begins"), (7, "goes on")]
    markdown = "# Title\n\n* a list goes\n  on\n\n```text\nanew\n```\n`anew` [anew](anew.md)\n| a | begins |\n"
    assert lines_of(of_markdown(markdown)) == [(3, "goes on"), (9, "anew"), (10, "begins")]
    configuration = "# It goes\n# on.\nkey: 1    # begins\nsummary: anew\n"
    assert lines_of(of_configuration(configuration)) == [(1, "goes on"), (3, "begins"), (4, "anew")]
    assert str(Finding("a.md", 3, "anew", "again")) == "a.md:3: 'anew'; better: again"


def lines_of(texts: Iterator[Passage]) -> list[tuple[int, str]]:
    """The line and the phrase of all findings in the passages."""
    return sorted(
        (passage.line_of(found.start()), found[0])
        for passage in texts
        for pattern, _ in patterns()
        for found in pattern.finditer(passage.text)
    )
