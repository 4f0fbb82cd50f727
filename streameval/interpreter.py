"""What a program of ours asks of its process: a verb of the command line may, a library in somebody's process may not.

Only `cli` knows this module (the layers in pyproject.toml hold that).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from streameval.allocation import keep_freed_memory, lending_memory

SWITCH_INTERVAL = 0.001
"""Seconds after which a thread at work makes way for another: at 5 ms, Python's own, a scrape waits ten times that."""
COLLECT_AFTER = (10_000, 10, 100)
"""Objects that come between collections of the youngest, and collections of each generation between those of the next.

Thousands of events wait for their order in time, and leave no cycles behind: with Python's own numbers (700, 10, 10)
all that wait were walked over every second or two, and a replay of events with action sets takes a tenth longer.
"""


def make_quick() -> None:
    """Ask for what suits every verb; called once, before it begins.

    The library under numpy must not share out matrices: ours are small, its threads would wait for each other. Memory
    that was freed is kept, and few collections look for cycles.
    """
    threadpool_limits(limits=1, user_api="blas")
    keep_freed_memory()
    gc.set_threshold(*COLLECT_AFTER)


@contextmanager
def responsive() -> Iterator[None]:
    """Ask besides, as long as it works, for what suits a verb that answers scrapes meanwhile: `run` and `demo`.

    Begun once, when everything is loaded and before the first event. What exists now stays for good: the garbage
    collector need not walk over it again and again, at 50 to 200 ms a time in which neither loop nor scrape moves. And
    memory that was freed is kept for a minute only, since such a verb runs for months.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    with lending_memory():
        yield
