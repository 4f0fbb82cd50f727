"""Record the Reports of fixed cases, and compare the present Reports with recorded ones.

    PYTHONPATH=.:tests python tests/tools/recorded_reports.py --record DIR [CASE...]
    PYTHONPATH=.:tests python tests/tools/recorded_reports.py --compare DIR [--tolerance 1e-9] [CASE...]
    PYTHONPATH=.:tests python tests/tools/recorded_reports.py --cuts [CASE...]

`--cuts` feeds equal events in other pieces, and with restarts in between, and compares Reports to the last bit. One
case is kept as a test. Record it again only after a change that is meant to move numbers, and name that change in the
commit:

    PYTHONPATH=.:tests python tests/tools/recorded_reports.py --record tests/data/recorded_reports everything
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streameval
from support.recorded_cases import CASES, Feed, Reports

SMALLEST = 1e-12
"""Differences up to this one are rounding, however small the numbers are."""
KEYS = {
    "estimates": ("policy", "estimator", "average", "reward"),
    "segments": ("policy", "segment", "segment_value", "estimator", "average"),
    "policies": ("policy",),
    "calibration": ("policy", "average"),
    "learners": ("policy",),
    "promotion": ("policy", "rule"),
    "guardrails": ("reward",),
    "trust": ("policy", "check"),
    "transitions": ("policy", "rule", "event"),
    "failures": ("reason",),
}
"""Keys that name the entries of these lists. The order of entries is not compared."""
SENTENCES = {"reason", "example"}
"""Free text, which may change. Only its presence is compared."""


class Difference(NamedTuple):
    """Hold a value that differs.

    Args:
        path: Path of the value.
        present: Present value.
        wanted: Recorded value.
        relative: Relative difference, infinite unless both values are numbers.
        absolute: Absolute difference, infinite unless both values are numbers.
    """

    path: str
    present: Any
    wanted: Any
    relative: float = math.inf
    absolute: float = math.inf

    def __str__(self) -> str:
        sizes = f"{self.relative:.1e}, absolute {self.absolute:.1e}"
        return f"{self.path}: {self.present!r}, recorded {self.wanted!r} ({sizes})"


class Comparison(NamedTuple):
    """Hold the number of values that were compared, and the differences, the largest first."""

    compared: int
    differences: list[Difference]

    @property
    def largest_absolute(self) -> list[Difference]:
        """Return the largest absolute difference between numbers, if there is any."""
        numbers = [difference for difference in self.differences if math.isfinite(difference.absolute)]
        return sorted(numbers, key=lambda difference: -difference.absolute)[:1]

    def beyond(self, tolerance: float) -> list[Difference]:
        """List the differences above a relative tolerance."""
        return [difference for difference in self.differences if difference.relative > tolerance]


def leaves(value: Any, path: str = "", inside: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, name and null of Reports, with its path."""
    if isinstance(value, list):
        keyed = KEYS.get(inside)
        for index, entry in enumerate(value):
            name = index if keyed is None else " ".join(str(entry[key]) for key in keyed)
            yield from leaves(entry, f"{path}[{name}]", inside)
    elif isinstance(value, dict):
        for key, entry in value.items():
            if key in SENTENCES:
                yield f"{path}.{key}", bool(entry)
            else:
                yield from leaves(entry, f"{path}.{key}", key)
    else:
        yield path, value


def compare(present: Reports, wanted: Reports, ignored: str | None = None) -> Comparison:
    """Compare the Reports of a case.

    Args:
        present: Present Reports.
        wanted: Recorded Reports.
        ignored: Pattern of paths that may differ.
    """
    now, before = dict(leaves(present)), dict(leaves(wanted))
    paths = [path for path in {**before, **now} if ignored is None or not re.search(ignored, path)]
    unequal = [
        difference(path, now.get(path, "absent"), before.get(path, "absent"))
        for path in paths
        if path not in now or path not in before or now[path] != before[path]
    ]
    differing = [entry for entry in unequal if entry.absolute > SMALLEST]
    return Comparison(len(paths), sorted(differing, key=lambda entry: -entry.relative))


