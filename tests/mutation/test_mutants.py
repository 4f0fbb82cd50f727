"""Which mutants a source has, and which of its parts are left alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mutation.mutants import mutants_of
from mutation.sample import ROOT, SIZES, Chosen, parts, read, sample, share, shares


def mutations(source: str) -> set[tuple[str, str]]:
    """Kinds, with the sources that the mutants leave."""
    encoded = source.encode()
    return {(mutant.kind, mutant.applied_to(encoded).decode()) for mutant in mutants_of(encoded)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {("boundary", "(a <= b)"), ("comparison", "(a >= b)")}),
        ("a is b", {("comparison", "(a is not b)")}),
        ("a and b", {("logic", "(a or b)")}),
        ("a & ~b", {("logic", "(a | ~b)"), ("negation", "a & (b)")}),
        ("not a", {("negation", "(a)")}),
        ("b if a else c", {("negation", "b if (not a) else c")}),
        ("a - b", {("arithmetic", "(a + b)")}),
        ("a += b", {("arithmetic", "a -= b")}),
        ("a[-1]", {("constant", "a[0]")}),
        ("a[:-1]", {("slice", "a[:-2]")}),
        ("a[b:]", {("slice", "a[(b + 1):]")}),
        ("f(0, 0.5, True)", {("constant", f"f({it})") for it in ("1, 0.5, True", "0, 1.0, True", "0, 0.5, False")}),
        ("np.minimum(a, b)", {("function", "np.maximum(a, b)")}),
        (
            "(a > b).any()",
            {("function", "(a > b).all()"), ("boundary", "((a >= b)).any()"), ("comparison", "((a <= b)).any()")},
        ),
        ("a.sum(axis=b)", {("argument", "(a.sum())")}),
        ("def f(a):\n    return a", {("return", "def f(a):\n    return None")}),
        ("“é”; a * b".replace("“", "'").replace("”", "'"), {("arithmetic", "'é'; (a / b)")}),
    ],
)
def test_a_source_has_these_mutants(source: str, expected: set[tuple[str, str]]) -> None:
    assert mutations(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""More than 1."""',
        "a: dict[str, 1]",
        "raise ValueError(1 + 2)",
        'f"{a + 1}"',
        "if TYPE_CHECKING:\n    a = 1",
        "@cache(1)\ndef f(a: 1) -> None:\n    return",
        "isinstance(a, B | C)",
        "Number = int | float",
        "zip(a, b, strict=True)",
    ],
)
def test_options_that_decide_no_result_may_change(source: str) -> None:
    assert mutations(source) == set()


@pytest.fixture(scope="module")
def chosen() -> list[Chosen]:
    return sample()


def test_the_sample_is_the_same_each_time_and_has_a_fixed_number_of_each_kind(chosen: list[Chosen]) -> None:
    assert chosen == sample()
    assert Counter(one.mutant.kind for one in chosen) == SIZES
    assert sum(SIZES.values()) == 150


def test_every_mutant_is_a_program_that_differs(chosen: list[Chosen]) -> None:
    originals = {source: (ROOT / source).read_bytes() for source in {one.source for one in chosen}}
    trees = {source: ast.dump(ast.parse(original)) for source, original in originals.items()}
    for one in chosen:
        assert ast.dump(ast.parse(one.mutant.applied_to(originals[one.source]))) != trees[one.source]


def test_every_module_of_the_estimation_the_events_and_the_stages_belongs_to_one_part() -> None:
    listed = [source for part in parts() for source in part.sources]
    folders = (ROOT / "streameval" / folder for folder in ("events", "ingest/stages", "ope"))
    modules = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.py")]
    assert sorted(listed) == sorted(set(modules) - {"streameval/ope/__init__.py"})


def judged(record: str) -> list[dict[str, Any]]:
    """The mutants of a record."""
    return read(Path(__file__).with_name(record))


def test_the_tests_kill_no_smaller_share_of_any_kind_than_before_the_package_had_its_layout() -> None:
    before, after = (shares(judged(record), "kind") for record in ("before.json", "after.json"))
    assert before.keys() == after.keys() == SIZES.keys()
    for kind, (killed, possible) in after.items():
        assert killed / possible >= before[kind][0] / before[kind][1], kind
    killed, possible = share(judged("after.json"))
    assert killed / possible >= 0.85


@pytest.mark.parametrize("record", ["before.json", "after.json"])
def test_a_record_has_each_mutant_once_and_as_many_of_a_kind_as_the_sample(record: str) -> None:
    mutants = judged(record)
    places = {(each["file"], each["line"], each["kind"], each["from"], each["to"]) for each in mutants}
    assert len(places) == len(mutants)
    assert Counter(each["kind"] for each in mutants) == SIZES
