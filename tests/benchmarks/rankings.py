"""Compare a page with clicks to a compact event in the daemon's loop. Candidates give the ranks of clicked items."""

from __future__ import annotations

from measuring import Benchmark, Ratio
from memory_source import daemon
from messages import CANDIDATES, compact, pages

from streameval import Evaluator

RANKING = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": 1}}
PAGE, EVENT = "page of 20 items, 2 clicks", "compact event"


def benchmark(events: int = 10_000) -> Benchmark:
    ranked, plain = Evaluator(CANDIDATES, ranking=RANKING), Evaluator(CANDIDATES)
    works = {
        PAGE: daemon(pages(events, 20, 2), ranked.config.decoder(), ranked),
        EVENT: daemon(compact(events), plain.config.decoder(), plain),
    }
    return Benchmark("Rankings, from messages", works, [Ratio(PAGE, EVENT, 2.0)])
