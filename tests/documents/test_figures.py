"""Figures in prose come from stored results: each stands before a marker, or is a constant that is listed here."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from support.paths import ROOT

NUMBER = r"(?<![\w.-])[.]?\d(?:[\d.,]*\d)?"
MARKED = r"[^\s(]+<!-- =\w+ -->"
NONSTATIONARY = ROOT / "examples" / "nonstationary"
ESTIMATORS, SLATES = ROOT / "examples" / "estimators", ROOT / "examples" / "slates"
RESULTS = {
    NONSTATIONARY: ("## Results", None),
    ESTIMATORS: ("## Handwritten digits as a bandit", "## On your own events"),
    SLATES: ("## Error of the estimators", None),
}
"""The sections of studies that are about results: from this heading to that one."""
CONSTANTS = {
    NONSTATIONARY: {
        *("10,000 events", "50,000 events", "2,000 (noise)", "50,000 (staleness)", "seeds 0 and 1", "20 seeds"),
        *("seed 0", "seeds 0 to 5", "18 runs", "seeds 0 to 2", "0 and 1", "otherwise 0", "95%", "95 %"),
        *(".07 and .08 for values of .14 to .49", "first 300 events", "window of 10,000", "needs 10,000", "40,000"),
        *("250,000 events", "100,000 rewards", ".025 in theory"),
    },
    ESTIMATORS: {
        *("earns 1", "40 images", "400 images", "8 principal components", "Each of 100 logs has 10,000 events"),
        *("instead of 0", "as 0.", "With 3 of 10", "M = 20"),
    },
    SLATES: {
        *("50 queries with 10 or 100 documents", "top 5 or 10", "2^-⌊log₂ k⌋", "over 50 logs of up to 100,000 slates"),
        *("10 of 100 documents", "estimates 0,", "With 5 of 10", "probability .2", "the value .04", "estimates -.05"),
    },
}
"""By study, settings of its runs and numbers that follow from them; not results."""


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The summary of the study of drifting worlds, as its scripts see it."""
    for name in (before := ("contest", "experiment", "summary")):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(NONSTATIONARY))
    yield import_module("summary")
    for name in before:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("document", [NONSTATIONARY / "README.md", ROOT / "README.md"], ids=["study", "project"])
def test_tables_and_figures_of_drifting_worlds_are_those_of_the_stored_results(
    summary: ModuleType, document: Path
) -> None:
    results, text = NONSTATIONARY / "results", document.read_text()
    variants = json.loads((results / "variants.json").read_text())
    assert "<!-- =default_smooth -->" in text
    assert summary.fill_in(text, summary.read(results), variants) == text, "run `make figures`"


def test_a_changed_figure_is_written_again(summary: ModuleType) -> None:
    results = NONSTATIONARY / "results"
    variants, text = json.loads((results / "variants.json").read_text()), (NONSTATIONARY / "README.md").read_text()
    wrong = re.sub(r"\d(?=<!-- =)", "?", text)
    assert wrong != text
    assert summary.fill_in(wrong, summary.read(results), variants) == text


def test_the_tables_of_a_world_are_those_of_its_means(summary: ModuleType) -> None:
    results = NONSTATIONARY / "results"
    for world, means in summary.read(results).items():
        assert summary.markdown(means) == (results / f"{world}.md").read_text()


@pytest.mark.parametrize("study", [ESTIMATORS, SLATES], ids=lambda study: study.name)
def test_figures_of_estimators_and_slates_are_those_of_the_stored_results(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "summary", raising=False)
    monkeypatch.syspath_prepend(str(study))
    results, text = json.loads((study / "results.json").read_text()), (study / "README.md").read_text()
    own = import_module("summary")
    assert own.fill_in(text, results) == text, "run `make figures`"
    assert own.fill_in(re.sub(r"\d(?=<!-- =)", "?", text), results) == text
    sys.modules.pop("summary")


def prose(study: Path) -> str:
    """The results of a study without code, tables, addresses and marked figures."""
    text, (first, last) = (study / "README.md").read_text(), RESULTS[study]
    text = text[text.index(first) : None if last is None else text.index(last)]
    text = re.sub(r"^```.*?^```$|^\|[^\n]*$|^#[^\n]*$|`[^`\n]+`|\]\([^)]*\)", " ", text, flags=re.M | re.S)
    return " ".join(re.sub(MARKED, " ", text).split())


@pytest.mark.parametrize("study", CONSTANTS, ids=lambda study: study.name)
def test_every_figure_in_the_prose_of_results_is_marked_or_a_constant(study: Path) -> None:
    text = prose(study)
    known = [place.span() for each in CONSTANTS[study] for place in re.finditer(re.escape(each), text)]
    unmarked = [
        text[max(0, found.start() - 30) : found.end() + 20]
        for found in re.finditer(NUMBER, text)
        if not any(start <= found.start() and found.end() <= end for start, end in known)
    ]
    assert not unmarked, "\n".join(unmarked)
