"""Add the documents of the repository and the pages of reference.py to the site."""

from __future__ import annotations

from pathlib import Path

import documents
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FIRST_IN_SEARCH = "---\nsearch: {boost: 2}\n---\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all pages, without writing them to the disk."""
    for uri, content in documents.collect(ROOT).items():
        if isinstance(content, Path):
            files.append(File.generated(config, uri, abs_src_path=str(content)))
        else:
            files.append(File.generated(config, uri, content=content))
    for uri, text in reference.pages(ROOT).items():
        files.append(File.generated(config, uri, content=FIRST_IN_SEARCH + text))
    return files
