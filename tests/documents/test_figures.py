"""Figures in prose come from stored results: each stands before a marker, or is a constant that is listed here."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, TypeVar
from zlib import crc32

import msgspec
import pytest

import streameval
from support.paths import ROOT
from support.scripts import importable

NUMBER = r"(?<![\w.-])[.]?\d(?:[\d.,]*\d)?"
MARKED = r"[^\s(]+<!-- =\w+ -->"
NONSTATIONARY = ROOT / "examples" / "nonstationary"
ESTIMATORS, SLATES = ROOT / "examples" / "estimators", ROOT / "examples" / "slates"
RANKINGS, SAFE = ROOT / "examples" / "rankings", ROOT / "examples" / "safe_exploration"
OBJECTIVES, OPEN_BANDIT = SAFE / "objectives.md", ROOT / "examples" / "open_bandit"
COVERAGE, PROMOTION, DEPLOY = ROOT / "examples" / "coverage", ROOT / "examples" / "promotion", ROOT / "deploy"
RESULTS = {
    ROOT: ("", None),
    DEPLOY: ("", None),
    NONSTATIONARY: ("## Results", None),
    COVERAGE: ("## Results", None),
    PROMOTION: ("## Results", None),
    ESTIMATORS: ("## Handwritten digits as a bandit", "## On your own events"),
    SLATES: ("## Error of the estimators", None),
    RANKINGS: ("## Results", "## Run it"),
    SAFE: ("## Results", "## End to end"),
    OBJECTIVES: ("## Objectives", "## Run it"),
    OPEN_BANDIT: ("## Meaning of the estimates", "## Licence"),
}
"""The sections of documents that are about results: from this heading to that one."""
CONSTANTS = {
    ROOT: {
        *(
            "95 % intervals",
            "Python 3.11",
            "http://127.0.0.1:3000",
            "<http://127.0.0.1:9108>",
            "<http://127.0.0.1:9090/alerts>",
            "port 9108",
            "away from 1",
            "of lift -0.002",
        ),
        *("under margin 0;", "about 40,000 more events", "lift of 1 %", "use 90 %", "(about 10,000)", "License 2.0"),
    },
    DEPLOY: {
        *("Docker 24", "<http://127.0.0.1:3000>", "<http://127.0.0.1:9108>", "(10,000 events)", "about 1.5 GB"),
        *("ports 3000, 9090, 9092, 9093 and 9108", "ports 9092 to 9098", "volume of 1 GiB", "about 1 MB", "Grafana 11"),
        *("Python 3.11", "includes 0", "weight at 1", "Lag near 0", "away from 1", "above 0", "100,000 events"),
        *("1. **Which", "2. **How", "3. **What", "4. **Can", "5. **Is", "of 2 in Kubernetes"),
        *("never 0 or", "and 0, its default", "takes 272 bytes"),
    },
    NONSTATIONARY: {
        *("10,000 events", "50,000 events", "2,000 (noise)", "50,000 (staleness)", "seeds 0 and 1", "20 seeds"),
        *("seed 0", "seeds 0 to 5", "18 runs", "seeds 0 to 2", "0 and 1", "otherwise 0", "95%", "95 %"),
        *(".07 and .08 for values of .14 to .49", "first 300 events", "window of 10,000", "needs 10,000", "40,000"),
        *("250,000 events", "100,000 rewards", ".025 in theory", "1,250, 2,500, 5,000, 10,000 and"),
        *("500,000 and 300,000 events", "100,000 events do not separate", "seeds 100 to 109"),
        *("20 seeds of Last.fm", "200,000 events each", "1,000 a second"),
        *("Table 5.2", "100 moments", "after 100 interactions", "After 100 interactions", "every 10,000 from"),
        *("weight of 125", "up to 1.25", "9 of its 100 moments", "9 of 990"),
        *("were .11 in smooth, .38 in abrupt and .035 in stationary", "seeds 0 and 1, 300,000 events"),
        "seeds 0 and 1, 400,000 events; its weights are 0, 1.24 or 125",
    },
    COVERAGE: {
        *("nominal maximum is 5.", "values near .3", "(.03)", "if 50 of them", "blocks of 100 events", "60 looks"),
        *("under 5 %", "1 + 19 · .2 = 4.8", "between 0 and .4", "period of 25,000 events", "20 runs of 100,000 events"),
        *("Sessions that run 50 at a time", "50 at a time without", "values near .03", "window of 2,000 events"),
        *("own last 1,600 to 3,200 events", "Near .3", "expected weight is 1", "1 over the smallest", "leaves 1 -"),
        *("a standard error below 1", "any probability up to 1", "in 4,000 runs", "widths of 95 % intervals"),
        *(
            "a window of 2,000, and over 300 to 10,000 (50,000) events",
            "from 2,000 events",
            "From 2,000 events",
            "weight is below 1",
            "after 10,000 events",
            "they miss more than 5 %",
            "logged once in 1,000 events",
            "one of them takes 50 actions evenly",
            "production that takes 50 actions evenly",
            "among 300 events",
        ),
        *("learns from 100,000 events", "up to 40,000 effective", "200,000 to 400,000 events", "has lift 0"),
        *("± .0006 after 5,000 events", "gives [0, 0]", "always 1**", "interval [1, 1]", "differs from 1 once"),
    },
    PROMOTION: {
        *("all 20 seeds", "margin by 1.75 errors", "down to .9", "factors 2 and 1/3", "factor .9"),
        *("factors 1.75 and 1.3", "on seed 100 of each"),
        *("100 to 105 of smooth and 100 to 103 of abrupt", "share .6", "seeds 1 to 5 of smooth and 1 to 4 of abrupt"),
        *(
            "worse by more than .01",
            "heavy ones up to 125",
            "this is 5 % for every candidate",
            "between 0 and .2",
            "period of 25,000",
        ),
        *("at most 1 of 20 streams", "of 80."),
        *("Seeds from 100 on", "seeds from 0 on", "margin by 2.3 errors", "needs about 4.", "design effect above 1.5"),
    },
    ESTIMATORS: {
        *("earns 1", "40 images", "400 images", "8 principal components", "Each of 100 logs has 10,000 events"),
        *("instead of 0", "as 0.", "With 3 of 10", "M = 20"),
    },
    SLATES: {
        *("50 queries with 10 or 100 documents", "top 5 or 10", "2^-⌊log₂ k⌋", "over 50 logs of up to 100,000 slates"),
        *("10 of 100 documents", "estimates 0,", "With 5 of 10", "probability .2", "the value .04", "estimates -.05"),
    },
    RANKINGS: {
        *("DCG at 10", "of 30,000 pages", "95 % intervals", "100 runs of 300 to 30,000 pages", "first 8 documents"),
        *("After 40,000 pages", "1 / √k", "1 / k"),
    },
    SAFE: {
        *("700 events to learn from", "over 5 seeds", "it should be 1", "on seeds from 100", "every 6,400 events"),
        *("with 5000, it", "than with 10000", "with 20000, it"),
    },
    OBJECTIVES: {
        *("of 200,000 events", "mean weight is 1", "the 95 % sequence", "probability of .001"),
        *(
            "from 5,000 events in 20",
            "every 25,000 events",
            "With the default, 0.02,",
            "below .92",
            "accuracy of .92",
            "other seeds, from 100",
        ),
    },
    OPEN_BANDIT: {
        *("is 1/K", "38 to 69 clicks", "weight 19.6, on the 27th", "10,000 events contain", ".953 instead of 1"),
        *("missing .047", ".0007 to .0333", "weights to 80", ".0004 to .0938", ".0042 on", ".0069 on"),
        *(".0038 and .0046", ".0035 and .0051 for random, .0050 and .0067 for BTS"),
    },
}
"""By document, settings and numbers that follow from them; not results of simulations.