def difference(path: str, present: Any, wanted: Any) -> Difference:
    """Return the difference of two values that are not equal."""
    if not (is_number(present) and is_number(wanted)):
        return Difference(path, present, wanted)
    absolute = abs(present - wanted)
    return Difference(path, present, wanted, absolute / max(abs(present), abs(wanted)), absolute)


def is_number(value: Any) -> bool:
    """Tell whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def recorded(directory: Path, case: str) -> Reports:
    """Read the Reports of a case as they were recorded."""
    reports: Reports = json.loads(gzip.decompress((directory / f"{case}.json.gz").read_bytes()))
    return reports


def record(directory: Path, case: str) -> str:
    """Write the Reports of a case, and return what was written in words."""
    reports = CASES[case](Feed())
    text = json.dumps(reports, sort_keys=True, separators=(",", ":"))
    packed = gzip.compress(text.encode(), 9, mtime=0)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{case}.json.gz").write_bytes(packed)
    return f"{len(dict(leaves(reports))):9,} values {len(packed):10,} bytes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked for, and return 1 if a case raises or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--record", type=Path, metavar="DIR", help="record the cases into this folder")
    task.add_argument("--compare", type=Path, metavar="DIR", help="compare the cases with this folder")
    task.add_argument("--cuts", action="store_true", help="compare each case with itself under other cuts and restarts")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="the largest relative difference (default 1e-9)")
    parser.add_argument("--ignore", metavar="PATTERN", help="paths that may differ, e.g. 'adaptive_decay'")
    parser.add_argument("--show", type=int, default=1, metavar="N", help="the number of largest differences to print")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.cases) - CASES.keys())
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")

    print(f"the package in {streameval.__path__[0]}")

    def compared(present: Reports, wanted: Reports, tolerance: float) -> tuple[str, bool]:
        comparison = compare(present, wanted, options.ignore)
        beyond, largest = comparison.beyond(tolerance), comparison.differences[: options.show]
        largest += [entry for entry in comparison.largest_absolute if entry not in largest]
        count = f"{comparison.compared:9,} values {len(beyond):7,} differ"
        return "\n".join([count, *(f"    {entry}" for entry in largest)]), not beyond

    def work(case: str) -> Iterator[tuple[str, bool]]:
        if options.record:
            yield record(options.record, case), True
        elif options.compare:
            yield compared(CASES[case](Feed()), recorded(options.compare, case), options.tolerance)
        else:
            whole = CASES[case](Feed())
            for name, feed in (("cut", Feed(1)), ("cut again", Feed(2)), ("restarted", Feed(3, restarts=True))):
                text, same = exactly(CASES[case](feed), whole, compared)
                yield f"{name:10} {text}", same

    failed = [case for case in options.cases or CASES if not done(case, work)]
    if failed:
        print(f"{len(failed)} cases: {', '.join(failed)}")
    return int(bool(failed))


def exactly(
    present: Reports, wanted: Reports, compared: Callable[[Reports, Reports, float], tuple[str, bool]]
) -> tuple[str, bool]:
    """Tell whether Reports are equal to the last bit."""
    text, _ = compared(present, wanted, 0.0)
    same = json.dumps(present) == json.dumps(wanted)
    return text + ("" if same else "\n    not the same to the last bit"), same


def done(case: str, work: Callable[[str], Iterator[tuple[str, bool]]]) -> bool:
    """Do the work of a case, print the outcome or the traceback, and return whether all is well."""
    started, well = time.process_time(), True
    try:
        for text, passes in work(case):
            print(f"{case:32} {time.process_time() - started:6.2f} s {text}", flush=True)
            started, well = time.process_time(), well and passes
    except Exception:  # noqa: BLE001 - one case must not end the others
        print(f"{case:32} raised\n{traceback.format_exc()}", flush=True)
        return False
    return well


if __name__ == "__main__":
    sys.exit(main())
