"""Check the description on a package index: its links lead to the repository that STREAMEVAL_REPOSITORY names."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.paths import ROOT
from support.programs import output

pytestmark = pytest.mark.skipif(not (ROOT / "hatch_build.py").exists(), reason="needs a checkout")
REPOSITORY = "https://example.org/owner/streameval"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the module of the build hooks. It imports their base classes from the build backend."""
    bases = {"hatchling.metadata": "MetadataHookInterface", "hatchling.builders.hooks": "BuildHookInterface"}
    for package, base in bases.items():
        interface = ModuleType(f"{package}.plugin.interface")
        monkeypatch.setattr(interface, base, SimpleNamespace, raising=False)
        monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(hook: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"version": "1.2.3"}
    hook.RepositoryLinks(root=str(ROOT)).update(metadata)
    return metadata


def test_links_and_pictures_lead_to_the_tag_of_the_version(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMEVAL_REPOSITORY", f"{REPOSITORY}/")
    metadata = described(hook)
    text = metadata["readme"]["text"]
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert f"]({REPOSITORY}/raw/v1.2.3/examples/drift/drift.png)" in text
    assert f"({REPOSITORY}/blob/v1.2.3/deploy/reference.md#metrics)" in text
    assert not re.findall(r"\]\((?!https?:|#)", text)
    assert metadata["urls"]["Source"] == REPOSITORY
    assert metadata["urls"]["Issues"] == f"{REPOSITORY}/issues"


def test_without_a_repository_the_description_is_the_readme(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMEVAL_REPOSITORY", raising=False)
    metadata = described(hook)
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()
    assert metadata["urls"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("citation-file-format", ["CITATION.cff"]),
        ("github-issue-forms", [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/question.yml"]),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
    ],
)
def test_the_citation_and_the_issue_templates_are_of_the_published_schemas(schema: str, files: list[str]) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    assert "ok" in output(*check, *(str(ROOT / name) for name in files))
