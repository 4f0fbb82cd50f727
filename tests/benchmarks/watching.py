"""Measure scrapes and Reports of a daemon with many candidates, and its start-up."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from growth import names_of
from loop import FOUR, PUBLISHED
from measuring import Benchmark, Ratio, Work
from memory_source import MemorySource, parsing
from messages import compact

from streameval import CAB, Evaluator, Mixture, StratifiedIPS
from streameval.events import JsonDecoder
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text

CANDIDATES = 100


def benchmark(events: int = 4_000) -> Benchmark:
    values, names = compact(events), names_of(CANDIDATES)
    evaluator = Evaluator(names, [*FOUR, StratifiedIPS(), CAB(cap=5)], [*PUBLISHED, Mixture()], drift=None)
    running = Daemon(MemorySource(values), JsonDecoder(names), evaluator, stop_when_exhausted=True)
    running.run()

    def started(*arguments: str) -> Work:
        return Work(lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True))

    works = {
        "scrape": Work(lambda: metrics_text(replace(running.published))),
        "Report": Work(evaluator.report),
        "orjson.loads": parsing(values),
        "import streameval": started("-c", "import streameval"),
        "--help": started("-c", "import sys; from streameval.cli.app import main; sys.argv[1:] = ['--help']; main()"),
        "the daemon's modules": started("-c", "import streameval.service.startup"),
        "import numpy": started("-c", "import numpy"),
    }
    ratios = [
        Ratio("scrape", "orjson.loads", 250_000),
        Ratio("Report", "scrape"),
        Ratio("import streameval", "import numpy"),
        Ratio("--help", "import numpy"),
        Ratio("the daemon's modules", "import numpy"),
    ]
    return Benchmark(f"A scrape of {CANDIDATES} candidates, 6 estimators, 6 averages, and start-up", works, ratios)
