"""Turn the documents of the repository into pages at the same paths, with everything that they link to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIRST = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PATTERNS = ("deploy/*.md", "deploy/runbooks/*.md", "examples/*/*.md", "examples/*/*.ipynb")
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
OWN_PAGES = "deploy/site/pages/"
"""Pages of the site itself, which are at its top there."""
NOT_IN_SEARCH = "---\nsearch: {exclude: true}\n---\n\n"
FENCE = re.compile(r"^(```|~~~)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ")
STYLE = re.compile(r"<style.*?</style>", re.DOTALL)


def collect(root: Path) -> dict[str, str | Path]:
    """Collect pages and files by path: FIRST, PATTERNS, and the targets of relative links.

    A page is the text of a document, and a file is a path to copy.
    """
    pages: dict[str, str | Path] = {}
    waiting = [root / name for name in FIRST]
    waiting += [path for pattern in PATTERNS for path in sorted(root.glob(pattern))]
    while waiting:
        path = waiting.pop()
        uri = path.relative_to(root).as_posix()
        if path.is_dir():
            uri, text = f"{uri}/index.md", listing(path, root)
        elif path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
        elif path.suffix == ".ipynb":
            uri, text = f"{uri.removesuffix('.ipynb')}.md", notebook(path)
        else:
            pages[uri] = path
            continue
        if uri not in pages:
            pages[uri] = page(text, path if path.is_dir() else path.parent)
            waiting += targets(text, path if path.is_dir() else path.parent)
    return pages


def notebook(path: Path) -> str:
    """Show the cells of a notebook, and its stored outputs, as a document."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [output(one) for one in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def output(shown: dict[str, Any]) -> str:
    """Show one output of a cell: a picture, HTML without its style sheets, or text."""
    data = shown.get("data", {"text/plain": shown.get("text", "")})
    if "image/png" in data:
        return f"![Output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    if "text/html" in data:
        lines = STYLE.sub("", "".join(data["text/html"])).splitlines()
        return "\n".join(line.strip() for line in lines if line.strip())
    return f"```text\n{''.join(data['text/plain'])}\n```"


def targets(text: str, directory: Path) -> Iterator[Path]:
    """Yield the files and directories that a document links to."""
    for line in prose(text):
        for link in LINK.finditer(line):
            if OWN_PAGES not in link["path"]:
                yield Path(os.path.normpath(directory / link["path"]))


def page(text: str, directory: Path) -> str:
    """Convert a document for Python-Markdown.

    Links lead to indexes of directories, lists follow an empty line, and comments are left out.
    """

    def index_link(link: re.Match[str]) -> str:
        path = link["path"].rstrip("/")
        if OWN_PAGES in path:
            return path.replace(OWN_PAGES, "") + (link["anchor"] or "")
        if path.endswith(".ipynb"):
            return f"{path.removesuffix('.ipynb')}.md"
        return f"{path}/index.md" if (directory / path).is_dir() else link[0]

    lines: list[str] = []
    fenced = False
    for line in COMMENT.sub("", text).splitlines():
        fenced ^= bool(FENCE.match(line))
        if not fenced:
            line = LINK.sub(index_link, line)
            if ITEM.match(line) and lines and lines[-1].strip() and not ends_in_list(lines):
                lines.append("")
        lines.append(line)
    return "\n".join(lines)


def ends_in_list(lines: list[str]) -> bool:
    """Return whether the last paragraph is a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
    return False


def prose(text: str) -> Iterator[str]:
    """Yield the lines outside blocks of code."""
    fenced = False
    for line in text.splitlines():
        fenced ^= bool(FENCE.match(line))
        if not fenced:
            yield line


def listing(directory: Path, root: Path) -> str:
    """Make a page with the files of a directory."""
    hidden = {".DS_Store", "__pycache__"}
    paths = sorted(path for path in directory.iterdir() if path.name not in hidden)
    links = (f"* [{path.name}{'/' * path.is_dir()}]({path.name})" for path in paths)
    return f"{NOT_IN_SEARCH}# {directory.relative_to(root).as_posix()}\n\n" + "\n".join(links) + "\n"
