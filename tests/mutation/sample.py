"""The share of seeded mutants that the tests of their part kill.

    make mutants ARGS="list"
    make mutants ARGS="run tests/mutation/RECORD.json"
    make mutants ARGS="summary tests/mutation/RECORD.json [tests/mutation/EARLIER.json]"

`parts.toml` lists the parts of the package with their tests. The sample has a fixed number of mutants of each kind,
spread over the parts in proportion to the places where that kind is possible; the same sources give the same sample.
`run` writes one mutant at a time into a copy of the checkout and runs the doctests of the module, its mirror test
file, then the other tests of its part, until one fails. It writes the record after each mutant, and continues a record
that is not complete. A survivor that no test can kill gets a key `equivalent` with the reason, by hand; `summary`
leaves it out of the share. With an earlier record, `summary` compares the shares of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
PARTS = Path(__file__).with_name("parts.toml")
SEED = 11
SIZES = {
    "arithmetic": 26,
    "constant": 26,
    "comparison": 18,
    "boundary": 12,
    "negation": 16,
    "function": 16,
    "return": 12,
    "slice": 10,
    "logic": 8,
    "argument": 6,
}
"""How many mutants of each kind are sampled."""
PROCESSOR_LIMIT = 600
"""Seconds of processor time for the tests of one mutant. A mutant that takes more counts as killed."""
PYTEST = ("-m", "pytest", "-x", "-q", "--hypothesis-seed=0", "--doctest-modules", "--timeout=600")
LIMITED = ("sh", "-c", f'ulimit -t {PROCESSOR_LIMIT}; exec "$@"', "sh")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", ".hypothesis", "build", "dist", "*.so")


@dataclass(frozen=True)
class Part:
    """Sources that are judged together, and by which tests."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """Files or directories, in the order in which they run."""
    without: str
    """Names of tests that take long and decide nothing that others do not, as an expression for `pytest -k`."""

    def tests_of(self, source: str) -> list[str]:
        """Tests that judge a mutant of this source; the most likely to kill it first."""
        mirror = _mirror(source)
        return list(dict.fromkeys([source, *([mirror] if (ROOT / mirror).exists() else []), *self.tests]))


@dataclass(frozen=True)
class Chosen:
    """A mutant of the sample."""

    part: Part
    source: str
    mutant: Mutant

    def entry(self) -> dict[str, Any]:
        """Its entry in the record before it is judged."""
        mutant = self.mutant
        place = {"part": self.part.name, "kind": mutant.kind, "file": self.source, "line": mutant.line}
        return {**place, "from": mutant.original, "to": mutant.replacement}


def parts() -> list[Part]:
    table = tomllib.loads(PARTS.read_text())
    return [
        Part(name, _expanded(part["sources"]), _expanded(part["tests"]), part.get("without", ""))
        for name, part in table.items()
    ]


def sample() -> list[Chosen]:
    """The mutants to judge, by part and place."""
    sites = [
        Chosen(part, source, mutant)
        for part in parts()
        for source in part.sources
        for mutant in mutants_of((ROOT / source).read_bytes())
    ]
    chosen = []
    for kind, size in SIZES.items():
        possible = [site for site in sites if site.mutant.kind == kind]
        for part, share in _apportioned(size, Counter(site.part.name for site in possible)).items():
            those = [site for site in possible if site.part.name == part]
            chosen += random.Random(f"{SEED} {kind} {part}").sample(those, share)
    return sorted(chosen, key=lambda one: (one.part.name, one.source, one.mutant))


def _apportioned(size: int, counts: Counter[str]) -> dict[str, int]:
    """`size` seats in proportion to the counts, by largest remainders."""
    total = counts.total()
    seats = {name: min(size, total) * count // total for name, count in counts.items()}
    remainders = sorted(counts, key=lambda name: (-(min(size, total) * counts[name] % total), name))
    for name in remainders[: min(size, total) - sum(seats.values())]:
        seats[name] += 1
    return seats


def _expanded(patterns: Iterable[str]) -> tuple[str, ...]:
    """Paths in the checkout; each pattern must match something."""
    found: list[str] = []
    for pattern in patterns:
        paths = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        if not paths:
            raise SystemExit(f"{PARTS.name}: nothing matches {pattern}")
        found += paths
    return tuple(dict.fromkeys(found))


def _mirror(source: str) -> str:
    """Where the tests of this source are, if it has its own tests."""
    _package, *folders, module = Path(source).with_suffix("").parts
    return str(Path("tests", "unit", *folders, f"test_{module}.py"))


class Copy:
    """A copy of the checkout in which one source at a time is mutated."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT, root, ignore=NOT_COPIED)

    def judge(self, chosen: Chosen) -> dict[str, Any]:
        """The outcome of the tests with this mutant."""
        path = self.root / chosen.source
        original = path.read_bytes()
        path.write_bytes(chosen.mutant.applied_to(original))
        start = time.monotonic()
        try:
            killer = self.first_failure(chosen.part, chosen.source)
        finally:
            path.write_bytes(original)
        outcome = {"outcome": "survived"} if killer is None else {"outcome": "killed", "by": killer}
        return {**outcome, "seconds": round(time.monotonic() - start)}

    def first_failure(self, part: Part, source: str) -> str | None:
        """The test of this source that fails first; None: all pass."""
        self._forget()
        environment = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
        skipped = ("-m", "not slow and not kafka", "-k", f"not ({part.without})" if part.without else "")
        done = subprocess.run(
            [*LIMITED, sys.executable, *PYTEST, *skipped, *part.tests_of(source)],
            cwd=self.root,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return (failed[1] if failed else f"exit code {done.returncode}") if done.returncode else None

    def _forget(self) -> None:
        """Examples that Hypothesis remembers, so that no mutant is judged with those of another one."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)


def run(record: Path, jobs: int) -> None:
    """Judge what the record does not have yet."""
    judged = read(record) if record.exists() else []
    chosen = [one for one in sample() if not any(one.entry().items() <= entry.items() for entry in judged)]
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, ThreadPoolExecutor(jobs) as pool:
        for index in range(jobs):
            copies.put(Copy(Path(folder, str(index))))
        _require_that_all_pass(chosen, copies)

        def judge(one: Chosen) -> dict[str, Any]:
            copy = copies.get()
            try:
                return one.entry() | copy.judge(one)
            finally:
                copies.put(copy)

        for entry in pool.map(judge, _alternating(chosen)):
            judged.append(entry)
            _write(record, judged)
            print(entry["outcome"], entry["seconds"], entry["file"], entry["line"], entry["to"], flush=True)
    summary(record)


def _require_that_all_pass(chosen: Sequence[Chosen], copies: queue.SimpleQueue[Copy]) -> None:
    """A test that fails without a mutant would kill all of them."""
    copy = copies.get()
    for part, source in {one.part: one.source for one in chosen}.items():
        start = time.monotonic()
        if (failed := copy.first_failure(part, source)) is not None:
            raise SystemExit(f"without a mutant, a test of {part.name} fails: {failed}")
        print(f"tests of {part.name}: {time.monotonic() - start:.0f} s", flush=True)
    copies.put(copy)


def _alternating(chosen: Sequence[Chosen]) -> list[Chosen]:
    """In an order that mixes parts, so that a record that was cut short is a sample, too."""
    return random.Random(SEED).sample(chosen, len(chosen))


def summary(record: Path, earlier: Path | None = None) -> None:
    """Print the shares that were killed, by part and by kind, those of an earlier record, and all survivors."""
    judged = read(record)
    for name, count in shares(judged, "part").items():
        print(f"part {name}: {_text(count)}")
    before = {} if earlier is None else shares(read(earlier), "kind")
    for name, count in shares(judged, "kind").items():
        print(f"kind {name}: {_text(count)}" + (f", before: {_text(before[name])}" if name in before else ""))
    print(f"all: {_text(share(judged))}" + ("" if earlier is None else f", before: {_text(share(read(earlier)))}"))
    for entry in judged:
        if entry["outcome"] == "survived" and "equivalent" not in entry:
            print(f"survived: {entry['file']}:{entry['line']} {entry['from']!r} -> {entry['to']!r}")


def shares(judged: Sequence[dict[str, Any]], by: str) -> dict[str, tuple[int, int]]:
    """For each `part` or `kind`, how many mutants were killed, and how many a test can kill."""
    names = sorted({entry[by] for entry in judged})
    return {name: share([entry for entry in judged if entry[by] == name]) for name in names}


def share(judged: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many mutants were killed, and how many a test can kill."""
    count = [entry for entry in judged if "equivalent" not in entry]
    return sum(entry["outcome"] == "killed" for entry in count), len(count)


def _text(count: tuple[int, int]) -> str:
    killed, possible = count
    return f"{killed} of {possible} ({killed / possible:.3f})" if possible else "none"


def read(record: Path) -> list[dict[str, Any]]:
    mutants: list[dict[str, Any]] = json.loads(record.read_text())["mutants"]
    return mutants


def _write(record: Path, judged: Iterable[dict[str, Any]]) -> None:
    """Write the record; what else it has, as the commit that was judged, stays."""
    mutants = sorted(judged, key=lambda entry: (entry["part"], entry["file"], entry["line"], entry["to"]))
    kept = json.loads(record.read_text()) if record.exists() else {"commit": _commit()}
    whole = kept | {"seed": SEED, "mutants": mutants}
    record.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=["list", "run", "summary"])
    parser.add_argument("record", type=Path, nargs="?")
    parser.add_argument("earlier", type=Path, nargs="?", help="a record to compare with")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are judged at the same time")
    arguments = parser.parse_args()
    if arguments.verb == "list":
        for one in sample():
            print(*one.entry().values(), sep="\t")
    elif arguments.record is None:
        parser.error("name the file of the record")
    elif arguments.verb == "run":
        run(arguments.record, arguments.jobs)
    else:
        summary(arguments.record, arguments.earlier)


if __name__ == "__main__":
    main()
