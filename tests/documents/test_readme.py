"""Run the code in the documents and compare its output. `documents.py` describes the markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.documents import run_document
from support.paths import ROOT

DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
DOCUMENTS += sorted([*ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*/*.md")])

documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@documents
def test_every_block_does_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(path.read_text(), tmp_path)


@documents
def test_every_link_into_the_repository_leads_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", path.read_text())
    assert not [target for target in targets if not (path.parent / target).exists()]


@documents
def test_every_make_target_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"(?:^|`|\$ )make ([a-z]+)", path.read_text(), re.M))
    assert named <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