Other tests compute the lift of a candidate that always agrees with production, the errors that `paired` needs, and the
numbers of the Open Bandit logs.
"""


IN_DOCSTRINGS = {
    "Decay": {"0.9999", "5.11"},
    "DriftAware": {"2.4"},
    "IPS": {".3", ".6"},
    "Mixture": {"0.4"},
    "PseudoInverse": {".2", ".8"},
    "Switch": {".2", ".4"},
    "Window": {"5.8"},
}
"""Decimals in docstrings of public classes: settings, equations and examples."""
MEASURED = r"(?<![\w.,-])\d*[.]\d+|\d[\d.,]*(?=\s*(?:%|percent|times|ms|us|microseconds|milliseconds)(?!\w))"
"""Numbers that may be results: decimals, and those with such a unit."""
NOT_NUMBERS = {
    *("", "world", "log", "idea", "rule", "weights", "rewards", "interval", "events", "average", "runs", "streams"),
    *("runs of `auto`", "candidates", "promised", "with 99.9% at most", "`paired` should", "leads that lasted"),
    *("seeds", "streams with a promotable candidate", "never found", "correlation with the squared error"),
    "at 100,000 slates",
}
"""Columns of tables with names, or with counts of runs, of which the stored lines are the evidence."""


@pytest.fixture
def modules() -> Iterator[Callable[..., list[ModuleType]]]:
    """Imports modules of a study."""
    with ExitStack() as studies:

        def found(study: Path, *names: str) -> list[ModuleType]:
            studies.enter_context(importable(study))
            return [import_module(name) for name in names]

        yield found


@pytest.fixture
def summary(modules: Callable[..., list[ModuleType]]) -> ModuleType:
    """The summary of the study of drifting worlds."""
    return modules(NONSTATIONARY, "summary")[0]


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


@pytest.mark.parametrize("study", [ESTIMATORS, SLATES, RANKINGS], ids=lambda study: study.name)
def test_figures_of_estimators_slates_and_rankings_are_those_of_the_stored_results(
    study: Path, modules: Callable[..., list[ModuleType]]
) -> None:
    results, text = json.loads((study / "results.json").read_text()), (study / "README.md").read_text()
    (own,) = modules(study, "summary")
    assert own.fill_in(text, results) == text, "run `make figures`"
    assert own.fill_in(re.sub(r"\d(?=<!-- =)", "?", text), results) == text


def test_stored_results_are_as_their_studies_wrote_them() -> None:
    """Also the numbers that no table shows."""
    examples = ROOT / "examples"
    sums = dict(reversed(line.split()) for line in (examples / "results.sha256").read_text().splitlines())
    stored = [path for kind in ("csv", "json") for path in examples.glob(f"*/results/*.{kind}")]
    stored += examples.glob("*/results.json")
    assert {str(path.relative_to(examples)) for path in stored} <= sums.keys()
    for name, known in sums.items():
        found = hashlib.sha256((examples / name).read_bytes()).hexdigest()
        assert found == known, f"{name}: after a study, run `make figures`"


def test_pictures_are_drawn_from_the_present_results(modules: Callable[..., list[ModuleType]]) -> None:
    drawn: dict[Path, object] = {}
    (summary,) = modules(NONSTATIONARY, "summary")
    for picture in ("forgetting", "jumps"):
        drawn[NONSTATIONARY / f"results/lastfm_{picture}.png"] = summary.stored(NONSTATIONARY / "results/lastfm.json")
    summary, csv = modules(COVERAGE, "summary", "csv_rows")
    drawn[COVERAGE / "results/misses.png"] = csv.read_rows(summary.Row, COVERAGE / "results/coverage.csv")
    (runs,) = modules(PROMOTION, "runs")
    scores = runs.Store(PROMOTION / "results/lastfm.jsonl", runs.Score).read()
    drawn[PROMOTION / "results/lastfm_delays.png"] = scores
    for picture in ("rmse", "layout"):
        drawn[RANKINGS / f"{picture}.png"] = json.loads((RANKINGS / "results.json").read_text())
    study, objectives = modules(SAFE, "study", "objectives")
    moving = objectives.stored("moving"), objectives.stored("copies")
    drawn |= {SAFE / "results/rules.png": study.stored(), SAFE / "results/moving.png": moving}
    for picture, results in drawn.items():
        noted = f"Results\0{crc32(repr(results).encode()):08x}"  # a text of a PNG file, after its keyword
        assert noted.encode() in picture.read_bytes(), f"redraw {picture}"


def prose(study: Path) -> str:
    """The results of a study, or of another document, without code, tables, addresses and marked figures."""
    text, (first, last) = (study if study.suffix else study / "README.md").read_text(), RESULTS[study]
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


@pytest.mark.parametrize("name", streameval.__all__)
def test_docstrings_of_public_names_have_no_figures_of_simulations(name: str) -> None:
    text = inspect.getdoc(getattr(streameval, name)) or ""
    text = re.sub(r"`[^`]*`|^\s*>>>.*(?:\n(?!\s*$).*)*|^Source:.*(?:\n.+)*", " ", text, flags=re.M)
    assert set(re.findall(MEASURED, text)) == IN_DOCSTRINGS.get(name, set())


def test_the_annotated_configuration_has_no_figures_of_simulations_but_one() -> None:
    """That 10 % of the traffic leave a third of the error is a statistical test: see `test_balanced_weights`."""
    text = (ROOT / "streameval" / "config" / "streameval.yaml").read_text()
    comments = " ".join(re.findall(r"#.*", text))
    assert re.findall(r"\d[\d.,]*(?=\s*(?:%|percent|times)(?!\w))", comments) == ["10"]


Value = TypeVar("Value")
KEPT = {"seed", "events", "runs", "seeds", "candidates", "chunk", "stretches", "shown"}
"""Fields that name a run, or are in no document."""


def other(value: Any, rng: Random, whole: bool = True) -> Any:
    """The same with other numbers, at most .4 larger where they are not `whole`."""
    if isinstance(value, dict):
        more = {"false_starts": [*value["false_starts"], [0, 100, -0.1]]} if "false_starts" in value else {}
        return {name: part if name in KEPT else other(part, rng, whole) for name, part in {**value, **more}.items()}
    if isinstance(value, list | tuple):
        return [other(part, rng, whole) for part in value]
    if not isinstance(value, float) and not (whole and isinstance(value, int)):
        return value
    changed = value * rng.uniform(0.3, 0.9) + rng.uniform(0.05, 0.4)
    return changed if isinstance(value, float) else int(changed) + rng.randint(1, 9)


def others(rows: list[Value], kind: type[Value], seed: int) -> list[Value]:
    """Rows of named tuples or structs with other numbers."""
    rng = Random(seed)
    plain = [row._asdict() if hasattr(row, "_asdict") else msgspec.to_builtins(row) for row in rows]
    changed = [other(row, rng) for row in plain]
    return [kind(**row) if hasattr(kind, "_fields") else msgspec.convert(row, kind) for row in changed]


def numbers(document: str) -> Iterator[tuple[str, str]]:
    """The marked figures, and the cells of tables with numbers, each with its place."""
    for place, marked in enumerate(re.finditer(r"([^\s(]+)<!-- =(\w+) -->", document)):
        yield f"{marked[2]} ({place})", marked[1]
    for table in re.finditer(r"<!-- table: (\w+) -->\n((?:\|[^\n]*\n)+)", document):
        head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[2].splitlines())
        for row, line in enumerate(lines):
            for column, cell in zip(head, line, strict=True):
                if column not in NOT_NUMBERS and re.search(r"\d", cell):
                    yield f"{table[1]}, row {row}, {column}", cell


def unchanged(before: str, change: Callable[[int], str]) -> set[str]:
    """The places of the numbers that are the same in a document and in three others, made from other numbers.

    A number that is one of a few, such as the best memory, may be the same by chance.
    """
    same = set.intersection(*(set(numbers(document)) for document in (before, *map(change, (1, 2, 3)))))
    return {(place, number) for place, number in same if not place.startswith(("best_", "weighted_worst"))}


def test_every_figure_of_the_coverage_study_follows_its_stored_results(
    modules: Callable[..., list[ModuleType]],
) -> None:
    summary, effects, limits, csv = modules(COVERAGE, "summary", "effects", "limits", "csv_rows")
    text, results = (COVERAGE / "README.md").read_text(), COVERAGE / "results"
    rows = csv.read_rows(summary.Row, results / "coverage.csv")
    rates = csv.read_rows(limits.Rate, results / "limits.csv")
    found = csv.read_rows(effects.Effect, results / "design_effects.csv")
    assert set(re.findall(r"<!-- =(\w+) -->", text)) <= {*summary.figures(rows), *summary.figures_of_limits(rates)}

    def changed(seed: int) -> str:
        document = summary.fill_in(text, others(rows, summary.Row, seed))
        document = summary.fill_in_limits(document, others(rates, limits.Rate, seed))
        return str(summary.fill_in_effects(document, others(found, effects.Effect, seed)))

    compared = summary.figures(rows)["bernstein_compared"]
    assert {number for _, number in unchanged(text, changed)} == {compared}, "only this one counts stored rows"


def test_every_figure_of_the_promotion_study_follows_its_stored_results(
    modules: Callable[..., list[ModuleType]],
) -> None:
    summary, runs = modules(PROMOTION, "summary", "runs")
    text, results = (PROMOTION / "README.md").read_text(), PROMOTION / "results"
    kinds = {"lastfm": runs.Score, "same": runs.Outcome, "errors": runs.ErrorScores, "long": runs.LongOutcome}
    stored = {name: runs.Store(results / f"{name}.jsonl", kind).read() for name, kind in kinds.items()}

    def changed(seed: int) -> str:
        return str(summary.fill_in(text, *(others(stored[name], kind, seed) for name, kind in kinds.items())))

    assert unchanged(text, changed) == set()


def test_every_figure_of_safe_exploration_follows_its_stored_results(modules: Callable[..., list[ModuleType]]) -> None:
    summary, loop = modules(SAFE, "summary", "loop")
    text, results = (SAFE / "README.md").read_text(), SAFE / "results"
    overfitting, one = json.loads((results / "overfitting.json").read_text()), loop.Deployment(9_000, 0.5, 0.4)
    stored = [msgspec.json.decode(line, type=loop.Run) for line in (results / "runs.jsonl").read_bytes().splitlines()]

    def changed(seed: int) -> str:
        moved, rng = others(stored, loop.Run, seed), Random(seed)
        moved = [
            msgspec.structs.replace(run, deployments=(run.deployments or [one])[: rng.randint(0, 2)]) for run in moved
        ]
        return str(summary.fill_in(text, moved, other(overfitting, rng)))

    assert unchanged(text, changed) == set()


@pytest.mark.parametrize("study", [ESTIMATORS, SLATES, RANKINGS], ids=lambda study: study.name)
def test_every_figure_of_estimators_slates_and_rankings_follows_its_stored_results(
    study: Path, modules: Callable[..., list[ModuleType]]
) -> None:
    results, text = json.loads((study / "results.json").read_text()), (study / "README.md").read_text()
    (own,) = modules(study, "summary")
    assert unchanged(text, lambda seed: str(own.fill_in(text, other(results, Random(seed), whole=False)))) == set()


def test_every_figure_of_drifting_worlds_follows_its_stored_results(summary: ModuleType) -> None:
    text, results = (NONSTATIONARY / "README.md").read_text(), NONSTATIONARY / "results"
    variants, means = (results / "variants.json").read_text(), summary.read(results)

    def changed(seed: int) -> str:
        moved = json.loads(re.sub(r"\d", lambda digit: str((int(digit[0]) + seed) % 10), variants))
        return str(summary.fill_in(text, {of: others(means[of], summary.Mean, seed) for of in means}, moved))

    assert unchanged(text, changed) == set()
