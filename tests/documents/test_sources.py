"""Check the page of sources: the modules, examples and tests that it names exist."""

from __future__ import annotations

import importlib
import re

import pytest

from support.paths import ROOT

PAGE = ROOT / "deploy" / "site" / "pages" / "sources.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")


def rows() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| (.+) \| `([^`|]+)` \| `(tests/[^`|]+)` \|$", PAGE.read_text(), re.MULTILINE)
    return [(what, where, test) for what, where, test in found]


def test_every_row_with_three_columns_is_checked() -> None:
    lines = PAGE.read_text().splitlines()
    of_three = [line for line in lines if line.count(" | ") == 2 and not line.startswith(("| what", "| ---"))]
    assert len(rows()) == len(of_three) > 30


def test_the_modules_and_examples_exist() -> None:
    for what, where, _ in rows():
        if where.startswith("streameval."):
            assert importlib.import_module(where).__doc__, what
        else:
            assert (ROOT / where / "README.md").exists(), what


def test_the_tests_exist() -> None:
    for what, _, test in rows():
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), what
