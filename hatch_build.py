"""Writes the metadata of the package that depend on the address of its repository: the description and the links.

A package index shows README.md where relative links lead nowhere. When the variable STREAMEVAL_REPOSITORY has the
address of the repository, such as https://github.com/OWNER/streameval, they become links to the tag of the version.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<target>[^)\s]+)\)")


class RepositoryLinks(MetadataHookInterface):
    """Adds `readme` and `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields."""
        repository = os.environ.get("STREAMEVAL_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository:
            text = with_absolute_links(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository)


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Markdown in which relative links and pictures lead to a tag of the repository."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/{tag}/{link['target']})"

    return RELATIVE_LINK.sub(absolute, text)


def urls(repository: str) -> dict[str, str]:
    """The links of the project; none without a repository."""
    if not repository:
        return {}
    pages = {"Documentation": "#readme", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    return {"Source": repository, **{name: f"{repository}{page}" for name, page in pages.items()}}
